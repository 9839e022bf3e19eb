//! The part of a node's GPUs that Slurm gave to a job, read from `scontrol show job -d`.
//!
//! Slurm counts whole GPUs (`gpu`) and shards (`shard`). deepres takes a shard as one percent of a
//! GPU, so `gres.conf` gives each GPU [`SHARDS_OF_GPU`] shards. Slurm places the shards of a job on
//! one GPU of a node, or on several GPUs if the cluster's administrator allows this.
//!
//! A user chooses some texts of a record, such as the job's name, and Slurm prints their line
//! breaks as they are. So a user could add lines to the record, but cannot remove Slurm's own
//! lines. A text with several records, or with a second line that Slurm prints once, is refused
//! ([`SlurmError::Doubtful`]). To ask about one job of an array, the caller asks by the name that
//! [`exact_name`] returns.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::RangeInclusive;

/// Shards of one GPU.
pub const SHARDS_OF_GPU: u32 = 100;
/// Most digits of a job's number.
const MAX_JOB_DIGITS: usize = 10;
/// The prefix of the name of a cgroup that has a job's number.
const JOB_PREFIX: &str = "job_";
/// The first letter of a SLUID, and the number of the digits behind it.
const SLUID_PREFIX: char = 's';
const SLUID_DIGITS: usize = 13;
/// The letters that no digit of a SLUID is, because they look like others.
const NO_SLUID_DIGITS: &str = "ILOU";
/// The prefix of the first line of a job's record.
const RECORD: &str = "JobId=";
/// The prefix of the word with a job's name.
const NAME: &str = "JobName=";
/// The prefix of the line before the lines about the nodes of a job.
const BEFORE_NODES: &str = "JOB_GRES=";
/// The prefix of a line about some of the nodes of a job.
const NODES: &str = "Nodes=";
/// The prefix of the word with the resources of a job on these nodes.
const RESOURCES: &str = "GRES=";
/// The prefix of the line with the resources of a node.
const OF_NODE: &str = "Gres=";
/// The prefix of the list of a resource's GPUs.
const PLACES: &str = "IDX:";
/// The resource that is a whole GPU.
const WHOLE: &str = "gpu";
/// The resource that is a part of a GPU.
const SHARD: &str = "shard";
/// The most GPUs of a node. A larger place in a list is an error.
const MOST_GPUS: usize = 1024;

/// The name of a job in the paths of Slurm's cgroups. `scontrol` shows the job under this name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum JobName {
    /// The job's number.
    Number(u32),
    /// The SLUID of a run of the job. From release 26.05, Slurm names the cgroups of version 2
    /// after it. After a requeue, the job keeps its number and has another SLUID.
    Sluid(String),
}

impl JobName {
    /// Reads the name of a job's cgroup, `job_7` or `sEKNKTV3WPV500`; `None` if the cgroup is no
    /// job's.
    pub fn of_cgroup(name: &str) -> Option<Self> {
        if let Some(digits) = name.strip_prefix(JOB_PREFIX) {
            let is_number =
                digits.len() <= MAX_JOB_DIGITS && digits.bytes().all(|byte| byte.is_ascii_digit());
            return digits.parse().ok().filter(|_| is_number).map(Self::Number);
        }
        let is_digit =
            |c: char| (c.is_ascii_digit() || c.is_ascii_uppercase()) && !NO_SLUID_DIGITS.contains(c);
        let digits = name.strip_prefix(SLUID_PREFIX)?;
        let is_sluid = digits.len() == SLUID_DIGITS && digits.chars().all(is_digit);
        is_sluid.then(|| Self::Sluid(name.to_owned()))
    }

    /// Returns the number of the job of this name. `answer` is what `scontrol show job -d` prints
    /// under the name. Its first line is Slurm's own, whatever lines the user chose.
    pub fn number_in(&self, answer: &str) -> Option<u32> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Sluid(_) => job_of(answer.lines().next()?.trim()),
        }
    }
}

