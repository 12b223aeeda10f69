//! torch's memory snapshot (`torch.cuda.memory._dump_snapshot`): the history of one device becomes a trace.

use std::collections::HashMap;

use super::error::quote;
use super::pickle::{Pickle, Value};
use super::{Builder, Damage, Format, Op, Problem, Trace, limits};

/// Reads the history of one device: of the one asked for, or of that with the most entries, the first one of several.
pub(super) fn read(name: &str, bytes: &[u8], asked: Option<u32>) -> Result<Trace, Problem> {
    let pickle = Pickle::load(bytes)?;
    let part = |part| move || Problem::Snapshot { part };
    let histories = pickle
        .get(pickle.root(), "device_traces")
        .and_then(|value| pickle.list(value));
    let histories = histories.ok_or_else(part("device_traces"))?;
    let mut device = 0;
    let mut history: &[Value] = &[];
    for (index, value) in histories.iter().enumerate() {
        let entries = pickle.list(*value).ok_or_else(part("device_traces"))?;
        let is_asked_for = asked.is_none_or(|asked| asked as usize == index);
        if is_asked_for && entries.len() > history.len() {
            (device, history) = (index, entries);
        }
    }
    if history.is_empty() {
        return Err(asked.map_or(Problem::NoHistory, |device| Problem::NoHistoryOf { device }));
    }
    if history.len() > limits::EVENTS {
        return Err(entry_problem(limits::EVENTS)(Damage::TooManyEvents));
    }
    let segments = pickle
        .get(pickle.root(), "segments")
        .and_then(|value| pickle.list(value));
    let segments = segments.ok_or_else(part("segments"))?;
    let live_at_end = live_blocks(&pickle, segments, device).ok_or_else(part("segments"))?;
    let device = device as u32;
    events(name, &pickle, history, live_at_end, Format::TorchSnapshot { device })
}

/// A block as an address, its bytes and its stream.
struct Block {
    addr: u64,
    size: u64,
    stream: u64,
}

/// The blocks of a device that the snapshot shows as allocated; nothing where the snapshot is damaged.
fn live_blocks(pickle: &Pickle<'_>, segments: &[Value], device: usize) -> Option<Vec<Block>> {
    let unsigned = |dict, key| pickle.get(dict, key).and_then(|value| unsigned(value, limits::BYTES));
    let mut live = Vec::new();
    let mut seen = 0;
    for segment in segments {
        if unsigned(*segment, "device").unwrap_or(0) != device as u64 {
            continue;
        }
        let stream = unsigned(*segment, "stream").unwrap_or(0);
        let mut next = unsigned(*segment, "address")?;
        for block in pickle.list(pickle.get(*segment, "blocks")?)? {
            // A list of blocks that is shared by many segments would take forever.
            seen += 1;
            if seen > limits::EVENTS {
                return None;
            }
            let bytes = unsigned(*block, "size")?;
            let addr = unsigned(*block, "address").unwrap_or(next);
            next = addr.checked_add(bytes)?;
            let state = pickle.text(pickle.get(*block, "state")?)?;
            if state == "active_allocated" {
                let size = unsigned(*block, "requested_size")
                    .filter(|size| *size > 0)
                    .unwrap_or(bytes);
                live.push(Block { addr, size, stream });
            }
        }
    }
    Some(live)
}

/// What an entry of the history says.
enum Action {
    Alloc,
    FreeRequested,
    FreeCompleted,
    Note(Op),
    /// Annotations and whatever later versions add: nothing about memory.
    Nothing,
}

struct Entry {
    action: Action,
    addr: u64,
    size: u64,
    stream: u64,
    time: Option<u64>,
}

