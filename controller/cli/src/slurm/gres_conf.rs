//! `deepres slurm gres-conf`: the lines of gres.conf for the GPUs of this machine.

use crate::out;
use anyhow::{Result, bail};
use deepres_daemon::Gpu;
use deepres_model::slurm::SHARDS_OF_GPU;
use deepres_policy::placement::Topology;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::path::Path;

/// The folder in which the kernel describes NUMA nodes and processors.
const SYSTEM: &str = "/sys/devices/system";
/// The word for a GPU itself in a list of links.
const ITSELF: &str = "-1";

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Each GPU gets its device file, the cores near it, its NVLinks, and 100 shards: a shard is one percent of the \
GPU. The output ends with the keys that the node's line in slurm.conf needs (docs/slurm.md). MIG devices \
are left out, because they have no shards.

Examples:
  deepres slurm gres-conf > /etc/slurm/gres.conf
  deepres slurm gres-conf --node-name 'gpu[01-16]' >> /etc/slurm/gres.conf")]
pub struct Args {
    /// Node to which the lines apply, as in slurm.conf [default: each node with this gres.conf]
    #[arg(long, value_name = "NAME")]
    node_name: Option<String>,
    /// Folder of the GPUs' device files
    #[arg(long, value_name = "FOLDER", default_value = "/dev", hide = true)]
    devices: String,
}

/// Prints the lines.
pub fn run(args: &Args) -> Result<()> {
    let gpus = Gpu::all()?;
    let topology = Gpu::topology(&gpus)?;
    let cores = Cores::read(Path::new(SYSTEM));
    let lines = lines(args, &gpus, &topology, &cores)?;
    out::print(|out| out.write_all(lines.as_bytes()))
}

/// Returns the lines. The GPUs come in the order of their device files, because the daemon and the
/// list of links rely on this order. MIG devices have no line: several share the device file of
/// their GPU, and Slurm gives a job a device file as a whole.
fn lines(args: &Args, gpus: &[Gpu], topology: &Topology, cores: &Cores) -> Result<String> {
    let mut files: Vec<(u32, usize)> = Vec::new();
    let (parts, whole): (Vec<_>, Vec<_>) = gpus.iter().enumerate().partition(|(_, gpu)| gpu.is_mig);
    if whole.is_empty() {
        bail!(
            "all GPUs of this machine are in MIG mode, and MIG devices have no shards; let Slurm find them (AutoDetect=nvml in gres.conf), and start jobs there by `deepres run`"
        );
    }
    for (place, gpu) in whole {
        let Some(minor) = gpu.minor else {
            bail!("NVML does not tell the device file of {} ({})", gpu.uuid_text, gpu.name);
        };
        files.push((minor, place));
    }
    files.sort_unstable();
    let node = args.node_name.as_ref().map_or_else(String::new, |name| format!("NodeName={name} "));
    let file = |minor: u32| format!("{}/nvidia{minor}", args.devices);
    let has_links = topology.links().next().is_some();
    let mut text = "# Made by `deepres slurm gres-conf`. A shard is one percent of a GPU.\n".to_owned();
    if !parts.is_empty() {
        text += &format!("# {} MIG devices are left out: they have no shards.\n", parts.len());
    }
    for (minor, place) in &files {
        let near = topology.gpus()[*place].numa_node.and_then(|node| cores.near(node));
        let near = near.map_or_else(String::new, |cores| format!(" Cores={cores}"));
        let links = files.iter().map(|(_, other)| match other {
            other if other == place => ITSELF.to_owned(),
            other => topology.pair(*place, *other).links.to_string(),
        });
        let links =
            if has_links { format!(" Links={}", links.collect::<Vec<_>>().join(",")) } else { String::new() };
        text += &format!("{node}Name=gpu File={}{near}{links}\n", file(*minor));
    }
    for (minor, _) in &files {
        text += &format!("{node}Name=shard Count={SHARDS_OF_GPU} File={}\n", file(*minor));
    }
    let shards = SHARDS_OF_GPU as usize * files.len();
    text += &format!(
        "# slurm.conf needs GresTypes=gpu,shard, and in the node's line Gres=gpu:{},shard:{shards}\n",
        files.len()
    );
    Ok(text)
}

