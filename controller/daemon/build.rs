//! Embeds the eBPF programs into the daemon, if they are built. The variable DEEPRES_EBPF names
//! their file. Without the variable, the file is at the place where `cargo xtask ebpf` puts it.

use std::path::{Path, PathBuf};
use std::{env, fs};

/// The warning of a build without the eBPF programs.
pub const WITHOUT: &str = "building deepres without its eBPF programs: it will neither see the ioctls of unmanaged processes nor trace; `cargo xtask ebpf` builds the programs";

fn main() {
    println!("cargo::rerun-if-env-changed=DEEPRES_EBPF");
    let named = env::var_os("DEEPRES_EBPF").filter(|named| !named.is_empty()).map(PathBuf::from);
    let folder = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"))
        .join("../../target/deepres-ebpf");
    // If a file in the folder changes, cargo runs this script again. Without a folder, cargo would
    // run the script and all dependent builds every time.
    if fs::create_dir_all(&folder).is_ok() {
        println!("cargo::rerun-if-changed={}", folder.display());
    }
    if let Some(named) = &named {
        println!("cargo::rerun-if-changed={}", named.display());
    }
    let programs = programs(named.as_deref(), &folder).unwrap_or_else(|error| panic!("{error}"));
    if programs.is_empty() {
        println!("cargo::warning={WITHOUT}");
    }
    let embedded = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it")).join("programs.o");
    fs::write(&embedded, programs)
        .unwrap_or_else(|error| panic!("cannot write {}: {error}", embedded.display()));
}

/// Returns the programs in the file `named`, else the programs in `folder`. The result is empty if
/// `folder` has no programs, or if the file is empty.
///
/// # Errors
/// The file `named` cannot be read.
pub fn programs(named: Option<&Path>, folder: &Path) -> Result<Vec<u8>, String> {
    match named {
        Some(named) => {
            fs::read(named).map_err(|error| format!("DEEPRES_EBPF names {}: {error}", named.display()))
        }
        None => Ok(fs::read(folder.join("programs.o")).unwrap_or_default()),
    }
}