fn entry(pickle: &Pickle<'_>, value: Value) -> Result<Entry, Damage> {
    let text = pickle.get(value, "action").ok_or(Damage::Missing("action"))?;
    let action = match pickle.text(text).ok_or(Damage::Missing("action"))? {
        "alloc" => Action::Alloc,
        "free_requested" => Action::FreeRequested,
        "free_completed" => Action::FreeCompleted,
        "segment_alloc" => Action::Note(Op::SegmentAlloc),
        "segment_free" => Action::Note(Op::SegmentFree),
        "segment_map" => Action::Note(Op::SegmentMap),
        "segment_unmap" => Action::Note(Op::SegmentUnmap),
        "oom" => Action::Note(Op::OutOfMemory),
        _ => Action::Nothing,
    };
    let number = |what, most| match pickle.get(value, what) {
        None => Ok(None),
        Some(Value::Int(number)) => unsigned(Value::Int(number), most)
            .map(Some)
            .ok_or_else(|| Damage::OutOfRange {
                what,
                text: number.to_string(),
                most,
            }),
        Some(value) => Err(Damage::NotANumber {
            what,
            text: quote(pickle.text(value).unwrap_or("of another type")),
        }),
    };
    let (mut addr, mut size) = (0, 0);
    if matches!(action, Action::Alloc | Action::FreeRequested | Action::FreeCompleted) {
        addr = number("addr", limits::BYTES)?.ok_or(Damage::Missing("addr"))?;
    }
    if !matches!(action, Action::Nothing) {
        size = number("size", limits::BYTES)?.ok_or(Damage::Missing("size"))?;
    }
    let stream = number("stream", limits::BYTES)?.unwrap_or(0);
    let time = number("time_us", limits::BYTES)?;
    Ok(Entry {
        action,
        addr,
        size,
        stream,
        time,
    })
}

fn unsigned(value: Value, most: u64) -> Option<u64> {
    let Value::Int(number) = value else { return None };
    u64::try_from(number).ok().filter(|number| *number <= most)
}

fn entry_problem(index: usize) -> impl FnOnce(Damage) -> Problem {
    move |damage| Problem::Entry {
        entry: index as u64 + 1,
        damage,
    }
}

/// A block whose address is not free again.
struct Held {
    block: u32,
    /// The index of the entry that asked for its free.
    freed: Option<usize>,
}

fn events(
    name: &str,
    pickle: &Pickle<'_>,
    history: &[Value],
    live_at_end: Vec<Block>,
    format: Format,
) -> Result<Trace, Problem> {
    let mut entries = Vec::with_capacity(history.len());
    for (index, value) in history.iter().enumerate() {
        entries.push(entry(pickle, *value).map_err(entry_problem(index))?);
    }
    let mut builder = Builder::new();
    let mut held = HashMap::new();
    for Block { addr, size, stream } in live_before(&entries, live_at_end) {
        let block = builder.live(size, stream).map_err(entry_problem(0))?;
        held.insert(addr, Held { block, freed: None });
    }
    let has_time = entries.iter().all(|entry| entry.time.is_some());
    let start = entries.iter().filter_map(|entry| entry.time).min().unwrap_or(0);
    for (index, entry) in entries.iter().enumerate() {
        let time = entry.time.map_or(0, |time| time - start);
        add(&mut builder, &mut held, entry, index, time).map_err(entry_problem(index))?;
    }
    Ok(builder.finish_as(name, format, has_time))
}

/// The blocks that were live before the history began: those that the history frees before it allocates them, and those
/// that it does not mention and that are live at its end. In order of address.
fn live_before(entries: &[Entry], live_at_end: Vec<Block>) -> Vec<Block> {
    let mut first_seen: HashMap<u64, Option<Block>> = HashMap::new();
    for entry in entries {
        let &Entry { addr, size, stream, .. } = entry;
        match entry.action {
            Action::Alloc | Action::FreeCompleted => first_seen.entry(addr).or_insert(None),
            Action::FreeRequested => first_seen.entry(addr).or_insert(Some(Block { addr, size, stream })),
            Action::Note(_) | Action::Nothing => continue,
        };
    }
    for block in live_at_end {
        first_seen.entry(block.addr).or_insert(Some(block));
    }
    let mut live: Vec<Block> = first_seen.into_values().flatten().collect();
    live.sort_unstable_by_key(|block| block.addr);
    live
}

