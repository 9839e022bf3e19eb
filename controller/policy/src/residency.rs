//! Decides which tenants' memory is on the GPUs, if all tenants together hold more memory than the
//! GPUs have.
//!
//! The daemon may suspend tenants that opted in: it moves all their memory to the host, and later
//! back. If a tenant needs memory, the daemon first suspends idle tenants, and then best-effort
//! tenants. After these, the daemon suspends the tenant that has been on the GPU for longest, but
//! only after a *turn*. While memory moves, neither of the two tenants computes, so turns are long
//! compared with a move.
//!
//! A suspended tenant that was idle can want the GPU again without showing it. A thread of its job
//! can wait in the driver, where the daemon does not see the thread. So the daemon brings the
//! tenant back after a turn. The tenant can then do nothing and be suspended again. In this case,
//! the daemon brings the tenant back after two turns, after four, and then after eight each time.

use super::TenantId;
use super::class::Class;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// The daemon's number of a GPU.
pub type GpuIndex = usize;

/// Amounts of memory by GPU, bytes.
pub type Bytes = BTreeMap<GpuIndex, u64>;

/// The place of a tenant's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The memory is on the GPUs.
    Resident,
    /// The memory is on the host, because another tenant needed the room.
    Suspended,
    /// On the host or on the way, for another reason: an administrator's command, or a move that is
    /// under way.
    Fixed,
}

/// A tenant, as this policy sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// The tenant's number.
    pub id: TenantId,
    /// Whether the tenant opted in to oversubscription by suspension.
    pub may_leave: bool,
    /// The tenant's class.
    pub class: Class,
    /// The place of the tenant's memory.
    pub place: Place,
    /// The time since which the tenant's memory is at this place, ns.
    pub since_ns: u64,
    /// The memory that the tenant holds on each GPU, bytes. For a tenant off the GPUs: the memory
    /// that it needs there to come back.
    pub bytes: Bytes,
    /// The time since which the tenant has had no work, ns. `None` if the tenant has work, or had
    /// work when the daemon suspended it.
    pub idle_since_ns: Option<u64>,
    /// The number of times in a row that the daemon brought the tenant back and the tenant did
    /// nothing until the daemon suspended it again.
    pub idle_visits: u32,
    /// The memory on each GPU for which the tenant's processes asked and which the driver did not
    /// have, bytes.
    pub needs: Bytes,
    /// Whether the daemon told the tenant several times that the memory of `needs` is free, and the
    /// driver refused it each time.
    pub asked_in_vain: bool,
}

/// The time constants of residency, which the caller gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// The shortest time for which a backlogged tenant stays on the GPUs, ns.
    pub turn_ns: u64,
    /// A tenant that has had no work for this long is idle, ns.
    pub idle_ns: u64,
}

/// The next move: the tenants that the daemon suspends, and the tenant that then gets their room.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Move {
    /// The tenants that the daemon suspends first, in this order.
    pub leave: Vec<TenantId>,
    /// The tenant that the daemon brings back afterwards. If this tenant is on the GPUs already,
    /// its waiting thread can ask the driver for the memory again.
    pub enter: TenantId,
}

/// The daemon brings an idle tenant back after at most this power of two of turns.
const MOST_DOUBLINGS: u32 = 3;

