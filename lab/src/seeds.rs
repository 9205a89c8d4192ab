//! `lab seeds`: all workloads one after the other, in a short form, as engine x ablation: the kernel, ours
//! with real pointers, a soft space, and each of ours without the improvement that the workload is about.
//!
//! Many short workloads instead of one long: whether the direction and the size of each change are as
//! published can be seen in minutes. A workload that fails is reported at the end and ends no other; a signal
//! ends all, and what was measured until then is written.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use clap::{Args, Parser};
use serde_json::{Value, json};

use crate::cli::{Runnable, Workload};
use crate::device::Device;
use crate::files::DataFiles;
use crate::interrupt::{Interrupt, Interrupted};
use crate::output::OutputFile;
use crate::progress::Progress;
use crate::size::Size;
use crate::{bench, cli, origin, page, session};

/// A workload in its short form.
struct Seed {
    /// What is behind `lab run`.
    line: &'static str,
    /// How long each engine, or each phase of it, is measured in each run.
    seconds: f64,
    /// How many phases a run has.
    phases: u32,
}

const fn seed(line: &'static str, seconds: f64, phases: u32) -> Seed {
    Seed { line, seconds, phases }
}

/// All of them. Files are so large that they are made in seconds, and still several times the budget where
/// pages are to be evicted.
const SEEDS: [Seed; 24] = [
    seed(
        "io-retry --threads 100 --file-size 4M --memory 64M \
         --engines kernel,elbowroom-retry_under_vma_lock,elbowroom,soft-retry_under_vma_lock,soft",
        2.5,
        1,
    ),
    seed(
        "lock-wait --threads 40 --file-size 384M --memory 64M --engines kernel,elbowroom-vma_locks,\
         elbowroom-retry_under_vma_lock,elbowroom,soft-vma_locks,soft-retry_under_vma_lock,soft",
        2.5,
        1,
    ),
    seed("thread-storm --threads 100 --engines kernel,soft-vma_locks,soft,host-vma_locks,host", 0.3, 4),
    seed("zero-copy-receive --threads 4 --engines soft-vma_locks,soft", 0.5, 2),
    seed(
        "shared-dirty --file-size 128M --memory 512M \
         --engines kernel,elbowroom-completed,elbowroom,soft-completed,soft",
        2.5,
        1,
    ),
    seed(
        "file-map-churn --threads 160 --file-size 32M --memory 128M \
         --engines kernel,elbowroom-narrow_file_lock,elbowroom,soft-narrow_file_lock,soft",
        1.5,
        1,
    ),
    seed(
        "uptodate-wait --threads 16 --file-size 384M --memory 64M \
         --engines kernel,elbowroom-uptodate_wait,elbowroom,soft-uptodate_wait,soft",
        1.5,
        1,
    ),
    seed(
        "random-read --threads 16 --file-size 512M --memory 64M \
         --engines kernel,kernel-random,elbowroom-vma_locks,elbowroom,soft",
        1.5,
        1,
    ),
    seed(
        "random-write --threads 16 --file-size 256M --memory 64M \
         --engines kernel,kernel-random,elbowroom-completed,elbowroom,soft",
        2.0,
        1,
    ),
    seed(
        "chunks --threads 4 --file-size 256M --memory 64M \
         --engines kernel,cache,elbowroom-read_growth,elbowroom,device",
        0.8,
        1,
    ),
    seed("moe --layers 4 --memory 66M --engines kernel,cache,elbowroom-read_growth,elbowroom", 0.8, 1),
    seed("segments --file-size 192M --memory 48M --engines kernel,elbowroom-read_growth,elbowroom", 0.6, 1),
    seed("vector --file-size 192M --memory 48M --engines kernel,elbowroom-read_growth,elbowroom", 0.6, 1),
    seed("scan --memory 48M --engines kernel,elbowroom-read_growth,elbowroom,soft", 1.5, 1),
    seed("cyclic --memory 24M --engines kernel,elbowroom-read_growth,elbowroom,soft", 3.0, 1),
    seed("in-memory --size 32M --memory 128M --engines kernel,soft,host", 0.2, 4),
    seed("map-unmap --threads 2 --engines kernel,soft-vma_locks,soft,host-vma_locks,host", 0.4, 2),
    seed(
        "anonymous-touch --size 128M --memory 384M --engines kernel,kernel-huge,soft,host-huge_folios,host",
        0.3,
        1,
    ),
    seed("swap-in --size 32M --memory 64M --engines kernel,soft-retry_under_vma_lock,soft,host", 1.0, 1),
    seed("usemem --size 32M --memory 64M --engines kernel,soft,host", 1.5, 1),
    seed("heap --size 96M --memory 64M --engines plain,kernel,elbowroom-large,elbowroom", 1.0, 1),
    seed("hot-cold --size 96M --memory 32M --engines plain,kernel,elbowroom", 0.5, 1),
    seed("sequential-pass --size 128M --memory 48M --engines plain,kernel,elbowroom", 0.1, 1),
    seed(
        "fork-exec --size 64M --memory 256M --forks 5 --engines plain,elbowroom,elbowroom-fork-kernel",
        0.3,
        1,
    ),
];

