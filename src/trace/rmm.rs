//! The log of RMM's logging adaptor: `Thread,Time,Action,Pointer,Size,Stream`, one call a line, pointers used again.

use std::collections::HashMap;
use std::io::BufRead;

use super::error::quote;
use super::input::{Column, Columns, Lines, Row};
use super::{Builder, Damage, Format, Op, Problem, Trace, limits};

/// Where the columns that matter stand.
pub(super) struct Layout {
    thread: Column,
    time: Column,
    action: Column,
    pointer: Column,
    size: Column,
    stream: Column,
}

impl Layout {
    pub(super) fn find(columns: &Columns<'_>) -> Option<Self> {
        Some(Self {
            thread: columns.find("Thread")?,
            time: columns.find("Time")?,
            action: columns.find("Action")?,
            pointer: columns.find("Pointer")?,
            size: columns.find("Size")?,
            stream: columns.find("Stream")?,
        })
    }
}

/// Reads the lines after the header. A null pointer is the answer to a request of 0 bytes and stands for no block.
pub(super) fn read(name: &str, layout: &Layout, mut lines: Lines<impl BufRead>) -> Result<Trace, Problem> {
    let mut builder = Builder::new();
    let mut clock = Clock::default();
    // The block that is live at an address.
    let mut blocks = HashMap::new();
    lines.for_each(|line| {
        let row = Row::new(line);
        let time = clock.since_start(row.text(layout.time)?)?;
        let pointer = address("Pointer", row.text(layout.pointer)?)?;
        let size = row.number(layout.size, limits::BYTES)?;
        builder.in_thread(row.number(layout.thread, u64::MAX)?);
        // Handles 0 and 1 both name the legacy default stream.
        let stream = match address("Stream", row.text(layout.stream)?)? {
            1 => 0,
            stream => stream,
        };
        match row.text(layout.action)? {
            "allocate failure" => builder.note(Op::OutOfMemory, size, stream, time),
            "allocate" | "free" if pointer == 0 => Ok(()),
            "allocate" if blocks.contains_key(&pointer) => Err(Damage::AllocatedTwice(format!("pointer {pointer:#x}"))),
            "allocate" => {
                blocks.insert(pointer, builder.alloc(size, stream, time)?);
                Ok(())
            }
            "free" => match blocks.remove(&pointer) {
                Some(block) => builder.free(block, stream, time),
                None => Err(Damage::NotAllocated(format!("pointer {pointer:#x}"))),
            },
            action => Err(Damage::Unknown {
                what: "Action",
                text: quote(action),
                known: "allocate, allocate failure, free",
            }),
        }
    })?;
    Ok(builder.finish_as(name, Format::RmmLog, true))
}

/// A pointer or a stream as `%p` prints it, or a decimal number.
fn address(what: &'static str, text: &str) -> Result<u64, Damage> {
    if text == "(nil)" {
        return Ok(0);
    }
    let parsed = match text.strip_prefix("0x") {
        Some(digits) if !digits.starts_with('+') => u64::from_str_radix(digits, 16),
        _ => text.parse(),
    };
    parsed.map_err(|_| Damage::NotANumber {
        what,
        text: quote(text),
    })
}

const DAY_US: i64 = 24 * 3600 * 1_000_000;

/// Turns times of day into microseconds since the first one.
#[derive(Default)]
struct Clock {
    last_of_day: Option<i64>,
    elapsed: i64,
}

impl Clock {
    /// Each step is taken as the shorter way round the day: threads log slightly out of order, and midnight passes.
    fn since_start(&mut self, text: &str) -> Result<u64, Damage> {
        let of_day = time_of_day(text).ok_or_else(|| Damage::TimeOfDay(quote(text)))?;
        let step = of_day - self.last_of_day.replace(of_day).unwrap_or(of_day);
        self.elapsed += (step + DAY_US / 2).rem_euclid(DAY_US) - DAY_US / 2;
        Ok(u64::try_from(self.elapsed).unwrap_or(0))
    }
}

/// Microseconds of `HH:MM:SS.ffffff`; older logs have a colon before the fraction.
fn time_of_day(text: &str) -> Option<i64> {
    let mut parts = text.split([':', '.']);
    let mut below = |most: i64| {
        let part = parts.next()?;
        let value = (part.len() == 2).then(|| digits(part))??;
        (value < most).then_some(value)
    };
    let seconds: i64 = below(24)? * 3600 + below(60)? * 60 + below(61)?;
    let fraction = parts.next().filter(|fraction| (1..=6).contains(&fraction.len()))?;
    let microseconds = digits(fraction)? * 10_i64.pow(6 - fraction.len() as u32);
    parts.next().is_none().then_some(seconds * 1_000_000 + microseconds)
}

