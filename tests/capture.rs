//! Graph captures: nothing that a pool does ends one, on whichever thread and stream it is under way.

use flagstone::config::Config;
use flagstone::driver::Stream;
use flagstone::driver::sim::{CaptureMode, Options, Sim, StreamKind, Work};
use flagstone::{Error, Pool};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

const MIB: u64 = 1 << 20;

fn device() -> (Sim, Pool<Sim>) {
    let sim = Sim::new(Options {
        capacity: 64 * MIB,
        backed: false,
        ..Options::default()
    });
    let pool = Pool::new(sim.clone(), Config::default()).expect("a pool takes nothing from the driver");
    (sim, pool)
}

fn stream(sim: &Sim, kind: StreamKind) -> Stream {
    sim.stream_create(kind).expect("a stream")
}

fn begin(sim: &Sim, stream: Stream) {
    sim.stream_begin_capture(stream, CaptureMode::Global)
        .expect("it does not capture");
}

fn end(sim: &Sim, stream: Stream) {
    sim.stream_end_capture(stream).expect("a valid capture");
    assert_eq!(sim.violations(), []);
}

#[test]
fn a_use_on_the_legacy_stream_leaves_a_blocking_capture_alone() {
    let (sim, pool) = device();
    let (side, captured) = (
        stream(&sim, StreamKind::NonBlocking),
        stream(&sim, StreamKind::Blocking),
    );
    let block = pool.alloc(MIB, side).expect("there is room");
    pool.record_stream(block, Stream::LEGACY).expect("live");
    begin(&sim, captured);
    pool.free(block).expect("live");
    assert_eq!(pool.stats().pending_blocks, 1);
    end(&sim, captured);
    pool.trim(0).expect("no capture any more");
    assert_eq!((pool.stats().pending_blocks, pool.stats().reserved_bytes), (0, 0));
}

#[test]
fn growth_leaves_a_blocking_capture_alone() {
    let (sim, pool) = device();
    let captured = stream(&sim, StreamKind::Blocking);
    let block = pool.alloc(20 * MIB, Stream::LEGACY).expect("there is room");
    begin(&sim, captured);
    pool.free(block).expect("live");
    // What of the default stream's memory is idle would be learned from an event on it.
    let inside = pool.alloc(20 * MIB, captured).expect("there is room");
    let outside = pool.alloc(24 * MIB, Stream::LEGACY).expect("there is room");
    end(&sim, captured);
    for block in [inside, outside] {
        pool.free(block).expect("live");
    }
    assert_eq!(pool.check(), Ok(()));
}

#[test]
fn memory_that_is_short_leaves_captures_alone() {
    for kind in ["announced", "blocking", "kept", "the request's own"] {
        let (sim, pool) = device();
        let live = pool.alloc(40 * MIB, Stream::LEGACY).expect("there is room");
        let captured = match kind {
            "blocking" => stream(&sim, StreamKind::Blocking),
            _ => stream(&sim, StreamKind::NonBlocking),
        };
        let other = match kind {
            "the request's own" => captured,
            _ => stream(&sim, StreamKind::NonBlocking),
        };
        if kind == "announced" {
            pool.begin_private((1, 0), move |stream| stream == captured);
        }
        if kind == "kept" {
            pool.keep_stream(captured).expect("live");
        }
        begin(&sim, captured);
        let inside = pool.alloc(MIB, captured).expect("there is room");
        let refused = pool.alloc(40 * MIB, other);
        assert!(matches!(refused, Err(Error::OutOfMemory(_))), "{kind}: {refused:?}");
        if kind != "the request's own" {
            assert!(matches!(pool.trim(0), Err(Error::Driver(_))), "{kind}");
        }
        assert_eq!(pool.check(), Ok(()));
        end(&sim, captured);
        pool.end_private((1, 0));
        pool.free(live).expect("live");
        let outside = pool.alloc(40 * MIB, other);
        pool.free(outside.expect("no capture any more")).expect("live");
        pool.free(inside).expect("live");
        assert_eq!(pool.check(), Ok(()));
    }
}

