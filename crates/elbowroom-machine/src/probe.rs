//! What this machine, container and process allow: the facts behind `elbowroom doctor`.
//!
//! [`probe`] looks at everything; the functions beside it look at one thing each, for callers that need only
//! that. Where the kernel could promise something and not keep it (a container's seccomp filter, a sandbox
//! that speaks Linux, a feature bit of a kernel with a bug), the thing is tried: a page is really moved, a
//! ring is really made.
//!
//! Probing prints nothing, decides nothing and leaves nothing behind: its descriptors are close-on-exec and
//! closed before it returns, its memory is unmapped, no file or directory is created. It cannot hang: a page
//! that a userfaultfd watches is only touched after that userfaultfd was closed, when a missing page is an
//! ordinary one.
//!
//! Synchronization: none; any thread may probe at any time, several at once too.

use std::ffi::{c_long, c_void};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use rustix::fd::{FromRawFd, OwnedFd, RawFd};
use rustix::fs::{Access, AtFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, Updater, opcode};
use rustix::mm::{MapFlags, ProtFlags, UserfaultfdFlags, mmap_anonymous, munmap};
use rustix::process::{Resource, getrlimit};
use serde::Serialize;

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
    /// The same as a number of errno.
    pub errno: Option<i32>,
}

impl Trial {
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
    /// RLIMIT_AS (soft), in bytes.
    pub rlimit_address_space_bytes: Option<u64>,
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
    /// What it uses, in bytes.
    pub used_bytes: Option<u64>,
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
    Probe {
        kernel_release: read_text("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
        page_bytes: rustix::param::page_size() as u64,
        userfaultfd: userfaultfd(),
        io_uring: io_uring(),
        huge_pages: huge_pages(),
        memory: memory(),
        limits: limits(),
        memory_cgroup: memory_cgroup(),
        security: security(),
    }
}

// ---- userfaultfd ----

const UFFD: u8 = 0xAA;
const UFFD_API_VERSION: u64 = 0xAA;
/// `UFFD_USER_MODE_ONLY`, which rustix does not name.
const USER_MODE_ONLY: UserfaultfdFlags = UserfaultfdFlags::from_bits_retain(1);
const FEATURE_MOVE: u64 = 1 << 16;
const FEATURE_WRITE_PROTECT: u64 = 1 << 0;
const FEATURE_POISON: u64 = 1 << 14;
const REGISTER_MISSING: u64 = 1 << 0;
const REGISTER_WRITE_PROTECT: u64 = 1 << 1;
const WRITE_PROTECT_ON: u64 = 1 << 0;

/// By the number of the bit.
const FEATURE_NAMES: [&str; 17] = [
    "pagefault_flag_wp",
    "event_fork",
    "event_remap",
    "event_remove",
    "missing_hugetlbfs",
    "missing_shmem",
    "event_unmap",
    "sigbus",
    "thread_id",
    "minor_hugetlbfs",
    "minor_shmem",
    "exact_address",
    "wp_hugetlbfs_shmem",
    "wp_unpopulated",
    "poison",
    "wp_async",
    "move",
];

/// `struct uffdio_api`.
#[repr(C)]
struct ApiArgs {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_register`.
#[repr(C)]
struct RegisterArgs {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

/// `struct uffdio_copy` and `struct uffdio_move`, which are laid out alike; `done` is bytes or a negative
/// errno.
#[repr(C)]
struct TransferArgs {
    dst: u64,
    src: u64,
    len: u64,
    mode: u64,
    done: i64,
}

/// `struct uffdio_writeprotect`.
#[repr(C)]
struct WriteProtectArgs {
    start: u64,
    len: u64,
    mode: u64,
}

/// `struct uffdio_poison`; `done` is bytes or a negative errno.
#[repr(C)]
struct PoisonArgs {
    start: u64,
    len: u64,
    mode: u64,
    done: i64,
}

const API: Opcode = opcode::read_write::<ApiArgs>(UFFD, 0x3F);
const REGISTER: Opcode = opcode::read_write::<RegisterArgs>(UFFD, 0x00);
const COPY: Opcode = opcode::read_write::<TransferArgs>(UFFD, 0x03);
const MOVE: Opcode = opcode::read_write::<TransferArgs>(UFFD, 0x05);
const WRITE_PROTECT: Opcode = opcode::read_write::<WriteProtectArgs>(UFFD, 0x06);
const POISON: Opcode = opcode::read_write::<PoisonArgs>(UFFD, 0x08);

/// `USERFAULTFD_IOC_NEW`: the argument is the flags themselves, and the result is a descriptor.
struct NewFromDevice {
    flags: u32,
}

// SAFETY: The opcode is USERFAULTFD_IOC_NEW, which takes its flags by value where a pointer would be, reads
// and writes no memory, and returns a new descriptor, which is given to nobody else.
unsafe impl Ioctl for NewFromDevice {
    type Output = OwnedFd;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        opcode::none(UFFD, 0x00)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::without_provenance_mut(self.flags as usize)
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> rustix::io::Result<OwnedFd> {
        // SAFETY: A successful call returns a new descriptor that nobody else owns.
        Ok(unsafe { OwnedFd::from_raw_fd(out) })
    }
}

fn from_device() -> Result<OwnedFd, Errno> {
    let device = rustix::fs::open("/dev/userfaultfd", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
    // SAFETY: `NewFromDevice` describes this ioctl truthfully (see its impl). Were the file another device,
    // that device would see an unknown opcode and refuse.
    unsafe { rustix::ioctl::ioctl(&device, NewFromDevice { flags: flags.bits() }) }
}

fn from_syscall(extra: UserfaultfdFlags) -> Result<OwnedFd, Errno> {
    // SAFETY: A new userfaultfd watches no memory; only `Sample::new` registers some, its own.
    unsafe { rustix::mm::userfaultfd(UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK | extra) }
}

fn open_best() -> Result<OwnedFd, Errno> {
    from_device()
        .or_else(|_| from_syscall(UserfaultfdFlags::empty()))
        .or_else(|_| from_syscall(USER_MODE_ONLY))
}

/// Agrees on the API with `features` enabled; returns what the kernel offers.
fn handshake(uffd: &OwnedFd, features: u64) -> Result<u64, Errno> {
    let mut args = ApiArgs { api: UFFD_API_VERSION, features, ioctls: 0 };
    // SAFETY: The opcode and the layout of its argument are those of UFFDIO_API, which only touches that
    // argument.
    unsafe { rustix::ioctl::ioctl(uffd, Updater::<API, _>::new(&mut args)) }?;
    Ok(args.features)
}

/// Tries userfaultfd in every way, and its operations on pages of its own.
pub fn userfaultfd() -> Userfaultfd {
    let mut found = Userfaultfd {
        device: Trial::of(&from_device()),
        syscall: Trial::of(&from_syscall(UserfaultfdFlags::empty())),
        user_mode_only: Trial::of(&from_syscall(USER_MODE_ONLY)),
        sysctl_unprivileged: read_number("/proc/sys/vm/unprivileged_userfaultfd"),
        ..Userfaultfd::default()
    };
    // A handshake without features asks for the list; features can be enabled only on a descriptor without
    // one.
    let Ok(offered) = open_best().and_then(|uffd| handshake(&uffd, 0)) else { return found };
    found.feature_bits = offered;
    found.features = FEATURE_NAMES
        .iter()
        .enumerate()
        .filter(|(bit, _)| offered & (1 << bit) != 0)
        .map(|(_, name)| *name)
        .collect();
    let wanted = offered & (FEATURE_MOVE | FEATURE_WRITE_PROTECT | FEATURE_POISON);
    found.move_page = Trial::of(&offers(offered, FEATURE_MOVE).and_then(|()| try_transfer::<MOVE>(wanted)));
    found.copy_page = Trial::of(&try_transfer::<COPY>(wanted));
    found.write_protect =
        Trial::of(&offers(offered, FEATURE_WRITE_PROTECT).and_then(|()| try_write_protect(wanted)));
    found.poison = Trial::of(&offers(offered, FEATURE_POISON).and_then(|()| try_poison(wanted)));
    found
}

fn offers(offered: u64, feature: u64) -> Result<(), Errno> {
    if offered & feature == 0 { Err(Errno::OPNOTSUPP) } else { Ok(()) }
}

/// Two pages of one private anonymous mapping: the first is filled and plain, the second empty and watched.
///
/// The watching ends before anything can touch the second page: [`Sample::finish`] closes the userfaultfd
/// first.
struct Sample {
    uffd: OwnedFd,
    pages: Pages,
}

/// The mapping of a [`Sample`].
struct Pages {
    base: *mut u8,
    page: usize,
}

/// What the first page is filled with: not zero, so that bytes that did not arrive are seen.
const FILL: u8 = 0xE5;

impl Sample {
    fn new(features: u64) -> Result<Sample, Errno> {
        let uffd = open_best()?;
        handshake(&uffd, features)?;
        let page = rustix::param::page_size();
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: A null hint maps where nothing is; nobody else knows the address.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), 2 * page, prot, MapFlags::PRIVATE) }?;
        let pages = Pages { base: base.cast(), page };
        pages.fill_first();
        let write_protect = if features & FEATURE_WRITE_PROTECT != 0 { REGISTER_WRITE_PROTECT } else { 0 };
        let mut args = RegisterArgs {
            start: pages.second(),
            len: page as u64,
            mode: REGISTER_MISSING | write_protect,
            ioctls: 0,
        };
        // SAFETY: The opcode and its argument are those of UFFDIO_REGISTER; the range is the second page of
        // our own mapping, which nobody touches while the userfaultfd is open.
        unsafe { rustix::ioctl::ioctl(&uffd, Updater::<REGISTER, _>::new(&mut args)) }?;
        Ok(Sample { uffd, pages })
    }

    /// Brings the first page's bytes to the second by COPY or MOVE.
    fn transfer<const OPCODE: Opcode>(&self) -> Result<(), Errno> {
        let len = self.pages.page as u64;
        let mut args =
            TransferArgs { dst: self.pages.second(), src: self.pages.base as u64, len, mode: 0, done: 0 };
        // A page that something else has pinned for a moment, or that a fork just shared, cannot be moved at
        // once.
        const ATTEMPTS: usize = 100;
        let mut result = Err(Errno::AGAIN);
        for _ in 0..ATTEMPTS {
            // SAFETY: Both opcodes take this layout. They write to the second page, which is ours and
            // missing, and may take away the first, to which no reference exists.
            result = unsafe { rustix::ioctl::ioctl(&self.uffd, Updater::<OPCODE, _>::new(&mut args)) };
            match result {
                Err(Errno::AGAIN | Errno::BUSY) => self.pages.fill_first(),
                _ => break,
            }
        }
        result?;
        if args.done == len as i64 { Ok(()) } else { Err(Errno::IO) }
    }

    /// Stops the watching and gives the pages, which can now be touched without waiting for anybody.
    fn finish(self) -> Pages {
        let Sample { uffd, pages } = self;
        drop(uffd);
        pages
    }
}

impl Pages {
    fn second(&self) -> u64 {
        self.base as u64 + self.page as u64
    }

    /// Writes the first page, which is never watched, so this never waits.
    fn fill_first(&self) {
        // SAFETY: The first page is inside our own writable mapping, and no reference to it exists.
        unsafe { self.base.write_bytes(FILL, self.page) };
    }

    /// Whether the second page holds what the first was filled with. Only after [`Sample::finish`].
    fn second_is_filled(&self) -> bool {
        // SAFETY: The second page is inside our own readable mapping and nobody writes to it.
        let bytes = unsafe { std::slice::from_raw_parts(self.base.add(self.page), self.page) };
        bytes.iter().all(|&byte| byte == FILL)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: The mapping is ours, of this length, and no reference into it is left. It cannot fail in a
        // way that could be repaired here.
        let _ = unsafe { munmap(self.base.cast(), 2 * self.page) };
    }
}

fn try_transfer<const OPCODE: Opcode>(features: u64) -> Result<(), Errno> {
    let sample = Sample::new(features)?;
    sample.transfer::<OPCODE>()?;
    if sample.finish().second_is_filled() { Ok(()) } else { Err(Errno::IO) }
}

fn try_write_protect(features: u64) -> Result<(), Errno> {
    let sample = Sample::new(features)?;
    sample.transfer::<COPY>()?;
    let mut args = WriteProtectArgs {
        start: sample.pages.second(),
        len: sample.pages.page as u64,
        mode: WRITE_PROTECT_ON,
    };
    // SAFETY: The opcode and its argument are those of UFFDIO_WRITEPROTECT; the range is our own page,
    // registered for it.
    unsafe { rustix::ioctl::ioctl(&sample.uffd, Updater::<WRITE_PROTECT, _>::new(&mut args)) }
}

fn try_poison(features: u64) -> Result<(), Errno> {
    let sample = Sample::new(features)?;
    let len = sample.pages.page as u64;
    let mut args = PoisonArgs { start: sample.pages.second(), len, mode: 0, done: 0 };
    // SAFETY: The opcode and its argument are those of UFFDIO_POISON; the page is ours and is unmapped
    // untouched.
    unsafe { rustix::ioctl::ioctl(&sample.uffd, Updater::<POISON, _>::new(&mut args)) }?;
    if args.done == len as i64 { Ok(()) } else { Err(Errno::IO) }
}

// ---- the rest ----

unsafe extern "C" {
    /// libc's way to a system call that has no function of its own. rustix has one for rings, but behind a
    /// feature that would bring all of io_uring's types into this crate for a single call.
    fn syscall(number: c_long, ...) -> c_long;
}

/// `io_uring_setup`: since Linux 5.1, when new system calls had begun to get the same number on every
/// machine.
const IO_URING_SETUP: c_long = 425;

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

/// Makes a ring of four entries; the descriptor and its features.
fn make_ring() -> Result<(OwnedFd, u32), Errno> {
    let mut params = RingParams::default();
    // SAFETY: io_uring_setup takes a number and a pointer to 120 bytes, which `params` is (a test checks it).
    // No flag is set, so the kernel takes no other address or descriptor from it.
    let result = unsafe { syscall(IO_URING_SETUP, 4 as c_long, &raw mut params) };
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
        rlimit_address_space_bytes: getrlimit(Resource::As).current,
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

/// Finds the memory group of this process: of version 1 if the memory controller is there, else of version 2.
pub fn memory_cgroup() -> Option<MemoryCgroup> {
    let groups = read_text("/proc/self/cgroup")?;
    let mounts = read_text("/proc/self/mountinfo")?;
    let (version, path, top) = locate_memory_cgroup(&groups, &mounts)?;
    let (limit_file, used_file) = match version {
        1 => ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        _ => ("memory.max", "memory.current"),
    };
    // The root of version 2 has no memory.max, and neither has a group without the controller: no limit
    // there.
    let limit_bytes = path
        .ancestors()
        .take_while(|directory| directory.starts_with(&top))
        .filter_map(|directory| read_number(directory.join(limit_file)))
        .filter(|&bytes| bytes < UNLIMITED_BYTES)
        .min();
    let makes = Access::WRITE_OK | Access::EXEC_OK;
    let writable = rustix::fs::accessat(rustix::fs::CWD, &path, makes, AtFlags::EACCESS);
    Some(MemoryCgroup {
        version,
        limit_bytes,
        used_bytes: read_number(path.join(used_file)),
        can_make_child: Trial::of(&writable),
        path,
    })
}

/// Version 1 says "no limit" with a number near 2^63; a limit of an exbibyte is none either.
const UNLIMITED_BYTES: u64 = 1 << 60;

/// From the texts of `/proc/self/cgroup` and `/proc/self/mountinfo`: version, directory of the group, and of
/// the top of what is mounted.
fn locate_memory_cgroup(groups: &str, mounts: &str) -> Option<(u8, PathBuf, PathBuf)> {
    let mut unified = None;
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (id, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        if controllers.split(',').any(|name| name == "memory") {
            return locate_mount(mounts, "cgroup", Some("memory"), path).map(|(at, top)| (1, at, top));
        }
        if id == "0" {
            unified = Some(path);
        }
    }
    locate_mount(mounts, "cgroup2", None, unified?).map(|(at, top)| (2, at, top))
}

/// The directory of `group` in the first mount of `kind` (with `option` among its options) that shows it, and
/// the mount's own directory.
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

fn read_number(path: impl AsRef<Path>) -> Option<u64> {
    read_text(path)?.trim().parse().ok()
}

/// The first 64 KiB of a file of /proc or /sys, which is more than any of those read here should have.
fn read_text(path: impl AsRef<Path>) -> Option<String> {
    const LONGEST_BYTES: u64 = 64 << 10;
    let mut text = Vec::new();
    fs::File::open(path).ok()?.take(LONGEST_BYTES).read_to_end(&mut text).ok()?;
    Some(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ioctl_numbers_are_the_kernels() {
        // The numbers of include/uapi/linux/userfaultfd.h on the machines whose _IOC has its usual form.
        if cfg!(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")) {
            assert_eq!(API as u64, 0xc018_aa3f);
            assert_eq!(REGISTER as u64, 0xc020_aa00);
            assert_eq!(COPY as u64, 0xc028_aa03);
            assert_eq!(MOVE as u64, 0xc028_aa05);
            assert_eq!(WRITE_PROTECT as u64, 0xc018_aa06);
            assert_eq!(POISON as u64, 0xc020_aa08);
            assert_eq!(NewFromDevice { flags: 0 }.opcode() as u64, 0xaa00);
        }
    }

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

    #[test]
    fn an_offered_move_moves() {
        let found = userfaultfd();
        if found.feature_bits == 0 {
            let refused = [&found.device, &found.syscall, &found.user_mode_only];
            assert!(refused.iter().all(|trial| !trial.works && trial.error.is_some()));
            return;
        }
        assert!(found.copy_page.works, "{:?}", found.copy_page);
        let offered = |name| found.features.contains(&name);
        assert_eq!(found.move_page.works, offered("move"), "{:?}", found.move_page);
        assert_eq!(found.write_protect.works, offered("pagefault_flag_wp"), "{:?}", found.write_protect);
        assert_eq!(found.poison.works, offered("poison"), "{:?}", found.poison);
    }

    #[test]
    fn ring_or_reason() {
        assert_eq!(size_of::<RingParams>(), 120);
        let found = io_uring();
        assert_eq!(found.ring.works, found.ring.error.is_none(), "{found:?}");
        // Every kernel that has rings since 5.4 maps them with one call, and says so.
        assert_eq!(found.ring.works, found.feature_bits & 1 != 0, "{found:?}");
    }

    #[test]
    fn finds_the_group_of_version_1() {
        let mounts = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
                      29 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                      35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:4 - cgroup cgroup rw,memory\n";
        let found = locate_memory_cgroup("4:memory:/a/b\n1:cpu:/\n0::/\n", mounts).unwrap();
        assert_eq!(found, (1, "/sys/fs/cgroup/memory/a/b".into(), "/sys/fs/cgroup/memory".into()));
    }

    #[test]
    fn finds_the_group_of_version_2_below_a_container_root() {
        let mounts = "41 31 0:38 /docker/x /sys/fs/cgroup ro - cgroup2 cgroup rw,nsdelegate\n";
        let found = locate_memory_cgroup("0::/docker/x/inner\n", mounts).unwrap();
        assert_eq!(found, (2, "/sys/fs/cgroup/inner".into(), "/sys/fs/cgroup".into()));
        assert_eq!(locate_memory_cgroup("0::/docker/x\n", mounts).unwrap().1, Path::new("/sys/fs/cgroup"));
        assert!(locate_memory_cgroup("0::/../other\n", mounts).is_none());
        assert!(locate_memory_cgroup("", mounts).is_none());
    }
}
