//! Which pieces of memory go back to the driver, so that what is left is as near to a target as their sizes allow.

/// Sums above this many units are not searched through piece by piece: the largest pieces go first.
const SEARCHED: u64 = 256;

/// Pieces whose sum is at least `least`, and as little more as there can be; all of them where they are too few. Their places
/// in `sizes`. Sums are compared in units of `unit` bytes; a part of one counts for nothing.
///
/// While `least` is far, the largest pieces are taken, which costs the fewest driver calls and leaves the small ones for the
/// end. The rest is searched through: which sums can be made of what is left.
pub(super) fn nearest(sizes: &[u64], least: u64, unit: u64) -> Vec<usize> {
    let units = |place: usize| sizes[place] / unit;
    let mut places: Vec<usize> = (0..sizes.len()).filter(|&place| sizes[place] > 0).collect();
    places.sort_by_key(|&place| std::cmp::Reverse(sizes[place]));
    let mut left = least.div_ceil(unit);
    let mut chosen = Vec::new();
    places.retain(|&place| {
        let taken = left > SEARCHED && units(place) <= left;
        if taken {
            left -= units(place);
            chosen.push(place);
        }
        !taken
    });
    if left == 0 {
        return chosen;
    }
    // One piece that is enough bounds the search: the smallest of them.
    let enough = places
        .iter()
        .map(|&place| units(place))
        .filter(|&piece| piece >= left)
        .min();
    let total: u64 = places.iter().map(|&place| units(place)).sum();
    let most = enough.unwrap_or(total).min(total) as usize;
    // The last piece of some way to make each sum, by its place in `places`.
    let mut last: Vec<Option<usize>> = vec![None; most + 1];
    for (number, &place) in places.iter().enumerate() {
        let piece = units(place) as usize;
        for sum in (piece..=most).rev() {
            let made = sum == piece || last[sum - piece].is_some();
            if made && last[sum].is_none() {
                last[sum] = Some(number);
            }
        }
    }
    let mut sum = (left as usize..=most).find(|&sum| last[sum].is_some()).unwrap_or(0);
    if sum == 0 {
        chosen.extend(places);
        return chosen;
    }
    while sum > 0
        && let Some(number) = last[sum]
    {
        chosen.push(places[number]);
        sum -= units(places[number]) as usize;
    }
    chosen
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sum(sizes: &[u64], chosen: &[usize]) -> u64 {
        chosen.iter().map(|&place| sizes[place]).sum()
    }

    #[test]
    fn small_pieces_are_preferred_to_one_that_is_far_too_large() {
        let sizes = [64, 2, 2, 20, 2, 2, 2];
        assert_eq!(sum(&sizes, &nearest(&sizes, 10, 2)), 10);
        assert_eq!(sum(&sizes, &nearest(&sizes, 11, 2)), 20);
        assert!(nearest(&sizes, 0, 2).is_empty());
        assert_eq!(
            sum(&[3, 3, 3, 4], &nearest(&[3, 3, 3, 4], 7, 2)),
            10,
            "no sum is taken for more than it is"
        );
        assert_eq!(sum(&sizes, &nearest(&sizes, 1000, 2)), sizes.iter().sum::<u64>());
    }

    #[test]
    fn far_targets_take_the_largest_pieces_and_meet_the_end_exactly() {
        let sizes: Vec<u64> = (0..2000).map(|place| if place % 2 == 0 { 2 } else { 64 }).collect();
        let chosen = nearest(&sizes, 40_002, 2);
        assert_eq!(sum(&sizes, &chosen), 40_002);
        assert!(chosen.len() < 640, "{} pieces", chosen.len());
    }

    proptest! {
        #[test]
        fn no_other_choice_is_nearer(sizes in prop::collection::vec(1_u64..40, 0..10), least in 0_u64..200) {
            let chosen = nearest(&sizes, least, 1);
            let mut places = chosen.clone();
            places.sort_unstable();
            places.dedup();
            prop_assert_eq!(places.len(), chosen.len(), "a piece was chosen twice");
            let sums = (0_u32..1 << sizes.len()).map(|set| {
                let within = |place: &usize| set >> place & 1 == 1;
                (0..sizes.len()).filter(within).map(|place| sizes[place]).sum::<u64>()
            });
            let best = sums.filter(|&sum| sum >= least).min().unwrap_or(sizes.iter().sum());
            prop_assert_eq!(sum(&sizes, &chosen), best);
        }
    }
}
