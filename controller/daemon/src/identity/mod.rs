//! Finds the tenant of a process. The first rule that applies decides:
//!
//! 1. the name that the process gives (`--name`, `DEEPRES_TENANT`);
//! 2. an ancestor: a descendant of a tenant's process belongs to that tenant, whatever its
//!    environment;
//! 3. the container or Kubernetes pod of the process ([`cgroup`]). If exactly one name applies
//!    there, the tenant of that name. If exactly one name applies in the namespace that confines
//!    the process, likewise the tenant of that name;
//! 4. the Slurm job of the process;
//! 5. the process tree of the process ([`tree`]).
//!
//! All rules but the first use facts of the kernel ([`read`]). A name is a wish, and applies to the
//! processes of one user. A name from a container or pod applies only inside this container or pod
//! ([`Names`]). All of root's containers have the same user, but do not trust each other.
//!
//! In the jobs of root's Slurm, the Slurm job comes before all other rules ([`of_job`]), unless the
//! configuration turns the check of claims off. Names then apply only in a job that has whole GPUs
//! by Slurm's answer, and only in this job.
//!
//! A process of root can start a process of another user, for example by `setpriv` or `gosu`. Such
//! a process is a descendant of root's tenant, and keeps the tenant's name. In a user namespace,
//! the users of processes are made up. So a descendant within a namespace keeps the tenant's name,
//! however often it changes its user.
//!
//! The [`Key`] identifies a tenant, not the name: two keys are two tenants. If two tenants ask for
//! the same name, one of them gets another name.

pub mod cgroup;
pub mod read;
pub mod source;
pub mod tree;

use cgroup::{Kind, Place};
use deepres_abi::wire::TENANT_NAME_BYTES;
use deepres_model::identity::{Container, Found};
use deepres_model::process::ProcessKey;
use deepres_model::slurm::JobName;
use deepres_model::text::harmless;
use read::Namespace;
use serde::{Deserialize, Serialize};
use tree::Process;

/// The key that distinguishes a tenant from all others.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Key {
    /// A name that processes of one user gave.
    Name {
        /// The user who owns the processes.
        user: u32,
        /// The name that the processes gave.
        name: String,
        /// The cgroup of the container or pod to which the name applies. `None`: the name applies
        /// to all processes of the user.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        place: Option<String>,
    },
    /// A container, pod or Slurm job, by its cgroup.
    Cgroup(String),
    /// A process tree, by its root.
    Tree(ProcessKey),
}

/// The result of the search for a process's tenant: the tenant's key and name, and the rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The tenant's key.
    pub key: Key,
    /// The tenant's name, unless another tenant has it.
    pub name: String,
    /// The rule by which the daemon found the tenant.
    pub found: Found,
}

/// Facts of the kernel about a process that asks for a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// The process's id.
    pub pid: u32,
    /// The process itself, with the user of its connection; `None` if the daemon could not look at
    /// the process.
    pub process: Option<Process>,
    /// The container, pod or batch job of the process.
    pub place: Option<Place>,
    /// The process's user, or the user who made its user namespace.
    pub owner: u32,
    /// The namespace below the daemon's own that confines the process ([`read::namespace`]).
    pub namespace: Option<Namespace>,
    /// The numbers of the process's user namespaces below the daemon's own, from the process's own
    /// to the outermost. Empty in the daemon's own, or if the kernel does not tell them.
    pub namespaces: Vec<u64>,
}

impl Facts {
    /// Returns the facts of the process that has this id now. `user` is the user that the process
    /// had when it connected. The process may have another user by now, for example the owner of a
    /// setuid program that it executes. But other processes may have the same connection, and get
    /// the answer. The caller checks afterwards that the id still belongs to the same process.
    pub fn read(pid: u32, user: u32) -> Self {
        let namespaces = read::namespaces(pid);
        Self {
            pid,
            process: read::process(pid).map(|process| Process { user, ..process }),
            place: read::place(pid),
            owner: namespaces.as_ref().map_or(user, |namespaces| namespaces.owner),
            namespace: read::namespace(pid),
            namespaces: namespaces.map(|namespaces| namespaces.numbers).unwrap_or_default(),
        }
    }

    /// Returns the container of the process.
    pub fn container(&self) -> Option<&Container> {
        self.place.as_ref()?.container()
    }

