//! `deepres slurm task-prolog`: Slurm runs the command as the job's user before each task. From the
//! output, Slurm reads changes of the task's environment (`export NAME=VALUE`, `unset NAME`, `print
//! TEXT`).
//!
//! The variables that this command sets are the job's claim. The daemon asks Slurm itself
//! (`daemon/slurm`), because a job can change its variables.

use super::JOB_VARIABLE;
use crate::run::{self, PRELOAD_VARIABLE, TENANT_VARIABLE};
use anyhow::{Context, Error, Result, bail};
use deepres_abi::PPM;
use deepres_abi::directory::SOCKET_VARIABLE;
use deepres_abi::fallback::FALLBACK_VARIABLE;
use deepres_abi::wish::Key;
use deepres_daemon::Gpu;
use deepres_model::directory::Directory;
use deepres_model::quantity::Percent;
use deepres_model::slurm::{Amount, JobGpus, exact_name};
use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

/// Variable with the shards of a task's job or step on this node.
const SHARDS_VARIABLE: &str = "SLURM_SHARDS_ON_NODE";
/// Variable with the number of GPUs of a task's job or step on this node. A step without GPUs lacks
/// the variable.
const GPUS_VARIABLE: &str = "SLURM_GPUS_ON_NODE";
/// Variables with the places of a task's GPUs in Slurm's list of the node's GPUs: of its step, and
/// of its job. The list has the order of the device files, whose numbers can have gaps.
const PLACES_VARIABLES: [&str; 2] = ["SLURM_STEP_GPUS", "SLURM_JOB_GPUS"];
/// Variable with the number of a task's step. The batch script of a job is no numbered step.
const STEP_VARIABLE: &str = "SLURM_STEP_ID";
/// Variable with the name by which Slurm knows this node.
const NODE_VARIABLE: &str = "SLURMD_NODENAME";
/// The prefix of the names of the tenants of Slurm jobs.
const TENANT_PREFIX: &str = "slurm-";
/// Variable in which this command keeps `LD_PRELOAD` of the task.
const TASK_PRELOAD_VARIABLE: &str = "DEEPRES_TASK_PRELOAD";
/// Slurm's command that shows jobs.
const SCONTROL: &str = "scontrol";

/// Prints the changes of the task's environment. If a job with shards cannot run under deepres, its
/// tasks do not start, because they would take the GPU time of other jobs. The tasks of a job with
/// whole GPUs start without deepres then.
#[expect(clippy::print_stdout, reason = "slurmd reads the output to its end")]
pub fn run() -> ExitCode {
    if let Some(error) = start_without_preload() {
        println!("{}", message("the task does not start", &error));
        return ExitCode::FAILURE;
    }
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let changes = Task::read(variable).and_then(|task| {
        match task.map(|task| task.with_part_of_job(allocation_of)).transpose()? {
            Some(task) => task.unless_whole(task.changes()),
            None => Ok(Vec::new()),
        }
    });
    match changes {
        Ok(changes) => {
            changes.iter().for_each(|change| println!("{change}"));
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("{}", message("the task does not start", &error));
            ExitCode::FAILURE
        }
    }
}

/// If the task preloads libraries, starts this command anew without them, and returns only after a
/// failure. Under the interposer of an outer job, NVML would show that job's part of a GPU as the
/// GPU.
fn start_without_preload() -> Option<Error> {
    let preload = std::env::var_os(PRELOAD_VARIABLE)?;
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return Some(error.into()),
    };
    let mut anew = Command::new(program);
    anew.args(std::env::args_os().skip(1)).env_remove(PRELOAD_VARIABLE).env(TASK_PRELOAD_VARIABLE, preload);
    Some(anew.exec().into())
}

/// Returns the line by which Slurm prints a message into the output of a task.
fn message(what: &str, error: &Error) -> String {
    format!("print deepres: {what}: {}", crate::explain(error).replace('\n', " "))
}

