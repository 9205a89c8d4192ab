//! The lines of `top`: the header, the table of processes, the footer, the help. Pure; [`crate::top::draw`]
//! puts them on a screen, and `--once` prints them.

use elbowroom::StallAverages;
use ratatui_core::style::{Color, Modifier, Style, Stylize};
use ratatui_core::text::{Line, Span};

use crate::runs::{count, printable};
use crate::top::columns::{self, Column, Table, rate, size};
use crate::top::rates::{RatedRow, Report};
use crate::top::sample::RunPressure;
use crate::top::view::{KEYS, View};

/// The widest meter in the header, in characters.
const WIDEST_METER: usize = 100;
/// A meter that would be narrower than this is left out.
const NARROWEST_METER: usize = 4;

/// The size of a page, in bytes: rates of swap are in pages.
const PAGE_BYTES: f64 = 4096.0;

/// The header: the run, its memory, its swap, its rates, its pressure.
pub fn header(report: &Report, width: usize) -> Vec<Line<'static>> {
    let sample = &report.sample;
    let about = [
        format!("run {}", sample.run),
        printable(&sample.command),
        format!("up {}", clock(sample.age_ms)),
        count(report.rows.len() as u64),
        format!("{} so far", sample.processes),
    ];
    let amount = |bytes, max, peak: Option<u64>| {
        let peak = peak.map_or_else(String::new, |peak| format!(", peak {}", size(peak)));
        format!("{} of {}{peak}", size(bytes), size(max))
    };
    let memory = amount(sample.bytes, sample.max_bytes, Some(sample.peak_bytes));
    let swap = amount(sample.swap_bytes, sample.swap_max_bytes, None);
    let text_width = memory.len().max(swap.len());
    vec![
        Line::from(joined(&about, width).bold()),
        meter("mem ", sample.bytes, sample.max_bytes, &memory, text_width, width),
        meter("swap", sample.swap_bytes, sample.swap_max_bytes, &swap, text_width, width),
        Line::from(joined(&rates(report), width)),
        Line::from(joined(&pressure(report), width)),
    ]
}

/// The pressure of the process that has the most.
fn pressure(report: &Report) -> Vec<String> {
    let percent =
        |name, of: &StallAverages| format!("{name} {:.1} {:.1} {:.1} %", of.avg10, of.avg60, of.avg300);
    let RunPressure { some, full } = &report.sample.pressure;
    vec![percent("some", some), percent("full", full), "in 10, 60, 300 s".to_owned()]
}

fn rates(report: &Report) -> Vec<String> {
    let Some(rates) = report.rates else { return vec!["rates follow with the next sample".to_owned()] };
    let bytes = |rate: f64| size(rate as u64);
    vec![
        format!("flt {}/s", rate(rates.faults)),
        format!("maj {}/s", rate(rates.major)),
        format!("ref {}/s", rate(rates.refaults)),
        format!("swap in {}/s", bytes(rates.swapped_in * PAGE_BYTES)),
        format!("out {}/s", bytes(rates.swapped_out * PAGE_BYTES)),
        format!("read {}/s", bytes(rates.read)),
        format!("write {}/s", bytes(rates.written)),
    ]
}

/// A line of the first parts, as many as fit into `width` characters.
fn joined(parts: &[String], width: usize) -> String {
    let mut line = String::new();
    for part in parts {
        let gap = if line.is_empty() { "" } else { "  " };
        if line.chars().count() + gap.len() + part.chars().count() > width {
            break;
        }
        line = line + gap + part;
    }
    line
}

/// How many of `width` characters stand for `part` of `whole`: at least one if `part` is not 0.
fn filled(part: u64, whole: u64, width: usize) -> usize {
    let exact = part.min(whole) as f64 / whole.max(1) as f64 * width as f64;
    (exact.round() as usize).clamp(usize::from(part > 0).min(width), width)
}

/// A bar with a text behind it. The texts of all meters have `text_width` characters, so that the bars have
/// the same length.
fn meter(label: &str, used: u64, max: u64, text: &str, text_width: usize, width: usize) -> Line<'static> {
    let inside = width.saturating_sub(label.len() + text_width + 4).min(WIDEST_METER);
    if inside < NARROWEST_METER {
        return Line::from(format!("{label} {text}").chars().take(width).collect::<String>());
    }
    let full = filled(used, max, inside);
    let color = match used as f64 / max.max(1) as f64 {
        part if part < 0.75 => Color::Green,
        part if part < 0.95 => Color::Yellow,
        _ => Color::Red,
    };
    Line::from(vec![
        Span::from(format!("{label} [")),
        Span::styled("|".repeat(full), Style::new().fg(color)),
        Span::from(" ".repeat(inside - full)),
        Span::from(format!("] {text}")),
    ])
}

/// The titles of the columns.
pub fn titles(columns: &[(Column, usize)], view: &View) -> Line<'static> {
    let title = |(column, width): &(Column, usize)| {
        let is_sorted_by = *column == view.sort;
        let style = if is_sorted_by { Style::new().bold().underlined() } else { Style::new() };
        Span::styled(aligned(column.title(), *column, *width), style)
    };
    spaced(columns.iter().map(|column| vec![title(column)])).patch_style(Modifier::REVERSED)
}

