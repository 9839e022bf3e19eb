//! The packages of `cargo xtask dist` on users' machines: the Debian package under systemd, the
//! archive in a folder, and the wheel in the Python environment of a user without root.
//!
//! The packages are beside the product under test. `cargo xtask dist --built FOLDER` packs the
//! product in a folder.

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;

use deepres_e2e::artefacts::{repository, torch};
use deepres_e2e::clients::{c_client_on, torch_simgpu};
use deepres_e2e::containers::{Container, Containers};
use deepres_e2e::demo::{ARGUMENTS, CLIENTS, Client, TORCH_SCRIPT, TRAINS};
use deepres_e2e::prelude::*;
use deepres_e2e::skip::root_or_skipped;
use deepres_e2e::users::{AS_NOBODY, NOBODY};

/// Time within which systemd starts, however busy the machine is.
const BOOTS_WITHIN: Duration = Duration::from_secs(60);
/// The version of the next package. Debian's tools sort it after every version that deepres has.
const NEXT_VERSION: &str = "999.0";
/// The exit status of a daemon that finds no GPU.
const NO_GPU: &str = "69";
/// The blanks before each command on a page.
const INDENT: &str = "    ";

/// Returns the package whose file name ends in this way.
fn package(ending: &str) -> PathBuf {
    let folder = artefacts().deepres.parent().expect("the product is in a folder");
    let files = fs::read_dir(folder).expect("the folder of the product").flatten();
    let mut packages = files.map(|file| file.path());
    let found = packages.find(|path| path.to_string_lossy().ends_with(ending));
    found
        .unwrap_or_else(|| panic!("no {ending} in {0}; run `cargo xtask dist --built {0}`", folder.display()))
}

/// Returns the first block of commands on a page of `docs/`, for root.
fn first_commands(page: &str) -> Vec<String> {
    let text = fs::read_to_string(repository().join("docs").join(page)).expect("a page of the repository");
    let block = text.lines().skip_while(|line| !line.starts_with(INDENT));
    let commands = block.map_while(|line| line.strip_prefix(INDENT));
    commands.map(|command| command.trim_start_matches("sudo ").to_owned()).collect()
}

/// Asserts that the processes have loaded this library.
#[track_caller]
fn assert_loaded(library: &Path, pids: &[u32]) {
    let maps = |pid: &u32| fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let maps: String = pids.iter().map(maps).collect();
    assert!(maps.contains(&library.display().to_string()), "{} is not in {maps}", library.display());
}

/// A Debian 12 with systemd and the simulated driver, in a container.
struct System<'a> {
    host: &'a Host,
    containers: &'a Containers<'a>,
    container: Container,
}

impl<'a> System<'a> {
    /// Starts the system and the daemon's environment of the simulated GPU, and adds a user
    /// `alice`.
    fn start(host: &'a Host, containers: &'a Containers<'a>, volumes: &[&Path]) -> Self {
        let state = host.state_dir().display().to_string();
        let simgpu = artefacts().simgpu.display().to_string();
        let mut options = vec!["--env".to_owned(), format!("SIMGPU_STATE={state}")];
        options.extend(["--volume".to_owned(), format!("{state}:{state}")]);
        for folder in volumes.iter().copied().chain([Path::new(&simgpu)]) {
            options.extend(["--volume".to_owned(), format!("{0}:{0}:ro", folder.display())]);
        }
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let system = Self { host, containers, container: containers.start_system(&options) };
        eventually_within("systemd runs", BOOTS_WITHIN, || {
            let asked = system.call(&["systemctl", "is-system-running"]);
            ["running", "degraded"].contains(&asked.stdout.trim())
        });
        system.shell(&format!(
            "echo {simgpu} > /etc/ld.so.conf.d/simgpu.conf && ldconfig && \
             mkdir -p /etc/systemd/system/deepres.service.d && \
             printf '[Service]\\nEnvironment=SIMGPU_STATE={state}\\nReadWritePaths={state}\\n' \
             > /etc/systemd/system/deepres.service.d/simgpu.conf && useradd --create-home alice"
        ));
        system
    }

    /// Runs a program as root to its end.
    fn call(&self, program: &[&str]) -> deepres_e2e::Finished {
        self.host.finish(self.containers.exec(&self.container, &[], program))
    }