/// What a run takes beside its time: the cold cache, starting and ending a worker.
const BESIDE_RUN: Duration = Duration::from_millis(700);
/// How fast files are made, for the first guess of how long all takes.
const BYTES_PER_SECOND: f64 = 200e6;

impl Seed {
    fn name(&self) -> &'static str {
        self.line.split(' ').next().unwrap_or_default()
    }
}

/// A name of a workload that `seeds` has.
fn parse_name(text: &str) -> Result<String, String> {
    if SEEDS.iter().any(|seed| seed.name() == text) {
        return Ok(text.to_owned());
    }
    let known = SEEDS.iter().map(Seed::name).collect::<Vec<_>>().join(", ");
    Err(format!("there is no workload \"{text}\" here; there are {known}"))
}

/// Options of `lab seeds`.
#[derive(Debug, Clone, Args)]
pub struct SeedsArgs {
    /// Only these, with commas between; by default all
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = parse_name)]
    only: Vec<String>,
    /// How often each engine is run; the engines take turns, and medians are reported
    #[arg(long, value_name = "N", default_value_t = 3)]
    runs: usize,
    /// How long each engine is measured in each run, in seconds; by default as each workload needs it
    #[arg(long, value_name = "S")]
    seconds: Option<f64>,
    /// The device's readahead during the kernel's runs, if it can be set here
    #[arg(long, value_name = "SIZE", default_value = "128K")]
    kernel_readahead: Size,
    /// Where to make the files, on a disk; by default as `lab run` does
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Write the figures of all workloads to this file; `lab report` reads it
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the page that `lab report` makes of them
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// The command line of one workload.
#[derive(Parser)]
#[command(no_binary_name = true)]
struct Line {
    #[command(subcommand)]
    what: Runnable,
}

impl SeedsArgs {
    /// The workloads that are asked for, as `lab run` would have them.
    fn runnables(&self, can_set_readahead: bool) -> Result<Vec<Runnable>> {
        let is_wanted =
            |seed: &&Seed| self.only.is_empty() || self.only.iter().any(|name| name == seed.name());
        SEEDS.iter().filter(is_wanted).map(|seed| self.runnable(seed, can_set_readahead)).collect()
    }

    fn runnable(&self, seed: &Seed, can_set_readahead: bool) -> Result<Runnable> {
        let mut words: Vec<std::ffi::OsString> = seed.line.split_whitespace().map(Into::into).collect();
        let mut option = |name: &str, value: std::ffi::OsString| words.extend([name.into(), value]);
        option("--runs", self.runs.to_string().into());
        option("--seconds", self.seconds.unwrap_or(seed.seconds).to_string().into());
        let what = Line::try_parse_from(&words).with_context(|| seed.line.to_owned())?.what;
        let Runnable::Paging(_) = what else { return Ok(what) };
        let mut option = |name: &str, value: std::ffi::OsString| words.extend([name.into(), value]);
        if can_set_readahead {
            option("--kernel-readahead", self.kernel_readahead.to_string().into());
        }
        if let Some(dir) = &self.dir {
            option("--dir", dir.into());
        }
        Ok(Line::try_parse_from(&words).with_context(|| seed.line.to_owned())?.what)
    }

