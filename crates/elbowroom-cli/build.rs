//! Puts the two preloaded libraries into the command, where that is asked for: such a command works without
//! any other file.
//!
//! `ELBOWROOM_EMBED` says where they come from:
//! * `build`: a cargo of its own builds them, in a target directory inside of this crate's output;
//! * the absolute path of a directory: they are there, built before;
//! * empty, or not set: the command has no libraries, and looks for them beside itself.
//!
//! The cargo feature `embedded` means `build` where the variable is not set. Debug builds have no libraries.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, exit};

const LIBRARIES: [&str; 2] = ["libelbowroom_preload.so", "libelbowroom_heap.so"];

/// The variable that says where the libraries come from.
const VARIABLE: &str = "ELBOWROOM_EMBED";

/// What the libraries are built from, in the workspace.
const SOURCES: [&str; 10] = [
    "Cargo.lock",
    "Cargo.toml",
    "crates/elbowroom",
    "crates/elbowroom-heap",
    "crates/elbowroom-index",
    "crates/elbowroom-machine",
    "crates/elbowroom-options",
    "crates/elbowroom-preload",
    "crates/elbowroom-store",
    "crates/elbowroom-sync",
];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed={VARIABLE}");
    let out = PathBuf::from(variable("OUT_DIR"));
    let directory = match from().as_str() {
        "" => None,
        _ if variable("PROFILE") != "release" => None,
        "build" => Some(build(&out)),
        directory => Some(PathBuf::from(directory)),
    };
    write(&out.join("libraries.rs"), &source(directory.as_deref(), &out));
}

/// The value of [`VARIABLE`], or what the feature means.
fn from() -> String {
    let feature = if env::var_os("CARGO_FEATURE_EMBEDDED").is_some() { "build" } else { "" };
    env::var(VARIABLE).unwrap_or_else(|_| feature.to_owned())
}

/// Rust code with a list of the libraries, and a number that is another one for other libraries.
fn source(directory: Option<&Path>, out: &Path) -> String {
    let mut hasher = DefaultHasher::new();
    let mut files = String::new();
    for name in LIBRARIES {
        let Some(directory) = directory else { continue };
        let from = directory.join(name);
        println!("cargo::rerun-if-changed={}", from.display());
        let bytes = fs::read(&from).unwrap_or_else(|error| {
            fail(&format!("{VARIABLE} names {}, but {}: {error}", directory.display(), from.display()))
        });
        hasher.write(&bytes);
        let to = out.join(name);
        write(&to, &bytes);
        files.push_str(&format!("    ({name:?}, include_bytes!({to:?})),\n"));
    }
    let hash = hasher.finish();
    format!(
        "pub const LIBRARIES: &[(&str, &[u8])] = &[\n{files}];\npub const HASH: &str = \"{hash:016x}\";\n"
    )
}

/// Builds the libraries, and gives their directory.
fn build(out: &Path) -> PathBuf {
    let workspace = Path::new(&variable("CARGO_MANIFEST_DIR")).join("../..");
    for source in SOURCES {
        println!("cargo::rerun-if-changed={}", workspace.join(source).display());
    }
    // Another directory than that of the cargo that waits for this script: the two would wait for each
    // other's lock.
    let (target, platform) = (out.join("libraries"), variable("TARGET"));
    let mut command = Command::new(variable("CARGO"));
    command.current_dir(&workspace).args(["build", "--release", "--locked", "--target", &platform]);
    command.args(["-p", "elbowroom-preload", "-p", "elbowroom-heap", "--target-dir"]).arg(&target);
    // These are of the outer build, and would be taken for the inner one's.
    for name in ["CARGO_TARGET_DIR", "CARGO_BUILD_TARGET", "CARGO_BUILD_TARGET_DIR", "CARGO_BUILD_BUILD_DIR"]
    {
        command.env_remove(name);
    }
    // The command would be six times as large with what a debugger knows.
    if env::var_os("CARGO_PROFILE_RELEASE_STRIP").is_none() {
        command.env("CARGO_PROFILE_RELEASE_STRIP", "debuginfo");
    }
    match command.status() {
        Ok(status) if status.success() => target.join(platform).join("release"),
        Ok(status) => fail(&format!(
            "cargo cannot build the libraries that the command is to contain ({status}); what it says is \
             above. They need a C compiler, and the crates of Cargo.lock: `cargo fetch --locked` gets those \
             while there is a network. {VARIABLE}= builds the command without libraries"
        )),
        Err(error) => fail(&format!("cargo cannot be started for the libraries: {error}")),
    }
}

fn write(path: &Path, bytes: &(impl AsRef<[u8]> + ?Sized)) {
    if let Err(error) = fs::write(path, bytes) {
        fail(&format!("{} cannot be written: {error}", path.display()));
    }
}

/// A variable that cargo sets for each build script.
fn variable(name: impl AsRef<OsStr>) -> String {
    let name = name.as_ref();
    env::var(name).unwrap_or_else(|error| fail(&format!("{}: {error}", name.display())))
}

fn fail(why: &str) -> ! {
    println!("cargo::error={why}");
    exit(1)
}