    /// Runs a script as root, which must succeed. Returns its output.
    #[track_caller]
    fn shell(&self, script: &str) -> String {
        self.call(&["bash", "-ec", script]).success().stdout
    }

    /// Does the first commands of a page, of which the last asks the daemon. Waits until the answer
    /// contains `wanted`.
    fn follow(&self, page: &str, wanted: &str) {
        let commands = first_commands(page);
        let (ask, before) = commands.split_last().expect("the page has commands");
        self.shell(&before.join("\n"));
        eventually(&format!("the daemon answers as docs/{page} says"), || {
            self.call(&["bash", "-ec", ask]).stdout.contains(wanted)
        });
    }

    /// Starts a job of `alice`, and waits until it launches.
    fn job(&self, name: &str, share: &str) -> Process {
        let client = client();
        let run = ["deepres", "run", "--name", name, "--share", share, "--", &client];
        let options = ["--interactive", "--user", "alice"];
        self.host.start(self.containers.exec(&self.container, &options, &run), "ready")
    }

    fn ps(&self) -> Ps {
        Ps::parse(&self.shell("deepres ps --json"))
    }
}

/// Returns the client that keeps the GPU backlogged. The package runs on every Debian from 11 on.
fn client() -> String {
    c_client_on(CLibrary::OldGlibc, "backlog", Way::ProcAddress).display().to_string()
}

/// Repacks a package of Debian under another version. Returns its path.
fn next_version(host: &Host, package: &Path) -> PathBuf {
    let (unpacked, next) = (host.path().join("unpacked"), host.path().join("next.deb"));
    let mut unpack = Command::new("dpkg-deb");
    unpack.arg("--raw-extract").arg(package).arg(&unpacked);
    host.finish(unpack).success();
    let control = unpacked.join("DEBIAN/control");
    let text = fs::read_to_string(&control).expect("a package has a control file");
    let lines = text.lines().map(|line| match line.starts_with("Version: ") {
        true => format!("Version: {NEXT_VERSION}\n"),
        false => format!("{line}\n"),
    });
    fs::write(&control, lines.collect::<String>()).expect("a folder of our own");
    let mut pack = Command::new("dpkg-deb");
    pack.args(["--root-owner-group", "-Znone", "--build"]).arg(&unpacked).arg(&next);
    host.finish(pack).success();
    next
}

