//! Gives the library the name that clients ask the dynamic linker for.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
}
