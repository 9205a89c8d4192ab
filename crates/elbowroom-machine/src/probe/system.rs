//! The remaining probes: io_uring, huge pages, memory, limits, the memory group, rights.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use libc::{SYS_io_uring_setup, c_long, syscall};
use rustix::fd::{FromRawFd, OwnedFd, RawFd};
use rustix::fs::{Access, AtFlags};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use super::{HugePages, IoUring, Limits, Memory, MemoryCgroup, Security, Trial};

/// `struct io_uring_params`, as far as it matters here: the ring's offsets at its end are not looked at.
#[repr(C)]
#[derive(Default)]
struct RingParams {
    sq_entries: u32,
    cq_entries: u32,
    flags: u32,
    sq_thread_cpu: u32,
    sq_thread_idle: u32,
    features: u32,
    wq_fd: u32,
    reserved: [u32; 3],
    offsets: [u64; 10],
}

/// Makes a ring of four entries; returns its descriptor and its feature bits.
fn make_ring() -> Result<(OwnedFd, u32), Errno> {
    let mut params = RingParams::default();
    // SAFETY: io_uring_setup takes a number and a pointer to 120 bytes, which `params` is (a test checks it).
    // No flag is set, so the kernel takes no other address or descriptor from it.
    let result = unsafe { syscall(SYS_io_uring_setup, 4 as c_long, &raw mut params) };
    match RawFd::try_from(result) {
        // SAFETY: A successful call returns a new descriptor (close-on-exec) that nobody else owns.
        Ok(fd) if fd >= 0 => Ok((unsafe { OwnedFd::from_raw_fd(fd) }, params.features)),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

/// Tries to make a small ring, and closes it.
pub fn io_uring() -> IoUring {
    let ring = make_ring();
    IoUring {
        feature_bits: ring.as_ref().map_or(0, |(_, features)| *features),
        ring: Trial::of(&ring),
        sysctl_disabled: read_number("/proc/sys/kernel/io_uring_disabled"),
    }
}

/// Reads the mode of transparent huge pages.
pub fn huge_pages() -> HugePages {
    let directory = Path::new("/sys/kernel/mm/transparent_hugepage");
    let modes = read_text(directory.join("enabled")).unwrap_or_default();
    HugePages {
        mode: modes
            .split_once('[')
            .and_then(|(_, rest)| rest.split_once(']'))
            .map(|(mode, _)| mode.to_owned()),
        huge_page_bytes: read_number(directory.join("hpage_pmd_size")),
    }
}

/// Reads how much memory the machine has.
pub fn memory() -> Memory {
    let text = read_text("/proc/meminfo").unwrap_or_default();
    let bytes = |key| field(&text, key)?.trim_end_matches("kB").trim().parse::<u64>().ok()?.checked_mul(1024);
    Memory {
        total_bytes: bytes("MemTotal"),
        available_bytes: bytes("MemAvailable"),
        overcommit_mode: read_number("/proc/sys/vm/overcommit_memory"),
    }
}

/// Reads limits of this process and of the kernel.
pub fn limits() -> Limits {
    Limits {
        max_map_count: read_number("/proc/sys/vm/max_map_count"),
        rlimit_memlock_bytes: getrlimit(Resource::Memlock).current,
        rlimit_nofile: getrlimit(Resource::Nofile).current,
        rlimit_nofile_hard: getrlimit(Resource::Nofile).maximum,
        rlimit_address_space_bytes: getrlimit(Resource::As).current,
        rlimit_data_bytes: getrlimit(Resource::Data).current,
    }
}

/// Reads rights and restrictions of this process.
pub fn security() -> Security {
    const CAP_SYS_PTRACE: u32 = 19;
    let status = read_text("/proc/self/status").unwrap_or_default();
    let capabilities =
        field(&status, "CapEff").and_then(|hex| u64::from_str_radix(hex, 16).ok()).unwrap_or(0);
    Security {
        effective_uid: rustix::process::geteuid().as_raw(),
        cap_sys_ptrace: capabilities & (1 << CAP_SYS_PTRACE) != 0,
        seccomp_mode: field(&status, "Seccomp").and_then(|mode| mode.parse().ok()),
        no_new_privs: field(&status, "NoNewPrivs") == Some("1"),
    }
}

/// In which control groups this process is, and where they are mounted.
#[derive(Debug, Clone)]
pub struct Groups {
    groups: String,
    mounts: String,
}

impl Groups {
    /// Reads both; `None`: there is no /proc.
    pub fn read() -> Option<Self> {
        Some(Self { groups: read_text("/proc/self/cgroup")?, mounts: read_text("/proc/self/mountinfo")? })
    }

    /// The cgroup version, the directory of this process's group in the hierarchy of the controller, and
    /// the directory where that hierarchy is mounted.
    pub(super) fn locate(&self, controller: &str) -> Option<(u8, PathBuf, PathBuf)> {
        locate_cgroup(&self.groups, &self.mounts, controller)
    }
}

/// Finds the memory group of this process: of version 1 if the memory controller is there, else of version 2.
pub fn memory_cgroup(groups: &Groups) -> Option<MemoryCgroup> {
    let (version, path, top) = groups.locate("memory")?;
    let (limit_file, used_file) = match version {
        1 => ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        _ => ("memory.max", "memory.current"),
    };
    // The root of version 2 has no memory.max, and neither has a group without the controller: no limit
    // there.
    let limits: Vec<(u64, u64)> = path
        .ancestors()
        .take_while(|directory| directory.starts_with(&top))
        .filter_map(|directory| Some((directory, read_number(directory.join(limit_file))?)))
        .filter(|(_, limit)| *limit < UNLIMITED_BYTES)
        .map(|(directory, limit)| {
            let used = read_number(directory.join(used_file)).unwrap_or(0);
            let stat = read_text(directory.join("memory.stat")).unwrap_or_default();
            (limit, left(limit, used, &stat))
        })
        .collect();
    let makes = Access::WRITE_OK | Access::EXEC_OK;
    let writable = rustix::fs::accessat(rustix::fs::CWD, &path, makes, AtFlags::EACCESS);
    Some(MemoryCgroup {
        version,
        limit_bytes: limits.iter().map(|(limit, _)| *limit).min(),
        used_bytes: read_number(path.join(used_file)),
        left_bytes: limits.iter().map(|(_, left)| *left).min(),
        can_make_child: Trial::of(&writable),
        path,
    })
}

/// How many bytes a limit leaves if `used` are used. `stat` is the group's `memory.stat`: its inactive page
/// cache counts as free.
fn left(limit: u64, used: u64, stat: &str) -> u64 {
    let number = |key: &str| {
        stat.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse::<u64>().ok())
    };
    // In version 1 `total_inactive_file` includes the groups below; `inactive_file` does not.
    let idle = number("total_inactive_file").or_else(|| number("inactive_file")).unwrap_or(0);
    limit.saturating_sub(used.saturating_sub(idle))
}

/// Version 1 says "no limit" with a number near 2^63; a limit of an exbibyte is none either.
const UNLIMITED_BYTES: u64 = 1 << 60;

/// [`Groups::locate`] in the texts of `/proc/self/cgroup` and `/proc/self/mountinfo`.
fn locate_cgroup(groups: &str, mounts: &str, controller: &str) -> Option<(u8, PathBuf, PathBuf)> {
    let mut unified = None;
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (id, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        if controllers.split(',').any(|name| name == controller) {
            return locate_mount(mounts, "cgroup", Some(controller), path).map(|(at, top)| (1, at, top));
        }
        if id == "0" {
            unified = Some(path);
        }
    }
    locate_mount(mounts, "cgroup2", None, unified?).map(|(at, top)| (2, at, top))
}

/// The directory of `group` in the first mount of `kind` (with `option` among its options) that contains
/// the group, and the mount point.
fn locate_mount(mounts: &str, kind: &str, option: Option<&str>, group: &str) -> Option<(PathBuf, PathBuf)> {
    mounts.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut of_mount = left.split(' ').skip(3);
        let (root, at) = (of_mount.next()?, of_mount.next()?);
        let mut of_source = right.split(' ');
        let (found, _, options) = (of_source.next()?, of_source.next()?, of_source.next()?);
        if found != kind || option.is_some_and(|wanted| !options.split(',').any(|have| have == wanted)) {
            return None;
        }
        let inside = Path::new(group).strip_prefix(root).ok()?;
        if inside.components().any(|part| part.as_os_str() == "..") {
            return None;
        }
        // Joining an empty path would add a slash at the end.
        let top = PathBuf::from(at);
        Some((if inside.as_os_str().is_empty() { top.clone() } else { top.join(inside) }, top))
    })
}

