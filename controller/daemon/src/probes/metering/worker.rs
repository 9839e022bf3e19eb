//! The metering thread. The thread attaches probes to the metered processes, reads the counters,
//! and forgets dead processes after a while.

use super::programs::{METERED_ENTRIES, Programs};
use super::shares::Shares;
use super::symbols::{Point, SymbolsError, points};
use super::undertaker::Undertaker;
use super::{Order, Purpose, entry, libraries};
use crate::identity::read;
use crate::identity::source::Source;
use crate::probes::connected::{Connected, Presence};
use crate::probes::kernel::Ring;
use crate::probes::reader::{Readers, command_line};
use crate::probes::scan::{self, Description};
use aya::programs::uprobe::UProbeLink;
use deepres_abi::probe::{Begun, LaunchKey, LaunchValue, SOURCES, cookie};
use deepres_model::clock::monotonic_ns;
use deepres_model::probes::{ENDED, MeteredStatus, MeteringStatus};
use deepres_model::process::ProcessKey;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, Once, PoisonError, mpsc};
use std::time::{Duration, Instant};

const MS: u64 = 1_000_000;
/// The time between two rounds, in which the thread reads the counters and looks for dead
/// processes.
const ROUND_NS: u64 = 250 * MS;
/// The first pause before the thread looks again at a process that uses no known library yet, ns.
const LOOK_NS: u64 = 250 * MS;
/// The longest pause before the thread looks again at a process that uses no known library yet, ns.
const MAX_LOOK_NS: u64 = 4_000 * MS;
/// The most time in one round for looks at processes that use no known library yet. The next round
/// goes on with the other processes.
const LOOKS_LIMIT: Duration = Duration::from_millis(50);
/// The time for which the status lists a process that has ended.
const ENDED_NS: u64 = 60_000 * MS;
/// The most ended processes that the status lists.
const MAX_ENDED: usize = 256;
/// The most time that the thread waits for a process's command line. The process can block this
/// read.
const COMMAND_LIMIT: Duration = Duration::from_millis(50);
/// The most time that the thread waits for a process's mappings. The process can block this read.
const MAPPINGS_LIMIT: Duration = Duration::from_secs(1);
/// The most time for reading the libraries of a process. Their file systems can be remote, or a
/// program can serve them.
const SYMBOLS_LIMIT: Duration = Duration::from_secs(2);
/// The most probes at a time. Each probe takes a descriptor.
const MAX_PROBES: usize = 8192;
/// The most files that the thread remembers as files without any of the driver's functions.
const MAX_DISMISSED: usize = 4096;
/// The most libraries that have a probe at `cuInit`.
const MAX_LIBRARIES: usize = 128;

/// A file that contains the driver's functions.
struct Library {
    file: File,
    path: String,
    points: Vec<Point>,
    /// Probes that report the processes which begin to use the library.
    beginning: Vec<UProbeLink>,
    /// Source of the process in which the thread first found the library.
    source: Source,
    /// Jobs whose processes used the library.
    jobs: BTreeSet<u64>,
}

/// A process that a request named, or that uses a library.
struct Process {
    job: u64,
    since_ns: u64,
    ended_ns: Option<u64>,
    description: Description,
    /// The source for which the process's probes count.
    source: Source,
    probes: BTreeMap<(u64, u64), Vec<UProbeLink>>,
    counts: BTreeMap<u32, LaunchValue>,
    problem: Option<String>,
}

/// A metered process that uses no library yet.
struct Waiting {
    next_ns: u64,
    pause_ns: u64,
}

