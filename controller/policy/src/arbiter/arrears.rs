//! Arrears: GPU time that processes used while no arbiter ran. The core charges this time when the
//! processes have reconnected.
//!
//! Without an arbiter, the GPU's hardware takes turns between all processes that have work. Each
//! meter then counts the turns of other processes as part of its own kernels' time. So the claims
//! of all processes together can exceed the time that passed. The core subtracts the excess from
//! all claims in equal parts, because the turns were equal. Therefore the core settles the claims
//! together: when all processes are back, when the daemon saves its state, or when the wait for
//! processes ends.
//!
//! A process can come back with work in flight. This work took turns with the work of other
//! processes too. But each meter counts the time when the work completes, and the core charges the
//! time at once. So the charges can exceed the time that passed, even after the core has settled
//! the claims. When the work of all processes is complete, the core subtracts this
//! [excess](Arrears::take_excess) from their next charges, again in equal parts.

use alloc::vec::Vec;
use core::mem;

/// The claims for a time in which no arbiter ran. A claim has the number of its tenant or of its
/// session.
#[derive(Debug, Default)]
pub struct Arrears {
    /// The moment up to which the core had charged all processes, ns.
    began_ns: u64,
    /// GPU time that may have been in flight at `began_ns`, ns.
    in_flight_ns: u64,
    /// GPU time that the core has charged since `began_ns`, ns.
    charged_ns: u64,
    /// The claims: the number of the tenant or session, and the GPU time by the meter of a process,
    /// ns.
    claims: Vec<(u64, u64)>,
}

impl Arrears {
    /// Returns arrears without claims for the time since `began_ns`. `in_flight_ns` bounds the GPU
    /// time that was in flight at that moment.
    pub fn since(began_ns: u64, in_flight_ns: u64) -> Self {
        Self { began_ns, in_flight_ns, ..Self::default() }
    }

    /// Begins anew for another time, without claims. Keeps the allocated memory.
    pub fn begin_anew(&mut self, began_ns: u64, in_flight_ns: u64) {
        let mut claims = mem::take(&mut self.claims);
        claims.clear();
        *self = Self { claims, ..Self::since(began_ns, in_flight_ns) };
    }

    /// Makes room for this many claims, so that [`Self::claim`] does not allocate.
    pub fn reserve(&mut self, claims: usize) {
        self.claims.reserve(claims.saturating_sub(self.claims.len()));
    }

    /// Adds a claim of `used_ns`, as the meter of a process of `owner` shows.
    pub fn claim(&mut self, owner: u64, used_ns: u64) {
        self.claims.push((owner, used_ns));
    }

    /// Records that the core charged `used_ns` to tenants since `began_ns`. This time is not
    /// available for claims.
    pub fn charged(&mut self, used_ns: u64) {
        self.charged_ns = self.charged_ns.saturating_add(used_ns);
    }

    /// Returns the time since the beginning that the core may charge up to `now_ns`, ns.
    fn passed_ns(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.began_ns).saturating_add(self.in_flight_ns)
    }

    /// Returns by how much the charges up to `now_ns` exceed the time that passed, ns. The caller
    /// subtracts the excess from later charges, so this function removes the excess from the
    /// charged time.
    pub fn take_excess(&mut self, now_ns: u64) -> u64 {
        let excess_ns = self.charged_ns.saturating_sub(self.passed_ns(now_ns));
        self.charged_ns -= excess_ns;
        excess_ns
    }

    /// Settles the claims at `now_ns`, and removes them. Passes each owner and the amount to charge
    /// to `each`, in the order of the owners' numbers.
    pub fn settle(&mut self, now_ns: u64, mut each: impl FnMut(u64, u64)) {
        let passed_ns = self.passed_ns(now_ns);
        let claimed_ns: u128 = self.claims.iter().map(|(_, used_ns)| u128::from(*used_ns)).sum();
        let mut excess_ns = claimed_ns.saturating_sub(u128::from(passed_ns.saturating_sub(self.charged_ns)));
        self.claims.sort_unstable_by_key(|(owner, used_ns)| (*used_ns, *owner));
        let count = self.claims.len();
        let mut settled_ns = 0u64;
        for (at, (_, used_ns)) in self.claims.iter_mut().enumerate() {
            let left = (count - at) as u128;
            let off_ns =
                u64::try_from(excess_ns.div_ceil(left)).map_or(*used_ns, |off_ns| off_ns.min(*used_ns));
            *used_ns -= off_ns;
            excess_ns -= u128::from(off_ns);
            settled_ns = settled_ns.saturating_add(*used_ns);
        }
        self.charged(settled_ns);
        self.claims.sort_unstable();
        self.claims.drain(..).for_each(|(owner, used_ns)| each(owner, used_ns));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settled(arrears: &mut Arrears, now_ns: u64) -> Vec<(u64, u64)> {
        let mut settled = Vec::new();
        arrears.settle(now_ns, |owner, used_ns| settled.push((owner, used_ns)));
        settled
    }

    #[test]
    fn gpu_time_that_two_meters_counted_twice_is_taken_off_both() {
        let mut arrears = Arrears::since(1_000, 0);
        // For 700 ns the GPU's time was split: 490 ns and 210 ns. Then both meters counted all of
        // 300 ns.
        arrears.claim(1, 790);
        arrears.claim(2, 510);
        assert_eq!(settled(&mut arrears, 2_000), [(1, 640), (2, 360)]);
        assert!(settled(&mut arrears, 2_000).is_empty(), "once");
    }

    #[test]
    fn a_tenant_that_did_nothing_is_charged_nothing_and_the_others_no_more_than_there_was() {
        let mut arrears = Arrears::since(0, 0);
        for (tenant, used_ns) in [(1, 0), (2, 10), (3, 900), (4, 900)] {
            arrears.claim(tenant, used_ns);
        }
        let settled = settled(&mut arrears, 1_000);
        assert_eq!(settled.iter().map(|(_, ns)| ns).sum::<u64>(), 1_000);
        assert_eq!((settled[0], settled[1]), ((1, 0), (2, 0)));
    }

    #[test]
    fn gpu_time_charged_beyond_the_time_that_passed_is_taken_once() {
        let mut arrears = Arrears::since(1_000, 50);
        arrears.claim(1, 2_000);
        assert_eq!(settled(&mut arrears, 2_000), [(1, 1_050)]);
        arrears.charged(300);
        assert_eq!(arrears.take_excess(2_200), 100);
        assert_eq!(arrears.take_excess(2_200), 0);
        arrears.charged(300);
        assert_eq!(arrears.take_excess(2_500), 0);
    }

    #[test]
    fn a_tenant_that_comes_late_is_charged_the_rest_of_the_time_at_most() {
        let mut arrears = Arrears::since(0, 50);
        arrears.claim(1, 600);
        assert_eq!(settled(&mut arrears, 1_000), [(1, 600)]);
        arrears.charged(300);
        arrears.claim(2, 5_000);
        assert_eq!(settled(&mut arrears, 1_100), [(2, 250)]);
        arrears.claim(3, u64::MAX);
        arrears.claim(4, u64::MAX);
        assert_eq!(settled(&mut arrears, 1_100), [(3, 0), (4, 0)]);
    }
}
