//! The flat event CSV: `op,id,size[,stream][,t_us][,thread]`, columns in any order, one event a line. Read and written.

use std::collections::HashMap;
use std::io::{self, BufRead, Write};
use std::path::Path;

use super::error::quote;
use super::input::{Column, Columns, Lines, Row};
use super::{Builder, Damage, Format, Op, Problem, Trace, limits};

/// Where the columns stand.
pub(super) struct Layout {
    op: Column,
    id: Column,
    size: Column,
    stream: Option<Column>,
    time: Option<Column>,
    thread: Option<Column>,
}

impl Layout {
    pub(super) fn find(columns: &Columns<'_>) -> Option<Self> {
        Some(Self {
            op: columns.find("op")?,
            id: columns.find("id")?,
            size: columns.find("size")?,
            stream: columns.find("stream"),
            time: columns.find("t_us"),
            thread: columns.find("thread"),
        })
    }
}

/// Reads the lines after the header.
pub(super) fn read(name: &str, layout: &Layout, mut lines: Lines<impl BufRead>) -> Result<Trace, Problem> {
    let mut builder = Builder::new();
    let mut blocks = HashMap::new();
    lines.for_each(|line| {
        let row = Row::new(line);
        let op = row.text(layout.op)?;
        let op = Op::from_letter(op).ok_or_else(|| Damage::Unknown {
            what: "op",
            text: quote(op),
            known: "p a f c x e, and g r m u o for information",
        })?;
        let size = row.number(layout.size, limits::BYTES)?;
        let stream = layout.stream.map_or(Ok(0), |column| row.number(column, u64::MAX))?;
        let time = layout
            .time
            .map_or(Ok(0), |column| row.number(column, limits::TIME_US))?;
        if let Some(column) = layout.thread {
            builder.in_thread(row.number(column, u64::MAX)?);
        }
        if op.is_informational() {
            return builder.note(op, size, stream, time);
        }
        let id = row.number(layout.id, u64::MAX)?;
        if matches!(op, Op::Live | Op::Alloc) {
            if blocks.contains_key(&id) {
                return Err(Damage::AllocatedTwice(format!("id {id}")));
            }
            let block = if op == Op::Live {
                builder.live(size, stream)
            } else {
                builder.alloc(size, stream, time)
            };
            blocks.insert(id, block?);
            return Ok(());
        }
        let block = *blocks
            .get(&id)
            .ok_or_else(|| Damage::NotAllocated(format!("id {id}")))?;
        match op {
            Op::Free => builder.free(block, stream, time),
            Op::FreeDone => builder.free_done(block, stream, time),
            Op::Use => builder.use_on(block, stream, time),
            _ => builder.use_done(block, stream, time),
        }
    })?;
    Ok(builder.finish_as(name, Format::Events, layout.time.is_some()))
}

