//! The thread that watches: reads what the kernel programs tell, NVML's lists and /proc, keeps the board, and does what the
//! configuration says with users that are no tenant's.

use super::connected::Connected;
use super::devices::{DeviceKey, Devices};
use super::kernel::{Asked, Kernel, Ring};
use super::scan;
use super::status::{ActivityStatus, Board, ProbesStatus, UnmanagedStatus};
use super::users::{Change, Evidence, Users};
use crate::clock::monotonic_ns;
use crate::config::UnmanagedPolicy;
use crate::process::ProcessKey;
use deepres_abi::probe::{Family, News, StatKey, StatValue, TICK_NS};
use nvml_wrapper::Nvml;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::oneshot;

/// What NVML is called at run time.
const NVML_LIBRARY: &str = "libnvidia-ml.so.1";
const MS: u64 = 1_000_000;
/// How often counters are read while there are any.
const STATS_NS: u64 = 1_000 * MS;
/// How often NVML is asked: what it lists, the kernel programs mostly have told before.
const NVML_NS: u64 = 5_000 * MS;
const NVML_ALONE_NS: u64 = 400 * MS;
/// How often /proc is searched, likewise.
const SCAN_NS: u64 = 30_000 * MS;
const SCAN_ALONE_NS: u64 = 1_000 * MS;
/// How often it is looked whether the driver's devices have appeared or have other numbers.
const DEVICES_NS: u64 = 2_000 * MS;
/// What takes time is done so seldom that it takes at most this part of it.
const DUTY: u64 = 400;

/// What the watching thread goes by.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Attach programs to the kernel.
    pub uses_kernel: bool,
    /// The devices; none stands for NVIDIA's.
    pub devices: Vec<DeviceKey>,
    /// What is done with users that are no tenant's.
    pub policy: UnmanagedPolicy,
}

enum Order {
    Adopt { pid: u32, tenant: Option<String>, answer: oneshot::Sender<Result<(), String>> },
    Stop,
}

/// The watching thread. Dropping it detaches the programs and lets those go on who were held.
pub struct Watcher {
    board: Arc<Mutex<Board>>,
    orders: mpsc::Sender<Order>,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Watcher {
    /// Starts to watch.
    ///
    /// # Errors
    /// The system's: no thread, no descriptor.
    pub fn start(settings: Settings, connected: Arc<Connected>) -> std::io::Result<Self> {
        let board = Arc::new(Mutex::new(Board::starting()));
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (orders, received) = mpsc::channel();
        let (its_board, its_wake) = (Arc::clone(&board), Arc::clone(&wake));
        let thread = std::thread::Builder::new().name("deepres-watch".to_owned()).spawn(move || {
            Watch::new(settings, connected, its_board).run(&its_wake, &received);
        })?;
        Ok(Self { board, orders, wake, thread: Some(thread) })
    }

    /// How things stand.
    pub fn board(&self) -> Board {
        self.board.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes a process that is no tenant's for a tenant's: it goes on if it was held, and is not complained of any more.
    pub fn adopt(&self, pid: u32, tenant: Option<String>) -> oneshot::Receiver<Result<(), String>> {
        let (answer, answered) = oneshot::channel();
        // A thread that is gone drops the answer, which is one.
        let _ = self.orders.send(Order::Adopt { pid, tenant, answer });
        self.ring();
        answered
    }

    fn ring(&self) {
        // It fails only if it has been rung for ever.
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let _ = self.orders.send(Order::Stop);
        self.ring();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the watching thread failed");
        }
    }
}

/// When each thing is done next.
#[derive(Default)]
struct Due {
    stats_ns: u64,
    nvml_ns: u64,
    scan_ns: u64,
    devices_ns: u64,
}

struct Watch {
    settings: Settings,
    connected: Arc<Connected>,
    board: Arc<Mutex<Board>>,
    devices: Devices,
    kernel: Option<(Kernel, Ring<News>)>,
    state: ProbesStatus,
    nvml: Option<Nvml>,
    listed: BTreeSet<u32>,
    users: Users,
    adopted: BTreeMap<ProcessKey, Option<String>>,
    held: BTreeSet<ProcessKey>,
    /// Calls of each process when they were last read, and whether it was connected then.
    counted: BTreeMap<ProcessKey, (ActivityStatus, bool)>,
    due: Due,
}

impl Watch {
    fn new(settings: Settings, connected: Arc<Connected>, board: Arc<Mutex<Board>>) -> Self {
        Self {
            devices: Devices::find(&settings.devices),
            settings,
            connected,
            board,
            kernel: None,
            state: ProbesStatus::default(),
            nvml: Nvml::builder().lib_path(OsStr::new(NVML_LIBRARY)).init().ok(),
            listed: BTreeSet::new(),
            users: Users::at_start(monotonic_ns()),
            adopted: BTreeMap::new(),
            held: BTreeSet::new(),
            counted: BTreeMap::new(),
            due: Due::default(),
        }
    }

