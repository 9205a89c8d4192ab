//! The loop of the live view, over a run or a recording.

use std::io;
use std::time::{Duration, Instant};

use ratatui_crossterm::crossterm::event::Event;

use crate::failure::{Failure, NOT_DONE};
use crate::runs::Run;
use crate::top::draw::{Palette, draw};
use crate::top::rates::{History, Report};
use crate::top::sample::Sample;
use crate::top::screen::{Ended, Screen};
use crate::top::view::{Action, View};

/// The longest time between two checks for a signal that ends the command.
pub const LOOK: Duration = Duration::from_millis(500);

/// How many samples before a sample of a recording are read to compute the rates at that sample.
const BEFORE: usize = 20;

/// The longest pause between two samples of a replay. A recording may have longer gaps in which nothing was
/// recorded.
const LONGEST_GAP: Duration = Duration::from_secs(2);

/// The view of a run or a recording on a terminal.
struct Live {
    screen: Screen,
    ended: Ended,
    view: View,
    palette: Palette,
}

impl Live {
    fn open(is_replay: bool, palette: Palette) -> io::Result<Self> {
        Ok(Self { ended: Ended::watch()?, screen: Screen::open()?, view: View::new(is_replay), palette })
    }

    fn draw(&mut self, report: &Report, note: &str) -> io::Result<()> {
        let Self { screen, view, palette, .. } = self;
        screen.draw(|buffer| draw(buffer, report, view, note, *palette))
    }

    /// Waits until `due` for a key, a new size of the terminal, or a signal. `None`: none of these came.
    fn wait(&mut self, due: Option<Instant>) -> io::Result<Option<Action>> {
        loop {
            if self.ended.is_set() {
                return Ok(Some(Action::Quit));
            }
            let left = due.map_or(LOOK, |due| due.saturating_duration_since(Instant::now()));
            match self.screen.event(left.min(LOOK))? {
                Some(Event::Key(key)) => return Ok(Some(self.view.key(key))),
                Some(Event::Resize(..)) => return Ok(Some(Action::Draw)),
                Some(_) => {}
                None if due.is_some_and(|due| due <= Instant::now()) => return Ok(None),
                None => {}
            }
        }
    }
}

fn terminal(error: io::Error) -> Failure {
    Failure::new(NOT_DONE, format!("the terminal: {error}"))
}

/// Shows a run until it ends, or until a key or a signal ends the view. `true`: the run has ended. `add` is
/// called with each sample.
pub fn watch(
    run: &Run,
    interval: Duration,
    palette: Palette,
    add: &mut dyn FnMut(&Sample) -> Result<(), Failure>,
) -> Result<bool, Failure> {
    let mut live = Live::open(false, palette).map_err(terminal)?;
    let mut history = History::default();
    let mut due = Instant::now();
    while !run.is_over() {
        let sample = Sample::take(run);
        add(&sample)?;
        let report = history.next(sample);
        due = next(due, interval);
        loop {
            live.draw(&report, "").map_err(terminal)?;
            match live.wait(Some(due)).map_err(terminal)? {
                Some(Action::Quit) => return Ok(false),
                Some(_) => {}
                None => break,
            }
        }
    }
    Ok(true)
}

/// The time of the next sample. Samples that were missed, because this process was stopped or had no
/// processor, are skipped.
pub fn next(due: Instant, interval: Duration) -> Instant {
    let (next, now) = (due + interval, Instant::now());
    if next > now { next } else { now + interval }
}

/// The report of a recording at one of its samples.
pub fn report_of(samples: &[Sample], at: usize) -> Report {
    let mut history = History::default();
    let before = at.saturating_sub(BEFORE)..=at;
    samples[before].iter().fold(Report::default(), |_, sample| history.next(sample.clone()))
}

/// Shows a recording, which is not empty, at the pace at which it was made, until a key or a signal ends
/// the view.
pub fn replay(samples: &[Sample], palette: Palette) -> Result<(), Failure> {
    let mut live = Live::open(true, palette).map_err(terminal)?;
    let last = samples.len() - 1;
    let (mut at, mut is_stopped) = (0, false);
    loop {
        let report = report_of(samples, at);
        let state = if is_stopped || at == last { "stopped" } else { "plays" };
        let note = format!("sample {} of {}, {state}", at + 1, samples.len());
        let gap = samples.get(at + 1).map(|next| next.at_ms.saturating_sub(samples[at].at_ms));
        let due = gap.filter(|_| !is_stopped).map(|ms| Duration::from_millis(ms).min(LONGEST_GAP));
        let due = due.map(|gap| Instant::now() + gap);
        loop {
            live.draw(&report, &note).map_err(terminal)?;
            match live.wait(due).map_err(terminal)? {
                Some(Action::Quit) => return Ok(()),
                Some(Action::Draw) => continue,
                Some(Action::Pause) => is_stopped = !is_stopped,
                Some(Action::Step(step)) => {
                    (at, is_stopped) = (at.saturating_add_signed(step).min(last), true);
                }
                None => at = (at + 1).min(last),
            }
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::sample::Row;
    use elbowroom::ProcessUse;

    #[test]
    fn samples_that_were_missed_are_not_made_up_for() {
        let (interval, now) = (Duration::from_secs(10), Instant::now());
        assert_eq!(next(now, interval), now + interval);
        let late = next(now - 5 * interval, interval);
        assert!(late >= now + interval && late < now + 2 * interval);
    }

    #[test]
    fn a_moment_of_a_recording_has_the_rates_of_that_moment() {
        let samples: Vec<_> = (0..50_u64)
            .map(|second| {
                // Faster from second to second.
                let used = ProcessUse { faults: second * second, ..ProcessUse::default() };
                let noted_ms = Some(second * 1000);
                let row = Row { pid: 1, age_ms: second * 1000, noted_ms, used, ..Row::default() };
                Sample { age_ms: second * 1000 + 1, rows: vec![row], ..Sample::default() }
            })
            .collect();
        let faults = |at| report_of(&samples, at).rows[0].rates.map(|rates| rates.faults);
        assert_eq!((faults(0), faults(1), faults(10), faults(49)), (None, Some(1.0), Some(19.0), Some(97.0)));
    }
}
