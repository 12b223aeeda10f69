//! Opens a source: decompression, the limits on size, and which reader its content belongs to.

use std::io::{self, BufRead, BufReader, Cursor, Read};

use super::{Damage, Problem, Trace, error::quote, flat, lifetimes, limits, rmm, snapshot};

const GZIP: [u8; 2] = [0x1f, 0x8b];
/// The first opcode of every pickle of protocol 2 and above.
const PICKLE: u8 = 0x80;
const BYTE_ORDER_MARK: char = '\u{feff}';

/// Reads a trace of any known format; with `device`, of a snapshot.
pub(super) fn read(name: &str, mut source: impl Read, device: Option<u32>) -> Result<Trace, Problem> {
    let mut start = Vec::new();
    source.by_ref().take(GZIP.len() as u64).read_to_end(&mut start)?;
    let compressed = start == GZIP;
    let source = Cursor::new(start).chain(source);
    if compressed {
        read_plain(name, flate2::read::MultiGzDecoder::new(source), device)
    } else {
        read_plain(name, source, device)
    }
}

fn read_plain(name: &str, source: impl Read, device: Option<u32>) -> Result<Trace, Problem> {
    let mut source = BufReader::with_capacity(
        64 << 10,
        Limited {
            source,
            left: limits::FILE_BYTES,
        },
    );
    let first = source.fill_buf().map_err(problem)?.first().copied();
    if first == Some(PICKLE) {
        let mut bytes = Vec::new();
        source.read_to_end(&mut bytes).map_err(problem)?;
        return snapshot::read(name, &bytes, device);
    }
    if let Some(device) = device {
        return Err(Problem::NoDevices { device });
    }
    let mut lines = Lines::new(source);
    // A first line that is too long or no text is not the header of a known format.
    let header = match lines.next_line() {
        Ok(Some(line)) => line.trim_start_matches(BYTE_ORDER_MARK).to_owned(),
        Ok(None) | Err(Problem::Line { .. }) => return Err(Problem::UnknownFormat),
        Err(problem) => return Err(problem),
    };
    let columns = Columns::new(&header);
    if let Some(layout) = flat::Layout::find(&columns) {
        flat::read(name, &layout, lines)
    } else if let Some(layout) = lifetimes::Layout::find(&columns) {
        lifetimes::read(name, &layout, lines)
    } else if let Some(layout) = rmm::Layout::find(&columns) {
        rmm::read(name, &layout, lines)
    } else {
        Err(Problem::UnknownFormat)
    }
}

/// A reader that fails, instead of ending, where there is more than the limit.
struct Limited<R> {
    source: R,
    left: u64,
}

/// The error inside the `io::Error` of a [`Limited`] source that has more than its limit.
#[derive(Debug, thiserror::Error)]
#[error("over the limit")]
struct OverLimit;

impl<R: Read> Read for Limited<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.source.read(buffer)?;
        self.left = self
            .left
            .checked_sub(count as u64)
            .ok_or_else(|| io::Error::other(OverLimit))?;
        Ok(count)
    }
}

fn problem(error: io::Error) -> Problem {
    if error.get_ref().is_some_and(|inner| inner.is::<OverLimit>()) {
        Problem::TooLarge
    } else {
        error.into()
    }
}

/// The lines of a text, each of bounded length, with their numbers.
pub(super) struct Lines<R> {
    source: R,
    buffer: Vec<u8>,
    number: u64,
}

impl<R: BufRead> Lines<R> {
    fn new(source: R) -> Self {
        Self {
            source,
            buffer: Vec::new(),
            number: 0,
        }
    }

    /// The number of the line that was read last, counted from 1.
    pub(super) const fn number(&self) -> u64 {
        self.number
    }

    /// The next line that is not blank, without the white space around it.
    pub(super) fn next_line(&mut self) -> Result<Option<&str>, Problem> {
        loop {
            self.buffer.clear();
            self.number += 1;
            let line = self.number;
            let most = limits::LINE_BYTES + 1;
            let read = self
                .source
                .by_ref()
                .take(most)
                .read_until(b'\n', &mut self.buffer)
                .map_err(problem)?;
            if read == 0 {
                return Ok(None);
            }
            if read as u64 == most {
                return Err(Problem::Line {
                    line,
                    damage: Damage::LongLine,
                });
            }
            if !self.buffer.trim_ascii().is_empty() {
                let text = std::str::from_utf8(self.buffer.trim_ascii());
                return text.map(Some).map_err(|_| Problem::Line {
                    line,
                    damage: Damage::NotText,
                });
            }
        }
    }

    /// Passes every further line to `each`; what that finds wrong gets the line's number.
    pub(super) fn for_each(&mut self, mut each: impl FnMut(&str) -> Result<(), Damage>) -> Result<(), Problem> {
        while let Some(line) = self.next_line()? {
            if let Err(damage) = each(line) {
                return Err(Problem::Line {
                    line: self.number(),
                    damage,
                });
            }
        }
        Ok(())
    }
}

