//! Memory taken ahead of use.

use super::core::{count, forked};
use super::{Error, Pool, Result};
use crate::arena::{Arena, ArenaKey};
use crate::driver::Driver;
use crate::pages::Refusal;
use crate::size_class;

impl<D: Driver> Pool<D> {
    /// [`Pool::reserve`].
    pub(super) fn reserve_ahead(&self, bytes: u64) -> Result<()> {
        if forked() {
            return Err(Error::Forked);
        }
        let home = self.driver.home();
        let key = ArenaKey {
            stream: self.known(home)?.key,
            private: None,
        };
        let visit = self.arena_for(key, home)?;
        let arena = visit.arena();
        // What was taken is held until all is there: given back, it would be what the next round finds, again and again.
        let mut held = Vec::new();
        let result = self.take_until(arena, bytes, &mut held);
        let mut inner = arena.lock(&self.core.metadata);
        for index in held {
            inner.give(&self.core.metadata, index);
        }
        result
    }

    /// Grows the arena until the pool holds `bytes`; the blocks that this took are in `held`.
    fn take_until(&self, arena: &Arena, bytes: u64, held: &mut Vec<u32>) -> Result<()> {
        // Others may take memory meanwhile, so it is looked at once in each round.
        while let Some(missing @ 1..) = bytes.checked_sub(self.pages.reserved()) {
            // In one piece if possible; a piece has a largest size.
            let missing = missing.clamp(2 << 20, size_class::BYTES_MAX);
            match self.grow(arena, size_class::units(missing)) {
                Ok(index) => held.push(index),
                Err(Refusal::Full) => {
                    count(&self.core.events.out_of_memory);
                    return Err(Error::OutOfMemory(Box::new(self.out_of_memory(
                        arena,
                        missing,
                        Vec::new(),
                    ))));
                }
                Err(Refusal::Failed(error)) => return Err(error.into()),
            }
        }
        Ok(())
    }
}
