//! Why something was left to the kernel: names and counters.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal,)*) => {
        /// Why a mapping, or a call on one, was left to the kernel.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Reason {
            $($(#[doc = $doc])+ $variant,)*
        }

        /// The names in the summary and the statistics, in the order of [`Reason`].
        pub const NAMES: &[&str] = &[$($name,)*];
    };
}

reasons! {
    /// Smaller than the smallest mapping that is managed.
    TooSmall = "too_small",
    /// No file.
    Anonymous = "anonymous",
    /// Executable, or made so.
    Executable = "executable",
    /// A private mapping that is writable, or was made so.
    PrivateWritable = "private_writable",
    /// The file lives in memory.
    InMemoryFile = "in_memory_file",
    /// A file that the kernel makes up (proc, sysfs, ...).
    PseudoFile = "pseudo_file",
    /// Not a regular file.
    NotRegular = "not_regular",
    /// Wanted at an address that is not inside a window.
    FixedOutsideWindow = "fixed_outside_window",
    /// Asked for, not demanded, at an address that is not inside a window.
    HintOutsideWindow = "hint_outside_window",
    /// Flags that only the kernel can follow.
    UnsupportedFlags = "unsupported_flags",
    /// The kernel maps the same file, and one of the two could store to it.
    MappedByKernel = "mapped_by_kernel",
    /// Another process uses the file, or that cannot be known (`--sharing trust` manages it all the same).
    NotAlone = "not_alone",
    /// Managed memory whose range also has mappings of the kernel's: the whole range went to the kernel.
    MixedRange = "mixed_range",
    /// A file that had to go to the kernel, and could not: a page of it is pinned, or its stores cannot be
    /// written.
    NotGiven = "not_given",
    /// Advice, or another call on managed memory, that only the kernel can follow: its file went to the
    /// kernel.
    KernelCall = "kernel_call",
    /// mlock of managed memory: its file went to the kernel.
    Mlocked = "mlocked",
    /// The manager could not open the file.
    OpenFailed = "open_failed",
    /// Asked by a child that shares the memory of its parent.
    ChildProcess = "child_process",
    /// The manager did not start.
    ManagerUnavailable = "manager_unavailable",
    /// RLIMIT_AS or RLIMIT_DATA leaves no room for windows and arena, and may not be raised.
    AddressSpaceLimit = "address_space_limit",
    /// The manager could not make the mapping.
    ManagerRefused = "manager_refused",
    /// mremap to a place, or in a way, that only the kernel can follow.
    Remapped = "remapped",
    /// The program locks all its memory.
    LockedMemory = "locked_memory",
    /// A stdio stream has the file open in a way that its mappings could not follow.
    Stdio = "stdio",
    /// mlockall beside managed memory, refused with ENOMEM.
    MlockRefused = "mlock_refused",
    /// A call on addresses where the library has its own memory, refused.
    LibraryMemory = "library_memory",
    /// Private memory of a program whose executable defines malloc: our threads would need its locks.
    OwnAllocator = "own_allocator",
}

/// One counter per reason. All zero is the start.
#[repr(transparent)]
pub struct Counts([AtomicU64; NAMES.len()]);

impl Counts {
    /// None yet.
    #[cfg(test)]
    pub const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; NAMES.len()])
    }

    /// One more.
    pub fn count(&self, reason: Reason) {
        self.0[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Names and counts of the reasons that were met.
    pub fn met(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        NAMES
            .iter()
            .zip(&self.0)
            .map(|(name, count)| (*name, count.load(Ordering::Relaxed)))
            .filter(|(_, n)| *n > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_met_is_listed_by_its_own_name() {
        let counts = Counts::new();
        counts.count(Reason::MlockRefused);
        counts.count(Reason::TooSmall);
        counts.count(Reason::TooSmall);
        assert_eq!(counts.met().collect::<Vec<_>>(), [("too_small", 2), ("mlock_refused", 1)]);
    }
}
