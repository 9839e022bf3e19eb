//! The time constants of the lease policy, derived from the measured cost of hand-offs.

use core::time::Duration;

/// Returns the nanoseconds of a duration that is known at compile time.
const fn ns(duration: Duration) -> u64 {
    duration.as_nanos() as u64
}

/// The cost of a hand-off that the arbiter assumes before it has measured one. A hand-off consists
/// of two wake-ups of another process and a first launch. On an idle machine, the two wake-ups took
/// 45 µs; this value is for a busy machine.
pub const ASSUMED_HANDOFF_NS: u64 = ns(Duration::from_micros(100));

/// The part of a hand-off that no tenant's meter sees: the hardware's own switch, and the delay of
/// the meter's marker. The value is the measured difference between the daemon's figures and the
/// GPU's own record: 13 to 25 µs (`bench handoff`).
pub const UNSEEN_NS: u64 = ns(Duration::from_micros(20));

/// If two processes have work, the hardware runs the work of one process for this time before the
/// work of the other. The time is NVIDIA's default time slice.
pub const HARDWARE_SLICE_NS: u64 = ns(Duration::from_millis(2));

/// A lease lasts this many hand-offs. So the GPU idles between leases for at most one part in fifty
/// of the time, although hand-offs differ.
const HANDOFFS_PER_QUANTUM: u64 = 64;

/// The arbiter decides whether to renew a lease by the time of this many hand-offs before the lease
/// ends. So a renewal reaches the holder in time.
const HANDOFFS_PER_LEAD: u64 = 2;
/// The least time between the decision about a renewal and the end of the lease: the delay of a
/// timer on a busy machine.
const MIN_LEAD_NS: u64 = ns(Duration::from_micros(300));

/// The shortest window. The work in flight must outlast the holder's own wake-ups: a poll of its
/// meter, or a thread that waits for its window. On a busy machine, a wake-up takes a time slice of
/// the scheduler. A longer window would only make the drain longer.
const MIN_WINDOW_NS: u64 = ns(Duration::from_millis(2));
const MAX_WINDOW_NS: u64 = ns(Duration::from_millis(8));
/// The least window of one session if the tenant has several sessions. Each session gets an equal
/// part of the tenant's window, and at least this.
const MIN_SESSION_WINDOW_NS: u64 = ns(Duration::from_millis(1));
/// A window has room for this many of the tenant's longest kernels, so that the job can queue one
/// kernel behind another.
const KERNELS_PER_WINDOW: u64 = 2;
/// The longest window that a tenant gets for its long kernels. If kernels are longer, the pause
/// between two kernels (a wake-up) is short in comparison.
const MAX_KERNEL_WINDOW_NS: u64 = ns(Duration::from_millis(20));

/// The window of a guest beside owners: one kernel, or short kernels for this many hand-offs. With
/// such a window the GPU does not idle while the guest's threads wake up.
const HANDOFFS_PER_GUEST_WINDOW: u64 = 2;

/// The shortest time for which an idle holder keeps the GPU, because the holder can be between two
/// launches.
const MIN_GRACE_NS: u64 = ns(Duration::from_micros(50));
/// The longest time for which an idle holder keeps the GPU.
const MAX_GRACE_NS: u64 = ns(Duration::from_micros(500));

/// A waiting thread spins for a hand-off divided by this number before the thread sleeps.
const SPIN_DIVISOR: u64 = 4;
/// The longest spin. A wake-up costs about as much.
const MAX_SPIN_NS: u64 = ns(Duration::from_micros(20));
/// The least number of processors with which threads spin. On fewer processors, a spinning thread
/// would keep the holder from running.
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
    /// The quantum: the longest lease while other tenants wait, ns.
    pub quantum_ns: u64,
    /// The time before the end of a lease at which the arbiter decides whether to renew the lease,
    /// ns.
    pub lead_ns: u64,
    /// The window: GPU time that a holder may have in flight, by the meter's estimates, ns.
    pub window_ns: u64,
    /// The time for which a waiting thread spins before it sleeps, ns.
    pub spin_ns: u64,
    /// The time without work after which the arbiter takes a holder for idle, ns.
    pub grace_ns: u64,
}

impl Tuning {
    /// Returns the time constants for hand-offs that cost `handoff_ns`, on a machine with this many
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
            window_ns: (quantum_ns / 4).clamp(MIN_WINDOW_NS, MAX_WINDOW_NS),
            spin_ns: if spins { (handoff_ns / SPIN_DIVISOR).min(MAX_SPIN_NS) } else { 0 },
            grace_ns: handoff_ns.clamp(MIN_GRACE_NS, MAX_GRACE_NS),
        }
    }

    /// Returns the window of each session of a tenant with `sessions` sessions, ns. `longest_ns` is
    /// the length of the tenant's longest kernel.
    pub fn session_window_ns(&self, sessions: usize, longest_ns: u64) -> u64 {
        let kernels_ns = longest_ns.saturating_mul(KERNELS_PER_WINDOW).min(MAX_KERNEL_WINDOW_NS);
        (self.window_ns / sessions.max(1) as u64).max(MIN_SESSION_WINDOW_NS).max(kernels_ns)
    }

    /// Returns the window of a guest beside owners, ns. `longest_ns` is the length of the guest's
    /// longest kernel. When an owner comes back, the owner waits for this window to drain.
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
