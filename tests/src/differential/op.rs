//! Operations whose places are pages of an engine's range, so that the same list can be given to engines at
//! different addresses, printed in a line each, and made simpler.

use std::fmt;

use crate::differential::engine::{Descriptor, PAGE};

/// Where an operation begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum At {
    /// A page of the range.
    Page(u32),
    /// A byte inside a page, never its first: an unaligned address.
    Inside(u32, u16),
    /// An address beyond the end of the space.
    Beyond,
}

/// How long it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Len {
    /// Whole pages, perhaps none.
    Pages(u32),
    /// Bytes that are no whole number of pages.
    Bytes(u32),
    /// More than any space has, but not so much that it overflows.
    Past,
    /// So much that the end is before the start.
    Wrap,
    /// So much that rounding up to whole pages gives nothing.
    Overflow,
}

impl Len {
    /// In bytes, as the call is given it.
    pub fn bytes(self) -> u64 {
        match self {
            Self::Pages(pages) => u64::from(pages) * PAGE,
            Self::Bytes(bytes) => u64::from(bytes),
            Self::Past => 1 << 57,
            Self::Wrap => u64::MAX - 2 * PAGE + 1,
            Self::Overflow => u64::MAX - 99,
        }
    }

    /// How many pages of the range it may touch from an aligned start. A wild length touches what follows the
    /// range, where nothing is mapped.
    pub fn pages(self) -> u32 {
        match self {
            Self::Pages(pages) => pages,
            Self::Bytes(bytes) => bytes.div_ceil(PAGE as u32),
            Self::Past | Self::Wrap => u32::MAX,
            Self::Overflow => 0,
        }
    }
}

/// Where in the file a mapping begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offset {
    /// A page of the file, perhaps beyond its end.
    Page(u32),
    /// 100 bytes into a page.
    Unaligned(u32),
    /// Further than any file reaches.
    Overflow,
}

impl Offset {
    /// In bytes, as the call is given it.
    pub fn bytes(self) -> u64 {
        match self {
            Self::Page(page) => u64::from(page) * PAGE,
            Self::Unaligned(page) => u64::from(page) * PAGE + 100,
            Self::Overflow => u64::MAX - PAGE + 1,
        }
    }
}

/// How a new mapping's place is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Anywhere: the address is null.
    Anywhere,
    /// There if it is free, else anywhere.
    Hint,
    /// There, whatever it replaces.
    Fixed,
    /// There, or EEXIST.
    FixedNoReplace,
}

/// One operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// mmap. What the engine places outside its range is moved to page `settle` at once.
    Map {
        /// Its address, unless it is placed anywhere.
        at: At,
        /// Its length.
        len: Len,
        /// The protection, wrong bits included.
        prot: i32,
        /// The place.
        place: Place,
        /// The other flags, the type of sharing included.
        flags: i32,
        /// The descriptor.
        file: Descriptor,
        /// Where in the file.
        offset: Offset,
        /// Where it goes if it is placed elsewhere.
        settle: u32,
    },
    /// munmap.
    Unmap(At, Len),
    /// mprotect.
    Protect(At, Len, i32),
    /// mremap. What ends up outside the range is moved to page `settle` at once.
    Remap {
        /// The old address.
        at: At,
        /// The old length.
        old: Len,
        /// The new length.
        new: Len,
        /// `MREMAP_` flags, wrong bits included.
        flags: i32,
        /// The new address, if the flags ask for one.
        to: At,
        /// Where it goes if it is placed elsewhere.
        settle: u32,
    },
    /// madvise. `MADV_FREE` is followed by `MADV_DONTNEED` of the same range: between the two, each page may
    /// hold its old bytes or zeros.
    Advise(At, Len, i32),
    /// msync.
    Sync(At, Len, i32),
    /// mincore.
    Resident(At, Len),
    /// mlock2, with its flags.
    Lock(At, Len, i32),
    /// munlock.
    Unlock(At, Len),
    /// ftruncate to so many pages.
    Truncate(u32),
    /// Loads bytes of one page: page, first byte, number of bytes.
    Load(u32, u16, u8),
    /// Stores bytes of one page: page, first byte, number of bytes, and what the first one is.
    Store(u32, u16, u8, u8),
}

impl Op {
    /// The bytes that a store writes.
    pub fn stored(len: u8, seed: u8) -> Vec<u8> {
        (0..len).map(|index| seed.wrapping_add(index.wrapping_mul(7))).collect()
    }

    /// The ranges of pages whose layout the operation may change, as (first, number).
    pub fn touches(&self) -> Vec<(u32, u32)> {
        let from = |at: At, len: Len| match at {
            At::Page(page) => vec![(page, len.pages())],
            At::Inside(page, _) => vec![(page, len.pages().saturating_add(1))],
            At::Beyond => vec![],
        };
        match *self {
            Self::Map { at, len, place, settle, .. } => {
                let mut all = from(at, len);
                if matches!(place, Place::Anywhere | Place::Hint) {
                    all.push((settle, len.pages()));
                }
                all
            }
            Self::Remap { at, old, new, to, settle, .. } => {
                let mut all = from(at, old);
                all.extend(from(at, new));
                all.extend(from(to, new));
                all.push((settle, new.pages()));
                all
            }
            Self::Unmap(at, len)
            | Self::Protect(at, len, _)
            | Self::Advise(at, len, _)
            | Self::Lock(at, len, _)
            | Self::Unlock(at, len) => from(at, len),
            Self::Sync(..) | Self::Resident(..) | Self::Truncate(_) | Self::Load(..) | Self::Store(..) => {
                vec![]
            }
        }
    }
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Page(page) => write!(f, "{page}"),
            Self::Inside(page, byte) => write!(f, "{page}:{byte}"),
            Self::Beyond => f.write_str("beyond"),
        }
    }
}