#[test]
#[ignore = "deep: installs the Debian package under systemd"]
fn a_plain_users_jobs_outlive_the_upgrade_the_removal_and_the_purge_of_the_debian_package() {
    let host = Host::new();
    let Some(containers) = Containers::on(&host) else { return };
    let deb = package("_amd64.deb");
    let next = next_version(&host, &deb);
    let client = PathBuf::from(client());
    let folders = [&deb, &next, &client].map(|path| path.parent().expect("a file is in a folder"));
    let system = System::start(&host, &containers, &folders);

    system.shell(&format!("dpkg --install {}", deb.display()));
    system.shell("systemctl is-active deepres.service deepres.socket deepres-admin.socket");
    system.shell("deepres config check && test -s /usr/share/man/man1/deepres-run.1.gz");
    system.shell("deepres cdi generate --name train --share 30% && test -s /etc/cdi/deepres.json");
    system.follow("metrics.md", "deepres_");
    system.follow("web.md", "<title>deepres</title>");
    let jobs = [system.job("first", "70%"), system.job("second", "30%")];
    let completed = system.shell(
        "source /usr/share/bash-completion/completions/deepres; COMP_WORDS=(deepres suspend fi); COMP_CWORD=2; \
         COMP_TYPE=9; _clap_complete_deepres deepres fi suspend; echo \"${COMPREPLY[@]}\"",
    );
    assert_eq!(completed.trim(), "first");

    let names = ["first", "second"];
    let before = system.ps();
    system.shell("echo 'tenant_linger_s = 61' >> /etc/deepres/deepres.toml; systemctl reload deepres");
    let shown = system.shell("deepres config show");
    assert!(shown.contains("/etc/deepres/deepres.toml") && shown.contains("61"), "{shown}");
    assert_eq!(system.ps().daemon_pid, before.daemon_pid, "a reload keeps the daemon");

    let upgrade = format!("dpkg --install --force-confold {}", next.display());
    system.shell("echo 'nonsense = 1' >> /etc/deepres/deepres.toml");
    let upgraded = system.call(&["bash", "-ec", &upgrade]).success();
    assert!(upgraded.stderr.contains("mend the configuration"), "{}", upgraded.stderr);
    assert_eq!(system.ps().daemon_pid, before.daemon_pid, "a faulty configuration keeps the old daemon");
    system.shell("sed -i '$d' /etc/deepres/deepres.toml");
    system.shell(&upgrade);
    let has_gone_on = |ps: &Ps| {
        names.iter().all(|name| {
            let now = ps.find(name).filter(|now| now.pids() == before.tenant(name).pids());
            now.is_some_and(|now| now.kernel_launches > before.tenant(name).kernel_launches)
        })
    };
    let ps = await_value(|| system.ps(), has_gone_on);
    assert_ne!(ps.daemon_pid, before.daemon_pid, "the upgrade replaces the daemon");

    system.shell("deepres suspend first");
    system.shell("dpkg --remove deepres");
    let assert_both_compute = |when: &str| {
        let then = host.truth();
        let computed = || Tally::between(&then, &host.truth()).by_pid_ns;
        let have_gone_on = || computed().values().filter(|ns| **ns > 0).count() == jobs.len();
        eventually(&format!("both jobs compute after {when}"), have_gone_on);
    };
    assert_both_compute("the removal");
    system.shell("dpkg --purge deepres");
    assert_both_compute("the purge");
    let has_ended = |mut job: Process| job.try_wait().is_some();
    assert!(!jobs.into_iter().any(has_ended), "both jobs run on");
    let left = system.shell(
        "find /etc /run /usr /var -xdev -name '*deepres*' -not -path '/run/systemd/*' \
         -not -path '/etc/systemd/system/deepres.service.d*'; ls -d /tmp/deepres-gpu* 2>/dev/null || true",
    );
    assert_eq!(left, "", "nothing is left");
}

#[test]
#[ignore = "deep: installs the Debian package under systemd"]
fn the_debian_package_installs_without_a_gpu_and_its_removal_ends_the_daemon_of_a_plain_user() {
    let host = Host::new();
    let Some(containers) = Containers::on(&host) else { return };
    let deb = package("_amd64.deb");
    let system = System::start(&host, &containers, &[deb.parent().expect("a file is in a folder")]);

    system.shell("mv /etc/ld.so.conf.d/simgpu.conf /root && ldconfig");
    system.shell(&format!("dpkg --install {}", deb.display()));
    let status = system.shell("systemctl show --property ExecMainStatus --value deepres.service");
    assert_eq!(status.trim(), NO_GPU, "the daemon ends");
    system.shell("mv /root/simgpu.conf /etc/ld.so.conf.d && ldconfig && systemctl restart deepres");
    system.shell("systemctl is-active deepres.service");

    system.shell("systemctl stop deepres.service deepres.socket deepres-admin.socket");
    let run = containers.exec(&system.container, &["--user", "alice"], &["deepres", "daemon"]);
    let mut daemon = host.spawn(run);
    daemon.await_error_line(|line| line.contains("the daemon is ready"));
    system.shell("dpkg --remove deepres");
    daemon.await_end().success();
}

#[test]
#[ignore = "deep: unpacks the archive"]
fn a_job_runs_by_the_archive_in_any_folder_and_the_packages_have_the_listed_checksums() {
    let host = Host::new();
    let archive = package("-x86_64-linux.tar.gz");
    let mut check = host.command("sha256sum");
    check.args(["--check", "SHA256SUMS"]).current_dir(archive.parent().expect("a file is in a folder"));
    host.finish(check).success();
    let mut unpack = host.command("tar");
    unpack.args(["--one-top-level=archive", "--strip-components=1", "-xf"]).arg(&archive);
    host.finish(unpack).success();

    let folder = host.path().join("archive");
    let deepres = || host.command(folder.join("bin/deepres"));
    let mut run = deepres();
    run.args(["run", "--name", "train", "--share", "70%", "--", &client()]);
    let _job = host.start(run, "ready");
    let ps = || {
        let mut ask = deepres();
        ask.args(["ps", "--json"]);
        Ps::parse(&host.finish(ask).success().stdout)
    };
    let has_launched = |ps: &Ps| ps.find("train").is_some_and(|train| train.kernel_launches > 0);
    let pids = await_value(ps, has_launched).tenant("train").pids();
    assert_loaded(&folder.join("lib/deepres/libdeepres.so"), &pids);
}

