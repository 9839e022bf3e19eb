//! Loads and attaches the eBPF programs, and reads their maps. When a `Kernel` is dropped, its
//! programs are detached.

pub use super::attach_point::AttachPoint;
use super::attach_point::{Choice, Facts, choices};
use super::btf::{self, BtfError};
use super::devices::Devices;
use super::room::Room;
use super::rows::{self, Rows};
use aya::maps::{Array, HashMap, MapData, PerCpuArray, RingBuf};
use aya::programs::{KProbe, Program, RawTracePoint, TracePoint};
use aya::{Ebpf, EbpfLoader, include_bytes_aligned};
use deepres_abi::probe::{
    CommandKey, CommandValue, Event, Inflight, LAYOUT, News, Slot, StatKey, StatValue, Totals, slot,
    tracing as asked,
};
use deepres_model::process::ProcessKey;
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use zerocopy::{FromBytes, IntoBytes};

/// The programs from `cargo xtask ebpf`; empty if this binary was built without them.
static PROGRAMS: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/programs.o"));

/// Mount points of the tracing file system.
const TRACING_PLACES: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
/// A device that exists whenever the driver is loaded.
const CONTROL_NODE: &str = "/dev/nvidiactl";
/// An ioctl number in the driver's encoding. The driver has no command of this number.
const NO_COMMAND: libc::c_ulong = 0xc000_46ff;
/// Size of the smallest ring, bytes: a page.
const LEAST_RING_BYTES: u32 = 4096;
/// Name of the initial pid namespace.
const HOST_PID_NAMESPACE: &str = "pid:[4026531836]";

/// The processes whose ioctls become events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// The ioctls of no process become events.
    None,
    /// The ioctls of the followed processes ([`Kernel::follow`]) and of their children become
    /// events. The number is the ring's size, bytes.
    Some(u32),
    /// The ioctls of all processes become events. The number is the ring's size, bytes.
    All(u32),
}

/// The reason for which the kernel has no programs of the daemon.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// This binary does not contain the eBPF programs.
    #[error("deepres was built without its eBPF programs; run `cargo xtask ebpf` and build deepres again")]
    NotBuilt,
    /// This binary contains programs with other layouts of records.
    #[error(
        "deepres was built with eBPF programs of another build; run `cargo xtask ebpf` and build deepres again"
    )]
    Stale,
    /// This user may not load eBPF programs.
    #[error(
        "the kernel does not let this user load programs ({0}); run deepres as root, or with CAP_BPF and CAP_PERFMON"
    )]
    Forbidden(String),
    /// The daemon cannot read the types of the running kernel (BTF).
    #[error(transparent)]
    Btf(#[from] BtfError),
    /// In this pid namespace, the kernel's process ids would mean other processes.
    #[error(
        "the kernel reports process ids of the host's pid namespace, and deepres runs in another; run deepres in the host's"
    )]
    Namespace,
    /// The kernel refused the programs for another reason. The text is the kernel's message.
    #[error("the kernel refused the programs: {0}")]
    Refused(String),
}

impl KernelError {
    /// Returns whether another try cannot succeed while this process lives.
    pub fn is_lasting(&self) -> bool {
        matches!(self, Self::NotBuilt | Self::Stale | Self::Namespace)
    }
}

/// The eBPF programs, attached, and the maps that they share with the daemon.
pub struct Kernel {
    ebpf: Ebpf,
    rows: Rows,
    choice: Choice,
    room: Room,
    /// The value of [`Self::skipped`] when the programs were detached.
    skipped: u64,
}

impl Kernel {
    /// Loads the programs, and attaches the programs that count ioctls on `devices`. Returns the
    /// attached programs. If `point` is `None`, the function takes the best attach point that
    /// the kernel offers.
    ///
    /// # Errors
    /// [`KernelError`], which says what is missing.
    pub fn attach(devices: &Devices, asked: Asked, point: Option<AttachPoint>) -> Result<Self, KernelError> {
        Self::attach_within(room()?, devices, asked, point)
    }

