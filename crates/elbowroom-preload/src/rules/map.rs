//! Which mappings are managed: plain data in, a decision out. No system calls, no state.

use crate::base::reason::Reason;
use crate::base::sys::PAGE;
use elbowroom::{Place, Prot};
use libc::c_int;

/// Which code asks for a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caller {
    /// The program, or a library of it.
    Program,
    /// The library before malloc, for blocks of the heap.
    Heap,
}

/// What mmap(2) was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapArgs {
    /// Where.
    pub addr: usize,
    /// Bytes.
    pub len: usize,
    /// PROT_* bits.
    pub prot: c_int,
    /// MAP_* bits.
    pub flags: c_int,
    /// The file.
    pub fd: c_int,
    /// Bytes into the file.
    pub offset: i64,
    /// The code that asks.
    pub caller: Caller,
}

impl MapArgs {
    /// Whether stores go to the file. `None` for a type of mapping that does not exist.
    pub fn shared(&self) -> Option<bool> {
        match self.flags & libc::MAP_TYPE {
            libc::MAP_SHARED | libc::MAP_SHARED_VALIDATE => Some(true),
            libc::MAP_PRIVATE => Some(false),
            _ => None,
        }
    }

    /// Whether it must be exactly at `addr`.
    pub fn fixed(&self) -> bool {
        self.flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) != 0
    }

    /// The length in whole pages, in bytes.
    pub fn rounded(&self) -> usize {
        self.len.saturating_add(PAGE - 1) & !(PAGE - 1)
    }
}

/// What is known of the process without asking the kernel.
#[derive(Debug, Clone, Copy)]
pub struct Surroundings {
    /// The smallest mapping that is managed, in bytes.
    pub min_size_bytes: u64,
    /// The smallest private memory that is managed, in bytes; `None`: none is, and no private copies.
    pub memory_min_bytes: Option<u64>,
    /// Why the program's private memory is the kernel's, if it is.
    pub memory_left: Option<Reason>,
    /// Whether any file is managed now.
    pub any_managed: bool,
    /// Whether all of the wanted range, if an address is wanted, is inside windows.
    pub inside_windows: bool,
}

/// What the kernel said about the file.
#[derive(Debug, Clone, Copy)]
pub struct FileFacts {
    /// `st_mode`.
    pub mode: u32,
    /// The filesystem's magic number.
    pub filesystem: u64,
    /// O_* bits.
    pub open_flags: c_int,
    /// Whether the file may be managed already.
    pub may_be_managed: bool,
}

/// The answer of [`first`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum First {
    /// The kernel's, counted under the reason; without one the kernel will refuse the call and nothing is
    /// counted.
    Kernel(Option<Reason>),
    /// The manager's: memory without a file.
    Memory,
    /// The manager's: memory without a file, at the wanted place, if the manager can take the addresses;
    /// else the kernel's.
    MemoryThere,
    /// The answer depends on the file.
    LookAtFile,
}

/// The answer of [`last`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Last {
    /// As [`First::Kernel`].
    Kernel(Option<Reason>),
    /// The manager's. `writable`: the file may be written through this mapping, now or after mprotect.
    Manage {
        /// Whether the manager opens the file for writing.
        writable: bool,
    },
}

/// Flags that change nothing for a managed mapping, or that the manager follows.
const FOLLOWED: c_int = libc::MAP_TYPE
    | libc::MAP_FIXED
    | libc::MAP_FIXED_NOREPLACE
    | libc::MAP_NORESERVE
    | libc::MAP_POPULATE
    | libc::MAP_NONBLOCK
    | libc::MAP_DENYWRITE
    | libc::MAP_EXECUTABLE;

/// The smallest mapping, in bytes, for which the manager takes addresses outside windows: a heap's, and not
/// those of many small mappings, since each such range costs a little for ever.
const LARGE_ENOUGH: usize = 16 << 20;

