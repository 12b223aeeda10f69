//! The host's virtual memory: the only system calls of the simulated device.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};

use super::{Code, CuResult};

/// Bytes in a page of the host.
pub(super) fn page_bytes() -> u64 {
    // SAFETY: sysconf only reads a constant of the system.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(bytes).unwrap_or(4096)
}

/// Addresses with no memory behind them. Touching them is a segmentation fault.
pub(super) fn reserve(bytes: u64) -> CuResult<u64> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: without MAP_FIXED the system picks addresses that nothing else uses.
    unsafe { map(0, bytes, libc::PROT_NONE, flags, -1, 0) }.map_err(|()| Code::OUT_OF_MEMORY)
}

/// Gives back a range that came from `reserve`, whole.
pub(super) fn unreserve(addr: u64, bytes: u64) {
    // SAFETY: the range is ours and is given back once. A failure (no room to split a mapping) leaks addresses only.
    unsafe { libc::munmap(addr as *mut libc::c_void, bytes as usize) };
}

/// Puts nothing behind a part of a reserved range again, whatever is mapped there.
pub(super) fn hide(addr: u64, bytes: u64) -> CuResult {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    // SAFETY: the range lies inside addresses that this module reserved, so MAP_FIXED replaces nobody else's memory.
    unsafe { map(addr, bytes, libc::PROT_NONE, flags, -1, 0) }.map_err(|()| Code::OPERATING_SYSTEM)?;
    Ok(())
}

/// Puts fresh, zeroed, private memory behind a part of a reserved range.
pub(super) fn show_private(addr: u64, bytes: u64) -> CuResult {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    // SAFETY: as in `hide`.
    unsafe { map(addr, bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) }.map_err(|()| Code::OUT_OF_MEMORY)?;
    Ok(())
}

/// Puts a part of a file behind a part of a reserved range, without access.
pub(super) fn show_file(addr: u64, bytes: u64, file: &File, offset: u64) -> CuResult {
    let flags = libc::MAP_SHARED | libc::MAP_NORESERVE | libc::MAP_FIXED;
    // SAFETY: as in `hide`.
    unsafe { map(addr, bytes, libc::PROT_NONE, flags, file.as_raw_fd(), offset) }.map_err(|()| Code::OUT_OF_MEMORY)?;
    Ok(())
}

/// Makes a part of a reserved range, with memory behind it, readable and writable.
pub(super) fn allow(addr: u64, bytes: u64) -> CuResult {
    // SAFETY: the range lies inside addresses that this module reserved.
    let failed = unsafe {
        libc::mprotect(
            addr as *mut libc::c_void,
            bytes as usize,
            libc::PROT_READ | libc::PROT_WRITE,
        )
    };
    if failed == 0 {
        Ok(())
    } else {
        Err(Code::OPERATING_SYSTEM)
    }
}

/// An empty file in memory.
pub(super) fn memory_file() -> CuResult<File> {
    // SAFETY: the name is a C string; the call has no other precondition.
    let fd = unsafe { libc::memfd_create(c"simulated device".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(Code::OPERATING_SYSTEM);
    }
    // SAFETY: the descriptor was just opened and nobody else has it.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// Gives the memory of a part of a file back. It reads as zeros afterwards.
pub(super) fn punch(file: &File, offset: u64, bytes: u64) {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: the descriptor is open. A failure keeps memory of the host, nothing else: offsets are not used again.
    unsafe { libc::fallocate(file.as_raw_fd(), mode, offset as i64, bytes as i64) };
}

/// `mmap`, without the sentinel.
///
/// # Safety
/// With `MAP_FIXED` among the flags, the range must lie inside addresses that this module reserved.
unsafe fn map(addr: u64, bytes: u64, protection: i32, flags: i32, fd: i32, offset: u64) -> Result<u64, ()> {
    let (bytes, offset) = (
        usize::try_from(bytes).map_err(drop)?,
        i64::try_from(offset).map_err(drop)?,
    );
    // SAFETY: by the contract of this function nothing but reserved addresses is replaced.
    let at = unsafe { libc::mmap(addr as *mut libc::c_void, bytes, protection, flags, fd, offset) };
    if at == libc::MAP_FAILED { Err(()) } else { Ok(at as u64) }
}