    /// Whether the readahead of the device under the files can be set; if not, why.
    fn can_set_readahead(&self) -> Result<()> {
        let files = DataFiles::prepare(self.dir.as_deref(), 1, Size::from_bytes(crate::PAGE_BYTES), 0)?;
        Device::under(files.dir())?.with_readahead(self.kernel_readahead).map(drop)
    }
}

const TOO_LONG: &str = "takes too long for this set: `elbowroom lab run` runs it by itself";

/// How long a workload will take, roughly.
fn planned(what: &Runnable) -> Duration {
    let phases = SEEDS.iter().find(|seed| seed.name() == what.name()).map_or(1, |seed| seed.phases);
    match what {
        Runnable::Paging(workload) => {
            let engines = workload.engines();
            let kernels = engines.iter().filter(|engine| engine.is_kernel()).count();
            let again = if workload.has_hold_times() { engines.len() - kernels } else { 0 };
            let runs = (workload.repeat().runs * (engines.len() + again)) as u32;
            let bytes = workload.files() * workload.file_size().bytes();
            let each = Duration::from_secs_f64(workload.repeat().seconds) + BESIDE_RUN;
            runs * each + Duration::from_secs_f64(bytes as f64 / BYTES_PER_SECOND)
        }
        Runnable::Library(bench) => {
            let runs = bench.repeat().runs * bench.turns().map_or(1, |turns| turns.engines.len());
            runs as u32 * phases * Duration::from_secs_f64(bench.repeat().seconds)
        }
        Runnable::Programs(_) | Runnable::Tree(_) => Duration::ZERO,
    }
}

/// What has been measured so far.
#[derive(Default)]
struct Harvest {
    workloads: Vec<Value>,
    failed: Vec<Value>,
    /// Whether something has failed, be it after some figures were there.
    is_short: bool,
    is_interrupted: bool,
}

impl Harvest {
    /// Takes what a workload gave, whole or not.
    fn take(&mut self, name: &str, result: Result<(Option<Value>, Result<()>)>, progress: &mut Progress) {
        let (figures, ended) = match result {
            Ok((figures, ended)) => (figures, ended),
            Err(error) => (None, Err(error)),
        };
        let problem = ended.err().map(|error| {
            self.is_interrupted |= error.chain().any(|cause| cause.is::<Interrupted>());
            self.is_short = true;
            format!("{error:#}")
        });
        if let Some(problem) = &problem {
            progress.keep(&format!("FAILED: {problem}"));
        }
        match (figures, problem) {
            (Some(mut figures), problem) => {
                figures["problem"] = json!(problem);
                self.workloads.push(figures);
            }
            (None, Some(error)) => self.failed.push(json!({ "workload": name, "error": error })),
            (None, None) => {}
        }
    }

    fn json(&self, began: Instant) -> Value {
        let mut json = json!({
            "workloads": self.workloads,
            "failed": self.failed,
            "interrupted": self.is_interrupted,
            "took_seconds": began.elapsed().as_secs_f64(),
        });
        origin::note(&mut json);
        json
    }
}

