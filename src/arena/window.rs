//! The cheapest place that memory is mapped at already: aliases side by side, with the free ranges between and around them.

use super::Kind;
use super::alias::{Alias, Piece, Source};
use super::region::Region;
use crate::driver::Handle;
use crate::metadata::{Blocks, State};
use crate::size_class;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;

/// A block of a window: free, or an alias whose memory is free.
struct Part {
    addr: u64,
    piece: Option<Piece>,
}

/// Parts side by side, shortened at its beginning to what is needed as it gets longer.
#[derive(Default)]
struct Window {
    parts: VecDeque<Part>,
    /// How many parts there were before the first.
    dropped: usize,
    /// The how many-th part each handle was last.
    places: FxHashMap<Handle, usize>,
    /// Bytes of its aliases.
    moved: u64,
    end: u64,
}

impl Window {
    fn clear(&mut self) {
        self.dropped += self.parts.len();
        self.parts.clear();
        (self.moved, self.end) = (0, 0);
    }

    fn drop_first(&mut self) {
        let first = self.parts.pop_front();
        self.dropped += usize::from(first.is_some());
        self.moved -= first.and_then(|part| part.piece).map_or(0, |piece| piece.bytes);
    }

    /// Adds the part that follows. Memory that is in the window already is not there twice: what is before it is dropped, and so is
    /// what `need` bytes do not need.
    fn push(&mut self, part: Part, end: u64, need: u64) {
        if let Some(piece) = part.piece {
            let place = self.dropped + self.parts.len();
            if let Some(before) = self.places.insert(piece.handle, place) {
                while self.dropped <= before {
                    self.drop_first();
                }
            }
            self.moved += piece.bytes;
        }
        self.parts.push_back(part);
        self.end = end;
        while self.parts.get(1).is_some_and(|second| end - second.addr >= need) {
            self.drop_first();
        }
    }

    fn pieces(&self) -> impl Iterator<Item = &Piece> {
        self.parts.iter().filter_map(|part| part.piece.as_ref())
    }

    /// Whether it has `need` bytes, and aliases.
    fn is_enough(&self, need: u64) -> bool {
        let addr = self.parts.front().map_or(self.end, |part| part.addr);
        self.end - addr >= need && self.moved > 0
    }

    /// Whether none of its memory is free in the window itself, in the arena's region of a kind.
    fn is_apart(&self, arena: u32, kind: Kind) -> bool {
        let addr = self.parts.front().map_or(self.end, |part| part.addr);
        self.pieces().all(|Piece { source, .. }| {
            (source.arena, source.kind) != (arena, kind) || !(addr..self.end).contains(&source.addr)
        })
    }
}

