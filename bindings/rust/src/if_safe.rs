//! Whether a file can be mapped without `unsafe`: nobody can change or cut it any more.

use elbowroom_house::files::Opened;
use libc::{c_int, c_ulong};
use std::fmt;
use std::io;
use std::os::fd::RawFd;

/// Why [`MmapOptions::map_if_safe`](crate::MmapOptions::map_if_safe) has mapped nothing.
pub struct MapIfSafeError(Why);

#[derive(Debug)]
enum Why {
    NotSafe(io::Error),
    MapFailed(io::Error),
}

impl MapIfSafeError {
    fn not_safe_since(text: impl Into<String>) -> Self {
        let text = format!("the file is not safe to map: {}", text.into());
        Self(Why::NotSafe(io::Error::new(io::ErrorKind::InvalidInput, text)))
    }

    pub(crate) fn of_mapping(error: io::Error) -> Self {
        Self(Why::MapFailed(error))
    }

    /// Whether this platform has no files that are safe to map. Linux has: `false`.
    pub fn not_supported(&self) -> bool {
        false
    }

    /// Whether the file is one that can still be changed or cut.
    pub fn not_safe(&self) -> bool {
        matches!(self.0, Why::NotSafe(_))
    }

    /// Whether the file is safe to map, and mapping it has failed.
    pub fn map_failed(&self) -> bool {
        matches!(self.0, Why::MapFailed(_))
    }

    fn error(&self) -> &io::Error {
        match &self.0 {
            Why::NotSafe(error) | Why::MapFailed(error) => error,
        }
    }
}

impl fmt::Debug for MapIfSafeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for MapIfSafeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.error(), f)
    }
}

impl std::error::Error for MapIfSafeError {}

impl From<MapIfSafeError> for io::Error {
    fn from(error: MapIfSafeError) -> Self {
        match error.0 {
            Why::NotSafe(error) | Why::MapFailed(error) => error,
        }
    }
}

/// Checks that the bytes of a file can never change: it is a memfd with the seals F_SEAL_WRITE and
/// F_SEAL_SHRINK, or has fs-verity, and has `len` bytes from `offset` on.
pub(crate) fn check(fd: RawFd, offset: u64, len: usize) -> Result<(), MapIfSafeError> {
    // SAFETY: integers only.
    let seals = unsafe { libc::fcntl(fd, libc::F_GET_SEALS) };
    if seals >= 0 {
        check_seals(seals)?;
    } else if !has_verity(fd) {
        return Err(MapIfSafeError::not_safe_since("it is no sealed memfd, and has no fs-verity"));
    }
    let size = Opened::look(fd).map_err(MapIfSafeError::of_mapping)?.len;
    match offset.checked_add(len as u64) {
        Some(end) if end <= size => Ok(()),
        _ => Err(MapIfSafeError::not_safe_since(format!(
            "{len} bytes from {offset} on are more than its {size} bytes"
        ))),
    }
}

fn check_seals(seals: c_int) -> Result<(), MapIfSafeError> {
    let lacks: Vec<&str> = [(libc::F_SEAL_WRITE, "F_SEAL_WRITE"), (libc::F_SEAL_SHRINK, "F_SEAL_SHRINK")]
        .into_iter()
        .filter(|(seal, _)| seals & seal == 0)
        .map(|(_, name)| name)
        .collect();
    if lacks.is_empty() {
        return Ok(());
    }
    Err(MapIfSafeError::not_safe_since(format!("the memfd lacks {}", lacks.join(" and "))))
}

/// Whether the file has fs-verity: then its bytes cannot change. Linux: `FS_IOC_MEASURE_VERITY`.
fn has_verity(fd: RawFd) -> bool {
    const MEASURE: c_ulong = 0xc004_6686;
    // The header of `struct fsverity_digest`: a number of the algorithm, and the room for the digest, none
    // here.
    let mut header = [0_u16; 2];
    // SAFETY: the kernel reads and writes the header, and nothing else, since there is no room.
    let measured = unsafe { libc::ioctl(fd, MEASURE as _, header.as_mut_ptr()) };
    measured == 0 || io::Error::last_os_error().raw_os_error() == Some(libc::EOVERFLOW)
}