#[test]
fn streams_that_capture_are_told_apart() {
    // The driver does not tell who they are: asking would end the capture.
    for announced in [true, false] {
        let (sim, pool) = device();
        let (one, two) = (
            stream(&sim, StreamKind::NonBlocking),
            stream(&sim, StreamKind::NonBlocking),
        );
        let early = pool.alloc(MIB, one).expect("there is room");
        if announced {
            pool.begin_private((1, 0), |_| true);
        }
        begin(&sim, one);
        begin(&sim, two);
        let first = pool.alloc(MIB, one).expect("there is room");
        pool.free(first).expect("live");
        let second = pool.alloc(MIB, two).expect("there is room");
        assert_ne!(second, first, "one's work may still use it");
        assert_eq!(pool.alloc(MIB, one).expect("there is room"), first);
        pool.record_stream(first, two).expect("live");
        pool.record_stream(early, one).expect("live");
        pool.free(first).expect("live");
        pool.free(early).expect("live");
        assert_eq!(pool.stats().pending_blocks, 2);
        end(&sim, one);
        end(&sim, two);
        pool.free_on(second, two).expect("live");
        pool.end_private((1, 0));
        pool.release_private((1, 0));
        pool.trim(0).expect("no capture any more");
        assert_eq!(pool.stats().live_blocks + pool.stats().pending_blocks, 0);
        assert_eq!(pool.check(), Ok(()));
    }
}

#[test]
fn captures_that_nobody_announced_share_no_memory() {
    // Each graph is replayed when its user likes: what one frees while it is captured is not free for the next.
    let (sim, pool) = device();
    let (kept, passing) = (
        stream(&sim, StreamKind::NonBlocking),
        stream(&sim, StreamKind::NonBlocking),
    );
    pool.keep_stream(kept).expect("live");
    for captured in [kept, passing] {
        let of_graph = || {
            begin(&sim, captured);
            let block = pool.alloc(MIB, captured).expect("there is room");
            pool.free(block).expect("live");
            assert_eq!(pool.alloc(MIB, captured).expect("there is room"), block);
            pool.free(block).expect("live");
            end(&sim, captured);
            block
        };
        assert_ne!(of_graph(), of_graph());
    }
    assert_eq!(pool.check(), Ok(()));
}

#[test]
fn what_a_graph_gave_back_later_waits_for_its_stream_which_may_be_gone() {
    // While it captures a stream is known by its handle, and the next stream may have the same.
    let (sim, pool) = device();
    let capture = |captured: Stream| {
        pool.begin_private((1, 0), move |asked| asked == captured);
        begin(&sim, captured);
        let block = pool.alloc(MIB, captured).expect("there is room");
        end(&sim, captured);
        pool.end_private((1, 0));
        block
    };
    let gone = stream(&sim, StreamKind::NonBlocking);
    let first = capture(gone);
    sim.launch(gone, Work::new().reads(first, MIB).takes(1000))
        .expect("launched");
    pool.free(first).expect("live");
    sim.stream_destroy(gone).expect("live");
    let next = stream(&sim, StreamKind::NonBlocking);
    assert_eq!(next, gone, "the handle came back");
    let second = capture(next);
    assert_ne!(second, first, "the work on it goes on");
    pool.free(second).expect("live");
    pool.synchronize().expect("no capture any more");
    assert!([first, second].contains(&capture(next)), "it waited long enough");
    assert_eq!(pool.check(), Ok(()));
}

#[test]
fn a_kept_stream_is_known_while_it_captures() {
    let (sim, pool) = device();
    let captured = stream(&sim, StreamKind::NonBlocking);
    let block = pool.alloc(MIB, captured).expect("there is room");
    pool.keep_stream(captured).expect("live");
    begin(&sim, captured);
    pool.record_stream(block, captured).expect("live");
    pool.free(block).expect("live");
    assert_eq!(pool.stats().pending_blocks, 0, "it was its own stream");
    end(&sim, captured);
}

#[test]
fn a_held_private_pool_keeps_its_memory_between_two_uses() {
    let (_, pool) = device();
    pool.hold_private((0, 1));
    pool.begin_private((0, 1), |_| true);
    let inside = pool.alloc(4 * MIB, Stream::LEGACY).expect("there is room");
    pool.free(inside).expect("live");
    pool.end_private((0, 1));
    pool.release_private((0, 1));
    pool.trim(0).expect("no capture");
    let held = pool.stats().reserved_bytes;
    assert!(held >= 4 * MIB);
    assert_eq!(pool.private_pools().into_iter().collect::<Vec<_>>(), [((0, 1), held)]);
    pool.release_private((0, 1));
    pool.trim(0).expect("no capture");
    assert_eq!(pool.stats().reserved_bytes, 0);
    assert!(pool.private_pools().is_empty());
}

