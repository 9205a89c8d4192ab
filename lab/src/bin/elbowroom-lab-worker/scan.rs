//! scan: one file larger than memory, read from start to end and then again and again.

use anyhow::Result;

use crate::CommonArgs;
use crate::ground::{Ground, View};
use crate::memory::Rights;
use crate::tally::{Counter, Outcome, Stop, run_threads};

pub fn run(common: &CommonArgs, ground: &Ground) -> Result<Outcome> {
    let file = ground.open(&common.file(0), Rights::Read)?;
    let view = ground.map(&file, 0..common.file_bytes, Rights::Read)?;
    run_threads(common, ground, |thread, counter| match scan_part(common, &view, thread as u64, counter) {
        Ok(never) => match never {},
        Err(stop) => stop,
    })
}

/// Thread `number` reads its even share of the file, so that all of them together make one pass.
fn scan_part(
    common: &CommonArgs,
    view: &View<'_>,
    number: u64,
    counter: &Counter<'_>,
) -> Result<std::convert::Infallible, Stop> {
    let (pages, threads) = (common.pages(), common.threads as u64);
    let part = pages * number / threads..pages * (number + 1) / threads;
    loop {
        for page in part.clone() {
            counter.read(view, 0, page)?;
        }
        counter.round_done();
    }
}
