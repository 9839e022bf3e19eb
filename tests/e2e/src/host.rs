//! A private host for each test: its own simulated GPUs, daemon directory and clean-up.

use std::{
    collections::BTreeMap,
    env,
    fmt::Debug,
    fs::{self, File, OpenOptions},
    iter,
    net::{SocketAddr, TcpListener},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    fs::{FlockOperation, flock},
    net::{self, AddressFamily, SocketAddrUnix, SocketType},
    process::{Pid, Signal, kill_process},
};
use serde_json::Value;
use simgpu_engine::truth::{self, Observer, Snapshot};
use tempfile::TempDir;

use crate::{
    artefacts::{artefacts, nvrtc, python, target},
    clients,
    process::{Finished, Process, alive},
    ps::{Ps, Tenant},
    stolen::Stolen,
};

/// Time within which a daemon answers on this machine, however busy the machine is.
const DAEMON_START_LIMIT: Duration = Duration::from_secs(20);
/// Time within which a short command ends, however busy the machine is.
pub const COMMAND_LIMIT: Duration = Duration::from_secs(30);
/// Time within which the session's meter thread brings the meter page up to date, however busy the
/// machine is.
const METER_SETTLES_WITHIN: Duration = Duration::from_secs(10);
/// Time within which the memory of dead processes is given back, however busy the machine is.
const GIVEN_BACK_WITHIN: Duration = Duration::from_secs(5);
/// Time between two looks of a wait.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// Time after which all threads of a process have stopped on SIGSTOP.
const STOPS_WITHIN: Duration = Duration::from_millis(2);
/// A process that holds the simulated driver's lock for this long is stopped.
const STUCK_FOR: Duration = Duration::from_millis(20);
/// Time after which a test counts as hanging. The watchdog then kills all processes of the test, so
/// the test fails.
const TEST_LIMIT: Duration = Duration::from_secs(240);

/// Set by `cargo xtask test` while it runs tests together.
const TOGETHER_VARIABLE: &str = "DEEPRES_TESTS_TOGETHER";

/// Kernels of fixed lengths for the C clients, by name: `quick` and `busy_…`.
const SIMGPU_TOML: &str = r#"
kernel = [
    { name = "quick", ns = 2000 },
    { name = "busy_20us", ns = 20000 },
    { name = "busy_200us", ns = 200000 },
    { name = "busy_1000us", ns = 1000000 },
    { name = "busy_5000us", ns = 5000000 },
    { name = "busy_20000us", ns = 20000000 },
]
"#;

/// A test's own host. Drop kills all processes that the test started on the host.
pub struct Host {
    folder: TempDir,
    state: TempDir,
    started: AtomicU32,
    simgpu_toml: PathBuf,
    config_toml: Option<PathBuf>,
    _stolen: Stolen,
    _machine: File,
    _watchdog: Watchdog,
}

impl Host {
    /// Returns a host for a test that does not measure precisely. The test can run beside others of
    /// its kind.
    pub fn new() -> Self {
        Self::with(FlockOperation::LockShared)
    }

    /// Returns a host for a test that measures shares or times. No other test runs beside it.
    ///
    /// # Panics
    /// If the runner runs tests together now: such a test belongs into a module `measured`.
    pub fn measuring() -> Self {
        assert!(
            env::var_os(TOGETHER_VARIABLE).is_none(),
            "a test that measures belongs into a module `measured`, which runs alone"
        );
        Self::with(FlockOperation::LockExclusive)
    }

    /// Returns a second host beside `first`, under the same lock, for a test with several hosts.
    pub fn beside(first: &Self) -> Self {
        let machine = first._machine.try_clone().expect("a descriptor is free");
        Self::under(machine, Stolen::count())
    }

    fn with(kind: FlockOperation) -> Self {
        // Building comes first, so that building does not use up the test's time limit, and other
        // tests do not wait for the lock.
        artefacts();
        fs::create_dir_all(target()).expect("the build folder can be made");
        let machine = OpenOptions::new()
            .create(true)
            .append(true)
            .open(target().join("e2e.lock"))
            .expect("the build folder is writable");
        flock(&machine, kind).expect("flock on a file of our own");
        // Only measurements need CPUs that are kept awake.
        let stolen = match kind {
            FlockOperation::LockExclusive => Stolen::start(),
            _ => Stolen::count(),
        };
        Self::under(machine, stolen)
    }

