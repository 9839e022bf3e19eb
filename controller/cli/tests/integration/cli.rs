//! The command line from a user's view: the accepted input, the messages for other input, and the
//! status and signals that `deepres run` passes on.

use deepres_daemon_harness::{Daemon, wait_until};
use deepres_e2e::signals::heeded;
use deepres_model::config::{Caps, Config};
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(5);

/// A place for a run: a folder with libraries, and the daemon's directory.
pub struct Place {
    pub scratch: tempfile::TempDir,
    pub directory: PathBuf,
}

impl Place {
    /// Returns a place without a daemon and without a driver, and with an NVML that is not a
    /// library.
    fn empty() -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let libraries = scratch.path().join("lib");
        std::fs::create_dir(&libraries).unwrap();
        for broken in ["libnvidia-ml.so.1", "libcuda.so.1"] {
            std::fs::write(libraries.join(broken), "not a library").unwrap();
        }
        let directory = scratch.path().join("d");
        Self { scratch, directory }
    }

    /// Returns a place with a driver and an interposer, which both do nothing.
    pub fn with_driver() -> Self {
        let place = Self::empty();
        let driver = place.scratch.path().join("lib/libcuda.so.1");
        std::fs::copy(harmless_library(), driver).unwrap();
        place
    }

    /// Returns a place as [`Self::with_driver`] does, with a running daemon.
    pub fn beside(daemon: &Daemon) -> Self {
        Self { directory: daemon.directory.path().to_owned(), ..Self::with_driver() }
    }

    /// Returns a daemon and a place beside it.
    pub fn with_daemon(daemon: Daemon) -> (Daemon, Self) {
        let place = Self::beside(&daemon);
        (daemon, place)
    }

    /// Returns the output of the command line.
    pub fn says(&self, arguments: &[&str]) -> String {
        text(&self.deepres(arguments).output().unwrap().stdout)
    }

    /// Returns the answer of `deepres ps --json`.
    fn status(&self) -> serde_json::Value {
        serde_json::from_str(&self.says(&["ps", "--json"])).unwrap()
    }

    /// Returns the one line that the command line prints when it fails with this status.
    pub fn refuses(&self, arguments: &[&str], code: i32) -> String {
        complaint(&self.deepres(arguments).output().unwrap(), code)
    }

    pub fn deepres(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_deepres"));
        command
            .args(arguments)
            .env("DEEPRES_DIR", &self.directory)
            .env("LD_LIBRARY_PATH", self.scratch.path().join("lib"))
            .env("DEEPRES_LIBRARY", harmless_library())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        for variable in ["DEEPRES_SOCKET", "DEEPRES_TENANT", "DEEPRES_SHARE", "DEEPRES_MEMORY", "LD_PRELOAD"]
        {
            command.env_remove(variable);
        }
        heeded(&mut command);
        command
    }
}

/// Returns a library that every process of this machine can load: a library that this process has
/// loaded.
pub fn harmless_library() -> PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let library = maps.split_whitespace().find(|word| word.contains("libgcc_s") || word.contains("libm."));
    PathBuf::from(library.expect("this process has neither libgcc_s nor libm"))
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim_end().to_owned()
}

/// Returns the one line that a failing command prints.
pub fn complaint(output: &Output, code: i32) -> String {
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert_eq!(said.lines().count(), 1, "one line, not:\n{said}");
    assert!(said.starts_with("deepres: "), "{said}");
    said
}

#[test]
fn a_request_that_makes_no_sense_is_refused_in_one_line_that_says_what_is_accepted() {
    let place = Place::empty();
    for share in ["abc", "0%", "0", "120%", "", "-1%", "nan%", "inf"] {
        let argument = format!("--share={share}");
        for command in [&["run", &argument, "--", "true"][..], &["set", "train", &argument]] {
            let said = place.refuses(command, 2);
            assert!(said.contains("1% to 100%"), "{said}");
        }
    }
    for memory in ["12XB", "0", "512", "-1GiB", "", "GiB", "99999999999999999999GiB"] {
        let argument = format!("--memory={memory}");
        for command in [&["run", &argument, "--", "true"][..], &["set", "train", &argument]] {
            let said = place.refuses(command, 2);
            assert!(said.contains("8GiB"), "{said}");
        }
    }
    let said = place.deepres(&["run", "--", "true"]).env("DEEPRES_SHARE", "most").output().unwrap();
    assert!(complaint(&said, 2).contains("`most`"));
    assert!(!place.directory.exists(), "nothing was started");
}

#[test]
fn a_command_line_that_cannot_be_read_is_refused_in_one_line_that_says_what_was_meant() {
    let place = Place::empty();
    let said = |arguments: &[&str]| place.refuses(arguments, 2);
    let misspelt = said(&["deamon"]);
    assert!(misspelt.contains("'deamon'; a similar subcommand exists: 'daemon'"), "{misspelt}");
    assert!(said(&["ps", "--jsn"]).contains("--json"));
    assert!(said(&["frobnicate"]).contains("frobnicate"));
    assert!(said(&["run", "--shares", "30%", "--", "true"]).contains("--shares"));
    assert!(said(&["run", "--"]).contains("COMMAND"));
    said(&["set"]);
    for name in ["a\u{7}b", &"n".repeat(300)] {
        said(&["run", "--name", name, "--", "true"]);
    }
    assert!(said(&["run"]).contains("COMMAND"));
    assert!(said(&["run", "--name=", "--", "true"]).contains("a name has from 1 to 63 bytes"));
    assert!(said(&["set", "train"]).contains("--share"), "{}", said(&["set", "train"]));
    let bare = place.deepres(&[]).output().unwrap();
    assert_eq!(bare.status.code(), Some(2));
    assert!(text(&bare.stderr).contains("Examples:"));
}

