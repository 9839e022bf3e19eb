//! Finds the iteration in a tenant's launches, by the keys of the kernels.
//!
//! Launches that are no part of an iteration are few or come together. Examples are a kernel that
//! comes now and then, another branch, a warm-up, a validation. Between them, the iteration repeats
//! itself without a break. The launches of such a repetition are a *run*.
//!
//! An iteration also repeats parts of itself, such as the layers of a model. A run of layers ends
//! with the iteration. So if an iteration repeats itself three times in a row, its run is more than
//! twice as long as each run of a part. Two branches that come now and then can look like a longer
//! repetition, which comes only twice in a row.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

/// The most launches of an iteration.
pub const MOST_LENGTH: usize = 8192;
/// The numbers of neighbours by which the search compares launches. Few neighbours find a short
/// iteration, and many neighbours tell the layers of a model apart.
const NEIGHBOURS: [usize; 3] = [1, 8, 64];
/// The number of lengths that the search examines.
const CANDIDATES: usize = 32;
/// The number of launches up to which the search examines all lengths.
const FEW: usize = 512;
/// The least number of launches in a row that explain each other, unless the length is less.
const LEAST_RUN: usize = 16;
/// A repetition explains at least one in so many launches.
const LEAST_PART: usize = 4;

/// A repetition in a tenant's launches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repetition {
    /// The number of launches of an iteration.
    pub length: usize,
    /// The place of the first launch of the last whole iteration that repeats the iteration before
    /// it. Each place of an iteration can count as its beginning.
    pub last: usize,
    /// The number of launches that the repetition *explains*: launches that equal the launch
    /// `length` places before or after them. A run of equal launches does not count if it is
    /// shorter than both `length` and [`LEAST_RUN`].
    pub explained: usize,
}

/// Returns the iteration of a tenant with these launches, or `None` if the launches do not repeat
/// themselves.
///
/// The function leaves out a repetition that explains less than half as many launches as another
/// repetition. Of the rest, the function returns the shortest one whose longest run is at least
/// half as long as the longest run of all. If any repetition comes three times in a row, only such
/// repetitions count.
pub fn find(keys: &[u64]) -> Option<Repetition> {
    let tells = |(repetition, _): &(Repetition, usize)| LEAST_PART * repetition.explained >= keys.len();
    let lengths = candidates(keys).into_iter();
    let found: Vec<_> = lengths.filter_map(|length| examine(keys, length)).filter(tells).collect();
    let is_steady = |(repetition, run): &&(Repetition, usize)| *run >= 2 * repetition.length;
    let (steady, others): (Vec<_>, Vec<_>) = found.iter().partition(is_steady);
    let counts = if steady.is_empty() { others } else { steady };
    let most = counts.iter().map(|(repetition, _)| repetition.explained).max()?;
    let explains = |(repetition, _): &&&(Repetition, usize)| 2 * repetition.explained >= most;
    let longest = counts.iter().filter(explains).map(|(_, run)| *run).max()?;
    let long = counts.iter().filter(explains).filter(|(_, run)| 2 * run >= longest);
    long.min_by_key(|(repetition, _)| repetition.length).map(|(repetition, _)| repetition.clone())
}

/// Returns lengths that the iteration can have: the most frequent distances between two launches
/// with the same key. The following launches of the two must also have the same keys.
fn candidates(keys: &[u64]) -> Vec<usize> {
    let most = (keys.len() / 2).min(MOST_LENGTH);
    if keys.len() <= FEW {
        return (1..=most).collect();
    }
    let mut votes: BTreeMap<usize, usize> = BTreeMap::new();
    for neighbours in NEIGHBOURS {
        let mut before: BTreeMap<u64, usize> = BTreeMap::new();
        for (place, hash) in hashes(keys, neighbours).into_iter().enumerate() {
            if let Some(before) = before.insert(hash, place) {
                *votes.entry(place - before).or_default() += 1;
            }
        }
    }
    let mut ranked: Vec<(usize, usize)> = votes.into_iter().filter(|(length, _)| *length <= most).collect();
    ranked.sort_by_key(|(length, votes)| (usize::MAX - votes, *length));
    ranked.into_iter().take(CANDIDATES).map(|(length, _)| length).collect()
}

