//! Sizes and durations as people write them.

use std::time::Duration;

/// Parses a size in bytes: `1048576`, `240M`, `1.5GiB`, `512 MB`.
///
/// The units are B, K, M, G and T, also as KB or KiB and so on, in any case; all are binary, as those of
/// `ls`, `dd bs=` and the kernel's files are: `1KB` is 1024 bytes. A fraction is rounded down to whole bytes.
///
/// # Errors
/// Says what is wrong with a text that is not a size, with 0, and with a size of 2^64 bytes or more.
pub fn parse_size(text: &str) -> Result<u64, String> {
    match parse_size_or_none(text) {
        Ok(0) => Err("a size must be more than 0".to_owned()),
        parsed => parsed,
    }
}

/// The same for a size that may be 0.
///
/// # Errors
/// Those of [`parse_size`], but for 0.
pub fn parse_size_or_none(text: &str) -> Result<u64, String> {
    let not_a_size = || "not a size; use a number with an optional unit, as in 512M or 1.5G".to_owned();
    let (number, unit) = split_unit(text).ok_or_else(not_a_size)?;
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(format!("'{unit}' is not a unit of size; use K, M, G or T, as in 512M")),
    };
    let bytes = scale(number, 1 << shift).ok_or_else(not_a_size)?;
    u64::try_from(bytes).map_err(|_| "too large: a size must be below 16 EiB".to_owned())
}

/// Parses a duration: `500ms`, `2s`, `1.5s`, `1m`. A number alone is refused, because it could be either.
///
/// # Errors
/// Says what is wrong with a text that is not a duration, or not one from 10 ms to an hour.
pub fn parse_interval(text: &str) -> Result<Duration, String> {
    let not_a_duration = || "not a duration; use a number with a unit, as in 500ms or 2s".to_owned();
    let (number, unit) = split_unit(text).ok_or_else(not_a_duration)?;
    let factor = match unit.to_ascii_lowercase().as_str() {
        "ms" => 1,
        "s" => 1000,
        "m" | "min" => 60_000,
        "" => return Err("a duration needs a unit: ms, s or m, as in 500ms".to_owned()),
        _ => return Err(format!("'{unit}' is not a unit of time; use ms, s or m, as in 500ms")),
    };
    let ms = scale(number, factor).ok_or_else(not_a_duration)?;
    match u64::try_from(ms) {
        Ok(ms @ 10..=3_600_000) => Ok(Duration::from_millis(ms)),
        _ => Err("a duration here must be from 10ms to 60m".to_owned()),
    }
}

/// Bytes for people: with the largest unit that leaves at least 1, and up to one decimal.
pub fn show_size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let Some(power) = (bytes.max(1).ilog2() / 10).checked_sub(1) else { return format!("{bytes} B") };
    let unit = 1_u64 << (10 * (power + 1));
    // In tenths, rounded to nearest; in 128 bits because ten times 16 EiB does not fit in 64.
    let tenths = (u128::from(bytes) * 10 + u128::from(unit) / 2) / u128::from(unit);
    let name = UNITS[power as usize];
    if tenths.is_multiple_of(10) {
        format!("{} {name}", tenths / 10)
    } else {
        format!("{}.{} {name}", tenths / 10, tenths % 10)
    }
}

/// The number and what follows it, both trimmed; `None` if nothing that looks like a number comes first.
fn split_unit(text: &str) -> Option<(&str, &str)> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    (end > 0).then(|| (&text[..end], text[end..].trim()))
}

/// `number * factor`, rounded down; `None` unless `number` is digits with at most one point among or after
/// them. A product that does not fit saturates.
fn scale(number: &str, factor: u64) -> Option<u128> {
    // More digits than these cannot change a result in bytes or milliseconds that is in range.
    const FRACTION_DIGITS: usize = 15;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) {
        return None;
    }
    let fraction = &fraction[..fraction.len().min(FRACTION_DIGITS)];
    let factor = u128::from(factor);
    let whole = whole.parse::<u128>().unwrap_or(u128::MAX).saturating_mul(factor);
    let parts = fraction.parse::<u128>().unwrap_or(0) * factor / 10_u128.pow(fraction.len() as u32);
    Some(whole.saturating_add(parts))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_in_every_spelling() {
        const M: u64 = 1 << 20;
        for (text, bytes) in [
            ("1", 1),
            ("4096", 4096),
            ("17b", 17),
            ("1K", 1024),
            ("1KB", 1024),
            ("1kib", 1024),
            ("240M", 240 * M),
            ("512MB", 512 * M),
            ("512MiB", 512 * M),
            (" 512 MiB ", 512 * M),
            ("2g", 2048 * M),
            ("1.5G", 1536 * M),
            ("0.5k", 512),
            ("1.", 1),
            ("3T", 3 << 40),
            ("16777215.999999999999999999T", u64::MAX),
            ("18446744073709551615", u64::MAX),
        ] {
            // The last fraction is cut after fifteen digits, so it is a little below the largest.
            let parsed = parse_size(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert!(
                parsed.abs_diff(bytes) < 2048 && (bytes == u64::MAX || parsed == bytes),
                "{text}: {parsed}"
            );
        }
    }

    #[test]
    fn what_is_not_a_size() {
        for text in ["", " ", "M", "abc", "-1", "+1M", "1.2.3M", ".5G", ".", "１M"] {
            let error = parse_size(text).unwrap_err();
            assert!(error.contains("not a size"), "{text}: {error}");
        }
        for text in ["1e9", "0x10", "5 M M", "1M5"] {
            let error = parse_size(text).unwrap_err();
            assert!(error.contains("is not a unit"), "{text}: {error}");
        }
        for text in ["0", "0M", "0.0G", "0.0000001K"] {
            assert!(parse_size(text).unwrap_err().contains("more than 0"), "{text}");
            assert_eq!(parse_size_or_none(text), Ok(0), "{text}");
        }
        for text in ["18446744073709551616", "16777216T", "99999999999999999999999999999999999999999T"] {
            assert!(parse_size(text).unwrap_err().contains("too large"), "{text}");
        }
        assert!(parse_size("5 parsecs").unwrap_err().contains("'parsecs'"));
    }

    #[test]
    fn intervals() {
        for (text, ms) in [("10ms", 10), ("500ms", 500), ("2s", 2000), ("1.5s", 1500), ("1m", 60_000)] {
            assert_eq!(parse_interval(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "1", "5", "1h", "s", "9ms", "0s", "61m", "-1s", "1.5.5s"] {
            assert!(parse_interval(text).is_err(), "{text}");
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
            assert_eq!(show_size(bytes), text);
        }
        for bytes in [1, 1024, 1536, 3 << 30, 5 << 40] {
            assert_eq!(parse_size(&show_size(bytes)), Ok(bytes));
        }
    }
}
