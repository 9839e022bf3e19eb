//! The events for which an arbiter sleeps: the bells of sessions, the daemon's own bell, and a timer.
//!
//! An arbiter answers a ring by a look at the meters, at the ringer's [`Pace`]. If a ring must wait
//! for its answer, the arbiter does not listen to that bell until the answer. The look that answers
//! sees the causes of all rings up to then, so no ring is lost.

use deepres_model::clock::monotonic_ns;
use deepres_policy::TenantId;
use deepres_policy::arbiter::{Pace, SessionId};
use deepres_policy::lease::trust::UserId;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

const NS_PER_SECOND: u64 = 1_000_000_000;
/// The mark of an event that the daemon's own bell caused. The mark of a session's bell is the
/// number of the session.
const OWN_BELL: u64 = u64::MAX;
/// The mark of an event that the timer caused.
const TIMER: u64 = u64::MAX - 1;
/// The flags with which the arbiter listens to a bell. With edge triggering, each ring wakes the
/// arbiter, and the arbiter need not read the eventfd. So a tenant that reads the eventfd cannot
/// swallow a ring.
const AT_EACH_RING: EventFlags = EventFlags::IN.union(EventFlags::ET);
/// The most events that one call takes. The next call takes the rest.
const BATCH: usize = 64;

/// An eventfd that wakes an arbiter.
#[derive(Debug, Clone)]
pub struct Bell(Arc<OwnedFd>);

impl Bell {
    /// Makes a bell, and returns the bell.
    ///
    /// # Errors
    /// The system's error, for lack of descriptors.
    pub fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)))
    }

    /// Rings the bell.
    pub fn ring(&self) {
        // EAGAIN means that the counter is full, because the bell has rung already.
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }

    /// Returns whether the bell rang since the last call. If the tenant reads the eventfd, the
    /// result may be false, and only the tenant waits longer.
    fn has_rung(&self) -> bool {
        rustix::io::read(&*self.0, &mut [0; size_of::<u64>()]).is_ok()
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The payer of the rings of a session: its user or container, or its tenant if the daemon does not
/// limit the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ringer {
    /// A user, or a container of root.
    User(UserId),
    /// A tenant of a user without limits.
    Tenant(TenantId),
}

/// The pace of a ringer, and the number of its sessions.
#[derive(Debug, Default)]
struct Ringing {
    pace: Pace,
    sessions: usize,
}

/// The bell of a session, and the payer of its rings.
#[derive(Debug)]
struct Rung {
    bell: Bell,
    ringer: Ringer,
    /// The time at which the arbiter answers the last ring, ns; `None` if the arbiter listens to the
    /// bell.
    answer_ns: Option<u64>,
}

/// The events for which an arbiter sleeps: a set of bells, and a timer.
#[derive(Debug)]
pub struct Events {
    epoll: OwnedFd,
    timer: OwnedFd,
    armed_ns: u64,
    bells: BTreeMap<SessionId, Rung>,
    ringers: BTreeMap<Ringer, Ringing>,
    /// The rings that wait for their answers: the times of the answers, and the sessions.
    late: BTreeSet<(u64, SessionId)>,
}

