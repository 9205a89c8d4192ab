//! A thread that has nothing to do with the files: how long must it wait for a little memory of its own?

use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use elbowroom_lab::board::{self, BYSTANDER, BYSTANDER_MAX_NS, BYSTANDER_SINCE_NS};
use elbowroom_lab::histogram::bucket_of;

use crate::ground::{Ground, Hand};
use crate::tally::{Stop, Tally};

const LEN_BYTES: u64 = 64 << 10;
const PAUSE: Duration = Duration::from_millis(1);

/// Maps, touches and unmaps 64 KiB, waits a millisecond, again and again until told to stop.
pub fn run(tally: &Tally, ground: &Ground) -> Stop {
    let hand = ground.hand();
    while !tally.stopped() {
        let since = board::now_ns();
        tally.words.word(BYSTANDER_SINCE_NS).store(since, Ordering::Relaxed);
        if let Err(error) = round(ground, &hand) {
            return Stop::Failed(error.context("the bystander"));
        }
        let ns = board::now_ns() - since;
        tally.words.word(BYSTANDER_SINCE_NS).store(0, Ordering::Relaxed);
        tally.words.word(BYSTANDER + bucket_of(ns)).fetch_add(1, Ordering::Relaxed);
        tally.words.word(BYSTANDER_MAX_NS).fetch_max(ns, Ordering::Relaxed);
        thread::sleep(PAUSE);
    }
    Stop::Over
}

fn round(ground: &Ground, hand: &Hand) -> anyhow::Result<()> {
    ground.map_anonymous(LEN_BYTES)?.touch_every_page(hand)
}