/// A task with GPUs, as its environment describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Task {
    /// The job.
    job: u32,
    /// The shards of all GPUs together; `None` for whole GPUs.
    shards: Option<u32>,
    /// The share of each GPU that the job has by Slurm's answer, parts per million; `None` without
    /// an answer.
    share_ppm: Option<u32>,
    /// Whether the task belongs to a numbered step, which can have only a part of the job's shards.
    is_step: bool,
    /// The places of the GPUs of a task with shards in Slurm's list; empty if they are not known.
    places: Vec<usize>,
    /// Whether the user submitted the job from within another job of Slurm with deepres.
    is_nested: bool,
    /// Whether the wishes in the environment belong to another tenant, from which the user
    /// submitted this job: another job of Slurm, or a `deepres run`.
    is_inherited: bool,
    /// The memory for which the job asks itself.
    memory: Option<String>,
}

impl Task {
    /// Reads the environment of a task; `None` if the task has no GPU.
    fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Self>> {
        if variable(GPUS_VARIABLE).is_none() && variable(SHARDS_VARIABLE).is_none() {
            return Ok(None);
        }
        let job = variable(JOB_VARIABLE).with_context(|| {
            format!("{JOB_VARIABLE} is not set; name this command by TaskProlog in slurm.conf")
        })?;
        let number = |name: &str, text: &str| {
            text.parse::<u32>().with_context(|| format!("{name}={text} is not a number"))
        };
        let job = number(JOB_VARIABLE, &job)?;
        let shards = variable(SHARDS_VARIABLE).map(|text| number(SHARDS_VARIABLE, &text)).transpose()?;
        // Slurm shows whole GPUs to their task by itself.
        let places =
            shards.and_then(|_| PLACES_VARIABLES.iter().find_map(|name| Some((*name, variable(name)?))));
        let place = |name: &str, text: &str| number(name, text).map(|place| place as usize);
        let places = places.map(|(name, text)| text.split(',').map(|text| place(name, text)).collect());
        let own = format!("{TENANT_PREFIX}{job}");
        let other = variable(TENANT_VARIABLE).filter(|name| *name != own);
        let is_nested = other.as_ref().is_some_and(|name| name.starts_with(TENANT_PREFIX));
        // `deepres run` sets this variable, and users do not.
        let is_of_run = other.is_some() && variable(FALLBACK_VARIABLE).is_some();
        let is_inherited = is_nested || is_of_run;
        let memory = variable(Key::Memory.variable()).filter(|_| !is_inherited);
        Ok(Some(Self {
            job,
            shards,
            share_ppm: None,
            is_step: variable(STEP_VARIABLE).is_some(),
            places: places.transpose()?.unwrap_or_default(),
            is_nested,
            is_inherited,
            memory,
        }))
    }

    /// Returns the task with the part of its whole job, if the environment can tell another part.
    /// `answer` is Slurm's answer about a job.
    ///
    /// The environment of a step tells the shards of the step, and all steps of a job are one
    /// tenant. Slurm also leaves the shards of the outer job in the environment of a nested job
    /// with whole GPUs.
    fn with_part_of_job(mut self, answer: impl FnOnce(u32) -> Result<Option<JobGpus>>) -> Result<Self> {
        if self.shards.is_none() || !(self.is_step || self.is_nested) {
            return Ok(self);
        }
        match answer(self.job) {
            Ok(part) => {
                let part = part.filter(|part| part.amount != Amount::Whole);
                self.share_ppm = part.as_ref().map(JobGpus::share_ppm);
                self.shards = self.shards.filter(|_| part.is_some());
            }
            // The shards of the step are a part of the job's.
            Err(_) if !self.is_nested => {}
            Err(error) => return Err(error),
        }
        Ok(self)
    }

    /// Returns the changes of the environment. For a task with whole GPUs, a message takes the
    /// place of an error, because the task takes nothing of other jobs.
    fn unless_whole(&self, changes: Result<Vec<String>>) -> Result<Vec<String>> {
        match changes {
            Err(error) if self.shards.is_none() => Ok(vec![message("the task runs without deepres", &error)]),
            changes => changes,
        }
    }

    /// Returns the changes of the task's environment, in Slurm's form.
    fn changes(&self) -> Result<Vec<String>> {
        let library = run::find_interposer()?;
        // A job can bring its own driver, for example in a container. So a driver that is not found
        // here is no error.
        let library = run::require_driver(&library).unwrap_or(library);
        let preload = run::preload_with(&library, std::env::var_os(TASK_PRELOAD_VARIABLE));
        // The environment can be that of a shell on another machine, and name the daemon there. A
        // task that starts before root's daemon connects to it later.
        let of_root = || Directory::system().tenant_socket();
        let socket = run::running_before_named()?.unwrap_or_else(of_root);
        let gpus = if self.shards.is_some() { self.gpus(&Gpu::all()?)? } else { Vec::new() };
        self.lines(&gpus, &preload, &std::path::absolute(socket)?)
    }

