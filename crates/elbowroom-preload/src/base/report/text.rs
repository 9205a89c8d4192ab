//! What the lines of the summary are made of.

use std::fmt::{self, Display, Write};

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

/// Text in a buffer of fixed size; what does not fit is cut off.
pub struct Buffer<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Buffer<N> {
    /// An empty buffer.
    pub const fn new() -> Self {
        Self { bytes: [0; N], len: 0 }
    }

    /// The text that was written.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl<const N: usize> Write for Buffer<N> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let taken = text.len().min(N - self.len);
        self.bytes[self.len..self.len + taken].copy_from_slice(&text.as_bytes()[..taken]);
        self.len += taken;
        Ok(())
    }
}

impl<const N: usize> std::io::Write for Buffer<N> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let taken = bytes.len().min(N - self.len);
        self.bytes[self.len..self.len + taken].copy_from_slice(&bytes[..taken]);
        self.len += taken;
        Ok(taken)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
