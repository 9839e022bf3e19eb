//! The answers of NVML to a tenant: the tenant's own part of each GPU.
//!
//! A process with a session reads its tenant's memory from its own pages, with or without a daemon.
//! But a process can use NVML without CUDA, and then it may have no session. The pages also lack
//! the tenant's other processes. In a process without a session, and for the list of processes, the
//! interposer asks the daemon for a [`View`]. The connection ends with the answer.

pub mod types;

use std::ffi::{CStr, c_char};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use deepres_abi::gpu_name::GpuName;
use deepres_abi::grant::NO_LIMIT;
use deepres_abi::wire::{Uuid, View};

use self::types::{Device, INSUFFICIENT_SIZE, OfProcess, Return, SUCCESS};
use crate::config::Config;
use crate::memory::charge;
use crate::meter::gpu::Shared;
use crate::resolve::{self, elf};
use crate::{handshake, os, process};

/// The beginning of NVML's soname, up to its version.
const SONAME_START: &[u8] = b"libnvidia-ml.so";
/// Room for a GPU's UUID in NVML's format (`NVML_DEVICE_UUID_V2_BUFFER_SIZE`).
const UUID_BYTES: usize = 96;
/// The time for which the process reuses an answer of the daemon, ns. A monitor asks several
/// questions in a row.
const FRESH_NS: u64 = 20_000_000;
/// The time for which the process asks the daemon nothing after a question without an answer, about
/// any GPU, ns.
const RETRY_NS: u64 = 1_000_000_000;
/// The number of processes on a GPU for which the first list for NVML has room.
const FIRST_ROOM: u32 = 64;
/// The largest number of processes on a GPU for which a list for NVML has room.
const MOST_ROOM: u32 = 1 << 16;
/// Parts per million in one percent.
const PPM_PER_PERCENT: u32 = 10_000;

/// A hooked function: its name, and the address of the real function, or 0.
pub struct Function {
    /// The exported name.
    pub name: &'static CStr,
    real: AtomicUsize,
}

impl Function {
    /// Returns a function that no look-up has found yet.
    pub const fn new(name: &'static CStr) -> Self {
        Self { name, real: AtomicUsize::new(0) }
    }

    /// Records `found` as the real function, if no other function is known. Returns whether the
    /// hook will call `found`.
    pub fn remember(&self, found: usize) -> bool {
        if self.real.load(Ordering::Acquire) == 0 && !kept().is_some_and(|object| object.contains(found)) {
            resolve::keep(found);
            KEPT.store(found, Ordering::Release);
        }
        match self.real.compare_exchange(0, found, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => true,
            Err(known) => known == found,
        }
    }

    /// Returns the address of the real function, or 0 if no loaded library has the function.
    pub fn real(&self) -> usize {
        let known = self.real.load(Ordering::Acquire);
        if known != 0 {
            return known;
        }
        let bound = resolve::next_definition(self.name).or_else(|| loaded(self.name));
        // The kept library comes last. The hook needs it if the job has the library in a separate
        // namespace.
        if let Some(found) = bound.or_else(|| kept()?.symbol(self.name)) {
            self.remember(found);
        }
        self.real.load(Ordering::Acquire)
    }
}

/// An address inside the library that `remember` last kept loaded. Mostly there is only one such
/// library. 0 if there is none yet.
static KEPT: AtomicUsize = AtomicUsize::new(0);

/// Returns the library that `remember` last kept loaded.
fn kept() -> Option<elf::Object> {
    let kept = KEPT.load(Ordering::Acquire);
    if kept == 0 { None } else { elf::Object::containing(kept) }
}

/// Returns the address of `symbol` in a loaded NVML library, in any scope.
pub fn loaded(symbol: &CStr) -> Option<usize> {
    elf::find(|object| {
        let name = object.soname().unwrap_or_default().to_bytes();
        if name.starts_with(SONAME_START) { object.symbol(symbol) } else { None }
    })
}

/// The tenant's part of one GPU, by which the hooks answer NVML's questions.
pub struct Part {
    uuid: Uuid,
    /// The tenant's memory according to this process's own session.
    own: Option<Own>,
    /// The daemon's answer, if the process has no session.
    view: Option<View>,
}

/// The tenant's limit and held memory on a GPU, by the pages of this process's session.
#[derive(Clone, Copy)]
struct Own {
    limit_bytes: u64,
    held_bytes: u64,
    /// Whether the session has no daemon.
    is_standalone: bool,
}

