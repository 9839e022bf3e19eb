//! `cargo xtask dist`: builds the product for users, also of old distributions, and packs it: a
//! package for Debian, a wheel for pip and an archive.
//!
//! The linker is zig's (from PyPI; cargo-zigbuild calls it). This linker links against the symbol
//! versions of a chosen glibc, with any glibc on the build machine. Two builds of one commit give
//! the same bytes. Paths of the build machine do not reach the product, and all packed files have
//! the time of the commit (or `SOURCE_DATE_EPOCH`).

mod contents;
mod debian;
mod needs;
mod tarball;
mod wheel;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use deepres_e2e::{artefacts, cache};
use sha2::{Digest as _, Sha256};

use self::needs::Needs;
use crate::build::{self, Artefacts};
use crate::{command, ebpf, elf};

/// Options of `cargo xtask dist`.
#[derive(clap::Args)]
pub struct Options {
    /// Pack the `deepres` and `libdeepres.so` in FOLDER instead of building them, and write the
    /// packages into FOLDER
    #[arg(long, value_name = "FOLDER", conflicts_with = "verify")]
    built: Option<PathBuf>,
    /// Build and pack everything again in another folder, and fail if any byte differs
    #[arg(long)]
    verify: bool,
}

/// The version of the product.
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The text in templates that stands for the version.
const VERSION_MARK: &str = "@VERSION@";
/// The variable with the modification time of all packed files, s since 1970
/// (<https://reproducible-builds.org/specs/source-date-epoch/>).
const EPOCH_VARIABLE: &str = "SOURCE_DATE_EPOCH";
/// The file with the checksums of the packages.
const CHECKSUMS: &str = "SHA256SUMS";
/// Target with the glibc against which the product is built. All distributions that current drivers
/// support have a newer glibc.
const TARGET: &str = "x86_64-unknown-linux-gnu.2.17";
/// The newest glibc that the product may need: the glibc of RHEL 8.
const NEWEST_GLIBC: (u32, u32) = (2, 28);
/// The most bytes of the whole product.
const SIZE_LIMIT_BYTES: u64 = 64 << 20;
/// The package and the program of the Kubernetes device plugin. The file lies in `dist/`, beside
/// the packages.
const PLUGIN: &str = "deepres-k8s";
/// The feature of [`PLUGIN`] that makes the program a DRA driver too.
const DRIVER: &str = "dra";
/// Version of cargo-zigbuild.
const ZIGBUILD_VERSION: &str = "0.24.1";

/// Separator between flags in the variable `CARGO_ENCODED_RUSTFLAGS`.
const FLAG_SEPARATOR: &str = "\x1f";

/// Builds `dist/`, or packs the product of another build.
pub fn run(options: &Options) -> Result<()> {
    if let Some(folder) = &options.built {
        let folder = std::path::absolute(folder)?;
        return report(&pack(&Artefacts::in_folder(folder.clone()), &folder)?);
    }
    let artefacts = build()?;
    if options.verify { verify(&artefacts) } else { Ok(()) }
}

/// Builds `dist/` with its packages, and checks it.
pub fn build() -> Result<Artefacts> {
    ebpf::build().context("cannot make dist/ without the eBPF programs")?;
    let (target, dist) = (build::target().join("dist"), crate::workspace().join("dist"));
    let artefacts = make(&target, &dist)?;
    // By a build of its own, the simulated GPU does not change the features of the product's
    // libraries.
    compile(&target, build::SIMGPU, &[])?;
    build::lay_out_simgpu(&built(&target), &dist.join("simgpu"))?;
    println!("{}", check(&artefacts)?);
    report(&pack(&artefacts, artefacts.folder())?)?;
    Ok(artefacts)
}

/// Builds the eBPF programs and the product again, packs it, and compares all bytes with `first`.
pub fn verify(first: &Artefacts) -> Result<()> {
    let again = build::target().join("dist-again");
    let programs = ebpf::compile(&again.join("ebpf"))?;
    ensure!(
        fs::read(&programs)? == fs::read(ebpf::embedded())?,
        "the eBPF programs in {} differ from those of the first build",
        programs.display()
    );
    let second = make(&again.join("target"), &again.join("dist"))?;
    let product = [second.deepres(), second.library()];
    for path in product.into_iter().chain(pack(&second, second.folder())?) {
        let name = path.file_name().context("a file has a name")?;
        let before = first.folder().join(name);
        ensure!(
            fs::read(&path)? == fs::read(&before)?,
            "two builds differ: {} and {} (diffoscope shows where)",
            before.display(),
            path.display()
        );
    }
    println!("a second build gave the same bytes");
    fs::remove_dir_all(&again).with_context(|| format!("cannot remove {}", again.display()))
}

/// Compiles the product in the folder `target`, and lays it out in `dist`.
fn make(target: &Path, dist: &Path) -> Result<Artefacts> {
    compile(target, build::PRODUCT, &[])?;
    // The client of the API server would change the features of the product's libraries too.
    compile(target, &[PLUGIN], &[DRIVER])?;
    let built = built(target);
    build::lay_out(&built, dist)?;
    build::install(&built.join(PLUGIN), &dist.join(PLUGIN))?;
    Ok(Artefacts::in_folder(dist.to_owned()))
}

