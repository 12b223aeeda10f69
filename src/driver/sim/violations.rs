//! What the checker found.

use std::fmt;

use crate::driver::{DevicePtr, StreamId};

use super::Call;

/// Something that would be undefined behaviour, wrong data or a hang on a real device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Violation {
    /// A block was given out to a stream while work of another stream, not ordered before it, may still touch it.
    Handout {
        /// The block's address.
        addr: DevicePtr,
        /// The block's bytes.
        bytes: u64,
        /// The stream that it was given out to.
        stream: StreamId,
        /// The stream that may still use it.
        user: StreamId,
    },
    /// A block was given out that has no memory, or no access, for all of its bytes.
    HandoutWithoutMemory {
        /// The block's address.
        addr: DevicePtr,
        /// The block's bytes.
        bytes: u64,
        /// The stream that it was given out to.
        stream: StreamId,
    },
    /// Work touches memory that work of another stream touches too, at least one of them writes, and neither is ordered
    /// before the other.
    Race {
        /// The first byte that both touch.
        addr: DevicePtr,
        /// The stream of the later work.
        stream: StreamId,
        /// The stream of the earlier work.
        user: StreamId,
    },
    /// Memory was unmapped while work that nobody has seen finish may still touch it.
    UnmappedInUse {
        /// The call.
        call: Call,
        /// The first byte that is still in use.
        addr: DevicePtr,
        /// The stream that may still use it.
        user: StreamId,
    },
    /// Work touched memory that is not mapped, or has no access. Every later call fails.
    IllegalAddress {
        /// The start of the range that the work touches.
        addr: DevicePtr,
        /// Its bytes.
        bytes: u64,
        /// The stream of the work.
        stream: StreamId,
    },
    /// A handle was used that names no stream any more.
    StaleStream {
        /// The call.
        call: Call,
        /// The handle.
        handle: usize,
    },
    /// An event was used after it was destroyed.
    StaleEvent {
        /// The call.
        call: Call,
        /// The event.
        event: usize,
    },
    /// The host waited for work that can never finish: it is held, or waits for work that is.
    Deadlock {
        /// The call.
        call: Call,
    },
    /// A call that is not permitted during a capture invalidated it.
    CaptureInvalidated {
        /// The call.
        call: Call,
        /// The capture.
        capture: u64,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Handout {
                addr,
                bytes,
                stream,
                user,
            } => write!(
                f,
                "{bytes} bytes at {addr:#x} given out to stream {} while work of stream {} may still use them",
                stream.0, user.0
            ),
            Self::HandoutWithoutMemory { addr, bytes, stream } => write!(
                f,
                "{bytes} bytes at {addr:#x} given out to stream {} without memory and access for all of them",
                stream.0
            ),
            Self::Race { addr, stream, user } => write!(
                f,
                "work of stream {} touches {addr:#x}, which unordered work of stream {} touches too",
                stream.0, user.0
            ),
            Self::UnmappedInUse { call, addr, user } => {
                write!(
                    f,
                    "{} of {addr:#x} while work of stream {} may still use it",
                    call.name(),
                    user.0
                )
            }
            Self::IllegalAddress { addr, bytes, stream } => {
                write!(
                    f,
                    "work of stream {} touched {bytes} bytes at {addr:#x} without access to all of them",
                    stream.0
                )
            }
            Self::StaleStream { call, handle } => {
                write!(
                    f,
                    "{} with stream {handle:#x}, which names no stream (any more)",
                    call.name()
                )
            }
            Self::StaleEvent { call, event } => {
                write!(f, "{} with event {event:#x}, which was destroyed", call.name())
            }
            Self::Deadlock { call } => write!(f, "{} waits for work that can never finish", call.name()),
            Self::CaptureInvalidated { call, capture } => {
                write!(
                    f,
                    "{} invalidated capture {capture}; it needs relaxed mode, or the end of the capture",
                    call.name()
                )
            }
        }
    }
}

/// The violations found so far.
#[derive(Default)]
pub(super) struct Violations(Vec<Violation>);

/// A faulty loop should not fill the memory: the first ones tell the story.
const MOST: usize = 1000;

impl Violations {
    pub fn add(&mut self, violation: Violation) {
        if self.0.len() < MOST {
            self.0.push(violation);
        }
    }

    pub fn all(&self) -> &[Violation] {
        &self.0
    }

    pub fn take(&mut self) -> Vec<Violation> {
        std::mem::take(&mut self.0)
    }
}