    /// Returns the task's GPUs of the machine's.
    fn gpus(&self, all: &[Gpu]) -> Result<Vec<Gpu>> {
        let files = Gpu::by_device_file(all);
        let gpu = |place: &usize| {
            let found = files.get(*place).map(|gpu| &all[*gpu]).filter(|gpu| !gpu.is_lost);
            found.cloned().with_context(|| {
                format!("Slurm gave GPU {place} of its list, and the driver lost this GPU or has no such GPU; reset the GPU, or make gres.conf by `deepres slurm gres-conf`")
            })
        };
        self.places.iter().map(gpu).collect()
    }

    /// Returns the changes of the environment. `gpus` are the GPUs of a task with shards.
    fn lines(&self, gpus: &[Gpu], preload: &OsStr, socket: &Path) -> Result<Vec<String>> {
        let text = |value: &OsStr| value.to_str().map(str::to_owned).context("a path is not UTF-8");
        let export = |name: &str, value: &str| format!("export {name}={value}");
        let mut lines = vec![
            export(PRELOAD_VARIABLE, &text(preload)?),
            export(SOCKET_VARIABLE, &text(socket.as_os_str())?),
            export(TENANT_VARIABLE, &format!("{TENANT_PREFIX}{}", self.job)),
            format!("unset {FALLBACK_VARIABLE}"),
        ];
        let Some(shards) = self.shards else {
            if self.is_inherited {
                lines.extend([Key::Share, Key::Memory].map(|key| format!("unset {}", key.variable())));
            }
            return Ok(lines);
        };
        if shards == 0 {
            bail!("{SHARDS_VARIABLE} is 0");
        }
        let places = (0..gpus.len().max(1)).collect();
        let of_task = || JobGpus { amount: Amount::Shards(shards), places }.share_ppm();
        let share_ppm = self.share_ppm.unwrap_or_else(of_task);
        lines.push(export(Key::Share.variable(), &Percent(share_ppm).to_string()));
        let part = |gpu: &Gpu| {
            let bytes = u128::from(gpu.memory_bytes) * u128::from(share_ppm) / u128::from(PPM);
            u64::try_from(bytes).unwrap_or(u64::MAX)
        };
        let memory = self.memory.clone().or_else(|| Some(gpus.iter().map(part).min()?.to_string()));
        lines.extend(memory.map(|memory| export(Key::Memory.variable(), &memory)));
        if !gpus.is_empty() {
            // Slurm numbers GPUs by their device files, and CUDA by their speed.
            let all: Vec<usize> = (0..gpus.len()).collect();
            lines.push(export(run::VISIBLE_VARIABLE, &run::visible(gpus, &all)));
        }
        Ok(lines)
    }
}

/// Asks Slurm for the part of the GPUs that a job has on this node; `None` if the job has no GPU.
fn allocation_of(job: u32) -> Result<Option<JobGpus>> {
    let mut shown = show(&job.to_string())?;
    if let Some(name) = exact_name(&shown, job) {
        shown = show(&name)?;
    }
    let nodes: Vec<String> = std::env::var(NODE_VARIABLE).into_iter().collect();
    Ok(JobGpus::read(&shown, job, &nodes)?)
}

