//! Real containers: podman with runc on a root file system of this machine's Debian. If the tests
//! run the product of `cargo xtask dist`, the root file system is Debian 11, which has an older
//! glibc.
//!
//! The containers need root and the packages `PACKAGES`, which `cargo xtask test` installs.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    },
};

use crate::{
    Host, Process,
    artefacts::{Artefacts, artefacts, run, target},
    cache, skip,
};
use anyhow::{Context, Result, bail, ensure};

/// Packages that have to be installed.
const PACKAGES: &str = "podman runc debootstrap";
/// Distribution of the root file system for the product of `cargo xtask dist`: Debian 11, with
/// glibc 2.31.
const OLD_DISTRIBUTION: &str = "bullseye";
/// Package with musl's loader, for programs that are linked to musl.
const FURTHER_PACKAGES: &str = "musl";
/// Distribution of the root file system for packages: Debian 12.
const SYSTEM_DISTRIBUTION: &str = "bookworm";
/// Packages of the root file system for packages: systemd as the first process, and curl, which the
/// pages for users call.
const SYSTEM_PACKAGES: &str = "systemd-sysv,init-system-helpers,curl";
/// The first process of a container with systemd.
const SYSTEM_INIT: &str = "/sbin/init";
/// User of this machine that is root in a container with a user namespace. This user owns the files
/// of the root file system.
pub const OUTER_ROOT: u32 = 100_000;
/// Name of the root file system inside its folder of the cache.
const ROOT: &str = "root";
/// Number of users in a container's user namespace.
const USERS: u32 = 65_536;
/// Folder in which container runtimes look for CDI specifications. The machine's restart empties
/// it.
const SPECIFICATIONS: &str = "/run/cdi";
/// CDI kind of the devices of deepres.
const KIND: &str = "deepres.dev/share";

/// The containers and devices of one host. Drop removes all of them.
pub struct Containers<'host> {
    host: &'host Host,
    /// Prefix of names that the whole machine shares.
    prefix: String,
    started: AtomicU32,
}

/// The way in which a container's processes see users.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Users {
    /// The container has the users of the machine.
    Shared,
    /// The container has a user namespace, in which [`OUTER_ROOT`] is root.
    Apart,
}

/// A running container of the test. The container lives as long as its first process. Drop kills
/// the container.
pub struct Container {
    /// Name of the container.
    pub name: String,
    /// `podman run` in the foreground. The container's output is the output of this process.
    pub process: Process,
}

impl<'host> Containers<'host> {
    /// Returns the containers of this host, and lets all users of the machine use the host's
    /// simulated GPU. If this user cannot have containers, reports the test as skipped and returns
    /// `None`.
    pub fn on(host: &'host Host) -> Option<Self> {
        if !skip::root_or_skipped() {
            return None;
        }
        root();
        host.let_all_users_in();
        let folder = host.path().file_name().expect("a folder of our own").to_string_lossy().into_owned();
        Some(Self { host, prefix: folder, started: AtomicU32::new(0) })
    }

    /// Runs `deepres cdi generate` for a device. Returns the device's name for podman.
    #[track_caller]
    pub fn device(&self, name: &str, options: &[&str]) -> String {
        let name = format!("{}-{name}", self.prefix);
        let file = self.specification();
        let mut command = self.host.command(&artefacts().deepres);
        command.args(["cdi", "generate", "--name", &name, "--output"]).arg(file).args(options);
        self.host.finish(command).success();
        format!("{KIND}={name}")
    }

    fn specification(&self) -> PathBuf {
        Path::new(SPECIFICATIONS).join(format!("{}.json", self.prefix))
    }

    /// Starts a program in a container with this device. The clients of this machine have the same
    /// paths inside the container.
    #[track_caller]
    pub fn start(&self, device: &str, users: Users, program: &[&str]) -> Container {
        self.start_with(&[], device, users, program)
    }

    /// Starts a program in a container with this device, like [`Self::start`], with further options
    /// of podman.
    #[track_caller]
    pub fn start_with(&self, options: &[&str], device: &str, users: Users, program: &[&str]) -> Container {
        self.start_on_gpu(&[&["--device", device], options].concat(), users, program)
    }

