//! Sizes as people write them: `240M`, `16MiB`, `4096`. All units are binary.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(u64);

const UNITS: [(&str, u32); 4] = [("K", 10), ("M", 20), ("G", 30), ("T", 40)];

impl Size {
    /// A size of that many bytes.
    pub const fn from_bytes(bytes: u64) -> Self {
        Self(bytes)
    }

    /// The number of bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// The number of pages of 4 KiB, rounded up.
    pub const fn pages(self) -> u64 {
        self.0.div_ceil(crate::PAGE_BYTES)
    }
}

impl FromStr for Size {
    type Err = String;

    /// Reads a whole number with an optional unit (`K`, `M`, `G`, `T`, also as `KB` or `KiB`), in either
    /// case.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("'{text}' is not a size; write a whole number and a unit, like 512K, 240M or 2G");
        let trimmed = text.trim();
        let digits = trimmed.len() - trimmed.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, unit) = trimmed.split_at(digits);
        let number: u64 = number.parse().map_err(|_| wrong())?;
        let unit = unit.trim_start().to_ascii_uppercase();
        let letter = unit.strip_suffix("IB").or(unit.strip_suffix('B')).unwrap_or(&unit);
        let shift = match letter {
            "" if unit.len() < 2 => 0,
            _ => UNITS.iter().find(|(name, _)| *name == letter).ok_or_else(wrong)?.1,
        };
        number
            .checked_mul(1 << shift)
            .filter(|bytes| *bytes <= i64::MAX as u64)
            .map(Self)
            .ok_or_else(|| format!("'{text}' is larger than any file or memory can be"))
    }
}

impl fmt::Display for Size {
    /// Writes the largest unit that gives a whole number, so that the text reads back as the same size.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = UNITS.iter().rev().find(|(_, shift)| self.0 != 0 && self.0.is_multiple_of(1 << shift));
        match unit {
            Some((name, shift)) => write!(f, "{}{name}", self.0 >> shift),
            None => write!(f, "{}", self.0),
        }
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_binary_units_in_every_spelling() {
        for text in ["240M", "240MiB", "240MB", "240m", "240 mib", "245760K", "251658240", "251658240B"] {
            assert_eq!(text.parse::<Size>().unwrap().bytes(), 240 << 20, "{text}");
        }
    }

    #[test]
    fn refuses_what_is_no_size() {
        for text in ["", "M", "-1M", "1.5G", "12Q", "12iB", "1 M x", "99999999999T"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }

    #[test]
    fn writes_what_it_reads() {
        for bytes in [0, 1, 4096, 240 << 20, 2 << 30, (2 << 30) + 1] {
            assert_eq!(Size::from_bytes(bytes).to_string().parse(), Ok(Size::from_bytes(bytes)));
        }
    }
}
