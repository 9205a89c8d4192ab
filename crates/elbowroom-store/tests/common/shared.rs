//! For unit tests and test programs alike.

/// Says that a test, or the rest of it, cannot be made here: past the harness, which keeps what passing tests
/// print to itself.
pub fn skipped(reason: impl std::fmt::Display) {
    // If nobody can be told, there is nobody to tell.
    let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("SKIPPED: {reason}\n"));
}

/// For tests that make children, or ask what other processes have open: a child has all our descriptors for a
/// moment.
pub fn one_at_a_time() -> std::sync::MutexGuard<'static, ()> {
    static LOCK: std::sync::Mutex<()> = std::sync::Mutex::new(());
    LOCK.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
