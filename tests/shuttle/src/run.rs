//! Running a scenario under many schedules, or under one again.

use shuttle::scheduler::{PctScheduler, RandomScheduler, ReplayScheduler, Scheduler};
use shuttle::{Config, FailurePersistence, MaxSteps, Runner};
use std::sync::Arc;

/// The schedules of a scenario, unless the environment says otherwise.
const SCHEDULES: u64 = 2000;
const SEED: u64 = 0x00e1_b040;

/// How often PCT changes priorities.
const PCT_DEPTH: usize = 4;

/// Steps of one schedule, at most: a thousand times as many as it usually has, so that more of them mean that
/// nothing moves on.
const STEPS: usize = 10_000_000;

/// Bytes of a task's stack.
const STACK: usize = 256 << 10;

fn number(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")),
        Err(_) => default,
    }
}

/// Runs `scenario` under every schedule that is asked for, one part in `share` of them (a scenario that takes
/// longer can have fewer); or, with `ELBOWROOM_SHUTTLE_REPLAY`, under that schedule alone.
///
/// # Panics
/// If it panics under one of them, or its tasks wait for each other.
pub fn check(name: &str, share: u64, scenario: impl Fn() + Send + Sync + 'static) {
    let scenario = Arc::new(scenario);
    if let Some(path) = std::env::var_os("ELBOWROOM_SHUTTLE_REPLAY") {
        let replay =
            ReplayScheduler::new_from_file(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        println!("{name}: the schedule of {}", path.display());
        return run(replay, scenario);
    }
    let schedules = number("ELBOWROOM_SHUTTLE_SCHEDULES", SCHEDULES).div_ceil(share) as usize;
    let seed = number("ELBOWROOM_SHUTTLE_SEED", SEED);
    let by_priority = schedules / 2;
    let random = schedules - by_priority;
    println!("{name}: seed {seed}, {random} random walks, {by_priority} schedules by priority");
    let started = std::time::Instant::now();
    run(RandomScheduler::new_from_seed(seed, random), scenario.clone());
    if by_priority > 0 {
        println!("{name}: the random walks pass, {} ms", started.elapsed().as_millis());
        run(PctScheduler::new_from_seed(seed, PCT_DEPTH, by_priority), scenario);
    }
    println!("{name}: {schedules} schedules, {} ms", started.elapsed().as_millis());
}

fn run(scheduler: impl Scheduler + 'static, scenario: Arc<impl Fn() + Send + Sync + 'static>) {
    let mut config = Config::new();
    config.stack_size = STACK;
    config.max_steps = MaxSteps::FailAfter(STEPS);
    // To a file, and not to the terminal: a schedule of this length fills pages.
    config.failure_persistence = FailurePersistence::File(Some(std::env::temp_dir()));
    config.silence_warnings = true;
    Runner::new(scheduler, config).run(move || scenario());
}
