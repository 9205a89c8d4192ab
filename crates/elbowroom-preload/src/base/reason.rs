//! Why a mapping or a call was left to the kernel: names, words and counters.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal, $words:literal;)*) => {
        /// Why a mapping, or a call on one, was left to the kernel.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Reason {
            $($(#[doc = $doc])+ $variant,)*
        }

        /// The names in the summary and the statistics, in the order of [`Reason`].
        pub const NAMES: &[&str] = &[$($name,)*];

        /// The reasons as text for people, in the same order.
        const WORDS: &[&str] = &[$($words,)*];
    };
}

reasons! {
    /// Smaller than the smallest mapping that is managed.
    TooSmall = "too_small",
        "shorter than --min-size, or than --heap-min for private memory";
    /// No file: shared memory, or private memory without swap.
    Anonymous = "anonymous",
        "shared memory without a file, or private memory without swap";
    /// Executable from the start, or by mprotect.
    Executable = "executable",
        "executable";
    /// A private mapping that is writable from the start, or by mprotect, without swap.
    PrivateWritable = "private_writable",
        "private and writable, without swap";
    /// The file lives in memory.
    InMemoryFile = "in_memory_file",
        "files that live in memory (tmpfs)";
    /// A file that the kernel makes up (proc, sysfs, ...).
    PseudoFile = "pseudo_file",
        "files that the kernel makes up (/proc, /sys)";
    /// Not a regular file.
    NotRegular = "not_regular",
        "not of regular files";
    /// Demanded (MAP_FIXED, MAP_FIXED_NOREPLACE) at an address that is not inside a window.
    FixedOutsideWindow = "fixed_outside_window",
        "demanded at addresses that cannot be managed";
    /// With a hint that is not inside a window.
    HintOutsideWindow = "hint_outside_window",
        "wanted at addresses that cannot be managed";
    /// Flags that only the kernel can follow.
    UnsupportedFlags = "unsupported_flags",
        "with flags or rights that only the kernel can follow";
    /// The kernel maps the same file, and one of the two could store to it.
    MappedByKernel = "mapped_by_kernel",
        "the kernel maps the same file, and one of the two could store to it";
    /// Another process uses the file, or that cannot be known (`--sharing trust` manages it all the same).
    NotAlone = "not_alone",
        "another process uses the file, or that cannot be known";
    /// Managed memory whose range also has mappings of the kernel's: the whole range went to the kernel.
    MixedRange = "mixed_range",
        "calls on ranges of which a part was the kernel's";
    /// A file that had to go to the kernel, and could not: a page of it is pinned, or its stores cannot be
    /// written.
    NotGiven = "not_given",
        "files that could not go to the kernel and stayed managed";
    /// Advice, or another call on managed memory, that only the kernel can follow: its file went to the
    /// kernel.
    KernelCall = "kernel_call",
        "calls that only the kernel can follow";
    /// A system call on managed memory failed, since only faults of instructions are served.
    RefusedCall = "refused_call",
        "system calls that failed, since only faults of instructions are served (`elbowroom doctor`)";
    /// mlock of managed memory: its file went to the kernel.
    Mlocked = "mlocked",
        "locked in memory (mlock)";
    /// The manager could not open the file.
    OpenFailed = "open_failed",
        "files that could not be opened: no descriptor was free (ulimit -n), or no right";
    /// A mapping by a child that shares the memory of its parent (vfork).
    ChildProcess = "child_process",
        "mapped by children that share the memory of their parent (vfork)";
    /// The manager did not start.
    ManagerUnavailable = "manager_unavailable",
        "the process has no manager";
    /// RLIMIT_AS or RLIMIT_DATA leaves no room for windows and arena, and may not be raised.
    AddressSpaceLimit = "address_space_limit",
        "no room in the limits on address space or data (ulimit -v, -d)";
    /// The manager could not make the mapping.
    ManagerRefused = "manager_refused",
        "the manager could not make the mapping";
    /// mremap to a place, or in a way, that only the kernel can follow.
    Remapped = "remapped",
        "moved or resized in a way that only the kernel can follow";
    /// The program locks all its memory.
    LockedMemory = "locked_memory",
        "the program locks all its memory (mlockall)";
    /// A stdio stream has the file open in a way that its mappings could not follow.
    Stdio = "stdio",
        "a stdio stream or aio uses the file";
    /// mlockall beside managed memory, refused with ENOMEM.
    MlockRefused = "mlock_refused",
        "mlockall beside managed memory, refused";
    /// A call on addresses where the library has its own memory, refused.
    LibraryMemory = "library_memory",
        "calls on the library's own memory, refused";
    /// Private memory of a program whose executable defines malloc: our threads would need its locks.
    OwnAllocator = "own_allocator",
        "the executable has an allocator of its own: its private memory is not managed";
    /// Private memory of a Go program: its runtime changes it by system calls of its own.
    GoRuntime = "go_runtime",
        "private memory of a Go program, which its runtime changes by system calls of its own";
}

