//! The registry's answers to a tenant's own processes. They see only their own tenant.

use super::{Guest, Refused, Registry};
use crate::arbiter::Report;
use deepres_abi::wire::{Hello, RefusalKind, View};

impl Registry {
    /// Returns the UUID of the first GPU in a hello, as NVML writes it. Returns `None` if the
    /// daemon does not manage the GPU.
    pub fn managed_uuid(&self, hello: &Hello) -> Option<String> {
        let uuid = hello.gpus().first()?;
        let place = self.gpus.iter().position(|managed| managed.gpu.uuid == *uuid)?;
        self.gpu_uuids().into_iter().nth(place)
    }

    /// Returns the limits and the use of a process's tenant on the GPUs in its hello.
    ///
    /// # Errors
    ///
    /// Returns [`Refused`] if the hello's name is malformed or there is no such tenant. A view
    /// makes no tenant.
    pub fn view(&self, guest: &Guest, hello: &Hello, reports: &[Report]) -> Result<View, Refused> {
        let tenant = self.find_tenant(guest, hello)?.ok_or_else(|| {
            Refused::new(RefusalKind::Request, "no tenant is here that the process would belong to")
        })?;
        let mut view = View::new(guest.peer.pid);
        for (uuid, seen) in hello.gpus().iter().zip(&mut view.gpus) {
            let Some(gpu) = self.gpus.iter().position(|managed| managed.gpu.uuid == *uuid) else { continue };
            let accounts = reports.get(gpu).map_or(&[][..], |report| &report.tenants);
            let account = accounts.iter().find(|(id, _)| *id == tenant.id);
            seen.is_managed = 1;
            seen.memory_limit_bytes = tenant.seat_on(gpu).memory_limit_bytes;
            seen.held_bytes = tenant.ledger.page().gpu(gpu).map_or(0, |ledger| ledger.held_bytes());
            seen.recent_ppm = account.map_or(0, |(_, account)| account.recent_share_ppm);
        }
        view.set_processes(tenant.sessions.values().map(|session| session.pid));
        Ok(view)
    }
}
