//! One operation on one engine: from pages to addresses, and from results to what can be compared.

use std::fmt;

use crate::differential::engine::{Engine, Errno, Fault, PAGE};
use crate::differential::op::{At, Len, Op, Place};

/// What an operation gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Success without a value.
    Done,
    /// Success, with an address in the range, in bytes from its start.
    At(u64),
    /// Success at another address, from where it was moved to the operation's `settle` page.
    Elsewhere,
    /// It failed.
    Failed(Errno),
    /// It was placed elsewhere, but could not be moved to the `settle` page. No engine should do that.
    Unsettled(Errno),
    /// `MADV_FREE`'s result and that of the `MADV_DONTNEED` after it.
    Freed(Result<(), Errno>, Result<(), Errno>),
    /// The bytes, the first one lowest.
    Loaded(u64),
    /// A load or store that a signal ended.
    Faulted(Fault),
}

impl Outcome {
    /// The error number, 0 for success; for statistics.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Failed(error) | Self::Unsettled(error) | Self::Freed(Err(error), _) => error.raw_os_error(),
            Self::Faulted(Fault::Bus) => libc::SIGBUS + 1000,
            Self::Faulted(Fault::Unmapped) => libc::SIGSEGV + 1000,
            Self::Faulted(Fault::Denied) => libc::SIGSEGV + 2000,
            _ => 0,
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |result: &Result<(), Errno>| match result {
            Ok(()) => "done".to_owned(),
            Err(error) => name(*error),
        };
        match self {
            Self::Done => f.write_str("done"),
            Self::At(bytes) if bytes % PAGE == 0 => write!(f, "at page {}", bytes / PAGE),
            Self::At(bytes) => write!(f, "at byte {bytes:#x}"),
            Self::Elsewhere => f.write_str("placed elsewhere"),
            Self::Failed(error) => f.write_str(&name(*error)),
            Self::Unsettled(error) => write!(f, "placed elsewhere, and moving it failed: {}", name(*error)),
            Self::Freed(first, second) => write!(f, "{}, then dontneed: {}", text(first), text(second)),
            Self::Loaded(value) => write!(f, "loaded {value:#x}"),
            Self::Faulted(fault) => write!(f, "fault: {fault:?}"),
        }
    }
}

/// An error number's name.
pub fn name(error: Errno) -> String {
    let known = [
        (Errno::INVAL, "EINVAL"),
        (Errno::NOMEM, "ENOMEM"),
        (Errno::FAULT, "EFAULT"),
        (Errno::ACCESS, "EACCES"),
        (Errno::EXIST, "EEXIST"),
        (Errno::BADF, "EBADF"),
        (Errno::BUSY, "EBUSY"),
        (Errno::AGAIN, "EAGAIN"),
        (Errno::PERM, "EPERM"),
        (Errno::OVERFLOW, "EOVERFLOW"),
        (Errno::OPNOTSUPP, "EOPNOTSUPP"),
    ];
    known
        .iter()
        .find(|(known, _)| *known == error)
        .map_or_else(|| error.to_string(), |(_, name)| (*name).to_owned())
}

/// Where an operation begins, as an address of an engine.
fn address(engine: &impl Engine, at: At) -> u64 {
    match at {
        At::Page(page) => engine.base() + u64::from(page) * PAGE,
        At::Inside(page, byte) => engine.base() + u64::from(page) * PAGE + u64::from(byte),
        At::Beyond => engine.beyond(),
    }
}

/// Performs an operation.
pub fn apply(engine: &mut impl Engine, op: &Op) -> Outcome {
    let at = |engine: &_, at: At| address(engine, at);
    match *op {
        Op::Map { at, len, prot, place, flags, file, offset, settle } => {
            let (addr, place) = match place {
                Place::Anywhere => (0, 0),
                Place::Hint => (address(engine, at), 0),
                Place::Fixed => (address(engine, at), libc::MAP_FIXED),
                Place::FixedNoReplace => (address(engine, at), libc::MAP_FIXED_NOREPLACE),
            };
            let result = engine.map(addr, len.bytes(), prot, flags | place, file, offset.bytes());
            placed(engine, result, len, settle)
        }
        Op::Remap { at, old, new, flags, to, settle } => {
            let (at, to) = (address(engine, at), address(engine, to));
            let result = engine.remap(at, old.bytes(), new.bytes(), flags, to);
            placed(engine, result, new, settle)
        }
        Op::Unmap(start, len) => unit(engine.unmap(at(engine, start), len.bytes())),
        Op::Protect(start, len, prot) => unit(engine.protect(at(engine, start), len.bytes(), prot)),
        Op::Advise(start, len, advice) => {
            let (start, len) = (at(engine, start), len.bytes());
            let result = engine.advise(start, len, advice);
            if advice != libc::MADV_FREE {
                return unit(result);
            }
            Outcome::Freed(result, engine.advise(start, len, libc::MADV_DONTNEED))
        }
        Op::Sync(start, len, flags) => unit(engine.sync(at(engine, start), len.bytes(), flags)),
        Op::Resident(start, len) => unit(engine.resident(at(engine, start), len.bytes())),
        Op::Lock(start, len, flags) => unit(engine.lock(at(engine, start), len.bytes(), flags)),
        Op::Unlock(start, len) => unit(engine.unlock(at(engine, start), len.bytes())),
        Op::Truncate(pages) => unit(engine.truncate(u64::from(pages))),
        Op::Load(page, byte, len) => {
            let mut bytes = [0; 8];
            let addr = at(engine, At::Page(page)) + u64::from(byte);
            match engine.load(addr, &mut bytes[..usize::from(len)]) {
                Ok(()) => Outcome::Loaded(u64::from_le_bytes(bytes)),
                Err(fault) => Outcome::Faulted(fault),
            }
        }
        Op::Store(page, byte, len, seed) => {
            let addr = at(engine, At::Page(page)) + u64::from(byte);
            match engine.store(addr, &Op::stored(len, seed)) {
                Ok(()) => Outcome::Done,
                Err(fault) => Outcome::Faulted(fault),
            }
        }
    }
}

fn unit(result: Result<(), Errno>) -> Outcome {
    result.map_or_else(Outcome::Failed, |()| Outcome::Done)
}

/// The result of a placement; one outside the range is moved into it with a fixed mremap, so that both
/// engines go on with the same layout, wherever each of them has put it.
fn placed(engine: &mut impl Engine, result: Result<u64, Errno>, len: Len, settle: u32) -> Outcome {
    let addr = match result {
        Ok(addr) => addr,
        Err(error) => return Outcome::Failed(error),
    };
    let offset = addr.wrapping_sub(engine.base());
    if offset < engine.pages() * PAGE {
        return Outcome::At(offset);
    }
    let len = u64::from(len.pages()) * PAGE;
    let to = address(engine, At::Page(settle));
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    match engine.remap(addr, len, len, flags, to) {
        Ok(_) => Outcome::Elsewhere,
        Err(error) => Outcome::Unsettled(error),
    }
}
