//! Any sequence of calls on a pool of a small simulated device: its invariants hold after each, blocks never overlap, and
//! nothing is lost in the end.

#![no_main]

use arbitrary::Arbitrary;
use flagstone::config::{Config, Source};
use flagstone::driver::Stream;
use flagstone::driver::sim::{Call, Code, Fault, Options, Sim, StreamKind};
use flagstone::{Error, Pool};
use libfuzzer_sys::fuzz_target;
use std::collections::BTreeMap;

const CAPACITY: u64 = 64 << 20;

#[derive(Arbitrary, Debug)]
enum Size {
    Small(u16),
    Large(u32),
    Any(u64),
}

#[derive(Arbitrary, Debug)]
enum Action {
    Alloc { size: Size, stream: u8 },
    Free { which: u8 },
    FreeOn { which: u8, stream: u8 },
    FreeWrong { addr: u64 },
    Use { which: u8, stream: u8 },
    NewStream { which: u8 },
    BeginPrivate { id: u8, stream: u8 },
    EndPrivate { id: u8 },
    ReleasePrivate { id: u8 },
    Advance { microseconds: u8 },
    Trim { target: u32 },
    Reserve { bytes: u32 },
    Limit { bytes: Option<u32> },
    Fail { call: u8, nth: u8 },
}

#[derive(Arbitrary, Debug)]
struct Input {
    slabs: bool,
    magazine: u32,
    actions: Vec<Action>,
}

const FAILING: [Call; 8] = [
    Call::MemCreate,
    Call::MemMap,
    Call::MemSetAccess,
    Call::MemUnmap,
    Call::MemAlloc,
    Call::MemAddressReserve,
    Call::EventRecord,
    Call::CtxSynchronize,
];

struct Run {
    sim: Sim,
    pool: Pool<Sim>,
    streams: [Stream; 3],
    live: BTreeMap<u64, u64>,
}

impl Run {
    fn new(input: &Input) -> Self {
        let sim = Sim::new(Options {
            capacity: CAPACITY,
            backed: false,
            lag_ns: 20_000,
            ..Options::default()
        });
        let mut config = Config::default();
        config.source = if input.slabs { Source::Slabs } else { Source::VirtualMemory };
        config.magazine = input.magazine.into();
        let pool = Pool::new(sim.clone(), config).expect("a pool takes nothing from the driver");
        let stream = || sim.stream_create(StreamKind::NonBlocking).expect("a stream");
        let streams = [Stream::LEGACY, stream(), stream()];
        pool.keep_stream(streams[1]).expect("live");
        Self {
            sim,
            pool,
            streams,
            live: BTreeMap::new(),
        }
    }

    fn stream(&self, which: u8) -> Stream {
        self.streams[usize::from(which) % self.streams.len()]
    }

    fn pick(&self, which: u8) -> Option<u64> {
        let place = usize::from(which).checked_rem(self.live.len())?;
        self.live.keys().nth(place).copied()
    }

    fn alloc(&mut self, bytes: u64, stream: Stream) {
        match self.pool.alloc(bytes, stream) {
            Ok(addr) => {
                let size = self.pool.block(addr).expect("live").bytes;
                assert!(size >= bytes && addr % 512 == 0);
                let below = self.live.range(..addr).next_back();
                assert!(below.is_none_or(|(&start, &bytes)| start + bytes <= addr), "overlaps");
                let above = self.live.range(addr..).next();
                assert!(above.is_none_or(|(&start, _)| addr + size <= start), "overlaps");
                if let Err(violation) = self.sim.check_handout(addr, size, stream) {
                    panic!("{violation}");
                }
                self.live.insert(addr, size);
            }
            Err(Error::OutOfMemory(_) | Error::Driver(_) | Error::TooLarge { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn step(&mut self, action: &Action) {
        match *action {
            Action::Alloc { ref size, stream } => {
                let bytes = match *size {
                    Size::Small(bytes) => bytes.into(),
                    Size::Large(bytes) => u64::from(bytes) % CAPACITY,
                    Size::Any(bytes) => bytes,
                };
                self.alloc(bytes, self.stream(stream));
            }
            Action::Free { which } => {
                if let Some(addr) = self.pick(which) {
                    self.pool.free(addr).expect("live");
                    self.live.remove(&addr);
                }
            }
            Action::FreeOn { which, stream } => {
                if let Some(addr) = self.pick(which) {
                    self.pool.free_on(addr, self.stream(stream)).expect("live");
                    self.live.remove(&addr);
                }
            }
            Action::FreeWrong { addr } => {
                if !self.live.contains_key(&addr) {
                    self.pool.free(addr).expect_err("nobody has it");
                }
            }
            Action::Use { which, stream } => {
                if let Some(addr) = self.pick(which) {
                    self.pool.record_stream(addr, self.stream(stream)).expect("live");
                }
            }
            Action::NewStream { which } => {
                // The first is the default stream, and the second was promised to stay.
                let _ = which;
                self.sim.stream_destroy(self.streams[2]).expect("live");
                self.streams[2] = self.sim.stream_create(StreamKind::NonBlocking).expect("a stream");
            }
            Action::BeginPrivate { id, stream } => {
                let stream = self.stream(stream);
                self.pool.begin_private((0, id.into()), move |asked| asked == stream);
            }
            Action::EndPrivate { id } => self.pool.end_private((0, id.into())),
            Action::ReleasePrivate { id } => self.pool.release_private((0, id.into())),
            Action::Advance { microseconds } => self.sim.advance(u64::from(microseconds) * 1000),
            Action::Trim { target } => drop(self.pool.trim(target.into())),
            Action::Reserve { bytes } => drop(self.pool.reserve(u64::from(bytes) % CAPACITY)),
            Action::Limit { bytes } => self.pool.set_limit(bytes.map(u64::from)),
            Action::Fail { call, nth } => {
                let call = FAILING[usize::from(call) % FAILING.len()];
                self.sim.fail(Fault::nth(call, u64::from(nth % 4) + 1, Code::OUT_OF_MEMORY));
            }
        }
    }

    fn verify(&self) {
        if let Err(fault) = self.pool.check() {
            panic!("{fault}\n{}", self.pool.stats());
        }
        assert_eq!(self.pool.stats().live_blocks as usize, self.live.len());
        let violations: &[_] = &self.sim.violations();
        assert!(violations.is_empty(), "{violations:?}");
    }
}

fuzz_target!(|input: Input| {
    let mut run = Run::new(&input);
    for action in input.actions.iter().take(200) {
        run.step(action);
        run.verify();
    }
    run.sim.clear_faults();
    for addr in std::mem::take(&mut run.live).into_keys() {
        run.pool.free(addr).expect("live");
    }
    run.verify();
});
