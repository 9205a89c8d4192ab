//! Many processes that share files, ended by every signal at any moment, for as long as
//! `ELBOWROOM_SOAK_SECONDS` says (3600 for the long form): what was confirmed is on the disk, and nothing
//! hangs.
//!
//! The seed is taken from the clock, or from `ELBOWROOM_SOAK_SEED`, and printed, also when the test fails.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use elbowroom_tests::Scratch;
use elbowroom_tests::kills::Soak;

/// Seconds if nobody says otherwise.
const SECONDS: u64 = 8;
/// What validates the test needs no long time.
const PLAIN_SECONDS: u64 = 5;
/// Processes at once.
const SLOTS: u64 = 6;

fn number_from(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}=\"{text}\" is not a number")))
}

fn soak(plain: bool) {
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is set").as_nanos() as u64;
    let seed = number_from("ELBOWROOM_SOAK_SEED").unwrap_or(clock % 1_000_000_000);
    let seconds = number_from("ELBOWROOM_SOAK_SECONDS").unwrap_or(SECONDS);
    let seconds = if plain { seconds.min(PLAIN_SECONDS) } else { seconds };
    println!("soak: seed {seed} (repeat with ELBOWROOM_SOAK_SEED={seed}), {seconds} s, plain: {plain}");
    let scratch = Scratch::new();
    let done = Soak { seed, slots: SLOTS, time: Duration::from_secs(seconds), plain }.run(scratch.path());
    println!("{done:?}");
    assert!(done.killed > 0 && done.signalled > 0 && done.confirmed > 0, "nothing was tried: {done:?}");
}

#[test]
fn plain() {
    soak(true);
}

#[test]
fn managed() {
    soak(false);
}
