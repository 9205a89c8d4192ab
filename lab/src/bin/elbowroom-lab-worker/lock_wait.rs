//! lock-wait: what the start of a program does to the locks of its address space. Of each four threads, two
//! read a file at random, so that faults wait for reads all the time; one maps anonymous memory, touches and
//! unmaps it; one maps parts of the file, takes the rights from half of each, and unmaps it, which is timed.
//! These two pause after each, so that it is locks and not processors that all wait for, and that the layout
//! is read far more often than it is changed, as in the start of a program. The bystander has nothing to do
//! with any of that.

use std::time::Duration;

use anyhow::Result;
use elbowroom_lab::board::{SLOT_ANONYMOUS, SLOT_MAPS, now_ns};
use elbowroom_lab::content::PageDice;
use elbowroom_lab::{PAGE_BYTES, PART_BYTES};

use crate::CommonArgs;
use crate::ground::Ground;
use crate::memory::Rights;
use crate::tally::{Counter, Outcome, Phase, Stop, run_threads};

/// Pages that a thread reads of the file before it maps it anew.
const READ_PAGES: u64 = 64;
const ANONYMOUS_BYTES: u64 = 64 << 10;

struct Work<'a> {
    common: &'a CommonArgs,
    ground: &'a Ground,
    pause: Duration,
}

pub fn run(common: &CommonArgs, ground: &Ground, pause: Duration) -> Result<Outcome> {
    let work = Work { common, ground, pause };
    run_threads(common, ground, |thread, counter| {
        let number = thread as u64;
        let result = match number % 4 {
            0 | 1 => work.read(number, counter),
            2 => work.touch_anonymous(counter),
            _ => work.change(number, counter),
        };
        result.err().unwrap_or(Stop::Over)
    })
}

impl Work<'_> {
    fn read(&self, number: u64, counter: &Counter<'_>) -> Result<(), Stop> {
        let file = self.ground.open(&self.common.file(0), Rights::Read)?;
        let mut dice = PageDice::new(self.common.seed ^ number);
        loop {
            let view = self.ground.map(&file, 0..self.common.file_bytes, Rights::Read)?;
            for _ in 0..READ_PAGES {
                counter.read(&view, 0, dice.next_below(self.common.pages()))?;
            }
        }
    }

    fn touch_anonymous(&self, counter: &Counter<'_>) -> Result<(), Stop> {
        while !counter.tally.stopped() {
            let view = self.ground.map_anonymous(ANONYMOUS_BYTES)?;
            view.touch_every_page(&counter.hand)?;
            let last = ANONYMOUS_BYTES / PAGE_BYTES - 1;
            let got = view.stamp_at(&counter.hand, last)?;
            if got != 1 {
                return Err(Stop::Wrong(format!(
                    "wrong content: {got:#x} in anonymous memory, 0x1 expected"
                )));
            }
            drop(view);
            counter.bump(SLOT_ANONYMOUS);
            std::thread::sleep(self.pause);
        }
        Ok(())
    }

    fn change(&self, number: u64, counter: &Counter<'_>) -> Result<(), Stop> {
        let file = self.ground.open(&self.common.file(0), Rights::Read)?;
        let mut dice = PageDice::new(number);
        while !counter.tally.stopped() {
            let start = dice.next_below(self.common.file_bytes / PART_BYTES) * PART_BYTES;
            let begin = now_ns();
            let mut view = self.ground.map(&file, start..start + PART_BYTES, Rights::Read)?;
            view.close_from(PART_BYTES / 2)?;
            drop(view);
            counter.tally.operation_took(Phase::Busy, now_ns() - begin);
            counter.bump(SLOT_MAPS);
            std::thread::sleep(self.pause);
        }
        Ok(())
    }
}
