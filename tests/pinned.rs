//! How much pinned memory is held for batches that come and go, with copies that are seen to be done late.

#![allow(clippy::tests_outside_test_module)]

use flagstone::driver::pinned::Pinned;
use flagstone::driver::sim::{Call, Options, Sim, StreamKind, Work};
use flagstone::driver::{Driver, Stream};
use flagstone::{Config, Error, Pool};
use std::collections::VecDeque;
use std::sync::mpsc::sync_channel;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const STEP_NS: u64 = 1_000_000;

struct Host {
    sim: Sim,
    pool: Pool<Pinned<Sim>>,
    copies: Stream,
}

impl Host {
    fn new(settings: &str) -> Self {
        let sim = Sim::new(Options {
            backed: false,
            ..Options::default()
        });
        let config = Config::parse(settings).expect("good settings");
        let pool = Pool::new(Pinned::new(sim.clone(), 1 << 30), config).expect("a pool");
        let copies = sim.stream_create(StreamKind::NonBlocking).expect("a stream");
        Self { sim, pool, copies }
    }

    fn alloc(&self, bytes: u64) -> u64 {
        self.pool.alloc(bytes, self.pool.driver().home()).expect("memory")
    }

    /// Copies from a block, as seen by the host `ns` later.
    fn copy(&self, block: u64, ns: u64) {
        self.sim.launch(self.copies, Work::new().takes(ns)).expect("launched");
        self.pool.record_work(block, self.copies).expect("live");
    }

    fn copy_and_free(&self, block: u64, ns: u64) {
        self.copy(block, ns);
        self.pool.free(block).expect("live");
    }

    fn held(&self) -> u64 {
        self.pool.stats().reserved_bytes
    }

    /// Calls that take pinned memory or give it back.
    fn calls(&self) -> (u64, u64) {
        let counts = self.sim.counts();
        (counts.get(Call::MemHostAlloc), counts.get(Call::MemFreeHost))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        assert_eq!(self.sim.violations(), []);
    }
}

/// Bytes of a batch: as different as those of sentences are.
fn length(index: u64) -> u64 {
    (256 * KIB) + index * 2_654_435_761 % (4 * MIB)
}

#[test]
fn what_is_held_follows_what_is_in_use() {
    for lag in [1, 2, 3, 4] {
        let host = Host::new("");
        host.sim.set_lag(lag * STEP_NS);
        let mut last = None;
        let mut calls = (0, 0);
        for index in 0..1000 {
            let block = host.alloc(length(index));
            host.copy(block, 0);
            // The program still has the batch before while it pins the next.
            if let Some(before) = last.replace(block) {
                host.pool.free(before).expect("live");
            }
            host.sim.advance(STEP_NS);
            if index == 50 {
                calls = host.calls();
            }
        }
        let stats = host.pool.stats();
        let (held, used) = (stats.peak_reserved_bytes, stats.peak_active_bytes);
        // [as few growths as there were new maxima of the sizes]
        assert!(
            host.calls().0 <= calls.0 + 1,
            "lag {lag}: {calls:?}, then {:?}",
            host.calls()
        );
        assert!(held * 100 <= used * 115, "lag {lag}: {held} bytes held for {used}");
        assert_eq!(host.pool.check(), Ok(()));
    }
}

#[test]
fn a_thread_that_pins_for_another_holds_little_more_than_is_in_use() {
    let host = Host::new("");
    host.sim.set_lag(2 * STEP_NS);
    let (sender, receiver) = sync_channel(2);
    std::thread::scope(|scope| {
        let host = &host;
        scope.spawn(move || {
            for index in 0..1000 {
                sender
                    .send(host.alloc(length(index)))
                    .expect("the other thread listens");
            }
        });
        for block in receiver {
            host.copy_and_free(block, 0);
            host.sim.advance(STEP_NS);
        }
    });
    let stats = host.pool.stats();
    let (held, used) = (stats.peak_reserved_bytes, stats.peak_active_bytes);
    // How far the threads are apart is not ours to say.
    assert!(held * 2 <= used * 3, "{held} bytes held for {used}");
    assert_eq!(host.pool.check(), Ok(()));
}

#[test]
fn a_request_that_would_fit_in_one_piece_waits_for_a_copy() {
    let host = Host::new("");
    let blocks = [3, 2, 3].map(|mib| host.alloc(mib * MIB));
    let (held, calls) = (host.held(), host.calls());
    for block in blocks {
        host.copy_and_free(block, STEP_NS);
    }
    host.sim.advance(STEP_NS);
    // [in front and behind there is room, but the copy from the middle runs]
    host.pool.free(host.alloc(64 * KIB)).expect("live");
    let now = host.sim.now_ns();
    let block = host.alloc(3 * MIB);
    assert_eq!((host.held(), host.calls()), (held, calls));
    assert!(host.sim.now_ns() >= now);
    host.pool.free(block).expect("live");
}

#[test]
fn growth_takes_one_slab_in_place_of_those_that_are_idle() {
    let host = Host::new("");
    let blocks = [1, 2, 3].map(|mib| host.alloc(mib * MIB));
    assert_eq!(host.calls().1, 0);
    for block in blocks {
        host.copy_and_free(block, STEP_NS);
    }
    let held = host.held();
    let block = host.alloc(12 * MIB);
    assert_eq!(host.pool.snapshot().segments.len(), 1);
    assert!(host.held() <= held + 14 * MIB, "{}", host.held());
    // What was there before is one with it.
    let rest = host.alloc(held);
    assert_eq!(host.pool.snapshot().segments.len(), 1);
    for block in [block, rest] {
        host.pool.free(block).expect("live");
    }
    host.pool.trim(0).expect("idle");
    assert_eq!(host.held(), 0);
    assert_eq!(host.pool.check(), Ok(()));
}

#[test]
fn a_copy_that_does_not_end_holds_nobody_up() {
    let host = Host::new("");
    let block = host.alloc(4 * MIB);
    host.sim.hold(host.copies).expect("a stream");
    host.copy_and_free(block, 1);
    let other = host.alloc(4 * MIB);
    assert_ne!(block, other);
    host.sim.resume(host.copies).expect("held");
    host.pool.free(other).expect("live");
}

#[test]
fn where_the_limit_leaves_no_room_nothing_is_given_back() {
    let host = Host::new("limit:8MiB");
    let (kept, idle) = (host.alloc(4 * MIB), host.alloc(2 * MIB));
    host.pool.free(idle).expect("live");
    let (held, calls) = (host.held(), host.calls());
    let refused = host.pool.alloc(16 * MIB, host.pool.driver().home());
    assert!(matches!(refused, Err(Error::OutOfMemory(_))), "{refused:?}");
    assert_eq!((host.held(), host.calls()), (held, calls));
    host.pool.free(kept).expect("live");
}

#[test]
fn batches_on_the_way_keep_their_slabs() {
    let host = Host::new("");
    let mut ahead = VecDeque::new();
    for index in 0..300 {
        let block = host.alloc(length(index));
        host.sim.write(block, &[0]).ok();
        ahead.push_back(block);
        if ahead.len() > 3 {
            host.copy_and_free(ahead.pop_front().expect("not empty"), 3 * STEP_NS);
        }
        host.sim.advance(STEP_NS);
        assert_eq!(host.pool.check(), Ok(()));
    }
    for block in ahead {
        host.pool.free(block).expect("live");
    }
}
