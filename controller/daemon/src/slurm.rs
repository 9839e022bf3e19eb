//! Checks the claims of Slurm jobs: asks Slurm which part of the GPUs a job has.
//!
//! A job could change the variables that `deepres slurm task-prolog` set for it. The daemon trusts
//! only facts that the job cannot change. The kernel names the job of a process, because Slurm's
//! root process made the job's cgroup. Slurm's controller says what the job has. The daemon asks
//! `scontrol show job -d` once for each job, when the job's first process comes. If Slurm gives no
//! answer, the daemon asks again later ([`serve`]).
//!
//! Slurm names a job's GPUs by their places in its list of the node's GPUs. So the daemon also asks
//! `scontrol show node` how many GPUs this list has. If the machine has another number of GPUs, the
//! daemon takes no GPU for the job's, and none for another job's.

use crate::Shared;
use crate::gpus::Gpus;
use crate::identity::Facts;
use crate::identity::cgroup::Place;
use crate::registry::Registry;
use crate::tenant::Allotment;
use deepres_abi::PPM;
use deepres_abi::grant::NO_LIMIT;
use deepres_abi::quantity::MIN_SHARE_PPM;
use deepres_model::quantity::{Bytes, Percent};
use deepres_model::slurm::{JobGpus, JobName, SlurmError, exact_name, gpus_of_node};
use deepres_policy::class::Class;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::{self, Read, Seek};
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Mutex, OwnedMutexGuard, oneshot};
use tokio::time::timeout;

/// Slurm's command that shows jobs.
const SCONTROL: &str = "scontrol";
/// The file with the host's name.
const HOST_NAME: &str = "/proc/sys/kernel/hostname";
/// The longest wait for an answer. The controller of a busy cluster can need a second.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);
/// The time for which the daemon does not ask again after Slurm gave no answer in time. Otherwise
/// each process of a job would wait for [`ANSWER_LIMIT`]. Also the time between two looks for jobs
/// without an answer.
const SILENT_FOR: Duration = Duration::from_secs(10);

/// The daemon's questions to Slurm.
#[derive(Debug, Default)]
pub struct Slurm {
    /// The lock of the question under way. The other processes of a job wait for its answer. The
    /// thread of a question holds the lock until `scontrol` has ended, so at most one thread waits
    /// for a stuck `scontrol`.
    asking: Arc<Mutex<()>>,
    /// When Slurm last gave no answer in time.
    silent_since: Cell<Option<Instant>>,
}

/// The reason for which Slurm gave no answer.
#[derive(Debug)]
enum NoAnswer {
    /// The command cannot run, or has not ended in time. Another question would have the same end.
    Silent(String),
    /// The command failed.
    Failed(String),
}

impl Slurm {
    /// Returns the part of the GPUs that Slurm gave to the job of a process. Returns `None` if the
    /// process is in no Slurm job, if the configuration turns the check off, or if Slurm does not
    /// answer. With `asks` false, returns only an answer that the daemon has already.
    pub async fn allotment(
        &self,
        facts: &Facts,
        registry: &RefCell<Registry>,
        asks: bool,
    ) -> Option<Allotment> {
        let place = facts.place.as_ref().filter(|place| registry.borrow().finder().checks_job_at(place))?;
        if !asks {
            return registry.borrow().finder().allotment(&place.path).cloned();
        }
        self.learn(place, registry).await.unwrap_or_else(|reason| {
            tracing::warn!(
                job = %place.name(),
                reason,
                "the daemon cannot learn from Slurm which part of the GPUs a job has: until Slurm answers, the job's wishes count within its user's caps; see docs/slurm.md"
            );
            None
        })
    }

    /// Returns the part of the GPUs of the job at `place`: as the registry knows it, or as Slurm
    /// answers now. Returns `None` if Slurm gave no answer in time a short while ago.
    ///
    /// # Errors
    ///
    /// Returns the reason for which Slurm gives no answer now.
    async fn learn(&self, place: &Place, registry: &RefCell<Registry>) -> Result<Option<Allotment>, String> {
        let Some(name) = place.job() else { return Ok(None) };
        let known = || registry.borrow().finder().allotment(&place.path).cloned();
        if known().is_some() || self.is_silent() {
            return Ok(known());
        }
        let nodes = nodes(place.slurm_node());
        let asked = timeout(ANSWER_LIMIT, async {
            let asking = Arc::clone(&self.asking).lock_owned().await;
            // Another process of the job may have got the answer meanwhile.
            let is_open = known().is_none() && !self.is_silent();
            if is_open { Some(hear(name.clone(), nodes.clone(), asking).await) } else { None }
        });
        let (answer, _asking) = match asked.await {
            Ok(None) => return Ok(known()),
            Ok(Some(heard)) => heard,
            Err(_) => (Err(NoAnswer::late()), None),
        };
        let allot = |job: u32, allocation: Option<&JobGpus>, listed: Option<usize>| {
            Ok(Some(allot(job, allocation, listed, registry.borrow().tenancy.gpus())))
        };
        match answer {
            Ok(Told { job, record, listed }) => match JobGpus::read(&record, job, &nodes) {
                Ok(allocation) => allot(job, allocation.as_ref(), listed),
                Err(reason @ SlurmError::NoNode { .. }) => Err(reason.to_string()),
                // The user may have put lines into the record, and must gain nothing by it.
                Err(reason) => {
                    tracing::warn!(job, %reason, "a Slurm job runs as if it had no GPU");
                    allot(job, None, listed)
                }
            },
            Err(NoAnswer::Failed(reason)) => Err(reason),
            Err(NoAnswer::Silent(reason)) => {
                self.silent_since.set(Some(Instant::now()));
                Err(reason)
            }
        }
    }

