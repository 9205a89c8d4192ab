//! uptodate-wait: all threads read the same pages of one file in the same order, at random, so that they
//! fault on the same cold page at the same time: whoever is behind finds pages that are there, and catches up
//! with those who wait for one that is not.

use anyhow::Result;
use elbowroom_lab::content::PageDice;

use crate::CommonArgs;
use crate::ground::Ground;
use crate::memory::Rights;
use crate::tally::{Outcome, Stop, run_threads};

pub fn run(common: &CommonArgs, ground: &Ground) -> Result<Outcome> {
    let file = ground.open(&common.file(0), Rights::Read)?;
    let view = ground.map(&file, 0..common.file_bytes, Rights::Read)?;
    run_threads(common, ground, |_, counter| {
        let read_all = || {
            let mut dice = PageDice::new(common.seed);
            loop {
                if let Err(stop) = counter.read(&view, 0, dice.next_below(common.pages())) {
                    return stop;
                }
            }
        };
        counter.with_faults(read_all).unwrap_or_else(Stop::Failed)
    })
}
