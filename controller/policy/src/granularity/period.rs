//! Finds the iteration in a tenant's launches, by the keys of the kernels.

use alloc::vec;
use alloc::vec::Vec;

/// Returns the number of launches of one iteration, if the last launches repeat those before them.
/// The last iteration ends with the last launch.
///
/// Of all lengths, the function returns the one that explains the most launches: an iteration
/// repeats parts of itself too, such as the layers of a model. Of lengths that explain as many, it
/// returns the shortest.
pub fn length(keys: &[u64]) -> Option<usize> {
    let last_first: Vec<u64> = keys.iter().rev().copied().collect();
    let mut best = None;
    for (shift, same) in prefixes(&last_first).into_iter().enumerate().skip(1) {
        let explained = shift + same;
        if same >= shift && best.is_none_or(|(most, _)| explained > most) {
            best = Some((explained, shift));
        }
    }
    best.map(|(_, shift)| shift)
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
    use super::length;
    use proptest::prelude::*;

    #[test]
    fn an_iteration_with_layers_that_repeat_is_found_whole_and_after_a_warm_up() {
        let layer = [1, 2, 3, 2];
        let iteration: Vec<u64> = [[9].as_slice(), &layer, &layer, &layer, &[8]].concat();
        let mut keys = vec![7, 7, 7, 9, 1];
        for _ in 0..4 {
            keys.extend(&iteration);
        }
        assert_eq!(length(&keys), Some(iteration.len()));
        assert_eq!(length(&keys[..keys.len() - 2]), Some(iteration.len()), "at any place of it");
        assert_eq!(length(&[]), None);
        assert_eq!(length(&[5]), None);
        assert_eq!(length(&[5, 5]), Some(1));
        assert_eq!(length(&[1, 2, 3, 4]), None);
    }

    proptest! {
        #[test]
        fn the_last_launches_are_those_of_the_iteration_before(
            iteration in proptest::collection::vec(0u64..4, 1..20),
            warm_up in proptest::collection::vec(0u64..4, 0..20),
            repeats in 2usize..5,
        ) {
            let warm = warm_up.len();
            let keys = [warm_up, iteration.repeat(repeats)].concat();
            let found = length(&keys).unwrap();
            let (before, last) = keys[keys.len() - 2 * found..].split_at(found);
            prop_assert_eq!(before, last);
            // It explains at least the launches from which the keys were made.
            let repeats_on = keys.iter().rev().zip(keys.iter().rev().skip(found));
            let explained = found + repeats_on.take_while(|(one, other)| one == other).count();
            prop_assert!(explained >= keys.len() - warm);
        }

        #[test]
        fn any_keys_are_harmless(keys in proptest::collection::vec(0u64..3, 0..200)) {
            if let Some(found) = length(&keys) {
                prop_assert!(found >= 1 && 2 * found <= keys.len());
            }
        }
    }
}
