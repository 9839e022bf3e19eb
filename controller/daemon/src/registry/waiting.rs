//! The jobs that wait for guaranteed memory, for GPUs or for a part of their user's caps (`deepres
//! run --wait`). The first job that came is the first to get them.

use crate::identity::Key;
use deepres_model::admin::WaitingStatus;
use deepres_policy::placement::GpuSet;
use std::time::Duration;

/// A waiting job asks twice a second. A job that did not ask for this long has given up.
const GIVEN_UP_NS: u64 = Duration::from_secs(3).as_nanos() as u64;
/// The longest time for which a job that waits for GPUs or for a cap holds later jobs back, ns. A
/// server can keep the GPUs or the cap for ever.
pub const HOLDS_BACK_NS: u64 = Duration::from_secs(600).as_nanos() as u64;
/// The most jobs of one user with a place in the order.
const MOST_OF_USER: usize = 64;

/// The thing for which a job waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lack {
    /// Guaranteed memory, bytes.
    Memory(u64),
    /// A part of this user's caps, with this much memory, bytes; 0 if the job asks for no amount.
    Cap {
        /// The user.
        user: u32,
        /// The memory.
        memory_bytes: u64,
    },
    /// A number of GPUs with room.
    Gpus {
        /// The number.
        count: usize,
        /// The GPUs among which the daemon chooses.
        among: GpuSet,
    },
}

/// A job that waits.
#[derive(Debug, Clone)]
pub struct Waiter {
    /// The key of the job's tenant.
    pub key: Key,
    /// The name for the job's tenant.
    pub name: String,
    /// The job's user.
    pub user: u32,
    /// The thing for which the job waits.
    pub lack: Lack,
}

/// A waiting job, with the times of its first and its last question, ns.
#[derive(Debug)]
struct Place {
    job: Waiter,
    since_ns: u64,
    asked_ns: u64,
}

/// The waiting jobs, in the order in which they came.
#[derive(Debug, Default)]
pub struct Waiting(Vec<Place>);

impl Waiting {
    /// Returns whether a job waits at `now_ns` that came before the job of this key, at most
    /// `for_ns` ago, and that lacks what `is_same` names.
    pub fn is_behind(&self, key: &Key, now_ns: u64, for_ns: u64, is_same: impl Fn(Lack) -> bool) -> bool {
        let before = self.at(now_ns).take_while(|place| place.job.key != *key);
        let mut holding = before.filter(|place| now_ns.saturating_sub(place.since_ns) <= for_ns);
        holding.any(|place| is_same(place.job.lack))
    }

    /// Notes that a job asked in vain at `now_ns`, and asks again. A user with too many waiting
    /// jobs gets no further place.
    pub fn note(&mut self, job: Waiter, now_ns: u64) {
        self.0.retain(|place| !place.has_given_up(now_ns));
        if let Some(place) = self.0.iter_mut().find(|place| place.job.key == job.key) {
            (place.job, place.asked_ns) = (job, now_ns);
        } else if self.0.iter().filter(|place| place.job.user == job.user).count() < MOST_OF_USER {
            self.0.push(Place { job, since_ns: now_ns, asked_ns: now_ns });
        }
    }

    /// Removes the job of this key, which waits no longer.
    pub fn remove(&mut self, key: &Key) {
        self.0.retain(|place| place.job.key != *key);
    }

    /// Returns the status of the jobs that wait at `now_ns`.
    pub fn status(&self, now_ns: u64) -> Vec<WaitingStatus> {
        let status = |place: &Place| WaitingStatus {
            tenant: place.job.name.clone(),
            uid: place.job.user,
            memory_bytes: match place.job.lack {
                Lack::Memory(memory_bytes) | Lack::Cap { memory_bytes, .. } => memory_bytes,
                Lack::Gpus { .. } => 0,
            },
            gpus: match place.job.lack {
                Lack::Memory(_) | Lack::Cap { .. } => None,
                Lack::Gpus { count, .. } => Some(count),
            },
            since_ns: place.since_ns,
        };
        self.at(now_ns).map(status).collect()
    }

    fn at(&self, now_ns: u64) -> impl Iterator<Item = &Place> {
        self.0.iter().filter(move |place| !place.has_given_up(now_ns))
    }
}

impl Place {
    fn has_given_up(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.asked_ns) >= GIVEN_UP_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> Key {
        Key::Cgroup(number.to_string())
    }

    fn job(number: usize) -> Waiter {
        Waiter { key: key(number), name: format!("job-{number}"), user: 1_000, lack: Lack::Memory(1) }
    }

    /// Returns whether each of these jobs is behind another job.
    fn behind<const JOBS: usize>(waiting: &Waiting, now_ns: u64, jobs: [usize; JOBS]) -> [bool; JOBS] {
        jobs.map(|number| waiting.is_behind(&key(number), now_ns, u64::MAX, |_| true))
    }

    #[test]
    fn jobs_keep_the_order_in_which_they_came_until_they_give_up() {
        let mut waiting = Waiting::default();
        (0..3).for_each(|number| waiting.note(job(number), number as u64));
        waiting.note(job(0), 10);
        assert!(!waiting.is_behind(&key(1), 10, 5, |_| true), "job 0 has waited for longer");
        assert_eq!(behind(&waiting, 11, [0, 1, 2, 3]), [false, true, true, true]);
        waiting.remove(&key(0));
        assert_eq!(behind(&waiting, 11, [1, 2]), [false, true]);
        waiting.note(job(2), 12);
        // Job 1 asked at 1 for the last time.
        assert_eq!(behind(&waiting, GIVEN_UP_NS + 2, [1, 2, 3]), [true, false, true]);
        let status = waiting.status(GIVEN_UP_NS + 2);
        assert_eq!((status.len(), &*status[0].tenant, status[0].since_ns), (1, "job-2", 2));
    }

    #[test]
    fn only_jobs_that_lack_the_same_are_before_a_job() {
        let mut waiting = Waiting::default();
        let among = GpuSet::first(2);
        waiting.note(job(0), 0);
        waiting.note(Waiter { lack: Lack::Gpus { count: 2, among }, ..job(1) }, 0);
        let is_behind = |number, lack| waiting.is_behind(&key(number), 0, u64::MAX, |other| other == lack);
        assert!(
            !is_behind(1, Lack::Gpus { count: 2, among }) && is_behind(2, Lack::Gpus { count: 2, among })
        );
        assert!(is_behind(1, Lack::Memory(1)) && !is_behind(2, Lack::Memory(2)));
        let of_status = waiting.status(0).into_iter().map(|job| (job.memory_bytes, job.gpus));
        assert_eq!(of_status.collect::<Vec<_>>(), [(1, None), (0, Some(2))]);
    }

    #[test]
    fn a_user_takes_few_places_before_others() {
        let mut waiting = Waiting::default();
        (0..1_000).for_each(|number| waiting.note(job(number), 0));
        waiting.note(Waiter { user: 1_001, ..job(2_000) }, 0);
        let status = waiting.status(0);
        assert_eq!((status.len(), status[MOST_OF_USER].uid), (MOST_OF_USER + 1, 1_001));
    }
}
