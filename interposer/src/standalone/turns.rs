//! Without a daemon, the processes of a tenant take turns on each GPU. This module decides when
//! this process takes and gives back the turn on one GPU.
//!
//! The meter thread polls the turn. A process that ends its turn does not wake other processes.

use std::sync::atomic::{AtomicU64, Ordering};

use deepres_abi::grant::GateState;
use deepres_abi::turn::Turn;

use super::POLL_NS;

/// The time for which a process has the GPU while other processes wait, ns. After this time, the
/// work in flight drains. The GPU needs 0.1 ms to switch processes, which is little in comparison.
const QUANTUM_NS: u64 = 10_000_000;
/// The time after which a turn ends by itself, ns. If a process is killed or stopped, its meter
/// thread cannot renew the turn.
const HOLD_NS: u64 = 20_000_000;
/// The time after which the turn of a process without work ends by itself, ns. Such a process can
/// be between two launches.
const GRACE_NS: u64 = 1_000_000;
/// The time for which a process's wish for the GPU stays valid after its next check is due, ns. A
/// check can come late.
const SLACK_NS: u64 = 2_000_000;
/// The longest time in which the work in flight may drain after the quantum, ns. The work can wait
/// for a launch of another process of the tenant.
const DRAIN_NS: u64 = 1_000_000_000;

/// This process's state for the turns on one GPU. Only the meter thread uses this state.
#[derive(Debug, Default)]
pub struct Turns {
    /// When this process's turn began, ns; 0 if this process does not have the turn.
    since_ns: AtomicU64,
    /// The time since which threads of this process wait for the turn, ns; 0 if no thread waits, or
    /// if this process has the turn.
    waits_ns: AtomicU64,
    /// The time since which this process's work drains for other processes, ns; 0 if the work does
    /// not drain.
    drains_ns: AtomicU64,
}

/// The readings on which a decision rests.
#[derive(Debug, Clone, Copy)]
pub struct Look {
    /// The present time, ns of `CLOCK_MONOTONIC`.
    pub now_ns: u64,
    /// When the tenant's pause ends, ns of `CLOCK_MONOTONIC`.
    pub due_ns: u64,
    /// Whether threads wait at the gate.
    pub waits: bool,
    /// Whether anything is in flight.
    pub runs: bool,
}

impl Look {
    fn is_overdrawn(self) -> bool {
        self.due_ns > self.now_ns
    }
}

/// Returns `since_ns`, the time at which something began. If `since_ns` is 0, first sets it to the
/// present time.
fn begun_ns(since_ns: &AtomicU64, now_ns: u64) -> u64 {
    match since_ns.compare_exchange(0, now_ns, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => now_ns,
        Err(since_ns) => since_ns,
    }
}

impl Turns {
    /// Decides about the gate of the process with this `slot`. Returns the gate's state, and the
    /// latest time of the next check.
    pub fn decide(&self, turn: &Turn, slot: usize, look: Look) -> (GateState, Option<u64>) {
        if turn.is_held_by(slot)
            && let Some(decision) = self.keep(turn, slot, look)
        {
            return decision;
        }
        self.since_ns.store(0, Ordering::Relaxed);
        self.drains_ns.store(0, Ordering::Relaxed);
        if !look.waits {
            turn.withdraw(slot);
            self.waits_ns.store(0, Ordering::Relaxed);
            return (GateState::Closed, None);
        }
        let since_ns = begun_ns(&self.waits_ns, look.now_ns);
        // The process that has waited longest goes first. A waiting process renews its wish at each
        // check, because a wish expires. The file has room for one wish only.
        let is_anothers = turn.is_wanted_before(slot, since_ns, look.now_ns);
        let mut next_ns = look.now_ns.saturating_add(POLL_NS);
        if look.is_overdrawn() {
            next_ns = look.due_ns;
        } else if !is_anothers && turn.take(slot, look.now_ns, look.now_ns.saturating_add(HOLD_NS)) {
            turn.withdraw(slot);
            self.since_ns.store(look.now_ns, Ordering::Relaxed);
            self.waits_ns.store(0, Ordering::Relaxed);
            return (GateState::Leased, None);
        }
        turn.want(slot, since_ns, look.now_ns, next_ns.saturating_add(SLACK_NS));
        (GateState::Closed, Some(next_ns))
    }

