//! The time constants of the lease policy, derived from the measured cost of hand-offs.

use core::time::Duration;

/// Returns the nanoseconds of a duration that is known at compile time.
const fn ns(duration: Duration) -> u64 {
    duration.as_nanos() as u64
}

/// The assumed cost of a hand-off until one was measured. It consists of two wake-ups of another
/// process (45 µs measured on an idle machine) and a first launch, on a busy machine.
pub const ASSUMED_HANDOFF_NS: u64 = ns(Duration::from_micros(100));

/// The part of a hand-off that no tenant's meter sees: the hardware's own switch, and the delay of
/// the meter's marker. It is the difference of 13 to 25 µs between the daemon's measurement and the
/// GPU's own record (`bench handoff`).
pub const UNSEEN_NS: u64 = ns(Duration::from_micros(20));

/// A lease lasts this many hand-offs. So at most one part in fifty of the GPU's time is idle in
/// between, although hand-offs differ.
const HANDOFFS_PER_QUANTUM: u64 = 64;

/// This many hand-offs before the end of a lease, its holder decides whether to go on, if it owes
/// the lease to others. So a renewal is there in time.
const HANDOFFS_PER_LEAD: u64 = 2;
/// The shortest such notice: the delay of a timer on a busy machine.
const MIN_LEAD_NS: u64 = ns(Duration::from_micros(300));

/// The shortest window. Work in flight must outlast the holder's own wake-ups: a poll of its meter,
/// or a thread that waits for its window. On a busy machine a wake-up takes a scheduler's slice. A
/// longer window only makes the drain longer.
const MIN_WINDOW_NS: u64 = ns(Duration::from_millis(2));
const MAX_WINDOW_NS: u64 = ns(Duration::from_millis(8));
/// The least window of one session of several: each session has its part of the tenant's window,
/// and at least this.
const MIN_SESSION_WINDOW_NS: u64 = ns(Duration::from_millis(1));
/// A window has room for this many of the tenant's longest kernels, so that one can be queued
/// behind another.
const KERNELS_PER_WINDOW: u64 = 2;
/// The longest window for that reason. Beside longer kernels the pause between two kernels, a
/// wake-up, is short.
const MAX_KERNEL_WINDOW_NS: u64 = ns(Duration::from_millis(20));

/// A guest beside owners may have one kernel in flight, or short kernels for this many hand-offs.
/// So the GPU does not idle while the guest's threads wake up.
const HANDOFFS_PER_GUEST_WINDOW: u64 = 2;

/// The shortest time that an idle holder keeps the GPU, because it may be between two launches.
const MIN_GRACE_NS: u64 = ns(Duration::from_micros(50));
const MAX_GRACE_NS: u64 = ns(Duration::from_micros(500));

/// A waiter spins for one part in this many of a hand-off before it sleeps.
const SPIN_DIVISOR: u64 = 4;
/// The longest spin: a wake-up costs as much.
const MAX_SPIN_NS: u64 = ns(Duration::from_micros(20));
/// On fewer processors a spinning waiter would keep the holder from running.
const MIN_PROCESSORS_TO_SPIN: usize = 4;

/// The bounds of the quantum that an administrator may set.
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
    /// The cost of a hand-off, ns.
    pub handoff_ns: u64,
    /// How long a lease lasts while others wait, ns.
    pub quantum_ns: u64,
    /// How long before its end a lease is renewed or given up, ns.
    pub lead_ns: u64,
    /// Estimated GPU time that a tenant may have in flight, ns.
    pub window_ns: u64,
    /// How long a waiter spins before it sleeps, ns.
    pub spin_ns: u64,
    /// How long a holder may be without work before it counts as idle, ns.
    pub grace_ns: u64,
}

impl Tuning {
    /// Returns the constants for hand-offs that cost `handoff_ns`, on a machine with this many
    /// processors.
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

    /// Returns the window of each of a tenant's `sessions`, if its longest kernel took
    /// `longest_ns`.
    pub fn session_window_ns(&self, sessions: usize, longest_ns: u64) -> u64 {
        let kernels_ns = longest_ns.saturating_mul(KERNELS_PER_WINDOW).min(MAX_KERNEL_WINDOW_NS);
        (self.window_ns / sessions.max(1) as u64).max(MIN_SESSION_WINDOW_NS).max(kernels_ns)
    }

    /// Returns the window of a guest beside owners, if its longest kernel took `longest_ns`. An
    /// owner that comes back waits for that long.
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
