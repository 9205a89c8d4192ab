//! Memory maps that are larger than memory: the API of memmap2, under a hard budget.
//!
//! ```
//! use elbowroom::{Budget, MmapOptions};
//!
//! # fn main() -> std::io::Result<()> {
//! # let directory = tempfile::tempdir()?;
//! # let path = directory.path().join("index.bin");
//! # std::fs::write(&path, vec![1; 1 << 20])?;
//! let budget = Budget::with_memory("64MiB")?;               // all mappings of it together
//! let file = std::fs::File::open(&path)?;                   // however large
//! // SAFETY: nothing changes the file while it is mapped.
//! let map = unsafe { MmapOptions::new().budget(&budget).map(&file)? };
//! let sum: u64 = map.iter().map(|&byte| u64::from(byte)).sum();
//! assert_eq!(sum, 1 << 20);
//! assert!(budget.stats()?.peak_bytes <= 64 << 20);
//! # Ok(())
//! # }
//! ```
//!
//! [`Mmap`], [`MmapMut`], [`MmapRaw`] and [`MmapOptions`] have the names and the behaviour of memmap2 0.9: a
//! program that uses that crate exchanges the import. What is mapped belongs to a [`Budget`], or to the whole
//! process ([`Process`]). One manager serves the process, and starts with the first mapping; what is not in
//! memory is in its file, or, if it is anonymous, in a swap file.
//!
//! What differs from memmap2, and what a machine must permit, is in docs/library.md. In short: Linux on
//! x86-64 with a userfaultfd. Files are managed if they are only read, or if this process alone uses them;
//! the kernel maps all others, beside the budget ([`Mmap::is_managed`]).
//!
//! [`manager`] is the level below: managers, spaces of real pointers and soft ones, groups and their
//! statistics.

mod advice;
mod budget;
mod held;
mod if_safe;
mod map;
mod options;
mod process;
mod size;

pub use advice::{Advice, UncheckedAdvice};
pub use budget::{Budget, BudgetStats, Policy, Process, stats};
pub use held::set_len;
pub use if_safe::MapIfSafeError;
pub use map::{Mmap, MmapMut, MmapRaw, RemapOptions};
pub use options::{FileSharing, MmapAsRawDesc, MmapOptions, MmapRawDescriptor};
pub use size::Size;

/// The examples of the document are compiled.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/library.md")]
struct Document;

/// The level below: managers of their own, with spaces of real pointers and soft ones.
///
/// ```
/// use elbowroom::manager::{Config, Manager, MapRequest, Mapping, Soft};
/// use std::sync::Arc;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let manager = Manager::<Soft>::start_on(Config::with_memory(64 << 20))?;
/// let space = Arc::new(manager.create_space()?);
/// let mapping = Mapping::new(&space, MapRequest::memory(1 << 20))?;
/// let cpu = space.cpu(); // one for each thread
/// mapping.write(&cpu, 0, b"hello")?;
/// let mut bytes = [0; 5];
/// mapping.read(&cpu, 0, &mut bytes)?;
/// assert_eq!(&bytes, b"hello");
/// # Ok(())
/// # }
/// ```
pub mod manager {
    pub use elbowroom_manager::*;
}
