//! The configuration of the virtual GPUs: one TOML file. The engine refuses unknown keys.
//!
//! The default is `default.toml` beside this file, modelled on an H200. The example file documents
//! every key.

use crate::{
    Error, MAX_GPUS, Work, jitter,
    layout::{MAX_INTERFERENCE, MAX_PEERS},
    topology::Topology,
};
use serde::Deserialize;
use std::hash::{DefaultHasher, Hash, Hasher};

/// The default configuration, which is also the documentation of the keys.
pub const DEFAULT_TOML: &str = include_str!("default.toml");

/// The way in which contexts of different MPS servers, and contexts without a server, share a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// The contexts use the GPU one at a time, in turn.
    TimeSlice,
}

/// The number of processes that may have contexts on a GPU (`nvidia-smi -c`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ComputeMode {
    /// Any number of processes.
    Default,
    /// One process, or the clients of one MPS server.
    ExclusiveProcess,
    /// No process.
    Prohibited,
}

/// The engine or link that carries a copy. Copies of one kind on one GPU share the bandwidth of the
/// engine or link. Copies within a device run on the SMs, as kernels do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CopyKind {
    /// A copy from host memory to this GPU.
    HostToDevice,
    /// A copy from this GPU to host memory.
    DeviceToHost,
    /// A copy within this GPU's memory, or a memset.
    DeviceToDevice,
    /// A copy between this GPU and another GPU.
    PeerToPeer,
}

/// Properties of the virtual GPUs. The fields are the keys of the configuration file;
/// `default.toml` explains each key.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "default.toml is where the keys are documented, once")]
pub struct Config {
    pub gpus: usize,
    pub mig: bool,
    pub mode: Mode,
    pub compute_mode: ComputeMode,
    pub gpus_per_switch: usize,
    pub gpus_per_node: usize,
    pub topology: Topology,
    pub name: String,
    pub driver_version: i32,
    pub driver_release: String,
    pub compute_capability: [i32; 2],
    pub sm_count: u32,
    pub threads_per_sm: u32,
    pub blocks_per_sm: u32,
    pub shared_memory_per_sm_bytes: u32,
    pub shared_memory_per_block_bytes: u32,
    pub shared_memory_per_block_optin_bytes: u32,
    pub registers_per_sm: u32,
    pub l2_bytes: u32,
    pub clock_khz: u32,
    pub memory_clock_khz: u32,
    pub memory_bus_bits: u32,
    pub memory_bytes: u64,
    pub context_overhead_bytes: u64,
    pub managed_memory_migrates: bool,
    pub slice_ns: u64,
    pub newcomers_wait: bool,
    pub preempt_switch_ns: u64,
    pub idle_switch_ns: u64,
    pub launch_latency_ns: u64,
    pub launch_overhead_ns: u64,
    pub queue_depth: u32,
    pub event_step_ns: u64,
    pub record_cost_ns: u64,
    pub clock_drift_ppb: i64,
    pub host_to_device_bytes_per_us: u64,
    pub device_to_host_bytes_per_us: u64,
    pub device_to_device_bytes_per_us: u64,
    pub peer_to_peer_bytes_per_us: u64,
    pub copy_latency_ns: u64,
    pub wave_ns: u64,
    pub while_rounds: u32,
    pub kernel_jitter_ppm: u32,
    pub jitter_seed: u64,
    pub kernel: Vec<KernelRule>,
    pub interference: Vec<Interference>,
}

/// Place of a GPU on the PCI bus. Each GPU has a bus of its own, as device 0 and function 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PciAddress {
    /// PCI domain.
    pub domain: u32,
    /// PCI bus.
    pub bus: u32,
    /// PCI device.
    pub device: u32,
}

