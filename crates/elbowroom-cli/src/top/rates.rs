//! Rates from samples: what a run and each of its processes counts in a second.
//!
//! A process notes its counters in its row about once in a second. Its rates are the differences between
//! its last two notes, divided by the time between these notes. Divided by the time between samples, they
//! would be 0 in a sample without a new note, and too high in the next one. Pure: no clock is read here.

use std::collections::HashMap;

use elbowroom::ProcessUse;

use crate::top::sample::{Row, SILENT_MS, Sample};

/// Counts in a second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Rates {
    /// Page faults.
    pub faults: f64,
    /// Of these, faults that needed I/O.
    pub major: f64,
    /// Pages that came back after they had gone out.
    pub refaults: f64,
    /// Pages that came in from swap.
    pub swapped_in: f64,
    /// Pages that went out to swap.
    pub swapped_out: f64,
    /// Bytes read from files.
    pub read: f64,
    /// Bytes written to files.
    pub written: f64,
}

impl Rates {
    /// The differences of the counters `after` and `before`, which are `ms` milliseconds apart, in a
    /// second.
    fn between(before: &ProcessUse, after: &ProcessUse, ms: u64) -> Self {
        let rate = |before: u64, after: u64| after.saturating_sub(before) as f64 * 1000.0 / ms.max(1) as f64;
        Self {
            faults: rate(before.faults, after.faults),
            major: rate(before.major_faults, after.major_faults),
            refaults: rate(before.refaults, after.refaults),
            swapped_in: rate(before.swapped_in, after.swapped_in),
            swapped_out: rate(before.swapped_out, after.swapped_out),
            read: rate(before.read_bytes, after.read_bytes),
            written: rate(before.written_bytes, after.written_bytes),
        }
    }

    fn and(&self, other: &Self) -> Self {
        Self {
            faults: self.faults + other.faults,
            major: self.major + other.major,
            refaults: self.refaults + other.refaults,
            swapped_in: self.swapped_in + other.swapped_in,
            swapped_out: self.swapped_out + other.swapped_out,
            read: self.read + other.read,
            written: self.written + other.written,
        }
    }
}

/// What is shown: a sample with the rates that are known.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Report {
    /// The sample, without its rows: they are in `rows`.
    pub sample: Sample,
    /// The rates of all processes. `None`: there was no earlier sample.
    pub rates: Option<Rates>,
    /// The processes.
    pub rows: Vec<RatedRow>,
}

/// A process with its rates.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RatedRow {
    /// The process.
    pub row: Row,
    /// Its rates. `None`: it has not noted its counters twice.
    pub rates: Option<Rates>,
}

/// A process as the last sample had it, with its rates.
#[derive(Debug, Clone, Copy)]
struct Track {
    age_ms: u64,
    noted_ms: Option<u64>,
    used: ProcessUse,
    rates: Option<Rates>,
}

/// Makes a report of each sample, by comparison with the sample before.
#[derive(Debug, Default)]
pub struct History {
    tracks: HashMap<u32, Track>,
    /// From the last sample: the age of the run in milliseconds, and the counters of processes that have
    /// ended.
    last: Option<(u64, ProcessUse)>,
}

impl History {
    /// The report of the next sample. A sample that is older than the last one begins a new history.
    pub fn next(&mut self, mut sample: Sample) -> Report {
        if self.last.is_some_and(|(age_ms, _)| sample.age_ms < age_ms) {
            *self = Self::default();
        }
        let before = std::mem::take(&mut self.tracks);
        let mut rows = Vec::with_capacity(sample.rows.len());
        for row in std::mem::take(&mut sample.rows) {
            // A process that is younger than before is another one with the same id.
            let track = before.get(&row.pid).filter(|track| track.age_ms <= row.age_ms);
            let track = Track::next(track, &row, sample.age_ms);
            self.tracks.insert(row.pid, track);
            rows.push(RatedRow { rates: track.rates, row });
        }
        let of_ended = self.last.map(|(age_ms, ended)| {
            // What processes that have ended counted after the last sample. `seen` is the part that was
            // known by then.
            let is_there = |pid, track: &Track| {
                self.tracks.get(pid).is_some_and(|now: &Track| now.age_ms >= track.age_ms)
            };
            let left = before.iter().filter(|(pid, track)| !is_there(*pid, track));
            let seen = left.fold(ended, |sum, (_, track)| sum.and(&track.used));
            Rates::between(&seen, &sample.ended, sample.age_ms - age_ms)
        });
        let rates =
            of_ended.map(|ended| rows.iter().filter_map(|row| row.rates).fold(ended, |a, b| a.and(&b)));
        self.last = Some((sample.age_ms, sample.ended));
        Report { sample, rates, rows }
    }

    /// Whether the rates of all processes that note their counters are known.
    pub fn is_complete(&self) -> bool {
        let waits = |track: &Track| track.noted_ms.is_some() && track.rates.is_none();
        self.last.is_some() && !self.tracks.values().any(waits)
    }
}

