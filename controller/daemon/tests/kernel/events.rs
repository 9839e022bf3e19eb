//! Tests of single events: the name of each ioctl of a followed process, and the exact count of
//! lost events.

use super::counts::alone;
use super::support::*;
use deepres_abi::probe::Event;
use deepres_daemon::probes::inside::{missed, unfinished};
use deepres_daemon::probes::kernel::{Asked, Kernel};
use deepres_daemon::trace::decode::{decode, decode_unfinished};
use deepres_model::process::ProcessKey;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous};
use std::os::fd::OwnedFd;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

const RING_BYTES: u32 = 1 << 20;
/// The command number of the UVM ioctl `UVM_FREE`.
const UVM_FREE: u64 = 34;
const UVM_CREATE_EXTERNAL_RANGE: u64 = 73;

fn own() -> ProcessKey {
    ProcessKey::of(std::process::id()).unwrap()
}

fn events(kernel: &mut Kernel) -> impl FnMut() -> Vec<Event> + use<> {
    let mut ring = kernel.take_events().unwrap();
    move || std::iter::from_fn(|| ring.pop()).collect()
}

#[test]
fn nvidias_calls_are_told_by_name_with_fields_status_and_amount() {
    let _alone = alone();
    // This device accepts any number as a call that succeeded. So the argument keeps the status
    // that the test writes.
    let Some(mut kernel) = probes(&[BTRFS_UVM_KEY], Asked::Some(RING_BYTES), None) else { return };
    let mut events = events(&mut kernel);
    kernel.follow(own()).unwrap();
    let file = open(BTRFS);
    let mut argument = [0; 512];
    argument[..2].copy_from_slice(&[0x7f00_0000_0000, 1 << 21]);
    assert_eq!(ioctl_with(fd(&file), UVM_CREATE_EXTERNAL_RANGE, &mut argument), 0);
    argument[1] = 0x51;
    assert_eq!(ioctl_with(fd(&file), UVM_FREE, &mut argument), 0);
    let told = events();
    let told: Vec<_> = told.iter().map(decode).collect();
    let shown: Vec<_> = told
        .iter()
        .map(|event| {
            let fields: Vec<_> = event.fields.iter().map(|(name, value)| format!("{name}={value}")).collect();
            (event.name.unwrap(), fields.join(" "), event.status.unwrap().to_string())
        })
        .collect();
    assert_eq!(
        shown,
        [
            (
                "UVM_CREATE_EXTERNAL_RANGE",
                "base=0x7f0000000000 length=2097152".to_owned(),
                "NV_OK".to_owned()
            ),
            ("UVM_FREE", "base=0x7f0000000000".to_owned(), "NV_ERR_NO_MEMORY".to_owned()),
        ]
    );
    assert!(told.iter().all(|event| event.pid == std::process::id()
        && event.fd == Some(fd(&file) as u32)
        && event.latency_ns > 0));
    let made = of_command(&kernel, std::process::id(), UVM_CREATE_EXTERNAL_RANGE).unwrap();
    assert_eq!((made.memory_calls, made.mapped_bytes), (1, 1 << 21), "the argument tells how much");
    let freed = of_command(&kernel, std::process::id(), UVM_FREE).unwrap();
    assert_eq!((freed.calls, freed.errors, freed.memory_calls), (1, 1, 0), "the driver said no");
}

/// The command number of the ioctl `NV_ESC_RM_ALLOC_MEMORY`.
const RM_ALLOC_MEMORY: u64 = 0xc038_4627;
const RM_VID_HEAP_CONTROL: u64 = 0xc0b8_464a;
const RM_MAP_MEMORY: u64 = 0xc038_464e;
/// The class of a device memory object of the driver.
const NV01_MEMORY_LOCAL_USER: u64 = 0x40;
const NV01_ROOT: u64 = 0;
const NV_ERR_NO_MEMORY: u64 = 0x51;

