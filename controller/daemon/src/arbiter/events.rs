//! The events for which an arbiter sleeps: the bells of sessions, the daemon's own bell, and a
//! timer.
//!
//! An arbiter answers a ring by a look at the meters, at the ringer's [`Pace`]. One look sees the
//! causes of all rings up to then. So the ringer pays for the look, and not for each ring. If a
//! bell rings a second time before its answer, the arbiter does not listen to that bell until the
//! answer.
//!
//! The arbiter never reads a bell, because the tenant could make the read block. The counter of a
//! bell therefore stays above 0. So the set reports a bell once more when the arbiter listens to it
//! again. The ringer pays for one look that may see nothing new.
//!
//! Many ringers together could make the arbiter look without a pause, each at its pace. So after an
//! answer, the arbiter answers no bell for as long as the look took. One look answers all bells
//! that are due. Looks for bells therefore take at most half of the thread's time, however many
//! ringers there are. By this rule, a ring waits at most as long as a look takes.

use deepres_model::clock::monotonic_ns;
use deepres_policy::TenantId;
use deepres_policy::arbiter::pace::price_ns;
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
/// The flags of a shut bell. The system reports an error of an eventfd whatever the flags are. With
/// these flags, the system reports the error once. A tenant can cause the error by a full counter.
const SHUT: EventFlags = EventFlags::ONESHOT;
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
}

impl AsFd for Bell {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The payer of the looks for a session: its user or container, or its tenant if the daemon does
/// not limit the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ringer {
    /// A user, or a container of root.
    User(UserId),
    /// A tenant of a user without limits.
    Tenant(TenantId),
}

/// The state of a ringer.
#[derive(Debug, Default)]
struct Ringing {
    pace: Pace,
    sessions: usize,
    /// The sessions whose rings wait for the next answer. If there are any, the ringer has paid for
    /// the answer.
    rang: Vec<SessionId>,
}

/// The rings of a bell since the last answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Heard {
    Nothing,
    /// The bell rang once.
    Ring,
    /// The bell rang again, so the arbiter does not listen to the bell.
    Shut,
}

/// The bell of a session, and the payer of its looks.
#[derive(Debug)]
struct Rung {
    bell: Bell,
    ringer: Ringer,
    heard: Heard,
}

