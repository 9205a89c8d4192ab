//! io-retry: many threads, each with a file of its own, under a budget that holds a small part of them.

use anyhow::Result;
use elbowroom_lab::content::PageDice;

use crate::ground::{Ground, View};
use crate::memory::Rights;
use crate::tally::{Counter, Outcome, Stop, run_threads};
use crate::{CommonArgs, Pattern};

pub fn run(common: &CommonArgs, ground: &Ground, pattern: Pattern) -> Result<Outcome> {
    run_threads(common, ground, |thread, counter| {
        match read_rounds(common, ground, pattern, thread as u64, counter) {
            Ok(never) => match never {},
            Err(stop) => stop,
        }
    })
}

fn read_rounds(
    common: &CommonArgs,
    ground: &Ground,
    pattern: Pattern,
    number: u64,
    counter: &Counter<'_>,
) -> Result<std::convert::Infallible, Stop> {
    let mut dice = PageDice::new(number);
    let mut kept = None;
    loop {
        let view = match kept.take() {
            Some(view) => view,
            None => map_file(common, ground, number)?,
        };
        for position in 0..common.pages() {
            let page = match pattern {
                Pattern::Seq | Pattern::Cyclic => position,
                Pattern::Random => dice.next_below(common.pages()),
            };
            counter.read(&view, number, page)?;
        }
        match pattern {
            Pattern::Cyclic => kept = Some(view),
            Pattern::Seq | Pattern::Random => drop(view),
        }
        counter.round_done();
    }
}

fn map_file<'g>(common: &CommonArgs, ground: &'g Ground, number: u64) -> Result<View<'g>> {
    let file = ground.open(&common.file(number), Rights::Read)?;
    ground.map(&file, 0..common.file_bytes, Rights::Read)
}