/// A row of the table. `max`: the run's max in bytes, for which the whole bar stands.
pub fn row(columns: &[(Column, usize)], row: &RatedRow, max: u64) -> Line<'static> {
    let cells = columns.iter().map(|(column, width)| match column {
        Column::Bar => bar(row, max, *width),
        _ => {
            let cell = aligned(&printable(&column.text(row)), *column, *width);
            let is_gone = row.row.is_gone && *column == Column::Name;
            vec![if is_gone { cell.red() } else { Span::from(cell) }]
        }
    });
    spaced(cells)
}

/// A bar: the memory that a process has, as a part of the run's max. `#` is protected memory, `|` the rest.
fn bar(row: &RatedRow, max: u64, width: usize) -> Vec<Span<'static>> {
    let row = &row.row;
    let full = filled(row.bytes, max, width);
    let protected = filled(row.low_bytes.min(row.bytes), max, width).min(full);
    vec![
        "#".repeat(protected).green(),
        "|".repeat(full - protected).cyan(),
        Span::from(" ".repeat(width - full)),
    ]
}

fn aligned(text: &str, column: Column, width: usize) -> String {
    let text: String = text.chars().take(width).collect();
    if column.is_text() { format!("{text:<width$}") } else { format!("{text:>width$}") }
}

fn spaced(cells: impl Iterator<Item = Vec<Span<'static>>>) -> Line<'static> {
    let mut spans = Vec::new();
    for cell in cells {
        if !spans.is_empty() {
            spans.push(Span::from(" "));
        }
        spans.extend(cell);
    }
    Line::from(spans)
}

/// The last line: `note`, and then the filter if there is one, or else the most important keys. `note`: the
/// state of a replay, or empty.
pub fn footer(view: &View, note: &str) -> Line<'static> {
    use crate::top::view::Mode;
    let text = match view.mode {
        Mode::Filter => format!("only rows with: {}_", view.filter),
        _ if !view.filter.is_empty() => format!("only rows with: {}  (Esc shows all)", view.filter),
        _ => "q leave  ? help  Tab pressure, tiers  / filter  < > sort".to_owned(),
    };
    let note = if note.is_empty() { String::new() } else { format!("{note}  ") };
    Line::from(note + &text)
}

/// The help.
pub fn help(width: usize) -> Vec<Line<'static>> {
    let widest = KEYS.iter().map(|(keys, _)| keys.len()).max().unwrap_or_default();
    let mut lines = vec![Line::from("elbowroom top: a run of `elbowroom run`, by its processes".bold())];
    let indent = " ".repeat(widest + 2);
    for (keys, does) in KEYS {
        let options = textwrap::Options::new(width.max(widest + 20)).subsequent_indent(&indent);
        let text = format!("{keys:widest$}  {does}");
        lines.extend(textwrap::wrap(&text, options).into_iter().map(|line| Line::from(line.into_owned())));
    }
    lines.push(Line::from(""));
    let about = "In bars # is protected memory (low). Rates are those between the last two times that a \
                 process noted its counters, about a second apart; - is unknown. SOME and FULL are \
                 percent of the last 10, 60 and 300 s in which some thread waited for memory, or all did; \
                 in the header those of the process with the most. POOL is memory with compressed pages, \
                 FILE the swap file, OUT pages that are in either. WAIT and LRU are sums since the start. \
                 docs/groups.md";
    lines.extend(textwrap::wrap(about, width.max(20)).into_iter().map(|line| Line::from(line.into_owned())));
    lines
}

/// The header and all tables as text, for `--once` and for terminals that cannot draw a screen.
pub fn text(report: &Report, view: &View, width: usize) -> String {
    let mut lines = header(report, width);
    for table in Table::ALL {
        if table != Table::Use {
            lines.push(Line::default());
        }
        let (columns, view) = (columns::fit(table, width), view.of(table));
        lines.push(titles(&columns, &view));
        lines.extend(view.rows(report).into_iter().map(|each| row(&columns, each, report.sample.max_bytes)));
    }
    lines.iter().map(|line| line.to_string().trim_end().to_owned() + "\n").collect()
}

/// A time in milliseconds as hours, minutes and seconds, and days where there are any.
pub fn clock(ms: u64) -> String {
    let seconds = ms / 1000;
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    let days = if days > 0 { format!("{days}d ") } else { String::new() };
    format!("{days}{hours}:{minutes:02}:{:02}", seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_show_parts() {
        assert_eq!(filled(0, 100, 10), 0);
        assert_eq!(filled(1, 100, 10), 1, "a little is not nothing");
        assert_eq!((filled(50, 100, 10), filled(100, 100, 10), filled(300, 100, 10)), (5, 10, 10));
        assert_eq!((filled(5, 0, 10), filled(5, 10, 0)), (1, 0));
    }

    #[test]
    fn a_clock() {
        assert_eq!((clock(999), clock(61_000)), ("0:00:00".to_owned(), "0:01:01".to_owned()));
        assert_eq!(clock(1000 * (86_400 * 3 + 3600 * 4 + 5)), "3d 4:00:05");
    }

    #[test]
    fn parts_that_do_not_fit_are_left_out() {
        let parts = ["ab".to_owned(), "cd".to_owned(), "e".to_owned()];
        assert_eq!(joined(&parts, 9), "ab  cd  e");
        assert_eq!((joined(&parts, 8), joined(&parts, 1)), ("ab  cd".to_owned(), String::new()));
    }

    #[test]
    fn every_line_has_its_width() {
        let report = Report::default();
        for width in 1..200 {
            for line in header(&report, width) {
                assert!(line.width() <= width, "{width}: {line}");
            }
        }
    }
}
