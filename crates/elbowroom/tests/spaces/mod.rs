//! Tests of soft spaces, by what they are about.

mod accesses;
mod bounds;
mod fork;
mod fork_races;
mod lifetime;
mod notify;
mod pins;
mod places;
mod races;
mod regressions;

use crate::support::Sound;
use elbowroom::{Errno, Soft, Space};
use elbowroom_sync::time::{Duration, Instant};

/// Where `addr` of `space` is in `other`.
fn there(addr: usize, space: &Space<Soft>, other: &Space<Soft>) -> usize {
    addr - space.base() + other.base()
}

/// A child, dropped while all is well. A thread that lost the processor within a store has its page pinned,
/// perhaps for longer than fork waits.
fn fork(space: &Space<Soft>) -> Sound<Space<Soft>> {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        match space.fork() {
            Ok(child) => return Sound::new(child),
            Err(Errno::AGAIN) if Instant::now() < until => {}
            Err(error) => panic!("{error}"),
        }
    }
}
