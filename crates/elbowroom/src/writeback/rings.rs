//! Rings for writes that are under way at the same time: a thread that writes back takes one, and gives it
//! back.

use crate::config::WRITE_RINGS;
use elbowroom_store::WriteRing;
use elbowroom_sync::{LockClass, LockStats, Mutex};

/// The rings that no thread uses now.
pub(super) struct Rings {
    state: Mutex<State>,
}

struct State {
    free: Vec<WriteRing>,
    /// How many more may be made.
    left: usize,
}

impl Rings {
    /// No ring is made before it is needed; none at all if they are not `wanted`.
    pub(super) fn new(locks: &LockStats, wanted: bool) -> Self {
        let left = if wanted { WRITE_RINGS } else { 0 };
        Self { state: locks.mutex(LockClass::Flush, State { free: Vec::new(), left }) }
    }

    /// A ring; `None`: there is none to be had here, or all are in use.
    pub(super) fn take(&self) -> Option<WriteRing> {
        let mut state = self.state.lock();
        if let Some(ring) = state.free.pop() {
            return Some(ring);
        }
        state.left = state.left.checked_sub(1)?;
        drop(state);
        let ring = WriteRing::new().ok();
        if ring.is_none() {
            // A later try would fail, too.
            self.state.lock().left = 0;
        }
        ring
    }

    pub(super) fn give_back(&self, ring: Option<WriteRing>) {
        if let Some(ring) = ring.filter(|ring| !ring.is_broken()) {
            self.state.lock().free.push(ring);
        }
    }
}