/// The cores near each NUMA node, by Slurm's numbers. Slurm numbers all cores of a machine, socket
/// after socket, and does not count the threads of a core.
#[derive(Debug, Default, PartialEq, Eq)]
struct Cores(BTreeMap<u32, BTreeSet<usize>>);

impl Cores {
    /// Reads the kernel's files below `system`. A file that is missing makes the result empty.
    fn read(system: &Path) -> Self {
        Self::read_all(system).unwrap_or_default()
    }

    fn read_all(system: &Path) -> Option<Self> {
        let number = |path: &Path| std::fs::read_to_string(path).ok()?.trim().parse::<u32>().ok();
        let mut nodes = BTreeMap::new();
        for entry in std::fs::read_dir(system.join("node")).ok()? {
            let path = entry.ok()?.path();
            let name = path.file_name()?.to_str()?;
            let Some(node) = name.strip_prefix("node").and_then(|node| node.parse::<u32>().ok()) else {
                continue;
            };
            nodes.insert(node, cpus(&std::fs::read_to_string(path.join("cpulist")).ok()?)?);
        }
        // The core of each processor: its socket, and its number in the socket.
        let mut of_cpu = BTreeMap::new();
        for cpu in nodes.values().flatten() {
            let topology = system.join(format!("cpu/cpu{cpu}/topology"));
            let core = (number(&topology.join("physical_package_id"))?, number(&topology.join("core_id"))?);
            of_cpu.insert(*cpu, core);
        }
        let all: BTreeSet<(u32, u32)> = of_cpu.values().copied().collect();
        let numbers: BTreeMap<(u32, u32), usize> = all.into_iter().zip(0..).collect();
        let cores = |cpus: &Vec<u32>| cpus.iter().map(|cpu| numbers[&of_cpu[cpu]]).collect();
        Some(Self(nodes.iter().map(|(node, cpus)| (*node, cores(cpus))).collect()))
    }

    /// Returns the cores of a NUMA node as a list of ranges; `None` if the node has none, or if all
    /// cores are near.
    fn near(&self, node: u32) -> Option<String> {
        let cores = self.0.get(&node)?;
        let others = self.0.iter().any(|(other, cores)| *other != node && !cores.is_empty());
        if cores.is_empty() || !others {
            return None;
        }
        let mut ranges: Vec<(usize, usize)> = Vec::new();
        for core in cores {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == *core => *last = *core,
                _ => ranges.push((*core, *core)),
            }
        }
        let text = |(first, last): &(usize, usize)| {
            if first == last { first.to_string() } else { format!("{first}-{last}") }
        };
        Some(ranges.iter().map(text).collect::<Vec<_>>().join(","))
    }
}

