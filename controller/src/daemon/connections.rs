//! How many connections there are, in all and by user: one user may not keep the others out, nor may one of root's containers.

use super::registry::{MAX_DESERTED, Refused};
use crate::config::Config;
use crate::identity::source::Source;
use deepres_abi::wire::RefusalKind;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Descriptors that a connection takes beside its bells: itself, its process, and a grant, a meter and a ledger page.
const DESCRIPTORS: u64 = 5;
/// Descriptors that the daemon needs for itself, its probes, its administrators, those that are turned away, and the ledgers of tenants that nobody is
/// left of.
const OWN_DESCRIPTORS: u64 = 512 + MAX_DESERTED as u64;
/// Processes that are about to begin a session at a time. More are not noted: they are strangers until they have one.
const ARRIVING_AT_A_TIME: usize = 256;
/// Connections for each of which one may be about to begin: it takes two descriptors, its connection and its process.
const CONNECTIONS_PER_ARRIVAL: usize = 2;
/// What that comes to for a connection.
const ARRIVAL_DESCRIPTORS: u64 = 1;
/// Connections beyond the limit that are listened to until they can be refused; more are closed without a word.
const TURNED_AWAY_AT_A_TIME: usize = 64;

/// Descriptors that so many connections need, each with a bell for each of `gpus`.
pub fn descriptors(connections: usize, gpus: usize) -> u64 {
    let of_one = DESCRIPTORS + ARRIVAL_DESCRIPTORS + gpus as u64;
    (connections as u64).saturating_mul(of_one).saturating_add(OWN_DESCRIPTORS)
}

/// Connections that there are descriptors for.
pub fn room(descriptors: u64, gpus: usize) -> usize {
    let of_one = DESCRIPTORS + ARRIVAL_DESCRIPTORS + gpus as u64;
    let room = descriptors.saturating_sub(OWN_DESCRIPTORS) / of_one;
    usize::try_from(room).unwrap_or(usize::MAX).max(1)
}

/// Connections of tenants.
#[derive(Debug)]
pub struct Connections {
    /// There are descriptors for so many.
    room: usize,
    by_source: RefCell<BTreeMap<Source, (usize, Turns)>>,
    arriving: Rc<RefCell<BTreeMap<Source, usize>>>,
    turned_away: Rc<Cell<usize>>,
}

/// By these the connections of one source are let in one after another, so that whoever has a hundred of them waiting holds others up for the time
/// of one.
#[derive(Debug, Clone)]
pub struct Turns(Rc<Semaphore>);

/// A connection's turn, for as long as this lives.
pub type Turn<'a> = SemaphorePermit<'a>;

impl Turns {
    fn new() -> Self {
        Self(Rc::new(Semaphore::new(1)))
    }

    /// The turn of a connection, after those of its source that asked before. There is always one.
    pub async fn next(&self) -> Option<Turn<'_>> {
        self.0.acquire().await.ok()
    }
}

/// One that is being turned away, for as long as this lives.
#[derive(Debug)]
pub struct TurnedAway(Rc<Cell<usize>>);

impl Drop for TurnedAway {
    fn drop(&mut self) {
        self.0.set(self.0.get().saturating_sub(1));
    }
}

/// One that is about to begin a session, for as long as this lives.
#[derive(Debug)]
pub struct Arriving {
    all: Rc<RefCell<BTreeMap<Source, usize>>>,
    source: Source,
}

impl Drop for Arriving {
    fn drop(&mut self) {
        let mut all = self.all.borrow_mut();
        match all.get_mut(&self.source) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(all.remove(&self.source)),
        }
    }
}

impl Connections {
    /// None so far, and descriptors for `room`.
    pub fn new(room: usize) -> Self {
        Self { room, by_source: RefCell::default(), arriving: Rc::default(), turned_away: Rc::default() }
    }