    /// Returns the path of the cgroup of the process's container, pod or batch job.
    pub fn path(&self) -> Option<&str> {
        self.place.as_ref().map(|place| place.path.as_str())
    }

    /// Returns whether the process has the rights of `owner` outside of its namespace too. A plain
    /// user's own processes have them, in any user namespace. Processes of subordinate users do not
    /// have them, and root of a container is not root outside. Root of a privileged container can
    /// take the id of any user.
    fn has_owners_rights(&self) -> bool {
        let is_owners = || self.process.as_ref().is_some_and(|process| process.user == self.owner);
        match self.namespace {
            None => true,
            Some(Namespace::User(_)) => self.owner != ROOT && is_owners(),
            Some(Namespace::Pid(_)) => false,
        }
    }
}

/// The rules that say to which processes a tenant's name applies.
#[derive(Debug, Clone, Copy)]
pub struct Names<'a> {
    /// Names that denote one tenant across all containers and other processes of a user.
    pub shared: &'a [String],
    /// The daemon's own place. A daemon in a container serves the processes of that container, and
    /// the container is the whole machine for them.
    pub home: Option<&'a Place>,
}

/// The extent of a name that does not apply to all processes of a user.
struct Extent {
    /// The cgroup of the container or pod, or the namespace.
    path: String,
    /// The name of the container, pod or namespace for display.
    name: String,
}

impl Names<'_> {
    /// Returns the container or pod to which this name applies, if a process with these facts gives
    /// the name. Returns `None` if the name applies to all processes of the user.
    ///
    /// Containers of other kinds (LXC, Incus, nspawn) have no cgroup that tells them apart safely.
    /// In such a container, the name applies in the namespace ([`Self::namespace_of`]).
    fn extent_of(self, name: &str, facts: &Facts) -> Option<Extent> {
        if self.shared.iter().any(|shared| shared == name) { None } else { self.confines(facts) }
    }

    /// Returns the container, pod or namespace that confines a process. Returns `None` for a
    /// process that nothing confines.
    fn confines(self, facts: &Facts) -> Option<Extent> {
        if let Some(place) = self.container_of(facts) {
            return Some(Extent { path: place.path.clone(), name: place.name() });
        }
        let namespace = self.namespace_of(facts)?;
        Some(Extent { path: namespace.path(), name: namespace.name() })
    }

    /// Returns the container or pod of a process, unless the daemon runs in it.
    pub fn container_of(self, facts: &Facts) -> Option<&Place> {
        let is_container = |place: &&Place| !matches!(place.kind, Kind::Slurm { .. });
        let is_home = |place: &&Place| self.home.is_some_and(|home| home.path == place.path);
        facts.place.as_ref().filter(is_container).filter(|place| !is_home(place))
    }

    /// Returns the namespace to which a process is confined. The names of such a process apply in
    /// the namespace alone, and it sees no other tenants but its own. Returns `None` for a process
    /// of a container or pod. In a plain user's user namespace, the user's own processes are not
    /// confined, because they have the user's rights outside too.
    pub fn namespace_of(self, facts: &Facts) -> Option<Namespace> {
        let is_confined = || !facts.has_owners_rights() && self.container_of(facts).is_none();
        facts.namespace.filter(|_| is_confined())
    }
}

/// The tenants that the daemon knows already, and the user namespaces of ancestors, as the search
/// for a tenant needs them.
pub trait Known {
    /// Returns the key and the name of the tenant to which a process belongs.
    fn tenant_of(&self, process: &Process) -> Option<(Key, String)>;

    /// Returns whether an ancestor's own user namespace is one of these.
    fn is_within(&self, _ancestor: &Process, _namespaces: &[u64]) -> bool {
        false
    }

    /// Returns whether a tenant of root has this name.
    fn is_of_root(&self, _name: &str) -> bool {
        false
    }

    /// Returns the key and the name of the only tenant whose name applies in the place at this
    /// path. Returns `None` if no name or several names apply there.
    fn named_within(&self, _path: &str) -> Option<(Key, String)> {
        None
    }
}

impl<F: Fn(&Process) -> Option<(Key, String)>> Known for F {
    fn tenant_of(&self, process: &Process) -> Option<(Key, String)> {
        self(process)
    }
}

/// Root's user number.
pub const ROOT: u32 = 0;

