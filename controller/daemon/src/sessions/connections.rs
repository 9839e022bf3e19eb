//! The limits on the number of connections: one limit for all sources together, and one limit for
//! each source. A source is a user or a container of root. So no source can keep the other sources
//! out.

use crate::identity::source::Source;
use crate::registry::{MAX_DESERTED, Refused};
use deepres_abi::wire::RefusalKind;
use deepres_model::clock::monotonic_ns;
use deepres_model::config::Config;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Descriptors of a connection without its bells: the socket, the pidfd, and the grant, meter and
/// ledger pages.
const DESCRIPTORS: u64 = 5;
/// Descriptors for the daemon itself, its probes, its administrators, refused connections, and the
/// ledgers of tenants without sessions.
const OWN_DESCRIPTORS: u64 = 512 + MAX_DESERTED as u64;
/// The most processes at a time that the daemon remembers as about to begin a session. The daemon
/// lists further processes as unmanaged until they have a session.
const ARRIVING_AT_A_TIME: usize = 256;
/// The number of connections for which the daemon remembers one process that is about to begin a
/// session. Such a process takes two descriptors: its connection and its pidfd.
const CONNECTIONS_PER_ARRIVAL: usize = 2;
/// The descriptors of processes that are about to begin a session, for each connection.
const ARRIVAL_DESCRIPTORS: u64 = 1;
/// Number of turns that a source may take without a delay. After a restart of the daemon, a
/// thousand jobs and their keepers come back at once.
const TURNS_AT_ONCE: u64 = 2048;
/// The time between two turns of a source that has had more than [`TURNS_AT_ONCE`] turns. A turn
/// takes some tenths of a millisecond.
const TURN_NS: u64 = Duration::from_millis(10).as_nanos() as u64;
/// The most connections beyond the limit to which the daemon listens until it can refuse them. No
/// source takes the places of all others. The daemon closes further connections without an answer.
const TURNED_AWAY_AT_A_TIME: usize = 64;

/// Returns the number of descriptors that `connections` need, with a bell for each of `gpus` in
/// each connection.
pub fn descriptors(connections: usize, gpus: usize) -> u64 {
    let of_one = DESCRIPTORS + ARRIVAL_DESCRIPTORS + gpus as u64;
    (connections as u64).saturating_mul(of_one).saturating_add(OWN_DESCRIPTORS)
}

/// Returns the number of connections for which `descriptors` suffice.
pub fn room(descriptors: u64, gpus: usize) -> usize {
    let of_one = DESCRIPTORS + ARRIVAL_DESCRIPTORS + gpus as u64;
    let room = descriptors.saturating_sub(OWN_DESCRIPTORS) / of_one;
    usize::try_from(room).unwrap_or(usize::MAX).max(1)
}

/// The number of a source's connections, and the source's turns.
#[derive(Debug)]
struct Has {
    connections: usize,
    turns: Turns,
}

impl Has {
    /// Returns the state of a source without connections.
    fn none(source: &Source) -> Self {
        Self { connections: 0, turns: Turns::of(source) }
    }
}

/// The counts of the connections to the tenant socket, with the limit for each source.
#[derive(Debug)]
pub struct Connections {
    /// The most connections for which there are descriptors.
    room: Cell<usize>,
    /// The sources that have connections, or whose next turns are still delayed.
    by_source: RefCell<BTreeMap<Source, Has>>,
    arriving: Places,
    turned_away: Places,
}

/// The number of places that each source has taken.
type Places = Rc<RefCell<BTreeMap<Source, usize>>>;

/// The turns of a source. The daemon admits the connections of a source one after another. So a
/// source with a hundred waiting connections delays other sources by one connection only.
///
/// Beyond [`TURNS_AT_ONCE`], a source with a limit gets one turn every [`TURN_NS`]. So a user that
/// begins sessions in a loop does not keep a processor of the host busy. Sources without a limit
/// have no such delay.
#[derive(Debug, Clone)]
pub struct Turns {
    one: Rc<Semaphore>,
    /// The moment at which the delays of all turns so far are over, monotonic clock, ns; `None` for
    /// sources without a limit.
    earned_ns: Option<Rc<Cell<u64>>>,
}

