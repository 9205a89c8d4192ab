//! Frames for threads that need them: the arena grows, and frames are freed ahead of need.
//!
//! Pages that fit in the budget stay in memory: nothing is freed before the arena has its size. A thread of
//! its own keeps some frames at hand (Linux: `kswapd`): it grows the arena ahead of need, and once the
//! arena has its size it frees frames when few are left. A thread that needs frames sooner grows the arena
//! itself, and then frees a batch.

use super::proactive::SPARE_SHARE;
use super::{Reclaim, Target};
use crate::config::{
    AHEAD_SHARE, LEAST_AHEAD_FRAMES, PAY_AT, PIECES_SHARE, RECLAIM_ROUNDS, RUN_ORDER, RUN_ROUNDS,
};
use crate::group::{Frames, GroupEvent, GroupId, OverLimit, Payer};
use crate::page::Woken;
use crate::platform::Platform;
use crate::trace::Happened;
use elbowroom_machine::Mmu;

impl<P: Platform> Reclaim<P> {
    /// A run of 2^`order` frames for a group or, if memory is short or in pieces, a smaller one.
    ///
    /// # Errors
    /// Nothing can be freed now, in the arena or in the group whose limit is reached.
    pub(crate) fn frames(
        &self,
        payer: impl Into<Payer>,
        order: u8,
        woken: &dyn Woken,
    ) -> Result<Frames, OverLimit> {
        let payer = payer.into();
        let wanted: usize = 1 << order;
        let want = wanted.max(self.tuning().reclaim_batch_pages);
        let rounds = if (1..=RUN_ORDER).contains(&order) { RUN_ROUNDS } else { RECLAIM_ROUNDS };
        for _ in 0..rounds {
            let extent = self.alloc(payer, order);
            self.see_to_supply(order);
            let from = match extent {
                Ok(_) => return extent,
                Err(OverLimit::Group(over)) => {
                    self.groups.count(over, GroupEvent::Max, 1);
                    over.into()
                }
                Err(OverLimit::MemorySwap(over)) => {
                    self.groups.count(over, GroupEvent::MemorySwapMax, 1);
                    Target::memory_and_swap(over)
                }
                // Pages that fit in the budget stay in memory, even though growing may take as long as
                // reading an evicted page again.
                Err(OverLimit::Arena) if self.grow_arena() => continue,
                Err(OverLimit::Arena) if order > 0 && !is_short_of_pieces(&self.mmu) => break,
                // The free frames may be in pieces. Evicting folios of that size frees runs of that size,
                // so go on for a while.
                Err(OverLimit::Arena) => Target::arena_for_access(),
            };
            if self.shrink(from, want, woken) == 0 {
                break;
            }
        }
        loop {
            let mut smaller = self.alloc(payer, order);
            for order in (0..order).rev() {
                smaller = smaller.or_else(|_| self.alloc(payer, order));
            }
            // Other threads may have taken the frames by which the arena had grown: grow it again.
            if !matches!(smaller, Err(OverLimit::Arena)) || !self.grow_arena() {
                return smaller;
            }
        }
    }

    /// A run of 2^`order` frames for a group, if one is free. Does not wait, grow or reclaim.
    pub(crate) fn frames_at_hand(&self, payer: impl Into<Payer>, order: u8) -> Option<Frames> {
        let extent = self.alloc(payer, order);
        self.see_to_supply(order);
        extent.ok()
    }

    /// A run of 2^`order` frames for a group, if it can be had without freeing frames. The arena may grow
    /// for it: that clears frames, which the caller would have to do otherwise.
    pub(crate) fn whole_run(&self, group: GroupId, order: u8) -> Option<Frames> {
        let mut extent = self.alloc(group, order);
        for _ in 0..RECLAIM_ROUNDS {
            // More than once, since other threads may take the frames by which the arena has grown.
            if !matches!(extent, Err(OverLimit::Arena)) || !self.grow_arena() {
                break;
            }
            extent = self.alloc(group, order);
        }
        self.see_to_supply(order);
        extent.ok()
    }

    /// Wakes the thread that keeps frames at hand, if it has something to do. It frees frames for
    /// single-frame requests (`order` 0) only: frames that it frees ahead would be in pieces, so a thread
    /// that needs a run frees folios of that size itself. For runs of anonymous memory `order` is 0, too:
    /// they go out in runs, so they are freed in runs. Frames that are owed for metadata are given up
    /// first: reclaim, which does that otherwise, does not run while memory is free.
    pub(crate) fn see_to_supply(&self, order: u8) {
        if self.owed_frames() >= PAY_AT {
            self.pay_frames(self.mmu.frames_at_hand() / 2);
        }
        if self.wants_to_grow() || order == 0 && self.is_low() || self.groups.near_max.is_some() {
            self.supply.bell.ring();
        }
    }