impl fmt::Display for JobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Sluid(sluid) => f.write_str(sluid),
        }
    }
}

/// The part of each GPU that a job has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Amount {
    /// The job has all of each GPU.
    Whole,
    /// The job has this number of shards, of all GPUs together. If Slurm tells that some of the
    /// GPUs have more shards than others, the rest above the least does not count.
    Shards(u32),
}

/// The GPUs of a node that a job has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobGpus {
    /// The part of these GPUs.
    pub amount: Amount,
    /// The places of the GPUs in Slurm's list of the node's GPUs, ascending. Never empty.
    pub places: Vec<usize>,
}

/// The reason for which a text does not tell the GPUs of a job.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SlurmError {
    /// The text is not exactly one record, of this job, with exactly one list of nodes.
    #[error(
        "scontrol shows job {0} in an unknown form, or its user has put lines of Slurm's form into its name"
    )]
    Doubtful(u32),
    /// The job does not run on a node.
    #[error(
        "Slurm's record of job {job} does not name this node ({nodes}); run slurmd under the node's host name"
    )]
    NoNode {
        /// The job.
        job: u32,
        /// The names by which the node can be known.
        nodes: String,
    },
    /// The text has resources in an unknown form.
    #[error("scontrol shows the resources of job {job} in an unknown form: {text}")]
    Unknown {
        /// The job.
        job: u32,
        /// The resources.
        text: String,
    },
}

impl JobGpus {
    /// Reads the output of `scontrol show job -d JOB`. `nodes` are the names by which this node can
    /// be known. The names matter only for a job on several nodes. Returns `None` if the job has no
    /// GPU on this node.
    ///
    /// # Errors
    /// [`SlurmError`] if the text does not tell.
    pub fn read(text: &str, job: u32, nodes: &[String]) -> Result<Option<Self>, SlurmError> {
        let lines = nodes_of(text, job).ok_or(SlurmError::Doubtful(job))?;
        let is_here = |names: &str| nodes.iter().any(|node| matches_any(names, node));
        let here = match lines.as_slice() {
            [(_, resources)] => Some(resources),
            several => several.iter().find(|(names, _)| is_here(names)).map(|(_, resources)| resources),
        };
        let resources = here.ok_or_else(|| SlurmError::NoNode { job, nodes: nodes.join(", ") })?;
        Self::of_resources(resources)
            .map_err(|Unreadable| SlurmError::Unknown { job, text: (*resources).to_owned() })
    }

    /// Returns the share of each GPU that the job has, parts per million.
    pub fn share_ppm(&self) -> u32 {
        match self.amount {
            Amount::Whole => deepres_abi::PPM,
            Amount::Shards(shards) => {
                let ppm_of_shard = u64::from(deepres_abi::PPM / SHARDS_OF_GPU);
                let all_ppm = u64::from(shards) * ppm_of_shard;
                let each_ppm = all_ppm / self.places.len().max(1) as u64;
                let least = deepres_abi::quantity::MIN_SHARE_PPM;
                u32::try_from(each_ppm).unwrap_or(deepres_abi::PPM).clamp(least, deepres_abi::PPM)
            }
        }
    }

    /// Reads a list of resources such as `gpu:h100:2(IDX:0-1),nic:1(IDX:0)`. Up to release 23.02,
    /// Slurm lists shards as `shard:30(IDX:1)`, and later as `shard:30(0/100,30/100)`: the shards
    /// of the job and of each GPU of the node.
    fn of_resources(text: &str) -> Result<Option<Self>, Unreadable> {
        let mut found: Option<Self> = None;
        for resource in split_outside(text, ['(', ')']) {
            let Some((name, count, detail)) = counted(resource)? else { continue };
            let (mut places, count) = match detail.map(|detail| detail.strip_prefix(PLACES).ok_or(detail)) {
                None => continue,
                Some(Ok(places)) => (numbers(places)?, count),
                Some(Err(of_each)) => shards_of_each(of_each)?,
            };
            if count == 0 || places.is_empty() {
                continue;
            }
            let amount = if name == WHOLE { Amount::Whole } else { Amount::Shards(count) };
            found = Some(match found {
                // GPUs of several types are several resources.
                Some(before) if before.amount == Amount::Whole && amount == Amount::Whole => {
                    places.extend(before.places);
                    places.sort_unstable();
                    Self { amount, places }
                }
                Some(_) => return Err(Unreadable),
                None => Self { amount, places },
            });
        }
        Ok(found)
    }
}

