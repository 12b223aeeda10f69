//! What is done before a request fails: each step, in order, counted, with an end to every wait.

use flagstone::config::Config;
use flagstone::driver::Stream;
use flagstone::driver::sim::{Call, Code, Fault, Options, Sim, StreamKind, Work};
use flagstone::{Error, Pool, StepTotal};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const LEGACY: Stream = Stream::LEGACY;
const SECOND: u64 = 1_000_000_000;

fn device(settings: &str) -> (Sim, Arc<Pool<Sim>>) {
    let sim = Sim::new(Options {
        capacity: 64 * MIB,
        backed: false,
        ..Options::default()
    });
    let mut config = Config::parse("dependencies:pressure").expect("good settings");
    config.update(settings).expect("good settings");
    let pool = Pool::new(sim.clone(), config).expect("a pool takes nothing from the driver");
    (sim, Arc::new(pool))
}

fn kept_stream(sim: &Sim, pool: &Pool<Sim>) -> Stream {
    let stream = sim.stream_create(StreamKind::NonBlocking).expect("a stream");
    pool.keep_stream(stream).expect("live");
    stream
}

fn step(pool: &Pool<Sim>, name: &str) -> StepTotal {
    let steps = pool.stats().steps;
    *steps
        .iter()
        .find(|step| step.name == name)
        .expect("a step of this name")
}

fn sound(sim: &Sim, pool: &Pool<Sim>) {
    assert_eq!(pool.check(), Ok(()));
    assert_eq!(sim.violations(), []);
}

/// A block of `owner` that was freed while `user` still works on it for a second.
fn pending(sim: &Sim, pool: &Pool<Sim>, bytes: u64, owner: Stream, user: Stream) -> u64 {
    pending_for(sim, pool, bytes, owner, user, SECOND)
}

fn pending_for(sim: &Sim, pool: &Pool<Sim>, bytes: u64, owner: Stream, user: Stream, ns: u64) -> u64 {
    let block = pool.alloc(bytes, owner).expect("room");
    sim.launch(user, Work::new().writes(block, bytes).takes(ns))
        .expect("a launch");
    pool.record_stream(block, user).expect("live");
    pool.free(block).expect("live");
    block
}

#[test]
fn a_stream_waits_for_another_before_the_host_waits_for_anything() {
    let (sim, pool) = device("");
    let side = kept_stream(&sim, &pool);
    let small = pending(&sim, &pool, 10 * MIB, LEGACY, side);
    let block = pending(&sim, &pool, 40 * MIB, LEGACY, side);
    sim.reset_counts();
    let again = pool.alloc(40 * MIB, LEGACY).expect("the pending block is enough");
    assert_eq!((again, sim.now_ns()), (block, 0), "the host waits for nothing");
    assert_eq!(
        sim.counts().get(Call::StreamWaitEvent),
        1,
        "only for the block that is enough"
    );
    assert_eq!(
        sim.counts().get(Call::EventSynchronize) + sim.counts().get(Call::CtxSynchronize),
        0
    );
    assert_eq!(pool.stats().pending_blocks, 1);
    sim.check_handout(again, 40 * MIB, LEGACY)
        .expect("the wait orders the streams");
    let step = step(&pool, "waits between streams");
    assert_eq!((step.count, step.sufficed, step.timed_out), (1, 1, 0));
    assert_ne!(again, small);
    sound(&sim, &pool);
}

#[test]
fn blocks_that_are_enough_only_together_are_all_waited_for() {
    let (sim, pool) = device("");
    let sides = [kept_stream(&sim, &pool), kept_stream(&sim, &pool)];
    for side in [0, 1, 0, 1] {
        pending(&sim, &pool, 15 * MIB, LEGACY, sides[side]);
    }
    let whole = pool.alloc(60 * MIB, LEGACY).expect("together they are enough");
    assert_eq!(
        (sim.now_ns(), sim.counts().get(Call::StreamWaitEvent)),
        (0, 2),
        "one wait a stream"
    );
    sim.check_handout(whole, 60 * MIB, LEGACY).expect("in order");
    sound(&sim, &pool);
}

#[test]
fn a_capturing_stream_is_made_to_wait_for_nothing() {
    let (sim, pool) = device("");
    let (own, side) = (kept_stream(&sim, &pool), kept_stream(&sim, &pool));
    pending(&sim, &pool, 60 * MIB, own, side);
    sim.stream_begin_capture(own, flagstone::driver::sim::CaptureMode::Global)
        .expect("a capture");
    assert!(matches!(pool.alloc(60 * MIB, own), Err(Error::OutOfMemory(_))));
    assert_eq!(sim.counts().get(Call::StreamWaitEvent), 0);
    assert!(sim.stream_end_capture(own).is_ok(), "the capture is whole");
    assert_eq!(sim.violations(), []);
}

