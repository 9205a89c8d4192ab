//! random-write: all threads store to single pages at random through one mapping of one file. The file is
//! read afterwards: every page that was stored to must have what was stored, and no other page may have
//! changed where it says which page it is.

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};
use elbowroom_lab::PAGE_BYTES;
use elbowroom_lab::board::{SLOT_PAGES, now_ns};
use elbowroom_lab::content::{self, PageDice};

use crate::ground::Ground;
use crate::memory::Rights;
use crate::tally::{Outcome, Phase, Stop, run_threads};
use crate::verify::{self, STORED, Stored};
use crate::{Advice, CommonArgs};

pub fn run(common: &CommonArgs, ground: &Ground, advice: Advice) -> Result<Outcome> {
    let file = ground.open(&common.file(0), Rights::ReadWrite)?;
    let view = ground.map(&file, 0..common.file_bytes, Rights::ReadWrite)?;
    match advice {
        Advice::None => {}
        Advice::Random => view.advise_random().context("madvise(MADV_RANDOM) failed")?,
    }
    // Another one in every run, so that what an earlier run has stored is not taken for what this one has.
    let salt = now_ns();
    let stored = Marks::new(common.pages());
    let outcome = run_threads(common, ground, |thread, counter| {
        let mut dice = PageDice::new(salt ^ thread as u64);
        while !counter.tally.stopped() {
            let page = dice.next_below(common.pages());
            let before = now_ns();
            let at = page * PAGE_BYTES + STORED as u64;
            if let Err(error) = view.store_word(&counter.hand, at, content::stamp(salt, 0, page)) {
                return Stop::Failed(error);
            }
            counter.tally.operation_took(Phase::Busy, now_ns() - before);
            stored.set(page);
            counter.bump(SLOT_PAGES);
        }
        Stop::Over
    })?;
    if !matches!(outcome, Outcome::Verified) {
        return Ok(outcome);
    }
    verify::file(common, ground, &Stored::Data(0), |page| {
        stored.get(page).then(|| content::stamp(salt, 0, page).to_le_bytes())
    })
}

/// A bit for each page.
struct Marks(Vec<AtomicU64>);

impl Marks {
    fn new(pages: u64) -> Self {
        Self((0..pages.div_ceil(64)).map(|_| AtomicU64::new(0)).collect())
    }

    fn set(&self, page: u64) {
        self.0[(page / 64) as usize].fetch_or(1 << (page % 64), Ordering::Relaxed);
    }

    fn get(&self, page: u64) -> bool {
        self.0[(page / 64) as usize].load(Ordering::Relaxed) >> (page % 64) & 1 == 1
    }
}