/// The value after `key:` in a text of such lines.
fn field<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).map(str::trim)
}

pub(super) fn read_number(path: impl AsRef<Path>) -> Option<u64> {
    read_text(path)?.trim().parse().ok()
}

/// The first 64 KiB of a file of /proc or /sys, which is more than any of those read here should have.
pub(super) fn read_text(path: impl AsRef<Path>) -> Option<String> {
    const LONGEST_BYTES: u64 = 64 << 10;
    // Most files are shorter than this: one call reads them, and a second one finds their end.
    let mut text = Vec::with_capacity(4 << 10);
    fs::File::open(path).ok()?.take(LONGEST_BYTES).read_to_end(&mut text).ok()?;
    Some(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ring_or_reason() {
        assert_eq!(size_of::<RingParams>(), 120);
        let found = io_uring();
        assert_eq!(found.ring.works, found.ring.error.is_none(), "{found:?}");
        // Every kernel that has rings since 5.4 maps them with one call, and says so.
        assert_eq!(found.ring.works, found.feature_bits & 1 != 0, "{found:?}");
    }

    #[test]
    fn page_cache_that_nobody_uses_is_left() {
        assert_eq!(left(100, 30, ""), 70);
        assert_eq!(left(100, 90, "anon 5\ninactive_file 60\nactive_file 7\n"), 70);
        assert_eq!(left(100, 90, "inactive_file 1\ntotal_inactive_file 60\n"), 70);
        assert_eq!((left(100, 200, ""), left(100, 10, "inactive_file 99\n")), (0, 100));
    }

    #[test]
    fn finds_the_group_of_version_1() {
        let mounts = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
                      29 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                      35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:4 - cgroup cgroup rw,memory\n";
        let found = locate_cgroup("4:memory:/a/b\n1:cpu:/\n0::/\n", mounts, "memory").unwrap();
        assert_eq!(found, (1, "/sys/fs/cgroup/memory/a/b".into(), "/sys/fs/cgroup/memory".into()));
    }

    #[test]
    fn finds_the_group_of_version_2_below_a_container_root() {
        let mounts = "41 31 0:38 /docker/x /sys/fs/cgroup ro - cgroup2 cgroup rw,nsdelegate\n";
        let found = locate_cgroup("0::/docker/x/inner\n", mounts, "memory").unwrap();
        assert_eq!(found, (2, "/sys/fs/cgroup/inner".into(), "/sys/fs/cgroup".into()));
        assert_eq!(locate_cgroup("0::/docker/x\n", mounts, "memory").unwrap().1, Path::new("/sys/fs/cgroup"));
        assert!(locate_cgroup("0::/../other\n", mounts, "memory").is_none());
        assert!(locate_cgroup("", mounts, "memory").is_none());
    }
}
