//! Tests of the counters: the eBPF programs count each ioctl on a watched device once, and no
//! other ioctl.

use super::support::*;
use deepres_abi::probe::{COMMANDS_APART, Family, REST, StatKey, StatValue, TICK_NS, slot};
use deepres_daemon::probes::kernel::{Asked, AttachPoint, Kernel};
use deepres_daemon::probes::room::Room;
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use std::fs::File;
use std::io::{IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

const POINTS: [AttachPoint; 2] = [AttachPoint::Tracepoints, AttachPoint::RawTracepoints];

#[test]
fn a_hundred_thousand_ioctls_of_eight_threads_over_several_descriptors_are_counted_exactly() {
    const THREADS: usize = 8;
    const ROUNDS: usize = 2_500;
    let _alone = alone();
    for point in POINTS {
        let Some(kernel) = probes(&[TUN_KEY, FUSE_KEY], Asked::None, Some(point)) else { return };
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                thread::spawn(|| {
                    let files = [open(TUN), open(TUN), open(FUSE), open("/dev/null")];
                    for _ in 0..ROUNDS {
                        assert_eq!(ioctl(fd(&files[0]), SUCCESS), 0);
                        assert_eq!(ioctl(fd(&files[1]), SUCCESS), 0);
                        assert!(ioctl(fd(&files[1]), RM_CONTROL) < 0);
                        assert_eq!(ioctl(fd(&files[2]), RM_CONTROL), -i64::from(libc::ENOTTY));
                        assert_eq!(ioctl(fd(&files[2]), RM_ALLOC), -i64::from(libc::ENOTTY));
                        assert_eq!(ioctl(fd(&files[3]), RM_ALLOC), -i64::from(libc::ENOTTY));
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        let each = (THREADS * ROUNDS) as u64;
        let counted = counted(&kernel, std::process::id());
        let shown: Vec<_> = counted
            .iter()
            .map(|(key, value)| (key.device & 0xfffff, u64::from(key.command), value.calls, value.errors))
            .collect();
        for expected in [
            (200, SUCCESS, 2 * each, 0),
            (200, RM_CONTROL, each, each),
            (229, RM_CONTROL, each, each),
            (229, RM_ALLOC, each, each),
        ] {
            assert!(shown.contains(&expected), "{point:?}: {expected:?} is not in {shown:?}");
        }
        assert_eq!(shown.len(), 4, "{point:?}: nothing of /dev/null: {shown:?}");
        for (_, value) in &counted {
            assert_eq!(value.buckets.iter().sum::<u64>(), value.calls, "each call has one latency");
            assert!(value.time_ns >= value.longest_ns && value.longest_ns > 0);
        }
        let totals = kernel.totals();
        assert_eq!((totals.unattributed, totals.untimed), (0, 0));
        assert!(totals.calls >= 5 * each);
    }
}

#[test]
fn descriptors_of_other_devices_and_no_descriptors_are_not_counted() {
    let _alone = alone();
    let far = rustix::io::fcntl_dupfd_cloexec(open(TUN), 900).unwrap();
    let others = [open("/dev/null"), open(FUSE)];
    for point in POINTS {
        let Some(kernel) = probes(&[TUN_KEY], Asked::None, Some(point)) else { return };
        for _ in 0..3 {
            assert_eq!(ioctl(far.as_raw_fd(), SUCCESS), 0);
        }
        for other in &others {
            assert!(ioctl(fd(other), RM_CONTROL) < 0);
        }
        // An invalid descriptor, and descriptors beyond every table.
        for none in [-1, 1 << 20, i32::MAX] {
            assert_eq!(ioctl(none, SUCCESS), -i64::from(libc::EBADF));
        }
        let counted = counted(&kernel, std::process::id());
        let shown: Vec<_> = counted.iter().map(|(key, value)| (key.command, value.calls)).collect();
        assert_eq!(shown, [(SUCCESS as u32, 3)], "{point:?}");
    }
}

#[test]
fn threads_that_would_have_the_same_slot_are_counted_exactly() {
    const CALLS: u64 = 100_000;
    let _alone = alone();
    let Some(kernel) = probes(&[TUN_KEY], Asked::None, None) else { return };
    // The thread reports its id. If the id is the wanted id, the thread makes the calls.
    let caller = || {
        let (say, said) = std::sync::mpsc::channel();
        let (tell, told) = std::sync::mpsc::channel();
        let thread = thread::spawn(move || {
            say.send(rustix::thread::gettid().as_raw_nonzero().get() as u32).unwrap();
            if told.recv() != Ok(true) {
                return;
            }
            let file = open(TUN);
            for _ in 0..CALLS {
                assert_eq!(ioctl(fd(&file), SUCCESS), 0);
            }
        });
        (said.recv().unwrap(), tell, thread)
    };
    // The kernel gives this id to the next thread, unless another process takes the id.
    let numbered = |number: u32| {
        std::fs::write("/proc/sys/kernel/ns_last_pid", (number - 1).to_string()).unwrap();
        let (its, tell, thread) = caller();
        if its == number {
            return Some((tell, thread));
        }
        drop(tell);
        thread.join().unwrap();
        None
    };
    let last: u32 = std::fs::read_to_string("/proc/sys/kernel/pid_max").unwrap().trim().parse().unwrap();
    let pairs = (300..last).filter_map(|number| {
        (number + 1..last).find(|other| slot(*other) == slot(number)).map(|other| (number, other))
    });
    let callers = pairs.take(200).find_map(|(number, other)| {
        let first = numbered(number)?;
        let Some(second) = numbered(other) else {
            drop(first.0);
            first.1.join().unwrap();
            return None;
        };
        Some([first, second])
    });
    let callers = callers.expect("two threads get the numbers that they are to have");
    callers.iter().for_each(|(tell, _)| tell.send(true).unwrap());
    for (_, thread) in callers {
        thread.join().unwrap();
    }
    assert_eq!(of_command(&kernel, std::process::id(), SUCCESS).unwrap().calls, 2 * CALLS);
    assert_eq!(kernel.totals().untimed, 0);
}

#[test]
fn descriptors_count_however_a_process_came_by_them() {
    let _alone = alone();
    let before = open(TUN);
    let Some(kernel) = probes(&[TUN_KEY], Asked::None, None) else { return };
    let own = std::process::id();
    let calls = |kernel: &Kernel| of_command(kernel, own, SUCCESS).map_or(0, |value| value.calls);

    assert_eq!(ioctl(fd(&before), SUCCESS), 0);
    assert_eq!(calls(&kernel), 1, "opened before the probes were there");

    let duplicate = rustix::io::dup(&before).unwrap();
    assert_eq!(ioctl(duplicate.as_raw_fd(), SUCCESS), 0);
    let far = rustix::io::fcntl_dupfd_cloexec(&before, 900).unwrap();
    assert_eq!(ioctl(far.as_raw_fd(), SUCCESS), 0);
    assert_eq!(calls(&kernel), 3, "duplicated");

    let passed = pass_over_a_socket(&before);
    assert_eq!(ioctl(fd(&passed), SUCCESS), 0);
    assert_eq!(calls(&kernel), 4, "passed over a socket");

    let mut child = Command::new("python3");
    child.args(["-c", &format!("import fcntl; fcntl.ioctl(0, {SUCCESS}, bytearray(8))")]);
    let mut child = child.stdin(Stdio::from(before)).spawn().unwrap();
    let pid = child.id();
    assert!(child.wait().unwrap().success());
    let inherited = of_command(&kernel, pid, SUCCESS).expect("inherited over fork and exec");
    assert_eq!((inherited.calls, inherited.errors), (1, 0));
}

fn pass_over_a_socket(file: &File) -> File {
    let (sender, receiver) =
        socketpair(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None).unwrap();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut rights = SendAncillaryBuffer::new(&mut space);
    let descriptors = [file.as_fd()];
    assert!(rights.push(SendAncillaryMessage::ScmRights(&descriptors)));
    sendmsg(&sender, &[IoSlice::new(b"x")], &mut rights, SendFlags::empty()).unwrap();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    recvmsg(&receiver, &mut [IoSliceMut::new(&mut [0; 1])], &mut beside, RecvFlags::CMSG_CLOEXEC).unwrap();
    let mut received = beside.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(rights) => rights.collect::<Vec<_>>(),
        _ => Vec::new(),
    });
    File::from(received.next().unwrap())
}

#[test]
fn an_interrupted_call_is_an_error_and_its_time_is_counted() {
    let _alone = alone();
    // A background process uses a terminal. Its request to drain makes the kernel send a signal and
    // interrupt the call.
    const SCRIPT: &str = r#"
import os, pty, signal, sys, fcntl, time
master, slave = pty.openpty()
print(os.minor(os.fstat(slave).st_rdev), os.major(os.fstat(slave).st_rdev), flush=True)
sys.stdin.readline()
os.setsid()
fcntl.ioctl(slave, 0x540E, 0)  # TIOCSCTTY
child = os.fork()
if child == 0:
    os.setpgid(0, 0)
    signal.signal(signal.SIGTTOU, lambda *_: None)
    signal.siginterrupt(signal.SIGTTOU, True)
    libc = __import__("ctypes").CDLL(None, use_errno=True)
    answer = libc.ioctl(slave, 0x5409, 1)  # TCSBRK: drain
    print(os.getpid(), answer, __import__("ctypes").get_errno(), flush=True)
    os._exit(0)
os.waitpid(child, 0)
"#;
    let mut script = Command::new("python3")
        .args(["-c", SCRIPT])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = std::io::BufReader::new(script.stdout.take().unwrap());
    let mut line = || {
        let mut line = String::new();
        std::io::BufRead::read_line(&mut output, &mut line).unwrap();
        line.split_whitespace().map(|word| word.parse::<i64>().unwrap()).collect::<Vec<_>>()
    };
    let numbers = line();
    let key = format!("nvidia={}:{}", numbers[1], numbers[0]);
    let kernel = probes(&[&key], Asked::None, None);
    script.stdin.take().unwrap().write_all(b"\n").unwrap();
    let answered = line();
    assert!(script.wait().unwrap().success());
    let Some(kernel) = kernel else { return };
    assert_eq!(answered[1..], [-1, i64::from(libc::EINTR)], "the stand-in did what it should");
    let value = of_command(&kernel, answered[0] as u32, 0x5409).expect("it is counted");
    assert_eq!((value.calls, value.errors), (1, 1));
}

#[test]
fn a_process_id_that_comes_again_is_another_process() {
    let _alone = alone();
    let Some(kernel) = probes(&[TUN_KEY], Asked::None, None) else { return };
    let code = format!("import fcntl; f = open({TUN:?}, 'r+b', 0); fcntl.ioctl(f, {SUCCESS}, bytearray(8))");
    let run = || {
        let mut child = Command::new("python3").args(["-c", &code]).spawn().unwrap();
        let pid = child.id();
        assert!(child.wait().unwrap().success());
        pid
    };
    let first = run();
    // The kernel gives this id to the next process, unless another fork takes the id.
    let comes_again = (0..200).any(|_| {
        std::fs::write("/proc/sys/kernel/ns_last_pid", (first - 1).to_string()).unwrap();
        run() == first
    });
    assert!(comes_again, "process id {first} did not come again");
    let counted: Vec<_> =
        counted(&kernel, first).into_iter().map(|(key, value)| (key.started_ns, value.calls)).collect();
    assert_eq!(counted.len(), 2, "{counted:?}");
    assert!(
        counted[0].0 != counted[1].0
            && counted.iter().all(|(started_ns, calls)| *started_ns != 0 && *calls == 1)
    );

    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let ticks: u64 = stat.rsplit(')').next().unwrap().split_whitespace().nth(19).unwrap().parse().unwrap();
    let file = open(TUN);
    assert_eq!(ioctl(fd(&file), SUCCESS), 0);
    let own = super::support::counted(&kernel, std::process::id())[0].0;
    assert_eq!(
        own.started_ns / TICK_NS,
        ticks,
        "the same moment that /proc tells, in hundredths of a second"
    );
}

/// Returns an ioctl number without a command. Each index gives another number.
fn number(index: u64) -> u64 {
    0xc000_4600 | index << 16 & 0x3fff_0000 | index & 0xff
}

#[test]
fn one_process_cannot_take_the_counters_of_the_others() {
    let _alone = alone();
    let Some(mut kernel) = probes(&[FUSE_KEY], Asked::None, None) else { return };
    let file = open(FUSE);
    const COMMANDS: u64 = 5_000;
    for index in 0..COMMANDS {
        assert!(ioctl(fd(&file), number(index)) < 0);
    }
    let own = counted(&kernel, std::process::id());
    assert_eq!(own.len(), COMMANDS_APART as usize + 1, "and one for the rest");
    assert_eq!(own.iter().map(|(_, value)| value.calls).sum::<u64>(), COMMANDS, "none is lost");
    let rest = of_command(&kernel, std::process::id(), REST.into()).unwrap();
    assert_eq!(rest.calls, COMMANDS - u64::from(COMMANDS_APART));
    assert!(own.iter().all(|(key, _)| (key.command == REST) == (key.device == 0)), "on whatever device");
    for (key, _) in &own {
        kernel.remove(key);
    }
    assert_eq!(
        counted(&kernel, std::process::id()),
        Vec::<(StatKey, StatValue)>::new(),
        "the dead's are freed"
    );
}

#[test]
fn rows_that_were_taken_away_begin_at_zero_for_the_next() {
    let _alone = alone();
    let room = Room { rows: 8, commands_apart: COMMANDS_APART, launches: 1 };
    let Some(mut kernel) = probes_within(room, &[FUSE_KEY], Asked::None, None) else { return };
    let file = open(FUSE);
    // All rounds together use as many commands as the eBPF programs count separately.
    for round in 0..u64::from(COMMANDS_APART) / room.rows as u64 {
        let commands: Vec<u64> = (0..room.rows as u64).map(|index| number(index + 1)).collect();
        for _ in 0..=round {
            commands.iter().for_each(|command| assert!(ioctl(fd(&file), *command) < 0));
        }
        let own = kernel.stats();
        assert_eq!(own.len(), room.rows, "round {round}");
        assert!(own.iter().all(|(_, value)| value.calls == round + 1), "round {round}: {own:?}");
        for (key, value) in own {
            assert_eq!(kernel.remove(&key), Some(value));
            assert_eq!(kernel.remove(&key), None);
        }
        assert_eq!(kernel.take_late(), []);
    }
    assert_eq!(kernel.totals().unattributed, 0);
}

#[test]
fn no_call_is_lost_while_rows_are_taken_away_from_calling_processes() {
    let _alone = alone();
    const THREADS: u64 = 4;
    const CALLS: u64 = 200_000;
    let room = Room { rows: 64, commands_apart: 8, launches: 1 };
    let Some(mut kernel) = probes_within(room, &[FUSE_KEY], Asked::None, None) else { return };
    let file = open(FUSE);
    let mut taken = 0;
    thread::scope(|scope| {
        let callers: Vec<_> = (0..THREADS)
            .map(|index| {
                let file = &file;
                scope.spawn(move || {
                    (0..CALLS).for_each(|_| assert!(ioctl(fd(file), number(1 + index % 2)) < 0))
                })
            })
            .collect();
        while callers.iter().any(|caller| !caller.is_finished()) {
            for (key, _) in kernel.stats() {
                taken += kernel.remove(&key).map_or(0, |value| value.calls);
            }
            thread::sleep(Duration::from_millis(2));
            taken += kernel.take_late().iter().map(|(_, late)| late.calls).sum::<u64>();
        }
    });
    let left: u64 = kernel.stats().iter().map(|(_, value)| value.calls).sum();
    assert_eq!(taken + left + kernel.totals().unattributed, THREADS * CALLS);
    assert_eq!(kernel.totals().unattributed, 0);
}

#[test]
fn on_a_machine_with_very_many_cpus_one_process_takes_no_more_than_its_part_of_few_counters() {
    let _alone = alone();
    // More CPUs than any machine has, so that the room for counters is at its smallest.
    let room = Room::on(2048);
    let Some(kernel) = probes_within(room, &[FUSE_KEY, TUN_KEY], Asked::None, None) else { return };
    let files = [open(FUSE), open(TUN)];
    const COMMANDS: u64 = 200;
    for file in &files {
        for index in 0..COMMANDS {
            assert!(ioctl(fd(file), number(index)) < 0);
        }
    }
    let own = counted(&kernel, std::process::id());
    assert_eq!(own.len(), files.len() * (room.commands_apart as usize + 1), "of each kind of device");
    assert!(own.len() <= room.rows / 2, "{room:?}");
    let calls: u64 = own.iter().map(|(_, value)| value.calls).sum();
    assert_eq!((calls, kernel.totals().unattributed), (files.len() as u64 * COMMANDS, 0), "none is lost");
}

#[test]
fn a_block_device_with_the_number_of_one_that_is_watched_is_another() {
    let _alone = alone();
    const LOOP_MAJOR: u32 = 7;
    let folder = tempfile::tempdir().unwrap();
    let node = folder.path().join("loop");
    mknodat(CWD, &node, FileType::BlockDevice, Mode::RUSR, makedev(LOOP_MAJOR, 0)).unwrap();
    let Ok(block) = File::open(&node) else {
        // If the kernel has no block devices of this number, the programs cannot confuse any.
        return lacks("block devices of the kind loop");
    };
    for point in POINTS {
        // Major number 7 belongs to the virtual consoles' memory among the character devices.
        let keys = [&format!("nvidia={LOOP_MAJOR}"), TUN_KEY];
        let Some(kernel) = probes(&keys, Asked::None, Some(point)) else { return };
        assert!(ioctl(fd(&block), RM_CONTROL) < 0);
        assert_eq!(ioctl(fd(&open(TUN)), SUCCESS), 0);
        let counted = counted(&kernel, std::process::id());
        let shown: Vec<_> = counted.iter().map(|(key, value)| (key.command, value.calls)).collect();
        assert_eq!(shown, [(SUCCESS as u32, 1)], "{point:?}");
        assert_eq!(kernel.totals().untimed, 0);
    }
}

/// Number 16 is lchown for 32-bit programs and ioctl for others. Number 54 is ioctl for 32-bit
/// programs and setsockopt for others.
const COMPAT_LCHOWN: u64 = 16;
const COMPAT_IOCTL: u64 = 54;

/// Makes a system call in the way of a 32-bit program, in a child process. `arguments` are the
/// call's first three arguments. `elsewhere` are the values for the registers in which a 64-bit
/// program has its first three arguments. Returns the child's id; `None` if the kernel has no such
/// calls.
fn compat_call(call: u64, arguments: [u32; 3], elsewhere: [u64; 3]) -> Option<u32> {
    let [first, second, third] = arguments.map(u64::from);
    let [di, si, dx] = elsewhere;
    let third = if dx == 0 { third } else { dx };
    // SAFETY: the child makes two system calls and nothing else.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: the call changes no memory: the path is invalid, and the device gets no buffer.
        unsafe {
            std::arch::asm!(
                "xchg {first}, rbx",
                "int 0x80",
                "xchg {first}, rbx",
                first = inout(reg) first => _,
                inout("rax") call => _,
                in("rcx") second,
                in("rdx") third,
                in("rdi") di,
                in("rsi") si,
                out("r8") _, out("r9") _, out("r10") _, out("r11") _,
            );
            libc::_exit(0);
        }
    }
    let mut status = 0;
    // SAFETY: the call writes one number, for which there is room.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    // If the kernel has no such calls, the child dies.
    (status == 0).then_some(child as u32)
}

#[test]
fn calls_of_32_bit_programs_are_left_out_and_taken_for_no_others() {
    let _alone = alone();
    let tun = open(TUN);
    let descriptor = fd(&tun) as u32;
    for point in POINTS {
        let Some(kernel) = probes(&[TUN_KEY], Asked::None, Some(point)) else { return };
        let registers = [u64::from(descriptor), SUCCESS, 0];
        let Some(changed_owner) = compat_call(COMPAT_LCHOWN, [0; 3], registers) else {
            return lacks("a kernel that runs 32-bit programs");
        };
        let asked = compat_call(COMPAT_IOCTL, [descriptor, SUCCESS as u32, 0], [0; 3]).unwrap();
        assert_eq!(counted(&kernel, changed_owner), [], "{point:?}: what it asked for is no ioctl");
        assert_eq!(counted(&kernel, asked), [], "{point:?}");
        assert_eq!(kernel.totals().untimed, 0);
        // The same call by a 64-bit program.
        assert_eq!(ioctl(fd(&tun), SUCCESS), 0);
        assert_eq!(of_command(&kernel, std::process::id(), SUCCESS).unwrap().calls, 1, "{point:?}");
    }
}

#[test]
fn calls_without_room_are_counted_together_and_new_processes_are_still_reported() {
    let _alone = alone();
    // There is no room for so many processes with so many commands each.
    const PROCESSES: u64 = 48;
    const COMMANDS: u64 = COMMANDS_APART as u64;
    let script = format!(
        "import fcntl, os\n\
         for _ in range({PROCESSES}):\n\
         \x20if os.fork() == 0:\n\
         \x20 f = open({FUSE:?}, 'r+b', 0)\n\
         \x20 for index in range({COMMANDS}):\n\
         \x20  try: fcntl.ioctl(f, 0xc0004600 | index << 16 | index)\n\
         \x20  except OSError: pass\n\
         \x20 os._exit(0)\n\
         for _ in range({PROCESSES}): os.wait()"
    );
    let Some(mut kernel) = probes(&[FUSE_KEY], Asked::None, None) else { return };
    let mut news = kernel.take_news().unwrap();
    assert!(Command::new("python3").args(["-c", &script]).status().unwrap().success());
    let calls: u64 = kernel.stats().iter().map(|(_, value)| value.calls).sum();
    let totals = kernel.totals();
    assert!(totals.unattributed > 0);
    assert_eq!(calls + totals.unattributed, PROCESSES * COMMANDS, "none is lost without being counted");
    assert_eq!(std::iter::from_fn(|| news.pop()).count() as u64, PROCESSES);
}

#[test]
fn a_new_process_is_reported_at_once() {
    let _alone = alone();
    let Some(mut kernel) = probes(&[TUN_KEY], Asked::None, None) else { return };
    let mut news = kernel.take_news().unwrap();
    let file = open(TUN);
    assert_eq!(ioctl(fd(&file), SUCCESS), 0);
    assert_eq!(ioctl(fd(&file), SUCCESS), 0);
    let told: Vec<_> =
        std::iter::from_fn(|| news.pop()).filter(|news| news.key.pid == std::process::id()).collect();
    assert_eq!(told.len(), 1, "once for each process and kind of device");
    assert_eq!(told[0].key.family, Family::Uvm as u32);
}

/// Returns a lock. A test with the lock runs alone, because all tests watch the same process.
pub fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