    /// Attaches the programs as [`Self::attach`] does, with `room` for counters.
    ///
    /// # Errors
    /// The same errors as [`Self::attach`].
    pub fn attach_within(
        room: Room,
        devices: &Devices,
        asked: Asked,
        point: Option<AttachPoint>,
    ) -> Result<Self, KernelError> {
        let facts = Facts::read(devices);
        let points = match point {
            Some(point) => vec![Choice { point, why: "the caller asked for this attach point".to_owned() }],
            None => choices(&facts),
        };
        let mut obstacles = Vec::new();
        let mut refusal = KernelError::Refused("no attach point was left to try".to_owned());
        for Choice { point, why } in points {
            // If a try fails, the drop of `ebpf` detaches the programs that the try attached.
            let mut ebpf = load(devices, asked, room, &[])?;
            let attached = match point {
                AttachPoint::DriverFunctions => attach_driver(&mut ebpf, &facts),
                AttachPoint::Tracepoints => with_tracing(|| attach_tracepoints(&mut ebpf)),
                AttachPoint::RawTracepoints => attach_raw(&mut ebpf, "raw_exit", "sys_exit")
                    .and_then(|()| attach_raw(&mut ebpf, "raw_enter", "sys_enter")),
            };
            let why = obstacles.iter().fold(why, |why, obstacle| format!("{why}; {obstacle}"));
            let rows = Rows::take(&mut ebpf, room)?;
            let kernel = Self { ebpf, rows, choice: Choice { point, why }, room, skipped: 0 };
            match attached.and_then(|()| kernel.prove()) {
                Ok(()) => return Ok(kernel),
                Err(error) => {
                    obstacles.push(format!("{} failed: {error}", point.name()));
                    refusal = error;
                }
            }
        }
        Err(refusal)
    }

    /// Proves that ioctls pass the driver's functions: makes a call that the driver refuses, and
    /// checks that the programs counted it. The kernel guarantees the tracepoints, so they need no
    /// proof.
    fn prove(&self) -> Result<(), KernelError> {
        if self.choice.point != AttachPoint::DriverFunctions {
            return Ok(());
        }
        let unproved = |what: &str| Err(KernelError::Refused(format!("{what} {CONTROL_NODE}")));
        let Ok(node) = std::fs::File::options().read(true).write(true).open(CONTROL_NODE) else {
            return unproved("the daemon cannot try them without");
        };
        // SAFETY: the driver has no command of this number, and the argument has no bytes.
        unsafe { libc::ioctl(node.as_raw_fd(), NO_COMMAND, 0) };
        let own = std::process::id();
        if self.stats().iter().any(|(key, value)| key.pid == own && value.errors > 0) {
            Ok(())
        } else {
            unproved("the programs did not see an ioctl on")
        }
    }

    /// Attaches programs that do nothing at the places of the counting programs, to measure the
    /// cost of attached programs.
    ///
    /// # Errors
    /// The same errors as [`Self::attach`].
    pub fn attach_empty(point: AttachPoint) -> Result<Self, KernelError> {
        let room = room()?;
        let mut ebpf = load(&Devices::none(), Asked::None, room, &[])?;
        match point {
            AttachPoint::DriverFunctions => {}
            AttachPoint::Tracepoints => with_tracing(|| {
                let program: &mut TracePoint = program_of(&mut ebpf, "empty_tracepoint")?;
                program.load().map_err(refused)?;
                for tracepoint in ["sys_enter_ioctl", "sys_exit_ioctl"] {
                    program.attach("syscalls", tracepoint).map_err(refused)?;
                }
                Ok(())
            })?,
            AttachPoint::RawTracepoints => {
                let program: &mut RawTracePoint = program_of(&mut ebpf, "empty_raw")?;
                program.load().map_err(refused)?;
                for tracepoint in ["sys_enter", "sys_exit"] {
                    program.attach(tracepoint).map_err(refused)?;
                }
            }
        }
        let rows = Rows::take(&mut ebpf, room)?;
        let choice = Choice { point, why: "to measure".to_owned() };
        Ok(Self { ebpf, rows, choice, room, skipped: 0 })
    }

    /// Detaches the programs, and keeps their counters and events. The programs add nothing after
    /// the return.
    pub fn detach(&mut self) {
        self.skipped = self.skipped();
        for (_, program) in self.ebpf.programs_mut() {
            // For a program that was never loaded, this call returns an error.
            let _ = match program {
                Program::TracePoint(program) => program.unload(),
                Program::RawTracePoint(program) => program.unload(),
                Program::KProbe(program) => program.unload(),
                _ => Ok(()),
            };
        }
    }