    /// Returns a host under the lock of the open file `machine`.
    fn under(machine: File, stolen: Stolen) -> Self {
        let folder = tempfile::Builder::new().prefix("deepres-e2e-").tempdir().expect("a temporary folder");
        let state = tempfile::Builder::new()
            .prefix("deepres-e2e-")
            .tempdir_in("/dev/shm")
            .expect("/dev/shm is writable");
        let simgpu_toml = folder.path().join("simgpu.toml");
        fs::write(&simgpu_toml, SIMGPU_TOML).expect("a folder of our own");
        let watchdog = Watchdog::start(folder.path().to_owned(), TEST_LIMIT);
        Self {
            folder,
            state,
            started: AtomicU32::new(0),
            simgpu_toml,
            config_toml: None,
            _stolen: stolen,
            _machine: machine,
            _watchdog: watchdog,
        }
    }

    /// Extends the time limit by `lasts`, for a test that takes this long even on a fast machine.
    pub fn lasting(mut self, lasts: Duration) -> Self {
        self._watchdog = Watchdog::start(self.folder.path().to_owned(), TEST_LIMIT + lasts);
        self
    }

    /// Sets the simulated GPU's configuration. Call this before the first process starts.
    pub fn simgpu(self, toml: &str) -> Self {
        fs::write(&self.simgpu_toml, toml).expect("a folder of our own");
        self
    }

    /// Makes contexts take no memory, for a test that counts allocations alone. Call this after
    /// [`Self::simgpu`] and before the first process starts.
    pub fn light_contexts(self) -> Self {
        let toml = fs::read_to_string(&self.simgpu_toml).expect("a file of our own");
        fs::write(&self.simgpu_toml, format!("context_overhead_bytes = 0\n{toml}"))
            .expect("a folder of our own");
        self
    }

    /// Sets the daemon's configuration file. Call this before the daemon starts.
    pub fn config(mut self, toml: &str) -> Self {
        let path = self.folder.path().join("deepres.toml");
        fs::write(&path, toml).expect("a folder of our own");
        self.config_toml = Some(path);
        self
    }

    /// Returns the test's folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the daemon's directory (DEEPRES_DIR).
    pub fn deepres_dir(&self) -> PathBuf {
        self.folder.path().join("run")
    }

    /// Returns the path of the socket to which tenants connect.
    pub fn tenant_socket(&self) -> PathBuf {
        self.deepres_dir().join("tenant/tenant.sock")
    }

    /// Returns the simulated GPUs' state directory (SIMGPU_STATE).
    pub fn state_dir(&self) -> &Path {
        self.state.path()
    }

    /// Lets all users of the machine use this host, including those of containers. Call this before
    /// the first process starts.
    pub fn let_all_users_in(&self) {
        use std::os::unix::fs::PermissionsExt;
        let modes = [(self.state.path(), 0o777), (self.folder.path(), 0o755)];
        for (folder, mode) in modes {
            fs::set_permissions(folder, fs::Permissions::from_mode(mode)).expect("a folder of our own");
        }
    }

