//! All workloads at a glance: of each the figure that it is about, as a table of the page and as text.

use std::fmt::Write;

use super::html::escaped;
use super::input::{Figures, is_whole};
use super::units::{change, change_of, show};
use crate::report::align;

const COLUMNS: [&str; 8] =
    ["Workload", "Figure", "Engine", "Kernel", "Before", "After", "Change", "Published"];
/// How many of them are words.
const WORDS: usize = 3;

/// A row for each of ours that has all improvements. Name and figure are in the first only.
fn rows(figures: &Figures) -> Vec<[String; 8]> {
    let Some((key, label)) = figures.headline() else { return Vec::new() };
    let value = |engine: &str| figures.median(engine, &key);
    let dash = || String::from("\u{2013}");
    let shown = |value: Option<f64>| value.map_or_else(dash, |value| show(&key, value));
    let changed = |percent: Option<f64>| percent.map_or_else(dash, change);
    let published = figures.published.iter().find(|published| published.key == key);
    let published = published.and_then(|published| published.change_percent);
    let own = figures.own_pairs();
    let ours = figures.engines.iter().filter(|engine| is_whole(engine));
    ours.enumerate()
        .map(|(number, after)| {
            let before = own.iter().find(|(_, of)| of == &after.as_str()).map(|(before, _)| *before);
            let (off, on) = (before.and_then(value), value(after));
            let percent = off.zip(on).and_then(|(off, on)| change_of(off, on));
            let first = |text: &str| if number == 0 { text.to_owned() } else { String::new() };
            [
                first(&figures.workload),
                first(&label),
                after.clone(),
                shown(value("kernel")),
                shown(off),
                shown(on),
                changed(percent),
                changed(published.filter(|_| number == 0)),
            ]
        })
        .collect()
}

/// The table of the page. The names are links to the sections.
pub fn html(all: &[Figures], anchors: &[String]) -> String {
    let mut html = String::from(
        "<h2>At a glance</h2>\n<div class=\"scroll\"><table><caption>The figure that each workload is about \
         (medians); before is without the first improvement that is switched off</caption><thead><tr>",
    );
    let class = |number: usize| if number < WORDS { "" } else { " class=\"n\"" };
    for (number, column) in COLUMNS.iter().enumerate() {
        let _ = write!(html, "<th scope=\"col\"{}>{column}</th>", class(number));
    }
    html.push_str("</tr></thead>");
    for (figures, anchor) in all.iter().zip(anchors) {
        html.push_str("<tbody>");
        for row in rows(figures) {
            let [name, rest @ ..] = row;
            let name = escaped(&name);
            let link = if name.is_empty() { name } else { format!("<a href=\"#{anchor}\">{name}</a>") };
            let _ = write!(html, "<tr><th scope=\"row\">{link}</th>");
            for (number, cell) in (1..).zip(&rest) {
                let _ = write!(html, "<td{}>{}</td>", class(number), escaped(cell));
            }
            html.push_str("</tr>\n");
        }
        html.push_str("</tbody>");
    }
    (html + "</table></div>\n").replace("<tbody></tbody>", "")
}

/// The same for a terminal.
pub fn text(all: &[Figures]) -> String {
    let mut table = vec![COLUMNS.map(String::from).to_vec()];
    table.extend(all.iter().flat_map(rows).map(|row| row.to_vec()));
    let mut text = String::new();
    align(&table, &mut text);
    text
}