    fn run(mut self, wake: &OwnedFd, orders: &mpsc::Receiver<Order>) {
        self.attach();
        loop {
            self.look();
            if self.obey(orders) {
                break;
            }
            self.publish();
            self.sleep(wake);
        }
        for who in std::mem::take(&mut self.held) {
            send(who, Signal::CONT);
        }
    }

    /// Carries out orders; true if one was to stop.
    fn obey(&mut self, orders: &mpsc::Receiver<Order>) -> bool {
        loop {
            match orders.try_recv() {
                Ok(Order::Adopt { pid, tenant, answer }) => {
                    // Whoever asked may be gone.
                    let _ = answer.send(self.adopt(pid, tenant));
                }
                Ok(Order::Stop) | Err(mpsc::TryRecvError::Disconnected) => return true,
                Err(mpsc::TryRecvError::Empty) => return false,
            }
        }
    }

    fn attach(&mut self) {
        self.kernel = None;
        self.state = ProbesStatus::default();
        if !self.settings.uses_kernel {
            self.state.state = "off".to_owned();
            self.state.detail = "the configuration says so (probes.enabled)".to_owned();
            return;
        }
        if self.devices.is_empty() {
            self.state.state = "waiting".to_owned();
            self.state.detail = "/proc/devices has none of the GPU's devices yet".to_owned();
            return;
        }
        let attached = Kernel::attach(&self.devices, Asked::None, None);
        match attached.map(|mut kernel| (kernel.take_news(), kernel)) {
            Ok((Some(news), kernel)) => {
                self.state.state = "attached".to_owned();
                self.state.detail = format!("{} on {} ({})", kernel.way().name(), self.devices, kernel.why());
                tracing::info!(way = kernel.way().name(), why = kernel.why(), devices = %self.devices, "watching ioctls");
                self.kernel = Some((kernel, news));
            }
            Ok((None, _)) => self.unavailable("the kernel programs have no ring".to_owned()),
            Err(error) => self.unavailable(error.to_string()),
        }
    }

    fn unavailable(&mut self, why: String) {
        tracing::warn!("GPU users are found by NVML and /proc alone, not by their ioctls: {why}");
        self.state.state = "unavailable".to_owned();
        self.state.detail = why;
    }

    /// Does what is due.
    fn look(&mut self) {
        let now_ns = monotonic_ns();
        self.read_news(now_ns);
        if now_ns >= self.due.devices_ns {
            self.due.devices_ns = now_ns + DEVICES_NS;
            let devices = Devices::find(&self.settings.devices);
            if devices != self.devices {
                self.devices = devices;
                self.counted.clear();
                self.attach();
            }
        }
        if now_ns >= self.due.stats_ns {
            self.due.stats_ns = now_ns + STATS_NS;
            self.read_stats(now_ns);
        }
        if now_ns >= self.due.nvml_ns {
            self.read_nvml(now_ns);
            let pause_ns = if self.kernel.is_some() { NVML_NS } else { NVML_ALONE_NS };
            self.due.nvml_ns = next(now_ns, pause_ns);
        }
        if now_ns >= self.due.scan_ns {
            if !self.devices.is_empty() {
                self.search(now_ns);
            }
            let pause_ns = if self.kernel.is_some() { SCAN_NS } else { SCAN_ALONE_NS };
            self.due.scan_ns = next(now_ns, pause_ns);
        }
        self.settle();
    }

    fn read_news(&mut self, now_ns: u64) {
        let Some((_, ring)) = &mut self.kernel else { return };
        let news: Vec<News> = std::iter::from_fn(|| ring.pop()).collect();
        for News { key } in news {
            self.saw(process(key.pid, key.started_ns), Evidence::Ioctl, is_uvm(key.family), now_ns);
        }
    }