/// Decides from the arguments alone, as far as possible.
pub fn first(args: &MapArgs, around: &Surroundings) -> First {
    let Some(shared) = args.shared() else { return First::Kernel(None) };
    let anonymous = args.flags & libc::MAP_ANONYMOUS != 0;
    if anonymous && (shared || around.memory_min_bytes.is_none()) {
        return First::Kernel(Some(Reason::Anonymous));
    }
    if anonymous && around.memory_left.is_some() {
        return First::Kernel(around.memory_left);
    }
    let end = i64::try_from(args.rounded()).ok().and_then(|len| args.offset.checked_add(len));
    let misplaced = args.fixed() && !args.addr.is_multiple_of(PAGE);
    let misaligned = args.offset < 0 || !(args.offset as usize).is_multiple_of(PAGE);
    if args.fd < 0 && !anonymous || args.len == 0 || end.is_none() || misplaced || misaligned {
        return First::Kernel(None);
    }
    if args.prot & libc::PROT_EXEC != 0 {
        return First::Kernel(Some(Reason::Executable));
    }
    if !shared && args.prot & libc::PROT_WRITE != 0 && around.memory_min_bytes.is_none() {
        return First::Kernel(Some(Reason::PrivateWritable));
    }
    let known_prot = libc::PROT_READ | libc::PROT_WRITE;
    // PROT_WRITE alone: only the kernel keeps such memory from being read, the processor does not.
    let write_only = args.prot == libc::PROT_WRITE;
    let followed = if anonymous { FOLLOWED | libc::MAP_ANONYMOUS } else { FOLLOWED };
    if args.flags & !followed != 0 || args.prot & !known_prot != 0 || write_only {
        return First::Kernel(Some(Reason::UnsupportedFlags));
    }
    if args.addr != 0 && !around.inside_windows {
        // A hint is followed by the kernel where there is room.
        if anonymous && args.flags & libc::MAP_FIXED == 0 && args.len >= LARGE_ENOUGH {
            return First::MemoryThere;
        }
        let reason = if args.fixed() { Reason::FixedOutsideWindow } else { Reason::HintOutsideWindow };
        return First::Kernel(Some(reason));
    }
    if anonymous {
        // Also a small mapping at a fixed place: as the kernel's, in the middle of managed memory, it would
        // cut that in two for mremap.
        let large = around.memory_min_bytes.is_some_and(|min| args.len as u64 >= min);
        return if large || args.fixed() { First::Memory } else { First::Kernel(Some(Reason::TooSmall)) };
    }
    if (args.len as u64) < around.min_size_bytes && !(shared && around.any_managed) {
        return First::Kernel(Some(Reason::TooSmall));
    }
    First::LookAtFile
}

/// Decides with the file known, after [`first`] asked for it.
pub fn last(args: &MapArgs, around: &Surroundings, file: &FileFacts) -> Last {
    if file.mode & libc::S_IFMT != libc::S_IFREG {
        return Last::Kernel(Some(Reason::NotRegular));
    }
    let access = file.open_flags & libc::O_ACCMODE;
    let shared = args.shared() == Some(true);
    let refused = file.open_flags & libc::O_PATH != 0
        || access == libc::O_WRONLY
        || (shared && args.prot & libc::PROT_WRITE != 0 && access != libc::O_RDWR);
    if refused {
        return Last::Kernel(None);
    }
    if (args.len as u64) < around.min_size_bytes && !file.may_be_managed {
        return Last::Kernel(Some(Reason::TooSmall));
    }
    match file.filesystem {
        TMPFS | RAMFS | HUGETLBFS => Last::Kernel(Some(Reason::InMemoryFile)),
        PROC | SYSFS | DEBUGFS | TRACEFS | SECURITYFS | BPF | CGROUP | CGROUP2 | CONFIGFS | EFIVARFS
        | RESCTRL => Last::Kernel(Some(Reason::PseudoFile)),
        _ => Last::Manage { writable: shared && access == libc::O_RDWR },
    }
}

/// Where a mapping is wanted.
pub fn place(args: &MapArgs) -> Place {
    match args.addr {
        at if args.flags & libc::MAP_FIXED_NOREPLACE != 0 => Place::FixedNoReplace(at),
        at if args.flags & libc::MAP_FIXED != 0 => Place::Fixed(at),
        0 => Place::Anywhere,
        hint => Place::Hint(hint),
    }
}

/// The rights that PROT_* bits give. A mapping that can be written can be read, as on the machines we run on.
pub fn prot(bits: libc::c_int) -> Prot {
    if bits & libc::PROT_WRITE != 0 {
        Prot::READ | Prot::WRITE
    } else if bits & libc::PROT_READ != 0 {
        Prot::READ
    } else {
        Prot::empty()
    }
}

const TMPFS: u64 = 0x0102_1994;
const RAMFS: u64 = 0x8584_58f6;
const HUGETLBFS: u64 = 0x9584_58f6;
const PROC: u64 = 0x9fa0;
const SYSFS: u64 = 0x6265_6572;
const DEBUGFS: u64 = 0x6462_6720;
const TRACEFS: u64 = 0x7472_6163;
const SECURITYFS: u64 = 0x7363_6673;
const BPF: u64 = 0xcafe_4a11;
const CGROUP: u64 = 0x0027_e0eb;
const CGROUP2: u64 = 0x6367_7270;
const CONFIGFS: u64 = 0x6265_6570;
const EFIVARFS: u64 = 0xde5e_81e4;
const RESCTRL: u64 = 0x0765_5821;

#[cfg(test)]
mod tests {
    use super::*;
    use libc::{
        MAP_ANONYMOUS, MAP_FIXED, MAP_PRIVATE, MAP_SHARED, O_RDONLY, O_RDWR, O_WRONLY, PROT_READ, PROT_WRITE,
    };

