//! Recording: writes the job's calls of the driver into a trace (`deepres run --record`), or into
//! an excerpt for the daemon ([`deepres_abi::excerpt`]). [`deepres_abi::recording`] is the format.
//!
//! Each thread puts its calls into a ring of its own. The recording thread encodes the calls, and
//! writes them to the trace and to the excerpt. Without a recording, a launch costs nothing more:
//! the word that tells of captures ([`crate::capture`]) also tells of a recording.

mod encode;
mod output;
mod ring;

use std::cell::RefCell;
use std::ffi::CStr;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::{mem, ptr, thread};

use deepres_abi::driver::ApiId;
use deepres_abi::driver::result::CUDA_SUCCESS;
use deepres_abi::driver::types::{CUfunction, CUkernel};

use crate::capture;
use crate::descriptor::OwnDescriptor;
use crate::driver::calls::Stream;
use crate::driver::real;
use crate::lock_order::{Mutex, Rank};
use crate::log::say;
use crate::meter::estimates;
use crate::meter::gpu::Gpu;
use crate::os;
use crate::process;
use crate::session::Session;
use crate::thread as own_thread;
use output::{Asked, Output};
use ring::{Event, Ring, RingOwner};

/// The time between two looks of the recording thread, ns. At each look, the thread writes the
/// calls of all threads.
const LOOK_NS: u64 = 5_000_000;
/// The longest time for which the end of the process waits for the recording thread, ns.
const END_LIMIT_NS: u64 = 2_000_000_000;
/// The time between two checks, at the end of the process, whether the recording thread has written
/// everything, ns.
const END_LOOK_NS: u64 = 200_000;
/// The most threads that record at a time. Each recorded thread has a ring of half a MiB. The trace
/// counts the calls of further threads as lost.
const MAX_RINGS: usize = 256;
/// The number of functions, each with its block, that a thread remembers as already described.
const DESCRIBED: usize = 1024;

/// The recording of the job's calls, with the rings of the recording threads. Once made, it stays
/// until the process ends, and the next recording uses it again.
struct Recording {
    state: Mutex<{ Rank::Rings as u8 }, State>,
    /// The ring of the threads beyond [`MAX_RINGS`]. This ring only counts lost calls.
    crowd: Ring,
    is_ending: AtomicBool,
    /// Whether there is a recording thread.
    is_running: AtomicBool,
    /// The number of traces and excerpts that have begun. Each recording describes the functions
    /// anew.
    round: AtomicU64,
}

#[derive(Default)]
struct State {
    rings: Vec<&'static Ring>,
    /// Traces and excerpts that the recording thread has not begun.
    asked: Vec<Output>,
}

static RECORDING: AtomicPtr<Recording> = AtomicPtr::new(ptr::null_mut());
/// The number of the last excerpt that began.
static LAST_EXCERPT: AtomicU32 = AtomicU32::new(0);

fn current() -> Option<&'static Recording> {
    // SAFETY: only `begin` and `forget` store here: a leaked box, or null.
    unsafe { RECORDING.load(Ordering::Acquire).as_ref() }
}

