//! A cluster of Debian's Slurm on this machine: one controller, and one node for each host.
//!
//! The cluster needs root and the packages `PACKAGES`, which `cargo xtask test --deep` installs.
//! The cluster talks on the loopback device only, with a key of its own.

use std::{
    fs,
    io::Read,
    net::TcpStream,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};

use rustix::{
    fs::{CWD, FileType, Mode, makedev, mknodat},
    process::Signal,
};

use crate::{
    Finished, Host, Process,
    artefacts::{artefacts, repository},
    host::{eventually_within, free_address},
    skip,
};

/// Packages that have to be installed.
const PACKAGES: &str = "slurmctld slurmd slurm-client munge";
/// Major number of the driver's devices. Slurm wants character devices, and nothing opens these.
const MAJOR: u32 = 195;
/// Beginning of the search path in the hooks that deepres ships.
const SHIPPED_PATH: &str = "PATH=/usr/local/bin";
/// Hierarchy of cgroups (version 1) in which Slurm keeps the processes of jobs.
const FREEZER: &str = "/sys/fs/cgroup/freezer";
/// Time within which the controller knows all nodes, however busy the machine is.
const START_LIMIT: Duration = Duration::from_secs(60);
/// The most looks for the end of cancelled jobs.
const LOOKS_FOR_END: u32 = 100;
/// Pause between two questions to the controller.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Bytes of the cluster's key.
const KEY_BYTES: usize = 1024;

/// A node: the name by which Slurm knows it, and the host whose GPUs it has.
pub struct Node<'host> {
    /// Name of the node.
    pub name: String,
    host: &'host Host,
    port: u16,
    slurmd: Option<Process>,
}

/// A Slurm cluster on this machine. Drop ends all its processes.
pub struct Cluster<'host> {
    folder: PathBuf,
    /// The nodes, in the order of the hosts.
    pub nodes: Vec<Node<'host>>,
    controller: Option<Process>,
    munge: Option<Process>,
}