    /// Returns the number of times that the kernel ran no program at the beginning of an ioctl. The
    /// number includes all devices and processes.
    ///
    /// The kernel skips a program while another program runs on the same CPU, or while the daemon
    /// changes a map on this CPU. A preemptible kernel can interrupt a program, and a change of a
    /// map.
    pub fn skipped(&self) -> u64 {
        /// Key in the fdinfo of a program's descriptor, since Linux 5.12.
        const SKIPPED: &str = "recursion_misses:";
        let begins = ["ioctl_enter", "driver_enter", "raw_enter"];
        let descriptors = begins.iter().filter_map(|name| {
            let descriptor = self.ebpf.program(name)?.fd().ok()?;
            Some(descriptor.as_fd().as_raw_fd())
        });
        let skipped = descriptors.filter_map(|descriptor| {
            let told = std::fs::read_to_string(format!("/proc/self/fdinfo/{descriptor}")).ok()?;
            told.lines().find_map(|line| line.strip_prefix(SKIPPED)?.trim().parse::<u64>().ok())
        });
        self.skipped + skipped.sum::<u64>()
    }

    /// Returns the number of counters for which there is room. A counter is for one process, device
    /// and command.
    pub fn room(&self) -> usize {
        self.room.rows
    }

    /// Returns where the programs are attached.
    pub fn attach_point(&self) -> AttachPoint {
        self.choice.point
    }

    /// Returns the reason for this attach point, as a text.
    pub fn why(&self) -> &str {
        &self.choice.why
    }
}

impl Kernel {
    /// Returns the counters of all processes, added up over CPUs. Counters only grow while a
    /// process lives.
    pub fn stats(&self) -> Vec<(StatKey, StatValue)> {
        self.rows.all()
    }

    /// Frees a row of counters and returns its values. The process is dead, or the row must make
    /// room. If a call ends at this moment, its count appears in [`Self::take_late`] later.
    pub fn remove(&mut self, key: &StatKey) -> Option<StatValue> {
        self.rows.remove(key)
    }

    /// Returns the late counts of the rows that [`Self::remove`] freed since the last call. Only
    /// this function makes the rows available to other keys.
    pub fn take_late(&mut self) -> Vec<(StatKey, StatValue)> {
        self.rows.take_late()
    }

    /// Returns the counters of the whole host.
    pub fn totals(&self) -> Totals {
        let map =
            named(self.ebpf.map("TOTALS")).and_then(PerCpuArray::<_, [u8; size_of::<Totals>()]>::try_from);
        let values = map.and_then(|map| map.get(&0, 0));
        let mut sum = Totals::default();
        for value in values.iter().flat_map(|values| values.iter()) {
            let Ok(value) = Totals::read_from_bytes(value) else { continue };
            sum.calls += value.calls;
            sum.unattributed += value.unattributed;
            sum.untimed += value.untimed;
            sum.news_lost += value.news_lost;
            sum.events += value.events;
            sum.events_lost += value.events_lost;
        }
        sum
    }

    /// Returns the ring of first calls; `None` from the second call on.
    pub fn take_news(&mut self) -> Option<Ring<News>> {
        Ring::new(self.ebpf.take_map("NEWS")?)
    }

    /// Returns the ring of events; `None` from the second call on.
    pub fn take_events(&mut self) -> Option<Ring<Event>> {
        Ring::new(self.ebpf.take_map("EVENTS")?)
    }

    /// Follows a process: from now on, its ioctls become events. The ioctls of its later children
    /// also become events.
    ///
    /// # Errors
    /// [`KernelError`] if the daemon follows too many processes.
    pub fn follow(&mut self, who: ProcessKey) -> Result<(), KernelError> {
        let mut map: HashMap<_, u32, u64> =
            named(self.ebpf.map_mut("TRACED")).and_then(HashMap::try_from).map_err(refused)?;
        map.insert(who.pid, who.start_ticks, 0).map_err(refused)
    }

    /// Returns whether the daemon follows a process.
    pub fn follows(&self, who: ProcessKey) -> bool {
        let map = named(self.ebpf.map("TRACED")).and_then(HashMap::<_, u32, u64>::try_from);
        map.and_then(|map| map.get(&who.pid, 0)).is_ok_and(|start_ticks| start_ticks == who.start_ticks)
    }

