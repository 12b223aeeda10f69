//! The NUMA node of the calling thread: host memory is best on the node that uses it.

use std::fs;
use std::sync::OnceLock;

/// Nodes from this number on count as node 0.
pub(super) const NODES: usize = 64;

/// The node of the processor that the calling thread runs on; 0 on a machine with one, and where it cannot be told.
pub fn current_node() -> usize {
    if !has_several() {
        return 0;
    }
    let (mut cpu, mut node) = (0u32, 0u32);
    // SAFETY: the call writes two numbers of this size, and takes a third argument that has no meaning any more.
    let failed = unsafe { libc::syscall(libc::SYS_getcpu, &raw mut cpu, &raw mut node, 0usize) } != 0;
    let node = node as usize;
    if failed || node >= NODES { 0 } else { node }
}

/// Whether the machine has several nodes, asked once.
fn has_several() -> bool {
    static SEVERAL: OnceLock<bool> = OnceLock::new();
    *SEVERAL.get_or_init(|| {
        // "0" for one node, "0-1" or "0,2" for several.
        let online = fs::read_to_string("/sys/devices/system/node/online").unwrap_or_default();
        online.contains(['-', ','])
    })
}
