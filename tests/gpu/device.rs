//! The contract, held against pools on the CUDA device of this machine, whatever stands behind the driver library.
//!
//! Run it with `--test-threads=1`: a capture in global mode forbids other threads what they do not expect.
#![cfg(feature = "cuda")]

#[macro_use]
#[path = "../contract/mod.rs"]
mod contract;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::null_mut;
use std::time::Duration;

use contract::Kind;
use cudarc::driver::sys::{self, CUresult, CUstreamCaptureMode};
use flagstone::Pool;
use flagstone::config::{Config, Limit, Source};
use flagstone::driver::cuda::Cuda;
use flagstone::driver::pinned::Pinned;
use flagstone::driver::{Driver, Stream};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn cuda() -> Cuda {
    Cuda::new(0).expect("a CUDA device")
}

/// Device memory from one of the sources. The device has what it has, so a limit stands for the capacity.
struct OnDevice(Source);

impl Kind for OnDevice {
    type Driver = Cuda;

    fn driver(&self, _: u64) -> Cuda {
        cuda()
    }
    fn source(&self) -> Source {
        self.0
    }
    fn stream(&self, driver: &Cuda) -> Stream {
        driver.make_stream().expect("a stream")
    }
    fn dead_stream(&self, _: &Cuda) -> Stream {
        unreachable!("no rule that is run here uses one")
    }
    fn finish(&self, driver: &Cuda) {
        driver.synchronize(Duration::MAX).expect("nothing captures");
    }
    fn pool(&self, capacity: u64) -> Pool<Cuda> {
        let mut config = self.config();
        config.limit = Some(Limit::Bytes(capacity));
        Pool::new(cuda(), config).expect("a pool takes nothing from the driver")
    }
}

/// Pinned host memory.
struct OnHost;

impl Kind for OnHost {
    type Driver = Pinned<Cuda>;

    fn driver(&self, capacity: u64) -> Pinned<Cuda> {
        Pinned::new(cuda(), capacity)
    }
    fn source(&self) -> Source {
        Source::Auto
    }
    fn stream(&self, driver: &Pinned<Cuda>) -> Stream {
        driver.driver().make_stream().expect("a stream")
    }
    fn dead_stream(&self, _: &Pinned<Cuda>) -> Stream {
        unreachable!("no rule that is run here uses one")
    }
    fn finish(&self, driver: &Pinned<Cuda>) {
        driver.synchronize(Duration::MAX).expect("nothing captures");
    }
}

mod virtual_memory {
    use super::*;
    contract!(OnDevice(Source::VirtualMemory), live streams);
}

mod slabs {
    use super::*;
    contract!(OnDevice(Source::Slabs), live streams);
}

mod pinned {
    use super::*;
    contract!(OnHost, live streams);
}

/// Makes the primary context of the device current in this thread.
fn enter() {
    let mut context = null_mut();
    // SAFETY: the handle is written to a local.
    unsafe {
        assert_eq!(sys::cuDevicePrimaryCtxRetain(&mut context, 0), CUresult::CUDA_SUCCESS);
        assert_eq!(sys::cuCtxSetCurrent(context), CUresult::CUDA_SUCCESS);
    }
}

/// Captures what `body` gives the stream; whether the capture was whole at its end. It is ended also where the body panics, so that
/// the tests that follow can wait for the device.
fn capture(stream: Stream, mode: CUstreamCaptureMode, body: impl FnOnce()) -> CUresult {
    let (handle, mut graph) = (stream.0 as sys::CUstream, null_mut());
    // SAFETY: the stream is live; the graph is written to a local.
    unsafe {
        assert_eq!(sys::cuStreamBeginCapture_v2(handle, mode), CUresult::CUDA_SUCCESS);
        let done = catch_unwind(AssertUnwindSafe(body));
        let ended = sys::cuStreamEndCapture(handle, &mut graph);
        done.map_or_else(|panic| resume_unwind(panic), |()| ended)
    }
}

#[test]
fn nothing_that_a_pool_does_ends_a_capture() {
    for source in [Source::VirtualMemory, Source::Slabs] {
        for mode in [
            CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL,
            CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
        ] {
            let driver = cuda();
            let (capturing, side) = (
                driver.make_stream().expect("a stream"),
                driver.make_stream().expect("a stream"),
            );
            let mut config = Config::default();
            (config.source, config.limit) = (source, Some(Limit::Bytes(GIB)));
            let pool = Pool::new(driver, config).expect("a pool");
            enter();
            // Nobody announces this capture: it is found by asking about streams that live.
            pool.keep_stream(capturing).expect("it is live");
            let before = pool.alloc(20 * MIB, side).expect("memory");
            pool.record_stream(before, capturing).expect("it is live");
            let ended = capture(capturing, mode, || {
                pool.free(before).expect("it is live");
                let inside = pool.alloc(64 * MIB, capturing).expect("memory for the capture");
                let beside = pool.alloc(64 * MIB, side).expect("memory for others");
                pool.record_stream(beside, capturing).expect("it is live");
                pool.free(beside).expect("it is live");
                assert!(pool.alloc(2 * GIB, capturing).is_err(), "more than the limit");
                assert!(pool.trim(0).is_err(), "the context cannot be waited for now");
                pool.free(inside).expect("it is live");
                assert_eq!(pool.alloc(64 * MIB, capturing).expect("the same block"), inside);
            });
            assert_eq!(ended, CUresult::CUDA_SUCCESS, "{source:?}, {mode:?}");
            pool.driver()
                .synchronize(Duration::MAX)
                .expect("nothing captures any more");
        }
    }
}