#[test]
fn every_wait_ends_and_the_error_says_so() {
    let (sim, pool) = device("wait:0.5,dependencies:off");
    let (own, side) = (kept_stream(&sim, &pool), kept_stream(&sim, &pool));
    let block = pool.alloc(60 * MIB, own).expect("room");
    sim.hold(side).expect("live");
    pool.record_stream(block, side).expect("live");
    pool.free(block).expect("live");
    let failed = pool.alloc(40 * MIB, LEGACY).expect_err("it may be held for ever");
    assert!(
        sim.now_ns() <= SECOND,
        "half a second for the block, and for the device"
    );
    let Error::OutOfMemory(numbers) = failed else {
        panic!("{failed}")
    };
    let vain = numbers
        .steps
        .iter()
        .filter(|step| step.name.contains("time that a step may wait"));
    assert_eq!(vain.count(), 2, "{numbers}");
    assert_eq!(step(&pool, "waited for other streams").timed_out, 1);
    assert_eq!(step(&pool, "waited for the device").timed_out, 1);
    assert!(matches!(pool.trim(0), Err(Error::Driver(error)) if error.call == "cuCtxSynchronize"));
    sound(&sim, &pool);
    sim.resume(side).expect("live");
    pool.alloc(40 * MIB, LEGACY).expect("nothing was lost");
    sound(&sim, &pool);
}

#[test]
fn a_block_waits_for_the_last_of_the_streams_that_use_it() {
    let (sim, pool) = device("dependencies:off");
    let users = [kept_stream(&sim, &pool), kept_stream(&sim, &pool)];
    let block = pool.alloc(8 * MIB, LEGACY).expect("room");
    for (user, ns) in users.into_iter().zip([1000, SECOND]) {
        sim.launch(user, Work::new().reads(block, 8 * MIB).takes(ns))
            .expect("live");
        pool.record_stream(block, user).expect("live");
    }
    pool.free(block).expect("live");
    sim.stream_synchronize(users[0]).expect("live");
    let other = pool.alloc(8 * MIB, LEGACY).expect("room");
    assert_ne!(other, block, "one stream still reads it");
    assert_eq!(pool.stats().pending_blocks, 1);
    sim.check_handout(other, 8 * MIB, LEGACY).expect("nobody else's");
    sim.stream_synchronize(users[1]).expect("live");
    assert_eq!(pool.alloc(8 * MIB, LEGACY).expect("room"), block);
    sound(&sim, &pool);
}

#[test]
fn a_pending_block_that_would_be_enough_is_waited_for() {
    let (sim, pool) = device("dependencies:off");
    let (own, side) = (kept_stream(&sim, &pool), kept_stream(&sim, &pool));
    pending(&sim, &pool, 40 * MIB, own, side);
    sim.launch(LEGACY, Work::new().takes(9 * SECOND)).expect("a launch");
    pool.alloc(40 * MIB, LEGACY).expect("it is ready after a second");
    assert_eq!(step(&pool, "waited for other streams").count, 1);
    assert_eq!(sim.counts().get(Call::CtxSynchronize), 0, "not for the whole device");
    sound(&sim, &pool);
}

#[test]
fn of_several_pending_blocks_the_one_that_is_enough_is_waited_for() {
    let (sim, pool) = device("dependencies:off");
    let own = kept_stream(&sim, &pool);
    for (bytes, seconds) in [(20 * MIB, 9), (12 * MIB, 5), (30 * MIB, 3)] {
        let user = kept_stream(&sim, &pool);
        pending_for(&sim, &pool, bytes, own, user, seconds * SECOND);
    }
    pool.alloc(28 * MIB, LEGACY).expect("it is ready after three seconds");
    // Neither for those that were freed before, nor for all.
    assert_eq!(
        (sim.now_ns(), sim.counts().get(Call::EventSynchronize)),
        (3 * SECOND, 1)
    );
    assert_eq!(pool.stats().pending_blocks, 2);
    let step = step(&pool, "waited for other streams");
    assert_eq!((step.count, step.sufficed), (1, 1));
    sound(&sim, &pool);
}