impl Part {
    /// Returns the total, free and used bytes that replace the whole GPU's figures. Returns `None`
    /// if the tenant has no limit.
    pub fn memory(&self, total: u64, free: u64) -> Option<(u64, u64, u64)> {
        let (limit_bytes, held_bytes) = match (self.own, &self.view) {
            (Some(own), _) => (own.limit_bytes, own.held_bytes),
            (None, Some(view)) => (view.gpus[0].memory_limit_bytes, view.gpus[0].held_bytes),
            (None, None) => return None,
        };
        if limit_bytes == NO_LIMIT {
            return None;
        }
        let total = total.min(limit_bytes);
        let used = held_bytes.min(total);
        Some((total, free.min(charge::left(total, used)), used))
    }

    /// Returns the tenant's busy time on a GPU that is busy for `whole_percent` of the time. If the
    /// tenant's part is unknown, the result is all of that time.
    pub fn busy_of(&self, whole_percent: u32) -> Busy {
        let whole_percent = whole_percent.max(1);
        let own_percent = self.busy_percent().map_or(whole_percent, |own| own.min(whole_percent));
        Busy { own_percent, whole_percent }
    }

    fn busy_percent(&self) -> Option<u32> {
        Some(self.view()?.gpus[0].recent_ppm.div_ceil(PPM_PER_PERCENT))
    }

    /// Returns the tenant's processes, or `None` if the processes are unknown. In a pid namespace
    /// other than the daemon's, the processes are unknown, and NVML lists only the namespace's own
    /// processes.
    pub fn processes(&self) -> Option<OwnProcesses> {
        self.view().filter(|view| view.asker_pid == std::process::id()).map(OwnProcesses)
    }

    fn view(&self) -> Option<View> {
        match self.own {
            Some(own) if own.is_standalone => None,
            Some(_) => view(self.uuid).filter(|view| view.is_managed(0)),
            None => self.view,
        }
    }
}

/// The tenant's part of the time for which a GPU is busy.
#[derive(Clone, Copy)]
pub struct Busy {
    own_percent: u32,
    /// The busy time of the whole GPU, percent: at least `own_percent`, and never 0.
    whole_percent: u32,
}

impl Busy {
    /// Returns the tenant's busy time as a percentage of all time.
    pub fn percent(self) -> u32 {
        self.own_percent
    }

    /// Returns the tenant's part of a figure that is proportional to the whole GPU's busy time.
    pub fn of(self, whole: u64) -> u64 {
        let own = u128::from(whole) * u128::from(self.own_percent) / u128::from(self.whole_percent);
        // The result is at most `whole`.
        own as u64
    }
}

/// The tenant's processes on one GPU, according to the daemon.
pub struct OwnProcesses(View);

impl OwnProcesses {
    /// Moves the elements about these processes to the front. Returns their number.
    fn retain(&self, list: &mut [impl OfProcess]) -> usize {
        let own = self.0.processes();
        let mut kept = 0;
        for place in 0..list.len() {
            if own.contains(&list[place].pid()) {
                list[kept] = list[place];
                kept += 1;
            }
        }
        kept
    }

    /// Returns the elements of an NVML list that are about these processes. `ask` makes NVML write
    /// at most `count` elements, and stores the number of all elements in `count`.
    ///
    /// # Errors
    /// NVML's error code.
    pub fn list<T: OfProcess>(&self, ask: impl Fn(&mut u32, *mut T) -> Return) -> Result<Vec<T>, Return> {
        let mut room = FIRST_ROOM;
        loop {
            let mut list = Vec::<T>::with_capacity(room as usize);
            let mut count = room;
            match ask(&mut count, list.as_mut_ptr()) {
                SUCCESS => {
                    // SAFETY: NVML wrote `count` elements, and at most as many as there was room
                    // for.
                    unsafe { list.set_len(count.min(room) as usize) };
                    let kept = self.retain(&mut list);
                    list.truncate(kept);
                    return Ok(list);
                }
                // Other processes can start meanwhile, so the room grows beyond the number that
                // NVML gives.
                INSUFFICIENT_SIZE if room < MOST_ROOM => {
                    room = count.saturating_mul(2).max(room.saturating_mul(2)).min(MOST_ROOM)
                }
                error => return Err(error),
            }
        }
    }
}

/// Returns the tenant's part of `device`. Returns `None` if the daemon does not manage the GPU, or
/// if the tenant's part is unknown.
pub fn part(device: Device) -> Option<Part> {
    if resolve::is_disabled() {
        return None;
    }
    let uuid = uuid_of(device)?;
    if let Some(own) = own(&uuid) {
        return Some(Part { uuid, own: Some(own), view: None });
    }
    let view = view(uuid)?;
    view.is_managed(0).then_some(Part { uuid, own: None, view: Some(view) })
}

