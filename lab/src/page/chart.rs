//! Plots as inline SVG. They are drawn with colors that stand for names, which are replaced by the page's own
//! (CSS variables), so that a plot is readable in light, in dark and in print. Each has a title and a
//! description with its figures, for those who do not see it.

use std::fmt::Display;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::coord::ranged1d::{Ranged, ReversibleRanged, ValueFormatter};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::html::{escaped, printable};
use super::units;
use crate::locks::{DECADE_NAMES, DECADES};

type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// A color by its number in [`NAMES`]. No two numbers give the same one.
const fn color(number: u8) -> RGBColor {
    RGBColor(1, 2, number)
}

const INK: RGBColor = color(0);
const MUTED: RGBColor = color(1);
const GRID: RGBColor = color(2);
const PUBLISHED: RGBColor = color(3);

/// The page's names of colors.
const NAMES: [&str; 14] = [
    "ink",
    "muted",
    "grid",
    "published",
    "kernel",
    "kernel-random",
    "elbowroom",
    "elbowroom-off",
    "elbowroom-off2",
    "soft",
    "soft-off",
    "soft-off2",
    "host",
    "host-off",
];

/// The number of an engine's color among all engines of a plot.
fn number_of(engine: &str, engines: &[&str]) -> u8 {
    let off_before = |kind: &str| {
        let of_kind = engines.iter().take_while(|other| **other != engine);
        of_kind.filter(|other| other.starts_with(&format!("{kind}-"))).count()
    };
    match engine {
        "kernel" => 4,
        "kernel-random" | "kernel-huge" | "plain" => 5,
        "elbowroom" => 6,
        "soft" => 9,
        _ if engine.starts_with("elbowroom-") => 7 + off_before("elbowroom").min(1) as u8,
        _ if engine.starts_with("soft-") => 10 + off_before("soft").min(1) as u8,
        _ if engine.starts_with("host-") => 13,
        _ => 12,
    }
}

/// What a legend shows: the name of the color of an engine.
pub fn color_name(engine: &str, engines: &[&str]) -> &'static str {
    NAMES[usize::from(number_of(engine, engines))]
}

fn color_of(engine: &str, engines: &[&str]) -> RGBColor {
    color(number_of(engine, engines))
}

/// What is said of a plot.
pub struct Words<'a> {
    /// Of which no two on a page are the same.
    pub id: &'a str,
    pub title: &'a str,
    pub description: &'a str,
}

/// Draws, and makes an element of it that fits into the page.
fn draw(
    words: &Words<'_>,
    (width, height): (u32, u32),
    paint: impl FnOnce(&Canvas<'_>) -> Result<()>,
) -> Result<String> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (width, height)).into_drawing_area();
        paint(&area)?;
        area.present().map_err(failed)?;
    }
    let body = svg.split_once('>').map_or("", |(_, body)| body);
    let body = themed(body);
    let Words { id, title, description } = words;
    let (title, description) = (escaped(title), escaped(description));
    Ok(format!(
        "<svg viewBox=\"0 0 {width} {height}\" style=\"max-width:{width}px\" role=\"img\" \
         aria-labelledby=\"{id}-t {id}-d\"><title id=\"{id}-t\">{title}</title>\
         <desc id=\"{id}-d\">{description}</desc>{body}\n"
    ))
}

/// Replaces colors by the names that they stand for.
fn themed(body: &str) -> String {
    let mut body = body.to_owned();
    for (number, name) in NAMES.iter().enumerate() {
        let RGBColor(r, g, b) = color(number as u8);
        for attribute in ["fill", "stroke"] {
            body = body.replace(
                &format!("{attribute}=\"#{r:02X}{g:02X}{b:02X}\""),
                &format!("style=\"{attribute}:var(--{name})\""),
            );
        }
    }
    // The page has the font.
    body.replace(" font-family=\"sans-serif\"", "")
}

fn failed(error: impl Display) -> anyhow::Error {
    anyhow!("a plot cannot be drawn: {error}")
}

fn text(size: u32, color: RGBColor, horizontal: HPos, vertical: VPos) -> TextStyle<'static> {
    let font = ("sans-serif", size).into_font();
    TextStyle { font, color: color.to_backend_color(), pos: Pos::new(horizontal, vertical) }
}