/// Returns Slurm's record of the job of this name.
fn show(name: &str) -> Result<String> {
    let output = Command::new(SCONTROL).args(["show", "job", "--details", name]).output();
    let output = output.with_context(|| format!("{SCONTROL} cannot run"))?;
    if !output.status.success() {
        bail!("{SCONTROL} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The environment of a task with 30 shards, as Slurm 22.05.8 sets it.
    const SHARDS: &[(&str, &str)] = &[
        ("SLURM_JOB_ID", "7"),
        ("SLURM_JOB_GPUS", "1"),
        ("SLURM_GPUS_ON_NODE", "1"),
        ("SLURM_SHARDS_ON_NODE", "30"),
        ("CUDA_VISIBLE_DEVICES", "1"),
        ("SLURMD_NODENAME", "n1"),
    ];

    fn task(variables: &[(&str, &str)]) -> Result<Option<Task>> {
        // A later variable replaces an earlier one.
        Task::read(|name| {
            variables.iter().rev().find(|(own, _)| *own == name).map(|(_, value)| (*value).to_owned())
        })
    }

    fn gpu(place: u32, minor: u32, memory_bytes: u64) -> Gpu {
        let uuid = format!("GPU-{place}0000000-0000-0000-0000-000000000000");
        Gpu { minor: Some(minor), ..Gpu::new(&uuid, "H", memory_bytes).unwrap() }
    }

    fn lines(variables: &[(&str, &str)]) -> Vec<String> {
        let task = task(variables).unwrap().unwrap();
        // NVML's order is not that of the device files, and Slurm counts no gap in their numbers.
        let gpus = if task.shards.is_some() {
            task.gpus(&[gpu(1, 3, 1_000), gpu(2, 0, 2_000)]).unwrap()
        } else {
            Vec::new()
        };
        task.lines(&gpus, OsStr::new("/p.so"), Path::new("/s")).unwrap()
    }

    #[test]
    fn a_job_with_shards_gets_its_share_its_memory_and_its_gpu() {
        let common = ["export LD_PRELOAD=/p.so", "export DEEPRES_SOCKET=/s", "export DEEPRES_TENANT=slurm-7"];
        let expected = [
            "unset DEEPRES_FALLBACK",
            "export DEEPRES_SHARE=30%",
            "export DEEPRES_MEMORY=300",
            "export CUDA_VISIBLE_DEVICES=GPU-10000000-0000-0000-0000-000000000000",
        ];
        assert_eq!(lines(SHARDS), [&common[..], &expected[..]].concat());
        let own = lines(&[SHARDS, &[("DEEPRES_MEMORY", "1GiB"), ("DEEPRES_SHARE", "99%")]].concat());
        assert!(own.iter().any(|line| line == "export DEEPRES_MEMORY=1GiB"), "{own:?}");
        assert!(own.iter().any(|line| line == "export DEEPRES_SHARE=30%"), "{own:?}");
        let both = lines(&[SHARDS, &[("SLURM_STEP_GPUS", "0,1"), ("SLURM_SHARDS_ON_NODE", "150")]].concat());
        assert!(both.iter().any(|line| line == "export DEEPRES_SHARE=75%"), "{both:?}");
        assert!(both.iter().any(|line| line == "export DEEPRES_MEMORY=750"), "{both:?}");
    }

    #[test]
    fn a_job_with_whole_gpus_keeps_them_as_slurm_gave_them() {
        let whole = &SHARDS[..3];
        assert_eq!(
            lines(whole),
            [
                "export LD_PRELOAD=/p.so",
                "export DEEPRES_SOCKET=/s",
                "export DEEPRES_TENANT=slurm-7",
                "unset DEEPRES_FALLBACK"
            ]
        );
        // The user submitted the job from within job 6.
        let nested = lines(&[whole, &[("DEEPRES_TENANT", "slurm-6"), ("DEEPRES_MEMORY", "1GiB")]].concat());
        assert_eq!(nested[4..], ["unset DEEPRES_SHARE", "unset DEEPRES_MEMORY"]);
    }

    #[test]
    fn without_the_library_whole_gpus_are_used_without_deepres_and_shards_are_not_used() {
        let missing = || Err(anyhow::anyhow!("cannot find\nlibdeepres.so"));
        let whole = task(&SHARDS[..3]).unwrap().unwrap();
        let said = whole.unless_whole(missing()).unwrap();
        assert_eq!(said.len(), 1);
        assert!(said[0].starts_with("print deepres: the task runs without deepres: cannot find"), "{said:?}");
        assert!(!said[0].contains('\n'), "{said:?}");
        assert!(task(SHARDS).unwrap().unwrap().unless_whole(missing()).is_err());
        assert_eq!(whole.unless_whole(Ok(lines(&SHARDS[..3]))).unwrap(), lines(&SHARDS[..3]));
    }

    #[test]
    fn each_step_of_a_job_asks_for_the_part_of_the_whole_job() {
        let of_job = |amount: Amount| {
            move |job: u32| {
                assert_eq!(job, 7);
                Ok(Some(JobGpus { amount, places: vec![1] }))
            }
        };
        let share = |task: Task| {
            let lines = task.lines(&[gpu(1, 1, 1_000)], OsStr::new("/p.so"), Path::new("/s")).unwrap();
            lines.into_iter().find(|line| line.starts_with("export DEEPRES_SHARE="))
        };
        let step = || {
            let of_step = [("SLURM_STEP_ID", "1"), ("SLURM_SHARDS_ON_NODE", "10")];
            task(&[SHARDS, &of_step].concat()).unwrap().unwrap()
        };
        let asked = step().with_part_of_job(of_job(Amount::Shards(30))).unwrap();
        assert_eq!(share(asked).as_deref(), Some("export DEEPRES_SHARE=30%"));
        let unanswered = step().with_part_of_job(|_| bail!("no answer")).unwrap();
        assert_eq!(share(unanswered).as_deref(), Some("export DEEPRES_SHARE=10%"));
        assert_eq!(share(step().with_part_of_job(of_job(Amount::Whole)).unwrap()), None);
        let script = task(SHARDS).unwrap().unwrap();
        let unasked = script.with_part_of_job(|_| panic!("a script has all shards of its job")).unwrap();
        assert_eq!(share(unasked).as_deref(), Some("export DEEPRES_SHARE=30%"));
        let nested = task(&[SHARDS, &[("DEEPRES_TENANT", "slurm-6")]].concat()).unwrap().unwrap();
        assert!(nested.with_part_of_job(|_| bail!("no answer")).is_err());
    }

    #[test]
    fn a_task_without_gpus_keeps_its_environment() {
        assert_eq!(task(&[]).unwrap(), None);
        assert_eq!(task(&[("SLURM_JOB_ID", "7"), ("SLURM_JOB_GPUS", "0")]).unwrap(), None);
    }

    #[test]
    fn the_memory_of_the_outer_job_is_not_the_wish_of_a_nested_one() {
        let with = |tenant| {
            let nested = [("DEEPRES_TENANT", tenant), ("DEEPRES_MEMORY", "5")];
            task(&[SHARDS, &nested].concat()).unwrap().unwrap()
        };
        assert_eq!((with("slurm-7").memory.as_deref(), with("slurm-7").is_inherited), (Some("5"), false));
        assert_eq!((with("slurm-6").memory, with("slurm-6").is_inherited), (None, true));
        assert_eq!(with("mine").memory.as_deref(), Some("5"));
        // The user submitted the job in a shell under `deepres run`.
        let of_run = [("DEEPRES_TENANT", "bash"), ("DEEPRES_MEMORY", "5"), ("DEEPRES_FALLBACK", "memory=5")];
        let of_run = task(&[SHARDS, &of_run].concat()).unwrap().unwrap();
        assert_eq!((of_run.memory, of_run.is_inherited, of_run.is_nested), (None, true, false));
    }

    #[test]
    fn an_environment_that_makes_no_sense_is_refused_with_the_variable() {
        for (name, value) in [("SLURM_SHARDS_ON_NODE", "many"), ("SLURM_JOB_ID", ""), ("SLURM_JOB_GPUS", "x")]
        {
            let error = task(&[SHARDS, &[(name, value)]].concat()).unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
        let whole = [("SLURM_JOB_ID", "7"), ("SLURM_GPUS_ON_NODE", "1"), ("SLURM_STEP_GPUS", "MIG-1")];
        assert!(task(&whole).is_ok(), "only shards need the places of GPUs");
    }

    #[test]
    fn a_gpu_that_is_not_there_or_lost_is_not_shown_to_the_task() {
        let of = |place| Task { places: vec![place], ..task(SHARDS).unwrap().unwrap() };
        let all = [gpu(1, 0, 1), Gpu::lost(1), gpu(2, 2, 1)];
        assert_eq!(of(2).gpus(&all).unwrap(), [all[2].clone()], "a lost GPU moves no other");
        for place in [1, 3] {
            let error = of(place).gpus(&all).unwrap_err().to_string();
            assert!(error.starts_with(&format!("Slurm gave GPU {place} of its list")), "{error}");
        }
    }
}