#[test]
fn help_shows_examples_and_the_exit_statuses() {
    for command in ["run", "daemon", "ps", "set", "top"] {
        let output = Place::empty().deepres(&[command, "--help"]).output().unwrap();
        assert!(output.status.success());
        assert!(text(&output.stdout).contains("Examples:"), "{command}");
    }
    let output = Place::empty().deepres(&["--help"]).output().unwrap();
    assert!(text(&output.stdout).contains("127"));
    let version = Place::empty().deepres(&["--version"]).output().unwrap();
    assert_eq!(text(&version.stdout).lines().count(), 1);
}

#[test]
fn a_program_that_cannot_be_run_is_reported_as_a_shell_would_before_anything_is_started() {
    let place = Place::with_driver();
    place.refuses(&["run", "--", "no-such-program"], 127);
    place.refuses(&["run", "--", "/no/such/program"], 127);
    place.refuses(&["run", "--", "/etc/passwd"], 126);
    place.refuses(&["run", "--", "/"], 126);
    assert!(!place.directory.exists(), "nothing was started");
}

#[test]
fn without_a_driver_nothing_is_started() {
    let place = Place::empty();
    let said = place.refuses(&["run", "--", "true"], 1);
    assert!(said.contains("no CUDA driver on this machine") && said.contains("libcuda.so.1"), "{said}");
    assert!(!place.directory.exists(), "nothing was started");
}

#[test]
fn without_our_library_nothing_is_started() {
    let place = Place::with_driver();
    let output = place.deepres(&["run", "--", "true"]).env("DEEPRES_LIBRARY", "/no/lib.so").output().unwrap();
    assert!(complaint(&output, 1).contains("/no/lib.so"));
    for name in ["a b.so", "a:b.so", "$LIB.so", "${ORIGIN}.so"] {
        let odd = place.scratch.path().join(name);
        std::fs::copy(harmless_library(), &odd).unwrap();
        let output = place.deepres(&["run", "--", "true"]).env("DEEPRES_LIBRARY", &odd).output().unwrap();
        assert!(complaint(&output, 1).contains("a space, a colon or a dollar sign"), "{name}");
    }
    assert!(!place.directory.exists());
}

#[test]
fn a_daemon_that_cannot_start_says_why_and_leaves_nothing_running() {
    let place = Place::with_driver();
    // With this status, systemd does not start the daemon again and again.
    let said = place.refuses(&["daemon"], 69);
    assert!(said.contains("libnvidia-ml.so.1") && said.contains("driver"), "{said}");
    let said = place.refuses(&["run", "--", "true"], 1);
    assert!(said.contains("cannot start a daemon") && said.contains("libnvidia-ml.so.1"), "{said}");
    let running = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok).any(|process| {
        let environment = std::fs::read(process.path().join("environ")).unwrap_or_default();
        let mark = place.directory.as_os_str().as_encoded_bytes();
        environment.windows(mark.len()).any(|window| window == mark)
    });
    assert!(!running);
    let output = place.deepres(&["daemon", "--config", "/no/such/file"]).output().unwrap();
    assert!(complaint(&output, 1).contains("/no/such/file"));
    // The log levels can also come from a variable. The test also tries an empty variable.
    for (levels, part) in [
        ("nonsense", "`nonsense` is not a log level"),
        ("trace", "libnvidia-ml.so.1"),
        ("", "libnvidia-ml.so.1"),
    ] {
        let output = place.deepres(&["daemon"]).env("DEEPRES_LOG", levels).output().unwrap();
        assert!(text(&output.stderr).contains(part), "{levels}: {}", text(&output.stderr));
    }
    let config = place.scratch.path().join("c.toml");
    for (wrong, reason) in [
        ("\nfail_mod = \"open\"\n", "c.toml:2:1: unknown key `fail_mod`; did you mean `fail_mode`?"),
        ("this is not TOML", "c.toml"),
    ] {
        std::fs::write(&config, wrong).unwrap();
        let output = place.deepres(&["daemon", "--config", config.to_str().unwrap()]).output().unwrap();
        let said = complaint(&output, 1);
        assert!(said.contains(reason), "{said}");
    }
}

#[test]
fn without_a_daemon_ps_and_set_say_how_to_start_one() {
    let place = Place::empty();
    for command in [&["ps"][..], &["ps", "--json"], &["set", "train", "--share", "50%"]] {
        let said = place.refuses(command, 1);
        assert!(said.contains("no deepres daemon is running") && said.contains("deepres run"), "{said}");
    }
}

