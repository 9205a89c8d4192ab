//! Names the interface of the shared library, and keeps it in memory for good: the manager's threads run its
//! code.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libelbowroom.so.0");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