    fn read_stats(&mut self, now_ns: u64) {
        let Some((kernel, _)) = &mut self.kernel else { return };
        let totals = kernel.totals();
        self.state.calls = totals.calls;
        self.state.unattributed = totals.unattributed;
        self.state.untimed = totals.untimed;
        let mut by_process: BTreeMap<ProcessKey, (ActivityStatus, bool, Vec<StatKey>)> = BTreeMap::new();
        for (key, value) in kernel.stats() {
            let who = process(key.pid, key.started_ns);
            let (activity, computes, keys) =
                by_process.entry(who).or_insert_with(|| (no_activity(who.pid), false, Vec::new()));
            add(activity, &key, &value);
            *computes |= is_uvm(key.family);
            keys.push(key);
        }
        let before = std::mem::take(&mut self.counted);
        let mut active = Vec::new();
        for (who, (activity, computes, keys)) in by_process {
            if !who.is_alive() {
                keys.iter().for_each(|key| kernel.remove(key));
                continue;
            }
            let is_connected = self.connected.contains(who.pid);
            let (calls_before, was_connected) =
                before.get(&who).map_or((0, false), |(old, was)| (old.calls, *was));
            // Whoever had a session a moment ago may have done this while it had it.
            if activity.calls > calls_before && !is_connected && !was_connected {
                active.push((who, computes));
            }
            self.counted.insert(who, (activity, is_connected));
        }
        for (who, computes) in active {
            self.saw(who, Evidence::Ioctl, computes, now_ns);
        }
    }

    fn read_nvml(&mut self, now_ns: u64) {
        let Some(nvml) = &self.nvml else { return };
        let count = nvml.device_count().unwrap_or(0);
        let devices = (0..count).filter_map(|index| nvml.device_by_index(index).ok());
        let processes = devices.filter_map(|device| device.running_compute_processes().ok()).flatten();
        self.listed = processes.map(|process| process.pid).collect();
        let strangers: Vec<u32> =
            self.listed.iter().copied().filter(|pid| !self.connected.contains(*pid)).collect();
        for who in strangers.into_iter().filter_map(ProcessKey::of) {
            self.saw(who, Evidence::Nvml, true, now_ns);
        }
    }

    fn search(&mut self, now_ns: u64) {
        for (who, found) in scan::all(&self.devices) {
            // Children of a session have its descriptors; what they do with them would be seen.
            if !self.descends_from_a_session(who.pid) {
                self.saw(who, found.evidence, found.is_compute, now_ns);
            }
        }
    }

    fn descends_from_a_session(&self, pid: u32) -> bool {
        std::iter::successors(Some(pid), |pid| scan::parent(*pid).filter(|parent| *parent > 1))
            .any(|pid| self.connected.contains(pid))
    }

    fn saw(&mut self, who: ProcessKey, evidence: Evidence, is_compute: bool, now_ns: u64) {
        if who.pid == std::process::id() || self.connected.contains(who.pid) {
            return;
        }
        if let Some(change) = self.users.seen(who, evidence, is_compute, now_ns) {
            self.act(change);
        }
    }

    fn settle(&mut self) {
        let (devices, listed, connected) = (&self.devices, &self.listed, &self.connected);
        let uses = |who: ProcessKey| {
            who.is_alive() && (scan::of(who.pid, devices).is_some() || listed.contains(&who.pid))
        };
        let changes = self.users.settle(monotonic_ns(), |pid| connected.contains(pid), uses);
        for change in changes {
            self.act(change);
        }
    }

    fn act(&mut self, change: Change) {
        match change {
            Change::Found(who) => {
                let is_compute = self.users.find(who.pid).is_some_and(|(_, user)| user.is_compute);
                let found = scan::describe(who.pid);
                let kind = kind(is_compute);
                let (pid, uid, command) = (who.pid, found.uid, found.command);
                let container = found.container.unwrap_or_default();
                match self.settings.policy {
                    UnmanagedPolicy::Report => {
                        tracing::info!(
                            pid,
                            uid,
                            command,
                            container,
                            kind,
                            "an unmanaged process uses the GPU"
                        );
                    }
                    UnmanagedPolicy::Warn | UnmanagedPolicy::Hold => {
                        tracing::warn!(
                            pid,
                            uid,
                            command,
                            container,
                            kind,
                            "an unmanaged process uses the GPU"
                        );
                    }
                }
                self.hold(who, is_compute);
            }
            Change::Computes(who) => self.hold(who, true),
            Change::Gone(who) => {
                tracing::info!(pid = who.pid, "an unmanaged process is gone, or managed now");
                self.adopted.remove(&who);
                if self.held.remove(&who) {
                    send(who, Signal::CONT);
                }
            }
        }
    }

    /// Stops a process that computes, if that is what the configuration wants.
    fn hold(&mut self, who: ProcessKey, is_compute: bool) {
        let is_wanted = self.settings.policy == UnmanagedPolicy::Hold && is_compute;
        if is_wanted
            && !self.adopted.contains_key(&who)
            && !self.held.contains(&who)
            && send(who, Signal::STOP)
        {
            tracing::warn!(pid = who.pid, "held; `deepres adopt {}` lets it go on", who.pid);
            self.held.insert(who);
        }
    }

