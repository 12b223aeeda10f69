//! Block lifetimes: `id,lower,upper,size`, one block a line, live from `lower` until just before `upper`.

use std::collections::HashSet;
use std::io::BufRead;

use super::error::quote;
use super::input::{Column, Columns, Lines, Row};
use super::{Builder, Damage, Format, Problem, Trace, limits};

/// Where the columns stand. Further ones (alignment, offset, ...) are placement hints and are not used.
pub(super) struct Layout {
    id: Column,
    lower: Column,
    upper: Column,
    size: Column,
}

impl Layout {
    pub(super) fn find(columns: &Columns<'_>) -> Option<Self> {
        Some(Self {
            id: columns.find("id")?,
            lower: columns.find("lower")?,
            upper: columns.find("upper")?,
            size: columns.find("size")?,
        })
    }
}

struct Lifetime {
    lower: u64,
    upper: u64,
    size: u64,
    line: u64,
}

/// Reads the lines after the header. The unit of `lower` and `upper` is not known: the trace has no time.
pub(super) fn read(name: &str, layout: &Layout, mut lines: Lines<impl BufRead>) -> Result<Trace, Problem> {
    let mut lifetimes = Vec::new();
    let mut ids: HashSet<Box<str>> = HashSet::new();
    while let Some(text) = lines.next_line()? {
        let lifetime = lifetime(layout, &Row::new(text), &mut ids);
        let line = lines.number();
        let lifetime = lifetime.map_err(|damage| Problem::Line { line, damage })?;
        // Each block gives two events.
        if lifetimes.len() >= limits::EVENTS / 2 {
            return Err(Problem::Line {
                line,
                damage: Damage::TooManyEvents,
            });
        }
        lifetimes.push(Lifetime { line, ..lifetime });
    }
    events(name, &lifetimes)
}

fn lifetime(layout: &Layout, row: &Row<'_>, ids: &mut HashSet<Box<str>>) -> Result<Lifetime, Damage> {
    let id = row.text(layout.id)?;
    let lower = row.number(layout.lower, u64::MAX)?;
    let upper = row.number(layout.upper, u64::MAX)?;
    let size = row.number(layout.size, limits::BYTES)?;
    if lower >= upper {
        return Err(Damage::EmptyLifetime { lower, upper });
    }
    if !ids.insert(id.into()) {
        return Err(Damage::AllocatedTwice(format!("id {}", quote(id))));
    }
    Ok(Lifetime {
        lower,
        upper,
        size,
        line: 0,
    })
}

/// The allocations and frees in order of time; at one moment frees come first, because `upper` is exclusive.
fn events(name: &str, lifetimes: &[Lifetime]) -> Result<Trace, Problem> {
    let mut order: Vec<(u64, bool, usize)> = Vec::with_capacity(2 * lifetimes.len());
    for (index, lifetime) in lifetimes.iter().enumerate() {
        order.push((lifetime.lower, true, index));
        order.push((lifetime.upper, false, index));
    }
    order.sort_unstable();

    let mut builder = Builder::new();
    let mut blocks = vec![0; lifetimes.len()];
    for (_, is_alloc, index) in order {
        let (Some(lifetime), Some(block)) = (lifetimes.get(index), blocks.get_mut(index)) else {
            continue;
        };
        let result = if is_alloc {
            builder.alloc(lifetime.size, 0, 0).map(|number| *block = number)
        } else {
            builder.free(*block, 0, 0)
        };
        result.map_err(|damage| Problem::Line {
            line: lifetime.line,
            damage,
        })?;
    }
    Ok(builder.finish_as(name, Format::Lifetimes, false))
}

#[cfg(test)]
mod tests {
    use crate::trace::{Damage, Event, Format, Op, Problem, Trace};

    fn damage(text: &str) -> (u64, Damage) {
        match Trace::read("lifetimes.csv", text.as_bytes()).map_err(|error| error.problem) {
            Err(Problem::Line { line, damage }) => (line, damage),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn frees_come_before_allocations_of_the_same_moment() {
        let text = "id,lower,upper,size\nb1,0,3,4\nb2,3,9,5\nb3,0,9,6\n";
        let trace = Trace::read("input.csv", text.as_bytes()).unwrap();
        let event = |op, block, size, time| Event {
            op,
            block,
            stream: 0,
            size,
            time,
            thread: 0,
        };
        assert_eq!(
            trace.events(),
            [
                event(Op::Alloc, 0, 4, 0),
                event(Op::Alloc, 1, 6, 1),
                event(Op::Free, 0, 4, 2),
                event(Op::Alloc, 2, 5, 3),
                event(Op::Free, 2, 5, 4),
                event(Op::Free, 1, 6, 5),
            ]
        );
        assert_eq!((trace.format(), trace.has_time()), (Format::Lifetimes, false));
    }

    #[test]
    fn damaged_lines_are_named() {
        let header = "upper,lower,size,id,offset";
        assert_eq!(
            damage(&format!("{header}\n3,3,4,a,0\n")),
            (2, Damage::EmptyLifetime { lower: 3, upper: 3 })
        );
        assert_eq!(
            damage(&format!("{header}\n3,0,4,a,0\n\n4,0,4,a,0\n")),
            (4, Damage::AllocatedTwice("id a".into()))
        );
        assert_eq!(damage(&format!("{header}\n3,0,4\n")), (2, Damage::Missing("id")));
        // Each size fits, together they do not.
        let most = i64::MAX;
        assert_eq!(
            damage(&format!("{header}\n3,0,{most},a,0\n9,1,1,b,0\n")),
            (3, Damage::LiveBytes)
        );
    }
}
