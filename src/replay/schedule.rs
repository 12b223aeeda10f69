//! What a trace asks of an allocator: its events as steps with times, and the memory that it needs at best.

use std::collections::{HashMap, VecDeque};

use crate::trace::{Op, Trace};

/// Nanoseconds from one event to the next where a trace has no time: 1,000 events are the default lag of 5 ms.
const EVENT_NS: u64 = 5_000;

/// One call that the trace makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    /// Allocates `size` bytes.
    Alloc { size: u64 },
    /// The block is now also used on the step's stream, until that moment of the pass, in nanoseconds.
    Use { until: u64 },
    /// Frees the block of `size` bytes; the step's stream is the block's own or another one that used it until now.
    Free { size: u64 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Step {
    /// Nanoseconds since the pass began.
    pub time: u64,
    pub block: u32,
    pub stream: u32,
    /// The thread that makes the call.
    pub thread: u32,
    pub call: Call,
}

/// The steps of one pass. Every block that is live at the end is freed there, so that passes can follow each other.
#[derive(Debug)]
pub(crate) struct Schedule {
    pub steps: Vec<Step>,
    /// How many steps are the trace's own; those after them free what is left.
    pub own_steps: usize,
    pub blocks: usize,
    /// Streams, one of them for uses on streams that the trace does not name, if there are such uses.
    pub streams: usize,
    pub allocations: u64,
    /// Nanoseconds from the start of one pass to that of the next.
    pub period: u64,
    pub peak_live_bytes: u64,
    /// Live bytes and bytes that are freed but still in use on another stream.
    pub peak_active_bytes: u64,
}

#[derive(Clone, Copy, Default)]
struct Block {
    size: u64,
    stream: u32,
    live: bool,
    /// The thread that allocated it.
    thread: u32,
    /// Uses on other streams that end later in the trace.
    in_use: u32,
    /// When the original allocator could reuse it, where that was later than the free.
    free_done: Option<u64>,
}

impl Schedule {
    pub fn new(trace: &Trace) -> Self {
        let scale = if trace.has_time() { 1000 } else { EVENT_NS };
        let mut blocks = vec![Block::default(); trace.blocks()];
        let mut use_ends: HashMap<(u32, u32), VecDeque<u64>> = HashMap::new();
        for event in trace.events() {
            match event.op {
                Op::UseDone => use_ends
                    .entry((event.block, event.stream))
                    .or_default()
                    .push_back(event.time * scale),
                Op::FreeDone => blocks[event.block as usize].free_done = Some(event.time * scale),
                _ => {}
            }
        }

        let duration = trace.events().last().map_or(0, |event| event.time * scale);
        let unnamed_stream = trace.streams() as u32;
        let mut schedule = Self {
            steps: Vec::with_capacity(trace.events().len()),
            own_steps: 0,
            blocks: trace.blocks(),
            streams: trace.streams(),
            allocations: trace.blocks() as u64,
            period: duration + EVENT_NS,
            peak_live_bytes: 0,
            peak_active_bytes: 0,
        };
        let mut held = Held::default();
        for event in trace.events().iter().filter(|event| !event.op.is_informational()) {
            let time = event.time * scale;
            let block = &mut blocks[event.block as usize];
            let mut step = |stream, call| {
                schedule.steps.push(Step {
                    time,
                    block: event.block,
                    stream,
                    thread: event.thread,
                    call,
                })
            };
            match event.op {
                Op::Live | Op::Alloc => {
                    *block = Block {
                        size: event.size,
                        stream: event.stream,
                        live: true,
                        thread: event.thread,
                        ..*block
                    };
                    held.live += block.size;
                    held.active += block.size;
                    step(event.stream, Call::Alloc { size: event.size });
                }
                Op::Use => {
                    // A use whose end the trace does not show lasts until the block is freed.
                    let end = use_ends
                        .get_mut(&(event.block, event.stream))
                        .and_then(VecDeque::pop_front);
                    block.in_use += u32::from(end.is_some() && event.stream != block.stream);
                    step(
                        event.stream,
                        Call::Use {
                            until: end.unwrap_or(time),
                        },
                    );
                }
                Op::UseDone if event.stream != block.stream => {
                    block.in_use -= 1;
                    held.drop_unused(block);
                }
                Op::Free => {
                    block.live = false;
                    held.live -= block.size;
                    if let Some(until) = block.free_done {
                        block.in_use += 1;
                        step(unnamed_stream, Call::Use { until });
                        schedule.streams = trace.streams() + 1;
                    }
                    held.drop_unused(block);
                    step(event.stream, Call::Free { size: block.size });
                }
                Op::FreeDone => {
                    block.in_use -= 1;
                    held.drop_unused(block);
                }
                _ => {}
            }
            schedule.peak_live_bytes = schedule.peak_live_bytes.max(held.live);
            schedule.peak_active_bytes = schedule.peak_active_bytes.max(held.active);
        }
        schedule.own_steps = schedule.steps.len();
        for (index, block) in blocks.iter().enumerate().filter(|(_, block)| block.live) {
            let call = Call::Free { size: block.size };
            schedule.steps.push(Step {
                time: duration,
                block: index as u32,
                stream: block.stream,
                thread: block.thread,
                call,
            });
        }
        schedule
    }
}

#[derive(Default)]
struct Held {
    live: u64,
    active: u64,
}

impl Held {
    /// Takes a block out of the active bytes once it is freed and its last use has ended.
    fn drop_unused(&mut self, block: &Block) {
        if !block.live && block.in_use == 0 {
            self.active -= block.size;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Builder;

    fn step(time: u64, block: u32, stream: u32, call: Call) -> Step {
        Step {
            time: time * 1000,
            block,
            stream,
            thread: 0,
            call,
        }
    }

    #[test]
    fn uses_on_other_streams_last_until_their_end() {
        let mut builder = Builder::new();
        let block = builder.alloc(100, 7, 1).unwrap();
        builder.use_on(block, 0, 2).unwrap();
        builder.use_on(block, 0, 3).unwrap();
        builder.free(block, 7, 4).unwrap();
        let other = builder.alloc(50, 0, 5).unwrap();
        builder.use_done(block, 0, 6).unwrap();
        builder.use_done(block, 0, 8).unwrap();
        builder.free(other, 0, 9).unwrap();
        let schedule = Schedule::new(&builder.finish("uses", true));
        assert_eq!(
            schedule.steps,
            [
                step(1, 0, 1, Call::Alloc { size: 100 }),
                step(2, 0, 0, Call::Use { until: 6000 }),
                step(3, 0, 0, Call::Use { until: 8000 }),
                step(4, 0, 1, Call::Free { size: 100 }),
                step(5, 1, 0, Call::Alloc { size: 50 }),
                step(9, 1, 0, Call::Free { size: 50 }),
            ]
        );
        // The first block is freed and still in use when the second is allocated.
        assert_eq!((schedule.peak_live_bytes, schedule.peak_active_bytes), (100, 150));
    }

    #[test]
    fn a_free_that_completes_later_is_a_use_on_an_unnamed_stream() {
        let mut builder = Builder::new();
        let block = builder.live(100, 0).unwrap();
        builder.free(block, 0, 4).unwrap();
        builder.alloc(30, 0, 5).unwrap();
        builder.free_done(block, 0, 6).unwrap();
        let schedule = Schedule::new(&builder.finish("pending", true));
        assert_eq!(
            schedule.steps,
            [
                step(0, 0, 0, Call::Alloc { size: 100 }),
                step(4, 0, 1, Call::Use { until: 6000 }),
                step(4, 0, 0, Call::Free { size: 100 }),
                step(5, 1, 0, Call::Alloc { size: 30 }),
                // What is live at the end is freed there.
                step(6, 1, 0, Call::Free { size: 30 }),
            ]
        );
        assert_eq!(
            (schedule.streams, schedule.peak_live_bytes, schedule.peak_active_bytes),
            (2, 100, 130)
        );
    }

    #[test]
    fn uses_that_do_not_outlive_the_block_are_not_active() {
        let mut builder = Builder::new();
        let block = builder.alloc(100, 0, 0).unwrap();
        // On its own stream, even after the free; on another without an end; on another and ended before the free.
        builder.use_on(block, 0, 1).unwrap();
        builder.use_on(block, 5, 1).unwrap();
        builder.use_on(block, 6, 1).unwrap();
        builder.use_done(block, 6, 2).unwrap();
        builder.free(block, 0, 3).unwrap();
        builder.alloc(100, 0, 4).unwrap();
        builder.use_done(block, 0, 5).unwrap();
        let schedule = Schedule::new(&builder.finish("ended", true));
        assert_eq!(schedule.peak_active_bytes, 100);
    }

    #[test]
    fn without_time_events_are_5_microseconds_apart() {
        let mut builder = Builder::new();
        let block = builder.alloc(100, 0, 0).unwrap();
        builder.free(block, 0, 0).unwrap();
        let schedule = Schedule::new(&builder.finish("untimed", false));
        assert_eq!(
            schedule.steps.iter().map(|step| step.time).collect::<Vec<_>>(),
            [0, 5000]
        );
        assert_eq!(schedule.period, 10_000);
    }
}
