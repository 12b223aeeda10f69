//! A device, its pool, and a user who keeps to the rules: what each block is, and whose work was on it.

use crate::actions::{Action, Hand};
use crate::requests::{FAILING, assert_apart, assert_refused, assert_sound};
use flagstone::config::Config;
use flagstone::driver::sim::{Code, Fault, Graph, Options, Sim, StreamKind, Work};
use flagstone::driver::{Driver, DriverResult, Stream};
use flagstone::{Error, Pool, PrivateId, Stats};
use std::collections::BTreeMap;
use std::sync::{Arc, mpsc};

pub const CAPACITY: u64 = 96 << 20;
/// The legacy stream, one that is kept, one that comes and goes, one that waits for the legacy stream and makes it wait, and the
/// default streams of two threads, which have one handle.
pub const LANES: usize = 6;
pub const PASSING: usize = 2;
pub const BLOCKING: usize = 3;
pub const OWN: usize = 4;
pub const OTHER: usize = 5;

/// A block as the reference knows it.
#[derive(Debug, Clone)]
pub struct Block {
    pub bytes: u64,
    /// What each of its bytes is, or will be by the work that its stream has.
    pub stamp: Option<u8>,
    /// Where it was allocated; `None` once that stream is gone.
    pub lane: Option<usize>,
    /// The number of the capture that it was allocated in.
    pub capture: Option<u64>,
    /// The streams whose work on it no other stream has waited for.
    pub touched: [bool; LANES],
    /// Whether a stream that is gone had such work: nobody can wait for it but by waiting for the device.
    pub lost: bool,
}

pub struct Lane {
    pub stream: Stream,
    pub open: Option<Open>,
}

/// A capture that goes on.
pub struct Open {
    pub number: u64,
    pub id: Option<PrivateId>,
    /// The stamps that its graph gives its blocks.
    pub stamps: BTreeMap<u64, u8>,
}

pub struct Captured {
    pub open: Open,
    pub graph: Graph,
    /// Whether the graph may still be replayed.
    pub usable: bool,
    pub released: bool,
    /// The streams whose work on its memory nothing has waited for: its last replay, and what was done with its blocks since then.
    pub touched: [bool; LANES],
}

/// A device, its pool, and what a user has of it.
pub struct Machine {
    pub sim: Sim,
    pub pool: Arc<Pool<Sim>>,
    pub lanes: [Lane; LANES],
    pub live: BTreeMap<u64, Block>,
    pub graphs: Vec<Captured>,
    pub count: u64,
    /// Whether a capture that nobody announced has memory, which stays as long as the pool.
    pub keeps: bool,
    pub other: mpsc::Sender<Box<dyn FnOnce() + Send>>,
}

/// A call of the driver that may have been made to fail, until it does not.
fn insist<T>(call: impl Fn() -> DriverResult<T>) -> T {
    (0..100)
        .find_map(|_| call().ok())
        .expect("a failure that was asked for comes once")
}

impl Machine {
    pub fn new(ordinal: i32, config: &Config) -> Self {
        let sim = Sim::new(Options {
            ordinal,
            capacity: CAPACITY,
            lag_ns: 20_000,
            ..Options::default()
        });
        let pool = Arc::new(Pool::new(sim.clone(), config.clone()).expect("a pool"));
        let create = |kind| sim.stream_create(kind).expect("a stream");
        let lanes = [
            Stream::LEGACY,
            create(StreamKind::NonBlocking),
            create(StreamKind::NonBlocking),
            create(StreamKind::Blocking),
            Stream::PER_THREAD,
            Stream::PER_THREAD,
        ];
        let lanes = lanes.map(|stream| Lane { stream, open: None });
        pool.keep_stream(lanes[1].stream).expect("live");
        let (other, calls) = mpsc::channel::<Box<dyn FnOnce() + Send>>();
        std::thread::spawn(move || calls.into_iter().for_each(|call| call()));
        Self {
            sim,
            pool,
            lanes,
            live: BTreeMap::new(),
            graphs: Vec::new(),
            count: 0,
            keeps: false,
            other,
        }
    }

