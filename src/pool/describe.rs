//! Whose an address is, or was: for an address that a fault or a sanitizer names.

use super::Pool;
use crate::driver::{DevicePtr, Driver};
use crate::history::{Action, Event, History};
use crate::metadata::{Block, State};
use crate::stats::{AddressInfo, AddressState, BlockInfo, BlockState};

impl<D: Driver> Pool<D> {
    /// The block that an address is in or, where blocks are [guarded](crate::Config::guard), nearest to. Of freed blocks those are
    /// known whose addresses a guarded pool still keeps, and those in the history that was recorded. Walks over all blocks.
    pub fn describe(&self, addr: DevicePtr) -> Option<AddressInfo> {
        let info = |block: &Block, state| AddressInfo {
            block: BlockInfo {
                addr: block.addr(),
                bytes: block.bytes(),
                requested: block.requested().min(block.bytes()),
                stream: self.core.arena_of(block).stream(),
            },
            state,
            offset: addr.wrapping_sub(block.addr()) as i64,
        };
        if let Some(block) = self.guarded_at(addr) {
            return Some(info(
                block,
                match block.state() {
                    State::Pending => AddressState::Waiting,
                    state if state.is_given_out() => AddressState::Live,
                    _ => AddressState::Freed,
                },
            ));
        }
        let segments = self.snapshot().segments;
        let blocks = segments.iter().flat_map(|segment| &segment.blocks);
        let around = blocks
            .filter(|block| block.state != BlockState::Inactive)
            .find(|block| addr.wrapping_sub(block.addr) < block.bytes);
        if let Some(found) = around.and_then(|around| Some((around, self.core.metadata.find(around.addr)?))) {
            let state = match found.0.state {
                BlockState::ActivePendingFree => AddressState::Waiting,
                _ => AddressState::Live,
            };
            return Some(info(found.1, state));
        }
        let history = self.history();
        let around = |event: &&Event| addr.wrapping_sub(event.addr) < event.bytes;
        let mut allocs = history
            .events
            .iter()
            .rev()
            .filter(|event| event.action == Action::Alloc);
        allocs.find(around).map(|event| AddressInfo {
            block: BlockInfo {
                addr: event.addr,
                bytes: event.bytes,
                requested: event.requested,
                stream: event.stream,
            },
            state: AddressState::Freed,
            offset: addr.wrapping_sub(event.addr) as i64,
        })
    }
}

impl History {
    /// The last allocation at this address that was recorded, and the free after it.
    #[must_use]
    pub fn last_use(&self, addr: DevicePtr) -> (Option<&Event>, Option<&Event>) {
        let at = |event: &Event| event.addr == addr;
        let begun = self
            .events
            .iter()
            .rposition(|event| event.action == Action::Alloc && at(event));
        let frees = |event: &&Event| matches!(event.action, Action::Free | Action::FreeWaiting) && at(event);
        // Of a block that was live when the history began only the free is known.
        let freed = self.events[begun.unwrap_or(0)..].iter().rfind(frees);
        (begun.map(|place| &self.events[place]), freed)
    }
}