pub struct Worker {
    /// The reason for which the configuration allows no metering at all; `None` if the
    /// configuration allows metering.
    refusal: Option<String>,
    connected: Arc<Connected>,
    board: Arc<Mutex<MeteringStatus>>,
    programs: Option<(Programs, Ring<Begun>)>,
    libraries: BTreeMap<(u64, u64), Library>,
    /// Number of libraries of each source.
    brought: Shares,
    /// Number of attached probes for each source (a user or a container). A probe counts until the
    /// undertaker's thread has detached it.
    probed: Arc<Mutex<Shares>>,
    jobs: BTreeMap<u64, Purpose>,
    /// The numbers of the sources of metered processes.
    sources: BTreeMap<Source, u32>,
    processes: BTreeMap<ProcessKey, Process>,
    waiting: BTreeMap<ProcessKey, Waiting>,
    /// Processes of `deepres run --no-preload` and their children, with and without probes. The
    /// daemon does not report these processes as unmanaged.
    presences: BTreeMap<ProcessKey, Presence>,
    readers: Readers,
    /// Files that contain none of the driver's functions.
    dismissed: BTreeSet<(u64, u64)>,
    next_job: u64,
    undertaker: Undertaker,
    /// Processes whose mappings a thread is still reading.
    unread: BTreeMap<ProcessKey, Arc<()>>,
    /// Calls and processes that earlier, now unloaded programs did not count for lack of room.
    uncounted: (u64, u64),
}

impl Worker {
    pub fn new(
        refusal: Option<String>,
        connected: Arc<Connected>,
        board: Arc<Mutex<MeteringStatus>>,
    ) -> std::io::Result<Self> {
        let probed: Arc<Mutex<Shares>> = Arc::default();
        let undertaker = Undertaker::start(Arc::clone(&probed))?;
        Ok(Self {
            refusal,
            connected,
            board,
            programs: None,
            libraries: BTreeMap::new(),
            brought: Shares::default(),
            probed,
            jobs: BTreeMap::new(),
            sources: BTreeMap::new(),
            processes: BTreeMap::new(),
            waiting: BTreeMap::new(),
            presences: BTreeMap::new(),
            readers: Readers::default(),
            dismissed: BTreeSet::new(),
            next_job: 1,
            undertaker,
            unread: BTreeMap::new(),
            uncounted: (0, 0),
        })
    }

    pub fn run(mut self, wake: &OwnedFd, orders: &mpsc::Receiver<Order>) {
        loop {
            self.sleep(wake);
            loop {
                match orders.try_recv() {
                    Ok(Order::Meter { pid, purpose, answer }) => {
                        // If the caller no longer waits, the send fails.
                        let _ = answer.send(self.meter(pid, purpose));
                    }
                    Ok(Order::Stop) | Err(mpsc::TryRecvError::Disconnected) => return,
                    Err(mpsc::TryRecvError::Empty) => break,
                }
            }
            self.attach_beginners();
            self.round();
            self.publish();
        }
    }

    /// Sleeps until an order comes, a process begins to use a library, or the counters are due.
    fn sleep(&self, wake: &OwnedFd) {
        let pause = Timespec { tv_sec: 0, tv_nsec: ROUND_NS as i64 };
        let mut descriptors = vec![PollFd::new(wake, PollFlags::IN)];
        let mut until = None;
        if let Some((_, ring)) = &self.programs {
            descriptors.push(PollFd::from_borrowed_fd(ring.as_fd(), PollFlags::IN));
        }
        if self.programs.is_some() || !self.processes.is_empty() {
            until = Some(&pause);
        }
        // The loop looks again, also if the wait was interrupted.
        let _ = poll(&mut descriptors, until);
        let _ = rustix::io::read(wake, &mut [0; 8]);
    }