    /// The low watermark: with fewer free frames than this, frames are freed ahead.
    pub(super) fn low_mark(&self) -> usize {
        let frames = match self.config.member {
            Some(_) => self.mmu.populated_frames(),
            None => self.mmu.frames(),
        };
        frames / self.tuning().low_share
    }

    /// Whether the arena can have more memory: it has neither reached its size nor its allowance, or its
    /// process can take more pages from its run.
    pub(crate) fn can_grow(&self) -> bool {
        self.mmu.can_grow() || self.run().is_some_and(|run| run.has_room())
    }

    /// Whether the arena should grow ahead of need: few frames are free, and it can grow.
    pub(super) fn wants_to_grow(&self) -> bool {
        let most = self.tuning().grow_ahead_frames;
        let ahead = self.run().map_or(most, |run| run.grow_ahead().min(most));
        let free = self.mmu.frames_at_hand();
        // A process that uses little gets little ahead of need: a run may have hundreds of such processes.
        let in_use = self.mmu.populated_frames().saturating_sub(free);
        let share = if self.config.reclaim.slowdown.is_some() { SPARE_SHARE } else { AHEAD_SHARE };
        free < ahead.min((in_use / share).max(LEAST_AHEAD_FRAMES)) && self.can_grow()
    }

    /// Whether frames are to be freed ahead: fewer than the low mark are free, and the arena cannot grow.
    /// While it can, nothing is freed, however little of a large arena is populated.
    pub(super) fn is_low(&self) -> bool {
        !self.can_grow() && self.mmu.frames_at_hand() < self.low_mark()
    }

    /// Populates more of the arena. `false`: all of it is populated, or as much as its allowance permits.
    /// The process of a run takes the pages from the run first; if the run has none left, another process
    /// is asked for some, and the caller goes on without.
    pub(super) fn grow_arena(&self) -> bool {
        self.pay_frames(usize::MAX);
        // If the machine has no memory for more, the arena stays as it is.
        let grow = || self.mmu.grow().unwrap_or(false);
        let take = || self.run().is_some_and(|run| run.take_block());
        let grown = self.noted(Happened::Grow, |grown| [u64::from(*grown), 0], || grow() || take() && grow());
        if let Some(run) = self.run().filter(|_| grown) {
            run.fit_pool();
        }
        grown
    }

    /// Wakes the thread that keeps frames at hand, so that it sees that the manager stops.
    pub(crate) fn wake_supplier(&self) {
        self.supply.bell.ring_for_stop();
    }
}

