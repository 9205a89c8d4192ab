//! What a userfaultfd can do here: it is opened in each way there is, and each operation is tried on two
//! pages of our own.

use std::ffi::c_void;

use rustix::fd::{FromRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, Updater, opcode};
use rustix::mm::{MapFlags, ProtFlags, UserfaultfdFlags, mmap_anonymous, munmap};

use super::system::read_number;
use super::{Trial, Userfaultfd};
use crate::uffd::USER_MODE_ONLY;

const UFFD: u8 = 0xAA;
const UFFD_API_VERSION: u64 = 0xAA;
const FEATURE_MOVE: u64 = 1 << 16;
const FEATURE_WRITE_PROTECT: u64 = 1 << 0;
const FEATURE_POISON: u64 = 1 << 14;
const REGISTER_MISSING: u64 = 1 << 0;
const REGISTER_WRITE_PROTECT: u64 = 1 << 1;
const WRITE_PROTECT_ON: u64 = 1 << 0;

/// The name of each feature bit, indexed by the bit's number.
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

/// UFFDIO_API: enables `features`; returns the features that the kernel offers.
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
    // A handshake without features asks for the list. A descriptor can have only one handshake, so the
    // trials open others.
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
/// The second page is only touched after it is no longer watched: [`Sample::finish`] closes the userfaultfd
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
        // MOVE refuses a page that is pinned for a moment, or that a fork has just shared.
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

    /// Closes the userfaultfd and returns the pages, whose faults the kernel now serves itself.
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
}
