//! Read-copy-update for one value.

use crate::Arc;
#[cfg(loom)]
use loom::sync as model;
#[cfg(shuttle)]
use shuttle::sync as model;

/// A value that readers load without waiting and a writer replaces as a whole.
///
/// Readers get an `Arc` of the version that is current; an old version is dropped when its last reader drops
/// it, so nothing is freed under a reader. Writers that read, change and store must be serialized by a lock
/// of their own. Linux: `rcu_dereference` and `rcu_assign_pointer`. Built on `arc-swap`.
///
/// Why not [`ArcCell`](crate::epoch::ArcCell): the values here are open files, and a file that is replaced
/// must be closed when the call returns. A value that leaves an `ArcCell` is dropped when some later
/// section ends, where nothing may wait or do I/O. `ArcCell` is for structures of many nodes, whose readers
/// begin one section for the whole walk; an `RcuCell` would cost a store and a barrier for each node.
pub struct RcuCell<T> {
    #[cfg(not(any(loom, shuttle)))]
    inner: arc_swap::ArcSwap<T>,
    #[cfg(any(loom, shuttle))]
    inner: model::Mutex<Arc<T>>,
}

impl<T> RcuCell<T> {
    /// A cell that holds `value`.
    pub fn new(value: T) -> Self {
        #[cfg(not(any(loom, shuttle)))]
        let inner = arc_swap::ArcSwap::from_pointee(value);
        #[cfg(any(loom, shuttle))]
        let inner = model::Mutex::new(Arc::new(value));
        Self { inner }
    }

    /// The current version, kept alive by the returned handle.
    pub fn load(&self) -> Arc<T> {
        #[cfg(not(any(loom, shuttle)))]
        return self.inner.load_full();
        #[cfg(any(loom, shuttle))]
        return self.inner.lock().unwrap().clone();
    }

    /// Runs `f` on the current version without touching its reference count. `f` must not wait.
    pub fn read<R>(&self, f: impl FnOnce(&T) -> R) -> R {
        #[cfg(not(any(loom, shuttle)))]
        return f(&self.inner.load());
        #[cfg(any(loom, shuttle))]
        return f(&self.load());
    }

    /// Publishes `value`. A reader sees the old version or this one, nothing between.
    pub fn store(&self, value: T) {
        #[cfg(not(any(loom, shuttle)))]
        self.inner.store(Arc::new(value));
        #[cfg(any(loom, shuttle))]
        {
            *self.inner.lock().unwrap() = Arc::new(value);
        }
    }
}
