//! Mapping and unmapping 64 KiB that nobody touches.

use std::hint::black_box;
use std::time::Duration;

use anyhow::{Context, Result};

use super::super::area::Ground;
use super::super::{ns_per_operation, timed};
use crate::engine::{Engine, Kind};
use crate::interrupt::Interrupt;
use crate::size::Size;

const LEN_BYTES: usize = 64 << 10;
/// Nothing is touched, so the budget does not matter.
const MEMORY: Size = Size::from_bytes(64 << 20);
const BATCH: u64 = 256;

/// Somewhere to map.
pub struct Mapping(Ground);

impl Mapping {
    /// A manager and a space of its own; nothing for the kernel.
    ///
    /// # Errors
    /// What is missing here.
    pub fn new(kind: Kind) -> Result<Self> {
        let engine = Engine::whole(kind);
        Ground::new(engine, MEMORY).map(Self).with_context(|| format!("no {engine} space"))
    }

    /// Nanoseconds for both together.
    ///
    /// # Errors
    /// What mapping or unmapping says.
    pub fn map_unmap(&self, time: Duration, interrupt: &Interrupt) -> Result<f64> {
        ns_per_operation(time, interrupt, || {
            timed(|| {
                for _ in 0..BATCH {
                    black_box(self.0.map(LEN_BYTES)?).unmap()?;
                }
                Ok(BATCH)
            })
        })
    }
}
