//! One call of `lab run`: makes the files, lets the engines take turns, and hands the records to the report.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use crate::WRONG_CONTENT_STATUS;
use crate::board::{
    Board, BoardReading, ENDED_NS, FAULTS_MAJOR, FAULTS_MINOR, PASSES, PASSES_NS, SLOT_ANONYMOUS,
    SLOT_FIRST_PASS_NS, SLOT_MAPS, SLOT_PAGES, SLOT_ROUNDS, STARTED_NS, now_ns,
};
use crate::cgroup::Cgroup;
use crate::chunked::Chunked;
use crate::cli::Workload;
use crate::device::Device;
use crate::dirty_limit;
use crate::engine::{Engine, Kind};
use crate::files::DataFiles;
use crate::interrupt::Interrupt;
use crate::load::{Begun, Load};
use crate::output::OutputFile;
use crate::procfs::{self, Resident};
use crate::programs::Programs;
use crate::progress::Progress;
use crate::record::{Counts, Record};
use crate::report::{Report, Skipped};
use crate::routing::Routing;
use crate::tune::{self, Worth};
use crate::watch::{self, Task, Watched};

/// The file of the routing, in the scratch directory.
const ROUTING: &str = "routing";

/// Everything that the runs of one session share.
struct Session<'a> {
    workload: &'a Workload,
    programs: Programs,
    files: DataFiles,
    /// The board and what workers write about themselves. Not on the measured disk where that can be avoided.
    scratch: TempDir,
    device: Option<Device>,
    interrupt: Interrupt,
    /// The experts that tokens use, where the workload has any; the worker reads it from a file.
    routing: Option<Routing>,
}

impl<'a> Session<'a> {
    /// Makes the files.
    fn begin(workload: &'a Workload, engines: &[Engine], progress: &mut Progress) -> Result<Self> {
        let programs = Programs::find()?;
        let interrupt = Interrupt::install()?;
        let routing = routing_of(workload)?;
        let seed = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos() as u64);
        let dir = workload.common().dir.as_deref();
        let files = DataFiles::prepare(dir, workload.files(), workload.file_size(), seed)?;
        let device = usable_device(files.dir(), workload, engines)?;
        files.write(&interrupt, progress)?;
        let scratch = scratch_dir(files.dir())?;
        if let Some(routing) = &routing {
            routing.write(&scratch.path().join(ROUTING))?;
        }
        Ok(Self { workload, programs, files, scratch, device, interrupt, routing })
    }
}

/// One run of one engine.
#[derive(Debug, Clone, Copy)]
struct Turn {
    engine: Engine,
    /// From 1.
    run: usize,
    /// Whether it is measured how long locks are held.
    in_detail: bool,
}

/// Runs a workload in its engines, prints the table and writes the JSON file.
pub fn run(workload: &Workload) -> Result<()> {
    let json = workload.repeat().json.as_deref().map(OutputFile::prepare).transpose()?;
    let mut progress = Progress::new();
    let (report, ended) = measure(workload, &mut progress)?;
    drop(progress);
    ended?;
    print!("{}", report.table());
    json.map_or(Ok(()), |json| json.write_json(&report.json()?))
}

/// Runs a workload in its engines. What was measured before something failed, or a signal came, is there with
/// the error.
///
/// # Errors
/// If it cannot even begin.
pub fn measure(workload: &Workload, progress: &mut Progress) -> Result<(Report, Result<()>)> {
    workload.check()?;
    let (engines, skipped) = usable_engines(workload)?;
    for Skipped { engine, reason } in &skipped {
        progress.keep(&format!("{engine} is left out: {reason}"));
    }
    let session = Session::begin(workload, &engines, progress)?;
    let mut report = Report::new(workload, &engines, skipped, session.device.as_ref())?;
    let ended = session.take_turns(&engines, &mut report, progress);
    Ok((report, ended))
}

/// Runs a workload under Elbowroom with each of `names` switched off in turn, each time beside a run with all
/// on, and prints what each is worth.
pub fn tune(workload: &Workload, names: &[&str]) -> Result<()> {
    workload.check()?;
    let json = workload.repeat().json.as_deref().map(OutputFile::prepare).transpose()?;
    let on = Engine::whole(Kind::Elbowroom);
    let mut progress = Progress::new();
    let session = Session::begin(workload, &[on], &mut progress)?;
    let mut worths = Vec::new();
    for (nth, name) in (1..).zip(names) {
        let mut worth = Worth::new(name);
        let off = Engine::without(Kind::Elbowroom, name).context("there is no such improvement")?;
        for run in 1..=workload.repeat().runs {
            for engine in [on, off] {
                let is_on = engine.is_whole();
                let label =
                    format!("{nth}/{} {name}, run {run}, {}", names.len(), if is_on { "on" } else { "off" });
                let record = session.run_one(Turn { engine, run, in_detail: false }, &label, &mut progress);
                worth.push(is_on, &record.with_context(|| label.clone())?);
            }
        }
        progress.keep(&worth.line());
        worths.push(worth);
    }
    drop(progress);
    print!("{}", tune::table(&worths));
    if let Some(json) = json {
        json.write_json(&tune::json(workload, &worths)?)?;
    }
    Ok(())
}