    /// Calls the pool from one thread or another.
    pub fn by<T: Send + 'static>(&self, hand: Hand, call: impl FnOnce(&Pool<Sim>) -> T + Send + 'static) -> T {
        let pool = self.pool.clone();
        match hand {
            Hand::Own => call(&pool),
            Hand::Passing => std::thread::spawn(move || call(&pool)).join().expect("no panic"),
            Hand::Other => {
                let (answer, answered) = mpsc::channel();
                let call = move || {
                    let result = call(&pool);
                    drop(pool);
                    answer.send(result).expect("it is waited for");
                };
                self.other.send(Box::new(call)).expect("the thread lives");
                answered.recv().expect("no panic")
            }
        }
    }

    /// The thread for which the handle of the lane names its stream: for most of them it may be `any`.
    fn hand(lane: usize, any: Hand) -> Hand {
        match lane {
            OWN => Hand::Own,
            OTHER => Hand::Other,
            _ => any,
        }
    }

    /// Calls the device about a lane's stream.
    pub fn on<T: Send + 'static>(&self, lane: usize, call: impl FnOnce(&Sim, Stream) -> T + Send + 'static) -> T {
        let (sim, stream) = (self.sim.clone(), self.lanes[lane].stream);
        self.by(Self::hand(lane, Hand::Own), move |_| call(&sim, stream))
    }

    pub fn pick(&self, which: usize) -> Option<u64> {
        let place = which.checked_rem(self.live.len())?;
        self.live.keys().nth(place).copied()
    }

    pub fn pick_graph(&self, which: usize) -> Option<usize> {
        which.checked_rem(self.graphs.len())
    }

    /// Whether a stream may be given work that is done at once.
    pub fn is_eager(&self, lane: usize) -> bool {
        self.lanes[lane].open.is_none() && (lane != 0 || self.lanes[BLOCKING].open.is_none())
    }

    /// Orders what `lane` does from now on after what those `before` it have to do.
    pub fn follow(&self, lane: usize, before: impl IntoIterator<Item = usize>) {
        for before in before.into_iter().filter(|&before| before != lane) {
            let event = insist(|| Driver::event_create(&self.sim));
            insist(|| self.on(before, move |sim, stream| Driver::event_record(sim, event, stream)));
            insist(|| self.on(lane, move |sim, stream| sim.stream_wait(stream, event)));
            insist(|| Driver::event_destroy(&self.sim, event));
        }
    }

    pub fn launch(&self, lane: usize, work: Work) {
        self.on(lane, move |sim, stream| sim.launch(stream, work))
            .expect("launched");
    }

    /// Whether work of `lane` can be ordered after all that was done to the block.
    pub fn can_follow(&self, block: &Block, lane: usize) -> bool {
        !block.lost && self.is_eager(lane) && (0..LANES).all(|other| !block.touched[other] || self.is_eager(other))
    }

    /// Work of `lane` that reads the block, if the rules allow it. Whatever wrote to it, its own stream comes after that.
    pub fn read(&mut self, addr: u64, lane: usize) {
        let block = &self.live[&addr];
        let Some(own) = block.lane.filter(|&own| self.is_eager(own) && self.is_eager(lane)) else {
            return;
        };
        if block.bytes > 0 {
            self.follow(lane, [own]);
            self.launch(lane, Work::new().reads(addr, block.bytes).takes(50_000));
            self.touch(addr, lane);
        }
    }

    /// Notes work of `lane` on the block, and on the graph whose memory it is.
    pub fn touch(&mut self, addr: u64, lane: usize) {
        let block = self.live.get_mut(&addr).expect("live");
        block.touched[lane] = true;
        for graph in &mut self.graphs {
            graph.touched[lane] |= block.capture == Some(graph.open.number);
        }
    }

    pub fn alloc(&mut self, lane: usize, bytes: u64, hand: Hand) {
        if lane == OWN && matches!(hand, Hand::Passing) {
            return self.alloc_passing(bytes);
        }
        let before = self.pool.stats();
        let stream = self.lanes[lane].stream;
        let result = self.by(Self::hand(lane, hand), move |pool| pool.alloc(bytes, stream));
        let Some(addr) = self.served(result, &before) else {
            return;
        };
        let size = self.pool.block(addr).expect("live").bytes;
        if let Err(violation) = self.on(lane, move |sim, stream| sim.check_handout(addr, size, stream)) {
            panic!("{violation}");
        }
        self.count += 1;
        let stamp = self.count as u8;
        let mut block = Block {
            bytes,
            stamp: None,
            lane: Some(lane),
            capture: None,
            touched: [false; LANES],
            lost: false,
        };
        let fill = Work::new().fills(addr, bytes, stamp).takes(5000);
        let is_eager = self.is_eager(lane);
        if let Some(open) = &mut self.lanes[lane].open {
            block.capture = Some(open.number);
            open.stamps.insert(addr, stamp);
            self.keeps |= open.id.is_none();
        } else if is_eager {
            (block.stamp, block.touched[lane]) = (Some(stamp), true);
        }
        if bytes > 0 && (is_eager || block.capture.is_some()) {
            self.launch(lane, fill);
        }
        self.live.insert(addr, block);
    }

    /// A block of the default stream of a thread, which writes it and has ended then.
    fn alloc_passing(&mut self, bytes: u64) {
        let before = self.pool.stats();
        self.count += 1;
        let (sim, stamp) = (self.sim.clone(), self.count as u8);
        let result = self.by(Hand::Passing, move |pool| {
            let addr = pool.alloc(bytes, Stream::PER_THREAD)?;
            let size = pool.block(addr).expect("live").bytes;
            sim.check_handout(addr, size, Stream::PER_THREAD)
                .expect("nobody else's");
            if bytes > 0 {
                let fill = Work::new().fills(addr, bytes, stamp).takes(50_000);
                sim.launch(Stream::PER_THREAD, fill).expect("launched");
            }
            Ok(addr)
        });
        if let Some(addr) = self.served(result, &before) {
            let block = Block {
                bytes,
                stamp: Some(stamp),
                lane: None,
                capture: None,
                touched: [false; LANES],
                lost: true,
            };
            self.live.insert(addr, block);
        }
    }

    /// The block that was given, apart from all others; what was refused changed nothing since `before`.
    fn served(&self, result: Result<u64, Error>, before: &Stats) -> Option<u64> {
        match result {
            Ok(addr) => {
                let size = self.pool.block(addr).expect("live").bytes;
                assert_apart(&self.live, |block| block.bytes, addr, size);
                Some(addr)
            }
            Err(error) => {
                assert_refused(&error, before, &self.pool.stats());
                None
            }
        }
    }

    pub fn write(&mut self, addr: u64) {
        let block = &self.live[&addr];
        let Some(lane) = block.lane.filter(|&lane| self.can_follow(block, lane)) else {
            return;
        };
        self.follow(lane, (0..LANES).filter(|&other| block.touched[other]));
        self.count += 1;
        let stamp = self.count as u8;
        if block.bytes > 0 {
            self.launch(lane, Work::new().fills(addr, block.bytes, stamp).takes(5000));
        }
        let block = self.live.get_mut(&addr).expect("live");
        (block.stamp, block.touched) = (Some(stamp), [false; LANES]);
        self.touch(addr, lane);
    }

    /// Compares the whole block with its stamp, when the device has done what it has to do. The host does not ask it, so that the
    /// pool learns nothing by that.
    pub fn compare(&self, addr: u64) {
        let block = &self.live[&addr];
        let Some(stamp) = block.stamp else { return };
        self.sim.advance(1_000_000_000);
        let mut bytes = vec![0; block.bytes as usize];
        self.sim.read(addr, &mut bytes).expect("readable");
        let wrong = bytes.iter().position(|&byte| byte != stamp);
        assert_eq!(wrong, None, "{addr:#x} of {block:?} was written by another");
    }

    pub fn free(&mut self, addr: u64, hand: Hand) {
        let block = &self.live[&addr];
        match block.lane {
            // The last work of its own stream may be under way.
            Some(lane) if self.is_eager(lane) => self.read(addr, lane),
            Some(lane) => {
                let open = self.lanes[lane].open.as_ref();
                if block.bytes > 0 && open.is_some_and(|open| block.capture == Some(open.number)) {
                    self.launch(lane, Work::new().reads(addr, block.bytes).takes(5000));
                }
            }
            None => {}
        }
        self.by(hand, move |pool| pool.free(addr)).expect("live");
        self.live.remove(&addr);
    }

    pub fn synchronize(&mut self) {
        if self.pool.synchronize().is_ok() {
            for block in self.live.values_mut() {
                (block.touched, block.lost) = ([false; LANES], false);
            }
        }
    }

    pub fn step(&mut self, action: &Action, elsewhere: &Pool<Sim>) {
        match *action {
            Action::Alloc { lane, bytes, hand } => self.alloc(lane, bytes, hand),
            Action::Begin { lane, name, mode } => self.begin(lane, name, mode),
            Action::End { lane } => self.end(lane),
            Action::Abort { lane } => self.abort(lane),
            Action::NewStream => self.renew_stream(),
            Action::Synchronize => self.synchronize(),
            Action::Advance { microseconds } => self.sim.advance(microseconds * 1000),
            Action::Trim { target } => drop(self.pool.trim(target)),
            Action::Limit { bytes } => self.pool.set_limit(bytes),
            Action::Fail { call, count } => self.sim.fail(Fault::nth(FAILING[call], count, Code::OUT_OF_MEMORY)),
            Action::Replay { graph, lane } => {
                if let Some(place) = self.pick_graph(graph) {
                    self.replay(place, lane);
                }
            }
            Action::Release { graph } => {
                if let Some(place) = self.pick_graph(graph) {
                    self.release(place);
                }
            }
            Action::Write { which }
            | Action::Use { which, .. }
            | Action::Free { which, .. }
            | Action::FreeOn { which, .. }
            | Action::FreeElsewhere { which }
            | Action::Compare { which } => {
                if let Some(addr) = self.pick(which) {
                    self.step_on(action, addr, elsewhere);
                }
            }
        }
    }

    /// A step that is about a live block.
    pub fn step_on(&mut self, action: &Action, addr: u64, elsewhere: &Pool<Sim>) {
        match *action {
            Action::Use { lane, .. } => {
                let stream = self.lanes[lane].stream;
                self.by(Self::hand(lane, Hand::Own), move |pool| {
                    pool.record_stream(addr, stream)
                })
                .expect("live");
                self.read(addr, lane);
            }
            Action::Free { hand, .. } => self.free(addr, hand),
            Action::FreeOn { lane, .. } => {
                self.read(addr, lane);
                let stream = self.lanes[lane].stream;
                self.by(Self::hand(lane, Hand::Own), move |pool| pool.free_on(addr, stream))
                    .expect("live");
                self.live.remove(&addr);
            }
            Action::FreeElsewhere { .. } => {
                let refused = [elsewhere.free(addr), elsewhere.record_stream(addr, Stream::LEGACY)];
                assert!(
                    refused
                        .iter()
                        .all(|refused| matches!(refused, Err(Error::UnknownPointer { .. })))
                );
            }
            Action::Compare { .. } => self.compare(addr),
            _ => self.write(addr),
        }
    }

    pub fn verify(&self) {
        let live = self.live.values().map(|block| block.bytes);
        assert_sound(&self.pool, &self.sim, live, CAPACITY);
    }

    /// Ends and frees everything: nothing was lost.
    pub fn finish(mut self) {
        self.sim.clear_faults();
        self.pool.set_limit(None);
        for lane in 1..LANES {
            self.end(lane);
        }
        for place in 0..self.graphs.len() {
            self.release(place);
        }
        for addr in self.live.keys().copied().collect::<Vec<_>>() {
            self.compare(addr);
            self.free(addr, Hand::Own);
        }
        self.pool.trim(0).expect("the device can be waited for");
        self.verify();
        let kept: u64 = self.pool.private_pools().values().sum();
        assert_eq!(self.pool.stats().reserved_bytes, kept, "memory was lost");
        assert!(kept == 0 || self.keeps, "{kept} bytes of graphs that are gone");
        let Self { sim, pool, other, .. } = self;
        drop(other);
        assert!(Arc::into_inner(pool).is_some(), "the pool goes here");
        assert_eq!(
            sim.usage().physical_bytes,
            0,
            "the device still holds memory of a pool that is gone"
        );
    }
}