const SMALL: u32 = 13;

/// A bar with its name on the left and its figure on the right.
pub struct Bar {
    pub name: String,
    /// `None`: a heading, no bar.
    pub value: Option<f64>,
    pub shown: String,
    pub color: BarColor,
}

#[derive(Clone, Copy)]
pub enum BarColor {
    Published,
    Engine(u8),
}

impl BarColor {
    pub fn of(engine: &str, engines: &[&str]) -> Self {
        Self::Engine(number_of(engine, engines))
    }

    fn rgb(self) -> RGBColor {
        match self {
            Self::Published => PUBLISHED,
            Self::Engine(number) => color(number),
        }
    }
}

const ROW: i32 = 22;
const NAMES_WIDTH: i32 = 300;
const BARS_WIDTH: i32 = 420;
const FIGURES_WIDTH: i32 = 100;
const WIDTH: i32 = NAMES_WIDTH + BARS_WIDTH + FIGURES_WIDTH;

/// Bars from zero on, of figures of one kind.
pub fn bars(words: &Words<'_>, bars: &[Bar]) -> Result<String> {
    let most = bars.iter().filter_map(|bar| bar.value).fold(0.0, f64::max);
    let height = bars.len() as i32 * ROW + 8;
    draw(words, (WIDTH as u32, height as u32), |area| {
        for (number, bar) in bars.iter().enumerate() {
            let middle = number as i32 * ROW + ROW / 2 + 4;
            name(area, bar, middle)?;
            let share = if most > 0.0 { bar.value.unwrap_or(0.0) / most } else { 0.0 };
            let end = NAMES_WIDTH + (share * f64::from(BARS_WIDTH)) as i32;
            // What is nothing, or nearly, is still seen to be there.
            rectangle(area, bar.color, NAMES_WIDTH, end.max(NAMES_WIDTH + 1), middle)?;
            let style = text(SMALL, INK, HPos::Left, VPos::Center);
            area.draw_text(&bar.shown, &style, (end + 7, middle)).map_err(failed)?;
        }
        line(area, INK, (NAMES_WIDTH, 2), (NAMES_WIDTH, height - 2))
    })
}

/// The widest range of factors that is shown: more than that is at the edge.
const MOST_DECADES: f64 = 3.0;

/// Changes as factors on a logarithmic scale: to the left what became less, to the right what became more.
/// The value of a bar is after over before.
pub fn changes(words: &Words<'_>, bars: &[Bar]) -> Result<String> {
    let log = |factor: f64| factor.max(1e-9).log10().clamp(-MOST_DECADES, MOST_DECADES);
    let widest = bars.iter().filter_map(|bar| bar.value).map(|value| log(value).abs()).fold(0.3, f64::max);
    let ticks: &[(f64, &str)] = &[
        (-3.0, "\u{2212}99.9 %"),
        (-2.0, "\u{2212}99 %"),
        (-1.0, "\u{2212}90 %"),
        (0.5_f64.log10(), "half"),
        (0.0, "same"),
        (2_f64.log10(), "twice"),
        (1.0, "\u{d7} 10"),
        (2.0, "\u{d7} 100"),
        (3.0, "\u{d7} 1000"),
    ];
    // Between two decades there is no room for more.
    let is_shown = |at: f64| at.abs() <= widest + 0.01 && (at.fract() == 0.0 || widest < 1.6);
    let half = f64::from(BARS_WIDTH / 2 - 8);
    let centre = NAMES_WIDTH + BARS_WIDTH / 2;
    let at = |log: f64| centre + (log / widest * half).round() as i32;
    let (top, height) = (24, bars.len() as i32 * ROW + 32);
    draw(words, (WIDTH as u32, height as u32), |area| {
        for (log, label) in ticks.iter().filter(|(log, _)| is_shown(*log)) {
            let x = at(*log);
            line(area, if *log == 0.0 { INK } else { GRID }, (x, top - 4), (x, height - 4))?;
            area.draw_text(label, &text(12, MUTED, HPos::Center, VPos::Center), (x, top - 13))
                .map_err(failed)?;
        }
        for (number, bar) in bars.iter().enumerate() {
            let middle = top + number as i32 * ROW + ROW / 2;
            name(area, bar, middle)?;
            if let Some(value) = bar.value {
                let end = at(log(value));
                let (left, right) = if end < centre { (end, centre) } else { (centre, end.max(centre + 1)) };
                rectangle(area, bar.color, left, right, middle)?;
            }
            let style = text(SMALL, INK, HPos::Right, VPos::Center);
            area.draw_text(&bar.shown, &style, (WIDTH - 4, middle)).map_err(failed)?;
        }
        Ok(())
    })
}

