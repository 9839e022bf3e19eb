//! Tells a job to give memory back, if the job asked for a signal (`DEEPRES_PRESSURE`). There are
//! two reasons for the signal: the daemon lowered the limit below the memory that the tenant holds,
//! or another tenant waits for memory. The job gets the signal that it named, if it has a handler
//! for the signal.

use std::mem::MaybeUninit;
use std::ptr;

use crate::log::say;
use crate::meter::gpu::Gpu;
use crate::session::Session;

/// The limits and the waits of other tenants that the meter thread saw last, and the signal that
/// asks the job to give memory back.
pub struct Pressure {
    signal: Option<i32>,
    seen: Vec<Seen>,
}

/// The state of a GPU at the last check.
#[derive(Default)]
struct Seen {
    /// The limit, if the tenant held more than the limit.
    passed_bytes: Option<u64>,
    /// The ledger's count of other tenants' waits, with the number of the ledger
    /// ([`Ledger::generation`]).
    ///
    /// [`Ledger::generation`]: crate::memory::ledgers::Ledger::generation
    presses: Option<(u32, u32)>,
}

impl Seen {
    /// Stores the new state. Returns whether the interposer must send the job the signal.
    fn take_in(&mut self, passed_bytes: Option<u64>, generation: u32, presses: u32) -> bool {
        let is_lowered = passed_bytes.is_some_and(|now| self.passed_bytes.is_none_or(|before| now < before));
        // Waits of other tenants before the first check are not news.
        let is_pressed = self.presses.is_some_and(|(of, before)| of == generation && before != presses);
        *self = Self { passed_bytes, presses: Some((generation, presses)) };
        is_lowered || is_pressed
    }
}

impl Pressure {
    /// Returns the state for a process with `gpus` GPUs. `signal` is the signal for which the job
    /// asked.
    pub fn new(signal: Option<i32>, gpus: usize) -> Self {
        Self { signal, seen: (0..gpus).map(|_| Seen::default()).collect() }
    }

    /// Checks all GPUs, and sends the signal if there is news.
    pub fn look(&mut self, session: &Session, gpus: &[Gpu]) {
        let Some(signal) = self.signal else { return };
        let ledger = session.ledger();
        let mut is_told = false;
        for (gpu, seen) in gpus.iter().zip(&mut self.seen) {
            let account = gpu.index().and_then(|index| ledger.account(index, gpu.uuid()));
            let Some((grant, account)) = gpu.grant().zip(account) else { continue };
            let limit_bytes = grant.memory_limit();
            let is_passed = account.tenant_held_bytes() > limit_bytes;
            is_told |= seen.take_in(is_passed.then_some(limit_bytes), ledger.generation, account.presses());
        }
        if is_told && !raise(signal) {
            say!(
                Warn,
                "DEEPRES_PRESSURE: the process has no handler for signal {signal}, so deepres does not send the signal"
            );
            self.signal = None;
        }
    }
}

/// Sends this process a signal. Returns false if the process has no handler for the signal. Without
/// a handler, the signal would end the process or do nothing.
fn raise(signal: i32) -> bool {
    let mut present = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: the call only reads the present handler, and writes it into a struct of the right
    // type.
    if unsafe { libc::sigaction(signal, ptr::null(), present.as_mut_ptr()) } != 0 {
        return false;
    }
    // SAFETY: sigaction succeeded and initialised the struct.
    let handler = unsafe { present.assume_init() }.sa_sigaction;
    if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
        return false;
    }
    // SAFETY: the call uses no memory. This thread blocks all signals, so another thread takes the
    // signal.
    unsafe { libc::kill(libc::getpid(), signal) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_is_passed_is_told_once_and_again_when_it_is_lowered_further() {
        let mut seen = Seen::default();
        assert!(!seen.take_in(None, 0, 3), "earlier waits of others are over");
        assert!(seen.take_in(Some(100), 0, 3));
        assert!(!seen.take_in(Some(100), 0, 3));
        assert!(seen.take_in(Some(50), 0, 3));
        assert!(!seen.take_in(Some(80), 0, 3), "raised, though not enough");
        assert!(!seen.take_in(None, 0, 3));
        assert!(seen.take_in(Some(80), 0, 3), "passed anew");
    }

    #[test]
    fn each_time_that_others_wait_is_told() {
        let mut seen = Seen::default();
        assert!(!seen.take_in(None, 0, 0));
        assert!(seen.take_in(None, 0, 1));
        assert!(!seen.take_in(None, 0, 1));
        assert!(!seen.take_in(None, 1, 2), "another daemon's account counts anew");
        assert!(!seen.take_in(None, 0, 1));
        assert!(seen.take_in(None, 0, 3));
    }

    #[test]
    fn a_signal_that_nobody_handles_is_not_sent() {
        assert!(!raise(libc::SIGURG), "its default is to be ignored");
    }
}
