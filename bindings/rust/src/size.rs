//! Sizes as programs give them: numbers of bytes, or texts.

use elbowroom_options::size;
use std::io;

/// A size in bytes: a number, or a text such as "2GiB", "512M" or "1.5 GB", all in powers of 1024.
///
/// A text that is no size is an error of the function that gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Size(Given);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Given {
    Bytes(u64),
    Text(String),
}

impl Size {
    /// The size in bytes.
    ///
    /// # Errors
    /// InvalidInput: what is wrong with the text.
    ///
    /// ```
    /// assert_eq!(elbowroom::Size::from("2GiB").bytes().unwrap(), 2 << 30);
    /// assert_eq!(elbowroom::Size::from(4096).bytes().unwrap(), 4096);
    /// assert!(elbowroom::Size::from("2 gigs").bytes().is_err());
    /// ```
    pub fn bytes(&self) -> io::Result<u64> {
        match &self.0 {
            Given::Bytes(bytes) => Ok(*bytes),
            Given::Text(text) => size::parse(text).map_err(|error| {
                io::Error::new(io::ErrorKind::InvalidInput, format!("size {text:?}: {error}"))
            }),
        }
    }
}

impl From<u64> for Size {
    fn from(bytes: u64) -> Self {
        Self(Given::Bytes(bytes))
    }
}

impl From<&str> for Size {
    fn from(text: &str) -> Self {
        Self(Given::Text(text.to_owned()))
    }
}

impl From<String> for Size {
    fn from(text: String) -> Self {
        Self(Given::Text(text))
    }
}
