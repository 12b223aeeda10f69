//! Handles that are mapped nowhere: taken ahead or left over, mapped next, or given back to the driver.

use super::{Pages, Refusal, Target, USUAL_HANDLE, choice};
use crate::driver::{Driver, DriverResult, Handle};
use crate::sync::lock;

/// How many bytes of what is taken ahead are single pages.
const PAGES_AHEAD: u64 = 64 << 20;

impl Pages {
    /// How many of `bytes` the spare handles can be; and, where that is not all, by how much a growth has to be larger so that
    /// they can be all of it.
    pub(crate) fn spare_for(&self, bytes: u64) -> (u64, Option<u64>) {
        let spare = lock(&self.spare);
        // As they are taken: the largest that fits, again and again.
        let fit = |bytes: u64| {
            let mut left = bytes;
            let unused = spare.iter().rev().filter(|&&(bytes, _)| {
                let taken = bytes <= left;
                left -= if taken { bytes } else { 0 };
                !taken
            });
            let smallest = unused.map(|&(bytes, _)| bytes).last();
            (left, smallest)
        };
        let (missing, unused) = fit(bytes);
        let more = unused.and_then(|unused| unused.checked_sub(missing));
        let more = more.filter(|more| missing > 0 && fit(bytes + more).0 == 0);
        (bytes - missing, more)
    }

    /// Bytes of handles that are mapped nowhere.
    pub(crate) fn spare_bytes(&self) -> u64 {
        lock(&self.spare).iter().map(|(bytes, _)| bytes).sum()
    }

    /// Spare handles of at most `bytes` together, the largest that fit.
    pub(super) fn take_spare(&self, bytes: u64) -> Vec<(u64, Handle)> {
        let mut spare = lock(&self.spare);
        let mut left = bytes;
        let mut taken = Vec::new();
        while left > 0 {
            let fitting = spare.partition_point(|&(bytes, _)| bytes <= left);
            if fitting == 0 {
                break;
            }
            let handle = spare.remove(fitting - 1);
            left -= handle.0;
            taken.push(handle);
        }
        taken
    }

    /// Puts handles that are mapped nowhere aside.
    pub(super) fn put_spare(&self, handles: Vec<(u64, Handle)>) {
        let mut spare = lock(&self.spare);
        for handle in handles {
            let at = spare.partition_point(|&(bytes, _)| bytes < handle.0);
            spare.insert(at, handle);
        }
    }

    /// Takes handles from the driver until `bytes` are reserved: single pages first, which small blocks need, and then such as
    /// cost less.
    pub(crate) fn take_ahead(&self, driver: &impl Driver, bytes: u64) -> Result<(), Refusal> {
        // What can never be held is refused at once.
        if bytes > self.most() {
            return Err(Refusal::Full);
        }
        let mut taken = 0;
        // Others may take memory meanwhile, so it is looked at once in each round.
        while let Some(missing @ 1..) = bytes.checked_sub(self.reserved()) {
            let most = if taken < PAGES_AHEAD {
                self.granularity
            } else {
                USUAL_HANDLE.min(self.largest_handle)
            };
            let size = missing.min(most).next_multiple_of(self.granularity);
            let handle = self.create(driver, size)?;
            self.put_spare(vec![(size, handle)]);
            taken += size;
        }
        Ok(())
    }

    /// Which of the idle parts of these sizes to unmap so that, with the spare handles, no more than the target stays
    /// reserved: their places.
    pub(crate) fn choose(&self, parts: &[u64], target: Target) -> Vec<usize> {
        let mut sizes: Vec<u64> = lock(&self.spare).iter().map(|&(bytes, _)| bytes).collect();
        let spare = sizes.len();
        sizes.extend(parts);
        let chosen = self.nearest(&sizes, target);
        chosen
            .into_iter()
            .filter_map(|place| place.checked_sub(spare))
            .collect()
    }

    /// Which of the pieces of these sizes to give back.
    fn nearest(&self, sizes: &[u64], target: Target) -> Vec<usize> {
        let reserved = self.reserved();
        let mut chosen = choice::nearest(sizes, reserved.saturating_sub(target.bytes), self.granularity);
        let mut left = reserved.saturating_sub(target.floor);
        chosen.retain(|&place| {
            let given = sizes[place] <= left;
            left -= if given { sizes[place] } else { 0 };
            given
        });
        chosen
    }

    /// Gives spare handles back to the driver until no more than the target is reserved. Returns the bytes.
    pub(crate) fn release_spare(&self, driver: &impl Driver, target: Target) -> DriverResult<u64> {
        let chosen = {
            let mut spare = lock(&self.spare);
            let sizes: Vec<u64> = spare.iter().map(|&(bytes, _)| bytes).collect();
            let mut places = self.nearest(&sizes, target);
            // From the back, so that the places before stay.
            places.sort_unstable_by_key(|&place| std::cmp::Reverse(place));
            places.into_iter().map(|place| spare.remove(place)).collect::<Vec<_>>()
        };
        let mut given = 0;
        let mut chosen = chosen.into_iter();
        for (bytes, handle) in chosen.by_ref() {
            if let Err(error) = driver.release(handle) {
                self.put_spare(vec![(bytes, handle)]);
                self.put_spare(chosen.collect());
                return Err(error);
            }
            self.give(bytes);
            given += bytes;
        }
        Ok(given)
    }
}
