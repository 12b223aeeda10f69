//! Puts a trace together event by event, and refuses what cannot have happened.

use std::collections::HashMap;

use super::{Damage, Event, Format, Op, Trace, limits};

/// Where a block is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Live,
    Freed,
    Done,
}

#[derive(Debug)]
struct Block {
    size: u64,
    stage: Stage,
}

/// Puts a trace together event by event.
///
/// Streams are named by any number; 0 is the default stream. Times are microseconds since the trace began; a time before
/// that of the last event counts as the last event's, because the order of events is what was observed. An event that is
/// refused changes nothing.
#[derive(Debug, Default)]
pub struct Builder {
    events: Vec<Event>,
    blocks: Vec<Block>,
    /// Stream number in the source to stream number in the trace.
    streams: HashMap<u64, u32>,
    /// Thread number in the source to thread number in the trace; empty where the source names none.
    threads: HashMap<u64, u32>,
    /// The thread of the events that are added now, as the source names it.
    thread: Option<u64>,
    /// How often a block is in use on a stream of the trace: (block, stream) to count.
    uses: HashMap<(u32, u32), u32>,
    live_bytes: u64,
}

impl Builder {
    /// A builder without events.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a block that was live before the trace began, and returns its number.
    ///
    /// # Errors
    /// A size, time or count is beyond [`limits`].
    pub fn live(&mut self, size: u64, stream: u64) -> Result<u32, Damage> {
        self.block(Op::Live, size, stream, 0)
    }

    /// Allocates a block of `size` bytes, and returns its number.
    ///
    /// # Errors
    /// A size, time or count is beyond [`limits`].
    pub fn alloc(&mut self, size: u64, stream: u64, time: u64) -> Result<u32, Damage> {
        self.block(Op::Alloc, size, stream, time)
    }

    /// Frees a block. `stream` is the block's own stream, or another one on which it was used until now.
    ///
    /// # Errors
    /// The block is not live, or a time or count is beyond [`limits`].
    pub fn free(&mut self, block: u32, stream: u64, time: u64) -> Result<(), Damage> {
        let size = self.live_size(block)?;
        self.push(Op::Free, block, size, stream, time)?;
        self.set_stage(block, Stage::Freed);
        self.live_bytes -= size;
        Ok(())
    }

    /// The original allocator could reuse a freed block.
    ///
    /// # Errors
    /// The block is not freed, or a time or count is beyond [`limits`].
    pub fn free_done(&mut self, block: u32, stream: u64, time: u64) -> Result<(), Damage> {
        let Some(&Block {
            size,
            stage: Stage::Freed,
        }) = self.blocks.get(block as usize)
        else {
            return Err(Damage::NotFreed);
        };
        self.push(Op::FreeDone, block, size, stream, time)?;
        self.set_stage(block, Stage::Done);
        Ok(())
    }

    /// A live block is from now on also in use on `stream`.
    ///
    /// # Errors
    /// The block is not live, or a time or count is beyond [`limits`].
    pub fn use_on(&mut self, block: u32, stream: u64, time: u64) -> Result<(), Damage> {
        let size = self.live_size(block)?;
        let stream = self.push(Op::Use, block, size, stream, time)?;
        *self.uses.entry((block, stream)).or_insert(0) += 1;
        Ok(())
    }

    /// One use on `stream` has finished; the block may have been freed meanwhile.
    ///
    /// # Errors
    /// There is no such use, or a time or count is beyond [`limits`].
    pub fn use_done(&mut self, block: u32, stream: u64, time: u64) -> Result<(), Damage> {
        let number = if stream == 0 {
            Some(0)
        } else {
            self.streams.get(&stream).copied()
        };
        let open = number.is_some_and(|number| self.uses.contains_key(&(block, number)));
        let Some(size) = self.blocks.get(block as usize).filter(|_| open).map(|block| block.size) else {
            return Err(Damage::NotInUse);
        };
        let stream = self.push(Op::UseDone, block, size, stream, time)?;
        if let Some(count) = self.uses.get_mut(&(block, stream)) {
            *count -= 1;
            if *count == 0 {
                self.uses.remove(&(block, stream));
            }
        }
        Ok(())
    }

