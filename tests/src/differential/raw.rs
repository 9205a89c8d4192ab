//! What needs unsafe code: system calls of the mmap family, loads and stores that may fault, and the query of
//! /proc/self/maps. All of it is behind [`Ground`], which lets nothing reach memory outside its range.
//!
//! An access is made by one machine instruction whose address is known. The handler of SIGSEGV and SIGBUS
//! looks whether the interrupted instruction is that one; if so it leaves the signal's facts in the result
//! registers and goes on behind it. There is no state, so any number of threads may do it at once. A signal
//! from anywhere else gets the action that was there before.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::OnceLock;

use rustix::io::Errno;

use crate::differential::engine::{Fault, PAGE};
use crate::differential::site::Claim;

/// What a copy that may fault returns, in two registers.
#[repr(C)]
struct Probe {
    /// Zero, or the signal's number, and its code shifted by 8.
    signal: u64,
    /// The address that the signal named.
    addr: u64,
}

#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".global elbowroom_tests_copy",
    ".global elbowroom_tests_copy_at",
    ".global elbowroom_tests_copy_end",
    "elbowroom_tests_copy:",
    "mov rcx, rdx",
    "xor eax, eax",
    "xor edx, edx",
    "elbowroom_tests_copy_at:",
    "rep movsb",
    "elbowroom_tests_copy_end:",
    "ret",
);

#[cfg(target_arch = "aarch64")]
std::arch::global_asm!(
    ".global elbowroom_tests_copy",
    ".global elbowroom_tests_copy_at",
    ".global elbowroom_tests_copy_end",
    "elbowroom_tests_copy:",
    "mov x3, x0",
    "mov x0, #0",
    "cbz x2, elbowroom_tests_copy_end",
    "elbowroom_tests_copy_at:",
    "ldrb w4, [x1], #1",
    "strb w4, [x3], #1",
    "subs x2, x2, #1",
    "b.ne elbowroom_tests_copy_at",
    "elbowroom_tests_copy_end:",
    "ret",
);

// SAFETY: the assembly above defines all three; the first follows the C calling convention and changes only
// registers that it lets a function change.
unsafe extern "C" {
    fn elbowroom_tests_copy(to: u64, from: u64, len: u64) -> Probe;
    fn elbowroom_tests_copy_at();
    fn elbowroom_tests_copy_end();
}

struct Previous {
    segv: libc::sigaction,
    bus: libc::sigaction,
}

static PREVIOUS: OnceLock<Previous> = OnceLock::new();

fn install_handler() {
    PREVIOUS.get_or_init(|| {
        // SAFETY: (1) a zeroed `sigaction` is valid; (2) the handler has the type that SA_SIGINFO asks for,
        // and does only what a signal handler may do; (3) the pointers are to locals.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            let mut previous = Previous { segv: std::mem::zeroed(), bus: std::mem::zeroed() };
            assert_eq!(libc::sigaction(libc::SIGSEGV, &raw const action, &raw mut previous.segv), 0);
            assert_eq!(libc::sigaction(libc::SIGBUS, &raw const action, &raw mut previous.bus), 0);
            previous
        }
    });
}

extern "C" fn handler(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let first = elbowroom_tests_copy_at as *const () as u64;
    let end = elbowroom_tests_copy_end as *const () as u64;
    // SAFETY: (1) the kernel gives a handler a valid siginfo and context; (2) where the interrupted
    // instruction is the copy's, its function has nothing left to do but to return what is in the result
    // registers.
    unsafe {
        let facts = signal as u64 | ((*info).si_code as u64) << 8;
        let addr = (*info).si_addr() as u64;
        let context = &mut *context.cast::<libc::ucontext_t>();
        #[cfg(target_arch = "x86_64")]
        {
            let registers = &mut context.uc_mcontext.gregs;
            if (first..end).contains(&(registers[libc::REG_RIP as usize] as u64)) {
                registers[libc::REG_RAX as usize] = facts as i64;
                registers[libc::REG_RDX as usize] = addr as i64;
                registers[libc::REG_RIP as usize] = end as i64;
                return;
            }
        }
        #[cfg(target_arch = "aarch64")]
        {
            let registers = &mut context.uc_mcontext;
            if (first..end).contains(&registers.pc) {
                registers.regs[0] = facts;
                registers.regs[1] = addr;
                registers.pc = end;
                return;
            }
        }
        // Not ours: the access is made again under the action that was there before. If no action is known
        // yet, there is none to restore, and the default ends the process as it should.
        let previous = PREVIOUS.get().map(|p| if signal == libc::SIGBUS { p.bus } else { p.segv });
        let action = previous.unwrap_or_else(|| std::mem::zeroed());
        libc::sigaction(signal, &raw const action, std::ptr::null_mut());
    }
}

