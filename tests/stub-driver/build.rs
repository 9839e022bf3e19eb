//! Gives the library the name with which clients ask the dynamic linker.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
}
