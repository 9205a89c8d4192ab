//! What the lines of the summary are made of.

use std::fmt::{self, Display};

/// A line of the summary.
pub(super) fn line(f: &mut fmt::Formatter<'_>, what: &str, figures: fmt::Arguments<'_>) -> fmt::Result {
    writeln!(f, "  {what:<15} {figures}")
}

/// A number of bytes with the unit that suits it.
pub struct Bytes(pub u64);

impl Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
        if self.0 < 1024 {
            return write!(f, "{} B", self.0);
        }
        let mut value = self.0 as f64 / 1024.0;
        let mut unit = 0;
        while value >= 1023.95 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        write!(f, "{value:.1} {}", UNITS[unit])
    }
}

/// A time with the unit that suits it.
pub struct Nanos(pub u64);

impl Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ns = self.0 as f64;
        match self.0 {
            0..1_000 => write!(f, "{} ns", self.0),
            1_000..1_000_000 => write!(f, "{:.1} us", ns / 1e3),
            1_000_000..1_000_000_000 => write!(f, "{:.1} ms", ns / 1e6),
            _ => write!(f, "{:.1} s", ns / 1e9),
        }
    }
}
