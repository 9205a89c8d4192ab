//! core: what single operations of the library cost, beside their targets.
//!
//! The figures take turns, run by run, so that a disturbance of the machine meets all of them alike; the
//! medians are reported. What is compared with something is measured right beside it.

mod lookup;
mod mapping;
mod soft;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use self::mapping::Mapping;
use self::soft::SoftBed;
use super::{Stage, machine_line};
use crate::cli::RepeatArgs;
use crate::engine::Kind;
use crate::load::{self, Begun, Load};
use crate::origin;
use crate::procfs;
use crate::report::{align, median};
use crate::verdict::Spread;

/// What is wanted of a figure.
#[derive(Clone, Copy)]
enum Target {
    AtMost(f64),
    AtLeast(f64),
}

impl Target {
    fn is_met(self, value: f64) -> bool {
        match self {
            Self::AtMost(bound) => value <= bound,
            Self::AtLeast(bound) => value >= bound,
        }
    }

    fn show(self, unit: &str) -> String {
        match self {
            Self::AtMost(bound) => format!("<= {bound} {unit}"),
            Self::AtLeast(bound) => format!(">= {bound} {unit}"),
        }
    }
}

/// Something that is measured.
struct Figure {
    key: &'static str,
    label: &'static str,
    target: Option<Target>,
}

const fn figure(key: &'static str, label: &'static str, target: Option<Target>) -> Figure {
    Figure { key, label, target }
}

/// The figures, in the order of their turns. Keys end in `_ns` for nanoseconds; the others are ratios.
const FIGURES: [Figure; 13] = [
    figure(
        "lookup_1k_ns",
        "lookup, 1,000 VMAs, a writer beside it",
        Some(Target::AtMost(lookup::TARGET_1K_NS)),
    ),
    figure(
        "lookup_100k_ns",
        "lookup, 100,000 VMAs, a writer beside it",
        Some(Target::AtMost(lookup::TARGET_100K_NS)),
    ),
    figure(
        "lookup_ratio_btreemap",
        "lookups/s over RwLock<BTreeMap>, 2 readers, 1 writer",
        Some(Target::AtLeast(3.0)),
    ),
    figure(
        "lookup_ratio_scc",
        "lookups/s over scc::TreeIndex, 2 readers, the worse of both sizes",
        Some(Target::AtLeast(1.0)),
    ),
    figure("map_unmap_host_ns", "map + unmap of 64 KiB, host space", Some(Target::AtMost(400.0))),
    figure("map_unmap_soft_ns", "map + unmap of 64 KiB, soft space", Some(Target::AtMost(400.0))),
    figure("map_unmap_kernel_ns", "mmap + munmap of 64 KiB, kernel", None),
    figure("soft_hit_ns", "read of 8 bytes, translation cached", Some(Target::AtMost(5.0))),
    figure("soft_walk_ns", "read of 8 bytes, page-table walk", Some(Target::AtMost(30.0))),
    figure("soft_minor_file_ns", "minor fault on a cached file page", Some(Target::AtMost(500.0))),
    figure("soft_zero_fault_ns", "first store to anonymous memory, 4 KiB", Some(Target::AtMost(700.0))),
    figure("soft_zero_huge_ns", "the same by 2 MiB, each 4 KiB", None),
    figure("pin_unpin_ns", "pin + unpin", Some(Target::AtMost(25.0))),
];

/// How much of the kernel's time a map and unmap may take.
const KERNEL_RATIO_TARGET: Target = Target::AtMost(0.2);

/// A row of the table alone: what the writer gets done beside those lookups.
const CHANGES_RATIO: &str = "changes_ratio_btreemap";

/// The values of a figure, run by run.
type Values = BTreeMap<&'static str, Vec<f64>>;

/// Measures everything; the table and the JSON object.
///
/// # Errors
/// If a manager cannot start (only the host's may be missing), a value that is read is wrong, or a signal
/// came.
pub fn measure(args: &RepeatArgs, stage: &mut Stage) -> Result<(String, Value)> {
    let time = Duration::from_secs_f64(args.seconds);
    let bed = SoftBed::new(&stage.interrupt).context("cannot make a soft space")?;
    let soft = Mapping::new(Kind::Soft)?;
    let kernel = Mapping::new(Kind::Kernel)?;
    let host = Mapping::new(Kind::Host);
    if let Err(error) = &host {
        stage.progress.keep(&format!("map + unmap in a host space is left out: {error:#}"));
    }
    let host = host.ok();
    let bench = Bench { time, bed, soft, kernel, host };
    let mut values = Values::new();
    let mut loads = Vec::new();
    for run in 1..=args.runs {
        let begun = Load::begin();
        for figure in &FIGURES {
            let label = format!("run {run}/{}: {}", args.runs, figure.label);
            stage.progress.update(|| label.clone());
            bench.one(figure.key, stage, &mut values).with_context(|| label.clone())?;
        }
        loads.extend(begun.and_then(Begun::end));
        stage.progress.keep(&format!("run {run}/{} done", args.runs));
    }
    let machine = procfs::machine()?;
    let title = format!("core: {} runs, {} s for each figure", args.runs, args.seconds);
    let warning = load::warning(&loads).map(|warning| format!("WARNING: {warning}\n")).unwrap_or_default();
    let table = format!("{title}\n{}\n\n{}{warning}", machine_line(&machine), table(&values));
    let targets: BTreeMap<_, _> =
        FIGURES.iter().filter_map(|f| Some((f.key, f.target?.show(unit_of(f))))).collect();
    let rows: Vec<_> = FIGURES.iter().map(|f| json!({ "key": f.key, "label": f.label })).collect();
    let range = |all: &Vec<f64>| Spread::of(all.clone()).map(|spread| [spread.least, spread.most]);
    let ranges: BTreeMap<_, _> = values.iter().map(|(key, all)| (*key, range(all))).collect();
    let mut json = json!({
        "workload": "core",
        "description": title,
        "machine": machine,
        "rows": rows,
        "targets": targets,
        "ranges": ranges,
        "load": loads,
    });
    origin::note(&mut json);
    for figure in &FIGURES {
        json[figure.key] = json!(middle(&values, figure.key));
    }
    Ok((table, json))
}

