//! Memory of other devices: who may use it.
//!
//! Mapped memory is open to the devices that `cuMemSetAccess` named. Memory of `cudaMalloc` is open to the kernels of devices that
//! were given peer access, and to every copy. What is used without being open is an illegal address.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use flagstone::driver::sim::{Device, MemoryKind, Work};

use crate::driver_api::is_open;
use crate::state::machine;

/// The devices that may use others' memory, with these.
static PEERS: Mutex<BTreeSet<(i32, i32)>> = Mutex::new(BTreeSet::new());

fn peers() -> MutexGuard<'static, BTreeSet<(i32, i32)>> {
    PEERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives a device access to another one's memory; whether it had none.
pub fn enable(device: i32, peer: i32) -> bool {
    peers().insert((device, peer))
}

/// Takes it away; whether it was there.
pub fn disable(device: i32, peer: i32) -> bool {
    peers().remove(&(device, peer))
}

/// What uses memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum User {
    Kernel,
    Copy,
}

/// Whether the memory is another device's and the device may use it. What happens to it is not checked any further.
pub fn lends(device: &Device, addr: u64, bytes: u64, user: User) -> bool {
    let Ok(owner) = machine().and_then(|machine| machine.owner(addr)) else {
        return false;
    };
    let (own, other) = (device.properties().ordinal, owner.properties().ordinal);
    if own == other {
        return false;
    }
    match owner.memory_kind(addr) {
        Some(MemoryKind::Host) => true,
        _ => is_open(own, owner, addr, bytes).unwrap_or_else(|| user == User::Copy || peers().contains(&(own, other))),
    }
}

/// Work of the device that reads memory, of whatever device.
pub fn reads(work: Work, device: &Device, addr: u64, bytes: u64) -> Work {
    if lends(device, addr, bytes, User::Kernel) {
        work
    } else {
        work.reads(addr, bytes)
    }
}

/// Work of the device that writes memory, of whatever device.
pub fn writes(work: Work, device: &Device, addr: u64, bytes: u64) -> Work {
    if lends(device, addr, bytes, User::Kernel) {
        work
    } else {
        work.writes(addr, bytes)
    }
}
