//! When the flusher begins and when writers must wait, and for how long: plain data in, a plan out.
//!
//! Linux: `balance_dirty_pages`, `wb_position_ratio`, `wb_update_bandwidth` and `wb_update_dirty_ratelimit`
//! in mm/page-writeback.c. As there, no writer waits below the middle between the background limit and the
//! hard one. Above it, each writer may dirty pages at a rate: the base rate, times a share that falls as
//! more is dirty. The base rate follows what the device takes, divided by the writers that there are: it is
//! lowered while more is dirtied than written, and raised while less is. A writer that dirties faster owes
//! the difference, and pauses for it.

use crate::config::{
    DIRTY_CREDIT, DIRTY_WRITERS, FIRST_WRITE_RATE, RATE_WINDOW, THROTTLE_BOUND, THROTTLE_LEAST, THROTTLE_MIN,
};
use crate::group::DirtyLimits;
use elbowroom_sync::Mutant;

/// The whole share of the base rate: shares are in parts of this.
const WHOLE: u64 = 1024;

/// The least share below the hard limit.
const LEAST: u64 = WHOLE / 32;

/// Entries among which a thread's is, so that not all of the table is searched.
const WAYS: usize = 4;

const SECOND: u64 = 1_000_000_000;

/// In tests of the tests: all writers wait for what some of them dirty.
const MUTANT_ALL_ALIKE: Mutant = Mutant::new("pause_all_alike");

/// In tests of the tests: a writer pauses for a store each time its page has been taken away meanwhile.
const MUTANT_PAY_AGAIN: Mutant = Mutant::new("pause_again");

/// How much is dirty, and how much may be: of one group, or of all.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Level {
    pub(crate) dirty: usize,
    pub(crate) limits: DirtyLimits,
}

/// What is to be done about what is dirty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Pressure {
    /// Nothing is to be done.
    None,
    /// The flusher works.
    Background,
    /// Writers are slowed down to what the device takes.
    Balanced,
    /// Beyond the hard limit: no writer goes on before less is dirty.
    Full,
}

impl Level {
    /// So much may be dirty before writers are slowed down. Linux: `dirty_freerun_ceiling`.
    fn free(&self) -> usize {
        self.limits.background + (self.limits.hard - self.limits.background) / 2
    }

    pub(crate) fn pressure(&self) -> Pressure {
        if self.dirty > self.limits.hard {
            Pressure::Full
        } else if self.dirty > self.free() {
            Pressure::Balanced
        } else if self.dirty > self.limits.background {
            Pressure::Background
        } else {
            Pressure::None
        }
    }

    /// How many pages may become dirty at once, beyond the one that must.
    pub(crate) fn room(&self) -> usize {
        self.limits.hard.saturating_sub(self.dirty) / 8
    }

    /// The share of its base rate that a writer may have: twice of it where slowing down begins, all of it
    /// in the middle, next to nothing before the hard limit, nothing beyond. Linux: `wb_position_ratio`.
    fn share(&self) -> u64 {
        if self.dirty > self.limits.hard {
            return 0;
        }
        let (left, all) = (self.limits.hard - self.dirty, (self.limits.hard - self.free()).max(1));
        // Without a limit these numbers are large.
        let share = u128::from(2 * WHOLE) * left as u128 / all as u128;
        share.clamp(LEAST.into(), (2 * WHOLE).into()) as u64
    }
}

/// A thread that dirties pages.
#[derive(Debug, Clone, Copy, Default)]
struct Writer {
    thread: u32,
    /// When it dirtied a page last, or when its last pause ends; 0: never.
    seen_ns: u64,
    /// How long the pages that it has dirtied take at its rate, less the time that has passed; below 0:
    /// what it has saved up.
    owes_ns: i64,
    /// The page it paused for last, if it has not dirtied another one since.
    paid: Option<u64>,
}

/// What is known of the device and of the writers. Times are in nanoseconds since any fixed moment.
pub(crate) struct Balance {
    /// Pages that are written in a second; 0: not known yet.
    write_rate: u64,
    /// Pages that one writer may dirty in a second, at the whole share; 0: not known yet.
    base_rate: u64,
    /// When the window began, and how many pages were dirtied in it by writers that are slowed down.
    window: (u64, u64),
    writers: Vec<Writer>,
}

impl Balance {
    pub(crate) fn new() -> Self {
        Self { write_rate: 0, base_rate: 0, window: (0, 0), writers: vec![Writer::default(); DIRTY_WRITERS] }
    }

