//! The MPS control daemon of a directory: finding the daemon, and asking it by NVIDIA's control
//! program.

use crate::process::{self, ProcessKey};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::{Pid, geteuid, test_kill_process};
use std::env;
use std::ffi::OsStr;
use std::fs::{self, Metadata, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The variable that names the directory of the MPS control daemon.
pub const PIPES_VARIABLE: &str = "CUDA_MPS_PIPE_DIRECTORY";
/// The variable that names the directory of the logs of MPS.
pub const LOGS_VARIABLE: &str = "CUDA_MPS_LOG_DIRECTORY";
/// The directory of the MPS control daemon if the variable names none (NVIDIA's MPS guide).
pub const DEFAULT_PIPES: &str = "/tmp/nvidia-mps";
/// NVIDIA's program: the MPS control daemon, and the program that passes commands to the daemon.
pub const CONTROL_PROGRAM: &str = "nvidia-cuda-mps-control";
/// The file in the directory with the process id of the MPS control daemon. The daemon removes the
/// file when it ends in order, but not its socket.
const PID_FILE: &str = "nvidia-cuda-mps-control.pid";
const MAX_PID_FILE_BYTES: u64 = 32;
/// The name of the MPS control daemon's process, as far as the kernel keeps it.
const CONTROL_NAME: &str = "nvidia-cuda-mps";
/// Bits of a file's mode: all users may write, and only an entry's owner may replace the entry.
const OTHERS_WRITE: u32 = 0o002;
const STICKY: u32 = 0o1000;
/// Time within which the program answers a command.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);
/// Time between two looks whether the program has answered.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Returns the directory that this process's environment names for a variable of MPS.
pub fn named(variable: &str) -> Option<PathBuf> {
    env::var_os(variable).filter(|directory| !directory.is_empty()).map(PathBuf::from)
}

/// Returns whether root or this user owns a file or a process.
fn is_trusted(about: &Metadata) -> bool {
    [0, geteuid().as_raw()].contains(&about.uid())
}

/// Returns the control program for a start. Root takes the program from the PATH only if root owns
/// it and all its folders, because a user may have set the PATH.
///
/// # Errors
/// [`io::ErrorKind::NotFound`].
pub fn control_program() -> io::Result<PathBuf> {
    if !geteuid().is_root() {
        return Ok(CONTROL_PROGRAM.into());
    }
    let folders = env::var_os("PATH").unwrap_or_default();
    roots_program(&folders).ok_or_else(|| {
        io::Error::new(io::ErrorKind::NotFound, "no folder of PATH has this program with root as its owner")
    })
}

/// Returns the first control program in these folders that only root can replace.
fn roots_program(folders: &OsStr) -> Option<PathBuf> {
    let is_roots = |path: &Path| {
        let is_safe = |about: Metadata| {
            let is_open = about.mode() & OTHERS_WRITE != 0 && about.mode() & STICKY == 0;
            about.uid() == 0 && !is_open
        };
        path.ancestors().all(|part| fs::metadata(part).is_ok_and(is_safe))
    };
    env::split_paths(folders).find_map(|folder| {
        let program = folder.canonicalize().ok()?.join(CONTROL_PROGRAM);
        // A link keeps its name, by which the process is found later.
        let real = program.canonicalize().ok()?;
        (is_roots(&real) && program.parent().is_some_and(is_roots)).then_some(program)
    })
}

/// Returns the process id of the MPS control daemon that runs in the directory.
pub fn control_daemon(directory: &Path) -> Option<u32> {
    // Any user can make a directory where all users write.
    fs::metadata(directory).ok().filter(is_trusted)?;
    let text = noted(&directory.join(PID_FILE)).unwrap_or_default();
    let number = text.trim().parse::<u32>().ok()?;
    let pid = Pid::from_raw(i32::try_from(number).ok()?)?;
    // Another process can have the number of a daemon that was killed. All users may write to the
    // file, because NVIDIA's daemon makes it so.
    let lives = match process::text(number, "comm") {
        Some(name) => {
            let owner = fs::metadata(format!("/proc/{number}"));
            name.trim_end() == CONTROL_NAME
                && owner.is_ok_and(|owner| is_trusted(&owner))
                && ProcessKey::of(number).is_some()
        }
        // The system can hide another user's process (hidepid), and the daemon can be root's. This
        // process may send no signal to a process of root.
        None => test_kill_process(pid) == Err(Errno::PERM),
    };
    lives.then_some(number)
}

/// Returns the text of the file that notes the daemon's process. Any user may have made the
/// directory, so the file counts only if it is a plain file of root or of this user.
fn noted(file: &Path) -> io::Result<String> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(file)?;
    let about = file.metadata()?;
    let mut text = String::new();
    if about.is_file() && is_trusted(&about) {
        file.take(MAX_PID_FILE_BYTES).read_to_string(&mut text)?;
    }
    Ok(text)
}

/// Returns the answer of the MPS control daemon in the directory to a command; `None` if the
/// control program is missing or does not answer.
pub fn ask(directory: &Path, command: &str) -> Option<String> {
    ask_until(directory, command, Instant::now() + ANSWERS_WITHIN)
}

