//! Random operations of every kind against a model, for as long as `ELBOWROOM_SOAK_SECONDS` says.
//!
//! The seed is taken from the clock, or from `ELBOWROOM_SOAK_SEED`, and printed, also when the test fails.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use elbowroom_tests::{Command, Pattern, Scratch, Variant, behaviour, program};

/// Seconds if nobody says otherwise: enough to find what is plainly wrong.
const SECONDS: u64 = 8;

fn number_from(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}=\"{text}\" is not a number")))
}

fn soak_for(variant: Variant, seconds: u64, threads: u64, mib: u64) {
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is set").as_nanos() as u64;
    let seed = number_from("ELBOWROOM_SOAK_SEED").unwrap_or(clock % 1_000_000_000);
    println!("soak: seed {seed} (repeat with ELBOWROOM_SOAK_SEED={seed}), {seconds} s, {}", variant.name);
    let scratch = Scratch::new();
    let outcome = Command::new(program("soak"))
        .args([&scratch.file("data")])
        .args([seed, threads, seconds, mib])
        .variant(variant)
        .time_limit(Duration::from_secs(seconds + 120))
        .run()
        .success();
    println!("{}", outcome.stderr);
    // What the program says is in its files is what everybody else sees there.
    assert_eq!(outcome.stdout.lines().count() as u64, threads + 1, "{}", outcome.report());
    for line in outcome.stdout.lines() {
        let (path, sum) = line.split_once(": ").expect("a line has a path and a sum");
        assert_eq!(Pattern::sum(path).trim(), sum, "seed {seed}: {path} is not what the program has left");
    }
}

fn seconds() -> u64 {
    number_from("ELBOWROOM_SOAK_SECONDS").unwrap_or(SECONDS)
}

fn soak(variant: Variant) {
    // The plain run validates the model; it needs no long time for it.
    let seconds = if variant.is_plain() { seconds().min(3) } else { seconds() };
    soak_for(variant, seconds, 4, 10);
}
behaviour!(soak: plain, m16);

/// Shorter, for the variants that share most of the code with the first.
fn short_soak(variant: Variant) {
    soak_for(variant, seconds().div_ceil(4), 4, 10);
}
behaviour!(short_soak: m64, copy, threads, handlers1, handlers4);

/// One thread, whose operations follow from the seed alone.
fn lonely_soak(variant: Variant) {
    soak_for(variant, seconds().div_ceil(4), 1, 24);
}
behaviour!(lonely_soak: plain, m16);