/// The turn of a connection. The turn ends when this value is dropped.
pub type Turn<'a> = SemaphorePermit<'a>;

impl Turns {
    fn of(source: &Source) -> Self {
        Self { one: Rc::new(Semaphore::new(1)), earned_ns: source.has_limit().then(Rc::default) }
    }

    /// Waits for the turn of a connection, after the earlier connections of its source. Returns
    /// `None` if the connection `is_gone` by then. Its turn then delays no other connection.
    pub async fn next(&self, is_gone: impl FnOnce() -> bool) -> Option<Turn<'_>> {
        let turn = self.one.acquire().await.ok();
        if is_gone() {
            return None;
        }
        let due_in_ns = self.take(monotonic_ns());
        if due_in_ns > 0 {
            tokio::time::sleep(Duration::from_nanos(due_in_ns)).await;
        }
        turn
    }

    /// Takes one more turn at `now_ns`. Returns the time until the turn is due, ns.
    fn take(&self, now_ns: u64) -> u64 {
        let Some(earned) = &self.earned_ns else { return 0 };
        let earned_ns = earned.get().max(now_ns).saturating_add(TURN_NS);
        earned.set(earned_ns);
        earned_ns.saturating_sub(now_ns).saturating_sub(TURNS_AT_ONCE * TURN_NS)
    }

    /// Returns whether past turns no longer delay the next turn, and no connection waits for its
    /// turn.
    fn is_as_new(&self, now_ns: u64) -> bool {
        Rc::strong_count(&self.one) == 1
            && self.earned_ns.as_ref().is_none_or(|earned| earned.get() <= now_ns)
    }
}

/// A place among the connections that the daemon is refusing, or among the processes that are about
/// to begin a session. The drop frees the place.
#[derive(Debug)]
pub struct Taken {
    all: Places,
    source: Source,
}

impl Taken {
    /// Takes one of `most` places for this source. Returns `None` if the source has too many.
    fn new(all: &Places, source: &Source, most: usize) -> Option<Self> {
        let mut taken = all.borrow_mut();
        let count = taken.get(source).copied().unwrap_or(0);
        let others = taken.values().sum::<usize>() - count;
        if count >= half_of_the_rest(most, others) {
            return None;
        }
        taken.insert(source.clone(), count + 1);
        Some(Self { all: Rc::clone(all), source: source.clone() })
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let mut all = self.all.borrow_mut();
        match all.get_mut(&self.source) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(all.remove(&self.source)),
        }
    }
}

/// Returns the most that one source may have of `all`, while other sources have `others`: half of
/// the rest. So the next source always finds room.
fn half_of_the_rest(all: usize, others: usize) -> usize {
    all.saturating_sub(others).div_ceil(2)
}

impl Connections {
    /// Returns the state without connections. `room` is the number of connections for which there
    /// are descriptors.
    pub fn new(room: usize) -> Self {
        let room = Cell::new(room);
        Self { room, by_source: RefCell::default(), arriving: Rc::default(), turned_away: Rc::default() }
    }

    /// Changes the number of connections for which there are descriptors.
    pub fn set_room(&self, room: usize) {
        self.room.set(room);
    }

    /// Adds one connection of this source.
    ///
    /// # Errors
    /// [`Refused`] if the source or the daemon has too many connections.
    pub fn enter(&self, source: &Source, config: &Config) -> Result<(), Refused> {
        let mut by_source = self.by_source.borrow_mut();
        let limit = config.max_connections.min(self.room.get());
        let full = |reason| Err(Refused::new(RefusalKind::Full, reason));
        let now_ns = monotonic_ns();
        by_source.retain(|_, has| has.connections > 0 || !has.turns.is_as_new(now_ns));
        let count = by_source.get(source).map_or(0, |has| has.connections);
        let others = by_source.values().map(|has| has.connections).sum::<usize>() - count;
        if count + others >= limit {
            return full(match limit < config.max_connections {
                true => format!(
                    "{limit} connections are open, the most for which the daemon has descriptors (ulimit -n)"
                ),
                false => format!(
                    "{limit} connections are open, the most that the configuration allows (max_connections)"
                ),
            });
        }
        if source.has_limit() {
            let of_user = config.max_connections_per_user;
            if count >= of_user {
                return full(format!(
                    "{source} has {of_user} connections open, the most that the configuration allows (max_connections_per_user)"
                ));
            }
            if count >= half_of_the_rest(limit, others) {
                return full(format!(
                    "{source} has {count} connections open and others have {others}; each user may have at most half of \
                     the connections that others leave of {limit} (max_connections)"
                ));
            }
        }
        by_source.entry(source.clone()).or_insert_with(|| Has::none(source)).connections += 1;
        Ok(())
    }

