//! Seeds one after the other, each run plainly and in a variant, until so many steps or seconds are done; and
//! what is said about a difference.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::place::root;
use crate::program::require_file;
use crate::random::case::{Case, End, Kinds, Ran, Step, steps_text};
use crate::random::compare::{Difference, difference, last_steps, step_of};
use crate::random::shrink::shrink;
use crate::variant::Variant;

/// Without a new line for so many seconds, a run hangs. Far more than any step needs on a machine that others
/// use too.
const PATIENCE: u64 = 20;
/// The same for the plain kernel, which does not hang.
const PLAIN_PATIENCE: Duration = Duration::from_secs(120);
/// The same while steps are left out, where a wrong guess is noticed at the end.
const SHORT_PATIENCE: Duration = Duration::from_secs(3);
/// But never less than so many times what the plain run took: that says how busy the machine is.
const PATIENCE_FACTOR: u32 = 20;
/// How long leaving out steps may take.
const SHRINK_LIMIT: Duration = Duration::from_secs(180);
/// Steps of a thread in one run.
const RUN_STEPS: u64 = 8000;
/// Every fourth seed has so many threads.
const THREADS: u32 = 3;
/// Lines of a transcript that are shown at most.
const SHOWN: usize = 60;

/// How much is run, and from which seed.
#[derive(Debug, Clone)]
pub struct Campaign {
    /// The first seed; the others follow it.
    pub seed: u64,
    /// Steps in all, by this campaign.
    pub steps: u64,
    /// Steps of a thread in one run.
    pub run_steps: u64,
    /// Instead of a number of steps.
    pub seconds: Option<u64>,
    /// Without a new line for so long, a run hangs.
    pub patience: Duration,
    /// How many differences are reported before it ends.
    pub differences: usize,
    /// Kinds of steps that are left out; `None`: those of [`Kinds::without`].
    pub without: Option<String>,
}

impl Campaign {
    /// As the environment says, for one of `parts` campaigns that together are the whole test.
    ///
    /// # Panics
    /// If a variable has no number.
    pub fn from_environment(steps: u64, parts: u64) -> Self {
        let clock = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is set").as_nanos() as u64;
        // As the harness counts them.
        let jobs = number("RUST_TEST_THREADS")
            .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |jobs| jobs.get() as u64));
        let jobs = jobs.clamp(1, parts);
        Self {
            seed: number("ELBOWROOM_RANDOM_SEED").unwrap_or(clock / 1000 % 1_000_000_000),
            steps: number("ELBOWROOM_RANDOM_STEPS").unwrap_or(steps).div_ceil(parts),
            run_steps: number("ELBOWROOM_RANDOM_RUN_STEPS").unwrap_or(RUN_STEPS),
            seconds: number("ELBOWROOM_RANDOM_SECONDS").map(|seconds| (seconds * jobs).div_ceil(parts)),
            patience: Duration::from_secs(number("ELBOWROOM_RANDOM_PATIENCE").unwrap_or(PATIENCE)),
            differences: number("ELBOWROOM_RANDOM_DIFFERENCES").unwrap_or(1) as usize,
            without: std::env::var("ELBOWROOM_RANDOM_WITHOUT").ok(),
        }
    }

    /// Runs it.
    ///
    /// # Panics
    /// With what differs, if anything does.
    pub fn run(&self, kinds: Kinds, variant: Variant) {
        if require_file(Path::new("/usr/include/liburing.h"), "liburing-dev").is_none() {
            return;
        }
        let started = Instant::now();
        let (mut steps, mut runs, mut reports) = (0, 0, 0);
        let mut seed = self.seed;
        loop {
            let case = self.case(seed, kinds, variant);
            if let Some(report) = examine(&case, variant, self.patience) {
                println!("{report}");
                reports += 1;
            }
            seed += 1;
            runs += 1;
            steps += case.steps * u64::from(case.threads);
            let elapsed = started.elapsed().as_secs();
            let done = self.seconds.map_or(steps >= self.steps, |seconds| elapsed >= seconds);
            if done || reports >= self.differences {
                break;
            }
        }
        let seconds = started.elapsed().as_secs_f64();
        println!(
            "random: {kinds:?}, {}: {steps} steps in {runs} runs from seed {}, {:.0} steps/s, {} differences",
            variant.name,
            self.seed,
            steps as f64 / seconds,
            reports
        );
        assert_eq!(reports, 0, "differences are above");
    }

    fn case(&self, seed: u64, kinds: Kinds, variant: Variant) -> Case {
        let threads = if seed % 4 == 3 { THREADS } else { 1 };
        let without = self.without.clone().unwrap_or_else(|| kinds.without(variant).to_owned());
        Case { seed, steps: self.run_steps, threads, kinds, without }
    }
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}=\"{text}\" is not a number")))
}

