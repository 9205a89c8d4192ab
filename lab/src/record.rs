//! What is recorded of one run, and the figures that follow from it: the rows of the table.

use serde::Serialize;
use serde_json::{Value, json};

use crate::PAGE_BYTES;
use crate::chunked::Chunked;
use crate::engine::{Engine, Kind};
use crate::histogram::Latency;
use crate::load::Load;
use crate::locks::{DECADES, LockUse};
use crate::size::Size;
use crate::verdict::ratio;
use crate::watch::Progressed;

/// An Elbowroom worker with more of files resident than programs and libraries are large has its data mapped
/// by the kernel.
const MAX_MANAGED_RSS_FILE_BYTES: u64 = 16 << 20;

/// What was measured in one run of one engine. Written to the JSON file as it is.
#[derive(Debug, Clone, Serialize)]
pub struct Record {
    pub engine: Engine,
    /// From 1.
    pub run: usize,
    /// Whether it was measured how long locks are held, which is not free: a run for that alone.
    pub in_detail: bool,
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
    /// What had been done after each quarter of a second.
    pub timeline: Vec<Progressed>,
    /// Of the worker's process, from start to end.
    pub cpu_user_ns: u64,
    pub cpu_system_ns: u64,
    /// Of the whole machine while the worker lived, without the lab: kernel threads that work for it, but
    /// also everybody else.
    pub machine_cpu_ns: u64,
    /// What else the machine did; null where it does not tell.
    pub load: Option<Load>,
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
    /// From the start of the threads to the end of the last.
    pub worker_seconds: f64,
    /// Of single reads, in random-read.
    pub reads: Option<Latency>,
    /// Of what another workload times: single stores, or mappings made, used and unmapped.
    pub operations: Option<Latency>,
    /// The same while nobody stored.
    pub idle_operations: Option<Latency>,
    #[serde(flatten)]
    pub counts: Counts,
    /// In workloads of chunks.
    #[serde(flatten)]
    pub chunked: Option<Chunked>,
    /// All of Elbowroom's statistics.
    pub engine_stats: Option<Value>,
}

/// What some workloads count beside pages; 0 in others.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Counts {
    /// Whole passes that were timed, and how long they took together.
    pub passes: u64,
    pub passes_ns: u64,
    /// Mappings of files made and unmapped, where the workload counts them.
    pub maps: u64,
    /// Anonymous mappings made, touched and unmapped.
    pub anonymous_maps: u64,
    /// Faults of the worker's threads in what is measured, as the kernel counts them; one that it had to try
    /// again is a major one, as are all that a userfaultfd serves.
    pub thread_faults_minor: u64,
    pub thread_faults_major: u64,
}

/// How a figure is shown.
#[derive(Debug, Clone, Copy)]
pub enum Unit {
    PerSecond,
    Nanoseconds,
    Bytes,
    GigabytesPerSecond,
    MegabytesPerSecond,
    Count,
    Ratio,
    Percent,
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
            Self::MegabytesPerSecond => format!("{value:.0} MB/s"),
            Self::Count => format!("{value:.0}"),
            Self::Ratio if value != 0.0 && value.abs() < 0.01 => format!("{value:.6}"),
            Self::Ratio if value != 0.0 && value.abs() < 0.1 => format!("{value:.4}"),
            Self::Ratio => format!("{value:.2}"),
            Self::Percent => format!("{value:.2} %"),
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
    /// Whether it is of the runs in which it is measured how long locks are held, and of no others.
    pub in_detail: bool,
}

/// Acquisitions of a lock by how long they waited.
#[derive(Debug)]
pub struct Waits {
    /// In the JSON object.
    pub key: &'static str,
    /// In the table.
    pub label: &'static str,
    lock: &'static str,
    mode: &'static str,
}

impl Waits {
    /// How many acquisitions of each decade there were in a run.
    pub fn of(&self, record: &Record) -> Option<[f64; DECADES]> {
        record.lock(self.lock, &[self.mode]).map(|used| used.waits())
    }
}

const fn metric(
    key: &'static str,
    label: &'static str,
    unit: Unit,
    of: fn(&Record) -> Option<f64>,
) -> Metric {
    Metric { key, label, unit, of, in_detail: false }
}

