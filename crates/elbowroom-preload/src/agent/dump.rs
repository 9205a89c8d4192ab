//! The service thread's side of a core dump: how much memory may be taken for it, and what the user is
//! told.

use crate::base::report::Bytes;
use elbowroom::{Dumpable, Host, Space};
use elbowroom_machine::probe;
use std::time::{Duration, Instant};

/// The most time in which memory is brought in for a dump.
const PATIENCE: Duration = Duration::from_secs(30);

/// Gives managed memory to the kernel so that a core dump has it, within `most_bytes` and the memory that
/// is free. Gives a text that says how much the dump will lack, or an empty one.
pub fn prepare(space: &Space<Host>, most_bytes: u64, address: Option<usize>) -> String {
    let most = most_bytes.min(there_is());
    let Dumpable { missing_bytes, .. } = space.make_dumpable(most, Instant::now() + PATIENCE, address);
    if missing_bytes == 0 {
        return String::new();
    }
    let missing = Bytes(missing_bytes);
    format!("{missing} of managed memory are out and not in the core dump (--core, ulimit -c, free memory)")
}

/// Three quarters of the memory that is free for this process, in bytes.
fn there_is() -> u64 {
    let available = probe::memory().available_bytes.unwrap_or(0);
    let group = probe::Groups::read().and_then(|groups| probe::memory_cgroup(&groups));
    let in_group = group.and_then(|group| Some(group.limit_bytes?.saturating_sub(group.used_bytes?)));
    available.min(in_group.unwrap_or(u64::MAX)) / 4 * 3
}