    fn meter(&mut self, pid: u32, purpose: Purpose) -> Result<(), String> {
        if let Some(refusal) = &self.refusal {
            return Err(refusal.clone());
        }
        let who = ProcessKey::of(pid).ok_or_else(|| format!("there is no process {pid}"))?;
        let job = self.next_job;
        self.load()?;
        let source = self.let_in(Source::of(pid, read::owner(pid, scan::describe(pid).uid)))?;
        self.load()?.meter(who, job, source).map_err(|error| error.to_string())?;
        self.next_job += 1;
        self.jobs.insert(job, purpose);
        tracing::info!(pid, tenant = self.jobs[&job].tenant, "the daemon meters a process from outside");
        self.enter(who, job);
        let found = self.attach(who).map_err(|unprobed| unprobed.to_string());
        if let Err(problem) = &found
            && let Some(process) = self.processes.get_mut(&who)
        {
            // The process can load the library later.
            process.problem = Some(problem.clone());
            self.waiting.insert(who, Waiting { next_ns: 0, pause_ns: LOOK_NS });
        }
        self.publish();
        found
    }

    /// Returns the number of a source, which gets one more metered process.
    fn let_in(&mut self, source: Source) -> Result<u32, String> {
        let mut held = self.share_out();
        held.take(&source, 1, METERED_ENTRIES as usize)
            .map_err(|full| format!("the daemon meters too many processes already: {full}"))?;
        if let Some(number) = self.sources.get(&source) {
            return Ok(*number);
        }
        let is_free = |number: &u32| self.sources.values().all(|taken| taken != number);
        let number = (0..SOURCES).find(is_free).ok_or_else(|| {
            format!("the daemon meters processes of {SOURCES} users already, the most at a time")
        })?;
        self.sources.insert(source, number);
        self.share_out();
        Ok(number)
    }

    /// Lets each source have children up to its part of the room for metered processes. Returns the
    /// number of metered processes of each source.
    fn share_out(&mut self) -> Shares {
        let Some((programs, _)) = &mut self.programs else { return Shares::default() };
        // The numbers of children come first. So a child that is born meanwhile counts as held, and
        // its source gets no room for it a second time.
        let taken: Vec<u64> = self.sources.values().map(|number| programs.taken(*number)).collect();
        let named = |number: u32| self.sources.iter().find(|(_, own)| **own == number);
        let metered = programs.metered().into_iter();
        let held: Shares = metered.filter_map(|(.., number)| Some(named(number)?.0.clone())).collect();
        for ((source, number), taken) in self.sources.iter().zip(taken) {
            let left = held.limit_of(source, METERED_ENTRIES as usize).saturating_sub(held.of(source));
            programs.give(*number, taken.saturating_add(left as u64));
        }
        held
    }

    fn load(&mut self) -> Result<&mut Programs, String> {
        if self.programs.is_none() {
            let mut programs = Programs::load().map_err(|error| error.to_string())?;
            let ring = programs.take_begun().ok_or("the eBPF programs have no ring")?;
            make_room();
            self.programs = Some((programs, ring));
        }
        match &mut self.programs {
            Some((programs, _)) => Ok(programs),
            None => Err("the eBPF programs are gone".to_owned()),
        }
    }

    fn enter(&mut self, who: ProcessKey, job: u64) {
        self.note_presence(who, job);
        if let Some(process) = self.processes.get_mut(&who) {
            // If an administrator adopts a process again, the last adoption counts.
            process.job = job;
            return;
        }
        let description = self.describe(who.pid);
        let process = Process {
            job,
            since_ns: monotonic_ns(),
            ended_ns: None,
            source: Source::of(who.pid, read::owner(who.pid, description.uid)),
            description,
            probes: BTreeMap::new(),
            counts: BTreeMap::new(),
            problem: None,
        };
        self.processes.insert(who, process);
    }

    fn note_presence(&mut self, who: ProcessKey, job: u64) {
        if self.jobs.get(&job).is_some_and(|purpose| purpose.is_managed) {
            let connected = &self.connected;
            self.presences.entry(who).or_insert_with(|| Presence::new(connected, who.pid));
        }
    }

    fn describe(&self, pid: u32) -> Description {
        let mut description = scan::describe(pid);
        if let Some(command) = self.readers.within(COMMAND_LIMIT, move || command_line(pid)).flatten() {
            description.command = command;
        }
        description
    }