impl Reason {
    /// Whether memory that the user wants managed is not, because the environment lacks something or
    /// because of the kind of program. The first mapping for such a reason is reported on standard error,
    /// also with `--quiet`.
    pub fn is_lack(self) -> bool {
        matches!(
            self,
            Self::OpenFailed
                | Self::AddressSpaceLimit
                | Self::ManagerRefused
                | Self::LockedMemory
                | Self::OwnAllocator
        )
    }

    /// The reason for people.
    pub fn words(self) -> &'static str {
        WORDS[self as usize]
    }
}

/// How often each reason was met, and for how many bytes. All zero: none was met.
pub struct Counts {
    times: [AtomicU64; NAMES.len()],
    bytes: [AtomicU64; NAMES.len()],
}

/// What was left to the kernel for one reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Met {
    /// The name in the statistics.
    pub name: &'static str,
    /// The reason for people.
    pub words: &'static str,
    /// The number of mappings and calls.
    pub times: u64,
    /// Their total length in bytes; 0 for calls without a length.
    pub bytes: u64,
}

impl Counts {
    /// No reason was met yet.
    #[cfg(test)]
    pub const fn new() -> Self {
        Self {
            times: [const { AtomicU64::new(0) }; NAMES.len()],
            bytes: [const { AtomicU64::new(0) }; NAMES.len()],
        }
    }

    /// Counts a mapping or call of `bytes` bytes. Tells whether it is the first for this reason.
    pub fn count(&self, reason: Reason, bytes: u64) -> bool {
        self.bytes[reason as usize].fetch_add(bytes, Ordering::Relaxed);
        self.times[reason as usize].fetch_add(1, Ordering::Relaxed) == 0
    }

    /// Whether the reason was met.
    pub fn has_met(&self, reason: Reason) -> bool {
        self.times[reason as usize].load(Ordering::Relaxed) > 0
    }

    /// The reasons that were met, in the order of [`Reason`].
    pub fn met(&self) -> impl Iterator<Item = Met> + '_ {
        (0..NAMES.len()).map(|index| self.of(index)).filter(|met| met.times > 0)
    }

    /// The reasons that were met, the one with the most bytes first. Allocates nothing.
    pub fn met_by_size(&self) -> impl Iterator<Item = Met> + '_ {
        // Other threads may count meanwhile, so the reasons that are left are known by index and not by
        // comparing figures.
        let mut listed = [false; NAMES.len()];
        std::iter::from_fn(move || {
            let left = (0..NAMES.len()).filter(|index| !listed[*index]);
            let sized = left.map(|index| (self.of(index), index)).filter(|(met, _)| met.times > 0);
            let (met, index) = sized.max_by_key(|(met, index)| (met.bytes, met.times, usize::MAX - index))?;
            listed[index] = true;
            Some(met)
        })
    }

    fn of(&self, index: usize) -> Met {
        let [times, bytes] = [&self.times, &self.bytes].map(|all| all[index].load(Ordering::Relaxed));
        Met { name: NAMES[index], words: WORDS[index], times, bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_met_is_listed_by_its_own_name() {
        let counts = Counts::new();
        assert!(counts.count(Reason::MlockRefused, 0));
        assert!(counts.count(Reason::TooSmall, 8192));
        assert!(!counts.count(Reason::TooSmall, 4096));
        let met: Vec<_> = counts.met().map(|met| (met.name, met.times, met.bytes)).collect();
        assert_eq!(met, [("too_small", 2, 12288), ("mlock_refused", 1, 0)]);
    }

    #[test]
    fn the_most_bytes_come_first() {
        let counts = Counts::new();
        for (reason, bytes) in
            [(Reason::TooSmall, 1), (Reason::NotAlone, 9), (Reason::Stdio, 9), (Reason::Mlocked, 0)]
        {
            counts.count(reason, bytes);
        }
        let names: Vec<_> = counts.met_by_size().map(|met| met.name).collect();
        assert_eq!(names, ["not_alone", "stdio", "too_small", "mlocked"]);
    }

    #[test]
    fn every_reason_has_words_of_its_own() {
        let mut words = WORDS.to_vec();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), NAMES.len());
    }
}