impl fmt::Display for Len {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pages(pages) => write!(f, "{pages}"),
            Self::Bytes(bytes) => write!(f, "{bytes}b"),
            Self::Past => f.write_str("past"),
            Self::Wrap => f.write_str("wrap"),
            Self::Overflow => f.write_str("overflow"),
        }
    }
}

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Page(page) => write!(f, "{page}"),
            Self::Unaligned(page) => write!(f, "{page}:100"),
            Self::Overflow => f.write_str("overflow"),
        }
    }
}

/// The names of the bits that are set, and the rest as a number.
fn bits(value: i32, names: &[(i32, &str)]) -> String {
    let mut rest = value;
    let mut parts: Vec<String> = Vec::new();
    for &(bit, name) in names {
        if rest & bit == bit {
            rest &= !bit;
            parts.push(name.to_owned());
        }
    }
    if rest != 0 {
        parts.push(format!("{rest:#x}"));
    }
    if parts.is_empty() { "0".to_owned() } else { parts.join("|") }
}

fn prot_text(prot: i32) -> String {
    let mut text = String::new();
    text.push(if prot & libc::PROT_READ != 0 { 'r' } else { '-' });
    text.push(if prot & libc::PROT_WRITE != 0 { 'w' } else { '-' });
    let rest = prot & !(libc::PROT_READ | libc::PROT_WRITE);
    if rest != 0 {
        text.push_str(&format!("|{rest:#x}"));
    }
    text
}

fn map_flags_text(flags: i32) -> String {
    let kind = match flags & libc::MAP_TYPE {
        libc::MAP_SHARED => "shared".to_owned(),
        libc::MAP_PRIVATE => "private".to_owned(),
        libc::MAP_SHARED_VALIDATE => "validate".to_owned(),
        other => format!("type {other}"),
    };
    let names = [
        (libc::MAP_ANONYMOUS, "anon"),
        (libc::MAP_POPULATE, "populate"),
        (libc::MAP_NORESERVE, "noreserve"),
        (libc::MAP_LOCKED, "locked"),
    ];
    match flags & !libc::MAP_TYPE {
        0 => kind,
        rest => format!("{kind}|{}", bits(rest, &names)),
    }
}

/// The advice's name, or its number.
pub fn advice_text(advice: i32) -> String {
    let name = match advice {
        libc::MADV_NORMAL => "normal",
        libc::MADV_RANDOM => "random",
        libc::MADV_SEQUENTIAL => "sequential",
        libc::MADV_WILLNEED => "willneed",
        libc::MADV_DONTNEED => "dontneed",
        libc::MADV_FREE => "free",
        libc::MADV_COLD => "cold",
        libc::MADV_PAGEOUT => "pageout",
        libc::MADV_REMOVE => "remove",
        libc::MADV_POPULATE_READ => "populate-read",
        libc::MADV_POPULATE_WRITE => "populate-write",
        libc::MADV_DONTFORK => "dontfork",
        libc::MADV_DOFORK => "dofork",
        libc::MADV_WIPEONFORK => "wipeonfork",
        libc::MADV_KEEPONFORK => "keeponfork",
        libc::MADV_DONTNEED_LOCKED => "dontneed-locked",
        other => return other.to_string(),
    };
    name.to_owned()
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Map { at, len, prot, place, flags, file, offset, settle } => {
                let (prot, flags) = (prot_text(prot), map_flags_text(flags));
                let place = match place {
                    Place::Anywhere => format!("anywhere (then {settle})"),
                    Place::Hint => format!("hint {at} (else {settle})"),
                    Place::Fixed => format!("fixed {at}"),
                    Place::FixedNoReplace => format!("noreplace {at}"),
                };
                write!(f, "map {place} +{len} {prot} {flags} {file:?}@{offset}")
            }
            Self::Unmap(at, len) => write!(f, "unmap {at} +{len}"),
            Self::Protect(at, len, prot) => write!(f, "protect {at} +{len} {}", prot_text(prot)),
            Self::Remap { at, old, new, flags, to, settle } => {
                let names = [
                    (libc::MREMAP_MAYMOVE, "maymove"),
                    (libc::MREMAP_FIXED, "fixed"),
                    (libc::MREMAP_DONTUNMAP, "dontunmap"),
                ];
                write!(f, "remap {at} +{old} -> +{new} {} to {to} (else {settle})", bits(flags, &names))
            }
            Self::Advise(at, len, advice) => write!(f, "advise {at} +{len} {}", advice_text(advice)),
            Self::Sync(at, len, flags) => {
                let names =
                    [(libc::MS_ASYNC, "async"), (libc::MS_INVALIDATE, "invalidate"), (libc::MS_SYNC, "sync")];
                write!(f, "sync {at} +{len} {}", bits(flags, &names))
            }
            Self::Resident(at, len) => write!(f, "mincore {at} +{len}"),
            Self::Lock(at, len, flags) => write!(f, "lock {at} +{len} {}", bits(flags, &[(1, "onfault")])),
            Self::Unlock(at, len) => write!(f, "unlock {at} +{len}"),
            Self::Truncate(pages) => write!(f, "truncate {pages}"),
            Self::Load(page, byte, len) => write!(f, "load {page}:{byte} +{len}b"),
            Self::Store(page, byte, len, seed) => write!(f, "store {page}:{byte} +{len}b {seed:#04x}"),
        }
    }
}