/// Measures all, prints a summary and writes the files that were asked for.
///
/// # Errors
/// If nothing can be measured at all, or a file cannot be written. A workload that fails is in the exit
/// status only, as is a signal.
pub fn run(args: &SeedsArgs) -> Result<ExitCode> {
    let json = args.json.as_deref().map(OutputFile::prepare).transpose()?;
    let output = args.output.as_deref().map(OutputFile::prepare).transpose()?;
    let interrupt = Interrupt::install()?;
    // What is wrong with the options is wrong with all workloads.
    args.runnables(false)?.iter().try_for_each(check)?;
    let can_set_readahead = args.can_set_readahead();
    if let Err(error) = &can_set_readahead {
        eprintln!("the kernel's runs have the device's own readahead: {error:#}");
    }
    let all = args.runnables(can_set_readahead.is_ok())?;
    let began = Instant::now();
    let harvest = measure_all(&all, &interrupt, began);
    let value = harvest.json(began);
    let had_figures = !harvest.workloads.is_empty();
    if had_figures {
        print!("{}", page::summary(value.clone())?);
    }
    println!("\ntook {} s", began.elapsed().as_secs());
    for failed in &harvest.failed {
        let text = |key: &str| failed[key].as_str().unwrap_or_default().to_owned();
        println!("FAILED: {}: {}", text("workload"), text("error"));
    }
    // The page first: it is made of all figures, and if that fails they are still to be written.
    let page =
        if had_figures { output.map(|output| output.write(&page::of_value(value.clone())?)) } else { None };
    json.map_or(Ok(()), |json| json.write_json(&value))?;
    page.unwrap_or(Ok(()))?;
    Ok(match (harvest.is_interrupted, harvest.is_short) {
        (true, _) => {
            eprintln!("interrupted: {}; what was measured is written", cli::PAGING_UNDONE);
            ExitCode::from(crate::INTERRUPTED_STATUS)
        }
        (false, true) => ExitCode::FAILURE,
        (false, false) => ExitCode::SUCCESS,
    })
}

fn check(what: &Runnable) -> Result<()> {
    match what {
        Runnable::Paging(workload) => workload.check(),
        Runnable::Library(bench) => bench.check(),
        Runnable::Programs(_) | Runnable::Tree(_) => Err(anyhow!(TOO_LONG)),
    }
    .with_context(|| what.name().to_owned())
}

fn measure_all(all: &[Runnable], interrupt: &Interrupt, began: Instant) -> Harvest {
    let mut harvest = Harvest::default();
    let plans: Vec<Duration> = all.iter().map(planned).collect();
    for (number, what) in all.iter().enumerate() {
        if harvest.is_interrupted || interrupt.check().is_err() {
            harvest.is_interrupted = true;
            harvest.failed.push(json!({ "workload": what.name(), "error": Interrupted.to_string() }));
            continue;
        }
        let sum = |plans: &[Duration]| plans.iter().sum::<Duration>().as_secs_f64();
        let (done, left) = (sum(&plans[..number]), sum(&plans[number..]));
        // The machine may be slower or faster than the plan.
        let pace = if number == 0 { 1.0 } else { began.elapsed().as_secs_f64() / done };
        let left = Duration::from_secs_f64(left * pace);
        let title = format!("{}/{} {}", number + 1, all.len(), what.name());
        let mut progress = Progress::of(title, Instant::now() + left);
        let result = match what {
            Runnable::Paging(workload) => measure_paging(workload, &mut progress),
            Runnable::Library(bench) => {
                let mut stage_progress = progress.clone();
                stage_progress.begin();
                bench::figures(bench, stage_progress).map(|figures| (Some(figures), Ok(())))
            }
            Runnable::Programs(_) | Runnable::Tree(_) => Err(anyhow!(TOO_LONG)),
        };
        harvest.take(what.name(), result, &mut progress);
    }
    harvest
}

