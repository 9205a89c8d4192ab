//! How deeply idle processors sleep.
//!
//! A fault is handed over twice, from its thread to a handler and back, and each time a processor wakes that
//! has had nothing to do. One that sleeps deeply takes its time: a guest's HLT goes to the hypervisor, whose
//! way back is some 25 us; on bare metal the deep states take 100 us and more to leave. Linux lets a
//! process bound that (Documentation/power/pm_qos_interface.rst, `/dev/cpu_dma_latency`): for as long as
//! the process has the device open. The kernel forgets the bound when the process ends, however it ends.

use std::fs::{File, OpenOptions, read_to_string};
use std::io::Write;

/// The device that takes the bound. By default only root may open it.
const DEVICE: &str = "/dev/cpu_dma_latency";

/// The right to keep idle processors from sleeping deeply, for some of the time.
pub struct ShallowIdle {
    /// The bound, in microseconds.
    bound: i32,
    held: Option<File>,
}

impl ShallowIdle {
    /// The bound is for all processors of the machine. On more processors than this, keeping those awake
    /// that serve no faults would cost more than the others gain.
    pub const MOST_PROCESSORS: usize = 16;

    /// `None`: this machine has too many processors for it. Sets no bound yet.
    pub fn new() -> Option<Self> {
        let online = read_to_string("/sys/devices/system/cpu/online").ok()?;
        let driver = read_to_string("/sys/devices/system/cpu/cpuidle/current_driver").unwrap_or_default();
        (processors(&online)? <= Self::MOST_PROCESSORS)
            .then(|| Self { bound: bound_us(driver.trim()), held: None })
    }

    /// Idle processors are kept from sleeping deeply from now on, until [`release`](Self::release).
    ///
    /// # Errors
    /// The kernel's; EACCES for a user other than root who has no right to the device.
    pub fn hold(&mut self) -> std::io::Result<()> {
        if self.held.is_none() {
            let mut device = OpenOptions::new().write(true).open(DEVICE)?;
            device.write_all(&self.bound.to_ne_bytes())?;
            self.held = Some(device);
        }
        Ok(())
    }

    /// Removes the bound: idle processors may sleep deeply again.
    pub fn release(&mut self) {
        self.held = None;
    }
}

/// The bound for a driver of idle processors. The driver of a guest (haltpoll) knows two states, and only a
/// bound of 0 chooses the one in which the processor does not leave the guest
/// (drivers/cpuidle/governors/haltpoll.c). Elsewhere the first state takes 1 or 2 us to leave, and saves
/// most of what can be saved.
fn bound_us(driver: &str) -> i32 {
    if driver == "haltpoll" { 0 } else { 2 }
}

/// How many processors are in a list such as `0-3,8`. `None`: the text is no such list.
fn processors(list: &str) -> Option<usize> {
    let parts = list.trim().split(',').map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        Some(last.checked_sub(first)? + 1)
    });
    parts.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_counted() {
        assert_eq!(processors("0\n"), Some(1));
        assert_eq!(processors("0-1\n"), Some(2));
        assert_eq!(processors("0-3,8,10-11"), Some(7));
        for wrong in ["", "a", "3-1", "1-"] {
            assert_eq!(processors(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_guest_does_not_halt() {
        assert_eq!((bound_us("haltpoll"), bound_us("intel_idle"), bound_us("")), (0, 2, 2));
    }
}
