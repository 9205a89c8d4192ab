//! What programs need by `--memory auto`, and whether they could do with less.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde_json::{Value, json};

use super::all_stats;
use super::report::Report;
use crate::engine::{Engine, Kind};
use crate::report::align;
use crate::size::Size;

/// `--memory auto` may take so many times the time of a budget in which everything fits.
const MOST_RATIO: f64 = 1.05;

/// With what was needed, divided by this, a program is to take longer.
const LESS: f64 = 1.3;

/// The least that a manager can have.
const LEAST_BYTES: u64 = 16 << 20;

/// What the processes of a run have allocated and needed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Need {
    pub allocated_bytes: u64,
    pub needed_bytes: u64,
}

/// The sums over all processes of a run, by the statistics in a directory; `None`: it was not found out.
pub fn need(dir: &Path) -> Result<Option<Need>> {
    let mut sum = None::<Need>;
    for stats in all_stats(dir)? {
        let of = |key: &str| stats[key].as_u64();
        if let (Some(allocated), Some(needed)) = (of("allocated_bytes"), of("needed_bytes")) {
            let sum = sum.get_or_insert_default();
            sum.allocated_bytes += allocated;
            sum.needed_bytes += needed;
        }
    }
    Ok(sum)
}

/// The budget of the run that has less than what was needed.
pub fn less(needed: Option<Need>) -> Result<Size> {
    let needed = needed.context("nothing of it was managed with --memory auto")?.needed_bytes;
    let less = (needed as f64 / LESS) as u64;
    ensure!(less >= LEAST_BYTES, "it needs {} MiB only, and a budget has 16 MiB at least", needed >> 20);
    Ok(Size::from_bytes(less >> 12 << 12))
}

/// A program with `--memory auto`.
struct Auto<'a> {
    program: &'a str,
    need: Need,
    /// Of the medians, to that of a budget in which everything fits.
    ratio: Option<f64>,
    ratio_of_less: Option<f64>,
}

fn all(report: &Report) -> Vec<Auto<'_>> {
    let [whole, auto, less] = [Kind::Elbowroom, Kind::ElbowroomAuto, Kind::ElbowroomLess].map(Engine::whole);
    let of = |program: &'static str| {
        let runs = report.runs.iter().filter(|run| run.program == program && run.engine == auto);
        let mut needs: Vec<_> = runs.filter_map(|run| run.sums.need).collect();
        needs.sort_by_key(|need| need.needed_bytes);
        let need = *needs.get(needs.len() / 2)?;
        let ratio = |engine| report.ratio_of(program, engine, whole);
        Some(Auto { program, need, ratio: ratio(auto), ratio_of_less: ratio(less) })
    };
    report.programs().into_iter().filter_map(of).collect()
}

/// The rows below the seconds; empty if nothing ran with `--memory auto`.
pub fn table(report: &Report) -> String {
    let rows: Vec<_> = all(report)
        .into_iter()
        .map(|Auto { program, need, ratio, ratio_of_less }| {
            let mebibytes = |bytes: u64| format!("{} MiB", bytes >> 20);
            let shown =
                |ratio: Option<f64>| ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.3}"));
            let is = |met: Option<bool>| met.map_or("-", |met| if met { "yes" } else { "NO" }).to_owned();
            vec![
                program.to_owned(),
                mebibytes(need.allocated_bytes),
                mebibytes(need.needed_bytes),
                shown(ratio),
                is(ratio.map(|ratio| ratio <= MOST_RATIO)),
                shown(ratio_of_less),
                is(ratio_of_less.map(|ratio| ratio > MOST_RATIO)),
            ]
        })
        .collect();
    let mut text = String::new();
    if !rows.is_empty() {
        let header = [
            "--memory auto",
            "allocated",
            "needed",
            "time",
            "at most 1.05",
            "with needed/1.3",
            "more than that",
        ];
        let header = header.map(str::to_owned).to_vec();
        text.push('\n');
        align(&[vec![header], rows].concat(), &mut text);
    }
    text
}

/// The same as a list of objects.
pub fn json(report: &Report) -> Value {
    let object = |Auto { program, need, ratio, ratio_of_less }| {
        json!({
            "program": program,
            "allocated_bytes": need.allocated_bytes,
            "needed_bytes": need.needed_bytes,
            "ratio": ratio,
            "ratio_of_less": ratio_of_less,
        })
    };
    all(report).into_iter().map(object).collect()
}
