//! Answers users who ask about their own tenants, without the rights of an administrator.

use crate::Shared;
use crate::administrators;
use crate::identity::Key;
use crate::identity::read::Namespace;
use crate::registry::{Guest, Registry};
use crate::status;
use crate::tenant::Tenant;
use deepres_abi::wire::{self, Hello, Notice};
use deepres_model::admin::{Reply, Request, Status};
use deepres_model::packet;
use deepres_model::text::harmless;
use deepres_policy::TenantId;
use rustix::fs::{MemfdFlags, memfd_create};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use zerocopy::IntoBytes;

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
    let name = wire::text(&hello.tenant).unwrap_or_default();
    if !name.is_empty() {
        let is_seen = {
            let registry = shared.registry.borrow();
            registry.tenancy.tenants().get(name).is_some_and(|tenant| sight.has(tenant))
        };
        return match is_seen {
            true => {
                let question = Request::Explain { tenant: name.to_owned() };
                administrators::answer(question, shared, &|| false).await
            }
            false => Reply::Error { message: format!("you have no tenant `{}`", harmless(name)) },
        };
    }
    match status::recent(shared).await {
        Some(status) => {
            let registry = shared.registry.borrow();
            let seen = registry.tenancy.tenants().iter().filter(|(_, tenant)| sight.has(tenant));
            let seen: BTreeSet<&str> = seen.map(|(name, _)| name).collect();
            let mut status = part(Status::clone(&status), |name| seen.contains(name));
            let is_whole = matches!(sight.reach, Reach::User);
            status.waiting.retain(|job| job.uid == sight.user && is_whole);
            Reply::Status(Box::new(status))
        }
        None => administrators::no_answer(),
    }
}

/// The tenants that a process may see: its own tenant, and of the tenants of one user, those within
/// reach.
#[derive(Debug)]
struct Sight {
    /// The tenant to which the process belongs if it gives no name. This may be a tenant of root.
    own: Option<TenantId>,
    /// The user of the process, or the user who made its user namespace.
    user: u32,
    reach: Reach,
}

/// The part of a user's tenants that a process may see.
#[derive(Debug)]
enum Reach {
    /// All tenants of the user.
    User,
    /// The tenants of a container or pod with this cgroup, because root of one container is not
    /// root of another.
    Place(String),
    /// The tenants of this namespace: the tenants whose names apply only there, and the process
    /// trees whose roots are there. A process of a subordinate user does not have the user's
    /// rights, and root of a container is not root of the host.
    Namespace(Namespace),
}

impl Sight {
    /// Returns the tenants that a process may see.
    fn of(guest: &Guest, registry: &Registry) -> Self {
        let (finder, facts) = (registry.finder(), &guest.facts);
        let reach = match (finder.container_of(facts), finder.namespace_of(facts)) {
            (Some(place), _) => Reach::Place(place.path.clone()),
            (None, Some(namespace)) => Reach::Namespace(namespace),
            (None, None) => Reach::User,
        };
        let own = finder.nameless_tenant_of(guest).map(|tenant| tenant.id);
        Self { own, user: facts.owner, reach }
    }

    /// Returns whether the process may see a tenant.
    fn has(&self, tenant: &Tenant) -> bool {
        self.own == Some(tenant.id) || tenant.owner.user == self.user && self.reach.has(tenant)
    }
}

