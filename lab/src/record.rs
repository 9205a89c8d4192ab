//! What is recorded of one run, and the figures that follow from it: the rows of the table.

use serde::Serialize;
use serde_json::{Value, json};

use crate::PAGE_BYTES;
use crate::engine::Engine;
use crate::histogram::Latency;
use crate::size::Size;

/// An Elbowroom worker with more of files resident than programs and libraries are large has its data mapped
/// by the kernel.
const MAX_MANAGED_RSS_FILE_BYTES: u64 = 16 << 20;

/// What was measured in one run of one engine. Written to the JSON file as it is.
#[derive(Debug, Clone, Serialize)]
pub struct Record {
    pub engine: Engine,
    /// From 1.
    pub run: usize,
    /// Whether the worker did not end by itself and was killed; what it had counted by then is here.
    pub killed_at_bound: bool,
    /// From the start of the threads until the pages in time were counted.
    pub measured_seconds: f64,
    pub pages_in_time: u64,
    pub pages_per_round: u64,
    /// Those read after the time was over included.
    pub pages_total: u64,
    pub rounds_completed: u64,
    /// Until every thread had completed its first round; absent if one never did.
    pub first_pass_seconds: Option<f64>,
    /// Of the worker's process, from start to end.
    pub cpu_user_ns: u64,
    pub cpu_system_ns: u64,
    /// Of the whole machine while the worker lived, without the lab: kernel threads that work for it, but
    /// also everybody else.
    pub machine_cpu_ns: u64,
    /// Everything that the device read meanwhile.
    pub device_read_bytes: Option<u64>,
    /// In the kernel's runs.
    pub device_readahead_bytes: Option<Size>,
    /// Resident memory of the worker, sampled every 10 ms.
    pub peak_rss_bytes: u64,
    pub peak_rss_anon_bytes: u64,
    pub peak_rss_file_bytes: u64,
    /// What the engine itself says it used at most: the control group, or Elbowroom's statistics.
    pub peak_engine_bytes: Option<u64>,
    /// Lookups in Elbowroom's fault path that took a lock of the whole address space.
    pub layout_lock_faults: Option<u64>,
    pub bystander: Option<Latency>,
    /// Of single reads, where the workload measures them.
    pub reads: Option<Latency>,
    /// All of Elbowroom's statistics.
    pub engine_stats: Option<Value>,
}

/// How a figure is shown.
#[derive(Debug, Clone, Copy)]
pub enum Unit {
    PerSecond,
    Nanoseconds,
    Bytes,
    GigabytesPerSecond,
    Count,
}

impl Unit {
    /// Writes a value with its unit.
    pub fn show(self, value: f64) -> String {
        match self {
            Self::PerSecond if value < 100.0 => format!("{value:.2}"),
            Self::PerSecond => format!("{value:.0}"),
            Self::Nanoseconds if value < 10e3 => format!("{value:.0} ns"),
            Self::Nanoseconds if value < 10e6 => format!("{:.1} us", value / 1e3),
            Self::Nanoseconds => format!("{:.1} ms", value / 1e6),
            Self::Bytes if value < 10.0 * 1024.0 * 1024.0 => format!("{:.1} KiB", value / 1024.0),
            Self::Bytes => format!("{:.1} MiB", value / 1_048_576.0),
            Self::GigabytesPerSecond => format!("{value:.3} GB/s"),
            Self::Count => format!("{value:.0}"),
        }
    }
}

/// One row of the table.
#[derive(Debug)]
pub struct Metric {
    /// In the JSON object.
    pub key: &'static str,
    /// In the table.
    pub label: &'static str,
    /// How it is shown.
    pub unit: Unit,
    /// How it follows from a record; `None` if it was not measured.
    pub of: fn(&Record) -> Option<f64>,
}

const fn metric(
    key: &'static str,
    label: &'static str,
    unit: Unit,
    of: fn(&Record) -> Option<f64>,
) -> Metric {
    Metric { key, label, unit, of }
}

fn per_page(record: &Record, amount: f64) -> Option<f64> {
    (record.pages_total > 0).then(|| amount / record.pages_total as f64)
}

fn pages_per_second(record: &Record) -> Option<f64> {
    (record.measured_seconds > 0.0).then(|| record.pages_in_time as f64 / record.measured_seconds)
}

fn rounds_per_second(record: &Record) -> Option<f64> {
    pages_per_second(record).map(|pages| pages / record.pages_per_round as f64)
}

