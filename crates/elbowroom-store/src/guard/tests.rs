//! Against the real kernel: a second process is a child that runs a shell command.

use super::*;
use elbowroom_sync::thread;
use std::fs::File;
use std::process::{Child, Command};
use std::time::Instant;

/// Long enough for any open that is not kept waiting.
const SOON: std::time::Duration = std::time::Duration::from_millis(300);

/// A child that another test has forked has all our descriptors for a moment.
static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());

struct Running {
    _alone: std::sync::MutexGuard<'static, ()>,
    guards: Arc<Guards>,
    listener: Option<thread::JoinHandle<()>>,
}

impl Running {
    fn start() -> Self {
        let alone = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let guards = Guards::new(&LockStats::new()).unwrap();
        let listens = guards.clone();
        let listener = Some(thread::spawn("guard-test", move || listens.listen()).unwrap());
        guards.wait_for_listener();
        Self { _alone: alone, guards, listener }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.guards.stop();
        let _ = self.listener.take().unwrap().join();
    }
}

fn id_of(file: &File) -> FileId {
    use std::os::unix::fs::MetadataExt;
    let meta = file.metadata().unwrap();
    FileId { device: meta.dev(), inode: meta.ino() }
}

fn origin_of(file: &File) -> Origin {
    let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    Origin::take(tid, file.as_raw_fd(), 1).unwrap()
}

/// A file on a disk: memory file systems have no leases everywhere.
fn new_file() -> tempfile::NamedTempFile {
    tempfile::NamedTempFile::new_in(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target")).unwrap()
}

fn shell(command: &str, path: &std::path::Path) -> Child {
    Command::new("sh").arg("-c").arg(command).arg("sh").arg(path).spawn().unwrap()
}

fn still_runs_after(child: &mut Child, time: std::time::Duration) -> bool {
    let until = Instant::now() + time;
    while Instant::now() < until {
        if child.try_wait().unwrap().is_some() {
            return false;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    true
}

#[test]
fn a_writer_waits_for_the_lease_and_readers_do_not() {
    let running = Running::start();
    let path = new_file();
    let file = File::open(path.path()).unwrap();
    drop(path.reopen().unwrap());
    let (kept, path) = path.into_parts();
    drop(kept);
    let guard = running.guards.lease(id_of(&file), file.as_fd()).expect("nobody writes");
    assert!(shell("cat \"$1\"", &path).wait().unwrap().success());
    assert!(!guard.is_broken());
    let mut writer = shell("echo x >> \"$1\"", &path);
    let comer = running.guards.next().unwrap();
    assert_eq!(comer.id, id_of(&file));
    assert!(guard.is_broken());
    assert!(still_runs_after(&mut writer, SOON), "the writer waits for the lease");
    drop((comer, guard, file));
    assert!(writer.wait().unwrap().success());
}

#[test]
fn no_lease_while_somebody_writes() {
    let running = Running::start();
    let path = new_file();
    let file = File::open(path.path()).unwrap();
    assert!(running.guards.lease(id_of(&file), file.as_fd()).is_none(), "`path` is open for writing");
}

#[test]
fn another_process_waits_for_the_watch_and_ours_does_not() {
    let running = Running::start();
    if running.guards.fanotify.is_none() {
        println!("SKIPPED: fanotify with permission events needs CAP_SYS_ADMIN");
        return;
    }
    let path = new_file();
    let guard = running.guards.watch(&origin_of(path.as_file())).expect("nobody else has it");
    drop(File::open(path.path()).unwrap());
    assert!(!guard.is_broken());
    let mut reader = shell("cat \"$1\"", path.path());
    let comer = running.guards.next().unwrap();
    assert_eq!(comer.id, id_of(path.as_file()));
    assert!(guard.is_broken() && !guard.is_lease());
    assert!(still_runs_after(&mut reader, SOON), "the reader waits for the answer");
    drop(comer);
    assert!(reader.wait().unwrap().success());
    drop(guard);
    assert!(shell("cat \"$1\"", path.path()).wait().unwrap().success(), "no guard, nobody is asked");
}

#[test]
fn who_has_it_open_already_is_found() {
    let running = Running::start();
    if running.guards.fanotify.is_none() {
        println!("SKIPPED: fanotify with permission events needs CAP_SYS_ADMIN");
        return;
    }
    let path = new_file();
    // A second description of our own is no reason.
    let second = path.reopen().unwrap();
    assert!(running.guards.watch(&origin_of(path.as_file())).is_some());
    let mut other = shell("exec 3< \"$1\"; echo ready > \"$1.ready\"; exec sleep 60", path.path());
    let ready = path.path().with_extension("ready");
    let ready = if ready.exists() { ready } else { format!("{}.ready", path.path().display()).into() };
    while !ready.exists() {
        std::thread::yield_now();
    }
    assert!(running.guards.watch(&origin_of(path.as_file())).is_none());
    other.kill().unwrap();
    other.wait().unwrap();
    std::fs::remove_file(ready).unwrap();
    assert!(running.guards.watch(&origin_of(path.as_file())).is_some());
    drop(second);
}
