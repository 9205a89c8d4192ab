//! An MMU for a test, and frames of its arena.

use elbowroom_machine::{Ask, Batches, Extent, HostConfig, HostMmu, Mover, SetupError};
use elbowroom_sync::LockStats;

/// Says that a test, or the rest of it, cannot be made here: past the harness, which keeps what passing tests
/// print to itself.
pub fn skipped(reason: impl std::fmt::Display) {
    // If nobody can be told, there is nobody to tell.
    let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("SKIPPED: {reason}\n"));
}

/// `None`: this machine has no such thing, and the test has said so.
pub fn mmu(mover: Mover) -> Option<HostMmu> {
    mmu_with(mover, None, None)
}

pub fn mmu_with(mover: Mover, changes_wait: Option<Ask>, transfers: Option<Ask>) -> Option<HostMmu> {
    let batches = Batches::default();
    let config =
        HostConfig { arena_frames: 1500, changes_wait, transfers, mover: Some(mover), served: None, batches };
    match HostMmu::new(config, &LockStats::new()) {
        Ok(mmu) => Some(mmu),
        Err(e @ (SetupError::Userfaultfd(_) | SetupError::NoMove)) => {
            skipped(format_args!("{mover:?}: {e}"));
            None
        }
        Err(e) => panic!("{e}"),
    }
}

/// A run of frames of an arena that grows when it must.
pub fn frames(mmu: &HostMmu, order: u8) -> Option<Extent> {
    loop {
        if let Some(extent) = mmu.alloc(order) {
            return Some(extent);
        }
        if !mmu.grow().unwrap() {
            return None;
        }
    }
}