/// Finds out which engines this machine can run, before anything long begins.
fn usable_engines(workload: &Workload) -> Result<(Vec<Engine>, Vec<Skipped>)> {
    let engines = workload.engines();
    if !engines.iter().any(|engine| engine.kind.is_grouped()) {
        return Ok((engines.to_vec(), Vec::new()));
    }
    let Err(error) = Cgroup::create(workload.memory()) else {
        return Ok((engines.to_vec(), Vec::new()));
    };
    let (grouped, others): (Vec<Engine>, Vec<Engine>) =
        engines.iter().partition(|engine| engine.kind.is_grouped());
    if others.is_empty() {
        return Err(error.context("the kernel cannot be measured under the budget"));
    }
    let skip = |engine| Skipped { engine, reason: format!("{error:#}") };
    Ok((others, grouped.into_iter().map(skip).collect()))
}

/// The device under the files. Without one only its statistics are missing, unless its readahead is to be
/// set.
fn usable_device(dir: &Path, workload: &Workload, engines: &[Engine]) -> Result<Option<Device>> {
    let device = Device::under(dir);
    match workload.common().kernel_readahead.filter(|_| engines.iter().any(|engine| engine.is_kernel())) {
        None => Ok(device.ok()),
        Some(readahead) => {
            let device = device.context("--kernel-readahead needs a device to set it on")?;
            // Tried now, so that it does not fail after the files are made.
            drop(device.with_readahead(readahead)?);
            Ok(Some(device))
        }
    }
}

/// The experts that tokens use: from a file, or drawn. They are recorded if that is asked for.
fn routing_of(workload: &Workload) -> Result<Option<Routing>> {
    let Workload::Moe(args) = workload else { return Ok(None) };
    let routing = match &args.routing {
        Some(path) => Routing::read(path, args.model)?,
        None => Routing::generate(args.model, args.recipe()),
    };
    if let Some(path) = &args.record {
        routing.write(path)?;
    }
    Ok(Some(routing))
}

fn scratch_dir(fallback: &Path) -> Result<TempDir> {
    let mut builder = tempfile::Builder::new();
    builder.prefix("elbowroom-lab-");
    builder
        .tempdir_in("/dev/shm")
        .or_else(|_| builder.tempdir_in(fallback))
        .context("cannot make a directory for the board")
}

