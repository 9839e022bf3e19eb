//! Gives the library the name under which programs look for the driver. Also binds the library's
//! own symbols to itself, as the real driver does. So `cuGetProcAddress` returns the library's own
//! functions, even if another library that the program loaded earlier exports the same names.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
}
