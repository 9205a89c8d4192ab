//! io-retry: many threads, each with a file of its own, under a budget that holds a small part of them.

use std::fs::File;

use anyhow::{Context, Result};
use elbowroom_lab::content::PageDice;

use crate::memory::Mapping;
use crate::tally::{Counter, Outcome, Stop, run_threads};
use crate::{CommonArgs, Pattern};

pub fn run(common: &CommonArgs, pattern: Pattern) -> Result<Outcome> {
    run_threads(common, |thread, _, counter| match read_rounds(common, pattern, thread as u64, counter) {
        Ok(never) => match never {},
        Err(stop) => stop,
    })
}

fn read_rounds(
    common: &CommonArgs,
    pattern: Pattern,
    number: u64,
    counter: &Counter<'_>,
) -> Result<std::convert::Infallible, Stop> {
    let mut dice = PageDice::new(number);
    let mut kept = None;
    loop {
        let mapping = match kept.take() {
            Some(mapping) => mapping,
            None => map_file(common, number)?,
        };
        for position in 0..common.pages() {
            let page = match pattern {
                Pattern::Seq | Pattern::Cyclic => position,
                Pattern::Random => dice.next_below(common.pages()),
            };
            counter.read(&mapping, number, page)?;
        }
        match pattern {
            Pattern::Cyclic => kept = Some(mapping),
            Pattern::Seq | Pattern::Random => drop(mapping),
        }
        counter.round_done();
    }
}

fn map_file(common: &CommonArgs, number: u64) -> Result<Mapping> {
    let path = common.file(number);
    let file = File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
    Mapping::of_file(&file, common.file_bytes).with_context(|| format!("cannot map {}", path.display()))
}