    /// Returns the mapped files of a process that can contain the functions; `None` if the read
    /// takes too long. A process that blocks the read occupies one reader, for any number of calls
    /// of this function.
    fn mapped_by(&mut self, who: ProcessKey) -> Option<Vec<libraries::Mapped>> {
        self.unread.retain(|_, reading| Arc::strong_count(reading) > 1);
        if self.unread.contains_key(&who) {
            return None;
        }
        let dismissed = self.dismissed.clone();
        let reading = Arc::new(());
        let token = Arc::clone(&reading);
        let found = self.readers.within(MAPPINGS_LIMIT, move || {
            let _token = token;
            libraries::of(who.pid, &dismissed)
        });
        if found.is_none() {
            self.unread.insert(who, reading);
        }
        found
    }

    /// Probes the libraries that a process uses, for this process.
    fn attach(&mut self, who: ProcessKey) -> Result<(), Unprobed> {
        let mut problems = Vec::new();
        let mut has_any = false;
        let found = self.mapped_by(who);
        let found = found.ok_or_else(|| {
            Unprobed::Problem("the daemon cannot read the mappings of the process".to_owned())
        })?;
        let mut patience = SYMBOLS_LIMIT;
        for mapped in found {
            let is_known = self.libraries.contains_key(&mapped.id);
            let (id, path) = (mapped.id, mapped.path.clone());
            match if is_known { Ok(()) } else { self.learn(who, mapped, &mut patience) } {
                Ok(()) => match self.probe(who, id) {
                    Ok(()) => has_any = true,
                    Err(problem) => problems.push(format!("{path}: {problem}")),
                },
                Err(Unusable::Symbols(SymbolsError::NoFunctions | SymbolsError::NotElf)) => {
                    if self.dismissed.len() < MAX_DISMISSED {
                        self.dismissed.insert(id);
                    }
                }
                Err(Unusable::Symbols(error)) => problems.push(format!("{path} {error}")),
                Err(Unusable::Kernel(error)) => problems.push(format!("{path}: {error}")),
            }
        }
        if has_any {
            if let Some(process) = self.processes.get_mut(&who) {
                process.problem = None;
            }
            return Ok(());
        }
        if problems.is_empty() {
            return Err(Unprobed::NoLibrary);
        }
        Err(Unprobed::Problem(deepres_model::text::harmless(&problems.join("; "))))
    }

    /// Finds a library's functions, and attaches the probes that report its new users. The library
    /// counts for the source of `who`.
    fn learn(
        &mut self,
        who: ProcessKey,
        mapped: libraries::Mapped,
        patience: &mut Duration,
    ) -> Result<(), Unusable> {
        let libraries::Mapped { file, id, path } = mapped;
        let Some(source) = self.processes.get(&who).map(|process| process.source.clone()) else {
            return Err(Unusable::Kernel("the process has ended".to_owned()));
        };
        let copy = file.try_clone().map_err(|error| Unusable::Kernel(error.to_string()))?;
        let began = Instant::now();
        let places = self.readers.within(*patience, move || points(&copy));
        *patience = patience.saturating_sub(began.elapsed());
        let places = places.ok_or_else(|| Unusable::Kernel("reading the file takes too long".to_owned()))?;
        let places = places.map_err(Unusable::Symbols)?;
        let (beginnings, counted): (Vec<Point>, Vec<Point>) =
            places.into_iter().partition(|point| cookie::tells(point.cookie));
        let full = |full| Unusable::Kernel(format!("the daemon probes too many libraries already: {full}"));
        self.brought.take(&source, 1, MAX_LIBRARIES).map_err(full)?;
        let programs = self.load();
        let beginning = programs.and_then(|programs| {
            let attached = beginnings.into_iter().map(|point| programs.attach(&file, point, None));
            attached.collect::<Result<Vec<_>, _>>().map_err(|error| error.to_string())
        });
        let beginning = beginning.map_err(|error| {
            self.brought.give_back(&source, 1);
            Unusable::Kernel(error)
        })?;
        tracing::info!(
            library = deepres_model::text::harmless(&path),
            functions = counted.len(),
            "the daemon probes a driver's library"
        );
        let library = Library { file, path, points: counted, beginning, source, jobs: BTreeSet::new() };
        self.libraries.insert(id, library);
        Ok(())
    }

