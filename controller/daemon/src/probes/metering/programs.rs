//! The eBPF programs of metering: loads the programs, attaches them to a file's functions, and
//! reads their maps. A drop of [`Programs`] detaches the programs.

use super::symbols::Point;
use crate::probes::devices::Devices;
use crate::probes::kernel::{self, Asked, KernelError, Ring, bytes_of, named, program_of, refused};
use aya::Ebpf;
use aya::maps::{Array, HashMap, MapData, PerCpuArray, PerCpuHashMap};
use aya::programs::UProbe;
use aya::programs::uprobe::{UProbeAttachLocation, UProbeAttachPoint, UProbeLink, UProbeScope};
use deepres_abi::probe::{Begun, LaunchKey, LaunchValue, MeteredValue, uncounted};
use deepres_model::process::ProcessKey;
use std::fs::File;
use std::num::NonZeroU32;
use std::os::fd::AsRawFd;
use zerocopy::FromBytes;

/// The most processes that the daemon can meter, including children that use no GPU.
pub const METERED_ENTRIES: u32 = 16_384;
/// Maps that only the other eBPF programs use, with their smallest sizes.
const UNUSED: [(&str, u32); 7] =
    [("SETS", 1), ("ROWS", 1), ("FREE_ROWS", 1), ("SLOTS", 1), ("INFLIGHT", 1), ("TRACED", 1), ("SEEN", 16)];

type LaunchKeyBytes = [u8; size_of::<LaunchKey>()];
type LaunchValueBytes = [u8; size_of::<LaunchValue>()];
type MeteredBytes = [u8; size_of::<MeteredValue>()];

/// The eBPF programs of metering, loaded into the kernel.
pub struct Programs {
    ebpf: Ebpf,
}

impl Programs {
    /// Loads the programs. From now on the programs follow the children of metered processes.
    ///
    /// # Errors
    /// [`KernelError`], which says what is missing.
    pub fn load() -> Result<Self, KernelError> {
        let room = kernel::room()?;
        let sizes = [("METERED", METERED_ENTRIES), ("LAUNCHES", room.launches as u32)];
        let sizes: Vec<_> = sizes.into_iter().chain(UNUSED).collect();
        let mut ebpf = kernel::load(&Devices::none(), Asked::None, room, &sizes)?;
        kernel::attach_raw(&mut ebpf, "meter_fork", "sched_process_fork")?;
        let program: &mut UProbe = program_of(&mut ebpf, "library_call")?;
        program.load().map_err(refused)?;
        Ok(Self { ebpf })
    }

    /// Returns the ring of processes that begin to use a library; `None` from the second call on.
    pub fn take_begun(&mut self) -> Option<Ring<Begun>> {
        Ring::new(self.ebpf.take_map("BEGUN")?)
    }

    /// Attaches a probe at a place of a file, for one process or for all processes, and returns the
    /// link of the probe. The probe stays until the drop of the link.
    ///
    /// # Errors
    /// [`KernelError`] if the kernel refuses.
    pub fn attach(&mut self, file: &File, point: Point, pid: Option<u32>) -> Result<UProbeLink, KernelError> {
        let scope = pid.and_then(NonZeroU32::new).map_or(UProbeScope::AllProcesses, UProbeScope::OneProcess);
        let place = UProbeAttachPoint {
            location: UProbeAttachLocation::AbsoluteOffset(point.offset),
            cookie: Some(point.cookie),
        };
        let program: &mut UProbe = program_of(&mut self.ebpf, "library_call")?;
        // This path leads to the open file itself, whatever the file's name and place.
        let link = program.attach(place, format!("/proc/self/fd/{}", file.as_raw_fd()), scope);
        program.take_link(link.map_err(refused)?).map_err(refused)
    }

    fn metered_map(&mut self) -> Result<HashMap<&mut MapData, u32, MeteredBytes>, KernelError> {
        named(self.ebpf.map_mut("METERED")).and_then(HashMap::try_from).map_err(refused)
    }

