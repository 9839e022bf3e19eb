//! Limits the amount of a scarce resource that one source may take. A source may take half of the
//! amount that the other sources leave, so a new source always finds room.

use crate::identity::source::Source;
use std::collections::BTreeMap;

/// The error if a source already has as much as it may have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{source_name} has {taken} of {most}, and each user may have half of the number that others leave")]
pub struct Full {
    source_name: String,
    taken: usize,
    most: usize,
}

/// The amount of a scarce resource that each source has.
#[derive(Debug, Default)]
pub struct Shares(BTreeMap<Source, usize>);

impl Shares {
    /// Gives a source `count` more of the resource, if the source's limit allows. `most` is the
    /// amount for all sources together.
    ///
    /// # Errors
    /// [`Full`], with the amount that the source has.
    pub fn take(&mut self, source: &Source, count: usize, most: usize) -> Result<(), Full> {
        let taken = self.of(source);
        if taken + count > self.limit_of(source, most) {
            return Err(Full { source_name: source.to_string(), taken, most });
        }
        self.0.insert(source.clone(), taken + count);
        Ok(())
    }

    /// Returns the amount that a source has.
    pub fn of(&self, source: &Source) -> usize {
        self.0.get(source).copied().unwrap_or(0)
    }

    /// Returns the largest amount that a source may have. `most` is the amount for all sources
    /// together.
    pub fn limit_of(&self, source: &Source, most: usize) -> usize {
        most.saturating_sub(self.sum() - self.of(source)).div_ceil(2)
    }

    /// Takes `count` back from a source.
    pub fn give_back(&mut self, source: &Source, count: usize) {
        match self.0.get_mut(source) {
            Some(taken) if *taken > count => *taken -= count,
            _ => drop(self.0.remove(source)),
        }
    }

    /// Returns the sum over all sources.
    pub fn sum(&self) -> usize {
        self.0.values().sum()
    }
}

impl FromIterator<Source> for Shares {
    /// Counts each source as often as it appears.
    fn from_iter<T: IntoIterator<Item = Source>>(sources: T) -> Self {
        let mut shares = Self::default();
        sources.into_iter().for_each(|source| *shares.0.entry(source).or_default() += 1);
        shares
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 4096;

    #[test]
    fn a_source_that_takes_all_it_may_leaves_room_for_later_sources() {
        let mut shares = Shares::default();
        for user in 0..6 {
            let greedy = Source::User(user);
            while shares.take(&greedy, 1, MOST).is_ok() {}
            let taken = shares.0[&greedy];
            assert_eq!(taken, MOST >> (user + 1), "half of what was there");
        }
        assert!(shares.take(&Source::User(7), 30, MOST).is_ok(), "six at once");
    }

    #[test]
    fn an_amount_that_a_source_gives_back_can_be_taken_again_and_by_others() {
        let (one, other) = (Source::User(1), Source::User(2));
        let mut shares = Shares::default();
        shares.take(&one, MOST / 2, MOST).unwrap();
        let full = shares.take(&one, 1, MOST).unwrap_err();
        assert!(full.to_string().starts_with("user 1 has 2048 of 4096"), "{full}");
        shares.take(&other, MOST / 4, MOST).unwrap();
        shares.give_back(&one, MOST / 2);
        shares.take(&other, MOST / 4, MOST).unwrap();
        assert_eq!(shares.sum(), MOST / 2);
        shares.give_back(&other, MOST / 2);
        assert!(shares.0.is_empty());
    }

    #[test]
    fn nobody_has_what_there_is_none_of() {
        let mut shares = Shares::default();
        assert!(shares.take(&Source::User(1), 1, 0).is_err());
        assert!(shares.take(&Source::User(1), 1, 1).is_ok(), "the last one is somebody's");
        assert!(shares.take(&Source::User(2), 1, 1).is_err());
    }
}
