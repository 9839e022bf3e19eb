//! The watching thread. The thread reads the eBPF programs' reports, NVML's lists and /proc, and
//! keeps the list of unmanaged processes for the status. The thread treats unmanaged processes as
//! the configuration says.

use super::activity::{Activity, MAX_REMEMBERED, bound, evicted, process_of};
use super::attach_point::{AttachPoint, Modules};
use super::connected::Connected;
use super::devices::Devices;
use super::hold::Held;
use super::inside;
use super::kernel::{Asked, Kernel, Ring, is_in_host_pid_namespace};
use super::large::Large;
use super::reader::{Reader, Readers, bell, command_line, ring, thread_ns};
use super::scan::{self, Description, Found, Look, Use};
use super::users::{Change, Evidence, Users};
use crate::identity::source::Source;
use crate::lines::Lines;
use crate::nvml;
use deepres_abi::probe::{Family, News, StatKey, TICK_NS};
use deepres_model::clock::monotonic_ns;
use deepres_model::config::{ProbesKeys, UnmanagedPolicy};
use deepres_model::probes::{ActivityStatus, Adopted, Board, ProbesStatus, UnmanagedStatus};
use deepres_model::process::ProcessKey;
use deepres_policy::signals::DriverSums;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

const MS: u64 = 1_000_000;
/// The time between two readings of the counters. The kernel reports only a process's first call;
/// later calls show in the counters. With this time and the grace of a new user, the status lists a
/// process within a second.
const STATS_NS: u64 = 500 * MS;
/// The time from the end of a session to the next reading of the counters.
const STATS_SOON_NS: u64 = 100 * MS;
/// The time between two questions to NVML while the eBPF programs are attached, ns. The programs
/// mostly report a process before NVML lists it.
const NVML_NS: u64 = 5_000 * MS;
/// The time between two questions to NVML without eBPF programs, ns.
const NVML_ALONE_NS: u64 = 400 * MS;
/// The time between two searches of /proc by another thread while the eBPF programs are attached,
/// ns.
const SCAN_NS: u64 = 30_000 * MS;
/// The time between two searches of /proc by another thread without eBPF programs, ns.
const SCAN_ALONE_NS: u64 = 1_000 * MS;
/// The time between two checks whether the driver's devices appeared or have new numbers. The
/// status must list a process within a second, even if the process uses new devices at once.
const DEVICES_NS: u64 = 500 * MS;
/// Time that a process takes to stop after SIGSTOP on a machine that is not very busy.
const STOPS_NS: u64 = 100 * MS;
/// The time between two looks at which the thread forgets dead processes. At each look, another
/// thread also reads again the processes with a mapped device.
const FORGET_NS: u64 = 2_000 * MS;
/// Pause before the next attempt to attach programs after a failure, ns. The obstacle may have gone
/// by then.
const ATTACH_NS: u64 = 30_000 * MS;
/// The time between two looks for calls whose return the kernel missed.
const MISSED_NS: u64 = 10_000 * MS;
/// Pause before the next search for a missing NVML library.
const NVML_ABSENT_NS: u64 = 30_000 * MS;
/// The pause before the next question after NVML has not answered, because the driver hangs.
const NVML_SILENT_NS: u64 = 30_000 * MS;
/// The time for which the daemon expects a process to reconnect, after the end of its session or
/// its daemon. The process tries every quarter of a second.
const RETURN_NS: u64 = 10_000 * MS;
/// The time for which one round waits for the command lines of new processes. After this time, the
/// log shows the names of the processes instead.
const DESCRIBE_LIMIT: Duration = Duration::from_millis(20);
/// The time for which `drop` waits for the watching thread, which can itself wait for a driver.
const END_LIMIT: Duration = Duration::from_millis(500);
/// The most time that counts for reading one process's mappings.
const MAX_SPENT_NS: u64 = 10 * MS;
/// Pause after slow work, as a multiple of the time that the work took.
const DUTY: u64 = 400;
/// The multiple [`DUTY`] for a process that has very many descriptors and used a GPU.
const SUSPECTS_DUTY: u64 = 50;

enum Order {
    Adopt { pid: u32, tenant: Option<String>, answer: oneshot::Sender<Result<(), String>> },
    Stop,
}

/// The lists of processes that the previous daemon saved for this daemon.
#[derive(Debug, Default)]
pub struct Before {
    /// Processes that an administrator adopted.
    pub adopted: Vec<Adopted>,
    /// Processes that the previous daemon held. The previous daemon was killed, so it did not let
    /// these processes go on.
    pub held: Vec<ProcessKey>,
    /// Processes that had a session with the previous daemon. The daemon expects them to reconnect.
    pub returning: Vec<ProcessKey>,
}

/// Data that the watching thread shares with the other threads of the daemon.
#[derive(Default)]
struct Common {
    board: Mutex<Board>,
    held: Held,
}