/// Returns the identity of a process that gives the name `claim` (empty: none). `ancestors` are the
/// ancestors of the process, its parent first. The function reads the ancestors only if a rule
/// needs them.
pub fn identify(
    claim: &str,
    facts: &Facts,
    names: Names<'_>,
    ancestors: impl Iterator<Item = Process>,
    known: impl Known,
) -> Identity {
    if !claim.is_empty() {
        return of_name(claim, facts, names, ancestors, &known);
    }
    let Some(process) = &facts.process else {
        return of_place(facts, names, &known).unwrap_or_else(|| Identity {
            key: Key::Tree(ProcessKey { pid: facts.pid, start_ticks: 0 }),
            name: format!("process-{}", facts.pid),
            found: Found::Tree { root: facts.pid },
        });
    };
    let own = std::iter::once(process.clone());
    let mut root = process.clone();
    let mut is_in_job = true;
    let is_of_job = |ancestor: &Process| may_start(ancestor, process, facts, &known);
    for ancestor in own.chain(ancestors).take_while(is_of_job) {
        if let Some((key, name)) = known.tenant_of(&ancestor) {
            return Identity { key, name, found: Found::Ancestor { pid: ancestor.pid } };
        }
        is_in_job &= ancestor.pid == process.pid || tree::belongs(&root, &ancestor);
        if is_in_job {
            root = ancestor;
        }
    }
    of_place(facts, names, &known).unwrap_or_else(|| of_tree(&root))
}

/// Returns whether a process may have started this descendant as a part of its own job. There are
/// three cases. Both have one user. The descendant dropped the rights of root, or of the user who
/// made its user namespace. The descendant is in the ancestor's own user namespace, or in a
/// namespace within it. No process can leave its namespace, so all processes between the two are
/// there too. The maker of the namespace has all rights over them, whichever users they have.
///
/// The namespaces count as they are now. An ancestor may have entered a further namespace after it
/// started the descendant. Then the descendant is not in the ancestor's own namespace, and the
/// users alone decide. The daemon would have to read all namespaces of each ancestor to find the
/// namespace that the two have in common.
fn may_start(ancestor: &Process, descendant: &Process, facts: &Facts, known: &impl Known) -> bool {
    [descendant.user, facts.owner, ROOT].contains(&ancestor.user)
        || !facts.namespaces.is_empty() && known.is_within(ancestor, &facts.namespaces)
}

/// Returns the tenant of a process that gives a name.
fn of_name(
    claim: &str,
    facts: &Facts,
    names: Names<'_>,
    ancestors: impl Iterator<Item = Process>,
    known: &impl Known,
) -> Identity {
    let extent = names.extent_of(claim, facts);
    let found = Found::Name { within: extent.as_ref().map(|extent| extent.name.clone()) };
    // A process that had a session returns to the same tenant, even if the rules have changed since
    // (another configuration, an older daemon). A process that a tenant's process starts in a
    // container under the same name, or as another user, also belongs to the tenant.
    let own = facts.process.iter().cloned();
    let is_of_job =
        |process: &Process| facts.process.as_ref().is_some_and(|own| may_start(process, own, facts, known));
    // Reading an ancestor from the kernel takes longer than all other work of this function.
    let is_inside = !facts.namespaces.is_empty();
    let matter = extent.is_some() || is_inside || facts.owner != ROOT && known.is_of_root(claim);
    let ancestors = matter.then_some(ancestors).into_iter().flatten();
    let line = own.chain(ancestors.take_while(is_of_job));
    let is_named = |key: &Key| matches!(key, Key::Name { name, .. } if name == claim);
    let found_tenant = line.filter_map(|process| known.tenant_of(&process)).find(|(key, _)| is_named(key));
    let (key, name) = found_tenant.unwrap_or_else(|| {
        let name = claim.to_owned();
        (Key::Name { user: facts.owner, name: name.clone(), place: extent.map(|extent| extent.path) }, name)
    });
    Identity { key, name, found }
}

