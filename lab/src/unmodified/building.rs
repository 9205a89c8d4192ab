//! What is shown while pip installs, which takes minutes where it builds from source.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::child::Watch;
use crate::progress::Progress;

/// Between two lines that stay, for logs.
const KEPT_EVERY: Duration = Duration::from_secs(60);
const TICK: Duration = Duration::from_millis(200);

/// A line on standard error that says for how long pip is at work, and how far ninja is.
pub struct Building<'a> {
    progress: &'a mut Progress,
    title: String,
    began: Instant,
    kept: u32,
    /// As ninja writes it: `[57/120]`.
    step: Option<String>,
}

impl<'a> Building<'a> {
    /// Shows `title` from now on.
    pub fn begin(progress: &'a mut Progress, title: String) -> Self {
        Self { progress, title, began: Instant::now(), kept: 0, step: None }
    }

    fn line_at(&self, elapsed: Duration) -> String {
        let (minutes, seconds) = (elapsed.as_secs() / 60, elapsed.as_secs() % 60);
        let step = self.step.as_ref().map(|step| format!(", step {step}")).unwrap_or_default();
        format!("{}: {minutes} min {seconds:02} s{step}", self.title)
    }
}

impl Watch for Building<'_> {
    fn begin(&mut self, _: u64) {}

    fn line(&mut self, line: &str) -> Result<()> {
        if let Some(step) = step(line) {
            self.step = Some(step.to_owned());
        }
        Ok(())
    }

    fn tick(&mut self) -> Result<Duration> {
        let elapsed = self.began.elapsed();
        let line = self.line_at(elapsed);
        if elapsed >= KEPT_EVERY * (self.kept + 1) {
            self.kept += 1;
            self.progress.keep(&line);
        } else {
            self.progress.update(|| line);
        }
        Ok(TICK)
    }
}

/// The count at the beginning of a line of ninja's.
fn step(line: &str) -> Option<&str> {
    let (step, _) = line.trim_start().strip_prefix('[')?.split_once(']')?;
    let (done, all) = step.split_once('/')?;
    let is_number = |text: &str| text.parse::<u32>().is_ok();
    (is_number(done) && is_number(all)).then_some(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_taken_from_lines_that_ninja_writes() {
        assert_eq!(step("  [57/120] Building CXX object ggml.cpp.o"), Some("57/120"));
        for other in ["[notice] a new release", "Collecting numpy", "[1/x] y", "[1/2"] {
            assert_eq!(step(other), None, "{other}");
        }
        let mut progress = Progress::new();
        let mut building = Building::begin(&mut progress, "pip".to_owned());
        building.line("[3/4] Linking").unwrap();
        assert_eq!(building.line_at(Duration::from_secs(125)), "pip: 2 min 05 s, step 3/4");
    }
}
