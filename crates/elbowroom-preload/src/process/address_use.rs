//! How much of its limits RLIMIT_AS and RLIMIT_DATA the program uses.
//!
//! The kernel counts the whole windows, in which the program's managed mappings lie, and our other memory:
//! the arena, heap, stacks, and the data of the two libraries. So the program's use is the kernel's count,
//! minus all that, plus the sizes of the managed mappings. It is computed only where a limit is finite.
//!
//! Synchronization: atomics.

use crate::agent::map::{Counted, managed_bytes};
use crate::base::reserve;
use crate::base::state;
use crate::base::sys::{self, PAGE};
use libc::{c_int, c_void, size_t};
use std::ffi::CStr;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a window for each byte that describes it. (The fixed part is measured with the first window.)
const WINDOW_PER_TABLE: usize = 1 << 14;
/// Memory of libc's allocator and the loader that is there because of our libraries, and is not measured:
/// the mean of 0 to 600 KiB.
const OTHERS_BYTES: u64 = 352 << 10;
/// How much of /proc/self/status is read: it has the lines that are looked for.
const STATUS_BYTES: usize = 2048;

/// How many bytes of all memory, and of data, are ours beside windows and the reserve.
static OURS: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

fn of(counted: Counted) -> &'static AtomicU64 {
    &OURS[counted as usize]
}

/// The kernel's counts.
#[derive(Clone, Copy)]
pub struct Kernels([Option<u64>; 2]);

impl Kernels {
    /// Asks the kernel.
    pub fn now() -> Self {
        let mut buffer = [0; STATUS_BYTES];
        let status = sys::read_file(b"/proc/self/status\0", &mut buffer).unwrap_or_default();
        Self([b"VmSize:".as_slice(), b"VmData:"].map(|name| line(status, name)))
    }

    /// The count in bytes.
    pub fn of(self, counted: Counted) -> Option<u64> {
        self.0[counted as usize]
    }
}

/// A line of /proc/self/status, in bytes.
fn line(status: &[u8], name: &[u8]) -> Option<u64> {
    let rest = status.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(name))?;
    let text = str::from_utf8(rest).ok()?.trim().strip_suffix("kB")?;
    text.trim_end().parse::<u64>().ok()?.checked_mul(1024)
}

/// The bytes of all windows, with the memory that describes them.
fn windows() -> u64 {
    let with_table = |window: std::ops::Range<usize>| (window.len() + window.len() / WINDOW_PER_TABLE) as u64;
    state::last_manager().map_or(0, |manager| manager.windows().windows().map(with_table).sum())
}

/// The bytes of the library's reserve that have rights, which the kernel counts as data.
fn committed(counted: Counted) -> u64 {
    match counted {
        Counted::All => 0,
        Counted::Data => reserve::committed_bytes(),
    }
}

/// To be called after a manager was started, and has made its first mapping: what the kernel counts more
/// than `before` is ours.
pub fn manager_started(before: Kernels) {
    let now = Kernels::now();
    let data = data_of_libraries();
    for (counted, libraries) in [(Counted::All, 0), (Counted::Data, data)] {
        if let (Some(before), Some(now)) = (before.of(counted), now.of(counted)) {
            let more = now.saturating_sub(before) + libraries;
            let ours = more.saturating_sub(windows() + committed(counted));
            of(counted).store(ours, Ordering::Release);
        }
    }
}

/// How many bytes the program uses; `None`: that cannot be known.
pub fn used(counted: Counted) -> Option<u64> {
    let kernels = Kernels::now().of(counted)?;
    let ours = windows() + committed(counted) + OTHERS_BYTES + of(counted).load(Ordering::Acquire);
    Some(kernels.saturating_sub(ours) + managed_bytes(counted)?)
}

/// The writable bytes of the libraries that `run` preloads.
fn data_of_libraries() -> u64 {
    unsafe extern "C" fn add(info: *mut libc::dl_phdr_info, _: size_t, sum: *mut c_void) -> c_int {
        // SAFETY: the loader gives valid records, whose names are strings.
        let info = unsafe { &*info };
        // SAFETY: as above.
        let name = unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes();
        if name.windows(b"libelbowroom_".len()).any(|part| part == b"libelbowroom_") {
            for at in 0..info.dlpi_phnum as usize {
                // SAFETY: as many headers as the record says.
                let header = unsafe { &*info.dlpi_phdr.add(at) };
                // SAFETY: `data_of_libraries` gives its sum.
                let sum = unsafe { &mut *sum.cast::<u64>() };
                let bytes = header.p_memsz & !(PAGE as u64 - 1);
                match header.p_type {
                    libc::PT_LOAD if header.p_flags & libc::PF_W != 0 => *sum += bytes,
                    libc::PT_GNU_RELRO => *sum = sum.saturating_sub(bytes),
                    _ => {}
                }
            }
        }
        0
    }
    let mut sum = 0_u64;
    // SAFETY: the function takes such a record and a sum.
    unsafe { libc::dl_iterate_phdr(Some(add), (&raw mut sum).cast()) };
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_status_are_read() {
        let status = b"VmPeak:\t    900 kB\nVmSize:\t    812 kB\nVmData:\t 17 kB\n";
        assert_eq!(line(status, b"VmSize:"), Some(812 << 10));
        assert_eq!(line(status, b"VmData:"), Some(17 << 10));
        assert_eq!(line(status, b"VmStk:"), None);
        assert!(Kernels::now().of(Counted::All) > Kernels::now().of(Counted::Data));
    }
}