impl Session<'_> {
    /// Each engine once, again and again. Where hold times belong to it, ours have a run more each time: what
    /// the others measure must not be slowed down by that.
    fn take_turns(&self, engines: &[Engine], report: &mut Report, progress: &mut Progress) -> Result<()> {
        let runs = self.workload.repeat().runs;
        for run in 1..=runs {
            for engine in engines {
                let has_hold_times = self.workload.has_hold_times() && engine.is_ours();
                for in_detail in [false, true].into_iter().take(if has_hold_times { 2 } else { 1 }) {
                    let what = if in_detail { ", hold times" } else { "" };
                    let label = format!("run {run}/{runs} {engine}{what}");
                    let turn = Turn { engine: *engine, run, in_detail };
                    let record = self.run_one(turn, &label, progress).with_context(|| label.clone())?;
                    progress.keep(&format!("{label}: {}", report.line(&record)));
                    report.push(record);
                }
            }
        }
        Ok(())
    }

    /// Runs the worker once in one engine, with a cold cache.
    fn run_one(&self, turn: Turn, label: &str, progress: &mut Progress) -> Result<Record> {
        let engine = turn.engine;
        let common = self.workload.common();
        progress.update(|| format!("{label}: making the page cache cold"));
        self.files.make_cold(&self.interrupt)?;
        // What the making of files and the previous worker left for the disk to do should not count for this
        // one.
        self.interrupt.sleep_until(std::time::Instant::now() + Duration::from_millis(200))?;

        let stats_path = self.scratch.path().join("stats.json");
        let board_path = self.scratch.path().join("board");
        for path in [&stats_path, &board_path] {
            remove_if_there(path)?;
        }
        let board = Board::create(&board_path, self.workload.threads())?;
        let arguments = self.worker_arguments(turn, &board_path, &stats_path);
        let memory = self.workload.memory();
        let group = if engine.kind.is_grouped() { Some(Cgroup::create(memory)?) } else { None };
        let readahead = common.kernel_readahead.filter(|_| engine.is_kernel()).zip(self.device.as_ref());
        let _readahead = readahead.map(|(size, device)| device.with_readahead(size)).transpose()?;
        let dirty_limit = self.workload.dirty_limit();
        let _dirty_limit = dirty_limit.filter(|_| engine.is_kernel()).map(dirty_limit::set).transpose()?;
        let mut line = match (&group, engine.kind) {
            (Some(group), _) => self.programs.in_cgroup(group, &arguments),
            (None, Kind::Soft | Kind::Device) => self.programs.alone(&arguments),
            (None, _) => self.programs.under_elbowroom(memory, &stats_path, &engine.off(), &arguments),
        };
        if turn.in_detail && engine.kind == Kind::Elbowroom {
            let options = line.iter().position(|word| word == "run").map_or(0, |run| run + 1);
            line.insert(options, "--contention".into());
        }
        if let Some(limit) = dirty_limit.filter(|_| engine.kind == Kind::Elbowroom) {
            let options = line.iter().position(|word| word == "run").map_or(0, |run| run + 1);
            line.insert(options, format!("--dirty={}", limit.bytes()).into());
        }

        let mut stderr =
            tempfile::tempfile_in(self.scratch.path()).context("cannot make a file for standard error")?;
        let task = Task {
            line: &line,
            board: &board,
            time: Duration::from_secs_f64(self.workload.repeat().seconds),
            grace: Duration::from_secs_f64(common.grace_seconds),
            device: self.device.as_ref(),
            stderr: &mut stderr,
        };
        let begun = Load::begin();
        let meters = Meters::read(self.device.as_ref())?;
        let tick = |board: &BoardReading, resident| {
            progress.update(|| format!("{label}: {}", live_line(board, resident)))
        };
        let watched = watch::watch(task, &self.interrupt, tick)?;
        let used = Meters::read(self.device.as_ref())?.since(&meters, watched.cpu.total());
        let load = begun.and_then(Begun::end);
        judge(&watched, group.as_ref(), &mut stderr)?;
        let peak_engine_bytes = group.as_ref().and_then(Cgroup::peak_bytes);
        let has_stats = engine.is_ours() && !watched.killed;
        let stats = has_stats.then(|| read_stats(&stats_path)).transpose()?;
        Ok(Record { load, ..self.record(turn, &watched, used, peak_engine_bytes, stats) })
    }

    fn worker_arguments(&self, turn: Turn, board: &Path, stats: &Path) -> Vec<OsString> {
        let Turn { engine, in_detail, .. } = turn;
        let mut arguments: Vec<OsString> = vec![self.workload.mode().into()];
        let mut option = |name: &str, value: OsString| arguments.extend([name.into(), value]);
        option("--dir", self.files.dir().into());
        option("--board", board.into());
        option("--threads", self.workload.threads().to_string().into());
        option("--seconds", self.workload.repeat().seconds.to_string().into());
        option("--file-bytes", self.workload.file_size().bytes().to_string().into());
        option("--seed", self.files.seed().to_string().into());
        for (name, value) in self.workload.worker_options(engine) {
            option(name, value.into());
        }
        if self.routing.is_some() {
            option("--routing", self.scratch.path().join(ROUTING).into());
        }
        if engine.kind == Kind::Soft {
            option("--soft-memory", self.workload.memory().bytes().to_string().into());
            option("--soft-ablate", engine.off().into());
            option("--stats", stats.into());
            if in_detail {
                arguments.push("--soft-hold-times".into());
            }
        }
        arguments
    }

    fn record(
        &self,
        turn: Turn,
        watched: &Watched,
        used: Meters,
        group_peak_bytes: Option<u64>,
        stats: Option<serde_json::Value>,
    ) -> Record {
        let Turn { engine, run, in_detail } = turn;
        let board = &watched.board;
        let chunked = Chunked::of(self.workload, self.routing.as_ref(), engine.kind, board);
        let reads_only = matches!(self.workload, Workload::RandomRead(_));
        let of_stats = |key: &str| stats.as_ref().and_then(|stats| stats.get(key)?.as_u64());
        Record {
            engine,
            run,
            in_detail,
            killed_at_bound: watched.killed,
            measured_seconds: watched.time.as_secs_f64(),
            pages_in_time: watched.pages_in_time,
            pages_per_round: self.workload.pages_per_round(),
            pages_total: board.total(SLOT_PAGES),
            rounds_completed: board.total(SLOT_ROUNDS),
            first_pass_seconds: board
                .latest(SLOT_FIRST_PASS_NS)
                .zip(board.header(STARTED_NS))
                .map(|(end, start)| Duration::from_nanos(end.saturating_sub(start)).as_secs_f64()),
            timeline: watched.timeline.clone(),
            cpu_user_ns: watched.cpu.user.as_nanos() as u64,
            cpu_system_ns: watched.cpu.system.as_nanos() as u64,
            machine_cpu_ns: used.busy.as_nanos() as u64,
            load: None,
            device_read_bytes: used.read_bytes,
            device_readahead_bytes: match engine.is_kernel() {
                true => {
                    self.workload.common().kernel_readahead.or_else(|| self.device.as_ref()?.readahead().ok())
                }
                false => None,
            },
            peak_rss_bytes: watched.peak.total_bytes,
            peak_rss_anon_bytes: watched.peak.anon_bytes,
            peak_rss_file_bytes: watched.peak.file_bytes,
            peak_engine_bytes: group_peak_bytes.or_else(|| of_stats("peak_bytes")),
            layout_lock_faults: of_stats("layout_lock_faults"),
            bystander: board.bystander(),
            worker_seconds: board
                .header(ENDED_NS)
                .zip(board.header(STARTED_NS))
                .map_or(watched.time, |(end, start)| Duration::from_nanos(end.saturating_sub(start)))
                .as_secs_f64(),
            reads: board.operations().filter(|_| reads_only),
            operations: board.operations().filter(|_| !reads_only),
            idle_operations: board.idle(),
            counts: Counts {
                passes: board.header(PASSES).unwrap_or(0),
                passes_ns: board.header(PASSES_NS).unwrap_or(0),
                maps: board.total(SLOT_MAPS),
                anonymous_maps: board.total(SLOT_ANONYMOUS),
                thread_faults_minor: board.header(FAULTS_MINOR).unwrap_or(0),
                thread_faults_major: board.header(FAULTS_MAJOR).unwrap_or(0),
            },
            chunked,
            engine_stats: stats,
        }
    }
}

