//! Groups.

use crate::border::{call, fill, put, sized};
use crate::manager::er_manager;
use crate::table::{Call, with_manager};
use elbowroom::Limits;
use elbowroom_house::budget::Budget;
use elbowroom_house::caller::Thread;
use elbowroom_house::failure::Failure;
use std::ffi::c_int;

/// A memory group: a part of the budget for some mappings.
pub struct er_group {
    _opaque: [u8; 0],
}

/// In er_limits: no limit.
#[allow(dead_code, reason = "for programs")]
pub const ER_NO_LIMIT: u64 = u64::MAX;

/// What the mappings of a group, and of the groups below it, may have together. All but swappiness in bytes.
/// Initialize it with er_limits_init.
#[repr(C)]
pub struct er_limits {
    /// Bytes of this struct; er_limits_init sets it.
    pub size: usize,
    /// They never have more in memory than this; at least 1 MiB. ER_NO_LIMIT by default.
    pub max: u64,
    /// Threads that make the group have more are slowed down, and reclaim. ER_NO_LIMIT by default.
    pub high: u64,
    /// So much is not taken from it while other groups have unprotected memory. 0 by default.
    pub low: u64,
    /// So much is not taken from it, unless an access would fail else. 0 by default.
    pub min: u64,
    /// They never have more in swap than this. ER_NO_LIMIT by default.
    pub swap_max: u64,
    /// They never have more in memory and swap together. ER_NO_LIMIT by default.
    pub memory_swap_max: u64,
    /// So much may differ from the files; threads that store more are slowed down. ER_NO_LIMIT by default.
    pub dirty: u64,
    /// How readily anonymous memory goes, beside files: 0 to 200; 60 by default.
    pub swappiness: u64,
}

/// Figures of a group, with the groups below it.
#[repr(C)]
pub struct er_group_stats {
    /// The number of the group.
    pub number: u64,
    /// Bytes in memory now.
    pub usage_bytes: u64,
    /// The most bytes in memory at a time.
    pub peak_bytes: u64,
    /// Bytes in swap now.
    pub swap_bytes: u64,
    /// The most bytes in swap at a time.
    pub swap_peak_bytes: u64,
    /// Bytes of anonymous memory that are mapped.
    pub anonymous_bytes: u64,
    /// Page faults.
    pub faults: u64,
    /// Of these, faults that waited for a read.
    pub major_faults: u64,
    /// Allocations that `max` did not permit at once.
    pub max_events: u64,
    /// Accesses that found the group over its `high`.
    pub high_events: u64,
    /// Accesses that failed, since the group stayed at its limits.
    pub failed_events: u64,
}

impl er_limits {
    fn of(limits: Limits) -> Self {
        let Limits { max, high, low, min, swap_max, memory_swap_max, dirty, swappiness } = limits;
        let size = size_of::<Self>();
        Self { size, max, high, low, min, swap_max, memory_swap_max, dirty, swappiness }
    }

    /// # Safety
    /// `at` is NULL, or a struct as described.
    unsafe fn read(at: *const Self) -> Result<Limits, Failure> {
        let defaults = Self::of(Limits::default());
        let least = std::mem::offset_of!(Self, swappiness) + size_of::<u64>();
        // SAFETY: the caller's promise.
        let read = unsafe { sized(at, defaults, least, "er_limits")? };
        let Self { max, high, low, min, swap_max, memory_swap_max, dirty, swappiness, .. } = read;
        Ok(Limits { max, high, low, min, swap_max, memory_swap_max, dirty, swappiness })
    }
}

/// Sets all limits to their defaults. `size`: sizeof(er_limits).
///
/// # Safety
/// `limits` has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn er_limits_init(limits: *mut er_limits, size: usize) {
    let mut value = er_limits::of(Limits::default());
    value.size = size;
    // SAFETY: the caller's promise. Too small a size is found by the calls that take limits.
    let _ = unsafe { fill(limits, size, &value, "er_limits") };
}

/// Makes a group.
///
/// `parent`: the group that it is a part of; NULL: the manager's budget. `limits`: NULL for none. `group`:
/// where the handle goes.
///
/// Errors: EINVAL: a limit. ENOSPC: there are 1,023 groups.
///
/// # Safety
/// The pointers are NULL, or as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn er_group_create(
    manager: *mut er_manager,
    parent: *mut er_group,
    limits: *const er_limits,
    group: *mut *mut er_group,
) -> c_int {
    with_manager(manager as usize, |call| {
        // SAFETY: the caller's promise.
        let limits = unsafe {
            put(group, std::ptr::null_mut(), "group")?;
            er_limits::read(limits)?
        };
        let parent = if parent.is_null() { None } else { Some(Call::of_group(parent as usize)?) };
        let parent = parent.map(|(_, parent)| parent);
        let handle = call.enter_group(Budget::create(Thread, call.house, limits, parent)?);
        // SAFETY: as above.
        unsafe { put(group, handle as *mut er_group, "group") }
    })
}

/// Gives up the handle of a group. The group itself goes with its last mapping and its last inner group.
///
/// Errors: EINVAL: this is no group.
#[unsafe(no_mangle)]
pub extern "C" fn er_group_remove(group: *mut er_group) -> c_int {
    call(|| {
        let (call, found) = Call::of_group(group as usize)?;
        drop((call.take_group(group as usize), found));
        Ok(())
    })
}

/// The limits of a group. `size`: sizeof(er_limits).
///
/// Errors: EINVAL.
///
/// # Safety
/// `limits` has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn er_group_get_limits(
    group: *mut er_group,
    limits: *mut er_limits,
    size: usize,
) -> c_int {
    call(|| {
        let (_call, group) = Call::of_group(group as usize)?;
        let mut value = er_limits::of(group.limits());
        value.size = size;
        // SAFETY: the caller's promise.
        unsafe { fill(limits, size, &value, "limits") }
    })
}

/// Changes the limits of a group. If it has more in memory, that is reclaimed before this returns.
///
/// Errors: EINVAL: a limit, or less than its anonymous memory has. EBUSY: the limits are set, but not enough
/// could be reclaimed within 2 seconds.
///
/// # Safety
/// `limits` is NULL (no limits), or as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn er_group_set_limits(group: *mut er_group, limits: *const er_limits) -> c_int {
    call(|| {
        let (call, group) = Call::of_group(group as usize)?;
        // SAFETY: the caller's promise.
        let limits = unsafe { er_limits::read(limits)? };
        group.set_limits(Thread, call.house, limits)
    })
}

/// The figures of a group. `size`: sizeof(er_group_stats).
///
/// Errors: EINVAL.
///
/// # Safety
/// `stats` has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn er_group_get_stats(
    group: *mut er_group,
    stats: *mut er_group_stats,
    size: usize,
) -> c_int {
    call(|| {
        let (call, group) = Call::of_group(group as usize)?;
        let seen = group.stats(Thread, call.house)?;
        let value = er_group_stats {
            number: group.id().number() as u64,
            usage_bytes: seen.usage_bytes,
            peak_bytes: seen.peak_bytes,
            swap_bytes: seen.swap.bytes,
            swap_peak_bytes: seen.swap.peak_bytes,
            anonymous_bytes: group.promised(),
            faults: seen.pgfault,
            major_faults: seen.pgmajfault,
            max_events: seen.max,
            high_events: seen.high,
            failed_events: seen.failed,
        };
        // SAFETY: the caller's promise.
        unsafe { fill(stats, size, &value, "stats") }
    })
}