    /// Starts a program in a container with the simulated GPU and the clients of this machine. The
    /// options of podman bring everything of deepres.
    #[track_caller]
    pub fn start_on_gpu(&self, options: &[&str], users: Users, program: &[&str]) -> Container {
        let Artefacts { simgpu, .. } = artefacts();
        let clients = target().join("e2e-clients");
        let mut given = Vec::new();
        for folder in [simgpu, &clients] {
            given.extend(["--volume".to_owned(), format!("{0}:{0}:ro", folder.display())]);
        }
        given.extend(["--volume".to_owned(), format!("{0}:{0}", self.host.state_dir().display())]);
        let variables = [
            ("LD_LIBRARY_PATH", simgpu.display().to_string()),
            ("SIMGPU_STATE", self.host.state_dir().display().to_string()),
        ];
        for (variable, value) in variables {
            given.extend(["--env".to_owned(), format!("{variable}={value}")]);
        }
        given.extend(options.iter().map(|option| (*option).to_owned()));
        self.start_bare(&given.iter().map(String::as_str).collect::<Vec<_>>(), users, program)
    }

    /// Starts a container with a fresh Debian 12 without anything of deepres, in which systemd
    /// runs. The container has the users of the machine.
    #[track_caller]
    pub fn start_system(&self, options: &[&str]) -> Container {
        let root = system_root().unwrap_or_else(|error| panic!("the system's root: {error:#}"));
        // As on a machine, root sees the programs of all users. All processes of a container have one
        // weight together, as much as any other process of the machine by default.
        let options = [&["--systemd=always", "--cap-add=SYS_PTRACE", "--cpu-shares=16384"], options].concat();
        self.start_on(&root, &options, Users::Shared, &[SYSTEM_INIT])
    }

    /// Returns the command that runs a program in a running container.
    pub fn exec(&self, container: &Container, options: &[&str], program: &[&str]) -> Command {
        let mut exec = self.podman(&["exec"]);
        exec.args(options).arg(&container.name).args(program);
        exec
    }

    /// Starts a program in a container without anything of deepres or of the simulated GPU.
    #[track_caller]
    pub fn start_bare(&self, options: &[&str], users: Users, program: &[&str]) -> Container {
        self.start_on(root(), options, users, program)
    }

    #[track_caller]
    fn start_on(&self, root: &Path, options: &[&str], users: Users, program: &[&str]) -> Container {
        let number = self.started.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}-{number}", self.prefix);
        let mut podman = self.podman(&["run", "--rm", "--name", &name, "--network=none"]);
        // The limits of the machine that runs the tests can be tighter than podman's defaults.
        podman.args(["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1000:1000"]);
        podman.args(options);
        if users == Users::Apart {
            podman.args(["--uidmap", &format!("0:{OUTER_ROOT}:{USERS}")]);
        }
        // The host finds its own processes by this variable.
        podman.arg("--env").arg(format!("DEEPRES_E2E={}", self.host.path().display()));
        // With `:O` the container writes to an overlay of its own.
        podman.arg("--rootfs").arg(format!("{}:O", root.display())).args(program);
        Container { name, process: self.host.spawn(podman) }
    }

    /// Runs a program in a container to its end.
    #[track_caller]
    pub fn finish(&self, device: &str, users: Users, program: &[&str]) -> crate::Finished {
        self.start(device, users, program).process.finish()
    }

    fn podman(&self, arguments: &[&str]) -> Command {
        let mut podman = self.host.command("podman");
        podman.env_remove("LD_LIBRARY_PATH").args(["--runtime", "runc", "--cgroup-manager=cgroupfs"]);
        // At the start and end of each container podman syncs its records to the disk. The sync
        // waits for all data that other processes have yet to write. Records in memory avoid this
        // wait.
        let records = self.host.state_dir().join("podman");
        for (option, folder) in [("--root", "root"), ("--runroot", "run"), ("--tmpdir", "tmp")] {
            podman.arg(option).arg(records.join(folder));
        }
        podman.args(arguments);
        podman
    }

    /// Returns the full id of a container.
    #[track_caller]
    pub fn id(&self, container: &Container) -> String {
        let inspect = self.podman(&["inspect", "--format", "{{.Id}}", &container.name]);
        self.host.finish(inspect).success().stdout.trim().to_owned()
    }

    /// Kills a container with all its processes, and waits until `podman run` has ended.
    #[track_caller]
    pub fn kill(&self, mut container: Container) {
        self.host.finish(self.podman(&["kill", "--signal", "KILL", &container.name])).success();
        container.process.await_end();
    }
}

