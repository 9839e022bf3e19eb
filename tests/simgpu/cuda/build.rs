//! Gives the library the name under which the driver is looked for, and binds it to itself as the real one is: what it hands out by
//! `cuGetProcAddress` are its own functions, also where another library exports the same names before it.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
}