    /// Counts the calls of a process and of its future children from now on. The children take the
    /// part of the source with the number `source`.
    ///
    /// # Errors
    /// [`KernelError`] if the daemon meters too many processes.
    pub fn meter(&mut self, who: ProcessKey, job: u64, source: u32) -> Result<(), KernelError> {
        let value = MeteredValue { start_ticks: who.start_ticks, job, source, reserved: 0 };
        self.metered_map()?.insert(who.pid, bytes_of(&value), 0).map_err(refused)
    }

    /// Returns the metered processes, with the number of the job and of the source.
    pub fn metered(&mut self) -> Vec<(ProcessKey, u64, u32)> {
        let Ok(map) = self.metered_map() else { return Vec::new() };
        let entries = map.iter().filter_map(Result::ok);
        entries
            .filter_map(|(pid, value)| {
                let value = MeteredValue::read_from_bytes(&value).ok()?;
                Some((ProcessKey { pid, start_ticks: value.start_ticks }, value.job, value.source))
            })
            .collect()
    }

    /// Returns whether any process is metered.
    pub fn are_needed(&mut self) -> bool {
        self.metered_map().is_ok_and(|map| map.keys().next().is_some())
    }

    /// Returns the number of children that a source has taken so far.
    pub fn taken(&self, source: u32) -> u64 {
        let taken = named(self.ebpf.map("TAKEN")).and_then(Array::<_, u64>::try_from);
        taken.ok().and_then(|map| map.get(&source, 0).ok()).unwrap_or(0)
    }

    /// Sets the number of taken children at which a source gets no more.
    pub fn give(&mut self, source: u32, at: u64) {
        // The update fails only for a number beyond the map.
        let given = named(self.ebpf.map_mut("GIVEN")).and_then(Array::<_, u64>::try_from);
        let _ = given.map(|mut map| map.set(source, at, 0));
    }

    /// Stops metering a process.
    pub fn forget(&mut self, pid: u32) {
        // If the removal fails, the entry does not exist any more.
        let _ = self.metered_map().map(|mut map| map.remove(&pid));
    }

    /// Returns the counters of all processes, added up over CPUs. Counters only grow while a
    /// process lives.
    pub fn counts(&self) -> Vec<(LaunchKey, LaunchValue)> {
        let map = named(self.ebpf.map("LAUNCHES"))
            .and_then(PerCpuHashMap::<_, LaunchKeyBytes, LaunchValueBytes>::try_from);
        let Ok(map) = map else { return Vec::new() };
        let entries = map.iter().filter_map(Result::ok);
        entries
            .filter_map(|(key, values)| {
                let mut sum = LaunchValue::default();
                for value in values.iter().filter_map(|value| LaunchValue::read_from_bytes(value).ok()) {
                    sum.calls = sum.calls.saturating_add(value.calls);
                    // The amount comes from a program's argument and can be any number.
                    sum.bytes = sum.bytes.saturating_add(value.bytes);
                    sum.last_ns = sum.last_ns.max(value.last_ns);
                }
                Some((LaunchKey::read_from_bytes(&key).ok()?, sum))
            })
            .collect()
    }

    /// Frees a counter of a dead process.
    pub fn remove(&mut self, key: &LaunchKey) {
        let map = named(self.ebpf.map_mut("LAUNCHES"));
        let map = map.and_then(PerCpuHashMap::<_, LaunchKeyBytes, LaunchValueBytes>::try_from);
        let _ = map.map(|mut map| map.remove(&bytes_of(key)));
    }

    /// Returns the number of calls, and of processes, for which the maps had no room.
    pub fn uncounted(&self) -> (u64, u64) {
        let Ok(map) = named(self.ebpf.map("UNCOUNTED")).and_then(PerCpuArray::<_, u64>::try_from) else {
            return (0, 0);
        };
        let sum = |kind: u32| map.get(&kind, 0).map_or(0, |values| values.iter().sum());
        (sum(uncounted::CALLS), sum(uncounted::PROCESSES))
    }
}
