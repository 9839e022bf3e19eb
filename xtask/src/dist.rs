//! `cargo xtask dist`: builds the product for users, so that it runs on old distributions.
//!
//! The linker is zig's (from PyPI; cargo-zigbuild calls it). This linker links against the symbol
//! versions of a chosen glibc, with any glibc on the build machine.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use deepres_e2e::{artefacts, cache};

use crate::build::Artefacts;
use crate::{build, command, ebpf, elf};

/// Target with the glibc against which the product is built. All distributions that current drivers
/// support have a newer glibc.
const TARGET: &str = "x86_64-unknown-linux-gnu.2.17";
/// The newest glibc that the product may need: the glibc of RHEL 8.
const NEWEST_GLIBC: (u32, u32) = (2, 28);
/// The most bytes of the whole product.
const SIZE_LIMIT_BYTES: u64 = 64 << 20;
/// The package and the program of the Kubernetes device plugin.
const PLUGIN: &str = "deepres-k8s";
/// Version of cargo-zigbuild.
const ZIGBUILD_VERSION: &str = "0.24.1";

/// Builds `dist/` and checks it.
pub fn run() -> Result<Artefacts> {
    let dist = crate::workspace().join("dist");
    let zig = artefacts::zig()?;
    let zigbuild = cache::entry("cargo-zigbuild", ZIGBUILD_VERSION, |folder| {
        let mut install = build::cargo();
        install.args(["install", "--locked", "--no-default-features", "--version", ZIGBUILD_VERSION]);
        install.args(["cargo-zigbuild", "--root"]).arg(folder);
        command::prepare(&mut install)
    })?
    .join("bin/cargo-zigbuild");

    ebpf::build().context("cannot make dist/ without the kernel programs")?;

    let folder = build::target().join("dist");
    let mut cargo = std::process::Command::new(&zigbuild);
    cargo
        .current_dir(crate::workspace())
        .args(["zigbuild", "--release", "--target", TARGET, "--target-dir"])
        .arg(&folder)
        .env("CARGO_ZIGBUILD_PYTHON_PATH", zig.python())
        .env("CARGO_PROFILE_RELEASE_STRIP", "symbols")
        .env("CARGO_PROFILE_RELEASE_DEBUG", "none");
    for package in build::PRODUCT.iter().chain([&PLUGIN]).chain(build::SIMGPU) {
        cargo.args(["--package", package]);
    }
    command::run(&mut cargo)?;
    let built = folder.join("x86_64-unknown-linux-gnu/release");
    build::lay_out(&built, &dist)?;
    build::install(&built.join(PLUGIN), &dist.join(PLUGIN))?;
    build::lay_out_simgpu(&built, &dist.join("simgpu"))?;
    println!("{}", check(&dist)?);
    Ok(Artefacts::in_folder(dist))
}

/// Checks the product in `dist` against the requirements of users' machines. Returns a description
/// of the product.
fn check(dist: &Path) -> Result<String> {
    let mut lines = Vec::new();
    let mut total_bytes = 0;
    for name in ["libdeepres.so", "deepres", PLUGIN] {
        let path = dist.join(name);
        let image = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let (major, minor) = elf::newest_glibc(&image).with_context(|| path.display().to_string())?;
        if (major, minor) > NEWEST_GLIBC {
            bail!(
                "{} needs GLIBC_{major}.{minor}, newer than {}.{}",
                path.display(),
                NEWEST_GLIBC.0,
                NEWEST_GLIBC.1
            );
        }
        total_bytes += image.len() as u64;
        lines.push(format!("{}: {} KiB, needs GLIBC_{major}.{minor}", path.display(), image.len() >> 10));
    }
    if total_bytes > SIZE_LIMIT_BYTES {
        bail!("the product in {} has {total_bytes} bytes, more than {SIZE_LIMIT_BYTES}", dist.display());
    }
    Ok(lines.join("\n"))
}