/// Cost of the kernels whose name matches. If several rules match a name, the first rule decides.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelRule {
    /// Pattern for the kernel's name in its module. `*` stands for any text, `?` for one character.
    pub name: String,
    /// Time of the whole kernel, for every grid.
    pub ns: Option<u64>,
    /// Time of each wave of blocks.
    pub ns_per_wave: Option<u64>,
    /// The part of the SMs that the kernel can use, in parts per million. If the key is missing,
    /// the part follows from the grid.
    pub sm_ppm: Option<u32>,
    /// Number of kernels that meet. The kernel spins until so many kernels of exactly its name have
    /// begun, itself included. Then the kernel runs for its time.
    pub meets: Option<u32>,
}

/// The factor by which the kernels of some MPS clients take longer while kernels of others run.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interference {
    /// Pattern for the short name of the process that runs slower, as in [`KernelRule::name`].
    pub client: String,
    /// Pattern for the short name of the other process.
    pub beside: String,
    /// The factor, from 1 to 100.
    pub factor: f64,
}

impl Interference {
    /// Returns the factor in parts per million.
    pub fn factor_ppm(&self) -> u64 {
        (self.factor * f64::from(ALL_SMS_PPM)).round() as u64
    }
}

/// Cost of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelCost {
    /// Time when the kernel gets all the SMs that it can use, without the launch overhead.
    pub duration_ns: u64,
    /// The part of all SMs that the kernel can use, in parts per million.
    pub sm_ppm: u32,
    /// A number common to all kernels that meet, and the number of these kernels. `None`: the
    /// kernel does not spin.
    pub meets: Option<(u64, u32)>,
}

impl KernelCost {
    /// Returns the kernel as work.
    #[inline]
    pub fn work(self) -> Work {
        let Self { duration_ns, sm_ppm, meets } = self;
        match meets {
            None => Work::Kernel { duration_ns, sm_ppm, kernels: 1 },
            Some((name, peers)) => Work::Collective { duration_ns, sm_ppm, name, peers },
        }
    }
}

/// All SMs, in parts per million.
pub const ALL_SMS_PPM: u32 = 1_000_000;

impl Default for Config {
    fn default() -> Self {
        Self::parse("").expect("default.toml is a valid configuration: a test holds it")
    }
}

impl Config {
    /// Granularity of physical memory: the step of cuMemCreate and of large allocations.
    pub const ALLOCATION_GRANULARITY_BYTES: u64 = 2 << 20;
    /// Small allocations share one piece of physical memory. The driver rounds the size of each up
    /// to this step.
    pub const SUBALLOCATION_GRANULARITY_BYTES: u64 = 512;
    /// The largest depth of a stream's queue.
    pub const MAX_QUEUE_DEPTH: u32 = 1024;

