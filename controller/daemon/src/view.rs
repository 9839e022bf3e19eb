//! Tells a process its tenant's part of the GPUs without making it a session. The interposer
//! answers NVML calls inside a tenant from this.

use super::administrators::reports;
use super::registry::{Guest, Refused};
use super::{Shared, tenants};
use deepres_abi::wire::{Hello, RefusalKind, Role};
use deepres_model::packet;
use deepres_model::process::ProcessKey;
use std::io;
use std::os::fd::BorrowedFd;
use zerocopy::IntoBytes;

/// Answers one hello.
pub async fn answer(
    connection: BorrowedFd<'_>,
    guest: &Guest,
    hello: &Hello,
    shared: &Shared,
) -> io::Result<()> {
    if let Some(who) = ProcessKey::of(guest.peer.pid) {
        // The process has the interposer: until it computes, it has no session and still is not
        // unmanaged.
        shared.registry.borrow().connected().views(who);
    }
    let mut view = match reports(shared).await {
        Some(reports) => shared.registry.borrow().view(guest, hello, &reports),
        None => Err(Refused::new(RefusalKind::Stopping, "a GPU's arbiter does not answer")),
    };
    let is_asked = view.is_ok() && hello.role() == Some(Role::Appraised);
    let uuid = if is_asked { shared.registry.borrow().managed_uuid(hello) } else { None };
    if let (Ok(view), Some(uuid)) = (&mut view, uuid)
        && let Some(bytes) = shared.appraiser.held_bytes(guest.peer.pid, uuid).await
    {
        view.set_asker_bytes(bytes);
    }
    match view {
        Ok(view) => packet::send(connection, view.as_bytes(), &[]),
        Err(refused) => {
            tenants::refuse(connection, &refused);
            Ok(())
        }
    }
}
