//! MPS with real processes: a control daemon, its servers, and clients that run kernels at once.
#[macro_use]
mod common;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use common::*;
use simgpu_engine::truth;

/// Time of the kernel `busy` on all SMs.
const KERNEL_US: u64 = 1000;
/// Kernels that run while a client launches those that the test measures. So a client without a CPU
/// leaves no gap between them.
const AHEAD: u64 = 50;
const CONFIG: &str = "sm_count = 100\nlaunch_overhead_ns = 0\n\
                      kernel = [{ name = \"busy\", ns = 1000000, sm_ppm = 1000000 }]\n";
const BUSY: &std::ffi::CStr = c"
.version 8.5
.target sm_90
.address_size 64
.visible .entry busy() { ret; }
";

fn lives(pid: u32) -> bool {
    // A zombie has ended.
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

/// Kills one of the test's processes. Returns whether the process lived.
fn kill(pid: u32) -> bool {
    // SAFETY: the process is one of this test's own.
    unsafe { libc::kill(pid as i32, libc::SIGKILL) == 0 }
}

/// GPUs of their own, and a control daemon for them.
struct Mps {
    daemon: Child,
    directory: tempfile::TempDir,
}

impl Mps {
    fn start() -> Self {
        Self::start_with("", &[])
    }

    /// Starts the daemon with these options beside `-f`, for GPUs with these keys beside those of
    /// [`CONFIG`]. All users may use the GPUs.
    fn start_with(keys: &str, options: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let state = directory.path().join("state");
        fs::create_dir(&state).expect("a new directory");
        for (folder, mode) in [(directory.path(), 0o755), (state.as_path(), 0o777)] {
            fs::set_permissions(folder, fs::Permissions::from_mode(mode)).expect("a directory of our own");
        }
        let config = format!("{keys}{CONFIG}");
        fs::write(directory.path().join("config.toml"), config).expect("a configuration");
        let daemon = control(directory.path()).arg("-f").args(options).spawn().expect("the daemon");
        let mps = Self { daemon, directory };
        await_that("the daemon listens", || mps.pid_file().exists());
        mps
    }

    /// Lets a command find the GPUs and the daemon of a directory.
    fn with(command: &mut Command, directory: &Path) {
        command.env("SIMGPU_STATE", directory.join("state"));
        command.env("SIMGPU_CONFIG", directory.join("config.toml"));
        command.env("CUDA_MPS_PIPE_DIRECTORY", directory.join("pipe"));
        command.env_remove("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
    }

    fn pid_file(&self) -> std::path::PathBuf {
        self.directory.path().join("pipe/nvidia-cuda-mps-control.pid")
    }

    /// Returns the control program's answer to a command.
    fn ask(&self, line: &str) -> String {
        let mut command = control(self.directory.path());
        let mut asker =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the control program");
        writeln!(asker.stdin.take().expect("piped"), "{line}").expect("it reads");
        let answer = asker.wait_with_output().expect("it ends");
        String::from_utf8(answer.stdout).expect("text").trim().to_owned()
    }

    fn server(&self) -> u32 {
        self.ask("get_server_list").parse().expect("one server")
    }

    fn client(&self, percentage: Option<&str>) -> Other {
        self.process(|command| {
            command.envs(percentage.map(|percentage| ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", percentage)));
        })
    }

    /// Returns a process that finds no control daemon.
    fn process_without_mps(&self) -> Other {
        self.process(|command| self.hide(command))
    }

    /// Keeps a process from finding the control daemon.
    fn hide(&self, command: &mut Command) {
        command.env("CUDA_MPS_PIPE_DIRECTORY", self.directory.path().join("nothing"));
    }

    fn process(&self, prepare: impl FnOnce(&mut Command)) -> Other {
        let mut other = self.process_before_cuda(prepare);
        assert_eq!(other.ask("begin"), u64::from(CUDA_SUCCESS));
        other
    }

    /// Returns a process that has not called cuInit yet.
    fn process_before_cuda(&self, prepare: impl FnOnce(&mut Command)) -> Other {
        Other::start("the_client", |command| {
            Self::with(command, self.directory.path());
            prepare(command);
        })
    }

    /// Returns the number of clients of the server.
    fn client_count(&self) -> usize {
        self.ask(&format!("get_client_list {}", self.server())).lines().count()
    }

    /// Returns the ground truth of a process on the GPU.
    fn truth(&self, pid: u32) -> truth::ProcessGpu {
        let snapshot = truth::snapshot(&self.directory.path().join("state")).expect("a state");
        snapshot.processes.iter().find(|process| process.pid == pid).expect("it attached").gpus[0]
    }

    fn gpu(&self) -> truth::Gpu {
        truth::snapshot(&self.directory.path().join("state")).expect("a state").gpus[0]
    }
}

impl Drop for Mps {
    fn drop(&mut self) {
        // The clients have ended, so the server ends by itself.
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
        let noted = fs::read_to_string(self.pid_file()).unwrap_or_default();
        if let Some(in_background) = noted.parse().ok().filter(|pid| *pid != self.daemon.id()) {
            kill(in_background);
        }
    }
}

/// Returns the control program for the daemon of a directory.
fn control(directory: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nvidia-cuda-mps-control"));
    Mps::with(&mut command, directory);
    command
}

/// Lets a process run kernels, and returns their time by events, us.
fn run(other: &mut Other, kernels: u64) -> u64 {
    assert_eq!(other.ask(&format!("launch {kernels}")), 0);
    assert_eq!(other.ask("wait"), 0);
    other.ask("elapsed")
}

/// Launches kernels between two events, after [`AHEAD`] kernels.
fn launch_between(kernel: CUfunction, [first, last]: [CUevent; 2], kernels: u64) -> u32 {
    let none = std::ptr::null_mut();
    let launched = |count| (0..count).map(|_| code!(launch(kernel, none))).max().unwrap_or(CUDA_SUCCESS);
    let codes = [
        launched(AHEAD),
        code!(cuEventRecord(first, none)),
        launched(kernels),
        code!(cuEventRecord(last, none)),
    ];
    codes.into_iter().max().unwrap_or(CUDA_SUCCESS)
}

#[test]
#[ignore = "does nothing by itself: the other tests start it"]
fn the_client() {
    let (mut kernel, mut events) = (std::ptr::null_mut(), [std::ptr::null_mut(); 2]);
    obey(|words| match words[..] {
        ["begin"] => {
            let (mut code, mut context) = (code!(cuInit(0)), std::ptr::null_mut());
            if code == CUDA_SUCCESS {
                code = code!(cuCtxCreate_v2(&mut context, 0, 0));
            }
            if code == CUDA_SUCCESS {
                let module = made!(cuModuleLoadData(BUSY.as_ptr().cast()));
                kernel = made!(cuModuleGetFunction(module, c"busy".as_ptr()));
                events = [(); 2].map(|()| made!(cuEventCreate(0)));
            }
            code.into()
        }
        ["launch", kernels] => launch_between(kernel, events, kernels.parse().expect("a number")).into(),
        ["wait"] => code!(cuCtxSynchronize()).into(),
        ["elapsed"] => {
            let ms: f32 = made!(cuEventElapsedTime_v2(events[0], events[1]));
            (f64::from(ms) * 1e3) as u64
        }
        ["sms"] => {
            let sms: i32 = made!(cuDeviceGetAttribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
            sms as u64
        }
        _ => panic!("unknown order {words:?}"),
    });
}

/// Asserts that a time is what the model says, but for the launch latency and steps of event times.
fn assert_takes(took_us: u64, kernels: u64, percent: u64) {
    let model_us = kernels * KERNEL_US * 100 / percent;
    assert!(took_us.abs_diff(model_us) <= 20 + kernels, "took {took_us} us, not {model_us}");
}

#[test]
fn two_clients_run_at_once_each_at_the_rate_of_its_part() {
    let mps = Mps::start();
    let [mut a, mut b] = ["40", "60"].map(|percentage| mps.client(Some(percentage)));
    assert_eq!((a.ask("sms"), b.ask("sms")), (40, 60));
    assert_eq!(a.ask("launch 400"), 0);
    assert_takes(run(&mut b, 60), 60, 60);
    assert_eq!(a.ask("wait"), 0);
    assert_takes(a.ask("elapsed"), 400, 40);
    // One second of the first client, within which all of the second's ran.
    let [a, b] = [&a, &b].map(|client| mps.truth(client.pid()));
    let gpu = mps.gpu();
    assert!(gpu.busy_ns < a.kernel_busy_ns + b.kernel_busy_ns / 10, "{gpu:?} {a:?} {b:?}");
    assert_eq!(gpu.sm_ns, a.sm_ns + b.sm_ns);
    let is_whole = |sm_ns: u64, kernels| sm_ns.abs_diff((AHEAD + kernels) * KERNEL_US * 1000) < 1000;
    assert!(is_whole(a.sm_ns, 400) && is_whole(b.sm_ns, 60), "{a:?} {b:?}");
}

#[test]
fn a_ceiling_binds_alone_and_a_time_slice_does_not() {
    let mps = Mps::start();
    assert_takes(run(&mut mps.client(Some("25")), 40), 40, 25);
    assert_takes(run(&mut mps.client(None), 40), 40, 100);
    let mut alone = mps.process_without_mps();
    assert_eq!(alone.ask("sms"), 100);
    assert_takes(run(&mut alone, 40), 40, 100);
}

#[test]
fn the_control_program_sets_the_percentage_of_later_clients() {
    let mps = Mps::start();
    assert_eq!(mps.ask("get_server_list"), "", "no client has come");
    assert_eq!(mps.ask("get_default_active_thread_percentage"), "100.0");
    assert_eq!(mps.ask("set_default_active_thread_percentage 50"), "50.0");
    let mut first = mps.client(None);
    assert_eq!(first.ask("sms"), 50);
    let server = mps.server();
    assert_eq!(mps.ask(&format!("get_active_thread_percentage {server}")), "50.0");
    assert_eq!(mps.ask(&format!("set_active_thread_percentage {server} 30")), "30.0");
    assert_eq!(mps.ask("set_default_active_thread_percentage 90"), "90.0");
    assert_eq!(first.ask("sms"), 50, "a client keeps its percentage");
    // A client's variable can only lower the server's percentage.
    for (own, sms) in [(None, 30), (Some("80"), 30), (Some("10"), 10)] {
        assert_eq!(mps.client(own).ask("sms"), sms, "{own:?}");
    }
    await_that("the server drops dead clients", || {
        mps.ask(&format!("get_client_list {server}")) == first.pid().to_string()
    });
    for (wrong, part) in [
        ("set_default_active_thread_percentage 0".to_owned(), "above 0"),
        (format!("set_active_thread_percentage {server} x"), "above 0"),
        ("get_client_list 1".to_owned(), "No MPS server has PID 1"),
        ("nonsense".to_owned(), "Unknown command: nonsense"),
    ] {
        assert!(mps.ask(&wrong).contains(part), "{wrong}");
    }
}

#[test]
fn simgpu_has_no_pipe_directory_where_a_daemon_of_real_gpus_may_listen() {
    let mps = Mps::start();
    let mut without = mps.process(|command| _ = command.env_remove("CUDA_MPS_PIPE_DIRECTORY"));
    assert_eq!(without.ask("sms"), 100);
    let mut daemon = control(mps.directory.path());
    let said = daemon.env_remove("CUDA_MPS_PIPE_DIRECTORY").arg("-d").output().expect("it runs").stderr;
    assert!(String::from_utf8_lossy(&said).contains("CUDA_MPS_PIPE_DIRECTORY is not set"));
}

/// A user who is not root.
const ANOTHER: u32 = 65_534;
/// The time for which a client is seen to wait. The daemon ends a server without clients after a
/// second.
const WAITS: Duration = Duration::from_millis(1500);

#[test]
fn clients_of_another_user_wait_unless_the_server_is_for_all_users() {
    if !deepres_e2e::skip::root_or_skipped() {
        return;
    }
    let as_another = |command: &mut Command| _ = command.uid(ANOTHER);
    let mps = Mps::start();
    let first = mps.client(None);
    let server = mps.server();
    let mut other = mps.process_before_cuda(as_another);
    thread::scope(|scope| {
        let begins = scope.spawn(|| other.ask("begin"));
        thread::sleep(WAITS);
        assert!(!begins.is_finished(), "another user has a client");
        drop(first);
        assert_eq!(begins.join().expect("an answer"), 0);
    });
    assert_ne!(mps.server(), server, "each user has a server of its own");
    assert_eq!(mps.client_count(), 1);
    assert_takes(run(&mut other, 20), 20, 100);

    let mps = Mps::start_with("", &["-multiuser-server"]);
    let _clients = [mps.client(Some("40")), mps.process(as_another)];
    assert_eq!(mps.client_count(), 2);
}

#[test]
fn an_exclusive_gpu_lets_one_process_in_and_mps_with_its_clients_is_one() {
    let mps = Mps::start_with("compute_mode = \"exclusive-process\"\n", &[]);
    let refused = || {
        let mut alone = mps.process_before_cuda(|command| mps.hide(command));
        assert_eq!(alone.ask("begin"), u64::from(CUDA_ERROR_DEVICE_UNAVAILABLE));
    };
    let first = mps.process_without_mps();
    refused();
    let mut client = mps.process_before_cuda(|_| ());
    assert_eq!(client.ask("begin"), u64::from(CUDA_ERROR_MPS_SERVER_NOT_READY), "no server can start");
    drop(first);
    let mut clients = [(); 2].map(|()| mps.client(None));
    refused();
    assert_takes(run(&mut clients[0], 20), 20, 100);
}

#[test]
fn a_prohibited_gpu_lets_no_process_in() {
    let mps = Mps::start_with("compute_mode = \"prohibited\"\n", &[]);
    let mut alone = mps.process_before_cuda(|command| mps.hide(command));
    assert_eq!(alone.ask("begin"), u64::from(CUDA_ERROR_UNKNOWN));
}

#[test]
fn the_kill_of_a_server_ends_its_clients_and_nobody_else() {
    let mps = Mps::start();
    let [mut busy, mut idle] = [(); 2].map(|()| mps.client(Some("50")));
    let mut alone = mps.process_without_mps();
    // The client's work takes seconds, so that its wait does not end by itself.
    assert_eq!(busy.ask("launch 900"), 0);
    assert_eq!(alone.ask("launch 100"), 0);
    let server = mps.server();
    assert!(kill(server));
    assert_eq!(busy.ask("wait"), u64::from(CUDA_ERROR_MPS_RPC_FAILURE));
    assert_eq!(idle.ask("wait"), u64::from(CUDA_ERROR_MPS_RPC_FAILURE));
    assert_eq!(idle.ask("launch 1"), u64::from(CUDA_ERROR_MPS_RPC_FAILURE), "the error stays");
    assert_eq!(alone.ask("wait"), 0);
    assert_takes(run(&mut alone, 20), 20, 100);
    assert_eq!(mps.truth(busy.pid()).contexts, 0);
    // The daemon starts another server for the next client.
    let mut next = mps.client(Some("50"));
    assert_ne!(mps.server(), server);
    assert_takes(run(&mut next, 20), 20, 50);
}

#[test]
fn the_kill_of_a_client_hurts_no_other() {
    let mps = Mps::start();
    let [mut victim, mut other] = [(); 2].map(|()| mps.client(Some("100")));
    let server = mps.server();
    assert_eq!(victim.ask("launch 900"), 0);
    assert_eq!(other.ask("launch 200"), 0);
    assert!(kill(victim.pid()));
    assert_eq!(other.ask("wait"), 0);
    assert_takes(run(&mut other, 50), 50, 100);
    assert_eq!(mps.server(), server);
    await_that("the server drops its client", || {
        mps.ask(&format!("get_client_list {server}")) == other.pid().to_string()
    });
}

#[test]
fn clients_outlive_the_daemon_and_the_server_outlives_its_clients_no_longer() {
    let mut mps = Mps::start();
    let mut client = mps.client(Some("50"));
    let server = mps.server();
    mps.daemon.kill().expect("it lives");
    mps.daemon.wait().expect("it ends");
    assert_takes(run(&mut client, 20), 20, 50);
    let mut late = mps.client(Some("50"));
    assert_eq!(late.ask("sms"), 100, "without a daemon a process runs without MPS");
    assert!(lives(server));
    drop(client);
    await_that("the server ends", || !lives(server));
}

#[test]
fn a_daemon_in_the_background_ends_by_quit_when_its_clients_have_ended() {
    let mut mps = Mps::start();
    assert!(!control(mps.directory.path()).arg("-d").status().expect("it runs").success());
    mps.ask("quit");
    mps.daemon.wait().expect("it ends");
    assert!(control(mps.directory.path()).arg("-d").status().expect("it runs").success());
    let daemon: u32 = fs::read_to_string(mps.pid_file()).expect("noted").parse().expect("a pid");
    let client = mps.client(None);
    let server = mps.server();
    mps.ask("quit -t 0");
    assert!(!lives(server) && !mps.pid_file().exists());
    await_that("the daemon ends", || !lives(daemon));
    assert_eq!(mps.ask("get_server_list"), "", "no daemon answers");
    drop(client);
}
