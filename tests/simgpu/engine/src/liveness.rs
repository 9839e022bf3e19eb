//! Detects dead processes and removes their objects from the state.
//!
//! Each process locks one byte of the file `alive`, on an open file description of its own. When
//! the process ends for any reason, the kernel releases the lock. A forked child closes its copy of
//! the descriptor at once, because the copy would keep the parent's lock after the parent's death.

use crate::{
    Config, Error,
    journal::Memory,
    layout::{MAX_EVENTS, MAX_PROCESSES, Process, State, checkpoint_state, process_state},
    managed, mps, namespace, sim,
};
use std::{
    fs::{self, File},
    io,
    os::fd::{AsRawFd, RawFd},
    sync::{
        Once,
        atomic::{AtomicI32, AtomicU32, Ordering},
    },
};

/// Interval between two censuses. Processes that look at the state carry out the censuses. A
/// process that a census finds dead has died within this interval before the census.
pub const INTERVAL_NS: u64 = 10_000_000;
/// Number of living processes up to which [`INTERVAL_NS`] applies.
const CROWD: usize = 512;
/// Interval if more than [`CROWD`] processes live. The kernel's time for each process grows with
/// their number.
const CROWD_INTERVAL_NS: u64 = 5_000_000_000;

/// The most bytes that one process can lock. Tests need this many bytes; a driver needs two.
const MAX_BYTES_HELD: usize = 256;
const NO_FD: RawFd = -1;
/// Descriptors that a forked child must close.
static FDS: [AtomicI32; MAX_BYTES_HELD] = [const { AtomicI32::new(NO_FD) }; MAX_BYTES_HELD];
/// Number of forks between this process and its first ancestor that used this library.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Returns the number of forks (see [`FORKS`]).
#[inline]
pub fn forks() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

extern "C" fn in_forked_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    for fd in &FDS {
        let fd = fd.swap(NO_FD, Ordering::Relaxed);
        if fd != NO_FD {
            // SAFETY: `fd` is the child's copy of a descriptor that `ByteLock` owns in the parent.
            // The child's `ByteLock` does not close it again, because `FDS` no longer contains it.
            unsafe { libc::close(fd) };
        }
    }
}

/// A lock on one byte of the file `alive`. The lock shows that this process lives.
#[derive(Debug)]
pub struct ByteLock {
    pub number: usize,
    place: usize,
    file: Option<File>,
}

impl ByteLock {
    /// Locks the byte of a number that no living process has. `file` must be an open file
    /// description of its own.
    pub fn take(file: File, number: usize) -> Result<Self, Error> {
        static AT_FORK: Once = Once::new();
        // SAFETY: the handler only touches atomics and closes descriptors. Both are allowed in a
        // forked child.
        AT_FORK.call_once(|| unsafe {
            libc::pthread_atfork(None, None, Some(in_forked_child));
        });
        let fd = file.as_raw_fd();
        let mut request = byte(number, libc::F_WRLCK);
        // SAFETY: the descriptor is open and `request` is a valid flock.
        if unsafe { libc::fcntl(fd, libc::F_OFD_SETLK, &mut request) } != 0 {
            let source = io::Error::last_os_error();
            return Err(Error::Io { action: "lock a byte of", path: "alive".into(), source });
        }
        let free = |place: &AtomicI32| {
            place.compare_exchange(NO_FD, fd, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        match FDS.iter().position(free) {
            Some(place) => Ok(Self { number, place, file: Some(file) }),
            None => Err(Error::Full { what: "host in this process", limit: MAX_BYTES_HELD }),
        }
    }
}

impl Drop for ByteLock {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            let fd = file.as_raw_fd();
            match FDS[self.place].compare_exchange(fd, NO_FD, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => drop(file),
                // In a forked child the descriptor is already closed. Its number can belong to
                // another file by now.
                Err(_) => std::mem::forget(file),
            }
        }
    }
}

/// Builds a lock request for the byte of a number.
fn byte(number: usize, kind: libc::c_int) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: number as libc::off_t,
        l_len: 1,
        // Locks of open file descriptions require 0.
        l_pid: 0,
    }
}

/// Returns whether another open file description holds the lock of a number.
pub fn is_held(alive: &File, number: usize) -> bool {
    is_contested(alive, byte(number, libc::F_WRLCK))
}

/// Returns whether any process is attached.
pub fn is_any_held(alive: &File) -> bool {
    // A length of 0 means "to the end of the file, however long it grows".
    is_contested(alive, libc::flock { l_len: 0, ..byte(0, libc::F_WRLCK) })
}

/// Returns whether another open file description holds a conflicting lock.
fn is_contested(alive: &File, mut request: libc::flock) -> bool {
    // SAFETY: the descriptor is open and `request` is a valid flock.
    let answered = unsafe { libc::fcntl(alive.as_raw_fd(), libc::F_OFD_GETLK, &mut request) } == 0;
    // If the kernel returns an error, the function takes the process for alive.
    !answered || libc::c_int::from(request.l_type) != libc::F_UNLCK
}

/// Returns [`INTERVAL_NS`], or the longer interval if more than [`CROWD`] processes live.
pub fn interval_ns<M: Memory>(memory: &M, state: &State) -> u64 {
    let living = records(memory, state).filter(|(.., status)| *status == process_state::ALIVE).count();
    if living > CROWD { CROWD_INTERVAL_NS } else { INTERVAL_NS }
}

/// Returns the used process records with their numbers and states.
pub fn records<'a, M: Memory>(
    memory: &'a M,
    state: &'a State,
) -> impl Iterator<Item = (usize, &'a Process, u64)> {
    let used = (memory.get(&state.header.attached) as usize).min(MAX_PROCESSES);
    state.processes[..used]
        .iter()
        .enumerate()
        .map(|(number, process)| (number, process, memory.get(&process.state)))
}

