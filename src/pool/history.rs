//! Recording a pool's history: when, and what of it.

use super::{Core, Pool};
use crate::arena::{Arena, StreamKey};
use crate::driver::{DevicePtr, Driver, Stream};
use crate::history::{Action, History, Subject};
use crate::metadata::{Block, State};

impl<D: Driver> Pool<D> {
    /// Records what happens from now on, the newest `most` events (at most 128 Mi, 64 bytes each), and forgets what was
    /// recorded before. With `stacks` each event has the Python stack of its thread, where somebody keeps one.
    ///
    /// Until [`Self::stop_history`] no request is a hit: a pair of allocation and free takes about a microsecond. Looks at
    /// every block once, so that the frees of those that are live are recorded too.
    pub fn start_history(&self, most: usize, stacks: bool) {
        begin(&self.core, most, stacks);
    }

    /// Records nothing any more. What was recorded stays.
    pub fn stop_history(&self) {
        end(&self.core);
    }

    /// Whether a history is being recorded.
    pub fn is_recording(&self) -> bool {
        self.core.history.is_on()
    }

    /// A copy of what was recorded so far, also while more is.
    pub fn history(&self) -> History {
        self.core.history.get()
    }

    fn record(&self, action: Action, subject: Subject) {
        self.core.history.add(action, subject, || self.pages.reserved());
    }

    /// A block was just given out, and its user does not have it yet. Where its free has to be looked at, that is no hit.
    pub(super) fn note_alloc(&self, stream: StreamKey, addr: DevicePtr) {
        let captures = matches!(stream, StreamKey::Capturing(_));
        if (captures || self.is_slow() || self.core.history.is_on())
            && let Some(block) = self.core.metadata.find(addr)
        {
            block.set_state(State::Recorded);
            self.note(Action::Alloc, block);
        }
    }

    /// Something happened to a block that the caller holds.
    pub(super) fn note(&self, action: Action, block: &Block) {
        if self.core.history.is_on() {
            self.record(action, self.subject(block));
        }
    }

    /// A block is in use on `stream` too.
    pub(super) fn note_use(&self, block: &Block, stream: Stream) {
        if self.core.history.is_on() {
            let subject = self.subject(block);
            self.record(Action::Use, Subject { stream, ..subject });
        }
    }

    /// Memory of an arena came or went.
    pub(super) fn note_memory(&self, action: Action, arena: &Arena, addr: DevicePtr, bytes: u64) {
        if self.core.history.is_on() {
            let subject = Subject {
                addr,
                bytes,
                requested: 0,
                stream: arena.stream(),
            };
            self.record(action, subject);
        }
    }

    /// A request of `bytes` failed.
    pub(super) fn note_out_of_memory(&self, arena: &Arena, bytes: u64) {
        if self.core.history.is_on() {
            let subject = Subject {
                addr: self.driver.memory_info().map_or(0, |(free, _)| free),
                bytes: 0,
                requested: bytes,
                stream: arena.stream(),
            };
            self.record(Action::OutOfMemory, subject);
        }
    }

    fn subject(&self, block: &Block) -> Subject {
        Subject {
            addr: block.addr(),
            bytes: block.bytes(),
            // Relaxed: the caller holds the block.
            requested: block.requested(),
            stream: self.core.arena_of(block).stream(),
        }
    }
}

/// Begins a history: from here on no request is a hit, and no free of a block that is live by now.
fn begin(core: &Core, most: usize, stacks: bool) {
    if core.history.start(most, stacks) {
        core.watch();
    }
    core.metadata.blocks.each(|block| {
        block.change(State::Live, State::Recorded);
    });
}

/// Ends one, if any is recorded.
fn end(core: &Core) {
    if core.history.stop() {
        core.unwatch();
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::pool::core::models::Setting;
    use crate::sync::meet;

    const UNITS: u32 = 16;

    fn start(setting: &Setting) {
        begin(&setting.core, 10, false);
    }

    fn state(setting: &Setting, which: usize) -> State {
        setting
            .core
            .metadata
            .find(setting.blocks[which])
            .expect("given out")
            .state()
    }

    #[test]
    fn no_block_is_live_and_unrecorded_after_a_history_began() {
        let free = |setting: &Setting| setting.as_owner(|| setting.core.free_hit(setting.blocks[0], None));
        meet(
            || Setting::live(UNITS),
            free,
            start,
            |setting, was_hit, ()| {
                assert_eq!(state(setting, 1), State::Recorded);
                // One of them had the block first: it is not in two places.
                let expected = if was_hit { State::Cached } else { State::Recorded };
                assert_eq!(state(setting, 0), expected);
                let hit = setting.as_owner(|| setting.core.alloc_hit(u64::from(UNITS) * 512, Stream::LEGACY).addr());
                assert_eq!(hit, None, "a request was a hit");
            },
        );
    }

    #[test]
    fn only_a_request_that_passed_the_check_before_is_not_recorded() {
        let request = |setting: &Setting| {
            setting.as_owner(|| setting.core.alloc_hit(u64::from(UNITS) * 512, Stream::LEGACY).addr())
        };
        meet(
            || Setting::one_ready(UNITS),
            request,
            start,
            |setting, hit, ()| match hit {
                // Its free is a hit too, if it was not marked: once, and not again.
                Some(addr) => setting.as_owner(|| {
                    assert_eq!(addr, setting.blocks[1]);
                    let is_live = state(setting, 1) == State::Live;
                    assert_eq!(setting.core.free_hit(addr, None), is_live);
                    assert!(!setting.core.free_hit(addr, None));
                }),
                None => assert_eq!(state(setting, 1), State::Cached),
            },
        );
    }

    #[test]
    fn histories_that_begin_and_end_at_once_leave_hits_behind() {
        fn end(setting: &Setting) {
            super::end(&setting.core);
        }
        fn begin_and_end(setting: &Setting) {
            start(setting);
            end(setting);
        }
        let pairs: [[fn(&Setting); 2]; 3] = [[start, start], [start, end], [begin_and_end, end]];
        for [one, other] in pairs {
            meet(
                || Setting::one_ready(UNITS),
                one,
                other,
                |setting, (), ()| {
                    assert_eq!(setting.core.is_watched(), setting.core.history.is_on());
                    super::end(&setting.core);
                    assert!(!setting.core.is_watched());
                    let bytes = u64::from(UNITS) * 512;
                    let hit = setting.as_owner(|| setting.core.alloc_hit(bytes, Stream::LEGACY).addr());
                    assert_eq!(hit, Some(setting.blocks[1]));
                },
            );
        }
    }
}