/// Returns the present figures of this process's session for a GPU. Returns `None` if there is no
/// session on that GPU.
fn own(uuid: &Uuid) -> Option<Own> {
    let process = process::current()?;
    let session = process.session()?;
    let gpu = process.gpus.get(process.ordinal_of(uuid)?)?;
    Some(Own {
        limit_bytes: gpu.grant()?.memory_limit(),
        held_bytes: session.tenant_held_bytes(gpu)?,
        is_standalone: session.standalone().is_some(),
    })
}

/// An answer of the daemon that the process keeps for a short time.
struct Answer {
    /// The UUID of the GPU to which the answer belongs.
    uuid: Uuid,
    /// The process that asked the daemon. A forked child is another process, and asks for itself.
    pid: u32,
    /// The time of the answer, ns of `CLOCK_MONOTONIC`.
    at_ns: u64,
    /// The daemon's answer.
    view: View,
}

/// The daemon's latest answers.
static ANSWERS: Mutex<Vec<Answer>> = Mutex::new(Vec::new());
/// Time of the last failed question (`CLOCK_MONOTONIC`), or 0 if the daemon answered the last
/// question.
static FAILED_NS: AtomicU64 = AtomicU64::new(0);
/// The process whose question failed. Its forked children ask for themselves.
static FAILED_IN: AtomicU32 = AtomicU32::new(0);

fn view(uuid: Uuid) -> Option<View> {
    let (now_ns, pid) = (os::now_ns(), std::process::id());
    // The process never waits for the lock, because it can be a forked child whose parent had
    // another thread with the lock.
    if let Ok(answers) = ANSWERS.try_lock()
        && let Some(answer) = answers.iter().find(|answer| answer.uuid == uuid && answer.pid == pid)
        && now_ns.saturating_sub(answer.at_ns) < FRESH_NS
    {
        return Some(answer.view);
    }
    let failed_ns = FAILED_NS.load(Ordering::Acquire);
    let is_own = FAILED_IN.load(Ordering::Relaxed) == pid;
    if failed_ns != 0 && is_own && now_ns.saturating_sub(failed_ns) < RETRY_NS {
        return None;
    }
    let answer = handshake::view(config(), &[uuid], failed_ns != 0);
    // The time is read after the answer, because the question can take longer than an answer stays
    // valid.
    let at_ns = os::now_ns();
    let Ok(view) = answer else {
        FAILED_IN.store(pid, Ordering::Relaxed);
        FAILED_NS.store(at_ns, Ordering::Release);
        return None;
    };
    FAILED_NS.store(0, Ordering::Release);
    if let Ok(mut answers) = ANSWERS.try_lock() {
        answers.retain(|answer| answer.uuid != uuid);
        answers.push(Answer { uuid, pid, at_ns, view });
    }
    Some(view)
}

/// Returns the configuration of the process. If several threads ask at once, each may read it. No
/// thread waits for another, which a forked child might do for ever.
fn config() -> &'static Config {
    static CONFIG: Shared<Config> = Shared::none();
    CONFIG.get().unwrap_or_else(|| {
        let config: &'static Config = Box::leak(Box::new(Config::read()));
        CONFIG.set(Some(config));
        config
    })
}

fn uuid_of(device: Device) -> Option<Uuid> {
    type GetUuid = unsafe extern "C" fn(Device, *mut c_char, u32) -> Return;
    static GET_UUID: Function = Function::new(c"nvmlDeviceGetUUID");
    let real = GET_UUID.real();
    if real == 0 {
        return None;
    }
    // SAFETY: NVML's function of that name has this type.
    let get = unsafe { std::mem::transmute::<usize, GetUuid>(real) };
    let mut text = [0; UUID_BYTES];
    // SAFETY: the device is the caller's, and the buffer has the given length.
    if unsafe { get(device, text.as_mut_ptr().cast(), UUID_BYTES as u32) } != SUCCESS {
        return None;
    }
    let name = CStr::from_bytes_until_nul(&text).ok()?.to_str().ok()?;
    Some(GpuName::parse(name)?.uuid)
}

#[cfg(test)]
mod tests {
    use super::types::ProcessV1;
    use super::*;
    use crate::memory::charge::BLOCK_BYTES;

    fn part(limit_bytes: u64, held_bytes: u64) -> Part {
        let mut view = View::new(std::process::id());
        view.gpus[0].memory_limit_bytes = limit_bytes;
        view.gpus[0].held_bytes = held_bytes;
        view.gpus[0].recent_ppm = 290_001;
        view.set_processes([7, 9].into_iter());
        Part { uuid: Uuid::default(), own: None, view: Some(view) }
    }