impl Events {
    /// Returns a set with the daemon's own bell.
    ///
    /// # Errors
    /// The system's error, for lack of descriptors.
    pub fn new(own: &Bell) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        // A timerfd has two advantages over the timeout of epoll: it takes a moment instead of a
        // duration, and has no slack of 50 µs.
        let timer =
            timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        epoll::add(&epoll, own, EventData::new_u64(OWN_BELL), AT_EACH_RING)?;
        epoll::add(&epoll, &timer, EventData::new_u64(TIMER), AT_EACH_RING)?;
        let (bells, ringers, late) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        Ok(Self { epoll, timer, armed_ns: 0, bells, ringers, late })
    }

    /// Adds the bell of a session. `ringer` pays for its rings.
    ///
    /// # Errors
    /// The system's error, for lack of memory.
    pub fn add(&mut self, session: SessionId, bell: &Bell, ringer: Ringer) -> io::Result<()> {
        epoll::add(&self.epoll, bell, EventData::new_u64(session), AT_EACH_RING)?;
        let now_ns = monotonic_ns();
        // A ringer without sessions keeps its pace, so that a new session does not begin anew.
        self.ringers.retain(|_, ringing| ringing.sessions > 0 || !ringing.pace.is_as_new(now_ns));
        self.ringers.entry(ringer).or_default().sessions += 1;
        self.bells.insert(session, Rung { bell: bell.clone(), ringer, answer_ns: None });
        Ok(())
    }

    /// Removes the bell of a session.
    pub fn remove(&mut self, session: SessionId) {
        let Some(rung) = self.bells.remove(&session) else { return };
        // An error means that the bell is not in the set any more.
        let _ = epoll::delete(&self.epoll, &rung.bell);
        if let Some(answer_ns) = rung.answer_ns {
            self.late.remove(&(answer_ns, session));
        }
        if let Some(ringing) = self.ringers.get_mut(&rung.ringer) {
            ringing.sessions = ringing.sessions.saturating_sub(1);
        }
    }

    /// Sleeps until the arbiter must answer a bell, or until `wake_ns` (`CLOCK_MONOTONIC`). Returns
    /// whether the arbiter must answer a bell.
    ///
    /// # Errors
    /// The system's error; no error is expected.
    pub fn wait(&mut self, wake_ns: Option<u64>) -> io::Result<bool> {
        loop {
            let late_ns = self.late.first().map(|(answer_ns, _)| *answer_ns);
            self.arm([wake_ns, late_ns].into_iter().flatten().min().unwrap_or(0))?;
            let mut ready = [MaybeUninit::uninit(); BATCH];
            let rang = match epoll::wait(&self.epoll, &mut ready, None) {
                Ok((events, _)) => events,
                Err(Errno::INTR) => return Ok(false),
                Err(error) => return Err(error.into()),
            };
            let now_ns = monotonic_ns();
            let mut answers = false;
            for event in rang {
                answers |= match event.data.u64() {
                    OWN_BELL => true,
                    TIMER => {
                        // The timer has ended, so the next call sets it even for the same moment.
                        self.armed_ns = 0;
                        false
                    }
                    session => self.hear(session, now_ns),
                };
            }
            answers |= self.answer_late(now_ns);
            // A ring that must wait does not end the sleep. Otherwise the arbiter would put off its
            // regular look at each of these rings.
            if answers || wake_ns.is_some_and(|at_ns| now_ns >= at_ns) {
                return Ok(answers);
            }
        }
    }

    /// Charges a ring of a session's bell. Returns whether the ring has its answer now. If not, the
    /// arbiter does not listen to the bell until the answer.
    fn hear(&mut self, session: SessionId, now_ns: u64) -> bool {
        let Some(rung) = self.bells.get_mut(&session).filter(|rung| rung.answer_ns.is_none()) else {
            return false;
        };
        let Some(ringing) = self.ringers.get_mut(&rung.ringer) else { return true };
        let answer_ns = ringing.pace.ring(now_ns, ringing.sessions);
        if answer_ns <= now_ns {
            return true;
        }
        listen(&self.epoll, session, &rung.bell, EventFlags::empty());
        // From now on, the bell shows whether it rings again before the answer.
        let _ = rung.bell.has_rung();
        rung.answer_ns = Some(answer_ns);
        self.late.insert((answer_ns, session));
        false
    }

    /// Listens again to the bells whose rings have their answers now. If such a bell has rung again,
    /// its ringer pays, and the bell must wait for a further answer. Returns whether any ring has
    /// its answer now.
    fn answer_late(&mut self, now_ns: u64) -> bool {
        let mut answers = false;
        while let Some(&(answer_ns, session)) = self.late.first()
            && answer_ns <= now_ns
        {
            self.late.pop_first();
            let Some(rung) = self.bells.get_mut(&session) else { continue };
            answers = true;
            // The arbiter reads the bell before the look that answers. So the look sees the cause of
            // each ring before the read, and the set reports each ring after the read.
            let has_rung = rung.bell.has_rung();
            let ringing = self.ringers.get_mut(&rung.ringer).filter(|_| has_rung);
            rung.answer_ns = ringing.map(|ringing| ringing.pace.ring(now_ns, ringing.sessions));
            match rung.answer_ns {
                Some(answer_ns) => drop(self.late.insert((answer_ns, session))),
                None => listen(&self.epoll, session, &rung.bell, AT_EACH_RING),
            }
        }
        answers
    }

    /// Sets the timer for a moment; 0 stops it.
    fn arm(&mut self, wake_ns: u64) -> io::Result<()> {
        if wake_ns != self.armed_ns {
            let it_value = Timespec {
                tv_sec: (wake_ns / NS_PER_SECOND) as i64,
                tv_nsec: (wake_ns % NS_PER_SECOND) as i64,
            };
            let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
            timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &Itimerspec { it_interval, it_value })?;
            self.armed_ns = wake_ns;
        }
        Ok(())
    }
}

/// Listens to a bell of the set from now on as `flags` say.
fn listen(epoll: &OwnedFd, session: SessionId, bell: &Bell, flags: EventFlags) {
    // The call fails only if the bell is not in the set.
    let _ = epoll::modify(epoll, bell, EventData::new_u64(session), flags);
}

