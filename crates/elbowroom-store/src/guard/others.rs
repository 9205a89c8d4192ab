//! Whether another process has a file open. Most of it is what /proc says of each process; a second look soon
//! after the first is at those only that were made since.

use crate::calls::Descriptor;
use crate::file::FileId;
use crate::limits;
use elbowroom_machine::Errno;
use elbowroom_sync::time::{Duration, Instant};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, fstatfs, makedev, open, statx};
use rustix::io::pread;
use std::fs;
use std::io;
use std::path::Path;

/// kcmp(2): whether two threads share a file table.
const KCMP_FILES: libc::c_long = 2;
/// The bit of CAP_SYS_PTRACE.
const CAP_SYS_PTRACE: u32 = 19;

/// What a look at a process, or at a part of it, has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    /// It has the file neither open nor mapped.
    Absent,
    /// It has.
    Open,
    /// The kernel does not say.
    Unknown,
}

impl Look {
    fn found(found: bool) -> Self {
        if found { Self::Open } else { Self::Absent }
    }

    /// What an error means: nothing is there any more, or it may not be looked at.
    fn failed(error: Errno) -> Self {
        if matches!(error, Errno::SRCH | Errno::NOENT) { Self::Absent } else { Self::Unknown }
    }

    fn failed_io(error: &io::Error) -> Self {
        Errno::from_io_error(error).map_or(Self::Unknown, Self::failed)
    }

    fn or_else(self, other: impl FnOnce() -> Self) -> Self {
        if self == Self::Absent { other() } else { self }
    }

    /// The same, unless `ended` says that there is nothing left that one could look at.
    fn unless(self, ended: impl FnOnce() -> bool) -> Self {
        if self == Self::Unknown && ended() { Self::Absent } else { self }
    }
}

/// For so long after a look the processes that were there then need no second one: in that time the kernel
/// cannot have given out all numbers of processes, and begun again.
const HOLDS: Duration = Duration::from_millis(200);
/// So many numbers of new processes are looked at one by one.
const NEW_MAX: u32 = 256;
/// How often to look again for who was made during the look.
const ROUNDS: u32 = 4;

/// That no other process had a file, at some moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Looked {
    /// The highest number of a process, or of a thread, that was there then.
    newest: u32,
    at: Instant,
}

impl Looked {
    /// Whether it is of use: whoever may have the file now, if nobody has opened it since, has a higher
    /// number.
    pub(super) fn holds(&self) -> bool {
        self.at.elapsed() < HOLDS
    }
}

/// How to look at other processes.
pub(super) struct Others {
    /// /proc/loadavg, which has the number of the process that was made last. `None`: it has not.
    newest: Option<Descriptor>,
}

impl Others {
    pub(super) fn new() -> Self {
        Self { newest: open_newest() }
    }

    /// Looks whether another process has the file open, or maps it. `None`: one has, or that cannot be known.
    /// Else what there is to know about a later look, if anything. `known`: nobody had it then, and nobody
    /// has opened it since.
    ///
    /// All processes are looked at, or those that `known` says nothing of. (A write lease on the program's
    /// description would tell of other descriptions at once, but not of a process that shares this one since
    /// a fork.) Not seen is what no process shows: a loop device, a file server in the kernel, processes
    /// outside of our PID namespace. Process 1 of some containers belongs to who has made the container, and
    /// cannot be looked at with whatever right: it is taken to have nothing open, or no file could be managed
    /// there.
    pub(super) fn look(&self, id: FileId, known: Option<Looked>) -> Option<Option<Looked>> {
        if let Some(known) = known.filter(Looked::holds)
            && let Some(alone) = self.look_at_new(id, known)
        {
            return alone.map(Some);
        }
        // Before the look: who is made during it is looked at again.
        let looked = self.newest().map(|newest| Looked { newest, at: Instant::now() });
        (!have_open(id)).then_some(looked)
    }

    /// The same, of those alone who were made since. `None`: these are not known, or too many.
    fn look_at_new(&self, id: FileId, mut known: Looked) -> Option<Option<Looked>> {
        for _ in 0..ROUNDS {
            let now = Looked { newest: self.newest()?, at: Instant::now() };
            // The numbers have begun again if the newest is a low one.
            if now.newest.checked_sub(known.newest)? > NEW_MAX {
                return None;
            }
            if now.newest == known.newest {
                return Some(Some(now));
            }
            let is_own = |number: u32| fs::exists(format!("/proc/self/task/{number}")).unwrap_or(false);
            let is_absent = |number: u32| look_at(format!("/proc/{number}").as_ref(), id) == Look::Absent;
            // Asked again: a thread of ours that is just being made is not among them at once.
            let is_alone = |number: u32| is_own(number) || is_absent(number) || is_own(number);
            if !(known.newest + 1..=now.newest).all(is_alone) {
                return Some(None);
            }
            known = now;
        }
        Some(Some(known))
    }

    fn newest(&self) -> Option<u32> {
        let mut text = [0; 128];
        let n = pread(self.newest.as_ref()?, &mut text, 0).ok()?;
        newest_in(std::str::from_utf8(&text[..n]).ok()?)
    }
}

/// Opens /proc/loadavg, if it is the kernel's own and about the processes that /proc shows: containers have
/// something else there, which is late.
fn open_newest() -> Option<Descriptor> {
    const PROC: i64 = 0x9fa0;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = limits::open_kept(|| open("/proc/loadavg", flags, Mode::empty())).ok()?;
    let is_the_kernels = fstatfs(&file).is_ok_and(|system| system.f_type == PROC);
    let own = std::process::id().to_string();
    let is_ours = fs::read_link("/proc/self").is_ok_and(|link| link.as_os_str() == own.as_str());
    (is_the_kernels && is_ours).then_some(file)
}

