//! scan: one file larger than memory, read from start to end and then again and again.

use std::fs::File;

use anyhow::{Context, Result};

use crate::CommonArgs;
use crate::memory::Mapping;
use crate::tally::{Counter, Outcome, Stop, run_threads};

pub fn run(common: &CommonArgs) -> Result<Outcome> {
    let path = common.file(0);
    let file = File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
    let mapping = Mapping::of_file(&file, common.file_bytes)
        .with_context(|| format!("cannot map {}", path.display()))?;
    run_threads(common, |thread, _, counter| match scan_part(common, &mapping, thread as u64, counter) {
        Ok(never) => match never {},
        Err(stop) => stop,
    })
}

/// Thread `number` reads its even share of the file, so that all of them together make one pass.
fn scan_part(
    common: &CommonArgs,
    mapping: &Mapping,
    number: u64,
    counter: &Counter<'_>,
) -> Result<std::convert::Infallible, Stop> {
    let (pages, threads) = (common.pages(), common.threads as u64);
    let part = pages * number / threads..pages * (number + 1) / threads;
    loop {
        for page in part.clone() {
            counter.read(mapping, 0, page)?;
        }
        counter.round_done();
    }
}