    /// Forgets the libraries whose jobs have no living process.
    fn forget_libraries(&mut self, living: &BTreeMap<ProcessKey, u64>) {
        let jobs: BTreeSet<u64> = living.values().copied().collect();
        let unused = self.libraries.extract_if(.., |_, library| library.jobs.is_disjoint(&jobs));
        for (_, library) in unused {
            tracing::info!(
                library = deepres_model::text::harmless(&library.path),
                "the daemon no longer probes a driver's library: its last user has ended"
            );
            self.brought.give_back(&library.source, 1);
            self.undertaker.take(None, library.beginning);
        }
    }

    fn probe(&mut self, who: ProcessKey, id: (u64, u64)) -> Result<(), String> {
        let Some(process) = self.processes.get_mut(&who) else { return Ok(()) };
        let (Some(library), Some((programs, _))) = (self.libraries.get_mut(&id), &mut self.programs) else {
            return Ok(());
        };
        library.jobs.insert(process.job);
        if process.probes.contains_key(&id) {
            return Ok(());
        }
        let count = library.points.len();
        {
            let mut probed = self.probed.lock().unwrap_or_else(PoisonError::into_inner);
            let most = room(probed.sum());
            probed.take(&process.source, count, most).map_err(|full| {
                format!("the daemon has too many probes already: {full}; raise `ulimit -n`, of which probes may have half, up to {MAX_PROBES}")
            })?;
        }
        let probes = library.points.iter().map(|point| programs.attach(&library.file, *point, Some(who.pid)));
        match probes.collect::<Result<Vec<_>, _>>() {
            Ok(probes) => {
                process.probes.insert(id, probes);
                Ok(())
            }
            Err(error) => {
                self.probed.lock().unwrap_or_else(PoisonError::into_inner).give_back(&process.source, count);
                Err(error.to_string())
            }
        }
    }

    /// Attaches probes to processes that have just begun to use a library.
    fn attach_beginners(&mut self) {
        let Some((_, ring)) = &mut self.programs else { return };
        let begun: Vec<Begun> = std::iter::from_fn(|| ring.pop()).collect();
        for Begun { start_ticks, job, pid, .. } in begun {
            let who = ProcessKey { pid, start_ticks };
            if self.jobs.contains_key(&job) && who.is_alive() {
                self.begin(who, job);
            }
        }
    }

    fn begin(&mut self, who: ProcessKey, job: u64) {
        let is_new = !self.processes.contains_key(&who);
        self.enter(who, job);
        match self.attach(who) {
            Ok(()) => {
                self.waiting.remove(&who);
            }
            // The thread only examined the process, which uses no library.
            Err(Unprobed::NoLibrary) if is_new => drop(self.processes.remove(&who)),
            Err(unprobed) => {
                if let Some(process) = self.processes.get_mut(&who) {
                    process.problem = Some(unprobed.to_string());
                }
            }
        }
    }

