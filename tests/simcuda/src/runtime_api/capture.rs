//! Stream capture and graphs.

use std::collections::HashMap;
use std::ffi::{c_ulonglong, c_void};
use std::ptr::{null, null_mut};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use flagstone::driver::Stream;
use flagstone::driver::sim::{Code, CuResult, Graph};

use super::major::Major;
use super::{device_of, runtime};
use crate::driver_api::capture::{exchange, mode, status};
use crate::driver_api::write;

/// The graphs and the executable ones by handle. Handles do not come back.
#[derive(Default)]
struct Graphs {
    last: usize,
    graphs: HashMap<usize, Graph>,
    executables: HashMap<usize, Graph>,
}

static GRAPHS: LazyLock<Mutex<Graphs>> = LazyLock::new(Mutex::default);

fn graphs() -> MutexGuard<'static, Graphs> {
    GRAPHS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Graphs {
    fn handle(&mut self) -> usize {
        self.last += 16;
        self.last
    }

    fn instantiate(&mut self, graph: usize) -> CuResult<usize> {
        let graph = self.graphs.get(&graph).ok_or(Code::INVALID_VALUE)?.clone();
        let handle = self.handle();
        self.executables.insert(handle, graph);
        Ok(handle)
    }
}

/// What a stream captures into. A graph under way has no handle here, and no nodes.
///
/// # Safety
/// Each is null or can be written; all but the first may be null.
unsafe fn write_capture_info(
    stream: usize,
    out: *mut u32,
    id: *mut c_ulonglong,
    graph: *mut usize,
    nodes: *mut *const c_void,
    count: *mut usize,
) -> CuResult {
    let (found, capture) = device_of(Stream(stream))?.stream_get_capture_info(Stream(stream))?;
    // SAFETY: by the contract.
    unsafe {
        write(out, status(found))?;
        let _ = write(id, capture);
        let _ = write(graph, 0);
        let _ = write(nodes, null());
        let _ = write(count, 0);
    }
    Ok(())
}

runtime! {
    fn cudaStreamBeginCapture(stream: usize, capture_mode: u32) {
        device_of(Stream(stream))?.stream_begin_capture(Stream(stream), mode(capture_mode)?)
    }

    fn cudaStreamEndCapture(stream: usize, graph: *mut usize) {
        // SAFETY: the caller's promise.
        unsafe { write(graph, 0)? };
        let captured = device_of(Stream(stream))?.stream_end_capture(Stream(stream))?;
        let mut graphs = graphs();
        let handle = graphs.handle();
        graphs.graphs.insert(handle, captured);
        // SAFETY: the caller's promise.
        unsafe { write(graph, handle) }
    }

    fn cudaStreamIsCapturing(stream: usize, out: *mut u32) {
        let found = device_of(Stream(stream))?.stream_is_capturing(Stream(stream))?;
        // SAFETY: the caller's promise.
        unsafe { write(out, status(found)) }
    }

    /// In CUDA 12 the last four are not there.
    fn cudaStreamGetCaptureInfo(
        stream: usize,
        out: *mut u32,
        id: *mut c_ulonglong,
        graph: *mut usize,
        nodes: *mut *const c_void,
        edges: *mut *const c_void,
        count: *mut usize,
    ) {
        // SAFETY: the caller promises that each that there is is null or can be written.
        unsafe {
            if Major::get() == Major::Cuda12 {
                return write_capture_info(stream, out, id, null_mut(), null_mut(), null_mut());
            }
            let _ = write(edges, null());
            write_capture_info(stream, out, id, graph, nodes, count)
        }
    }

    /// Of CUDA 12 alone: without edges.
    fn cudaStreamGetCaptureInfo_v2(
        stream: usize,
        out: *mut u32,
        id: *mut c_ulonglong,
        graph: *mut usize,
        nodes: *mut *const c_void,
        count: *mut usize,
    ) {
        Major::Cuda12.only()?;
        // SAFETY: the caller's promises.
        unsafe { write_capture_info(stream, out, id, graph, nodes, count) }
    }

    fn cudaThreadExchangeStreamCaptureMode(exchanged: *mut u32) {
        // SAFETY: the caller's promise.
        unsafe { exchange(exchanged) }
    }

    fn cudaGraphInstantiate(executable: *mut usize, graph: usize, _flags: c_ulonglong) {
        // SAFETY: the caller's promise.
        unsafe { write(executable, graphs().instantiate(graph)?) }
    }

    fn cudaGraphInstantiateWithFlags(executable: *mut usize, graph: usize, _flags: c_ulonglong) {
        // SAFETY: the caller's promise.
        unsafe { write(executable, graphs().instantiate(graph)?) }
    }

    /// Each piece of work is a node. The nodes themselves are not shown.
    fn cudaGraphGetNodes(graph: usize, nodes: *mut usize, count: *mut usize) {
        if !nodes.is_null() {
            return Err(Code::NOT_SUPPORTED);
        }
        // SAFETY: the caller's promise.
        unsafe { write(count, graphs().graphs.get(&graph).ok_or(Code::INVALID_VALUE)?.len()) }
    }

    fn cudaGraphUpload(executable: usize, _stream: usize) {
        graphs().executables.get(&executable).map(drop).ok_or(Code::INVALID_VALUE)
    }

    fn cudaGraphLaunch(executable: usize, stream: usize) {
        let graph = graphs().executables.get(&executable).ok_or(Code::INVALID_VALUE)?.clone();
        device_of(Stream(stream))?.graph_launch(&graph, Stream(stream))
    }

    fn cudaGraphDestroy(graph: usize) {
        graphs().graphs.remove(&graph).map(drop).ok_or(Code::INVALID_VALUE)
    }

    fn cudaGraphExecDestroy(executable: usize) {
        graphs().executables.remove(&executable).map(drop).ok_or(Code::INVALID_VALUE)
    }
}