#[test]
fn the_doctor_bears_a_reader_that_leaves_and_says_when_a_disk_is_full() {
    for options in [&["doctor"][..], &["doctor", "--json"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let left = Place::empty().deepres(options).stdout(writer).output().unwrap();
        assert_eq!(text(&left.stderr), "", "{options:?}");
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let full = Place::empty().deepres(options).stdout(full).output().unwrap();
        assert!(complaint(&full, 1).contains("No space left"), "{options:?}");
    }
}

#[test]
fn a_command_that_changes_something_bears_a_reader_that_leaves() {
    let (daemon, place) = Place::with_daemon(Daemon::start(1, Config::default()));
    let _tenant = daemon.join("train", 0, 0);
    let archive = place.scratch.path().join("report.tar.gz");
    let report = ["report", "--output", archive.to_str().unwrap()];
    for command in [
        &["set", "train", "--share", "20%"][..],
        &["pause", "train"],
        &["resume", "train"],
        &["reload"],
        &report,
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let left = place.deepres(command).stdout(writer).output().unwrap();
        assert_eq!((text(&left.stderr), left.status.code()), (String::new(), Some(0)), "{command:?}");
    }
    let whole = Command::new("tar").arg("-tf").arg(&archive).output().unwrap();
    assert!(whole.status.success() && text(&whole.stdout).contains("config.txt"));
}

#[test]
fn a_socket_that_is_named_and_that_nobody_listens_at_is_not_replaced_by_a_daemon_elsewhere() {
    let place = Place::with_driver();
    let named = place.scratch.path().join("x.sock");
    let output = place.deepres(&["run", "--", "true"]).env("DEEPRES_SOCKET", &named).output().unwrap();
    let said = complaint(&output, 1);
    assert!(said.contains("no daemon listens at") && said.contains("x.sock"), "{said}");
    assert!(!place.directory.exists());
}

#[test]
fn a_relative_directory_is_relative_to_where_the_user_is() {
    let place = Place::with_driver();
    let mut command = place.deepres(&["run", "--", "true"]);
    command.env("DEEPRES_DIR", "rel").current_dir(place.scratch.path());
    assert!(complaint(&command.output().unwrap(), 1).contains("cannot start a daemon"));
    assert!(place.scratch.path().join("rel/daemon.log").exists());
    assert!(!Path::new("/rel").exists());
}

#[test]
fn a_socket_that_is_not_a_daemons_is_not_spoken_to() {
    let place = Place::with_driver();
    std::fs::create_dir(&place.directory).unwrap();
    std::fs::set_permissions(&place.directory, PermissionsExt::from_mode(0o700)).unwrap();
    std::fs::create_dir(place.directory.join("tenant")).unwrap();
    let (admin, tenant) = (place.directory.join("admin.sock"), place.directory.join("tenant/tenant.sock"));
    std::fs::write(&admin, "").unwrap();
    std::fs::write(&tenant, "").unwrap();
    assert!(place.refuses(&["ps"], 1).contains("is not a socket"));
    let run = |place: &Place| place.refuses(&["run", "--", "true"], 1);
    assert!(run(&place).contains("is not a socket"));

    std::fs::remove_file(&admin).unwrap();
    std::fs::remove_file(&tenant).unwrap();
    let stranger = UnixListener::bind(&admin).unwrap();
    let _other = UnixListener::bind(&tenant).unwrap();
    let answers = ["220 mail ready\n", "{\"unexpected\":true}\n", "\n", ""];
    let server = std::thread::spawn(move || {
        answers.map(|answer| {
            let (mut connection, _) = stranger.accept().unwrap();
            connection.set_read_timeout(Some(PATIENCE)).unwrap();
            // The client asks first. The client may have closed the connection already.
            let _ = connection.read(&mut [0; 4096]);
            let _ = connection.write_all(answer.as_bytes());
        })
    });
    for answer in answers {
        let said = place.refuses(&["ps"], 1);
        assert!(answer.is_empty() || said.contains("does not answer as a deepres daemon does"), "{said}");
    }
    server.join().unwrap();
    assert!(run(&place).contains("is not the socket of a deepres daemon"));

    if deepres_e2e::skip::root_or_skipped() {
        std::os::unix::fs::lchown(&admin, Some(4711), None).unwrap();
        let said = place.refuses(&["ps"], 1);
        assert!(said.contains("belongs to user 4711"), "{said}");
    }
}

#[test]
fn ps_shows_tenants_and_set_changes_them() {
    let (daemon, place) = Place::with_daemon(Daemon::start(1, Config::default()));
    let tenant = daemon.join("train", 300_000, 8 << 30);
    let said = place.refuses(&["set", "trian", "--share", "50%"], 1);
    assert!(said.contains("no tenant `trian`") && said.contains("train"), "{said}");
    let output = place.deepres(&["set", "train", "--share", "50%", "--memory", "4GiB"]).output().unwrap();
    assert_eq!(text(&output.stdout), "train: share 50%, memory 4 GiB, class fair");
    assert_eq!(tenant.gate().entitled_ppm(), 500_000);
    let shown = place.says(&["ps"]);
    for part in ["train", "50%", "4 GiB", "Simulated nothing", "fake tenant"] {
        assert!(shown.contains(part), "{part} is not in:\n{shown}");
    }
    let json = place.status();
    assert_eq!(json["tenants"][0]["gpus"][0]["entitled_ppm"], 500_000);
    assert_eq!(json["tenants"][0]["memory_limit_bytes"], 4u64 << 30);
    assert_eq!(json["gpus"][0]["simulated"], true);
    assert!(json["now_ns"].as_u64().unwrap() > 0);
    let output = place.deepres(&["set", "train", "--memory", "unlimited"]).output().unwrap();
    assert_eq!(text(&output.stdout), "train: share 50%, memory no limit, class fair");
    assert!(place.status()["tenants"][0]["memory_limit_bytes"].is_null());
}

#[test]
fn ps_shows_requests_grants_and_their_reasons() {
    let caps = Caps { share_ppm: 500_000, ..Caps::default() };
    let (daemon, place) = Place::with_daemon(Daemon::start(1, Config { caps, ..Config::default() }));
    let _greedy = daemon.join("greedy", 800_000, 8 << 30);
    let _rival = daemon.join("rival", 0, 0);
    let _set = daemon.join("pinned", 100_000, 0);
    place.deepres(&["set", "pinned", "--share", "90%", "--class", "guaranteed"]).output().unwrap();
    let shown = place.says(&["ps", "-v"]);
    for line in [
        "share      asked for 80%, granted 50% by the cap for everybody",
        "memory     asked for 8 GiB, granted 8 GiB as asked",
        "class      asked for nothing, granted fair by default",
        "share      asked for nothing, granted a part of what others leave by default",
        "share      asked for 10%, granted 90% set by an administrator",
        "class      asked for nothing, granted guaranteed set by an administrator",
        "on gpu 0  owed 90%: guaranteed",
        "the granted shares together are more than the GPU, and shrink in proportion",
    ] {
        assert!(shown.contains(line), "`{line}` is not in:\n{shown}");
    }
    let user = rustix::process::getuid().as_raw();
    assert!(
        shown.lines().any(|line| line.starts_with("greedy: user ")
            && line.contains(&user.to_string())
            && line.ends_with("by the name that it gave")),
        "{shown}"
    );
    let brief = place.says(&["ps"]);
    assert!(shown.lines().count() > brief.lines().count() && !brief.contains("granted"), "{brief}");
    let json = place.status();
    let greedy = &json["tenants"][0];
    assert_eq!(
        (&greedy["asked"]["share_ppm"], &greedy["granted"]["share_ppm"]["value"]),
        (&800_000.into(), &500_000.into())
    );
    assert_eq!(greedy["granted"]["share_ppm"]["rule"]["cap"], "everyone");
    assert_eq!(
        (&greedy["found"]["by"], &greedy["gpus"][0]["entitled_by"]),
        (&"name".into(), &"shrunk".into())
    );
}

#[test]
fn a_tenant_without_processes_is_shown_without_a_share_owed_and_without_a_gate() {
    let (daemon, place) = Place::with_daemon(Daemon::start(1, Config::default()));
    drop(daemon.join("gone", 300_000, 0));
    let _here = daemon.join("here", 300_000, 0);
    wait_until(PATIENCE, || daemon.status().tenants.iter().any(|tenant| tenant.sessions.is_empty()));
    let shown = place.says(&["ps"]);
    let cells = |name: &str| -> Vec<String> {
        let row = shown.lines().find(|line| line.starts_with(name)).unwrap();
        row.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).map(str::to_owned).collect()
    };
    let (gone, here) = (cells("gone"), cells("here"));
    assert_eq!((gone[2].as_str(), gone.last().unwrap().as_str()), ("-", "-"), "{shown}");
    assert_eq!((here[2].as_str(), here.last().unwrap().as_str()), ("30%", "open"), "{shown}");
    let json = place.status();
    let [gone, here] = [0, 1].map(|tenant| &json["tenants"][tenant]["gpus"][0]);
    assert!(gone["entitled_ppm"].is_null() && gone["gate"].is_null(), "{gone}");
    assert_eq!((&here["entitled_ppm"], &here["gate"]), (&300_000.into(), &"open".into()), "{here}");
    let verbose = place.says(&["ps", "-v"]);
    assert_eq!(verbose.lines().filter(|line| line.contains("  owed ")).count(), 1, "{verbose}");
}

