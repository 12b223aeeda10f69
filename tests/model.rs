//! Random operations against a naive reference, on simulated memory whose every byte is looked at.
//!
//! Each block is filled with its own stamp by work on its stream, and compared in full before it is freed. The device checks
//! that no block is given out while another stream may still use it, and that nothing in use is unmapped.

#[path = "common/requests.rs"]
mod requests;

use flagstone::config::{Config, Dependencies, Source};
use flagstone::driver::Stream;
use flagstone::driver::sim::{Code, Device, Fault, Options, Sim, StreamKind, Work};
use flagstone::{Error, Pool};
use proptest::prelude::*;
use requests::{FAILING, assert_apart, assert_refused, assert_sound, dependencies, sizes};
use std::collections::BTreeMap;

const CAPACITY: u64 = 96 << 20;
const STREAMS: usize = 3;
/// The stream that comes and goes.
const PASSING: usize = 2;
/// What stands for it in blocks that were allocated before it went.
const GONE: usize = usize::MAX;
/// How many private pools there are.
const PRIVATE: u64 = 2;

#[derive(Debug, Clone)]
enum Action {
    Alloc {
        bytes: u64,
        stream: usize,
        elsewhere: bool,
    },
    Free {
        which: usize,
        elsewhere: bool,
    },
    FreeOn {
        which: usize,
        stream: usize,
    },
    Use {
        which: usize,
        stream: usize,
    },
    FreeAgain {
        which: usize,
    },
    Advance {
        microseconds: u64,
    },
    /// The stream whose handle may die does, and another one comes.
    NewStream,
    BeginPrivate {
        id: u64,
        stream: usize,
    },
    EndPrivate {
        id: u64,
    },
    ReleasePrivate {
        id: u64,
    },
    Reserve {
        bytes: u64,
    },
    Trim {
        target: u64,
    },
    Limit {
        bytes: Option<u64>,
    },
    Fail {
        call: usize,
        count: u64,
    },
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let action = prop_oneof![
        10 => (sizes(), 0..STREAMS, rare()).prop_map(|(bytes, stream, elsewhere)| Action::Alloc { bytes, stream, elsewhere }),
        7 => (any::<usize>(), rare()).prop_map(|(which, elsewhere)| Action::Free { which, elsewhere }),
        1 => (any::<usize>(), 0..STREAMS).prop_map(|(which, stream)| Action::FreeOn { which, stream }),
        2 => (any::<usize>(), 0..STREAMS).prop_map(|(which, stream)| Action::Use { which, stream }),
        1 => any::<usize>().prop_map(|which| Action::FreeAgain { which }),
        2 => (0u64..400).prop_map(|microseconds| Action::Advance { microseconds }),
        1 => Just(Action::NewStream),
        1 => (0..PRIVATE, 0..STREAMS).prop_map(|(id, stream)| Action::BeginPrivate { id, stream }),
        1 => (0..PRIVATE).prop_map(|id| Action::EndPrivate { id }),
        1 => (0..PRIVATE).prop_map(|id| Action::ReleasePrivate { id }),
        1 => (0u64..CAPACITY).prop_map(|bytes| Action::Reserve { bytes }),
        1 => (0u64..CAPACITY).prop_map(|target| Action::Trim { target }),
        1 => prop::option::of(0u64..CAPACITY).prop_map(|bytes| Action::Limit { bytes }),
        1 => (0..FAILING.len(), 1u64..4).prop_map(|(call, count)| Action::Fail { call, count }),
    ];
    prop::collection::vec(action, 1..120)
}

/// Whether another thread does it.
fn rare() -> impl Strategy<Value = bool> {
    prop::bool::weighted(0.2)
}

/// A block as the reference knows it.
#[derive(Debug, Clone)]
struct Block {
    bytes: u64,
    stamp: u8,
    stream: usize,
}

struct Model {
    pool: Pool<Sim>,
    sim: Sim,
    streams: Vec<Stream>,
    live: BTreeMap<u64, Block>,
    freed: Vec<u64>,
    stamp: u8,
    /// How often each private pool was begun and not released.
    held: [u32; PRIVATE as usize],
}

impl Model {
    fn new(source: Source, magazine: u64, dependencies: Dependencies) -> Self {
        let sim = Sim::new(Options {
            capacity: CAPACITY,
            lag_ns: 20_000,
            ..Options::default()
        });
        let mut config = Config::default();
        (config.source, config.magazine, config.dependencies) = (source, magazine, dependencies);
        let pool = Pool::new(sim.clone(), config).expect("a pool");
        let mut streams = vec![Stream::LEGACY];
        for _ in 1..STREAMS {
            streams.push(sim.stream_create(StreamKind::NonBlocking).expect("a stream"));
        }
        // One stream's handle stays good, the other's may die.
        pool.keep_stream(streams[1]).expect("live");
        Self {
            pool,
            sim,
            streams,
            live: BTreeMap::new(),
            freed: Vec::new(),
            stamp: 0,
            held: [0; PRIVATE as usize],
        }
    }