    /// Notes that pages were written in so much time. A longer time counts for more in the mean: half a
    /// second for half.
    pub(crate) fn written(&mut self, pages: u64, took_ns: u64) {
        let rate = (pages.saturating_mul(SECOND) / took_ns.max(1)).max(1);
        let weight = took_ns.min(SECOND / 2);
        let old = if self.write_rate == 0 { rate } else { self.write_rate };
        self.write_rate = weighted(old, SECOND - weight, rate, weight).max(1);
    }

    /// A thread has dirtied `pages` pages, `page` first: returns how long it has to pause now, in
    /// nanoseconds; 0: not at all. `levels`: all that count these pages, with these pages. `page` is any
    /// number that no other page has.
    pub(crate) fn dirtied(
        &mut self,
        levels: &[Level],
        thread: u32,
        page: u64,
        pages: u64,
        now_ns: u64,
    ) -> u64 {
        // The page was written back before the thread came to store to it. The thread has paused for that
        // store already; if it paused for it again and again, it could wait forever.
        let writer = self.writer(thread);
        if writer.paid.take() == Some(page) && !MUTANT_PAY_AGAIN.planted() {
            return 0;
        }
        let share = levels.iter().map(Level::share).min().unwrap_or(2 * WHOLE);
        self.adapt(share, pages, now_ns);
        let rate = self.base_rate() * share / WHOLE;
        let writer = self.writer(thread);
        if share == 0 {
            // The writer pays by waiting until less is dirty, however long that takes.
            *writer = Writer { seen_ns: now_ns, owes_ns: 0, paid: Some(page), ..*writer };
            return THROTTLE_BOUND.as_nanos() as u64;
        }
        let passed = now_ns.saturating_sub(writer.seen_ns) as i64;
        let period = (pages * SECOND / rate.max(1)) as i64;
        let owes = (writer.owes_ns - passed).max(-(DIRTY_CREDIT.as_nanos() as i64)) + period;
        (writer.seen_ns, writer.owes_ns) = (now_ns, owes);
        let least = if MUTANT_ALL_ALIKE.planted() { i64::MIN } else { least_pause(levels, rate) };
        if owes < least {
            return 0;
        }
        let pause = if MUTANT_ALL_ALIKE.planted() { THROTTLE_MIN.as_nanos() as u64 } else { owes as u64 };
        let pause = pause.min(THROTTLE_BOUND.as_nanos() as u64);
        // What is beyond the longest pause is forgiven: the level says soon enough if that was too much.
        *writer = Writer { seen_ns: now_ns + pause, owes_ns: 0, paid: Some(page), ..*writer };
        pause
    }

    fn write_rate(&self) -> u64 {
        if self.write_rate == 0 { FIRST_WRITE_RATE } else { self.write_rate }
    }

    fn base_rate(&self) -> u64 {
        if self.base_rate == 0 { self.write_rate() } else { self.base_rate }
    }

    /// Counts pages that were dirtied; once in a while moves the base rate half way to the one with which as
    /// much would have been dirtied as the device takes. Linux: `wb_update_dirty_ratelimit`.
    fn adapt(&mut self, share: u64, pages: u64, now_ns: u64) {
        let (since, dirtied) = self.window;
        let window = RATE_WINDOW.as_nanos() as u64;
        let passed = now_ns.saturating_sub(since);
        if passed > 10 * window {
            // No writer was slowed down meanwhile.
            self.window = (now_ns, pages);
            return;
        }
        self.window.1 = dirtied + pages;
        if passed < window {
            return;
        }
        let dirty_rate = (self.window.1 * SECOND / passed).max(1);
        let (base, write) = (self.base_rate(), self.write_rate());
        let balanced = (base * share.max(LEAST) / WHOLE).saturating_mul(write) / dirty_rate;
        self.base_rate = weighted(base, 1, balanced, 1).clamp((write / 256).max(1), write);
        self.window = (now_ns, 0);
    }

    /// The entry of a thread. For a new thread the entry is used again that was not seen for longest.
    fn writer(&mut self, thread: u32) -> &mut Writer {
        let first = thread.wrapping_mul(0x9E37_79B1) as usize % (self.writers.len() / WAYS) * WAYS;
        let set = &mut self.writers[first..first + WAYS];
        let own = set.iter().position(|writer| writer.thread == thread && writer.seen_ns > 0);
        let oldest = || (0..WAYS).min_by_key(|&way| set[way].seen_ns).unwrap_or(0);
        let way = own.unwrap_or_else(oldest);
        if own.is_none() {
            set[way] = Writer { thread, ..Writer::default() };
        }
        &mut set[way]
    }
}

