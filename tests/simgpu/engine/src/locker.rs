//! The number of a process as the holder of the state's lock. By the number, other processes check
//! whether the holder lives.
//!
//! While a process lives, it locks the number's byte in the file `alive`. So the check works across
//! pid namespaces. Each number is a hash of the process and the time. The range of numbers is so
//! large that two processes practically never have the same number.

use crate::{
    Error,
    clock::monotonic_ns,
    layout::MAX_PROCESSES,
    liveness::{self, ByteLock},
    namespace, shared,
};
use std::{
    fs::File,
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
};

/// Numbers lie from 1 to below this bound.
const NUMBERS: u32 = 1 << 30;

/// The number of this process. A forked child takes a new number.
#[derive(Debug)]
pub struct Locker {
    dir: PathBuf,
    number: AtomicU32,
    /// Value of [`liveness::forks`] when the process took the number.
    forks: AtomicU32,
    lock: Mutex<ByteLock>,
}

impl Locker {
    /// Returns a new number for a process that uses this state directory.
    pub fn take(dir: &Path) -> Result<Self, Error> {
        let (number, lock) = fresh(dir)?;
        Ok(Self {
            dir: dir.to_owned(),
            number: number.into(),
            forks: liveness::forks().into(),
            lock: Mutex::new(lock),
        })
    }

    /// Returns the number.
    ///
    /// # Panics
    /// In a forked child that cannot open any more files.
    #[inline]
    pub fn number(&self) -> u32 {
        if self.forks.load(Ordering::Acquire) == liveness::forks() {
            self.number.load(Ordering::Relaxed)
        } else {
            self.renew()
        }
    }

    /// Returns a new number in a forked child, which can outlive its parent.
    #[cold]
    fn renew(&self) -> u32 {
        let mut lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        if self.forks.load(Ordering::Acquire) != liveness::forks() {
            let (number, fresh) =
                fresh(&self.dir).unwrap_or_else(|error| panic!("simgpu in a forked child: {error}"));
            *lock = fresh;
            self.number.store(number, Ordering::Relaxed);
            self.forks.store(liveness::forks(), Ordering::Release);
        }
        self.number.load(Ordering::Relaxed)
    }
}

fn fresh(dir: &Path) -> Result<(u32, ByteLock), Error> {
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    // The parts identify the process and the moment. A forked child's next number differs from its
    // parent's.
    let parts = [
        namespace::own(),
        std::process::id().into(),
        monotonic_ns(),
        TAKEN.fetch_add(1, Ordering::Relaxed).into(),
    ];
    let hash = shared::fnv(&parts.map(u64::to_ne_bytes).each_ref().map(<[u8; 8]>::as_slice));
    let number = (hash % u64::from(NUMBERS - 1)) as u32 + 1;
    Ok((number, ByteLock::take(shared::open_alive(dir)?, byte(number))?))
}

/// Returns the number's byte in the file `alive`, behind the bytes of the process numbers.
fn byte(number: u32) -> usize {
    MAX_PROCESSES + number as usize
}

/// Returns whether the process with this number lives.
pub fn is_alive(alive: &File, number: u32) -> bool {
    liveness::is_held(alive, byte(number))
}
