//! Answers users who ask about their own tenants, without the rights of an administrator.

use crate::Shared;
use crate::administrators;
use crate::identity::{Key, read};
use crate::registry::{Guest, Registry};
use crate::status;
use crate::tenant::Tenant;
use deepres_abi::wire::{self, Hello, Notice};
use deepres_model::admin::{Reply, Request, Status};
use deepres_model::clock::monotonic_ns;
use deepres_model::identity::Container;
use deepres_model::packet;
use deepres_model::text::harmless;
use deepres_policy::TenantId;
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
    let sight = Sight::of(guest, &shared.registry.borrow());
    let is_own = |name: &str| {
        let registry = shared.registry.borrow();
        registry.tenancy.tenants().get(name).is_some_and(|tenant| sight.has(tenant))
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
            let is_whole = matches!(sight.extent, Extent::User);
            status.waiting.retain(|job| job.uid == sight.user && is_whole);
            Reply::Status(Box::new(status))
        }
        None => administrators::no_answer(),
    }
}

/// The tenants that a process may see: of the tenants of one user, those in the extent.
#[derive(Debug)]
struct Sight {
    /// The user of the process, or the user who made its user namespace.
    user: u32,
    extent: Extent,
}

/// The part of a user's tenants that a process may see.
#[derive(Debug)]
enum Extent {
    /// All tenants of the user.
    User,
    /// The tenants of a container, because root of one container is not root of another.
    Container(Container),
    /// The process's own tenant, and the tenants whose names apply only in the process's user
    /// namespace. The process belongs to such a tenant if it gives the tenant's name. A process of
    /// a subordinate user does not have the user's rights, and root of a container is not root of
    /// the host.
    Namespace {
        /// The path that stands for the namespace.
        path: String,
        /// The process's own tenant.
        own: Option<TenantId>,
    },
}

impl Sight {
    /// Returns the tenants that a process may see.
    fn of(guest: &Guest, registry: &Registry) -> Self {
        let finder = registry.finder();
        let extent = match finder.namespace_of(&guest.facts) {
            Some(namespace) => Extent::Namespace {
                path: read::namespace_path(namespace),
                own: finder.nameless_tenant_of(guest).map(|tenant| tenant.id),
            },
            None => guest.facts.container().cloned().map_or(Extent::User, Extent::Container),
        };
        Self { user: guest.facts.owner, extent }
    }

    /// Returns whether the process may see a tenant.
    fn has(&self, tenant: &Tenant) -> bool {
        let is_in_extent = match &self.extent {
            Extent::User => true,
            Extent::Container(container) => tenant.owner.container.as_ref() == Some(container),
            Extent::Namespace { path, own } => {
                let applies_there =
                    matches!(&tenant.owner.key, Key::Name { place: Some(place), .. } if place == path);
                *own == Some(tenant.id) || applies_there
            }
        };
        tenant.owner.user == self.user && is_in_extent
    }
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
    use crate::gpus::Gpus;
    use crate::identity::Facts;
    use crate::identity::source::Source;
    use crate::identity::tree::Process;
    use crate::shm::{SharedPage, Writer};
    use crate::state::{SavedSession, SavedTenant, State};
    use deepres_abi::beat::BeatPage;
    use deepres_model::admin::{
        AccountStatus, GpuStatus, LateStatus, MeteredStatus, RequestStatus, TenantStatus, UnmanagedStatus,
    };
    use deepres_model::config::Config;
    use deepres_model::peer::Peer;
    use deepres_model::process::ProcessKey;

    /// Returns the names of the tenants that this process may see if it has these facts. The
    /// process belongs to the tenant `mine` of the namespace's owner. The names `inside` and
    /// `elsewhere` apply in two namespaces of the owner. Another user has the tenant `other`.
    fn seen(user: u32, owner: u32, namespace: Option<u64>) -> String {
        let own = read::process(std::process::id()).unwrap();
        let member = |process: ProcessKey| SavedSession { process, at_ns: None, meters: Vec::new() };
        let tenant = |name: &str, uid: u32, place: Option<&str>| {
            let (name, place) = (name.to_owned(), place.map(str::to_owned));
            let key = Some(Key::Name { user: uid, name: name.clone(), place });
            SavedTenant { name, uid, key, ..SavedTenant::default() }
        };
        let mine = SavedTenant { sessions: vec![member(own.key())], ..tenant("mine", owner, None) };
        let tenants = vec![
            mine,
            tenant("outside", owner, None),
            tenant("inside", owner, Some("user:[4711]")),
            tenant("elsewhere", owner, Some("user:[4712]")),
            tenant("other", owner + 1, None),
        ];
        let beat = SharedPage::<BeatPage>::create("deepres-test", Writer::Controller).unwrap();
        let mut registry = Registry::new(Config::default(), Gpus::default(), Arc::new(beat));
        registry.restore(&State::new("boot", 1, Vec::new(), tenants)).unwrap();
        let facts = Facts {
            pid: own.pid,
            process: Some(Process { user, ..own.clone() }),
            place: None,
            owner,
            namespace,
            namespaces: namespace.into_iter().collect(),
        };
        let peer = Peer { pid: own.pid, uid: user, gid: user };
        let guest = Guest { peer, groups: Vec::new(), facts, source: Source::User(owner), allotment: None };
        let sight = Sight::of(&guest, &registry);
        let names =
            registry.tenancy.tenants().iter().filter(|(_, tenant)| sight.has(tenant)).map(|(name, _)| name);
        names.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_subordinate_user_sees_its_own_tenant_and_those_of_its_namespace_alone() {
        let all = "elsewhere inside mine outside";
        assert_eq!(seen(1000, 1000, None), all);
        assert_eq!(seen(1000, 1000, Some(4711)), all, "the user's own process in the user's namespace");
        assert_eq!(seen(100_033, 1000, Some(4711)), "inside mine");
        assert_eq!(seen(100_033, 1000, Some(4713)), "mine");
        assert_eq!(seen(100_000, 0, Some(4711)), "inside mine", "root of root's container");
        assert_eq!(seen(0, 0, None), all);
    }

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
