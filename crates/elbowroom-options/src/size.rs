//! Sizes in bytes as people write and read them.
//!
//! The crate `parse-size` does the arithmetic. This module says what is wrong with a text, since that crate
//! only says that something is.

use std::fmt;

use parse_size::{Config, Error};

/// Why a text is no size. Shown, each says what to write instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SizeError<'t> {
    /// There is no number.
    NoNumber,
    /// A comma stands where a point belongs; the text before and after it.
    Comma(&'t str, &'t str),
    /// The number is below zero; the text after the sign.
    Negative(&'t str),
    /// What follows the number is no unit.
    Unit(&'t str),
    /// The text is no number.
    Number(&'t str),
    /// The size is 2^64 bytes or more.
    TooLarge,
}

impl fmt::Display for SizeError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SizeError::NoNumber => f.write_str("no number: write a size as 512M or 1.5G"),
            SizeError::Comma(whole, rest) => write!(f, "{whole},{rest}: write {whole}.{rest}"),
            SizeError::Negative(rest) => write!(f, "a size cannot be below 0: write {rest}"),
            SizeError::Unit(unit) => {
                write!(f, "'{unit}' is not a unit of size: write K, M, G or T, as in 512M")
            }
            SizeError::Number(number) => {
                write!(f, "'{number}' is not a number: write a size as 512M or 1.5G")
            }
            SizeError::TooLarge => f.write_str("too large: a size must be below 16E"),
        }
    }
}

impl std::error::Error for SizeError<'_> {}

/// Parses a size in bytes: `1048576`, `240M`, `1.5GiB`, `512 MB`.
///
/// The units are B, K, M, G, T, P and E, also as KB or KiB and so on, in any case. All are binary, as those
/// of `ls`, `dd bs=` and the kernel's files are: `1KB` is 1024 bytes. A fraction is rounded to whole bytes.
/// No memory is allocated.
///
/// # Errors
/// What is wrong with a text that is no size, and with a size of 2^64 bytes or more.
pub fn parse(text: &str) -> Result<u64, SizeError<'_>> {
    let text = text.trim();
    if let Some(rest) = text.strip_prefix('-') {
        return Err(SizeError::Negative(rest));
    }
    let (number, unit) = split(text);
    if let Some((whole, rest)) = text.split_once(',') {
        let digits = |text: &str| text.bytes().next().is_some_and(|byte| byte.is_ascii_digit());
        if digits(whole) && digits(rest) && !rest.contains(',') {
            return Err(SizeError::Comma(whole, rest));
        }
    }
    if number.is_empty() {
        return Err(SizeError::NoNumber);
    }
    let points = number.bytes().filter(|&byte| byte == b'.').count();
    if points > 1 || number.starts_with('.') {
        return Err(SizeError::Number(number));
    }
    if !is_unit(unit) {
        return Err(SizeError::Unit(unit));
    }
    let binary = Config::new().with_binary();
    binary.parse_size(text).map_err(|error| match error {
        Error::PosOverflow => SizeError::TooLarge,
        _ => SizeError::Number(text),
    })
}

/// The number and what follows it, without the spaces between.
pub(crate) fn split(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    (&text[..end], text[end..].trim())
}

/// Whether this is a unit: `parse-size` would take digits, spaces and exponents behind the first number.
fn is_unit(unit: &str) -> bool {
    let without =
        |byte: u8| move |unit: &[u8]| unit.last().is_some_and(|last| last.eq_ignore_ascii_case(&byte));
    let mut unit = unit.as_bytes();
    if without(b'b')(unit) {
        unit = &unit[..unit.len() - 1];
    }
    match unit {
        [] => true,
        [prefix] | [prefix, b'i' | b'I'] => b"kmgtpe".contains(&prefix.to_ascii_lowercase()),
        _ => false,
    }
}

