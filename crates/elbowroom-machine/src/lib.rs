//! What memory is made of: the arena and its frames, windows, and the host MMU that moves pages between them.
//!
//! * [`Extent`]: an owned run of arena frames; knows which of its pages are mapped, and where.
//! * [`HostMmu`]: maps and unmaps extents in windows (`UFFDIO_MOVE`, or `UFFDIO_COPY` where that is missing),
//!   delivers fault events, and makes wrong accesses fail as the kernel's own do.
//! * [`soft::SoftMmu`]: the same operations with page tables of our own, for memory that is reached by calls.
//! * [`WindowTable`]: which addresses are ours; readable from anywhere without a lock.
//! * [`ShallowIdle`]: how deeply idle processors sleep.
//! * [`probe`]: what this machine allows.
//!
//! Nothing here knows of files, mappings or policies. Nothing here waits for I/O.
//!
//! Synchronization: an extent is changed through `&mut`; the frame allocator and the record of the kernel's
//! layout have a leaf lock each (`frames`, `window`), and so has each of the soft MMU's page tables
//! (`page-table`).
//!
//! Unsafe code is confined to `arena`, `batch`, `extent`, `foreign`, `uffd`, `host`, `layout`, `pins`,
//! `window`, `probe` and two files of `soft`; docs/unsafe.md lists the invariants.

mod arena;
mod aside;
mod batch;
mod buddy;
mod extent;
mod foreign;
mod host;
mod idle;
mod layout;
mod limits;
mod mmu;
mod pageset;
mod peek;
mod pins;
mod poke;
pub mod probe;
mod process;
mod shared;
pub mod soft;
mod uffd;
mod way;
mod window;

pub use arena::Allowance;
pub use aside::aside;
pub use extent::{Extent, MappedAt};
pub use host::{
    Access, Ask, Batches, Denial, FaultEvent, GivenAdvice, GivenState, HostConfig, HostMmu, Mover, PutBytes,
    RearmError, Replaced, Served, SetupError, UnmapError, Wake,
};
pub use idle::ShallowIdle;
pub use mmu::Mmu;
pub use pageset::{Membership, PageSet};
pub use process::{
    boot_time, own_name, own_pid, pid_namespace, process_exists, process_started, processor_time, run_delay,
    shared_anonymous_pages,
};
pub use rustix::io::Errno;
pub use shared::SharedWords;
pub use uffd::put_in_place;
pub use window::{Side, WindowTable, surrounding_pages};

/// Bytes in a page.
pub const PAGE_SIZE: usize = 4096;

/// log2 of [`PAGE_SIZE`].
pub const PAGE_SHIFT: u32 = 12;

/// The largest order of an extent: 2^9 pages are 2 MiB.
pub const MAX_ORDER: u8 = 9;
