//! What this process knows about its manager, in memory that a forked child finds wiped.
//!
//! [`Process`] lives on pages with MADV_WIPEONFORK: a child made by fork, or by a raw clone without CLONE_VM,
//! sees zeros, which mean "no manager", and can start its own. A child that shares the memory (vfork,
//! posix_spawn) sees its parent's, which serves it. What must survive a fork (options, signal dispositions,
//! files that the kernel maps) lives in ordinary statics beside it.
//!
//! Synchronization: atomics only. `manager` is set once, before `phase` becomes [`ALIVE`], and never freed.

use crate::base::config::Options;
use crate::base::ids::{IdSet, KernelMapped};
use crate::base::lane::Lane;
use crate::base::reason::{Counts, Reason};
use crate::base::stderr;
use crate::base::sys;
use crate::base::turns::Turns;
use elbowroom::Manager;

pub use crate::base::own_thread::{is_service_thread, set_service_thread};

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};

/// No manager was needed yet.
pub const NONE: u32 = 0;
/// A thread is starting the manager.
pub const STARTING: u32 = 1;
/// The manager serves.
pub const ALIVE: u32 = 2;
/// The manager could not start. This stays so for the rest of this process' life.
pub const FAILED: u32 = 3;

/// How many threads of ours are remembered: the service threads and the manager's.
const MAX_OUR_THREADS: usize = 256;

/// Everything about one process. All zero is the start.
#[repr(C)]
pub struct Process {
    /// The process that this memory was set up by; 0 in a child of a raw clone until it is first needed.
    home_pid: AtomicU32,
    /// A futex: [`NONE`], [`STARTING`], [`ALIVE`] or [`FAILED`].
    pub phase: AtomicU32,
    manager: AtomicPtr<Manager>,
    /// The manager copies pages into windows, and so cannot see whether a device has them pinned.
    copies_pages: AtomicBool,
    /// Files opened for a mapping so far.
    opened: AtomicU64,
    /// Why the manager failed, or why this process has no copy of its parent's manager (leaked). Read by
    /// the thread that started the manager.
    error: AtomicPtr<String>,
    /// A notice for the user about a manager that serves (leaked). Read by the thread that started it.
    pub note: AtomicPtr<String>,
    /// A futex: whether the end of the process is reported. Only process/end.rs uses it.
    pub ended: AtomicU32,
    /// A futex: 1 when the watcher is to call exit(0).
    pub exit_now: AtomicU32,
    /// Requests by [`LaneKind`](crate::base::lane::LaneKind).
    pub lanes: [Lane; 2],
    /// The turns of calls that use the positions of files.
    pub turns: Turns,
    /// Files that are or were managed.
    pub managed: IdSet,
    /// Mappings and calls that were left to the kernel.
    pub left: Counts,
    /// The name of another process that had a file open, when a file was first left to the kernel for that
    /// reason (leaked).
    pub user_of_file: AtomicPtr<String>,
    /// How many threads are in a call that changes the program's mappings in the kernel, or wait in it for
    /// the mmap_lock.
    changes: AtomicU32,
    /// How many forks are under way for which mappings were handed back: new mappings are handed back, too.
    forks: AtomicU32,
    our_threads: [AtomicU32; MAX_OUR_THREADS],
    our_thread_count: AtomicU32,
}

static PROCESS: AtomicPtr<Process> = AtomicPtr::new(std::ptr::null_mut());
/// Files that the kernel maps, or has mapped, by mmap or by handing back, in this process or in its parent,
/// whose mappings it has inherited.
pub static KERNEL_MAPPED: KernelMapped = KernelMapped::new();
/// The manager of this process or of the nearest ancestor that had one: where its windows were must be known
/// after fork.
static LAST_MANAGER: AtomicPtr<Manager> = AtomicPtr::new(std::ptr::null_mut());
/// Set by mlockall(MCL_FUTURE): windows must not be locked in memory.
pub static LOCKS_FUTURE_MEMORY: AtomicBool = AtomicBool::new(false);
/// Why private memory is the kernel's for as long as the program runs, if it is.
pub static PRIVATE_MEMORY_LEFT: OnceLock<Reason> = OnceLock::new();
/// There is no place for a swap file, and the user has not asked for one: private memory is the kernel's.
/// Not wiped: a manager that starts later in a child has no swap either.
static NO_SWAP: AtomicBool = AtomicBool::new(false);
/// Only faults of instructions are served. Not wiped: a child's manager serves what its parent's did.
pub static SERVES_USER_MODE_ONLY: AtomicBool = AtomicBool::new(false);
static OPTIONS: OnceLock<Options> = OnceLock::new();

