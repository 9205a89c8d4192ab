//! The library that `elbowroom run --swap` preloads beside the other one: it stands before the functions of
//! libc that allocate memory.
//!
//! libc maps memory by calls inside itself, which cannot be interposed. So with `--heap large`, blocks of
//! at least a size (`--heap-min`) are mapped here ([`large`]), by a call of mmap, which the other library
//! interposes: they are managed as any private memory that the program maps. With `--heap all` the other
//! blocks are mimalloc's, in one such mapping ([`small`]). All other blocks are those of the allocator that
//! comes next ([`next`]): libc's, or one that the program was linked with. With such an allocator, all
//! blocks are left to it. Blocks for the other library's threads and for the loader are never managed
//! ([`apart`]).
//!
//! The allocator of a block is known by the block's address: a small block is in mimalloc's range; a large
//! block begins at a page, and is in the table ([`table::Table`]). Freed large blocks are kept for a while
//! ([`cache::Cache`]), as in libc: a program that allocates and frees a large block again and again must
//! not pay for a mapping and its faults each time. Blocks whose mapping the program has changed are not
//! kept ([`changes`]).
//!
//! The library has no locks, so a forked child finds its state complete: table and cache are arrays of
//! words.

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
