//! file-map-churn: all threads map parts of one file, read a page of each, and unmap them, as fast as they
//! can. The file was read once before, so that it is in memory.

use anyhow::Result;
use elbowroom_lab::PAGE_BYTES;
use elbowroom_lab::board::SLOT_MAPS;
use elbowroom_lab::content::{self, PageDice};

use crate::CommonArgs;
use crate::ground::Ground;
use crate::memory::Rights;
use crate::tally::{Counter, Outcome, Stop, run_threads};

/// What a thread maps in a round.
#[derive(Clone, Copy)]
pub struct Round {
    pub mappings: u64,
    pub mapping_bytes: u64,
}

pub fn run(common: &CommonArgs, ground: &Ground, round: Round) -> Result<Outcome> {
    if let Some(wrong) = read_all(common, ground)? {
        return Ok(wrong);
    }
    run_threads(common, ground, |thread, counter| {
        churn(common, ground, round, thread as u64, counter).err().unwrap_or(Stop::Over)
    })
}

/// Reads the whole file through a mapping that is gone afterwards, so that it is in memory, if it fits. Tells
/// what was wrong.
fn read_all(common: &CommonArgs, ground: &Ground) -> Result<Option<Outcome>> {
    let file = ground.open(&common.file(0), Rights::Read)?;
    let view = ground.map(&file, 0..common.file_bytes, Rights::Read)?;
    let hand = ground.hand();
    for page in 0..common.pages() {
        let (got, expected) = (view.stamp_at(&hand, page)?, content::stamp(common.seed, 0, page));
        if got != expected {
            let what = format!("file 0, page {page} starts with {got:#018x}, {expected:#018x} expected");
            return Ok(Some(Outcome::Wrong(format!("wrong content: {what}"))));
        }
    }
    Ok(None)
}

fn churn(
    common: &CommonArgs,
    ground: &Ground,
    round: Round,
    number: u64,
    counter: &Counter<'_>,
) -> Result<(), Stop> {
    let file = ground.open(&common.file(0), Rights::Read)?;
    let (pages, of_mapping) = (common.pages(), round.mapping_bytes / PAGE_BYTES);
    let mut dice = PageDice::new(number);
    let mut views = Vec::with_capacity(round.mappings as usize);
    while !counter.tally.stopped() {
        for _ in 0..round.mappings {
            let first = dice.next_below(pages - of_mapping + 1);
            let start = first * PAGE_BYTES;
            let view = ground.map(&file, start..start + round.mapping_bytes, Rights::Read)?;
            counter.read(&view, 0, first + dice.next_below(of_mapping))?;
            views.push(view);
        }
        views.clear();
        counter.add(SLOT_MAPS, round.mappings);
        counter.round_done();
    }
    Ok(())
}