/// The events for which an arbiter sleeps: a set of bells, and a timer.
#[derive(Debug)]
pub struct Events {
    epoll: OwnedFd,
    timer: OwnedFd,
    armed_ns: u64,
    bells: BTreeMap<SessionId, Rung>,
    ringers: BTreeMap<Ringer, Ringing>,
    /// The answers that the ringers have paid for: the times, ns, and the ringers.
    due: BTreeSet<(u64, Ringer)>,
    /// The time of an answer whose look has not ended yet, ns.
    looks_since_ns: Option<u64>,
    /// The time before which the arbiter answers no bell, ns.
    rests_until_ns: u64,
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
        Ok(Self {
            epoll,
            timer,
            armed_ns: 0,
            bells: BTreeMap::new(),
            ringers: BTreeMap::new(),
            due: BTreeSet::new(),
            looks_since_ns: None,
            rests_until_ns: 0,
        })
    }

    /// Adds the bell of a session. `ringer` pays for the looks that answer it.
    ///
    /// # Errors
    /// The system's error, for lack of memory.
    pub fn add(&mut self, session: SessionId, bell: &Bell, ringer: Ringer) -> io::Result<()> {
        epoll::add(&self.epoll, bell, EventData::new_u64(session), AT_EACH_RING)?;
        let now_ns = monotonic_ns();
        // A ringer without sessions keeps its pace, so that a new session does not begin anew.
        self.ringers.retain(|_, ringing| ringing.sessions > 0 || !ringing.pace.is_as_new(now_ns));
        self.ringers.entry(ringer).or_default().sessions += 1;
        self.bells.insert(session, Rung { bell: bell.clone(), ringer, heard: Heard::Nothing });
        Ok(())
    }

    /// Removes the bell of a session.
    pub fn remove(&mut self, session: SessionId) {
        let Some(rung) = self.bells.remove(&session) else { return };
        // An error means that the bell is not in the set any more.
        let _ = epoll::delete(&self.epoll, &rung.bell);
        if let Some(ringing) = self.ringers.get_mut(&rung.ringer) {
            ringing.sessions = ringing.sessions.saturating_sub(1);
        }
    }

    /// Sleeps until the arbiter must answer a bell, or until `wake_ns` (`CLOCK_MONOTONIC`). Returns
    /// whether the arbiter must answer a bell. The answer is the caller's next look, which has
    /// ended when the caller calls this function again.
    ///
    /// # Errors
    /// The system's error; no error is expected.
    pub fn wait(&mut self, wake_ns: Option<u64>) -> io::Result<bool> {
        self.rest(monotonic_ns());
        loop {
            let answer_ns = self.due.first().map(|(answer_ns, _)| self.rests_until_ns.max(*answer_ns));
            self.arm([wake_ns, answer_ns].into_iter().flatten().min().unwrap_or(0))?;
            let mut ready = [MaybeUninit::uninit(); BATCH];
            let rang = match epoll::wait(&self.epoll, &mut ready, None) {
                Ok((events, _)) => events,
                Err(Errno::INTR) => return Ok(false),
                Err(error) => return Err(error.into()),
            };
            let now_ns = monotonic_ns();
            let mut answers = false;
            for event in rang {
                match event.data.u64() {
                    OWN_BELL => answers = true,
                    // The timer has ended, so the next call sets it even for the same moment.
                    TIMER => self.armed_ns = 0,
                    session => self.hear(session, now_ns),
                }
            }
            answers |= self.answer(now_ns);
            // A ring that must wait does not end the sleep. Otherwise the arbiter would put off its
            // regular look at each of these rings.
            if answers || wake_ns.is_some_and(|at_ns| now_ns >= at_ns) {
                return Ok(answers);
            }
        }
    }

    /// Notes a ring of a session's bell for the next answer to its ringer. If no answer is due, the
    /// ringer pays for one.
    fn hear(&mut self, session: SessionId, now_ns: u64) {
        let sessions = self.bells.len();
        let Some(rung) = self.bells.get_mut(&session) else { return };
        let Some(ringing) = self.ringers.get_mut(&rung.ringer) else { return };
        if ringing.rang.is_empty() {
            self.due.insert((ringing.pace.look(now_ns, sessions), rung.ringer));
        }
        match rung.heard {
            Heard::Nothing => {
                ringing.rang.push(session);
                rung.heard = Heard::Ring;
            }
            Heard::Ring => {
                listen(&self.epoll, session, &rung.bell, SHUT);
                rung.heard = Heard::Shut;
                ringing.pace.shut(now_ns);
            }
            // The bell has an error.
            Heard::Shut => {}
        }
    }

    /// Rests after a look that has ended at `now_ns`, if the look was an answer.
    fn rest(&mut self, now_ns: u64) {
        if let Some(since_ns) = self.looks_since_ns.take() {
            // A daemon that was stopped during the look does not rest for as long.
            let took_ns = now_ns.saturating_sub(since_ns).min(price_ns(self.bells.len()));
            self.rests_until_ns = now_ns.saturating_add(took_ns);
        }
    }

    /// Gives the answers that are due: listens again to all bells of their ringers. Returns whether
    /// there is an answer, so that the arbiter must look.
    fn answer(&mut self, now_ns: u64) -> bool {
        if now_ns < self.rests_until_ns {
            return false;
        }
        let mut answers = false;
        while let Some(&(answer_ns, ringer)) = self.due.first()
            && answer_ns <= now_ns
        {
            self.due.pop_first();
            answers = true;
            // The arbiter listens before the look. So the look sees the cause of each earlier ring,
            // and the set reports each later ring.
            let Some(ringing) = self.ringers.get_mut(&ringer) else { continue };
            for session in ringing.rang.drain(..) {
                let Some(rung) = self.bells.get_mut(&session) else { continue };
                if std::mem::replace(&mut rung.heard, Heard::Nothing) == Heard::Shut {
                    listen(&self.epoll, session, &rung.bell, AT_EACH_RING);
                }
            }
        }
        self.looks_since_ns = answers.then_some(now_ns);
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
    use deepres_policy::arbiter::pace::{PRICE_NS, SAVED_NS};
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
    use std::io::Write;
    use std::os::unix::net::UnixStream;

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

    /// Makes a ringer spend more time than a test lasts.
    fn spend(events: &mut Events, ringer: Ringer) {
        let (now_ns, ringing) = (monotonic_ns(), events.ringers.get_mut(&ringer).unwrap());
        while ringing.pace.look(now_ns, 1_000_000) < now_ns + 600_000 * NS_PER_MS {}
    }

    /// Gives the first answer as if its time had come.
    fn answer_first(events: &mut Events) {
        let answer_ns = events.due.first().unwrap().0;
        assert!(events.answer(answer_ns));
    }

    /// Returns the number of events that the set reports at present.
    fn reported(events: &Events) -> usize {
        let mut ready = [MaybeUninit::uninit(); BATCH];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        epoll::wait(&events.epoll, &mut ready, Some(&at_once)).unwrap().0.len()
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
        spend(&mut events, OF_MALLORY);
        // The third ring finds the bell shut.
        for heard in [Heard::Ring, Heard::Shut, Heard::Shut] {
            bells[0].ring();
            assert!(!events.wait(Some(1)).unwrap());
            assert_eq!((events.bells[&0].heard, events.due.len()), (heard, 1));
        }
        bells[1].ring();
        assert!(events.wait(None).unwrap(), "another user's");
        // The set reports the bell once more, and after that answer no more.
        for rings in [1, 0] {
            answer_first(&mut events);
            assert_eq!(events.bells[&0].heard, Heard::Nothing);
            assert!(!events.wait(Some(1)).unwrap());
            assert_eq!(events.due.len(), rings);
        }
        bells[0].ring();
        assert!(!events.wait(Some(1)).unwrap());
        assert_eq!(events.due.len(), 1, "the arbiter listens again");
    }

    #[test]
    fn a_tenant_that_makes_reads_of_its_bell_block_does_not_block_the_arbiter() {
        let (mut events, bells) = events(&[OF_MALLORY]);
        spend(&mut events, OF_MALLORY);
        let of_tenant = bells[0].as_fd().try_clone_to_owned().unwrap();
        fcntl_setfl(&of_tenant, fcntl_getfl(&of_tenant).unwrap() - OFlags::NONBLOCK).unwrap();
        for _ in 0..2 {
            for _ in 0..3 {
                bells[0].ring();
                assert!(!events.wait(Some(1)).unwrap());
                rustix::io::read(&of_tenant, &mut [0; 8]).unwrap();
            }
            answer_first(&mut events);
        }
    }

    #[test]
    fn a_shut_bell_with_an_error_does_not_keep_the_arbiter_awake() {
        let (mut events, _bells) = events(&[]);
        // The system reports the end of a socket as an error of an eventfd, whatever the flags are.
        let (bell, mut ringing) = UnixStream::pair().unwrap();
        events.add(0, &Bell(Arc::new(bell.into())), OF_MALLORY).unwrap();
        spend(&mut events, OF_MALLORY);
        for _ in 0..2 {
            ringing.write_all(&[1]).unwrap();
            assert!(!events.wait(Some(1)).unwrap());
        }
        assert_eq!(events.bells[&0].heard, Heard::Shut);
        drop(ringing);
        assert!(!events.wait(Some(1)).unwrap());
        assert_eq!(reported(&events), 0);
    }

    /// Lets this many sessions of one ringer ring once at each hand-off, `apart_ns` after each
    /// other. Returns the longest time that a ring waits for its answer, ns.
    fn longest_delay_ns(sessions: usize, apart_ns: u64) -> u64 {
        const HANDOFFS: u64 = 200;
        let (mut events, _bells) = events(&vec![OF_ALICE; sessions]);
        let (begin_ns, mut longest_ns, mut waiting_ns) = (monotonic_ns(), 0, Vec::new());
        let mut answer = |events: &mut Events, waiting_ns: &mut Vec<u64>, now_ns| {
            if events.answer(now_ns) {
                let delays_ns = waiting_ns.drain(..).map(|rang_ns| now_ns - rang_ns);
                longest_ns = delays_ns.fold(longest_ns, u64::max);
            }
        };
        for handoff in 0..HANDOFFS {
            for session in 0..sessions as u64 {
                let now_ns = begin_ns + handoff * 4 * NS_PER_MS + session * apart_ns;
                if let Some(&(answer_ns, _)) = events.due.first().filter(|(answer_ns, _)| *answer_ns < now_ns)
                {
                    answer(&mut events, &mut waiting_ns, answer_ns);
                }
                events.hear(session, now_ns);
                waiting_ns.push(now_ns);
                answer(&mut events, &mut waiting_ns, now_ns);
            }
        }
        longest_ns
    }

    #[test]
    fn sessions_that_ring_at_each_handoff_wait_no_longer_than_the_price_of_a_look() {
        assert_eq!(longest_delay_ns(1, 0), 0);
        for (sessions, apart_ns) in [(32, 0), (32, 10_000), (32, 100_000), (300, 0), (300, 10_000)] {
            let longest_ns = longest_delay_ns(sessions, apart_ns);
            assert!(longest_ns <= price_ns(sessions), "{longest_ns} ns, {sessions}");
        }
    }

    #[test]
    fn a_ringer_pays_for_each_bell_that_the_arbiter_shuts() {
        const BELLS: u64 = 100;
        let (mut events, _bells) = events(&[OF_MALLORY; BELLS as usize]);
        let (now_ns, mut paid) = (monotonic_ns(), Pace::default());
        paid.look(now_ns, BELLS as usize);
        for _ in 0..3 {
            (0..BELLS).for_each(|session| events.hear(session, now_ns));
        }
        (0..BELLS).for_each(|_| paid.shut(now_ns));
        assert_eq!(events.ringers[&OF_MALLORY].pace, paid);
    }

    #[test]
    fn the_bells_of_many_ringers_take_half_of_the_time_at_most() {
        let ringers: Vec<Ringer> = (0..100).map(Ringer::User).collect();
        let (mut events, _bells) = events(&ringers);
        let took_ns = PRICE_NS / 10;
        let (begin_ns, mut now_ns, mut looked_ns) = (monotonic_ns(), monotonic_ns(), 0);
        for _ in 0..50 {
            (0..ringers.len() as u64).for_each(|session| events.hear(session, now_ns));
            while !events.answer(now_ns) {
                now_ns += took_ns / 10;
            }
            // One look answers the bells of all ringers.
            assert_eq!(events.due.len(), 0);
            now_ns += took_ns;
            looked_ns += took_ns;
            events.rest(now_ns);
        }
        assert!(2 * looked_ns <= now_ns - begin_ns + took_ns, "{looked_ns} ns of {} ns", now_ns - begin_ns);
        // A look that lasted for long, because the daemon was stopped.
        events.looks_since_ns = Some(now_ns);
        events.rest(now_ns + NS_PER_SECOND);
        assert!(events.rests_until_ns <= now_ns + NS_PER_SECOND + price_ns(ringers.len()));
    }

    #[test]
    fn a_bell_that_rings_in_a_loop_is_answered_at_its_pace() {
        let (mut events, bells) = events(&[OF_MALLORY, OF_MALLORY]);
        let (begin_ns, mut answers) = (monotonic_ns(), 0);
        while monotonic_ns() - begin_ns < 50 * NS_PER_MS {
            bells.iter().for_each(Bell::ring);
            answers += u64::from(events.wait(Some(1)).unwrap());
        }
        let most = (monotonic_ns() - begin_ns + SAVED_NS) / PRICE_NS;
        assert!(answers <= most, "{answers} answers, {most} at most");
    }

    #[test]
    fn a_ringer_begins_no_new_pace_with_a_new_session() {
        let (mut events, bells) = events(&[OF_MALLORY]);
        spend(&mut events, OF_MALLORY);
        bells[0].ring();
        assert!(!events.wait(Some(1)).unwrap());
        events.remove(0);
        answer_first(&mut events);
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