    /// Returns a command in this host's environment. The command finds the simulated driver, and
    /// nothing is preloaded.
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(program.as_ref());
        for (name, _) in env::vars_os() {
            let name = name.to_string_lossy();
            if ["DEEPRES_", "SIMGPU_", "LD_", "CUDA_"].iter().any(|prefix| name.starts_with(prefix)) {
                command.env_remove(&*name);
            }
        }
        command
            .current_dir(self.folder.path())
            .env("DEEPRES_DIR", self.deepres_dir())
            .env("SIMGPU_STATE", self.state.path())
            .env("SIMGPU_CONFIG", &self.simgpu_toml)
            .env("LD_LIBRARY_PATH", &artefacts().simgpu);
        command
    }

    /// Returns the `deepres` command with these arguments.
    pub fn deepres(&self, arguments: &[&str]) -> Command {
        let mut command = self.command(&artefacts().deepres);
        command.args(arguments);
        command
    }

    /// Returns a command with the library preloaded by hand. The library connects to this host's
    /// daemon if the daemon runs.
    pub fn preloaded(&self, program: impl AsRef<Path>) -> Command {
        let mut command = self.command(program);
        command.env("LD_PRELOAD", &artefacts().library).env("DEEPRES_SOCKET", self.tenant_socket());
        command
    }

    /// Returns the command `deepres run OPTIONS -- PROGRAM ARGUMENTS`.
    pub fn run(&self, options: &[&str], program: impl AsRef<Path>, arguments: &[&str]) -> Command {
        let mut command = self.deepres(&["run"]);
        command.args(options).arg("--").arg(program.as_ref()).args(arguments);
        command
    }

    /// Returns the command `deepres run OPTIONS -- python train.py ARGUMENTS` with the variables
    /// that tinygrad needs.
    pub fn run_training(&self, options: &[&str], arguments: &[&str]) -> Command {
        let mut command = self.training(self.run(options, python().python(), &[]));
        command.args(arguments);
        command
    }

    /// Adds `train.py` and the variables that tinygrad needs to a command that runs Python. Returns
    /// the command.
    pub fn training(&self, mut command: Command) -> Command {
        let libraries =
            env::join_paths([&artefacts().simgpu, &nvrtc(python())]).expect("no colon in a build folder");
        command
            .arg(clients::training_script())
            .env("LD_LIBRARY_PATH", libraries)
            .env("DEV", "CUDA")
            // tinygrad keeps its compiled kernels between runs, as for its users.
            .env("CACHEDB", target().join("tinygrad-cache.db"));
        command
    }

    /// Returns a command with the library preloaded by hand and no daemon to connect to.
    pub fn alone(&self, program: impl AsRef<Path>) -> Command {
        let mut command = self.command(program);
        command.env("LD_PRELOAD", &artefacts().library);
        command
    }

    /// Starts a command, and waits until the process prints the line `ready`. Returns the process.
    #[track_caller]
    pub fn start(&self, command: Command, ready: &str) -> Process {
        let mut process = self.spawn(command);
        process.await_exactly(ready);
        process
    }

    /// Starts a command, and waits until the process prints a JSON object. Returns the process and
    /// the object.
    #[track_caller]
    pub fn told(&self, command: Command) -> (Process, Value) {
        let mut process = self.spawn(command);
        let said = process.await_json();
        (process, said)
    }

    /// Starts a command. Returns the guarded process.
    pub fn spawn(&self, command: Command) -> Process {
        let number = self.started.fetch_add(1, Ordering::Relaxed);
        Process::spawn(command, self.folder.path().join(format!("process-{number}")))
    }

    /// Runs a short command to its end. Returns its exit status and output.
    #[track_caller]
    pub fn finish(&self, command: Command) -> Finished {
        self.spawn(command).finish()
    }

    /// Runs the `deepres` command with these arguments to its end. Returns its exit status and
    /// output.
    #[track_caller]
    pub fn call(&self, arguments: &[&str]) -> Finished {
        self.finish(self.deepres(arguments))
    }

    /// Runs the `deepres` command like [`Self::call`], asserts that it succeeds, and returns its
    /// output.
    #[track_caller]
    pub fn shows(&self, arguments: &[&str]) -> String {
        self.call(arguments).success().stdout
    }

    /// Runs a program bare, and then as this tenant with a limit of 4 GiB. Asserts that both end in
    /// the same way with the same standard output, and that the tenant then holds nothing. Returns
    /// the end of the bare program. Call this on a host with a daemon.
    #[track_caller]
    pub fn assert_same_life(&self, tenant: &str, program: impl AsRef<Path>, arguments: &[&str]) -> Finished {
        let live = |mut command: Command| {
            command.args(arguments);
            self.finish(command)
        };
        let bare = live(self.command(&program));
        let mut ours = self.preloaded(&program);
        ours.env("DEEPRES_TENANT", tenant).env("DEEPRES_MEMORY", "4GiB");
        let ours = live(ours);
        let seen = |life: &Finished| (life.code, life.signal, life.stdout.clone());
        assert_eq!(seen(&ours), seen(&bare), "{tenant}, as a tenant: {}", ours.stderr);
        self.await_nothing_held();
        bare
    }

    /// Waits until no tenant has a session or holds memory.
    #[track_caller]
    pub fn await_nothing_held(&self) {
        let has_nothing = |tenant: &Tenant| tenant.sessions.is_empty() && tenant.memory_bytes == 0;
        self.await_ps_within(|ps| ps.tenants.iter().all(has_nothing), GIVEN_BACK_WITHIN);
    }

    /// Returns a host with a GPU of 1 GiB. Contexts take no memory, and memory moves to the host
    /// and back at 10 GB/s.
    pub fn of_one_gib() -> Self {
        Self::new().simgpu(
            "memory_bytes = 1073741824\ncontext_overhead_bytes = 0\nhost_to_device_bytes_per_us = 10000\n\
             device_to_host_bytes_per_us = 10000\nkernel = [{ name = \"busy_1000us\", ns = 1000000 }]\n",
        )
    }

    /// Returns the host with its daemon, which has started and answers.
    #[track_caller]
    pub fn with_daemon(self) -> (Self, Process) {
        let daemon = self.daemon();
        (self, daemon)
    }

    /// Starts the daemon and waits until it answers.
    #[track_caller]
    pub fn daemon(&self) -> Process {
        self.daemon_with(&[])
    }

    /// Does the same as [`Self::daemon`], with these variables in addition to those of the host.
    #[track_caller]
    pub fn daemon_with(&self, variables: &[(&str, &Path)]) -> Process {
        let mut command = self.deepres(&["daemon"]);
        command.envs(variables.iter().copied());
        if let Some(config) = &self.config_toml {
            command.arg("--config").arg(config);
        }
        let mut daemon = self.spawn(command);
        self.await_answer(&mut daemon);
        daemon
    }

    /// Waits until a daemon that the test just started answers.
    #[track_caller]
    pub fn await_answer(&self, daemon: &mut Process) {
        let deadline = Instant::now() + DAEMON_START_LIMIT;
        while self.call(&["ps", "--json"]).code != 0 {
            assert!(daemon.try_wait().is_none(), "the daemon ended:\n{}", daemon.stderr());
            assert!(Instant::now() < deadline, "the daemon does not answer:\n{}", daemon.stderr());
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Returns the answer of `deepres ps --json` as numbers.
    #[track_caller]
    pub fn ps(&self) -> Ps {
        Ps::parse(&self.shows(&["ps", "--json"]))
    }

    /// Returns the whole answer of `deepres ps --json`.
    #[track_caller]
    pub fn status(&self) -> Value {
        self.json(&["ps", "--json"])
    }

    /// Runs a `deepres` command that prints JSON, and returns what it printed.
    #[track_caller]
    pub fn json(&self, arguments: &[&str]) -> Value {
        let shown = self.shows(arguments);
        serde_json::from_str(&shown).unwrap_or_else(|error| panic!("{arguments:?}: {error} in {shown}"))
    }

    /// Returns the tenant's entry in the answer of `deepres ps --json`.
    #[track_caller]
    pub fn tenant(&self, name: &str) -> Value {
        let status = self.status();
        let own = status["tenants"].as_array().into_iter().flatten().find(|tenant| tenant["name"] == name);
        own.unwrap_or_else(|| panic!("no tenant {name} in {status}")).clone()
    }

    /// Returns a tenant's account on the first of its GPUs, or null before it has one.
    #[track_caller]
    pub fn account(&self, name: &str) -> Value {
        self.tenant(name)["gpus"][0].clone()
    }

    /// Stops a process (SIGSTOP) while it does not hold the simulated driver's lock. A process that
    /// is stopped with the lock would block all others. A real driver holds its locks inside the
    /// kernel, where no signal stops a process.
    #[track_caller]
    pub fn stop(&self, pid: u32) {
        let pid = Pid::from_raw(pid as i32).expect("a process");
        let signal = |signal| kill_process(pid, signal).expect("it runs");
        self.stop_by(|| signal(Signal::STOP), || signal(Signal::CONT));
    }

    /// Stops a process like [`Self::stop`], by the functions `stop` and `go_on`.
    pub fn stop_by(&self, stop: impl Fn(), go_on: impl Fn()) {
        // If the state file does not exist, no process holds the lock.
        let observer = Observer::open(self.state.path()).ok();
        loop {
            stop();
            thread::sleep(STOPS_WITHIN);
            if !observer.as_ref().is_some_and(|observer| observer.is_stuck(STUCK_FOR)) {
                return;
            }
            go_on();
            thread::sleep(STOPS_WITHIN);
        }
    }

    /// Waits within [`COMMAND_LIMIT`] until the answer of `ps` satisfies `wanted`, and returns the
    /// answer.
    #[track_caller]
    pub fn await_ps(&self, wanted: impl Fn(&Ps) -> bool) -> Ps {
        self.await_ps_within(wanted, COMMAND_LIMIT)
    }

    /// Does the same as [`Self::await_ps`] within another limit.
    #[track_caller]
    pub fn await_ps_within(&self, wanted: impl Fn(&Ps) -> bool, within: Duration) -> Ps {
        await_value_within(|| self.ps(), wanted, within)
    }

    /// Waits until the daemon has counted this many kernel launches of a tenant. Returns the answer
    /// of `ps`.
    #[track_caller]
    pub fn await_launches(&self, tenant: &str, launches: Option<u64>) -> Ps {
        let is_counted = |ps: &Ps| ps.find(tenant).is_some_and(|t| Some(t.kernel_launches) == launches);
        self.await_ps_within(is_counted, METER_SETTLES_WITHIN)
    }

    /// Returns the simulated GPU's record: the GPU time and memory that every process really used.
    #[track_caller]
    pub fn truth(&self) -> Snapshot {
        truth::snapshot(self.state.path()).expect("a process has created the state")
    }

    /// Returns the simulated GPU's record of a process that has used the GPU.
    #[track_caller]
    pub fn record(&self, pid: u32) -> truth::Process {
        let processes = self.truth().processes;
        processes.into_iter().find(|process| process.pid == pid).expect("it used the GPU")
    }

    /// Returns the kernel time of all processes in the simulated GPU's record of GPU 0, ns.
    #[track_caller]
    pub fn kernel_ns(&self) -> u64 {
        self.truth().processes.iter().map(|process| process.gpus[0].kernel_busy_ns).sum()
    }

    /// Returns the ids of all living processes of this host. The environment of such a process
    /// names the host's folder.
    pub fn processes(&self) -> Vec<u32> {
        processes_with(self.folder.path())
    }

    /// Asserts that no process of this host runs. Processes that are about to end have 5 s for it.
    #[track_caller]
    pub fn assert_nothing_runs(&self) {
        await_value_within(|| describe(&self.processes()), String::is_empty, Duration::from_secs(5));
    }
}

/// Returns an address of the loopback device that nothing uses.
pub fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port")
}

