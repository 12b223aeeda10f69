//! One event of a trace.

/// What happened. Each operation has the letter that stands for it in the event CSV.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Op {
    /// `p`: the block was live before the trace began.
    Live,
    /// `a`: the block was allocated.
    Alloc,
    /// `f`: the block was freed by its user; its stream may still have work on it.
    Free,
    /// `c`: the original allocator could reuse the block, later than its free.
    FreeDone,
    /// `x`: the block is from now on also in use on the event's stream (`record_stream`).
    Use,
    /// `e`: the work of that use has finished.
    UseDone,
    /// `g`: the original allocator took a segment from the driver.
    SegmentAlloc,
    /// `r`: it gave a segment back.
    SegmentFree,
    /// `m`: it mapped memory into a segment.
    SegmentMap,
    /// `u`: it unmapped memory from a segment.
    SegmentUnmap,
    /// `o`: the original allocator had no memory left.
    OutOfMemory,
}

impl Op {
    /// Every operation with its letter.
    const LETTERS: [(Self, char); 11] = [
        (Self::Live, 'p'),
        (Self::Alloc, 'a'),
        (Self::Free, 'f'),
        (Self::FreeDone, 'c'),
        (Self::Use, 'x'),
        (Self::UseDone, 'e'),
        (Self::SegmentAlloc, 'g'),
        (Self::SegmentFree, 'r'),
        (Self::SegmentMap, 'm'),
        (Self::SegmentUnmap, 'u'),
        (Self::OutOfMemory, 'o'),
    ];

    /// The letter in the event CSV.
    #[must_use]
    pub fn letter(self) -> char {
        Self::LETTERS
            .iter()
            .find(|(op, _)| *op == self)
            .map_or('?', |(_, letter)| *letter)
    }

    /// The operation that a letter of the event CSV stands for.
    #[must_use]
    pub fn from_letter(text: &str) -> Option<Self> {
        let mut characters = text.chars();
        let letter = characters.next()?;
        let (op, _) = Self::LETTERS.iter().find(|(_, known)| *known == letter)?;
        characters.next().is_none().then_some(*op)
    }

    /// Whether the event only says what the original allocator did; it has no block and is not replayed.
    #[must_use]
    pub const fn is_informational(self) -> bool {
        matches!(
            self,
            Self::SegmentAlloc | Self::SegmentFree | Self::SegmentMap | Self::SegmentUnmap | Self::OutOfMemory
        )
    }
}

/// One event of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub op: Op,
    /// The block, counted from 0 in the order of allocation; [`Event::NO_BLOCK`] where the operation is informational.
    pub block: u32,
    /// The stream: 0 is the default stream, others are counted from 1 in the order of appearance.
    pub stream: u32,
    /// Bytes requested for the block, or the bytes of an informational event.
    pub size: u64,
    /// Microseconds since the trace began, or the event's index where the trace has no time.
    pub time: u64,
    /// The thread that made the call, counted from 0 in the order of appearance; 0 where the trace does not say.
    pub thread: u32,
}

impl Event {
    /// The block of informational events.
    pub const NO_BLOCK: u32 = u32::MAX;
}

/// An event, for the readers' tests.
#[cfg(test)]
pub(super) const fn event(op: Op, block: u32, stream: u32, size: u64, time: u64) -> Event {
    Event {
        op,
        block,
        stream,
        size,
        time,
        thread: 0,
    }
}
