//! The state of an arbiter that the daemon saves for the next daemon, in the registry's terms.

use super::{Restored, process_id};
use deepres_model::process::ProcessKey;
use deepres_policy::TenantId;
use deepres_policy::arbiter;

pub use deepres_policy::arbiter::{Baseline, Counters, SavedAccount, SavedMeter};

/// The state of an arbiter that the daemon saves.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// The time at which the core made the snapshot, ns of `CLOCK_MONOTONIC`.
    pub now_ns: u64,
    /// The GPU's counters.
    pub counters: Counters,
    /// The accounts of the tenants.
    pub accounts: Vec<(TenantId, SavedAccount)>,
    /// The points up to which the arbiter charged processes, with their times in ns. The time is
    /// `None` for a connected process that the arbiter charged up to `now_ns`.
    pub meters: Vec<(TenantId, ProcessKey, SavedMeter, Option<u64>)>,
}

impl From<arbiter::Snapshot> for Snapshot {
    fn from(snapshot: arbiter::Snapshot) -> Self {
        let meters = snapshot.meters.into_iter().map(|(tenant, (pid, start_ticks), meter, at_ns)| {
            (tenant, ProcessKey { pid, start_ticks }, meter, at_ns)
        });
        Self {
            now_ns: snapshot.now_ns,
            counters: snapshot.counters,
            accounts: snapshot.accounts,
            meters: meters.collect(),
        }
    }
}

impl Restored {
    /// Returns the state in the form that the arbiter's core takes over.
    pub(super) fn of_core(&self) -> arbiter::Restored {
        let baselines = self.baselines.iter();
        arbiter::Restored {
            saved_ns: self.saved_ns,
            counters: self.counters,
            accounts: self.accounts.iter().map(|(seat, saved)| (seat.of_core(), *saved)).collect(),
            baselines: baselines
                .map(|(tenant, process, baseline)| (*tenant, process_id(*process), *baseline))
                .collect(),
        }
    }
}