/// Asks as [`ask`] does, and waits for the answer until `deadline`.
pub fn ask_until(directory: &Path, command: &str, deadline: Instant) -> Option<String> {
    let mut program = Command::new(control_program().ok()?)
        .env(PIPES_VARIABLE, directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    // A program that has ended already reads nothing.
    let _ = program.stdin.take().map(|mut commands| writeln!(commands, "{command}"));
    while program.try_wait().ok()?.is_none() {
        if Instant::now() > deadline {
            let _ = program.kill();
            let _ = program.wait();
            return None;
        }
        thread::sleep(LOOK_EVERY);
    }
    let mut answer = String::new();
    program.stdout.take()?.read_to_string(&mut answer).ok()?;
    Some(answer)
}

/// Returns the process ids in an answer of the MPS control daemon, which has one a line. Another
/// line is a message.
pub fn numbers(answer: &str) -> impl Iterator<Item = u32> {
    answer.lines().filter_map(|pid| pid.trim().parse().ok())
}

/// Returns the number of clients of all servers of the MPS control daemon in the directory. Returns
/// `None` if the control program does not tell until `deadline`.
pub fn clients(directory: &Path, deadline: Instant) -> Option<usize> {
    let ask = |command: &str| ask_until(directory, command, deadline);
    let servers = ask("get_server_list")?;
    let of_server = |pid: u32| Some(numbers(&ask(&format!("get_client_list {pid}"))?).count());
    numbers(&servers).map(of_server).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_control_daemon_is_found_by_its_living_process() {
        let folder = tempfile::tempdir().unwrap();
        let runs = || control_daemon(folder.path()).is_some();
        assert!(!runs());
        let note = |text: &str| fs::write(folder.path().join(PID_FILE), text).unwrap();
        let program = folder.path().join(CONTROL_PROGRAM);
        std::os::unix::fs::symlink("/bin/sleep", &program).unwrap();
        let mut daemon = Command::new(&program).arg("100").spawn().unwrap();
        note(&format!("{}\n", daemon.id()));
        // The kernel lets `spawn` return before it gives the process its new name.
        let patience = Instant::now() + Duration::from_secs(10);
        while control_daemon(folder.path()) != Some(daemon.id()) {
            assert!(Instant::now() < patience, "the daemon is not found");
            thread::yield_now();
        }
        if geteuid().is_root() {
            is_not_trusted_with_another_user(folder.path(), &program);
            note(&format!("{}\n", daemon.id()));
            assert!(runs());
        }
        let file = folder.path().join(PID_FILE);
        fs::rename(&file, folder.path().join("elsewhere")).unwrap();
        std::os::unix::fs::symlink("elsewhere", &file).unwrap();
        assert!(!runs(), "a link may lead anywhere");
        fs::remove_file(&file).unwrap();
        note(&format!("{}\n", daemon.id()));
        assert!(runs());
        daemon.kill().unwrap();
        // Nobody has waited for the daemon, so its number is still its own.
        let patience = Instant::now() + Duration::from_secs(10);
        while runs() {
            assert!(Instant::now() < patience, "a dead daemon counts as living");
            thread::yield_now();
        }
        daemon.wait().unwrap();
        note(&format!("{}\n", daemon.id()));
        assert!(!runs(), "it has ended");
        note(&format!("{}\n", std::process::id()));
        assert!(!runs(), "another process has its number");
        for text in ["", "0", "-1", "x", "4194305"] {
            note(text);
            assert!(!runs(), "{text}");
        }
    }

    /// Checks that a control daemon does not count if its directory or its process is another
    /// user's.
    fn is_not_trusted_with_another_user(folder: &Path, program: &Path) {
        use std::os::unix::fs::{PermissionsExt as _, chown};
        use std::os::unix::process::CommandExt as _;
        const ANOTHER: u32 = 65_534;
        chown(folder, Some(ANOTHER), None).unwrap();
        assert_eq!(control_daemon(folder), None, "the directory is another user's");
        chown(folder, Some(0), None).unwrap();
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
        let mut daemon = Command::new(program).arg("100").uid(ANOTHER).spawn().unwrap();
        fs::write(folder.join(PID_FILE), daemon.id().to_string()).unwrap();
        let name = format!("/proc/{}/comm", daemon.id());
        while fs::read_to_string(&name).unwrap().trim_end() != CONTROL_NAME {
            thread::yield_now();
        }
        assert_eq!(control_daemon(folder), None, "the process is another user's");
        daemon.kill().unwrap();
        daemon.wait().unwrap();
    }

    #[test]
    fn only_root_s_own_program_is_a_program_for_root() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(CONTROL_PROGRAM), "").unwrap();
        let is_taken = |mode: u32| {
            fs::set_permissions(folder.path(), fs::Permissions::from_mode(mode)).unwrap();
            roots_program(folder.path().as_os_str()).is_some()
        };
        let safe = is_taken(0o700);
        assert_eq!((safe, is_taken(0o777)), (geteuid().is_root(), false));
        assert_eq!(roots_program(OsStr::new("/nowhere")), None);
    }

    #[test]
    fn a_message_in_an_answer_has_no_process_ids() {
        assert_eq!(numbers("12\n 7 \nNo MPS server has PID 5\n").collect::<Vec<_>>(), [12, 7]);
    }
}
