//! Memory taken ahead of use.

use super::core::{count, forked};
use super::grow::SLAB_UNIT;
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
        // Memory is held in whole pieces: what the limit leaves behind the last of them can never be.
        let piece = if self.virtual_memory {
            self.driver.properties().granularity
        } else {
            SLAB_UNIT
        };
        let (most, held) = (self.pages.most(), self.pages.reserved());
        let bytes = if bytes <= most {
            bytes.min(held + most.saturating_sub(held) / piece * piece)
        } else {
            bytes
        };
        // Handles that are mapped nowhere yet serve every stream and every size.
        let result = if self.virtual_memory {
            self.pages.take_ahead(&self.driver, bytes)
        } else {
            self.take_slabs_ahead(arena, bytes)
        };
        match result {
            Ok(()) => Ok(()),
            Err(Refusal::Full) => {
                count(&self.core.events.out_of_memory);
                let missing = bytes.saturating_sub(self.pages.reserved());
                Err(Error::OutOfMemory(Box::new(self.out_of_memory(
                    arena,
                    missing,
                    Vec::new(),
                ))))
            }
            Err(Refusal::Failed(error)) => Err(error.into()),
        }
    }

    /// Grows the arena until the pool holds `bytes`.
    fn take_slabs_ahead(&self, arena: &Arena, bytes: u64) -> Result<(), Refusal> {
        // What was taken is held until all is there: given back, it would be what the next round finds, again and again.
        let mut held = Vec::new();
        let mut result = Ok(());
        // Others may take memory meanwhile, so it is looked at once in each round.
        while let (Ok(()), Some(missing @ 1..)) = (&result, bytes.checked_sub(self.pages.reserved())) {
            // In one piece if possible; a piece has a largest size.
            let missing = missing.clamp(2 << 20, size_class::BYTES_MAX);
            result = self
                .grow(arena, size_class::units(missing))
                .map(|index| held.push(index));
        }
        let mut inner = arena.lock(&self.core.metadata);
        for index in held {
            inner.give(&self.core.metadata, index);
        }
        result
    }
}