    const BIG: MapArgs = MapArgs {
        addr: 0,
        len: 1 << 20,
        prot: PROT_READ,
        flags: MAP_SHARED,
        fd: 3,
        offset: 0,
        caller: Caller::Program,
    };
    const AROUND: Surroundings = Surroundings {
        min_size_bytes: 1 << 20,
        memory_min_bytes: None,
        memory_left: None,
        any_managed: false,
        inside_windows: false,
    };
    const EXT4: FileFacts = FileFacts {
        mode: libc::S_IFREG | 0o644,
        filesystem: 0xef53,
        open_flags: O_RDWR,
        may_be_managed: false,
    };

    #[test]
    fn arguments_decide() {
        let first_of = |change: &dyn Fn(&mut MapArgs)| {
            let mut args = BIG;
            change(&mut args);
            first(&args, &AROUND)
        };
        let counted = |reason| First::Kernel(Some(reason));
        let refused = First::Kernel(None);
        assert_eq!(first_of(&|_| {}), First::LookAtFile);
        assert_eq!(first_of(&|a| a.len -= 1), counted(Reason::TooSmall));
        assert_eq!(first_of(&|a| a.flags |= MAP_ANONYMOUS), counted(Reason::Anonymous));
        assert_eq!(first_of(&|a| a.prot |= libc::PROT_EXEC), counted(Reason::Executable));
        assert_eq!(first_of(&|a| a.flags |= libc::MAP_LOCKED), counted(Reason::UnsupportedFlags));
        assert_eq!(first_of(&|a| a.flags |= libc::MAP_32BIT), counted(Reason::UnsupportedFlags));
        assert_eq!(first_of(&|a| a.prot = PROT_WRITE), counted(Reason::UnsupportedFlags));
        assert_eq!(first_of(&|a| a.prot |= libc::PROT_GROWSDOWN), counted(Reason::UnsupportedFlags));
        assert_eq!(
            first_of(&|a| (a.addr, a.flags) = (4096, MAP_SHARED | MAP_FIXED)),
            counted(Reason::FixedOutsideWindow)
        );
        assert_eq!(first_of(&|a| a.addr = 4096), counted(Reason::HintOutsideWindow));
        assert_eq!(
            first_of(&|a| (a.flags, a.prot) = (MAP_PRIVATE, PROT_READ | PROT_WRITE)),
            counted(Reason::PrivateWritable)
        );
        assert_eq!(first_of(&|a| a.flags = MAP_PRIVATE | libc::MAP_POPULATE), First::LookAtFile);
        assert_eq!(first_of(&|a| a.len = 0), refused);
        assert_eq!(first_of(&|a| a.len = usize::MAX), refused);
        assert_eq!(first_of(&|a| a.offset = 100), refused);
        assert_eq!(first_of(&|a| a.offset = i64::MAX & !4095), refused);
        assert_eq!(first_of(&|a| a.fd = -1), refused);
        assert_eq!(first_of(&|a| a.flags = 0), refused);
        assert_eq!(first_of(&|a| (a.addr, a.flags) = (4097, MAP_SHARED | MAP_FIXED)), refused);
    }

    #[test]
    fn small_mappings_of_managed_files_are_looked_at_for_coherence() {
        let around = Surroundings { any_managed: true, ..AROUND };
        let shared = MapArgs { len: 4096, ..BIG };
        let private = MapArgs { flags: MAP_PRIVATE, ..shared };
        assert_eq!(first(&shared, &around), First::LookAtFile);
        assert_eq!(first(&private, &around), First::Kernel(Some(Reason::TooSmall)));
        let managed = FileFacts { may_be_managed: true, ..EXT4 };
        assert_eq!(last(&shared, &around, &managed), Last::Manage { writable: true });
        assert_eq!(last(&shared, &around, &EXT4), Last::Kernel(Some(Reason::TooSmall)));
    }

