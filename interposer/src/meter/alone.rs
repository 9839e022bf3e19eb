//! Checks whether the job's own threads have all ended. A program whose first thread ends by itself
//! (`pthread_exit`) goes on until its last thread ends, and then exits. So the threads of deepres
//! must not keep such a program alive.

use std::ffi::CStr;
use std::fmt::Write as _;
use std::os::fd::{FromRawFd as _, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{io, process};

use crate::descriptor::{OwnDescriptor, Place};
use crate::os;

/// The meter thread's name.
pub const METER: &str = "deepres-meter";
/// The name of the thread that writes the trace.
pub const RECORD: &str = "deepres-record";

/// Ids of deepres's own threads: the meter thread, and the thread that writes the trace. 0 means no
/// thread.
static OURS: [AtomicU32; 2] = [AtomicU32::new(0), AtomicU32::new(0)];

/// The folder of the process's threads, `/proc/self/task`. deepres opens the folder early. The job
/// can later lose sight of `/proc`, or use up all descriptors.
static FOLDER: Place = Place::none();

/// Counts the calling thread as one of deepres's own threads, until the thread calls [`count_out`].
pub fn count_in() {
    let own = os::thread_id();
    let is_taken =
        |place: &&AtomicU32| place.compare_exchange(0, own, Ordering::Relaxed, Ordering::Relaxed).is_ok();
    OURS.iter().find(is_taken);
}

/// Records that the calling thread, one of deepres's own, is about to end.
pub fn count_out() {
    let own = os::thread_id();
    for place in &OURS {
        let _ = place.compare_exchange(own, 0, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Forgets the parent's threads, in a forked child whose only thread calls this.
pub fn forget() {
    OURS.iter().for_each(|own| own.store(0, Ordering::Relaxed));
    if let Some(folder) = FOLDER.swap(None) {
        folder.close();
    }
}

/// Opens the folder of threads, and keeps it open if the job can spare the descriptor.
pub fn keep_folder() {
    let Some(folder) = open().map(OwnDescriptor::new) else { return };
    let before = if folder.is_to_spare() { FOLDER.swap(Some(folder)) } else { Some(folder) };
    if let Some(before) = before {
        before.close();
    }
}

/// Returns whether the first thread has ended and only deepres's own threads are left. If the
/// threads cannot be read, returns false.
pub fn is_left() -> bool {
    let first = process::id();
    let are_ours = |folder: RawFd| has_ended(folder, first) && all(folder, |id| id == first || is_ours(id));
    match FOLDER.get().and_then(OwnDescriptor::number) {
        Some(folder) => are_ours(folder),
        None => open().map(OwnDescriptor::new).is_some_and(|folder| {
            let is_left = folder.number().is_some_and(are_ours);
            folder.close();
            is_left
        }),
    }
}

fn open() -> Option<OwnedFd> {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: the name ends with a null byte.
    let number = unsafe { libc::open(c"/proc/self/task".as_ptr(), flags) };
    // SAFETY: the descriptor was just opened, and nothing else owns it.
    (number >= 0).then(|| unsafe { OwnedFd::from_raw_fd(number) })
}

fn is_ours(thread: u32) -> bool {
    OURS.iter().any(|own| own.load(Ordering::Relaxed) == thread)
}

/// Returns whether a thread has ended. If the first thread ends before the other threads, the first
/// thread stays as a zombie. A zombie has no program any more, so its `exe` link cannot be read.
/// The check needs no further descriptor.
fn has_ended(folder: RawFd, thread: u32) -> bool {
    let mut name = String::new();
    if write!(name, "{thread}/exe\0").is_err() {
        return false;
    }
    let mut target = [0_u8; 8];
    // SAFETY: the name ends with a null byte, and the result has room for the given length.
    let read =
        unsafe { libc::readlinkat(folder, name.as_ptr().cast(), target.as_mut_ptr().cast(), target.len()) };
    read < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ENOENT)
}

/// Returns whether `holds` is true of every thread. If the threads cannot be read, returns false.
fn all(folder: RawFd, holds: impl Fn(u32) -> bool) -> bool {
    /// The offset of the length in a directory entry (`struct linux_dirent64`), bytes.
    const LENGTH_AT: usize = 16;
    /// The offset of the name in a directory entry, bytes.
    const NAME_AT: usize = 19;
    // SAFETY: the call takes no pointers.
    if unsafe { libc::lseek(folder, 0, libc::SEEK_SET) } != 0 {
        return false;
    }
    let mut entries = [0_u8; 4096];
    loop {
        // SAFETY: the buffer has room for the given length.
        let read =
            unsafe { libc::syscall(libc::SYS_getdents64, folder, entries.as_mut_ptr(), entries.len()) };
        let Ok(read) = usize::try_from(read) else { return false };
        if read == 0 {
            return true;
        }
        let mut rest = &entries[..read];
        while let Some(&[low, high]) = rest.get(LENGTH_AT..LENGTH_AT + 2) {
            let length = usize::from(u16::from_ne_bytes([low, high]));
            let Some((entry, after)) = rest.split_at_checked(length).filter(|_| length > NAME_AT) else {
                return false;
            };
            let name = CStr::from_bytes_until_nul(&entry[NAME_AT..]).ok().and_then(|name| name.to_str().ok());
            // The only entries that are not numbers are `.` and `..`.
            if name.and_then(|name| name.parse().ok()).is_some_and(|thread| !holds(thread)) {
                return false;
            }
            rest = after;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_process_with_threads_is_not_left() {
        keep_folder();
        assert!(!is_left());
        let folder = FOLDER.get().and_then(OwnDescriptor::number).unwrap();
        let other = os::thread_id();
        let sees = |id: u32| !all(folder, |thread| thread != id);
        assert!(sees(process::id()) && sees(other) && !sees(u32::MAX));
        assert!(!has_ended(folder, other) && has_ended(folder, u32::MAX));
        count_in();
        assert!(is_ours(other) && !is_ours(process::id()));
        count_out();
        assert!(!is_ours(other));
        let ended = thread::spawn(os::thread_id).join().unwrap();
        // `join` can return shortly before the kernel has removed the thread.
        let until = Instant::now() + Duration::from_secs(10);
        while (!has_ended(folder, ended) || sees(ended)) && Instant::now() < until {
            thread::yield_now();
        }
        assert!(has_ended(folder, ended) && !sees(ended));
    }
}