/// A size for people: with the largest unit that leaves at least 1, and up to one decimal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shown(pub u64);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        let bytes = self.0;
        let Some(power) = (bytes.max(1).ilog2() / 10).checked_sub(1) else {
            return write!(f, "{bytes} B");
        };
        let unit = 1_u64 << (10 * (power + 1));
        // In tenths, rounded to nearest; in 128 bits because ten times 16 EiB does not fit in 64.
        let tenths = (u128::from(bytes) * 10 + u128::from(unit) / 2) / u128::from(unit);
        let (whole, tenth, name) = (tenths / 10, tenths % 10, UNITS[power as usize]);
        match tenth {
            0 => write!(f, "{whole} {name}"),
            _ => write!(f, "{whole}.{tenth} {name}"),
        }
    }
}

/// A size in the spelling of the command line: with the largest unit that gives a whole number, so that the
/// text reads back as the same size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exact(pub u64);

impl fmt::Display for Exact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(&str, u32); 4] = [("T", 40), ("G", 30), ("M", 20), ("K", 10)];
        let fits = |shift: u32| self.0 != 0 && self.0.is_multiple_of(1 << shift);
        match UNITS.iter().find(|(_, shift)| fits(*shift)) {
            Some((name, shift)) => write!(f, "{}{name}", self.0 >> shift),
            None => write!(f, "{}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_in_every_spelling() {
        const M: u64 = 1 << 20;
        for (text, bytes) in [
            ("0", 0),
            ("1", 1),
            ("4096", 4096),
            ("17b", 17),
            ("1K", 1024),
            ("1KB", 1024),
            ("1kib", 1024),
            ("2ki", 2048),
            ("240M", 240 * M),
            ("512MB", 512 * M),
            ("512MiB", 512 * M),
            (" 512 MiB ", 512 * M),
            ("2g", 2048 * M),
            ("1.5G", 1536 * M),
            ("1.5 gb", 1536 * M),
            ("0.5k", 512),
            ("1.", 1),
            ("3T", 3 << 40),
            ("15E", 15 << 60),
            ("0.0000001K", 0),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_not_a_size_says_what_to_write() {
        for (text, said) in [
            ("", "no number: write a size as 512M or 1.5G"),
            (" ", "no number"),
            ("M", "no number"),
            ("abc", "no number"),
            ("+1M", "no number"),
            ("１M", "no number"),
            ("1,5G", "1,5G: write 1.5G"),
            (" 1,5 GiB", "1,5 GiB: write 1.5 GiB"),
            ("-1", "a size cannot be below 0: write 1"),
            ("-1.5G", "below 0: write 1.5G"),
            ("1.2.3M", "'1.2.3' is not a number"),
            (".5G", "'.5' is not a number"),
            (".", "'.' is not a number"),
            ("1e9", "'e9' is not a unit of size: write K, M, G or T"),
            ("0x10", "'x10' is not a unit"),
            ("1_000", "'_000' is not a unit"),
            ("5 M M", "'M M' is not a unit"),
            ("1 5M", "'5M' is not a unit"),
            ("1M5", "'M5' is not a unit"),
            ("12iB", "'iB' is not a unit"),
            ("1,2,3M", "',2,3M' is not a unit"),
            ("5 parsecs", "'parsecs' is not a unit"),
            ("18446744073709551616", "too large: a size must be below 16E"),
            ("16E", "too large"),
            ("16777216T", "too large"),
            ("99999999999999999999999999999999999999999T", "too large"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }

    #[test]
    fn sizes_shown_parse_back() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            (16 << 20, "16 MiB"),
            (u64::MAX, "16 EiB"),
        ] {
            assert_eq!(Shown(bytes).to_string(), text);
        }
        for bytes in [1, 1024, 1536, 3 << 30, 5 << 40] {
            assert_eq!(parse(&Shown(bytes).to_string()), Ok(bytes));
        }
        for bytes in [0, 1, 4096, 240 << 20, 2 << 30, (2 << 30) + 1, u64::MAX] {
            assert_eq!(parse(&Exact(bytes).to_string()), Ok(bytes));
        }
    }
}