#[test]
fn a_guarantee_that_does_not_fit_beside_others_is_not_given() {
    let (daemon, place) = Place::with_daemon(Daemon::start(1, Config::default()));
    let keep = |name: &str, class: &str, wait: &str| {
        place.deepres(&["run", "--name", name, "--share", "60%", "--class", class, "--", "sleep", wait])
    };
    let mut first = keep("first", "guaranteed", "60").spawn().unwrap();
    wait_until(PATIENCE, || daemon.status().tenants.iter().any(|tenant| tenant.class == "guaranteed"));
    let said = complaint(&keep("second", "guaranteed", "0").output().unwrap(), 1);
    assert!(said.contains("cannot guarantee 60%") && said.contains("leave no room"), "{said}");
    assert!(keep("second", "fair", "0").status().unwrap().success());
    let bare = place.deepres(&["run", "--class", "guaranteed", "--", "true"]).output().unwrap();
    assert!(complaint(&bare, 1).contains("--share"), "a guarantee needs a share");
    let said = place.refuses(&["run", "--class", "best", "--", "true"], 2);
    assert!(said.contains("best-effort"), "{said}");
    // `deepres run` passes the signal on to its job.
    let run = rustix::process::Pid::from_child(&first);
    rustix::process::kill_process(run, rustix::process::Signal::TERM).unwrap();
    first.wait().unwrap();
}

