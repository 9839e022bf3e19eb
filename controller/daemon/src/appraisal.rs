//! The appraiser: asks NVML how much memory of a GPU one process holds at this moment. A process
//! asks for that after it created a context, because no call of the driver tells the memory of a
//! context.
//!
//! Many processes ask at once when many start together, and NVML always answers for all processes
//! of a GPU. So a question that comes while NVML is being asked gets the answer of the next query.
//! That makes two queries, however many processes ask.

use crate::memory::reconcile::NVML_LIBRARY;
use nvml_wrapper::Nvml;
use nvml_wrapper::enums::device::UsedGpuMemory;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// The longest that a caller waits.
const LIMIT: Duration = Duration::from_millis(500);

/// The memory that the processes on a GPU hold, bytes, by pid.
type Holdings = BTreeMap<u32, u64>;

/// The appraiser; see the module.
#[derive(Default)]
pub struct Appraiser {
    questions: Arc<Mutex<Questions>>,
    /// The thread that asks NVML holds this lock.
    nvml: Arc<Mutex<Option<Nvml>>>,
}

#[derive(Default)]
struct Questions {
    /// The callers that wait for the next query, by GPU.
    waiting: BTreeMap<String, Vec<oneshot::Sender<Arc<Holdings>>>>,
    /// Whether a thread asks NVML. There is only one, so a driver that hangs blocks one thread and
    /// not all.
    is_looking: bool,
}

impl Appraiser {
    /// Returns the memory that the process `pid` holds on the GPU `uuid`, bytes. Returns `None` if
    /// NVML does not say, or not in time.
    pub async fn held_bytes(&self, pid: u32, uuid: String) -> Option<u64> {
        // A process in a pid namespace that the daemon cannot see has pid 0.
        if pid == 0 {
            return None;
        }
        let answer = self.ask(uuid, || {
            let (questions, nvml) = (Arc::clone(&self.questions), Arc::clone(&self.nvml));
            tokio::task::spawn_blocking(move || {
                let mut nvml = nvml.lock().unwrap_or_else(PoisonError::into_inner);
                if nvml.is_none() {
                    *nvml = Nvml::builder().lib_path(OsStr::new(NVML_LIBRARY)).init().ok();
                }
                answer(&questions, |uuid| nvml.as_ref().and_then(|nvml| holdings(nvml, uuid)));
            });
        });
        timeout(LIMIT, answer).await.ok()?.ok()?.get(&pid).copied()
    }

    /// Registers a caller for the next query about the GPU `uuid`. Calls `look` if no query is
    /// under way.
    fn ask(&self, uuid: String, look: impl FnOnce()) -> oneshot::Receiver<Arc<Holdings>> {
        let (sender, answer) = oneshot::channel();
        let mut questions = lock(&self.questions);
        let waiting = questions.waiting.entry(uuid).or_default();
        // Removes callers that have given up: while a driver hangs, nothing else would remove them.
        waiting.retain(|waiter| !waiter.is_closed());
        waiting.push(sender);
        let is_looking = mem::replace(&mut questions.is_looking, true);
        drop(questions);
        if !is_looking {
            look();
        }
        answer
    }
}

fn lock(questions: &Mutex<Questions>) -> MutexGuard<'_, Questions> {
    questions.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Answers all waiting callers, until none is left. `look` returns the holdings on a GPU.
fn answer(questions: &Mutex<Questions>, mut look: impl FnMut(&str) -> Option<Holdings>) {
    loop {
        let waiting = {
            let mut questions = lock(questions);
            if questions.waiting.is_empty() {
                questions.is_looking = false;
                return;
            }
            mem::take(&mut questions.waiting)
        };
        for (uuid, waiters) in waiting {
            // Dropping the senders tells callers without an answer that there will be none.
            let Some(holdings) = look(&uuid).map(Arc::new) else { continue };
            waiters.into_iter().for_each(|waiter| drop(waiter.send(Arc::clone(&holdings))));
        }
    }
}

fn holdings(nvml: &Nvml, uuid: &str) -> Option<Holdings> {
    let processes = nvml.device_by_uuid(uuid).ok()?.running_compute_processes().ok()?;
    let said = processes.into_iter().filter_map(|process| match process.used_gpu_memory {
        UsedGpuMemory::Used(bytes) => Some((process.pid, bytes)),
        UsedGpuMemory::Unavailable => None,
    });
    Some(said.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_during_a_look_is_answered_by_the_next_and_all_by_the_same() {
        let appraiser = Appraiser::default();
        let mut begun = 0;
        let mut first = appraiser.ask("a".to_owned(), || begun += 1);
        let mut late = Vec::new();
        let mut looks = 0;
        answer(&appraiser.questions, |uuid| {
            looks += 1;
            if looks == 1 {
                late.extend((0..40).map(|_| appraiser.ask(uuid.to_owned(), || begun += 1)));
            }
            Some(Holdings::from([(7, looks)]))
        });
        assert_eq!((begun, looks), (1, 2));
        assert_eq!(first.try_recv().unwrap()[&7], 1);
        assert!(late.iter_mut().all(|answer| answer.try_recv().unwrap()[&7] == 2));
        drop(appraiser.ask("a".to_owned(), || begun += 1));
        assert_eq!(begun, 2, "nobody looks any more");
    }

    #[test]
    fn who_has_given_up_is_forgotten_and_who_is_not_answered_need_not_wait() {
        let appraiser = Appraiser::default();
        (0..100).for_each(|_| drop(appraiser.ask("a".to_owned(), || {})));
        let mut waiting = appraiser.ask("a".to_owned(), || {});
        assert_eq!(lock(&appraiser.questions).waiting["a"].len(), 1);
        answer(&appraiser.questions, |_| None);
        assert!(matches!(waiting.try_recv(), Err(oneshot::error::TryRecvError::Closed)));
    }
}
