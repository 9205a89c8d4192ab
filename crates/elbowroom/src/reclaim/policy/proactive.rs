//! How many pages go although memory is not short, so that a process has no more than it needs: as many as
//! may come back without costing more than a part of the time.
//!
//! Source: Weiner et al., TMO: Transparent Memory Offloading in Datacenters (ASPLOS 2022), whose Senpai asks
//! for reclaim (`memory.reclaim`) in steps while pressure is below a goal. Here the step comes from an
//! account of time: a part of all time is paid in, the time that the process lost since pages were gone is
//! paid out, and no more pages are gone at a time than the account can pay for if they come back as those
//! before them did.

use elbowroom_sync::time::Duration;

/// The account never has more than what is paid in within this time. A process that needed nothing for an
/// hour does not lose minutes when it goes on.
const MOST_PAID: Duration = Duration::from_secs(30);

/// Pages that went less than this ago, or less than a part of the process's age ago, may still come back.
const LEAST_HORIZON: Duration = Duration::from_secs(2);
const HORIZON_SHARE: u32 = 4;

/// What a page that comes back costs, as long as few have come back, in seconds: a small read of a disk.
const PAGE_COST: f64 = 50e-6;

/// The weight of [`PAGE_COST`] beside what is measured, in pages.
const COST_WEIGHT: f64 = 256.0;

/// Of the pages that are gone at least this part is taken to come back.
const LEAST_RETURN: f64 = 0.25;

/// A program that begins something else may want all pages at once that have ever gone. It loses then at most
/// so many times more than was paid in so far.
const MOST_AT_ONCE: f64 = 4.0;

/// The weight of the assumption that all pages come back, in pages.
const RETURN_WEIGHT: f64 = 2048.0;

/// The first pages go when the process has this age: what it needs at its start comes first.
const WARM_UP: Duration = Duration::from_millis(500);

/// What a process has counted since its manager began.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Seen {
    /// The time since then.
    pub(crate) age: Duration,
    /// The time that the process lost since pages were gone.
    pub(crate) lost: Duration,
    /// The time that putting pages out took from the process's threads.
    pub(crate) worked: Duration,
    /// Pages that went: out of their windows or out of memory.
    pub(crate) gone: u64,
    /// Pages that came back.
    pub(crate) back: u64,
    /// Pages that are out of memory now.
    pub(crate) out: u64,
    /// Pages that the process has now.
    pub(crate) has: u64,
}

/// The account of a process.
#[derive(Debug)]
pub(crate) struct Proactive {
    /// The part of the time that may be lost.
    slowdown: f64,
    last: Seen,
    /// What is in the account, in seconds. Less than 0: more was lost than was paid in.
    account: f64,
    /// Pages that went within the horizon, and that came back, and the seconds lost. What is longer ago
    /// counts less.
    gone: f64,
    back: f64,
    lost: f64,
    /// The pages that the process had within the horizon, each moment with its weight, and all weights.
    had: f64,
    weights: f64,
}

impl Proactive {
    /// An account for a process that may lose this part of its time: 0 to 1.
    pub(crate) fn new(slowdown: f64) -> Self {
        let last = Seen::default();
        Self { slowdown, last, account: 0.0, gone: 0.0, back: 0.0, lost: 0.0, had: 0.0, weights: 0.0 }
    }

    /// How many pages are to go now.
    pub(crate) fn step(&mut self, seen: Seen) -> u64 {
        let before = std::mem::replace(&mut self.last, seen);
        let seconds = seen.age.saturating_sub(before.age).as_secs_f64();
        let lost = seen.lost.saturating_sub(before.lost).as_secs_f64();
        let worked = seen.worked.saturating_sub(before.worked).as_secs_f64();
        let most = self.slowdown * MOST_PAID.as_secs_f64();
        self.account = (self.account + self.slowdown * seconds - lost - worked).clamp(-most, most);
        let horizon = LEAST_HORIZON.max(seen.age / HORIZON_SHARE).as_secs_f64();
        let fades = (-seconds / horizon).exp();
        self.gone = self.gone * fades + seen.gone.saturating_sub(before.gone) as f64;
        self.back = self.back * fades + seen.back.saturating_sub(before.back) as f64;
        self.lost = self.lost * fades + lost;
        self.had = self.had * fades + seen.has as f64 * seconds;
        self.weights = self.weights * fades + seconds;
        if seen.age < WARM_UP {
            return 0;
        }
        let cost = (self.lost + PAGE_COST * COST_WEIGHT) / (self.back + COST_WEIGHT);
        let returns = ((self.back + RETURN_WEIGHT) / (self.gone + RETURN_WEIGHT)).clamp(LEAST_RETURN, 1.0);
        let lately = self.account / (cost * returns) - self.gone;
        let paid = self.slowdown * seen.age.as_secs_f64() - (seen.lost + seen.worked).as_secs_f64();
        let in_all = MOST_AT_ONCE * paid / cost - seen.out as f64;
        lately.min(in_all).max(0.0) as u64
    }

