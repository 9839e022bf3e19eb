//! The client's side of MPS. At cuInit, the process joins the server of an MPS control daemon, if a
//! daemon runs. Otherwise the process runs without MPS.
//!
//! The control daemon is `src/bin/nvidia-cuda-mps-control.rs`. The daemon listens on a socket in
//! the pipe directory. Clients and the control program send one line, and the daemon answers.
use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use simgpu_engine::{ALL_SMS_PPM, Host};

use crate::process;
use crate::status::{self, Result};

/// The variable that names the pipe directory (NVIDIA's MPS guide).
const PIPE_DIRECTORY_VARIABLE: &str = "CUDA_MPS_PIPE_DIRECTORY";
/// If this variable is set, the process joins no server, and the driver tells the process that it
/// is a client of MPS. Tests make false reports in this way.
const FALSE_CLIENT_VARIABLE: &str = "SIMGPU_FALSE_MPS_CLIENT";
/// The daemon's socket in the pipe directory.
pub const SOCKET: &str = "control";
/// The line of a client: this word and the directory of the GPUs' state. The answer is the server's
/// number and its percentage.
pub const JOIN: &str = "join";
/// The answer to a client whose GPUs are not the server's.
pub const ELSEWHERE: &str = "elsewhere";
/// The answer to a client that has to wait, because the server has clients of another user.
pub const WAIT: &str = "wait";
/// The time after which a client that has to wait asks again.
const ASKS_AGAIN_AFTER: Duration = Duration::from_millis(20);
/// Time within which the daemon answers. A server can have to start first.
const ANSWERS_WITHIN: Duration = Duration::from_secs(20);
const WHOLE_PERCENT: f64 = 100.0;

/// The number of SMs that this client can use. Not set: the process is no client.
static SMS: OnceLock<u32> = OnceLock::new();

/// Returns the pipe directory that the environment names. There is no default, because a control
/// daemon of real GPUs can listen in NVIDIA's `/tmp/nvidia-mps`.
pub fn pipe_directory() -> io::Result<PathBuf> {
    let directory = std::env::var_os(PIPE_DIRECTORY_VARIABLE).filter(|directory| !directory.is_empty());
    directory.map(PathBuf::from).ok_or_else(|| {
        io::Error::other(format!("{PIPE_DIRECTORY_VARIABLE} is not set, and simgpu has no default for it"))
    })
}

/// Returns the percentage of a text, above 0 and at most 100.
pub fn percentage(text: &str) -> Option<f64> {
    text.trim().parse().ok().filter(|percent| *percent > 0.0 && *percent <= WHOLE_PERCENT)
}

/// Returns the percentage in this process's environment; without one, 100.
pub fn own_percentage() -> f64 {
    let variable = std::env::var("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
    variable.ok().and_then(|text| percentage(&text)).unwrap_or(WHOLE_PERCENT)
}

/// Connects to the control daemon.
pub fn connect() -> io::Result<UnixStream> {
    let daemon = UnixStream::connect(pipe_directory()?.join(SOCKET))?;
    daemon.set_read_timeout(Some(ANSWERS_WITHIN))?;
    Ok(daemon)
}

/// Sends a line to the daemon, and returns the answer.
pub fn ask(mut daemon: &UnixStream, line: &str) -> io::Result<String> {
    writeln!(daemon, "{line}")?;
    let mut answer = String::new();
    daemon.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Joins the server of the control daemon, if a daemon runs for these GPUs. Waits while the server
/// has clients of another user, unless the server is for all users.
pub fn join(host: &Host) -> Result<()> {
    if is_false_client() {
        return Ok(());
    }
    let directory = host.directory().canonicalize().unwrap_or_else(|_| host.directory().to_owned());
    let line = format!("{JOIN} {}", directory.display());
    let answer = loop {
        let Ok(daemon) = connect() else { return Ok(()) };
        let answer = ask(&daemon, &line).map_err(|_| status::MPS_CONNECTION_FAILED)?;
        if answer.trim() != WAIT {
            break answer;
        }
        thread::sleep(ASKS_AGAIN_AFTER);
    };
    if answer.trim() == ELSEWHERE {
        return Ok(());
    }
    let (number, percent) = answer.trim().split_once(' ').ok_or(status::MPS_SERVER_NOT_READY)?;
    let number = number.parse().map_err(|_| status::MPS_SERVER_NOT_READY)?;
    // A client's environment can only lower the server's percentage.
    let percent = percentage(percent).unwrap_or(WHOLE_PERCENT).min(own_percentage());
    let all = host.config().sm_count;
    let sms = sms_of(percent, all);
    let limit_ppm = u64::from(ALL_SMS_PPM) * u64::from(sms) / u64::from(all);
    host.join(number, limit_ppm as u32).map_err(|_| status::MPS_SERVER_NOT_READY)?;
    SMS.get_or_init(|| sms);
    Ok(())
}

/// Returns the SMs of a percentage. NVIDIA's MPS guide says that the driver rounds down to a number
/// that the hardware supports; here, any number from 1 on is supported.
fn sms_of(percent: f64, all: u32) -> u32 {
    ((f64::from(all) * percent / WHOLE_PERCENT) as u32).clamp(1, all)
}

/// Returns how many of `all` SMs of a GPU this process can use.
pub fn sms(all: u32) -> u32 {
    SMS.get().copied().unwrap_or(all)
}

/// Returns whether the driver tells this process that it is a client of MPS.
pub fn tells_client() -> bool {
    SMS.get().is_some() || is_false_client()
}

fn is_false_client() -> bool {
    std::env::var_os(FALSE_CLIENT_VARIABLE).is_some()
}

/// Returns an error if this process is a client whose server has ended. The process then cannot use
/// the GPUs any more.
#[inline]
pub fn check_server() -> Result<()> {
    let is_lost = SMS.get().is_some() && process::host().has_lost_server();
    status::refuse_as(is_lost, status::MPS_RPC_FAILURE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentage_is_rounded_down_to_whole_sms() {
        assert_eq!([40.0, 100.0, 0.1, 1.6].map(|percent| sms_of(percent, 132)), [52, 132, 1, 2]);
    }

    #[test]
    fn only_percentages_of_a_part_are_read() {
        assert_eq!(percentage(" 12.5\n"), Some(12.5));
        assert!(["0", "101", "-3", "NaN", "much", ""].into_iter().all(|text| percentage(text).is_none()));
    }
}
