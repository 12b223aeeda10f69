//! The blocks of a caching allocator: where they lie in their segments, which are free, and which fits best.

use std::collections::{BTreeSet, HashMap};
use std::ops::{Index, IndexMut};

/// A stream and one of its two pools: true for the small one.
pub(super) type Pool = (u32, bool);

#[derive(Debug)]
pub(super) struct Block {
    pub addr: u64,
    pub size: u64,
    pub pool: Pool,
    pub free: bool,
    /// The neighbours in the same segment.
    pub prev: Option<u32>,
    pub next: Option<u32>,
    /// Other streams that use it.
    pub used_on: Vec<u32>,
    /// Events that have not been seen to complete since its free.
    pub events: u32,
}

impl Block {
    /// A block that is not free, with none after it.
    pub const fn new(pool: Pool, addr: u64, size: u64, prev: Option<u32>) -> Self {
        Self {
            addr,
            size,
            pool,
            free: false,
            prev,
            next: None,
            used_on: Vec::new(),
            events: 0,
        }
    }
}

/// All blocks, by index. Each operation takes a time that goes with the logarithm of the number of free blocks.
#[derive(Default)]
pub(super) struct Blocks {
    all: Vec<Block>,
    /// Indices of `all` that hold no block.
    vacant: Vec<u32>,
    /// Free blocks by pool, size and address, with their indices.
    pub free: BTreeSet<(Pool, u64, u64, u32)>,
    /// The last block of each expandable segment.
    tails: HashMap<Pool, u32>,
}

impl Index<u32> for Blocks {
    type Output = Block;

    fn index(&self, index: u32) -> &Block {
        &self.all[index as usize]
    }
}

impl IndexMut<u32> for Blocks {
    fn index_mut(&mut self, index: u32) -> &mut Block {
        &mut self.all[index as usize]
    }
}

impl Blocks {
    /// The smallest free block that is large enough. The end of an expandable segment can grow, so it counts as larger
    /// than any other.
    pub fn best_fit(&self, pool: Pool, size: u64) -> Option<u32> {
        let mut fitting = self
            .free
            .range((pool, size, 0, 0)..)
            .take_while(|entry| entry.0 == pool)
            .map(|entry| entry.3);
        let first = fitting.next()?;
        if self.tails.get(&pool) == Some(&first) {
            fitting.next().or(Some(first))
        } else {
            Some(first)
        }
    }

    /// Adds a block and returns its index.
    pub fn insert(&mut self, block: Block) -> u32 {
        if let Some(index) = self.vacant.pop() {
            self[index] = block;
            return index;
        }
        self.all.push(block);
        self.all.len() as u32 - 1
    }

    /// The last block of the pool's expandable segment.
    pub fn tail(&self, pool: Pool) -> Option<u32> {
        self.tails.get(&pool).copied()
    }

    /// Adds a block at the end of the pool's expandable segment, of no size yet, and returns its index.
    pub fn insert_tail(&mut self, pool: Pool) -> u32 {
        let tail = self.tail(pool);
        // Addresses are only compared within one pool.
        let addr = tail.map_or(0, |tail| self[tail].addr.saturating_add(self[tail].size));
        let block = self.insert(Block::new(pool, addr, 0, tail));
        if let Some(tail) = tail {
            self[tail].next = Some(block);
        }
        self.tails.insert(pool, block);
        block
    }

    /// Leaves `size` bytes in the block and makes a free block of the rest.
    pub fn split(&mut self, block: u32, size: u64) {
        let whole = &mut self[block];
        let (addr, pool, next) = (whole.addr.saturating_add(size), whole.pool, whole.next);
        let rest = whole.size - size;
        whole.size = size;
        let rest = Block {
            next,
            ..Block::new(pool, addr, rest, Some(block))
        };
        let rest = self.insert(rest);
        self[block].next = Some(rest);
        if let Some(next) = next {
            self[next].prev = Some(rest);
        }
        self.move_tail(block, rest);
        self.put_free(rest);
    }

    /// Takes a block out of the free ones.
    pub fn take_free(&mut self, index: u32) {
        let key = self.key(index);
        self.free.remove(&key);
        self[index].free = false;
    }

    /// Makes a block free and merges it with its free neighbours.
    pub fn put_free(&mut self, mut index: u32) {
        if let Some(prev) = self[index].prev.filter(|prev| self[*prev].free) {
            self.take_free(prev);
            self.merge(prev, index);
            index = prev;
        }
        if let Some(next) = self[index].next.filter(|next| self[*next].free) {
            self.take_free(next);
            self.merge(index, next);
        }
        self[index].free = true;
        self.free.insert(self.key(index));
    }

    fn key(&self, index: u32) -> (Pool, u64, u64, u32) {
        let block = &self[index];
        (block.pool, block.size, block.addr, index)
    }

    /// Adds a block to the one before it.
    fn merge(&mut self, block: u32, next: u32) {
        let (size, after) = (self[next].size, self[next].next);
        let merged = &mut self[block];
        merged.size = merged.size.saturating_add(size);
        merged.next = after;
        if let Some(after) = after {
            self[after].prev = Some(block);
        }
        self.move_tail(next, block);
        self.vacant.push(next);
    }

    /// Where `from` was the last block of an expandable segment, `to` now is.
    fn move_tail(&mut self, from: u32, to: u32) {
        let pool = self[from].pool;
        if self.tail(pool) == Some(from) {
            self.tails.insert(pool, to);
        }
    }
}