/// Handle of the watching thread. The drop detaches the programs and lets the held processes go on.
/// If the thread is stuck, the drop waits only for a short time.
pub struct Watcher {
    common: Arc<Common>,
    orders: mpsc::Sender<Order>,
    bell: Arc<OwnedFd>,
    ended: mpsc::Receiver<()>,
}

impl Watcher {
    /// Starts the watching thread.
    ///
    /// # Errors
    /// The system's error, for lack of threads or descriptors.
    pub fn start(settings: ProbesKeys, connected: Arc<Connected>, before: Before) -> std::io::Result<Self> {
        let board = Mutex::new(Board::starting(&before.adopted, &before.held));
        let common = Arc::new(Common { board, held: Held::default() });
        take_over(&common.held, &before.held, settings.unmanaged);
        let bell = bell()?;
        connected.rings(Arc::clone(&bell));
        let (orders, received) = mpsc::channel();
        let (end, ended) = mpsc::channel();
        let (its_common, its_bell) = (Arc::clone(&common), Arc::clone(&bell));
        let watch = Watch::new(settings, connected, its_common, its_bell, before)?;
        std::thread::Builder::new().name("deepres-watch".to_owned()).spawn(move || {
            watch.run(&received);
            // If no thread waits for the end any more, the send fails.
            let _ = end.send(());
        })?;
        Ok(Self { common, orders, bell, ended })
    }