/// Reads a list of processors such as `0-3,8`.
fn cpus(list: &str) -> Option<Vec<u32>> {
    let mut all = Vec::new();
    for part in list.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        all.extend(first.parse::<u32>().ok()?..=last.parse::<u32>().ok()?);
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topo::tests::machine;

    fn args(node_name: Option<&str>) -> Args {
        Args { node_name: node_name.map(str::to_owned), devices: "/dev".to_owned() }
    }

    fn gpu(place: u32, minor: Option<u32>) -> Gpu {
        let uuid = format!("GPU-{place}0000000-0000-0000-0000-000000000000");
        Gpu { minor, ..Gpu::new(&uuid, "H", 1).unwrap() }
    }

    /// Makes the files of a machine with two sockets of two cores with two threads each. Each
    /// socket is a NUMA node. Returns the folder.
    fn system() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: String, text: &str| {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("node/node0/cpulist".to_owned(), "0-1,4-5\n");
        write("node/node1/cpulist".to_owned(), "2-3,6-7\n");
        write("node/possible".to_owned(), "0-1\n");
        for cpu in 0..8 {
            let topology = format!("cpu/cpu{cpu}/topology");
            // Numbers of cores can have gaps.
            write(format!("{topology}/core_id"), &format!("{}\n", cpu % 2 * 4));
            write(format!("{topology}/physical_package_id"), &format!("{}\n", cpu / 2 % 2));
        }
        folder
    }

    #[test]
    fn each_gpu_has_its_file_its_cores_its_links_and_its_shards() {
        let cores = Cores::read(system().path());
        let gpus = [gpu(0, Some(0)), gpu(1, Some(1)), gpu(2, Some(2)), gpu(3, Some(3))];
        let expected = "\
# Made by `deepres slurm gres-conf`. A shard is one percent of a GPU.
NodeName=n1 Name=gpu File=/dev/nvidia0 Cores=0-1 Links=-1,0,4,0
NodeName=n1 Name=gpu File=/dev/nvidia1 Cores=0-1 Links=0,-1,0,0
NodeName=n1 Name=gpu File=/dev/nvidia2 Cores=2-3 Links=4,0,-1,0
NodeName=n1 Name=gpu File=/dev/nvidia3 Cores=2-3 Links=0,0,0,-1
NodeName=n1 Name=shard Count=100 File=/dev/nvidia0
NodeName=n1 Name=shard Count=100 File=/dev/nvidia1
NodeName=n1 Name=shard Count=100 File=/dev/nvidia2
NodeName=n1 Name=shard Count=100 File=/dev/nvidia3
# slurm.conf needs GresTypes=gpu,shard, and in the node's line Gres=gpu:4,shard:400
";
        assert_eq!(lines(&args(Some("n1")), &gpus, &machine(), &cores).unwrap(), expected);
    }

    #[test]
    fn the_lines_follow_the_device_files() {
        let gpus = [gpu(0, Some(3)), gpu(1, Some(2)), gpu(2, Some(1)), gpu(3, Some(0))];
        let text = lines(&args(None), &gpus, &machine(), &Cores::default()).unwrap();
        let of_gpus: Vec<&str> = text.lines().filter(|line| line.starts_with("Name=gpu")).collect();
        assert_eq!(of_gpus[1], "Name=gpu File=/dev/nvidia1 Links=0,-1,0,4");
        assert_eq!(of_gpus[3], "Name=gpu File=/dev/nvidia3 Links=0,4,0,-1");
        let unknown = [gpu(0, None)];
        assert!(lines(&args(None), &unknown, &machine(), &Cores::default()).is_err());
    }

    #[test]
    fn mig_devices_have_no_lines() {
        let part = Gpu::new("MIG-10000000-0000-0000-0000-000000000000", "H", 1).unwrap();
        let gpus = [gpu(0, Some(0)), part.clone()];
        let text = lines(&args(None), &gpus, &Topology::unknown(2), &Cores::default()).unwrap();
        assert!(
            text.contains("\n# 1 MIG devices are left out") && text.contains("Gres=gpu:1,shard:100"),
            "{text}"
        );
        assert!(lines(&args(None), &[part], &Topology::unknown(1), &Cores::default()).is_err());
    }

    #[test]
    fn gpus_without_links_on_one_node_need_neither_links_nor_cores() {
        let topology = Topology::unknown(2);
        let text = lines(&args(None), &[gpu(0, Some(0)), gpu(1, Some(1))], &topology, &Cores::default());
        assert!(text.unwrap().contains("\nName=gpu File=/dev/nvidia0\n"));
        let one = Cores([(0, BTreeSet::from([0, 1]))].into());
        assert_eq!(one.near(0), None, "all cores are near");
        let gaps = Cores([(0, BTreeSet::from([0, 1, 3])), (1, BTreeSet::from([2]))].into());
        assert_eq!((gaps.near(0).as_deref(), gaps.near(1).as_deref()), (Some("0-1,3"), Some("2")));
    }
}