impl<'host> Cluster<'host> {
    /// Writes the configuration of a cluster with a node for each host, and starts the cluster. If
    /// this user cannot, reports the test as skipped and returns `None`.
    pub fn start(hosts: &[&'host Host]) -> Option<Self> {
        if !skip::root_or_skipped() {
            return None;
        }
        // Several clusters can run on the machine.
        let prefix = format!("deepres-{}-", std::process::id());
        let nodes = hosts.iter().zip(1..).map(|(host, number)| Node {
            name: format!("{prefix}{number}"),
            host,
            port: free_address().port(),
            slurmd: None,
        });
        let folder = hosts.first().expect("a cluster has a node").path().join("slurm");
        let mut cluster = Self { folder, nodes: nodes.collect(), controller: None, munge: None };
        cluster.configure();
        let mut munged = cluster.command(0, "munged");
        let place = |name: &str| cluster.folder.join(name).display().to_string();
        munged.arg("--foreground").args([
            format!("--key-file={}", place("key")),
            format!("--socket={}", place("munge")),
            format!("--pid-file={}", place("munged.pid")),
            format!("--log-file={}", place("munged.log")),
            format!("--seed-file={}", place("munged.seed")),
        ]);
        cluster.munge = Some(cluster.nodes[0].host.spawn(munged));
        let socket = cluster.folder.join("munge");
        eventually_within("MUNGE listens", START_LIMIT, || socket.exists());
        let mut controller = cluster.command(0, "slurmctld");
        controller.args(["-D", "-c"]);
        cluster.controller = Some(cluster.nodes[0].host.spawn(controller));
        (0..cluster.nodes.len()).for_each(|node| cluster.start_slurmd(node));
        cluster.await_nodes();
        Some(cluster)
    }

    /// Returns the path of slurm.conf, for the variable `SLURM_CONF`.
    pub fn conf(&self) -> PathBuf {
        self.folder.join("slurm.conf")
    }

    /// Submits a batch job that runs on one node. Returns the job's number.
    #[track_caller]
    pub fn submit(&self, node: usize, options: &[&str], script: &str) -> u32 {
        let mut sbatch = self.command(node, "sbatch");
        let Node { name, host, .. } = &self.nodes[node];
        sbatch.args(["--parsable", "--nodelist", name, "--output"]).arg(host.path().join("job-%j.out"));
        sbatch.args(options).arg("--wrap").arg(script);
        host.finish(sbatch).success().stdout.trim().parse().expect("the job's number")
    }

    /// Returns everything that a job of a node has printed.
    pub fn output(&self, node: usize, job: u32) -> String {
        let file = self.nodes[node].host.path().join(format!("job-{job}.out"));
        fs::read_to_string(file).unwrap_or_default()
    }

    /// Runs one of Slurm's commands to its end. Returns its output.
    #[track_caller]
    pub fn call(&self, program: &str, arguments: &[&str]) -> Finished {
        self.try_call(program, arguments).success()
    }

    /// Runs one of Slurm's commands to its end, even if the command fails. Returns its output.
    pub fn try_call(&self, program: &str, arguments: &[&str]) -> Finished {
        let mut command = self.command(0, program);
        command.args(arguments);
        self.nodes[0].host.finish(command)
    }

    /// Ends the Slurm daemon of a node, and starts it anew. Running jobs go on.
    #[track_caller]
    pub fn restart_slurmd(&mut self, node: usize) {
        let Node { slurmd, port, .. } = &mut self.nodes[node];
        if let Some(slurmd) = slurmd {
            slurmd.signal(Signal::TERM);
            // If the signal comes while slurmd reads its configuration or begins to wait for a
            // connection, slurmd heeds the signal only after the next connection.
            eventually_within("slurmd ends", START_LIMIT, || {
                drop(TcpStream::connect(("127.0.0.1", *port)));
                slurmd.try_wait().is_some()
            });
        }
        self.start_slurmd(node);
        self.await_nodes();
    }

    /// Returns whether a node's cgroup of a job exists.
    pub fn has_cgroup(&self, node: usize, job: u32) -> bool {
        let of_node = Path::new(FREEZER).join(format!("slurm_{}", self.nodes[node].name));
        of_node.join(format!("uid_0/job_{job}")).exists()
    }

    fn start_slurmd(&mut self, node: usize) {
        let mut slurmd = self.command(node, "slurmd");
        slurmd.args(["-D", "-N", &self.nodes[node].name]);
        let Node { host, slurmd: started, .. } = &mut self.nodes[node];
        *started = Some(host.spawn(slurmd));
    }

    #[track_caller]
    fn await_nodes(&self) {
        let is_ready = |line: &str| ["idle", "mixed", "allocated"].contains(&line.trim());
        eventually_within("all nodes are ready", START_LIMIT, || {
            thread::sleep(LOOK_EVERY);
            let mut sinfo = self.command(0, "sinfo");
            sinfo.args(["--noheader", "--Node", "--format", "%T"]);
            let said = sinfo.output().unwrap_or_else(|error| panic!("sinfo: {error}; install {PACKAGES}"));
            let said = String::from_utf8_lossy(&said.stdout);
            said.lines().count() == self.nodes.len() && said.lines().all(is_ready)
        });
    }

    /// Returns a command in the environment of a node's host.
    fn command(&self, node: usize, program: &str) -> Command {
        let mut command = self.nodes[node].host.command(program);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("SLURM") {
                command.env_remove(name);
            }
        }
        command.env("SLURM_CONF", self.conf());
        command
    }