    /// Returns a copy of the lists that the status shows: unmanaged processes, probes, and calls to
    /// the driver.
    pub fn board(&self) -> Board {
        self.common.board.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the sums of each process's calls to the driver, by pid.
    pub fn activity(&self) -> BTreeMap<u32, DriverSums> {
        let board = self.common.board.lock().unwrap_or_else(PoisonError::into_inner);
        board.activity.iter().map(|activity| (activity.pid, activity.sums())).collect()
    }

    /// Adopts an unmanaged process for a tenant. If the daemon holds the process, the process goes
    /// on. The log no longer warns of the process. The returned channel gets the answer.
    pub fn adopt(&self, pid: u32, tenant: Option<String>) -> oneshot::Receiver<Result<(), String>> {
        let (answer, answered) = oneshot::channel();
        // If the thread has ended, the order and its answer are dropped. The caller sees the
        // channel closed.
        let _ = self.orders.send(Order::Adopt { pid, tenant, answer });
        ring(&self.bell);
        answered
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.common.held.close();
        let _ = self.orders.send(Order::Stop);
        ring(&self.bell);
        match self.ended.recv_timeout(END_LIMIT) {
            Ok(()) => {}
            Err(mpsc::RecvTimeoutError::Timeout) => {
                tracing::warn!("the watching thread hangs: the daemon ends without it")
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => tracing::error!("the watching thread panicked"),
        }
    }
}

/// A result of one of the reading threads.
enum Answer {
    Mapped(ProcessKey, Option<Use>),
    Command(ProcessKey, String),
    /// The result of a look at all descriptors of a process: the process and its use of the
    /// devices. Then whether the process still has very many descriptors, and the processor time of
    /// the look, ns.
    Opened(ProcessKey, Option<Use>, bool, u64),
    /// The result of a search of all processes, and its processor time, ns.
    Searched(Found, u64),
    /// The processes that NVML lists (`None` without NVML), and the processor time of the question,
    /// ns.
    Listed(Option<BTreeSet<u32>>, u64),
    /// The processes of NVML's list that have a device open.
    Confirmed(BTreeSet<u32>),
}

/// The next time of each periodic task.
#[derive(Default)]
struct Due {
    stats_ns: u64,
    nvml_ns: u64,
    scan_ns: u64,
    devices_ns: u64,
    forget_ns: u64,
    missed_ns: u64,
    /// The time of the next attempt to attach the programs, ns; `None` if there is nothing to
    /// attach.
    attach_ns: Option<u64>,
}

struct Watch {
    settings: ProbesKeys,
    lines: Lines,
    connected: Arc<Connected>,
    common: Arc<Common>,
    bell: Arc<OwnedFd>,
    devices: Devices,
    kernel: Option<(Kernel, Ring<News>)>,
    state: ProbesStatus,
    /// The driver's modules to which the programs are attached.
    modules: Modules,
    searcher: Reader,
    listed: BTreeSet<u32>,
    users: Users,
    described: BTreeMap<ProcessKey, Description>,
    adopted: BTreeMap<ProcessKey, Option<String>>,
    /// Processes that the daemon expects to reconnect, each with the time at which the daemon stops
    /// expecting the process.
    returning: BTreeMap<ProcessKey, u64>,
    /// Processes of `returning` that had a session with the previous daemon. While the daemon
    /// expects these processes, it does not list them as unmanaged.
    of_before: BTreeSet<ProcessKey>,
    /// Each process's activity at the last reading, and whether the process was connected then.
    counted: BTreeMap<ProcessKey, (Activity, bool)>,
    /// The activities of `counted`, in the form that the status shows.
    told: Vec<ActivityStatus>,
    /// Ids of the counted processes inside their containers, if these ids differ.
    inner: BTreeMap<ProcessKey, Option<u32>>,
    /// Counters that left the kernel to make room, by process.
    evicted: BTreeMap<ProcessKey, Activity>,
    readers: Readers,
    /// Threads that only read descriptors. So a process that blocks the reading of its mappings
    /// delays none of these threads.
    descriptor_readers: Readers,
    answers: (mpsc::Sender<Answer>, mpsc::Receiver<Answer>),
    /// Processes whose mappings a thread is reading.
    asked: BTreeSet<ProcessKey>,
    /// Processes that have a device mapped.
    mapped: BTreeSet<ProcessKey>,
    /// Processes with very many descriptors.
    large: Large,
    /// Processes to which the thread sent SIGSTOP and which have not stopped yet, with the time of
    /// the signal.
    stopping: BTreeMap<ProcessKey, u64>,
    /// Missed returns of detached programs and of threads that have ended.
    missed: u64,
    /// Ioctls that detached programs skipped.
    skipped: u64,
    /// Time that reading mappings took since the last search, ns.
    spent_ns: Arc<AtomicU64>,
    /// The moment until which this round waits for command lines.
    patience: Instant,
    due: Due,
}

impl Watch {
    fn new(
        settings: ProbesKeys,
        connected: Arc<Connected>,
        common: Arc<Common>,
        bell: Arc<OwnedFd>,
        before: Before,
    ) -> std::io::Result<Self> {
        let now_ns = monotonic_ns();
        Ok(Self {
            devices: Devices::find(&settings.devices),
            settings,
            lines: Lines::default(),
            connected,
            common,
            bell,
            kernel: None,
            state: ProbesStatus::default(),
            modules: Modules::default(),
            searcher: Reader::start("deepres-search")?,
            listed: BTreeSet::new(),
            users: Users::at_start(now_ns),
            described: BTreeMap::new(),
            adopted: before.adopted.into_iter().map(|adopted| (adopted.process, adopted.tenant)).collect(),
            returning: before.returning.iter().map(|who| (*who, now_ns + RETURN_NS)).collect(),
            of_before: before.returning.into_iter().collect(),
            counted: BTreeMap::new(),
            told: Vec::new(),
            inner: BTreeMap::new(),
            evicted: BTreeMap::new(),
            readers: Readers::default(),
            descriptor_readers: Readers::default(),
            answers: mpsc::channel(),
            asked: BTreeSet::new(),
            mapped: BTreeSet::new(),
            large: Large::default(),
            stopping: BTreeMap::new(),
            missed: 0,
            skipped: 0,
            spent_ns: Arc::default(),
            patience: Instant::now(),
            due: Due::default(),
        })
    }

    fn run(mut self, orders: &mpsc::Receiver<Order>) {
        self.attach();
        loop {
            self.look();
            if self.obey(orders) {
                break;
            }
            self.publish();
            self.sleep();
        }
    }

    /// Carries out the orders. Returns whether the thread must stop.
    fn obey(&mut self, orders: &mpsc::Receiver<Order>) -> bool {
        loop {
            match orders.try_recv() {
                Ok(Order::Adopt { pid, tenant, answer }) => {
                    // If the caller no longer waits, the send fails.
                    let _ = answer.send(self.adopt(pid, tenant));
                }
                Ok(Order::Stop) | Err(mpsc::TryRecvError::Disconnected) => return true,
                Err(mpsc::TryRecvError::Empty) => return false,
            }
        }
    }

    /// Attaches the programs to the present devices. Detaches the old programs afterwards, so that
    /// no call goes unseen.
    fn attach(&mut self) {
        // The thread reads the old programs' maps once more before it drops them.
        self.look_for_missed();
        let ProbesStatus { evicted, missed, skipped, .. } = self.state;
        let fresh = ProbesStatus { evicted, missed, skipped, ..ProbesStatus::default() };
        let ProbesStatus { detail: told, .. } = std::mem::replace(&mut self.state, fresh);
        (self.missed, self.skipped) = (missed, skipped);
        self.due.attach_ns = None;
        let before = self.kernel.take();
        self.modules = Modules::read();
        if !self.settings.enabled {
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
                self.state.detail =
                    format!("{} on {} ({})", kernel.attach_point().name(), self.devices, kernel.why());
                tracing::info!(attach_point = kernel.attach_point().name(), why = kernel.why(), devices = %self.devices, "the daemon watches ioctls");
                self.kernel = Some((kernel, news));
            }
            Ok((None, _)) => self.unavailable("the eBPF programs have no ring".to_owned(), &told),
            Err(error) => {
                if !error.is_lasting() {
                    self.due.attach_ns = Some(monotonic_ns() + ATTACH_NS);
                }
                self.unavailable(error.to_string(), &told);
            }
        }
        drop(before);
    }

    fn unavailable(&mut self, why: String, told: &str) {
        if why != told {
            tracing::warn!("the daemon finds GPU users by NVML and /proc alone, not by their ioctls: {why}");
        }
        self.state.state = "unavailable".to_owned();
        self.state.detail = why;
    }

    /// Does each task that is due.
    fn look(&mut self) {
        let now_ns = monotonic_ns();
        self.patience = Instant::now() + DESCRIBE_LIMIT;
        self.read_news(now_ns);
        self.read_answers(now_ns);
        self.see_who_left(now_ns);
        if now_ns >= self.due.devices_ns {
            self.due.devices_ns = now_ns + DEVICES_NS;
            let devices = Devices::find(&self.settings.devices);
            if devices != self.devices || Modules::read() != self.modules {
                self.devices = devices;
                self.counted.clear();
                self.told.clear();
                self.large = Large::default();
                // Processes that already have the new devices open may make no further call.
                (self.due.nvml_ns, self.due.scan_ns) = (0, 0);
                self.attach();
            }
        }
        if self.due.attach_ns.is_some_and(|due_ns| now_ns >= due_ns) {
            self.attach();
        }
        if now_ns >= self.due.forget_ns {
            self.due.forget_ns = now_ns + FORGET_NS;
            self.forget(now_ns);
            // Other threads read the mappings, because a process can block the read.
            self.mapped.clone().into_iter().for_each(|who| self.ask_for_mappings(who));
        }
        if now_ns >= self.due.missed_ns {
            self.due.missed_ns = now_ns + MISSED_NS;
            self.look_for_missed();
        }
        if now_ns >= self.due.stats_ns {
            self.due.stats_ns = now_ns + STATS_NS;
            self.read_stats(now_ns);
        }
        // The answer of NVML sets the next time.
        if now_ns >= self.due.nvml_ns {
            self.due.nvml_ns = now_ns + NVML_SILENT_NS;
            self.ask_nvml();
        }
        if now_ns >= self.due.scan_ns && !self.devices.is_empty() {
            self.due.scan_ns = u64::MAX;
            self.lines.end_over();
            self.search();
        }
        self.settle(now_ns);
    }

    fn read_news(&mut self, now_ns: u64) {
        let Some((_, ring)) = &mut self.kernel else { return };
        let news: Vec<News> = std::iter::from_fn(|| ring.pop()).collect();
        for News { key } in news {
            let who = ProcessKey { pid: key.pid, start_ticks: key.started_ns / TICK_NS };
            self.saw(who, Evidence::Ioctl, Family::from_u32(key.family) == Family::Uvm, now_ns);
        }
    }

    /// Takes the answers of the reading threads.
    fn read_answers(&mut self, now_ns: u64) {
        while let Ok(answer) = self.answers.1.try_recv() {
            self.take(answer, now_ns);
        }
    }

    fn take(&mut self, answer: Answer, now_ns: u64) {
        match answer {
            Answer::Mapped(who, found) => {
                self.asked.remove(&who);
                match found {
                    Some(found) if !self.descends_from_a_session(who.pid) => {
                        self.mapped.insert(who);
                        self.saw(who, found.evidence, found.is_compute, now_ns);
                    }
                    _ => drop(self.mapped.remove(&who)),
                }
            }
            Answer::Command(who, command) => {
                if let Some(description) = self.described.get_mut(&who) {
                    description.command = command;
                }
            }
            Answer::Opened(who, found, is_large, took_ns) => {
                let duty = if self.users.knows(who) { SUSPECTS_DUTY } else { DUTY };
                if is_large {
                    self.large.answered(who, found, monotonic_ns() + took_ns.saturating_mul(duty));
                } else {
                    self.large.forget(who);
                }
                if let Some(found) = found
                    && (self.returning.contains_key(&who) || !self.descends_from_a_session(who.pid))
                {
                    self.saw(who, found.evidence, found.is_compute, now_ns);
                }
            }
            Answer::Searched(found, took_ns) => {
                let pause_ns = if self.kernel.is_some() { SCAN_NS } else { SCAN_ALONE_NS };
                let spent_ns = took_ns + self.spent_ns.swap(0, Ordering::Relaxed);
                // If the time has another value, a new search is due at once.
                if self.due.scan_ns == u64::MAX {
                    self.due.scan_ns = next(spent_ns, pause_ns);
                }
                self.searched(found, now_ns);
            }
            Answer::Listed(listed, took_ns) => {
                let pause_ns = match (&listed, &self.kernel) {
                    (None, _) => NVML_ABSENT_NS,
                    (Some(_), Some(_)) => NVML_NS,
                    (Some(_), None) => NVML_ALONE_NS,
                };
                // If the time is past, new devices have come, and a new question is due at once.
                if self.due.nvml_ns > now_ns {
                    self.due.nvml_ns = next(took_ns, pause_ns);
                }
                self.confirm(listed.unwrap_or_default(), now_ns);
            }
            Answer::Confirmed(listed) => self.see_listed(listed, now_ns),
        }
    }

    /// Looks at the processes whose sessions ended, because such a process can go on to use the
    /// GPU.
    fn see_who_left(&mut self, now_ns: u64) {
        let ended = self.connected.take_ended();
        if !ended.is_empty() {
            // Calls up to now count for the tenant, and the thread should see later calls soon. The
            // minimum keeps many endings in a row from moving the time.
            self.due.stats_ns = self.due.stats_ns.min(now_ns + STATS_SOON_NS);
        }
        for who in self.connected.take_arrived() {
            // If no session followed, the process counts like any other.
            if !self.connected.covers(who) {
                self.look_at(who, now_ns);
            }
        }
        for pid in ended {
            // The entry in NVML's list is from the time of the session. The thread has not asked
            // NVML since.
            self.listed.remove(&pid);
            self.users.was_managed(pid);
            if let Some(who) = ProcessKey::of(pid) {
                self.returning.insert(who, now_ns + RETURN_NS);
                self.look_at(who, now_ns);
            }
        }
    }

    /// Checks whether a process has the devices open.
    fn look_at(&mut self, who: ProcessKey, now_ns: u64) {
        let Look { found, is_whole } = scan::glance(who.pid, &self.devices);
        if let Some(found) = found {
            self.saw(who, found.evidence, found.is_compute, now_ns);
        }
        if !is_whole {
            self.ask_for_descriptors(who);
        }
    }

    /// Forgets dead processes, and processes whose time to reconnect has passed.
    fn forget(&mut self, now_ns: u64) {
        self.adopted.retain(|who, _| who.is_alive());
        self.returning.retain(|_, until_ns| now_ns < *until_ns);
        let late: Vec<ProcessKey> =
            self.of_before.extract_if(.., |who| !self.returning.contains_key(who)).collect();
        for who in late.into_iter().filter(|who| who.is_alive()) {
            // The process has not reconnected, and may make no further call.
            self.look_at(who, now_ns);
        }
        self.mapped.retain(|who| who.is_alive());
        self.large.retain(|who| who.is_alive());
        self.stopping.retain(|who, _| who.is_alive());
        self.evicted.retain(|who, _| who.is_alive());
    }

    fn read_stats(&mut self, now_ns: u64) {
        let Some((kernel, _)) = &mut self.kernel else { return };
        let totals = kernel.totals();
        self.state.calls = totals.calls;
        self.state.unattributed = totals.unattributed;
        self.state.untimed = totals.untimed;
        self.state.news_lost = totals.news_lost;
        for (key, late) in kernel.take_late() {
            // A dead process has no entry. The thread drops its late counts.
            if let Some(activity) = self.evicted.get_mut(&process_of(&key)) {
                activity.add(key, &late);
            }
        }
        let mut rows = kernel.stats();
        for key in evicted(&rows, kernel.room(), now_ns) {
            let Some(value) = kernel.remove(&key) else { continue };
            self.evicted.entry(process_of(&key)).or_default().add(key, &value);
            rows.retain(|(other, _)| *other != key);
            self.state.evicted += 1;
        }
        bound(&mut self.evicted, MAX_REMEMBERED);
        let mut by_process: BTreeMap<ProcessKey, Activity> = BTreeMap::new();
        for (key, value) in &rows {
            by_process.entry(process_of(key)).or_default().add(*key, value);
        }
        let mut before = std::mem::take(&mut self.counted);
        let (mut active, mut left) = (Vec::new(), Vec::new());
        for who in self.evicted.keys() {
            by_process.entry(*who).or_default();
        }
        for (who, mut activity) in by_process {
            if !who.is_alive() {
                let keys: Vec<StatKey> = activity.keys().copied().collect();
                for key in keys {
                    kernel.remove(&key);
                }
                self.evicted.remove(&who);
                continue;
            }
            if let Some(evicted) = self.evicted.get(&who) {
                activity.join(evicted);
            }
            let is_connected = self.connected.covers(who);
            let (calls_before, was_connected) =
                before.remove(&who).map_or((0, false), |(old, was)| (old.calls(), was));
            if activity.calls() > calls_before && !is_connected {
                if was_connected {
                    left.push(who);
                } else {
                    active.push((who, activity.is_compute()));
                }
            }
            self.counted.insert(who, (activity, is_connected));
        }
        self.inner.retain(|who, _| self.counted.contains_key(who));
        self.told.clear();
        for (who, (activity, _)) in &self.counted {
            let container_pid = *self.inner.entry(*who).or_insert_with(|| scan::inner_pid(who.pid));
            self.told.push(activity.status(who.pid, container_pid));
        }
        for (who, computes) in active {
            self.saw(who, Evidence::Ioctl, computes, now_ns);
        }
        // If the session of a process ended since the last reading, the process may have made these
        // calls during the session. So its open devices decide, because it may make no further
        // call.
        for who in left {
            self.look_at(who, now_ns);
        }
    }

    /// Looks for calls that the kernel skipped, and for calls whose return the kernel missed. Only
    /// probes at the return of functions miss returns, because they have room for a limited number
    /// of threads.
    fn look_for_missed(&mut self) {
        let Some((kernel, _)) = &mut self.kernel else { return };
        self.state.skipped = self.skipped + kernel.skipped();
        if kernel.attach_point() != AttachPoint::DriverFunctions {
            return;
        }
        let missed = inside::missed(kernel);
        self.state.missed = self.missed + missed.len() as u64;
        let dead = missed.iter().filter(|(tid, _)| ProcessKey::of(*tid).is_none());
        self.missed += dead.filter(|(tid, _)| kernel.forget_call(*tid)).count() as u64;
    }

    /// Asks which processes NVML lists. The function does not wait, because NVML can wait for the
    /// driver for ever.
    fn ask_nvml(&self) {
        let (answers, bell) = (self.answers.0.clone(), Arc::clone(&self.bell));
        nvml::ask_who_computes(move |listed, took_ns| {
            // If the watching thread has ended, the send fails.
            let _ = answers.send(Answer::Listed(listed, took_ns));
            ring(&bell);
        });
    }

    /// Records the processes that NVML lists as users of a GPU. In this pid namespace, NVML's ids
    /// can mean other processes, so each process must also have a device open by /proc.
    fn confirm(&mut self, mut listed: BTreeSet<u32>, now_ns: u64) {
        if is_in_host_pid_namespace() {
            return self.see_listed(listed, now_ns);
        }
        let devices = self.devices.clone();
        self.answer_from(&self.searcher, move |_| {
            listed.retain(|pid| scan::open(*pid, &devices).is_some());
            Answer::Confirmed(listed)
        });
    }

    /// Makes the thread of `reader` read something, send the answer and ring the bell. `read` gets
    /// the thread's processor time so far, ns.
    fn answer_from(&self, reader: &Reader, read: impl FnOnce(u64) -> Answer + Send + 'static) {
        let (answers, bell) = (self.answers.0.clone(), Arc::clone(&self.bell));
        reader.read(move || {
            // If the watching thread has ended, the send fails.
            let _ = answers.send(read(thread_ns()));
            ring(&bell);
        });
    }

    /// Records the processes that NVML lists as users of a GPU. The ids are those of this pid
    /// namespace.
    fn see_listed(&mut self, listed: BTreeSet<u32>, now_ns: u64) {
        self.listed = listed;
        let strangers: Vec<u32> =
            self.listed.iter().copied().filter(|pid| !self.connected.contains(*pid)).collect();
        for who in strangers.into_iter().filter_map(ProcessKey::of) {
            self.saw(who, Evidence::Nvml, true, now_ns);
        }
    }

    /// Makes another thread look at all processes.
    fn search(&self) {
        let devices = self.devices.clone();
        self.answer_from(&self.searcher, move |began_ns| {
            Answer::Searched(scan::all(&devices), thread_ns() - began_ns)
        });
    }

    fn searched(&mut self, found: Found, now_ns: u64) {
        for (who, found) in found.users {
            // A session's children inherit its descriptors. If a child uses the device, its ioctls
            // show this.
            if !self.descends_from_a_session(who.pid) {
                self.saw(who, found.evidence, found.is_compute, now_ns);
            }
        }
        found.others.into_iter().for_each(|who| self.ask_for_mappings(who));
        found.large.into_iter().for_each(|who| self.ask_for_descriptors(who));
    }

    /// Makes another thread read all descriptors of a process that has very many descriptors. If
    /// another thread is reading them, or has just done so, does nothing.
    fn ask_for_descriptors(&mut self, who: ProcessKey) {
        if !self.large.asks(who, monotonic_ns()) {
            return;
        }
        let (devices, answers, bell) = (self.devices.clone(), self.answers.0.clone(), Arc::clone(&self.bell));
        self.descriptor_readers.start(move || {
            let began_ns = thread_ns();
            let found = scan::open(who.pid, &devices);
            let is_large = !scan::glance(who.pid, &devices).is_whole;
            // If the watching thread has ended, the send fails.
            let _ = answers.send(Answer::Opened(who, found, is_large, thread_ns() - began_ns));
            ring(&bell);
        });
    }

    /// Makes another thread read a process's mappings, unless a thread is reading the mappings
    /// already.
    fn ask_for_mappings(&mut self, who: ProcessKey) {
        if !self.asked.insert(who) {
            return;
        }
        let (devices, answers, bell) = (self.devices.clone(), self.answers.0.clone(), Arc::clone(&self.bell));
        let (is_known, spent_ns) = (self.mapped.contains(&who), Arc::clone(&self.spent_ns));
        self.readers.start(move || {
            let began_ns = monotonic_ns();
            let found = scan::mapped(who.pid, &devices);
            // Time beyond this bound was a wait and no work.
            spent_ns.fetch_add((monotonic_ns() - began_ns).min(MAX_SPENT_NS), Ordering::Relaxed);
            // If the watching thread has ended, the send fails.
            let _ = answers.send(Answer::Mapped(who, found));
            if found.is_some() && !is_known {
                ring(&bell);
            }
        });
    }

    fn descends_from_a_session(&self, pid: u32) -> bool {
        std::iter::successors(Some(pid), |pid| scan::parent(*pid).filter(|parent| *parent > 1))
            .any(|pid| self.connected.contains(pid))
    }

    fn saw(&mut self, who: ProcessKey, evidence: Evidence, is_compute: bool, now_ns: u64) {
        if self.connected.covers(who) || scan::is_ours(who.pid) {
            return;
        }
        if evidence == Evidence::Ioctl {
            self.large.doubt(who);
        }
        if let Some(change) = self.users.seen(who, evidence, is_compute, now_ns) {
            self.act(change);
        }
    }

    fn settle(&mut self, now_ns: u64) {
        let (devices, listed, mapped) = (&self.devices, &self.listed, &self.mapped);
        let (connected, of_before, large) = (&self.connected, &self.of_before, &self.large);
        let mut unseen = Vec::new();
        let is_managed = |who: ProcessKey, is_compute: bool| {
            connected.covers(who) || of_before.contains(&who) || !is_compute && connected.is_viewer(who)
        };
        let uses = |who: ProcessKey| {
            if !who.is_alive() || scan::is_dying(who.pid) {
                return false;
            }
            if listed.contains(&who.pid) || mapped.contains(&who) {
                return true;
            }
            // For a process with very many descriptors, the last result counts, because a new look
            // takes too long.
            if let Some(uses) = large.uses(who) {
                unseen.push(who);
                return uses;
            }
            let Look { found, is_whole } = scan::glance(who.pid, devices);
            if !is_whole && found.is_none() {
                unseen.push(who);
            }
            // If the look was not complete, it does not disprove an earlier use.
            found.is_some() || !is_whole || scan::is_hidden(who.pid)
        };
        let changes = self.users.settle(monotonic_ns(), is_managed, uses);
        unseen.into_iter().for_each(|who| self.ask_for_descriptors(who));
        for change in changes {
            self.act(change);
        }
        if self.settings.unmanaged == UnmanagedPolicy::Hold {
            let computing = self.users.reported().filter(|(_, user)| user.is_compute);
            for who in computing.map(|(who, _)| *who).collect::<Vec<_>>() {
                self.hold(who, now_ns);
            }
        }
    }

    fn act(&mut self, change: Change) {
        match change {
            Change::Found(who) => {
                let is_compute = self.users.find(who.pid).is_some_and(|(_, user)| user.is_compute);
                self.describe(who);
                let found = &self.described[&who];
                let kind = kind(is_compute);
                let (pid, uid, command) = (who.pid, found.uid, &found.command);
                let container = found.container.as_deref().unwrap_or_default();
                let is_adopted = self.adopted.contains_key(&who);
                if !self.lines.allows(&Source::User(found.uid)) {
                    // `ps` lists all processes. The log does not, because a user who starts
                    // programs in a loop must not fill it.
                } else if is_adopted {
                    tracing::info!(
                        pid,
                        uid,
                        command,
                        container,
                        kind,
                        "an adopted process uses the GPU again"
                    );
                } else if self.settings.unmanaged == UnmanagedPolicy::Report {
                    tracing::info!(pid, uid, command, container, kind, "an unmanaged process uses the GPU");
                } else {
                    tracing::warn!(pid, uid, command, container, kind, "an unmanaged process uses the GPU");
                }
            }
            // `settle` decides in a moment whether the daemon holds the process.
            Change::Computes(_) => {}
            Change::Passed(who) => {
                if self.lines.allows_unknown() {
                    tracing::info!(
                        pid = who.pid,
                        "an unmanaged process asked the driver for compute, and ended or closed its devices before the daemon could list it"
                    );
                }
            }
            Change::Gone(who) => {
                let found = self.described.remove(&who);
                if found.is_none_or(|found| self.lines.allows(&Source::User(found.uid))) {
                    tracing::info!(pid = who.pid, "an unmanaged process ended or became managed");
                }
                self.common.held.let_go(who);
            }
        }
    }

    /// Describes a process once. Waits a moment for the command line. If the command line comes
    /// later, another round adds the command line.
    fn describe(&mut self, who: ProcessKey) {
        self.described.insert(who, scan::describe(who.pid));
        let (answers, bell) = (self.answers.0.clone(), Arc::clone(&self.bell));
        self.readers.start(move || {
            if let Some(command) = command_line(who.pid) {
                // If the watching thread has ended, the send fails.
                let _ = answers.send(Answer::Command(who, command));
                ring(&bell);
            }
        });
        let patience = self.patience;
        let left = || patience.saturating_duration_since(Instant::now());
        while let Ok(answer) = self.answers.1.recv_timeout(left()) {
            let is_it = matches!(&answer, Answer::Command(about, _) if *about == who);
            self.take(answer, monotonic_ns());
            if is_it {
                return;
            }
        }
    }

    /// Stops a process that computes. If the process is adopted, can reconnect, or has no device
    /// open or mapped, does not stop the process.
    fn hold(&mut self, who: ProcessKey, now_ns: u64) {
        let is_coming_back = self.returning.get(&who).is_some_and(|until_ns| now_ns < *until_ns);
        if is_coming_back || self.adopted.contains_key(&who) {
            return;
        }
        let was_held = self.common.held.contains(who);
        if was_held && who.is_stopped() {
            self.stopping.remove(&who);
            return;
        }
        let is_on_its_way = self.stopping.get(&who).is_some_and(|sent_ns| now_ns < sent_ns + STOPS_NS);
        if was_held && (is_on_its_way || who.is_being_stopped()) {
            return;
        }
        // The daemon does not stop a process by NVML's list alone.
        let is_seen = scan::glance(who.pid, &self.devices).found.is_some()
            || self.mapped.contains(&who)
            || self.large.uses(who) == Some(true);
        if (is_seen || was_held) && self.common.held.stop(who) {
            self.stopping.insert(who, now_ns);
            let again = if was_held { " again, after another process let it go on" } else { "" };
            tracing::warn!(
                pid = who.pid,
                "the daemon held an unmanaged process{again}; `deepres adopt {}` lets it go on",
                who.pid
            );
        }
    }

    fn adopt(&mut self, pid: u32, tenant: Option<String>) -> Result<(), String> {
        let Some((who, _)) = self.users.find(pid) else {
            return Err(format!(
                "process {pid} is not an unmanaged process; `deepres ps` lists the unmanaged processes"
            ));
        };
        tracing::info!(pid, tenant, "an administrator adopted a process");
        self.adopted.insert(who, tenant);
        self.common.held.let_go(who);
        Ok(())
    }

    fn publish(&self) {
        let unmanaged = self.users.reported().filter_map(|(who, user)| {
            let Description { command, uid, container_pid, container } = self.described.get(who)?.clone();
            let adopted = self.adopted.get(who);
            let state = match adopted {
                Some(_) => "adopted",
                None if self.common.held.contains(*who) => "held",
                None => "reported",
            };
            Some(UnmanagedStatus {
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
                started_by: None,
            })
        });
        let board = Board {
            probes: self.state.clone(),
            unmanaged: unmanaged.collect(),
            activity: self.told.clone(),
            adopted: self
                .adopted
                .iter()
                .map(|(process, tenant)| Adopted { process: *process, tenant: tenant.clone() })
                .collect(),
            held: self.common.held.all(),
        };
        *self.common.board.lock().unwrap_or_else(PoisonError::into_inner) = board;
    }

    fn sleep(&self) {
        let now_ns = monotonic_ns();
        let stats_ns = if self.kernel.is_some() { self.due.stats_ns } else { u64::MAX };
        let scan_ns = if self.devices.is_empty() { u64::MAX } else { self.due.scan_ns };
        let due_ns = [
            stats_ns,
            self.due.nvml_ns,
            scan_ns,
            self.due.devices_ns,
            self.due.forget_ns,
            self.users.due_ns().unwrap_or(u64::MAX),
        ];
        let until_ns = due_ns.into_iter().min().unwrap_or(u64::MAX);
        let pause =
            Duration::from_nanos(until_ns.saturating_sub(now_ns)).min(Duration::from_nanos(DEVICES_NS));
        let Ok(pause) = Timespec::try_from(pause) else { return };
        let mut descriptors = vec![PollFd::new(&*self.bell, PollFlags::IN)];
        if let Some((_, ring)) = &self.kernel {
            descriptors.push(PollFd::from_borrowed_fd(ring.as_fd(), PollFlags::IN));
        }
        // The loop looks again, also if the wait was interrupted.
        let _ = poll(&mut descriptors, Some(&pause));
        let _ = rustix::io::read(&*self.bell, &mut [0; 8]);
    }
}

/// Takes over the processes that the previous daemon held. If the policy is not `hold`, lets them
/// go on.
fn take_over(held: &Held, before: &[ProcessKey], policy: UnmanagedPolicy) {
    for who in before.iter().copied().filter(|who| who.is_alive()) {
        held.take_over(who);
        if policy != UnmanagedPolicy::Hold {
            tracing::info!(pid = who.pid, "the daemon let a process go on that the previous daemon had held");
            held.let_go(who);
        }
    }
}

fn kind(is_compute: bool) -> &'static str {
    if is_compute { "compute" } else { "control" }
}

/// Returns the next time of a task that took `spent_ns`, ns of `CLOCK_MONOTONIC`.
fn next(spent_ns: u64, pause_ns: u64) -> u64 {
    monotonic_ns() + pause_ns.max(spent_ns.saturating_mul(DUTY))
}
