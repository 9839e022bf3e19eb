//! Real cgroups, with the layouts of Docker, Kubernetes' runtimes and Slurm. By the kernel's
//! report, the daemon makes the processes in one cgroup one tenant.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use deepres_e2e::prelude::*;
use deepres_model::admin::Request;
use deepres_model::admin::client::Client;
use deepres_model::allocation::{Allocation, Token};
use deepres_model::directory::Directory;

/// Mount points of cgroup hierarchies: version 1 with one controller, and version 2 beside version
/// 1 or alone.
const V1: &str = "/sys/fs/cgroup/pids";
const V2: [&str; 2] = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"];
/// File that every cgroup has. A process id written to it moves that process into the cgroup.
const PROCESSES: &str = "cgroup.procs";

/// Returns the mounted hierarchies.
pub fn hierarchies() -> Vec<&'static Path> {
    let v2 = V2.into_iter().map(Path::new).find(|path| path.join("cgroup.controllers").exists());
    let v1 = Some(Path::new(V1)).filter(|path| path.join(PROCESSES).exists());
    [v1, v2].into_iter().flatten().collect()
}

/// A cgroup of the test. Its creation also creates missing parents. Drop removes the created
/// folders, which contain no process by then.
pub struct Cgroup {
    path: PathBuf,
    made: Vec<PathBuf>,
}

impl Cgroup {
    /// Makes the cgroup at this path below a hierarchy.
    pub fn make(hierarchy: &Path, path: &str) -> Self {
        let path = hierarchy.join(path);
        let above = path.ancestors().take_while(|above| *above != hierarchy);
        let made: Vec<PathBuf> = above.filter(|above| !above.exists()).map(Path::to_owned).collect();
        fs::create_dir_all(&path).expect("root may make cgroups");
        Self { path, made }
    }

    /// Starts a client without a tenant's name in this cgroup, and returns its process.
    fn start(&self, host: &Host) -> Process {
        self.start_with(host, &[])
    }

    /// Does the same as [`Self::start`], with these variables.
    pub fn start_with(&self, host: &Host, variables: &[(&str, &str)]) -> Process {
        host.start(self.client(host, variables), "ready")
    }

