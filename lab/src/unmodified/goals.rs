//! What the figures of the programs should be, and whether they are: the time of what fits, and the peak of
//! resident memory.

use serde_json::{Value, json};

use super::report::{Report, Run};
use crate::engine::{Engine, Kind};
use crate::report::align;
use crate::resident::Parts;
use crate::size::Size;

/// A program that fits takes at most so many times what it takes without Elbowroom.
const MOST_RATIO: f64 = 1.05;

/// A program under one of our engines, beside the same without.
struct Fits<'a> {
    program: &'a str,
    engine: Engine,
    /// The medians' ratio, if it ran without, too.
    ratio: Option<f64>,
    /// Of all its runs; `None` if one of them has left no statistics: no process of it had a manager.
    pages_out: Option<u64>,
}

impl Fits<'_> {
    /// Whether the goal is met; `None` if nothing is known about it.
    fn is_met(&self) -> Option<bool> {
        self.ratio.filter(|_| self.pages_out == Some(0)).map(|ratio| ratio <= MOST_RATIO)
    }

    fn verdict(&self) -> String {
        match (self.is_met(), self.pages_out) {
            (Some(met), _) => yes_or_no(met).to_owned(),
            (None, Some(1..)) => "pages went out; raise --memory unless the peak is far below it".to_owned(),
            (None, None) => "nothing of it was managed".to_owned(),
            (None, Some(0)) => "-".to_owned(),
        }
    }
}

/// The highest peak of a program's runs under one of our engines.
struct Highest<'a> {
    program: &'a str,
    engine: Engine,
    rss_bytes: u64,
    parts: Parts,
    budget: Size,
    allowed: u64,
    is_kept: bool,
}

fn yes_or_no(met: bool) -> &'static str {
    if met { "yes" } else { "NO" }
}

fn of<'a>(report: &'a Report, program: &'a str, engine: Engine) -> impl Iterator<Item = &'a Run> {
    report.runs.iter().filter(move |run| run.program == program && run.engine == engine)
}

/// Each program with each of our engines.
fn each(report: &Report) -> impl Iterator<Item = (&'static str, Engine)> {
    let ours: Vec<_> = report.engines.iter().copied().filter(|engine| !engine.is_kernel()).collect();
    let programs = report.programs().into_iter();
    programs.flat_map(move |program| ours.clone().into_iter().map(move |engine| (program, engine)))
}

fn fits(report: &Report) -> Vec<Fits<'_>> {
    let plain = Engine::whole(Kind::Plain);
    let all = each(report).filter(|(program, engine)| of(report, program, *engine).next().is_some());
    let fits = |(program, engine)| {
        let pages_out = of(report, program, engine).map(|run| run.sums.pages_out).sum();
        Fits { program, engine, ratio: report.ratio_of(program, engine, plain), pages_out }
    };
    if report.in_memory { all.map(fits).collect() } else { Vec::new() }
}

fn highest(report: &Report) -> Vec<Highest<'_>> {
    let highest = |(program, engine)| {
        let runs = of(report, program, engine);
        let peaks = runs.filter_map(|run| Some((run.peak?, Size::from_bytes(run.memory_bytes))));
        let (peak, budget) = peaks.max_by_key(|(peak, _)| peak.rss_bytes)?;
        let (parts, allowed, is_kept) = (peak.parts?, peak.allowed(budget)?, peak.is_kept(budget)?);
        Some(Highest { program, engine, rss_bytes: peak.rss_bytes, parts, budget, allowed, is_kept })
    };
    each(report).filter_map(highest).collect()
}