#[test]
fn each_step_is_timed() {
    let (sim, pool) = device("");
    let block = pool.alloc(60 * MIB, LEGACY).expect("room");
    let asleep = Duration::from_millis(20);
    let id = pool.on_out_of_memory(move |_| std::thread::sleep(asleep));
    let began = Instant::now();
    let Err(Error::OutOfMemory(numbers)) = pool.alloc(50 * MIB, LEGACY) else {
        panic!("there is no room");
    };
    let took = began.elapsed().as_nanos() as u64;
    let asleep = asleep.as_nanos() as u64;
    let of_the_request = numbers
        .steps
        .iter()
        .find(|step| step.name == "callbacks")
        .expect("a step");
    for nanoseconds in [of_the_request.nanoseconds, step(&pool, "callbacks").nanoseconds] {
        assert!((asleep..=took).contains(&nanoseconds), "{nanoseconds} of {took}");
    }
    let sum: u64 = pool.stats().steps.iter().map(|step| step.nanoseconds).sum();
    assert!(sum <= took, "{sum} of {took}");
    assert!(pool.remove_callback(id));
    pool.free(block).expect("live");
    sound(&sim, &pool);
}

#[test]
fn callbacks_free_blocks_before_the_host_waits() {
    let (sim, pool) = device("");
    let block = pool.alloc(60 * MIB, LEGACY).expect("room");
    let cache = Arc::new(Mutex::new(Some(block)));
    let asked = Arc::new(AtomicU64::new(0));
    let (weak, taken, heard) = (Arc::downgrade(&pool), Arc::clone(&cache), Arc::clone(&asked));
    let id = pool.on_out_of_memory(move |bytes| {
        heard.fetch_add(bytes, Ordering::Relaxed);
        let (Some(pool), Some(block)) = (weak.upgrade(), taken.lock().expect("not poisoned").take()) else {
            return;
        };
        // No lock is held: everything may be called.
        assert_eq!(pool.stats().live_blocks, 1);
        pool.trim(0).expect("nothing works");
        pool.free(block).expect("live");
        let small = pool.alloc(MIB, LEGACY).expect("there is room by now");
        pool.free(small).expect("live");
    });
    sim.reset_counts();
    let again = pool.alloc(50 * MIB, LEGACY).expect("the callback freed enough");
    assert_eq!(asked.load(Ordering::Relaxed), 50 * MIB);
    let step = step(&pool, "callbacks");
    assert_eq!((step.count, step.sufficed), (1, 1));
    assert!(
        matches!(pool.alloc(50 * MIB, LEGACY), Err(Error::OutOfMemory(numbers)) if numbers.steps.iter().any(|step| step.name == "callbacks"))
    );
    assert_eq!(asked.load(Ordering::Relaxed), 100 * MIB);
    assert!(pool.remove_callback(id) && !pool.remove_callback(id));
    assert!(pool.alloc(50 * MIB, LEGACY).is_err());
    assert_eq!(
        asked.load(Ordering::Relaxed),
        100 * MIB,
        "a removed callback is not asked"
    );
    pool.free(again).expect("live");
    sound(&sim, &pool);
}

#[test]
fn callbacks_are_asked_again_while_they_free_something() {
    let (sim, pool) = device("");
    let blocks: Vec<u64> = (0..32).map(|_| pool.alloc(2 * MIB, LEGACY).expect("room")).collect();
    let (weak, cache) = (Arc::downgrade(&pool), Mutex::new(blocks));
    pool.on_out_of_memory(move |_| {
        let block = cache.lock().expect("not poisoned").pop();
        if let (Some(pool), Some(block)) = (weak.upgrade(), block) {
            pool.free(block).expect("live");
        }
    });
    let large = pool.alloc(10 * MIB, LEGACY).expect("five blocks are enough");
    let taken = step(&pool, "callbacks");
    assert_eq!((taken.count, taken.sufficed), (5, 1));
    // More than there ever is: not for ever.
    assert!(pool.alloc(40 * MIB, LEGACY).is_err());
    assert_eq!(step(&pool, "callbacks").count, 5 + 8);
    pool.free(large).expect("live");
    sound(&sim, &pool);
}

#[test]
fn a_request_within_a_callback_asks_no_callbacks() {
    let (sim, pool) = device("");
    let _all = pool.alloc(64 * MIB, LEGACY).expect("room");
    let inner = Arc::new(OnceLock::new());
    let (weak, result) = (Arc::downgrade(&pool), Arc::clone(&inner));
    pool.on_out_of_memory(move |_| {
        let pool = weak.upgrade().expect("it is being used");
        assert!(result.set(pool.alloc(MIB, LEGACY).is_err()).is_ok(), "asked twice");
    });
    assert!(pool.alloc(MIB, LEGACY).is_err());
    assert_eq!(inner.get(), Some(&true));
    sound(&sim, &pool);
}

