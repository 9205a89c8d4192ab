//! What this machine, container and process allow: the facts behind `elbowroom doctor`.
//!
//! [`probe`] looks at everything; the functions beside it look at one thing each, for callers that need
//! only that. Where the kernel's word is not enough (a container's seccomp filter, a sandbox that imitates
//! Linux, a feature bit of a kernel with a bug), the feature is tried: a page is really moved, a ring is
//! really made.
//!
//! Probing prints nothing, decides nothing and leaves nothing behind: its descriptors are close-on-exec and
//! closed before it returns, its memory is unmapped, no file or directory is created. It cannot hang: a
//! page that is registered with a userfaultfd is only touched after that userfaultfd was closed, when the
//! kernel serves its faults itself.
//!
//! Synchronization: none; any thread may probe at any time, several at once too.

mod calls;
mod process;
mod system;
mod tasks;
mod userfaults;

pub use calls::denied_call;
pub use process::{InternalSignal, MAX_HANDLERS, OWN_BYTES, RESERVED_BYTES, WINDOW_BYTES, handlers, start};
pub use system::{Groups, huge_pages, io_uring, limits, memory, memory_cgroup, security};
pub use userfaults::userfaultfd;

use std::path::PathBuf;

use rustix::io::Errno;
use serde::Serialize;

use self::system::read_text;

/// Everything that was found out. Plain data; the names of the fields are the keys of `elbowroom doctor
/// --json`.
#[derive(Debug, Clone, Serialize)]
pub struct Probe {
    /// The kernel's release, as `uname -r` says it.
    pub kernel_release: String,
    /// Bytes in a page.
    pub page_bytes: u64,
    /// Ways to a userfaultfd, and what it can do.
    pub userfaultfd: Userfaultfd,
    /// Whether io_uring can be used.
    pub io_uring: IoUring,
    /// Transparent huge pages.
    pub huge_pages: HugePages,
    /// Memory of the machine.
    pub memory: Memory,
    /// Limits of this process and of the kernel.
    pub limits: Limits,
    /// What a process needs to start a manager.
    pub start: Start,
    /// The memory group this process is in, if there is one and it can be seen.
    pub memory_cgroup: Option<MemoryCgroup>,
    /// Rights and restrictions of this process.
    pub security: Security,
}

/// How one attempt ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Trial {
    /// Whether it worked.
    pub works: bool,
    /// Why not, in the system's words; `None` if it worked or could not be tried for want of something else.
    pub error: Option<String>,
    /// The error as an errno number.
    pub errno: Option<i32>,
}

impl Trial {
    fn passed() -> Trial {
        Trial { works: true, error: None, errno: None }
    }

    /// A failed trial whose error text names what failed.
    fn failed(what: &str, errno: Errno) -> Trial {
        let error = std::io::Error::from(errno);
        Trial { works: false, error: Some(format!("{what}: {error}")), errno: Some(errno.raw_os_error()) }
    }

    fn of<T>(result: &Result<T, Errno>) -> Trial {
        let errno = result.as_ref().err().map(|error| error.raw_os_error());
        let error = errno.map(|errno| std::io::Error::from_raw_os_error(errno).to_string());
        Trial { works: result.is_ok(), error, errno }
    }
}

/// What was found out about userfaultfd. The trials of operations are made on the best descriptor there is:
/// the device's, else the system call's, else the one for faults in user mode only.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Userfaultfd {
    /// By opening `/dev/userfaultfd`.
    pub device: Trial,
    /// By the system call, with the faults of system calls included.
    pub syscall: Trial,
    /// By the system call, for faults in user mode only. A system call that meets a missing page then fails.
    pub user_mode_only: Trial,
    /// The sysctl `vm.unprivileged_userfaultfd`.
    pub sysctl_unprivileged: Option<u64>,
    /// The feature bits that the kernel offers (`UFFD_FEATURE_*`); 0 if there is no userfaultfd.
    pub feature_bits: u64,
    /// The names of those bits, in lower case, in the order of the bits. A bit without a name here is left
    /// out.
    pub features: Vec<&'static str>,
    /// UFFDIO_MOVE: a page was moved, and its bytes arrived.
    pub move_page: Trial,
    /// UFFDIO_COPY: a page was copied into place, and its bytes arrived.
    pub copy_page: Trial,
    /// UFFDIO_WRITEPROTECT: a page was protected.
    pub write_protect: Trial,
    /// UFFDIO_POISON: a page was poisoned.
    pub poison: Trial,
}

/// What was found out about io_uring.
#[derive(Debug, Clone, Default, Serialize)]
pub struct IoUring {
    /// A small ring was made.
    pub ring: Trial,
    /// The ring's feature bits (`IORING_FEAT_*`); 0 without a ring.
    pub feature_bits: u32,
    /// The sysctl `kernel.io_uring_disabled`: 0 for all, 1 for a group, 2 for nobody. `None` before Linux
    /// 6.6.
    pub sysctl_disabled: Option<u64>,
}

