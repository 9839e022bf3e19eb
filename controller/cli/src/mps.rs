//! Parts of the SMs (`--sm`), by which NVIDIA's MPS bounds a process. The driver reads the part from
//! a variable when the process first uses CUDA.

use deepres_abi::quantity::parse_share;
use deepres_model::wish::Value;
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

/// The variable of NVIDIA's driver, a percentage without a sign.
const PERCENTAGE_VARIABLE: &str = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";
/// The variable that names the directory of the MPS control daemon.
const DIRECTORY_VARIABLE: &str = "CUDA_MPS_PIPE_DIRECTORY";
/// The directory of the MPS control daemon if the variable names none (NVIDIA's MPS guide).
const DEFAULT_DIRECTORY: &str = "/tmp/nvidia-mps";
/// The file in the directory with the process id of the MPS control daemon. The daemon removes the
/// file when it ends in order, but not its socket.
const PID_FILE: &str = "nvidia-cuda-mps-control.pid";
const MAX_PID_FILE_BYTES: u64 = 32;
/// NVIDIA's program, which passes commands to the MPS control daemon.
const CONTROL_PROGRAM: &str = "nvidia-cuda-mps-control";
/// Time within which the program answers a command.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);
/// Time between two looks whether the program has answered.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// The name of the MPS control daemon's process, as far as the kernel keeps it.
const CONTROL_NAME: &str = "nvidia-cuda-mps";

/// Returns the driver's variable for a part of the SMs, parts per million.
pub fn variable(sm_ppm: u32) -> (&'static str, String) {
    let percent = Value::Share(sm_ppm).to_string();
    (PERCENTAGE_VARIABLE, percent.trim_end_matches('%').to_owned())
}

/// Says in one line why a job has another part of the SMs than it asked for, if so.
/// `granted_ppm` is the part that the daemon granted, parts per million.
pub fn tell_of_another_part(granted_ppm: Option<u32>) {
    let Some(granted_ppm) = granted_ppm else {
        eprintln!(
            "deepres: --sm has no effect: the daemon granted no part (`mps = \"off\"`, or an older daemon)"
        );
        return;
    };
    if let Err(directory) = running() {
        eprintln!(
            "deepres: --sm has no effect: no MPS control daemon runs in {}; start it by `nvidia-cuda-mps-control -d`, or set {DIRECTORY_VARIABLE}",
            directory.display()
        );
    } else if let Some(ceiling) = ceiling_below(granted_ppm) {
        eprintln!("deepres: {ceiling}, so the job has less than {}", Value::Share(granted_ppm));
    }
}

/// Says which percentage of the MPS server binds each client, if this percentage is below a part,
/// parts per million. Returns `None` too if the control program does not tell.
pub fn ceiling_below(ppm: u32) -> Option<String> {
    let of_servers = ask("get_server_list")?;
    let of_servers = of_servers.split_whitespace().filter(|pid| pid.parse::<u32>().is_ok());
    let of_servers = of_servers.filter_map(|pid| share_ppm(&format!("get_active_thread_percentage {pid}")));
    // Without a server, the next client starts a server with the default.
    let ceiling_ppm = of_servers.max().or_else(|| share_ppm("get_default_active_thread_percentage"))?;
    (ceiling_ppm < ppm).then(|| {
        format!(
            "the MPS server gives each client at most {} of the SMs (`set_active_thread_percentage`)",
            Value::Share(ceiling_ppm)
        )
    })
}

/// Returns the part with which the MPS control daemon answers a command, parts per million.
fn share_ppm(command: &str) -> Option<u32> {
    parse_share(&ask(command)?)
}

/// Returns the answer of the MPS control daemon to a command; `None` if the control program is
/// missing or does not answer.
fn ask(command: &str) -> Option<String> {
    let mut program = Command::new(CONTROL_PROGRAM)
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

/// Returns the directory in which the driver looks for an MPS control daemon: `Ok` if a daemon runs
/// there, else `Err`.
pub fn running() -> Result<PathBuf, PathBuf> {
    let directory = match env::var_os(DIRECTORY_VARIABLE) {
        Some(directory) if !directory.is_empty() => directory.into(),
        _ => PathBuf::from(DEFAULT_DIRECTORY),
    };
    if runs(&directory) { Ok(directory) } else { Err(directory) }
}

/// Returns whether an MPS control daemon runs in the directory.
fn runs(directory: &Path) -> bool {
    let text = noted(&directory.join(PID_FILE)).unwrap_or_default();
    let pid = text.trim().parse::<u32>().ok().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
    pid.is_some_and(|pid| {
        // Another process may have the number of a daemon that was killed. The system may hide the
        // name of another user's process.
        let name = fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_nonzero()));
        // The daemon may belong to another user.
        name.map_or(true, |name| name.trim_end() == CONTROL_NAME)
            && matches!(test_kill_process(pid), Ok(()) | Err(Errno::PERM))
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_given_to_the_driver_as_a_percentage() {
        for (ppm, percentage) in [(400_000, "40"), (12_500, "1.25"), (1_000_000, "100")] {
            assert_eq!(variable(ppm), (PERCENTAGE_VARIABLE, percentage.to_owned()));
        }
    }

    #[test]
    fn a_control_daemon_is_found_by_its_living_process() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!runs(folder.path()));
        let note = |text: &str| fs::write(folder.path().join(PID_FILE), text).unwrap();
        let program = folder.path().join("nvidia-cuda-mps-control");
        std::os::unix::fs::symlink("/bin/sleep", &program).unwrap();
        let mut daemon = Command::new(&program).arg("100").spawn().unwrap();
        note(&format!("{}\n", daemon.id()));
        // The kernel lets `spawn` return before it gives the process its new name.
        let patience = Instant::now() + Duration::from_secs(10);
        while !runs(folder.path()) {
            assert!(Instant::now() < patience, "the daemon is not found");
            thread::yield_now();
        }
        let file = folder.path().join(PID_FILE);
        fs::rename(&file, folder.path().join("elsewhere")).unwrap();
        std::os::unix::fs::symlink("elsewhere", &file).unwrap();
        assert!(!runs(folder.path()), "a link may lead anywhere");
        fs::remove_file(&file).unwrap();
        daemon.kill().unwrap();
        daemon.wait().unwrap();
        note(&format!("{}\n", daemon.id()));
        assert!(!runs(folder.path()), "it has ended");
        note(&format!("{}\n", std::process::id()));
        assert!(!runs(folder.path()), "another process has its number");
        for text in ["", "0", "-1", "x", "4194305"] {
            note(text);
            assert!(!runs(folder.path()), "{text}");
        }
    }
}