    /// What the original allocator did; `op` is informational.
    ///
    /// # Errors
    /// `op` is not informational, or a size, time or count is beyond [`limits`].
    pub fn note(&mut self, op: Op, size: u64, stream: u64, time: u64) -> Result<(), Damage> {
        if !op.is_informational() {
            return Err(Damage::Missing("block"));
        }
        self.push(op, Event::NO_BLOCK, size, stream, time).map(drop)
    }

    /// The events that are added from now on are calls of this thread, named by any number.
    pub fn in_thread(&mut self, thread: u64) {
        self.thread = Some(thread);
    }

    /// The finished trace. Without `has_time` the times that were given are replaced by the events' indices.
    #[must_use]
    pub fn finish(self, name: &str, has_time: bool) -> Trace {
        self.finish_as(name, Format::Built, has_time)
    }

    pub(super) fn finish_as(mut self, name: &str, format: Format, has_time: bool) -> Trace {
        if !has_time {
            for (index, event) in self.events.iter_mut().enumerate() {
                event.time = index as u64;
            }
        }
        Trace {
            name: name.to_owned(),
            format,
            has_time,
            blocks: self.blocks.len(),
            streams: self
                .events
                .iter()
                .map(|event| event.stream as usize + 1)
                .max()
                .unwrap_or(1),
            threads: self.threads.len(),
            events: self.events,
        }
    }

    fn block(&mut self, op: Op, size: u64, stream: u64, time: u64) -> Result<u32, Damage> {
        let live_bytes = self
            .live_bytes
            .checked_add(size)
            .filter(|bytes| *bytes <= limits::BYTES);
        let live_bytes = live_bytes.ok_or(Damage::LiveBytes)?;
        // The limit on events keeps block numbers far below Event::NO_BLOCK.
        let block = self.blocks.len() as u32;
        self.push(op, block, size, stream, time)?;
        self.blocks.push(Block {
            size,
            stage: Stage::Live,
        });
        self.live_bytes = live_bytes;
        Ok(block)
    }

    fn live_size(&self, block: u32) -> Result<u64, Damage> {
        match self.blocks.get(block as usize) {
            Some(Block {
                size,
                stage: Stage::Live,
            }) => Ok(*size),
            Some(_) => Err(Damage::FreedBefore),
            None => Err(Damage::NotAllocated(format!("block {block}"))),
        }
    }

    fn set_stage(&mut self, block: u32, stage: Stage) {
        if let Some(block) = self.blocks.get_mut(block as usize) {
            block.stage = stage;
        }
    }

    /// Adds an event and returns the number that the stream has in the trace.
    fn push(&mut self, op: Op, block: u32, size: u64, stream: u64, time: u64) -> Result<u32, Damage> {
        for (what, value, most) in [("size", size, limits::BYTES), ("time", time, limits::TIME_US)] {
            if value > most {
                return Err(Damage::OutOfRange {
                    what,
                    text: value.to_string(),
                    most,
                });
            }
        }
        if self.events.len() >= limits::EVENTS {
            return Err(Damage::TooManyEvents);
        }
        let (stream, thread) = (self.stream(stream)?, self.thread()?);
        let time = time.max(self.events.last().map_or(0, |event| event.time));
        self.events.push(Event {
            op,
            block,
            stream,
            size,
            time,
            thread,
        });
        Ok(stream)
    }

    fn thread(&mut self) -> Result<u32, Damage> {
        let Some(thread) = self.thread else { return Ok(0) };
        let next = self.threads.len() as u32;
        if next as usize >= limits::THREADS && !self.threads.contains_key(&thread) {
            return Err(Damage::TooManyThreads);
        }
        Ok(*self.threads.entry(thread).or_insert(next))
    }

    fn stream(&mut self, stream: u64) -> Result<u32, Damage> {
        if stream == 0 {
            return Ok(0);
        }
        let next = self.streams.len() as u32 + 1;
        if next as usize >= limits::STREAMS && !self.streams.contains_key(&stream) {
            return Err(Damage::TooManyStreams);
        }
        Ok(*self.streams.entry(stream).or_insert(next))
    }
}
