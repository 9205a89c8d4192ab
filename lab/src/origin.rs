//! Where figures come from: when, by which command, and by which build they were measured.

use std::env;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

/// What the lab's files of figures begin with. Another number is another meaning of keys that are there.
pub const FORMAT: &str = "elbowroom-lab/1";

/// The commit that the lab was built from, if the build knew.
pub const COMMIT: Option<&str> = option_env!("ELBOWROOM_COMMIT");

const SECONDS_PER_DAY: u64 = 86_400;

/// Adds to an object of figures what it is, and where it comes from.
pub fn note(figures: &mut Value) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    figures["format"] = json!(FORMAT);
    figures["date"] = json!(date(now));
    figures["command"] = json!(command());
    figures["version"] = json!(env!("CARGO_PKG_VERSION"));
    figures["commit"] = json!(COMMIT);
}

/// The command line of this process, as one would type it.
fn command() -> String {
    let mut args = env::args_os();
    let program = args.next().unwrap_or_default();
    let name = Path::new(&program).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let args = args.map(|arg| quoted(&arg.to_string_lossy()));
    [name].into_iter().chain(args).collect::<Vec<_>>().join(" ")
}

/// A word as a shell wants it.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_=.,/:+@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Seconds since 1970 as a date and time of UTC.
fn date(unix_seconds: u64) -> String {
    let (days, second) = (unix_seconds / SECONDS_PER_DAY, unix_seconds % SECONDS_PER_DAY);
    // Years begin in March here, so that the day that only some of them have is the last. The count begins in
    // the year 0; 400 years have 146,097 days.
    let day = days + 719_468;
    let (era, day) = (day / 146_097, day % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (year, month) = (era * 400 + year, if month < 10 { month + 3 } else { month - 9 });
    let year = year + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_210_096, "2024-02-29T12:34:56Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(date(seconds), expected);
        }
    }

    #[test]
    fn words_that_a_shell_would_split_are_quoted() {
        assert_eq!(quoted("--engines=a,b-c"), "--engines=a,b-c");
        assert_eq!(
            (quoted("a b"), quoted(""), quoted("it's")),
            ("'a b'".into(), "''".into(), r"'it'\''s'".into())
        );
    }
}