/// Returns the identity of a process of a batch job: the job's tenant, or the tenant of the name
/// `claim` within the job. Returns `None` for any other process. `number` is the job's number, if
/// Slurm has told it.
pub fn of_job(claim: &str, facts: &Facts, number: Option<u32>) -> Option<Identity> {
    let place = facts.place.as_ref()?;
    let job = place.job()?.clone();
    let (job, path) = (number.map_or(job, JobName::Number), place.path.clone());
    let name = Kind::Slurm { job: job.clone() }.name();
    if claim.is_empty() || claim == name {
        return Some(Identity { key: Key::Cgroup(path), name, found: Found::Slurm { job } });
    }
    let key = Key::Name { user: facts.owner, name: claim.to_owned(), place: Some(path) };
    Some(Identity { key, name: claim.to_owned(), found: Found::Name { within: Some(name) } })
}

/// Returns the tenant of a process by the place of the process. The only name that applies where
/// the process is confined comes first.
fn of_place(facts: &Facts, names: Names<'_>, known: &impl Known) -> Option<Identity> {
    if let Some(extent) = names.confines(facts)
        && let Some((key, name)) = known.named_within(&extent.path)
    {
        return Some(Identity { key, name, found: Found::Name { within: Some(extent.name) } });
    }
    let place = facts.place.as_ref()?;
    let found = match &place.kind {
        Kind::Container(_) => Found::Container,
        Kind::Pod { .. } => Found::Pod,
        Kind::Slurm { job } => Found::Slurm { job: job.clone() },
    };
    Some(Identity { key: Key::Cgroup(place.path.clone()), name: place.name(), found })
}

fn of_tree(root: &Process) -> Identity {
    Identity {
        key: Key::Tree(root.key()),
        name: harmless(&root.to_string()),
        found: Found::Tree { root: root.pid },
    }
}