fn add(
    builder: &mut Builder,
    held: &mut HashMap<u64, Held>,
    entry: &Entry,
    index: usize,
    time: u64,
) -> Result<(), Damage> {
    let &Entry { addr, size, stream, .. } = entry;
    match entry.action {
        Action::Alloc => {
            if held.get(&addr).is_some_and(|old| old.freed.is_none()) {
                return Err(Damage::AllocatedTwice(format!("address {addr:#x}")));
            }
            let block = builder.alloc(size, stream, time)?;
            held.insert(addr, Held { block, freed: None });
        }
        Action::FreeRequested => {
            let held = held
                .get_mut(&addr)
                .ok_or_else(|| Damage::NotAllocated(format!("address {addr:#x}")))?;
            builder.free(held.block, stream, time)?;
            held.freed = Some(index);
        }
        // A completion without a block is that of a free from before the history.
        Action::FreeCompleted => match held.remove(&addr) {
            // Where the completion follows at once, the block was in use on no other stream.
            Some(Held { freed: Some(freed), .. }) if freed + 1 == index => {}
            Some(Held { block, freed: Some(_) }) => builder.free_done(block, stream, time)?,
            Some(Held { block, freed: None }) => builder.free(block, stream, time)?,
            None => {}
        },
        Action::Note(op) => builder.note(op, size, stream, time)?,
        Action::Nothing => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::trace::event::event;
    use crate::trace::{Damage, Event, Format, Op, Problem, Trace};

    fn int(value: i64) -> Vec<u8> {
        [b"\x8a\x08".as_slice(), &value.to_le_bytes()].concat()
    }

    fn text(value: &str) -> Vec<u8> {
        [b"X".as_slice(), &(value.len() as u32).to_le_bytes(), value.as_bytes()].concat()
    }

    fn list(items: &[Vec<u8>]) -> Vec<u8> {
        [b"](".as_slice(), &items.concat(), b"e"].concat()
    }

    fn dict(items: &[(&str, Vec<u8>)]) -> Vec<u8> {
        let items: Vec<u8> = items
            .iter()
            .flat_map(|(key, value)| [text(key), value.clone()].concat())
            .collect();
        [b"}(".as_slice(), &items, b"u"].concat()
    }

    fn entry(action: &str, addr: i64, size: i64, stream: i64, time: i64) -> Vec<u8> {
        dict(&[
            ("action", text(action)),
            ("addr", int(addr)),
            ("size", int(size)),
            ("stream", int(stream)),
            ("time_us", int(time)),
        ])
    }

    fn block(size: i64, requested: i64, state: &str) -> Vec<u8> {
        dict(&[
            ("size", int(size)),
            ("requested_size", int(requested)),
            ("state", text(state)),
        ])
    }

    fn read(segments: &[Vec<u8>], histories: &[Vec<u8>]) -> Result<Trace, Problem> {
        let root = dict(&[("segments", list(segments)), ("device_traces", list(histories))]);
        let pickle = [b"\x80\x02".as_slice(), &root, b"."].concat();
        Trace::read("snapshot.pickle", pickle.as_slice()).map_err(|error| error.problem)
    }

    #[test]
    fn the_live_set_before_the_history_is_rebuilt() {
        let segment = dict(&[
            ("device", int(1)),
            ("address", int(0x1000)),
            ("stream", int(0)),
            (
                "blocks",
                list(&[
                    block(512, 500, "active_allocated"),
                    block(512, 0, "inactive"),
                    block(1024, 1000, "active_pending_free"),
                    block(2048, 2000, "active_allocated"),
                ]),
            ),
        ]);
        let history = list(&[
            // Live before and freed now; its free waits for another stream.
            entry("free_requested", 0x1200, 300, 77, 1_700_000_000_000_010),
            entry("segment_alloc", 0x1000, 4096, 77, 1_700_000_000_000_011),
            entry("free_completed", 0x1200, 300, 77, 1_700_000_000_000_012),
            // Freed before the history: no block of it.
            entry("free_completed", 0x9000, 300, 0, 1_700_000_000_000_012),
            entry("alloc", 0x1800, 2000, 0, 1_700_000_000_000_013),
            entry("snapshot", 0, 0, 0, 1_700_000_000_000_014),
            entry("alloc", 0x1200, 200, 0, 1_700_000_000_000_015),
            entry("free_requested", 0x1200, 200, 0, 1_700_000_000_000_016),
            entry("free_completed", 0x1200, 200, 0, 1_700_000_000_000_016),
        ]);
        let trace = read(&[segment], &[list(&[]), history]).unwrap();
        assert_eq!(
            trace.events(),
            [
                event(Op::Live, 0, 0, 500, 0),
                event(Op::Live, 1, 1, 300, 0),
                event(Op::Free, 1, 1, 300, 0),
                event(Op::SegmentAlloc, Event::NO_BLOCK, 1, 4096, 1),
                event(Op::FreeDone, 1, 1, 300, 2),
                event(Op::Alloc, 2, 0, 2000, 3),
                event(Op::Alloc, 3, 0, 200, 5),
                event(Op::Free, 3, 0, 200, 6),
            ]
        );
        assert_eq!(
            (trace.format(), trace.has_time()),
            (Format::TorchSnapshot { device: 1 }, true)
        );
    }

    #[test]
    fn a_device_can_be_chosen() {
        let histories = [
            list(&[entry("alloc", 0x10, 8, 0, 0)]),
            list(&[]),
            list(&[entry("alloc", 0x10, 9, 0, 0), entry("alloc", 0x90, 9, 0, 1)]),
        ];
        let root = dict(&[("segments", list(&[])), ("device_traces", list(&histories))]);
        let pickle = [b"\x80\x02".as_slice(), &root, b"."].concat();
        let blocks = |device| super::read("snapshot.pickle", &pickle, device).map(|trace| trace.blocks());
        assert_eq!(blocks(None).unwrap(), 2);
        assert_eq!(blocks(Some(0)).unwrap(), 1);
        assert_eq!(blocks(Some(2)).unwrap(), 2);
        for device in [1, 3] {
            let problem = blocks(Some(device)).unwrap_err();
            assert!(matches!(problem, Problem::NoHistoryOf { device: named } if named == device));
        }
    }

    #[test]
    fn damaged_entries_are_named() {
        let damage = |entries: &[Vec<u8>]| match read(&[], &[list(entries)]) {
            Err(Problem::Entry { entry, damage }) => (entry, damage),
            other => panic!("{other:?}"),
        };
        let alloc = entry("alloc", 0x10, 8, 0, 0);
        assert_eq!(
            damage(&[alloc.clone(), alloc]),
            (2, Damage::AllocatedTwice("address 0x10".into()))
        );
        let negative = damage(&[entry("alloc", 0x10, -8, 0, 0)]);
        assert!(
            matches!(negative, (1, Damage::OutOfRange { what: "size", .. })),
            "{negative:?}"
        );
        let freed = entry("free_requested", 0x10, 8, 0, 0);
        assert_eq!(damage(&[freed.clone(), freed]), (2, Damage::FreedBefore));
        assert_eq!(
            damage(&[dict(&[("action", text("alloc"))])]),
            (1, Damage::Missing("addr"))
        );
        assert_eq!(damage(&[int(3)]), (1, Damage::Missing("action")));
        let typed = damage(&[dict(&[("action", text("alloc")), ("addr", text("0x10"))])]);
        assert_eq!(
            typed,
            (
                1,
                Damage::NotANumber {
                    what: "addr",
                    text: "0x10".into()
                }
            )
        );
    }

    #[test]
    fn snapshots_without_history_say_how_to_record_one() {
        let problem = read(&[], &[list(&[])]).unwrap_err();
        assert!(problem.to_string().contains("_record_memory_history"), "{problem}");
        let problem = Trace::read("list.pickle", b"\x80\x04].".as_slice())
            .unwrap_err()
            .problem;
        assert!(
            matches!(problem, Problem::Snapshot { part: "device_traces" }),
            "{problem}"
        );
        let segment = dict(&[("address", int(0)), ("blocks", list(&[dict(&[("size", int(-1))])]))]);
        let problem = read(&[segment], &[list(&[entry("alloc", 1, 8, 0, 0)])]).unwrap_err();
        assert!(matches!(problem, Problem::Snapshot { part: "segments" }), "{problem}");
    }
}
