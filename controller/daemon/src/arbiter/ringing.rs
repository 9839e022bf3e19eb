//! Bounds the time of an arbiter's thread that bells take, at the ringer's cost.
//!
//! A session may ring its bell in a loop, and each ring makes the thread read all meters. So the
//! ringer pays for the time that the thread takes after its rings. If a ringer in debt rings, the
//! thread stops listening to the bell until the debt is paid. The thread then looks once. The rings
//! of other ringers wake the thread at once.

use super::SessionId;
use deepres_policy::TenantId;
use deepres_policy::lease::trust::UserId;
use std::collections::BTreeMap;
use std::time::Duration;

/// Each ringer may take one part in this many of the thread's time. With looks of 20 µs, a ringer
/// may cause 3,000 looks a second.
const PARTS: u64 = 16;
/// The time in which a ringer without debts may pay for its rings afterwards, ns. So a ringer may
/// take 6 ms of the thread's time at once.
const CREDIT_NS: u64 = Duration::from_millis(100).as_nanos() as u64;

/// The party that pays for a ring: the tenants of a user together, or a tenant that shares no debts
/// with other tenants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ringer {
    /// The tenants of a user or container.
    User(UserId),
    /// A tenant by itself.
    Tenant(TenantId),
}

/// The debts of the ringers.
#[derive(Debug, Default)]
pub struct Ringing {
    /// For each ringer in debt: when the ringer will have paid, ns.
    paid_ns: BTreeMap<Ringer, u64>,
    /// The sessions to whose bells the thread does not listen at present.
    unheard: BTreeMap<SessionId, Ringer>,
}

impl Ringing {
    /// Returns whether the thread looks because this session rang at `now_ns`. If not, the caller
    /// stops listening to the session's bell until [`Self::heard_again`] returns the session.
    pub fn hears(&mut self, session: SessionId, ringer: Ringer, now_ns: u64) -> bool {
        let is_heard = self.pays_until_ns(ringer) <= now_ns;
        if !is_heard {
            self.unheard.insert(session, ringer);
        }
        is_heard
    }

    /// Makes the ringers pay for time that the thread took after their rings, in equal parts.
    pub fn charge(&mut self, ringers: &[Ringer], took_ns: u64, now_ns: u64) {
        let Ok(count @ 1..) = u64::try_from(ringers.len()) else { return };
        for ringer in ringers {
            let paid_ns = self.paid_ns.entry(*ringer).or_default();
            *paid_ns = (*paid_ns).max(now_ns).saturating_add(took_ns / count * PARTS);
        }
        self.paid_ns.retain(|_, paid_ns| *paid_ns > now_ns);
    }

    /// Returns when the caller must call [`Self::heard_again`], ns.
    pub fn due_ns(&self) -> Option<u64> {
        self.unheard.values().map(|ringer| self.pays_until_ns(*ringer)).min()
    }

    /// Returns the sessions to whose bells the caller listens again from `now_ns` on.
    pub fn heard_again(&mut self, now_ns: u64) -> Vec<SessionId> {
        let mut unheard = std::mem::take(&mut self.unheard);
        let again = unheard.extract_if(.., |_, ringer| self.pays_until_ns(*ringer) <= now_ns);
        let again = again.map(|(session, _)| session).collect();
        self.unheard = unheard;
        again
    }

    /// Returns until when the ringer is too deep in debt to be heard, ns; 0 without debts.
    fn pays_until_ns(&self, ringer: Ringer) -> u64 {
        self.paid_ns.get(&ringer).map_or(0, |paid_ns| paid_ns.saturating_sub(CREDIT_NS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1_000;
    const MS: u64 = 1_000 * US;
    /// The time of a look, and of a wake-up without a look.
    const LOOK_NS: u64 = 20 * US;
    const WAKE_NS: u64 = 5 * US;
    const LOOP: Ringer = Ringer::User(1);
    const OTHER: Ringer = Ringer::Tenant(2);

    /// Lets sessions of one ringer ring in a loop for a second. Returns the time that the thread
    /// took, and the longest time for which it did not hear the ringer, ns.
    fn in_a_loop(sessions: u64) -> (u64, u64) {
        let mut ringing = Ringing::default();
        let mut listened: Vec<SessionId> = (0..sessions).collect();
        let (mut now_ns, mut took_ns, mut looked_ns, mut longest_ns) = (MS, 0, MS, 0);
        while now_ns < 1_000 * MS {
            listened.extend(ringing.heard_again(now_ns));
            let Some(session) = listened.pop() else {
                now_ns = ringing.due_ns().unwrap().max(now_ns + 1);
                continue;
            };
            let lasts_ns = if ringing.hears(session, LOOP, now_ns) {
                listened.push(session);
                longest_ns = longest_ns.max(now_ns - looked_ns);
                looked_ns = now_ns;
                LOOK_NS
            } else {
                WAKE_NS
            };
            (now_ns, took_ns) = (now_ns + lasts_ns, took_ns + lasts_ns);
            ringing.charge(&[LOOP], lasts_ns, now_ns);
            assert!(ringing.hears(u64::MAX, OTHER, now_ns), "the other does not pay for it");
        }
        (took_ns, longest_ns)
    }

    #[test]
    fn bells_in_a_loop_take_a_sixteenth_of_the_threads_time_and_are_heard_in_turn() {
        for sessions in [1, 64] {
            let (took_ns, longest_ns) = in_a_loop(sessions);
            let most_ns = (1_000 * MS + CREDIT_NS) / PARTS + LOOK_NS + sessions * WAKE_NS;
            assert!(took_ns <= most_ns && took_ns >= most_ns / 2, "{sessions} bells: {took_ns} ns");
            let wait_ns = PARTS * (LOOK_NS + sessions * WAKE_NS) + MS;
            assert!(longest_ns <= wait_ns, "{sessions} bells: {longest_ns} ns");
        }
    }

    #[test]
    fn a_ringer_that_falls_silent_is_heard_once_more_and_forgotten() {
        let mut ringing = Ringing::default();
        ringing.charge(&[LOOP], 2 * CREDIT_NS / PARTS, MS);
        assert!(!ringing.hears(7, LOOP, MS));
        let due_ns = ringing.due_ns().unwrap();
        assert_eq!((due_ns, ringing.heard_again(due_ns - 1)), (MS + CREDIT_NS, vec![]));
        assert_eq!(ringing.heard_again(due_ns), [7]);
        assert!(ringing.hears(7, LOOP, due_ns) && ringing.due_ns().is_none());
        ringing.charge(&[OTHER], 1, due_ns + CREDIT_NS);
        assert_eq!(ringing.paid_ns.keys().copied().collect::<Vec<_>>(), [OTHER]);
    }

    #[test]
    fn ringers_that_wake_the_thread_together_pay_for_their_bells_alone() {
        let mut ringing = Ringing::default();
        ringing.charge(&[LOOP, LOOP, LOOP, OTHER], 4 * MS, 0);
        assert_eq!(ringing.paid_ns, [(LOOP, 3 * PARTS * MS), (OTHER, PARTS * MS)].into());
    }
}