    /// Returns the command that runs a client with these variables in this cgroup.
    fn client(&self, host: &Host, variables: &[(&str, &str)]) -> Command {
        let mut inside = host.preloaded("sh");
        inside
            .args(["-c", "echo $$ > \"$0\" && exec \"$1\""])
            .arg(self.path.join(PROCESSES))
            .arg(c_client("backlog"))
            .envs(variables.iter().copied());
        inside
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for path in &self.made {
            // The cgroup is busy for a moment after its last process ended. A parent is busy as
            // long as another test uses it.
            for _ in 0..50 {
                if fs::remove_dir(path).is_ok() {
                    break;
                }
                thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

#[test]
fn a_process_in_the_cgroup_of_a_container_a_pod_or_a_batch_job_belongs_to_its_tenant() {
    let own = std::process::id();
    let id = |kind: u32| format!("{kind:08x}{own:056x}");
    let uid = |kind: u32| format!("{kind:08x}-0000-4000-8000-{own:012x}");
    let docker = |kind| format!("docker-{}", &id(kind)[..12]);
    let slices = format!(
        "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{}.slice",
        uid(3).replace('-', "_")
    );
    // The cgroups of two processes, and the tenant that the daemon must find for both.
    let places = [
        ([format!("docker/{}", id(1)), format!("docker/{}/init", id(1))], docker(1)),
        ([(); 2].map(|()| format!("system.slice/docker-{}.scope", id(2))), docker(2)),
        (
            [4, 5].map(|container| format!("{slices}/cri-containerd-{}.scope", id(container))),
            format!("pod-{}", uid(3)),
        ),
        (
            [7, 8].map(|container| format!("kubepods/burstable/pod{}/{}", uid(6), id(container))),
            format!("pod-{}", uid(6)),
        ),
        ([0, 1].map(|step| format!("slurm/uid_1000/job_{own}/step_{step}")), format!("slurm-{own}")),
        (
            [0, 1].map(|step| format!("system.slice/slurmstepd.scope/job_1{own}/step_{step}/user/task_0")),
            format!("slurm-1{own}"),
        ),
    ];
    let hierarchies = hierarchies();
    assert!(!hierarchies.is_empty(), "no cgroups are mounted at {V1} or {V2:?}");
    for hierarchy in hierarchies {
        let (host, _daemon) = Host::new().with_daemon();
        for (paths, tenant) in &places {
            let cgroups = paths.each_ref().map(|path| Cgroup::make(hierarchy, path));
            let running = cgroups.each_ref().map(|cgroup| cgroup.start(&host));
            let both = |ps: &Ps| ps.find(tenant).is_some_and(|tenant| tenant.sessions.len() == 2);
            let ps = host.await_ps(both);
            let mut pids = ps.tenant(tenant).pids();
            pids.sort_unstable();
            let mut expected = running.each_ref().map(Process::pid);
            expected.sort_unstable();
            assert_eq!(pids, expected, "{tenant} in {}", hierarchy.display());
            for mut process in running {
                process.kill();
            }
        }
    }
}

#[test]
fn a_process_without_a_name_in_a_container_with_one_name_has_that_name() {
    let id = format!("{:08x}{:056x}", 9, std::process::id());
    let own = format!("docker-{}", &id[..12]);
    for hierarchy in hierarchies() {
        let (host, _daemon) = Host::new().with_daemon();
        let container = Cgroup::make(hierarchy, &format!("docker/{id}"));
        let train = [("DEEPRES_TENANT", "train"), ("DEEPRES_MEMORY", "1GiB")];
        let mut processes = vec![container.start_with(&host, &train), container.start(&host)];
        let ps = host.await_ps(|ps| ps.find("train").is_some_and(|train| train.sessions.len() == 2));
        assert_eq!(ps.tenants.len(), 1, "{ps:?}");
        // With two names in the container, neither is the name of the others.
        processes.push(container.start_with(&host, &[("DEEPRES_TENANT", "eval")]));
        processes.push(container.start(&host));
        let ps = host.await_ps(|ps| ps.find(&own).is_some_and(|own| own.sessions.len() == 1));
        assert_eq!(ps.tenant("train").sessions.len(), 2, "{ps:?}");
        processes.iter_mut().for_each(Process::kill);
    }
}

#[test]
fn a_pod_has_what_its_token_says_and_nothing_without_a_token() {
    let own = std::process::id();
    let path = |container: u32| format!("kubepods/pod{own:032x}/{container:08x}{own:056x}");
    for hierarchy in hierarchies() {
        let (host, _daemon) = Host::new().config("pods_need_token = true\n").with_daemon();
        let [with, without] = [1, 2].map(|container| Cgroup::make(hierarchy, &path(container)));
        let mut admin = Client::connect_to(&Directory::at(host.deepres_dir())).expect("the daemon runs");
        let gpus = admin.status().expect("the daemon answers").gpus;
        let allocation = Allocation {
            token: Token::of([7; 16]),
            share_ppm: 300_000,
            memory_bytes: GIB,
            gpus: vec![gpus[0].uuid.clone()],
            holder: None,
        };
        let token = allocation.token.as_str().to_owned();
        let allocate = Request::Allocate { allocation: Box::new(allocation) };
        admin.ask(&allocate).expect("the GPU has room");

        let greedy = [("DEEPRES_SHARE", "99%"), ("DEEPRES_MEMORY", "1TiB")];
        let done = host.finish(without.client(&host, &greedy));
        done.refused("needs the token of its allocation");
        done.refused("800");

        // Another process of the container has lost its variables, or made up others.
        let variables = [&greedy[..], &[("DEEPRES_TENANT", token.as_str())]].concat();
        let mut first = with.start_with(&host, &variables);
        let mut second = with.start_with(&host, &[&greedy[..], &[("DEEPRES_TENANT", "other")]].concat());
        let ps = host.await_ps(|ps| ps.tenants.iter().any(|tenant| tenant.sessions.len() == 2));
        let [tenant] = &ps.tenants[..] else { panic!("one tenant: {ps:?}") };
        assert_eq!(tenant.memory_limit_bytes, Some(GIB));
        host.await_ps(|ps| ps.tenants.iter().any(|tenant| tenant.entitled_ppm == 300_000));
        first.kill();
        second.kill();
    }
}
