//! The values of options, what can be wrong with their texts, and the fields that hold them.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use crate::choices::Choice;
use crate::duration::{self, DurationError};
use crate::size::{self, SizeError};
use crate::table::{self, Kind};

/// The value of an option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// A size in bytes, or a count.
    Number(u64),
    /// A duration.
    Duration(Duration),
    /// A named value, by its place among the choices.
    Choice(usize),
    /// A flag: given or not.
    Flag(bool),
    /// A path of a file or directory.
    Path(PathBuf),
    /// A text whose grammar is not this crate's.
    Text(String),
}

/// What is wrong with the text of a value. Shown, each says what to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Problem<'t> {
    /// It is no size.
    Size(SizeError<'t>),
    /// It is no duration.
    Duration(DurationError<'t>),
    /// It is a size out of range; the least and the most, in bytes.
    SizeRange(u64, u64),
    /// It is a duration out of range.
    DurationRange(Duration, Duration),
    /// It is no whole number from 0 to this one.
    Count(&'t str, u64),
    /// It is no part in percent from 0 to this one, in ten-thousandths.
    Percent(&'t str, u64),
    /// It is none of these names.
    Choice(&'t str, &'static [Choice]),
    /// It is neither 0 nor 1.
    Flag(&'t str),
    /// It has a % without two hexadecimal digits.
    Escape(&'t str),
    /// It is empty.
    Empty,
    /// It is not UTF-8.
    NotUtf8,
}

impl fmt::Display for Problem<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::Size(error) => error.fmt(f),
            Problem::Duration(error) => error.fmt(f),
            Problem::SizeRange(least, u64::MAX) => write!(f, "it must be at least {}", size::Exact(*least)),
            Problem::SizeRange(least, most) => {
                write!(f, "it must be {} to {}", size::Exact(*least), size::Exact(*most))
            }
            Problem::DurationRange(least, most) => {
                write!(f, "it must be {} to {}", duration::Exact(*least), duration::Exact(*most))
            }
            Problem::Count(text, u64::MAX) => write!(f, "'{text}' is not a whole number"),
            Problem::Count(text, most) => write!(f, "'{text}' is not a whole number from 0 to {most}"),
            Problem::Percent(text, most) => {
                write!(f, "'{text}' is not a part of 0% to {}%, as 5% or 0.5%", most / 100)
            }
            Problem::Choice(text, choices) => {
                write!(f, "'{text}' is none of ")?;
                for (index, choice) in choices.iter().enumerate() {
                    write!(f, "{}{}", if index > 0 { ", " } else { "" }, choice.name)?;
                }
                Ok(())
            }
            Problem::Flag(text) => write!(f, "'{text}' is neither 0 nor 1"),
            Problem::Escape(text) => write!(f, "'{text}' has a % without two hexadecimal digits"),
            Problem::Empty => f.write_str("it is empty"),
            Problem::NotUtf8 => f.write_str("it is not text in UTF-8"),
        }
    }
}

impl std::error::Error for Problem<'_> {}

impl Kind {
    /// Reads a value as it is written on the command line. Sizes, counts, choices and flags are read without
    /// allocating.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn read(self, text: &OsStr) -> Result<Value, Problem<'_>> {
        match self {
            Kind::Path if text.is_empty() => return Err(Problem::Empty),
            Kind::Path => return Ok(Value::Path(text.into())),
            _ => {}
        }
        let text = text.to_str().ok_or(Problem::NotUtf8)?;
        Ok(match self {
            Kind::Size { least, most } => {
                let bytes = size::parse(text).map_err(Problem::Size)?;
                if !(least..=most).contains(&bytes) {
                    return Err(Problem::SizeRange(least, most));
                }
                Value::Number(bytes)
            }
            Kind::SizeOrAuto { .. } if text == "auto" => Value::Number(table::AUTO),
            Kind::SizeOrAuto { least } => {
                let read = Kind::Size { least, most: u64::MAX }.read(OsStr::new(text))?;
                // No machine has so much, and the number stands for `auto`.
                if read == Value::Number(table::AUTO) { Value::Number(table::AUTO - 1) } else { read }
            }
            Kind::Percent { most } => {
                let part = percent(text).filter(|part| *part <= most);
                Value::Number(part.ok_or(Problem::Percent(text, most))?)
            }
            Kind::Duration { least, most } => {
                let duration = duration::parse(text).map_err(Problem::Duration)?;
                if !(least..=most).contains(&duration) {
                    return Err(Problem::DurationRange(least, most));
                }
                Value::Duration(duration)
            }
            Kind::Count { most } => {
                let count = text.parse().ok().filter(|count| *count <= most);
                Value::Number(count.ok_or(Problem::Count(text, most))?)
            }
            Kind::Choice(choices) => {
                let index = choices.iter().position(|choice| choice.name == text);
                Value::Choice(index.ok_or(Problem::Choice(text, choices))?)
            }
            Kind::Flag => match text {
                "0" => Value::Flag(false),
                "1" => Value::Flag(true),
                _ => return Err(Problem::Flag(text)),
            },
            Kind::Path | Kind::Text => Value::Text(text.to_owned()),
        })
    }

    /// Reads a value as it is written in the variable: as on the command line, but paths and texts are
    /// escaped.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn read_escaped(self, text: &str) -> Result<Value, Problem<'_>> {
        match self {
            Kind::Path => Ok(Value::Path(OsStr::from_bytes(&unescape(text)?).into())),
            Kind::Text => {
                let text = String::from_utf8(unescape(text)?).map_err(|_| Problem::Escape(text))?;
                Ok(Value::Text(text))
            }
            _ => self.read(OsStr::new(text)),
        }
    }

    /// Writes a value so that [`Kind::read_escaped`] reads it.
    pub fn write_escaped(self, value: &Value) -> String {
        match (value, self) {
            (Value::Choice(index), Kind::Choice(choices)) => choices[*index].name.to_owned(),
            (Value::Number(table::AUTO), Kind::SizeOrAuto { .. }) => "auto".to_owned(),
            (Value::Number(part), Kind::Percent { .. }) => format!("{}.{:02}%", part / 100, part % 100),
            (Value::Number(number), _) => number.to_string(),
            (Value::Choice(index), _) => index.to_string(),
            (Value::Duration(duration), _) => duration::Exact(*duration).to_string(),
            (Value::Flag(said), _) => u8::from(*said).to_string(),
            (Value::Path(path), _) => escape(path.as_os_str().as_bytes()),
            (Value::Text(text), _) => escape(text.as_bytes()),
        }
    }
}