    /// Reads a configuration: the default, with the keys of `text` replacing the default's.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let mut table: toml::Table = DEFAULT_TOML.parse().expect("default.toml is TOML: a test holds it");
        table.extend(text.parse::<toml::Table>().map_err(|error| Error::Config(error.to_string()))?);
        let config: Self =
            table.try_into().map_err(|error: toml::de::Error| Error::Config(error.message().to_owned()))?;
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<(), Error> {
        let refuse = |what: String| Err(Error::Config(what));
        if !(1..=MAX_GPUS).contains(&self.gpus) {
            return refuse(format!("gpus = {}: must be 1 to {MAX_GPUS}", self.gpus));
        }
        if !(1..=Self::MAX_QUEUE_DEPTH).contains(&self.queue_depth) {
            return refuse(format!(
                "queue_depth = {}: must be 1 to {}",
                self.queue_depth,
                Self::MAX_QUEUE_DEPTH
            ));
        }
        for (key, value) in [
            ("gpus_per_switch", self.gpus_per_switch as u64),
            ("gpus_per_node", self.gpus_per_node as u64),
            ("sm_count", u64::from(self.sm_count)),
            ("threads_per_sm", self.threads_per_sm.into()),
            ("blocks_per_sm", self.blocks_per_sm.into()),
            ("shared_memory_per_sm_bytes", self.shared_memory_per_sm_bytes.into()),
            ("memory_bytes", self.memory_bytes),
            ("slice_ns", self.slice_ns),
            ("event_step_ns", self.event_step_ns),
            ("while_rounds", self.while_rounds.into()),
            ("host_to_device_bytes_per_us", self.host_to_device_bytes_per_us),
            ("device_to_host_bytes_per_us", self.device_to_host_bytes_per_us),
            ("device_to_device_bytes_per_us", self.device_to_device_bytes_per_us),
            ("peer_to_peer_bytes_per_us", self.peer_to_peer_bytes_per_us),
        ] {
            if value == 0 {
                return refuse(format!("{key} = 0: must be at least 1"));
            }
        }
        if self.kernel_jitter_ppm > jitter::WHOLE_PPM {
            return refuse(format!(
                "kernel_jitter_ppm = {}: must be at most {}",
                self.kernel_jitter_ppm,
                jitter::WHOLE_PPM
            ));
        }
        self.topology.check(self.gpus)?;
        if self.interference.len() > MAX_INTERFERENCE {
            return refuse(format!("interference: at most {MAX_INTERFERENCE} rules are possible"));
        }
        if let Some(rule) = self.interference.iter().find(|rule| !(1.0..=100.0).contains(&rule.factor)) {
            return refuse(format!("interference: factor = {}: must be 1 to 100", rule.factor));
        }
        for rule in &self.kernel {
            if rule.ns.is_some() == rule.ns_per_wave.is_some() {
                return refuse(format!("kernel {:?}: give either ns or ns_per_wave", rule.name));
            }
            if rule.sm_ppm.is_some_and(|ppm| !(1..=ALL_SMS_PPM).contains(&ppm)) {
                return refuse(format!("kernel {:?}: sm_ppm must be 1 to {ALL_SMS_PPM}", rule.name));
            }
            if rule.meets.is_some_and(|peers| !(2..=MAX_PEERS).contains(&peers)) {
                return refuse(format!("kernel {:?}: meets must be 2 to {MAX_PEERS}", rule.name));
            }
        }
        Ok(())
    }

    /// Returns the rules of interference whose `client` is a process of this short name, and those
    /// whose `beside` is, each as bits.
    pub fn interference_of(&self, name: &[u8]) -> (u64, u64) {
        let bits = |pattern: fn(&Interference) -> &str| {
            let rules = self.interference.iter().enumerate();
            let fitting = rules.filter(|(_, rule)| matches(pattern(rule).as_bytes(), name));
            fitting.fold(0, |bits, (at, _)| bits | 1 << at)
        };
        (bits(|rule| &rule.client), bits(|rule| &rule.beside))
    }

    /// Returns the time on the device's clock at time `host_ns` of the host's clock. Events report
    /// times of the device's clock.
    pub fn device_ns(&self, host_ns: u64) -> u64 {
        const PPB: i128 = 1_000_000_000;
        let host = i128::from(host_ns);
        let device = host + host * i128::from(self.clock_drift_ppb) / PPB;
        u64::try_from(device).unwrap_or(0) / self.event_step_ns * self.event_step_ns
    }

    /// Returns the place of a GPU on the PCI bus.
    pub fn pci_address(gpu: usize) -> PciAddress {
        /// The bus of the first GPU. The lower bus numbers belong to the machine's own devices.
        const FIRST_BUS: u32 = 0x40;
        PciAddress { domain: 0, bus: FIRST_BUS + gpu as u32, device: 0 }
    }

    /// Returns how many blocks run at once on the whole GPU.
    pub fn resident_blocks(&self, threads_per_block: u64, shared_bytes_per_block: u64) -> u64 {
        let by_threads = u64::from(self.threads_per_sm) / threads_per_block.max(1);
        let by_shared = u64::from(self.shared_memory_per_sm_bytes) / shared_bytes_per_block.max(1);
        let per_sm = by_threads.min(by_shared).min(self.blocks_per_sm.into()).max(1);
        per_sm * u64::from(self.sm_count)
    }

