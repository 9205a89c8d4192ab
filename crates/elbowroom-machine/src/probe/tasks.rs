//! Whether the limits on tasks leave room for more threads, as far as that can be told without starting any.

use rustix::process::{Resource, getrlimit};

use super::Groups;
use super::system::{read_number, read_text};

/// Whether there is certainly room for `count` more threads: within RLIMIT_NPROC and the groups of the pids
/// controller, with no limits of addresses, which their stacks take. False if a limit is near, or not
/// known.
pub(super) fn leave_room(count: u64, groups: Option<&Groups>) -> bool {
    let stacks_are_free =
        [Resource::As, Resource::Data].into_iter().all(|of| getrlimit(of).current.is_none());
    // RLIMIT_NPROC counts the tasks of one user, which are at most as many as all tasks.
    let of_user = getrlimit(Resource::Nproc).current;
    let users_have_room = || of_user.is_none_or(|limit| tasks().is_some_and(|tasks| tasks + count <= limit));
    stacks_are_free && users_have_room() && groups.is_some_and(|groups| groups_have_room(count, groups))
}

/// How many tasks the machine has. (In some containers /proc/loadavg counts only the container's own
/// tasks.)
fn tasks() -> Option<u64> {
    tasks_in(&read_text("/proc/loadavg")?)
}

/// The number after the slash in a text such as `0.41 1.41 2.27 1/133 2570`.
fn tasks_in(text: &str) -> Option<u64> {
    text.split(' ').nth(3)?.split_once('/')?.1.parse().ok()
}

/// Whether the group of this process, and each above it that can be seen, has room for so many tasks more.
fn groups_have_room(count: u64, groups: &Groups) -> bool {
    let Some((_, path, top)) = groups.locate("pids") else { return false };
    path.ancestors().take_while(|directory| directory.starts_with(&top)).all(|directory| {
        // The root has no pids.max, and neither has a group without the controller. `max` is no number.
        let Some(limit) = read_number(directory.join("pids.max")) else { return true };
        read_number(directory.join("pids.current")).is_some_and(|used| used + count <= limit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_counted() {
        assert_eq!(tasks_in("0.41 1.41 2.27 1/133 2570\n"), Some(133));
        assert_eq!((tasks_in("0.41 1.41 2.27"), tasks_in("")), (None, None));
        assert!(tasks().unwrap() > 0);
    }

    #[test]
    fn room_ends_somewhere() {
        // No machine has room for that many tasks; only without any limit is there room.
        let unlimited = getrlimit(Resource::Nproc).current.is_none();
        assert!(unlimited || !leave_room(u64::MAX / 2, Groups::read().as_ref()));
    }
}