#[test]
fn memory_is_counted_by_the_arguments_and_not_at_all_where_the_driver_refused() {
    let _alone = alone();
    let Some(kernel) = probes(&[BTRFS_RM_KEY], Asked::None, None) else { return };
    let file = open(BTRFS);
    // Index in words of 8 bytes. The class's own arguments follow later in the same buffer.
    const PARAMETERS: usize = 100;
    let ask = |command: u64, words: &[(usize, u64)]| {
        let mut argument = [0; 512];
        for (at, word) in words {
            argument[*at] = *word;
        }
        argument[PARAMETERS + 8] = 1 << 26;
        let address = &raw const argument[PARAMETERS] as u64;
        if command == RM_ALLOC {
            argument[2] = address;
        }
        assert_eq!(ioctl_with(fd(&file), command, &mut argument), 0);
    };
    let class = |number: u64| (1, number << 32);
    for (command, words, expected) in [
        (RM_MAP_MEMORY, vec![(3, 4096)], (1, 1, 0, 0, 4096)),
        (RM_MAP_MEMORY, vec![(3, 4096), (5, NV_ERR_NO_MEMORY)], (2, 1, 1, 0, 4096)),
        (RM_ALLOC_MEMORY, vec![(4, (1 << 20) - 1)], (1, 1, 0, 1 << 20, 0)),
        (RM_VID_HEAP_CONTROL, vec![(1, 2), (11, 1 << 21)], (1, 1, 0, 1 << 21, 0)),
        (RM_VID_HEAP_CONTROL, vec![(1, 14), (10, 1 << 22)], (2, 2, 0, (1 << 21) + (1 << 22), 0)),
        (RM_VID_HEAP_CONTROL, vec![(1, 3)], (3, 2, 0, (1 << 21) + (1 << 22), 0)),
        (RM_ALLOC, vec![class(NV01_ROOT)], (1, 0, 0, 0, 0)),
        (RM_ALLOC, vec![class(NV01_MEMORY_LOCAL_USER)], (2, 1, 0, 1 << 26, 0)),
        (RM_ALLOC, vec![class(NV01_MEMORY_LOCAL_USER), (5, NV_ERR_NO_MEMORY)], (3, 1, 1, 1 << 26, 0)),
    ] {
        ask(command, &words);
        let value = of_command(&kernel, std::process::id(), command).unwrap();
        let counted =
            (value.calls, value.memory_calls, value.errors, value.allocated_bytes, value.mapped_bytes);
        assert_eq!(counted, expected, "{command:#x} {words:?}");
    }
}

/// Returns places for arguments. The name of each place says how an argument lies there.
fn places() -> Vec<(&'static str, *mut u8)> {
    const MIB: usize = 1 << 20;
    let mapped = |bytes: usize, flags: MapFlags, file: Option<&OwnedFd>| {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the address, and the mapping stays until the test ends.
        let at = unsafe {
            match file {
                Some(file) => mmap(std::ptr::null_mut(), bytes, protection, flags, file, 0),
                None => mmap_anonymous(std::ptr::null_mut(), bytes, protection, flags),
            }
        };
        at.unwrap().cast::<u8>()
    };
    let pages = mapped(MIB, MapFlags::PRIVATE, None);
    let file = memfd_create("arguments", MemfdFlags::empty()).unwrap();
    ftruncate(&file, MIB as u64).unwrap();
    let shared = mapped(MIB, MapFlags::SHARED, Some(&file));
    // The mapping contains a multiple of 2 MiB with at least 2 MiB behind it.
    let large = mapped(6 * MIB, MapFlags::PRIVATE, None);
    let large = large.wrapping_add(large.align_offset(2 * MIB));
    // SAFETY: the range lies inside the mapping.
    unsafe { madvise(large.cast(), 2 * MIB, Advice::LinuxHugepage) }.unwrap();
    let before_the_end = |bytes: usize| pages.wrapping_add(PAGE - bytes);
    vec![
        ("at the beginning of a page", pages),
        ("where no word is aligned", pages.wrapping_add(13)),
        ("at the end of a page", before_the_end(48)),
        ("with the amount in the next page", before_the_end(24)),
        ("with the amount in both pages", before_the_end(28)),
        ("with the status in the next page", before_the_end(40)),
        ("with the status in both pages", before_the_end(42)),
        ("in a file", shared.wrapping_add(8)),
        ("in a large page", large.wrapping_add(MIB + PAGE - 8)),
    ]
}