/// What the figures are measured on.
struct Bench {
    time: Duration,
    bed: SoftBed,
    soft: Mapping,
    kernel: Mapping,
    host: Option<Mapping>,
}

impl Bench {
    /// Measures one figure, if it can be had here.
    fn one(&self, key: &'static str, stage: &Stage, values: &mut Values) -> Result<()> {
        let (time, interrupt) = (self.time, &stage.interrupt);
        let value = match key {
            "lookup_1k_ns" => lookup::among_writes(1_000, time, interrupt),
            "lookup_100k_ns" => lookup::among_writes(100_000, time, interrupt),
            "lookup_ratio_btreemap" => {
                let (lookups, changes) = lookup::ratio_to_btreemap(time, interrupt)?;
                values.entry(CHANGES_RATIO).or_default().push(changes);
                Ok(lookups)
            }
            "lookup_ratio_scc" => lookup::ratio_to_scc(time, interrupt),
            "map_unmap_host_ns" => match &self.host {
                Some(host) => host.map_unmap(time, interrupt),
                None => return Ok(()),
            },
            "map_unmap_soft_ns" => self.soft.map_unmap(time, interrupt),
            "map_unmap_kernel_ns" => self.kernel.map_unmap(time, interrupt),
            "soft_hit_ns" => self.bed.hit(time, interrupt),
            "soft_walk_ns" => self.bed.walk(time, interrupt),
            "soft_minor_file_ns" => self.bed.minor_file(time, interrupt),
            "soft_zero_fault_ns" => self.bed.zero_fault(time, interrupt),
            "soft_zero_huge_ns" => self.bed.huge_zero_fault(time, interrupt),
            "pin_unpin_ns" => self.bed.pin_unpin(time, interrupt),
            _ => unreachable!("{key} is in the list of figures"),
        };
        values.entry(key).or_default().push(value?);
        Ok(())
    }
}

fn middle(values: &Values, key: &str) -> Option<f64> {
    median(values.get(key)?.clone())
}

fn unit_of(figure: &Figure) -> &'static str {
    if figure.key.ends_with("_ns") { "ns" } else { "times" }
}

fn table(values: &Values) -> String {
    let mut rows = vec![["", "median", "least", "most", "target", ""].map(String::from).to_vec()];
    for figure in &FIGURES {
        let unit = unit_of(figure);
        let Some(all) = values.get(figure.key) else { continue };
        rows.push(row(figure.label, unit, all, figure.target));
    }
    for (key, label) in [
        ("map_unmap_host_ns", "host space's map + unmap / the kernel's"),
        ("map_unmap_soft_ns", "soft space's map + unmap / the kernel's"),
    ] {
        let (Some(ours), Some(kernels)) = (values.get(key), values.get("map_unmap_kernel_ns")) else {
            continue;
        };
        let ratios: Vec<f64> = kernels.iter().zip(ours).map(|(kernel, ours)| ours / kernel).collect();
        rows.push(row(label, "times", &ratios, Some(KERNEL_RATIO_TARGET)));
    }
    if let Some(all) = values.get(CHANGES_RATIO) {
        rows.push(row("the writer's changes/s over those of RwLock<BTreeMap>", "times", all, None));
    }
    let mut text = String::new();
    align(&rows, &mut text);
    let _ = writeln!(text, "\nEvery value that was looked up or read was checked.");
    text
}

fn row(label: &str, unit: &str, all: &[f64], target: Option<Target>) -> Vec<String> {
    let show =
        |value: f64| if value < 10.0 { format!("{value:.2} {unit}") } else { format!("{value:.1} {unit}") };
    let Some(Spread { least, median, most, .. }) = Spread::of(all.to_vec()) else { return Vec::new() };
    let verdict = |target: Target| match [least, median, most].map(|value| target.is_met(value)) {
        [true, true, true] => "ok",
        [false, false, false] => "short",
        // The target is within the range of the runs.
        [_, true, _] => "ok, unclear",
        _ => "short, unclear",
    };
    vec![
        label.to_owned(),
        show(median),
        show(least),
        show(most),
        target.map_or_else(|| "-".to_owned(), |target| target.show(unit)),
        target.map_or("", verdict).to_owned(),
    ]
}