fn latency(of: Option<Latency>, field: fn(&Latency) -> u64) -> Option<f64> {
    of.map(|latency| field(&latency) as f64)
}

/// The speed of the first pass, or of as much of it as there was time for.
fn first_pass_rate(record: &Record) -> Option<f64> {
    match record.first_pass_seconds.filter(|seconds| *seconds < record.measured_seconds) {
        Some(seconds) => Some((record.pages_per_round * PAGE_BYTES) as f64 / 1e9 / seconds),
        None => pages_per_second(record).map(|pages| pages * PAGE_BYTES as f64 / 1e9),
    }
}

/// The speed after the first pass, if there was time for more.
fn cyclic_rate(record: &Record) -> Option<f64> {
    let left = record.measured_seconds - record.first_pass_seconds?;
    let pages = record.pages_in_time.checked_sub(record.pages_per_round)?;
    (left > 0.0).then(|| (pages * PAGE_BYTES) as f64 / 1e9 / left)
}

const IO_RETRY: &[Metric] = &[metric("rounds_per_second", "rounds/s", Unit::PerSecond, rounds_per_second)];

const RANDOM_READ: &[Metric] = &[
    metric("reads_per_second", "reads/s", Unit::PerSecond, pages_per_second),
    metric("read_p50_ns", "read p50", Unit::Nanoseconds, |r| latency(r.reads, |l| l.p50_ns)),
    metric("read_p99_ns", "read p99", Unit::Nanoseconds, |r| latency(r.reads, |l| l.p99_ns)),
    metric("read_p999_ns", "read p99.9", Unit::Nanoseconds, |r| latency(r.reads, |l| l.p999_ns)),
    metric("read_max_ns", "read max", Unit::Nanoseconds, |r| latency(r.reads, |l| l.max_ns)),
];

const SCAN: &[Metric] = &[
    metric("first_pass_gigabytes_per_second", "first pass", Unit::GigabytesPerSecond, first_pass_rate),
    metric("cyclic_gigabytes_per_second", "cyclic passes", Unit::GigabytesPerSecond, cyclic_rate),
];

const EVERY_WORKLOAD: &[Metric] = &[
    metric("cpu_ns_per_page", "CPU per page, worker", Unit::Nanoseconds, |r| {
        per_page(r, (r.cpu_user_ns + r.cpu_system_ns) as f64)
    }),
    metric("machine_cpu_ns_per_page", "CPU per page, machine", Unit::Nanoseconds, |r| {
        per_page(r, r.machine_cpu_ns as f64)
    }),
    metric("device_read_bytes", "read from device", Unit::Bytes, |r| r.device_read_bytes.map(|b| b as f64)),
    metric("device_read_bytes_per_page", "read per page", Unit::Bytes, |r| {
        per_page(r, r.device_read_bytes? as f64)
    }),
    metric("bystander_p50_ns", "bystander p50", Unit::Nanoseconds, |r| latency(r.bystander, |l| l.p50_ns)),
    metric("bystander_p90_ns", "bystander p90", Unit::Nanoseconds, |r| latency(r.bystander, |l| l.p90_ns)),
    metric("bystander_p99_ns", "bystander p99", Unit::Nanoseconds, |r| latency(r.bystander, |l| l.p99_ns)),
    metric("bystander_p999_ns", "bystander p99.9", Unit::Nanoseconds, |r| {
        latency(r.bystander, |l| l.p999_ns)
    }),
    metric("bystander_max_ns", "bystander max", Unit::Nanoseconds, |r| latency(r.bystander, |l| l.max_ns)),
    metric("peak_rss_bytes", "peak resident", Unit::Bytes, |r| Some(r.peak_rss_bytes as f64)),
    metric("peak_rss_anon_bytes", "  of it anonymous", Unit::Bytes, |r| Some(r.peak_rss_anon_bytes as f64)),
    metric("peak_rss_file_bytes", "  of it file", Unit::Bytes, |r| Some(r.peak_rss_file_bytes as f64)),
    metric("peak_engine_bytes", "peak, engine's count", Unit::Bytes, |r| {
        r.peak_engine_bytes.map(|b| b as f64)
    }),
    metric("layout_lock_faults", "layout-lock faults", Unit::Count, |r| {
        r.layout_lock_faults.map(|n| n as f64)
    }),
    metric("killed_at_bound", "killed at the bound", Unit::Count, |r| {
        Some(f64::from(u8::from(r.killed_at_bound)))
    }),
];

