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

use loom::sync::Arc;
use loom::thread::{self, JoinHandle};

/// Runs `act` on shared memory in another thread.
fn beside<S: 'static, T: 'static>(shared: &Arc<S>, act: impl FnOnce(&S) -> T + 'static) -> JoinHandle<T> {
    let shared = Arc::clone(shared);
    thread::spawn(move || act(&shared))
}
