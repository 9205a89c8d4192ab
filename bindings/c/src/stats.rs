//! Figures of the whole process.

use crate::border::{fill, invalid, put};
use crate::manager::er_manager;
use crate::table::with_manager;
use elbowroom_house::caller::Thread;
use elbowroom_house::failure::{Failure, Kind};
use std::ffi::{c_char, c_int};

/// Figures of the manager. er_stats_json has all that there are.
#[repr(C)]
pub struct er_stats {
    /// The budget, in bytes.
    pub budget_bytes: u64,
    /// Of it, what is in use now, in bytes.
    pub resident_bytes: u64,
    /// The most that was in use at a time, in bytes.
    pub peak_bytes: u64,
    /// Page faults.
    pub faults: u64,
    /// Of these, faults that waited for a read.
    pub major_faults: u64,
    /// The 99th percentile of the times of faults, in nanoseconds.
    pub fault_p99_ns: u64,
    /// Bytes read from files, without the swap file.
    pub read_bytes: u64,
    /// Bytes written to files, without the swap file.
    pub written_bytes: u64,
    /// Reads and writes that failed.
    pub io_errors: u64,
    /// Pages taken from memory.
    pub evicted_pages: u64,
    /// Of these, pages that were wanted again.
    pub refault_pages: u64,
    /// Bytes of anonymous memory that are in swap now.
    pub swap_used_bytes: u64,
    /// Pages of anonymous memory that went to swap.
    pub swap_out_pages: u64,
    /// Pages of anonymous memory that came back.
    pub swap_in_pages: u64,
    /// Files that went to the kernel.
    pub handed_back_files: u64,
}

/// The figures. `size`: sizeof(er_stats).
///
/// Errors: EINVAL.
///
/// # Safety
/// `stats` has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn er_get_stats(manager: *mut er_manager, stats: *mut er_stats, size: usize) -> c_int {
    with_manager(manager as usize, |call| {
        let seen = call.house.ask(Thread, |house| house.manager.stats())?;
        let value = er_stats {
            budget_bytes: seen.budget_bytes,
            resident_bytes: seen.resident_bytes,
            peak_bytes: seen.peak_bytes,
            faults: seen.pgfault,
            major_faults: seen.pgmajfault,
            fault_p99_ns: seen.fault_p99_ns,
            read_bytes: seen.read_bytes,
            written_bytes: seen.written_bytes,
            io_errors: seen.read_errors + seen.write_errors,
            evicted_pages: seen.evicted_pages,
            refault_pages: seen.brought.refault_pages,
            swap_used_bytes: seen.swap_used_bytes,
            swap_out_pages: seen.pswpout,
            swap_in_pages: seen.pswpin,
            handed_back_files: seen.handed_back_files,
        };
        // SAFETY: the caller's promise.
        unsafe { fill(stats, size, &value, "stats") }
    })
}

/// All figures, as a JSON object: docs/stats.md has the keys.
///
/// `buffer`: where the text goes, with a 0 at its end; may be NULL if `size` is 0. `size`: the room there, in
/// bytes. `needed`: how much room the text needs; may be NULL.
///
/// Errors: ERANGE: there is not enough room, and nothing was stored. The next text may be a little longer.
///
/// # Safety
/// The pointers are NULL, or as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn er_stats_json(
    manager: *mut er_manager,
    buffer: *mut c_char,
    size: usize,
    needed: *mut usize,
) -> c_int {
    with_manager(manager as usize, |call| {
        let text = call.house.ask(Thread, |house| serde_json::to_string(&house.manager.stats()))?;
        let text = text.map_err(|error| Failure::new(Kind::System, error.to_string()))?;
        let need = text.len() + 1;
        if !needed.is_null() {
            // SAFETY: the caller's promise.
            unsafe { put(needed, need, "needed")? };
        }
        if need > size {
            let text = format!("the text needs {need} bytes of room, and there are {size}");
            return Err(Failure { errno: libc::ERANGE, ..invalid(text) });
        }
        if buffer.is_null() {
            return Err(invalid("buffer is NULL"));
        }
        // SAFETY: the caller's promise; there is room for all of it.
        unsafe {
            buffer.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), text.len());
            buffer.add(text.len()).write(0);
        }
        Ok(())
    })
}