fn digits(text: &str) -> Option<i64> {
    text.bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use crate::trace::event::event;
    use crate::trace::{Damage, Event, Format, Op, Problem, Trace};

    fn read(lines: &str) -> Result<Trace, Problem> {
        let text = format!("Thread,Time,Action,Pointer,Size,Stream\n{lines}");
        Trace::read("rmm.csv", text.as_bytes()).map_err(|error| error.problem)
    }

    fn damage(lines: &str) -> (u64, Damage) {
        match read(lines) {
            Err(Problem::Line { line, damage }) => (line, damage),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_pointer_used_again_is_another_block() {
        let trace = read(
            "10,23:59:59.999990,allocate,0x7f00,1024,0x1\n\
             11,23:59:59.999995,free,0x7f00,1024,0x0\n\
             10,00:00:00.000005,allocate,0x7f00,2048,0xabc0\n\
             10,00:00:00.000006,allocate failure,(nil),4096,0xabc0\n\
             10,00:00:00:000007,free,0x7f00,2048,0xabc0\n",
        )
        .unwrap();
        let threads: Vec<u32> = trace.events().iter().map(|event| event.thread).collect();
        assert_eq!((threads, trace.threads()), (vec![0, 1, 0, 0, 0], 2));
        let named: Vec<_> = trace
            .events()
            .iter()
            .map(|event| Event { thread: 0, ..*event })
            .collect();
        assert_eq!(
            named,
            [
                event(Op::Alloc, 0, 0, 1024, 0),
                event(Op::Free, 0, 0, 1024, 5),
                event(Op::Alloc, 1, 1, 2048, 15),
                event(Op::OutOfMemory, Event::NO_BLOCK, 1, 4096, 16),
                event(Op::Free, 1, 1, 2048, 17),
            ]
        );
        assert_eq!(
            (trace.format(), trace.has_time(), trace.blocks(), trace.streams()),
            (Format::RmmLog, true, 2, 2)
        );
    }

    #[test]
    fn reads_what_rmm_26_10_writes() {
        let trace = read(
            "1224,06:25:46.981341,allocate,0x7b2e15200000,1000,0\n\
             1224,06:25:46.981546,allocate,0x7b2e95200000,5242880,0x5ea00000\n\
             1224,06:25:46.981550,free,0x7b2e95200000,5242880,0x5ea00000\n\
             1224,06:25:46.981672,allocate failure,(nil),1073741824,0\n\
             1224,06:25:46.981680,free,0x7b2e15200000,1000,0\n",
        )
        .unwrap();
        assert_eq!(
            trace.events(),
            [
                event(Op::Alloc, 0, 0, 1000, 0),
                event(Op::Alloc, 1, 1, 5_242_880, 205),
                event(Op::Free, 1, 1, 5_242_880, 209),
                event(Op::OutOfMemory, Event::NO_BLOCK, 0, 1_073_741_824, 331),
                event(Op::Free, 0, 0, 1000, 339),
            ]
        );
    }

    #[test]
    fn lines_of_several_threads_may_be_slightly_out_of_order() {
        let trace = read(
            "1,10:00:00.000100,allocate,0x1,8,0x0\n\
             2,10:00:00.000090,allocate,0x2,8,0x0\n\
             1,10:00:00.000130,free,0x1,8,0x0\n",
        )
        .unwrap();
        let times: Vec<u64> = trace.events().iter().map(|event| event.time).collect();
        assert_eq!(times, [0, 0, 30]);
    }

    #[test]
    fn requests_of_nothing_are_no_blocks() {
        let trace = read("1,10:00:00.0,allocate,(nil),0,0x0\n1,10:00:00.0,free,(nil),0,0x0\n").unwrap();
        assert_eq!(trace.events(), []);
    }

    #[test]
    fn damaged_lines_are_named() {
        let allocate = "1,10:00:00.000100,allocate,0x10,8,0x0\n";
        let twice = damage(&format!("{allocate}{allocate}"));
        assert_eq!(twice, (3, Damage::AllocatedTwice("pointer 0x10".into())));
        let foreign = damage("1,10:00:00.000100,free,0x20,8,0x0\n");
        assert_eq!(foreign, (2, Damage::NotAllocated("pointer 0x20".into())));
        for time in [
            "10:00:00",
            "10:00",
            "24:00:00.0",
            "1:00:00.0",
            "10:00:00.1234567",
            "10:00:00.0.0",
            "now",
        ] {
            let found = damage(&format!("1,{time},allocate,0x10,8,0x0\n"));
            assert_eq!(found, (2, Damage::TimeOfDay(time.into())));
        }
        let action = damage("1,10:00:00.0,resize,0x10,8,0x0\n");
        assert!(
            matches!(action, (2, Damage::Unknown { what: "Action", .. })),
            "{action:?}"
        );
        let pointer = damage("1,10:00:00.0,allocate,0x+f,8,0x0\n");
        assert!(
            matches!(pointer, (2, Damage::NotANumber { what: "Pointer", .. })),
            "{pointer:?}"
        );
        assert_eq!(damage("1,10:00:00.0,allocate,0x10\n"), (2, Damage::Missing("Size")));
    }
}