/// The rows below the seconds; empty if there are no goals for what ran.
pub fn table(report: &Report) -> String {
    let mut text = String::new();
    let mut add = |header: &[&str], rows: Vec<Vec<String>>| {
        if !rows.is_empty() {
            let header = header.iter().map(|word| (*word).to_owned()).collect();
            text.push('\n');
            align(&[vec![header], rows].concat(), &mut text);
        }
    };
    let fits = fits(report).into_iter().map(|fits| {
        let ratio = fits.ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.3}"));
        let out = fits.pages_out.map_or_else(|| "-".to_owned(), |pages| pages.to_string());
        vec![fits.program.to_owned(), fits.engine.to_string(), ratio, out, fits.verdict()]
    });
    add(&["what fits", "engine", "time/plain", "pages out", "at most 1.05"], fits.collect());
    let mebibytes = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
    let peaks = highest(report).into_iter().map(|peak| {
        let Parts { managed, own, unmanaged } = peak.parts;
        let figures = [peak.rss_bytes, managed, own, unmanaged, peak.budget.bytes(), peak.allowed];
        let names = [peak.program.to_owned(), peak.engine.to_string()];
        let kept = yes_or_no(peak.is_kept).to_owned();
        names.into_iter().chain(figures.map(mebibytes)).chain([kept]).collect()
    });
    let header =
        ["peak resident", "engine", "VmRSS", "managed", "ours", "unmanaged", "budget", "allowed", "kept"];
    add(&header, peaks.collect());
    text
}

/// The same as lists of objects.
pub fn json(report: &Report) -> Value {
    let fits = fits(report).into_iter().map(|fits| {
        json!({
            "program": fits.program,
            "engine": fits.engine,
            "ratio": fits.ratio,
            "most_ratio": MOST_RATIO,
            "pages_out": fits.pages_out,
            "is_met": fits.is_met(),
        })
    });
    let peaks = highest(report).into_iter().map(|peak| {
        json!({
            "program": peak.program,
            "engine": peak.engine,
            "peak_rss_bytes": peak.rss_bytes,
            "parts": peak.parts,
            "allowed_bytes": peak.allowed,
            "is_met": peak.is_kept,
        })
    });
    json!({ "in_memory": fits.collect::<Vec<_>>(), "peak_resident": peaks.collect::<Vec<_>>() })
}

#[cfg(test)]
mod tests {
    use super::super::report::Sums;
    use super::*;
    use crate::procfs;
    use crate::resident::Peak;

    fn run(program: &'static str, engine: Engine, seconds: f64, pages_out: Option<u64>) -> Run {
        let parts = Parts { managed: 0, own: 0, unmanaged: 10 << 20 };
        let peak = Peak { rss_bytes: 143 << 20, parts: Some(parts), samples: 1 };
        Run {
            program,
            engine,
            run: 1,
            seconds,
            lines_per_second: None,
            lines_are: "",
            cpu_seconds: 1.0,
            device_read_bytes: None,
            device_written_bytes: None,
            load: None,
            result: "same".to_owned(),
            memory_bytes: 100 << 20,
            peak: (!engine.is_kernel()).then_some(peak),
            sums: Sums { pages_out, ..Sums::default() },
            engine_stats: None,
        }
    }

    #[test]
    fn what_is_slower_or_paged_out_or_has_too_much_is_said() {
        let engines = vec![Engine::whole(Kind::Plain), Engine::whole(Kind::Elbowroom)];
        let of = |program, seconds, out| {
            [run(program, engines[0], 1.0, None), run(program, engines[1], seconds, out)]
        };
        let runs = [
            of("fast", 1.05, Some(0)),
            of("slow", 1.06, Some(0)),
            of("out", 1.0, Some(3)),
            of("unmanaged", 1.0, None),
        ];
        let mut report = Report {
            parameters: Value::Null,
            machine: procfs::machine().unwrap(),
            description: "here".to_owned(),
            in_memory: true,
            engines: engines.clone(),
            left_out: Vec::new(),
            ours_failed: false,
            runs: runs.into_iter().flatten().collect(),
        };
        let met: Vec<_> = fits(&report).iter().map(Fits::is_met).collect();
        assert_eq!(met, [Some(true), Some(false), None, None]);
        let text = table(&report);
        for said in ["yes", "NO", "pages went out", "nothing of it was managed", "143.0 MiB"] {
            assert!(text.contains(said), "{said} in {text}");
        }
        // 100 + 32 + 10 MiB are allowed.
        assert!(highest(&report).iter().all(|peak| !peak.is_kept && peak.allowed == 142 << 20));
        assert_eq!(json(&report)["in_memory"][1]["is_met"], false);
        report.in_memory = false;
        assert!(fits(&report).is_empty());
    }
}