thread_local! {
    /// This thread's ring. The thread gives the ring back at its end.
    static OWN: RefCell<Option<RingOwner<'static>>> = const { RefCell::new(None) };
    /// The keys of described functions. The heap has the table, because static storage of a thread
    /// takes room from the stacks of the job's threads.
    static KNOWN: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// Begins to record into `path`, to which `deepres run` has written the head. If the recording
/// cannot begin, the job runs without a recording, and the interposer logs the reason.
pub fn start(path: &Path) {
    let opened = OpenOptions::new().append(true).custom_flags(libc::O_CLOEXEC | libc::O_NOFOLLOW).open(path);
    let started = opened.and_then(|file| begin(Output::file(OwnDescriptor::new(file.into()), os::now_ns())));
    if let Err(error) = started {
        say!(Warn, "cannot record into {}: {error}; the job runs unrecorded", path.display());
    }
}

/// Begins the excerpt for which the daemon asks, unless it has begun. Only the meter thread calls
/// this.
pub fn look(session: &'static Session, gpus: &'static [Gpu]) {
    let number = session.grant().excerpt();
    if number == 0 || LAST_EXCERPT.swap(number, Ordering::Relaxed) == number {
        return;
    }
    let asked = Asked { number, grant: session.grant(), excerpt: session.meter().excerpt(), gpus };
    if let Err(error) = begin(Output::excerpt(asked, os::now_ns())) {
        say!(Warn, "cannot record an excerpt for the daemon: {error}");
    }
}

/// Begins a trace or an excerpt, in the recording thread. Only one thread at a time calls this.
fn begin(output: Output) -> io::Result<()> {
    let recording = current().unwrap_or_else(|| {
        let recording: &'static Recording = Box::leak(Box::new(Recording {
            state: Mutex::default(),
            crowd: Ring::new(),
            is_ending: AtomicBool::new(false),
            is_running: AtomicBool::new(false),
            round: AtomicU64::new(0),
        }));
        RECORDING.store(ptr::from_ref(recording).cast_mut(), Ordering::Release);
        recording
    });
    if recording.is_ending.load(Ordering::Acquire) {
        return Ok(());
    }
    recording.round.fetch_add(1, Ordering::Relaxed);
    let mut state = recording.state.lock();
    state.asked.push(output);
    if !recording.is_running.load(Ordering::Relaxed) {
        let run = move || {
            crate::meter::alone::count_in();
            write_all(recording);
            crate::meter::alone::count_out();
        };
        let name = crate::meter::alone::RECORD.to_owned();
        if let Err(error) = thread::Builder::new().name(name).spawn(run) {
            state.asked.clear();
            return Err(error);
        }
        recording.is_running.store(true, Ordering::Release);
    }
    // The recording thread takes the lock before it ends the recording.
    capture::set_recording(true);
    Ok(())
}

/// Forgets the parent's recording, in a forked child.
pub fn forget() {
    RECORDING.store(ptr::null_mut(), Ordering::Release);
    LAST_EXCERPT.store(0, Ordering::Relaxed);
    capture::set_recording(false);
    OWN.with(|own| drop(own.take()));
    _ = KNOWN.try_with(|known| known.borrow_mut().clear());
}

/// Ends the recording, because the process ends. Waits for a bounded time until the recording
/// thread has written everything.
pub fn end() {
    let Some(recording) = current() else { return };
    capture::set_recording(false);
    recording.is_ending.store(true, Ordering::Release);
    let until_ns = os::now_ns().saturating_add(END_LIMIT_NS);
    while recording.is_running.load(Ordering::Acquire) && os::now_ns() < until_ns {
        os::sleep(END_LOOK_NS);
    }
}

/// Runs the recording thread: writes the events of all rings, until every trace and excerpt has
/// ended.
fn write_all(recording: &'static Recording) {
    let mut outputs: Vec<Output> = Vec::new();
    loop {
        let is_ending = recording.is_ending.load(Ordering::Acquire);
        let rings = {
            let mut state = recording.state.lock();
            outputs.append(&mut state.asked);
            if outputs.is_empty() {
                capture::set_recording(false);
                recording.is_running.store(false, Ordering::Release);
                return;
            }
            state.rings.clone()
        };
        for ring in rings.into_iter().chain([&recording.crowd]) {
            while let Some(event) = ring.pop() {
                outputs.iter_mut().for_each(|output| output.event(ring.thread(), &event));
                encode::free(&event);
            }
            let lost = ring.take_lost();
            outputs.iter_mut().for_each(|output| output.lost(lost));
        }
        outputs.retain_mut(|output| output.goes_on(is_ending));
        if !is_ending {
            os::sleep(LOOK_NS);
        }
    }
}

/// Puts an event into the thread's ring. If the thread has no ring, counts the event as lost.
fn push(event: &Event) {
    let Some(recording) = current() else { return };
    // A thread that is ending has no ring any more.
    let pushed = OWN.try_with(|own| {
        let mut own = own.borrow_mut();
        if own.is_none() {
            *own = ring(recording);
        }
        own.as_ref().map(|own| own.push(event)).is_some()
    });
    if !pushed.unwrap_or(false) {
        recording.crowd.count_lost();
    }
}