fn newest_in(loadavg: &str) -> Option<u32> {
    loadavg.split_ascii_whitespace().nth(4)?.parse().ok()
}

fn have_open(id: FileId) -> bool {
    let own = std::process::id().to_string();
    let Ok(mut processes) = limits::open_briefly(|| fs::read_dir("/proc")) else { return true };
    processes.any(|process| {
        let Ok(process) = process else { return true };
        let name = process.file_name();
        let is_process = name.as_encoded_bytes().iter().all(u8::is_ascii_digit);
        if !is_process || name == own.as_str() {
            return false;
        }
        match look_at(&process.path(), id) {
            Look::Absent => false,
            Look::Open => true,
            Look::Unknown => name != "1" || !may_look_everywhere(),
        }
    })
}

/// Looks at every file table of the process: threads may have tables of their own, and a main thread that has
/// ended before the others shows nothing.
pub(super) fn look_at(process: &Path, id: FileId) -> Look {
    let tasks = match limits::open_briefly(|| fs::read_dir(process.join("task"))) {
        Ok(tasks) => tasks,
        Err(error) => return Look::failed_io(&error),
    };
    // A thread of each file table that was looked at.
    let mut tables: Vec<libc::c_long> = Vec::new();
    let mut mappings_are_known = false;
    let look = |task: io::Result<fs::DirEntry>| {
        let task = match task {
            Ok(task) => task,
            Err(error) => return Look::failed_io(&error),
        };
        let Some(tid) = task.file_name().to_str().and_then(|name| name.parse().ok()) else {
            return Look::Unknown;
        };
        let task = task.path();
        let mut look = Look::Absent;
        if !mappings_are_known {
            // All threads have the same, those that have ended none.
            (look, mappings_are_known) = look_at_mappings(&task, id.inode);
        }
        look.or_else(|| {
            if tables.iter().any(|&other| share_a_table(tid, other)) {
                return Look::Absent;
            }
            tables.push(tid);
            look_at_descriptors(&task, id)
        })
    };
    tasks.map(look).find(|look| *look != Look::Absent).unwrap_or(Look::Absent)
}

/// Where the kernel does not tell, they count as two tables, and both are looked at.
fn share_a_table(tid: libc::c_long, other: libc::c_long) -> bool {
    let none: libc::c_long = 0;
    // SAFETY: integers only.
    unsafe { libc::syscall(libc::SYS_kcmp, tid, other, KCMP_FILES, none, none) == 0 }
}

fn look_at_descriptors(task: &Path, id: FileId) -> Look {
    let fds = match limits::open_briefly(|| fs::read_dir(task.join("fd"))) {
        Ok(fds) => fds,
        // What has ended has closed its files, and may not be looked at.
        Err(error) => return Look::failed_io(&error).unless(|| has_ended(task)),
    };
    let look = |fd: io::Result<fs::DirEntry>| match fd {
        Ok(fd) => look_at_descriptor(&fd.path(), id),
        Err(error) => Look::failed_io(&error),
    };
    fds.map(look).find(|look| *look != Look::Absent).unwrap_or(Look::Absent)
}

/// Asks for nothing but the identity, and for what is known without asking a server: a file system of another
/// user's (FUSE) refuses to say more, and one whose server is gone would not answer.
fn look_at_descriptor(fd: &Path, id: FileId) -> Look {
    match statx(CWD, fd, AtFlags::STATX_DONT_SYNC, StatxFlags::empty()) {
        Ok(stat) => {
            let device = makedev(stat.stx_dev_major, stat.stx_dev_minor);
            Look::found((device, stat.stx_ino) == (id.device, id.inode))
        }
        Err(error) => Look::failed(error),
    }
}

/// By the inode number alone: the device that /proc shows is not always the one that fstat(2) gives. Also
/// says whether there were any: a thread that has ended, and one of the kernel's, has none.
fn look_at_mappings(task: &Path, inode: u64) -> (Look, bool) {
    match limits::open_briefly(|| fs::read_to_string(task.join("maps"))) {
        Ok(maps) => (Look::found(maps.lines().any(|line| maps_inode(line) == Some(inode))), !maps.is_empty()),
        Err(error) => (Look::failed_io(&error).unless(|| has_ended(task)), false),
    }
}

fn maps_inode(line: &str) -> Option<u64> {
    line.split_ascii_whitespace().nth(4)?.parse().ok()
}

/// Whether the thread has ended, and only waits for its parent, or for the others of its process.
fn has_ended(task: &Path) -> bool {
    // The state follows the command name, which is in parentheses and may contain any character.
    limits::open_briefly(|| fs::read_to_string(task.join("stat")))
        .is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['Z', 'X'])))
}

/// Whether we have CAP_SYS_PTRACE: the right to look at all processes of our user namespace.
fn may_look_everywhere() -> bool {
    let status = limits::open_briefly(|| fs::read_to_string("/proc/thread-self/status")).unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective
        .and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok())
        .is_some_and(|bits| bits & 1 << CAP_SYS_PTRACE != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_process_has_the_highest_number() {
        assert_eq!(newest_in("0.20 0.18 0.12 1/80 11206\n"), Some(11206));
        assert_eq!(newest_in("0.20 0.18 0.12 1/80"), None);
        let others = Others::new();
        let Some(before) = others.newest() else { return };
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let after = others.newest().unwrap();
        // The numbers may have begun again.
        assert!(after >= child.id() || after < before, "{before}, {}, {after}", child.id());
        child.wait().unwrap();
    }
}