/// Returns a socket at `path` to which tenants can connect, as to a daemon that never answers.
pub fn mute_socket(path: &Path) -> OwnedFd {
    let socket = net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).expect("a socket");
    net::bind(&socket, &SocketAddrUnix::new(path).expect("a short path")).expect("a new path");
    net::listen(&socket, 128).expect("a bound socket");
    socket
}

/// Waits within [`COMMAND_LIMIT`] until the value of `look` satisfies `wanted`, and returns the
/// value.
#[track_caller]
pub fn await_value<T: Debug>(look: impl FnMut() -> T, wanted: impl Fn(&T) -> bool) -> T {
    await_value_within(look, wanted, COMMAND_LIMIT)
}

/// Does the same as [`await_value`] within another limit.
#[track_caller]
pub fn await_value_within<T: Debug>(
    mut look: impl FnMut() -> T,
    wanted: impl Fn(&T) -> bool,
    within: Duration,
) -> T {
    let deadline = Instant::now() + within;
    loop {
        let value = look();
        if wanted(&value) {
            return value;
        }
        assert!(Instant::now() < deadline, "not within {within:?}: {value:#?}");
        thread::sleep(LOOK_EVERY);
    }
}

/// Observes an account and the record of the same work several times. Returns the observation at
/// which the account is least behind the record by `behind_ns`. The meter charges work only when a
/// segment of it is complete, so an account can be some 10 ms behind at any single moment.
pub fn caught_up<T>(look: impl FnMut() -> T, behind_ns: impl Fn(&T) -> i64) -> T {
    const LOOKS: usize = 12;
    let looks = iter::repeat_with(look).inspect(|_| thread::sleep(LOOK_EVERY)).take(LOOKS);
    looks.min_by_key(behind_ns).expect("there are several observations")
}