    #[test]
    fn a_tenant_sees_its_limit_what_it_holds_and_what_is_really_free() {
        let memory = |limit, held, free| {
            let shown =
                part(limit * BLOCK_BYTES, held * BLOCK_BYTES).memory(1000 * BLOCK_BYTES, free * BLOCK_BYTES);
            shown.map(|(total, free, used)| (total / BLOCK_BYTES, free / BLOCK_BYTES, used / BLOCK_BYTES))
        };
        assert_eq!(memory(100, 30, 500), Some((100, 70, 30)));
        assert_eq!(memory(100, 30, 20), Some((100, 20, 30)), "others hold the rest");
        assert_eq!(memory(2000, 30, 500), Some((1000, 500, 30)), "a limit beyond the GPU");
        assert_eq!(memory(100, 130, 500), Some((100, 0, 100)), "over a limit that was lowered");
        assert_eq!(part(NO_LIMIT, 30).memory(1000, 500), None);
        let odd = part(3 * BLOCK_BYTES + 7, BLOCK_BYTES).memory(u64::MAX, u64::MAX);
        assert_eq!(
            odd,
            Some((3 * BLOCK_BYTES + 7, 2 * BLOCK_BYTES, BLOCK_BYTES)),
            "so much can be had at once"
        );
        assert_eq!(part(100, 30).busy_percent(), Some(30));
    }

    #[test]
    fn of_the_time_for_which_the_gpu_is_busy_a_tenant_sees_its_part() {
        let busy = |whole| {
            let busy = part(100, 30).busy_of(whole);
            (busy.percent(), busy.of(80), busy.of(u64::MAX))
        };
        assert_eq!(busy(60), (30, 40, u64::MAX / 2));
        assert_eq!(busy(20), (20, 80, u64::MAX), "no more than there is");
        assert_eq!(busy(0), (1, 80, u64::MAX));
        let own = Own { limit_bytes: 200 * BLOCK_BYTES, held_bytes: 0, is_standalone: true };
        let alone = Part { own: Some(own), ..part(100, 30) }.busy_of(60);
        assert_eq!((alone.percent(), alone.of(80)), (60, 80), "nobody can say");
    }

    #[test]
    fn other_tenants_processes_are_left_out_where_they_can_be_told() {
        let mut list = [1, 7, 8, 9].map(|pid| ProcessV1 { pid, used: 0 });
        let kept = part(100, 30).processes().unwrap().retain(&mut list);
        assert!(list[..kept].iter().map(|process| process.pid).eq([7, 9]));
        let mut inside = part(100, 30);
        inside.view.as_mut().unwrap().asker_pid += 1;
        assert!(inside.processes().is_none(), "in another namespace numbers say nothing");
    }

    #[test]
    fn a_list_is_asked_for_with_more_room_until_all_of_it_has_some() {
        let all: Vec<ProcessV1> = (1..=300).map(|pid| ProcessV1 { pid, used: 0 }).collect();
        let ask = |count: &mut u32, to: *mut ProcessV1| {
            if std::mem::replace(count, 300) < 300 {
                return INSUFFICIENT_SIZE;
            }
            // SAFETY: the list has room for that many elements.
            unsafe { to.copy_from_nonoverlapping(all.as_ptr(), all.len()) };
            SUCCESS
        };
        let own = part(100, 30).processes().unwrap();
        assert!(own.list(ask).unwrap().iter().map(|process| process.pid).eq([7, 9]));
        let endless = |count: &mut u32, _: *mut ProcessV1| {
            *count = u32::MAX;
            INSUFFICIENT_SIZE
        };
        assert_eq!(own.list(endless).err(), Some(INSUFFICIENT_SIZE), "a bound");
        assert_eq!(own.list(|_, _: *mut ProcessV1| 3).err(), Some(3), "NVML's own error");
    }

    #[test]
    fn a_session_knows_better_than_what_the_daemon_said_and_needs_none() {
        let own = Own { limit_bytes: 200 * BLOCK_BYTES, held_bytes: 50 * BLOCK_BYTES, is_standalone: true };
        let part = Part { own: Some(own), ..part(100, 30) };
        let shown = part.memory(1000 * BLOCK_BYTES, 500 * BLOCK_BYTES);
        assert_eq!(shown, Some((200 * BLOCK_BYTES, 150 * BLOCK_BYTES, 50 * BLOCK_BYTES)));
        assert_eq!(part.busy_percent(), None);
        assert!(part.processes().is_none(), "nobody says whose they are");
    }
}