/// Offsets in NV_ESC_RM_MAP_MEMORY's argument, bytes: the amount (64 bits) and the status (32
/// bits).
const MAPPED_AT: usize = 24;
const STATUS_AT: usize = 40;
const PAGE: usize = 4096;

#[test]
fn arguments_are_read_wherever_they_lie() {
    let _alone = alone();
    let file = open(BTRFS);
    let Some(kernel) = probes(&[BTRFS_RM_KEY], Asked::None, None) else { return };
    let (mut calls, mut bytes) = (0_u64, 0);
    for (what, at) in places() {
        for status in [0, NV_ERR_NO_MEMORY as u32] {
            // SAFETY: each place has more than a page of its mapping behind it.
            unsafe {
                at.add(MAPPED_AT).cast::<u64>().write_unaligned(1 << 21);
                at.add(STATUS_AT).cast::<u32>().write_unaligned(status);
                assert_eq!(libc::ioctl(fd(&file), RM_MAP_MEMORY, at), 0);
            }
            calls += 1;
            bytes += if status == 0 { 1 << 21 } else { 0 };
            let value = of_command(&kernel, std::process::id(), RM_MAP_MEMORY).unwrap();
            let counted = (value.calls, value.errors, value.memory_calls, value.mapped_bytes);
            let expected = (calls, calls / 2, calls.div_ceil(2), bytes);
            assert_eq!(counted, expected, "{what}, {status}");
        }
    }
    // Addresses in unmapped memory, in the kernel, outside all memory, and in memory that may not
    // be read.
    // SAFETY: the kernel chooses the address.
    let closed = unsafe { mmap_anonymous(std::ptr::null_mut(), PAGE, ProtFlags::empty(), MapFlags::PRIVATE) };
    for nowhere in
        [0, 8, closed.unwrap() as u64, 1 << 47, u64::MAX << 47, u64::MAX - 60, 0xffff_ffff_8100_0000]
    {
        // SAFETY: the device refuses an address that it cannot read.
        assert!(unsafe { libc::ioctl(fd(&file), RM_MAP_MEMORY, nowhere) } < 0, "{nowhere:#x}");
    }
    let value = of_command(&kernel, std::process::id(), RM_MAP_MEMORY).unwrap();
    assert_eq!(
        (value.memory_calls, value.mapped_bytes),
        (calls / 2, bytes),
        "no read of a refused call counts"
    );
}

#[test]
fn arguments_are_read_as_they_are_while_their_pages_are_exchanged() {
    const CALLS: u64 = 50_000;
    let _alone = alone();
    let Some(kernel) = probes(&[BTRFS_RM_KEY], Asked::None, None) else { return };
    let (file, ends) = (open(BTRFS), AtomicBool::new(false));
    let mut argument = Box::new([0; 512]);
    let (refused, bytes) = thread::scope(|scope| {
        // While a forked child shares the memory, each write replaces the page by a copy.
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                assert!(Command::new("/bin/true").status().unwrap().success());
                // SAFETY: the child only ends.
                unsafe {
                    match libc::fork() {
                        0 => libc::_exit(0),
                        child => libc::waitpid(child, std::ptr::null_mut(), 0),
                    }
                };
            }
        });
        let (mut refused, mut bytes) = (0, 0);
        for number in 0..CALLS {
            let is_refused = number % 3 == 0;
            argument[MAPPED_AT / 8] = number;
            argument[STATUS_AT / 8] = if is_refused { NV_ERR_NO_MEMORY } else { 0 };
            assert_eq!(ioctl_with(fd(&file), RM_MAP_MEMORY, &mut argument), 0);
            if is_refused { refused += 1 } else { bytes += number }
        }
        ends.store(true, Ordering::Relaxed);
        (refused, bytes)
    });
    let value = of_command(&kernel, std::process::id(), RM_MAP_MEMORY).unwrap();
    assert_eq!((value.calls, value.errors, value.mapped_bytes), (CALLS, refused, bytes));
}

