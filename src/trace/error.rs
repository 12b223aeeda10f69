//! Why a file could not be read as a trace.

use super::limits;

/// A file that could not be read, with where and why.
#[derive(Debug, thiserror::Error)]
#[error("{file}: {problem}")]
pub struct TraceError {
    /// The file's name.
    pub file: String,
    /// What is wrong with it.
    #[source]
    pub problem: Problem,
}

/// What is wrong with a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// The file cannot be opened or read, or its compression is damaged.
    #[error("cannot be read: {0}")]
    Unreadable(std::io::Error),
    /// The content is none of the known formats.
    #[error(
        "is not a known trace; known (plain or .gz): event CSV (op,id,size,..), lifetimes CSV (id,lower,upper,size), \
         RMM log (Thread,Time,Action,Pointer,Size,Stream), torch memory snapshot (pickle)"
    )]
    UnknownFormat,
    /// One line is damaged.
    #[error("line {line}: {damage}")]
    Line {
        /// The line, counted from 1.
        line: u64,
        /// What is wrong with it.
        damage: Damage,
    },
    /// One entry of a snapshot's history is damaged.
    #[error("history entry {entry}: {damage}")]
    Entry {
        /// The entry, counted from 1.
        entry: u64,
        /// What is wrong with it.
        damage: Damage,
    },
    /// The snapshot lacks a part, or the part is of the wrong kind.
    #[error("the snapshot's {part} is missing or damaged")]
    Snapshot {
        /// The part, as the snapshot calls it.
        part: &'static str,
    },
    /// The snapshot has no history of events.
    #[error("the snapshot has no history; call torch.cuda.memory._record_memory_history() before the run to record")]
    NoHistory,
    /// The snapshot has no history of the device that was asked for.
    #[error("the snapshot has no history of device {device}; ask for another device, or for none to get the longest")]
    NoHistoryOf {
        /// The device's ordinal.
        device: u32,
    },
    /// The file is not a snapshot, and a device was asked for.
    #[error("is no torch memory snapshot, and only these have devices to choose from; do not ask for device {device}")]
    NoDevices {
        /// The device's ordinal.
        device: u32,
    },
    /// The pickle is damaged, or holds more than plain data.
    #[error("pickle byte {offset}: {damage}")]
    Pickle {
        /// The offset of the opcode, in bytes.
        offset: usize,
        /// What is wrong with it.
        damage: PickleDamage,
    },
    /// The file, after decompression, is larger than is read.
    #[error("is larger than {} MiB after decompression; cut the recording", limits::FILE_BYTES >> 20)]
    TooLarge,
}

impl From<std::io::Error> for Problem {
    fn from(error: std::io::Error) -> Self {
        Self::Unreadable(error)
    }
}

/// What is wrong with a line of a text file, or with an entry of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Damage {
    /// A value is absent.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// A value is not a whole number.
    #[error("{what} {text:?} is not a whole number")]
    NotANumber {
        /// The column or key.
        what: &'static str,
        /// What stands there.
        text: String,
    },
    /// A number is negative or too large.
    #[error("{what} {text} is not within 0 to {most}")]
    OutOfRange {
        /// The column or key.
        what: &'static str,
        /// What stands there.
        text: String,
        /// The largest value allowed.
        most: u64,
    },
    /// The operation or action is not known.
    #[error("{what} {text:?} is not known; known: {known}")]
    Unknown {
        /// The column or key.
        what: &'static str,
        /// What stands there.
        text: String,
        /// What is allowed.
        known: &'static str,
    },
    /// The time of day is not `HH:MM:SS.ffffff`.
    #[error("time {0:?} is not HH:MM:SS.ffffff")]
    TimeOfDay(String),
    /// The block was allocated before.
    #[error("{0} is allocated already")]
    AllocatedTwice(String),
    /// No such block was allocated.
    #[error("{0} is not allocated")]
    NotAllocated(String),
    /// The block was freed before.
    #[error("the block was freed before")]
    FreedBefore,
    /// The completion of a free comes before the free, or twice.
    #[error("the completion does not follow a free of the block")]
    NotFreed,
    /// A use on a stream ends that had not begun.
    #[error("the block is not in use on that stream")]
    NotInUse,
    /// A lifetime is empty or reversed.
    #[error("the lifetime from {lower} to {upper} is empty; upper is exclusive")]
    EmptyLifetime {
        /// The first moment.
        lower: u64,
        /// The first moment after.
        upper: u64,
    },
    /// The live blocks together exceed what can be counted.
    #[error("more than {} bytes would be live", limits::BYTES)]
    LiveBytes,
    /// The trace has too many events.
    #[error("more than {} events; cut the recording", limits::EVENTS)]
    TooManyEvents,
    /// The trace has too many streams.
    #[error("more than {} streams", limits::STREAMS)]
    TooManyStreams,
    /// The trace has too many threads.
    #[error("more than {} threads", limits::THREADS)]
    TooManyThreads,
    /// The line is too long.
    #[error("longer than {} bytes", limits::LINE_BYTES)]
    LongLine,
    /// The line is not text.
    #[error("not UTF-8 text")]
    NotText,
}

/// The part of a damaged file that a message quotes: its first 40 characters.
pub(super) fn quote(text: &str) -> String {
    text.chars().take(40).collect()
}

/// What is wrong with a pickle.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PickleDamage {
    /// The pickle wants to load a class or to run code. That is never done.
    #[error("opcode {0} loads or builds objects and is refused: only plain data is read")]
    Refused(&'static str),
    /// The opcode is not one of plain data in protocols 2 to 5.
    #[error("opcode {0:#04x} is not plain data of pickle protocols 2 to 5")]
    Opcode(u8),
    /// The protocol is newer than what is read.
    #[error("pickle protocol {0} is not read; 2 to 5 are")]
    Protocol(u8),
    /// The pickle ends early.
    #[error("the file ends too early")]
    Truncated,
    /// An opcode needs values that are not there, or of another kind.
    #[error("the opcode's operands are missing or of the wrong kind")]
    Operands,
    /// An opcode refers to a value that was not stored.
    #[error("value {0} of the memo does not exist")]
    Memo(u32),
    /// The pickle holds too many values.
    #[error("more than {} values", limits::PICKLE_VALUES)]
    TooManyValues,
    /// The pickle nests too deep.
    #[error("nested deeper than {}", limits::PICKLE_DEPTH)]
    TooDeep,
}
