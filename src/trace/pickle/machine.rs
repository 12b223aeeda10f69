//! The stack machine that a pickle is a program for.

use std::collections::HashMap;

use super::{Pickle, Value};
use crate::trace::{PickleDamage, Problem, limits};

/// The machine while it runs.
pub(super) struct Machine<'a> {
    input: &'a [u8],
    at: usize,
    stack: Vec<Value>,
    /// Where in the stack the open containers begin.
    marks: Vec<usize>,
    memo: HashMap<u32, Value>,
    lists: Vec<Vec<Value>>,
    dicts: Vec<Vec<(Value, Value)>>,
    /// Values that may still be stored.
    left: usize,
}

type Step<T = ()> = Result<T, PickleDamage>;

impl<'a> Machine<'a> {
    pub fn new(input: &'a [u8]) -> Self {
        Self {
            input,
            at: 0,
            stack: Vec::new(),
            marks: Vec::new(),
            memo: HashMap::new(),
            lists: Vec::new(),
            dicts: Vec::new(),
            left: limits::PICKLE_VALUES,
        }
    }

    /// Runs the program to its STOP.
    pub fn run(mut self) -> Result<Pickle<'a>, Problem> {
        loop {
            let offset = self.at;
            match self.step() {
                Ok(None) => {}
                Ok(Some(root)) => {
                    return Ok(Pickle {
                        input: self.input,
                        lists: self.lists,
                        dicts: self.dicts,
                        root,
                    });
                }
                Err(damage) => return Err(Problem::Pickle { offset, damage }),
            }
        }
    }

    /// Runs one opcode; the result is there once it was STOP.
    fn step(&mut self) -> Step<Option<Value>> {
        let opcode = self.byte()?;
        match opcode {
            // Frame of the program itself.
            0x80 => match self.byte()? {
                2..=5 => Ok(()),
                protocol => Err(PickleDamage::Protocol(protocol)),
            },
            0x95 => self.number(8).map(drop),
            b'.' => return self.pop().map(Some),
            // Stack.
            b'(' => self.mark(),
            b'0' => self.pop().map(drop),
            b'1' => self.unmark().map(drop),
            b'2' => self.top().and_then(|value| self.push(value)),
            // Scalars.
            b'N' | 0x88 | 0x89 => self.push(Value::Other),
            b'K' => self.number(1).and_then(|value| self.push(Value::Int(value as i64))),
            b'M' => self.number(2).and_then(|value| self.push(Value::Int(value as i64))),
            b'J' => self
                .number(4)
                .and_then(|value| self.push(Value::Int(i64::from(value as u32 as i32)))),
            0x8a => self.number(1).and_then(|len| self.long(len)),
            0x8b => self.number(4).and_then(|len| self.long(len)),
            b'G' => self.number(8).and_then(|_| self.push(Value::Other)),
            // Text and bytes.
            0x8c | b'U' => self.number(1).and_then(|len| self.text(len)),
            b'X' | b'T' => self.number(4).and_then(|len| self.text(len)),
            0x8d => self.number(8).and_then(|len| self.text(len)),
            b'C' => self.number(1).and_then(|len| self.skip(len)),
            b'B' => self.number(4).and_then(|len| self.skip(len)),
            0x8e | 0x96 => self.number(8).and_then(|len| self.skip(len)),
            // Lists, tuples and sets.
            b']' | b')' | 0x8f => self.list(Vec::new()),
            b'l' | b't' | 0x91 => self.unmark().and_then(|items| self.list(items)),
            0x85..=0x87 => self.take(usize::from(opcode - 0x84)).and_then(|items| self.list(items)),
            b'a' => self.take(1).and_then(|items| self.append(items)),
            b'e' | 0x90 => self.unmark().and_then(|items| self.append(items)),
            // Dicts.
            b'}' => self.dict(Vec::new()),
            b'd' => self.unmark().and_then(|items| self.dict(items)),
            b's' => self.take(2).and_then(|items| self.set_items(items)),
            b'u' => self.unmark().and_then(|items| self.set_items(items)),
            // Memo.
            b'q' => self.number(1).and_then(|index| self.store(index as u32)),
            b'r' => self.number(4).and_then(|index| self.store(index as u32)),
            0x94 => self.store(self.memo.len() as u32),
            b'h' => self.number(1).and_then(|index| self.fetch(index as u32)),
            b'j' => self.number(4).and_then(|index| self.fetch(index as u32)),
            opcode => Err(refusal(opcode)),
        }
        .map(|()| None)
    }

    fn byte(&mut self) -> Step<u8> {
        let byte = *self.input.get(self.at).ok_or(PickleDamage::Truncated)?;
        self.at += 1;
        Ok(byte)
    }

    /// An unsigned little-endian number of at most 8 bytes.
    fn number(&mut self, bytes: usize) -> Step<u64> {
        let field = self
            .input
            .get(self.at..)
            .and_then(|rest| rest.get(..bytes))
            .ok_or(PickleDamage::Truncated)?;
        self.at += bytes;
        Ok(field
            .iter()
            .rev()
            .fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    /// Passes `len` bytes of input and returns where they start.
    fn field(&mut self, len: u64) -> Step<usize> {
        let start = self.at;
        let rest = (self.input.len() - start) as u64;
        if len > rest {
            return Err(PickleDamage::Truncated);
        }
        self.at += len as usize;
        Ok(start)
    }

    fn text(&mut self, len: u64) -> Step {
        // Both fit: the input is at most 1 GiB.
        let start = self.field(len)? as u32;
        self.push(Value::Text { start, len: len as u32 })
    }

    fn skip(&mut self, len: u64) -> Step {
        self.field(len)?;
        self.push(Value::Other)
    }

    /// A signed little-endian integer of `len` bytes.
    fn long(&mut self, len: u64) -> Step {
        if len > 8 {
            return self.skip(len);
        }
        let value = self.number(len as usize)?;
        let unused = 64 - 8 * len as u32;
        let value = if len == 0 {
            0
        } else {
            (value << unused) as i64 >> unused
        };
        self.push(Value::Int(value))
    }

    fn charge(&mut self, values: usize) -> Step {
        self.left = self.left.checked_sub(values).ok_or(PickleDamage::TooManyValues)?;
        Ok(())
    }

    fn push(&mut self, value: Value) -> Step {
        self.charge(1)?;
        self.stack.push(value);
        Ok(())
    }

    fn mark(&mut self) -> Step {
        if self.marks.len() >= limits::PICKLE_DEPTH {
            return Err(PickleDamage::TooDeep);
        }
        self.marks.push(self.stack.len());
        Ok(())
    }

    /// The values above the last mark, which is removed.
    fn unmark(&mut self) -> Step<Vec<Value>> {
        let mark = self.marks.pop().ok_or(PickleDamage::Operands)?;
        Ok(self.stack.split_off(mark))
    }

    /// The last `count` values, none of which may be below the last mark.
    fn take(&mut self, count: usize) -> Step<Vec<Value>> {
        let floor = self.marks.last().copied().unwrap_or(0);
        match self.stack.len().checked_sub(count) {
            Some(start) if start >= floor => Ok(self.stack.split_off(start)),
            _ => Err(PickleDamage::Operands),
        }
    }

    fn top(&mut self) -> Step<Value> {
        let value = self.pop()?;
        self.stack.push(value);
        Ok(value)
    }

    fn pop(&mut self) -> Step<Value> {
        self.take(1)?.pop().ok_or(PickleDamage::Operands)
    }

    fn list(&mut self, items: Vec<Value>) -> Step {
        self.charge(items.len() + 1)?;
        let index = self.lists.len() as u32;
        self.lists.push(items);
        self.push(Value::List(index))
    }

    fn append(&mut self, mut items: Vec<Value>) -> Step {
        self.charge(items.len())?;
        let Value::List(index) = self.top()? else {
            return Err(PickleDamage::Operands);
        };
        let list = self.lists.get_mut(index as usize).ok_or(PickleDamage::Operands)?;
        list.append(&mut items);
        Ok(())
    }

    fn dict(&mut self, items: Vec<Value>) -> Step {
        self.charge(1)?;
        let index = self.dicts.len() as u32;
        self.dicts.push(Vec::new());
        self.push(Value::Dict(index))?;
        self.set_items(items)
    }

    fn set_items(&mut self, items: Vec<Value>) -> Step {
        self.charge(items.len())?;
        let Value::Dict(index) = self.top()? else {
            return Err(PickleDamage::Operands);
        };
        let dict = self.dicts.get_mut(index as usize).ok_or(PickleDamage::Operands)?;
        let (pairs, rest) = items.as_chunks::<2>();
        dict.extend(pairs.iter().map(|[key, value]| (*key, *value)));
        if rest.is_empty() {
            Ok(())
        } else {
            Err(PickleDamage::Operands)
        }
    }

    fn store(&mut self, index: u32) -> Step {
        self.charge(1)?;
        // Here a place costs nothing, but other readers keep a table up to it.
        if index as usize >= limits::PICKLE_VALUES {
            return Err(PickleDamage::Memo(index));
        }
        let value = self.top()?;
        self.memo.insert(index, value);
        Ok(())
    }

    fn fetch(&mut self, index: u32) -> Step {
        let value = *self.memo.get(&index).ok_or(PickleDamage::Memo(index))?;
        self.push(value)
    }
}

/// Why an opcode that is not plain data is not run.
fn refusal(opcode: u8) -> PickleDamage {
    PickleDamage::Refused(match opcode {
        b'c' => "GLOBAL",
        0x93 => "STACK_GLOBAL",
        b'R' => "REDUCE",
        b'b' => "BUILD",
        b'i' => "INST",
        b'o' => "OBJ",
        0x81 => "NEWOBJ",
        0x92 => "NEWOBJ_EX",
        b'P' => "PERSID",
        b'Q' => "BINPERSID",
        0x82 => "EXT1",
        0x83 => "EXT2",
        0x84 => "EXT4",
        0x97 => "NEXT_BUFFER",
        0x98 => "READONLY_BUFFER",
        opcode => return PickleDamage::Opcode(opcode),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn damage(input: &[u8]) -> (usize, PickleDamage) {
        match Pickle::load(input) {
            Err(Problem::Pickle { offset, damage }) => (offset, damage),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn integers_of_every_opcode() {
        let cases: [(&[u8], i64); 9] = [
            (b"K\xff", 255),
            (b"M\x01\x02", 0x201),
            (b"J\xff\xff\xff\xff", -1),
            (b"\x8a\x00", 0),
            (b"\x8a\x01\xff", -1),
            (b"\x8a\x02\xff\x00", 255),
            (b"\x8a\x06\x00\x00\x00\x00\xaa\x7f", 0x7faa_0000_0000),
            (b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f", i64::MAX),
            (b"\x8b\x03\x00\x00\x00\x00\x00\x80", -0x80_0000),
        ];
        for (opcode, expected) in cases {
            let input = [b"\x80\x04", opcode, b"."].concat();
            assert_eq!(Pickle::load(&input).unwrap().root(), Value::Int(expected), "{opcode:?}");
        }
        // 2^63 does not fit, and is no error as long as nobody needs it.
        let input = b"\x80\x04\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x80\x00.";
        assert_eq!(Pickle::load(input).unwrap().root(), Value::Other);
    }

    #[test]
    fn a_memo_has_no_more_places_than_values_are_allowed() {
        let place = (limits::PICKLE_VALUES as u32).to_le_bytes();
        let input = [b"\x80\x04Nr".as_slice(), &place, b"."].concat();
        assert_eq!(damage(&input), (3, PickleDamage::Memo(limits::PICKLE_VALUES as u32)));
    }

    #[test]
    fn containers_are_shared_through_the_memo() {
        // a = ["x"]; [a, a, {"k": a}, {"k": 1, "k": 2}]
        let input = b"\x80\x04](]\x94\x8c\x01xah\x00}\x8c\x01kh\x00s}(\x8c\x01kK\x01\x8c\x01kK\x02ue.";
        let pickle = Pickle::load(input).unwrap();
        let items = pickle.list(pickle.root()).unwrap();
        assert_eq!(items[0], items[1]);
        assert_eq!(pickle.get(items[2], "k"), Some(items[0]));
        assert_eq!(pickle.text(pickle.list(items[0]).unwrap()[0]), Some("x"));
        assert_eq!(pickle.get(items[3], "k"), Some(Value::Int(2)));
        assert_eq!(pickle.get(items[3], "other"), None);
    }

    #[test]
    fn a_list_may_hold_itself() {
        let pickle = Pickle::load(b"\x80\x02]q\x00h\x00a.").unwrap();
        assert_eq!(pickle.list(pickle.root()), Some([pickle.root()].as_slice()));
    }

    #[test]
    fn classes_and_calls_are_refused_by_name() {
        let refused: [(&[u8], &str); 15] = [
            (b"cos\nsystem\n", "GLOBAL"),
            (b"\x8c\x02os\x8c\x06system\x93", "STACK_GLOBAL"),
            (b"NNR", "REDUCE"),
            (b"NNb", "BUILD"),
            (b"(ios\nsystem\n", "INST"),
            (b"(No", "OBJ"),
            (b"NN\x81", "NEWOBJ"),
            (b"NNN\x92", "NEWOBJ_EX"),
            (b"Pid\n", "PERSID"),
            (b"NQ", "BINPERSID"),
            (b"\x82\x01", "EXT1"),
            (b"\x83\x01\x00", "EXT2"),
            (b"\x84\x01\x00\x00\x00", "EXT4"),
            (b"\x97", "NEXT_BUFFER"),
            (b"N\x98", "READONLY_BUFFER"),
        ];
        for (program, name) in refused {
            let input = [b"\x80\x04", program, b"."].concat();
            assert_eq!(damage(&input).1, PickleDamage::Refused(name));
        }
    }

    #[test]
    fn damaged_programs_are_errors() {
        let cases: [(&[u8], usize, PickleDamage); 12] = [
            (b"\x80\x04", 2, PickleDamage::Truncated),
            (b"\x80\x06N.", 0, PickleDamage::Protocol(6)),
            (b"\x80\x04.", 2, PickleDamage::Operands),
            (b"\x80\x04e.", 2, PickleDamage::Operands),
            (b"\x80\x04N(\x85.", 4, PickleDamage::Operands),
            (b"\x80\x04K\x01K\x02a.", 6, PickleDamage::Operands),
            (b"\x80\x04}(Nu.", 5, PickleDamage::Operands),
            (b"\x80\x04h\x07.", 2, PickleDamage::Memo(7)),
            (b"\x80\x04\x8c\x09abc.", 2, PickleDamage::Truncated),
            (
                b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xff.",
                2,
                PickleDamage::Truncated,
            ),
            (b"\x80\x04\x8b\xff\xff\xff\xff.", 2, PickleDamage::Truncated),
            (b"\x80\x04I1\n.", 2, PickleDamage::Opcode(b'I')),
        ];
        for (input, offset, expected) in cases {
            assert_eq!(damage(input), (offset, expected), "{input:?}");
        }
        let deep = [b"\x80\x04".as_slice(), &[b'('; limits::PICKLE_DEPTH + 1]].concat();
        assert_eq!(damage(&deep).1, PickleDamage::TooDeep);
    }

    #[test]
    fn a_small_file_cannot_expand_without_bound() {
        // One list, and its copy appended to it over and over by DUP and APPEND: one value for every two bytes at most.
        let mut machine = Machine::new(b"]2222");
        machine.left = 5;
        let outcome = std::iter::from_fn(|| Some(machine.step())).find(Result::is_err);
        assert_eq!(outcome, Some(Err(PickleDamage::TooManyValues)));
    }
}