/// Returns `name` if it is not `taken`. Otherwise appends the first number that makes a free name.
/// The result fits into the field for names.
pub fn free_name(name: &str, taken: impl Fn(&str) -> bool) -> String {
    let with = |suffix: &str| {
        let mut end = name.len().min(TENANT_NAME_BYTES - 1 - suffix.len());
        while !name.is_char_boundary(end) {
            end -= 1;
        }
        format!("{}{suffix}", &name[..end])
    };
    let numbered = (2u64..).map(|number| with(&format!("-{number}")));
    std::iter::once(with("")).chain(numbered).find(|name| !taken(name)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32, parent: u32, command: &str) -> Process {
        Process {
            pid,
            parent,
            group: pid,
            session: pid,
            has_terminal: false,
            start_ticks: u64::from(pid) * 10,
            user: 1000,
            command: command.to_owned(),
        }
    }

    fn facts(cgroup: &str) -> Facts {
        Facts {
            pid: 30,
            process: Some(process(30, 20, "python3")),
            place: cgroup::place(cgroup),
            owner: 1000,
            namespace: None,
            namespaces: Vec::new(),
        }
    }

    fn ancestors() -> impl Iterator<Item = Process> {
        [process(20, 10, "torchrun"), process(10, 1, "run.sh"), process(1, 0, "systemd")].into_iter()
    }

    fn strangers(_: &Process) -> Option<(Key, String)> {
        None
    }

    const DOCKER: &str =
        "0::/system.slice/docker-4c01b2a3f9d7c5e8b6a4123456789abcdef0123456789abcdef0123456789abc.scope";

    #[test]
    fn a_process_has_the_rights_of_the_user_that_it_had_when_it_connected() {
        // The process connected as a subordinate user, and has the user of the owner by now.
        let owner = rustix::process::geteuid().as_raw();
        let facts = Facts::read(std::process::id(), owner + 1);
        assert_eq!(facts.process.as_ref().map(|process| process.user), Some(owner + 1));
        let inside = Facts { owner, place: None, namespace: Some(Namespace::User(4711)), ..facts };
        assert_eq!(NO_RULE.namespace_of(&inside), Some(Namespace::User(4711)));
    }

    #[test]
    fn nobody_looks_at_the_ancestors_of_a_process_on_the_host_that_gives_a_name() {
        let unread =
            std::iter::from_fn(|| -> Option<Process> { panic!("that takes longer than all the rest") });
        assert_eq!(identify("train", &facts("0::/"), NO_RULE, unread, strangers).name, "train");
    }

    const NO_RULE: Names<'_> = Names { shared: &[], home: None };

    fn key(name: &str, place: Option<&str>) -> Key {
        Key::Name { user: 1000, name: name.to_owned(), place: place.map(str::to_owned) }
    }

    #[test]
    fn a_name_comes_before_everything_and_holds_within_its_user() {
        let kin = |_: &Process| Some((Key::Cgroup("x".into()), "other".to_owned()));
        let named = identify("train", &facts("0::/"), NO_RULE, ancestors(), kin);
        assert_eq!((&named.key, named.name.as_str()), (&key("train", None), "train"));
        let other = Facts { owner: 1001, ..facts("0::/") };
        assert_ne!(identify("train", &other, NO_RULE, ancestors(), kin).key, named.key);
    }

    #[test]
    fn a_name_that_is_given_in_a_container_or_pod_holds_in_there_alone_unless_it_is_shared() {
        let named = |cgroup: &str, names| identify("train", &facts(cgroup), names, ancestors(), strangers);
        let (container, other) = (DOCKER, DOCKER.replacen("4c01", "4c02", 1));
        let pod = format!("0::/kubepods/pod{}/{}", "0".repeat(32), "1".repeat(64));
        let sibling = pod.replace(&"1".repeat(64), &"2".repeat(64));
        let slurm = "0::/system.slice/slurmstepd.scope/job_7/step_1/user/task_0";

        let found = named(container, NO_RULE);
        assert_eq!(found.key, key("train", container.strip_prefix("0::")));
        assert_eq!(found.found, Found::Name { within: Some("docker-4c01b2a3f9d7".to_owned()) });
        assert_ne!(named(&other, NO_RULE).key, found.key);
        assert_eq!(
            named(&pod, NO_RULE).key,
            named(&sibling, NO_RULE).key,
            "containers of one pod trust each other"
        );
        assert_ne!(named(&pod, NO_RULE).key, named("0::/", NO_RULE).key);
        assert_eq!(named(slurm, NO_RULE).key, key("train", None), "a batch job is no container");

        let shared = ["other".to_owned(), "train".to_owned()];
        let names = Names { shared: &shared, home: None };
        for place in [container, &other, &pod, "0::/"] {
            let found = named(place, names);
            assert_eq!(
                (found.key, found.found),
                (key("train", None), Found::Name { within: None }),
                "{place}"
            );
        }
        // A daemon in the container serves that container's processes.
        let home = cgroup::place(container);
        let names = Names { shared: &[], home: home.as_ref() };
        assert_eq!(named(container, names).key, key("train", None));
        assert_ne!(named(&other, names).key, key("train", None));
    }

    #[test]
    fn a_process_of_a_batch_job_belongs_to_the_job_or_to_a_name_within_the_job() {
        let path = "/slurm/uid_1000/job_7";
        let facts = facts(&format!("0::{path}/step_batch"));
        for claim in ["", "slurm-7"] {
            let found = of_job(claim, &facts, None).unwrap();
            assert_eq!((found.key, found.name.as_str()), (Key::Cgroup(path.to_owned()), "slurm-7"));
            assert_eq!(found.found, Found::Slurm { job: JobName::Number(7) });
        }
        let named = of_job("sweep", &facts, None).unwrap();
        assert_eq!((named.key, named.name.as_str()), (key("sweep", Some(path)), "sweep"));
        assert_eq!(named.found, Found::Name { within: Some("slurm-7".to_owned()) });
        assert_eq!(of_job("sweep", &Facts { place: cgroup::place(DOCKER), ..facts }, Some(7)), None);
    }

    #[test]
    fn a_job_that_slurm_names_by_a_sluid_has_its_number_when_slurm_told_it() {
        let path = "/system.slice/slurmstepd.scope/sEKNKTV3WPV500";
        let facts = facts(&format!("0::{path}/step_0/user/task_0"));
        let key = || Key::Cgroup(path.to_owned());
        for (claim, number, name) in
            [("", None, "slurm-sEKNKTV3WPV500"), ("", Some(7), "slurm-7"), ("slurm-7", Some(7), "slurm-7")]
        {
            let found = of_job(claim, &facts, number).unwrap();
            assert_eq!((found.key, found.name.as_str()), (key(), name));
        }
        let named = of_job("sweep", &facts, Some(7)).unwrap();
        assert_eq!(named.found, Found::Name { within: Some("slurm-7".to_owned()) });
    }

    #[test]
    fn a_name_in_a_namespace_holds_in_there_alone_unless_a_plain_user_gives_it_in_its_own() {
        let inside =
            |owner| Facts { owner, namespace: Some(Namespace::User(4711)), ..facts("0::/lxc.payload.box") };
        let as_user = |user, facts: Facts| {
            let process = facts.process.map(|process| Process { user, ..process });
            Facts { process, ..facts }
        };
        let named = |facts: &Facts| identify("prod", facts, NO_RULE, std::iter::empty(), strangers).key;
        let of = |user, place: Option<&str>| Key::Name {
            user,
            name: "prod".to_owned(),
            place: place.map(str::to_owned),
        };
        assert_eq!(named(&inside(0)), of(0, Some("user:[4711]")));
        assert_eq!(named(&as_user(0, inside(0))), of(0, Some("user:[4711]")), "root's container");
        assert_eq!(named(&inside(1000)), of(1000, None), "the maker of the namespace is its user");
        assert_eq!(named(&as_user(SUBORDINATE, inside(1000))), of(1000, Some("user:[4711]")));
        assert_eq!(named(&Facts { owner: 0, ..facts("0::/") }), of(0, None));
        let privileged = |user| {
            let namespace = Some(Namespace::Pid(4711));
            as_user(user, Facts { owner: user, namespace, ..facts("0::/lxc.payload.box") })
        };
        for user in [0, 1000] {
            let named = named(&privileged(user));
            assert_eq!(named, of(user, Some("pid:[4711]")), "root inside can become user {user}");
        }
        let line = ancestors().map(|process| Process { user: ROOT, ..process });
        let kin = |process: &Process| (process.pid == 10).then(|| (of(0, None), "prod".to_owned()));
        let started = identify("prod", &privileged(0), NO_RULE, line, kin);
        assert_eq!(started.key, of(0, None), "a process of the tenant started the container");
    }

    /// A user of a namespace, as the machine sees it (subuid(5)).
    const SUBORDINATE: u32 = 100_033;

    #[test]
    fn a_process_that_drops_to_a_subordinate_user_in_a_user_namespace_stays_in_its_starters_tenant() {
        let dropped = Process { user: SUBORDINATE, ..process(30, 20, "python3") };
        let inside =
            Facts { process: Some(dropped), namespace: Some(Namespace::User(4711)), ..facts("0::/") };
        let kin = |process: &Process| (process.pid == 10).then(|| (key("train", None), "train".to_owned()));
        for claim in ["train", ""] {
            let found = |user| {
                let line = ancestors().map(move |process| Process { user, ..process });
                identify(claim, &inside, NO_RULE, line, kin).key
            };
            assert_eq!(found(1000), key("train", None), "`{claim}`");
            assert_ne!(found(1001), key("train", None), "`{claim}` below another user");
        }
    }

    /// The processes of a chain: a tenant, its process, and the first process outside of the user
    /// namespace of the others.
    struct Chain {
        tenant: Key,
        member: u32,
        outside: u32,
    }

    impl Known for Chain {
        fn tenant_of(&self, process: &Process) -> Option<(Key, String)> {
            (process.pid == self.member).then(|| (self.tenant.clone(), "train".to_owned()))
        }

        fn is_within(&self, ancestor: &Process, namespaces: &[u64]) -> bool {
            namespaces.contains(&4711) && ancestor.pid > self.outside
        }
    }

    #[test]
    fn a_process_that_changes_its_user_again_and_again_in_a_user_namespace_stays_in_its_tenant() {
        // From 10 to 30: processes with these users. Process 10 is outside of the namespace.
        let found = |claim: &str, owner: u32, users: [u32; 3], member: u32, tenant: Key| {
            let [outer, middle, inner] = users;
            let own = Process { user: inner, ..process(30, 20, "python3") };
            let line = [process(20, 10, "helper"), process(10, 1, "run.sh"), process(1, 0, "systemd")];
            let line = line.into_iter().zip([middle, outer, ROOT]);
            let line = line.map(|(process, user)| Process { user, ..process });
            let inside =
                Facts { process: Some(own), owner, namespace: Some(Namespace::User(4712)), ..facts("0::/") };
            let inside = Facts { namespaces: vec![4712, 4711], ..inside };
            identify(claim, &inside, NO_RULE, line, Chain { tenant, member, outside: 10 }).key
        };
        let (one, other) = (SUBORDINATE, SUBORDINATE + 1);
        let train = || key("train", None);
        let within = || key("train", Some("user:[4711]"));
        for claim in ["train", ""] {
            // The user's process outside, a subordinate user, another subordinate user.
            assert_eq!(found(claim, 1000, [1000, one, other], 10, train()), train(), "`{claim}`");
            // A subordinate user's process starts a helper of the namespace's root.
            assert_eq!(found(claim, 1000, [1000, one, 1000], 20, within()), within(), "`{claim}`");
            // Root's container, whose own root starts the processes of other users.
            assert_eq!(found(claim, ROOT, [ROOT, one, other], 20, within()), within(), "`{claim}`");
            // Another user's process outside started the namespace's owner.
            assert_ne!(found(claim, 1000, [1001, one, other], 10, train()), train(), "`{claim}`");
        }
        // Another name is another tenant.
        assert_ne!(found("eval", 1000, [1000, one, other], 10, train()), train());
    }

    #[test]
    fn a_process_of_a_tenant_of_its_name_stays_so_and_so_do_processes_that_it_starts_in_a_container() {
        let of = |pid: u32, known: Key| {
            move |process: &Process| (process.pid == pid).then(|| (known.clone(), "train-2".to_owned()))
        };
        // The key that an older daemon used.
        let back = identify("train", &facts(DOCKER), NO_RULE, ancestors(), of(30, key("train", None)));
        assert_eq!((back.key, back.name.as_str()), (key("train", None), "train-2"));
        let started = identify("train", &facts(DOCKER), NO_RULE, ancestors(), of(10, key("train", None)));
        assert_eq!(started.key, key("train", None));
        // Another name is another tenant.
        let other = identify("eval", &facts(DOCKER), NO_RULE, ancestors(), of(10, key("train", None)));
        assert_eq!(other.key, key("eval", DOCKER.strip_prefix("0::")));
    }

    #[test]
    fn keys_of_older_state_files_are_read_as_they_were_meant() {
        let read: Key = serde_json::from_str(r#"{"name":{"user":1000,"name":"train"}}"#).unwrap();
        assert_eq!(read, key("train", None));
        let placed = key("train", Some("/docker/4711"));
        let text = serde_json::to_string(&placed).unwrap();
        assert_eq!(serde_json::from_str::<Key>(&text).unwrap(), placed);
        assert_eq!(serde_json::from_str::<Found>(r#"{"by":"name"}"#).unwrap(), Found::Name { within: None });
    }

    #[test]
    fn a_descendant_of_a_tenants_process_belongs_to_it_but_not_to_one_of_the_same_number() {
        let kin = |process: &Process| {
            let is_it = (process.pid, process.start_ticks) == (10, 100);
            is_it.then(|| (key("nightly", None), "nightly".to_owned()))
        };
        let found = identify("", &facts("0::/"), NO_RULE, ancestors(), kin);
        assert_eq!((found.name.as_str(), found.found), ("nightly", Found::Ancestor { pid: 10 }));
        let reused = ancestors().map(|process| Process { start_ticks: process.start_ticks + 1, ..process });
        assert_eq!(identify("", &facts("0::/"), NO_RULE, reused, kin).name, "run.sh-10");
    }

    /// The tenants of a registry with one tenant of root, and one named tenant each in a container
    /// and in a namespace.
    struct Registered;

    impl Known for Registered {
        fn tenant_of(&self, process: &Process) -> Option<(Key, String)> {
            (process.pid == 10).then(|| (of_root(), "job".to_owned()))
        }

        fn is_of_root(&self, name: &str) -> bool {
            name == "job"
        }

        fn named_within(&self, path: &str) -> Option<(Key, String)> {
            let is_there = DOCKER.strip_prefix("0::") == Some(path) || path == NAMED_NAMESPACE.path();
            is_there.then(|| (key("train", Some(path)), "train".to_owned()))
        }
    }

    /// The namespace with a named tenant.
    const NAMED_NAMESPACE: Namespace = Namespace::User(4711);

    fn of_root() -> Key {
        Key::Name { user: 0, name: "job".to_owned(), place: None }
    }

    #[test]
    fn a_process_that_drops_roots_rights_stays_in_roots_tenant_and_one_that_gains_rights_does_not() {
        let line = |users: [u32; 2]| {
            let line = [(20, 10), (10, 1)].map(|(pid, parent)| process(pid, parent, "sh"));
            line.into_iter().zip(users).map(|(process, user)| Process { user, ..process })
        };
        for claim in ["job", ""] {
            for users in [[1000, 0], [0, 0]] {
                let found = identify(claim, &facts("0::/"), NO_RULE, line(users), Registered);
                assert_eq!(found.key, of_root(), "`{claim}` below {users:?}");
            }
            for users in [[1000, 1001], [1001, 0]] {
                let found = identify(claim, &facts("0::/"), NO_RULE, line(users), Registered);
                assert_ne!(found.key, of_root(), "`{claim}` below {users:?}");
            }
        }
        let other = identify("other", &facts("0::/"), NO_RULE, line([0, 0]), Registered);
        assert_eq!(other.key, key("other", None), "a process with another name is another tenant");
    }

    #[test]
    fn a_process_that_gives_no_name_in_a_container_with_one_name_has_that_name() {
        let found = identify("", &facts(DOCKER), NO_RULE, std::iter::empty(), Registered);
        assert_eq!(found.key, key("train", DOCKER.strip_prefix("0::")));
        assert_eq!(found.found, Found::Name { within: Some("docker-4c01b2a3f9d7".to_owned()) });
        let other = DOCKER.replacen("4c01", "4c02", 1);
        let found = identify("", &facts(&other), NO_RULE, std::iter::empty(), Registered);
        assert_eq!(found.found, Found::Container);
    }

    #[test]
    fn a_process_that_gives_no_name_in_a_confining_namespace_with_one_name_has_that_name() {
        let found = |namespace, user| {
            let process = Process { user, ..process(30, 20, "python3") };
            let facts = facts("0::/lxc.payload.box");
            let facts = Facts { process: Some(process), namespace: Some(namespace), ..facts };
            identify("", &facts, NO_RULE, std::iter::empty(), Registered)
        };
        let inside = found(NAMED_NAMESPACE, SUBORDINATE);
        assert_eq!(inside.key, key("train", Some("user:[4711]")));
        assert_eq!(inside.found, Found::Name { within: Some("user-namespace-4711".to_owned()) });
        // No name applies in another namespace, and a plain user's own process is not confined.
        for (namespace, user) in [(Namespace::User(4712), SUBORDINATE), (NAMED_NAMESPACE, 1000)] {
            assert_eq!(found(namespace, user).found, Found::Tree { root: 30 }, "{namespace:?} {user}");
        }
    }

    #[test]
    fn then_come_container_batch_job_and_tree() {
        let found = |cgroup: &str| identify("", &facts(cgroup), NO_RULE, ancestors(), strangers);
        assert_eq!(
            (found(DOCKER).name.as_str(), found(DOCKER).found),
            ("docker-4c01b2a3f9d7", Found::Container)
        );
        let slurm = found("0::/system.slice/slurmstepd.scope/job_7/step_1/user/task_0");
        let job = JobName::Number(7);
        assert_eq!((slurm.name.as_str(), slurm.found), ("slurm-7", Found::Slurm { job }));
        let step = found("0::/system.slice/slurmstepd.scope/job_7/step_2/user/task_0");
        assert_eq!(slurm.key, step.key, "steps belong to their job");
        let tree = found("0::/user.slice/session-1.scope");
        assert_eq!((tree.name.as_str(), &tree.found), ("run.sh-10", &Found::Tree { root: 10 }));
        assert_eq!(tree.key, Key::Tree(ProcessKey { pid: 10, start_ticks: 100 }));
    }

    #[test]
    fn a_process_that_cannot_be_looked_at_is_a_tenant_all_the_same() {
        let blind = Facts { process: None, place: None, ..facts("0::/") };
        assert_eq!(identify("", &blind, NO_RULE, std::iter::empty(), strangers).name, "process-30");
        let contained = Facts { place: cgroup::place(DOCKER), ..blind };
        assert_eq!(identify("", &contained, NO_RULE, std::iter::empty(), strangers).found, Found::Container);
    }

    #[test]
    fn names_that_are_taken_get_a_number_and_still_fit() {
        assert_eq!(free_name("train", |_| false), "train");
        assert_eq!(free_name("train", |name| name == "train" || name == "train-2"), "train-3");
        let long = free_name(&"é".repeat(100), |name| !name.ends_with("-2"));
        assert!(long.ends_with("é-2") && long.len() < TENANT_NAME_BYTES, "{long}");
    }
}