fn name(area: &Canvas<'_>, bar: &Bar, middle: i32) -> Result<()> {
    let is_heading = bar.value.is_none() && bar.shown.is_empty();
    let (color, x, horizontal) =
        if is_heading { (INK, 0, HPos::Left) } else { (MUTED, NAMES_WIDTH - 8, HPos::Right) };
    // The rest of escaping is done by what draws it.
    let name: String = bar.name.chars().map(printable).collect();
    area.draw_text(&name, &text(SMALL, color, horizontal, VPos::Center), (x, middle)).map_err(failed)
}

fn rectangle(area: &Canvas<'_>, color: BarColor, left: i32, right: i32, middle: i32) -> Result<()> {
    let corners = [(left, middle - ROW / 2 + 4), (right, middle + ROW / 2 - 4)];
    area.draw(&Rectangle::new(corners, color.rgb().filled())).map_err(failed)
}

fn line(area: &Canvas<'_>, color: RGBColor, from: (i32, i32), to: (i32, i32)) -> Result<()> {
    area.draw(&PathElement::new(vec![from, to], color.stroke_width(1))).map_err(failed)
}

/// Two histograms of waits beside each other, on a logarithmic scale of counts.
pub struct WaitPair<'a> {
    pub before: &'a [f64; DECADES],
    pub after: &'a [f64; DECADES],
    pub before_color: BarColor,
    pub after_color: BarColor,
    /// The most of all plots that are compared, so that they have the same scale.
    pub most: f64,
}

pub fn waits(words: &Words<'_>, pair: &WaitPair<'_>) -> Result<String> {
    let top = pair.most.max(10.0) * 1.5;
    draw(words, (430, 210), |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(4)
            .set_label_area_size(LabelAreaPosition::Left, 46)
            .set_label_area_size(LabelAreaPosition::Bottom, 22)
            .build_cartesian_2d(0.0..DECADES as f64, (0.5..top).log_scale())
            .map_err(failed)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .disable_x_axis()
            .y_labels(6)
            .y_label_formatter(&|count| units::short(*count))
            .label_style(text(12, MUTED, HPos::Right, VPos::Center))
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .axis_style(GRID)
            .draw()
            .map_err(failed)?;
        let both = [(pair.before, pair.before_color, 0.12), (pair.after, pair.after_color, 0.51)];
        for (counts, color, shift) in both {
            let bars = counts.iter().enumerate().filter(|(_, count)| **count > 0.0).map(|(decade, count)| {
                let left = decade as f64 + shift;
                Rectangle::new([(left, 0.5), (left + 0.37, count.max(0.7))], color.rgb().filled())
            });
            chart.draw_series(bars).map_err(failed)?;
        }
        let (x, y) = chart.plotting_area().get_pixel_range();
        line(area, INK, (x.start, y.end), (x.end, y.end))?;
        for (decade, name) in DECADE_NAMES.iter().enumerate() {
            let at = x.start + ((decade as f64 + 0.5) / DECADES as f64 * f64::from(x.end - x.start)) as i32;
            let style = text(11, MUTED, HPos::Center, VPos::Center);
            area.draw_text(&units::micro(name), &style, (at, y.end + 12)).map_err(failed)?;
        }
        Ok(())
    })
}

/// A line of one engine.
pub struct Line<'a> {
    pub engine: &'a str,
    pub points: Vec<(f64, f64)>,
}