    fn adopt(&mut self, pid: u32, tenant: Option<String>) -> Result<(), String> {
        let Some((who, _)) = self.users.find(pid) else {
            return Err(format!(
                "process {pid} is no unmanaged user of a GPU; `deepres ps` lists those there are"
            ));
        };
        tracing::info!(pid, tenant, "an administrator adopted a process");
        self.adopted.insert(who, tenant);
        if self.held.remove(&who) {
            send(who, Signal::CONT);
        }
        Ok(())
    }

    fn publish(&self) {
        let unmanaged = self.users.reported().map(|(who, user)| {
            let scan::Description { command, uid, container_pid, container } = scan::describe(who.pid);
            let adopted = self.adopted.get(who);
            let state = match adopted {
                Some(_) => "adopted",
                None if self.held.contains(who) => "held",
                None => "reported",
            };
            UnmanagedStatus {
                pid: who.pid,
                container_pid,
                uid,
                container,
                command,
                kind: kind(user.is_compute).to_owned(),
                seen_by: user.evidence.iter().map(|evidence| evidence.name().to_owned()).collect(),
                since_ns: user.since_ns,
                reported_ns: user.reported_ns,
                state: state.to_owned(),
                tenant: adopted.cloned().flatten(),
            }
        });
        let board = Board {
            probes: self.state.clone(),
            unmanaged: unmanaged.collect(),
            activity: self.counted.values().map(|(activity, _)| activity.clone()).collect(),
        };
        *self.board.lock().unwrap_or_else(PoisonError::into_inner) = board;
    }

    fn sleep(&self, wake: &OwnedFd) {
        let now_ns = monotonic_ns();
        let stats_ns = if self.kernel.is_some() { self.due.stats_ns } else { u64::MAX };
        let nvml_ns = if self.nvml.is_some() { self.due.nvml_ns } else { u64::MAX };
        let scan_ns = if self.devices.is_empty() { u64::MAX } else { self.due.scan_ns };
        let due_ns =
            [stats_ns, nvml_ns, scan_ns, self.due.devices_ns, self.users.due_ns().unwrap_or(u64::MAX)];
        let until_ns = due_ns.into_iter().min().unwrap_or(u64::MAX);
        let pause =
            Duration::from_nanos(until_ns.saturating_sub(now_ns)).min(Duration::from_nanos(DEVICES_NS));
        let Ok(pause) = Timespec::try_from(pause) else { return };
        let mut descriptors = vec![PollFd::new(wake, PollFlags::IN)];
        if let Some((_, ring)) = &self.kernel {
            descriptors.push(PollFd::from_borrowed_fd(ring.as_fd(), PollFlags::IN));
        }
        // Interrupted or not: it is looked again.
        let _ = poll(&mut descriptors, Some(&pause));
        let _ = rustix::io::read(wake, &mut [0; 8]);
    }
}

fn kind(is_compute: bool) -> &'static str {
    if is_compute { "compute" } else { "control" }
}

/// When something that began at `began_ns` is done again.
fn next(began_ns: u64, pause_ns: u64) -> u64 {
    let now_ns = monotonic_ns();
    now_ns + pause_ns.max((now_ns - began_ns).saturating_mul(DUTY))
}

fn process(pid: u32, started_ns: u64) -> ProcessKey {
    ProcessKey { pid, start_ticks: started_ns / TICK_NS }
}

fn is_uvm(family: u32) -> bool {
    Family::from_u32(family) == Family::Uvm
}

fn no_activity(pid: u32) -> ActivityStatus {
    ActivityStatus {
        pid,
        calls: 0,
        errors: 0,
        time_ns: 0,
        longest_ns: 0,
        memory_calls: 0,
        bytes: 0,
        last_ns: 0,
    }
}

fn add(activity: &mut ActivityStatus, key: &StatKey, value: &StatValue) {
    activity.calls += value.calls;
    if crate::trace::concerns_memory(key.family, key.command) {
        activity.memory_calls += value.calls - value.errors.min(value.calls);
    }
    activity.longest_ns = activity.longest_ns.max(value.longest_ns);
    activity.errors += value.errors;
    activity.time_ns = activity.time_ns.saturating_add(value.time_ns);
    activity.bytes = activity.bytes.saturating_add(value.bytes);
    activity.last_ns = activity.last_ns.max(value.last_ns);
}

/// Signals this process and none that got its id since.
fn send(who: ProcessKey, signal: Signal) -> bool {
    let pid = i32::try_from(who.pid).ok().and_then(Pid::from_raw);
    let Some(descriptor) = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) else {
        return false;
    };
    who.is_alive() && pidfd_send_signal(&descriptor, signal).is_ok()
}
