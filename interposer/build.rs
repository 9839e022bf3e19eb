//! Names the library, so that copies of it know each other in a process.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libdeepres.so");
}