/// A text in an unknown form.
struct Unreadable;

/// A resource: its name, its count and its detail.
type CountedResource<'a> = (&'a str, u32, Option<&'a str>);

/// Reads a resource such as `gpu:h100:2(IDX:0-1)`. Returns its name, its count and its detail;
/// `None` if the resource is neither GPUs nor shards.
fn counted(resource: &str) -> Result<Option<CountedResource<'_>>, Unreadable> {
    let (counted, detail) = match resource.split_once('(') {
        Some((counted, detail)) => (counted, Some(detail.strip_suffix(')').ok_or(Unreadable)?)),
        None => (resource, None),
    };
    let name = counted.split(':').next().unwrap_or_default();
    if !matches!(name, WHOLE | SHARD) {
        return Ok(None);
    }
    let count = counted.rsplit(':').next().and_then(|count| count.parse().ok()).ok_or(Unreadable)?;
    Ok(Some((name, count, detail)))
}

/// Returns the number of GPUs in Slurm's list of a node's GPUs; `None` if the text does not tell
/// it. `text` is the output of `scontrol show node NODE`. Only administrators choose its texts.
pub fn gpus_of_node(text: &str) -> Option<usize> {
    let resources = text.lines().find_map(|line| line.trim().strip_prefix(OF_NODE))?;
    let mut gpus = 0;
    for resource in split_outside(resources, ['(', ')']) {
        if let Some((WHOLE, count, _)) = counted(resource).ok()? {
            gpus += count as usize;
        }
    }
    Some(gpus)
}

/// Returns the name under which Slurm shows only this job, if the output of `scontrol show job -d
/// JOB` has several records. Slurm shows a whole array or heterogeneous job under the number of one
/// of its jobs.
pub fn exact_name(text: &str, job: u32) -> Option<String> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let own = lines[only(&lines, |line| job_of(line) == Some(job))?];
    let has_others = lines.iter().any(|line| line.starts_with(RECORD) && job_of(line) != Some(job));
    // Slurm prints these words before the job's name, which the user chooses.
    let words = || own.split(' ').take_while(|word| !word.starts_with(NAME));
    let number = |key: &str| words().find_map(|word| word.strip_prefix(key)?.parse::<u32>().ok());
    let (whole, part, separator) = match (number("ArrayJobId="), number("HetJobId=")) {
        (Some(array), _) => (array, number("ArrayTaskId=")?, '_'),
        (None, het) => (het?, number("HetJobOffset=")?, '+'),
    };
    has_others.then(|| format!("{whole}{separator}{part}"))
}

/// Returns the number of the job whose record begins with this line.
fn job_of(line: &str) -> Option<u32> {
    line.strip_prefix(RECORD)?.split(' ').next()?.parse().ok()
}

/// Returns the nodes and the resources of each line about nodes. Returns `None` if the text is not
/// exactly one record, of this job, with exactly one list of nodes.
fn nodes_of(text: &str, job: u32) -> Option<Vec<(&str, &str)>> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    only(&lines, |line| line.starts_with(RECORD)).filter(|place| job_of(lines[*place]) == Some(job))?;
    let list = only(&lines, |line| line.starts_with(BEFORE_NODES))?;
    let of_nodes = lines[list + 1..].iter().map_while(|line| {
        let nodes = line.strip_prefix(NODES)?.split(' ').next()?;
        let resources = line.split(' ').find_map(|word| word.strip_prefix(RESOURCES))?;
        Some((nodes, resources))
    });
    Some(of_nodes.collect()).filter(|of_nodes: &Vec<_>| !of_nodes.is_empty())
}