    /// Returns whether Slurm gave no answer in time a short while ago.
    fn is_silent(&self) -> bool {
        self.silent_since.get().is_some_and(|since| since.elapsed() < SILENT_FOR)
    }
}

/// Asks Slurm again about the jobs whose tenants have no allotment yet, because Slurm gave no
/// answer when the jobs' processes came. Never returns.
pub async fn serve(shared: Rc<Shared>) {
    loop {
        tokio::time::sleep(SILENT_FOR).await;
        let unbound = shared.registry.borrow().finder().unbound_jobs();
        for place in unbound {
            match shared.slurm.learn(&place, &shared.registry).await {
                Ok(Some(allotment)) => {
                    shared.registry.borrow_mut().allot(&place.path, &allotment);
                    shared.note_change();
                }
                Ok(None) => {}
                // The log has the warning from the admission of the job's process.
                Err(reason) => tracing::debug!(job = %place.name(), reason, "Slurm gives no answer still"),
            }
        }
    }
}

impl NoAnswer {
    /// Returns the reason for a question that Slurm does not answer within [`ANSWER_LIMIT`].
    fn late() -> Self {
        Self::Silent(format!("{SCONTROL} gives no answer within {ANSWER_LIMIT:?}"))
    }
}

/// Slurm's facts about a job on this node.
#[derive(Debug)]
struct Told {
    /// The job's number.
    job: u32,
    /// The job's record, as `scontrol` shows it.
    record: String,
    /// The number of GPUs in Slurm's list of this node's GPUs; `None` if Slurm does not tell it.
    listed: Option<usize>,
}

/// Slurm's answer about a job.
type Answer = Result<Told, NoAnswer>;

/// Asks Slurm about a job in a thread of its own. `nodes` are the names by which Slurm can know
/// this node. The thread can wait for a stuck `scontrol` for ever, and the daemon can end
/// meanwhile. Returns the answer with the lock.
async fn hear(
    job: JobName,
    nodes: Vec<String>,
    asking: OwnedMutexGuard<()>,
) -> (Answer, Option<OwnedMutexGuard<()>>) {
    let (tell, told) = oneshot::channel();
    let ask = move || {
        let answer = ask(&job, &nodes);
        // If nobody waits for the answer any more, the lock becomes free here.
        drop(tell.send((answer, asking)));
    };
    let started = std::thread::Builder::new().name("deepres-slurm".to_owned()).spawn(ask);
    match started {
        Ok(_) => match told.await {
            Ok((answer, asking)) => (answer, Some(asking)),
            Err(_) => (Err(NoAnswer::Silent("the thread of the question ended".to_owned())), None),
        },
        Err(error) => (Err(NoAnswer::Silent(format!("{SCONTROL} cannot run: {error}"))), None),
    }
}

/// Returns the allotment of a job, and logs it. `listed` is the number of GPUs in Slurm's list of
/// this node's GPUs.
fn allot(job: u32, allocation: Option<&JobGpus>, listed: Option<usize>, gpus: &Gpus) -> Allotment {
    let memory_bytes: Vec<u64> = gpus.iter().map(|gpu| gpu.memory_bytes).collect();
    let files = gpus.by_device_file();
    let allotment = allotment(allocation, listed, &files, &memory_bytes);
    let allotment = Allotment { job: Some(job), ..allotment };
    let Allotment { share_ppm, memory_bytes, gpus, .. } = &allotment;
    let memory = Some(*memory_bytes).filter(|bytes| *bytes != NO_LIMIT).map(Bytes);
    let memory = memory.map_or_else(|| "no limit".to_owned(), |bytes| bytes.to_string());
    tracing::info!(job, share = %Percent(*share_ppm), memory, ?gpus, "Slurm gave a job its part of the GPUs");
    if gpus.is_none() {
        tracing::warn!(
            job,
            ?listed,
            present = files.len(),
            "the daemon cannot tell which GPUs a job has: Slurm's list of this node's GPUs is not that of the machine; make gres.conf by `deepres slurm gres-conf`, and restart slurmctld and slurmd"
        );
    }
    allotment
}