#[test]
fn a_job_gets_the_library_the_socket_and_its_requests() {
    let (daemon, place) = Place::with_daemon(Daemon::start(1, Config::default()));
    let arguments = ["run", "--name", "n", "--share", "12.5%", "--memory", "1GiB", "--", "env"];
    let output = place.deepres(&arguments).env("LD_PRELOAD", harmless_library()).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stderr), "", "a daemon was running: nothing to say");
    let environment = text(&output.stdout);
    let library = harmless_library();
    for line in [
        // Only glibc's linker can follow this path to the library.
        format!("LD_PRELOAD={0}:/usr/$LIB/../../../../../../../..{0}", library.display()),
        format!("DEEPRES_SOCKET={}", daemon.directory.tenant_socket().display()),
        "DEEPRES_TENANT=n".to_owned(),
        "DEEPRES_SHARE=12.5%".to_owned(),
        "DEEPRES_MEMORY=1073741824".to_owned(),
    ] {
        assert!(environment.lines().any(|found| found == line), "{line} is not in:\n{environment}");
    }
    wait_until(PATIENCE, || daemon.status().tenants.is_empty());
}

#[test]
fn a_request_that_the_daemon_refuses_is_refused_before_the_job_starts() {
    let caps = deepres_model::config::Caps { share_ppm: 500_000, ..Default::default() };
    let (_daemon, place) = Place::with_daemon(Daemon::start(1, Config { caps, ..Config::default() }));
    let mark = place.scratch.path().join("ran");
    let output =
        place.deepres(&["run", "--share", "80%", "--", "touch", mark.to_str().unwrap()]).output().unwrap();
    assert!(complaint(&output, 1).contains("everybody is 50%"));
    assert!(!mark.exists());
}

#[test]
fn the_jobs_status_is_passed_on() {
    let (_daemon, place) = Place::with_daemon(Daemon::start(1, Config::default()));
    let code =
        |script: &str| place.deepres(&["run", "--", "sh", "-c", script]).output().unwrap().status.code();
    assert_eq!(code("exit 0"), Some(0));
    assert_eq!(code("exit 42"), Some(42));
    assert_eq!(code("kill -KILL $$"), Some(128 + 9));
    assert_eq!(code("kill -TERM $$"), Some(128 + 15));
    assert_eq!(code("kill -SEGV $$"), Some(128 + 11));
    let plain = place.deepres(&["run", "--name", "n", "sh", "-c", "exit 3"]).output().unwrap();
    assert_eq!(plain.status.code(), Some(3), "the dashes may be left out");
}

/// Starts a job that creates a file when it is ready. Returns the job and the file.
///
/// The job gets a process group of its own, as from a shell. The tests' own group can be orphaned,
/// because no shell waits for it. In an orphaned group, the kernel would discard SIGTSTP.
fn start(place: &Place, script: &str) -> (Child, PathBuf) {
    let ready = place.scratch.path().join("ready");
    let script = format!("{script}\ntouch {}\nwhile :; do sleep 0.02; done", ready.display());
    let mut run = place.deepres(&["run", "--name", "job", "--", "sh", "-c", &script]);
    let child = run.process_group(0).spawn().unwrap();
    wait_until(PATIENCE, || ready.exists());
    (child, ready)
}

fn kill(child: &Child, signal: libc::c_int) {
    // SAFETY: the call involves no memory. The child was not waited for, so its id is not reused.
    assert_eq!(unsafe { libc::kill(child.id() as libc::pid_t, signal) }, 0);
}

#[test]
fn signals_sent_to_run_reach_the_job_once() {
    let daemon = Daemon::start(1, Config::default());
    for (signal, name) in [
        (libc::SIGTERM, "TERM"),
        (libc::SIGINT, "INT"),
        (libc::SIGHUP, "HUP"),
        (libc::SIGQUIT, "QUIT"),
        (libc::SIGUSR1, "USR1"),
        (libc::SIGUSR2, "USR2"),
        (libc::SIGALRM, "ALRM"),
        (libc::SIGXCPU, "XCPU"),
        (libc::SIGWINCH, "WINCH"),
    ] {
        let place = Place::beside(&daemon);
        let count = place.scratch.path().join("count");
        let (mut child, _) = start(&place, &format!("trap 'echo x >> {}' {name}", count.display()));
        kill(&child, signal);
        wait_until(PATIENCE, || count.exists());
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(std::fs::read_to_string(&count).unwrap(), "x\n", "{name}");
        // The shell goes on after the trap. So the test must end the shell.
        end(&daemon, &mut child);
    }
}

/// Returns the process id of the command that `deepres run` has started; `None` before the start.
fn job_of(child: &Child) -> Option<libc::pid_t> {
    let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id())).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

/// Ends a job that traps its signals: sends SIGKILL to the command itself. `deepres run` reports
/// the signal.
fn end(daemon: &Daemon, child: &mut Child) {
    let job = job_of(child).unwrap();
    // SAFETY: the call involves no memory. The id is that of the process that the child started.
    assert_eq!(unsafe { libc::kill(job, libc::SIGKILL) }, 0);
    assert_eq!(child.wait().unwrap().code(), Some(128 + 9));
    wait_until(PATIENCE, || daemon.status().tenants.iter().all(|tenant| tenant.keepers == 0));
}

fn state_of(child: &Child) -> Option<char> {
    let status = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).ok()?;
    status.rsplit(')').next()?.trim_start().chars().next()
}

