//! The addresses of all mappings, for a handler of a signal: it asks without locks.
//!
//! Synchronization: writers hold the lock of the module above. A reader that accesses a mapping, and so keeps
//! it, finds it. It may also find an address that is in no mapping any more: the lock's owner has the last
//! word.

use std::ops::Range;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// Mappings in a block of the table.
const IN_BLOCK: usize = 1024;
/// The most blocks: a million mappings.
const BLOCKS: usize = 1024;

struct Span {
    start: AtomicUsize,
    end: AtomicUsize,
}

type Block = [Span; IN_BLOCK];

static TABLE: [AtomicPtr<Block>; BLOCKS] = [const { AtomicPtr::new(std::ptr::null_mut()) }; BLOCKS];
/// Places of the table that have been used.
static USED: AtomicUsize = AtomicUsize::new(0);

fn span(place: usize) -> Option<&'static Span> {
    // SAFETY: blocks are leaked before their addresses are stored.
    let block = unsafe { TABLE.get(place / IN_BLOCK)?.load(Ordering::Acquire).as_ref() };
    block.map(|block| &block[place % IN_BLOCK])
}

/// Enters a range into a place: a new one if it is `None`. Returns the place; `None`: the table is full.
pub fn enter(range: &Range<usize>, place: Option<usize>) -> Option<usize> {
    let place = place.unwrap_or_else(|| USED.load(Ordering::Relaxed));
    let block = TABLE.get(place / IN_BLOCK)?;
    if block.load(Ordering::Relaxed).is_null() {
        let new: Block = [const { Span { start: AtomicUsize::new(0), end: AtomicUsize::new(0) } }; IN_BLOCK];
        block.store(Box::leak(Box::new(new)), Ordering::Release);
    }
    let span = span(place)?;
    span.start.store(range.start, Ordering::Relaxed);
    span.end.store(range.end, Ordering::Release);
    USED.fetch_max(place + 1, Ordering::Release);
    Some(place)
}

/// Makes a place empty.
pub fn clear(place: usize) {
    if let Some(span) = span(place) {
        span.end.store(0, Ordering::Release);
    }
}

/// Whether an address is in a mapping.
pub fn cover(address: usize) -> bool {
    (0..USED.load(Ordering::Acquire)).filter_map(span).any(|span| {
        address < span.end.load(Ordering::Acquire) && span.start.load(Ordering::Relaxed) <= address
    })
}
