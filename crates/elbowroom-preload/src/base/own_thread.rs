//! Which threads are the library's own.

use super::regions::note_own_thread;
use std::cell::Cell;

thread_local! {
    static SERVICE_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread is one of ours.
pub fn is_service_thread() -> bool {
    SERVICE_THREAD.get()
}

/// Marks or unmarks the calling thread as ours, without adding it to the list of our threads: a program's
/// thread is ours while it starts the manager.
pub fn set_service_thread(value: bool) {
    if SERVICE_THREAD.replace(value) != value {
        note_own_thread(value);
    }
}