/// A part in percent, with at most two decimals and with or without the sign, in ten-thousandths.
fn percent(text: &str) -> Option<u64> {
    let (whole, decimals) = {
        let number = text.strip_suffix('%').unwrap_or(text).trim_end();
        number.split_once('.').map_or((number, None), |(whole, decimals)| (whole, Some(decimals)))
    };
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let hundredths = match decimals {
        None => 0,
        Some(decimals) if digits(decimals) && decimals.len() <= 2 => {
            decimals.parse::<u64>().ok()? * if decimals.len() == 1 { 10 } else { 1 }
        }
        Some(_) => return None,
    };
    digits(whole).then(|| whole.parse::<u64>().ok()?.checked_mul(100)?.checked_add(hundredths))?
}

/// How many bytes a text takes in the variable.
pub fn escaped_len(text: &str) -> usize {
    escape(text.as_bytes()).len()
}

/// Writes bytes as text. `%` and two hexadecimal digits stand for a byte that separates options or is no
/// text.
fn escape(bytes: &[u8]) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-:,@".contains(byte);
    let one = |byte: &u8| if plain(byte) { char::from(*byte).to_string() } else { format!("%{byte:02x}") };
    bytes.iter().map(one).collect()
}

fn unescape(text: &str) -> Result<Vec<u8>, Problem<'_>> {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let digits = part.get(..2).filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(byte.ok_or(Problem::Escape(text))?);
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    Ok(bytes)
}

/// A field that holds the value of an option.
pub trait Setting {
    /// The value; `None`: none was given, and there is no default.
    fn get(&self) -> Option<Value>;

    /// Stores a value. False, and nothing is stored, if it is of another kind than the field.
    fn set(&mut self, value: Value) -> bool;
}

macro_rules! settings {
    ($($type:ty: $variant:ident($name:ident) => $stored:expr, $shown:expr;)+) => {$(
        impl Setting for $type {
            fn get(&self) -> Option<Value> {
                let shown: fn(&$type) -> Option<_> = $shown;
                shown(self).map(Value::$variant)
            }

            fn set(&mut self, value: Value) -> bool {
                let Value::$variant($name) = value else { return false };
                *self = $stored;
                true
            }
        }
    )+};
}

settings! {
    u64: Number(number) => number, |field| Some(*field);
    u32: Number(number) => { let Ok(number) = number.try_into() else { return false }; number },
        |field| Some(u64::from(*field));
    usize: Number(number) => { let Ok(number) = number.try_into() else { return false }; number },
        |field| Some(*field as u64);
    Option<u64>: Number(number) => Some(number), |field| *field;
    Duration: Duration(duration) => duration, |field| Some(*field);
    bool: Flag(said) => said, |field| Some(*field);
    Option<PathBuf>: Path(path) => Some(path), |field| field.clone();
    Option<String>: Text(text) => Some(text), |field| field.clone();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_may_be_any_bytes() {
        let path = OsStr::from_bytes(b"/tmp/a;b=c d%\xff.json");
        let value = Kind::Path.read(path).unwrap();
        let text = Kind::Path.write_escaped(&value);
        assert_eq!(text, "/tmp/a%3bb%3dc%20d%25%ff.json");
        assert_eq!(Kind::Path.read_escaped(&text), Ok(value));
        for wrong in ["/a%3", "/a%", "/%zz", "/%+1"] {
            assert_eq!(Kind::Path.read_escaped(wrong), Err(Problem::Escape(wrong)));
        }
        assert_eq!(Kind::Path.read(OsStr::new("")), Err(Problem::Empty));
        assert!(
            Kind::Text.read_escaped("%ff").is_err() && Kind::Text.read(OsStr::from_bytes(b"\xff")).is_err()
        );
    }

    #[test]
    fn problems_say_what_may_be_written() {
        let size = Kind::Size { least: 4 << 10, most: 1 << 30 };
        let seconds = Duration::from_secs;
        for (kind, text, said) in [
            (size, "4095", "it must be 4K to 1G"),
            (size, "1.1G", "it must be 4K to 1G"),
            (size, "1,1G", "1,1G: write 1.1G"),
            (Kind::Size { least: 16 << 20, most: u64::MAX }, "1M", "it must be at least 16M"),
            (Kind::Duration { least: Duration::from_millis(10), most: seconds(3600) }, "9ms", "10ms to 60m"),
            (Kind::Count { most: 16 }, "17", "'17' is not a whole number from 0 to 16"),
            (Kind::Count { most: u64::MAX }, "-1", "'-1' is not a whole number"),
            (Kind::Choice(crate::Io::CHOICES), "fast", "'fast' is none of auto, uring, threads"),
            (Kind::Flag, "yes", "'yes' is neither 0 nor 1"),
        ] {
            let problem = kind.read(OsStr::new(text)).unwrap_err().to_string();
            assert!(problem.contains(said), "{text}: {problem}");
        }
    }
}