    /// Writes all files of the cluster.
    fn configure(&self) {
        let write = |name: &str, text: &[u8], mode: u32| {
            let path = self.folder.join(name);
            fs::write(&path, text).expect("a folder of our own");
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("a file of our own");
        };
        for folder in ["state", "spool", "log"] {
            fs::create_dir_all(self.folder.join(folder)).expect("a folder of our own");
        }
        let mut key = [0; KEY_BYTES];
        let random = fs::File::open("/dev/urandom").and_then(|mut random| random.read_exact(&mut key));
        random.expect("the kernel has random numbers");
        write("key", &key, 0o400);
        let mut devices = String::new();
        let mut lines = String::new();
        let mut directories = String::new();
        for node in &self.nodes {
            let folder = self.folder.join(&node.name);
            fs::create_dir_all(&folder).expect("a folder of our own");
            let options = ["slurm", "gres-conf", "--node-name", &node.name, "--devices"];
            let made = node.host.shows(&[&options[..], &[folder.to_str().expect("UTF-8")]].concat());
            let gpus = made.lines().filter(|line| line.contains(" Name=gpu ")).count();
            for gpu in 0..gpus {
                let mode = Mode::RUSR | Mode::WUSR;
                let path = folder.join(format!("nvidia{gpu}"));
                mknodat(CWD, path, FileType::CharacterDevice, mode, makedev(MAJOR, gpu as u32))
                    .expect("root may make devices");
            }
            devices += &made;
            lines += &format!(
                "NodeName={} NodeHostname=localhost NodeAddr=127.0.0.1 Port={} CPUs=64 RealMemory=1000 \
                 Gres=gpu:{gpus},shard:{}\n",
                node.name,
                node.port,
                100 * gpus
            );
            let directory = node.host.deepres_dir();
            directories += &format!("{}) export DEEPRES_DIR='{}';;\n", node.name, directory.display());
        }
        write("gres.conf", devices.as_bytes(), 0o644);
        let cgroups = match Path::new(FREEZER).exists() {
            true => "CgroupPlugin=cgroup/v1\nCgroupMountpoint=/sys/fs/cgroup\nCgroupAutomount=no\n",
            false => "CgroupPlugin=cgroup/v2\nIgnoreSystemd=yes\n",
        };
        write("cgroup.conf", cgroups.as_bytes(), 0o644);
        // The hooks are those that deepres ships. The hooks run this build's command. Slurm starts
        // the epilog with an environment of its own, which does not name the daemon of the test.
        let command = &artefacts().deepres;
        let folder_of_command = command.parent().unwrap_or_else(|| panic!("{}", command.display()));
        let own_path = format!("PATH={}:/usr/local/bin", folder_of_command.display());
        let shipped = |name: &str| {
            let path = repository().join("controller/deploy/slurm").join(name);
            let text =
                fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            text.replace(SHIPPED_PATH, &own_path)
        };
        write("task-prolog", shipped("task-prolog").as_bytes(), 0o755);
        let chosen = format!("#!/bin/sh\ncase $SLURMD_NODENAME in\n{directories}esac\n");
        write("epilog", (chosen + &shipped("epilog")).as_bytes(), 0o755);
        let folder = self.folder.display();
        let names: Vec<&str> = self.nodes.iter().map(|node| node.name.as_str()).collect();
        let conf = format!(
            "ClusterName=deepres\nSlurmctldHost=localhost(127.0.0.1)\nSlurmctldPort={}\nSlurmUser=root\nSlurmdUser=root\n\
             AuthType=auth/munge\nAuthInfo=socket={folder}/munge\nCredType=cred/munge\n\
             StateSaveLocation={folder}/state\nSlurmdSpoolDir={folder}/spool/%n\n\
             SlurmctldPidFile={folder}/slurmctld.pid\nSlurmdPidFile={folder}/slurmd-%n.pid\n\
             SlurmctldLogFile={folder}/log/slurmctld\nSlurmdLogFile={folder}/log/slurmd-%n\n\
             ProctrackType=proctrack/cgroup\nTaskPlugin=task/none\nMpiDefault=none\n\
             SelectType=select/cons_tres\nSelectTypeParameters=CR_CPU\nSlurmdParameters=config_overrides\n\
             SchedulerParameters=batch_sched_delay=0,sched_min_interval=0\nReturnToService=2\nKillWait=1\n\
             GresTypes=gpu,shard\nTaskProlog={folder}/task-prolog\nEpilog={folder}/epilog\n\
             {lines}PartitionName=all Nodes={} Default=YES MaxTime=INFINITE State=UP\n",
            free_address().port(),
            names.join(",")
        );
        write("slurm.conf", conf.as_bytes(), 0o644);
    }
}

impl Drop for Cluster<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            let logs = fs::read_dir(self.folder.join("log")).into_iter().flatten().flatten();
            for log in logs {
                let text = fs::read_to_string(log.path()).unwrap_or_default();
                eprintln!("{}:\n{text}", log.path().display());
            }
        }
        // The processes of jobs are not children of Slurm's daemons, so the jobs end first. The
        // host kills any process that is left.
        let _ = self.command(0, "scancel").args(["--user", "root"]).output();
        for _ in 0..LOOKS_FOR_END {
            let left = self.command(0, "squeue").arg("--noheader").output();
            if left.is_ok_and(|left| left.stdout.is_empty()) {
                break;
            }
            thread::sleep(LOOK_EVERY);
        }
        let slurmds = self.nodes.iter_mut().filter_map(|node| node.slurmd.take());
        for process in slurmds.chain(self.controller.take()).chain(self.munge.take()) {
            process.signal(Signal::TERM);
        }
        for node in &self.nodes {
            let _ = fs::remove_dir(Path::new(FREEZER).join(format!("slurm_{}/uid_0", node.name)));
            let _ = fs::remove_dir(Path::new(FREEZER).join(format!("slurm_{}", node.name)));
        }
    }
}