/// Returns the next move; `None` if no move is due at `now_ns`. `free` is the free memory on each
/// GPU, bytes.
pub fn decide(now_ns: u64, free: &Bytes, tenants: &[Seen], times: Times) -> Option<Move> {
    let passed = |since_ns: u64, span_ns: u64| now_ns.saturating_sub(since_ns) >= span_ns;
    let mut applicants: Vec<&Seen> = tenants.iter().filter(|tenant| tenant.applies()).collect();
    // The tenant with the longest wait comes first, but best-effort tenants come last.
    applicants.sort_by_key(|tenant| (tenant.class == Class::BestEffort, tenant.since_ns));
    applicants.into_iter().find_map(|applicant| {
        let wants = if applicant.place == Place::Suspended { &applicant.bytes } else { &applicant.needs };
        let missing = |gone: &[&Seen]| {
            wants.iter().any(|(gpu, bytes)| {
                let left = |from: &Bytes| from.get(gpu).copied().unwrap_or(0);
                let room =
                    gone.iter().fold(left(free), |room, tenant| room.saturating_add(left(&tenant.bytes)));
                room < *bytes
            })
        };
        let is_denied = applicant.asked_in_vain && applicant.place == Place::Resident;
        if !is_denied && !missing(&[]) {
            // There is enough free memory. A suspended tenant comes back. If the tenant is on the
            // GPUs and the driver refused it memory, its thread asks again. If the driver refused
            // several times (`is_denied`), the free memory can be in too many pieces, and asking
            // again does not help.
            return Some(Move { leave: Vec::new(), enter: applicant.id });
        }
        // A suspended idle tenant can wait: the daemon brings it back if there is room, or after
        // some turns.
        let turns = 1_u64 << applicant.idle_visits.min(MOST_DOUBLINGS);
        let is_due = applicant.idle_since_ns.is_none()
            || passed(applicant.since_ns, times.turn_ns.saturating_mul(turns));
        if !is_due {
            return None;
        }
        let mut victims: Vec<(u8, u64, &Seen)> = tenants
            .iter()
            .filter(|other| other.id != applicant.id && other.may_leave && other.place == Place::Resident)
            .filter(|other| wants.keys().any(|gpu| other.bytes.get(gpu).is_some_and(|bytes| *bytes > 0)))
            .filter_map(|other| {
                let rank = if other.idle_since_ns.is_some_and(|since_ns| passed(since_ns, times.idle_ns)) {
                    0
                } else if other.class == Class::BestEffort && applicant.class != Class::BestEffort {
                    1
                } else if passed(other.since_ns, times.turn_ns) {
                    2
                } else {
                    return None;
                };
                Some((rank, other.since_ns, other))
            })
            .collect();
        victims.sort_by_key(|(rank, since_ns, _)| (*rank, *since_ns));
        let mut gone = Vec::new();
        for (.., victim) in victims {
            gone.push(victim);
            if !missing(&gone) {
                let leave = gone.iter().map(|victim| victim.id).collect();
                return Some(Move { leave, enter: applicant.id });
            }
        }
        None
    })
}

impl Seen {
    /// Returns the memory of a GPU for which a thread of the tenant can wait, bytes. This is
    /// `free_bytes`, and the memory of other tenants that the daemon may suspend. Returns 0 if the
    /// memory cannot become free by waiting.
    pub fn obtainable_bytes(&self, gpu: GpuIndex, free_bytes: u64, tenants: &[Self]) -> u64 {
        let bytes = |other: &Self| other.bytes.get(&gpu).copied().unwrap_or(0);
        let others = tenants.iter().filter(|other| other.id != self.id && other.may_leave);
        let there = others.filter(|other| other.place == Place::Resident).map(bytes);
        let there_bytes = there.fold(0, u64::saturating_add);
        let needed_bytes = self.needs.get(&gpu).copied().unwrap_or(0);
        // If the memory is free by now, the daemon is about to tell the tenant. The tenant should
        // not give up before.
        let is_there = (1..=free_bytes).contains(&needed_bytes) && !self.asked_in_vain;
        if there_bytes > 0 || is_there { free_bytes.saturating_add(there_bytes) } else { 0 }
    }

    /// Returns the GPUs on which the tenant holds or needs memory.
    pub fn gpus(&self) -> impl Iterator<Item = GpuIndex> {
        self.bytes.keys().chain(self.needs.keys()).copied()
    }

