//! Tells a process without a session its tenant's part of the GPUs (a *view*). The interposer
//! answers the process's NVML calls by this view.

use super::refuse;
use crate::registry::{Guest, Refused, Registry};
use crate::{Shared, nvml, status};
use deepres_abi::wire::{Hello, RefusalKind, Role, View};
use deepres_model::admin::Status;
use deepres_model::packet;
use deepres_model::process::ProcessKey;
use std::io;
use std::os::fd::BorrowedFd;
use zerocopy::IntoBytes;

/// Answers the hello of a process that asks for its tenant's part of the GPUs.
pub async fn answer(
    connection: BorrowedFd<'_>,
    guest: &Guest,
    hello: &Hello,
    shared: &Shared,
) -> io::Result<()> {
    if let Some(who) = ProcessKey::of(guest.peer.pid) {
        // The process has the interposer. Until it computes, the process has no session, but is not
        // unmanaged.
        shared.registry.borrow().connected().views(who);
    }
    let mut viewed = match status::recent(shared).await {
        Some(status) => view(&shared.registry.borrow(), guest, hello, &status),
        None => Err(Refused::new(RefusalKind::Stopping, "a GPU's arbiter does not answer")),
    };
    let is_asked = viewed.is_ok() && hello.role() == Some(Role::Appraised);
    let uuid = if is_asked { managed_uuid(&shared.registry.borrow(), hello) } else { None };
    if let (Ok(view), Some(uuid)) = (&mut viewed, uuid)
        && let Some(bytes) = nvml::held_bytes(guest.peer.pid, uuid).await
    {
        view.set_asker_bytes(bytes);
    }
    match viewed {
        Ok(view) => packet::send(connection, view.as_bytes(), &[]),
        Err(refused) => {
            refuse(connection, &refused, None, shared);
            Ok(())
        }
    }
}

/// Returns the UUID of the first GPU in a hello, in NVML's form. Returns `None` if the daemon does
/// not manage this GPU.
fn managed_uuid(registry: &Registry, hello: &Hello) -> Option<String> {
    let number = registry.tenancy.gpus().number_of(hello.gpus().first()?)?;
    registry.tenancy.gpus().uuids().into_iter().nth(number)
}

/// Returns the limits and the use of a process's tenant on the GPUs in its hello.
///
/// # Errors
///
/// Returns [`Refused`] if there is no such tenant. A view never makes a tenant.
fn view(registry: &Registry, guest: &Guest, hello: &Hello, status: &Status) -> Result<View, Refused> {
    let (name, tenant) = registry
        .finder()
        .tenant_of(guest, hello)
        .ok_or_else(|| Refused::new(RefusalKind::Request, "the process belongs to no tenant"))?;
    let accounts = status.tenants.iter().find(|of| of.name == name).map_or(&[][..], |of| &of.gpus);
    let mut view = View::new(guest.peer.pid);
    for (uuid, seen) in hello.gpus().iter().zip(&mut view.gpus) {
        let Some(gpu) = registry.tenancy.gpus().number_of(uuid) else { continue };
        let account = accounts.iter().find(|account| account.gpu == gpu);
        seen.is_managed = 1;
        seen.memory_limit_bytes = tenant.seat_on(gpu).memory_limit_bytes;
        seen.held_bytes = tenant.memory.held_bytes(gpu);
        seen.recent_ppm = account.map_or(0, |account| account.recent_share_ppm);
    }
    view.set_processes(tenant.members.sessions().values().map(|session| session.pid));
    Ok(view)
}