    fn pick(&self, which: usize) -> Option<u64> {
        let place = which.checked_rem(self.live.len())?;
        self.live.keys().nth(place).copied()
    }

    fn step(&mut self, action: &Action) {
        match *action {
            Action::Alloc {
                bytes,
                stream,
                elsewhere,
            } => self.alloc(bytes, stream, elsewhere),
            Action::Free { which, elsewhere } => {
                if let Some(addr) = self.pick(which) {
                    let block = self.compare(addr);
                    // The last work on the block's own stream: may be under way when the block is freed.
                    self.launch(block.stream, addr, block.bytes);
                    self.maybe_elsewhere(elsewhere, |pool| pool.free(addr)).expect("live");
                    self.forget(addr);
                }
            }
            Action::FreeOn { which, stream } => {
                if let Some(addr) = self.pick(which) {
                    let block = self.compare(addr);
                    self.launch(stream, addr, block.bytes);
                    self.pool.free_on(addr, self.streams[stream]).expect("live");
                    self.forget(addr);
                }
            }
            Action::Use { which, stream } => {
                if let Some(addr) = self.pick(which) {
                    let block = self.compare(addr);
                    self.pool.record_stream(addr, self.streams[stream]).expect("live");
                    self.launch(stream, addr, block.bytes);
                }
            }
            Action::FreeAgain { which } => {
                if let Some(place) = which.checked_rem(self.freed.len()) {
                    let addr = self.freed[place];
                    if !self.live.contains_key(&addr) {
                        let error = self.pool.free(addr).expect_err("it is free");
                        assert!(
                            matches!(error, Error::DoubleFree { .. } | Error::UnknownPointer { .. }),
                            "{error}"
                        );
                    }
                }
            }
            Action::Advance { microseconds } => self.sim.advance(microseconds * 1000),
            Action::NewStream => self.renew_stream(),
            Action::BeginPrivate { id, stream } => {
                let stream = self.streams[stream];
                self.pool.begin_private((0, id), move |asked| asked == stream);
                self.held[id as usize] += 1;
            }
            Action::EndPrivate { id } => self.pool.end_private((0, id)),
            Action::ReleasePrivate { id } => {
                self.pool.release_private((0, id));
                self.held[id as usize] = self.held[id as usize].saturating_sub(1);
            }
            Action::Reserve { bytes } => drop(self.pool.reserve(bytes)),
            Action::Trim { target } => drop(self.pool.trim(target)),
            Action::Limit { bytes } => self.pool.set_limit(bytes),
            Action::Fail { call, count } => {
                self.sim.fail(Fault::nth(FAILING[call], count, Code::OUT_OF_MEMORY));
            }
        }
    }

    /// Calls the pool, from a thread that ends then or from this one.
    fn maybe_elsewhere<T: Send>(&self, elsewhere: bool, call: impl FnOnce(&Pool<Sim>) -> T + Send) -> T {
        if elsewhere {
            std::thread::scope(|scope| scope.spawn(|| call(&self.pool)).join().expect("no panic"))
        } else {
            call(&self.pool)
        }
    }

    fn renew_stream(&mut self) {
        let old = self.streams[PASSING];
        self.sim.stream_destroy(old).expect("live");
        self.streams[PASSING] = self.sim.stream_create(StreamKind::NonBlocking).expect("a stream");
        let of_old = self.live.values_mut().filter(|block| block.stream == PASSING);
        of_old.for_each(|block| block.stream = GONE);
    }

    fn alloc(&mut self, bytes: u64, stream: usize, elsewhere: bool) {
        let before = self.pool.stats();
        let handle = self.streams[stream];
        match self.maybe_elsewhere(elsewhere, |pool| pool.alloc(bytes, handle)) {
            Ok(addr) => {
                let size = self.pool.block(addr).expect("live").bytes;
                assert_apart(&self.live, |block| block.bytes, addr, size);
                if let Err(violation) = self.sim.check_handout(addr, size, self.streams[stream]) {
                    panic!("{violation}");
                }
                self.stamp = self.stamp.wrapping_add(1);
                self.live.insert(
                    addr,
                    Block {
                        bytes,
                        stamp: self.stamp,
                        stream,
                    },
                );
                if bytes > 0 {
                    let work = Work::new().fills(addr, bytes, self.stamp).takes(5000);
                    self.sim.launch(self.streams[stream], work).expect("launched");
                }
            }
            Err(error) => {
                assert_refused(&error, &before, &self.pool.stats());
            }
        }
    }

    /// Work that reads the block and takes a while.
    fn launch(&self, stream: usize, addr: u64, bytes: u64) {
        if bytes > 0 && stream != GONE {
            let work = Work::new().reads(addr, bytes).takes(50_000);
            self.sim.launch(self.streams[stream], work).expect("launched");
        }
    }

