//! Whether another process has a file open, as /proc tells of each process. A second look soon after the
//! first is only at processes that were made since.

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

/// The result of a look at a process, or at a part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    /// It has the file neither open nor mapped.
    Absent,
    /// It has the file open or mapped.
    Open,
    /// The kernel does not tell.
    Unknown,
}

impl Look {
    fn found(found: bool) -> Self {
        if found { Self::Open } else { Self::Absent }
    }

    /// The result after an error: the process is gone (absent), or it may not be looked at (unknown).
    fn failed(error: Errno) -> Self {
        if matches!(error, Errno::SRCH | Errno::NOENT) { Self::Absent } else { Self::Unknown }
    }

    fn failed_io(error: &io::Error) -> Self {
        Errno::from_io_error(error).map_or(Self::Unknown, Self::failed)
    }

    fn or_else(self, other: impl FnOnce() -> Self) -> Self {
        if self == Self::Absent { other() } else { self }
    }

    /// This result, but `Absent` instead of `Unknown` if `ended` says that the thread has ended, and so has
    /// nothing open.
    fn unless(self, ended: impl FnOnce() -> bool) -> Self {
        if self == Self::Unknown && ended() { Self::Absent } else { self }
    }
}

/// How long after a look the processes that existed then need no second one. In that time the kernel cannot
/// have given out all pids and begun again with low ones.
const HOLDS: Duration = Duration::from_millis(200);
/// The most pids of new processes that are looked at one by one.
const NEW_MAX: u32 = 256;
/// How often to look again for processes that were made during the look.
const ROUNDS: u32 = 4;

/// A look that found that no other process had a file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Looked {
    /// The highest pid or tid that existed then.
    newest: u32,
    at: Instant,
}

impl Looked {
    /// Whether the look can still be used: if no process has opened the file since, only processes with
    /// higher pids can have it (by inheritance).
    pub(super) fn holds(&self) -> bool {
        self.at.elapsed() < HOLDS
    }
}

/// The means to look at other processes.
pub(super) struct Others {
    /// /proc/loadavg, which has the pid of the process that was made last. `None`: it does not have it
    /// here.
    newest: Option<Descriptor>,
}

impl Others {
    pub(super) fn new() -> Self {
        Self { newest: open_newest() }
    }

    /// Looks whether another process has the file open or mapped. `None`: one has, or it cannot be found
    /// out. Otherwise the inner value is the record of this look for later ones, if there can be one.
    /// `known` is an earlier look, since which no process has opened the file.
    ///
    /// Looks at all processes, or only at those that were made since `known`. (A write lease on the
    /// program's open file description would tell of other descriptions at once, but not of a process that
    /// shares this one since a fork.) Uses that no process shows in /proc are not seen: a loop device, a
    /// file server in the kernel, processes outside of our PID namespace. In some containers process 1
    /// belongs to the container's maker, and cannot be looked at even with all capabilities: it is taken to
    /// have nothing open, or no file could be managed there.
    pub(super) fn look(&self, id: FileId, known: Option<Looked>) -> Option<Option<Looked>> {
        if let Some(known) = known.filter(Looked::holds)
            && let Some(alone) = self.look_at_new(id, known)
        {
            return alone.map(Some);
        }
        // Read before the look, so that processes that are made during it are looked at next time.
        let looked = self.newest().map(|newest| Looked { newest, at: Instant::now() });
        (!have_open(id)).then_some(looked)
    }

    /// [`Others::look`], only at processes that were made since `known`. `None`: they are not known, or too
    /// many.
    fn look_at_new(&self, id: FileId, mut known: Looked) -> Option<Option<Looked>> {
        for _ in 0..ROUNDS {
            let now = Looked { newest: self.newest()?, at: Instant::now() };
            // If the newest pid is lower, pids have begun again with low ones.
            if now.newest.checked_sub(known.newest)? > NEW_MAX {
                return None;
            }
            if now.newest == known.newest {
                return Some(Some(now));
            }
            let is_own = |number: u32| fs::exists(format!("/proc/self/task/{number}")).unwrap_or(false);
            let is_absent = |number: u32| look_at(format!("/proc/{number}").as_ref(), id) == Look::Absent;
            // `is_own` is asked twice: a new thread of ours does not appear in /proc/self/task at once.
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

/// Opens /proc/loadavg, if it is the kernel's own file, and about the processes that /proc shows: some
/// containers have another file there, which is not up to date.
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
    // One thread of each file table that was looked at.
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
            // All threads have the same mappings; threads that have ended show none.
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

/// Whether two threads share a file table. If the kernel does not tell, they count as two tables, and both
/// are looked at.
fn share_a_table(tid: libc::c_long, other: libc::c_long) -> bool {
    let none: libc::c_long = 0;
    // SAFETY: integers only.
    unsafe { libc::syscall(libc::SYS_kcmp, tid, other, KCMP_FILES, none, none) == 0 }
}

fn look_at_descriptors(task: &Path, id: FileId) -> Look {
    let fds = match limits::open_briefly(|| fs::read_dir(task.join("fd"))) {
        Ok(fds) => fds,
        // A thread that has ended has closed its files, and its /proc directory may not be readable.
        Err(error) => return Look::failed_io(&error).unless(|| has_ended(task)),
    };
    let look = |fd: io::Result<fs::DirEntry>| match fd {
        Ok(fd) => look_at_descriptor(&fd.path(), id),
        Err(error) => Look::failed_io(&error),
    };
    fds.map(look).find(|look| *look != Look::Absent).unwrap_or(Look::Absent)
}

/// Asks only for the identity, and without asking a file server: another user's file system (FUSE) refuses
/// to tell more, and one whose server is gone would not answer.
fn look_at_descriptor(fd: &Path, id: FileId) -> Look {
    match statx(CWD, fd, AtFlags::STATX_DONT_SYNC, StatxFlags::empty()) {
        Ok(stat) => {
            let device = makedev(stat.stx_dev_major, stat.stx_dev_minor);
            Look::found((device, stat.stx_ino) == (id.device, id.inode))
        }
        Err(error) => Look::failed(error),
    }
}

/// Compares inode numbers only: the device that /proc shows is not always the one that fstat(2) returns.
/// Also tells whether there were any mappings: threads that have ended and kernel threads have none.
fn look_at_mappings(task: &Path, inode: u64) -> (Look, bool) {
    match limits::open_briefly(|| fs::read_to_string(task.join("maps"))) {
        Ok(maps) => (Look::found(maps.lines().any(|line| maps_inode(line) == Some(inode))), !maps.is_empty()),
        Err(error) => (Look::failed_io(&error).unless(|| has_ended(task)), false),
    }
}

fn maps_inode(line: &str) -> Option<u64> {
    line.split_ascii_whitespace().nth(4)?.parse().ok()
}

/// Whether the thread has ended, and only waits to be reaped, or for the other threads of its process.
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
