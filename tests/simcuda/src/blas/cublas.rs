//! The products of cuBLAS.

use std::ffi::{c_int, c_longlong, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

use flagstone::driver::Stream;
use flagstone::driver::sim::CuResult;

use super::element::Element;
use super::matrix::Matrix;
use super::product::Product;
use super::{INVALID_VALUE, NOT_SUPPORTED, launch, size};
use crate::calls::export;
use crate::driver_api::write;

/// What a `cublasHandle_t` points to.
struct Context {
    stream: AtomicUsize,
}

/// A matrix of a call: its address, the elements from it to the next of a batch, and between its columns, and, but for a
/// result, a `cublasOperation_t`.
struct Operand {
    element: Element,
    addr: *const c_void,
    leading: c_int,
    stride: c_longlong,
    operation: u32,
}

impl Operand {
    const fn new(data_type: u32, addr: *const c_void, leading: c_int, stride: c_longlong) -> CuResult<Self> {
        match Element::new(data_type) {
            Ok(element) => Ok(Self {
                element,
                addr,
                leading,
                stride,
                operation: 0,
            }),
            Err(code) => Err(code),
        }
    }

    const fn operated(mut self, operation: u32) -> Self {
        self.operation = operation;
        self
    }

    /// The matrix, of so many rows and columns once it is transposed.
    fn matrix(&self, rows: usize, columns: usize) -> CuResult<Matrix> {
        let shape = if self.operation == 0 {
            (rows, columns)
        } else {
            (columns, rows)
        };
        Matrix::new(self.element, self.addr as u64, shape, size(self.leading)?)?.operated(self.operation)
    }
}

/// Multiplies so many matrices.
///
/// # Safety
/// `context` is a live handle; the factors point to numbers on the host, `F64` ones for matrices of such, `F32` otherwise.
unsafe fn multiply(
    context: *const Context,
    [rows, columns, depth, batch]: [c_int; 4],
    [a, b, c]: [Operand; 3],
    [alpha, beta]: [*const c_void; 2],
) -> CuResult {
    let (rows, columns, depth) = (size(rows)?, size(columns)?, size(depth)?);
    // SAFETY: the caller's promise. Relaxed: a handle belongs to one thread.
    let stream = unsafe { context.as_ref() }
        .ok_or(INVALID_VALUE)?
        .stream
        .load(Ordering::Relaxed);
    let scale = if c.element == Element::F64 {
        Element::F64
    } else {
        Element::F32
    };
    // SAFETY: the caller's promise.
    let factors = unsafe { (scale.factor(alpha.cast())?, scale.factor(beta.cast())?) };
    let result = c.matrix(rows, columns)?;
    let first = Product::new(
        [a.matrix(rows, depth)?, b.matrix(depth, columns)?, result, result],
        factors,
        None,
    )?;
    let at = |index: i64| first.at([a.stride, b.stride, c.stride, c.stride].map(|stride| stride * index));
    launch(Stream(stream), (0..batch.into()).map(at).collect())
}

/// Whether sums are of 32 bits, or of 64 for matrices of such numbers, by the `cublasComputeType_t`.
const fn is_computed(compute: u32) -> CuResult {
    match compute {
        68..=71 | 74..=78 => Ok(()),
        _ => Err(NOT_SUPPORTED),
    }
}

const F32: u32 = 0;
const F64: u32 = 1;

export! {
    fn cublasCreate_v2(context: *mut *mut Context) {
        // SAFETY: the caller's promise.
        unsafe { write(context, Box::into_raw(Box::new(Context { stream: AtomicUsize::new(0) }))) }
    }

    fn cublasDestroy_v2(context: *mut Context) {
        if !context.is_null() {
            // SAFETY: the caller promises that the handle is live, and uses it no more.
            drop(unsafe { Box::from_raw(context) });
        }
        Ok(())
    }

    fn cublasSetStream_v2(context: *const Context, stream: usize) {
        // SAFETY: the caller promises a live handle. Relaxed: as in `multiply`.
        unsafe { context.as_ref() }.ok_or(INVALID_VALUE)?.stream.store(stream, Ordering::Relaxed);
        Ok(())
    }

    fn cublasSetWorkspace_v2(_context: *const Context, _addr: *mut c_void, _bytes: usize) {
        Ok(())
    }

    fn cublasGetMathMode(_context: *const Context, mode: *mut u32) {
        // SAFETY: the caller's promise.
        unsafe { write(mode, 0) }
    }

    fn cublasSetMathMode(_context: *const Context, _mode: u32) {
        Ok(())
    }

    fn cublasSgemm_v2(
        context: *const Context,
        a_operation: u32,
        b_operation: u32,
        rows: c_int,
        columns: c_int,
        depth: c_int,
        alpha: *const c_void,
        a: *const c_void,
        a_leading: c_int,
        b: *const c_void,
        b_leading: c_int,
        beta: *const c_void,
        c: *mut c_void,
        c_leading: c_int,
    ) {
        let a = Operand::new(F32, a, a_leading, 0)?.operated(a_operation);
        let b = Operand::new(F32, b, b_leading, 0)?.operated(b_operation);
        let c = Operand::new(F32, c, c_leading, 0)?;
        // SAFETY: the caller promises a live handle and numbers on the host.
        unsafe { multiply(context, [rows, columns, depth, 1], [a, b, c], [alpha, beta]) }
    }

    fn cublasDgemm_v2(
        context: *const Context,
        a_operation: u32,
        b_operation: u32,
        rows: c_int,
        columns: c_int,
        depth: c_int,
        alpha: *const c_void,
        a: *const c_void,
        a_leading: c_int,
        b: *const c_void,
        b_leading: c_int,
        beta: *const c_void,
        c: *mut c_void,
        c_leading: c_int,
    ) {
        let a = Operand::new(F64, a, a_leading, 0)?.operated(a_operation);
        let b = Operand::new(F64, b, b_leading, 0)?.operated(b_operation);
        let c = Operand::new(F64, c, c_leading, 0)?;
        // SAFETY: as above.
        unsafe { multiply(context, [rows, columns, depth, 1], [a, b, c], [alpha, beta]) }
    }

    fn cublasSgemmStridedBatched(
        context: *const Context,
        a_operation: u32,
        b_operation: u32,
        rows: c_int,
        columns: c_int,
        depth: c_int,
        alpha: *const c_void,
        a: *const c_void,
        a_leading: c_int,
        a_stride: c_longlong,
        b: *const c_void,
        b_leading: c_int,
        b_stride: c_longlong,
        beta: *const c_void,
        c: *mut c_void,
        c_leading: c_int,
        c_stride: c_longlong,
        batch: c_int,
    ) {
        let a = Operand::new(F32, a, a_leading, a_stride)?.operated(a_operation);
        let b = Operand::new(F32, b, b_leading, b_stride)?.operated(b_operation);
        let c = Operand::new(F32, c, c_leading, c_stride)?;
        // SAFETY: as above.
        unsafe { multiply(context, [rows, columns, depth, batch], [a, b, c], [alpha, beta]) }
    }

    fn cublasGemmEx(
        context: *const Context,
        a_operation: u32,
        b_operation: u32,
        rows: c_int,
        columns: c_int,
        depth: c_int,
        alpha: *const c_void,
        a: *const c_void,
        a_type: u32,
        a_leading: c_int,
        b: *const c_void,
        b_type: u32,
        b_leading: c_int,
        beta: *const c_void,
        c: *mut c_void,
        c_type: u32,
        c_leading: c_int,
        compute: u32,
        _algorithm: u32,
    ) {
        is_computed(compute)?;
        let a = Operand::new(a_type, a, a_leading, 0)?.operated(a_operation);
        let b = Operand::new(b_type, b, b_leading, 0)?.operated(b_operation);
        let c = Operand::new(c_type, c, c_leading, 0)?;
        // SAFETY: as above.
        unsafe { multiply(context, [rows, columns, depth, 1], [a, b, c], [alpha, beta]) }
    }

    fn cublasGemmStridedBatchedEx(
        context: *const Context,
        a_operation: u32,
        b_operation: u32,
        rows: c_int,
        columns: c_int,
        depth: c_int,
        alpha: *const c_void,
        a: *const c_void,
        a_type: u32,
        a_leading: c_int,
        a_stride: c_longlong,
        b: *const c_void,
        b_type: u32,
        b_leading: c_int,
        b_stride: c_longlong,
        beta: *const c_void,
        c: *mut c_void,
        c_type: u32,
        c_leading: c_int,
        c_stride: c_longlong,
        batch: c_int,
        compute: u32,
        _algorithm: u32,
    ) {
        is_computed(compute)?;
        let a = Operand::new(a_type, a, a_leading, a_stride)?.operated(a_operation);
        let b = Operand::new(b_type, b, b_leading, b_stride)?.operated(b_operation);
        let c = Operand::new(c_type, c, c_leading, c_stride)?;
        // SAFETY: as above.
        unsafe { multiply(context, [rows, columns, depth, batch], [a, b, c], [alpha, beta]) }
    }
}