    /// Reads the counters, forgets the dead processes, and looks at processes without a library.
    fn round(&mut self) {
        let now_ns = monotonic_ns();
        let Some((programs, _)) = &mut self.programs else {
            self.forget_ended(now_ns);
            return;
        };
        let living: BTreeMap<ProcessKey, u64> =
            programs.metered().into_iter().map(|(who, job, _)| (who, job)).collect();
        // The function finds the dead processes before it reads the counters. So the counters of a
        // dead process are complete.
        let dead: BTreeSet<ProcessKey> = living.keys().copied().filter(|who| !who.is_alive()).collect();
        let mut begun = Vec::new();
        for (key, value) in programs.counts() {
            let who = ProcessKey { pid: key.pid, start_ticks: key.start_ticks };
            match self.processes.get_mut(&who) {
                Some(process) => {
                    if process.counts.insert(key.entry, value).is_none() && process.ended_ns.is_none() {
                        begun.push(who);
                    }
                }
                None if living.contains_key(&who) => {}
                None => programs.remove(&key),
            }
        }
        for who in &dead {
            programs.forget(who.pid);
            self.waiting.remove(who);
            self.presences.remove(who);
            let Some(process) = self.processes.get_mut(who) else { continue };
            process.ended_ns = Some(now_ns);
            let probes = std::mem::take(&mut process.probes);
            self.undertaker.take(Some(process.source.clone()), probes.into_values().flatten().collect());
            for entry in process.counts.keys() {
                programs.remove(&LaunchKey { start_ticks: who.start_ticks, pid: who.pid, entry: *entry });
            }
            let sums = sums(process);
            tracing::info!(
                pid = who.pid,
                launches = sums.launches,
                graph_launches = sums.graph_launches,
                allocations = sums.allocations,
                "a metered process ended"
            );
        }
        let held = self.share_out();
        self.sources.retain(|source, _| held.of(source) > 0);
        for who in begun.into_iter().filter(|who| !dead.contains(who)) {
            // The process may have run another program (exec) since the request.
            let present = self.describe(who.pid);
            if let Some(process) = self.processes.get_mut(&who)
                && !present.command.is_empty()
            {
                process.description = present;
            }
        }
        for (who, job) in living.iter().filter(|(who, _)| !dead.contains(who)) {
            self.note_presence(*who, *job);
        }
        self.look_at_waiting(&living, &dead, now_ns);
        self.forget_libraries(&living);
        self.forget_ended(now_ns);
    }

    fn look_at_waiting(
        &mut self,
        living: &BTreeMap<ProcessKey, u64>,
        dead: &BTreeSet<ProcessKey>,
        now_ns: u64,
    ) {
        let began = Instant::now();
        for (who, job) in living.iter().filter(|(who, _)| !dead.contains(who)) {
            if began.elapsed() > LOOKS_LIMIT {
                return;
            }
            if self.processes.get(who).is_some_and(|process| !process.probes.is_empty()) {
                continue;
            }
            let waiting =
                self.waiting.entry(*who).or_insert(Waiting { next_ns: now_ns + LOOK_NS, pause_ns: LOOK_NS });
            if now_ns >= waiting.next_ns {
                waiting.pause_ns = (2 * waiting.pause_ns).min(MAX_LOOK_NS);
                waiting.next_ns = now_ns + waiting.pause_ns;
                self.begin(*who, *job);
            }
        }
    }

    /// Forgets processes that ended long ago. If no process is metered, detaches all probes.
    fn forget_ended(&mut self, now_ns: u64) {
        self.processes
            .retain(|_, process| process.ended_ns.is_none_or(|ended_ns| now_ns - ended_ns < ENDED_NS));
        while self.processes.values().filter(|process| process.ended_ns.is_some()).count() > MAX_ENDED {
            let ended = |process: &Process| process.ended_ns.unwrap_or(u64::MAX);
            let Some(oldest) =
                self.processes.iter().min_by_key(|(_, process)| ended(process)).map(|(who, _)| *who)
            else {
                break;
            };
            self.processes.remove(&oldest);
        }
        let is_needed = self.programs.as_mut().is_some_and(|(programs, _)| programs.are_needed());
        if !is_needed {
            self.forget_libraries(&BTreeMap::new());
            self.waiting.clear();
            self.presences.clear();
            self.dismissed.clear();
            self.sources.clear();
            if let Some((programs, _)) = self.programs.take() {
                let (calls, processes) = programs.uncounted();
                self.uncounted.0 += calls;
                self.uncounted.1 += processes;
            }
            let jobs: BTreeSet<u64> = self.processes.values().map(|process| process.job).collect();
            self.jobs.retain(|job, _| jobs.contains(job));
        }
    }