/// Removes the objects of dead processes. If a process died, first computes the state up to
/// `now_ns`. `own` is the number of this process, which lives.
pub fn reap<M: Memory>(
    memory: &mut M,
    state: &State,
    config: &Config,
    alive: &File,
    own: Option<usize>,
    now_ns: u64,
) {
    let dead: Vec<usize> = records(memory, state)
        .filter(|&(number, _, status)| match status {
            process_state::ALIVE => Some(number) != own && !is_held(alive, number),
            status => status == process_state::DYING,
        })
        .map(|(number, ..)| number)
        .collect();
    for &number in &dead {
        sim::advance(memory, state, config, now_ns);
        bury(memory, state, number, now_ns);
    }
}

/// Removes a process's contexts and events and marks the process dead. The caller has computed the
/// state up to `now_ns`. If this process dies here, the next process that looks continues.
pub fn bury<M: Memory>(memory: &mut M, state: &State, number: usize, now_ns: u64) {
    let process = &state.processes[number];
    memory.put(&process.state, process_state::DYING);
    memory.commit();
    mps::end_clients(memory, state, number, now_ns);
    strip(memory, state, number, now_ns);
    let owner = number as u64 + 1;
    let events = (memory.get(&state.header.events.used) as usize).min(MAX_EVENTS);
    for event in 0..events {
        if memory.get(&state.events[event].process) == owner {
            free_event(memory, state, event);
            memory.commit();
        }
    }
    memory.put(&process.state, process_state::DEAD);
    memory.commit();
}

/// Removes the contexts and the memory of a process. The caller has computed the state up to
/// `now_ns`.
pub fn strip<M: Memory>(memory: &mut M, state: &State, number: usize, now_ns: u64) {
    let owner = number as u64 + 1;
    for context in 0..memory.get(&state.header.contexts.used) as usize {
        if memory.get(&state.contexts[context].process) == owner {
            sim::drop_context(memory, state, context, now_ns);
        }
    }
    for gpu in 0..state.processes[number].gpus.len() {
        managed::take_away(memory, state, number, gpu, u64::MAX);
        sim::take_process_memory_back(memory, state, (Some(number), gpu), u64::MAX);
        memory.commit();
    }
}

/// Frees an event's slot. The change is part of the caller's transaction.
pub fn free_event<M: Memory>(memory: &mut M, state: &State, index: usize) {
    let event = &state.events[index];
    sim::retire_generation(memory, &event.generation);
    memory.put(&event.process, 0);
    let list = &state.header.events.first;
    let first = memory.get(list);
    memory.put(&event.next_free, first);
    memory.put(list, index as u64 + 1);
}

/// Returns a number for a new process: a fresh number if there is one, else the number of the
/// process that died first.
pub fn free_number<M: Memory>(memory: &M, state: &State) -> Result<usize, Error> {
    let attached = memory.get(&state.header.attached) as usize;
    let dead = records(memory, state)
        .filter(|&(.., status)| status != process_state::ALIVE && status != process_state::DYING);
    let oldest = dead.min_by_key(|(_, process, _)| memory.get(&process.order)).map(|(number, ..)| number);
    match oldest {
        _ if attached < MAX_PROCESSES => Ok(attached),
        Some(number) => Ok(number),
        None => Err(Error::Full { what: "process", limit: MAX_PROCESSES }),
    }
}

/// Enters this process under `number`, in one transaction. This process has already locked the
/// number's byte.
pub fn enter<M: Memory>(memory: &mut M, state: &State, config: &Config, number: usize) {
    /// The size of a process's short name (`comm`), bytes: at most 15 characters and a terminating
    /// zero.
    const COMM_BYTES: usize = 16;
    let process = &state.processes[number];
    let mut comm = [0; COMM_BYTES];
    let name = fs::read("/proc/self/comm").unwrap_or_default();
    let name = name.trim_ascii_end();
    let len = name.len().min(COMM_BYTES);
    comm[..len].copy_from_slice(&name[..len]);
    for (word, half) in process.comm.iter().zip(comm.chunks_exact(size_of::<u64>())) {
        memory.put(word, half.iter().rev().fold(0, |word, &byte| word << u8::BITS | u64::from(byte)));
    }
    memory.put(&process.pid, std::process::id().into());
    memory.put(&process.pid_namespace, namespace::own());
    memory.put(&process.start_time, namespace::own_start_time());
    let order = memory.get(&state.header.attached) + 1;
    memory.put(&state.header.attached, order);
    memory.put(&process.order, order);
    memory.put(&process.checkpoint, checkpoint_state::RUNNING);
    for word in
        [&process.calls, &process.unmovable, &process.server, &process.has_lost_server, &process.sm_limit_ppm]
    {
        memory.put(word, 0);
    }
    let (client, beside) = config.interference_of(name);
    memory.put(&process.interference_client, client);
    memory.put(&process.interference_beside, beside);
    for gpu in &process.gpus {
        for word in [
            &gpu.busy_ns,
            &gpu.kernel_busy_ns,
            &gpu.sm_ps,
            &gpu.copy_busy_ns,
            &gpu.kernels,
            &gpu.copies,
            &gpu.memory_bytes,
            &gpu.memory_peak_bytes,
            &gpu.suspended_bytes,
            &gpu.managed_bytes,
            &gpu.managed_at_ns,
            &gpu.contexts,
            &gpu.seat,
        ] {
            memory.put(word, 0);
        }
    }
    memory.put(&process.state, process_state::ALIVE);
    memory.commit();
}