/// Waits within [`COMMAND_LIMIT`] until a condition holds.
#[track_caller]
pub fn eventually(what: &str, holds: impl FnMut() -> bool) {
    eventually_within(what, COMMAND_LIMIT, holds);
}

/// Does the same as [`eventually`] within another limit.
#[track_caller]
pub fn eventually_within(what: &str, within: Duration, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + within;
    while !holds() {
        assert!(Instant::now() < deadline, "not within {within:?}: {what}");
        thread::sleep(LOOK_EVERY);
    }
}

impl Default for Host {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        kill_all(self.folder.path());
    }
}

/// Kills the processes of a test that hangs.
struct Watchdog {
    stop: std::sync::mpsc::Sender<()>,
}

impl Watchdog {
    fn start(folder: PathBuf, limit: Duration) -> Self {
        let (stop, stopped) = std::sync::mpsc::channel();
        thread::spawn(move || {
            if stopped.recv_timeout(limit) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                eprintln!("over {limit:?}: killing {}", describe(&processes_with(&folder)));
                kill_all(&folder);
            }
        });
        Self { stop }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        // The thread may have ended by itself.
        let _ = self.stop.send(());
    }
}

/// Returns the processes whose environment names this folder. Only a host's own processes name it.
fn processes_with(folder: &Path) -> Vec<u32> {
    let wanted = folder.as_os_str().as_encoded_bytes();
    let own = std::process::id();
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| *pid != own && alive(*pid))
        .filter(|pid| {
            fs::read(format!("/proc/{pid}/environ"))
                .is_ok_and(|environment| environment.windows(wanted.len()).any(|part| part == wanted))
        })
        .collect()
}

