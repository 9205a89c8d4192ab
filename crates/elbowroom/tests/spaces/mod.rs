//! Tests of soft spaces, by what they are about.

mod accesses;
mod bounds;
mod fork;
mod fork_races;
mod lifetime;
mod notify;
mod pins;
mod races;
mod regressions;

use elbowroom::{Soft, Space};

/// Where `addr` of `space` is in `other`.
fn there(addr: usize, space: &Space<Soft>, other: &Space<Soft>) -> usize {
    addr - space.base() + other.base()
}
