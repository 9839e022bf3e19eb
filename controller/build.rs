//! Embeds the kernel programs, if they were built: from the file that DEEPRES_EBPF names, else from where `cargo xtask ebpf` puts it.

use std::path::PathBuf;
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-env-changed=DEEPRES_EBPF");
    let named = env::var_os("DEEPRES_EBPF").filter(|named| !named.is_empty()).map(PathBuf::from);
    let folder = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"))
        .join("../target/deepres-ebpf");
    // Cargo runs this again when something in the folder changes; if there were no folder it would run it, and build all that follows,
    // every time.
    if fs::create_dir_all(&folder).is_ok() {
        println!("cargo::rerun-if-changed={}", folder.display());
    }
    let object = named.clone().unwrap_or_else(|| folder.join("programs.o"));
    if named.is_some() {
        println!("cargo::rerun-if-changed={}", object.display());
    }
    let programs = match fs::read(&object) {
        Ok(programs) if !programs.is_empty() => programs,
        Err(error) if named.is_some() => panic!("DEEPRES_EBPF names {}: {error}", object.display()),
        // Missing, or empty.
        _ => {
            println!(
                "cargo::warning=building deepres without its kernel programs: it will not see who uses the GPU unmanaged by their ioctls, nor trace; `cargo xtask ebpf` builds them"
            );
            Vec::new()
        }
    };
    let embedded = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it")).join("programs.o");
    fs::write(&embedded, programs)
        .unwrap_or_else(|error| panic!("cannot write {}: {error}", embedded.display()));
}