/// Whether to go on freeing until a run is free, although single frames are free: pages that get single
/// frames instead go out and come back one by one from then on. Only while few frames are free. When many
/// are, free frames join to runs again, unless frames that cannot be freed lie between them, as those of
/// the pool do everywhere; then freeing more would evict all, for runs that never come.
fn is_short_of_pieces(mmu: &impl Mmu) -> bool {
    mmu.frames_at_hand() < mmu.populated_frames() / PIECES_SHARE
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::config::DELAY;
    use crate::object::FileObject;
    use crate::page::Ready;
    use crate::{Config, Manager, MapRequest, Prot, Sharing, Soft};
    use elbowroom_machine::PAGE_SIZE;
    use elbowroom_sync::time::{Duration, Instant};
    use elbowroom_sync::{Arc, thread};

    /// A mapping of so many pages: of an object, read-only, or of private memory.
    fn request(pages: usize, object: Option<Arc<FileObject>>) -> MapRequest {
        let memory = MapRequest::private_memory(pages * PAGE_SIZE);
        match object {
            None => memory,
            object => {
                let (prot, sharing) = (Prot::READ, Sharing::Shared);
                MapRequest { prot, may_write: false, sharing, object, ..memory }
            }
        }
    }

    /// A space with `pages` of a file mapped.
    fn mapped(config: Config, pages: usize) -> (Manager<Soft>, crate::Space<Soft>, usize) {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len((pages * PAGE_SIZE) as u64).unwrap();
        let manager = Manager::<Soft>::start_on(config).unwrap();
        let space = manager.create_space().unwrap();
        let object = Some(manager.open(file.path(), false).unwrap());
        let start = space.map(request(pages, object)).unwrap();
        (manager, space, start)
    }

    /// In a large arena the low mark is above the frames that are grown ahead. Here a tuned `low_share`
    /// makes it so in a small one.
    #[test]
    fn nothing_is_freed_ahead_of_need_while_the_arena_can_grow() {
        const PAGES: usize = 12 << 10;
        // Room for the pages, and for all frames that are grown ahead of need: the arena can grow to the end.
        let mut config = Config::with_memory(128 << 20);
        config.ablation.tuning.low_share = 2;
        let (manager, space, start) = mapped(config, PAGES);
        let cpu = space.cpu();
        for page in 0..PAGES {
            assert_eq!(cpu.read_u64(start + page * PAGE_SIZE), Ok(0));
            if page % 1024 == 0 {
                // Gives the thread that keeps frames at hand time to look.
                thread::sleep(DELAY);
            }
        }
        assert_eq!(manager.stats().evicted_pages, 0);
    }

    /// Whenever few frames are left, some are freed although no thread asks for more.
    #[test]
    fn single_frames_are_freed_ahead_of_need() {
        const PAGES: usize = 8192;
        let (_manager, space, start) = mapped(Config::with_memory(16 << 20), PAGES);
        let (cpu, core) = (space.cpu(), &space.core);
        let mut met = 0;
        // In strides, so that no sequential stream is detected and single pages are read.
        for page in (0..PAGES).map(|turn| turn * 4099 % PAGES) {
            assert_eq!(cpu.read_u64(start + page * PAGE_SIZE), Ok(0));
            let low = || core.is_low();
            let since = Instant::now();
            met += usize::from(low());
            while low() {
                assert!(since.elapsed() < Duration::from_secs(20), "nobody frees frames ahead");
                thread::sleep(DELAY);
            }
        }
        assert!(met > 0, "memory was never short");
    }

    /// While many frames are free, but only single ones, no pages are evicted to free a run.
    #[test]
    fn nothing_is_freed_for_a_run_while_much_is_free_in_pieces() {
        const PAGES: usize = 512;
        let mut config = Config::with_memory(16 << 20);
        // The thread that keeps frames at hand looks once a second: with this low mark it frees nothing
        // while the test holds all frames.
        config.ablation.tuning.low_share = usize::MAX;
        let (manager, space, start) = mapped(config, PAGES);
        let (cpu, core) = (space.cpu(), &space.core);
        for page in 0..PAGES {
            assert_eq!(cpu.read_u64(start + page * PAGE_SIZE), Ok(0));
        }
        // Take all frames. Another thread may be growing the arena, too.
        let mut held = Vec::new();
        while core.groups.charged_pages() < core.mmu.frames() as u64 {
            held.extend(core.alloc(GroupId::ROOT, 0));
            core.mmu.grow().unwrap();
        }
        held.sort_unstable_by_key(|frames| frames.bytes().as_ptr() as usize);
        for at in (0..held.len() / 2).rev() {
            core.free(held.remove(2 * at));
        }
        assert!(core.mmu.frames_at_hand() > core.mmu.frames() / 4);
        for _ in 0..100 {
            let frames = core.frames(GroupId::ROOT, RUN_ORDER, &Ready::default()).expect("some are free");
            assert_eq!(frames.pages(), 1);
            core.free(frames);
        }
        assert_eq!(manager.stats().evicted_pages, 0);
        held.into_iter().for_each(|frames| core.free(frames));
    }

    /// Unused swap takes nothing of the budget. Metadata of pages that are out takes frames from the pages
    /// that are in, and that of single pages more than that of large folios.
    #[test]
    fn what_describes_pages_is_a_part_of_the_budget() {
        const BUDGET: usize = 16 << 20;
        const PAGES: usize = 10 * BUDGET / PAGE_SIZE;
        let config = Config { swap: 20 * BUDGET as u64, ..Config::with_memory(BUDGET as u64) };
        let manager = Manager::<Soft>::start_on(config).unwrap();
        let space = manager.create_space().unwrap();
        let start = space.map(request(PAGES, None)).unwrap();
        let (cpu, core) = (space.cpu(), &space.core);
        let pages = || (0..PAGES).map(|turn| turn * 4099 % PAGES);
        let before = core.mmu.frames();
        assert!(before * PAGE_SIZE > BUDGET / 8 * 7, "{before}");
        for page in pages() {
            cpu.write_u64(start + page * PAGE_SIZE, !(page as u64)).unwrap();
        }
        let expected = (PAGES * 40 + before * 250) / PAGE_SIZE;
        let gone = before - core.mmu.frames();
        assert!((expected / 4 * 3..expected * 3 / 2).contains(&gone), "{gone}, not some {expected}");
        for page in pages() {
            assert_eq!(cpu.read_u64(start + page * PAGE_SIZE), Ok(!(page as u64)));
        }
        let peak = core.peak_bytes() as usize - core.mmu.metadata_bytes();
        assert!(peak <= BUDGET, "{peak}");
        // Once all is unmapped, only frames given up for metadata are missing.
        space.unmap(start, PAGES * PAGE_SIZE).unwrap();
        let free = core.mmu.frames_at_hand() + core.swap.frames();
        assert!(core.mmu.frames() - free < 64, "{} of {}", free, core.mmu.frames());
    }
}
