//! The products of single-precision matrices of cuBLAS: enough for layers without bias. They are done when their stream gets
//! there, one element after the other.

use std::ffi::{c_int, c_longlong, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

use flagstone::driver::Stream;
use flagstone::driver::sim::{Code, CuResult, Work};

use crate::calls::export;
use crate::driver_api::write;
use crate::runtime_api::current_for;
use crate::timing;

/// `CUBLAS_STATUS_INVALID_VALUE`
const INVALID_VALUE: Code = Code(7);
/// `CUBLAS_STATUS_EXECUTION_FAILED`
const EXECUTION_FAILED: Code = Code(13);

/// What a `cublasHandle_t` points to.
struct Context {
    stream: AtomicUsize,
}

/// A matrix by columns, transposed or not.
#[derive(Clone, Copy)]
struct Matrix {
    addr: u64,
    rows: usize,
    columns: usize,
    leading: usize,
    transposed: bool,
}

impl Matrix {
    /// The matrix that is `rows` by `columns` once it is transposed as `operation` (a `cublasOperation_t`) says.
    fn new(addr: *const f32, operation: u32, (rows, columns): (c_int, c_int), leading: c_int) -> CuResult<Self> {
        let transposed = match operation {
            0 => false,
            1 | 2 => true,
            _ => return Err(INVALID_VALUE),
        };
        let size = |number| usize::try_from(number).map_err(|_| INVALID_VALUE);
        let (rows, columns, leading) = (size(rows)?, size(columns)?, size(leading)?);
        let (rows, columns) = if transposed { (columns, rows) } else { (rows, columns) };
        if leading < rows.max(1) {
            return Err(INVALID_VALUE);
        }
        Ok(Self {
            addr: addr as u64,
            rows,
            columns,
            leading,
            transposed,
        })
    }

    fn bytes(&self) -> u64 {
        let elements = self
            .columns
            .checked_sub(1)
            .map_or(0, |before| before * self.leading + self.rows);
        (elements * size_of::<f32>()) as u64
    }

    const fn element(&self, row: usize, column: usize) -> *mut f32 {
        let (row, column) = if self.transposed { (column, row) } else { (row, column) };
        (self.addr as *mut f32).wrapping_add(column * self.leading + row)
    }
}

/// A product of `depth` terms an element: `c = alpha * a * b + beta * c`.
#[derive(Clone, Copy)]
struct Product {
    a: Matrix,
    b: Matrix,
    c: Matrix,
    depth: usize,
    alpha: f32,
    beta: f32,
}

impl Product {
    fn touches(&self, work: Work) -> Work {
        let work = work
            .reads(self.a.addr, self.a.bytes())
            .reads(self.b.addr, self.b.bytes());
        work.writes(self.c.addr, self.c.bytes())
    }

    fn compute(&self) {
        for column in 0..self.c.columns {
            for row in 0..self.c.rows {
                // SAFETY: the device has checked that it has memory at all three matrices.
                unsafe {
                    let terms = (0..self.depth).map(|k| *self.a.element(row, k) * *self.b.element(k, column));
                    let sum: f32 = self.alpha * terms.sum::<f32>();
                    let result = self.c.element(row, column);
                    // C may hold anything, also no number, where beta is 0.
                    *result = if self.beta == 0.0 {
                        sum
                    } else {
                        sum + self.beta * *result
                    };
                }
            }
        }
    }
}

/// # Safety
/// `context` is a live handle.
unsafe fn launch(context: *const Context, products: Vec<Product>) -> CuResult {
    // SAFETY: the caller's promise. Relaxed: a handle belongs to one thread.
    let stream = Stream(
        unsafe { context.as_ref() }
            .ok_or(INVALID_VALUE)?
            .stream
            .load(Ordering::Relaxed),
    );
    let work = products.iter().fold(Work::new(), |work, product| product.touches(work));
    let work = work.takes(timing::kernel_ns());
    let work = work.calls(move || products.iter().for_each(Product::compute));
    let done = current_for(stream).and_then(|device| device.launch(stream, work));
    done.map_err(|_| EXECUTION_FAILED)
}

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
        // SAFETY: the caller promises a live handle. Relaxed: as in `launch`.
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
        alpha: *const f32,
        a: *const f32,
        a_leading: c_int,
        b: *const f32,
        b_leading: c_int,
        beta: *const f32,
        c: *mut f32,
        c_leading: c_int,
    ) {
        // SAFETY: the caller promises a live handle and numbers on the host.
        unsafe {
            let product = Product {
                a: Matrix::new(a, a_operation, (rows, depth), a_leading)?,
                b: Matrix::new(b, b_operation, (depth, columns), b_leading)?,
                c: Matrix::new(c, 0, (rows, columns), c_leading)?,
                depth: depth as usize,
                alpha: alpha.read(),
                beta: beta.read(),
            };
            launch(context, vec![product])
        }
    }

    fn cublasSgemmStridedBatched(
        context: *const Context,
        a_operation: u32,
        b_operation: u32,
        rows: c_int,
        columns: c_int,
        depth: c_int,
        alpha: *const f32,
        a: *const f32,
        a_leading: c_int,
        a_stride: c_longlong,
        b: *const f32,
        b_leading: c_int,
        b_stride: c_longlong,
        beta: *const f32,
        c: *mut f32,
        c_leading: c_int,
        c_stride: c_longlong,
        batch: c_int,
    ) {
        let product = |index: c_int| {
            let at = |stride: c_longlong| stride as isize * index as isize;
            Ok(Product {
                a: Matrix::new(a.wrapping_offset(at(a_stride)), a_operation, (rows, depth), a_leading)?,
                b: Matrix::new(b.wrapping_offset(at(b_stride)), b_operation, (depth, columns), b_leading)?,
                c: Matrix::new(c.wrapping_offset(at(c_stride)), 0, (rows, columns), c_leading)?,
                depth: depth as usize,
                // SAFETY: the caller promises numbers on the host.
                alpha: unsafe { alpha.read() },
                // SAFETY: as above.
                beta: unsafe { beta.read() },
            })
        };
        // SAFETY: the caller promises a live handle.
        unsafe { launch(context, (0..batch).map(product).collect::<CuResult<_>>()?) }
    }
}
