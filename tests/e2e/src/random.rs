//! Numbers at random for tests whose moments are to differ from run to run; the seed is printed, and can be given.

use std::{env, process, time::Duration};

/// Set to repeat a run: the number that the failed one printed.
const SEED_VARIABLE: &str = "DEEPRES_TEST_SEED";

/// A small generator of numbers (xorshift, Marsaglia 2003).
pub struct Random(u64);

impl Random {
    /// Begins at the seed that is given, or at another one in each process, and prints it.
    #[expect(clippy::new_without_default, reason = "it prints")]
    pub fn new() -> Self {
        let given = env::var(SEED_VARIABLE).ok().and_then(|seed| seed.parse().ok());
        let seed = given.unwrap_or_else(|| u64::from(process::id()) * 0x9e37_79b9);
        println!("{SEED_VARIABLE}={seed}");
        Self(seed.max(1))
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    /// Less than so many milliseconds.
    pub fn millis(&mut self, limit: u64) -> Duration {
        Duration::from_millis(self.below(limit))
    }
}