/// Maps the pages of [`Process`], which a fork wipes. Called once, by the constructor, before any thread
/// but the first exists.
pub fn set_up(options: Options) {
    let len = size_of::<Process>().next_multiple_of(sys::PAGE);
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping, wherever the kernel puts it.
    let at = unsafe { sys::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0) };
    let wiped = at != libc::MAP_FAILED && {
        let advice = libc::MADV_WIPEONFORK as libc::c_long;
        // SAFETY: the pages were just made and are ours.
        unsafe { sys::system_call(libc::SYS_madvise, at, len, advice) == 0 }
    };
    if !wiped {
        stderr::write_first(
            b"elbowroom: no memory for the library's own state; everything is left to the kernel\n",
        );
        return;
    }
    let process: *mut Process = at.cast();
    // SAFETY: the pages are zeroed, all zero is a valid `Process`, and they are never unmapped.
    unsafe { &*process }.home_pid.store(sys::getpid(), Ordering::Relaxed);
    if OPTIONS.set(options).is_ok() {
        PROCESS.store(process, Ordering::Release);
    }
}

/// The state, once the constructor ran and if there are options.
pub fn process() -> Option<&'static Process> {
    // SAFETY: null, or made by `set_up` and never unmapped; all of it is atomics.
    unsafe { PROCESS.load(Ordering::Acquire).as_ref() }
}

/// The options. `None` only as long as [`process`] is.
pub fn options() -> Option<&'static Options> {
    OPTIONS.get()
}

/// Whether anonymous memory and private copies of files' pages are managed.
pub fn manages_private() -> bool {
    options().is_some_and(|options| options.swap.bytes > 0) && !NO_SWAP.load(Ordering::Acquire)
}

/// Leaves private memory to the kernel, since there is no place for swap. Called before the manager serves.
pub fn leave_private() {
    NO_SWAP.store(true, Ordering::Release);
}

/// The state, if the caller is a thread of the program (the manager's own calls go straight to the kernel).
pub fn for_program() -> Option<&'static Process> {
    process().filter(|_| !is_service_thread())
}

/// Whether only faults of instructions are served, and system calls on managed memory fail that is not in
/// memory.
pub fn serves_user_mode_only() -> bool {
    SERVES_USER_MODE_ONLY.load(Ordering::Relaxed)
}

/// The state and the manager, if it is alive and the caller is a thread of the program. Every interposed
/// function asks this first.
pub fn alive() -> Option<(&'static Process, &'static Manager)> {
    let process = process()?;
    let manager = process.manager()?;
    (!is_service_thread()).then_some((process, manager))
}

/// As [`alive`], if any file is managed.
pub fn alive_with_files() -> Option<(&'static Process, &'static Manager)> {
    alive().filter(|(_, manager)| manager.managed_files() > 0)
}

/// The manager whose windows this process or an ancestor had.
pub fn last_manager() -> Option<&'static Manager> {
    // SAFETY: as in `Process::manager`; a forked child has its own copy of the memory behind it.
    unsafe { LAST_MANAGER.load(Ordering::Acquire).as_ref() }
}

/// Marks the calling thread as one of ours, for good. The manager's threads call it first.
pub fn enter_service_thread() {
    set_service_thread(true);
    if let Some(process) = process() {
        let index = process.our_thread_count.fetch_add(1, Ordering::AcqRel) as usize;
        if let Some(slot) = process.our_threads.get(index) {
            slot.store(sys::gettid(), Ordering::Release);
        }
    }
}

/// Runs `call`, a short call that changes the program's mappings in the kernel. The manager's threads let
/// it have the kernel's mmap_lock first.
pub fn change_mappings<R>(call: impl FnOnce() -> R) -> R {
    let Some(process) = for_program() else { return call() };
    process.changes.fetch_add(1, Ordering::Relaxed);
    let result = call();
    process.changes.fetch_sub(1, Ordering::Relaxed);
    result
}

