//! What NVML tells a tenant: of each GPU its own part.
//!
//! A process that has a session, with a daemon or without, reads its tenant's memory in its own pages. One need not use CUDA to ask, so there
//! may be none, and pages do not tell of the tenant's other processes: then the daemon is asked for a [`View`] by a connection that ends with the answer.

pub mod types;

use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

use deepres_abi::grant::NO_LIMIT;
use deepres_abi::wire::{Uuid, View};

use self::types::{Device, INSUFFICIENT_SIZE, OfProcess, Return, SUCCESS};
use crate::config::Config;
use crate::memory::charge;
use crate::resolve::{self, elf};
use crate::{handshake, os, process};

/// What the management library calls itself, up to its version.
const SONAME_START: &[u8] = b"libnvidia-ml.so";
/// Room for a GPU's UUID in NVML's writing (`NVML_DEVICE_UUID_V2_BUFFER_SIZE`).
const UUID_BYTES: usize = 96;
/// A monitor asks several questions in a row: for so long one answer of the daemon serves them all, ns.
const FRESH_NS: u64 = 20_000_000;
/// How long after it did not answer the daemon is not asked again, ns: by nobody in this process, of whichever GPU.
const RETRY_NS: u64 = 1_000_000_000;
/// Processes on a GPU for which there is room when NVML is asked first, and at most.
const FIRST_ROOM: u32 = 64;
const MOST_ROOM: u32 = 1 << 16;
/// Parts per million in a percent.
const PPM_PER_PERCENT: u32 = 10_000;

/// A hooked function: its name, and where the real one is, or 0.
pub struct Function {
    /// The exported name.
    pub name: &'static CStr,
    real: AtomicUsize,
}

impl Function {
    /// One that is not looked up yet.
    pub const fn new(name: &'static CStr) -> Self {
        Self { name, real: AtomicUsize::new(0) }
    }

    /// Takes `found` for the real function unless another is known. Returns whether it is the one that the hook will call.
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

    /// Where the real function is, or 0 if no loaded library has it.
    pub fn real(&self) -> usize {
        let known = self.real.load(Ordering::Acquire);
        if known != 0 {
            return known;
        }
        let bound = resolve::next_definition(self.name).or_else(|| loaded(self.name));
        // Last where a client asked that has the library in a namespace of its own.
        if let Some(found) = bound.or_else(|| kept()?.symbol(self.name)) {
            self.remember(found);
        }
        self.real.load(Ordering::Acquire)
    }
}

/// Some address inside the library that was kept last: mostly there is but one. 0: none yet.
static KEPT: AtomicUsize = AtomicUsize::new(0);

/// That library.
fn kept() -> Option<elf::Object> {
    let kept = KEPT.load(Ordering::Acquire);
    if kept == 0 { None } else { elf::Object::containing(kept) }
}

/// Where a loaded management library has `symbol`, whoever may see it.
pub fn loaded(symbol: &CStr) -> Option<usize> {
    elf::find(|object| {
        let name = object.soname().unwrap_or_default().to_bytes();
        if name.starts_with(SONAME_START) { object.symbol(symbol) } else { None }
    })
}

/// The tenant's part of one GPU.
pub struct Part {
    uuid: Uuid,
    /// What this process's own session says.
    own: Option<Own>,
    /// What the daemon said, where there is no session.
    view: Option<View>,
}

/// The tenant's memory, as a process sees it that has a session.
#[derive(Clone, Copy)]
struct Own {
    limit_bytes: u64,
    held_bytes: u64,
    /// No daemon stands behind the session.
    is_standalone: bool,
}

impl Part {
    /// Total, free and used bytes in place of the whole GPU's; `None` if the tenant has no limit.
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

    /// How busy the tenant keeps a GPU that is busy for `whole_percent` of the time: all of that, if nobody can say.
    pub fn busy_of(&self, whole_percent: u32) -> Busy {
        let whole_percent = whole_percent.max(1);
        let own_percent = self.busy_percent().map_or(whole_percent, |own| own.min(whole_percent));
        Busy { own_percent, whole_percent }
    }

    fn busy_percent(&self) -> Option<u32> {
        Some(self.view()?.gpus[0].recent_ppm.div_ceil(PPM_PER_PERCENT))
    }

    /// Which processes are the tenant's. `None` if nobody can say; in a pid namespace other than the daemon's, NVML tells of nobody else in the first
    /// place.
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
    /// Not less, and not 0.
    whole_percent: u32,
}

impl Busy {
    /// Of all time.
    pub fn percent(self) -> u32 {
        self.own_percent
    }