/// The names in the first line of a CSV.
pub(super) struct Columns<'a>(Vec<&'a str>);

impl<'a> Columns<'a> {
    fn new(header: &'a str) -> Self {
        Self(header.split(',').map(str::trim).collect())
    }

    /// Where the column stands.
    pub(super) fn find(&self, name: &'static str) -> Option<Column> {
        self.0
            .iter()
            .position(|column| *column == name)
            .map(|index| Column { name, index })
    }
}

/// One column of a CSV: its name and where it stands.
#[derive(Clone, Copy)]
pub(super) struct Column {
    name: &'static str,
    index: usize,
}

/// One line of a CSV, cut at its commas. There is no quoting in any known format.
pub(super) struct Row<'a>(Vec<&'a str>);

impl<'a> Row<'a> {
    pub(super) fn new(line: &'a str) -> Self {
        Self(line.split(',').map(str::trim).collect())
    }

    /// The text of a column.
    pub(super) fn text(&self, column: Column) -> Result<&'a str, Damage> {
        match self.0.get(column.index) {
            Some(text) if !text.is_empty() => Ok(text),
            _ => Err(Damage::Missing(column.name)),
        }
    }

    /// The whole number of a column, from 0 to `most`.
    pub(super) fn number(&self, column: Column, most: u64) -> Result<u64, Damage> {
        number(column.name, self.text(column)?, most)
    }
}

fn number(what: &'static str, text: &str, most: u64) -> Result<u64, Damage> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Damage::NotANumber {
            what,
            text: quote(text),
        });
    }
    // All digits: parsing fails only for a number that is negative or too large.
    match text.parse() {
        Ok(value) if value <= most => Ok(value),
        _ => Err(Damage::OutOfRange {
            what,
            text: quote(text),
            most,
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn compression_is_found_by_content() {
        let text = b"op,id,size\na,0,8\n";
        let plain = Trace::read("trace", text.as_slice()).unwrap();
        assert_eq!(Trace::read("trace", gzip(text).as_slice()).unwrap(), plain);
        // Two compressed files one after the other are one file.
        let parts = [gzip(b"op,id,size\n"), gzip(b"a,0,8\n")].concat();
        assert_eq!(Trace::read("trace", parts.as_slice()).unwrap(), plain);
    }

    #[test]
    fn damaged_compression_is_an_error() {
        let mut bytes = gzip(b"op,id,size\na,0,8\n");
        bytes.truncate(bytes.len() - 9);
        let error = Trace::read("cut.csv.gz", bytes.as_slice()).unwrap_err();
        assert!(matches!(error.problem, Problem::Unreadable(_)), "{error}");
    }

    #[test]
    fn other_files_get_one_line_that_names_the_formats() {
        for content in [
            b"".as_slice(),
            b"\n\n",
            b"hello\n",
            b"id,size\n",
            b"\x7fELF\xff\xfe",
            &[b'a'; 100_000],
        ] {
            let message = Trace::read("other.bin", content).unwrap_err().to_string();
            assert!(message.starts_with("other.bin: is not a known trace"), "{message}");
            for format in ["op,id,size", "id,lower,upper,size", "RMM", "torch"] {
                assert!(message.contains(format), "{message}");
            }
            assert!(!message.contains('\n'));
        }
    }

    #[test]
    fn long_and_binary_lines_are_named() {
        let long = [b"op,id,size\n".as_slice(), &[b'1'; limits::LINE_BYTES as usize + 1]].concat();
        let error = Trace::read("long.csv", long.as_slice()).unwrap_err();
        assert!(
            matches!(
                error.problem,
                Problem::Line {
                    line: 2,
                    damage: Damage::LongLine
                }
            ),
            "{error}"
        );
        let error = Trace::read("binary.csv", b"op,id,size\na,\xff,1\n".as_slice()).unwrap_err();
        assert!(
            matches!(
                error.problem,
                Problem::Line {
                    line: 2,
                    damage: Damage::NotText
                }
            ),
            "{error}"
        );
    }

    #[test]
    fn what_exceeds_the_limit_is_an_error() {
        let mut source = Limited {
            source: io::repeat(b'\n').take(11),
            left: 10,
        };
        let error = source.read_to_end(&mut Vec::new()).unwrap_err();
        assert!(matches!(problem(error), Problem::TooLarge));
        let mut source = Limited {
            source: io::repeat(b'\n').take(10),
            left: 10,
        };
        assert_eq!(source.read_to_end(&mut Vec::new()).unwrap(), 10);
    }

    #[test]
    fn a_missing_file_is_an_error_with_its_path() {
        let message = Trace::open("no/such/trace.csv").unwrap_err().to_string();
        assert!(message.starts_with("no/such/trace.csv: cannot be read"), "{message}");
    }
}