/// Returns a hash of each launch and the `neighbours - 1` launches after it. Launches with the same
/// hash can differ: the hash only proposes lengths.
fn hashes(keys: &[u64], neighbours: usize) -> Vec<u64> {
    /// An odd number without a pattern: 2⁶⁴ divided by the golden ratio.
    const BASE: u64 = 0x9e37_79b9_7f4a_7c15;
    let Some(first) = keys.get(..neighbours) else { return Vec::new() };
    let with = |hash: u64, key: u64| hash.wrapping_mul(BASE).wrapping_add(key);
    let leaving = (0..neighbours).fold(1_u64, |power, _| power.wrapping_mul(BASE));
    let mut hash = first.iter().fold(0, |hash, key| with(hash, *key));
    let mut hashes = vec![hash];
    for (old, new) in keys.iter().zip(&keys[neighbours..]) {
        hash = with(hash, *new).wrapping_sub(old.wrapping_mul(leaving));
        hashes.push(hash);
    }
    hashes
}

/// Returns the repetition with this length and the number of launches of its longest run. Returns
/// `None` if no whole iteration repeats the iteration before it.
fn examine(keys: &[u64], length: usize) -> Option<(Repetition, usize)> {
    let mut is_explained = vec![false; keys.len()];
    let (mut last, mut longest) = (None, 0);
    let mut begin = 0;
    let pairs = keys.len().saturating_sub(length);
    // One place beyond the pairs ends the last run.
    for place in 0..=pairs {
        if place < pairs && keys[place] == keys[place + length] {
            continue;
        }
        let run = place - begin;
        if run >= length.min(LEAST_RUN) {
            is_explained[begin..place].fill(true);
            is_explained[begin + length..place + length].fill(true);
        }
        if run >= length {
            last = Some(place);
            longest = longest.max(run);
        }
        begin = place + 1;
    }
    let explained = is_explained.into_iter().filter(|is_explained| *is_explained).count();
    last.map(|last| (Repetition { length, last, explained }, longest))
}

/// Returns the places at which this sequence of launches comes, each behind the end of the previous
/// one.
pub fn occurrences(keys: &[u64], of: &[u64]) -> Vec<usize> {
    let joined = [of, keys].concat();
    let same = prefixes(&joined);
    let mut found = Vec::new();
    let mut from = 0;
    for place in 0..keys.len() {
        if !of.is_empty() && place >= from && same[of.len() + place] >= of.len() {
            found.push(place);
            from = place + of.len();
        }
    }
    found
}