impl Track {
    fn next(before: Option<&Self>, row: &Row, run_age_ms: u64) -> Self {
        let now = Self { age_ms: row.age_ms, noted_ms: row.noted_ms, used: row.used, rates: None };
        let is_silent = row.noted_ms.is_some_and(|noted| run_age_ms.saturating_sub(noted) > SILENT_MS);
        let rates = match before.map(|before| (before, before.noted_ms)) {
            Some((before, Some(noted))) if row.noted_ms.is_some_and(|now| now > noted) => {
                let ms = row.noted_ms.unwrap_or(noted) - noted;
                Some(Rates::between(&before.used, &row.used, ms))
            }
            _ if is_silent => Some(Rates::default()),
            Some((before, _)) => before.rates,
            None => None,
        };
        Self { rates, ..now }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(faults: u64) -> ProcessUse {
        ProcessUse { faults, major_faults: faults / 2, swapped_in: faults / 10, ..ProcessUse::default() }
    }

    fn row(pid: u32, age_ms: u64, noted_ms: u64, counted: u64) -> Row {
        Row { pid, age_ms, noted_ms: Some(noted_ms), used: faults(counted), ..Row::default() }
    }

    fn sample(age_ms: u64, rows: Vec<Row>) -> Sample {
        Sample { age_ms, rows, ..Sample::default() }
    }

    fn rate(report: &Report, at: usize) -> Option<f64> {
        report.rows[at].rates.map(|rates| rates.faults)
    }

    #[test]
    fn rates_are_those_between_notes_and_not_between_samples() {
        let mut history = History::default();
        let first = history.next(sample(1000, vec![row(1, 900, 800, 100)]));
        assert_eq!((first.rates, rate(&first, 0), history.is_complete()), (None, None, false));
        // No new note: nothing is known yet.
        let second = history.next(sample(1200, vec![row(1, 1100, 800, 100)]));
        assert_eq!((rate(&second, 0), second.rates.map(|rates| rates.faults)), (None, Some(0.0)));
        let third = history.next(sample(2000, vec![row(1, 1900, 1800, 600)]));
        assert_eq!((rate(&third, 0), history.is_complete()), (Some(500.0), true));
        let rates = third.rates.unwrap();
        assert_eq!((rates.faults, rates.major, rates.swapped_in), (500.0, 250.0, 50.0));
        // Between two notes the rate stays, and does not become 0 and then twice as much.
        let fourth = history.next(sample(2500, vec![row(1, 2400, 1800, 600)]));
        assert_eq!(rate(&fourth, 0), Some(500.0));
        let silent = history.next(sample(4801, vec![row(1, 4700, 1800, 600)]));
        assert_eq!(rate(&silent, 0), Some(0.0), "a stopped process does nothing");
    }

    #[test]
    fn a_process_without_a_manager_has_no_rates_and_is_not_waited_for() {
        let mut history = History::default();
        let shell = Row { pid: 5, age_ms: 10, ..Row::default() };
        assert!(!history.is_complete());
        let report = history.next(sample(1000, vec![shell.clone()]));
        assert_eq!((rate(&report, 0), history.is_complete()), (None, true));
        history.next(sample(9000, vec![shell, row(6, 100, 8900, 1)]));
        assert!(!history.is_complete());
    }

    #[test]
    fn another_process_with_the_same_id_begins_anew() {
        let mut history = History::default();
        history.next(sample(1000, vec![row(1, 900, 800, 1000)]));
        history.next(sample(2000, vec![row(1, 1900, 1800, 2000)]));
        let other = history.next(sample(3000, vec![row(1, 100, 2900, 50)]));
        assert_eq!(rate(&other, 0), None);
    }

    #[test]
    fn what_short_processes_count_is_in_the_rates_of_the_run() {
        let mut history = History::default();
        history.next(sample(1000, vec![row(1, 900, 800, 0), row(2, 300, 900, 70)]));
        // Process 2 has ended with 100, 70 of which were seen; one that was never seen has ended with 200.
        let ended = Sample { ended: faults(300), ..sample(2000, vec![row(1, 1900, 1800, 40)]) };
        let report = history.next(ended.clone());
        assert_eq!(report.rates.map(|rates| rates.faults), Some(40.0 + 230.0));
        let next = Sample { age_ms: 4000, ..ended };
        let report = history.next(Sample { rows: vec![row(1, 3900, 3800, 240)], ..next });
        assert_eq!(report.rates.map(|rates| rates.faults), Some(100.0));
    }

    #[test]
    fn counters_of_nonsense_do_no_harm() {
        let mut history = History::default();
        history.next(sample(1000, vec![row(1, 900, u64::MAX, u64::MAX)]));
        let report = history.next(sample(1000, vec![row(1, 900, 0, 0)]));
        assert_eq!(rate(&report, 0), None);
        let earlier = history.next(sample(10, vec![row(1, 5, 5, 5)]));
        assert_eq!(earlier.rates, None, "a sample of before is the first of another history");
    }
}
