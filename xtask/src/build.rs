//! Builds the library, the daemon and the simulated GPU, and puts them into folders as clients find
//! them.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use deepres_e2e::stand_ins;

use crate::command;

/// Packages that a user installs.
pub const PRODUCT: &[&str] = &["deepres-interposer", "deepres"];
/// Packages of the simulated GPU.
pub const SIMGPU: &[&str] = &["simgpu-cuda", "simgpu-nvml"];

/// A folder with `deepres`, `libdeepres.so` and `simgpu/`.
#[derive(Clone)]
pub struct Artefacts {
    folder: PathBuf,
}

impl Artefacts {
    /// Returns the artefacts in `folder`, into which `lay_out` and `lay_out_simgpu` have put them.
    pub fn in_folder(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Returns the folder of the artefacts.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the path of the binary with the daemon and the command line.
    pub fn deepres(&self) -> PathBuf {
        self.folder.join("deepres")
    }

    /// Returns the path of the interposer.
    pub fn library(&self) -> PathBuf {
        self.folder.join("libdeepres.so")
    }

    /// Returns the folder of the simulated `libcuda.so.1` and `libnvidia-ml.so.1`, for
    /// LD_LIBRARY_PATH.
    pub fn simgpu(&self) -> PathBuf {
        self.folder.join("simgpu")
    }
}

/// Returns the cargo command that started this task.
pub fn cargo() -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(crate::workspace());
    cargo
}

/// Returns the folder of all builds. The path is absolute, because commands run in different
/// directories.
pub fn target() -> PathBuf {
    let folder = env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    // A relative folder is relative to the workspace, because cargo runs there.
    crate::workspace().join(folder)
}

/// Builds the product and the simulated GPU for release, and lays them out in `target/deepres`.
pub fn artefacts() -> Result<Artefacts> {
    let mut build = cargo();
    build.args(["build", "--release"]);
    for package in PRODUCT.iter().chain(SIMGPU) {
        build.args(["--package", package]);
    }
    command::run(&mut build)?;
    laid_out("release", "deepres")
}

/// Builds the stand-ins for NVIDIA's libraries for release. Returns cargo's folder with them. The
/// stand-ins are no artefacts: only tests and the demo use them.
pub fn stand_ins() -> Result<PathBuf> {
    let mut build = cargo();
    build.args(["build", "--release"]);
    build.args(stand_ins::PACKAGES.iter().flat_map(|package| ["--package", package]));
    command::run(&mut build)?;
    Ok(target().join("release"))
}

/// Lays out the same artefacts in `target/deepres-check`, from the debug build of the tests with
/// its assertions.
pub fn check_artefacts() -> Result<Artefacts> {
    laid_out("debug", "deepres-check")
}

fn laid_out(profile: &str, folder: &str) -> Result<Artefacts> {
    let (built, folder) = (target().join(profile), target().join(folder));
    lay_out(&built, &folder)?;
    lay_out_simgpu(&built, &folder.join("simgpu"))?;
    Ok(Artefacts::in_folder(folder))
}

/// Compiles the client `tests/workloads/c/NAME.c`, which finds the driver by `dlsym`. Returns the
/// client's path.
pub fn c_client(name: &str) -> Result<PathBuf> {
    let folder = target().join("deepres/clients");
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let program = folder.join(name);
    let mut compiler = Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into()));
    compiler.args(["-O1", "-Wall", "-Wextra", "-DWAY_DLSYM", "-pthread"]);
    compiler.arg(crate::workspace().join("tests/workloads/c").join(name).with_extension("c"));
    compiler.args(["-ldl", "-lm", "-o"]).arg(&program);
    command::run(&mut compiler)?;
    Ok(program)
}

/// Copies the product built in `from` into `folder`.
pub fn lay_out(from: &Path, folder: &Path) -> Result<()> {
    for name in ["deepres", "libdeepres.so"] {
        install(&from.join(name), &folder.join(name))?;
    }
    Ok(())
}

/// Copies the simulated GPU built in `from` into `folder`, under the names for which clients look.
pub fn lay_out_simgpu(from: &Path, folder: &Path) -> Result<()> {
    for (built, name) in [
        ("libcuda.so", "libcuda.so.1"),
        ("libcuda.so", "libcuda.so"),
        ("libnvidia_ml.so", "libnvidia-ml.so.1"),
        ("nvidia-cuda-mps-control", "nvidia-cuda-mps-control"),
    ] {
        install(&from.join(built), &folder.join(name))?;
    }
    Ok(())
}

/// Copies a file and renames it into place. If a process runs or maps the old file, the process
/// keeps the old file.
pub fn install(from: &Path, to: &Path) -> Result<()> {
    let folder = to.parent().context("a file without a folder")?;
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let new = to.with_extension(format!("new-{}", std::process::id()));
    fs::copy(from, &new).with_context(|| format!("cannot copy {} to {}", from.display(), new.display()))?;
    fs::rename(&new, to).with_context(|| format!("cannot rename {} to {}", new.display(), to.display()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::io::Read as _;

    use super::*;

    #[test]
    fn the_workspace_takes_over_the_files_that_the_build_of_xtask_made() {
        let features = |packages: &[&str]| -> BTreeSet<String> {
            let mut tree = cargo();
            tree.args(["tree", "--locked", "--prefix", "none", "--no-dedupe", "--format", "{p} with {f}"]);
            let lines = command::output(tree.args(packages)).unwrap();
            lines.lines().map(|line| line.replace(" (proc-macro)", "")).collect()
        };
        let alone = features(&["--package", "xtask", "--edges", "normal,build"]);
        let together = features(&["--workspace"]);
        let others: Vec<_> = alone.difference(&together).collect();
        assert!(others.is_empty(), "the workspace has other features: see xtask/Cargo.toml: {others:#?}");
    }

    #[test]
    fn installing_leaves_the_old_file_to_processes_that_have_it_open() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("inner/to"));
        fs::write(&from, "old").unwrap();
        install(&from, &to).unwrap();
        let mut held = fs::File::open(&to).unwrap();
        fs::write(&from, "new").unwrap();
        install(&from, &to).unwrap();
        let mut content = String::new();
        held.read_to_string(&mut content).unwrap();
        assert_eq!(content, "old");
        assert_eq!(fs::read_to_string(&to).unwrap(), "new");
        assert_eq!(fs::read_dir(to.parent().unwrap()).unwrap().count(), 1, "nothing is left beside it");
    }
}