#[test]
fn no_request_within_a_callback_asks_callbacks_however_many_there_are() {
    let (sim, pool) = device("");
    let _all = pool.alloc(64 * MIB, LEGACY).expect("room");
    let asked = Arc::new(AtomicU64::new(0));
    for _ in 0..2 {
        let (weak, asked) = (Arc::downgrade(&pool), Arc::clone(&asked));
        pool.on_out_of_memory(move |_| {
            assert!(asked.fetch_add(1, Ordering::Relaxed) < 10, "asked again and again");
            let pool = weak.upgrade().expect("it is being used");
            for _ in 0..3 {
                assert!(pool.alloc(MIB, LEGACY).is_err());
            }
        });
    }
    for round in 1..=2 {
        assert!(pool.alloc(MIB, LEGACY).is_err());
        assert_eq!(asked.load(Ordering::Relaxed), 2 * round, "each once");
    }
    sound(&sim, &pool);
}

#[test]
fn a_panic_in_a_callback_reaches_the_request_and_harms_nothing() {
    let (sim, pool) = device("");
    let all = pool.alloc(64 * MIB, LEGACY).expect("room");
    let id = pool.on_out_of_memory(|_| panic!("on purpose"));
    let request = std::panic::AssertUnwindSafe(|| pool.alloc(MIB, LEGACY));
    assert!(std::panic::catch_unwind(request).is_err());
    assert!(pool.remove_callback(id));
    let asked = Arc::new(AtomicU64::new(0));
    let heard = Arc::clone(&asked);
    pool.on_out_of_memory(move |_| {
        heard.fetch_add(1, Ordering::Relaxed);
    });
    assert!(pool.alloc(MIB, LEGACY).is_err());
    assert_eq!(asked.load(Ordering::Relaxed), 1, "the thread may ask again");
    pool.free(all).expect("live");
    pool.alloc(MIB, LEGACY).expect("room");
    sound(&sim, &pool);
}

#[test]
fn threads_that_are_short_at_once_ask_beside_each_other() {
    let (sim, pool) = device("");
    let blocks: Vec<u64> = (0..30).map(|_| pool.alloc(2 * MIB, LEGACY).expect("room")).collect();
    let cache = Arc::new(Mutex::new(blocks));
    let (weak, taken) = (Arc::downgrade(&pool), Arc::clone(&cache));
    pool.on_out_of_memory(move |_| {
        let block = taken.lock().expect("not poisoned").pop();
        if let (Some(pool), Some(block)) = (weak.upgrade(), block) {
            pool.free(block).expect("live");
        }
    });
    std::thread::scope(|scope| {
        // What the others want is less often than callbacks are asked: none can lose to them each time.
        let work = || {
            for _ in 0..3 {
                pool.alloc(2 * MIB, LEGACY).expect("the cache has enough");
            }
        };
        for thread in [scope.spawn(work), scope.spawn(work), scope.spawn(work)] {
            thread.join().expect("no panic");
        }
    });
    assert!(cache.lock().expect("not poisoned").len() <= 30 - 7);
    sound(&sim, &pool);
}

#[test]
fn a_wait_that_the_driver_refuses_leaves_the_next_step() {
    for call in [Call::StreamWaitEvent, Call::EventSynchronize] {
        let (sim, pool) = device("");
        let side = kept_stream(&sim, &pool);
        pending(&sim, &pool, 60 * MIB, LEGACY, side);
        sim.fail(Fault::nth(call, 1, Code::UNKNOWN));
        pool.alloc(60 * MIB, LEGACY).expect("another way is found");
        sound(&sim, &pool);
    }
}

#[test]
fn the_longest_wait_is_a_setting() {
    assert_eq!(Config::default().wait, Some(Duration::from_secs(60)));
    let (sim, pool) = device("wait:none,dependencies:off");
    let (own, side) = (kept_stream(&sim, &pool), kept_stream(&sim, &pool));
    let block = pool.alloc(60 * MIB, own).expect("room");
    sim.launch(side, Work::new().writes(block, 1).takes(1000 * SECOND))
        .expect("a launch");
    pool.record_stream(block, side).expect("live");
    pool.free(block).expect("live");
    pool.alloc(60 * MIB, LEGACY).expect("after a thousand seconds");
    assert_eq!(sim.now_ns(), 1000 * SECOND);
}
