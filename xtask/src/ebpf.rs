//! `cargo xtask ebpf`: builds the eBPF programs, and installs the tools that the build needs.
//!
//! The target is `bpfel-unknown-none`. No toolchain has a compiled `core` for this target, so cargo
//! builds `core` from the toolchain's own source. bpf-linker links with the LLVM of the first
//! toolchain in PATH. If rustup has no source, Debian's security archive has a toolchain of the
//! same LLVM with its source.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use deepres_e2e::cache;

use crate::{build, command};

/// Target of the eBPF programs.
const TARGET: &str = "bpfel-unknown-none";
/// Version of bpf-linker. A later version needs a later LLVM than the stable toolchain has.
const LINKER_VERSION: &str = "0.10.1";
/// Compiler flags: instructions of BPF's third version (32-bit comparisons), and no type
/// information. The kernel does not accept the names in Rust's type information.
const FLAGS: [&str; 2] = ["-Clinker=bpf-linker", "-Ctarget-cpu=v3"];
/// Separator between flags in the variable `CARGO_ENCODED_RUSTFLAGS`.
const FLAG_SEPARATOR: &str = "\x1f";
/// Debian's packages of a toolchain with its source.
const DEBIAN_PACKAGES: [&str; 3] = ["rustc-web", "cargo-web", "rust-web-src"];
/// Path of Debian's compiler.
const DEBIAN_RUSTC: &str = "/usr/bin/rustc";
/// Path of Debian's cargo.
const DEBIAN_CARGO: &str = "/usr/bin/cargo";

/// A compiler with the source of `core`.
struct Toolchain {
    rustc: PathBuf,
    cargo: OsString,
}

/// Builds the programs. Returns the file that the controller's build embeds.
pub fn build() -> Result<PathBuf> {
    let built = compile(&build::target().join("ebpf"))?;
    let embedded = embedded();
    if std::fs::read(&built).ok() != std::fs::read(&embedded).ok() || !embedded.exists() {
        build::install(&built, &embedded)?;
    }
    Ok(embedded)
}

/// Compiles the programs in the target folder `folder`. Returns their file there.
pub fn compile(folder: &Path) -> Result<PathBuf> {
    let linker = linker()?;
    let toolchain = toolchain()?;
    // bpf-linker uses the LLVM of this toolchain.
    let rustup = sysroot(Path::new("rustc"))?.join("bin");
    let path = env::var_os("PATH").unwrap_or_default();
    let path = env::join_paths([rustup, linker].into_iter().chain(env::split_paths(&path)))?;
    let mut cargo = Command::new(&toolchain.cargo);
    cargo
        .current_dir(crate::workspace().join("ebpf"))
        .args(["build", "--release", "--locked", "-Z", "build-std=core", "--target", TARGET, "--target-dir"])
        .arg(folder)
        .env("PATH", path)
        .env("RUSTC", &toolchain.rustc)
        // The build of `core` needs an unstable feature. The source is the source of a stable
        // toolchain.
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_ENCODED_RUSTFLAGS", FLAGS.join(FLAG_SEPARATOR))
        .env_remove("RUSTFLAGS");
    // The environment must not change the profile of the eBPF programs.
    for (name, _) in env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("CARGO_PROFILE_")) {
        cargo.env_remove(name);
    }
    command::run(&mut cargo)?;
    Ok(folder.join(TARGET).join("release/deepres-ebpf"))
}

/// Returns the path at which the controller's build looks for the eBPF programs.
pub fn embedded() -> PathBuf {
    crate::workspace().join("target/deepres-ebpf/programs.o")
}

/// Returns the folder of bpf-linker. If bpf-linker is missing, installs it first.
fn linker() -> Result<PathBuf> {
    // bpf-linker uses the toolchain's LLVM, so each compiler needs a build of its own of
    // bpf-linker.
    let compiler = command::output(Command::new("rustc").arg("--version"))?;
    let recipe = format!("{LINKER_VERSION} {compiler}");
    Ok(cache::entry("bpf-linker", &recipe, |folder| {
        let mut install = build::cargo();
        install
            .args(["install", "--locked", "--version", LINKER_VERSION, "bpf-linker", "--root"])
            .arg(folder);
        // bpf-linker links one small file, so its build time matters more than its speed.
        install.env("CARGO_PROFILE_RELEASE_LTO", "off").env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1");
        install.env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
        command::prepare(&mut install)
    })?
    .join("bin"))
}

fn toolchain() -> Result<Toolchain> {
    let rustup =
        || Toolchain { rustc: PathBuf::from("rustc"), cargo: build::cargo().get_program().to_owned() };
    let debian = || Toolchain { rustc: DEBIAN_RUSTC.into(), cargo: DEBIAN_CARGO.into() };
    if has_own_source() {
        return Ok(rustup());
    }
    if has_source(Path::new(DEBIAN_RUSTC)) && Path::new(DEBIAN_CARGO).exists() {
        return Ok(debian());
    }
    let packages = DEBIAN_PACKAGES.join(" ");
    if !rustix::process::geteuid().is_root() {
        bail!(
            "the eBPF programs need the source of Rust's core; run `rustup component add rust-src`, or on Debian `apt-get install {packages}`"
        );
    }
    command::prepare(Command::new("apt-get").arg("update"))?;
    let mut install = Command::new("apt-get");
    install.args(["install", "--yes", "--no-install-recommends"]).args(DEBIAN_PACKAGES);
    command::prepare(install.env("DEBIAN_FRONTEND", "noninteractive"))?;
    if has_source(Path::new(DEBIAN_RUSTC)) {
        return Ok(debian());
    }
    bail!("{DEBIAN_RUSTC} has no source of `core` although {packages} are installed")
}

/// Returns whether the toolchain in use has its own source. If the source is missing, the function
/// first asks rustup for it.
pub fn has_own_source() -> bool {
    let mut add = Command::new("rustup");
    add.args(["component", "add", "rust-src"]).current_dir(crate::workspace());
    has_source(Path::new("rustc")) || command::prepare(&mut add).is_ok() && has_source(Path::new("rustc"))
}

/// Returns whether a compiler comes with the source of `core`.
fn has_source(rustc: &Path) -> bool {
    sysroot(rustc).is_ok_and(|sysroot| sysroot.join("lib/rustlib/src/rust/library/core/Cargo.toml").exists())
}

fn sysroot(rustc: &Path) -> Result<PathBuf> {
    let mut print = Command::new(rustc);
    print.args(["--print", "sysroot"]).current_dir(crate::workspace()).stderr(Stdio::null());
    let sysroot = command::output(&mut print).with_context(|| format!("{} does not run", rustc.display()))?;
    Ok(PathBuf::from(sysroot.trim()))
}
