//! `cargo xtask bench`: what deepres costs those who use it.

mod hook;
mod preload;

use anyhow::Result;
use clap::Subcommand;

/// Which cost to measure.
#[derive(Subcommand)]
pub enum Bench {
    /// What hooks add to driver calls: launches, allocations, memory queries.
    ///
    /// A driver that does nothing serves a client that calls each function a million times, bare and then
    /// under `deepres run` with a live daemon and an open gate, in turns. Shown is the median of the turns.
    Hook(hook::Options),
    /// What preloading the library adds to a process that uses no CUDA.
    ///
    /// Runs /bin/true bare and preloaded in turns; shown are the medians.
    Preload(preload::Options),
}

/// Runs a benchmark.
pub fn run(bench: &Bench) -> Result<()> {
    match bench {
        Bench::Hook(options) => hook::run(options),
        Bench::Preload(options) => preload::run(options),
    }
}

/// The middle value; the mean of the two in the middle of an even number.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { f64::midpoint(values[middle - 1], values[middle]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_ignores_outliers() {
        assert_eq!(median(&mut [9000.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 9000.0]), 3.0);
    }
}