/// Returns for each place of a sequence how many elements from there on are the same as at its
/// beginning (the Z function: D. Gusfield, Algorithms on Strings, 1997). Takes linear time.
fn prefixes(of: &[u64]) -> Vec<usize> {
    let mut same = vec![0; of.len()];
    // The match that reaches furthest so far.
    let (mut from, mut to) = (0, 0);
    for place in 1..of.len() {
        let mut length = if place < to { same[place - from].min(to - place) } else { 0 };
        while of.get(place + length).is_some_and(|key| *key == of[length]) {
            length += 1;
        }
        same[place] = length;
        if place + length > to {
            (from, to) = (place, place + length);
        }
    }
    same
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn length(keys: &[u64]) -> Option<usize> {
        find(keys).map(|found| found.length)
    }

    /// A model: a head, layers that are all the same, and an end.
    fn model(first: u64, layer: usize, layers: usize, ends: usize) -> Vec<u64> {
        let head: Vec<u64> = (0..ends as u64).map(|at| first + 1_000 + at).collect();
        let layer: Vec<u64> = (0..layer as u64).map(|at| first + at * at % 61).collect();
        [head, layer.repeat(layers), vec![first + 2_000]].concat()
    }

    #[test]
    fn an_iteration_with_layers_that_repeat_is_found_whole_and_after_a_warm_up() {
        let iteration = model(1, 4, 3, 1);
        let keys = [vec![7, 7, 7, 9, 1], iteration.repeat(4)].concat();
        assert_eq!(length(&keys), Some(iteration.len()));
        assert_eq!(length(&keys[..keys.len() - 2]), Some(iteration.len()), "at any place of it");
        assert_eq!(length(&[]), None);
        assert_eq!(length(&[5]), None);
        assert_eq!(length(&[5, 5]), Some(1));
        assert_eq!(length(&[1, 2, 3, 4]), None);
    }

    #[test]
    fn a_long_iteration_of_many_layers_is_told_from_its_layers() {
        for layers in [2, 12, 48] {
            let iteration = model(1, 30, layers, 8);
            assert_eq!(length(&iteration.repeat(6)), Some(iteration.len()), "{layers} layers");
        }
    }

    #[test]
    fn a_branch_that_comes_now_and_then_is_no_part_of_the_iteration() {
        let (usual, other) = (model(1, 20, 4, 6), model(5_000, 20, 4, 6));
        let [four, six, three] = [4, 6, 3].map(|times| usual.repeat(times));
        let keys = [&*four, &other, &six, &other, &three, &other, &four].concat();
        let found = find(&keys).unwrap();
        assert_eq!(found.length, usual.len());
        let one = &keys[found.last..found.last + found.length];
        let rotations = (0..usual.len()).map(|at| [&usual[at..], &usual[..at]].concat());
        assert!(rotations.into_iter().any(|rotation| rotation == one));
    }

    #[test]
    fn training_is_found_beside_validation_and_the_longer_phase_wins() {
        let (training, validation) = (model(1, 40, 6, 10), model(1, 20, 6, 10));
        let keys = [training.repeat(9), validation.repeat(5), training.repeat(3)].concat();
        assert_eq!(length(&keys), Some(training.len()));
        let keys = [training.repeat(3), validation.repeat(30)].concat();
        assert_eq!(length(&keys), Some(validation.len()));
    }

    #[test]
    fn launches_without_an_order_have_no_iteration() {
        let keys: Vec<u64> =
            (0..3_000_u64).map(|at| at.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17) % 500).collect();
        assert_eq!(find(&keys), None);
    }

    #[test]
    fn an_iteration_is_found_where_it_occurs() {
        assert_eq!(occurrences(&[1, 2, 1, 2, 3, 1, 2, 2], &[1, 2]), [0, 2, 5]);
        assert_eq!(occurrences(&[1, 1, 1, 1, 1], &[1, 1]), [0, 2]);
        assert!(occurrences(&[1], &[]).is_empty() && occurrences(&[], &[1]).is_empty());
    }

    /// Iterations, some of them with launches that no other iteration has.
    fn noisy() -> impl Strategy<Value = (usize, Vec<u64>)> {
        let one = (5usize..60, 1usize..6, 1usize..12);
        let extra = proptest::collection::btree_map(0usize..4, (0usize..1_000, 1u64..4), 0..4);
        (one, extra, 0usize..40).prop_map(|((layer, layers, ends), extra, warm_up)| {
            let iteration = model(1, layer, layers, ends);
            let mut keys: Vec<u64> = (0..warm_up as u64).map(|at| 9_000 + at).collect();
            for number in 0..16 {
                let mut launches = iteration.clone();
                if let Some((at, count)) = extra.get(&(number / 3)).filter(|_| number % 3 == 2) {
                    let at = at % launches.len();
                    launches.splice(at..at, (0..*count).map(|key| 8_000 + 10 * number as u64 + key));
                }
                keys.extend(launches);
            }
            (iteration.len(), keys)
        })
    }

    proptest! {
        #[test]
        fn an_iteration_is_found_beside_noise_and_warm_up((expected, keys) in noisy()) {
            let found = find(&keys).unwrap();
            prop_assert_eq!(found.length, expected);
            prop_assert!(found.explained >= 15 * expected, "{} of {}", found.explained, keys.len());
        }

        #[test]
        fn the_iteration_that_is_found_repeats_the_one_before_it(
            iteration in proptest::collection::vec(0u64..4, 1..20),
            warm_up in proptest::collection::vec(0u64..4, 0..20),
            repeats in 2usize..5,
        ) {
            let keys = [warm_up, iteration.repeat(repeats)].concat();
            let Some(Repetition { length, last, explained }) = find(&keys) else {
                prop_assert!(LEAST_PART * iteration.len() * repeats < keys.len());
                return Ok(());
            };
            prop_assert_eq!(&keys[last - length..last], &keys[last..last + length]);
            prop_assert!(explained >= 2 * length && explained <= keys.len());
        }

        #[test]
        fn any_keys_are_harmless(keys in proptest::collection::vec(0u64..3, 0..900)) {
            if let Some(Repetition { length, last, explained }) = find(&keys) {
                prop_assert!(length >= 1 && last >= length && last + length <= keys.len());
                prop_assert!(explained <= keys.len());
                prop_assert!(!occurrences(&keys, &keys[last..last + length]).is_empty());
            }
        }
    }
}
