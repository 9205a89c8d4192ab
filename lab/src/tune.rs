//! What each improvement and each tuned constant is worth in one workload: runs with it switched off, beside
//! runs with all on.

use anyhow::Result;
use serde_json::{Value, json};

use crate::cli::Workload;
use crate::record::Record;
use crate::report::{align, median};
use crate::verdict::{LEGEND, Spread, Verdict, ratio};

/// What was measured of one thing with all on, and with it off.
pub struct Worth {
    name: String,
    on: Figures,
    off: Figures,
}

/// Of each run.
#[derive(Default)]
struct Figures {
    pages_per_second: Vec<f64>,
    cpu_ns_per_page: Vec<f64>,
}

impl Figures {
    fn push(&mut self, record: &Record) {
        self.pages_per_second.push(record.pages_in_time as f64 / record.measured_seconds);
        let cpu_ns = (record.cpu_user_ns + record.cpu_system_ns) as f64;
        self.cpu_ns_per_page.push(cpu_ns / (record.pages_total as f64).max(1.0));
    }

    fn json(&self) -> Value {
        json!({ "pages_per_second": self.pages_per_second, "cpu_ns_per_page": self.cpu_ns_per_page })
    }
}

impl Worth {
    /// Nothing measured yet.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), on: Figures::default(), off: Figures::default() }
    }

    /// Adds a run.
    pub fn push(&mut self, all_on: bool, record: &Record) {
        if all_on { self.on.push(record) } else { self.off.push(record) }
    }

    /// The median over pairs of runs of what is gained by it: how much faster, and how much of the processor
    /// time is left.
    fn gains(&self) -> (Option<f64>, Option<f64>) {
        let of = |on: &[f64], off: &[f64]| {
            median(on.iter().zip(off).filter_map(|(on, off)| ratio(*on, *off)).collect())
        };
        let speed = of(&self.on.pages_per_second, &self.off.pages_per_second);
        (speed, of(&self.on.cpu_ns_per_page, &self.off.cpu_ns_per_page))
    }

    /// How far the runs with all on are from each other, as a share of their median.
    fn noise(&self) -> Option<f64> {
        let Spread { least, median, most, .. } = Spread::of(self.on.pages_per_second.clone())?;
        ratio(most - least, median)
    }

    /// What is said of it, by all runs.
    fn verdict(&self) -> Option<Verdict> {
        let spread = |figures: &Figures| Spread::of(figures.pages_per_second.clone());
        Verdict::of("pages_per_second", &spread(&self.on)?, &spread(&self.off)?)
    }

    /// One line about it.
    pub fn line(&self) -> String {
        let [name, speed, cpu, noise, verdict] = self.cells();
        format!("{name}: pages/s on/off {speed}, CPU per page on/off {cpu}, noise {noise}, {verdict}")
    }

    fn cells(&self) -> [String; 5] {
        let show = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"));
        let (speed, cpu) = self.gains();
        let verdict = self.verdict().map_or("-", Verdict::word).to_owned();
        [self.name.clone(), show(speed), show(cpu), show(self.noise()), verdict]
    }
}

/// The table of all.
pub fn table(worths: &[Worth]) -> String {
    let header =
        ["switched off", "pages/s on/off", "CPU per page on/off", "noise of pages/s on", "pages/s with it"];
    let rows: Vec<_> =
        [header.map(str::to_owned)].into_iter().chain(worths.iter().map(Worth::cells)).collect();
    let mut text = String::new();
    align(&rows.iter().map(|row| row.to_vec()).collect::<Vec<_>>(), &mut text);
    text + "\n" + LEGEND
}

/// The object of all, with the single runs.
///
/// # Errors
/// If the parameters cannot be written down.
pub fn json(workload: &Workload, worths: &[Worth]) -> Result<Value> {
    let of = |worth: &Worth| {
        let (speed, cpu) = worth.gains();
        json!({
            "name": worth.name,
            "pages_per_second_on_over_off": speed,
            "cpu_per_page_on_over_off": cpu,
            "noise": worth.noise(),
            "verdict": worth.verdict().map(Verdict::word),
            "on": worth.on.json(),
            "off": worth.off.json(),
        })
    };
    let switched_off: Vec<_> = worths.iter().map(of).collect();
    Ok(json!({ "parameters": serde_json::to_value(workload)?, "switched_off": switched_off }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Kind;

    #[test]
    fn what_is_gained_is_the_median_over_pairs() {
        let mut worth = Worth::new("x");
        for (on, off) in [(300, 100), (200, 100), (100, 200)] {
            worth.push(true, &Record::of_pages(Kind::Elbowroom, 1, on, 1.0));
            worth.push(false, &Record::of_pages(Kind::Elbowroom, 1, off, 1.0));
        }
        assert_eq!((worth.gains().0, worth.noise()), (Some(2.0), Some(1.0)));
        assert!(worth.line().starts_with("x: pages/s on/off 2.00, "), "{}", worth.line());
        // Runs with it are of 100 to 300 pages.
        assert!(worth.line().ends_with(", unclear"), "{}", worth.line());
        assert!(table(&[worth]).lines().nth(1).unwrap().ends_with("unclear"));
    }
}
