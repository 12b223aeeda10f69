//! What meets in the counters, under every order of its threads' steps: owners that tell the totals at once.
//!
//! That owners may take the idle bytes and raise the level at once rests on `SeqCst` accesses, which loom takes for weaker
//! ones: that is not modelled.

use super::*;
use crate::sync::meet;

#[derive(Debug, Default)]
struct Shared {
    totals: Totals,
    owners: [Counters; 2],
}

impl Shared {
    fn alloc_and_rest(&self, owner: usize, bytes: u64) {
        assert_eq!(self.owners[owner].alloc(&self.totals, bytes, bytes), Count::Done);
        // What all have is for what was live at the peak, which is not looked at here.
        self.owners[owner].rest(&self.totals, Owners::default);
    }
}

#[test]
fn owners_that_fold_at_once_lose_nothing() {
    let one = |shared: &Shared| shared.alloc_and_rest(0, 512);
    let other = |shared: &Shared| shared.alloc_and_rest(1, 1024);
    meet(Shared::default, one, other, |shared, (), ()| {
        let sum = shared.totals.sum(shared.owners.iter());
        assert_eq!((sum.allocated, sum.live.blocks), (1536, 2));
        let peak = shared.totals.peak.load(Relaxed);
        assert!((1024..=1536).contains(&peak), "{peak}");
    });
}

#[test]
fn what_waits_is_counted_by_all() {
    let stay = |shared: &Shared| shared.totals.add_pending(1024, Owners::default);
    let come_and_go = |shared: &Shared| {
        shared.totals.add_pending(512, Owners::default);
        shared.totals.sub_pending(512);
    };
    meet(Shared::default, stay, come_and_go, |shared, (), ()| {
        assert_eq!(shared.totals.active_now(&Owners::default()), 1024);
        assert!(shared.totals.active_peak.load(Relaxed) >= 1024);
    });
}