impl Region {
    /// Aliases side by side that have `units` together with the free ranges between and around them; those with the least memory.
    /// Their handles are in `sources`: where they are free. Looks at each alias, and at each free range beside one, once.
    pub(super) fn window(
        &self,
        blocks: &Blocks,
        units: u32,
        sources: &FxHashMap<Handle, Source>,
        kind: Kind,
    ) -> Option<Vec<Piece>> {
        let need = size_class::bytes(units);
        // A large mapping in which a small block lives is free as a whole no more.
        let mut least = if kind == Kind::Large { u64::MAX } else { 2 * need + 1 };
        let mut best = None;
        let piece = |addr: u64, alias: &Alias| {
            let handle = alias.handle?;
            let source = *sources.get(&handle)?;
            Some(Piece {
                addr,
                bytes: alias.bytes,
                handle,
                source,
            })
        };
        let mut window = Window::default();
        window.places.reserve(sources.len());
        for (&addr, alias) in &self.aliases {
            let Some(piece) = piece(addr, alias) else {
                window.clear();
                continue;
            };
            let block = blocks.get(alias.block);
            let before = Self::neighbour(blocks, block.before.load(Relaxed), State::Free);
            if window.end != addr {
                window.clear();
                if before != 0 {
                    let begin = blocks.get(before).addr();
                    window.push(
                        Part {
                            addr: begin,
                            piece: None,
                        },
                        addr,
                        need,
                    );
                }
            }
            let behind = Self::neighbour(blocks, block.behind.load(Relaxed), State::Free);
            let end = block.end();
            let free = (behind != 0).then(|| (Part { addr: end, piece: None }, blocks.get(behind).end()));
            let piece = Some(piece);
            let alias = (Part { addr, piece }, end);
            for (part, end) in std::iter::once(alias).chain(free) {
                window.push(part, end, need);
                if window.moved < least && window.is_enough(need) && window.is_apart(self.arena, kind) {
                    least = window.moved;
                    best = Some(window.pieces().copied().collect());
                }
            }
        }
        best
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::region::{Mapping, Span};
    use super::*;

    const PAGE: u64 = 2 << 20;

    /// A region with so many free pages, each touched in an epoch of its own from 1 on.
    fn region(blocks: &Blocks, pages: u64) -> Region {
        let mut region = Region::new(1);
        let span = Span {
            addr: 1 << 40,
            bytes: 2 * pages * PAGE,
        };
        assert!(region.add_segment(blocks, span, true));
        let growth = region.plan(blocks, 1, PAGE, pages * PAGE).expect("a hole");
        let mappings: Vec<Mapping> = (0..pages)
            .map(|page| Mapping {
                addr: growth.addr + page * PAGE,
                bytes: PAGE,
                handle: Handle(page + 1),
                touched: page + 1,
            })
            .collect();
        let index = region.commit(blocks, growth, &mappings, 1);
        region.give(blocks, index);
        region
    }

    #[test]
    fn a_window_uses_no_memory_twice() {
        let blocks = Blocks::new();
        let mut region = region(&blocks, 4);
        let free = |addr: u64| Source {
            arena: 1,
            kind: Kind::Large,
            addr,
        };
        let base = 1 << 40;
        for page in [0, 1] {
            let part = region.take_whole(&blocks, base + page * PAGE, Handle(page + 1), u64::MAX);
            region.alias(&blocks, part.expect("free"));
        }
        let find = |sources: &[(u64, u64)], pages: u64| {
            let sources = sources.iter().map(|&(page, addr)| (Handle(page + 1), free(addr)));
            let sources: FxHashMap<Handle, Source> = sources.collect();
            region.window(&blocks, (pages * PAGE / 512) as u32, &sources, Kind::Large)
        };
        let pieces = |window: Option<Vec<Piece>>| window.map(|pieces| pieces.len());
        let elsewhere = base + 6 * PAGE;
        assert_eq!(pieces(find(&[(1, elsewhere)], 3)), Some(1), "two free pages and one");
        assert_eq!(pieces(find(&[(1, elsewhere)], 4)), None, "the other page is in use");
        assert_eq!(pieces(find(&[(0, elsewhere), (1, elsewhere + PAGE)], 4)), Some(2));
        assert_eq!(
            pieces(find(&[(1, base + 2 * PAGE)], 3)),
            None,
            "it is free in the window itself"
        );
    }

    #[test]
    fn the_window_with_the_least_memory_is_found_behind_others() {
        let blocks = Blocks::new();
        let mut region = region(&blocks, 8);
        let base = 1 << 40;
        for page in [0, 1, 2, 4, 6] {
            let part = region.take_whole(&blocks, base + page * PAGE, Handle(page + 1), u64::MAX);
            region.alias(&blocks, part.expect("free"));
        }
        let source = |page: u64| Source {
            arena: 2,
            kind: Kind::Large,
            addr: page * PAGE,
        };
        let find = |handles: &[u64], pages: u64| {
            let sources = handles.iter().map(|&page| (Handle(page + 1), source(page))).collect();
            let window = region.window(&blocks, (pages * PAGE / 512) as u32, &sources, Kind::Large);
            window.map(|pieces| {
                pieces
                    .iter()
                    .map(|piece| (piece.addr - base) / PAGE)
                    .collect::<Vec<_>>()
            })
        };
        // Page 3, 5 and 7 are free.
        assert_eq!(find(&[0, 1, 2, 4, 6], 3), Some(vec![4]));
        assert_eq!(
            find(&[0, 1, 2, 4, 6], 4),
            Some(vec![2, 4]),
            "2 to 5, the first of three"
        );
        assert_eq!(find(&[0, 1, 2, 6], 4), Some(vec![0, 1, 2]), "0 to 3");
        assert_eq!(find(&[0, 1, 2, 4, 6], 8), Some(vec![0, 1, 2, 4, 6]));
        assert_eq!(find(&[0, 2, 4, 6], 8), None);
    }
}