    /// How many pages the process needed of late: the mean within the horizon.
    pub(crate) fn needed(&self) -> u64 {
        if self.weights > 0.0 { (self.had / self.weights) as u64 } else { self.last.has }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_millis(100);

    /// A process with pages that are touched in some order: the page that was touched longest ago goes first.
    struct Process {
        account: Proactive,
        seen: Seen,
        /// When each page was touched last; `None`: it is gone.
        touched: Vec<Option<u64>>,
        clock: u64,
    }

    impl Process {
        fn new(slowdown: f64, pages: usize) -> Self {
            let seen = Seen { has: pages as u64, ..Seen::default() };
            Self { account: Proactive::new(slowdown), seen, touched: vec![Some(0); pages], clock: 0 }
        }

        /// Touches pages. Each that comes back costs 50 microseconds, by which the process takes longer.
        fn touch(&mut self, pages: impl Iterator<Item = usize>) {
            for page in pages {
                self.clock += 1;
                if self.touched[page].replace(self.clock).is_none() {
                    let cost = Duration::from_micros(50);
                    self.seen = Seen {
                        age: self.seen.age + cost,
                        lost: self.seen.lost + cost,
                        back: self.seen.back + 1,
                        out: self.seen.out - 1,
                        has: self.seen.has + 1,
                        ..self.seen
                    };
                }
            }
        }

        /// A tenth of a second passes, and pages go.
        fn tick(&mut self) {
            self.seen.age += TICK;
            let want = self.account.step(self.seen) as usize;
            let mut there: Vec<_> =
                self.touched.iter().enumerate().filter_map(|(page, at)| Some((at.as_ref()?, page))).collect();
            there.sort_unstable();
            let gone: Vec<_> = there.into_iter().take(want).map(|(_, page)| page).collect();
            gone.iter().for_each(|page| self.touched[*page] = None);
            self.seen.gone += gone.len() as u64;
            self.seen.out += gone.len() as u64;
            self.seen.has -= gone.len() as u64;
        }

        fn lost(&self) -> f64 {
            self.seen.lost.as_secs_f64() / self.seen.age.as_secs_f64()
        }
    }

    #[test]
    fn pages_that_are_not_used_go_and_others_stay() {
        let mut process = Process::new(0.05, 100_000);
        for _ in 0..600 {
            process.touch(0..10_000);
            process.tick();
        }
        let needed = process.account.needed();
        assert!((9_000..13_000).contains(&needed), "{needed} of 10,000");
        assert!(process.lost() < 0.06, "{}", process.lost());
    }

    #[test]
    fn a_loop_through_all_pages_loses_no_more_than_it_may() {
        for (seconds, slowdown) in [(1, 0.05), (3, 0.05), (10, 0.05), (3, 0.01)] {
            let (mut process, pages) = (Process::new(slowdown, 60_000), 60_000);
            let each = pages / (10 * seconds);
            for turn in 0..1200 {
                let from = turn * each % pages;
                process.touch(from..from + each);
                process.tick();
            }
            let lost = process.lost();
            assert!(lost < 1.2 * slowdown, "a loop of {seconds} s: {lost} is more than {slowdown}");
        }
    }

    #[test]
    fn a_process_that_begins_something_else_loses_no_more_than_a_multiple() {
        let mut process = Process::new(0.05, 200_000);
        for _ in 0..300 {
            process.touch(0..1_000);
            process.tick();
        }
        let before = process.seen;
        assert!(before.has < 100_000, "{}", before.has);
        process.touch(0..200_000);
        let lost = (process.seen.lost - before.lost).as_secs_f64();
        assert!(lost < 1.01 * MOST_AT_ONCE * 0.05 * before.age.as_secs_f64(), "{lost} s");
        // The account is empty: no page goes before the loss is made good.
        let gone = process.seen.gone;
        for _ in 0..100 {
            process.touch(0..200_000);
            process.tick();
        }
        assert_eq!(process.seen.gone, gone);
    }

    #[test]
    fn nothing_goes_at_the_start_or_without_a_slowdown() {
        let mut process = Process::new(0.0, 1_000);
        (0..100).for_each(|_| process.tick());
        assert_eq!(process.seen.gone, 0);
        let mut process = Process::new(0.05, 1_000);
        (0..4).for_each(|_| process.tick());
        assert_eq!(process.seen.gone, 0);
    }
}
