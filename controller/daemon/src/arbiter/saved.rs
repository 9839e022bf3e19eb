//! The state that an arbiter keeps over the daemon's death, in the registry's terms.

use super::{Restored, process_id};
use deepres_model::process::ProcessKey;
use deepres_policy::TenantId;
use deepres_policy::arbiter::{self, Counters};

pub use deepres_policy::arbiter::{Baseline, SavedAccount, SavedMeter};

/// The state that an arbiter wants saved.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// When the snapshot was taken, ns of `CLOCK_MONOTONIC`.
    pub now_ns: u64,
    /// Time in which two or more tenants wanted the GPU, ns.
    pub contended_ns: u64,
    /// Time in which no tenant wanted the GPU, ns.
    pub idle_ns: u64,
    /// Number of hand-offs.
    pub handoffs: u64,
    /// The cost of the hand-offs whose cost is known, ns.
    pub handoff_total_ns: u64,
    /// The accounts of the tenants.
    pub accounts: Vec<(TenantId, SavedAccount)>,
    /// The points up to which processes were charged, with their times in ns. The time is `None`
    /// for a connected process: it was charged up to `now_ns`. Others may come back.
    pub meters: Vec<(TenantId, ProcessKey, SavedMeter, Option<u64>)>,
}

impl From<arbiter::Snapshot> for Snapshot {
    fn from(snapshot: arbiter::Snapshot) -> Self {
        let Counters { contended_ns, idle_ns, handoffs, handoff_total_ns } = snapshot.counters;
        let meters = snapshot.meters.into_iter().map(|(tenant, (pid, start_ticks), meter, at_ns)| {
            (tenant, ProcessKey { pid, start_ticks }, meter, at_ns)
        });
        Self {
            now_ns: snapshot.now_ns,
            contended_ns,
            idle_ns,
            handoffs,
            handoff_total_ns,
            accounts: snapshot.accounts,
            meters: meters.collect(),
        }
    }
}

impl Restored {
    /// Returns what the arbiter's core is to take over.
    pub(super) fn of_core(&self) -> arbiter::Restored {
        let Snapshot { contended_ns, idle_ns, handoffs, handoff_total_ns, .. } = self.counters;
        let baselines = self.baselines.iter();
        arbiter::Restored {
            saved_ns: self.saved_ns,
            counters: Counters { contended_ns, idle_ns, handoffs, handoff_total_ns },
            accounts: self.accounts.iter().map(|(seat, saved)| (seat.of_core(), *saved)).collect(),
            baselines: baselines
                .map(|(tenant, process, baseline)| (*tenant, process_id(*process), *baseline))
                .collect(),
        }
    }
}
