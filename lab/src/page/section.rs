//! The part of the page that is about one workload.

use std::fmt::Write;

use anyhow::Result;

use super::about;
use super::chart::{self, Bar, BarColor, Line, WaitPair, Words};
use super::course;
use super::html::{Cell, DASH, Table, escaped, id};
use super::input::Figures;
use super::units::{self, change, change_of, show, three_digits};
use crate::load;
use crate::locks::{DECADE_NAMES, DECADES};
use crate::verdict::{Spread, Verdict, ratio};

/// A section, with a name for links that no other one has.
pub fn html(figures: &Figures, anchor: &str) -> Result<String> {
    let section = Section { figures, anchor };
    let about = about::of(&figures.workload);
    let mut html = format!("<section id=\"{anchor}\"><h2>{}</h2>\n", escaped(&figures.workload));
    for text in about.into_iter().flat_map(|about| [about.what, about.before]).filter(|text| !text.is_empty())
    {
        let _ = write!(html, "<p>{}</p>", escaped(text));
    }
    html.push_str(&section.how());
    for part in [
        Section::headline,
        Section::goals,
        Section::published,
        Section::waits,
        Section::over_time,
        Section::percentiles,
        Section::core,
        Section::all,
    ] {
        html.push_str(&part(&section)?);
    }
    html.push_str("</section>\n");
    Ok(html)
}

struct Section<'a> {
    figures: &'a Figures,
    anchor: &'a str,
}

/// Whether a figure is as a target says: `<= 5 ns`.
fn is_met(target: &str, value: f64) -> Option<bool> {
    let mut words = target.split(' ');
    let (side, bound) = (words.next()?, words.next()?.parse::<f64>().ok()?);
    match side {
        "<=" => Some(value <= bound),
        ">=" => Some(value >= bound),
        _ => None,
    }
}

fn change_or_dash(percent: Option<f64>) -> String {
    percent.map_or_else(|| DASH.into(), change)
}

/// A plot with what it shows above it and its legend below.
fn figure(svg: &str, caption: &str, legend: &str) -> String {
    format!("<figure><figcaption>{}</figcaption>{svg}{legend}</figure>\n", escaped(caption))
}

fn legend<'l>(entries: impl Iterator<Item = (&'l str, &'l str)>) -> String {
    let mut html = String::from("<ul class=\"legend\">");
    for (color, name) in entries {
        let _ = write!(html, "<li><span style=\"background:var(--{color})\"></span>{}</li>", escaped(name));
    }
    html.push_str("</ul>");
    html
}

