//! All workloads at a glance: of each the figure that it is about, as a table of the page and as text.

use std::fmt::Write;

use super::html::{Cell, DASH, Table};
use super::input::{Figures, is_whole};
use super::units::{change, change_of, show};
use crate::load;
use crate::report::align;
use crate::verdict::{LEGEND, Verdict};

const COLUMNS: [&str; 9] =
    ["Workload", "Figure", "Engine", "Kernel", "Ours", "Ours / kernel", "Before", "Change", "Published"];
/// How many of them are words.
const WORDS: usize = 3;

/// A row for each of ours that has all improvements, without the first cell. The figure is in the first only.
fn rows(figures: &Figures) -> Vec<Vec<Cell>> {
    let Some((key, label)) = figures.headline() else { return Vec::new() };
    let spread = |engine: &str| figures.spread(engine, &key);
    let cell = |engine: Option<&str>| Cell::spread(engine.and_then(spread), |value| show(&key, value));
    let published = figures.published.iter().find(|published| published.key == key);
    let published = published.and_then(|published| published.change_percent).map(change);
    let published = published.unwrap_or_else(|| DASH.into());
    let (own, base) = (figures.own_pairs(), figures.base());
    let ours = figures.engines.iter().filter(|engine| is_whole(engine));
    ours.enumerate()
        .map(|(number, ours)| {
            let before = own.iter().find(|(_, of)| of == &ours.as_str()).map(|(before, _)| *before);
            let first = |text: &str| if number == 0 { text.to_owned() } else { String::new() };
            let both = before.and_then(spread).zip(spread(ours));
            let changed = both.and_then(|(before, after)| change_of(before.median, after.median)).map(change);
            let verdict = both.and_then(|(before, after)| Verdict::of(&key, &after, &before));
            vec![
                Cell::words(first(&label)),
                Cell::words(ours.clone()),
                cell(base),
                cell(Some(ours)),
                Cell::ratio(&key, spread(ours), base.and_then(spread)),
                cell(before),
                Cell::verdict(changed.unwrap_or_else(|| DASH.into()), verdict),
                Cell::figure(if number == 0 { published.clone() } else { DASH.into() }),
            ]
        })
        .collect()
}

/// The table of the page. The names are links to the sections.
pub fn html(all: &[Figures], anchors: &[String]) -> String {
    let caption = "The figure that each workload is about (medians, and the range of the runs); before is \
                   without the first improvement that is switched off";
    let mut table = Table::new(caption, &COLUMNS.map(String::from), WORDS);
    for (figures, anchor) in all.iter().zip(anchors) {
        table.group();
        for (number, row) in rows(figures).iter().enumerate() {
            match number {
                0 => table.row_to(anchor, &figures.workload, row),
                _ => table.row("", row),
            }
        }
    }
    format!("<h2>At a glance</h2>\n{}", table.done())
}

/// The same for a terminal, with what the words in it mean, and the warnings.
pub fn text(all: &[Figures]) -> String {
    let mut table = vec![COLUMNS.map(String::from).to_vec()];
    for figures in all {
        for (number, row) in rows(figures).iter().enumerate() {
            let name = if number == 0 { figures.workload.clone() } else { String::new() };
            table.push([name].into_iter().chain(row.iter().map(Cell::line)).collect());
        }
    }
    let mut text = String::new();
    align(&table, &mut text);
    let _ = write!(text, "\n{LEGEND}\n{}", super::engines(all));
    for figures in all {
        if let Some(warning) = load::warning(&figures.loads()) {
            let _ = writeln!(text, "WARNING: {}: {warning}", figures.workload);
        }
    }
    text
}