    /// The tenant's part of a figure that goes by how busy the whole GPU is.
    pub fn of(self, whole: u64) -> u64 {
        let own = u128::from(whole) * u128::from(self.own_percent) / u128::from(self.whole_percent);
        // No more than it was.
        own as u64
    }
}

/// The tenant's processes on one GPU, by the daemon's word.
pub struct OwnProcesses(View);

impl OwnProcesses {
    /// Moves what is about them to the front and gives how much that is.
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

    /// All that NVML has in a list and that is about them. `ask` has NVML write as much as there is room for, and says by the same number how much there is.
    ///
    /// # Errors
    /// NVML's.
    pub fn list<T: OfProcess>(&self, ask: impl Fn(&mut u32, *mut T) -> Return) -> Result<Vec<T>, Return> {
        let mut room = FIRST_ROOM;
        loop {
            let mut list = Vec::<T>::with_capacity(room as usize);
            let mut count = room;
            match ask(&mut count, list.as_mut_ptr()) {
                SUCCESS => {
                    // SAFETY: NVML wrote so many, and not more than there was room for.
                    unsafe { list.set_len(count.min(room) as usize) };
                    let kept = self.retain(&mut list);
                    list.truncate(kept);
                    return Ok(list);
                }
                // Others come meanwhile.
                INSUFFICIENT_SIZE if room < MOST_ROOM => {
                    room = count.saturating_mul(2).max(room.saturating_mul(2)).min(MOST_ROOM)
                }
                error => return Err(error),
            }
        }
    }
}

/// What the tenant has of `device`; `None` if nobody shares it out, or cannot say.
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

/// What this process's session says of a GPU, at this moment; `None` without a session there.
fn own(uuid: &Uuid) -> Option<Own> {
    let process = process::current()?;
    let session = process.session()?;
    let gpu = process.gpus.get(process.ordinal_of(uuid)?)?;
    Some(Own {
        limit_bytes: gpu.grant()?.memory_limit(),
        held_bytes: session.tenant_held_bytes(gpu.index()?)?,
        is_standalone: session.standalone().is_some(),
    })
}

struct Answer {
    uuid: Uuid,
    /// To which process: a forked child is another one, and asks for itself.
    pid: u32,
    at_ns: u64,
    view: View,
}

/// The daemon's latest answers.
static ANSWERS: Mutex<Vec<Answer>> = Mutex::new(Vec::new());
/// When the daemon did not answer (`CLOCK_MONOTONIC`), or 0 if it did the last time.
static FAILED_NS: AtomicU64 = AtomicU64::new(0);
/// In which process that was: its forked children ask for themselves.
static FAILED_IN: AtomicU32 = AtomicU32::new(0);

fn view(uuid: Uuid) -> Option<View> {
    let (now_ns, pid) = (os::now_ns(), std::process::id());
    // Never waited for: a thread may have been forked away while it held the lock.
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
    static CONFIG: OnceLock<Config> = OnceLock::new();
    let answer = handshake::view(CONFIG.get_or_init(Config::read), &[uuid], failed_ns != 0);
    // After the question: it may have taken longer than its answer holds.
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
    // SAFETY: the caller's device, and a buffer of the length given.
    if unsafe { get(device, text.as_mut_ptr().cast(), UUID_BYTES as u32) } != SUCCESS {
        return None;
    }
    parse(CStr::from_bytes_until_nul(&text).ok()?.to_str().ok()?)
}

/// `GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`. Parts of a GPU (`MIG-…`) are nobody's to share out.
fn parse(text: &str) -> Option<Uuid> {
    let mut uuid = Uuid::default();
    let mut digits = text.strip_prefix("GPU-")?.bytes().filter(|byte| *byte != b'-');
    for byte in &mut uuid {
        let (high, low) = (digits.next()?, digits.next()?);
        let nibble = |digit: u8| char::from(digit).to_digit(16).map(|value| value as u8);
        *byte = nibble(high)? << 4 | nibble(low)?;
    }
    digits.next().is_none().then_some(uuid)
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
            // SAFETY: there is room for as many.
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
        assert_eq!(own.list(|_, _: *mut ProcessV1| 3).err(), Some(3), "what NVML refuses");
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

    #[test]
    fn uuids_are_read_as_nvml_writes_them() {
        let uuid = parse("GPU-00112233-4455-6677-8899-aabbccddeeff").unwrap();
        assert_eq!((uuid[0], uuid[1], uuid[15]), (0, 0x11, 0xff));
        for text in [
            "MIG-00112233-4455-6677-8899-aabbccddeeff",
            "GPU-0011",
            "GPU-00112233-4455-6677-8899-aabbccddeeff0",
            "",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