    /// Returns the turns of this source. A refused connection takes its turn too, because the
    /// refusal tells the process the limits of its tenant.
    pub fn turns(&self, source: &Source) -> Turns {
        let mut by_source = self.by_source.borrow_mut();
        by_source.entry(source.clone()).or_insert_with(|| Has::none(source)).turns.clone()
    }

    /// Subtracts one connection of this source.
    pub fn leave(&self, source: &Source) {
        if let Some(has) = self.by_source.borrow_mut().get_mut(source) {
            has.connections = has.connections.saturating_sub(1);
        }
    }

    /// Counts a process that is about to begin a session. Returns `None` if there are too many such
    /// processes. The session's own connection counts separately.
    pub fn arrive(&self, source: &Source) -> Option<Taken> {
        let most = ARRIVING_AT_A_TIME.min(self.room.get() / CONNECTIONS_PER_ARRIVAL);
        Taken::new(&self.arriving, source, most)
    }

    /// Counts a connection that the daemon is refusing. Returns `None` if the daemon is refusing
    /// too many connections. The caller then closes the connection without an answer.
    pub fn turn_away(&self, source: &Source) -> Option<Taken> {
        Taken::new(&self.turned_away, source, TURNED_AWAY_AT_A_TIME)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_or_a_container_has_so_many_connections_at_most() {
        let config = Config { max_connections: 100, max_connections_per_user: 2, ..Config::default() };
        let connections = Connections::new(100);
        let container = Source::Place { path: "/docker/11".to_owned(), name: "docker-11".to_owned() };
        let [user, root] = [4711, 0].map(Source::User);
        for greedy in [user, container] {
            connections.enter(&greedy, &config).unwrap();
            connections.enter(&greedy, &config).unwrap();
            let reason = connections.enter(&greedy, &config).unwrap_err().reason;
            assert!(reason.starts_with(&greedy.to_string()), "{reason}");
            assert!(reason.contains("max_connections_per_user"), "{reason}");
            connections.leave(&greedy);
            connections.enter(&greedy, &config).unwrap();
        }
        (0..10).for_each(|_| connections.enter(&root, &config).unwrap());
    }

    #[test]
    fn a_user_leaves_the_next_one_as_much_as_it_has() {
        let config = Config { max_connections: 64, ..Config::default() };
        let connections = Connections::new(100);
        let fill = |user: u32| {
            let user = Source::User(user);
            let reason = |refused: Refused| refused.reason;
            let mut count = 0;
            loop {
                match connections.enter(&user, &config).map_err(reason) {
                    Ok(()) => count += 1,
                    Err(reason) => break (count, reason),
                }
            }
        };
        let (first, reason) = fill(4711);
        assert_eq!(first, 32);
        assert!(reason.contains("half of the connections that others leave of 64"), "{reason}");
        assert_eq!([4712, 4713, 4714].map(|user| fill(user).0), [16, 8, 4]);
        connections.leave(&Source::User(4711));
        connections.enter(&Source::User(4711), &config).unwrap_err();
        let (of_root, reason) = fill(0);
        assert_eq!(of_root, 5, "all that there is");
        assert!(reason.contains("64 connections are open"), "{reason}");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_user_with_many_connections_holds_up_the_others_for_the_time_of_one() {
        let config = Config::default();
        let connections = Connections::new(1000);
        let [greedy, other] = [4711, 4712].map(Source::User);
        let order = Rc::new(RefCell::new(Vec::new()));
        let come = |source: &Source, uid: u32| {
            connections.enter(source, &config).unwrap();
            let (turns, order) = (connections.turns(source), Rc::clone(&order));
            tokio::task::spawn_local(async move {
                let _turn = turns.next(|| false).await;
                order.borrow_mut().push(uid);
                tokio::task::yield_now().await;
            })
        };
        let tasks = tokio::task::LocalSet::new();
        tasks
            .run_until(async {
                let mut all: Vec<_> = (0..100).map(|_| come(&greedy, 4711)).collect();
                all.push(come(&other, 4712));
                for task in all {
                    task.await.unwrap();
                }
            })
            .await;
        let place = order.borrow().iter().position(|uid| *uid == 4712).unwrap();
        assert!(place <= 1, "{place} went before");
    }

    #[test]
    fn a_source_that_connects_in_a_loop_is_let_in_now_and_then() {
        let turns = Turns::of(&Source::User(4711));
        let second = 1_000_000_000;
        assert!((0..TURNS_AT_ONCE).all(|_| turns.take(second) == 0));
        assert_eq!(turns.take(second), TURN_NS);
        assert!(!turns.is_as_new(second));
        assert_eq!(turns.take(second + 2 * TURN_NS), 0, "after a while");
        assert_eq!(turns.take(second + 2 * TURN_NS), TURN_NS);
        let later_ns = second + (TURNS_AT_ONCE + 3) * TURN_NS;
        let of_root = Turns::of(&Source::User(0));
        assert!((0..2 * TURNS_AT_ONCE).all(|_| of_root.take(second) == 0), "root may have all turns");
        assert!(turns.is_as_new(later_ns) && (0..TURNS_AT_ONCE).all(|_| turns.take(later_ns) == 0));
    }

    #[test]
    fn a_source_that_leaves_and_comes_back_has_had_its_turns() {
        let connections = Connections::new(10);
        let source = Source::User(4711);
        connections.enter(&source, &Config::default()).unwrap();
        for _ in 0..2 * TURNS_AT_ONCE {
            connections.turns(&source).take(monotonic_ns());
        }
        connections.leave(&source);
        connections.enter(&source, &Config::default()).unwrap();
        assert!(connections.turns(&source).take(monotonic_ns()) > 0);
    }

    #[test]
    fn those_who_are_turned_away_are_bounded_and_no_user_keeps_the_others_from_an_answer() {
        let connections = Connections::new(1);
        let [user, other] = [4711, 4712].map(Source::User);
        let all_of = |source| std::iter::from_fn(|| connections.turn_away(source)).collect::<Vec<_>>();
        let mut of_user = all_of(&user);
        let of_other = all_of(&other);
        assert_eq!([of_user.len(), of_other.len()], [32, 16], "each leaves as much as it took");
        drop((of_user.pop(), of_other));
        assert!(connections.turn_away(&user).is_some());
    }

    #[test]
    fn those_who_are_about_to_begin_are_bounded_and_no_user_keeps_the_others_out() {
        let connections = Connections::new(4096);
        let [user, other, root] = [4711, 4712, 0].map(Source::User);
        let all_of = |source| std::iter::from_fn(|| connections.arrive(source)).collect::<Vec<_>>();
        let mut of_user = all_of(&user);
        let (of_other, of_root) = (all_of(&other), all_of(&root));
        let counts = [of_user.len(), of_other.len(), of_root.len()];
        assert_eq!(counts, [128, 64, 32], "each leaves as much as it took");
        drop((of_root, of_other));
        assert!(connections.arrive(&user).is_none());
        drop(of_user.pop());
        assert!(connections.arrive(&user).is_some());
        let few = Connections::new(8);
        assert_eq!(std::iter::from_fn(|| few.arrive(&user)).collect::<Vec<_>>().len(), 2);
    }

    #[test]
    fn there_are_no_more_connections_than_descriptors() {
        assert_eq!(room(descriptors(1000, 3), 3), 1000);
        assert_eq!(room(20, 3), 1);
        let connections = Connections::new(1);
        connections.enter(&Source::User(0), &Config::default()).unwrap();
        assert!(
            connections.enter(&Source::User(0), &Config::default()).unwrap_err().reason.contains("ulimit -n")
        );
    }
}