#[test]
fn a_process_id_that_was_followed_is_not_followed_in_the_hands_of_another() {
    let _alone = alone();
    let Some(mut kernel) = probes(&[TUN_KEY], Asked::Some(RING_BYTES), None) else { return };
    let mut events = events(&mut kernel);
    let before = ProcessKey { start_ticks: own().start_ticks - 1, ..own() };
    kernel.follow(before).unwrap();
    let file = open(TUN);
    assert_eq!(ioctl(fd(&file), SUCCESS), 0);
    assert_eq!(events().len(), 0);
    kernel.forget_followed();
    kernel.follow(own()).unwrap();
    kernel.forget_followed();
    assert_eq!(ioctl(fd(&file), SUCCESS), 0);
    assert_eq!(events().len(), 1);
}

#[test]
fn children_are_followed_from_birth_and_others_are_not_told() {
    let _alone = alone();
    let Some(mut kernel) = probes(&[TUN_KEY], Asked::Some(RING_BYTES), None) else { return };
    let mut events = events(&mut kernel);
    let code = format!("import fcntl; f = open({TUN:?}, 'r+b', 0); fcntl.ioctl(f, {SUCCESS}, bytearray(8))");
    let mut stranger = Command::new("python3").args(["-c", &code]).spawn().unwrap();
    assert!(stranger.wait().unwrap().success());
    assert_eq!(events().len(), 0, "not followed");
    kernel.follow(own()).unwrap();
    // The shell forks, so its child is a grandchild.
    let mut shell = Command::new("sh").args(["-c", "python3 -c \"$0\"; true", &code]).spawn().unwrap();
    assert!(shell.wait().unwrap().success());
    let mut child = Command::new("python3").args(["-c", &code]).spawn().unwrap();
    assert!(child.wait().unwrap().success());
    let told = events();
    assert!(told.iter().any(|event| event.pid == child.id()), "{told:?}");
    assert!(
        told.iter().any(|event| event.pid != child.id() && event.pid != std::process::id()),
        "the grandchild: {told:?}"
    );
    assert!(told.iter().all(|event| event.pid != stranger.id()));
}

#[test]
fn events_without_room_in_the_ring_are_counted_exactly() {
    let _alone = alone();
    const CALLS: u64 = 20_000;
    let Some(mut kernel) = probes(&[TUN_KEY], Asked::Some(RING_BYTES), None) else { return };
    let mut events = events(&mut kernel);
    kernel.follow(own()).unwrap();
    let file = open(TUN);
    for _ in 0..CALLS {
        assert_eq!(ioctl(fd(&file), SUCCESS), 0);
    }
    let told = events().len() as u64;
    let totals = kernel.totals();
    assert!(told > 0 && told < CALLS);
    assert_eq!((totals.events, totals.events_lost), (told, CALLS - told));
    assert_eq!(of_command(&kernel, std::process::id(), SUCCESS).unwrap().calls, CALLS, "counters miss none");
    assert_eq!(ioctl(fd(&file), SUCCESS), 0);
    assert_eq!(events().len(), 1, "there is room again");
}

/// A page that is missing until [`Late::come`]. A reader of the page waits until then.
struct Late {
    faults: OwnedFd,
    address: usize,
}