/// How something went over the seconds of a run.
pub fn over_time(words: &Words<'_>, what: &str, lines: &[Line<'_>], engines: &[&str]) -> Result<String> {
    let all = || lines.iter().flat_map(|line| &line.points);
    let end = all().map(|(x, _)| *x).fold(0.1, f64::max);
    let most = all().map(|(_, y)| *y).fold(0.0, f64::max).max(1e-9);
    draw(words, (820, 270), |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(8)
            .set_label_area_size(LabelAreaPosition::Left, 64)
            .set_label_area_size(LabelAreaPosition::Bottom, 36)
            .build_cartesian_2d(0.0..end, 0.0..most * 1.08)
            .map_err(failed)?;
        mesh(&mut chart, "seconds", what, &|x| units::short(*x), &|y| units::short(*y))?;
        for Line { engine, points } in lines {
            let style = color_of(engine, engines).stroke_width(2);
            chart.draw_series(LineSeries::new(points.iter().copied(), style)).map_err(failed)?;
            let ends = points.iter().map(|point| Circle::new(*point, 2, color_of(engine, engines).filled()));
            chart.draw_series(ends).map_err(failed)?;
        }
        Ok(())
    })
}

/// How long things took, by the share that took no longer.
pub fn percentiles(
    words: &Words<'_>,
    shares: &[&str],
    lines: &[Line<'_>],
    engines: &[&str],
) -> Result<String> {
    let all = || lines.iter().flat_map(|line| &line.points).map(|(_, ns)| *ns).filter(|ns| *ns > 0.0);
    let least = all().fold(f64::INFINITY, f64::min);
    let most = all().fold(1.0, f64::max);
    let least = if least.is_finite() { least } else { 0.5 };
    // Whole decades, so that there are lines to read off.
    let decade = |value: f64, up: f64| 10_f64.powf((value.log10() + up).floor());
    let range = decade(least, 0.0)..decade(most, 1.0).max(least * 10.0);
    draw(words, (430, 260), |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(8)
            .set_label_area_size(LabelAreaPosition::Left, 58)
            .set_label_area_size(LabelAreaPosition::Bottom, 24)
            .build_cartesian_2d(-0.3..shares.len() as f64 - 0.7, range.log_scale())
            .map_err(failed)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .disable_x_axis()
            .y_labels(8)
            .y_label_formatter(&|ns| units::time(*ns).replace(".00 ", " ").replace(".0 ", " "))
            .label_style(text(12, MUTED, HPos::Right, VPos::Center))
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .axis_style(GRID)
            .draw()
            .map_err(failed)?;
        for Line { engine, points } in lines {
            let points = || points.iter().copied().filter(|(_, ns)| *ns > 0.0);
            let color = color_of(engine, engines);
            chart.draw_series(LineSeries::new(points(), color.stroke_width(2))).map_err(failed)?;
            chart.draw_series(points().map(|at| Circle::new(at, 3, color.filled()))).map_err(failed)?;
        }
        let (x, y) = chart.plotting_area().get_pixel_range();
        line(area, INK, (x.start, y.end), (x.end, y.end))?;
        for (number, share) in shares.iter().enumerate() {
            let width = shares.len() as f64 - 0.4;
            let at = x.start + ((number as f64 + 0.3) / width * f64::from(x.end - x.start)) as i32;
            let style = text(12, MUTED, HPos::Center, VPos::Center);
            area.draw_text(share, &style, (at, y.end + 12)).map_err(failed)?;
        }
        Ok(())
    })
}

/// Axes with names and lines to read off.
fn mesh<X, Y>(
    chart: &mut ChartContext<'_, SVGBackend<'_>, Cartesian2d<X, Y>>,
    x: &str,
    y: &str,
    of_x: &dyn Fn(&f64) -> String,
    of_y: &dyn Fn(&f64) -> String,
) -> Result<()>
where
    X: Ranged<ValueType = f64> + ValueFormatter<f64> + ReversibleRanged,
    Y: Ranged<ValueType = f64> + ValueFormatter<f64> + ReversibleRanged,
{
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_desc(x)
        .y_desc(y)
        .x_labels(8)
        .y_labels(6)
        .x_label_formatter(of_x)
        .y_label_formatter(of_y)
        .label_style(text(12, MUTED, HPos::Center, VPos::Center))
        .axis_desc_style(text(SMALL, MUTED, HPos::Center, VPos::Center))
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .axis_style(MUTED)
        .draw()
        .map_err(failed)
}