    #[test]
    fn private_memory_is_managed_where_there_is_swap() {
        let around = Surroundings { memory_min_bytes: Some(256 << 10), ..AROUND };
        let memory =
            MapArgs { fd: -1, flags: MAP_PRIVATE | MAP_ANONYMOUS, prot: PROT_READ | PROT_WRITE, ..BIG };
        let counted = |reason| First::Kernel(Some(reason));
        assert_eq!(first(&memory, &AROUND), counted(Reason::Anonymous));
        assert_eq!(first(&memory, &around), First::Memory);
        assert_eq!(first(&MapArgs { prot: libc::PROT_NONE, ..memory }, &around), First::Memory);
        let flagged = |flags| first(&MapArgs { flags: memory.flags | flags, ..memory }, &around);
        assert_eq!(flagged(libc::MAP_NORESERVE), First::Memory);
        for kept in [libc::MAP_STACK, libc::MAP_GROWSDOWN, libc::MAP_LOCKED, libc::MAP_HUGETLB] {
            assert_eq!(flagged(kept), counted(Reason::UnsupportedFlags), "{kept:#x}");
        }
        for reason in [Reason::OwnAllocator, Reason::GoRuntime] {
            let left = Surroundings { memory_left: Some(reason), ..around };
            assert_eq!(first(&memory, &left), counted(reason));
        }
        let shared = MapArgs { flags: MAP_SHARED | MAP_ANONYMOUS, ..memory };
        assert_eq!(first(&shared, &around), counted(Reason::Anonymous));
        assert_eq!(first(&MapArgs { len: 256 << 10, ..memory }, &around), First::Memory);
        assert_eq!(first(&MapArgs { len: 255 << 10, ..memory }, &around), counted(Reason::TooSmall));
        let file = MapArgs { flags: MAP_PRIVATE, prot: PROT_READ | PROT_WRITE, ..BIG };
        assert_eq!(first(&file, &around), First::LookAtFile);
        // The kernel makes no huge pages there, and so does not merge the mapping with its neighbours.
        let stack = MapArgs { flags: file.flags | libc::MAP_STACK, ..file };
        assert_eq!(first(&stack, &around), counted(Reason::UnsupportedFlags));
        let hinted = MapArgs { addr: 1 << 32, len: LARGE_ENOUGH, ..memory };
        assert_eq!(first(&hinted, &around), First::MemoryThere);
        assert_eq!(
            first(&MapArgs { len: LARGE_ENOUGH - 1, ..hinted }, &around),
            counted(Reason::HintOutsideWindow)
        );
        let flagged = |flag| first(&MapArgs { flags: memory.flags | flag, ..hinted }, &around);
        assert_eq!(flagged(libc::MAP_FIXED_NOREPLACE), First::MemoryThere);
        assert_eq!(flagged(MAP_FIXED), counted(Reason::FixedOutsideWindow));
        let inside = Surroundings { inside_windows: true, ..around };
        assert_eq!(first(&hinted, &inside), First::Memory);
        let small = MapArgs { len: PAGE, ..hinted };
        assert_eq!(first(&small, &inside), counted(Reason::TooSmall));
        assert_eq!(first(&MapArgs { flags: small.flags | MAP_FIXED, ..small }, &inside), First::Memory);
    }

    #[test]
    fn the_file_decides() {
        let read_write = MapArgs { prot: PROT_READ | PROT_WRITE, ..BIG };
        let private = MapArgs { flags: MAP_PRIVATE, ..BIG };
        let opened = |open_flags| FileFacts { open_flags, ..EXT4 };
        let on = |filesystem| FileFacts { filesystem, ..EXT4 };
        assert_eq!(last(&BIG, &AROUND, &EXT4), Last::Manage { writable: true });
        assert_eq!(last(&BIG, &AROUND, &opened(O_RDONLY)), Last::Manage { writable: false });
        assert_eq!(last(&private, &AROUND, &EXT4), Last::Manage { writable: false });
        assert_eq!(last(&read_write, &AROUND, &opened(O_RDONLY)), Last::Kernel(None));
        assert_eq!(last(&BIG, &AROUND, &opened(O_WRONLY)), Last::Kernel(None));
        assert_eq!(last(&BIG, &AROUND, &opened(libc::O_PATH)), Last::Kernel(None));
        assert_eq!(last(&BIG, &AROUND, &on(TMPFS)), Last::Kernel(Some(Reason::InMemoryFile)));
        assert_eq!(last(&BIG, &AROUND, &on(SYSFS)), Last::Kernel(Some(Reason::PseudoFile)));
        let device = FileFacts { mode: libc::S_IFCHR, ..EXT4 };
        assert_eq!(last(&BIG, &AROUND, &device), Last::Kernel(Some(Reason::NotRegular)));
    }

    #[test]
    fn writable_means_readable() {
        assert_eq!(prot(libc::PROT_WRITE), Prot::READ | Prot::WRITE);
        assert_eq!(prot(libc::PROT_READ), Prot::READ);
        assert_eq!(prot(libc::PROT_NONE), Prot::empty());
    }

    #[test]
    fn hints_and_fixed_places_are_told_apart() {
        let args = MapArgs { addr: 4097, len: 1, prot: 0, fd: 0, ..BIG };
        assert_eq!(place(&args), Place::Hint(4097));
        let fixed = MapArgs { addr: 4096, flags: libc::MAP_SHARED | libc::MAP_FIXED, ..args };
        assert_eq!(place(&fixed), Place::Fixed(4096));
        let careful = MapArgs { flags: libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE, ..fixed };
        assert_eq!(place(&careful), Place::FixedNoReplace(4096));
    }
}