    fn publish(&self) {
        let processes = self.processes.iter().map(|(who, process)| {
            let mut status = sums(process);
            status.pid = who.pid;
            status.tenant = self.jobs.get(&process.job).and_then(|purpose| purpose.tenant.clone());
            status.libraries = process
                .probes
                .keys()
                .filter_map(|id| Some(deepres_model::text::harmless(&self.libraries.get(id)?.path)))
                .collect();
            status
        });
        let (calls, processes_now) =
            self.programs.as_ref().map_or((0, 0), |(programs, _)| programs.uncounted());
        let (uncounted_calls, uncounted_processes) =
            (self.uncounted.0 + calls, self.uncounted.1 + processes_now);
        let status = MeteringStatus { processes: processes.collect(), uncounted_calls, uncounted_processes };
        *self.board.lock().unwrap_or_else(PoisonError::into_inner) = status;
    }
}

/// The reason for which a process has no probes.
#[derive(Debug, thiserror::Error)]
enum Unprobed {
    #[error("the process has loaded no file with the driver's functions")]
    NoLibrary,
    /// The process uses the driver or can use the driver, and no probe counts its calls.
    #[error("{0}")]
    Problem(String),
}

/// The reason for which the daemon cannot probe a file.
enum Unusable {
    Symbols(SymbolsError),
    Kernel(String),
}

/// Raises this process's limit on descriptors by the number that the probes need, if the system
/// allows this. Only the first call raises the limit, although the metering can start several
/// times.
fn make_room() {
    static RAISED: Once = Once::new();
    RAISED.call_once(|| {
        let limit = getrlimit(Resource::Nofile);
        if let Some(current) = limit.current {
            let wanted = current + 2 * MAX_PROBES as u64;
            let maximum = limit.maximum.map(|maximum| maximum.max(wanted));
            let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum });
        }
    });
}

/// Returns the most probes, for `probes` present probes. The probes leave half of the descriptors
/// to tenants.
fn room(probes: usize) -> usize {
    let Some(limit) = getrlimit(Resource::Nofile).current else { return MAX_PROBES };
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    let others = open.saturating_sub(probes);
    usize::try_from(limit / 2).unwrap_or(usize::MAX).saturating_sub(others).min(MAX_PROBES)
}

/// Returns the sums of a process's counters, as a status.
fn sums(process: &Process) -> MeteredStatus {
    let mut status = MeteredStatus {
        pid: 0,
        container_pid: process.description.container_pid,
        uid: process.description.uid,
        container: process.description.container.clone(),
        command: process.description.command.clone(),
        tenant: None,
        state: match (process.ended_ns, process.probes.is_empty()) {
            (Some(_), _) => ENDED,
            (None, false) => "metered",
            (None, true) => "waiting",
        }
        .to_owned(),
        problem: process.problem.clone(),
        since_ns: process.since_ns,
        last_ns: 0,
        launches: 0,
        graph_launches: 0,
        allocations: 0,
        allocated_bytes: 0,
        frees: 0,
        functions: BTreeMap::new(),
        libraries: Vec::new(),
    };
    for (number, value) in &process.counts {
        let Some((name, kind)) = entry::of(*number) else { continue };
        let sum = match kind {
            entry::Kind::Launch => &mut status.launches,
            entry::Kind::Graph => &mut status.graph_launches,
            entry::Kind::Allocation => &mut status.allocations,
            entry::Kind::Free => &mut status.frees,
        };
        *sum = sum.saturating_add(value.calls);
        status.allocated_bytes = status.allocated_bytes.saturating_add(value.bytes);
        status.last_ns = status.last_ns.max(value.last_ns);
        status.functions.insert(name.to_owned(), value.calls);
    }
    status
}
