//! The report: one HTML page, readable without a network, of files that `lab run` and `lab seeds` have
//! written.
//!
//! [`input`] reads the files; `section` makes the part about one workload of tables (`html`) and plots
//! (`chart`, `course`); `glance` is the table above them; `about` is what is said in words; `units` shows
//! figures.
//! Everything that comes from a file is escaped. Nothing is written before all files are read.

mod about;
mod chart;
mod course;
mod glance;
mod html;
mod input;
mod section;
mod units;

use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::Result;

use self::html::{Cell, Table, escaped, id};
use self::input::{Figures, Input};
use crate::engine;
use crate::output::OutputFile;
use crate::verdict::LEGEND;

const STYLE: &str = include_str!("style.css");

/// Reads files of figures and writes a page of them.
///
/// # Errors
/// Which files cannot be used, and why; or that the page cannot be written. What was there under its name
/// stays then.
pub fn write(files: &[PathBuf], output: &Path) -> Result<()> {
    let input = Input::read(files)?;
    OutputFile::prepare(output)?.write(&page(input)?)
}

/// The page of one object, as `lab seeds` has it.
///
/// # Errors
/// If it is not as the lab writes it.
pub fn of_value(value: serde_json::Value) -> Result<String> {
    let mut input = Input::default();
    input.add(value)?;
    page(input)
}

/// The table of all workloads of one such object, as text.
///
/// # Errors
/// As [`of_value`].
pub fn summary(value: serde_json::Value) -> Result<String> {
    let mut input = Input::default();
    input.add(value)?;
    Ok(glance::text(&input.figures))
}

fn page(mut input: Input) -> Result<String> {
    input.figures.sort_by_key(|figures| about::rank(&figures.workload));
    let anchors: Vec<String> = (1..)
        .zip(&input.figures)
        .map(|(number, figures)| format!("w{number}-{}", id(&figures.workload)))
        .collect();
    let mut page = String::from(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\
         <meta name=\"color-scheme\" content=\"light dark\"/><title>Elbowroom beside Linux</title>\n<style>",
    );
    page.push_str(STYLE);
    page.push_str(
        "</style></head>\n<body><main><h1>Elbowroom beside Linux: what each improvement is worth</h1>\n",
    );
    for text in about::INTRO {
        let _ = writeln!(page, "<p>{}</p>", escaped(text));
    }
    let _ = writeln!(page, "<p>{}</p>", escaped(&LEGEND.replace('\n', " ")));
    page.push_str("<ul class=\"engines\">");
    for line in engines(&input.figures).lines() {
        let _ = write!(page, "<li>{}</li>", escaped(line));
    }
    page.push_str("</ul>\n");
    page.push_str(&machines(&input.figures));
    page.push_str(&failures(&input));
    page.push_str(&glance::html(&input.figures, &anchors));
    for (figures, anchor) in input.figures.iter().zip(&anchors) {
        page.push_str(&section::html(figures, anchor)?);
    }
    page.push_str("</main></body></html>\n");
    Ok(page)
}

/// What each engine is of those that are there, a line each.
fn engines(all: &[Figures]) -> String {
    let names = all.iter().flat_map(|figures| &figures.engines);
    engine::legend(&names.filter_map(|name| name.parse().ok()).collect::<Vec<_>>())
}

/// Where the figures are from: a row for each machine.
fn machines(all: &[Figures]) -> String {
    let mut seen: Vec<Vec<String>> = Vec::new();
    for figures in all {
        let dash = || String::from("\u{2013}");
        let Some(machine) = &figures.machine else { continue };
        let readahead = figures.device.as_ref().map_or_else(dash, |device| {
            let own = device.readahead_bytes.map_or_else(|| "unknown".into(), units::bytes);
            format!("{}, readahead {own}", device.name)
        });
        let row = vec![
            machine.kernel.clone(),
            machine.processor.clone().unwrap_or_else(dash),
            machine.cpus.to_string(),
            units::bytes(machine.memory_bytes),
            readahead,
            figures.version.clone().unwrap_or_else(dash),
            figures.commit.clone().unwrap_or_else(dash),
            figures.date.as_ref().map_or_else(dash, |date| date.chars().take(10).collect()),
        ];
        // Of the same machine a workload without files says less than one with them.
        let is_same = |other: &Vec<String>| {
            let same = |range: std::ops::Range<usize>| other[range.clone()] == row[range];
            same(0..4) && same(5..8) && (other[4] == row[4] || row[4] == dash() || other[4] == dash())
        };
        match seen.iter_mut().find(|other| is_same(other)) {
            Some(other) if other[4] == dash() => other[4] = row[4].clone(),
            Some(_) => {}
            None => seen.push(row),
        }
    }
    let columns =
        ["Kernel", "Processor", "CPUs", "Memory", "Device", "Elbowroom", "Commit", "Date"].map(String::from);
    let mut table = Table::new("Measured on", &columns, 8);
    for row in seen {
        let (first, rest) = row.split_first().expect("a row has eight cells");
        table.row(first, &rest.iter().map(Cell::words).collect::<Vec<_>>());
    }
    table.done()
}

/// What could not be measured.
fn failures(input: &Input) -> String {
    let mut html = String::new();
    for failed in &input.failed {
        let text = format!("{} could not be measured: {}", failed.workload, failed.error);
        let _ = writeln!(html, "<p class=\"problem\">{}</p>", escaped(&text));
    }
    html
}

#[cfg(test)]
mod tests;
