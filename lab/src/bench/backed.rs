//! Free memory that a hypervisor has backed.
//!
//! Where the host takes free memory back (free page reporting of a balloon), the next owner of a huge page
//! waits while the host finds memory for it: 2 to 4 ms where it would be 0.2. The kernel's small pages mostly
//! come from what was just freed, and do not wait. So a program that uses huge pages is slower for as long as
//! it touches new ones, and how much slower depends on what ran before it.

use anyhow::Result;

use super::area::Ground;
use super::terms::{Pages, Terms};
use crate::PAGE_BYTES;
use crate::engine::{Engine, Kind};
use crate::interrupt::Interrupt;
use crate::procfs::available_bytes;
use crate::size::Size;

/// Between two looks whether to stop: 16 MiB.
const PART: usize = 16 << 20;

/// Touches so many bytes of new memory, but at most half of what is available, in huge pages where the kernel
/// has them, and frees them: who allocates next finds them backed.
///
/// # Errors
/// A signal comes, or the kernel maps no memory.
pub fn have_backed(bytes: u64, interrupt: &Interrupt) -> Result<()> {
    let len = touched(bytes, available_bytes()?);
    if len == 0 {
        return Ok(());
    }
    let mut terms = Terms::of(Size::from_bytes(len as u64));
    terms.pages = Pages::AsNamed;
    let with = |kind| Ground::on(Engine::whole(kind), &terms);
    let (huge, small) = (with(Kind::KernelHuge)?, with(Kind::Plain)?);
    let area = match huge.map(len) {
        Ok(area) => area,
        Err(_) => small.map(len)?,
    };
    let hand = huge.hand();
    for start in (0..len).step_by(PART) {
        interrupt.check()?;
        for offset in (start..start + PART).step_by(PAGE_BYTES as usize) {
            area.store(&hand, offset, 1)?;
        }
    }
    Ok(())
}

/// How many bytes to touch: whole parts.
fn touched(bytes: u64, available: u64) -> usize {
    bytes.min(available / 2) as usize / PART * PART
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_what_is_available_is_left_alone() {
        assert_eq!(touched(4 << 30, 2 << 30), 1 << 30);
        assert_eq!(touched(100 << 20, 2 << 30), 96 << 20);
        assert_eq!(touched(4 << 30, 31 << 20), 0);
        have_backed(64 << 20, &Interrupt::install().unwrap()).unwrap();
    }
}
