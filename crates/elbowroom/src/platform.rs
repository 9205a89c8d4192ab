//! The two platforms: real pointers and soft spaces.

use crate::config::{Config, MoverKind};
use crate::error::StartError;
use elbowroom_machine::soft::{SoftConfig, SoftMmu};
use elbowroom_machine::{Batches, HostConfig, HostMmu, Mmu, Mover, Served};
use elbowroom_sync::LockStats;

/// What a manager runs on. Chosen by type, so that one program can have both.
pub trait Platform: Sized + Send + Sync + 'static {
    /// The MMU.
    type Mmu: Mmu;

    /// Sets the MMU up, with an arena of `frames` frames.
    ///
    /// # Errors
    /// What is missing here.
    fn mmu(config: &Config, frames: usize, locks: &LockStats) -> Result<Self::Mmu, StartError>;

    /// The descriptor that a handler watches for fault events; `None`: it has none to watch.
    fn watch(mmu: &Self::Mmu, handler: usize) -> Option<i32>;

    /// Adds the faults that have been announced on the descriptor to `out`.
    fn take_faults(mmu: &Self::Mmu, out: &mut Vec<elbowroom_machine::FaultEvent>);

    /// How pages are mapped, for reports.
    fn name(mmu: &Self::Mmu) -> &'static str;

    /// Which faults are served.
    fn served(mmu: &Self::Mmu) -> Served;
}

/// Real pointers, by userfaultfd.
pub struct Host;

/// Page tables of our own; memory is reached through calls.
pub struct Soft;

impl Platform for Host {
    type Mmu = HostMmu;

    fn mmu(config: &Config, frames: usize, locks: &LockStats) -> Result<HostMmu, StartError> {
        let mover = match config.userfaultfd.mover {
            MoverKind::Auto => None,
            MoverKind::Move => Some(Mover::Move),
            MoverKind::Copy => Some(Mover::Copy),
        };
        let changes_wait = config.hooks.changes_wait.clone().filter(|_| config.ablation.given_way);
        let tuning = &config.ablation.tuning;
        let batches = Batches {
            copy_max_pages: tuning.copy_max_pages,
            empty_batch: tuning.empty_batch,
            fill_at_once: tuning.fill_at_once,
        };
        let (transfers, served) = (config.hooks.transfers.clone(), config.userfaultfd.served);
        let config = HostConfig { arena_frames: frames, changes_wait, transfers, mover, served, batches };
        Ok(HostMmu::new(config, locks)?)
    }

    fn watch(mmu: &HostMmu, handler: usize) -> Option<i32> {
        // One handler is woken by events, and shares them out: if all watched, each fault would wake all.
        (handler == 0).then(|| mmu.event_fd())
    }

    fn take_faults(mmu: &HostMmu, out: &mut Vec<elbowroom_machine::FaultEvent>) {
        // What could not be read now is announced again.
        let _ = mmu.take_faults(out);
    }

    fn name(mmu: &HostMmu) -> &'static str {
        match mmu.ways().0 {
            Mover::Move => "move",
            Mover::Copy => "copy",
        }
    }

    fn served(mmu: &HostMmu) -> Served {
        mmu.ways().1
    }
}

impl Platform for Soft {
    type Mmu = SoftMmu;

    fn mmu(_config: &Config, frames: usize, locks: &LockStats) -> Result<SoftMmu, StartError> {
        Ok(SoftMmu::new(SoftConfig::new(frames), locks)?)
    }

    fn watch(_mmu: &SoftMmu, _handler: usize) -> Option<i32> {
        None
    }

    fn take_faults(_mmu: &SoftMmu, _out: &mut Vec<elbowroom_machine::FaultEvent>) {}

    fn name(_mmu: &SoftMmu) -> &'static str {
        "soft"
    }

    /// Its memory is reached through calls of the library only.
    fn served(_mmu: &SoftMmu) -> Served {
        Served::All
    }
}