#[test]
fn a_private_pool_without_a_capture_hinders_nobody() {
    let (sim, pool) = device();
    let side = stream(&sim, StreamKind::NonBlocking);
    pool.begin_private((1, 0), move |stream| stream == side);
    let inside = pool.alloc(MIB, side).expect("there is room");
    let block = pool.alloc(40 * MIB, Stream::LEGACY).expect("there is room");
    pool.free(block).expect("live");
    let whole = pool.alloc(40 * MIB, side).expect("the default stream's memory is idle");
    pool.end_private((1, 0));
    for block in [inside, whole] {
        pool.free(block).expect("live");
    }
    assert_eq!(pool.check(), Ok(()));
}

#[test]
fn private_pools_may_end_in_any_order_and_too_often() {
    let (_, pool) = device();
    let (one, two) = ((1, 1), (2, 2));
    pool.release_private(one);
    pool.end_private(one);
    pool.begin_private(one, |_| true);
    pool.begin_private(two, |_| true);
    let of_two = pool.alloc(MIB, Stream::LEGACY).expect("there is room");
    pool.end_private(two);
    pool.end_private(two);
    let of_one = pool.alloc(MIB, Stream::LEGACY).expect("there is room");
    pool.end_private(one);
    let of_none = pool.alloc(MIB, Stream::LEGACY).expect("there is room");
    for block in [of_one, of_two, of_none] {
        pool.free(block).expect("live");
    }
    assert_eq!(pool.alloc(MIB, Stream::LEGACY).expect("there is room"), of_none);
    pool.free(of_none).expect("live");
    for _ in 0..3 {
        pool.release_private(one);
        pool.release_private(two);
    }
    pool.trim(0).expect("no capture");
    assert_eq!(pool.stats().reserved_bytes, 0);
    assert_eq!(pool.check(), Ok(()));
}

#[test]
fn no_wait_for_the_device_meets_a_capture_that_begins_beside_it() {
    // Each capture has pages of its own, and none can be had from the others while it goes on.
    let sim = Sim::new(Options {
        capacity: 8192 * MIB,
        backed: false,
        ..Options::default()
    });
    let pool = Pool::new(sim.clone(), Config::default()).expect("a pool takes nothing from the driver");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // With an end, whatever fails beside it.
            for _ in (0..1_000_000).take_while(|_| !stop.load(Relaxed)) {
                drop((pool.synchronize(), pool.trim(0)));
            }
        });
        for number in 1..=1000 {
            let captured = stream(&sim, StreamKind::NonBlocking);
            pool.begin_private((number, 0), move |stream| stream == captured);
            begin(&sim, captured);
            let block = pool.alloc(MIB, captured).expect("there is room");
            pool.free(block).expect("live");
            let ended = sim.stream_end_capture(captured);
            pool.end_private((number, 0));
            pool.release_private((number, 0));
            if ended.is_err() {
                stop.store(true, Relaxed);
            }
            assert!(ended.is_ok(), "capture {number} was ended by another thread");
        }
        stop.store(true, Relaxed);
    });
    assert_eq!(sim.violations(), []);
    assert_eq!(pool.check(), Ok(()));
}

#[test]
fn what_a_private_pool_was_given_is_counted_also_once_it_is_gone() {
    let (_sim, pool) = device();
    let given = |private: Option<(u64, u64)>| -> u64 {
        let rows = pool.totals().given_out;
        let of_it = rows.iter().filter(|row| row.private == private);
        of_it.map(|row| row.alloc_count).sum()
    };
    for round in 0..200 {
        let name = (7, round);
        pool.begin_private(name, |_| true);
        let blocks = [1000, 3 * MIB].map(|bytes| pool.alloc(bytes, Stream::LEGACY).expect("there is room"));
        blocks.iter().for_each(|&block| pool.free(block).expect("live"));
        pool.end_private(name);
        assert_eq!(given(Some(name)), 2);
        pool.release_private(name);
        // Its memory goes, and with it what its arena is kept for.
        pool.trim(0).expect("no capture is under way");
    }
    let totals = pool.totals();
    let all: u64 = totals.given_out.iter().map(|row| row.alloc_count).sum();
    assert_eq!((all, pool.stats().alloc_count), (400, 400));
    let requested: u64 = totals.given_out.iter().map(|row| row.requested_bytes).sum();
    assert_eq!(requested, pool.stats().freed_requested_bytes);
    assert!(
        totals.given_out.iter().any(|row| row.stream.is_none()),
        "some have gone"
    );
    assert!(totals.given_out.len() < 400, "those are one row for each size");
}
