//! The program's own descriptor of a file that it maps.
//!
//! A mapping by the kernel keeps the open file description ("struct file") that it was made through: its
//! rights, its `flock` locks, and which mappings may merge depend on it. So a managed mapping keeps the
//! description, too: it is duplicated from the program's file table into ours, and used to make the
//! kernel's mapping when the range is handed back to the kernel.

use crate::calls::Descriptor;
use crate::file::FileId;
use crate::limits;
use elbowroom_machine::Errno;
use elbowroom_sync::Arc;
use rustix::fs;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// PIDFD_THREAD: the descriptor stands for the thread, not for its process. Linux 6.9.
const PIDFD_THREAD: u32 = rustix::fs::OFlags::EXCL.bits();
/// fcntl(2): whether two descriptors share an open file description. Linux 6.10.
const F_DUPFD_QUERY: libc::c_int = 1024 + 3;
/// kcmp(2): the same question on older kernels.
const KCMP_FILE: libc::c_long = 0;

/// An open file description of the program's, in our file table.
#[derive(Debug)]
pub struct Origin {
    fd: Descriptor,
    id: FileId,
    /// A number that identifies the description; unique in this process.
    serial: u64,
}

impl Origin {
    /// Duplicates descriptor `fd` of thread `tid` of this process into our file table. `serial` is the
    /// number to identify it by; see [`Origin::is_same`].
    ///
    /// # Errors
    /// EBADF: there is no such descriptor (any more). ENOSYS, EPERM: the kernel is older than 5.6, or a
    /// sandbox forbids it. EMFILE: our file table is full.
    pub fn take(tid: u32, fd: i32, serial: u64) -> Result<Self, Errno> {
        Self::of(duplicate(tid, fd)?, serial)
    }

    /// [`Origin::take`] for a mapping of a regular file. Where a sandbox forbids that (Docker's, without
    /// CAP_SYS_PTRACE), the file is opened a second time: then the mapping has a description of its own. A
    /// `flock` lock ends when the program closes its descriptor, although the file is still mapped, and each
    /// mapping keeps a descriptor, since no two descriptions are the same.
    ///
    /// # Errors
    /// As for [`Origin::take`]. EACCES: the file cannot be opened a second time.
    pub fn take_or_open(tid: u32, fd: i32, serial: u64) -> Result<Self, Errno> {
        match duplicate(tid, fd) {
            Err(Errno::NOSYS | Errno::PERM) => Self::of(open_again(tid, fd)?, serial),
            taken => Self::of(taken?, serial),
        }
    }

    fn of(fd: Descriptor, serial: u64) -> Result<Self, Errno> {
        let stat = fs::fstat(&fd)?;
        Ok(Self { fd, id: FileId { device: stat.st_dev, inode: stat.st_ino }, serial })
    }

    /// The file.
    pub fn id(&self) -> FileId {
        self.id
    }

    /// The number that identifies the description.
    pub fn serial(&self) -> u64 {
        self.serial
    }

    /// Whether it can be written through.
    pub fn writable(&self) -> bool {
        fs::fcntl_getfl(&self.fd).is_ok_and(|flags| flags & fs::OFlags::RWMODE == fs::OFlags::RDWR)
    }

    /// The descriptor in our file table.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The path under which the calling thread can open the same file anew.
    pub fn path(&self) -> String {
        self.fd.proc_path()
    }

    /// Whether both are one open file description. If the kernel does not tell, they count as two: then
    /// neighbouring mappings that could be merged stay separate.
    pub fn is_same(&self, other: &Origin) -> bool {
        let (a, b) = (self.fd.as_fd().as_raw_fd(), other.fd.as_fd().as_raw_fd());
        // SAFETY: integers only; both descriptors are open for as long as they are borrowed.
        let answer = unsafe { libc::syscall(libc::SYS_fcntl, a, F_DUPFD_QUERY, b) };
        if answer >= 0 {
            return answer == 1;
        }
        // SAFETY: integers only.
        unsafe {
            let (tid, same) = (libc::syscall(libc::SYS_gettid), KCMP_FILE);
            libc::syscall(libc::SYS_kcmp, tid, tid, same, a as libc::c_long, b as libc::c_long) == 0
        }
    }

    /// The origin among `known` that is the same description, or else this one.
    pub fn or_known(self, known: impl IntoIterator<Item = Arc<Origin>>) -> Arc<Origin> {
        known.into_iter().find(|other| other.is_same(&self)).unwrap_or_else(|| Arc::new(self))
    }
}

