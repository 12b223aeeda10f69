//! What there is of cuBLAS and cuBLASLt: products of matrices, each done when its stream gets there.

mod cublas;
mod element;
mod lt;
mod matrix;
mod product;

use flagstone::driver::Stream;
use flagstone::driver::sim::{Code, CuResult, Work};

use self::product::Product;
use crate::runtime_api::current_for;
use crate::state::host_address;
use crate::timing;

/// `CUBLAS_STATUS_INVALID_VALUE`
const INVALID_VALUE: Code = Code(7);
/// `CUBLAS_STATUS_EXECUTION_FAILED`
const EXECUTION_FAILED: Code = Code(13);
/// `CUBLAS_STATUS_NOT_SUPPORTED`
const NOT_SUPPORTED: Code = Code(15);

/// Gives a stream products as one kernel.
fn launch(stream: Stream, products: Vec<Product>) -> CuResult {
    let device = current_for(stream).map_err(|_| EXECUTION_FAILED)?;
    let work = products
        .iter()
        .fold(Work::new(), |work, product| product.touches(work, device));
    let products: Vec<_> = products.iter().map(|product| product.moved(host_address)).collect();
    let work = work.takes(timing::kernel_ns());
    let work = work.calls(move || products.iter().for_each(Product::compute));
    device.launch(stream, work).map_err(|_| EXECUTION_FAILED)
}

/// A size that the interface has signed.
fn size<T: TryInto<usize>>(number: T) -> CuResult<usize> {
    number.try_into().map_err(|_| INVALID_VALUE)
}