/// Commands of userfaultfd(2) and their constants, from linux/userfaultfd.h.
const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
const UFFD_API: u64 = 0xaa;
const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
const UFFDIO_REGISTER_MODE_MISSING: u64 = 1;
const UFFDIO_ZEROPAGE: libc::c_ulong = 0xc020_aa04;
const PAGE_BYTES: usize = 4096;

impl Late {
    fn new() -> Self {
        use rustix::mm::{MapFlags, ProtFlags, UserfaultfdFlags, mmap_anonymous, userfaultfd};
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the address of this fresh mapping, which stays for good.
        let page = unsafe { mmap_anonymous(std::ptr::null_mut(), PAGE_BYTES, access, MapFlags::PRIVATE) };
        // SAFETY: the descriptor is used for this mapping alone.
        let faults = unsafe { userfaultfd(UserfaultfdFlags::CLOEXEC) }.expect("userfaultfd, as root");
        let late = Self { faults, address: page.expect("a page").addr() };
        late.ask(UFFDIO_API, [UFFD_API, 0, 0, 0]);
        late.ask(UFFDIO_REGISTER, [late.address as u64, PAGE_BYTES as u64, UFFDIO_REGISTER_MODE_MISSING, 0]);
        late
    }

    fn ask(&self, command: libc::c_ulong, mut argument: [u64; 4]) {
        // SAFETY: none of the commands reads or writes more than the argument has.
        let answer = unsafe {
            libc::ioctl(std::os::fd::AsRawFd::as_raw_fd(&self.faults), command, argument.as_mut_ptr())
        };
        assert_eq!(answer, 0, "{command:#x}: {}", std::io::Error::last_os_error());
    }

    /// Provides the page, filled with zeros.
    fn come(&self) {
        self.ask(UFFDIO_ZEROPAGE, [self.address as u64, PAGE_BYTES as u64, 0, 0]);
    }
}

#[test]
fn a_call_that_has_not_returned_is_told_at_the_end_and_only_that() {
    let _alone = alone();
    let Some(mut kernel) = probes(&[BTRFS_UVM_KEY], Asked::Some(RING_BYTES), None) else { return };
    let mut events = events(&mut kernel);
    kernel.follow(own()).unwrap();
    let file = open(BTRFS);
    assert_eq!(ioctl(fd(&file), UVM_CREATE_EXTERNAL_RANGE), 0);
    assert!(unfinished(&kernel, |who| kernel.follows(who)).is_empty(), "it has returned");
    let late = Late::new();
    std::thread::scope(|scope| {
        let stuck = scope.spawn(|| {
            // SAFETY: the device reads and writes only the one page at this address.
            unsafe { libc::ioctl(fd(&file), UVM_FREE, late.address) }
        });
        let inside = loop {
            let inside = unfinished(&kernel, |who| kernel.follows(who));
            if !inside.is_empty() {
                break inside;
            }
            std::thread::yield_now();
        };
        assert_eq!(unfinished(&kernel, |_| false).len(), 0, "nobody else's");
        kernel.detach();
        let told = unfinished(&kernel, |who| kernel.follows(who));
        assert_eq!((inside.len(), told.len()), (1, 1));
        let told = decode_unfinished(&told[0]);
        assert!(missed(&kernel).is_empty(), "it has not returned");
        assert_eq!((told.name, told.pid, told.unfinished), (Some("UVM_FREE"), std::process::id(), true));
        assert_eq!(told.fd, Some(fd(&file) as u32));
        assert!(told.tid != told.pid && told.latency_ns >= inside[0].latency_ns && told.status.is_none());
        late.come();
        assert_eq!(stuck.join().unwrap(), 0);
    });
    // The programs were detached, so the kernel missed the return.
    assert!(unfinished(&kernel, |who| kernel.follows(who)).is_empty());
    let missed = missed(&kernel);
    assert_eq!(missed.iter().map(|(_, call)| call.command).collect::<Vec<_>>(), [UVM_FREE as u32]);
    assert!(!kernel.forget_call(missed[0].0), "it takes nobody's room");
    assert_eq!(events().len(), 1);
}
