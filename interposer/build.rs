//! Gives the library a soname, by which copies of the library in one process recognise each other.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libdeepres.so");
}
