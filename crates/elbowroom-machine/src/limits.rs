//! How large a window may be where the process has limits.

use crate::PAGE_SIZE;
use rustix::process::{Resource, getrlimit};

/// Windows are multiples of this.
pub(crate) const WINDOW_GRAIN: usize = 2 << 20;

/// The lengths to try for a window of at least `min_len` bytes, the largest first. `room` is what the
/// process's limits leave, in bytes (`None`: no limits). A window takes at most a quarter of `room`, or at
/// most half if `min_len` is more than a quarter: else the program would soon have no addresses for its own
/// mappings.
pub(crate) fn window_sizes(min_len: usize, room: Option<usize>) -> impl Iterator<Item = usize> {
    const SIZES: [usize; 3] = [1 << 40, 64 << 30, 4 << 30];
    let (part, most) = room.map_or((usize::MAX, usize::MAX), |room| (room / 4, room / 2));
    let whole = part & !(WINDOW_GRAIN - 1);
    SIZES
        .into_iter()
        .filter(move |&size| size <= part)
        .chain(room.map(|_| whole).filter(|&size| size < SIZES[2]))
        .filter(move |&size| size > min_len)
        .chain((min_len <= most).then_some(min_len))
}

/// How many bytes of address space, and of writable memory, the process may still have; `None`: no limit.
pub(crate) fn room_by_limits() -> Option<usize> {
    let limits = [Resource::As, Resource::Data].map(|resource| getrlimit(resource).current);
    if limits == [None, None] {
        return None;
    }
    // Pages: all, resident, shared, text, 0, data and stacks.
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let fields: Vec<usize> = text.split_whitespace().map_while(|field| field.parse().ok()).collect();
    let used = [0, 5].map(|field| fields.get(field).copied().unwrap_or(0).saturating_mul(PAGE_SIZE));
    let room = |(limit, used): (Option<u64>, usize)| {
        limit.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX).saturating_sub(used))
    };
    limits.into_iter().zip(used).filter_map(room).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limited_process_keeps_most_of_its_addresses() {
        let sizes = |min_len, room| window_sizes(min_len, room).collect::<Vec<_>>();
        let mib = 1 << 20;
        assert_eq!(sizes(4 * mib, None), [1 << 40, 64 << 30, 4 << 30, 4 * mib]);
        assert_eq!(sizes(4 * mib, Some(20 << 30)), [4 << 30, 4 * mib]);
        assert_eq!(sizes(4 * mib, Some(999 * mib)), [248 * mib, 4 * mib]);
        assert_eq!(sizes(300 * mib, Some(999 * mib)), [300 * mib]);
        assert_eq!(sizes(600 * mib, Some(999 * mib)), []);
        assert_eq!(sizes(4 * mib, Some(0)), []);
    }
}
