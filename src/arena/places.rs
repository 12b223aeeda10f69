//! Where blocks were: a program that does the same again gets the places that it had.
//!
//! The requests of a region are noted in order, with the addresses that they got. A new one is looked for among them, by its size and
//! by the sizes before it, as a compressor looks for text that it has seen. While the same sizes come in the same order each gets the
//! place that it had the last time: the whole layout comes again, and with it memory that is mapped where it is wanted. Where
//! the guess is wrong, or the place is taken, any other serves as well.
//!
//! Magazines meet most requests for small blocks, so that too few are left here to be told apart by their order. Where they are not
//! known by it, they are looked for among those that came when the large blocks were where they are now.

use rustc_hash::FxHashMap;

/// How many requests are kept.
const KEPT: u64 = 1 << 16;
/// How many sizes are compared at most to find what comes again, and how many in a row have to be the same.
const COMPARED: u64 = 1 << 15;
const ALIKE: u64 = 8;
/// How many comparisons that were for nothing make it one request longer until it is looked again.
const COMPARED_EACH: u64 = 256;
/// How many requests may be left out that came the last time.
const LEFT_OUT: u64 = 32;
/// After so many wrong guesses in a row it is looked anew only now and then: 2 to the power of this less 2 requests later.
const WRONG: u32 = 5;
/// How many requests lie between two beginnings at least.
const STRETCH: u64 = 256;
/// After so many requests for which the region did not grow its layout is one to follow.
const STEADY: u64 = 1024;

#[derive(Debug, Clone, Copy)]
struct Request {
    units: u32,
    /// How many requests before it the same size was asked for; 0 if it was not.
    same: u32,
    addr: u64,
    /// How many requests the region of large blocks had noted before it.
    clock: u64,
}

/// How far a region is in what comes again.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Clock {
    /// How many requests it has noted.
    noted: u64,
    /// Which one the next is expected to repeat, where the last one was as expected.
    expected: Option<u64>,
}

/// The requests of a region. Guarded by the arena's lock.
#[derive(Default)]
pub(crate) struct Places {
    /// The last `KEPT` requests, each at its number modulo `KEPT`.
    requests: Vec<Request>,
    /// The number of the next request.
    next: u64,
    /// The number of the last request of each size.
    last: FxHashMap<u32, u64>,
    /// Which request the next one is expected to repeat.
    expected: Option<u64>,
    /// How many guesses in a row were wrong.
    wrong: u32,
    /// For how many requests it is not looked anew.
    wait: u32,
    /// For how many it is not looked since that was for nothing, and cost much.
    rest: u64,
    /// For which request, and what size, it was looked last.
    looked: (u64, u32),
    /// How many blocks have not come back.
    live: u64,
    /// The number of a request that came while there was none, some time ago.
    began: Option<u64>,
    /// Whether there was another before it.
    again: bool,
    /// The number of the request after the region's memory was last more than ever before.
    grown: u64,
    /// Of a region of small blocks: how far the one of large blocks is.
    clock: Clock,
}

impl Places {
    fn get(&self, number: u64) -> Option<&Request> {
        let kept = number < self.next && number + KEPT >= self.next;
        kept.then(|| self.requests.get((number % KEPT) as usize)).flatten()
    }

    fn units(&self, number: u64) -> Option<u32> {
        self.get(number).map(|request| request.units)
    }

    /// Where a request of `units` that comes now had its place the last time. Asked again before it is noted the answer is the same.
    pub(crate) fn expect(&mut self, units: u32) -> Option<u64> {
        if self.live == 0 && self.began.is_none_or(|began| began + STRETCH <= self.next) {
            let began = self.began.replace(self.next);
            self.again |= began.is_some();
            let follows = self.wrong == 0 && self.expected.and_then(|number| self.units(number)) == Some(units);
            if began.is_some() && !follows {
                // As at the beginning, whatever came last.
                (self.expected, self.wrong, self.wait) = (began, 0, 0);
            }
        }
        let lost = self.wrong > 0 || self.expected.is_none();
        if lost && self.wait == 0 && self.rest == 0 && self.looked != (self.next, units) {
            self.looked = (self.next, units);
            self.look(units);
        }
        let number = self.next_of(units)?;
        self.expected = Some(number);
        // While a program begins, what it had is no layout for what it needs: good fit wastes less.
        let follow = self.again || self.grown + STEADY <= self.next;
        self.get(number).filter(|_| follow).map(|request| request.addr)
    }