    /// Keeps this process's turn, and returns the decision. Or ends the turn, and returns `None`.
    fn keep(&self, turn: &Turn, slot: usize, look: Look) -> Option<(GateState, Option<u64>)> {
        // If `since_ns` is 0, an earlier process with this slot took the turn.
        let had_ns = look.now_ns.saturating_sub(begun_ns(&self.since_ns, look.now_ns));
        let is_wanted = turn.is_wanted_by_other(slot, look.now_ns);
        let is_over = is_wanted && (look.is_overdrawn() || had_ns > QUANTUM_NS);
        let drains_ns = match (is_over && look.runs, self.drains_ns.load(Ordering::Relaxed)) {
            (false, _) => 0,
            (true, 0) => look.now_ns,
            (true, since_ns) => since_ns,
        };
        self.drains_ns.store(drains_ns, Ordering::Relaxed);
        let is_stuck = drains_ns != 0 && look.now_ns.saturating_sub(drains_ns) > DRAIN_NS;
        if is_stuck || is_wanted && !look.runs && (is_over || !look.waits) {
            self.drains_ns.store(0, Ordering::Relaxed);
            turn.give(slot);
            return None;
        }
        let for_ns = if look.runs || look.waits { HOLD_NS } else { GRACE_NS };
        // The turn may have ended by itself, and another process may just have taken it.
        turn.take(slot, look.now_ns, look.now_ns.saturating_add(for_ns)).then(|| {
            let gate = if look.is_overdrawn() || is_over { GateState::Closed } else { GateState::Leased };
            (gate, look.is_overdrawn().then_some(look.due_ns))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const NOW_NS: u64 = 400_000_000 * MS;

    fn look(now_ns: u64, due_ns: u64, waits: bool, runs: bool) -> Look {
        Look { now_ns, due_ns, waits, runs }
    }

    #[test]
    fn a_process_by_itself_keeps_the_turn_and_its_gate_open_while_it_sleeps() {
        let (turn, turns) = (Turn::default(), Turns::default());
        assert_eq!(turns.decide(&turn, 0, look(NOW_NS, 0, true, false)).0, GateState::Leased);
        assert_eq!(turns.decide(&turn, 0, look(NOW_NS + MS, 0, false, false)), (GateState::Leased, None));
        let later_ns = NOW_NS + 60_000 * MS;
        assert_eq!(turns.decide(&turn, 0, look(later_ns, 0, false, true)), (GateState::Leased, None));
    }

    #[test]
    fn an_overdrawn_account_closes_the_gate_until_it_is_due() {
        let (turn, turns) = (Turn::default(), Turns::default());
        let due_ns = NOW_NS + 5 * MS;
        assert_eq!(
            turns.decide(&turn, 0, look(NOW_NS, due_ns, true, false)),
            (GateState::Closed, Some(due_ns))
        );
        assert_eq!(turns.decide(&turn, 0, look(due_ns, due_ns, true, false)).0, GateState::Leased);
        assert_eq!(
            turns.decide(&turn, 0, look(due_ns + 1, due_ns + 2, true, true)),
            (GateState::Closed, Some(due_ns + 2))
        );
    }

    #[test]
    fn a_process_that_waits_has_the_turn_once_the_other_has_had_its_quantum_and_drained() {
        let (turn, first, second) = (Turn::default(), Turns::default(), Turns::default());
        assert_eq!(first.decide(&turn, 0, look(NOW_NS, 0, true, false)).0, GateState::Leased);
        let wait = |now_ns| second.decide(&turn, 1, look(now_ns, 0, true, false)).0;
        assert_eq!(wait(NOW_NS), GateState::Closed);
        let over_ns = NOW_NS + QUANTUM_NS + 1;
        assert_eq!(first.decide(&turn, 0, look(over_ns - MS, 0, true, true)).0, GateState::Leased);
        assert_eq!(wait(over_ns - MS), GateState::Closed);
        assert_eq!(first.decide(&turn, 0, look(over_ns, 0, true, true)).0, GateState::Closed, "drains");
        assert_eq!(wait(over_ns), GateState::Closed);
        assert_eq!(first.decide(&turn, 0, look(over_ns, 0, true, false)).0, GateState::Closed, "gives it");
        assert_eq!(wait(over_ns + POLL_NS), GateState::Leased);
    }

    #[test]
    fn a_process_that_had_the_turn_when_the_account_was_overdrawn_lets_the_other_go_first() {
        let (turn, both) = (Turn::default(), [Turns::default(), Turns::default()]);
        let mut now_ns = NOW_NS;
        assert_eq!(both[0].decide(&turn, 0, look(now_ns, 0, true, false)).0, GateState::Leased);
        assert_eq!(both[1].decide(&turn, 1, look(now_ns, 0, true, false)).0, GateState::Closed);
        for round in 0..10 {
            let (had, next) = (round % 2, 1 - round % 2);
            let due_ns = now_ns + 15 * MS;
            // The tenant must pause, so both processes wait for the end of the pause. The process
            // that had the turn checks last, and checks first again after the pause.
            for slot in [had, next, had] {
                now_ns += MS;
                let gate = both[slot].decide(&turn, slot, look(now_ns, due_ns, true, false)).0;
                assert_eq!(gate, GateState::Closed, "{round}");
            }
            now_ns = due_ns;
            let gates = [had, next, had]
                .map(|slot| both[slot].decide(&turn, slot, look(now_ns, due_ns, true, false)).0);
            assert_eq!(gates, [GateState::Closed, GateState::Leased, GateState::Closed], "{round}");
        }
    }

    #[test]
    fn several_that_always_wait_have_their_turns_in_order_whoever_looks_first() {
        const PROCESSES: usize = 5;
        const DRAIN_NS: u64 = 3 * MS;
        let (turn, all) = (Turn::default(), [(); PROCESSES].map(|()| Turns::default()));
        let (mut began_ns, mut runs_until_ns) = ([NOW_NS; PROCESSES], [0; PROCESSES]);
        let (mut had, mut longest_ns) = ([0; PROCESSES], 0);
        for step in 0..4_000_u64 {
            let now_ns = NOW_NS + step * POLL_NS / 2;
            // The processes check in a random order.
            let first = (step.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60) as usize;
            for slot in (0..PROCESSES).map(|slot| (slot + first) % PROCESSES) {
                let look = look(now_ns, 0, true, runs_until_ns[slot] > now_ns);
                if all[slot].decide(&turn, slot, look).0 == GateState::Leased {
                    if runs_until_ns[slot] <= now_ns {
                        longest_ns = longest_ns.max(now_ns - began_ns[slot]);
                        had[slot] += 1;
                    }
                    runs_until_ns[slot] = now_ns + DRAIN_NS;
                    began_ns[slot] = now_ns;
                }
            }
        }
        let turn_ns = QUANTUM_NS + DRAIN_NS + 3 * POLL_NS;
        assert!(longest_ns <= (PROCESSES as u64 - 1) * turn_ns, "one waited {longest_ns} ns");
        assert!(had.iter().max().unwrap() - had.iter().min().unwrap() <= 1, "{had:?}");
    }

    #[test]
    fn a_holder_whose_work_waits_for_another_process_gives_the_turn_up_after_a_second() {
        let (turn, stuck, peer) = (Turn::default(), Turns::default(), Turns::default());
        stuck.decide(&turn, 0, look(NOW_NS, 0, true, false));
        // While no other process waits, the process with the turn may run without limit.
        let mut now_ns = NOW_NS + 60_000 * MS;
        assert_eq!(stuck.decide(&turn, 0, look(now_ns, 0, false, true)).0, GateState::Leased);
        let began_ns = now_ns;
        loop {
            let gate = peer.decide(&turn, 1, look(now_ns, 0, true, false)).0;
            if gate == GateState::Leased {
                break;
            }
            assert_eq!(stuck.decide(&turn, 0, look(now_ns, 0, false, true)).0, GateState::Closed, "drains");
            now_ns += MS;
        }
        assert!((DRAIN_NS..DRAIN_NS + 5 * MS).contains(&(now_ns - began_ns)), "{}", now_ns - began_ns);
        assert_eq!(
            stuck.decide(&turn, 0, look(now_ns, 0, true, true)).0,
            GateState::Closed,
            "it waits for its turn"
        );
        assert_eq!(peer.decide(&turn, 1, look(now_ns + MS, 0, true, true)).0, GateState::Leased);
    }

    #[test]
    fn a_turn_of_the_dead_lapses() {
        let (turn, dead, alive) = (Turn::default(), Turns::default(), Turns::default());
        assert_eq!(dead.decide(&turn, 0, look(NOW_NS, 0, true, false)).0, GateState::Leased);
        let wait = |now_ns| alive.decide(&turn, 1, look(now_ns, 0, true, false)).0;
        assert_eq!(wait(NOW_NS + HOLD_NS - MS), GateState::Closed);
        assert_eq!(wait(NOW_NS + HOLD_NS + MS), GateState::Leased);
        // A process that was stopped meanwhile sees that it lost the turn.
        assert_eq!(dead.decide(&turn, 0, look(NOW_NS + HOLD_NS + MS, 0, true, true)).0, GateState::Closed);
    }

    #[test]
    fn an_idle_holder_gives_the_turn_to_whoever_wants_it() {
        let (turn, idle, other) = (Turn::default(), Turns::default(), Turns::default());
        idle.decide(&turn, 0, look(NOW_NS, 0, true, false));
        assert_eq!(idle.decide(&turn, 0, look(NOW_NS, 0, false, false)).0, GateState::Leased, "nobody asks");
        assert_eq!(other.decide(&turn, 1, look(NOW_NS, 0, true, false)).0, GateState::Closed);
        let later_ns = NOW_NS + GRACE_NS + POLL_NS;
        assert_eq!(other.decide(&turn, 1, look(later_ns, 0, true, false)).0, GateState::Leased, "it lapsed");
    }
}