#[test]
fn a_job_that_stops_stops_run_and_goes_on_with_it() {
    let (_daemon, place) = Place::with_daemon(Daemon::start(1, Config::default()));
    let (mut child, ready) = start(&place, "");
    kill(&child, libc::SIGTSTP);
    wait_until(PATIENCE, || state_of(&child) == Some('T'));
    std::fs::remove_file(&ready).unwrap();
    kill(&child, libc::SIGCONT);
    wait_until(PATIENCE, || state_of(&child) != Some('T'));
    kill(&child, libc::SIGTERM);
    let status = child.wait().unwrap();
    assert_eq!((status.code(), status.signal()), (Some(128 + 15), None));
}

#[test]
fn a_job_ignores_the_signals_that_run_was_started_to_ignore_and_no_others() {
    let (_daemon, place) = Place::with_daemon(Daemon::start(1, Config::default()));
    let ignored = |signals: &'static [libc::c_int], program: &str, arguments: &[&str]| {
        let mut command = if program.is_empty() { place.deepres(arguments) } else { Command::new(program) };
        if !program.is_empty() {
            command.args(arguments);
        }
        // SAFETY: between fork and exec the closure only makes system calls.
        unsafe {
            command.pre_exec(move || {
                for signal in signals {
                    libc::signal(*signal, libc::SIG_IGN);
                }
                Ok(())
            });
        }
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let told = ["-c", "grep SigIgn /proc/$$/status"];
    for signals in
        [&[][..], &[libc::SIGPIPE], &[libc::SIGCHLD], &[libc::SIGPIPE, libc::SIGCHLD, libc::SIGINT]]
    {
        let bare = ignored(signals, "sh", &told);
        let run = ignored(signals, "", &[&["run", "--", "sh"], &told[..]].concat());
        assert_eq!(run, bare, "{signals:?}");
    }
}

#[test]
fn a_job_that_is_stopped_and_continued_is_waited_for_to_its_end() {
    let (_daemon, place) = Place::with_daemon(Daemon::start(1, Config::default()));
    let ready = place.scratch.path().join("ready");
    let script = format!("touch {}; read line; exit 7", ready.display());
    let mut run = place.deepres(&["run", "--name", "job", "--", "sh", "-c", &script]);
    // SAFETY: between fork and exec the closure makes one system call, which leaves the terminal.
    unsafe { run.pre_exec(|| Ok(rustix::process::setsid().map(|_| ())?)) };
    let mut child = run.stdin(Stdio::piped()).spawn().unwrap();
    wait_until(PATIENCE, || ready.exists());
    let job = job_of(&child).unwrap();
    let signal = |signal| {
        // SAFETY: the call involves no memory. The id is that of the process that the child
        // started.
        assert_eq!(unsafe { libc::kill(job, signal) }, 0);
    };
    let state = || std::fs::read_to_string(format!("/proc/{job}/stat")).unwrap();
    signal(libc::SIGSTOP);
    wait_until(PATIENCE, || state().contains(") T "));
    // Gives `deepres run` time to see the stop.
    std::thread::sleep(Duration::from_millis(100));
    signal(libc::SIGCONT);
    child.stdin.take().unwrap().write_all(b"go on\n").unwrap();
    let ended = || {
        std::fs::read_to_string(format!("/proc/{}/stat", child.id())).is_ok_and(|stat| stat.contains(") Z "))
    };
    wait_until(PATIENCE, ended);
    assert_eq!(child.wait().unwrap().code(), Some(7));
}

#[test]
fn runs_of_the_same_name_are_one_tenant_and_each_unnamed_run_is_another() {
    let (daemon, place) = Place::with_daemon(Daemon::start(1, Config::default()));
    let sleep = |arguments: &[&str]| place.deepres(arguments).spawn().unwrap();
    let mut children = [
        sleep(&["run", "--name", "job", "--", "sleep", "60"]),
        sleep(&["run", "--name", "job", "--", "sleep", "60"]),
        sleep(&["run", "--", "sleep", "60"]),
        sleep(&["run", "--", "sleep", "60"]),
    ];
    wait_until(PATIENCE, || daemon.status().tenants.iter().map(|tenant| tenant.keepers).sum::<usize>() == 4);
    let status = daemon.status();
    let names: Vec<_> = status.tenants.iter().map(|tenant| tenant.name.as_str()).collect();
    assert_eq!(names.len(), 3, "{names:?}");
    assert!(names.contains(&"job") && names.iter().filter(|name| name.starts_with("sleep-")).count() == 2);
    for child in &mut children {
        wait_until(PATIENCE, || job_of(child).is_some());
        kill(child, libc::SIGTERM);
        assert_eq!(child.wait().unwrap().code(), Some(128 + 15));
    }
    assert!(Path::new(&place.directory).exists());
}

