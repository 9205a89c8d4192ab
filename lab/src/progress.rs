//! One line on standard error that says what is going on.
//!
//! On a terminal it is written over again and again; elsewhere only lines that are worth keeping appear.

use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

const PERIOD: Duration = Duration::from_millis(200);

/// The line.
#[derive(Debug, Clone)]
pub struct Progress {
    on_terminal: bool,
    shown: Option<Instant>,
    /// What it is a part of, and when all is expected to be done.
    whole: Option<(String, Instant)>,
}

impl Progress {
    /// A line on standard error.
    pub fn new() -> Self {
        Self { on_terminal: stderr().is_terminal(), shown: None, whole: None }
    }

    /// One of a part of something that will be done at about `end`. `title` is before each line.
    pub fn of(title: String, end: Instant) -> Self {
        Self { whole: Some((title, end)), ..Self::new() }
    }

    /// Says that the part begins.
    pub fn begin(&mut self) {
        if let Some(title) = self.title() {
            self.clear();
            let _ = writeln!(stderr(), "{title}");
        }
    }

    /// What it is a part of, and how long that will take.
    fn title(&self) -> Option<String> {
        let (title, end) = self.whole.as_ref()?;
        Some(format!("{title}, {} left", rounded(end.saturating_duration_since(Instant::now()))))
    }

    /// Shows what is going on now, a few times a second at most.
    pub fn update(&mut self, line: impl FnOnce() -> String) {
        if self.on_terminal && self.shown.is_none_or(|shown| shown.elapsed() >= PERIOD) {
            let title = self.title().map(|title| format!("{title}: ")).unwrap_or_default();
            // Standard error may be closed; the measurement goes on.
            let _ = write!(stderr(), "\r\x1b[K{title}{}", line());
            self.shown = Some(Instant::now());
        }
    }

    /// Writes a line that stays.
    pub fn keep(&mut self, line: &str) {
        self.clear();
        let title = self.whole.as_ref().map(|(title, _)| format!("{title}: ")).unwrap_or_default();
        let _ = writeln!(stderr(), "{title}{line}");
    }

    fn clear(&mut self) {
        if self.shown.take().is_some() {
            let _ = write!(stderr(), "\r\x1b[K");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

/// A time as one says it.
fn rounded(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..60 => format!("about {seconds} s"),
        seconds => format!("about {} min {:02} s", seconds / 60, seconds % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_is_said_in_minutes_and_seconds() {
        let in_words = |seconds| rounded(Duration::from_secs(seconds));
        assert_eq!(
            [0, 59, 61, 605].map(in_words),
            ["about 0 s", "about 59 s", "about 1 min 01 s", "about 10 min 05 s"]
        );
        let progress = Progress::of("3/13 scan".into(), Instant::now() + Duration::from_millis(90_500));
        assert_eq!(progress.title().as_deref(), Some("3/13 scan, about 1 min 30 s left"));
        assert_eq!(Progress::new().title(), None);
    }
}
