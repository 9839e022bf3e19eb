//! The jobs that wait for guaranteed memory (`deepres run --wait`). The first job that came is the
//! first to get memory.

use crate::identity::Key;
use deepres_model::admin::WaitingStatus;
use std::time::Duration;

/// A waiting job asks twice a second. A job that did not ask for this long has given up.
const GIVEN_UP_NS: u64 = Duration::from_secs(3).as_nanos() as u64;
/// The most jobs of one user with a place in the order.
const MOST_OF_USER: usize = 64;

/// A job that waits for guaranteed memory.
#[derive(Debug, Clone)]
pub struct Waiter {
    /// The key of the job's tenant.
    pub key: Key,
    /// The name for the job's tenant.
    pub name: String,
    /// The job's user.
    pub user: u32,
    /// The guaranteed memory for which the job waits, bytes.
    pub memory_bytes: u64,
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
    /// Returns the number of jobs that wait at `now_ns` and came before the job of this key.
    pub fn before(&self, key: &Key, now_ns: u64) -> usize {
        self.at(now_ns).take_while(|place| place.job.key != *key).count()
    }

    /// Notes that a job asked in vain at `now_ns`, and asks again. A user with too many waiting jobs
    /// gets no further place.
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
            memory_bytes: place.job.memory_bytes,
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
        Waiter { key: key(number), name: format!("job-{number}"), user: 1_000, memory_bytes: 1 }
    }

    #[test]
    fn jobs_keep_the_order_in_which_they_came_until_they_give_up() {
        let mut waiting = Waiting::default();
        (0..3).for_each(|number| waiting.note(job(number), number as u64));
        waiting.note(job(0), 10);
        let before =
            |waiting: &Waiting, now_ns| [0, 1, 2, 3].map(|number| waiting.before(&key(number), now_ns));
        assert_eq!(before(&waiting, 11), [0, 1, 2, 3]);
        assert_eq!(before(&waiting, GIVEN_UP_NS + 1), [0, 2, 1, 2], "job 1 asked at 1 for the last time");
        waiting.remove(&key(0));
        waiting.note(job(2), 12);
        assert_eq!(before(&waiting, GIVEN_UP_NS + 2), [1, 1, 0, 1]);
        let status = waiting.status(GIVEN_UP_NS + 2);
        assert_eq!((status.len(), &*status[0].tenant, status[0].since_ns), (1, "job-2", 2));
    }

    #[test]
    fn a_user_takes_few_places_before_others() {
        let mut waiting = Waiting::default();
        (0..1_000).for_each(|number| waiting.note(job(number), 0));
        waiting.note(Waiter { user: 1_001, ..job(2_000) }, 0);
        assert_eq!(waiting.before(&key(2_000), 0), MOST_OF_USER);
        assert_eq!(waiting.status(0).len(), MOST_OF_USER + 1);
    }
}
