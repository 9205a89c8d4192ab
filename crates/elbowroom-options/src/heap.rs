//! What the library that stands before malloc needs of the options.

use std::ffi::OsStr;

use crate::choices::Heap;
use crate::options::pairs;
use crate::table;
use crate::value::Setting;

/// What the library that stands before malloc needs, all in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeapOptions {
    /// The smallest block that is managed as a mapping of its own.
    pub smallest_bytes: u64,
    /// The most bytes of freed blocks of that kind that are kept.
    pub kept_bytes: u64,
    /// The length of the address range for small blocks; 0: small blocks are libc's.
    pub arena_bytes: u64,
}

/// Freed blocks of at most this fraction of the budget (one part in so many) are kept.
const KEPT_SHARE: u64 = 8;

/// The most bytes of freed blocks that are kept, whatever the budget.
const MOST_KEPT: u64 = 64 << 20;

impl HeapOptions {
    /// Reads the text of [`VARIABLE`](crate::VARIABLE) without allocating memory. `None`: no block is
    /// managed, or the text is wrong, which [`Options::parse`](crate::Options::parse) reports.
    pub fn parse(text: &str) -> Option<Self> {
        let (mut memory, mut swap, mut heap, mut heap_min) = (0_u64, 0_u64, Heap::Large, 0_u64);
        heap_min.set(table::HEAP_MIN.kind.read(OsStr::new(table::HEAP_MIN.default?)).ok()?);
        for pair in pairs(text) {
            let (name, value) = pair.ok()?;
            let settings: [(_, &mut dyn Setting); 4] = [
                (&table::MEMORY, &mut memory),
                (&table::SWAP, &mut swap),
                (&table::HEAP, &mut heap),
                (&table::HEAP_MIN, &mut heap_min),
            ];
            if let Some((spec, setting)) = settings.into_iter().find(|(spec, _)| spec.name == name) {
                setting.set(spec.kind.read_escaped(value).ok()?);
            }
        }
        Self::of(memory, swap, heap, heap_min)
    }

    fn of(memory: u64, swap: u64, heap: Heap, smallest_bytes: u64) -> Option<Self> {
        let arena_bytes = match heap {
            Heap::Off => return None,
            _ if swap == 0 => return None,
            Heap::Large => 0,
            Heap::All => arena_bytes(memory, swap),
        };
        Some(Self { smallest_bytes, kept_bytes: (memory / KEPT_SHARE).min(MOST_KEPT), arena_bytes })
    }
}

/// Addresses for all small blocks of a program's heap, in bytes: several times what can be in memory or out,
/// since an allocator has pages that are used in part, and returns others late.
fn arena_bytes(memory: u64, swap: u64) -> u64 {
    const TIMES: u64 = 4;
    const SMALLEST: u64 = 4 << 30;
    const LARGEST: u64 = 1 << 40;
    memory.saturating_add(swap).saturating_mul(TIMES).clamp(SMALLEST, LARGEST).next_multiple_of(1 << 30)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;

    #[test]
    fn what_the_variable_says() {
        let parse = HeapOptions::parse;
        let large = HeapOptions { smallest_bytes: 256 << 10, kept_bytes: 2 << 20, arena_bytes: 0 };
        assert_eq!(parse("memory=16M;swap=64M;stats=/a%3bb"), Some(large));
        assert_eq!(parse("memory=16M;swap=64M;heap=off"), None);
        assert_eq!(parse("memory=16M;swap=0;heap=all"), None);
        assert_eq!(parse("memory=16M"), None);
        assert_eq!(parse("memory=16M;swap=much"), None);
        let all = parse("memory=4G;swap=16G;heap=all;heap-min=1M").unwrap();
        assert_eq!(
            all,
            HeapOptions { smallest_bytes: 1 << 20, kept_bytes: MOST_KEPT, arena_bytes: 80 << 30 }
        );
        let mut options = Options { memory_bytes: 16 << 20, heap: Heap::All, ..Options::default() };
        options.swap.bytes = 64 << 20;
        assert_eq!(parse(&options.encode()), Some(HeapOptions { arena_bytes: 4 << 30, ..large }));
    }

    #[test]
    fn an_arena_has_whole_gib() {
        for (memory, swap) in [(0, 0), (3, u64::MAX), (1 << 33, 12_345)] {
            let bytes = arena_bytes(memory, swap);
            assert!(bytes.is_multiple_of(1 << 30) && (4 << 30..=1 << 40).contains(&bytes));
        }
    }
}