    /// Returns whether the tenant waits for memory.
    fn applies(&self) -> bool {
        match self.place {
            Place::Suspended => true,
            Place::Resident => self.needs.values().any(|bytes| *bytes > 0),
            Place::Fixed => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::slice::from_ref;

    const TIMES: Times = Times { turn_ns: 1_000, idle_ns: 100 };

    fn tenant(id: u64, place: Place, since_ns: u64, bytes: u64) -> Seen {
        Seen {
            id,
            may_leave: true,
            class: Class::Fair,
            place,
            since_ns,
            bytes: Bytes::from([(0, bytes)]),
            idle_since_ns: None,
            idle_visits: 0,
            needs: Bytes::new(),
            asked_in_vain: false,
        }
    }

    fn needing(bytes: u64, tenant: Seen) -> Seen {
        Seen { needs: Bytes::from([(0, bytes)]), ..tenant }
    }

    fn next(now_ns: u64, free_bytes: u64, tenants: &[Seen]) -> Option<Move> {
        decide(now_ns, &Bytes::from([(0, free_bytes)]), tenants, TIMES)
    }

    #[test]
    fn a_tenant_that_needs_memory_gets_that_of_an_idle_tenant_at_once() {
        let idle = Seen { idle_since_ns: Some(400), ..tenant(1, Place::Resident, 450, 60) };
        let new = needing(20, tenant(2, Place::Resident, 490, 40));
        assert_eq!(next(500, 0, &[idle.clone(), new.clone()]), Some(Move { leave: vec![1], enter: 2 }));
        let busy = Seen { idle_since_ns: None, ..idle };
        assert_eq!(next(500, 0, &[busy, new]), None, "its turn is not over");
    }

    #[test]
    fn tenants_that_always_have_work_take_turns() {
        let here = tenant(1, Place::Resident, 500, 60);
        let suspended = tenant(2, Place::Suspended, 500, 60);
        let both = [here, suspended];
        assert_eq!(next(1_499, 40, &both), None);
        assert_eq!(next(1_500, 40, &both), Some(Move { leave: vec![1], enter: 2 }));
    }

    #[test]
    fn an_idle_tenant_that_did_nothing_when_it_was_back_is_brought_back_more_and_more_seldom() {
        let here = tenant(1, Place::Resident, 0, 60);
        let idle = Seen { idle_since_ns: Some(0), ..tenant(2, Place::Suspended, 0, 60) };
        for (idle_visits, turns) in [(0, 1), (1, 2), (2, 4), (3, 8), (4, 8), (u32::MAX, 8)] {
            let both = [here.clone(), Seen { idle_visits, ..idle.clone() }];
            let after = turns * TIMES.turn_ns;
            assert_eq!(next(after - 1, 40, &both), None, "{idle_visits}");
            assert_eq!(next(after, 40, &both), Some(Move { leave: vec![1], enter: 2 }), "{idle_visits}");
        }
        let wants = Seen { idle_since_ns: None, idle_visits: 9, ..idle };
        assert_eq!(next(1_000, 40, &[here, wants]), Some(Move { leave: vec![1], enter: 2 }));
    }

    #[test]
    fn best_effort_makes_room_for_the_others_at_once_and_takes_no_turns_from_them_sooner() {
        let guest = Seen { class: Class::BestEffort, ..tenant(1, Place::Resident, 500, 60) };
        let owner = tenant(2, Place::Suspended, 500, 60);
        assert_eq!(next(501, 40, &[guest.clone(), owner]), Some(Move { leave: vec![1], enter: 2 }));
        let owner = tenant(2, Place::Resident, 500, 60);
        let guest = Seen { place: Place::Suspended, ..guest };
        assert_eq!(next(1_400, 40, &[guest, owner]), None);
    }

    #[test]
    fn a_tenant_that_fits_comes_back_and_nobody_leaves_for_it() {
        let here = tenant(1, Place::Resident, 0, 60);
        let suspended = Seen { idle_since_ns: Some(0), ..tenant(2, Place::Suspended, 0, 30) };
        assert_eq!(next(10, 40, &[here, suspended]), Some(Move { leave: Vec::new(), enter: 2 }));
    }

    #[test]
    fn nobody_leaves_who_did_not_opt_in_or_whose_leaving_is_not_enough() {
        let firm = Seen { may_leave: false, ..tenant(1, Place::Resident, 0, 60) };
        let small = tenant(3, Place::Resident, 0, 10);
        let suspended = tenant(2, Place::Suspended, 0, 60);
        assert_eq!(next(9_000, 10, &[firm, small, suspended]), None);
    }

    #[test]
    fn free_memory_that_cannot_be_had_is_made_room_for_all_the_same() {
        let here = tenant(1, Place::Resident, 0, 60);
        let asking = needing(20, tenant(2, Place::Resident, 490, 10));
        assert_eq!(next(9_000, 30, &[here.clone(), asking.clone()]), Some(Move { leave: vec![], enter: 2 }));
        let in_vain = Seen { asked_in_vain: true, ..asking };
        assert_eq!(
            next(9_000, 30, &[here.clone(), in_vain.clone()]),
            Some(Move { leave: vec![1], enter: 2 })
        );
        assert_eq!(in_vain.obtainable_bytes(0, 30, &[here.clone(), in_vain.clone()]), 90);
        let firm = Seen { may_leave: false, ..here };
        assert_eq!(next(9_000, 30, &[firm.clone(), in_vain.clone()]), None);
        assert_eq!(in_vain.obtainable_bytes(0, 30, &[firm, in_vain.clone()]), 0, "it gives up");
    }

    #[test]
    fn a_tenant_that_waits_for_memory_that_became_free_does_not_give_up_before_it_is_told() {
        let asking = needing(20, tenant(2, Place::Resident, 490, 10));
        assert_eq!(asking.obtainable_bytes(0, 20, from_ref(&asking)), 20);
        assert_eq!(asking.obtainable_bytes(0, 19, from_ref(&asking)), 0);
        let content = tenant(3, Place::Resident, 490, 10);
        assert_eq!(content.obtainable_bytes(0, 20, from_ref(&content)), 0, "nobody can make room");
    }

    #[test]
    fn a_tenant_suspended_by_hand_stays_so() {
        let fixed = tenant(1, Place::Fixed, 0, 60);
        assert_eq!(next(9_000, 90, &[fixed]), None);
    }
}
