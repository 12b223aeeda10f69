//! Recorded allocation traces: every known file format becomes one [`Trace`].
//!
//! A file is recognised by its content, plain or gzip-compressed. What a file says is checked while it is read: a
//! [`Trace`] only holds blocks that were allocated once and freed at most once, in an order that can be replayed. Files
//! are not trusted: [`limits`] bounds what one may cost.

mod builder;
mod error;
mod event;
mod flat;
mod input;
mod lifetimes;
mod pickle;
mod rmm;
mod snapshot;

pub use builder::Builder;
pub use error::{Damage, PickleDamage, Problem, TraceError};
pub use event::{Event, Op};

use std::fmt;
use std::io::Read;
use std::path::Path;

/// What one file may hold; a file with more is an error. They bound the memory that reading takes.
pub mod limits {
    /// Bytes of a file, after decompression: 1 GiB.
    pub const FILE_BYTES: u64 = 1 << 30;
    /// Bytes of one line: 64 KiB.
    pub const LINE_BYTES: u64 = 64 << 10;
    /// Events of one trace: 20 million, 640 MB.
    pub const EVENTS: usize = 20_000_000;
    /// Streams of one trace.
    pub const STREAMS: usize = 4096;
    /// Threads of one trace: a program that makes one for each piece of work has many.
    pub const THREADS: usize = 1 << 20;
    /// Bytes of one block and of all blocks that are live together: 2^63 - 1.
    pub const BYTES: u64 = i64::MAX as u64;
    /// Microseconds that a trace lasts: 35 years.
    pub const TIME_US: u64 = 1 << 50;
    /// Values of a pickle, with every place that holds one counted: 64 Mi, 16 bytes each.
    pub const PICKLE_VALUES: usize = 64 << 20;
    /// Containers that are open at once while a pickle is read.
    pub const PICKLE_DEPTH: usize = 1000;
}

/// Where a trace came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// The flat event CSV, which is also what [`Trace::write`] writes.
    Events,
    /// Block lifetimes: `id,lower,upper,size`.
    Lifetimes,
    /// The log of RMM's logging resource adaptor.
    RmmLog,
    /// A snapshot of `torch.cuda.memory._dump_snapshot`.
    TorchSnapshot {
        /// The device whose history was taken: the one asked for, or that with the most entries.
        device: u32,
    },
    /// Made in this process by a [`Builder`].
    Built,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Events => f.write_str("event CSV"),
            Self::Lifetimes => f.write_str("lifetimes CSV"),
            Self::RmmLog => f.write_str("RMM log"),
            Self::TorchSnapshot { device } => write!(f, "torch snapshot, device {device}"),
            Self::Built => f.write_str("built in memory"),
        }
    }
}

/// A sequence of allocations and frees that can be replayed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    name: String,
    format: Format,
    events: Vec<Event>,
    has_time: bool,
    blocks: usize,
    streams: usize,
    threads: usize,
}

impl Trace {
    /// Reads a file of any known format, recognised by its content.
    ///
    /// # Errors
    /// The file cannot be read, is of no known format, is damaged (with the line), or exceeds [`limits`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, TraceError> {
        Self::open_device(path, None)
    }

    /// Reads a file as [`Trace::open`] does; of a snapshot of several devices the history of `device`, or with `None` the longest.
    ///
    /// # Errors
    /// As [`Trace::open`]; the snapshot has no history of that device, or the file is no snapshot, and says nothing of devices.
    pub fn open_device(path: impl AsRef<Path>, device: Option<u32>) -> Result<Self, TraceError> {
        let path = path.as_ref();
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
        let file = std::fs::File::open(path).map_err(Problem::from);
        file.and_then(|file| input::read(&name, file, device))
            .map_err(|problem| TraceError {
                // The whole path where it may be the wrong one.
                file: match problem {
                    Problem::Unreadable(_) => path.display().to_string(),
                    _ => name.into_owned(),
                },
                problem,
            })
    }

    /// Reads a trace of any known format from `source`. `name` is what the trace and its errors are called.
    ///
    /// # Errors
    /// As [`Trace::open`].
    pub fn read(name: &str, source: impl Read) -> Result<Self, TraceError> {
        input::read(name, source, None).map_err(|problem| TraceError {
            file: name.to_owned(),
            problem,
        })
    }

    /// The file's name, without its folder.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The format that was recognised.
    #[must_use]
    pub const fn format(&self) -> Format {
        self.format
    }

    /// The events in order; their times never go back.
    #[must_use]
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// Whether [`Event::time`] is in microseconds; otherwise it is the event's index.
    #[must_use]
    pub const fn has_time(&self) -> bool {
        self.has_time
    }

    /// How many blocks there are: [`Event::block`] is below this for every event of a block.
    #[must_use]
    pub const fn blocks(&self) -> usize {
        self.blocks
    }

    /// How many streams there are, the default stream included: [`Event::stream`] is below this.
    #[must_use]
    pub const fn streams(&self) -> usize {
        self.streams
    }

    /// How many threads the trace names: [`Event::thread`] is below this. 0 where it does not say which thread made a call.
    #[must_use]
    pub const fn threads(&self) -> usize {
        self.threads
    }

    /// Whether this is a history of flagstone's: it names threads, and says when a freed block could be used again.
    #[must_use]
    pub fn is_history(&self) -> bool {
        self.format == Format::Events && self.threads > 0
    }
}
