//! The products of cuBLASLt, with a bias. What is multiplied is described by objects of the caller's.

use std::ffi::{c_int, c_void};

use flagstone::driver::Stream;
use flagstone::driver::sim::CuResult;

use super::element::Element;
use super::matrix::Matrix;
use super::product::Product;
use super::{INVALID_VALUE, NOT_SUPPORTED, launch, size};
use crate::calls::export;
use crate::driver_api::write;

/// What a `cublasLtMatmulDesc_t` points to.
struct Multiplication {
    scale: Element,
    a_operation: u32,
    b_operation: u32,
    epilogue: u32,
    bias: u64,
    bias_type: Option<Element>,
}

/// What a `cublasLtMatrixLayout_t` points to.
#[derive(Clone, Copy)]
struct Layout {
    element: Element,
    rows: u64,
    columns: u64,
    leading: i64,
    batch: c_int,
    stride: i64,
}

/// `cublasLtMatmulHeuristicResult_t`
#[repr(C)]
struct Heuristic {
    algorithm: [u64; 8],
    workspace_bytes: usize,
    state: u32,
    waves: f32,
    reserved: [c_int; 4],
}

/// `CUBLASLT_EPILOGUE_DEFAULT`
const PLAIN: u32 = 1;
/// `CUBLASLT_EPILOGUE_BIAS`
const BIAS: u32 = 4;

/// The value that an attribute is set to.
///
/// # Safety
/// `value` is valid for reads of `bytes`.
unsafe fn read<T: Copy>(value: *const c_void, bytes: usize) -> CuResult<T> {
    if value.is_null() || bytes != size_of::<T>() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { value.cast::<T>().read_unaligned() })
}

/// # Safety
/// `object` is null or points to a live object that only the caller uses.
unsafe fn object<'a, T>(object: *mut T) -> CuResult<&'a mut T> {
    // SAFETY: the caller's promise.
    unsafe { object.as_mut() }.ok_or(INVALID_VALUE)
}

/// # Safety
/// `object` is null or came from `Box::into_raw`, and is used no more.
unsafe fn destroy<T>(object: *mut T) -> CuResult {
    if !object.is_null() {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(object) });
    }
    Ok(())
}

impl Layout {
    fn matrix(&self, addr: *const c_void) -> CuResult<Matrix> {
        let shape = (size(self.rows)?, size(self.columns)?);
        Matrix::new(self.element, addr as u64, shape, size(self.leading)?)
    }
}