/// Transparent huge pages.
#[derive(Debug, Clone, Default, Serialize)]
pub struct HugePages {
    /// The mode chosen: `always`, `madvise` or `never`; `None` if the kernel has none.
    pub mode: Option<String>,
    /// Bytes in one.
    pub huge_page_bytes: Option<u64>,
}

/// Memory of the machine, from `/proc/meminfo`.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Memory {
    /// All of it, in bytes.
    pub total_bytes: Option<u64>,
    /// What programs could have without swapping, in bytes.
    pub available_bytes: Option<u64>,
    /// The sysctl `vm.overcommit_memory`: 0 heuristic, 1 always, 2 never.
    pub overcommit_mode: Option<u64>,
}

/// Limits. `None` is unlimited for the `rlimit_*`, unknown for the others.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Limits {
    /// The sysctl `vm.max_map_count`: mappings per process.
    pub max_map_count: Option<u64>,
    /// RLIMIT_MEMLOCK (soft), in bytes.
    pub rlimit_memlock_bytes: Option<u64>,
    /// RLIMIT_NOFILE (soft), in descriptors.
    pub rlimit_nofile: Option<u64>,
    /// RLIMIT_NOFILE (hard): up to here a process may raise the soft limit.
    pub rlimit_nofile_hard: Option<u64>,
    /// RLIMIT_AS (soft), in bytes.
    pub rlimit_address_space_bytes: Option<u64>,
    /// RLIMIT_DATA (soft), in bytes.
    pub rlimit_data_bytes: Option<u64>,
}

/// What a process needs to start a manager, besides userfaultfd. Tried for the number of handlers and the
/// budget that were asked about.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Start {
    /// /proc is mounted.
    pub procfs: Trial,
    /// No filter denies a system call that every manager needs; the error names the first.
    pub calls: Trial,
    /// There is room for `thread_count` threads: no limit is near, or so many were started and were there
    /// at once.
    pub threads: Trial,
    /// How many threads a process needs in addition to the program's.
    pub thread_count: usize,
    /// The limits of address space and data (RLIMIT_AS, RLIMIT_DATA) have room for `reserved_bytes`, or can
    /// be raised.
    pub addresses: Trial,
    /// Addresses that are reserved, in bytes.
    pub reserved_bytes: u64,
}

/// The memory group of this process.
#[derive(Debug, Clone, Serialize)]
pub struct MemoryCgroup {
    /// 1 or 2.
    pub version: u8,
    /// Its directory.
    pub path: PathBuf,
    /// The smallest limit of it and the groups above it that can be seen, in bytes; `None` is unlimited.
    pub limit_bytes: Option<u64>,
    /// What the group uses, in bytes.
    pub used_bytes: Option<u64>,
    /// What the group has left, in bytes: the least that its limit or that of a group above it leaves. Page
    /// cache that is on the inactive list counts as free. `None` is unlimited.
    pub left_bytes: Option<u64>,
    /// Whether this process may make a group inside it.
    pub can_make_child: Trial,
}

/// Rights and restrictions of this process.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Security {
    /// Its effective user.
    pub effective_uid: u32,
    /// Whether it has CAP_SYS_PTRACE, which allows userfaultfd with the faults of system calls.
    pub cap_sys_ptrace: bool,
    /// 0 without seccomp, 1 strict, 2 with filters; `None` if the kernel does not say.
    pub seccomp_mode: Option<u64>,
    /// Whether it can gain no rights by executing a program.
    pub no_new_privs: bool,
}

/// Looks at everything. Takes some milliseconds. Never fails: what cannot be found out is `None` or a failed
/// [`Trial`].
pub fn probe() -> Probe {
    let groups = Groups::read();
    Probe {
        kernel_release: read_text("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
        page_bytes: rustix::param::page_size() as u64,
        userfaultfd: userfaultfd(),
        io_uring: io_uring(),
        huge_pages: huge_pages(),
        memory: memory(),
        limits: limits(),
        start: start(0, 0, groups.as_ref()),
        memory_cgroup: groups.as_ref().and_then(memory_cgroup),
        security: security(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn probing_leaves_no_descriptor_and_no_mapping() {
        let descriptors = || fs::read_dir("/proc/self/fd").unwrap().count();
        let mappings = || fs::read_to_string("/proc/self/maps").unwrap().lines().count();
        let before = (descriptors(), mappings());
        // Each probe makes several of both. Other tests may hold some meanwhile, but not as many as probes
        // that leak.
        const PROBES: usize = 200;
        for _ in 0..PROBES {
            probe();
        }
        let after = (descriptors(), mappings());
        assert!(
            after.0 < before.0 + PROBES / 2 && after.1 < before.1 + PROBES / 2,
            "{before:?}, then {after:?}"
        );
    }
}