    /// The next request of `units` that is expected, where some may be left out.
    fn next_of(&self, units: u32) -> Option<u64> {
        let expected = self.expected?;
        (expected..=expected + LEFT_OUT).find(|&number| self.units(number) == Some(units))
    }

    /// Looks for the request that the next one repeats.
    fn look(&mut self, units: u32) {
        let mut left = COMPARED;
        let found = self.by_clock(units).or_else(|| self.most_alike(units, &mut left));
        // The sizes may be those that are expected, and yet no place be free: the same would be found again.
        if found.is_none() || found == self.next_of(units) {
            self.rest = (COMPARED - left) / COMPARED_EACH;
        }
        self.expected = found.or(self.expected);
    }

    /// How far the region is, for those that have fewer requests to be known by.
    pub(crate) fn clock(&self) -> Clock {
        Clock {
            noted: self.next,
            expected: self.expected.filter(|_| self.wrong == 0),
        }
    }

    /// Tells how far the region of large blocks is, before anything is expected or noted.
    pub(crate) fn set_clock(&mut self, clock: Clock) {
        self.clock = clock;
    }

    /// The first request of `units` that came when the region of large blocks was where it is now.
    fn by_clock(&self, units: u32) -> Option<u64> {
        let clock = self.clock.expected?;
        let (mut low, mut high) = (self.next.saturating_sub(KEPT), self.next);
        while low < high {
            let middle = low + (high - low) / 2;
            match self.get(middle) {
                Some(request) if request.clock >= clock => high = middle,
                _ => low = middle + 1,
            }
        }
        (low..=low + LEFT_OUT).find(|&number| self.units(number) == Some(units))
    }

    /// The request of `units` before which the most of those came that came last, by at most `left` comparisons.
    fn most_alike(&self, units: u32, left: &mut u64) -> Option<u64> {
        let mut number = *self.last.get(&units)?;
        let (mut best, mut most) = (None, ALIKE);
        let at = |number: u64| self.requests[(number % KEPT) as usize].units;
        while let Some(request) = self.get(number)
            && *left > 0
        {
            let kept = number - self.next.saturating_sub(KEPT);
            let same = |&back: &u64| at(number - back) == at(self.next - back);
            let alike = (1..=kept.min(*left)).take_while(same).count() as u64;
            *left = left.saturating_sub(alike + 1);
            // Of two the later one.
            if alike >= most && best.is_none() || alike > most {
                (best, most) = (Some(number), alike);
            }
            if request.same == 0 {
                break;
            }
            number = number.saturating_sub(request.same.into());
        }
        best
    }

    /// A request of `units` got its place.
    pub(crate) fn note(&mut self, units: u32, addr: u64) {
        let expected = self.expected.and_then(|number| self.get(number));
        let is_size = expected.is_some_and(|request| request.units == units);
        if is_size && expected.is_some_and(|request| request.addr == addr) {
            (self.wrong, self.wait) = (0, 0);
        } else if self.wait > 0 {
            self.wait -= 1;
        } else {
            self.wrong = (self.wrong + 1).min(WRONG);
            self.wait = (1 << self.wrong) - 2;
        }
        if is_size {
            self.expected = self.expected.map(|number| number + 1);
        }
        let at = (self.next % KEPT) as usize;
        if let Some(old) = self.requests.get(at)
            && self.last.get(&old.units).is_some_and(|&last| last + KEPT == self.next)
        {
            self.last.remove(&old.units);
        }
        let before = self.last.insert(units, self.next);
        let request = Request {
            units,
            same: before.map_or(0, |before| (self.next - before) as u32),
            addr,
            clock: self.clock.noted,
        };
        match self.requests.get_mut(at) {
            Some(old) => *old = request,
            None => self.requests.push(request),
        }
        self.next += 1;
        self.rest = self.rest.saturating_sub(1);
        self.live += 1;
    }

    /// The region has more memory than ever before.
    pub(crate) fn note_growth(&mut self) {
        self.grown = self.next;
    }