export! {
    fn cublasLtMatmulDescCreate(multiplication: *mut *mut Multiplication, _compute: u32, scale: u32) {
        let new = Multiplication {
            scale: Element::new(scale)?,
            a_operation: 0,
            b_operation: 0,
            epilogue: PLAIN,
            bias: 0,
            bias_type: None,
        };
        // SAFETY: the caller's promise.
        unsafe { write(multiplication, Box::into_raw(Box::new(new))) }
    }

    fn cublasLtMatmulDescDestroy(multiplication: *mut Multiplication) {
        // SAFETY: the caller's promise.
        unsafe { destroy(multiplication) }
    }

    /// Those that say how fast it is to be are passed over.
    fn cublasLtMatmulDescSetAttribute(
        multiplication: *mut Multiplication,
        attribute: u32,
        value: *const c_void,
        bytes: usize,
    ) {
        // SAFETY: the caller's promises.
        unsafe {
            let multiplication = object(multiplication)?;
            match attribute {
                2 if read::<u32>(value, bytes)? == 0 => {} // the factors are on the host
                3 => multiplication.a_operation = read(value, bytes)?,
                4 => multiplication.b_operation = read(value, bytes)?,
                7 => multiplication.epilogue = read(value, bytes)?,
                8 => multiplication.bias = read(value, bytes)?,
                15 => {} // multiprocessors to use
                26 => multiplication.bias_type = Some(Element::new(read(value, bytes)?)?),
                _ => return Err(NOT_SUPPORTED),
            }
        }
        Ok(())
    }

    fn cublasLtMatrixLayoutCreate(layout: *mut *mut Layout, data_type: u32, rows: u64, columns: u64, leading: i64) {
        let new = Layout { element: Element::new(data_type)?, rows, columns, leading, batch: 1, stride: 0 };
        // SAFETY: the caller's promise.
        unsafe { write(layout, Box::into_raw(Box::new(new))) }
    }

    fn cublasLtMatrixLayoutDestroy(layout: *mut Layout) {
        // SAFETY: the caller's promise.
        unsafe { destroy(layout) }
    }

    fn cublasLtMatrixLayoutSetAttribute(layout: *mut Layout, attribute: u32, value: *const c_void, bytes: usize) {
        // SAFETY: the caller's promises.
        unsafe {
            match attribute {
                5 => object(layout)?.batch = read(value, bytes)?,
                6 => object(layout)?.stride = read(value, bytes)?,
                _ => return Err(NOT_SUPPORTED),
            }
        }
        Ok(())
    }

    /// There is nothing to prefer: an object that is neither null nor used.
    fn cublasLtMatmulPreferenceCreate(preference: *mut usize) {
        // SAFETY: the caller's promise.
        unsafe { write(preference, 1) }
    }

    fn cublasLtMatmulPreferenceDestroy(_preference: usize) {
        Ok(())
    }

    fn cublasLtMatmulPreferenceSetAttribute(_preference: usize, _attribute: u32, _value: *const c_void, _bytes: usize) {
        Ok(())
    }

    /// There is one way to multiply.
    fn cublasLtMatmulAlgoGetHeuristic(
        _context: *const c_void,
        _multiplication: *const Multiplication,
        _a: *const Layout,
        _b: *const Layout,
        _c: *const Layout,
        _d: *const Layout,
        _preference: usize,
        room: c_int,
        results: *mut Heuristic,
        count: *mut c_int,
    ) {
        if room < 1 {
            return Err(INVALID_VALUE);
        }
        let only = Heuristic { algorithm: [0; 8], workspace_bytes: 0, state: 0, waves: 1.0, reserved: [0; 4] };
        // SAFETY: the caller's promises.
        unsafe {
            write(results, only)?;
            write(count, 1)
        }
    }

    fn cublasLtMatmul(
        _context: *const c_void,
        multiplication: *mut Multiplication,
        alpha: *const u8,
        a: *const c_void,
        a_layout: *mut Layout,
        b: *const c_void,
        b_layout: *mut Layout,
        beta: *const u8,
        c: *const c_void,
        c_layout: *mut Layout,
        d: *mut c_void,
        d_layout: *mut Layout,
        _algorithm: *const c_void,
        _workspace: *mut c_void,
        _workspace_bytes: usize,
        stream: usize,
    ) {
        // SAFETY: the caller promises live objects, which no other thread changes meanwhile, and numbers on the host.
        let (multiplication, layouts, factors) = unsafe {
            let multiplication = object(multiplication)?;
            let factors = (multiplication.scale.factor(alpha)?, multiplication.scale.factor(beta)?);
            let layouts = [*object(a_layout)?, *object(b_layout)?, *object(c_layout)?, *object(d_layout)?];
            (multiplication, layouts, factors)
        };
        let [a_layout, b_layout, c_layout, d_layout] = layouts;
        let bias = match multiplication.epilogue {
            PLAIN => None,
            BIAS => Some((multiplication.bias_type.unwrap_or(d_layout.element), multiplication.bias)),
            _ => return Err(NOT_SUPPORTED),
        };
        let matrices = [
            a_layout.matrix(a)?.operated(multiplication.a_operation)?,
            b_layout.matrix(b)?.operated(multiplication.b_operation)?,
            c_layout.matrix(c)?,
            d_layout.matrix(d)?,
        ];
        let first = Product::new(matrices, factors, bias)?;
        let at = |index: i64| first.at(layouts.map(|layout| layout.stride * index));
        launch(Stream(stream), (0..d_layout.batch.into()).map(at).collect())
    }
}

const _: () = assert!(size_of::<Heuristic>() == 96);
