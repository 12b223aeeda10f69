//! What may be done to a pool with captures.

use crate::machine::{BLOCKING, CAPACITY, LANES};
use crate::requests::{FAILING, sizes};
use flagstone::driver::sim::CaptureMode;
use proptest::prelude::*;

#[derive(Debug, Clone)]
pub enum Action {
    Alloc { lane: usize, bytes: u64, hand: Hand },
    Write { which: usize },
    Use { which: usize, lane: usize },
    Free { which: usize, hand: Hand },
    FreeOn { which: usize, lane: usize },
    FreeElsewhere { which: usize },
    Compare { which: usize },
    Begin { lane: usize, name: Name, mode: CaptureMode },
    End { lane: usize },
    Abort { lane: usize },
    Replay { graph: usize, lane: usize },
    Release { graph: usize },
    NewStream,
    Synchronize,
    Advance { microseconds: u64 },
    Trim { target: u64 },
    Limit { bytes: Option<u64> },
    Fail { call: usize, count: u64 },
}

/// Which thread does it.
#[derive(Debug, Clone, Copy)]
pub enum Hand {
    Own,
    Other,
    /// One that ends then.
    Passing,
}

/// What the pool is told of a capture.
#[derive(Debug, Clone, Copy)]
pub enum Name {
    Unannounced,
    New,
    /// The private pool of an earlier graph, which is not replayed any more then.
    Shared(usize),
}

pub fn actions() -> impl Strategy<Value = Vec<(usize, Action)>> {
    let hand = || prop_oneof![4 => Just(Hand::Own), 1 => Just(Hand::Other), 1 => Just(Hand::Passing)];
    let name = prop_oneof![
        2 => Just(Name::Unannounced),
        3 => Just(Name::New),
        1 => any::<usize>().prop_map(Name::Shared),
    ];
    let mode = prop::sample::select(vec![
        CaptureMode::Global,
        CaptureMode::ThreadLocal,
        CaptureMode::Relaxed,
    ]);
    let which = any::<usize>;
    let action = prop_oneof![
        16 => (0..LANES, sizes(), hand()).prop_map(|(lane, bytes, hand)| Action::Alloc { lane, bytes, hand }),
        3 => which().prop_map(|which| Action::Write { which }),
        3 => (which(), 0..LANES).prop_map(|(which, lane)| Action::Use { which, lane }),
        10 => (which(), hand()).prop_map(|(which, hand)| Action::Free { which, hand }),
        1 => (which(), 0..LANES).prop_map(|(which, lane)| Action::FreeOn { which, lane }),
        1 => which().prop_map(|which| Action::FreeElsewhere { which }),
        2 => which().prop_map(|which| Action::Compare { which }),
        4 => (1..=BLOCKING, name, mode).prop_map(|(lane, name, mode)| Action::Begin { lane, name, mode }),
        3 => (1..=BLOCKING).prop_map(|lane| Action::End { lane }),
        1 => (1..=BLOCKING).prop_map(|lane| Action::Abort { lane }),
        3 => (which(), 0..LANES).prop_map(|(graph, lane)| Action::Replay { graph, lane }),
        1 => which().prop_map(|graph| Action::Release { graph }),
        1 => Just(Action::NewStream),
        1 => Just(Action::Synchronize),
        2 => (0u64..400).prop_map(|microseconds| Action::Advance { microseconds }),
        1 => (0u64..CAPACITY).prop_map(|target| Action::Trim { target }),
        1 => prop::option::of(CAPACITY / 4..CAPACITY).prop_map(|bytes| Action::Limit { bytes }),
        1 => (0..FAILING.len(), 1u64..4).prop_map(|(call, count)| Action::Fail { call, count }),
    ];
    prop::collection::vec((0..2usize, action), 1..150)
}