/// Copies between a page of a ground and a Rust object.
///
/// # Safety
/// One of the addresses is borrowed memory of that length, and the other lies with that length in a ground.
unsafe fn copy(to: u64, from: u64, len: usize, target: u64) -> Result<(), Fault> {
    install_handler();
    // SAFETY: the caller's promise; a fault ends the copy.
    let probe = unsafe { elbowroom_tests_copy(to, from, len as u64) };
    if probe.signal == 0 {
        return Ok(());
    }
    let (signal, code) = ((probe.signal & 0xff) as i32, (probe.signal >> 8) as u32 as i32);
    assert_eq!(
        probe.addr / PAGE,
        target / PAGE,
        "signal {signal}, code {code}: the signal names another page"
    );
    match (signal, code) {
        (libc::SIGSEGV, 1) => Err(Fault::Unmapped),
        (libc::SIGSEGV, 2) => Err(Fault::Denied),
        (libc::SIGBUS, libc::BUS_ADRERR) => Err(Fault::Bus),
        _ => panic!("an access to {target:#x} ended with signal {signal}, code {code}"),
    }
}

/// A page-aligned address beyond the end of every space: more than five-level page tables reach on x86-64,
/// and none of the kernel's half.
pub const BEYOND: u64 = if cfg!(target_arch = "x86_64") { 1 << 56 } else { 1 << 54 };

/// The calls of [`Ground::call`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// mmap.
    Map,
    /// munmap.
    Unmap,
    /// mprotect.
    Protect,
    /// mremap.
    Remap,
    /// madvise.
    Advise,
    /// msync.
    Sync,
    /// mlock2.
    Lock,
    /// munlock.
    Unlock,
}

/// A range of addresses in which there is no Rust object, code or stack, and behind which nothing is mapped.
///
/// # Invariants
/// No two grounds overlap; only a ground changes what is mapped in its range.
#[derive(Debug)]
pub struct Ground {
    base: u64,
    pages: u64,
    /// Address and length of what the kernel has placed outside the range last: it may be moved in from
    /// there, once.
    elsewhere: (u64, u64),
    _claim: Option<Claim>,
}

impl Ground {
    /// Takes a range.
    ///
    /// # Safety
    /// It must keep the type's invariants as long as it lives.
    pub unsafe fn new(base: u64, pages: u64) -> Self {
        assert!(base.is_multiple_of(PAGE) && base < BEYOND / 2 && pages < 1 << 20);
        Self { base, pages, elsewhere: (0, 0), _claim: None }
    }

    /// The ground of a site.
    pub fn of(claim: Claim) -> Self {
        let site = claim.site();
        // SAFETY: (1) sites do not overlap and are claimed once; (2) nothing but an engine maps anything
        // where they are, and there is more space between them than a ground has.
        let ground = unsafe { Self::new(site.base(), site.pages()) };
        Self { _claim: Some(claim), ..ground }
    }

    /// A range inside a window of a manager of real pointers.
    ///
    /// # Panics
    /// If it is not all in one.
    pub fn in_window(windows: &elbowroom::WindowTable, base: u64, pages: u64) -> Self {
        assert!(windows.covers(base as usize, (pages * PAGE) as usize), "{base:#x} is in no window");
        // SAFETY: (1) windows hold no Rust object, and last as long as the process; (2) whoever uses the
        // space keeps its engines' ranges apart. Only loads and stores are made through it.
        unsafe { Self::new(base, pages) }
    }