    /// One more of this source, or why not; and by which turns it is let in.
    ///
    /// # Errors
    /// [`Refused`]: there are as many as there may be.
    pub fn enter(&self, source: &Source, config: &Config) -> Result<Turns, Refused> {
        let mut by_source = self.by_source.borrow_mut();
        let limit = config.max_connections.min(self.room);
        let full = |reason| Err(Refused::new(RefusalKind::Full, reason));
        if by_source.values().map(|(count, _)| count).sum::<usize>() >= limit {
            return full(match limit < config.max_connections {
                true => format!(
                    "{limit} connections are open, as many as the daemon has descriptors for (ulimit -n)"
                ),
                false => format!("{limit} connections are open, the most there may be (max_connections)"),
            });
        }
        let limit = config.max_connections_per_user;
        let count = by_source.get(source).map_or(0, |(count, _)| *count);
        if count >= limit && source.has_limit() {
            return full(format!(
                "{source} has {limit} connections open, the most there may be (max_connections_per_user)"
            ));
        }
        let (count, turns) = by_source.entry(source.clone()).or_insert_with(|| (0, Turns::new()));
        *count += 1;
        Ok(turns.clone())
    }

    /// One less of this source.
    pub fn leave(&self, source: &Source) {
        let mut by_source = self.by_source.borrow_mut();
        match by_source.get_mut(source) {
            Some((count, _)) if *count > 1 => *count -= 1,
            _ => drop(by_source.remove(source)),
        }
    }

    /// Counts one that is about to begin a session, whose own connection will count as others do. `None`: there are so many that it is not noted.
    pub fn arrive(&self, source: &Source) -> Option<Arriving> {
        let mut arriving = self.arriving.borrow_mut();
        let count = arriving.get(source).copied().unwrap_or(0);
        let others = arriving.values().sum::<usize>() - count;
        let left = ARRIVING_AT_A_TIME.min(self.room / CONNECTIONS_PER_ARRIVAL).saturating_sub(others);
        // Whoever comes next finds as much: each may have half of what the others leave.
        if count >= left.div_ceil(2) {
            return None;
        }
        arriving.insert(source.clone(), count + 1);
        Some(Arriving { all: Rc::clone(&self.arriving), source: source.clone() })
    }

    /// Counts one that is being turned away. `None`: so many are that it has to go without a word.
    pub fn turn_away(&self) -> Option<TurnedAway> {
        let before = self.turned_away.get();
        (before < TURNED_AWAY_AT_A_TIME).then(|| {
            self.turned_away.set(before + 1);
            TurnedAway(Rc::clone(&self.turned_away))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_cannot_keep_the_others_out() {
        let config = Config { max_connections: 4, max_connections_per_user: 2, ..Config::default() };
        let connections = Connections::new(100);
        let container = Source::Place { path: "/docker/11".to_owned(), name: "docker-11".to_owned() };
        let [user, other, root] = [4711, 4712, 0].map(Source::User);
        for greedy in [user, container] {
            connections.enter(&greedy, &config).unwrap();
            connections.enter(&greedy, &config).unwrap();
            let reason = connections.enter(&greedy, &config).unwrap_err().reason;
            assert!(reason.starts_with(&greedy.to_string()), "{reason}");
            assert!(reason.contains("max_connections_per_user"), "{reason}");
            connections.enter(&other, &config).unwrap();
            connections.enter(&root, &config).unwrap();
            assert!(connections.enter(&other, &config).unwrap_err().reason.contains("(max_connections)"));
            connections.leave(&greedy);
            connections.enter(&other, &config).unwrap();
            for source in [&greedy, &other, &other, &root] {
                connections.leave(source);
            }
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_user_with_many_connections_holds_up_the_others_for_the_time_of_one() {
        let config = Config::default();
        let connections = Connections::new(1000);
        let [greedy, other] = [4711, 4712].map(Source::User);
        let order = Rc::new(RefCell::new(Vec::new()));
        let come = |source: &Source, uid: u32| {
            let (turns, order) = (connections.enter(source, &config).unwrap(), Rc::clone(&order));
            tokio::task::spawn_local(async move {
                let _turn = turns.next().await;
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
    fn those_who_are_turned_away_are_bounded() {
        let connections = Connections::new(1);
        let mut turned_away: Vec<_> = std::iter::from_fn(|| connections.turn_away()).collect();
        assert_eq!(turned_away.len(), TURNED_AWAY_AT_A_TIME);
        drop(turned_away.pop());
        assert!(connections.turn_away().is_some());
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
