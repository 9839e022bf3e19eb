//! What NVML says that one process holds of one GPU, at this moment: processes ask for it when a context was made, whose memory no call of the driver
//! tells of.
//!
//! Many ask at once, when many processes start together, and NVML answers with all processes of a GPU. So whoever asks while NVML is being asked has what it says the next
//! time: two looks, however many ask.

use super::reconcile::NVML_LIBRARY;
use nvml_wrapper::Nvml;
use nvml_wrapper::enums::device::UsedGpuMemory;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// Whoever asks waits no longer.
const LIMIT: Duration = Duration::from_millis(500);

/// What the processes on a GPU hold, bytes, by their numbers.
type Holdings = BTreeMap<u32, u64>;

/// See the module.
#[derive(Default)]
pub struct Appraiser {
    questions: Arc<Mutex<Questions>>,
    /// Whoever looks has it.
    nvml: Arc<Mutex<Option<Nvml>>>,
}

#[derive(Default)]
struct Questions {
    /// Who waits for the next look, by GPU.
    waiting: BTreeMap<String, Vec<oneshot::Sender<Arc<Holdings>>>>,
    /// A thread looks, the only one: a driver that hangs keeps one thread, not all.
    is_looking: bool,
}

impl Appraiser {
    /// What the process `pid` holds of the GPU `uuid`, bytes. `None`: NVML does not say, or not in time.
    pub async fn held_bytes(&self, pid: u32, uuid: String) -> Option<u64> {
        // A process that cannot be seen from here has no number.
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

    /// Waits for the next look at the GPU `uuid`; if none is under way, `look` begins one.
    fn ask(&self, uuid: String, look: impl FnOnce()) -> oneshot::Receiver<Arc<Holdings>> {
        let (sender, answer) = oneshot::channel();
        let mut questions = lock(&self.questions);
        let waiting = questions.waiting.entry(uuid).or_default();
        // While a driver hangs nobody answers those who have given up.
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

/// Answers whoever waits by `look`, which says what is held of a GPU, until nobody does.
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
            // Those whose question it cannot answer see by the sender's end that nobody will.
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
