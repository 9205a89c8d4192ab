//! What the lock of the LRU lists is taken for.
//!
//! Call sites name their use, and statistics are kept by it, so that they do not depend on lines of the
//! source: one function takes the lock for several uses, and one use has several call sites.

use super::LockStats;
use crate::lock::{LockClass, Mutex, MutexGuard};
use std::panic::Location;

/// What the lock of the LRU lists is taken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LruUse {
    /// Pages were written to be freed: their cost is noted. Linux: `lru_note_cost` in
    /// `shrink_inactive_list`.
    ShrinkCost,
    /// Evicted pages came back early: their cost is noted. Linux: `lru_note_cost_refault`.
    RefaultCost,
    /// Pages that reclaim looked at were in use: their cost is noted. Linux: `lru_note_cost` in
    /// `shrink_active_list`.
    RotationCost,
    /// A scan begins: the costs are copied. Linux: `prepare_scan_control`.
    ScanStart,
    /// The oldest active folios become inactive. Linux: `shrink_active_list`.
    Deactivate,
    /// A batch of folios is listed, that are new, have come in, or were looked at by reclaim. Linux:
    /// `folio_batch_move_lru`, `move_folios_to_lru`.
    Add,
    /// Reclaim takes folios to look at. Linux: `isolate_lru_folios`.
    Isolate,
    /// A dead folio leaves its list. Linux: `__page_cache_release`.
    Remove,
    /// All folios leave their lists, since the manager ends.
    End,
}

impl LruUse {
    /// All uses, in the order of their numbers.
    pub const ALL: [Self; 9] = [
        Self::ShrinkCost,
        Self::RefaultCost,
        Self::RotationCost,
        Self::ScanStart,
        Self::Deactivate,
        Self::Add,
        Self::Isolate,
        Self::Remove,
        Self::End,
    ];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::ShrinkCost => "shrink-cost",
            Self::RefaultCost => "refault-cost",
            Self::RotationCost => "rotation-cost",
            Self::ScanStart => "scan-start",
            Self::Deactivate => "deactivate",
            Self::Add => "add",
            Self::Isolate => "isolate",
            Self::Remove => "remove",
            Self::End => "end",
        }
    }
}

/// The lock of LRU lists, which is taken for a use only.
pub struct LruMutex<T>(Mutex<T>);

impl LockStats {
    /// A lock of the class [`LockClass::Lru`] around `value`, counted in these statistics.
    pub fn lru_mutex<T>(&self, value: T) -> LruMutex<T> {
        LruMutex(self.mutex(LockClass::Lru, value))
    }
}

impl<T> LruMutex<T> {
    /// Takes the lock for a use, waiting for it if need be.
    ///
    /// # Panics
    /// In debug builds, if this thread holds a lock of the same or a later class.
    #[inline]
    #[track_caller]
    pub fn lock(&self, lru_use: LruUse) -> MutexGuard<'_, T> {
        self.0.lock_for(Some(lru_use), Location::caller())
    }
}
