//! The MPS control daemon of a directory: finding the daemon, and asking it by NVIDIA's control
//! program.

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::{Pid, geteuid, test_kill_process};
use std::env;
use std::fs::{self, OpenOptions};
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
/// Time within which the program answers a command.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);
/// Time between two looks whether the program has answered.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Returns the directory that this process's environment names for a variable of MPS.
pub fn named(variable: &str) -> Option<PathBuf> {
    env::var_os(variable).filter(|directory| !directory.is_empty()).map(PathBuf::from)
}

/// Returns the process id of the MPS control daemon that runs in the directory.
pub fn control_daemon(directory: &Path) -> Option<u32> {
    let text = noted(&directory.join(PID_FILE)).unwrap_or_default();
    let number = text.trim().parse::<u32>().ok()?;
    let pid = Pid::from_raw(i32::try_from(number).ok()?)?;
    // Another process may have the number of a daemon that was killed. The system may hide the name
    // of another user's process.
    let name = fs::read_to_string(format!("/proc/{number}/comm"));
    // The daemon may belong to another user.
    let lives = name.map_or(true, |name| name.trim_end() == CONTROL_NAME)
        && matches!(test_kill_process(pid), Ok(()) | Err(Errno::PERM));
    lives.then_some(number)
}

/// Returns the text of the file that notes the daemon's process. Any user may have made the
/// directory, so the file counts only if it is a plain file of root or of this user.
fn noted(file: &Path) -> io::Result<String> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(file)?;
    let about = file.metadata()?;
    let is_trusted = about.is_file() && [0, geteuid().as_raw()].contains(&about.uid());
    let mut text = String::new();
    if is_trusted {
        file.take(MAX_PID_FILE_BYTES).read_to_string(&mut text)?;
    }
    Ok(text)
}

/// Returns the answer of the MPS control daemon in the directory to a command; `None` if the control
/// program is missing or does not answer.
pub fn ask(directory: &Path, command: &str) -> Option<String> {
    let mut program = Command::new(CONTROL_PROGRAM)
        .env(PIPES_VARIABLE, directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let asked = Instant::now();
    // A program that has ended already reads nothing.
    let _ = program.stdin.take().map(|mut commands| writeln!(commands, "{command}"));
    while program.try_wait().ok()?.is_none() {
        if asked.elapsed() > ANSWERS_WITHIN {
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

/// Returns the process ids in an answer of the MPS control daemon.
pub fn numbers(answer: &str) -> impl Iterator<Item = u32> {
    answer.split_whitespace().filter_map(|pid| pid.parse().ok())
}

/// Returns the number of clients of all servers of the MPS control daemon in the directory; `None` if
/// the control program does not tell.
pub fn clients(directory: &Path) -> Option<usize> {
    let servers = ask(directory, "get_server_list")?;
    let of_server = |pid: u32| Some(numbers(&ask(directory, &format!("get_client_list {pid}"))?).count());
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
        let file = folder.path().join(PID_FILE);
        fs::rename(&file, folder.path().join("elsewhere")).unwrap();
        std::os::unix::fs::symlink("elsewhere", &file).unwrap();
        assert!(!runs(), "a link may lead anywhere");
        fs::remove_file(&file).unwrap();
        daemon.kill().unwrap();
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
}