/// Returns the allotment of a job with this allocation, without the job's number. Slurm numbers the
/// GPUs of a node in the order of their device files. `files` has the numbers of the daemon for the
/// GPUs in this order, and `memory_bytes` the memory of each GPU by the daemon's number. If Slurm's
/// list has another number of GPUs (`listed`), a GPU is missing in one of the two lists, and Slurm's
/// places say nothing.
fn allotment(
    allocation: Option<&JobGpus>,
    listed: Option<usize>,
    files: &[usize],
    memory_bytes: &[u64],
) -> Allotment {
    let part = |gpu: usize, ppm: u32| {
        let whole = memory_bytes.get(gpu).copied().unwrap_or(0);
        u64::try_from(u128::from(whole) * u128::from(ppm) / u128::from(PPM)).unwrap_or(NO_LIMIT)
    };
    let least = |numbers: &[usize], ppm| numbers.iter().map(|gpu| part(*gpu, ppm)).min().unwrap_or(NO_LIMIT);
    let elsewhere_bytes = least(files, MIN_SHARE_PPM);
    let Some(allocation) = allocation else { return Allotment::none(elsewhere_bytes) };
    let agrees = listed.is_none_or(|listed| listed == files.len());
    let at = |place: &usize| files.get(*place).copied().filter(|_| agrees);
    let own: Option<Vec<usize>> = allocation.places.iter().map(at).collect();
    let share_ppm = allocation.share_ppm();
    let memory_bytes = match share_ppm {
        PPM => NO_LIMIT,
        ppm => least(own.as_deref().unwrap_or(files), ppm),
    };
    let class = Class::Guaranteed;
    Allotment { job: None, share_ppm, memory_bytes, elsewhere_bytes, class, gpus: own }
}

/// Returns the names by which Slurm can know this node.
fn nodes(of_cgroup: Option<&str>) -> Vec<String> {
    let host = std::fs::read_to_string(HOST_NAME).unwrap_or_default().trim().to_owned();
    let short = host.split('.').next().unwrap_or_default().to_owned();
    let mut names: Vec<String> = of_cgroup.map(str::to_owned).into_iter().chain([short, host]).collect();
    names.dedup();
    names
}

/// Asks Slurm about a job and about this node, and waits for the answer. `nodes` are the names by
/// which Slurm can know this node.
fn ask(job: &JobName, nodes: &[String]) -> Answer {
    let show = |name: &str| run(SCONTROL, &["show", "job", "--details", name]);
    let shown = show(&job.to_string())?;
    let number = job.number_in(&shown);
    let number =
        number.ok_or_else(|| NoAnswer::Failed(format!("{SCONTROL} shows job {job} in an unknown form")))?;
    let record = exact_name(&shown, number).map_or(Ok(shown), |name| show(&name))?;
    let listed = |node: &String| gpus_of_node(&run(SCONTROL, &["show", "node", node]).ok()?);
    Ok(Told { job: number, record, listed: nodes.iter().find_map(listed) })
}

/// Runs a command, and returns its output.
fn run(program: &str, arguments: &[&str]) -> Result<String, NoAnswer> {
    let silent = |error: io::Error| NoAnswer::Silent(format!("{program} cannot run: {error}"));
    // A pipe would fill up if nothing read it while the command runs.
    let sheet = || memfd_create("deepres-slurm", MemfdFlags::CLOEXEC).map(File::from);
    let (output, errors) =
        (sheet().map_err(|error| silent(error.into()))?, sheet().map_err(|error| silent(error.into()))?);
    let copy = |file: &File| file.try_clone().map(Stdio::from).map_err(silent);
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(copy(&output)?).stderr(copy(&errors)?);
    let mut child = command.spawn().map_err(silent)?;
    let has_ended = Pid::from_raw(child.id() as i32)
        .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok())
        .is_some_and(|child| ends_within(&child, ANSWER_LIMIT));
    if !has_ended {
        // The command may have ended just now.
        let _ = child.kill();
    }
    let status = child.wait().map_err(silent)?;
    if !has_ended {
        return Err(NoAnswer::late());
    }
    let text = |mut file: File| {
        let mut bytes = Vec::new();
        file.rewind().and_then(|()| file.read_to_end(&mut bytes)).map_err(silent)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    if status.success() {
        return text(output);
    }
    let said = text(errors)?;
    Err(NoAnswer::Failed(
        said.lines().last().unwrap_or("scontrol failed without a message").trim().to_owned(),
    ))
}

