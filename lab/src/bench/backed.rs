//! Free memory that a hypervisor has backed.
//!
//! Where the host takes free memory back (free page reporting of a balloon), the next owner of a huge page
//! waits while the host finds memory for it: 2 to 4 ms where it would be 0.2. The kernel's small pages mostly
//! come from what was just freed, and do not wait. So the first second of a program is slower with huge pages
//! than it is anywhere else.

use anyhow::Result;

use super::area::Ground;
use super::terms::{Pages, Terms};
use crate::PAGE_BYTES;
use crate::engine::{Engine, Kind};
use crate::interrupt::Interrupt;
use crate::size::Size;

/// Between two looks whether to stop: 16 MiB.
const PART: usize = 16 << 20;

/// Touches so many bytes of new memory, in huge pages where the kernel has them, and frees them: who
/// allocates next finds them backed.
///
/// # Errors
/// A signal comes, or there is not as much memory.
pub fn have_backed(bytes: u64, interrupt: &Interrupt) -> Result<()> {
    let len = (bytes as usize).next_multiple_of(PART);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_touched_is_free_again() {
        let interrupt = Interrupt::install().unwrap();
        have_backed(1, &interrupt).unwrap();
        assert!(have_backed(1 << 50, &interrupt).is_err(), "no machine has that much");
    }
}