/// How much a writer may owe before it pauses, in nanoseconds. Where few pages may be dirtied at once it is
/// less, since the writer dirties them before it pauses.
fn least_pause(levels: &[Level], rate: u64) -> i64 {
    let between = levels.iter().map(|level| level.limits.hard - level.free()).min().unwrap_or(0) as u64;
    let pages = (between / 4).saturating_mul(SECOND) / rate.max(1);
    pages.clamp(THROTTLE_LEAST.as_nanos() as u64, THROTTLE_MIN.as_nanos() as u64) as i64
}

fn weighted(a: u64, weight_a: u64, b: u64, weight_b: u64) -> u64 {
    let sum = u128::from(a) * u128::from(weight_a) + u128::from(b) * u128::from(weight_b);
    (sum / u128::from(weight_a + weight_b)) as u64
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const LIMITS: DirtyLimits = DirtyLimits { background: 1000, hard: 2000 };

    fn level(dirty: usize) -> Level {
        Level { dirty, limits: LIMITS }
    }

    /// A device and writers, in steps of 0.1 ms.
    struct World {
        balance: Balance,
        /// Pages that the device takes in a second.
        device: u64,
        /// For each writer: pages that it would dirty in a second, pages that it has, until when it pauses,
        /// and for how long it has; whether that is for less to be dirty than the hard limit.
        writers: Vec<(u64, u64, u64, u64, bool)>,
        dirty: u64,
        most_dirty: u64,
    }

    impl World {
        fn new(device: u64, writers: &[u64]) -> Self {
            let writers = writers.iter().map(|wish| (*wish, 0, 0, 0, false)).collect();
            Self { balance: Balance::new(), device, writers, dirty: 0, most_dirty: 0 }
        }

        /// Lets `seconds` pass.
        fn run(&mut self, seconds: u64) {
            const STEP: u64 = MS / 10;
            let (mut device, mut wishes) = (0, vec![0; self.writers.len()]);
            for now in (SECOND..SECOND * (1 + seconds)).step_by(STEP as usize) {
                // It writes in clusters.
                device += self.device * STEP;
                if device >= 64 * SECOND && self.dirty > LIMITS.background as u64 {
                    let pages = self.dirty.min(64);
                    self.dirty -= pages;
                    self.balance.written(64, 64 * SECOND / self.device);
                    device -= 64 * SECOND;
                }
                device = device.min(64 * SECOND);
                for (thread, (wish, done, until, paused, full)) in self.writers.iter_mut().enumerate() {
                    if now < *until {
                        // As soon as less is dirty, or less than the hard limit if it waits for that.
                        let pressure = level(self.dirty as usize).pressure();
                        if pressure >= Pressure::Balanced && !(*full && pressure < Pressure::Full) {
                            *paused += STEP;
                            continue;
                        }
                    }
                    *until = 0;
                    wishes[thread] += *wish * STEP;
                    while wishes[thread] >= SECOND && now >= *until {
                        wishes[thread] -= SECOND;
                        (self.dirty, *done) = (self.dirty + 1, *done + 1);
                        let level = level(self.dirty as usize);
                        if level.pressure() >= Pressure::Balanced {
                            let pause = self.balance.dirtied(&[level], thread as u32 + 1, *done, 1, now);
                            (*until, *full) = (now + pause, level.pressure() == Pressure::Full);
                        }
                    }
                    wishes[thread] = wishes[thread].min(100 * SECOND);
                }
                self.most_dirty = self.most_dirty.max(self.dirty);
            }
        }
    }

    #[test]
    fn a_level_has_four_pressures() {
        let pressures = [0, 1000, 1001, 1500, 1501, 2000, 2001].map(|dirty| level(dirty).pressure());
        use Pressure::{Background, Balanced, Full, None};
        assert_eq!(pressures, [None, None, Background, Background, Balanced, Balanced, Full]);
        assert_eq!([1500, 1750, 2000, 2001].map(|dirty| level(dirty).share()), [2048, 1024, 32, 0]);
        let small = Level { dirty: 1, limits: DirtyLimits { background: 0, hard: 1 } };
        assert_eq!((small.pressure(), small.share()), (Pressure::Balanced, LEAST));
        assert_eq!((level(0).room(), level(1992).room(), level(9999).room()), (250, 1, 0));
        let free = Level { dirty: 1 << 40, limits: DirtyLimits::NONE };
        assert_eq!((free.pressure(), free.share()), (None, 2048));
    }

    /// A group without a limit changes nothing.
    #[test]
    fn what_has_no_limit_does_not_count() {
        let free = Level { dirty: 9, limits: DirtyLimits::NONE };
        assert_eq!(least_pause(&[level(1600), free], 1000), least_pause(&[level(1600)], 1000));
        assert_eq!(least_pause(&[level(1600), free], 1000), THROTTLE_MIN.as_nanos() as i64);
        let pauses = |levels: &[Level]| {
            let mut balance = Balance::new();
            (0..1000).map(|page| balance.dirtied(levels, 7, page, 1, 5 + page)).collect::<Vec<_>>()
        };
        assert_eq!(pauses(&[level(1900), free]), pauses(&[level(1900)]));
    }

    #[test]
    fn the_tightest_level_decides() {
        let mut balance = Balance::new();
        assert_eq!(
            balance.dirtied(&[level(1600), level(2001)], 7, 1, 1, 5),
            THROTTLE_BOUND.as_nanos() as u64
        );
        assert_eq!(balance.dirtied(&[level(1600), level(1600)], 8, 1, 1, 5), 0);
    }

    /// Its page may be taken away while it pauses: then it comes again, and must get on.
    #[test]
    fn who_has_paused_for_a_page_stores_to_it() {
        let mut balance = Balance::new();
        let mut store = |page, now| balance.dirtied(&[level(2001)], 7, page, 1, now) > 0;
        let paused = [(1, 5), (1, 6), (1, 7), (2, 8), (1, 9), (1, 10)].map(|(page, now)| store(page, now));
        assert_eq!(paused, [true, false, true, true, true, false]);
    }

    /// One that dirties as fast as it can gets what the device takes, and the limit holds.
    #[test]
    fn a_fast_writer_gets_the_rate_of_the_device() {
        for device in [2_000, 20_000, 200_000] {
            let mut world = World::new(device, &[10 * device]);
            world.run(10);
            let rate = world.writers[0].1 / 10;
            assert!((device * 8 / 10..device * 12 / 10).contains(&rate), "{rate} of {device}");
            assert!(world.most_dirty <= LIMITS.hard as u64 + 1, "{}", world.most_dirty);
        }
    }

    /// Each pays for its own pages: beside one that dirties a hundred times what the device takes, one that
    /// dirties a hundredth of it hardly waits.
    #[test]
    fn who_dirties_little_hardly_waits() {
        let mut world = World::new(20_000, &[2_000_000, 200]);
        world.run(10);
        let [(_, much, _, much_paused, _), (_, little, _, little_paused, _)] = world.writers[..] else {
            panic!()
        };
        assert!(much > 160_000 && much_paused > 8 * SECOND, "{much} pages, {much_paused} ns");
        assert!(little > 1_900 && little_paused < SECOND / 5, "{little} pages, {little_paused} ns");
    }

    #[test]
    fn two_that_are_alike_get_half_each() {
        let mut world = World::new(20_000, &[200_000, 200_000]);
        world.run(10);
        for (_, done, ..) in &world.writers {
            assert!((70_000..130_000).contains(done), "{done}");
        }
        assert!(world.most_dirty <= LIMITS.hard as u64 + 2, "{}", world.most_dirty);
    }

    #[test]
    fn a_pause_is_bounded_and_what_took_longer_counts_for_more() {
        let mut balance = Balance::new();
        balance.written(1, 10 * SECOND);
        assert_eq!(balance.write_rate(), 1);
        assert_eq!(balance.dirtied(&[level(1999)], 1, 1, 1_000_000, 1), THROTTLE_BOUND.as_nanos() as u64);
        balance.written(256, MS);
        assert!(balance.write_rate() < 1000, "{}", balance.write_rate());
        (0..100).for_each(|_| balance.written(256 * 250, SECOND / 2));
        assert!((120_000..=128_000).contains(&balance.write_rate()), "{}", balance.write_rate());
    }

    #[test]
    fn many_threads_are_known() {
        let mut balance = Balance::new();
        for thread in 1..1000 {
            balance.writer(thread).seen_ns = u64::from(thread);
        }
        let known = (1..1000).filter(|thread| balance.writers.iter().any(|writer| writer.thread == *thread));
        assert!(known.count() > DIRTY_WRITERS * 9 / 10);
        assert_eq!(balance.writer(999).seen_ns, 999);
    }
}