    /// A block came back.
    pub(crate) fn note_free(&mut self) {
        // One that the region gave without noting it counts as none.
        self.live = self.live.saturating_sub(1);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Notes these sizes at addresses of their own, from `addr` on, and returns how many were expected there.
    fn follow(places: &mut Places, sizes: &[u32], addr: u64) -> usize {
        let mut met = 0;
        for (number, &units) in sizes.iter().enumerate() {
            let place = addr + number as u64;
            met += usize::from(places.expect(units) == Some(place));
            places.note(units, place);
        }
        met
    }

    /// Of a region that grew long ago.
    fn steady() -> Places {
        Places {
            again: true,
            ..Places::default()
        }
    }

    #[test]
    fn a_layout_is_followed_once_it_does_not_grow() {
        let mut places = Places::default();
        let step: Vec<u32> = (1..=400).collect();
        let met = [0; 5].map(|_| {
            places.note_growth();
            follow(&mut places, &step, 1000)
        });
        assert_eq!(met, [0; 5]);
        let met = [0; 4].map(|_| follow(&mut places, &step, 1000));
        assert_eq!(met[3], step.len());
    }

    /// A step of layers that are alike, between a beginning and an end.
    fn step() -> Vec<u32> {
        let layers = (0..48).flat_map(|_| [3, 1, 4, 1, 5]);
        (100..120).chain(layers).chain(200..220).collect()
    }

    #[test]
    fn layers_that_are_alike_are_told_apart() {
        let mut places = steady();
        let step = step();
        assert_eq!(follow(&mut places, &step, 1000), 0);
        let met = follow(&mut places, &step, 1000);
        assert!(met + 50 >= step.len(), "{met} of {}", step.len());
        assert_eq!(follow(&mut places, &step, 1000), step.len());
    }

    #[test]
    fn a_beginning_with_nothing_live_is_known_at_once() {
        let mut places = Places::default();
        let step = step();
        for pass in 0..3 {
            let met = follow(&mut places, &step, 1000);
            assert_eq!(met, if pass == 0 { 0 } else { step.len() });
            (0..step.len()).for_each(|_| places.note_free());
        }
    }

    #[test]
    fn a_step_with_requests_more_and_less_is_followed_on() {
        let mut places = steady();
        let step = step();
        follow(&mut places, &step, 1000);
        follow(&mut places, &step, 1000);
        assert_eq!(follow(&mut places, &step[..100], 1000), 100);
        places.note(77, 5);
        assert_eq!(follow(&mut places, &step[100..270], 1100), 170);
        assert_eq!(follow(&mut places, &step[275..], 1275), step.len() - 275);
    }

    #[test]
    fn a_few_small_blocks_are_known_by_the_large_ones_beside_them() {
        let (mut large, mut small) = (steady(), steady());
        let step = step();
        let mut met = [0; 3];
        for met in &mut met {
            for (number, &units) in step.iter().enumerate() {
                follow(&mut large, &[units], 1000 + number as u64);
                // Seven of one size: their own order does not tell them apart.
                if number % 40 == 30 {
                    small.set_clock(large.clock());
                    *met += follow(&mut small, &[7], 1 + number as u64);
                }
            }
            large.note(300, 1);
        }
        assert_eq!((met[0], met[2]), (0, 7), "{met:?}");
    }

    #[test]
    fn what_is_known_to_be_the_same_is_not_compared_again_and_again() {
        let mut places = steady();
        let step: Vec<u32> = (0..2000).map(|number| number * 7 % 1999 + 1).collect();
        let mut looks = Vec::new();
        for pass in 0..20 {
            let mut looked = Vec::new();
            for (number, &units) in step.iter().enumerate() {
                places.expect(units);
                looked.push(places.looked.0);
                // Never where it was: somebody else has that.
                places.note(units, 10_000 * pass + number as u64);
            }
            looked.dedup();
            looks.push(looked.len());
        }
        // Each compares as much as it may, which is as much as 128 requests are worth.
        assert!(looks[19] <= step.len() / 128 + 2, "{looks:?}");
    }

    #[test]
    fn as_many_requests_as_are_kept_and_no_more() {
        let mut places = Places::default();
        for number in 0..3 * KEPT {
            let units = (number % 7 + 1) as u32 + if number < KEPT { 10 } else { 0 };
            places.expect(units);
            places.note(units, number);
        }
        assert_eq!(places.requests.len() as u64, KEPT);
        assert_eq!(places.last.len(), 7, "sizes that are not kept are forgotten");
        assert_eq!(places.get(2 * KEPT - 1).map(|request| request.addr), None);
    }
}
