//! Copies and fills, on streams of the device whose context is current. How they are done is the runtime's business.

use std::ffi::{c_uchar, c_uint, c_ushort, c_void};

use flagstone::driver::Stream;
use flagstone::driver::sim::{Code, CuResult, Work};

use super::context::current;
use crate::calls::export;
use crate::runtime_api::{Way, copy, is_device};
use crate::timing;

/// `cudaMemcpyHostToDevice`, and what follows it.
const TO_DEVICE: Way = Way::Kind(1);
const TO_HOST: Way = Way::Kind(2);
const ON_DEVICE: Way = Way::Kind(3);
/// By the addresses.
const FOUND_OUT: Way = Way::Kind(4);

fn copy_async(to: usize, from: usize, bytes: usize, way: Way, stream: usize) -> CuResult {
    let device = current()?;
    if copy(device, Stream(stream), to, from, bytes, way)? {
        device.stream_synchronize(Stream(stream))?;
    }
    Ok(())
}

/// The host waits, unless both sides are device memory.
fn copy_now(to: usize, from: usize, bytes: usize, way: Way) -> CuResult {
    let device = current()?;
    copy(device, Stream::LEGACY, to, from, bytes, way)?;
    if is_device(to) && is_device(from) {
        return Ok(());
    }
    device.stream_synchronize(Stream::LEGACY)
}

/// Fills memory with so many elements of a value, which is aligned as in the driver.
fn fill(addr: u64, element: &[u8], count: usize, stream: Stream) -> CuResult {
    let size = element.len();
    let bytes = count.checked_mul(size).ok_or(Code::INVALID_VALUE)?;
    if !is_device(addr as usize) || !addr.is_multiple_of(size as u64) {
        return Err(Code::INVALID_VALUE);
    }
    let work = Work::new().takes(timing::copy_ns(bytes as u64));
    let work = match element {
        &[value] => work.fills(addr, bytes as u64, value),
        _ => work.stores(addr, element.repeat(count)),
    };
    current()?.launch(stream, work)
}

export! {
    fn cuMemcpy(to: u64, from: u64, bytes: usize) {
        copy_now(to as usize, from as usize, bytes, FOUND_OUT)
    }

    fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, bytes: usize) {
        copy_now(to as usize, from as usize, bytes, TO_DEVICE)
    }

    fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize) {
        copy_now(to as usize, from as usize, bytes, TO_HOST)
    }

    fn cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize) {
        copy_now(to as usize, from as usize, bytes, ON_DEVICE)
    }

    fn cuMemcpyAsync(to: u64, from: u64, bytes: usize, stream: usize) {
        copy_async(to as usize, from as usize, bytes, FOUND_OUT, stream)
    }

    fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, stream: usize) {
        copy_async(to as usize, from as usize, bytes, TO_DEVICE, stream)
    }

    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, bytes: usize, stream: usize) {
        copy_async(to as usize, from as usize, bytes, TO_HOST, stream)
    }

    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: usize) {
        copy_async(to as usize, from as usize, bytes, ON_DEVICE, stream)
    }

    fn cuMemsetD8_v2(addr: u64, value: c_uchar, count: usize) {
        fill(addr, &[value], count, Stream::LEGACY)
    }

    fn cuMemsetD16_v2(addr: u64, value: c_ushort, count: usize) {
        fill(addr, &value.to_ne_bytes(), count, Stream::LEGACY)
    }

    fn cuMemsetD32_v2(addr: u64, value: c_uint, count: usize) {
        fill(addr, &value.to_ne_bytes(), count, Stream::LEGACY)
    }

    fn cuMemsetD8Async(addr: u64, value: c_uchar, count: usize, stream: usize) {
        fill(addr, &[value], count, Stream(stream))
    }

    fn cuMemsetD16Async(addr: u64, value: c_ushort, count: usize, stream: usize) {
        fill(addr, &value.to_ne_bytes(), count, Stream(stream))
    }

    fn cuMemsetD32Async(addr: u64, value: c_uint, count: usize, stream: usize) {
        fill(addr, &value.to_ne_bytes(), count, Stream(stream))
    }
}
