//! Devices: which there are, which is current, what they say about themselves.

use std::ffi::{c_char, c_int, c_uint, c_void};

use flagstone::driver::sim::Code;

use super::major::Major;
use super::runtime;
use crate::driver_api::context::{GREATEST_PRIORITY, LEAST_PRIORITY, current_or_first, make_current, ordinal};
use crate::driver_api::{VERSION, attribute, write};
use crate::peers;
use crate::state::{self, machine};

/// `cudaErrorPeerAccessAlreadyEnabled`
const PEER_ACCESS_ALREADY_ENABLED: Code = Code(704);
/// `cudaErrorPeerAccessNotEnabled`
const PEER_ACCESS_NOT_ENABLED: Code = Code(705);

runtime! {
    fn cudaGetDeviceCount(count: *mut c_int) {
        let started = state::start();
        // SAFETY: the caller's promise.
        unsafe { write(count, machine().map_or(0, |machine| machine.count()))? };
        started
    }

    fn cudaGetDevice(device: *mut c_int) {
        state::start()?;
        // SAFETY: the caller's promise.
        unsafe { write(device, ordinal()) }
    }

    fn cudaSetDevice(device: c_int) {
        make_current(device)
    }

    fn cudaInitDevice(device: c_int, _device_flags: c_uint, _flags: c_uint) {
        state::start()?;
        machine()?.device(device).map(drop)
    }

    fn cudaGetDeviceFlags(flags: *mut c_uint) {
        // SAFETY: the caller's promise.
        unsafe { write(flags, 0) }
    }

    fn cudaSetDeviceFlags(_flags: c_uint) {
        state::start()
    }

    fn cudaDeviceSynchronize() {
        current_or_first()?.ctx_synchronize()
    }

    fn cudaDeviceGetAttribute(value: *mut c_int, number: u32, device: c_int) {
        state::start()?;
        // SAFETY: the caller's promise.
        unsafe { write(value, attribute(number, device)?) }
    }

    fn cudaDeviceGetPCIBusId(text: *mut c_char, bytes: c_int, device: c_int) {
        state::start()?;
        machine()?.device(device)?;
        let id = format!("0000:{:02x}:00.0\0", device + 1);
        if (bytes as usize) < id.len() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the caller promises that many bytes.
        unsafe { std::ptr::copy_nonoverlapping(id.as_ptr().cast(), text, id.len()) };
        Ok(())
    }

    /// Numbers that are lower come first. All streams run at the same speed here.
    fn cudaDeviceGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) {
        // SAFETY: the caller's promise.
        unsafe {
            write(least, LEAST_PRIORITY)?;
            write(greatest, GREATEST_PRIORITY)
        }
    }

    fn cudaDeviceCanAccessPeer(can: *mut c_int, device: c_int, peer: c_int) {
        state::start()?;
        machine()?.device(device)?;
        machine()?.device(peer)?;
        // SAFETY: the caller's promise.
        unsafe { write(can, (device != peer).into()) }
    }

    /// For the current device's kernels.
    fn cudaDeviceEnablePeerAccess(peer: c_int, flags: c_uint) {
        let own = current_or_first()?.properties().ordinal;
        machine()?.device(peer)?;
        if own == peer || flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        if peers::enable(own, peer) { Ok(()) } else { Err(PEER_ACCESS_ALREADY_ENABLED) }
    }

    fn cudaDeviceDisablePeerAccess(peer: c_int) {
        let own = current_or_first()?.properties().ordinal;
        machine()?.device(peer)?;
        if peers::disable(own, peer) { Ok(()) } else { Err(PEER_ACCESS_NOT_ENABLED) }
    }

    fn cudaDriverGetVersion(version: *mut c_int) {
        // SAFETY: the caller's promise.
        unsafe { write(version, VERSION) }
    }

    /// The driver is the newest whatever the runtime.
    fn cudaRuntimeGetVersion(version: *mut c_int) {
        let own = match Major::get() {
            Major::Cuda12 => 12_080,
            Major::Cuda13 => VERSION,
        };
        // SAFETY: the caller's promise.
        unsafe { write(version, own) }
    }

    /// What graphs hold for their own memory nodes: nothing.
    fn cudaDeviceGetGraphMemAttribute(device: c_int, _attribute: u32, value: *mut c_void) {
        machine()?.device(device)?;
        // SAFETY: the caller promises room for a `cuuint64_t`.
        unsafe { write(value.cast::<u64>(), 0) }
    }

    fn cudaProfilerStart() {
        state::start()
    }

    fn cudaProfilerStop() {
        state::start()
    }
}