/// Waits until the process has ended. Returns whether the process ended within `limit`.
fn ends_within(process: &impl std::os::fd::AsFd, limit: Duration) -> bool {
    let until = Instant::now() + limit;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&left)) {
            Ok(ready) => return ready > 0,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::cgroup;
    use crate::shm::{SharedPage, Writer};
    use deepres_abi::beat::BeatPage;
    use deepres_model::config::Config;

    #[test]
    fn a_job_has_the_gpus_at_its_places_and_its_part_of_their_memory() {
        use deepres_model::slurm::Amount;
        // The daemon's GPU 1 has the first device file.
        let (files, memory_bytes) = ([1, 0, 2], [1_000, 2_000, 4_000]);
        let of = |amount, places: &[usize]| {
            let allocation = JobGpus { amount, places: places.to_vec() };
            allotment(Some(&allocation), Some(files.len()), &files, &memory_bytes)
        };
        let single = of(Amount::Shards(30), &[0]);
        assert_eq!((single.share_ppm, single.memory_bytes), (300_000, 600));
        assert_eq!(single.gpus, Some(vec![1]));
        assert!(single.lacks(0) && !single.lacks(1) && single.elsewhere_bytes == 10, "{single:?}");
        let both = of(Amount::Shards(100), &[1, 2]);
        assert_eq!((both.share_ppm, both.memory_bytes, both.gpus), (500_000, 500, Some(vec![0, 2])));
        let whole = of(Amount::Whole, &[2]);
        assert_eq!((whole.share_ppm, whole.memory_bytes, whole.gpus), (PPM, NO_LIMIT, Some(vec![2])));
        let unknown = of(Amount::Shards(50), &[3]);
        assert_eq!((unknown.share_ppm, unknown.memory_bytes, &unknown.gpus), (500_000, 500, &None));
        assert!(!unknown.lacks(0), "no GPU is certainly another job's");
        let none = allotment(None, None, &files, &memory_bytes);
        assert_eq!((none.share_ppm, none.memory_bytes, none.class), (10_000, 10, Class::BestEffort));
        assert!(none.lacks(0) && none.lacks(1));
    }

    #[test]
    fn a_job_is_cut_on_no_gpu_if_slurm_lists_another_number_of_gpus() {
        use deepres_model::slurm::Amount;
        let (files, memory_bytes) = ([0, 1, 2], [1_000; 3]);
        let of = |listed, amount| {
            allotment(Some(&JobGpus { amount, places: vec![1] }), listed, &files, &memory_bytes)
        };
        // Without the line of the first GPU, Slurm's place 1 is the daemon's GPU 2.
        for listed in [2, 4] {
            let whole = of(Some(listed), Amount::Whole);
            assert_eq!((whole.share_ppm, &whole.gpus), (PPM, &None));
            let part = of(Some(listed), Amount::Shards(30));
            assert_eq!((part.share_ppm, part.memory_bytes, &part.gpus), (300_000, 300, &None));
            assert!((0..3).all(|gpu| !whole.lacks(gpu) && !part.lacks(gpu)));
        }
        for known in [Some(3), None] {
            assert_eq!(of(known, Amount::Shards(30)).gpus, Some(vec![1]), "{known:?}");
        }
    }

    #[test]
    fn a_stuck_question_holds_no_process() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let beat = SharedPage::<BeatPage>::create("deepres-test", Writer::Controller).unwrap();
        let registry = RefCell::new(Registry::new(Config::default(), Gpus::default(), Arc::new(beat)));
        let facts = Facts {
            pid: 30,
            process: None,
            place: cgroup::place("0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0"),
            owner: 1000,
            namespace: None,
            namespaces: Vec::new(),
        };
        let slurm = Slurm::default();
        // The thread of a question to a stuck `scontrol` holds this lock.
        let stuck = Arc::clone(&slurm.asking).try_lock_owned().unwrap();
        let before = Instant::now();
        for _ in 0..3 {
            assert_eq!(runtime.block_on(slurm.allotment(&facts, &registry, true)), None);
        }
        assert!((ANSWER_LIMIT..2 * ANSWER_LIMIT).contains(&before.elapsed()), "one wait for all");
        drop(stuck);
    }

    #[test]
    fn a_command_is_heard_to_its_end_and_a_silent_one_is_killed() {
        assert!(matches!(run("sh", &["-c", "yes | head -c 200000"]), Ok(text) if text.len() == 200_000));
        let failed = run("sh", &["-c", "echo one >&2; echo slurm_load_jobs error >&2; exit 1"]);
        assert!(matches!(failed, Err(NoAnswer::Failed(reason)) if reason == "slurm_load_jobs error"));
        assert!(matches!(run("/nonexistent/scontrol", &[]), Err(NoAnswer::Silent(_))));
        let before = Instant::now();
        assert!(matches!(run("sleep", &["60"]), Err(NoAnswer::Silent(_))));
        assert!((ANSWER_LIMIT..2 * ANSWER_LIMIT).contains(&before.elapsed()));
    }
}