/// A figure of the runs in which it is measured how long locks are held.
const fn of_holds(
    key: &'static str,
    label: &'static str,
    unit: Unit,
    of: fn(&Record) -> Option<f64>,
) -> Metric {
    Metric { key, label, unit, of, in_detail: true }
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

fn per_map(record: &Record, amount: f64) -> Option<f64> {
    (record.counts.maps > 0).then(|| amount / record.counts.maps as f64)
}

fn per_second(record: &Record, count: u64) -> Option<f64> {
    (record.worker_seconds > 0.0).then(|| count as f64 / record.worker_seconds)
}

/// As the kernel counts them.
fn thread_faults(record: &Record) -> f64 {
    (record.counts.thread_faults_minor + record.counts.thread_faults_major) as f64
}

/// Retries that were not for I/O: of faults on pages that have their bytes, and of lookups.
fn other_retries(record: &Record) -> Option<f64> {
    Some(record.stat("waits_for_locks")? + record.stat("vma_lock_retry")?)
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

const IO_RETRY: &[Metric] = &[
    metric("rounds_per_second", "rounds/s", Unit::PerSecond, rounds_per_second),
    metric("rounds", "rounds", Unit::Count, |r| Some(r.pages_in_time as f64 / r.pages_per_round as f64)),
    metric("retry_mmap_drop", "retries after I/O", Unit::Count, |r| r.stat("retry_mmap_drop")),
    metric("retry_io_miss", "  of them missed", Unit::Count, |r| r.stat("retry_io_miss")),
    metric("retry_io_miss_percent", "retries that miss", Unit::Percent, |r| {
        ratio(100.0 * r.stat("retry_io_miss")?, r.stat("retry_mmap_drop")?)
    }),
];

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

/// How many passes there were each second after the first, parts of one included.
fn cyclic_rounds(record: &Record) -> Option<f64> {
    ratio(cyclic_rate(record)? * 1e9, (record.pages_per_round * PAGE_BYTES) as f64)
}

/// The share of the pages after the second pass that the device did not have to read, in percent.
fn cyclic_hits(record: &Record) -> Option<f64> {
    let after = |sample: &&Progressed| sample.pages >= 2 * record.pages_per_round;
    let (first, last) = (record.timeline.iter().find(after)?, record.timeline.last()?);
    let read_bytes = last.read_bytes?.checked_sub(first.read_bytes?)?;
    let wanted_bytes = (last.pages - first.pages) * PAGE_BYTES;
    Some(100.0 * (1.0 - ratio(read_bytes as f64, wanted_bytes as f64)?))
}

const CYCLIC: &[Metric] = &[
    metric("cyclic_gigabytes_per_second", "cyclic passes", Unit::GigabytesPerSecond, cyclic_rate),
    metric("cyclic_rounds_per_second", "rounds/s after the first", Unit::PerSecond, cyclic_rounds),
    metric("cyclic_hits_percent", "hits after the second round", Unit::Percent, cyclic_hits),
    metric("first_pass_gigabytes_per_second", "first pass", Unit::GigabytesPerSecond, first_pass_rate),
];

const RANDOM_WRITE: &[Metric] = &[
    metric("stores_per_second", "stores/s", Unit::PerSecond, pages_per_second),
    metric("store_p50_ns", "store p50", Unit::Nanoseconds, |r| latency(r.operations, |l| l.p50_ns)),
    metric("store_p99_ns", "store p99", Unit::Nanoseconds, |r| latency(r.operations, |l| l.p99_ns)),
    metric("store_p999_ns", "store p99.9", Unit::Nanoseconds, |r| latency(r.operations, |l| l.p999_ns)),
    metric("store_max_ns", "store max", Unit::Nanoseconds, |r| latency(r.operations, |l| l.max_ns)),
    metric("throttled_writers", "stores throttled", Unit::Count, |r| r.stat("throttled_writers")),
];

const SHARED_DIRTY: &[Metric] = &[
    metric("pass_ns", "whole pass", Unit::Nanoseconds, |r| {
        (r.counts.passes > 0).then(|| r.counts.passes_ns as f64 / r.counts.passes as f64)
    }),
    metric("faults_per_page", "faults per page", Unit::Ratio, |r| {
        per_page(r, if r.engine.is_kernel() { thread_faults(r) } else { r.stat("pgfault")? })
    }),
    metric("thread_faults_per_page", "faults per page, kernel's count", Unit::Ratio, |r| {
        per_page(r, thread_faults(r))
    }),
    metric("throttled_writers", "stores throttled", Unit::Count, |r| r.stat("throttled_writers")),
    metric("map_p99_ratio", "others' p99, storing / idle", Unit::Ratio, |r| {
        latency(r.operations, |l| l.p99_ns).zip(latency(r.idle_operations, |l| l.p99_ns)).map(|(b, i)| b / i)
    }),
    metric("map_p50_ns", "others' map p50", Unit::Nanoseconds, |r| latency(r.operations, |l| l.p50_ns)),
    metric("map_p90_ns", "others' map p90", Unit::Nanoseconds, |r| latency(r.operations, |l| l.p90_ns)),
    metric("map_p99_ns", "others' map p99", Unit::Nanoseconds, |r| latency(r.operations, |l| l.p99_ns)),
    metric("map_p999_ns", "others' map p99.9", Unit::Nanoseconds, |r| latency(r.operations, |l| l.p999_ns)),
    metric("map_max_ns", "others' map max", Unit::Nanoseconds, |r| latency(r.operations, |l| l.max_ns)),
    metric("map_idle_p50_ns", "  idle, p50", Unit::Nanoseconds, |r| latency(r.idle_operations, |l| l.p50_ns)),
    metric("map_idle_p90_ns", "  idle, p90", Unit::Nanoseconds, |r| latency(r.idle_operations, |l| l.p90_ns)),
    metric("map_idle_p99_ns", "  idle, p99", Unit::Nanoseconds, |r| latency(r.idle_operations, |l| l.p99_ns)),
    metric("map_idle_p999_ns", "  idle, p99.9", Unit::Nanoseconds, |r| {
        latency(r.idle_operations, |l| l.p999_ns)
    }),
    metric("map_idle_max_ns", "  idle, max", Unit::Nanoseconds, |r| latency(r.idle_operations, |l| l.max_ns)),
];

const FILE_MAP_CHURN: &[Metric] = &[
    metric("maps_per_second", "maps/s", Unit::PerSecond, |r| per_second(r, r.counts.maps)),
    metric("cpu_ns_per_map", "CPU per map", Unit::Nanoseconds, |r| {
        (r.counts.maps > 0).then(|| (r.cpu_user_ns + r.cpu_system_ns) as f64 / r.counts.maps as f64)
    }),
    metric("handed_back_files", "files left to the kernel", Unit::Count, |r| r.stat("handed_back_files")),
    metric("folio_moves", "folio moves", Unit::Count, |r| r.stat("folio_moves")),
    metric("file_lock_acquisitions", "file-mapping lock: acquisitions", Unit::Count, |r| {
        r.file_lock().map(|lock| lock.acquisitions)
    }),
    metric("file_lock_waits", "file-mapping lock: waits", Unit::Count, |r| {
        r.file_lock().map(|lock| lock.contended)
    }),
    metric("file_lock_wait_ns", "file-mapping lock: all waits", Unit::Nanoseconds, |r| {
        r.file_lock().map(|lock| lock.wait_ns)
    }),
    metric("file_lock_wait_ns_per_map", "file-mapping lock: waits per map", Unit::Nanoseconds, |r| {
        per_map(r, r.file_lock()?.wait_ns)
    }),
    of_holds("file_lock_hold_ns_per_map", "file-mapping lock: held per map", Unit::Nanoseconds, |r| {
        per_map(r, r.file_lock().filter(|lock| lock.holds > 0.0)?.hold_ns)
    }),
    of_holds("file_lock_hold_average_ns", "file-mapping lock: held each time", Unit::Nanoseconds, |r| {
        let lock = r.file_lock()?;
        ratio(lock.hold_ns, lock.holds)
    }),
    of_holds("file_lock_hold_percent", "file-mapping lock: held, of the time", Unit::Percent, |r| {
        let lock = r.file_lock().filter(|lock| lock.holds > 0.0)?;
        ratio(lock.hold_ns / 1e7, r.worker_seconds)
    }),
];

const UPTODATE_WAIT: &[Metric] = &[
    metric("retries_per_major_fault", "retries per major fault", Unit::Ratio, |r| {
        ratio(other_retries(r)?, r.stat("pgmajfault")?)
    }),
    metric("reads_per_second", "reads/s", Unit::PerSecond, pages_per_second),
    metric("major_faults", "major faults", Unit::Count, |r| match r.engine.is_kernel() {
        true => Some(r.counts.thread_faults_major as f64),
        false => r.stat("pgmajfault"),
    }),
    metric("vma_lock_retry", "VMA lock: retry", Unit::Count, |r| r.stat("vma_lock_retry")),
    metric("waits_for_locks", "retries for a folio's lock", Unit::Count, |r| r.stat("waits_for_locks")),
    metric("uptodate_waits", "waits for one, no retry", Unit::Count, |r| r.stat("uptodate_waits")),
    metric("retry_mmap_drop", "retries after I/O", Unit::Count, |r| r.stat("retry_mmap_drop")),
];

/// What the bystander waits for is in every workload.
const LOCK_WAIT: &[Metric] = &[
    metric("layout_read_wait_ns", "layout lock, for reading: all waits", Unit::Nanoseconds, |r| {
        r.layout_lock("read").map(|lock| lock.wait_ns)
    }),
    metric("reads_per_second", "reads/s", Unit::PerSecond, pages_per_second),
    metric("anonymous_per_second", "anonymous maps/s", Unit::PerSecond, |r| {
        per_second(r, r.counts.anonymous_maps)
    }),
    metric("changes_per_second", "map + protect + unmap /s", Unit::PerSecond, |r| {
        per_second(r, r.counts.maps)
    }),
    metric("change_p50_ns", "  of these p50", Unit::Nanoseconds, |r| latency(r.operations, |l| l.p50_ns)),
    metric("change_p99_ns", "  p99", Unit::Nanoseconds, |r| latency(r.operations, |l| l.p99_ns)),
    metric("change_max_ns", "  max", Unit::Nanoseconds, |r| latency(r.operations, |l| l.max_ns)),
    metric("layout_read_acquisitions", "layout lock, for reading: acquisitions", Unit::Count, |r| {
        r.layout_lock("read").map(|lock| lock.acquisitions)
    }),
    metric("layout_read_wait_average_ns", "layout lock, for reading: wait each", Unit::Nanoseconds, |r| {
        r.layout_lock("read")?.average_wait_ns()
    }),
    metric("layout_write_acquisitions", "layout lock, for writing: acquisitions", Unit::Count, |r| {
        r.layout_lock("write").map(|lock| lock.acquisitions)
    }),
    metric("layout_write_wait_ns", "layout lock, for writing: all waits", Unit::Nanoseconds, |r| {
        r.layout_lock("write").map(|lock| lock.wait_ns)
    }),
    metric("layout_write_wait_average_ns", "layout lock, for writing: wait each", Unit::Nanoseconds, |r| {
        r.layout_lock("write")?.average_wait_ns()
    }),
];

/// How fast what was wanted came, in bytes per second; of the engine `device`, at its best depth.
fn wanted_rate(record: &Record) -> Option<f64> {
    match record.chunked.as_ref()?.best_rate() {
        Some(rate) => Some(rate as f64),
        None => pages_per_second(record).map(|pages| pages * PAGE_BYTES as f64),
    }
}

/// How fast the device was read, in bytes per second, by whatever the engine wanted.
fn device_rate(record: &Record) -> Option<f64> {
    (record.worker_seconds > 0.0).then(|| Some(record.device_read_bytes? as f64 / record.worker_seconds))?
}

fn of_device(record: &Record, rate: Option<f64>) -> Option<f64> {
    ratio(rate?, record.chunked.as_ref()?.device_bytes_per_second? as f64)
}

/// What the engine has read for each byte that an LRU cache of whole chunks misses.
fn amplification(record: &Record) -> Option<f64> {
    ratio(record.device_read_bytes? as f64, record.chunked.as_ref()?.lru?.missed_bytes as f64)
}

/// The share of what was wanted that the engine has not read from the device.
fn hits(record: &Record) -> Option<f64> {
    let read = ratio(record.device_read_bytes? as f64, record.chunked.as_ref()?.lru?.wanted_bytes as f64)?;
    Some(100.0 * (1.0 - read))
}

fn lru_hits(record: &Record) -> Option<f64> {
    let lru = record.chunked.as_ref()?.lru?;
    Some(100.0 * (1.0 - ratio(lru.missed_bytes as f64, lru.wanted_bytes as f64)?))
}

fn depth_rate(record: &Record, number: usize) -> Option<f64> {
    Some(record.chunked.as_ref()?.depth_bytes_per_second?[number] as f64 / 1e6)
}

/// Tokens, parts of one included.
fn per_token(record: &Record, amount: f64) -> Option<f64> {
    ratio(amount * record.pages_per_round as f64, record.pages_total as f64)
}

/// Of an engine that reads what the workload wants; `device` does not.
fn of_reader(record: &Record) -> Option<&Record> {
    Some(record).filter(|record| record.chunked.as_ref().is_some_and(|chunked| chunked.lru.is_some()))
}

const CHUNKS: &[Metric] = &[
    metric("chunk_p50_ns", "chunk p50", Unit::Nanoseconds, |r| latency(r.operations, |l| l.p50_ns)),
    metric("chunk_p99_ns", "chunk p99", Unit::Nanoseconds, |r| latency(r.operations, |l| l.p99_ns)),
    metric("chunk_max_ns", "chunk max", Unit::Nanoseconds, |r| latency(r.operations, |l| l.max_ns)),
];

const MOE: &[Metric] = &[
    metric("tokens_per_second", "tokens/s", Unit::PerSecond, |r| rounds_per_second(of_reader(r)?)),
    metric("device_read_bytes_per_token", "read per token", Unit::Bytes, |r| {
        per_token(of_reader(r)?, r.device_read_bytes? as f64)
    }),
    metric("wanted_bytes_per_token", "wanted per token", Unit::Bytes, |r| {
        Some((of_reader(r)?.pages_per_round * PAGE_BYTES) as f64)
    }),
    metric("token_p50_ns", "token p50", Unit::Nanoseconds, |r| {
        latency(of_reader(r)?.operations, |l| l.p50_ns)
    }),
    metric("token_p99_ns", "token p99", Unit::Nanoseconds, |r| {
        latency(of_reader(r)?.operations, |l| l.p99_ns)
    }),
];

/// How many steps were completed each second.
fn steps_per_second(record: &Record) -> Option<f64> {
    per_second(of_reader(record)?, record.rounds_completed)
}

const QUERIES: &[Metric] = &[
    metric("queries_per_second", "queries/s", Unit::PerSecond, steps_per_second),
    metric("query_p50_ns", "query p50", Unit::Nanoseconds, |r| {
        latency(of_reader(r)?.operations, |l| l.p50_ns)
    }),
    metric("query_p99_ns", "query p99", Unit::Nanoseconds, |r| {
        latency(of_reader(r)?.operations, |l| l.p99_ns)
    }),
    metric("query_max_ns", "query max", Unit::Nanoseconds, |r| {
        latency(of_reader(r)?.operations, |l| l.max_ns)
    }),
];

/// Of all workloads of chunks.
const OF_CHUNKS: &[Metric] = &[
    metric("megabytes_per_second", "wanted and got", Unit::MegabytesPerSecond, |r| {
        Some(wanted_rate(r)? / 1e6)
    }),
    metric("got_of_device", "  of device", Unit::Ratio, |r| of_device(r, wanted_rate(r))),
    metric("device_megabytes_per_second", "device read rate", Unit::MegabytesPerSecond, |r| {
        Some(device_rate(r)? / 1e6)
    }),
    metric("read_of_device", "  of device", Unit::Ratio, |r| of_device(r, device_rate(r))),
    metric("amplification_ratio", "read / what LRU misses", Unit::Ratio, amplification),
    metric("hits_percent", "hits: wanted and not read", Unit::Percent, hits),
    metric("lru_hits_percent", "  LRU of chunks", Unit::Percent, lru_hits),
    metric("cpu_ns_per_megabyte", "CPU per MB, worker", Unit::Nanoseconds, |r| {
        per_page(r, (r.cpu_user_ns + r.cpu_system_ns) as f64 * 1e6 / PAGE_BYTES as f64)
    }),
    metric("depth_1_megabytes_per_second", "device at depth 1", Unit::MegabytesPerSecond, |r| {
        depth_rate(r, 0)
    }),
    metric("depth_4_megabytes_per_second", "device at depth 4", Unit::MegabytesPerSecond, |r| {
        depth_rate(r, 1)
    }),
    metric("depth_16_megabytes_per_second", "device at depth 16", Unit::MegabytesPerSecond, |r| {
        depth_rate(r, 2)
    }),
    metric("depth_32_megabytes_per_second", "device at depth 32", Unit::MegabytesPerSecond, |r| {
        depth_rate(r, 3)
    }),
];

/// Waits for the layout lock.
const LAYOUT_WAITS: &[Waits] = &[
    Waits { key: "layout_read_waits", label: "waits for reading", lock: "layout", mode: "read" },
    Waits { key: "layout_write_waits", label: "waits for writing", lock: "layout", mode: "write" },
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

/// The histograms of a workload.
pub fn histograms(workload: &str) -> &'static [Waits] {
    if workload == "lock-wait" { LAYOUT_WAITS } else { &[] }
}

/// The figures of a workload, the one it is about first.
pub fn metrics(workload: &str) -> impl Iterator<Item = &'static Metric> {
    let own = match workload {
        "io-retry" => IO_RETRY,
        "random-read" => RANDOM_READ,
        "random-write" => RANDOM_WRITE,
        "cyclic" => CYCLIC,
        "shared-dirty" => SHARED_DIRTY,
        "file-map-churn" => FILE_MAP_CHURN,
        "uptodate-wait" => UPTODATE_WAIT,
        "lock-wait" => LOCK_WAIT,
        "moe" => MOE,
        "segments" | "vector" => QUERIES,
        "chunks" => OF_CHUNKS,
        _ => SCAN,
    };
    let more = match workload {
        "moe" | "segments" | "vector" => OF_CHUNKS,
        "chunks" => CHUNKS,
        _ => &[],
    };
    own.iter().chain(more).chain(EVERY_WORKLOAD)
}

impl Record {
    /// Whether this is a run of Elbowroom whose files were left to the kernel, which then had no limit.
    pub fn seems_unmanaged(&self) -> bool {
        self.engine.kind == Kind::Elbowroom && self.peak_rss_file_bytes > MAX_MANAGED_RSS_FILE_BYTES
    }

    /// A figure of Elbowroom's own statistics.
    fn stat(&self, key: &str) -> Option<f64> {
        self.engine_stats.as_ref()?.get(key)?.as_f64()
    }

    /// How a class of the manager's locks was used.
    fn lock(&self, lock: &str, modes: &[&str]) -> Option<LockUse> {
        LockUse::of(self.engine_stats.as_ref()?, lock, modes)
    }

    fn layout_lock(&self, mode: &str) -> Option<LockUse> {
        self.lock("layout", &[mode])
    }

    fn file_lock(&self) -> Option<LockUse> {
        self.lock("file-mapping", &["read", "write"])
    }

    /// The record as an object, with the figures of the table that follow from it.
    pub fn to_json(&self, workload: &str) -> serde_json::Result<Value> {
        let mut value = serde_json::to_value(self)?;
        for metric in metrics(workload) {
            if value.get(metric.key).is_none() && metric.in_detail == self.in_detail {
                value[metric.key] = json!((metric.of)(self));
            }
        }
        for waits in histograms(workload) {
            value[waits.key] = json!(waits.of(self));
        }
        Ok(value)
    }

    /// A record for tests: `pages` read in `seconds`, in rounds of ten.
    #[cfg(test)]
    pub fn of_pages(kind: Kind, run: usize, pages: u64, seconds: f64) -> Self {
        Self {
            engine: Engine::whole(kind),
            run,
            in_detail: false,
            killed_at_bound: false,
            measured_seconds: seconds,
            pages_in_time: pages,
            pages_per_round: 10,
            pages_total: pages,
            rounds_completed: pages / 10,
            first_pass_seconds: None,
            timeline: Vec::new(),
            cpu_user_ns: 100 * pages,
            cpu_system_ns: 900 * pages,
            machine_cpu_ns: 1500 * pages,
            load: None,
            device_read_bytes: None,
            device_readahead_bytes: None,
            peak_rss_bytes: 0,
            peak_rss_anon_bytes: 0,
            peak_rss_file_bytes: 0,
            peak_engine_bytes: None,
            layout_lock_faults: None,
            bystander: None,
            worker_seconds: seconds,
            reads: None,
            operations: None,
            idle_operations: None,
            counts: Counts::default(),
            chunked: None,
            engine_stats: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unfinished_rounds_count_by_their_pages() {
        let record = Record::of_pages(Kind::Kernel, 1, 25, 2.0);
        assert_eq!((record.rounds_completed, rounds_per_second(&record)), (2, Some(1.25)));
        assert_eq!(per_page(&record, 50.0), Some(2.0));
        let nothing = Record::of_pages(Kind::Kernel, 1, 0, 2.0);
        assert_eq!((rounds_per_second(&nothing), per_page(&nothing, 50.0)), (Some(0.0), None));
    }

    #[test]
    fn the_first_pass_and_the_others_are_apart() {
        let mut record = Record::of_pages(Kind::Kernel, 1, 25, 2.0);
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
    fn hits_of_a_cycle_are_counted_after_the_second_pass() {
        let at = |at_ms, pages, read_pages: u64| Progressed {
            at_ms,
            pages,
            maps: 0,
            read_bytes: Some(read_pages * PAGE_BYTES),
        };
        // Rounds have ten pages.
        let timeline = vec![at(250, 12, 12), at(500, 20, 19), at(750, 28, 26), at(1000, 40, 34)];
        let mut record = Record { timeline, ..Record::of_pages(Kind::Kernel, 1, 40, 1.0) };
        assert_eq!(cyclic_hits(&record), Some(25.0));
        record.first_pass_seconds = Some(0.5);
        assert_eq!(cyclic_rounds(&record).map(|rate| (rate * 1e3).round()), Some(6000.0));
        record.timeline.truncate(2);
        assert_eq!(cyclic_hits(&record), None);
    }

    #[test]
    fn files_mapped_by_the_kernel_are_noticed_under_elbowroom_only() {
        let with =
            |kind, peak_rss_file_bytes| Record { peak_rss_file_bytes, ..Record::of_pages(kind, 1, 1, 1.0) };
        assert!(with(Kind::Elbowroom, 30 << 20).seems_unmanaged());
        assert!(!with(Kind::Elbowroom, 8 << 20).seems_unmanaged());
        assert!(!with(Kind::Kernel, 30 << 20).seems_unmanaged());
    }

    #[test]
    fn the_object_of_a_run_has_the_figures_of_the_table() {
        let json = Record::of_pages(Kind::Elbowroom, 1, 20, 1.0).to_json("io-retry").unwrap();
        assert_eq!((&json["rounds_per_second"], &json["cpu_ns_per_page"]), (&json!(2.0), &json!(1000.0)));
        // Raw figures keep their type.
        assert_eq!((&json["killed_at_bound"], &json["engine"]), (&json!(false), &json!("elbowroom")));
    }

    #[test]
    fn faults_per_page_are_counted_by_whoever_serves_them() {
        let passes = |kind, engine_stats| Record {
            counts: Counts {
                passes: 2,
                passes_ns: 30,
                thread_faults_minor: 15,
                thread_faults_major: 5,
                ..Counts::default()
            },
            engine_stats,
            ..Record::of_pages(kind, 1, 20, 1.0)
        };
        let figure = |record: &Record, key: &str| {
            let metric = metrics("shared-dirty").find(|metric| metric.key == key).unwrap();
            (metric.of)(record)
        };
        let kernel = passes(Kind::Kernel, None);
        assert_eq!([figure(&kernel, "pass_ns"), figure(&kernel, "faults_per_page")], [Some(15.0), Some(1.0)]);
        let stats = json!({ "pgfault": 5, "pgmajfault": 2, "throttled_writers": 4 });
        let ours = passes(Kind::Soft, Some(stats));
        assert_eq!(
            [figure(&ours, "faults_per_page"), figure(&ours, "throttled_writers")],
            [Some(0.25), Some(4.0)]
        );
        assert_eq!(figure(&passes(Kind::Soft, None), "faults_per_page"), None);
    }

    #[test]
    fn no_workload_has_a_key_twice() {
        for workload in ["io-retry", "random-read", "random-write", "scan", "cyclic", "shared-dirty"]
            .into_iter()
            .chain(["file-map-churn", "uptodate-wait", "lock-wait", "chunks", "moe", "segments", "vector"])
        {
            let mut keys: Vec<_> = metrics(workload).map(|metric| metric.key).collect();
            let all = keys.len();
            keys.sort_unstable();
            keys.dedup();
            assert_eq!(keys.len(), all, "{workload}");
        }
    }
}
