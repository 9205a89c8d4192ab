//! Puts the lines of `top` on a screen.

use ratatui_core::buffer::Buffer;
use ratatui_core::style::Color;
use ratatui_core::text::Line;

use crate::top::columns;
use crate::top::page;
use crate::top::rates::Report;
use crate::top::view::{Mode, View};

/// Whether colours are used. Bold, underlined and reversed text is used in either case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Palette {
    /// The terminal's colours.
    Colours,
    /// No colours: the user has set NO_COLOR.
    None,
}

/// Draws the view of a report. `note`: see [`page::footer`]. Limits the view's scroll position, so that it
/// does not go beyond the last row.
pub fn draw(screen: &mut Buffer, report: &Report, view: &mut View, note: &str, palette: Palette) {
    let area = *screen.area();
    let (width, height) = (usize::from(area.width), usize::from(area.height));
    let body = match view.mode {
        Mode::Help => page::help(width),
        Mode::Table | Mode::Filter => table(report, view, width, height),
    };
    // The footer has the last line.
    let lines = body.into_iter().take(height.saturating_sub(1)).enumerate();
    for (y, line) in lines.chain([(height.saturating_sub(1), page::footer(view, note))]) {
        if y < height {
            screen.set_line(area.x, area.y + y as u16, &line, area.width);
        }
    }
    if palette == Palette::None {
        for cell in &mut screen.content {
            (cell.fg, cell.bg) = (Color::Reset, Color::Reset);
        }
    }
}

fn table(report: &Report, view: &mut View, width: usize, height: usize) -> Vec<Line<'static>> {
    let columns = columns::fit(view.table, width);
    let mut lines = page::header(report, width);
    lines.push(page::titles(&columns, view));
    let rows = view.rows(report);
    let shown = height.saturating_sub(lines.len() + 1);
    let most = rows.len().saturating_sub(shown);
    let scroll = view.scroll.min(most);
    let max = report.sample.max_bytes;
    lines.extend(rows.into_iter().skip(scroll).map(|row| page::row(&columns, row, max)));
    view.scroll = scroll;
    lines
}

#[cfg(test)]
mod tests;