/// Compiles packages with these features in the folder `target`.
fn compile(target: &Path, packages: &[&str], features: &[&str]) -> Result<()> {
    let zig = artefacts::zig()?;
    let zigbuild = cache::entry("cargo-zigbuild", ZIGBUILD_VERSION, |folder| {
        let mut install = build::cargo();
        install.args(["install", "--locked", "--no-default-features", "--version", ZIGBUILD_VERSION]);
        install.args(["cargo-zigbuild", "--root"]).arg(folder);
        command::prepare(&mut install)
    })?
    .join("bin/cargo-zigbuild");
    let mut cargo = Command::new(&zigbuild);
    cargo
        .current_dir(crate::workspace())
        .args(["zigbuild", "--release", "--locked", "--target", TARGET, "--target-dir"])
        .arg(target)
        .env("CARGO_ZIGBUILD_PYTHON_PATH", zig.python())
        .env("CARGO_PROFILE_RELEASE_STRIP", "symbols")
        .env("CARGO_PROFILE_RELEASE_DEBUG", "none")
        .env("CARGO_ENCODED_RUSTFLAGS", remapped(target)?.join(FLAG_SEPARATOR))
        .env_remove("RUSTFLAGS");
    cargo.args(packages.iter().flat_map(|package| ["--package", package]));
    cargo.args(features.iter().flat_map(|feature| ["--features", feature]));
    command::run(&mut cargo)
}

/// Returns the folder of the programs and libraries that cargo builds in the folder `target`.
fn built(target: &Path) -> PathBuf {
    target.join("x86_64-unknown-linux-gnu/release")
}

/// Returns the flags of rustc that keep paths of this machine out of the product.
fn remapped(target: &Path) -> Result<Vec<String>> {
    let cargo_home = match env::var_os("CARGO_HOME").filter(|home| !home.is_empty()) {
        Some(home) => PathBuf::from(home),
        None => env::home_dir().context("there is no home folder")?.join(".cargo"),
    };
    let flag = |(from, to): (&Path, &str)| format!("--remap-path-prefix={}={to}", from.display());
    // rustc applies the last flag that fits, and the target folder can lie in the workspace.
    let prefixes =
        [(&*cargo_home, "/cargo"), (&*crate::workspace(), "/deepres"), (target, "/deepres/target")];
    Ok(prefixes.map(flag).into())
}

/// Packs the product into `folder`. Returns the packages, and the file with their checksums.
fn pack(artefacts: &Artefacts, folder: &Path) -> Result<Vec<PathBuf>> {
    let needs = Needs::of(artefacts)?;
    let epoch_s = epoch_s()?;
    let mut packages = vec![
        debian::write(artefacts, &needs, epoch_s, folder)?,
        wheel::write(artefacts, &needs, folder)?,
        tarball::write(artefacts, epoch_s, folder)?,
    ];
    let checksums = folder.join(CHECKSUMS);
    let lines: Vec<String> = packages.iter().map(|path| checksum(path)).collect::<Result<_>>()?;
    fs::write(&checksums, lines.concat()).with_context(|| format!("cannot write {}", checksums.display()))?;
    packages.push(checksums);
    Ok(packages)
}

/// Returns the line about a file in the form of sha256sum.
fn checksum(path: &Path) -> Result<String> {
    let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let hash: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("{hash}  {}\n", path.file_name().context("a package has a name")?.display()))
}

fn report(packages: &[PathBuf]) -> Result<()> {
    for path in packages {
        println!("{}: {} KiB", path.display(), fs::metadata(path)?.len().div_ceil(1 << 10));
    }
    Ok(())
}

/// Returns the modification time of all packed files, s since 1970.
fn epoch_s() -> Result<u64> {
    let named = env::var(EPOCH_VARIABLE).ok();
    let text = match named {
        Some(text) => text,
        None => {
            let mut git = Command::new("git");
            git.arg("-C").arg(crate::workspace()).args(["log", "-1", "--format=%ct"]);
            command::output(&mut git).with_context(|| format!("without git, set {EPOCH_VARIABLE}"))?
        }
    };
    text.trim().parse().with_context(|| format!("{EPOCH_VARIABLE} is not a number of seconds: {text:?}"))
}

/// Checks the product against the requirements of users' machines. Returns a description of the
/// product.
fn check(artefacts: &Artefacts) -> Result<String> {
    let plugin = artefacts.folder().join(PLUGIN);
    let image = fs::read(&plugin).with_context(|| format!("cannot read {}", plugin.display()))?;
    let of_plugin = elf::newest_glibc(&image).with_context(|| plugin.display().to_string())?;
    let (major, minor) = Needs::of(artefacts)?.glibc.max(of_plugin);
    if (major, minor) > NEWEST_GLIBC {
        bail!("the product needs GLIBC_{major}.{minor}, newer than {}.{}", NEWEST_GLIBC.0, NEWEST_GLIBC.1);
    }
    let mut lines = vec![format!("the product needs GLIBC_{major}.{minor}")];
    let mut total_bytes = 0;
    for path in [artefacts.library(), artefacts.deepres(), plugin] {
        let bytes = fs::metadata(&path).with_context(|| format!("cannot read {}", path.display()))?.len();
        total_bytes += bytes;
        lines.push(format!("{}: {} KiB", path.display(), bytes >> 10));
    }
    if total_bytes > SIZE_LIMIT_BYTES {
        bail!("the product has {total_bytes} bytes, more than {SIZE_LIMIT_BYTES}");
    }
    Ok(lines.join("\n"))
}