/// Returns the place of the only line that is `wanted`; `None` if there is none, or if there are
/// several.
fn only(lines: &[&str], wanted: impl Fn(&str) -> bool) -> Option<usize> {
    let mut found = lines.iter().enumerate().filter(|(_, line)| wanted(line)).map(|(place, _)| place);
    found.next().filter(|_| found.next().is_none())
}

/// Splits a list at the commas that stand outside of brackets.
fn split_outside(text: &str, [open, close]: [char; 2]) -> impl Iterator<Item = &str> {
    let mut depth = 0_u32;
    text.split(move |c: char| {
        if c == open {
            depth += 1;
        } else if c == close {
            depth = depth.saturating_sub(1);
        }
        c == ',' && depth == 0
    })
    .filter(|part| !part.is_empty())
}

/// Reads the shards of a job on each GPU of a node, such as `0/100,30/100`. Returns the places of
/// the job's GPUs, and the shards by which each has as many as the GPU with the fewest.
fn shards_of_each(text: &str) -> Result<(Vec<usize>, u32), Unreadable> {
    let mut found = Vec::new();
    for (place, part) in text.split(',').enumerate() {
        let (own, _) = part.split_once('/').ok_or(Unreadable)?;
        match own.parse::<u32>().map_err(|_| Unreadable)? {
            _ if place >= MOST_GPUS => return Err(Unreadable),
            0 => {}
            own => found.push((place, own)),
        }
    }
    let least = found.iter().map(|(_, own)| *own).min().unwrap_or_default();
    Ok((found.iter().map(|(place, _)| *place).collect(), least.saturating_mul(found.len() as u32)))
}

/// Reads a list of numbers such as `0-2,5`, ascending.
fn numbers(text: &str) -> Result<Vec<usize>, Unreadable> {
    let mut all = Vec::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (range, _) = range(part).ok_or(Unreadable)?;
        if *range.end() >= MOST_GPUS {
            return Err(Unreadable);
        }
        all.extend(range);
    }
    all.sort_unstable();
    all.dedup();
    Ok(all)
}

/// Reads a number or a range of numbers. Returns also the number of digits of the first number.
fn range(text: &str) -> Option<(RangeInclusive<usize>, usize)> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (digits(first) && digits(last)).then_some(())?;
    Some((first.parse().ok()?..=last.parse().ok()?, first.len()))
}

/// Returns whether a list of node names in Slurm's form, such as `login,rack[1-2]n[01-16]`, has a
/// name.
fn matches_any(names: &str, name: &str) -> bool {
    split_outside(names, ['[', ']']).any(|pattern| matches(pattern, name))
}

