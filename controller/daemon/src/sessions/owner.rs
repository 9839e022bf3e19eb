//! Answers users who ask about their own tenants, without the rights of an administrator.

use crate::Shared;
use crate::administrators;
use crate::registry::Guest;
use crate::status;
use crate::tenant::Tenant;
use deepres_abi::wire::{self, Hello, Notice};
use deepres_model::admin::{Reply, Request, Status};
use deepres_model::clock::monotonic_ns;
use deepres_model::packet;
use deepres_model::text::harmless;
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use zerocopy::IntoBytes;

/// If the latest status is younger than this, a user gets this status. So the questions of users
/// cost the arbiters no time.
const YOUNG_NS: u64 = Duration::from_millis(1_500).as_nanos() as u64;

/// Answers the hello of a user who asks about the user's own tenants.
pub async fn answer(
    connection: BorrowedFd<'_>,
    guest: &Guest,
    hello: &Hello,
    shared: &Rc<Shared>,
) -> io::Result<()> {
    let mut file = File::from(memfd_create("deepres-reply", MemfdFlags::CLOEXEC)?);
    file.write_all(&serde_json::to_vec(&reply(guest, hello, shared).await)?)?;
    file.rewind()?;
    packet::send(connection, Notice::new("").as_bytes(), &[file.as_fd()])
}

async fn reply(guest: &Guest, hello: &Hello, shared: &Rc<Shared>) -> Reply {
    let is_own = |name: &str| {
        let registry = shared.registry.borrow();
        registry.tenancy.tenants().get(name).is_some_and(|tenant| owns(guest, tenant))
    };
    let name = wire::text(&hello.tenant).unwrap_or_default();
    if !name.is_empty() {
        return match is_own(name) {
            true => administrators::answer(Request::Explain { tenant: name.to_owned() }, shared).await,
            false => Reply::Error { message: format!("you have no tenant `{}`", harmless(name)) },
        };
    }
    let latest = Arc::clone(&shared.status.borrow());
    let is_young = monotonic_ns().saturating_sub(latest.now_ns) < YOUNG_NS;
    match if is_young { Some(latest) } else { status::publish(shared).await } {
        Some(status) => {
            let mut status = part(Status::clone(&status), is_own);
            let is_inside = guest.facts.container().is_some();
            status.waiting.retain(|job| job.uid == guest.facts.owner && !is_inside);
            Reply::Status(Box::new(status))
        }
        None => administrators::no_answer(),
    }
}

/// Returns whether the user of a process owns a tenant. In a container, only the container's
/// tenants are the user's, because root of one container is not root of another.
fn owns(guest: &Guest, tenant: &Tenant) -> bool {
    let container = guest.facts.container();
    tenant.owner.user == guest.facts.owner
        && (container.is_none() || tenant.owner.container.as_ref() == container)
}

/// The name of other users' tenants, in the waits of late requests.
const OTHERS: &str = "others";

/// Returns the part of a status about tenants for which `is_own` returns true, and about the GPUs.
fn part(mut status: Status, is_own: impl Fn(&str) -> bool) -> Status {
    let names_own = |name: &Option<String>| name.as_deref().is_some_and(&is_own);
    status.tenants.retain(|tenant| is_own(&tenant.name));
    status.unmanaged.retain(|user| names_own(&user.tenant) || names_own(&user.started_by));
    status.metering.processes.retain(|process| names_own(&process.tenant));
    status.driver_activity.clear();
    for gpu in &mut status.gpus {
        gpu.holder.take_if(|holder| !is_own(holder));
    }
    let accounts = status.tenants.iter_mut().flat_map(|tenant| &mut tenant.gpus);
    let requests = accounts.filter_map(|account| account.requests.as_mut()?.late.as_mut());
    for late in requests {
        let others = late.waited_for_ns.extract_if(.., |name, _| !is_own(name));
        let others_ns: u64 = others.map(|(_, waited_ns)| waited_ns).sum();
        if others_ns > 0 {
            *late.waited_for_ns.entry(OTHERS.to_owned()).or_default() += others_ns;
        }
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;
    use deepres_model::admin::{
        AccountStatus, GpuStatus, LateStatus, MeteredStatus, RequestStatus, TenantStatus, UnmanagedStatus,
    };

    #[test]
    fn a_users_status_says_nothing_of_other_users() {
        let names = ["mine", "theirs"];
        let all = || names.map(|name| Some(name.to_owned()));
        let mut status = Status {
            gpus: all().map(|holder| GpuStatus { holder, ..GpuStatus::default() }).into(),
            tenants: names
                .map(|name| {
                    let waited_for_ns = names.map(|name| (name.to_owned(), 7)).into();
                    let late = Some(LateStatus { waited_for_ns, ..LateStatus::default() });
                    let requests = Some(RequestStatus { late, ..RequestStatus::default() });
                    let gpus = vec![AccountStatus { requests, ..AccountStatus::default() }];
                    TenantStatus { name: name.to_owned(), gpus, ..TenantStatus::default() }
                })
                .into(),
            unmanaged: all()
                .into_iter()
                .flat_map(|name| {
                    let adopted = UnmanagedStatus { tenant: name.clone(), ..UnmanagedStatus::default() };
                    [adopted, UnmanagedStatus { started_by: name, ..UnmanagedStatus::default() }]
                })
                .collect(),
            driver_activity: vec![Default::default()],
            ..Status::default()
        };
        status.metering.processes =
            all().map(|tenant| MeteredStatus { tenant, ..MeteredStatus::default() }).into();
        let text = serde_json::to_string(&part(status, |name| name == "mine")).unwrap();
        assert_eq!(text.matches("mine").count(), 6, "{text}");
        assert!(text.contains("\"waited_for_ns\":{\"mine\":7,\"others\":7}"), "{text}");
        assert!(!text.contains("theirs") && text.contains("\"driver_activity\":[]"), "{text}");
    }
}