fn ring(recording: &'static Recording) -> Option<RingOwner<'static>> {
    let thread = own_thread::id();
    let mut state = recording.state.lock();
    if let Some(free) = state.rings.iter().find_map(|ring| ring.adopt(thread)) {
        return Some(free);
    }
    if state.rings.len() == MAX_RINGS {
        return None;
    }
    let ring: &'static Ring = Box::leak(Box::new(Ring::new()));
    state.rings.push(ring);
    ring.adopt(thread)
}

/// Records the launch of a kernel or graph, before the launch.
pub fn launch(
    api: ApiId,
    stream: Stream,
    function: CUfunction,
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
) {
    if !capture::is_recording() {
        return;
    }
    let at_ns = os::now_ns();
    describe(api, function, block, shared_bytes);
    let is_captured = u64::from(capture::is_active());
    push(&encode::launch(at_ns, api, stream, function as u64, grid, block, shared_bytes, is_captured));
}

/// Records a copy, a memory set or a prefetch.
pub fn copy(api: ApiId, stream: Stream, bytes: u64) {
    if capture::is_recording() {
        push(&encode::copy(os::now_ns(), api, stream, bytes));
    }
}

/// Records an allocation.
pub fn memory(api: ApiId, bytes: u64) {
    if capture::is_recording() {
        push(&encode::memory(os::now_ns(), api, bytes));
    }
}

/// Runs a call that waits for the GPU, and records the call. Returns the call's result.
pub fn wait<T>(api: ApiId, call: impl FnOnce() -> T) -> T {
    if !capture::is_recording() {
        return call();
    }
    let began_ns = os::now_ns();
    let result = call();
    push(&encode::wait(began_ns, api, os::now_ns().saturating_sub(began_ns)));
    result
}

/// Records that a launch with this key took `took_ns`.
pub fn took(key: u64, took_ns: u64) {
    if capture::is_recording() {
        push(&encode::took(key, took_ns));
    }
}

/// Records that a stream waits for an event of the driver.
pub fn follow(stream: Stream) {
    if capture::is_recording() && !capture::is_active() {
        push(&encode::follow(os::now_ns(), stream));
    }
}

/// Records a function's name and the number of its blocks that run at once, when this thread first
/// launches the function with this block. The question for the name can load the function, but the
/// launch would load it anyway.
fn describe(api: ApiId, function: CUfunction, block: [u32; 3], shared_bytes: u32) {
    let Some(recording) = current() else { return };
    if matches!(api, ApiId::cuGraphLaunch | ApiId::cuGraphLaunch_ptsz) {
        return;
    }
    let round = recording.round.load(Ordering::Relaxed);
    let [x, y, z] = block.map(u64::from);
    let key = estimates::key([function as u64, x << u32::BITS | y, z, u64::from(shared_bytes), round]);
    let is_known = KNOWN.try_with(|known| {
        let mut known = known.borrow_mut();
        known.resize(DESCRIBED, 0);
        known.get_mut(key as usize % DESCRIBED).is_some_and(|place| mem::replace(place, key) == key)
    });
    if is_known.unwrap_or(true) {
        return;
    }
    if let Some(text) = name(function) {
        push(&encode::name(function as u64, text));
    }
    if let Some(blocks) = resident_blocks(function, block, shared_bytes) {
        push(&encode::resident(function as u64, block, shared_bytes, blocks));
    }
}

/// Returns a function's name, if the driver tells it.
fn name(function: CUfunction) -> Option<Box<[u8]>> {
    let mut found = ptr::null();
    let of_function = real!(cuFuncGetName).is_some_and(|real| {
        // SAFETY: the result has room. The handle is the function that the caller is about to
        // launch.
        unsafe { real(&mut found, function) == CUDA_SUCCESS }
    });
    let mut of_kernel = || {
        real!(cuKernelGetName).is_some_and(|real| {
            // SAFETY: the result has room. A launch takes a kernel's handle as well as a
            // function's.
            unsafe { real(&mut found, function as CUkernel) == CUDA_SUCCESS }
        })
    };
    if !(of_function || of_kernel()) || found.is_null() {
        return None;
    }
    // SAFETY: the driver's name of a loaded function ends with a null byte.
    Some(unsafe { CStr::from_ptr(found) }.to_bytes().into())
}

/// Returns the number of a function's blocks that all SMs of the current GPU run at once, if the
/// driver tells it.
fn resident_blocks(function: CUfunction, block: [u32; 3], shared_bytes: u32) -> Option<u32> {
    let calls = &process::current()?.calls;
    let threads = block.into_iter().try_fold(1, |all: u64, size| all.checked_mul(u64::from(size)))?;
    let per_sm = calls.resident_blocks(function as usize, threads, shared_bytes)?;
    let all = per_sm.checked_mul(calls.sms(calls.current_device()?)?)?;
    (all > 0).then_some(all)
}
