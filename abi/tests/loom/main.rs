//! Checks every interleaving of the lock-free parts, by the model checker loom: `RUSTFLAGS="--cfg
//! loom" cargo test -p deepres-abi --profile loom --test loom`.
//!
//! The checked code is the shipped code: the crate behind its facade of atomics. The tests model
//! only things outside the crate (a futex, an eventfd, a clock), by loom's own mutexes and
//! condition variables. The model checker treats most `SeqCst` accesses as `AcqRel` accesses, which
//! allows more orders than the machine does. So a property that holds here holds on the machine.
#![cfg(loom)]

mod gate;
mod ledger;
mod meter;
mod plan;
mod seqlock;
mod standalone;
mod tally;

use loom::sync::{Arc, Condvar, Mutex};
use loom::thread::{self, JoinHandle};

/// Runs `act` on shared memory in another thread.
fn beside<S: 'static, T: 'static>(shared: &Arc<S>, act: impl FnOnce(&S) -> T + 'static) -> JoinHandle<T> {
    let shared = Arc::clone(shared);
    thread::spawn(move || act(&shared))
}

/// An object on which threads sleep, such as the queue of a futex, or an eventfd.
#[derive(Default)]
struct Sleepers {
    lock: Mutex<bool>,
    woken: Condvar,
}

impl Sleepers {
    /// Waits as on a futex. The thread sleeps only if `holds` returns true in the moment in which
    /// the thread falls asleep.
    fn wait_while(&self, holds: impl Fn() -> bool) {
        let guard = self.lock.lock().unwrap();
        if holds() {
            drop(self.woken.wait(guard).unwrap());
        }
    }

    /// Wakes all sleepers.
    fn wake(&self) {
        drop(self.lock.lock().unwrap());
        self.woken.notify_all();
    }

    /// A bell like an eventfd: several rings become one ring, and no ring gets lost.
    fn ring(&self) {
        *self.lock.lock().unwrap() = true;
        self.woken.notify_all();
    }

    fn heard(&self) {
        let mut guard = self.lock.lock().unwrap();
        while !*guard {
            guard = self.woken.wait(guard).unwrap();
        }
        *guard = false;
    }
}