fn live_line(board: &BoardReading, resident: Resident) -> String {
    let seconds =
        board.header(STARTED_NS).map_or(0.0, |started| now_ns().saturating_sub(started) as f64 / 1e9);
    let pages = board.total(SLOT_PAGES);
    format!(
        "{seconds:.1} s, {} MiB touched, resident {} MiB",
        (pages * crate::PAGE_BYTES) >> 20,
        resident.total_bytes >> 20
    )
}

/// Fails if the worker came to an end that is none.
fn judge(watched: &Watched, group: Option<&Cgroup>, stderr: &mut File) -> Result<()> {
    let end = watch::describe(watched.status);
    if watched.status.code() == Some(i32::from(WRONG_CONTENT_STATUS)) {
        bail!(
            "the worker read wrong content, so no figure of this session is worth anything{}",
            watch::tail(stderr)
        );
    }
    if let Some(kills @ 1..) = group.map(Cgroup::oom_kills) {
        bail!(
            "the worker cannot run in this budget ({kills} out-of-memory kills by the kernel); raise --memory"
        );
    }
    if !watched.killed && !watched.status.success() {
        bail!("the worker ended with {end}{}", watch::tail(stderr));
    }
    if watched.board.header(STARTED_NS).is_none() {
        bail!("the worker ended with {end} before it began{}", watch::tail(stderr));
    }
    Ok(())
}

pub(crate) fn read_stats(path: &Path) -> Result<serde_json::Value> {
    let context = || format!("the engine wrote no statistics that can be read to {}", path.display());
    let text = fs::read_to_string(path).with_context(context)?;
    serde_json::from_str(&text).with_context(context)
}

fn remove_if_there(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// What the whole machine has used.
#[derive(Debug, Clone, Copy)]
struct Meters {
    busy: Duration,
    lab: Duration,
    read_bytes: Option<u64>,
}

impl Meters {
    fn read(device: Option<&Device>) -> Result<Self> {
        let busy = procfs::machine_busy()?;
        let lab = procfs::cpu_of_this_process()?;
        Ok(Self { busy, lab, read_bytes: device.map(Device::read_bytes).transpose()? })
    }

    /// What was used since `before`, the lab's own share left out. At least the worker's own share, whatever
    /// the clock ticks say.
    fn since(&self, before: &Self, worker: Duration) -> Self {
        let lab = self.lab.saturating_sub(before.lab);
        let busy = self.busy.saturating_sub(before.busy).saturating_sub(lab).max(worker);
        let read_bytes = self.read_bytes.zip(before.read_bytes).map(|(now, then)| now.saturating_sub(then));
        Self { busy, lab, read_bytes }
    }
}
