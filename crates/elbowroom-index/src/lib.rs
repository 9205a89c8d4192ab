//! Index structures over `u64` keys whose readers never lock, never wait and never retry.
//!
//! * [`RangeMap`]: ranges of keys to values, for a space's mappings. Linux: the maple tree.
//! * [`xarray`]: keys to shared values with marks, for a page cache. Linux: the xarray.
//!
//! Both are built on [`elbowroom_sync::epoch`] alone, without unsafe code: readers follow cells under a
//! guard, one writer at a time replaces the contents of cells, and replaced values are dropped after a
//! grace period.
#![forbid(unsafe_code)]

pub mod range_map;
pub mod xarray;

pub use range_map::RangeMap;
pub use xarray::XArray;

// The oracle tests run twice: from `tests/` with the nodes' real sizes, and as a part of this crate with
// small nodes.
#[cfg(test)]
extern crate self as elbowroom_index;