fn matches(pattern: &str, name: &str) -> bool {
    let Some((before, rest)) = pattern.split_once('[') else { return pattern == name };
    let Some((ranges, after)) = rest.split_once(']') else { return false };
    let Some(name) = name.strip_prefix(before) else { return false };
    let digits = name.bytes().take_while(u8::is_ascii_digit).count();
    // The pattern `a[1-2]3` can need fewer digits than the name has in a row.
    (1..=digits).any(|end| {
        let (number, rest) = name.split_at(end);
        let has = |part: &str| {
            range(part).is_some_and(|(range, width)| {
                number
                    .parse()
                    .is_ok_and(|value| range.contains(&value) && number == format!("{value:0width$}"))
            })
        };
        ranges.split(',').any(has) && matches(after, rest)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines that Slurm 22.05.8 printed for a job with 30 shards.
    const ONE_NODE: &str = "\
JobId=1 JobName=job.sh
   UserId=root(0) GroupId=root(0) MCS_label=N/A
   JobState=RUNNING Reason=None Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0
   NodeList=n1
   BatchHost=n1
   NumNodes=1 NumCPUs=1 NumTasks=1 CPUs/Task=1 ReqB:S:C:T=0:0:*:*
   TRES=cpu=1,node=1,billing=1
   JOB_GRES=shard:30
     Nodes=n1 CPU_IDs=0 Mem=0 GRES=shard:30(IDX:0)
   MinCPUsNode=1 MinMemoryNode=0 MinTmpDiskNode=0
   TresPerNode=gres:shard:30
";

    /// Lines that Slurm 22.05.8 printed for the array of the jobs 9 and 7.
    const ARRAY: &str = "\
JobId=7 ArrayJobId=7 ArrayTaskId=1 JobName=job.sh
   JOB_GRES=shard:20
     Nodes=n2 CPU_IDs=4 Mem=0 GRES=shard:20(IDX:1)
   TresPerNode=gres:shard:20

JobId=9 ArrayJobId=7 ArrayTaskId=0 JobName=job.sh
   JOB_GRES=shard:25
     Nodes=n2 CPU_IDs=3 Mem=0 GRES=shard:25(IDX:0)
";

    fn read(text: &str, job: u32, nodes: &[&str]) -> Result<Option<JobGpus>, SlurmError> {
        let nodes: Vec<String> = nodes.iter().map(|node| (*node).to_owned()).collect();
        JobGpus::read(text, job, &nodes)
    }

    fn of_job_3(resources: &str) -> String {
        format!(
            "JobId=3 JobName=a\n   JOB_GRES=x\n     Nodes=n1 CPU_IDs=0 Mem=0 GRES={resources}\n   Power=\n"
        )
    }

    fn of(resources: &str) -> Option<JobGpus> {
        read(&of_job_3(resources), 3, &[]).unwrap()
    }

    fn shards(shards: u32, places: &[usize]) -> Option<JobGpus> {
        Some(JobGpus { amount: Amount::Shards(shards), places: places.to_vec() })
    }

    fn whole(places: &[usize]) -> Option<JobGpus> {
        Some(JobGpus { amount: Amount::Whole, places: places.to_vec() })
    }

    #[test]
    fn the_shards_and_the_gpu_of_a_job_are_read() {
        assert_eq!(read(ONE_NODE, 1, &["other"]), Ok(shards(30, &[0])));
        assert_eq!(read(ONE_NODE, 2, &[]), Err(SlurmError::Doubtful(2)));
        assert_eq!(read("", 1, &[]), Err(SlurmError::Doubtful(1)));
        let pending = "JobId=1 JobName=a\n   JOB_GRES=(null)\n   Power=\n";
        assert_eq!(read(pending, 1, &[]), Err(SlurmError::Doubtful(1)));
    }

    #[test]
    fn a_job_of_an_array_has_a_name_under_which_slurm_shows_it_alone() {
        assert_eq!(read(ARRAY, 9, &[]), Err(SlurmError::Doubtful(9)));
        assert_eq!(exact_name(ARRAY, 9).as_deref(), Some("7_0"));
        assert_eq!(exact_name(ARRAY, 7).as_deref(), Some("7_1"));
        let alone = ARRAY.split("\n\n").nth(1).unwrap();
        assert_eq!((exact_name(alone, 9), read(alone, 9, &[])), (None, Ok(shards(25, &[0]))));
        assert_eq!(exact_name(ONE_NODE, 1), None);
        let het =
            "JobId=4 HetJobId=4 HetJobOffset=0 JobName=a\nJobId=5 HetJobId=4 HetJobOffset=1 JobName=b\n";
        assert_eq!(exact_name(het, 5).as_deref(), Some("4+1"));
        let named = "JobId=4 JobName=a ArrayJobId=3 ArrayTaskId=1\nJobId=5 JobName=b\n";
        assert_eq!(exact_name(named, 4), None, "the user chose these words");
        let twice = format!("{ARRAY}JobId=9 ArrayJobId=3 ArrayTaskId=1 JobName=x\n");
        assert_eq!(exact_name(&twice, 9), None);
    }

    #[test]
    fn a_job_has_the_name_of_its_cgroup() {
        let sluid = "sEKNKTV3WPV500";
        let run = JobName::Sluid(sluid.to_owned());
        assert_eq!(JobName::of_cgroup("job_7"), Some(JobName::Number(7)));
        assert_eq!(JobName::of_cgroup(sluid), Some(run.clone()));
        for no in ["", "job_", "job_x", "job_99999999999", "system", "sEKNKTV3WPV50", "sEKNKTV3WPV5000"] {
            assert_eq!(JobName::of_cgroup(no), None, "{no}");
        }
        for no in ["seknktv3wpv500", "sEKNKTV3WPV50O", "xEKNKTV3WPV500"] {
            assert_eq!(JobName::of_cgroup(no), None, "{no}");
        }
        for name in [JobName::Number(7), run.clone()] {
            let text = serde_json::to_string(&name).unwrap();
            assert_eq!(serde_json::from_str::<JobName>(&text).unwrap(), name, "{text}");
        }
        assert_eq!(serde_json::to_string(&JobName::Number(7)).unwrap(), "7");
        assert_eq!((run.to_string().as_str(), run.number_in(ONE_NODE)), (sluid, Some(1)));
        // Under the SLUID of a heterogeneous job's first part, Slurm shows all parts, the first
        // part first.
        let het =
            "JobId=4 HetJobId=4 HetJobOffset=0 JobName=a\nJobId=5 HetJobId=4 HetJobOffset=1 JobName=b\n";
        assert_eq!(run.number_in(het), Some(4));
        assert_eq!(run.number_in("No jobs in the system\nJobId=4 JobName=a\n"), None);
    }

    #[test]
    fn each_form_of_resources_is_read() {
        assert_eq!(of(""), None);
        assert_eq!(of("nic:1(IDX:0),license(CNT:3)"), None);
        assert_eq!(of("gpu:1(IDX:2)"), whole(&[2]));
        assert_eq!(of("gpu:h100:3(IDX:0-1,4),nic:1(IDX:0)"), whole(&[0, 1, 4]));
        assert_eq!(of("gpu:h100:1(IDX:3),gpu:a100:1(IDX:0)"), whole(&[0, 3]));
        assert_eq!(of("gpu:0(IDX:),shard:h100:30(IDX:1)"), shards(30, &[1]));
        assert_eq!(of("shard:150(IDX:0-1)"), shards(150, &[0, 1]));
        // Slurm 23.11 and later (`_build_shared_gres_details`).
        assert_eq!(of("shard:30(0/100,30/100)"), shards(30, &[1]));
        assert_eq!(of("nic:1(IDX:0),shard:h100:60(0/0,30/100,30/100)"), shards(60, &[1, 2]));
        assert_eq!(of("shard:0(0/100,0/100)"), None);
        for unknown in ["shard:30((null))", "shard:30(30)", "shard:30(-1/100)", "shard:30(x/100"] {
            let read = read(&of_job_3(unknown), 3, &[]);
            assert!(matches!(read, Err(SlurmError::Unknown { .. })), "{unknown}");
        }
        for unknown in ["shard:x(IDX:0)", "gpu:1(IDX:a)", "gpu:1(IDX:0", "gpu:1(IDX:0),shard:3(IDX:1)"] {
            let read = read(&of_job_3(unknown), 3, &[]);
            assert!(matches!(read, Err(SlurmError::Unknown { .. })), "{unknown}");
        }
    }

    #[test]
    fn a_node_tells_how_many_gpus_slurm_lists() {
        let of = |resources: &str| {
            let text = format!(
                "NodeName=n1 Arch=x86_64 CoresPerSocket=1 \n   AvailableFeatures=(null)\n   Gres={resources}\n   Comment=Gres=gpu:9\n"
            );
            gpus_of_node(&text)
        };
        assert_eq!(of("gpu:4,shard:400"), Some(4));
        assert_eq!(of("nic:1,gpu:h100:2(S:0-1),gpu:a100:1(S:0,1),shard:h100:300(S:0-1)"), Some(3));
        assert_eq!(of("(null)"), Some(0));
        assert_eq!(of("gpu:many"), None);
        assert_eq!(gpus_of_node("Node n1 not found\n"), None);
    }

    #[test]
    fn lines_that_a_user_puts_into_the_record_give_nothing() {
        let greedy = "     Nodes=n1 CPU_IDs=0 Mem=0 GRES=shard:100(IDX:0)";
        let named = |name: &str| ONE_NODE.replacen("job.sh", name, 1);
        let commented = |comment: &str| format!("{ONE_NODE}   Comment={comment}\n");
        // Slurm 22.05.8 printed such a name and such a comment as they are.
        assert_eq!(read(&named(&format!("x\n{greedy}")), 1, &[]), Ok(shards(30, &[0])));
        assert_eq!(read(&commented(&format!("x\n{greedy}")), 1, &[]), Ok(shards(30, &[0])));
        for forged in [
            named(&format!("x\n   JOB_GRES=shard:100\n{greedy}")),
            named(&format!("x\n   JOB_GRES=shard:100\n{greedy}\nJobId=5 JobName=x")),
            named("x\nJobId=5 JobName=x"),
            commented("x\nJobId=5 foo"),
            commented(&format!("x\nJobId=1 JobName=x\n   JOB_GRES=shard:100\n{greedy}")),
        ] {
            let read = read(&forged, 1, &[]);
            assert!(read == Err(SlurmError::Doubtful(1)), "{forged}: {read:?}");
        }
    }

    #[test]
    fn a_shard_is_a_percent_and_is_split_over_the_gpus_of_the_job() {
        let share_ppm = |resources: &str| of(resources).map(|allocation| allocation.share_ppm());
        assert_eq!(share_ppm("shard:30(IDX:0)"), Some(300_000));
        assert_eq!(share_ppm("shard:150(IDX:0-1)"), Some(750_000));
        assert_eq!(share_ppm("shard:150(100/100,0/100,50/100)"), Some(500_000), "no GPU is overbooked");
        assert_eq!(share_ppm("shard:1(IDX:0-1)"), Some(10_000), "the least share");
        assert_eq!(share_ppm("shard:4294967295(IDX:0)"), Some(1_000_000));
        assert_eq!(share_ppm("gpu:2(IDX:0-1)"), Some(1_000_000));
    }

    #[test]
    fn of_several_nodes_the_own_counts() {
        let text = "JobId=4 JobName=a\n\
                    \x20  JOB_GRES=shard:40\n\
                    \x20    Nodes=n[1-2],login CPU_IDs=0 Mem=0 GRES=shard:10(IDX:0)\n\
                    \x20    Nodes=n07 CPU_IDs=0 Mem=0 GRES=shard:20(IDX:1)\n";
        for (node, expected) in [("n1", 10), ("n2", 10), ("login", 10), ("n07", 20)] {
            let found = read(text, 4, &["localhost", node]).unwrap().unwrap();
            assert_eq!(found.amount, Amount::Shards(expected), "{node}");
        }
        for node in ["n3", "n01", "n7", "n", "n10"] {
            assert!(matches!(read(text, 4, &[node]), Err(SlurmError::NoNode { .. })), "{node}");
        }
        for (names, name, is_there) in [
            ("rack[1-2]n[01-16,20]", "rack2n16", true),
            ("rack[1-2]n[01-16,20]", "rack2n20", true),
            ("rack[1-2]n[01-16,20]", "rack2n17", false),
            ("rack[1-2]n[01-16,20]", "rack3n01", false),
            ("a[1-12]3", "a123", true),
            ("a[1-", "a1", false),
            ("a[1-2]-ib", "a1-ib", true),
            ("a[1-2]-ib", "a1", false),
        ] {
            assert_eq!(matches_any(names, name), is_there, "{names} {name}");
        }
    }
}