    /// Returns the cost of a kernel.
    pub fn kernel_cost(&self, name: &str, grid: [u32; 3], block: [u32; 3], shared_bytes: u32) -> KernelCost {
        let product =
            |dims: [u32; 3]| dims.into_iter().fold(1_u64, |all, n| all.saturating_mul(n.max(1).into()));
        let blocks = product(grid);
        let resident = self.resident_blocks(product(block), shared_bytes.into());
        let waves = blocks.div_ceil(resident);
        let rule = self.kernel.iter().find(|rule| matches(rule.name.as_bytes(), name.as_bytes()));
        let duration_ns = match rule {
            Some(KernelRule { ns: Some(ns), .. }) => *ns,
            Some(KernelRule { ns_per_wave: Some(ns), .. }) => waves.saturating_mul(*ns),
            _ => waves.saturating_mul(self.wave_ns),
        };
        let by_grid = || (u128::from(blocks) * u128::from(ALL_SMS_PPM) / u128::from(resident)) as u64;
        let sm_ppm = rule.and_then(|rule| rule.sm_ppm).unwrap_or_else(|| {
            let ppm = by_grid().clamp(1, ALL_SMS_PPM.into());
            u32::try_from(ppm).unwrap_or(ALL_SMS_PPM)
        });
        let meets = rule.and_then(|rule| rule.meets).map(|peers| {
            let mut hasher = DefaultHasher::new();
            name.hash(&mut hasher);
            (hasher.finish(), peers)
        });
        KernelCost { duration_ns, sm_ppm, meets }
    }

    /// Returns the time that a copy takes if no other copy of the same kind runs.
    pub fn copy_ns(&self, kind: CopyKind, bytes: u64) -> u64 {
        /// Bandwidths are per microsecond.
        const NS_PER_US: u128 = 1000;
        let bytes_per_us = match kind {
            CopyKind::HostToDevice => self.host_to_device_bytes_per_us,
            CopyKind::DeviceToHost => self.device_to_host_bytes_per_us,
            CopyKind::DeviceToDevice => self.device_to_device_bytes_per_us,
            CopyKind::PeerToPeer => self.peer_to_peer_bytes_per_us,
        };
        let moving_ns = (u128::from(bytes) * NS_PER_US).div_ceil(bytes_per_us.into());
        self.copy_latency_ns.saturating_add(u64::try_from(moving_ns).unwrap_or(u64::MAX))
    }
}

