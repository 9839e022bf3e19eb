//! Recording (`deepres run --record`): writes the job's calls of the driver into the trace.
//! [`deepres_abi::recording`] is the format.
//!
//! Each thread puts its calls into a ring of its own, and the recording thread encodes the calls
//! and writes them to the trace. Without a recording, a launch costs nothing more: the word that
//! tells of captures ([`crate::capture`]) also tells of a recording.

mod encode;
mod ring;

use std::cell::{Cell, RefCell};
use std::ffi::CStr;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::{ptr, thread};

use deepres_abi::driver::ApiId;
use deepres_abi::driver::result::CUDA_SUCCESS;
use deepres_abi::driver::types::{CUfunction, CUkernel};

use crate::capture;
use crate::descriptor::OwnDescriptor;
use crate::driver::calls::Stream;
use crate::driver::real;
use crate::lock_order::{Mutex, Rank};
use crate::log::say;
use crate::os;
use crate::thread as own_thread;
use encode::Encoder;
use ring::{Event, Ring, RingOwner};

/// The time between two looks of the recording thread, ns. At each look, the thread writes the
/// calls of all threads.
const LOOK_NS: u64 = 5_000_000;
/// The longest time for which the end of the process waits for the recording thread, ns.
const END_LIMIT_NS: u64 = 2_000_000_000;
/// The time between two checks, at the end of the process, whether the recording thread has written
/// everything, ns.
const END_LOOK_NS: u64 = 200_000;
/// The most threads that record at a time. Each has a ring of half a MiB. The trace counts the
/// calls of further threads as lost.
const MAX_RINGS: usize = 256;
/// The number of functions that a thread remembers as already named in the trace.
const NAMED: usize = 256;

/// A recording of the job's calls that is under way, with the rings of the recording threads.
struct Recording {
    rings: Mutex<{ Rank::Rings as u8 }, Vec<&'static Ring>>,
    /// The ring of the threads beyond [`MAX_RINGS`]. This ring only counts lost calls.
    crowd: Ring,
    is_ending: AtomicBool,
    is_ended: AtomicBool,
}

static RECORDING: AtomicPtr<Recording> = AtomicPtr::new(ptr::null_mut());

fn current() -> Option<&'static Recording> {
    // SAFETY: only `start` and `forget` store here: a leaked box, or null.
    unsafe { RECORDING.load(Ordering::Acquire).as_ref() }
}

thread_local! {
    /// This thread's ring. The thread gives the ring back at its end.
    static OWN: RefCell<Option<RingOwner<'static>>> = const { RefCell::new(None) };
    static NAMES: [Cell<usize>; NAMED] = const { [const { Cell::new(0) }; NAMED] };
}

/// Begins to record into `path`, to which `deepres run` has written the head. If the recording
/// cannot begin, the job runs without a recording, and the interposer logs the reason.
pub fn start(path: &Path) {
    let started =
        OpenOptions::new().append(true).custom_flags(libc::O_CLOEXEC | libc::O_NOFOLLOW).open(path).and_then(
            |file| {
                let file = OwnDescriptor::new(file.into());
                let recording: &'static Recording = Box::leak(Box::new(Recording {
                    rings: Mutex::default(),
                    crowd: Ring::new(),
                    is_ending: AtomicBool::new(false),
                    is_ended: AtomicBool::new(false),
                }));
                thread::Builder::new().name(crate::meter::alone::RECORD.to_owned()).spawn(move || {
                    crate::meter::alone::count_in();
                    write_all(recording, file);
                    crate::meter::alone::count_out();
                })?;
                RECORDING.store(ptr::from_ref(recording).cast_mut(), Ordering::Release);
                Ok(())
            },
        );
    match started {
        Ok(()) => capture::set_recording(true),
        Err(error) => say!(Warn, "cannot record into {}: {error}; the job runs unrecorded", path.display()),
    }
}

/// Forgets the parent's recording, in a forked child.
pub fn forget() {
    RECORDING.store(ptr::null_mut(), Ordering::Release);
    capture::set_recording(false);
    OWN.with(|own| drop(own.take()));
    NAMES.with(|names| names.iter().for_each(|name| name.set(0)));
}

/// Ends the recording, because the process ends. Waits for a bounded time until the recording
/// thread has written everything.
pub fn end() {
    let Some(recording) = current() else { return };
    capture::set_recording(false);
    recording.is_ending.store(true, Ordering::Release);
    let until_ns = os::now_ns().saturating_add(END_LIMIT_NS);
    while !recording.is_ended.load(Ordering::Acquire) && os::now_ns() < until_ns {
        os::sleep(END_LOOK_NS);
    }
}

/// Runs the recording thread: writes the events of all rings, until the recording ends.
fn write_all(recording: &'static Recording, file: OwnDescriptor) {
    let mut encoder = Encoder::new(std::process::id(), os::now_ns());
    loop {
        let is_ending = recording.is_ending.load(Ordering::Acquire);
        let rings = recording.rings.lock().clone();
        let written = rings.into_iter().chain([&recording.crowd]).try_for_each(|ring| {
            while let Some(event) = ring.pop() {
                encoder.event(ring.thread(), &event);
                if encoder.is_full() {
                    write(file, &mut encoder)?;
                }
            }
            encoder.lost(ring.take_lost());
            io::Result::Ok(())
        });
        if is_ending {
            encoder.end();
        }
        if let Err(error) = written.and_then(|()| write(file, &mut encoder)) {
            say!(Warn, "cannot write the recording: {error}; the recording ends here");
            capture::set_recording(false);
            recording.is_ended.store(true, Ordering::Release);
            return;
        }
        if is_ending {
            recording.is_ended.store(true, Ordering::Release);
            return;
        }
        os::sleep(LOOK_NS);
    }
}

/// Appends the encoded records to the trace as one chunk, in one write.
fn write(file: OwnDescriptor, encoder: &mut Encoder) -> io::Result<()> {
    let Some(chunk) = encoder.chunk() else { return Ok(()) };
    let number = file.number().ok_or_else(|| io::Error::other("the job has closed the file"))?;
    let written = os::write(number, &chunk)?;
    // A reader of the trace stops at an incomplete chunk.
    if written < chunk.len() { Err(io::ErrorKind::WriteZero.into()) } else { Ok(()) }
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
    let mut rings = recording.rings.lock();
    if let Some(free) = rings.iter().find_map(|ring| ring.adopt(thread)) {
        return Some(free);
    }
    if rings.len() == MAX_RINGS {
        return None;
    }
    let ring: &'static Ring = Box::leak(Box::new(Ring::new()));
    rings.push(ring);
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
    name(api, function);
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

/// Records a function's name, the first time that this thread launches the function. The question
/// for the name may load the function, but the launch would load it anyway.
fn name(api: ApiId, function: CUfunction) {
    const SHIFT: u32 = 6;
    let address = function as usize;
    if matches!(api, ApiId::cuGraphLaunch | ApiId::cuGraphLaunch_ptsz) {
        return;
    }
    let is_known = NAMES.with(|names| {
        let place = &names[(address >> SHIFT) % NAMED];
        place.replace(address) == address
    });
    if is_known {
        return;
    }
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
        return;
    }
    // SAFETY: the driver's name of a loaded function ends with a null byte.
    let text = unsafe { CStr::from_ptr(found) };
    push(&encode::name(address as u64, Box::leak(text.to_bytes().into())));
}
