//! Random numbers for tests whose timing must differ from run to run. Each generator prints its
//! seed; a variable of the environment sets the seed.

use std::{env, process, time::Duration};

/// Variable that repeats a run. Its value is the number that the failed run printed.
const SEED_VARIABLE: &str = "DEEPRES_TEST_SEED";

/// A small generator of numbers (xorshift, Marsaglia 2003).
pub struct Random(u64);

impl Random {
    /// Returns a generator with the seed of the environment, or else with a seed that differs by
    /// process. Prints the seed.
    #[expect(clippy::new_without_default, reason = "it prints")]
    pub fn new() -> Self {
        let given = env::var(SEED_VARIABLE).ok().and_then(|seed| seed.parse().ok());
        let seed = given.unwrap_or_else(|| u64::from(process::id()) * 0x9e37_79b9);
        println!("{SEED_VARIABLE}={seed}");
        Self(seed.max(1))
    }

    /// Returns a random number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    /// Returns a random duration of less than `limit` milliseconds.
    pub fn millis(&mut self, limit: u64) -> Duration {
        Duration::from_millis(self.below(limit))
    }
}
