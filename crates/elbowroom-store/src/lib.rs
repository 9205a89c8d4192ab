//! Where bytes are (files) and how they move (io_uring, blocking threads).
//!
//! * [`StoreFile`]: an open regular file; blocking writes, O_DIRECT where the file system allows it.
//! * [`Reactor`]: one handler thread's event loop. It starts reads into frames, and waits in one system call
//!   for their completions, for a watched descriptor (the userfaultfd), and for kicks from other threads.
//!   [`reactor()`] makes one of the two: io_uring, or `poll` and a pool of blocking threads.
//! * [`Origin`]: the program's own descriptor of a file; [`Guards`]: notice other processes that want a
//!   file before they have it.
//! * [`Inject`]: injected faults, for tests.
//! * [`read_whole`], [`replace_whole`]: small files, such as the one that keeps what was learned of chunks.
//!
//! # Invariants
//! 1. **A read owns its [`Extent`] from [`Reactor::read`] until it is given back in a [`ReadDone`].** The
//!    kernel writes into the extent's frames meanwhile, so no other code can map, read or free them: that
//!    would take the extent. A reactor that is dropped first waits for the reads that the kernel or a pool
//!    thread works on; if it cannot (it is dropped on a thread that may not wait on its ring), their
//!    extents are leaked, never freed.
//! 2. A read lies inside its extent, whose pages are all at home; other reads get EINVAL and never reach
//!    the kernel.
//! 3. A read owns its file: no descriptor is closed, and its number reused, under a request.
//!
//! An error of an operation is a value: an [`Errno`]. Nothing here panics on one.
//!
//! System calls go through rustix's own assembly and io-uring's `direct-syscall`, not through libc, because
//! this code also runs inside a library that stands before libc's functions. These still go through libc:
//! the setup and teardown of a ring (mmap, madvise, munmap and close of the ring's own memory and
//! descriptor), the start and the end of pool threads, and sleeps of injected faults.
//!
//! Descriptors live in the file table of the thread that opens them. A reactor, the files that it reads and
//! the threads that kick it must share one.
//!
//! Unsafe code is confined to `uring` and `scatter` (the kernel is given addresses of frames), `threads`
//! (the watched descriptor is borrowed by number), `calls` (descriptors are closed by number), `mapped`
//! (writes to a mapping of a file by the kernel), and `origin` and `guard` (system calls that rustix has no
//! functions for).

#[cfg(not(shuttle))]
mod bell;
#[cfg(shuttle)]
#[path = "bell_model.rs"]
mod bell;
mod calls;
mod engines;
mod file;
mod guard;
#[cfg(not(shuttle))]
mod held;
mod inject;
#[cfg(shuttle)]
mod inline;
#[cfg(not(shuttle))]
mod lifeline;
#[cfg(not(shuttle))]
mod limits;
#[cfg(shuttle)]
#[path = "limits_model.rs"]
mod limits;
#[cfg(not(shuttle))]
mod looks;
mod mapped;
mod origin;
mod reactor;
mod request;
#[cfg(not(shuttle))]
mod room;
#[cfg(not(shuttle))]
mod scatter;
#[cfg(shuttle)]
#[path = "scatter_model.rs"]
mod scatter;
#[cfg(not(shuttle))]
mod slots;
#[cfg(not(shuttle))]
mod threads;
#[cfg(not(shuttle))]
mod uring;
mod whole;

pub use elbowroom_machine::{Errno, Extent};
#[cfg(not(shuttle))]
pub use engines::reactor_of_child;
pub use engines::{EngineKind, reactor};
pub use file::{FileId, FileStat, StoreFile, Write};
pub use guard::{Comer, Guard, Guards, Trials};
pub use inject::Inject;
#[cfg(not(shuttle))]
pub use lifeline::{Handed, Lifeline};
pub use limits::{LEAST_DESCRIPTORS, open_briefly, with_highest_file_limit, with_own_limit};
pub use origin::Origin;
pub use reactor::{Kicker, OnThreadStart, Reactor, Read, ReadDone, Woken};
#[cfg(not(shuttle))]
pub use room::Room;
pub use scatter::{SCATTERED_WRITES, WriteRing};
pub use whole::{WholeError, read_begin, read_whole, replace_whole};

#[cfg(all(test, not(shuttle)))]
#[path = "../tests/common/shared.rs"]
mod shared;

#[cfg(all(test, not(shuttle)))]
mod test_extent {
    use elbowroom_machine::Extent;

    /// An extent of an arena that is never dropped.
    pub(crate) fn extent(order: u8) -> Extent {
        use elbowroom_machine::soft::{SoftConfig, SoftMmu};
        let mmu = SoftMmu::new(SoftConfig::new(1 << order), &elbowroom_sync::LockStats::new())
            .expect("room for an arena");
        while mmu.grow().expect("memory for an arena") {}
        Box::leak(Box::new(mmu)).alloc(order).expect("the arena's only run")
    }
}
