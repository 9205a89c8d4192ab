//! Tests in processes of their own.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// A directory on a disk: files that live in memory are not managed.
pub fn scratch() -> tempfile::TempDir {
    let disk =
        std::env::var_os("ELBOWROOM_TEST_DIR").map_or_else(|| PathBuf::from("/var/tmp"), PathBuf::from);
    tempfile::tempdir_in(disk).unwrap()
}

const APART: &str = "ELBOWROOM_TEST_APART";

/// Runs a test's body in a process of its own: `None` there, after the body, and its end here.
pub fn apart(name: &str, directory: &Path, body: impl FnOnce(&Path)) -> Option<(ExitStatus, String)> {
    if std::env::var(APART).is_ok_and(|apart| apart == name) {
        body(&PathBuf::from(std::env::var_os("ELBOWROOM_TEST_FILES").unwrap()));
        return None;
    }
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(APART, name)
        .env("ELBOWROOM_TEST_FILES", directory)
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(120);
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > deadline {
            child.kill().unwrap();
            panic!("{name} hangs");
        }
        thread::sleep(Duration::from_millis(2));
    };
    let mut text = String::new();
    child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    Some((status, text))
}