    /// Returns the threads that have begun a watched ioctl and not ended it. The kernel may have
    /// missed the end of a call.
    pub fn inside(&self) -> Vec<(u32, Inflight)> {
        let slots = named(self.ebpf.map("SLOTS")).and_then(Array::<_, [u8; size_of::<Slot>()]>::try_from);
        let slots = slots.iter().flat_map(Array::iter).filter_map(Result::ok);
        let slots = slots.filter_map(|slot| Slot::read_from_bytes(&slot).ok());
        let in_slots = slots.filter(|slot| slot.owner != 0).map(|slot| (slot.owner as u32, slot.ioctl));
        let others = named(self.ebpf.map("INFLIGHT"))
            .and_then(HashMap::<_, u32, [u8; size_of::<Inflight>()]>::try_from);
        let others = others.iter().flat_map(HashMap::iter).filter_map(Result::ok);
        let others = others.filter_map(|(tid, call)| Some((tid, Inflight::read_from_bytes(&call).ok()?)));
        in_slots.chain(others).collect()
    }

    /// Returns whether the kernel still has the thread's entry for this call.
    pub fn keeps(&self, tid: u32, call: &Inflight) -> bool {
        let slots = named(self.ebpf.map("SLOTS")).and_then(Array::<_, [u8; size_of::<Slot>()]>::try_from);
        let its = slots.and_then(|slots| slots.get(&slot(tid), 0)).ok();
        let its = its.and_then(|its| Slot::read_from_bytes(&its).ok());
        let in_slot = its.filter(|its| its.owner == u64::from(tid)).map(|its| its.ioctl);
        in_slot.or_else(|| self.kept_apart(tid)).is_some_and(|kept| kept.began_ns == call.began_ns)
    }

    fn kept_apart(&self, tid: u32) -> Option<Inflight> {
        let others = named(self.ebpf.map("INFLIGHT"))
            .and_then(HashMap::<_, u32, [u8; size_of::<Inflight>()]>::try_from);
        Inflight::read_from_bytes(&others.ok()?.get(&tid, 0).ok()?).ok()
    }

    /// Removes the entry of a dead thread from `INFLIGHT`. Returns whether there was an entry.
    /// Entries in the array `SLOTS` stay, because they take no room from others.
    pub fn forget_call(&mut self, tid: u32) -> bool {
        let others = named(self.ebpf.map_mut("INFLIGHT"))
            .and_then(HashMap::<_, u32, [u8; size_of::<Inflight>()]>::try_from);
        others.is_ok_and(|mut others| others.remove(&tid).is_ok())
    }

    /// Removes the processes that have died from the followed processes.
    pub fn forget_followed(&mut self) {
        let Ok(mut map) = named(self.ebpf.map_mut("TRACED")).and_then(HashMap::<_, u32, u64>::try_from)
        else {
            return;
        };
        let followed = map.iter().filter_map(Result::ok);
        let followed = followed.map(|(pid, start_ticks)| ProcessKey { pid, start_ticks });
        let gone: Vec<ProcessKey> = followed.filter(|who| !who.is_alive()).collect();
        for who in gone {
            // Another process can have the id by now, and the daemon can follow this process too.
            if map.get(&who.pid, 0).is_ok_and(|start_ticks| start_ticks == who.start_ticks) {
                // If the removal fails, the entry does not exist any more.
                let _ = map.remove(&who.pid);
            }
        }
    }
}

/// Returns the bytes of a record. The library aya, which loads the programs, takes records as
/// bytes.
pub(super) fn bytes_of<T: IntoBytes + zerocopy::Immutable, const N: usize>(record: &T) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(record.as_bytes());
    bytes
}

/// A ring through which the eBPF programs pass records of one type to the daemon.
pub struct Ring<T> {
    ring: RingBuf<MapData>,
    record: std::marker::PhantomData<T>,
}

impl<T: FromBytes> Ring<T> {
    pub(super) fn new(map: aya::maps::Map) -> Option<Self> {
        Some(Self { ring: RingBuf::try_from(map).ok()?, record: std::marker::PhantomData })
    }

    /// Returns the next record, if there is one.
    pub fn pop(&mut self) -> Option<T> {
        loop {
            let item = self.ring.next()?;
            // A shorter item does not come from the eBPF programs.
            if let Ok((record, _)) = T::read_from_prefix(&item) {
                return Some(record);
            }
        }
    }
}

impl<T> std::os::fd::AsFd for Ring<T> {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        use std::os::fd::AsRawFd;
        // SAFETY: the ring keeps its descriptor open for as long as it lives.
        unsafe { std::os::fd::BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }
}

