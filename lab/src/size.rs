//! Sizes as people write them: `240M`, `16MiB`, `4096`. All units are binary.

use std::fmt;
use std::str::FromStr;

use elbowroom_options::size;
use serde::{Serialize, Serializer};

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(u64);

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

    /// Reads a size as `elbowroom run` does.
    fn from_str(text: &str) -> Result<Self, String> {
        match size::parse(text) {
            Ok(bytes) if bytes <= i64::MAX as u64 => Ok(Self(bytes)),
            Ok(_) => Err(format!("'{text}' is larger than any file or memory can be")),
            Err(error) => Err(error.to_string()),
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        size::Exact(self.0).fmt(f)
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
    fn a_size_is_what_the_command_reads() {
        assert_eq!("1.5G".parse::<Size>().map(Size::bytes), Ok(3 << 29));
        assert_eq!("1,5G".parse::<Size>(), Err("1,5G: write 1.5G".to_owned()));
        assert!("8E".parse::<Size>().unwrap_err().contains("larger than any file"));
    }

    #[test]
    fn writes_what_it_reads() {
        for bytes in [0, 1, 4096, 240 << 20, 2 << 30, (2 << 30) + 1] {
            assert_eq!(Size::from_bytes(bytes).to_string().parse(), Ok(Size::from_bytes(bytes)));
        }
    }
}
