//! Where tests keep their files, and where the binary under test is.
//!
//! Elbowroom leaves files that live in memory to the kernel, so a test on tmpfs would pass without testing
//! anything: scratch directories are made inside the workspace's target directory, and must be on a disk.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The variable that names another directory for scratch files.
pub const DIRECTORY_VARIABLE: &str = "ELBOWROOM_TEST_DIR";

/// File systems that live in memory, by the magic numbers of statfs(2): tmpfs, ramfs, hugetlbfs.
const IN_MEMORY: [u64; 3] = [0x0102_1994, 0x8584_58f6, 0x9584_58f6];

/// The workspace's root.
pub fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests are a directory of the workspace")
}

/// The directory under which everything that tests make is kept.
///
/// # Panics
/// If it cannot be made or lives in memory.
pub fn root() -> PathBuf {
    let root = std::env::var_os(DIRECTORY_VARIABLE)
        .map(PathBuf::from)
        .unwrap_or_else(|| workspace().join("target/elbowroom-tests"));
    std::fs::create_dir_all(&root).unwrap_or_else(|error| panic!("{}: {error}", root.display()));
    let stat = rustix::fs::statfs(&root).unwrap_or_else(|error| panic!("{}: {error}", root.display()));
    assert!(
        !IN_MEMORY.contains(&(stat.f_type as u64)),
        "{} is in memory, where Elbowroom manages nothing: set {DIRECTORY_VARIABLE} to a directory on a disk",
        root.display()
    );
    root
}

/// A directory of one test, removed with its files when dropped.
pub struct Scratch(tempfile::TempDir);

impl Scratch {
    /// A new, empty directory.
    ///
    /// # Panics
    /// If it cannot be made.
    #[expect(clippy::new_without_default, reason = "it makes a directory, which a default should not")]
    pub fn new() -> Self {
        Self(tempfile::tempdir_in(root()).expect("a scratch directory can be made"))
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// A name in it, as an argument of a program.
    pub fn file(&self, name: &str) -> String {
        self.0
            .path()
            .join(name)
            .into_os_string()
            .into_string()
            .expect("the scratch directory's path is UTF-8")
    }
}

/// The `elbowroom` binary: `$ELBOWROOM_EXE`, or what cargo has built in the target directory, release before
/// debug.
///
/// # Panics
/// If there is none.
pub fn elbowroom_exe() -> PathBuf {
    if let Some(exe) = std::env::var_os("ELBOWROOM_EXE") {
        let exe = PathBuf::from(exe);
        assert!(exe.is_file(), "ELBOWROOM_EXE names {}, which is no file", exe.display());
        return exe;
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| OsString::from("target"));
    let found = ["release", "debug"]
        .iter()
        .map(|profile| workspace().join(&target).join(profile).join("elbowroom"))
        .find(|exe| exe.is_file());
    found.unwrap_or_else(|| {
        panic!(
            "there is no elbowroom binary in {}: run `cargo build --release` first, or set ELBOWROOM_EXE",
            workspace().join(&target).display()
        )
    })
}