fn measure_paging(workload: &Workload, progress: &mut Progress) -> Result<(Option<Value>, Result<()>)> {
    progress.begin();
    let (report, ended) = session::measure(workload, progress)?;
    let figures = if report.is_empty() { None } else { Some(report.json()?) };
    ensure!(figures.is_some() || ended.is_err(), "nothing was measured");
    Ok((figures, ended))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        seeds: SeedsArgs,
    }

    fn parse(line: &str) -> Result<SeedsArgs> {
        let words = std::iter::once("seeds").chain(line.split(' ').filter(|word| !word.is_empty()));
        Ok(Cli::try_parse_from(words)?.seeds)
    }

    #[test]
    fn every_workload_is_in_it_and_can_be_run() {
        let all = parse("").unwrap().runnables(true).unwrap();
        all.iter().try_for_each(check).unwrap();
        let names: Vec<_> = all.iter().map(Runnable::name).collect();
        // `core` has no engines; programs and trees of processes take long.
        for line in cli::LIST.lines().filter_map(|line| line.split_once("  ")).map(|(name, _)| name) {
            assert!(names.contains(&line) || ["core", "programs", "tree"].contains(&line), "{line}");
        }
        for what in &all {
            if let Runnable::Paging(workload) = what {
                let off = workload.engines().iter().any(|engine| !engine.is_whole());
                assert!(workload.engines()[0].is_kernel() && off, "{}", what.name());
                assert_eq!(workload.common().kernel_readahead.map(Size::bytes), Some(128 << 10));
            }
        }
    }

    #[test]
    fn all_of_it_is_planned_for_less_than_ten_minutes() {
        let plan: Duration = parse("").unwrap().runnables(true).unwrap().iter().map(planned).sum();
        assert!((120..600).contains(&plan.as_secs()), "{plan:?}");
    }

    #[test]
    fn options_are_those_of_each_workload() {
        let args = parse("--only map-unmap,io-retry --runs 1 --seconds 0.2 --dir /x").unwrap();
        let all = args.runnables(false).unwrap();
        let Runnable::Paging(io_retry) = &all[0] else { panic!("the order is that of the list") };
        assert_eq!((all.len(), io_retry.repeat().runs, io_retry.repeat().seconds), (2, 1, 0.2));
        assert_eq!(io_retry.common().dir.as_deref(), Some(std::path::Path::new("/x")));
        assert!(io_retry.common().kernel_readahead.is_none());
        for wrong in ["--only io-retr", "--runs x", "--kernel-readahead much"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        let error = format!("{:#}", run(&parse("--only map-unmap --runs 0").unwrap()).unwrap_err());
        assert!(error.contains("--runs"), "{error}");
    }

    #[test]
    fn a_workload_that_fails_ends_no_other_and_all_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        // The worker is not beside this test, so workloads of it cannot be run.
        let line = format!(
            "--only in-memory,scan,map-unmap --runs 1 --seconds 0.1 --json {} -o {}",
            path("seeds.json").display(),
            path("seeds.html").display()
        );
        let status = run(&parse(&line).unwrap()).unwrap();
        assert_eq!(format!("{status:?}"), format!("{:?}", ExitCode::FAILURE));
        let json: Value = serde_json::from_slice(&std::fs::read(path("seeds.json")).unwrap()).unwrap();
        let names = |list: &str| -> Vec<String> {
            let all = json[list].as_array().unwrap().iter();
            all.map(|one| one["workload"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(
            (names("workloads"), names("failed")),
            (vec!["in-memory".to_owned(), "map-unmap".to_owned()], vec!["scan".to_owned()])
        );
        assert!(json["failed"][0]["error"].as_str().unwrap().contains("elbowroom-lab-worker"), "{json}");
        let html = std::fs::read_to_string(path("seeds.html")).unwrap();
        assert!(html.contains("scan could not be measured") && html.contains("map + unmap per second"));
        // What `lab report` makes of the file is the same page.
        page::write(&[path("seeds.json")], &path("again.html")).unwrap();
        assert_eq!(std::fs::read_to_string(path("again.html")).unwrap(), html);
    }

    #[test]
    fn a_signal_ends_all_and_what_was_measured_is_kept() {
        let mut harvest = Harvest::default();
        let mut progress = Progress::new();
        harvest.take(
            "scan",
            Ok((Some(json!({ "workload": "scan" })), Err(Interrupted.into()))),
            &mut progress,
        );
        assert!(harvest.is_interrupted && harvest.is_short);
        assert_eq!(harvest.workloads[0]["problem"], json!("interrupted by a signal"));
        harvest.take("cyclic", Err(anyhow::anyhow!("no disk")), &mut progress);
        assert_eq!(harvest.json(Instant::now())["failed"][0]["error"], json!("no disk"));
    }
}
