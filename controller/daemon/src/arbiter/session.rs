//! A session's pages: reading its meter and setting its gate.

use super::SessionSeat;
use deepres_abi::grant::GrantSlot;
use deepres_abi::ledger::{self, LedgerGpu};
use deepres_abi::meter::{MemoryKind, MeterSlot};
use deepres_policy::TenantId;
use deepres_policy::arbiter::{Gate, Readings, SessionReading, Watched};
use deepres_policy::lease::Grant;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};

/// A session as the arbiter of one GPU sees it: its pages, and the state of the last reading.
pub struct Session {
    /// The session's tenant.
    pub tenant: TenantId,
    /// The session's pages and numbers.
    pub seat: SessionSeat,
    /// The number of intervals that the session had written at the last reading.
    intervals: u64,
    /// The part of the SMs that the session reported at the last reading, parts per million, and
    /// the MPS server with which it counted.
    part: (u32, u64),
}

impl Session {
    /// Returns a session whose meter was not read yet.
    pub fn new(tenant: TenantId, seat: SessionSeat) -> Self {
        Self { tenant, seat, intervals: 0, part: (0, 0) }
    }

    /// Reads the session's meter. Adds the reading to `readings`, unless the session is at rest, or
    /// its process is stopped and there is no answer about it.
    pub fn read(
        &mut self,
        gpu: usize,
        now_ns: u64,
        watched: &Watched<'_>,
        is_stopped: Option<bool>,
        readings: &mut Readings,
    ) {
        let page = self.seat.meter.page();
        let Some(slot) = page.slot(gpu) else { return };
        // A session can report a wider launch before its meter shows the launch.
        let mps_server = self.seat.mps.server(page, gpu);
        let part = (page.part_ppm(gpu), mps_server);
        let is_new = mem::replace(&mut self.part, part) != part;
        let rests = || watched.at_rest.is_some_and(|last| slot.rests_since(last));
        let stands_still = || watched.stopped.is_some_and(|last| slot.stands_still_since(last));
        if !is_new && is_stopped.is_none() && (rests() || stands_still()) {
            return;
        }
        // This line reads the flag before the counters, because the counters are complete once the
        // flag is set.
        let is_carried = page.is_carried();
        let meter = slot.read();
        // These lines read the edges, the stretch and the ends after the meter. So if the meter
        // shows that work has ended, they cover that work.
        let [began_ns, ended_ns] = match page.edges(gpu) {
            Some(edges) => [&edges.began, &edges.ended].map(|edge| edge.get(now_ns)),
            None => [None; 2],
        };
        let stretched_ns = page.stretched_ns(gpu).map_or(0, |word| word.load(Ordering::Relaxed));
        let ends = page.ends(gpu).map_or(0, |word| word.load(Ordering::Relaxed));
        let first = readings.intervals.len();
        if let Some(intervals) = page.intervals(gpu) {
            self.intervals = if watched.tells_intervals {
                let tell = |start_ns, end_ns| readings.intervals.push((start_ns, end_ns));
                intervals.since(self.intervals, tell)
            } else {
                intervals.written()
            };
        }
        readings.sessions.push(SessionReading {
            session: self.seat.id,
            is_carried,
            meter,
            stretched_ns,
            ends,
            sm_ppm: part.0,
            mps_server,
            began_ns,
            ended_ns,
            intervals: first..readings.intervals.len(),
            is_stopped,
        });
    }

    /// Sets the session's gate on a GPU. Wakes the threads that wait at the gate, unless only the
    /// terms of an open gate are new. A tenant can have hundreds of sessions, so a session without
    /// waiting threads costs no system call.
    pub fn set_gate(&self, gpu: usize, gate: &Gate) {
        let Some(slot) = self.seat.grant.page().slot(gpu) else { return };
        gate.show(slot);
        let has_waiters = self.seat.meter.page().slot(gpu).is_none_or(MeterSlot::has_waiters);
        // A session with an open gate reads the new terms by itself.
        if has_waiters && (!gate.renews || gate.grant != Grant::Open) {
            wake(slot);
        }
    }

    /// Returns the memory that the session holds, bytes by kind. The meter page has the counted
    /// kinds. Linear memory is the rest of the session's account in `ledger`, the ledger of this
    /// GPU.
    pub fn held_bytes(&self, gpu: usize, ledger: Option<&LedgerGpu>) -> [u64; MemoryKind::COUNT] {
        let slot = self.seat.meter.page().slot(gpu);
        let account = ledger.and_then(|ledger| ledger.account(self.seat.ledger_slot));
        let counted = slot.map_or([0; MemoryKind::COUNT], MeterSlot::held_bytes);
        with_the_rest(counted, account.map_or(0, ledger::Account::held_bytes))
    }

    /// Returns two amounts that the session reports, bytes: its memory beyond the limit, and the
    /// part of that memory that was brought to the GPU.
    pub fn oversubscribed_bytes(&self, gpu: usize) -> (u64, u64) {
        let slot = self.seat.meter.page().oversubscribed(gpu);
        let read = |word: &AtomicU64| word.load(Ordering::Relaxed);
        slot.map_or((0, 0), |slot| (read(&slot.held_bytes), read(&slot.brought_bytes)))
    }
}

/// Returns the bytes by kind. The kinds that sessions count have their value from `counted`. The
/// one kind that sessions do not count gets the rest of `held_bytes`.
fn with_the_rest(counted: [u64; MemoryKind::COUNT], held_bytes: u64) -> [u64; MemoryKind::COUNT] {
    let mut by_kind = counted;
    let mut rest_bytes = held_bytes;
    for kind in MemoryKind::ALL.into_iter().filter(|kind| kind.is_counted()) {
        rest_bytes = rest_bytes.saturating_sub(counted[kind as usize]);
    }
    for kind in MemoryKind::ALL.into_iter().filter(|kind| !kind.is_counted()) {
        by_kind[kind as usize] = rest_bytes;
    }
    by_kind
}

/// Wakes every thread that sleeps on the gate.
fn wake(slot: &GrantSlot) {
    // SAFETY: the word is an atomic in the grant page. The page stays mapped, because `slot`
    // borrows from the session that holds it.
    let word = unsafe { std::sync::atomic::AtomicU32::from_ptr(slot.futex()) };
    // The wake fails only for a bad address. The futex is not private, because the sleeping threads
    // are in other processes.
    let _ = rustix::thread::futex::wake(word, rustix::thread::futex::Flags::empty(), u32::MAX >> 1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linear_memory_is_what_an_account_holds_beside_the_other_kinds_whatever_the_process_says_of_it() {
        let mut counted = [0; MemoryKind::COUNT];
        counted[MemoryKind::Linear as usize] = 1_000;
        counted[MemoryKind::Pitch as usize] = 3;
        counted[MemoryKind::Graph as usize] = 4;
        let told = with_the_rest(counted, 10);
        assert_eq!(told[MemoryKind::Linear as usize], 3);
        assert_eq!(told.iter().sum::<u64>(), 10);
        assert_eq!(with_the_rest(counted, 6)[MemoryKind::Linear as usize], 0, "it counts too much");
    }
}
