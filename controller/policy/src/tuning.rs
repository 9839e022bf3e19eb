//! The time constants of the lease policy, derived from what hand-offs were measured to cost.

use std::time::Duration;

/// Nanoseconds of a duration known at compile time.
const fn ns(duration: Duration) -> u64 {
    duration.as_nanos() as u64
}

/// What a hand-off is taken to cost until one was measured: two wake-ups of another process (45 µs measured on an idle machine)
/// and a first launch, on a busy one.
pub const ASSUMED_HANDOFF_NS: u64 = ns(Duration::from_micros(100));

/// What no meter sees of a hand-off, neither the one's nor the other's: the hardware's own switch, and what a meter's marker is late. 13 to 25 µs between what the
/// daemon measures and the GPU's own record (`bench handoff`).
pub const UNSEEN_NS: u64 = ns(Duration::from_micros(20));

/// A lease lasts this many hand-offs, so that at most one part in fifty of the GPU's time is spent idle in between, though hand-offs differ.
const HANDOFFS_PER_QUANTUM: u64 = 64;

/// A holder that owes others its lease is asked this many hand-offs before its end whether it goes on, so that a renewal is
/// there in time.
const HANDOFFS_PER_LEAD: u64 = 2;
/// The shortest such notice: what a timer on a busy machine is late.
const MIN_LEAD_NS: u64 = ns(Duration::from_micros(300));

/// Work in flight must outlast the holder's own wake-ups (a poll of its meter, a thread that waits for its window), which on a
/// busy machine take a scheduler's slice. More only makes the drain longer.
const MIN_WINDOW_NS: u64 = ns(Duration::from_millis(2));
const MAX_WINDOW_NS: u64 = ns(Duration::from_millis(8));
/// Of several processes of one tenant each has its part of the window, and this at least.
const MIN_SESSION_WINDOW_NS: u64 = ns(Duration::from_millis(1));
/// A window has room for this many of the tenant's longest kernels, so that one can be queued behind another …
const KERNELS_PER_WINDOW: u64 = 2;
/// … up to this: beside longer kernels the pause between one and the next (a wake-up) is short.
const MAX_KERNEL_WINDOW_NS: u64 = ns(Duration::from_millis(20));

/// A guest beside owners may have one kernel in flight, or short ones for as many hand-offs, that the GPU does not idle while its
/// threads wake up.
const HANDOFFS_PER_GUEST_WINDOW: u64 = 2;

/// An idle holder keeps the GPU at least this long: it may be between two launches.
const MIN_GRACE_NS: u64 = ns(Duration::from_micros(50));
const MAX_GRACE_NS: u64 = ns(Duration::from_micros(500));

/// A waiter spins for this part of a hand-off before it sleeps …
const SPIN_DIVISOR: u64 = 4;
/// … and never longer than a wake-up costs.
const MAX_SPIN_NS: u64 = ns(Duration::from_micros(20));
/// With fewer processors a spinning waiter keeps the holder from running.
const MIN_PROCESSORS_TO_SPIN: usize = 4;

/// Bounds of the quantum that an operator may set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuantumBounds {
    /// The shortest lease, ns.
    pub min_ns: u64,
    /// The longest lease, ns.
    pub max_ns: u64,
}

impl Default for QuantumBounds {
    fn default() -> Self {
        Self { min_ns: ns(Duration::from_millis(4)), max_ns: ns(Duration::from_millis(50)) }
    }
}

/// The time constants in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tuning {
    /// What a hand-off costs, ns.
    pub handoff_ns: u64,
    /// How long a lease lasts while others wait, ns.
    pub quantum_ns: u64,
    /// How long before its end a lease is renewed or given up, ns.
    pub lead_ns: u64,
    /// Estimated GPU time that a tenant may have in flight, ns.
    pub window_ns: u64,
    /// How long a waiter spins before it sleeps, ns.
    pub spin_ns: u64,
    /// How long a holder may be idle before it counts as idle, ns.
    pub grace_ns: u64,
}

impl Tuning {
    /// The constants for hand-offs that cost `handoff_ns`, on a machine with so many processors.
    pub fn derive(handoff_ns: u64, bounds: QuantumBounds, processors: usize) -> Self {
        let quantum_ns = handoff_ns
            .saturating_mul(HANDOFFS_PER_QUANTUM)
            .clamp(bounds.min_ns, bounds.max_ns.max(bounds.min_ns));
        let spins = processors >= MIN_PROCESSORS_TO_SPIN;
        Self {
            handoff_ns,
            quantum_ns,
            lead_ns: handoff_ns.saturating_mul(HANDOFFS_PER_LEAD).max(MIN_LEAD_NS).min(quantum_ns / 4),
            window_ns: (quantum_ns / 2).clamp(MIN_WINDOW_NS, MAX_WINDOW_NS),
            spin_ns: if spins { (handoff_ns / SPIN_DIVISOR).min(MAX_SPIN_NS) } else { 0 },
            grace_ns: handoff_ns.clamp(MIN_GRACE_NS, MAX_GRACE_NS),
        }
    }

    /// The window of each of a tenant's `sessions`, of which the longest kernel took `longest_ns`.
    pub fn session_window_ns(&self, sessions: usize, longest_ns: u64) -> u64 {
        let kernels_ns = longest_ns.saturating_mul(KERNELS_PER_WINDOW).min(MAX_KERNEL_WINDOW_NS);
        (self.window_ns / sessions.max(1) as u64).max(MIN_SESSION_WINDOW_NS).max(kernels_ns)
    }

    /// The window of a guest beside owners, of which the longest kernel took `longest_ns`: an owner that comes back waits for that.
    pub fn guest_window_ns(&self, longest_ns: u64) -> u64 {
        longest_ns.max(self.handoff_ns.saturating_mul(HANDOFFS_PER_GUEST_WINDOW))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_are_long_beside_hand_offs_within_their_bounds() {
        let bounds = QuantumBounds::default();
        assert_eq!(Tuning::derive(100_000, bounds, 2).quantum_ns, 6_400_000);
        assert_eq!(Tuning::derive(0, bounds, 2).quantum_ns, bounds.min_ns);
        assert_eq!(Tuning::derive(u64::MAX, bounds, 2).quantum_ns, bounds.max_ns);
    }

    #[test]
    fn nobody_spins_where_processors_are_few() {
        assert_eq!(Tuning::derive(100_000, QuantumBounds::default(), 2).spin_ns, 0);
        assert!(Tuning::derive(100_000, QuantumBounds::default(), 64).spin_ns > 0);
    }

    #[test]
    fn the_sessions_of_a_tenant_share_its_window() {
        let tuning = Tuning::derive(100_000, QuantumBounds::default(), 2);
        assert_eq!(tuning.session_window_ns(1, 0), tuning.window_ns);
        assert_eq!(tuning.session_window_ns(2, 0), tuning.window_ns / 2);
        assert_eq!(tuning.session_window_ns(100, 0), MIN_SESSION_WINDOW_NS);
    }

    #[test]
    fn a_window_has_room_for_two_kernels_unless_they_are_very_long() {
        let tuning = Tuning::derive(100_000, QuantumBounds::default(), 2);
        assert_eq!(tuning.session_window_ns(1, 3_000_000), 6_000_000);
        assert_eq!(tuning.session_window_ns(1, u64::MAX), MAX_KERNEL_WINDOW_NS);
    }
}