/// A duplicate of descriptor `fd` of thread `tid` in our file table.
fn duplicate(tid: u32, fd: i32) -> Result<Descriptor, Errno> {
    let pid = Pid::from_raw(tid as i32).ok_or(Errno::SRCH)?;
    let own = Pid::from_raw(rustix::process::getpid().as_raw_nonzero().get()).ok_or(Errno::SRCH)?;
    // Fallback: the main thread has the program's file table, too, unless it has ended or a thread has
    // called unshare.
    let process = |pid, flags| limits::open_briefly(|| pidfd_open(pid, PidfdFlags::from_bits_retain(flags)));
    let thread = process(pid, PIDFD_THREAD).or_else(|_| process(own, 0)).map(Descriptor::from)?;
    limits::open_kept(|| pidfd_getfd(&thread, fd, PidfdGetfdFlags::empty()))
}

/// Opens the regular file of descriptor `fd` of thread `tid` a second time, for reading or writing as that
/// descriptor is open.
fn open_again(tid: u32, fd: i32) -> Result<Descriptor, Errno> {
    use std::io::Read;
    let place = |kind: &str| format!("/proc/self/task/{tid}/{kind}/{fd}");
    let no_descriptor = |errno| if errno == Errno::NOENT { Errno::BADF } else { errno };
    let flags = fs::OFlags::RDONLY | fs::OFlags::CLOEXEC;
    let info = limits::open_briefly(|| fs::open(place("fdinfo"), flags, fs::Mode::empty()));
    let mut text = String::new();
    std::fs::File::from(info.map_err(no_descriptor)?).read_to_string(&mut text).map_err(|_| Errno::BADF)?;
    let flags = text.lines().find_map(|line| line.strip_prefix("flags:")).map(str::trim);
    let flags = flags.and_then(|flags| u32::from_str_radix(flags, 8).ok()).ok_or(Errno::BADF)?;
    let access = fs::OFlags::from_bits_retain(flags) & fs::OFlags::RWMODE;
    // Neither a terminal nor a pipe is opened for good, and neither must have an effect or make us wait.
    let flags = access | fs::OFlags::CLOEXEC | fs::OFlags::NOCTTY | fs::OFlags::NONBLOCK;
    let file =
        limits::open_kept(|| fs::open(place("fd"), flags, fs::Mode::empty())).map_err(no_descriptor)?;
    let is_regular = fs::FileType::from_raw_mode(fs::fstat(&file)?.st_mode) == fs::FileType::RegularFile;
    if is_regular { Ok(file) } else { Err(Errno::NODEV) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_opened_again_for_what_the_descriptor_may_do() {
        let path = tempfile::NamedTempFile::new().unwrap();
        let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let reader = std::fs::File::open(path.path()).unwrap();
        let both = path.reopen().unwrap();
        std::fs::remove_file(path.path()).unwrap();
        for (file, writable) in [(&reader, false), (&both, true)] {
            let again = open_again(tid, file.as_raw_fd()).unwrap();
            let mode = fs::fcntl_getfl(&again).unwrap() & fs::OFlags::RWMODE;
            assert_eq!(mode == fs::OFlags::RDWR, writable);
            let [ours, its] = [fs::fstat(&again), fs::fstat(file)].map(|stat| stat.unwrap().st_ino);
            assert_eq!(ours, its);
        }
        assert_eq!(open_again(tid, 1 << 20).unwrap_err(), Errno::BADF);
    }

    fn take(fd: &impl AsRawFd, serial: u64) -> Origin {
        let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        Origin::take(tid, fd.as_raw_fd(), serial).unwrap()
    }

    #[test]
    fn one_description_is_told_from_two() {
        let path = tempfile::NamedTempFile::new().unwrap();
        let (a, b) = (std::fs::File::open(path.path()).unwrap(), std::fs::File::open(path.path()).unwrap());
        let (first, again, other) = (take(&a, 1), take(&a, 2), take(&b, 3));
        assert!(first.is_same(&again) && again.is_same(&first));
        assert!(!first.is_same(&other));
        assert_eq!((first.id(), first.writable()), (other.id(), false));
        let known = Arc::new(first);
        assert_eq!(again.or_known([known.clone()]).serial(), 1);
        assert_eq!(other.or_known([known]).serial(), 3);
    }

    #[test]
    fn it_outlives_the_programs_descriptor() {
        let path = tempfile::NamedTempFile::new().unwrap();
        let file = path.reopen().unwrap();
        let origin = take(&file, 1);
        drop(file);
        assert!(origin.writable());
        assert!(fs::fstat(origin.as_fd()).is_ok());
    }

    #[test]
    fn a_closed_descriptor_is_an_error() {
        let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        assert_eq!(Origin::take(tid, 1 << 20, 1).unwrap_err(), Errno::BADF);
    }
}
