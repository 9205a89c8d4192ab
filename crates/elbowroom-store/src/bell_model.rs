//! [`crate::bell`] under shuttle: a mutex and a condition variable, since no thread may wait in the kernel
//! there.

use elbowroom_machine::Errno;
use elbowroom_sync::time::Duration;
use elbowroom_sync::{Arc, Condvar, LockClass, LockStats, Mutex};

/// Only for the signature of `wait_timeout`: under shuttle such a wait has no time limit.
const FOREVER: Duration = Duration::MAX;

/// What ends a wait.
pub(crate) struct Bell {
    kicked: Mutex<bool>,
    rung: Condvar,
}

impl std::fmt::Debug for Bell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Bell")
    }
}

impl Bell {
    pub(crate) fn new() -> Result<Arc<Self>, Errno> {
        let kicked = LockStats::new().mutex(LockClass::Io, false);
        Ok(Arc::new(Self { kicked, rung: Condvar::new() }))
    }

    pub(crate) fn kick(&self) {
        *self.kicked.lock() = true;
        self.rung.notify_all();
    }

    pub(crate) fn take_kick(&self) -> bool {
        std::mem::take(&mut *self.kicked.lock())
    }

    pub(crate) fn wait(&self) {
        let mut kicked = self.kicked.lock();
        while !*kicked {
            self.rung.wait_timeout(&mut kicked, FOREVER);
        }
    }
}
