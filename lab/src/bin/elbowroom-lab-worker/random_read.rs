//! random-read: all threads read single pages at random through one mapping of one file.

use std::fs::File;

use anyhow::{Context, Result};
use elbowroom_lab::board::now_ns;
use elbowroom_lab::content::PageDice;

use crate::memory::Mapping;
use crate::tally::{Outcome, run_threads};
use crate::{Advice, CommonArgs};

pub fn run(common: &CommonArgs, advice: Advice) -> Result<Outcome> {
    let path = common.file(0);
    let file = File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
    let mapping = Mapping::of_file(&file, common.file_bytes)
        .with_context(|| format!("cannot map {}", path.display()))?;
    match advice {
        Advice::None => {}
        Advice::Random => mapping.advise_random().context("madvise(MADV_RANDOM) failed")?,
    }
    run_threads(common, |thread, tally, counter| {
        // The seed of the content is another one in every run, so no run reads what an earlier one had read
        // in that order.
        let mut dice = PageDice::new(common.seed ^ thread as u64);
        loop {
            let page = dice.next_below(common.pages());
            let before = now_ns();
            if let Err(stop) = counter.read(&mapping, 0, page) {
                return stop;
            }
            tally.read_took(now_ns() - before);
        }
    })
}