/// What differs, in words.
fn examine(case: &Case, variant: Variant, patience: Duration) -> Option<String> {
    let plain = case.run(Variant::plain(), None, PLAIN_PATIENCE, false);
    assert_eq!(plain.end, End::Well, "seed {}: the plain run: {}", case.seed, plain.stderr);
    let other = case.run(variant, None, patience.max(plain.elapsed * PATIENCE_FACTOR), false);
    let found = difference(&plain, &other)?;
    let mut report = format!(
        "== {} steps of seed {}, {} threads, {:?}, {}: ",
        case.steps, case.seed, case.threads, case.kinds, variant.name
    );
    describe(&mut report, &found, &other, false);
    let steps = candidates(case, &found, &other);
    let pair = |steps: &[Step], patience: Duration, verbose| {
        let plain = case.run(Variant::plain(), Some(steps), PLAIN_PATIENCE, verbose);
        let patience = patience.max(plain.elapsed * PATIENCE_FACTOR);
        let other = case.run(variant, Some(steps), patience, verbose);
        let found = difference(&plain, &other);
        (plain, other, found)
    };
    if pair(&steps, patience, false).2.is_none() && pair(&steps, patience, false).2.is_none() {
        let _ = writeln!(report, "-- it does not happen again in two runs of the same steps");
        context(&mut report, &plain, &other, &found);
        return Some(report);
    }
    let few = shrink(&steps, SHRINK_LIMIT, |steps| pair(steps, SHORT_PATIENCE, false).2.is_some());
    let (plain, other, found) = pair(&few, patience, true);
    let _ = writeln!(report, "-- {} of {} steps are needed:", few.len(), steps.len());
    match found {
        Some(found) => describe(&mut report, &found, &other, true),
        None => report.push_str("(not in the last run)\n"),
    }
    show(&mut report, &plain, &other);
    keep(&mut report, case, variant, &few);
    Some(report)
}

/// All steps until the difference: those behind it do not matter.
fn candidates(case: &Case, found: &Difference, other: &Ran) -> Vec<Step> {
    let mut steps = case.all_steps();
    let last = match found {
        Difference::Line { expected, .. } if case.threads == 1 => step_of(expected),
        Difference::End if case.threads == 1 && other.end != End::Well => {
            other.transcripts[0].lines().last().and_then(step_of)
        }
        _ => None,
    };
    if let Some(last) = last {
        // One more: a run that ended between two steps.
        steps.retain(|&(_, step)| step <= last + 1);
    }
    steps
}

fn describe(report: &mut String, found: &Difference, other: &Ran, fully: bool) {
    let _ = match found {
        Difference::Line { thread, expected, got, .. } => {
            let (expected, got) = cut_pair(expected, got);
            writeln!(report, "thread {thread} differs\n  expected {expected}\n  got      {got}")
        }
        Difference::File { name, at } => writeln!(report, "{name} differs after the end, from byte {at:#x}"),
        Difference::End => writeln!(report, "it ends in another way"),
    };
    let (how, threads) = match &other.end {
        End::Well => return,
        End::Badly(how) => (how.as_str(), ""),
        End::Hung(threads) => ("HANGS", threads.as_str()),
    };
    let at: Vec<String> = last_steps(other).iter().map(|line| cut(line)).collect();
    let _ = writeln!(report, "  {how} at {}", at.join("; "));
    if fully {
        let _ = writeln!(report, "{threads}");
    }
    let _ = write!(report, "{}", other.stderr);
}

/// The lines around a difference.
fn context(report: &mut String, plain: &Ran, other: &Ran, found: &Difference) {
    let Difference::Line { thread, line, .. } = found else { return };
    let (plain, other) = (&plain.transcripts[*thread], &other.transcripts[*thread]);
    for (expected, got) in plain.lines().zip(other.lines()).skip(line.saturating_sub(10)).take(12) {
        show_line(report, expected, got);
    }
}

/// Both transcripts, each line once where they agree.
fn show(report: &mut String, plain: &Ran, other: &Ran) {
    for (thread, (plain, other)) in plain.transcripts.iter().zip(&other.transcripts).enumerate() {
        let _ = writeln!(report, "transcript of thread {thread}:");
        let mut got = other.lines();
        for expected in plain.lines().take(SHOWN) {
            show_line(report, expected, got.next().unwrap_or("(nothing)"));
        }
    }
}

fn show_line(report: &mut String, expected: &str, got: &str) {
    let _ = if expected == got {
        writeln!(report, "    {}", cut(expected))
    } else {
        let (expected, got) = cut_pair(expected, got);
        writeln!(report, "  - {expected}\n  + {got}")
    };
}

/// Characters of a line that are shown: looks at large ranges make long lines.
const LONG: usize = 300;

fn cut(line: &str) -> String {
    if line.len() <= LONG { line.to_owned() } else { format!("{} ...", line.get(..LONG).unwrap_or("?")) }
}

/// The begin of two lines, and what is near the first difference.
fn cut_pair(expected: &str, got: &str) -> (String, String) {
    let same = expected.bytes().zip(got.bytes()).take_while(|(a, b)| a == b).count();
    let from = same.saturating_sub(40);
    let around = |line: &str| match line.len() {
        0..=LONG => line.to_owned(),
        _ if from < 160 => cut(line),
        len => {
            let end = len.min(from + LONG - 100);
            let (begin, part) = (line.get(..100).unwrap_or("?"), line.get(from..end).unwrap_or(""));
            format!("{begin} ...(from {from}) {part} ...")
        }
    };
    (around(expected), around(got))
}

/// Keeps the list of steps for runs by hand.
fn keep(report: &mut String, case: &Case, variant: Variant, steps: &[Step]) {
    let path: PathBuf = root().join(format!("random-{}-{}-{:?}.steps", case.seed, variant.name, case.kinds));
    match std::fs::write(&path, steps_text(steps)) {
        Ok(()) => {
            let kinds = if case.kinds == Kinds::Files { "files" } else { "all" };
            let _ = writeln!(
                report,
                "again by hand: random seed={} steps={} threads={} kinds={kinds} only={} dir=EMPTY \
                 big=FILE verbose=1",
                case.seed,
                case.steps,
                case.threads,
                path.display()
            );
        }
        Err(error) => {
            let _ = writeln!(report, "{}: {error}", path.display());
        }
    }
}
