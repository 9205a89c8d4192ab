//! Durations as people write them. The crate `humantime` parses them; what is wrong is said here.

use std::fmt;
use std::time::Duration;

use humantime::DurationError as Error;

use crate::size;

/// Why a text is no duration. Shown, each says what to write instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DurationError<'t> {
    /// There is no number.
    NoNumber,
    /// A comma stands where a point belongs; the text before and after it.
    Comma(&'t str, &'t str),
    /// The number has no unit, and could be seconds or milliseconds.
    NoUnit(&'t str),
    /// What follows a number is no unit.
    Unit(&'t str),
    /// Anything else.
    Text(&'t str),
    /// The duration is more than can be had, or finer.
    Range,
}

impl fmt::Display for DurationError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DurationError::NoNumber => f.write_str("no number: write a duration as 500ms or 2s"),
            DurationError::Comma(whole, rest) => write!(f, "{whole},{rest}: write {whole}.{rest}"),
            DurationError::NoUnit(number) => {
                write!(f, "a duration needs a unit, ms, s or m: write {number}ms or {number}s")
            }
            DurationError::Unit(unit) => {
                write!(f, "'{unit}' is not a unit of time: write ms, s or m, as in 500ms")
            }
            DurationError::Text(text) => {
                write!(f, "'{text}' is not a duration: write a duration as 500ms or 2s")
            }
            DurationError::Range => f.write_str("too long, or finer than a nanosecond"),
        }
    }
}

impl std::error::Error for DurationError<'_> {}

/// Parses a duration: `500us`, `500ms`, `2s`, `1.5s`, `1m`, `1h`. A number alone is refused, because it could
/// be either seconds or milliseconds.
///
/// # Errors
/// What is wrong with a text that is no duration.
pub fn parse(text: &str) -> Result<Duration, DurationError<'_>> {
    let text = text.trim();
    let (number, unit) = size::split(text);
    if let Some((whole, rest)) = text.split_once(',') {
        let digits = |text: &str| text.bytes().next().is_some_and(|byte| byte.is_ascii_digit());
        if digits(whole) && digits(rest) && !rest.contains(',') {
            return Err(DurationError::Comma(whole, rest));
        }
    }
    humantime::parse_duration(text).map_err(|error| match error {
        Error::Empty => DurationError::NoNumber,
        Error::UnknownUnit { .. } if unit.is_empty() => DurationError::NoUnit(number),
        Error::UnknownUnit { start, end, .. } => DurationError::Unit(&text[start..end]),
        Error::NumberExpected(_) if number.is_empty() => DurationError::NoNumber,
        Error::NumberOverflow => DurationError::Range,
        Error::NumberExpected(_) | Error::InvalidCharacter(_) => DurationError::Text(text),
    })
}

/// A duration in the spelling of the command line, which reads back as the same to the microsecond.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exact(pub Duration);

impl fmt::Display for Exact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = self.0.as_micros();
        match us {
            0 => f.write_str("0s"),
            us if us.is_multiple_of(60_000_000) => write!(f, "{}m", us / 60_000_000),
            us if us.is_multiple_of(1_000_000) => write!(f, "{}s", us / 1_000_000),
            us if us.is_multiple_of(1000) => write!(f, "{}ms", us / 1000),
            us => write!(f, "{us}us"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_in_every_spelling() {
        for (text, us) in [
            ("500us", 500),
            ("10ms", 10_000),
            ("500 ms", 500_000),
            ("2s", 2_000_000),
            (" 1.5s ", 1_500_000),
            ("1m", 60_000_000),
            ("1min", 60_000_000),
            ("1m 30s", 90_000_000),
            ("1h", 3_600_000_000),
        ] {
            let duration = Duration::from_micros(us);
            assert_eq!(parse(text), Ok(duration), "{text}");
            assert_eq!(parse(&Exact(duration).to_string()), Ok(duration), "{text}");
        }
        assert_eq!(parse(&Exact(Duration::ZERO).to_string()), Ok(Duration::ZERO));
    }

    #[test]
    fn what_is_not_a_duration_says_what_to_write() {
        for (text, said) in [
            ("", "no number: write a duration as 500ms or 2s"),
            ("s", "no number"),
            ("-1s", "no number"),
            ("5", "write 5ms or 5s"),
            ("1.5", "write 1.5ms or 1.5s"),
            ("1,5s", "1,5s: write 1.5s"),
            ("1 parsec", "'parsec' is not a unit of time: write ms, s or m"),
            ("1.5.5s", "'1.5.5s' is not a duration"),
            ("99999999999999999999s", "too long"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
