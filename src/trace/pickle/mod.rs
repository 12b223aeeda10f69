//! Reads the plain data of a pickle (protocols 2 to 5), and nothing else.
//!
//! Opcodes that load a class, call something or refer to objects outside the file are refused by name. Containers are kept
//! in flat tables and values name them by index: shared and even circular values cost nothing more and are dropped
//! without recursion.

mod machine;

use super::{Problem, limits};
use machine::Machine;

/// One value. Only what a snapshot needs is kept.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Value {
    /// An integer that fits.
    Int(i64),
    /// Text: where it starts in the input, and its bytes.
    Text { start: u32, len: u32 },
    /// A list, tuple or set: its index in the table of lists.
    List(u32),
    /// A dict: its index in the table of dicts.
    Dict(u32),
    /// Any other plain value: None, booleans, floats, bytes, integers of more than 64 bits.
    Other,
}

/// The most keys of a dict that is searched; torch's have about ten.
const RECORD_KEYS: usize = 256;

/// The values of one pickle.
#[derive(Debug)]
pub(super) struct Pickle<'a> {
    input: &'a [u8],
    lists: Vec<Vec<Value>>,
    dicts: Vec<Vec<(Value, Value)>>,
    root: Value,
}

impl<'a> Pickle<'a> {
    /// Reads a pickle of at most [`limits::FILE_BYTES`].
    pub(super) fn load(input: &'a [u8]) -> Result<Self, Problem> {
        if input.len() as u64 > limits::FILE_BYTES {
            return Err(Problem::TooLarge);
        }
        Machine::new(input).run()
    }

    /// The value that was pickled.
    pub(super) const fn root(&self) -> Value {
        self.root
    }

    /// The items of a list.
    pub(super) fn list(&self, value: Value) -> Option<&[Value]> {
        let Value::List(index) = value else { return None };
        self.lists.get(index as usize).map(Vec::as_slice)
    }

    /// The value of a text key of a dict. Dicts of more than [`RECORD_KEYS`] keys are no records and have none: a large
    /// one that is shared many times would take forever.
    pub(super) fn get(&self, dict: Value, key: &str) -> Option<Value> {
        let Value::Dict(index) = dict else { return None };
        let items = self
            .dicts
            .get(index as usize)
            .filter(|items| items.len() <= RECORD_KEYS)?;
        // Later items replace earlier ones.
        items
            .iter()
            .rev()
            .find(|(name, _)| self.bytes(*name) == Some(key.as_bytes()))
            .map(|(_, value)| *value)
    }

    /// The text of a value.
    pub(super) fn text(&self, value: Value) -> Option<&'a str> {
        std::str::from_utf8(self.bytes(value)?).ok()
    }

    fn bytes(&self, value: Value) -> Option<&'a [u8]> {
        let Value::Text { start, len } = value else { return None };
        self.input.get(start as usize..start as usize + len as usize)
    }
}