/// Returns whether this binary contains the eBPF programs.
pub fn are_built() -> bool {
    !PROGRAMS.is_empty()
}

/// Checks that the bytes are programs, and that their build had these layouts of records.
fn usable(programs: &[u8], layout: u64) -> Result<(), KernelError> {
    if programs.is_empty() {
        Err(KernelError::NotBuilt)
    } else if has_layout(programs, layout) {
        Ok(())
    } else {
        Err(KernelError::Stale)
    }
}

fn has_layout(programs: &[u8], layout: u64) -> bool {
    let mark = layout.to_le_bytes();
    programs.windows(mark.len()).any(|window| window == mark)
}

/// Returns whether this process is in the host's pid namespace. Only in this namespace the kernel's
/// process ids are valid.
pub fn is_in_host_pid_namespace() -> bool {
    std::fs::read_link("/proc/self/ns/pid").is_ok_and(|link| link.as_os_str() == HOST_PID_NAMESPACE)
}

/// Loads the object, and sets its constants for the running kernel and the caller. `sizes` are the
/// sizes of maps that differ from the default. The function loads no program, except `follow_fork`
/// for [`Asked::Some`].
pub(super) fn load(
    devices: &Devices,
    asked: Asked,
    room: Room,
    sizes: &[(&'static str, u32)],
) -> Result<Ebpf, KernelError> {
    usable(PROGRAMS, LAYOUT)?;
    if !is_in_host_pid_namespace() {
        return Err(KernelError::Namespace);
    }
    let offsets = btf::offsets()?;
    let (mode, event_bytes) = match asked {
        Asked::None => (asked::NONE, LEAST_RING_BYTES),
        Asked::Some(bytes) => (asked::SOME, bytes),
        Asked::All(bytes) => (asked::ALL, bytes),
    };
    let has_twins = u32::from(devices.have_twins());
    let watches = devices.table();
    let mut loader = EbpfLoader::new();
    let words = [("HAS_TWINS", has_twins), ("COMMANDS_APART", room.commands_apart), ("TRACING", mode)];
    for (name, value) in offsets.iter().chain(&words) {
        loader.override_global(name, value, true);
    }
    loader.override_global("WATCHES", watches.as_bytes(), true);
    let (sets, seed, rows) = (rows::sets(room.rows), rows::seed(), room.rows as u32);
    loader.override_global("SETS_COUNT", &sets, true).override_global("SETS_SEED", &seed, true);
    loader.map_max_entries("SETS", sets).map_max_entries("ROWS", rows).map_max_entries("FREE_ROWS", rows);
    loader.map_max_entries("EVENTS", event_bytes);
    for (name, entries) in sizes {
        loader.map_max_entries(name, *entries);
    }
    let mut ebpf = loader.load(PROGRAMS).map_err(refused)?;
    let mut commands: HashMap<_, [u8; size_of::<CommandKey>()], [u8; size_of::<CommandValue>()]> =
        named(ebpf.map_mut("COMMANDS")).and_then(HashMap::try_from).map_err(refused)?;
    for (key, value) in crate::trace::commands() {
        commands.insert(bytes_of(&key), bytes_of(&value), 0).map_err(refused)?;
    }
    if let Asked::Some(_) = asked {
        attach_raw(&mut ebpf, "follow_fork", "sched_process_fork")?;
    }
    Ok(ebpf)
}

/// Returns the room for counters on this machine.
pub(super) fn room() -> Result<Room, KernelError> {
    Room::here().map_err(|error| KernelError::Refused(error.to_string()))
}

fn attach_tracepoints(ebpf: &mut Ebpf) -> Result<(), KernelError> {
    // The function attaches the program for the end of ioctls first. So the programs see the end of
    // each ioctl whose beginning they see.
    for (program, tracepoint) in [("ioctl_exit", "sys_exit_ioctl"), ("ioctl_enter", "sys_enter_ioctl")] {
        let program: &mut TracePoint = program_of(ebpf, program)?;
        program.load().map_err(refused)?;
        program.attach("syscalls", tracepoint).map_err(refused)?;
    }
    Ok(())
}

fn attach_driver(ebpf: &mut Ebpf, facts: &Facts) -> Result<(), KernelError> {
    for name in ["driver_exit", "driver_enter"] {
        let program: &mut KProbe = program_of(ebpf, name)?;
        program.load().map_err(refused)?;
        for function in facts.targets() {
            program.attach(function, 0).map_err(refused)?;
        }
    }
    Ok(())
}

pub(super) fn attach_raw(ebpf: &mut Ebpf, program: &str, tracepoint: &str) -> Result<(), KernelError> {
    let program: &mut RawTracePoint = program_of(ebpf, program)?;
    program.load().map_err(refused)?;
    program.attach(tracepoint).map_err(refused)?;
    Ok(())
}

/// Returns a program of the object, in the type of its kind.
pub(super) fn program_of<'e, P>(ebpf: &'e mut Ebpf, name: &str) -> Result<&'e mut P, KernelError>
where
    &'e mut P: TryFrom<&'e mut aya::programs::Program, Error: std::error::Error>,
{
    let program =
        ebpf.program_mut(name).ok_or_else(|| KernelError::Refused(format!("there is no program {name}")))?;
    program.try_into().map_err(refused)
}

/// Runs `attach`, which needs the tracing file system. If the machine has not mounted the file
/// system, a thread mounts it in a mount namespace of its own and runs `attach` there. So the
/// machine does not change.
fn with_tracing(attach: impl FnOnce() -> Result<(), KernelError> + Send) -> Result<(), KernelError> {
    if TRACING_PLACES.iter().any(|place| Path::new(place).join("events").exists()) {
        return attach();
    }
    std::thread::scope(|scope| {
        let attached = scope.spawn(|| {
            let mounted = mount_tracing();
            mounted.map_err(|error| {
                KernelError::Refused(format!("there is no tracing file system ({error})"))
            })?;
            attach()
        });
        attached.join().unwrap_or_else(|_| {
            Err(KernelError::Refused("the thread that attaches the programs panicked".to_owned()))
        })
    })
}

/// Moves the calling thread into a mount namespace of its own, and mounts the tracing file system
/// there.
fn mount_tracing() -> std::io::Result<()> {
    // SAFETY: the thread only attaches programs and then ends. The thread shares descriptors with
    // the process's other threads, and this call leaves them shared.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    Ok(mount("nodev", TRACING_PLACES[0], "tracefs", MountFlags::empty(), None)?)
}

pub(super) fn named<M>(map: Option<M>) -> Result<M, aya::maps::MapError> {
    map.ok_or_else(|| aya::maps::MapError::InvalidName { name: "one of deepres' maps".to_owned() })
}

/// Converts an error of the kernel or of aya into a [`KernelError`], with its causes.
pub(super) fn refused(error: impl std::error::Error) -> KernelError {
    // The text ends before the verifier's output, which goes on for pages.
    const VERIFIER: &str = ". Verifier output:";
    let short = |text: String| text.split(VERIFIER).next().unwrap_or_default().to_owned();
    let mut text = error.to_string();
    if text.contains(VERIFIER) {
        tracing::debug!(%error, "the kernel refuses a program");
    }
    text = short(text);
    let mut forbidden = false;
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = short(cause.to_string());
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        let kind = cause.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
        forbidden |= kind == Some(std::io::ErrorKind::PermissionDenied);
        source = cause.source();
    }
    if forbidden || text.contains("Operation not permitted") {
        KernelError::Forbidden(text)
    } else {
        KernelError::Refused(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_another_build_are_told_from_ours() {
        let mut programs = [7; 100];
        assert!(!has_layout(&programs, LAYOUT));
        programs[41..49].copy_from_slice(&LAYOUT.to_le_bytes());
        assert!(has_layout(&programs, LAYOUT) && !has_layout(&programs, LAYOUT + 1));
        assert!(matches!(usable(&programs, LAYOUT), Ok(())));
        assert!(matches!(usable(&programs, LAYOUT + 1), Err(KernelError::Stale)));
        assert!(!are_built() || usable(PROGRAMS, LAYOUT).is_ok(), "`cargo xtask ebpf` has to be run again");
    }

    #[test]
    fn a_build_without_the_programs_says_so_and_what_to_do() {
        let missing = usable(&[], LAYOUT).unwrap_err();
        assert!(matches!(missing, KernelError::NotBuilt));
        let told = missing.to_string();
        assert!(told.contains("without its eBPF programs") && told.contains("cargo xtask ebpf"), "{told}");
    }
}
