//! Signals that ask the lab to stop raise a flag; everything that waits looks at it, and guards tidy up.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use signal_hook::SigId;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// The error that everything under way fails with once a signal has come.
#[derive(Debug)]
pub struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted by a signal")
    }
}

impl Error for Interrupted {}

/// Catches SIGINT, SIGTERM and SIGHUP for as long as it lives.
#[derive(Debug)]
pub struct Interrupt {
    flag: Arc<AtomicBool>,
    handlers: Vec<SigId>,
}

impl Interrupt {
    /// Starts to catch the signals.
    pub fn install() -> Result<Self> {
        let mut this = Self { flag: Arc::default(), handlers: Vec::new() };
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            let handler = signal_hook::flag::register(signal, Arc::clone(&this.flag));
            this.handlers.push(handler.context("cannot install a signal handler")?);
        }
        Ok(this)
    }

    /// Fails once a signal has come.
    pub fn check(&self) -> Result<()> {
        if self.flag.load(Ordering::Relaxed) {
            return Err(Interrupted.into());
        }
        Ok(())
    }

    /// Sleeps until `until`, or fails early when a signal comes.
    pub fn sleep_until(&self, until: Instant) -> Result<()> {
        loop {
            self.check()?;
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(Duration::from_millis(50)));
        }
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        for handler in self.handlers.drain(..) {
            signal_hook::low_level::unregister(handler);
        }
    }
}