impl Drop for Containers<'_> {
    fn drop(&mut self) {
        for number in 0..self.started.load(Ordering::Relaxed) {
            let name = format!("{}-{number}", self.prefix);
            // Most containers are gone already.
            let _ = self.podman(&["rm", "--force", "--ignore", "--time", "0", &name]).output();
        }
        let _ = fs::remove_file(self.specification());
    }
}

/// Returns the folder with the root file system of the containers.
fn root() -> &'static Path {
    static ROOT: OnceLock<PathBuf> = OnceLock::new();
    let find = || prepare(artefacts().are_portable());
    ROOT.get_or_init(|| find().unwrap_or_else(|error| panic!("the containers' root: {error:#}")))
}

/// Returns the folder of the root file system of the containers. If the cache lacks the file
/// system, the function makes it: of the old distribution for a portable product, else of this
/// machine's.
pub fn prepare(is_portable: bool) -> Result<PathBuf> {
    let distribution = match is_portable {
        true => OLD_DISTRIBUTION.to_owned(),
        false => distribution()?,
    };
    let recipe = format!("{distribution}, {FURTHER_PACKAGES}, owner {OUTER_ROOT}");
    let folder = cache::entry("containers", &recipe, |folder| {
        // The cache owns the entry's folder. The user of the containers owns the folder inside.
        let root = folder.join(ROOT);
        debootstrap(&distribution, FURTHER_PACKAGES, &root)?;
        let owner = format!("{OUTER_ROOT}:{OUTER_ROOT}");
        run(Command::new("chown").args(["--recursive", "--no-dereference", &owner]).arg(&root))
    })?;
    Ok(folder.join(ROOT))
}

/// Returns the folder of the root file system with systemd. Makes it first if the cache lacks it.
pub fn system_root() -> Result<PathBuf> {
    let recipe = format!("{SYSTEM_DISTRIBUTION}, {SYSTEM_PACKAGES}");
    let folder = cache::entry("system", &recipe, |folder| {
        debootstrap(SYSTEM_DISTRIBUTION, SYSTEM_PACKAGES, &folder.join(ROOT))
    })?;
    Ok(folder.join(ROOT))
}

/// Makes a root file system of a Debian distribution with further packages in the folder `root`.
fn debootstrap(distribution: &str, packages: &str, root: &Path) -> Result<()> {
    eprintln!("making a root file system of Debian {distribution} in {} (kept)", root.display());
    let include = format!("--include={packages}");
    let mut debootstrap = Command::new("debootstrap");
    debootstrap.args(["--variant=minbase", &include, distribution]).arg(root).arg(mirror()?);
    run(&mut debootstrap).with_context(|| format!("it needs {PACKAGES}: apt-get install {PACKAGES}"))
}

/// Returns the code name of this machine's Debian. The glibc of this release is new enough for
/// programs that are built on this machine.
fn distribution() -> Result<String> {
    let release = fs::read_to_string("/etc/os-release").context("cannot read /etc/os-release")?;
    let name = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    name.map(|name| name.trim_matches('"').to_owned()).context("/etc/os-release has no VERSION_CODENAME")
}

/// Returns the Debian mirror that this machine installs from.
fn mirror() -> Result<String> {
    let mut apt = Command::new("apt-get");
    apt.args(["indextargets", "--format", "$(ORIGIN) $(SUITE) $(REPO_URI)", "Created-By: Packages"]);
    let output = apt.output().with_context(|| format!("{apt:?}"))?;
    ensure!(output.status.success(), "{apt:?} failed");
    let listed = String::from_utf8_lossy(&output.stdout);
    let uri = listed.lines().find_map(|line| {
        let mut words = line.split(' ');
        let is_main = words.next() == Some("Debian") && !words.next()?.contains('-');
        words.next().filter(|_| is_main)
    });
    match uri {
        Some(uri) => Ok(uri.to_owned()),
        None => bail!(
            "apt knows no Debian mirror on this machine: is it Debian, and has `apt-get update` been run?"
        ),
    }
}