#[cfg(test)]
mod tests {
    use super::*;
    use deepres_model::clock::NS_PER_MS;
    use deepres_policy::arbiter::pace::{RING_NS, SAVED_NS};

    const OF_ALICE: Ringer = Ringer::User(1);
    const OF_MALLORY: Ringer = Ringer::User(2);

    /// Returns a set with a bell for each of these ringers, whose sessions are numbered from 0.
    fn events(ringers: &[Ringer]) -> (Events, Vec<Bell>) {
        let mut events = Events::new(&Bell::new().unwrap()).unwrap();
        let add = |(session, ringer): (usize, &Ringer)| {
            let bell = Bell::new().unwrap();
            events.add(session as SessionId, &bell, *ringer).unwrap();
            bell
        };
        let bells = ringers.iter().enumerate().map(add).collect();
        (events, bells)
    }

    /// Makes a ringer spend its time up to `ahead_ns` from now.
    fn spend(events: &mut Events, ringer: Ringer, ahead_ns: u64) {
        let (now_ns, ringing) = (monotonic_ns(), events.ringers.get_mut(&ringer).unwrap());
        while ringing.pace.ring(now_ns, 1) < now_ns + ahead_ns {}
    }

    #[test]
    fn a_bell_wakes_at_each_ring_though_nobody_reads_it() {
        let (mut events, bells) = events(&[OF_ALICE]);
        for _ in 0..2 {
            bells[0].ring();
            assert!(events.wait(None).unwrap());
        }
        events.remove(0);
        bells[0].ring();
        let begin = monotonic_ns();
        assert!(!events.wait(Some(begin + 5 * NS_PER_MS)).unwrap());
        assert!(monotonic_ns() - begin >= 5 * NS_PER_MS);
    }

    #[test]
    fn a_ring_beyond_the_pace_is_answered_late_and_another_ringers_at_once() {
        let (mut events, bells) = events(&[OF_MALLORY, OF_ALICE]);
        spend(&mut events, OF_MALLORY, 500 * NS_PER_MS);
        bells[0].ring();
        assert!(!events.wait(Some(1)).unwrap());
        bells[1].ring();
        assert!(events.wait(None).unwrap(), "another user's");
        let answer_ns = events.bells[&0].answer_ns.unwrap();
        // The cause of this ring is a later change. The bell waits for a second answer.
        bells[0].ring();
        assert!(events.wait(None).unwrap() && monotonic_ns() >= answer_ns);
        while events.bells[&0].answer_ns.is_some() {
            assert!(events.wait(None).unwrap());
        }
        assert!(!events.wait(Some(monotonic_ns() + 5 * NS_PER_MS)).unwrap(), "all rings have answers");
        bells[0].ring();
        assert!(events.wait(None).unwrap(), "the arbiter listens again");
    }

    #[test]
    fn a_bell_that_rings_in_a_loop_is_answered_at_its_pace() {
        let (mut events, bells) = events(&[OF_MALLORY, OF_MALLORY]);
        let (begin_ns, mut answers) = (monotonic_ns(), 0);
        while monotonic_ns() - begin_ns < 50 * NS_PER_MS {
            bells.iter().for_each(Bell::ring);
            answers += u64::from(events.wait(Some(1)).unwrap());
        }
        let most = (monotonic_ns() - begin_ns + SAVED_NS) / RING_NS;
        assert!(answers <= most, "{answers} answers, {most} at most");
    }

    #[test]
    fn a_ringer_begins_no_new_pace_with_a_new_session() {
        let (mut events, bells) = events(&[OF_MALLORY]);
        spend(&mut events, OF_MALLORY, 60_000 * NS_PER_MS);
        bells[0].ring();
        assert!(!events.wait(Some(1)).unwrap());
        events.remove(0);
        assert!(events.late.is_empty());
        let again = Bell::new().unwrap();
        events.add(1, &again, OF_MALLORY).unwrap();
        again.ring();
        assert!(!events.wait(Some(1)).unwrap());
    }

    #[test]
    fn a_ringer_that_owes_nothing_is_forgotten_with_its_last_session() {
        let (mut events, _bells) = events(&[OF_ALICE]);
        events.remove(0);
        events.add(1, &Bell::new().unwrap(), OF_MALLORY).unwrap();
        assert_eq!(events.ringers.keys().collect::<Vec<_>>(), [&OF_MALLORY]);
    }

    #[test]
    fn a_moment_that_has_passed_wakes_at_once() {
        let (mut events, _bells) = events(&[]);
        let begin = monotonic_ns();
        events.wait(Some(begin - 1)).unwrap();
        assert!(monotonic_ns() - begin < 1_000 * NS_PER_MS);
    }
}
