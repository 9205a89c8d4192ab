//! One line on standard error that says what is going on.
//!
//! On a terminal it is written over again and again; elsewhere only lines that are worth keeping appear.

use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

const PERIOD: Duration = Duration::from_millis(200);

/// The line.
#[derive(Debug)]
pub struct Progress {
    on_terminal: bool,
    shown: Option<Instant>,
}

impl Progress {
    /// A line on standard error.
    pub fn new() -> Self {
        Self { on_terminal: stderr().is_terminal(), shown: None }
    }

    /// Shows what is going on now, a few times a second at most.
    pub fn update(&mut self, line: impl FnOnce() -> String) {
        if self.on_terminal && self.shown.is_none_or(|shown| shown.elapsed() >= PERIOD) {
            // Standard error may be closed; the measurement goes on.
            let _ = write!(stderr(), "\r\x1b[K{}", line());
            self.shown = Some(Instant::now());
        }
    }

    /// Writes a line that stays.
    pub fn keep(&mut self, line: &str) {
        self.clear();
        let _ = writeln!(stderr(), "{line}");
    }

    fn clear(&mut self) {
        if self.shown.take().is_some() {
            let _ = write!(stderr(), "\r\x1b[K");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}