impl Trace {
    /// Writes the trace as event CSV: `op,id,size,stream`, `t_us` where it has time, and `thread` where it names threads. Reading
    /// that gives the same events.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn write(&self, writer: impl Write) -> io::Result<()> {
        let mut writer = io::BufWriter::new(writer);
        writeln!(
            writer,
            "op,id,size,stream{}{}",
            if self.has_time() { ",t_us" } else { "" },
            if self.threads() > 0 { ",thread" } else { "" }
        )?;
        for event in self.events() {
            write!(writer, "{},", event.op.letter())?;
            if event.op.is_informational() {
                write!(writer, "-1")?;
            } else {
                write!(writer, "{}", event.block)?;
            }
            write!(writer, ",{},{}", event.size, event.stream)?;
            if self.has_time() {
                write!(writer, ",{}", event.time)?;
            }
            if self.threads() > 0 {
                write!(writer, ",{}", event.thread)?;
            }
            writeln!(writer)?;
        }
        writer.flush()
    }

    /// Writes the trace to a file as event CSV, compressed where the name ends in `.gz`.
    ///
    /// # Errors
    /// The file cannot be made or written.
    pub fn save(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let path = path.as_ref();
        let file = std::fs::File::create(path)?;
        if path.extension().is_some_and(|extension| extension == "gz") {
            let mut encoder = flate2::write::GzEncoder::new(file, flate2::Compression::default());
            self.write(&mut encoder)?;
            encoder.finish().map(drop)
        } else {
            self.write(file)
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::trace::event::event;
    use crate::trace::{Damage, Event, Format, Op, Problem, Trace};

    fn read(text: &str) -> Result<Trace, Problem> {
        Trace::read("events.csv", text.as_bytes()).map_err(|error| error.problem)
    }

    fn damage(lines: &str) -> (u64, Damage) {
        match read(&format!("op,id,size,stream,t_us\n{lines}")) {
            Err(Problem::Line { line, damage }) => (line, damage),
            other => panic!("{other:?}"),
        }
    }

    const EVERY_OP: &str = "op,id,size,stream,t_us\np,0,64,0,0\na,1,512,1,3\ng,-1,2097152,1,3\nx,1,512,0,4\n\
                            x,1,512,2,4\nf,1,512,1,5\ne,1,512,0,7\ne,1,512,2,8\nc,1,512,1,8\no,-1,1024,0,9\n";

    #[test]
    fn every_operation_is_read_and_written() {
        let trace = read(EVERY_OP).unwrap();
        assert_eq!(
            trace.events(),
            [
                event(Op::Live, 0, 0, 64, 0),
                event(Op::Alloc, 1, 1, 512, 3),
                event(Op::SegmentAlloc, Event::NO_BLOCK, 1, 2_097_152, 3),
                event(Op::Use, 1, 0, 512, 4),
                event(Op::Use, 1, 2, 512, 4),
                event(Op::Free, 1, 1, 512, 5),
                event(Op::UseDone, 1, 0, 512, 7),
                event(Op::UseDone, 1, 2, 512, 8),
                event(Op::FreeDone, 1, 1, 512, 8),
                event(Op::OutOfMemory, Event::NO_BLOCK, 0, 1024, 9),
            ]
        );
        assert_eq!(
            (trace.format(), trace.has_time(), trace.blocks(), trace.streams()),
            (Format::Events, true, 2, 3)
        );
        let mut written = Vec::new();
        trace.write(&mut written).unwrap();
        assert_eq!(String::from_utf8(written).unwrap(), EVERY_OP);
    }

    #[test]
    fn threads_are_counted_as_they_appear() {
        let text = "op,id,size,stream,t_us,thread\na,0,64,0,0,0\na,1,512,0,1,1\nf,0,64,0,2,1\nf,1,512,0,3,2\n";
        let trace = read(&text.replace(",1\n", ",7000\n")).unwrap();
        let threads: Vec<u32> = trace.events().iter().map(|event| event.thread).collect();
        assert_eq!(
            (threads, trace.threads(), trace.is_history()),
            (vec![0, 1, 1, 2], 3, true)
        );
        let mut written = Vec::new();
        trace.write(&mut written).unwrap();
        assert_eq!(String::from_utf8(written).unwrap(), text);
        assert!(!read(EVERY_OP).unwrap().is_history());
    }

    #[test]
    fn the_header_gives_the_order_of_columns() {
        let trace = read("\u{feff}size,op_index,op,id\r\n512,7,a,40\r\n512,9,f,40\r\n").unwrap();
        let event = |op, time| Event {
            op,
            block: 0,
            stream: 0,
            size: 512,
            time,
            thread: 0,
        };
        assert_eq!(trace.events(), [event(Op::Alloc, 0), event(Op::Free, 1)]);
        assert!(!trace.has_time());
    }

    #[test]
    fn the_size_of_a_block_is_that_of_its_allocation() {
        let trace = read("op,id,size\na,0,100\nf,0,512\n").unwrap();
        assert_eq!(trace.events()[1].size, 100);
    }

    #[test]
    fn damaged_lines_are_named() {
        let cases = [
            ("f,3,1,0,0\n", 2, Damage::NotAllocated("id 3".into())),
            ("a,3,1,0,0\n\na,3,1,0,0\n", 4, Damage::AllocatedTwice("id 3".into())),
            ("a,3,1,0,0\nf,3,1,0,0\nf,3,1,0,0\n", 4, Damage::FreedBefore),
            ("a,3,1,0,0\nf,3,1,0,0\nx,3,1,1,0\n", 4, Damage::FreedBefore),
            ("a,3,1,0,0\nc,3,1,0,0\n", 3, Damage::NotFreed),
            ("a,3,1,0,0\nx,3,1,1,0\ne,3,1,2,0\n", 4, Damage::NotInUse),
            ("a,3,1,0,0\nx,3,1,0,0\ne,3,1,0,0\ne,3,1,0,0\n", 5, Damage::NotInUse),
            ("a,3\n", 2, Damage::Missing("size")),
            ("a,3,,0,0\n", 2, Damage::Missing("size")),
            (
                "a,3,1.5,0,0\n",
                2,
                Damage::NotANumber {
                    what: "size",
                    text: "1.5".into(),
                },
            ),
            (
                "a,+3,1,0,0\n",
                2,
                Damage::NotANumber {
                    what: "id",
                    text: "+3".into(),
                },
            ),
        ];
        for (lines, line, expected) in cases {
            assert_eq!(damage(lines), (line, expected), "{lines}");
        }
        for size in ["-1", "9223372036854775808", "99999999999999999999999"] {
            let found = damage(&format!("a,3,{size},0,0\n"));
            assert!(
                matches!(found, (2, Damage::OutOfRange { what: "size", .. })),
                "{size}: {found:?}"
            );
        }
        let op = damage("zz,3,1,0,0\n");
        assert!(matches!(op, (2, Damage::Unknown { what: "op", .. })), "{op:?}");
    }
}
