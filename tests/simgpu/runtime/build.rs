//! Gives the library the name and the symbol versions of NVIDIA's library. Programs that were
//! linked to NVIDIA's ask for the version `libcudart.so.13` of each function.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcudart.so.13");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    // The default version of all symbols is the soname. Only GNU's linker has this option.
    println!("cargo::rustc-cdylib-link-arg=-fuse-ld=bfd");
    println!("cargo::rustc-cdylib-link-arg=-Wl,--default-symver");
}