    /// Waits for the block's stream and compares the whole block with its stamp.
    fn compare(&self, addr: u64) -> Block {
        let block = self.live[&addr].clone();
        if block.bytes > 0 {
            match self.streams.get(block.stream) {
                Some(&stream) => self.sim.stream_synchronize(stream).expect("its work ends"),
                // A failure that was asked for comes once.
                None => while self.sim.ctx_synchronize().is_err() {},
            }
            let mut bytes = vec![0; block.bytes as usize];
            self.sim.read(addr, &mut bytes).expect("readable");
            let wrong = bytes.iter().position(|&byte| byte != block.stamp);
            assert_eq!(wrong, None, "{addr:#x} of {block:?} was written by another");
        }
        block
    }

    fn forget(&mut self, addr: u64) {
        self.live.remove(&addr);
        self.freed.push(addr);
    }

    fn verify(&self) {
        let live = self.live.values().map(|block| block.bytes);
        assert_sound(&self.pool, &self.sim, live, CAPACITY);
    }
}

fn run(source: Source, magazine: u64, dependencies: Dependencies, actions: &[Action]) {
    let mut model = Model::new(source, magazine, dependencies);
    for action in actions {
        model.step(action);
        model.verify();
    }
    model.sim.clear_faults();
    model.pool.set_limit(None);
    for id in 0..PRIVATE {
        for _ in 0..actions.len() {
            model.pool.end_private((0, id));
        }
        for _ in 0..model.held[id as usize] {
            model.pool.release_private((0, id));
        }
    }
    let blocks: Vec<u64> = model.live.keys().copied().collect();
    for addr in blocks {
        model.compare(addr);
        model.pool.free(addr).expect("live");
        model.forget(addr);
    }
    model.pool.trim(0).expect("the device can be waited for");
    model.verify();
    assert_eq!(model.pool.stats().reserved_bytes, 0, "memory was lost");
    let sim: Sim = model.sim.clone();
    drop(model);
    let device: &Device = &sim;
    assert_eq!(
        device.usage().physical_bytes,
        0,
        "the device still holds memory of a pool that is gone"
    );
}

/// The shrunk form of a failure that was met: memory that could not be unmapped was lost.
#[test]
fn what_cannot_be_unmapped_is_tried_again() {
    let alloc = |bytes, stream| Action::Alloc {
        bytes,
        stream,
        elsewhere: false,
    };
    let free = |which| Action::Free {
        which,
        elsewhere: false,
    };
    let fail = |call, count| Action::Fail { call, count };
    let actions = [
        alloc(0, 2),
        alloc(10_485_761, 2),
        Action::Limit { bytes: Some(93_184) },
        free(0),
        alloc(16_385, 2),
        alloc(38_416, 0),
        alloc(1_309_510, 2),
        alloc(523_475, 1),
        alloc(92_766, 0),
        alloc(1_048_576, 1),
        free(8_556_673_596_985_138_356),
        alloc(735_273, 2),
        alloc(5948, 0),
        alloc(2_256_512, 1),
        free(10_709_830_959_434_094_319),
        alloc(531_703, 1),
        alloc(2_170_143, 2),
        alloc(19_802, 0),
        Action::FreeOn {
            which: 947_219_096_886_034_641,
            stream: 2,
        },
        free(17_249_011_647_074_072_793),
        fail(3, 3),
        alloc(4_456_415, 1),
        fail(2, 2),
        alloc(855_993, 1),
        free(16_278_754_949_663_319_873),
        alloc(10_276, 1),
        Action::FreeOn {
            which: 1_550_412_544_266_817_843,
            stream: 1,
        },
        free(8_708_524_037_685_223_521),
        alloc(11_209_938, 0),
        alloc(16_839, 2),
    ];
    for magazine in [0, 64 << 10, 64 << 20] {
        run(Source::VirtualMemory, magazine, Dependencies::Off, &actions);
    }
    run(Source::Slabs, 64 << 20, Dependencies::Off, &actions);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn virtual_memory_agrees_with_the_reference(actions in actions(), waits in dependencies()) {
        run(Source::VirtualMemory, 64 << 20, waits, &actions);
    }

    #[test]
    fn slabs_agree_with_the_reference(actions in actions(), waits in dependencies()) {
        run(Source::Slabs, 64 << 20, waits, &actions);
    }

    #[test]
    fn tiny_magazines_agree_with_the_reference(actions in actions(), waits in dependencies()) {
        run(Source::VirtualMemory, 64 << 10, waits, &actions);
    }

    #[test]
    fn no_magazines_agree_with_the_reference(actions in actions(), waits in dependencies()) {
        run(Source::VirtualMemory, 0, waits, &actions);
    }
}