#[test]
fn explain_prints_every_term_as_text_and_as_json_and_the_tenants_for_an_unknown_name() {
    let (daemon, place) = Place::with_daemon(Daemon::start(1, Config::default()));
    let _asked = daemon.join("asked", 300_000, 0);
    let _plain = daemon.join("plain", 0, 0);
    let explain = |arguments: &[&str]| place.deepres(&[&["explain"], arguments].concat()).output().unwrap();
    let output = explain(&["plain"]);
    let said = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    for line in [
        "plain on gpu 0, class fair:",
        "× urgency 0.0000 (no deadline)",
        "× criticality 0.5000",
        "priority  ",
        "+100%      the whole GPU",
        "-30%       owed to others that asked for a share",
        "owed      70%",
        "present   ",
        "received  0% of the last second",
        "gate      ",
    ] {
        assert!(said.contains(line), "no `{line}` in\n{said}");
    }
    let json: serde_json::Value = serde_json::from_slice(&explain(&["plain", "--json"]).stdout).unwrap();
    assert_eq!(json["tenant"], "plain");
    let gpu = &json["gpus"][0];
    for key in ["owed", "present"] {
        let terms = gpu[key]["terms"].as_array().unwrap();
        let sum: i64 = terms.iter().map(|term| term["ppm"].as_i64().unwrap()).sum();
        assert_eq!(Some(sum), gpu[key]["ppm"].as_i64(), "{gpu}");
    }
    assert_eq!(
        (&gpu["rule"], &gpu["owed"]["ppm"]),
        (&serde_json::json!("rest"), &serde_json::json!(700_000))
    );
    for key in [
        "class",
        "priority",
        "weight_ppm",
        "demand_ppm",
        "water_level",
        "received_ppm",
        "lag_ns",
        "slo_ns",
        "guard",
        "gate",
    ] {
        assert!(gpu.get(key).is_some(), "no `{key}` in {gpu}");
    }
    assert!(place.deepres(&["set", "plain", "--slo", "50ms"]).output().unwrap().status.success());
    let said = text(&explain(&["plain"]).stdout);
    assert!(said.contains("SLO       50ms: the SLO makes the tenant's requests due earlier"), "{said}");
    let said = complaint(&explain(&["nobody"]), 1);
    assert!(said.contains("there is no tenant `nobody`; there are: asked, plain"), "{said}");
}

#[test]
fn facts_about_a_job_reach_the_policy_by_option_and_by_variable_and_the_option_counts() {
    let (daemon, place) = Place::with_daemon(Daemon::start(1, Config::default()));
    let told = |name: &str, options: &[&str], variables: &[(&str, &str)]| {
        let arguments = [&["run", "--name", name], options, &["--", "sleep", "60"]].concat();
        let mut child = place.deepres(&arguments).envs(variables.iter().copied()).spawn().unwrap();
        let granted = || {
            let tenants = daemon.status().tenants;
            tenants.into_iter().find(|tenant| tenant.name == name).and_then(|tenant| tenant.granted)
        };
        wait_until(PATIENCE, || granted().is_some() && job_of(&child).is_some());
        let granted = granted().unwrap();
        end(&daemon, &mut child);
        (
            granted.slo_ns.value,
            granted.deadline_ns.value,
            granted.size_ns.value,
            granted.criticality.value.ppm(),
            granted.class.value.name(),
            (granted.memory_follows_use.value, granted.charge_copies.value),
        )
    };
    let options = [
        &["--slo", "30ms", "--deadline", "2h", "--size", "40min", "--criticality", "high"][..],
        &["--class", "best-effort", "--memory-follow-use", "--charge-copies"],
    ]
    .concat();
    const MS: u64 = 1_000_000;
    let both = (true, true);
    let said = (Some(30 * MS), Some(7_200_000 * MS), Some(2_400_000 * MS), 750_000, "best-effort", both);
    assert_eq!(told("options", &options, &[]), said);
    let variables = [
        ("DEEPRES_SLO", "30ms"),
        ("DEEPRES_DEADLINE", "2h"),
        ("DEEPRES_SIZE", "40min"),
        ("DEEPRES_CRITICALITY", "high"),
        ("DEEPRES_CLASS", "best-effort"),
        ("DEEPRES_MEMORY_FOLLOW_USE", "yes"),
        ("DEEPRES_CHARGE_COPIES", "on"),
    ];
    assert_eq!(told("variables", &[], &variables), said);
    let both = ["--slo", "50ms", "--memory-follow-use=false", "--charge-copies=false"];
    let (slo_ns, deadline_ns, .., switches) = told("both", &both, &variables);
    assert_eq!((slo_ns, deadline_ns, switches), (Some(50 * MS), Some(7_200_000 * MS), (false, false)));
    let place = Place::empty();
    for (option, value) in
        [("--slo", "soon"), ("--deadline", "never"), ("--size", "big"), ("--criticality", "1.5")]
    {
        let said = place.refuses(&["run", option, value, "--", "true"], 2);
        assert!(said.contains(value), "{option}: {said}");
    }
}

#[test]
fn labels_are_shown_wherever_a_tenant_is_and_change_while_it_runs() {
    let (daemon, place) = Place::with_daemon(Daemon::start(1, Config::default()));
    let arguments =
        ["run", "--name", "n", "--label", "team=vision", "--label", "cost=4711", "--", "sleep", "60"];
    let mut child = place.deepres(&arguments).env("DEEPRES_LABEL", "team=other").spawn().unwrap();
    wait_until(PATIENCE, || daemon.status().tenants.len() == 1 && job_of(&child).is_some());
    let said = |arguments: &[&str]| place.says(arguments).to_owned();
    assert!(said(&["ps", "-v"]).contains("label      team=vision,cost=4711 as asked"));
    assert!(said(&["explain", "n"]).starts_with("n, label team=vision,cost=4711"));
    let labels = &place.status()["tenants"][0]["granted"]["labels"]["value"];
    assert_eq!(*labels, "team=vision,cost=4711");
    assert!(said(&["set", "n", "--label", "team=speech"]).contains("label team=speech"));
    end(&daemon, &mut child);
    let wrong = place.deepres(&["run", "--label", "vision", "--", "true"]).output().unwrap();
    assert!(complaint(&wrong, 2).contains("KEY=VALUE"));
}

