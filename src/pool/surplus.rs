//! Idle memory that the settings send back to the driver: above the ceiling (`cache`), idle for long (`release_after`), or
//! missing in what is to stay free on the device (`headroom`).

use super::core::forked;
use super::{Error, Pool, Result};
use crate::arena::{Arena, Idle, Kind};
use crate::driver::Driver;
use crate::pages::Target;
use crate::sync::lock;
use std::collections::{HashMap, VecDeque};
use std::sync::PoisonError;
use std::time::Instant;

/// How many times in `release_after` the idle memory is looked at.
const LOOKS: u32 = 4;

/// When epochs of the arenas ended: how old their idle memory is at least.
#[derive(Default)]
pub(super) struct Ages {
    looked: Option<Instant>,
    ended: HashMap<u32, VecDeque<(u64, Instant)>>,
}

impl<D: Driver> Pool<D> {
    /// Gives back what the settings `cache`, `release_after` and `headroom` do not let the pool hold idle; never below what
    /// `reserve` asked for. Returns the bytes. May wait for the device, unlike the same when memory is asked for.
    ///
    /// Memory has an age from the first look after it became free: by this call, or by a request that no magazine could meet.
    ///
    /// # Errors
    /// As [`Self::trim`].
    pub fn release_idle(&self) -> Result<u64> {
        if forked() {
            return Err(Error::Forked);
        }
        let before = self.pages.reserved();
        let intrusion = self.pages.intrusion(&self.driver, 0)?;
        let surplus = self.above_ceiling().max(intrusion.min(self.cached()));
        if surplus > 0 {
            self.trim_to(self.less(surplus))?;
        }
        if self.config.release_after.is_some() {
            self.core.take_magazines(None);
            let old = self.old_epochs(true);
            let _alone = self.pressed.write().unwrap_or_else(PoisonError::into_inner);
            self.give_old(&old, true)?;
        }
        Ok(before.saturating_sub(self.pages.reserved()))
    }

    /// After a request that no magazine could meet: gives back what the device is known to be done with. Waits for nothing, but
    /// slabs, which the driver takes back only with a wait, after a growth.
    pub(super) fn shed(&self, grown: bool) {
        if !self.virtual_memory {
            if grown && self.above_ceiling() > 0 {
                // What is refused now is tried again.
                let _ = self.release_idle();
            }
            return;
        }
        let surplus = self.above_ceiling();
        let old = self.old_epochs(false);
        if surplus == 0 && old.is_empty() {
            return;
        }
        // Others are short of memory, or growing: another time.
        let Ok(_alone) = self.pressed.try_write() else { return };
        if surplus > 0 {
            let parts = self.idle_since(|arena| {
                self.tick(arena);
                lock(&arena.gate).done
            });
            let target = self.less(surplus);
            // Without a wait there is nothing that could fail; a handle that the driver keeps is tried again.
            let _ = self.give_nearest(parts, target, false);
            let _ = self.pages.release_spare(&self.driver, target);
        }
        let _ = self.give_old(&old, false);
    }

    /// What stays of what is reserved now when so many bytes go back.
    fn less(&self, bytes: u64) -> Target {
        Target {
            bytes: self.pages.reserved().saturating_sub(bytes),
            floor: self.config.reserve,
        }
    }

    /// Bytes that are held and neither given out nor waiting, about.
    fn cached(&self) -> u64 {
        let active = self.core.active_now();
        self.pages.reserved().saturating_sub(active)
    }

    fn above_ceiling(&self) -> u64 {
        let ceiling = self.config.cache.unwrap_or(u64::MAX);
        self.cached().saturating_sub(ceiling)
    }

    /// Idle parts of all arenas that no capture holds, freed in the epoch that `last` says or before it.
    fn idle_since(&self, last: impl Fn(&Arena) -> u64) -> Vec<(&Arena, Kind, Idle)> {
        let metadata = &self.core.metadata;
        let granularity = self.driver.properties().granularity;
        let mut all = Vec::new();
        for arena in self.core.arenas_not_held() {
            let last = last(arena);
            if last == 0 {
                continue;
            }
            let mut inner = arena.lock(metadata);
            arena.drain_shared(metadata, &mut inner);
            for kind in Kind::ALL {
                let parts = inner.region(kind).idle_since(&metadata.blocks, granularity, last);
                all.extend(parts.into_iter().map(|part| (arena, kind, part)));
            }
        }
        all
    }

    /// The last epoch of each arena that ended longer than `release_after` ago; empty when it is not time to look, unless `now`.
    fn old_epochs(&self, now: bool) -> HashMap<u32, u64> {
        let Some(after) = self.config.release_after else {
            return HashMap::new();
        };
        let (mut ages, time) = (lock(&self.ages), Instant::now());
        let since = |then: Instant| time.saturating_duration_since(then);
        if !now && ages.looked.is_some_and(|looked| since(looked) < after / LOOKS) {
            return HashMap::new();
        }
        ages.looked = Some(time);
        let mut old = HashMap::new();
        for arena in self.core.arenas_in_use() {
            // An event where one can be had, so that the device is known to be done when the epoch is old.
            self.tick(arena);
            let epoch = {
                let mut inner = arena.lock(&self.core.metadata);
                inner.epoch += 1;
                inner.epoch - 1
            };
            let ended = ages.ended.entry(arena.index).or_default();
            ended.push_back((epoch, time));
            let passed = ended.iter().take_while(|&&(_, then)| since(then) >= after).count();
            // The last of them stays: what is older than it is still old the next time.
            ended.drain(..passed.saturating_sub(1));
            if passed > 0 {
                old.extend(ended.front().map(|&(epoch, _)| (arena.index, epoch)));
            }
        }
        old
    }

    /// Gives back what was freed in an old epoch, after a `wait` for the device or as far as it is known to be done.
    fn give_old(&self, old: &HashMap<u32, u64>, wait: bool) -> Result<()> {
        if old.is_empty() {
            return Ok(());
        }
        let parts = self.idle_since(|arena| {
            let epoch = old.get(&arena.index).copied().unwrap_or(0);
            if wait { epoch } else { epoch.min(lock(&arena.gate).done) }
        });
        let bytes: u64 = parts.iter().map(|(_, _, part)| part.bytes).sum();
        let target = self.less(bytes);
        self.give_nearest(parts, target, wait)?;
        self.pages.release_spare(&self.driver, target)?;
        Ok(())
    }
}
