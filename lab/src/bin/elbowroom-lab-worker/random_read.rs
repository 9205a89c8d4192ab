//! random-read: all threads read single pages at random through one mapping of one file.

use anyhow::{Context, Result};
use elbowroom_lab::board::now_ns;
use elbowroom_lab::content::PageDice;

use crate::ground::Ground;
use crate::memory::Rights;
use crate::tally::{Outcome, Phase, run_threads};
use crate::{Advice, CommonArgs};

pub fn run(common: &CommonArgs, ground: &Ground, advice: Advice) -> Result<Outcome> {
    let file = ground.open(&common.file(0), Rights::Read)?;
    let view = ground.map(&file, 0..common.file_bytes, Rights::Read)?;
    match advice {
        Advice::None => {}
        Advice::Random => view.advise_random().context("madvise(MADV_RANDOM) failed")?,
    }
    run_threads(common, ground, |thread, counter| {
        // The seed of the content is another one in every run, so no run reads what an earlier one had read
        // in that order.
        let mut dice = PageDice::new(common.seed ^ thread as u64);
        loop {
            let page = dice.next_below(common.pages());
            let before = now_ns();
            if let Err(stop) = counter.read(&view, 0, page) {
                return stop;
            }
            counter.tally.operation_took(Phase::Busy, now_ns() - before);
        }
    })
}