impl Reach {
    fn has(&self, tenant: &Tenant) -> bool {
        match (self, &tenant.owner.key) {
            (Self::User, _) => true,
            (Self::Place(path), _) => tenant.owner.place.as_ref() == Some(path),
            // The kernel reuses the numbers of namespaces. A deserted tenant may be of an earlier
            // namespace with this number.
            (Self::Namespace(namespace), Key::Name { place: Some(place), .. }) => {
                *place == namespace.path() && !tenant.is_deserted()
            }
            (Self::Namespace(namespace), Key::Tree(root)) => namespace.has(*root),
            (Self::Namespace(_), _) => false,
        }
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
    use crate::identity::source::Source;
    use crate::identity::tree::Process;
    use crate::identity::{Facts, ROOT, cgroup, read};
    use crate::shm::{SharedPage, Writer};
    use crate::state::{SavedSession, SavedTenant, State};
    use deepres_abi::beat::BeatPage;
    use deepres_model::admin::{
        AccountStatus, GpuStatus, LateStatus, MeteredStatus, RequestStatus, TenantStatus, UnmanagedStatus,
    };
    use deepres_model::config::Config;
    use deepres_model::peer::Peer;
    use deepres_model::process::ProcessKey;
    use std::os::unix::fs::MetadataExt;
    use std::process::Command;
    use std::sync::Arc;

    /// Returns a tenant of this user that the daemon awaits. The tenant's name applies at `place`.
    fn tenant(name: &str, uid: u32, place: Option<&str>) -> SavedTenant {
        let (name, place) = (name.to_owned(), place.map(str::to_owned));
        let key = Some(Key::Name { user: uid, name: name.clone(), place });
        SavedTenant { name, uid, key, is_here: true, ..SavedTenant::default() }
    }

    /// Returns the tenant `mine` of this user, to which this process belongs.
    fn mine(uid: u32) -> SavedTenant {
        let process = ProcessKey::of(std::process::id()).unwrap();
        let session = SavedSession { process, at_ns: None, meters: Vec::new() };
        SavedTenant { sessions: vec![session], ..tenant("mine", uid, None) }
    }

    /// Returns the facts about this process, as if it had this user and were in this user
    /// namespace.
    fn facts(user: u32, owner: u32, namespace: Option<u64>) -> Facts {
        let own = read::process(std::process::id()).unwrap();
        Facts {
            pid: own.pid,
            process: Some(Process { user, ..own }),
            place: None,
            owner,
            namespace: namespace.map(Namespace::User),
            namespaces: namespace.into_iter().collect(),
        }
    }

    /// Returns the names of those of these tenants that a process with these facts may see.
    fn seen(facts: Facts, tenants: Vec<SavedTenant>) -> String {
        let beat = SharedPage::<BeatPage>::create("deepres-test", Writer::Controller).unwrap();
        let mut registry = Registry::new(Config::default(), Gpus::default(), Arc::new(beat));
        registry.restore(&State::new("boot", 1, Vec::new(), tenants)).unwrap();
        let user = facts.process.as_ref().unwrap().user;
        let (peer, source) = (Peer { pid: facts.pid, uid: user, gid: user }, Source::User(facts.owner));
        let guest = Guest { peer, groups: Vec::new(), facts, source, allotment: None };
        let sight = Sight::of(&guest, &registry);
        let seen = registry.tenancy.tenants().iter().filter(|(_, tenant)| sight.has(tenant));
        let names: Vec<&str> = seen.map(|(name, _)| name).collect();
        names.join(" ")
    }

    #[test]
    fn a_subordinate_user_sees_its_own_tenant_and_those_of_its_namespace_alone() {
        let of = |user: u32, owner: u32, namespace: Option<u64>| {
            let tenants = vec![
                mine(owner),
                tenant("outside", owner, None),
                tenant("inside", owner, Some("user:[4711]")),
                tenant("elsewhere", owner, Some("user:[4712]")),
                tenant("other", owner + 1, None),
            ];
            seen(facts(user, owner, namespace), tenants)
        };
        let all = "elsewhere inside mine outside";
        assert_eq!(of(1000, 1000, None), all);
        assert_eq!(of(1000, 1000, Some(4711)), all, "the user's own process in the user's namespace");
        assert_eq!(of(100_033, 1000, Some(4711)), "inside mine");
        assert_eq!(of(100_033, 1000, Some(4713)), "mine");
        assert_eq!(of(100_000, ROOT, Some(4711)), "inside mine", "root of root's container");
        assert_eq!(of(ROOT, ROOT, None), all);
    }

    #[test]
    fn a_process_that_dropped_roots_rights_sees_its_own_tenant_of_root() {
        let of = |user: u32, namespace: Option<u64>| {
            let tenants = vec![mine(ROOT), tenant("roots", ROOT, None), tenant("users", 1000, None)];
            seen(facts(user, 1000, namespace), tenants)
        };
        assert_eq!(of(1000, None), "mine users");
        assert_eq!(of(100_033, Some(4711)), "mine");
    }

    #[test]
    fn a_deserted_tenant_of_an_earlier_namespace_with_the_same_number_is_not_seen() {
        let left = SavedTenant { is_here: false, ..tenant("left", ROOT, Some("user:[4711]")) };
        let tenants = vec![left, tenant("inside", ROOT, Some("user:[4711]"))];
        assert_eq!(seen(facts(100_000, ROOT, Some(4711)), tenants), "inside");
    }

    #[test]
    fn root_of_a_namespace_sees_the_process_trees_in_there_while_their_roots_live() {
        let here = std::fs::metadata("/proc/self/ns/user").unwrap().ino();
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let key = Some(Key::Tree(ProcessKey::of(child.id()).unwrap()));
        let of = |namespace: u64| {
            let tree = SavedTenant { key: key.clone(), ..tenant("sleep", ROOT, None) };
            seen(facts(100_000, ROOT, Some(namespace)), vec![tree])
        };
        assert_eq!((of(here).as_str(), of(here + 1).as_str()), ("sleep", ""));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(of(here), "");
    }

    #[test]
    fn a_process_in_a_container_or_pod_sees_the_tenants_at_its_path_alone() {
        let place = |path: &str| cgroup::place(&format!("0::{path}")).unwrap();
        let scope = |digit: &str| format!("/docker-{}.scope", digit.repeat(64));
        let container = format!("/system.slice{}", scope("a"));
        // Root of another container made this cgroup.
        let forged = format!("/lxc.payload.box{}", scope("a"));
        let pod = format!("/kubepods/pod{}", "0".repeat(32));
        let of = |path: &str| {
            let at = |name: &str, path: &str| SavedTenant {
                container: place(path).container().cloned(),
                place: Some(path.to_owned()),
                ..tenant(name, ROOT, Some(path))
            };
            let tenants = vec![
                at("container", &container),
                at("forged", &forged),
                at("pod", &pod),
                at("pod-2", &pod),
                tenant("outside", ROOT, None),
            ];
            seen(Facts { place: Some(place(path)), ..facts(ROOT, ROOT, None) }, tenants)
        };
        assert_eq!((of(&container).as_str(), of(&forged).as_str()), ("container", "forged"));
        for inside in [String::new(), scope("a"), scope("b")] {
            assert_eq!(of(&format!("{pod}{inside}")), "pod pod-2", "a pod's containers trust each other");
        }
        assert_eq!(of("/slurm/uid_0/job_7"), "container forged outside pod pod-2");
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