/// Returns whether `name` matches `pattern`. `*` stands for any run of bytes and `?` for one byte.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    // The place from which to retry if the pattern after the last star does not fit. The first
    // number is the star's place, and the second the end of the star's text in the name.
    let mut retry = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                retry = Some((p, n));
                p += 1;
            }
            Some(&byte) if byte == b'?' || byte == name[n] => {
                p += 1;
                n += 1;
            }
            _ => match retry {
                Some((star, from)) => {
                    retry = Some((star, from + 1));
                    p = star + 1;
                    n = from + 1;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|&byte| byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_complete_and_valid() {
        let config = Config::default();
        assert_eq!(config.gpus, 1);
        assert_eq!(config.name, "Simulated H200");
    }

    #[test]
    fn an_unknown_key_is_refused_by_name() {
        let error = Config::parse("slice_us = 3").expect_err("unknown key").to_string();
        assert!(error.contains("slice_us"), "{error}");
        let error = Config::parse("kernel = [{ name = 'a', ms = 3 }]").expect_err("unknown key").to_string();
        assert!(error.contains("`ms`"), "{error}");
    }

    #[test]
    fn impossible_values_are_refused() {
        for text in [
            "gpus = 0",
            "gpus = 17",
            "slice_ns = 0",
            "queue_depth = 1025",
            "kernel_jitter_ppm = 1000001",
            "mode = 'mps'",
            "compute_mode = 'exclusive'",
            "kernel = [{ name = 'a' }]",
            "kernel = [{ name = 'a', ns = 1, ns_per_wave = 1 }]",
            "kernel = [{ name = 'a', ns = 1, sm_ppm = 0 }]",
            "kernel = [{ name = 'a', ns = 1, meets = 1 }]",
            "interference = [{ client = 'a', beside = 'b', factor = 0.9 }]",
            "gpus = 'x'",
            "gpus",
        ] {
            Config::parse(text).expect_err(text);
        }
    }

    #[test]
    fn a_grid_costs_its_waves() {
        let config = Config::parse("sm_count = 10\nthreads_per_sm = 1024\nwave_ns = 7").expect("valid");
        // 256 threads: 4 blocks per SM, 40 at once.
        let cost = |grid, block, shared_bytes| {
            let cost = config.kernel_cost("k", grid, block, shared_bytes);
            (cost.duration_ns, cost.sm_ppm)
        };
        assert_eq!(cost([40, 1, 1], [256, 1, 1], 0), (7, ALL_SMS_PPM));
        assert_eq!(cost([41, 1, 1], [16, 16, 1], 0), (14, ALL_SMS_PPM));
        assert_eq!(cost([2, 5, 1], [256, 1, 1], 0), (7, 250_000));
        // All of an SM's shared memory: one block per SM.
        assert_eq!(cost([20, 1, 1], [32, 1, 1], 200_000), (14, ALL_SMS_PPM));
    }

    #[test]
    fn the_first_rule_whose_pattern_fits_decides() {
        let config = Config::parse(
            "kernel = [{ name = 'gemm_*', ns = 5, sm_ppm = 9 }, { name = '*', ns_per_wave = 3 }, { name = 'gone', ns = 1 }]",
        )
        .expect("valid");
        let gemm = config.kernel_cost("gemm_64", [1000, 1000, 1], [1024, 1, 1], 0);
        assert_eq!((gemm.duration_ns, gemm.sm_ppm, gemm.meets), (5, 9, None));
        assert_eq!(config.kernel_cost("gone", [1, 1, 1], [1, 1, 1], 0).duration_ns, 3);
    }

    #[test]
    fn kernels_of_one_name_meet_each_other_alone() {
        let config = Config::parse("kernel = [{ name = 'ring_*', ns = 5, meets = 2 }]").expect("valid");
        let meets = |name| config.kernel_cost(name, [1, 1, 1], [1, 1, 1], 0).meets;
        let (one, other) = (meets("ring_a").expect("it meets"), meets("ring_b").expect("it meets"));
        assert_eq!(one.1, 2);
        assert_ne!(one.0, other.0);
        assert_eq!(Some(one), meets("ring_a"));
        assert_eq!(meets("sum"), None);
    }

    #[test]
    fn patterns_match_as_a_shell_does() {
        for (pattern, name, fits) in [
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "acb", false),
            ("*", "", true),
            ("?", "", false),
            ("r_?_*", "r_8_x", true),
            ("abc", "abcd", false),
            ("*abc", "ababc", true),
        ] {
            assert_eq!(matches(pattern.as_bytes(), name.as_bytes()), fits, "{pattern} {name}");
        }
    }

    #[test]
    fn the_devices_clock_has_its_own_pace_and_steps() {
        let config = Config::parse("event_step_ns = 1000\nclock_drift_ppb = -50000").expect("valid");
        assert_eq!(config.device_ns(1_000_000_999), 999_950_000);
        assert_eq!(Config::default().device_ns(1_999), 1_500);
        assert!(Config::parse("event_step_ns = 0").is_err());
    }

    #[test]
    fn copies_take_latency_and_bytes() {
        let config =
            Config::parse("copy_latency_ns = 10\nhost_to_device_bytes_per_us = 1000").expect("valid");
        assert_eq!(config.copy_ns(CopyKind::HostToDevice, 0), 10);
        assert_eq!(config.copy_ns(CopyKind::HostToDevice, 4096), 4106);
        assert_eq!(config.copy_ns(CopyKind::HostToDevice, u64::MAX), u64::MAX);
    }
}