/// Returns the two ends of a new terminal: the end of the user, and the end of the programs.
fn terminal() -> [OwnedFd; 2] {
    let (mut user, mut programs) = (-1, -1);
    let size = libc::winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the pointers are of local values, or null, which the function accepts.
    let code =
        unsafe { libc::openpty(&mut user, &mut programs, std::ptr::null_mut(), std::ptr::null(), &size) };
    assert_eq!(code, 0);
    // SAFETY: the call made both descriptors, and nothing else owns them.
    [user, programs].map(|end| unsafe { OwnedFd::from_raw_fd(end) })
}

/// Returns whether a terminal collects lines and echoes them, as a shell needs it.
fn has_lines(terminal: &OwnedFd) -> bool {
    // SAFETY: all zeros are a valid value of the structure.
    let mut modes: libc::termios = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is of a local value.
    assert_eq!(unsafe { libc::tcgetattr(terminal.as_raw_fd(), &mut modes) }, 0);
    let needed = libc::ICANON | libc::ECHO;
    modes.c_lflag & needed == needed
}

/// Starts `deepres top` in a new terminal. Returns the command, the keyboard, and the terminal's
/// end for programs.
fn top(place: &Place) -> (Child, File, OwnedFd) {
    let [user, programs] = terminal();
    let end = || Stdio::from(programs.try_clone().unwrap());
    let mut top = place.deepres(&["top"]);
    let top = top.env("TERM", "xterm").stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
    let mut screen = File::from(user.try_clone().unwrap());
    // Nobody answers the questions of programs to the terminal.
    std::thread::spawn(move || while screen.read(&mut [0; 4096]).is_ok_and(|bytes| bytes > 0) {});
    wait_until(PATIENCE, || !has_lines(&programs));
    (top, File::from(user), programs)
}

#[test]
fn top_stops_at_ctrl_z_with_a_restored_terminal_and_draws_anew_when_it_goes_on() {
    let (_daemon, place) = Place::with_daemon(Daemon::start(1, Config::default()));
    let (mut top, mut keys, programs) = top(&place);
    keys.write_all(b"\x1a").unwrap();
    wait_until(PATIENCE, || state_of(&top) == Some('T'));
    assert!(has_lines(&programs));
    kill(&top, libc::SIGCONT);
    wait_until(PATIENCE, || !has_lines(&programs));
    keys.write_all(b"\x0cq").unwrap();
    assert_eq!(top.wait().unwrap().code(), Some(0));
    assert!(has_lines(&programs));
}

#[test]
fn an_administrator_changes_a_tenant_by_the_keys_of_top() {
    let (daemon, place) = Place::with_daemon(Daemon::start(1, Config::default()));
    let _tenant = daemon.join("train", 200_000, 0);
    let (mut top, mut keys, _programs) = top(&place);
    keys.write_all(b"e40%\rcguaranteed\rp").unwrap();
    wait_until(PATIENCE, || daemon.status().tenants[0].paused);
    let tenant = &place.status()["tenants"][0];
    assert_eq!(
        (&tenant["granted"]["share_ppm"]["value"], &tenant["class"]),
        (&400_000.into(), &"guaranteed".into())
    );
    keys.write_all(b"pq").unwrap();
    assert_eq!(top.wait().unwrap().code(), Some(0));
    assert!(!daemon.status().tenants[0].paused);
}

#[test]
fn a_terminal_without_a_cursor_gets_no_escape_sequences() {
    let (_daemon, place) = Place::with_daemon(Daemon::start(1, Config::default()));
    let [_user, programs] = terminal();
    let mut top = place.deepres(&["top"]);
    let top = top.env("TERM", "dumb").stdout(Stdio::from(programs)).output().unwrap();
    assert!(complaint(&top, 1).contains("--once"));
}

#[test]
fn a_watch_outlives_the_daemon() {
    let (daemon, place) = Place::with_daemon(Daemon::start(1, Config::default()));
    let mut watch = place.deepres(&["ps", "--watch", "0.1"]);
    let mut watch = watch.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(watch.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("daemon "), "{line}");
    drop(daemon);
    line.clear();
    BufReader::new(watch.stderr.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("deepres: "), "{line}");
    assert!(watch.try_wait().unwrap().is_none(), "the watch goes on");
    watch.kill().unwrap();
    watch.wait().unwrap();
}

#[test]
fn a_signal_ends_top_after_top_has_restored_the_terminal() {
    let (_daemon, place) = Place::with_daemon(Daemon::start(1, Config::default()));
    for signal in [libc::SIGTERM, libc::SIGHUP] {
        let (mut top, _keys, programs) = top(&place);
        kill(&top, signal);
        assert_eq!(top.wait().unwrap().signal(), Some(signal));
        assert!(has_lines(&programs));
    }
}
