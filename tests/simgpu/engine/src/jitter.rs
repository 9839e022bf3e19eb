//! Random variation of kernel times around the values of their rules (`kernel_jitter_ppm`). The
//! functions are pure: for the same seed, the same kernels take the same times.

use crate::Config;

/// A whole, in parts per million.
pub const WHOLE_PPM: u32 = 1_000_000;
/// Number of steps into which the range of a kernel's time is divided.
const PARTS: u64 = 1 << 32;

/// Returns the time of `kernels` kernels that were launched as one item. Without jitter, the
/// kernels take `duration_ns`. `number` is the number of the first kernel among the kernels of its
/// process.
pub fn jittered_ns(config: &Config, duration_ns: u64, kernels: u32, number: u64) -> u64 {
    let jitter_ppm = u128::from(config.kernel_jitter_ppm);
    if jitter_ppm == 0 || kernels == 0 {
        return duration_ns;
    }
    let drawn = |number: u64| u128::from(mixed(config.jitter_seed ^ mixed(number)) % PARTS);
    let sum: u128 = (0..kernels).map(|kernel| drawn(number.wrapping_add(kernel.into()))).sum();
    let mean = sum / u128::from(kernels);
    // The lowest draw gives the shortest time and the highest draw the longest. The middle is the
    // time that the rule gives.
    let least_ppm = u128::from(WHOLE_PPM) - jitter_ppm;
    let ppm = least_ppm + 2 * jitter_ppm * mean / u128::from(PARTS);
    let ns = u128::from(duration_ns) * ppm / u128::from(WHOLE_PPM);
    u64::try_from(ns).unwrap_or(u64::MAX)
}

/// Returns a number whose bits all depend on every bit of `number` (splitmix64, after Steele, Lea
/// and Flood, OOPSLA 2014).
fn mixed(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(keys: &str) -> Config {
        Config::parse(keys).expect("valid")
    }

    #[test]
    fn times_scatter_as_far_as_they_may_and_are_right_in_the_mean() {
        const NS: u64 = 10_000;
        const KERNELS: u64 = 100_000;
        let config = config("kernel_jitter_ppm = 300000");
        let times: Vec<u64> = (0..KERNELS).map(|number| jittered_ns(&config, NS, 1, number)).collect();
        let (least, most) = (times.iter().min().copied(), times.iter().max().copied());
        assert!(least >= Some(7_000) && least < Some(7_010), "{least:?}");
        assert!(most <= Some(13_000) && most > Some(12_990), "{most:?}");
        let mean = times.iter().sum::<u64>() / KERNELS;
        assert!(mean.abs_diff(NS) < 20, "{mean}");
    }

    #[test]
    fn the_seed_decides_and_without_jitter_there_is_none() {
        let of = |keys: &str| {
            (0..20).map(|number| jittered_ns(&config(keys), 5_000, 1, number)).collect::<Vec<_>>()
        };
        let jitter = "kernel_jitter_ppm = 500000\njitter_seed = ";
        assert_eq!(of(&format!("{jitter}1")), of(&format!("{jitter}1")));
        assert_ne!(of(&format!("{jitter}1")), of(&format!("{jitter}2")));
        assert_eq!(of("jitter_seed = 7"), [5_000; 20]);
    }

    #[test]
    fn kernels_of_one_item_scatter_each_by_itself() {
        let config = config("kernel_jitter_ppm = 1000000");
        let one_by_one: u64 = (5..55).map(|number| jittered_ns(&config, 1_000, 1, number)).sum();
        let together = jittered_ns(&config, 50_000, 50, 5);
        assert!(together.abs_diff(one_by_one) <= 50, "{together} and {one_by_one}");
    }
}