/// Tests that measure. Each test runs alone on the machine.
mod measured {
    use super::*;

    /// Time limit for the warm-up of two trainers at once. PyTorch's import takes seconds, on a
    /// machine with other work.
    const TRAINS_WITHIN: Duration = Duration::from_secs(120);
    /// Time limit for making a Python environment.
    const INSTALLED_WITHIN: Duration = Duration::from_secs(120);
    /// Time after which the first steps after the warm-up are over.
    const SETTLED: Duration = Duration::from_secs(1);
    const MEASURED: Duration = Duration::from_secs(8);
    /// The shares of the demo's clients, percent.
    const PERCENT: [f64; 2] = [70.0, 30.0];

    #[test]
    #[ignore = "deep: installs the wheel and trains"]
    fn the_demos_clients_share_seventy_to_thirty_by_the_wheel_in_an_environment_of_a_plain_user() {
        if !root_or_skipped() {
            return;
        }
        let host = Host::measuring().lasting(TRAINS_WITHIN).simgpu(&torch_simgpu());
        host.let_all_users_in();
        let home = host.path().join("home");
        fs::create_dir(&home).expect("a folder of our own");
        chown(&home, Some(NOBODY), Some(NOBODY)).expect("root may change the owner");

        let directory = home.join("daemon");
        let as_nobody = |program: &Path| {
            let mut command = host.command("setpriv");
            command.args(AS_NOBODY);
            // The interpreter, PyTorch and the build folder can lie in root's home. The user may
            // read them, and no more.
            command.args(["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]);
            command.arg(program).current_dir(&home).env("HOME", &home).env("DEEPRES_DIR", &directory);
            command
        };
        let environment = home.join("venv");
        // PyTorch's packages are for one version of Python.
        let mut make = as_nobody(&torch().python());
        make.args(["-m", "venv"]).arg(&environment);
        host.spawn(make).finish_within(INSTALLED_WITHIN).success();
        let mut install = as_nobody(&environment.join("bin/pip"));
        install.args(["install", "--no-index"]).arg(package(".whl"));
        host.spawn(install).finish_within(INSTALLED_WITHIN).success();

        let deepres = environment.join("bin/deepres");
        let train = |client: Client| {
            let mut command = torch().prepared(as_nobody(&deepres));
            command.arg("run").args(client.options()).arg("--").arg(environment.join("bin/python"));
            command.arg(repository().join(TORCH_SCRIPT)).args(ARGUMENTS);
            command.env("PYTHONPATH", torch().packages());
            host.spawn(command)
        };
        let mut trainers = CLIENTS.map(train);
        for trainer in &mut trainers {
            trainer.await_line_within(|line| line.contains(TRAINS), TRAINS_WITHIN);
        }
        let library = environment.join("lib/deepres/libdeepres.so");
        let ps = || {
            let mut ask = as_nobody(&deepres);
            ask.args(["ps", "--json"]);
            Ps::parse(&host.finish(ask).success().stdout)
        };
        assert_loaded(&library, &ps().tenant(CLIENTS[0].name).pids());
        thread::sleep(SETTLED);
        let (before, truth) = (ps(), host.truth());
        thread::sleep(MEASURED);
        let tally = Tally::between(&truth, &host.truth());
        let after = ps();
        for (Client { name, .. }, percent) in CLIENTS.into_iter().zip(PERCENT) {
            let pids = before.tenant(name).pids();
            assert_eq!(pids, after.tenant(name).pids());
            let had = tally.percent(&pids);
            println!("{name} had {had:.2} %");
            assert!((had - percent).abs() <= deepres_e2e::shares::ALLOWED_POINTS, "{name}: {had:.2} %");
        }
    }
}
