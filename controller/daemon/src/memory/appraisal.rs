//! Tells each session NVML's figure for its process, together with the bounds of its account at
//! that time. From this, the session learns how much memory its process holds beyond its account.

use crate::arbiter::SessionId;
use crate::nvml::OnGpu;
use crate::registry::Tenants;
use crate::tenant::Session;
use deepres_abi::grant::Appraisal;
use deepres_abi::ledger::{Account, Mark};
use deepres_model::clock::monotonic_ns;
use std::collections::BTreeMap;

/// The accounts of all sessions just before a question to NVML.
pub struct Before {
    asked_ns: u64,
    marks: BTreeMap<(SessionId, usize), Mark>,
}

/// Returns each session with each of its GPUs, and its account there. Leaves out suspended tenants,
/// whose memory is not on the GPUs.
fn accounts(tenants: &Tenants) -> impl Iterator<Item = (SessionId, &Session, usize, Account<'_>)> {
    let there = tenants.iter().map(|(_, tenant)| tenant).filter(|tenant| !tenant.residence.is_suspended());
    there.flat_map(|tenant| {
        tenant.members.sessions().iter().flat_map(move |(id, session)| {
            let account = move |gpu: &usize| tenant.memory.on(*gpu)?.account(session.slot);
            session.gpus.iter().filter_map(move |gpu| Some((*id, session, *gpu, account(gpu)?)))
        })
    })
}

impl Before {
    /// Returns the accounts of this moment.
    pub fn of(tenants: &Tenants) -> Self {
        let asked_ns = monotonic_ns();
        let marks = accounts(tenants).map(|(id, _, gpu, account)| ((id, gpu), account.mark())).collect();
        Self { asked_ns, marks }
    }

    /// Tells each session NVML's figures in `found`, by GPU. Sessions that began or came back
    /// meanwhile, and processes without a figure, are told nothing.
    pub fn tell(&self, tenants: &Tenants, found: &BTreeMap<usize, OnGpu>) {
        for (id, session, gpu, account) in accounts(tenants) {
            let seen = found.get(&gpu).and_then(|on_gpu| on_gpu.processes.get(&session.pid));
            let mark = self.marks.get(&(id, gpu));
            let slot = session.grant.page().slot(gpu);
            if let (Some(seen_bytes), Some(mark), Some(slot)) = (seen, mark, slot) {
                let (least_bytes, most_bytes) = account.bounds_since(*mark);
                let (asked_ns, seen_bytes) = (self.asked_ns, *seen_bytes);
                slot.set_appraisal(Appraisal { asked_ns, seen_bytes, least_bytes, most_bytes });
            }
        }
    }
}