/// The figures of a workload, the one it is about first.
pub fn metrics(workload: &str) -> impl Iterator<Item = &'static Metric> {
    let own = match workload {
        "io-retry" => IO_RETRY,
        "random-read" => RANDOM_READ,
        _ => SCAN,
    };
    own.iter().chain(EVERY_WORKLOAD)
}

impl Record {
    /// Whether this is a run of Elbowroom whose files were left to the kernel, which then had no limit.
    pub fn seems_unmanaged(&self) -> bool {
        self.engine == Engine::Elbowroom && self.peak_rss_file_bytes > MAX_MANAGED_RSS_FILE_BYTES
    }

    /// The record as an object, with the figures of the table that follow from it.
    pub fn to_json(&self, workload: &str) -> serde_json::Result<Value> {
        let mut value = serde_json::to_value(self)?;
        for metric in metrics(workload) {
            if value.get(metric.key).is_none() {
                value[metric.key] = json!((metric.of)(self));
            }
        }
        Ok(value)
    }

    /// A record for tests: `pages` read in `seconds`, in rounds of ten.
    #[cfg(test)]
    pub fn of_pages(engine: Engine, run: usize, pages: u64, seconds: f64) -> Self {
        Self {
            engine,
            run,
            killed_at_bound: false,
            measured_seconds: seconds,
            pages_in_time: pages,
            pages_per_round: 10,
            pages_total: pages,
            rounds_completed: pages / 10,
            first_pass_seconds: None,
            cpu_user_ns: 100 * pages,
            cpu_system_ns: 900 * pages,
            machine_cpu_ns: 1500 * pages,
            device_read_bytes: None,
            device_readahead_bytes: None,
            peak_rss_bytes: 0,
            peak_rss_anon_bytes: 0,
            peak_rss_file_bytes: 0,
            peak_engine_bytes: None,
            layout_lock_faults: None,
            bystander: None,
            reads: None,
            engine_stats: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unfinished_rounds_count_by_their_pages() {
        let record = Record::of_pages(Engine::Kernel, 1, 25, 2.0);
        assert_eq!((record.rounds_completed, rounds_per_second(&record)), (2, Some(1.25)));
        assert_eq!(per_page(&record, 50.0), Some(2.0));
        let nothing = Record::of_pages(Engine::Kernel, 1, 0, 2.0);
        assert_eq!((rounds_per_second(&nothing), per_page(&nothing, 50.0)), (Some(0.0), None));
    }

    #[test]
    fn the_first_pass_and_the_others_are_apart() {
        let mut record = Record::of_pages(Engine::Kernel, 1, 25, 2.0);
        // In pages per second, rounded, so that the last bits of a division do not matter.
        let rates = |record: &Record| {
            [first_pass_rate(record), cyclic_rate(record)]
                .map(|rate| rate.map(|rate| (rate * 1e10 / PAGE_BYTES as f64).round() / 10.0))
        };
        assert_eq!(rates(&record), [Some(12.5), None]);
        record.first_pass_seconds = Some(0.5);
        assert_eq!(rates(&record), [Some(20.0), Some(10.0)]);
        // A pass that ended after the time was over is no pass in time.
        record.first_pass_seconds = Some(2.5);
        assert_eq!(rates(&record), [Some(12.5), None]);
    }

    #[test]
    fn files_mapped_by_the_kernel_are_noticed_under_elbowroom_only() {
        let with = |engine, peak_rss_file_bytes| Record {
            peak_rss_file_bytes,
            ..Record::of_pages(engine, 1, 1, 1.0)
        };
        assert!(with(Engine::Elbowroom, 30 << 20).seems_unmanaged());
        assert!(!with(Engine::Elbowroom, 8 << 20).seems_unmanaged());
        assert!(!with(Engine::Kernel, 30 << 20).seems_unmanaged());
    }

    #[test]
    fn the_object_of_a_run_has_the_figures_of_the_table() {
        let json = Record::of_pages(Engine::Elbowroom, 1, 20, 1.0).to_json("io-retry").unwrap();
        assert_eq!((&json["rounds_per_second"], &json["cpu_ns_per_page"]), (&json!(2.0), &json!(1000.0)));
        // Raw figures keep their type.
        assert_eq!((&json["killed_at_bound"], &json["engine"]), (&json!(false), &json!("elbowroom")));
    }
}
