//! Every interleaving of the lock-free parts, by the model checker: `RUSTFLAGS="--cfg loom" cargo test -p deepres-abi --release --test loom`.
//!
//! What runs here is what ships: the crate behind its atomics facade. Only what is outside it (a futex, an eventfd, a clock) is
//! modelled, as loom's own mutexes and condition variables. loom takes a `SeqCst` access for an `AcqRel` one, mostly, which allows
//! more than the machine does; so what holds here holds there.
#![cfg(loom)]

mod gate;
mod ledger;
mod meter;
mod seqlock;
mod standalone;
mod tally;