    /// Its first address.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Its size in pages.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    fn has(&self, addr: u64, len: u64) -> bool {
        let end = self.base + self.pages * PAGE;
        addr >= self.base && addr.checked_add(len).is_some_and(|last| last <= end)
    }

    /// Whether a call changes at most this range, wherever it fails.
    fn permits(&self, call: Call, arguments: &[u64; 6]) -> bool {
        let [addr, len, third, flags, to, _] = *arguments;
        // The kernel refuses a range that begins or ends beyond the end of addresses, or ends at the first
        // page that is not mapped: the one behind the ground.
        let wild = |addr: u64, len: u64| addr >= BEYOND || len >= BEYOND;
        let mine = |addr: u64, len: u64| self.has(addr, len) || wild(addr, len);
        match call {
            Call::Map => {
                let fixed = flags as i32 & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) != 0;
                !fixed || mine(addr, len)
            }
            Call::Unmap | Call::Protect | Call::Lock | Call::Unlock => {
                mine(addr, len) && (self.has(addr, 0) || addr >= BEYOND)
            }
            // These go on behind what is not mapped.
            Call::Advise | Call::Sync => {
                self.has(addr, len) || addr >= BEYOND || addr.checked_add(len).is_none()
            }
            Call::Remap => {
                let from_elsewhere = addr == self.elsewhere.0 && len.max(third) <= self.elsewhere.1;
                let from_here = mine(addr, len) && mine(addr, third) && self.has(addr, 0);
                let from = addr >= BEYOND || from_elsewhere || from_here;
                from && (flags as i32 & libc::MREMAP_FIXED == 0 || mine(to, third))
            }
        }
    }

    /// A system call of the mmap family, past libc (which checks some arguments itself, in an order of its
    /// own).
    ///
    /// # Panics
    /// If it could reach memory outside the range.
    pub fn call(&mut self, call: Call, arguments: [u64; 6]) -> Result<u64, Errno> {
        assert!(self.permits(call, &arguments), "{call:?} {arguments:x?} may reach beyond {self:x?}");
        let number = match call {
            Call::Map => libc::SYS_mmap,
            Call::Unmap => libc::SYS_munmap,
            Call::Protect => libc::SYS_mprotect,
            Call::Remap => libc::SYS_mremap,
            Call::Advise => libc::SYS_madvise,
            Call::Sync => libc::SYS_msync,
            Call::Lock => libc::SYS_mlock2,
            Call::Unlock => libc::SYS_munlock,
        };
        let result = Self::raw(number, arguments)?;
        let placed = match call {
            Call::Map => arguments[1],
            Call::Remap => arguments[2],
            _ => return Ok(result),
        };
        self.elsewhere = if self.has(result, 0) { (0, 0) } else { (result, placed.next_multiple_of(PAGE)) };
        Ok(result)
    }

    /// mincore, without its bytes.
    pub fn resident(&mut self, addr: u64, len: u64) -> Result<(), Errno> {
        // It writes a byte for each mapped page from the address on, and stops at the first that is not.
        assert!(self.has(addr, 0) || addr >= BEYOND);
        let mut bytes = vec![0_u8; self.pages as usize];
        Self::raw(libc::SYS_mincore, [addr, len, bytes.as_mut_ptr() as u64, 0, 0, 0]).map(|_| ())
    }

    fn raw(number: i64, [a, b, c, d, e, f]: [u64; 6]) -> Result<u64, Errno> {
        // SAFETY: (1) the callers have checked that the call changes this ground at most, or new places of
        // the kernel's choice; there is no Rust object there; (2) mincore's output is as long as what it
        // writes; (3) other pointers are checked by the kernel.
        let result = unsafe { libc::syscall(number, a, b, c, d, e, f) };
        if result == -1 { Err(last_error()) } else { Ok(result as u64) }
    }

    /// Loads bytes of one page.
    ///
    /// # Panics
    /// If they are not in the range and in one page, or the signal names another page or is none that an
    /// access gets.
    pub fn load(&mut self, addr: u64, bytes: &mut [u8]) -> Result<(), Fault> {
        self.assert_in_one_page(addr, bytes.len());
        // SAFETY: the destination is borrowed, the source is in the ground.
        unsafe { copy(bytes.as_mut_ptr() as u64, addr, bytes.len(), addr) }
    }

    /// Stores bytes of one page.
    ///
    /// # Panics
    /// As [`Ground::load`].
    pub fn store(&mut self, addr: u64, bytes: &[u8]) -> Result<(), Fault> {
        self.assert_in_one_page(addr, bytes.len());
        // SAFETY: the source is borrowed, the destination is in the ground.
        unsafe { copy(addr, bytes.as_ptr() as u64, bytes.len(), addr) }
    }

    fn assert_in_one_page(&self, addr: u64, len: usize) {
        assert!(self.has(addr, len as u64) && addr % PAGE + len as u64 <= PAGE, "{addr:#x} +{len}");
    }
}

fn last_error() -> Errno {
    // SAFETY: errno is the thread's own.
    Errno::from_raw_os_error(unsafe { *libc::__errno_location() })
}

/// The ioctl `PROCMAP_QUERY` on /proc/self/maps.
///
/// # Errors
/// ENOENT if there is no such VMA; ENOTTY before Linux 6.11.
pub fn procmap_query(maps: BorrowedFd<'_>, query: &mut ProcmapQuery) -> Result<(), Errno> {
    // _IOWR('f', 17, struct procmap_query)
    const PROCMAP_QUERY: u64 = 3 << 30 | (size_of::<ProcmapQuery>() as u64) << 16 | (b'f' as u64) << 8 | 17;
    query.size = size_of::<ProcmapQuery>() as u64;
    // SAFETY: (1) the argument is the struct that the kernel defines for this request, with its size in it;
    // (2) it asks for no name and no build id, so the kernel writes nowhere else.
    let result = unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY as _, std::ptr::from_mut(query)) };
    if result == -1 { Err(last_error()) } else { Ok(()) }
}

impl ProcmapQuery {
    /// Asks for the VMA that covers an address, or the next one.
    pub fn covering_or_next(addr: u64) -> Self {
        Self { query_flags: 0x10, query_addr: addr, ..Self::default() }
    }
}

/// Linux: `struct procmap_query`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct ProcmapQuery {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    /// First address.
    pub start: u64,
    /// Behind the last one.
    pub end: u64,
    /// 1 readable, 2 writable, 4 executable, 8 shared.
    pub flags: u64,
    page_size: u64,
    /// Where in the object it begins, in bytes.
    pub offset: u64,
    /// The object's inode number, 0 for private anonymous memory.
    pub inode: u64,
    /// The object's device.
    pub dev_major: u32,
    /// Its other half.
    pub dev_minor: u32,
    name_size: u32,
    build_id_size: u32,
    name_addr: u64,
    build_id_addr: u64,
}