impl Section<'_> {
    fn engines(&self) -> Vec<&str> {
        self.figures.engines.iter().map(String::as_str).collect()
    }

    fn legend_of(&self, engines: &[&str]) -> String {
        let all = self.engines();
        legend(engines.iter().map(|engine| (chart::color_name(engine, &all), *engine)))
    }

    /// How it was measured, and what went wrong.
    fn how(&self) -> String {
        let Figures { description, date, commit, command, skipped, problem, .. } = self.figures;
        let mut parts = vec![description.clone()];
        let readahead = self.figures.kernel_readahead_bytes;
        parts.extend(readahead.map(|size| format!("the kernel's readahead {}", units::bytes(size))));
        parts.extend(date.as_ref().map(|date| format!("measured {date}")));
        parts.extend(commit.as_ref().map(|commit| format!("commit {commit}")));
        parts.retain(|part| !part.is_empty());
        let mut html = format!("<p class=\"how\">{}", escaped(&parts.join("; ")));
        if let Some(command) = command {
            let _ = write!(html, "<br/><code>{}</code>", escaped(command));
        }
        html.push_str("</p>\n");
        if let Some(problem) = problem {
            let text = format!("It ended before its time: {problem}. These are the figures until then.");
            let _ = write!(html, "<p class=\"problem\">{}</p>", escaped(&text));
        }
        if let Some(warning) = load::warning(&self.figures.loads()) {
            let _ = write!(html, "<p class=\"problem\">{}</p>", escaped(&warning));
        }
        for skipped in skipped {
            let text = format!("{} was left out: {}", skipped.engine, skipped.reason);
            let _ = write!(html, "<p class=\"problem\">{}</p>", escaped(&text));
        }
        html
    }

    /// What the workload is about, engine by engine.
    fn headline(&self) -> Result<String> {
        let engines = self.engines();
        let Some((key, label)) = self.figures.headline() else { return Ok(String::new()) };
        let bars: Vec<Bar> = engines
            .iter()
            .filter_map(|engine| {
                let value = self.figures.median(engine, &key)?;
                let color = BarColor::of(engine, &engines);
                Some(Bar { name: (*engine).to_owned(), value: Some(value), shown: show(&key, value), color })
            })
            .collect();
        let description = described(&bars);
        let words = Words { id: &format!("{}-head", self.anchor), title: &label, description: &description };
        Ok(figure(&chart::bars(&words, &bars)?, &format!("{label}, by engine (medians)"), ""))
    }

    /// What was to be shown.
    fn goals(&self) -> Result<String> {
        if self.figures.goals.is_empty() || self.figures.own_pairs().is_empty() {
            return Ok(String::new());
        }
        let columns = ["Goal", "Pair", "Before", "After", "Change", "Wanted", "Reached"].map(String::from);
        let mut table = Table::new("What was to be shown", &columns, 2);
        for goal in &self.figures.goals {
            table.group();
            for (before, after) in self.figures.own_pairs() {
                let spreads = [before, after].map(|engine| self.figures.spread(engine, &goal.key));
                let both = spreads[0].zip(spreads[1]);
                let percent = both.and_then(|(before, after)| change_of(before.median, after.median));
                let reached = percent.map(|percent| percent <= goal.change_percent);
                let cell = |spread| Cell::spread(spread, |value| show(&goal.key, value));
                let verdict = both.and_then(|(before, after)| Verdict::of(&goal.key, &after, &before));
                table.row(
                    &goal.metric,
                    &[
                        Cell::words(format!("{before} \u{2192} {after}")),
                        cell(spreads[0]),
                        cell(spreads[1]),
                        Cell::verdict(change_or_dash(percent), verdict),
                        Cell::figure(change(goal.change_percent)),
                        match reached {
                            Some(reached) => Cell::figure(if reached { "yes" } else { "no" }).judged(reached),
                            None => Cell::figure(DASH),
                        },
                    ],
                );
            }
        }
        Ok(table.done())
    }

    /// What was published, with ours below each row: in the layout in which it was published, and as a plot
    /// of the changes.
    fn published(&self) -> Result<String> {
        if self.figures.published.is_empty() {
            return Ok(String::new());
        }
        let engines = self.engines();
        let columns = ["Metric", "Whose", "Before", "After", "Change", "After / before"].map(String::from);
        let caption = "Beside what was published, on other machines; what was counted in a time is scaled to \
                       the published seconds";
        let mut table = Table::new(caption, &columns, 2);
        let mut bars = Vec::new();
        // Cases of one figure follow each other, and ours is below the last.
        for cases in self.figures.published.chunk_by(|one, next| one.key == next.key) {
            table.group();
            let key = &cases[0].key;
            let heading = cases[0].metric.split(", first case").next().unwrap_or_default();
            let (value, color) = (None, BarColor::Published);
            bars.push(Bar { name: heading.to_owned(), value, shown: String::new(), color });
            let mut push =
                |row: &str, whose: Cell, spreads: [Option<Spread>; 2], percent, is_ours, bar: Bar| {
                    let [before, after] = spreads;
                    let cell = |spread| Cell::spread(spread, |value| show(key, value));
                    let ratio = match before.zip(after).and_then(|(b, a)| ratio(a.median, b.median)) {
                        Some(_) if is_ours => Cell::ratio(key, after, before),
                        ratio => Cell::figure(ratio.map_or_else(|| DASH.into(), three_digits)),
                    };
                    table.row(
                        row,
                        &[whose, cell(before), cell(after), Cell::figure(change_or_dash(percent)), ratio],
                    );
                    bars.extend(percent.map(|percent| Bar {
                        value: Some(1.0 + percent / 100.0),
                        shown: change(percent),
                        ..bar
                    }));
                };
            let bar = |name: String, color| Bar { name, value: None, shown: String::new(), color };
            for (number, published) in cases.iter().enumerate() {
                let case = published.metric.split_once(", ").filter(|_| cases.len() > 1);
                let case = case.map(|(_, case)| case);
                let whose = case.map_or_else(|| "published".into(), |case| format!("published, {case}"));
                let row = if number == 0 { heading } else { "" };
                let figures = [published.before, published.after].map(|value| Spread::of(vec![value?]));
                let within = published.window_seconds.map(|seconds| format!("in {seconds} s"));
                let cell = Cell::words(whose.clone()).with_small(within);
                push(row, cell, figures, published.change_percent, false, bar(whose, color));
            }
            let times = cases[0].ours_times.unwrap_or(1.0);
            let scaled = (times != 1.0).then(|| format!("\u{d7} {}", three_digits(times)));
            let mut is_there = false;
            for (first, second) in self.figures.pairs() {
                let figures =
                    [first, second].map(|engine| Some(self.figures.spread(engine, key)?.times(times)));
                let [Some(before), Some(after)] = figures else { continue };
                is_there = true;
                let color = BarColor::of(first, &engines);
                let name = shortened(first, second);
                let cell = Cell::words(name.clone()).with_small(scaled.clone());
                push("", cell, figures, change_of(before.median, after.median), true, bar(name, color));
            }
            if let Some(reason) = cases[0].missing.as_ref().filter(|_| !is_there) {
                push("", Cell::words(reason), [None, None], None, false, bar(String::new(), color));
            }
        }
        let title = "Change from before to after, published and ours";
        let words = Words { id: &format!("{}-pub", self.anchor), title, description: &described(&bars) };
        let caption = "The change from before to after: less to the left, more to the right (logarithmic)";
        Ok(table.done() + &figure(&chart::changes(&words, &bars)?, caption, ""))
    }

    /// Histograms of waits: published and ours, before and after.
    fn waits(&self) -> Result<String> {
        let mut html = String::new();
        let engines = self.engines();
        for published in &self.figures.published_waits {
            let of = |engine: &str| *self.figures.waits.get(engine)?.get(&published.key)?;
            let mut columns = vec![published.metric.clone()];
            columns.extend(DECADE_NAMES.map(units::micro));
            let caption = format!("Histogram: {}, how many took how long", published.metric);
            let mut table = Table::new(&caption, &columns, 1);
            let mut push = |name: &str, counts: &[f64; DECADES]| {
                table.row(name, &counts.map(|count| Cell::figure(show("", count.round()))));
            };
            push("published, before", &published.before);
            push("published, after", &published.after);
            for engine in &engines {
                if let Some(counts) = of(engine) {
                    push(engine, &counts);
                }
            }
            html.push_str(&table.done());

            html.push_str("<div class=\"panels\">");
            let ours: Vec<_> = self
                .figures
                .own_pairs()
                .into_iter()
                .filter_map(|(before, after)| Some((before, after, of(before)?, of(after)?)))
                .collect();
            let most = |counts: &[f64; DECADES]| counts.iter().copied().fold(0.0, f64::max);
            let most_ours =
                ours.iter().map(|(.., before, after)| most(before).max(most(after))).fold(0.0, f64::max);
            html.push_str(&self.wait_plot(
                &format!("{}: published", published.metric),
                "0",
                ["before", "after"],
                &WaitPair {
                    before: &published.before,
                    after: &published.after,
                    before_color: BarColor::Published,
                    after_color: BarColor::of("kernel", &engines),
                    most: most(&published.before).max(most(&published.after)),
                },
                ["published", "kernel"],
            )?);
            for (number, (before, after, before_counts, after_counts)) in ours.iter().enumerate() {
                html.push_str(&self.wait_plot(
                    &format!("{}: {}", published.metric, shortened(before, after)),
                    &(number + 1).to_string(),
                    [before, after],
                    &WaitPair {
                        before: before_counts,
                        after: after_counts,
                        before_color: BarColor::of(before, &engines),
                        after_color: BarColor::of(after, &engines),
                        most: most_ours,
                    },
                    [chart::color_name(before, &engines), chart::color_name(after, &engines)],
                )?);
            }
            html.push_str("</div>\n");
        }
        Ok(html)
    }

    fn wait_plot(
        &self,
        title: &str,
        number: &str,
        names: [&str; 2],
        pair: &WaitPair<'_>,
        colors: [&str; 2],
    ) -> Result<String> {
        let counted = |counts: &[f64; DECADES]| {
            let each = DECADE_NAMES.iter().zip(counts).map(|(name, count)| format!("{name}: {count:.0}"));
            each.collect::<Vec<_>>().join(", ")
        };
        let [before, after] = names;
        let description = format!("{before}: {}. {after}: {}.", counted(pair.before), counted(pair.after));
        let words = Words {
            id: &format!("{}-{}-{number}", self.anchor, id(title)),
            title,
            description: &description,
        };
        let legend = legend(colors.into_iter().zip(names));
        Ok(figure(&chart::waits(&words, pair)?, title, &legend))
    }

    /// How much was done per second in the course of a run: the mean of all runs.
    fn over_time(&self) -> Result<String> {
        let engines = self.engines();
        let counts_maps = self.figures.keys().iter().any(|(key, _)| key == "maps_per_second");
        let (counter, what) =
            if counts_maps { ("maps", "maps per second") } else { ("pages", "pages per second") };
        let lines: Vec<Line<'_>> = engines
            .iter()
            .map(|engine| Line { engine, points: self.rates(engine, counter) })
            .filter(|line| line.points.len() > 1)
            .collect();
        if lines.is_empty() {
            return Ok(String::new());
        }
        let mut description = format!("{what} over time. ");
        for Line { engine, points } in &lines {
            let (least, most) =
                points.iter().fold((f64::MAX, 0.0_f64), |(l, m), (_, rate)| (l.min(*rate), m.max(*rate)));
            let _ = write!(
                description,
                "{engine}: from {} to {}. ",
                units::show("per_second", least),
                units::show("per_second", most)
            );
        }
        let words = Words { id: &format!("{}-time", self.anchor), title: what, description: &description };
        let svg = chart::over_time(&words, what, &lines, &engines)?;
        let shown: Vec<&str> = lines.iter().map(|line| line.engine).collect();
        Ok(figure(&svg, "Throughput over time (mean of the runs)", &self.legend_of(&shown)))
    }

    /// Rates in the course of the runs: seconds, and how many per second.
    fn rates(&self, engine: &str, counter: &str) -> Vec<(f64, f64)> {
        let is_meant = |run: &&serde_json::Value| {
            run["engine"] == engine && !run["in_detail"].as_bool().unwrap_or(false)
        };
        let sample =
            |sample: &serde_json::Value| Some((sample["at_ms"].as_f64()?, sample[counter].as_f64()?));
        let samples = |run: &serde_json::Value| {
            run["timeline"].as_array().into_iter().flatten().filter_map(sample).collect()
        };
        let runs: Vec<_> = self.figures.runs.iter().filter(is_meant).map(samples).collect();
        course::rates(&runs)
    }

    /// Latencies by percentiles: of whatever has a p50 and a p99.
    fn percentiles(&self) -> Result<String> {
        let keys = self.figures.keys();
        let engines = self.engines();
        let mut html = String::new();
        let all = ["p50", "p90", "p99", "p999", "max"];
        for (key, label) in &keys {
            let Some(name) = key.strip_suffix("_p50_ns") else { continue };
            let shares: Vec<&str> = all
                .into_iter()
                .filter(|share| keys.iter().any(|(key, _)| *key == format!("{name}_{share}_ns")))
                .collect();
            let line_of = |engine| {
                let points = shares.iter().enumerate().filter_map(|(number, share)| {
                    Some((number as f64, self.figures.median(engine, &format!("{name}_{share}_ns"))?))
                });
                Line { engine, points: points.collect() }
            };
            let lines: Vec<Line<'_>> = engines
                .iter()
                .map(|engine| line_of(*engine))
                .filter(|line| !line.points.is_empty())
                .collect();
            if lines.is_empty() || shares.len() < 2 {
                continue;
            }
            let label = label.trim_end_matches("p50").trim_end_matches([',', ' ']);
            let label = if label == "of these" { "change" } else { label };
            let title = format!("Latency: {label}");
            let mut description = String::new();
            for Line { engine, points } in &lines {
                let each = points.iter().map(|(number, ns)| {
                    format!("{} {}", share_name(shares[*number as usize]), units::time(*ns))
                });
                let _ = write!(description, "{engine}: {}. ", each.collect::<Vec<_>>().join(", "));
            }
            let names: Vec<&str> = shares.iter().map(|share| share_name(share)).collect();
            let words = Words {
                id: &format!("{}-{}", self.anchor, id(name)),
                title: &title,
                description: &description,
            };
            let svg = chart::percentiles(&words, &names, &lines, &engines)?;
            let shown: Vec<&str> = lines.iter().map(|line| line.engine).collect();
            html.push_str(&figure(&svg, &title, &self.legend_of(&shown)));
        }
        Ok(if html.is_empty() { html } else { format!("<div class=\"panels\">{html}</div>\n") })
    }

    /// Figures beside their targets, of `core`.
    fn core(&self) -> Result<String> {
        if self.figures.targets.is_empty() {
            return Ok(String::new());
        }
        let columns = ["Operation", "Measured", "Ours / kernel", "Target"].map(String::from);
        let mut table = Table::new("Single operations (medians, and the range of the runs)", &columns, 1);
        for (key, label) in self.figures.keys() {
            let spread = self.of_core(&key);
            let kernels = ["_soft_", "_host_"].map(|kind| key.replace(kind, "_kernel_"));
            let kernel = kernels.iter().find(|other| **other != key).and_then(|other| self.of_core(other));
            let target = self.figures.targets.get(&key);
            let cell = Cell::figure(target.map_or(DASH, String::as_str));
            let met = target.zip(spread).and_then(|(target, spread)| is_met(target, spread.median));
            table.row(
                &label,
                &[
                    Cell::spread(spread, |value| show(&key, value)),
                    Cell::ratio(&key, spread, kernel),
                    match met {
                        Some(met) => cell.judged(met),
                        None => cell,
                    },
                ],
            );
        }
        Ok(table.done())
    }

    /// A figure of `core`, which has no engines. Its file does not say how many runs there were: several, if
    /// they differ.
    fn of_core(&self, key: &str) -> Option<Spread> {
        let other = &self.figures.other;
        let median = other.get(key)?.as_f64()?;
        let range = other.get("ranges").map(|ranges| [0, 1].map(|end| ranges[key][end].as_f64()));
        match range {
            Some([Some(least), Some(most)]) => {
                Some(Spread { least, median, most, runs: if least < most { 2 } else { 1 } })
            }
            _ => Spread::of(vec![median]),
        }
    }

    /// Every figure of every engine.
    fn all(&self) -> Result<String> {
        let engines = self.engines();
        if self.figures.medians.is_empty() {
            return Ok(String::new());
        }
        let pairs = self.figures.compared();
        let mut columns = vec![String::from("Figure")];
        columns.extend(engines.iter().map(|engine| (*engine).to_owned()));
        columns.extend(pairs.iter().map(|(base, ours)| format!("{ours} / {base}")));
        let mut table = Table::new("Medians; below them the least and the most of all runs", &columns, 1);
        for (key, label) in self.figures.keys() {
            let spread = |engine: &str| self.figures.spread(engine, &key);
            if engines.iter().all(|engine| spread(engine).is_none()) {
                continue;
            }
            let figures =
                engines.iter().map(|engine| Cell::spread(spread(engine), |value| show(&key, value)));
            let ratios = pairs.iter().map(|(base, ours)| Cell::ratio(&key, spread(ours), spread(base)));
            table.row(&label, &figures.chain(ratios).collect::<Vec<_>>());
        }
        Ok(format!(
            "<details><summary>All figures of {}</summary>{}</details>\n",
            escaped(&self.figures.workload),
            table.done()
        ))
    }
}

fn share_name(share: &str) -> &str {
    if share == "p999" { "p99.9" } else { share }
}

/// A pair of engines in few words: what is before has the name of what is off.
fn shortened(before: &str, after: &str) -> String {
    match before.strip_prefix(after).and_then(|off| off.strip_prefix('-')) {
        Some(off) => format!("{after}, {off} off \u{2192} on"),
        None => format!("{before} \u{2192} {after}"),
    }
}

/// The bars of a plot in words.
fn described(bars: &[Bar]) -> String {
    let one = |bar: &Bar| match bar.value {
        None if bar.shown.is_empty() => format!("{}:", bar.name),
        _ => format!("{} {};", bar.name, bar.shown),
    };
    bars.iter().map(one).collect::<Vec<_>>().join(" ")
}
