//! Adds up each tenant's use of the driver.

use super::Registry;
use deepres_model::probes::MeteringStatus;
use deepres_policy::signals::DriverSums;
use std::collections::{BTreeMap, BTreeSet};

impl Registry {
    /// Takes in what processes have done in the driver since they began. A tenant counts the
    /// processes of its sessions and the processes that are metered from outside for it.
    pub fn observe_driver(
        &mut self,
        now_ns: u64,
        activity: &BTreeMap<u32, DriverSums>,
        metering: &MeteringStatus,
    ) {
        for (name, tenant) in &mut self.tenants {
            let metered = metering.living().filter(|process| process.tenant.as_ref() == Some(name));
            let sessions = tenant.sessions.values().map(|session| session.pid);
            let own: BTreeSet<u32> = sessions.chain(metered.map(|process| process.pid)).collect();
            let processes = own.into_iter().filter_map(|pid| Some((pid, *activity.get(&pid)?)));
            tenant.driver.observe(now_ns, processes, |pid| activity.contains_key(&pid));
        }
    }
}
