//! The library that `elbowroom run --swap` preloads beside the other one: it stands before the functions of
//! libc that allocate memory.
//!
//! libc maps memory by calls inside itself, which nobody can stand before. So with `--heap large` blocks from
//! a size on (`--heap-min`) are mapped here ([`large`]), by the name of mmap, behind which the other library
//! stands: they are managed as any private memory that the program maps. With `--heap all` the other blocks
//! are mimalloc's, in one such mapping ([`small`]). What remains is whichever allocator's that comes next
//! ([`next`]): libc's, or one that the program was linked with, which is left alone. And what the other
//! library's threads and the loader ask for is never managed ([`apart`]).
//!
//! Whose a block is, is known by its address: a small one is in mimalloc's range; a large one begins with a
//! page, and is in the table ([`table::Table`]). Freed large ones are kept for a while ([`cache::Cache`]), as
//! libc keeps them: who allocates and frees the same large block again and again must not pay for a mapping
//! and its faults each time. Not those whose mapping the program has changed ([`changes`]).
//!
//! It has no locks of its own, and so a forked child finds it complete: table and cache are arrays of words.

#![cfg_attr(loom, allow(dead_code))]

mod table;

// Loom's atomics cannot be made in constants; the model is of the table.
#[cfg(not(loom))]
mod apart;
#[cfg(not(loom))]
mod cache;
#[cfg(not(loom))]
mod changes;
#[cfg(not(loom))]
mod large;
#[cfg(not(loom))]
mod live;
#[cfg(not(loom))]
mod next;
#[cfg(not(loom))]
mod shims;
#[cfg(not(loom))]
mod small;