fn kill_all(folder: &Path) {
    // A dying process can start another process in its last moment. The next round finds that
    // process.
    for _ in 0..10 {
        let left = processes_with(folder);
        if left.is_empty() {
            return;
        }
        for pid in left.into_iter().filter_map(|pid| Pid::from_raw(pid as i32)) {
            let _ = kill_process(pid, Signal::KILL);
        }
        thread::sleep(Duration::from_millis(5));
    }
}

fn describe(pids: &[u32]) -> String {
    let name = |pid: &u32| {
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        format!("{pid} ({})", String::from_utf8_lossy(&command).replace('\0', " "))
    };
    pids.iter().map(name).collect::<Vec<_>>().join(", ")
}

/// GPU time by process between two moments, from the simulated GPU's record.
#[derive(Debug, Clone)]
pub struct Tally {
    /// Kernel time by process id, ns.
    pub by_pid_ns: BTreeMap<u32, u64>,
    /// Kernel time of all processes together, ns.
    pub total_ns: u64,
    /// Time between the two moments, ns.
    pub elapsed_ns: u64,
}

impl Tally {
    /// Counts the kernel time on GPU 0 from `before` to `after`.
    pub fn between(before: &Snapshot, after: &Snapshot) -> Self {
        Self::between_on(0, before, after)
    }

    /// Counts the kernel time on a GPU from `before` to `after`.
    pub fn between_on(gpu: usize, before: &Snapshot, after: &Snapshot) -> Self {
        let busy = |snapshot: &Snapshot, pid: u32, start_time: u64| {
            let process = snapshot.processes.iter().find(|p| p.pid == pid && p.start_time == start_time);
            process.and_then(|p| p.gpus.get(gpu)).map_or(0, |gpu| gpu.kernel_busy_ns)
        };
        let by_pid_ns: BTreeMap<u32, u64> = after
            .processes
            .iter()
            .map(|p| (p.pid, busy(after, p.pid, p.start_time) - busy(before, p.pid, p.start_time)))
            .collect();
        let total_ns = by_pid_ns.values().sum();
        Self { by_pid_ns, total_ns, elapsed_ns: after.at_ns - before.at_ns }
    }

    /// Waits for `time`, and returns the kernel time in it.
    pub fn over(host: &Host, time: Duration) -> Self {
        let before = host.truth();
        thread::sleep(time);
        Self::between(&before, &host.truth())
    }

    /// Returns the part of the GPU time that these processes used, in percent.
    pub fn percent(&self, pids: &[u32]) -> f64 {
        self.percent_of(pids, self.total_ns)
    }

    /// Returns the part of the elapsed time in which these processes ran kernels, in percent.
    pub fn percent_of_time(&self, pids: &[u32]) -> f64 {
        self.percent_of(pids, self.elapsed_ns)
    }

    fn percent_of(&self, pids: &[u32], whole_ns: u64) -> f64 {
        let part: u64 = pids.iter().filter_map(|pid| self.by_pid_ns.get(pid)).sum();
        part as f64 * 100.0 / whole_ns as f64
    }
}
