//! Against the real kernel: a second process is a child that runs a shell command.

use super::others::{Look, look_at};
use super::*;
use crate::shared::{one_at_a_time, skipped};
use elbowroom_sync::thread;
use std::fs::File;
use std::process::{Child, Command};
use std::time::Instant;

/// Long enough for any open that is not kept waiting.
const SOON: std::time::Duration = std::time::Duration::from_millis(300);

/// Longer than anything here takes.
const LONG: std::time::Duration = std::time::Duration::from_secs(20);

struct Running {
    _alone: std::sync::MutexGuard<'static, ()>,
    guards: Arc<Guards>,
    listener: Option<thread::JoinHandle<()>>,
}

impl Running {
    fn start() -> Self {
        let alone = one_at_a_time();
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
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target");
    // The build may have another place for its own files.
    std::fs::create_dir_all(directory).unwrap();
    tempfile::NamedTempFile::new_in(directory).unwrap()
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
fn guards_are_tried() {
    let running = Running::start();
    let path = new_file();
    let file = File::open(path.path()).unwrap();
    assert_eq!(Trials::make(file.as_fd()).lease, Err(Errno::AGAIN), "`path` is open for writing");
    let (kept, path) = path.into_parts();
    drop(kept);
    let trials = Trials::make(file.as_fd());
    assert_eq!((trials.lease, trials.watch.is_ok()), (Ok(()), running.guards.fanotify.is_some()));
    drop((file, path));
}

#[test]
fn another_process_waits_for_the_watch_and_ours_does_not() {
    let running = Running::start();
    if running.guards.fanotify.is_none() {
        return skipped("fanotify with permission events needs CAP_SYS_ADMIN");
    }
    let path = new_file();
    let guard = running.guards.watch(&origin_of(path.as_file())).expect("nobody else has it");
    assert!(running.guards.opens.get().is_none(), "a second group is needed only when a watch has ended");
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
        return skipped("fanotify with permission events needs CAP_SYS_ADMIN");
    }
    let path = new_file();
    // A second open file description of this process is no reason not to guard the file.
    let second = path.reopen().unwrap();
    assert!(running.guards.watch(&origin_of(path.as_file())).is_some());
    let mut other = shell("exec 3< \"$1\"; echo ready > \"$1.ready\"; exec sleep 60", path.path());
    let ready = std::path::PathBuf::from(format!("{}.ready", path.path().display()));
    let until = Instant::now() + LONG;
    while !ready.exists() {
        assert!(Instant::now() < until && other.try_wait().unwrap().is_none(), "the other has not opened it");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert!(running.guards.watch(&origin_of(path.as_file())).is_none());
    other.kill().unwrap();
    other.wait().unwrap();
    std::fs::remove_file(ready).unwrap();
    assert!(running.guards.watch(&origin_of(path.as_file())).is_some());
    drop(second);
}

#[test]
fn what_a_look_has_found_is_used_until_somebody_else_may_have_the_file() {
    let running = Running::start();
    let guards = &running.guards;
    if guards.fanotify.is_none() {
        return skipped("fanotify with permission events needs CAP_SYS_ADMIN");
    }
    let path = new_file();
    let (id, origin) = (id_of(path.as_file()), origin_of(path.as_file()));
    let map_again = || guards.watch(&origin).map(drop).is_some();
    assert!(!guards.was_alone(id), "nobody has looked");
    // The machine may be slower than what is known lasts.
    let until = Instant::now() + LONG;
    while !(map_again() && guards.was_alone(id)) {
        assert!(Instant::now() < until, "each look takes too long, or is of no use");
    }
    // Our own opens tell nothing.
    drop(File::open(path.path()).unwrap());
    assert!(map_again());
    let until = Instant::now() + LONG;
    while guards.known(id).is_none() {
        assert!(map_again() && Instant::now() < until, "what was known is lost");
    }
    assert!(shell("cat \"$1\"", path.path()).wait().unwrap().success(), "nobody is waited for");
    assert!(guards.known(id).is_none(), "somebody has opened it");
    assert!(map_again(), "and has let it go");
    for _ in 0..3 {
        assert!(map_again());
        let mut heir = sleeper(path.as_file(), |_| {});
        assert!(!map_again(), "a child has it, and has not opened it");
        heir.kill().unwrap();
        heir.wait().unwrap();
        assert!(map_again(), "the child is gone");
    }
}

#[test]
fn what_is_known_of_many_files_is_forgotten() {
    let running = Running::start();
    let guards = &running.guards;
    if guards.fanotify.is_none() {
        return skipped("fanotify with permission events needs CAP_SYS_ADMIN");
    }
    let files: Vec<_> = (0..LEFT_MAX + 10).map(|_| new_file()).collect();
    for file in &files {
        drop(guards.watch(&origin_of(file.as_file())).expect("nobody else has it"));
        assert!(guards.state.lock().left.len() <= LEFT_MAX);
    }
    let until = Instant::now() + LONG;
    while !guards.state.lock().left.is_empty() {
        assert!(Instant::now() < until, "what is known is kept for ever");
        std::thread::sleep(SOON);
        guards.forget();
    }
}

#[test]
fn a_file_beyond_those_that_are_remembered_has_a_mark_too() {
    let running = Running::start();
    let guards = &running.guards;
    if guards.fanotify.is_none() {
        return skipped("fanotify with permission events needs CAP_SYS_ADMIN");
    }
    let files: Vec<_> = (0..=LEFT_MAX).map(|_| new_file()).collect();
    for file in &files {
        drop(guards.watch(&origin_of(file.as_file())).expect("nobody else has it"));
    }
    let last = &files[LEFT_MAX];
    assert!(shell("cat \"$1\"", last.path()).wait().unwrap().success());
    guards.hear();
    assert!(!guards.state.lock().left.contains_key(&id_of(last.as_file())), "another process has opened it");
}

#[test]
fn no_mark_stays_on_a_file_that_another_process_has_opened() {
    let running = Running::start();
    let guards = &running.guards;
    if guards.fanotify.is_none() {
        return skipped("fanotify with permission events needs CAP_SYS_ADMIN");
    }
    let path = new_file();
    let id = id_of(path.as_file());
    let until = Instant::now() + LONG;
    // A look that takes too long leaves no mark.
    while !guards.state.lock().left.contains_key(&id) {
        assert!(Instant::now() < until);
        drop(guards.watch(&origin_of(path.as_file())).expect("nobody else has it"));
    }
    let opens = guards.opens.get().unwrap().as_ref().unwrap().as_fd().as_raw_fd();
    let marks = || std::fs::read_to_string(format!("/proc/self/fdinfo/{opens}")).unwrap();
    assert!(marks().contains("fanotify ino:"));
    assert!(shell("cat \"$1\"", path.path()).wait().unwrap().success());
    guards.hear();
    assert!(guards.state.lock().left.is_empty());
    guards.forget();
    assert!(!marks().contains("fanotify ino:"));
}

fn process(pid: u32) -> std::path::PathBuf {
    format!("/proc/{pid}").into()
}

/// A child that has the file as its standard input and sleeps.
fn sleeper(file: &File, change: impl FnOnce(&mut Command)) -> Child {
    let mut command = Command::new("sleep");
    command.arg("60").stdin(file.try_clone().unwrap());
    change(&mut command);
    command.spawn().unwrap()
}

#[test]
fn a_process_that_may_not_be_looked_at_is_unknown() {
    use std::os::unix::process::CommandExt;
    if !rustix::process::geteuid().is_root() {
        return skipped("another user's process is made by root");
    }
    let _alone = one_at_a_time();
    let (path, other) = (new_file(), new_file());
    let (id, other) = (id_of(path.as_file()), id_of(other.as_file()));
    let mut child = sleeper(path.as_file(), |command| {
        command.uid(65534).gid(65534);
    });
    let pid = process(child.id());
    assert_eq!((look_at(&pid, id), look_at(&pid, other)), (Look::Open, Look::Absent));
    let without_the_right = std::thread::spawn({
        let pid = pid.clone();
        move || {
            drop_the_right_to_look();
            (look_at(&pid, id), look_at(&pid, other))
        }
    });
    assert_eq!(without_the_right.join().unwrap(), (Look::Unknown, Look::Unknown));
    child.kill().unwrap();
    // A child that has ended has nothing open, also before its parent has waited for it.
    let until = Instant::now() + LONG;
    while look_at(&pid, id) != Look::Absent {
        assert!(Instant::now() < until, "it was killed");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    child.wait().unwrap();
    assert_eq!(look_at(&pid, id), Look::Absent, "there is none");
}

/// Takes CAP_SYS_PTRACE and what includes it from the calling thread.
fn drop_the_right_to_look() {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    let mut sets = capabilities(None).unwrap();
    sets.effective.remove(CapabilitySet::SYS_PTRACE);
    set_capabilities(None, sets).unwrap();
}

#[test]
fn a_thread_with_a_file_table_of_its_own_is_looked_at() {
    let _alone = one_at_a_time();
    let path = new_file();
    let id = id_of(path.as_file());
    let own = process(std::process::id());
    assert_eq!(look_at(&own, id), Look::Open);
    let path = path.into_temp_path();
    assert_eq!(look_at(&own, id), Look::Absent);
    let (to_test, opened) = std::sync::mpsc::channel();
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn({
        let path = path.to_path_buf();
        move || {
            // SAFETY: this thread uses no descriptor of the others.
            unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::FILES) }.unwrap();
            let file = File::open(path).unwrap();
            to_test.send(()).unwrap();
            let _ = ended.recv();
            drop(file);
        }
    });
    opened.recv().unwrap();
    assert_eq!(look_at(&own, id), Look::Open);
    drop(end);
    thread.join().unwrap();
    assert_eq!(look_at(&own, id), Look::Absent);
}
