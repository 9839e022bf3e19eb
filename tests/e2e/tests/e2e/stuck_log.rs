//! If nobody reads the daemon's log (a full pipe, a journal that hangs), the daemon serves jobs as
//! usual.

use std::io::{PipeReader, PipeWriter, Read as _, Write as _, pipe};
use std::process::Child;

use deepres_e2e::prelude::*;
use rustix::io::ioctl_fionbio;
use rustix::process::{Pid, kill_process};

/// Time limit for the daemon's start and for its end.
const LIMIT: Duration = Duration::from_secs(10);

/// Returns a pipe that is full.
fn stuck() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = pipe().expect("a pipe");
    ioctl_fionbio(&writer, true).expect("a pipe of ours");
    while writer.write(&[b'x'; 1 << 10]).is_ok() {}
    while writer.write(b"\n").is_ok() {}
    ioctl_fionbio(&writer, false).expect("a pipe of ours");
    (reader, writer)
}

/// A daemon that is killed when the test ends.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_daemon_whose_log_nobody_reads_serves_and_ends_as_any_other() {
    let host = Host::new();
    let (mut reader, writer) = stuck();
    let mut command = host.deepres(&["daemon"]);
    let mut daemon =
        Daemon(command.env("DEEPRES_LOG", "trace").stderr(writer).spawn().expect("the daemon starts"));
    // The command still holds the writing end of the pipe.
    drop(command);
    eventually_within("the daemon answers", LIMIT, || host.call(&["ps", "--json"]).code == 0);
    let client = c_client("hello");
    for tenant in ["first", "second"] {
        host.finish(host.run(&["--name", tenant, "--memory", "64MiB"], &client, &[])).success();
    }
    let pid = Pid::from_child(&daemon.0);
    kill_process(pid, Signal::TERM).expect("it runs");
    let has_ended = || daemon.0.try_wait().expect("a child of ours").is_some();
    eventually_within("the daemon ends", LIMIT, has_ended);
    let mut said = Vec::new();
    reader.read_to_end(&mut said).expect("a pipe of ours");
    assert!(said.iter().all(|byte| b"x\n".contains(byte)), "it was stuck all the time");
}