/// Whether [`change_mappings`] is under way.
pub fn changes_wait() -> bool {
    // A signal handler that forks in between, and returns in the child, makes the count less than 0 there:
    // the child's copy is wiped.
    process().is_some_and(|process| process.changes.load(Ordering::Relaxed).cast_signed() > 0)
}

/// The program has made a call after which a device may still read or write its memory.
static TRANSFERS: AtomicBool = AtomicBool::new(false);

/// Notes that the program may start transfers that go on after the call has returned.
pub fn note_transfers() {
    TRANSFERS.store(true, Ordering::SeqCst);
}

/// Whether [`note_transfers`] was called.
pub fn may_transfer() -> bool {
    TRANSFERS.load(Ordering::SeqCst)
}

impl Process {
    /// A fork begins. Managed mappings are handed back for it, so that the child gets them. Mappings that
    /// are made until [`Process::fork_ends`] must be handed back as well: see [`Process::is_forking`].
    pub fn fork_begins(&self) {
        self.forks.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// The fork has ended. Called in the parent only: the child's count is wiped.
    pub fn fork_ends(&self) {
        self.forks.fetch_sub(1, Ordering::SeqCst);
    }

    /// Whether a fork is under way. Asked after a mapping was made: a forking thread calls
    /// [`Process::fork_begins`] before it has all mappings handed back, so either the new mapping was among
    /// them, or this is true.
    pub fn is_forking(&self) -> bool {
        fence(Ordering::SeqCst);
        self.forks.load(Ordering::SeqCst) > 0
    }

    /// Records why there is no manager.
    pub fn set_error(&self, why: String) {
        self.error.store(Box::into_raw(Box::new(why)), Ordering::Release);
    }

    /// Why there is no manager, if that was recorded.
    pub fn error(&self) -> Option<&'static str> {
        // SAFETY: null, or leaked by `set_error`.
        unsafe { self.error.load(Ordering::Acquire).as_ref() }.map(String::as_str)
    }

    /// The manager, if alive.
    pub fn manager(&self) -> Option<&'static Manager> {
        // SAFETY: null, or leaked by `set_manager`.
        unsafe { self.manager.load(Ordering::Acquire).as_ref() }
    }

    /// Sets the manager, once.
    pub fn set_manager(&self, manager: &'static Manager) {
        let pointer = std::ptr::from_ref(manager).cast_mut();
        let userfaultfd = manager.stats().userfaultfd;
        self.copies_pages.store(userfaultfd.mmu == "copy", Ordering::Release);
        SERVES_USER_MODE_ONLY.store(userfaultfd.served == "user-mode", Ordering::Release);
        LAST_MANAGER.store(pointer, Ordering::Release);
        self.manager.store(pointer, Ordering::Release);
    }

    /// Whether pages are copied into windows, not moved.
    pub fn copies_pages(&self) -> bool {
        self.copies_pages.load(Ordering::Acquire)
    }

    /// Counts a file that was opened for a mapping, before any of its bytes are read.
    pub fn file_opened(&self) {
        self.opened.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// How many files were opened for mappings. A call that changes a file which is not managed, and finds
    /// the number unchanged afterwards, came before the file was opened for any mapping, which so reads
    /// what the call has stored.
    pub fn files_opened(&self) -> u64 {
        fence(Ordering::SeqCst);
        self.opened.load(Ordering::SeqCst)
    }

    /// Whether the caller is the process that this memory belongs to, and not a child that borrows it.
    pub fn is_home(&self) -> bool {
        let pid = sys::getpid();
        match self.home_pid.compare_exchange(0, pid, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => true,
            Err(home) => home == pid,
        }
    }

    /// Counts a call that was left to the kernel.
    pub fn count(&self, reason: Reason) {
        self.count_bytes(reason, 0);
    }

    /// Counts something of so many bytes that was left to the kernel. Tells whether the reason is met for the
    /// first time.
    pub fn count_bytes(&self, reason: Reason, bytes: usize) -> bool {
        self.left.count(reason, bytes as u64)
    }

    /// Whether `tid` is a thread of ours.
    pub fn is_our_thread(&self, tid: u32) -> bool {
        self.our_threads.iter().any(|slot| slot.load(Ordering::Acquire) == tid)
    }
}
