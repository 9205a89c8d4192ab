//! Charging: how much groups use, and whether they may use more. Linux: `page_counter_try_charge`, and the
//! stocks of `try_charge`.
//!
//! There are two counts. Pages *charged* to a group alone are counted by threads in counter rows of their
//! own; a reader adds the rows up. What a group *uses*, with all groups below it, is one number, against
//! which limits are checked; the root has no such number, since its limit is the arena. A thread takes
//! [`STOCK`] pages of use at a time, and then charges from that stock of its own. Pages in stocks count as
//! used: so a group never uses more than its limit, and a charge that finds the limit reached first takes
//! back the stocks of all threads.
//!
//! Synchronization: atomics. A stock is changed by compare-exchanges, since other threads may empty it.

use super::limits::UNLIMITED;
use super::tree::{Group, Node, State};
use super::{GroupId, Groups, OverLimit, Payer, Purpose};
use crate::config::{NEAR_MAX_SHARE, NEAR_MAX_TIME};
use elbowroom_sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use elbowroom_sync::time::Duration;
use elbowroom_sync::{Counters, Mutant};

/// In tests of the tests: a page from a stock is counted as used once more.
const MUTANT_CHARGE_TWICE: Mutant = Mutant::new("charge_twice");

/// Pages of use that a thread takes at a time. Linux: `MEMCG_CHARGE_BATCH`.
const STOCK: u64 = if cfg!(shuttle) { 4 } else { 64 };

/// The time over which the rate of a group's allocations is measured, at least and at most.
const SHORTEST_LOOK: Duration = Duration::from_millis(1);
const LONGEST_LOOK: Duration = Duration::from_millis(100);

/// The group that was refused memory at its `max` last, for the thread that frees memory ahead of need.
#[derive(Default)]
pub struct NearMax(AtomicUsize);

impl NearMax {
    fn note(&self, index: usize) {
        if self.0.load(Ordering::Relaxed) != index {
            self.0.store(index, Ordering::Relaxed);
        }
    }

    /// Whether a group was refused memory since [`NearMax::take`].
    pub fn is_some(&self) -> bool {
        self.0.load(Ordering::Relaxed) != GroupId::ROOT.index()
    }

    /// The group that was refused memory at its `max` last, once for each refusal. `now`: the time, from any
    /// fixed moment on.
    pub fn take(&self, groups: &Groups, now: Duration) -> Option<GroupId> {
        let index = self.0.swap(GroupId::ROOT.index(), Ordering::Relaxed);
        if index == GroupId::ROOT.index() {
            return None;
        }
        groups.at(index).look_ahead(now);
        Some(groups.id(index))
    }

    /// How many pages of a group are to be freed ahead of need: until twice as much is free below its `max`
    /// as its threads allocated lately in [`NEAR_MAX_TIME`], but not what its own `low` protects. Pages in
    /// stocks are free. Linux: the watermarks of `kswapd`.
    pub fn beyond(&self, groups: &Groups, group: GroupId) -> u64 {
        groups.drain(group.index());
        let (near, usage) = (groups.of(group), groups.of(group).usage.pages());
        let ahead = near.usage.ahead.load(Ordering::Relaxed);
        match near.limits.max() {
            UNLIMITED => 0,
            max => usage.saturating_sub(max.saturating_sub(2 * ahead).max(near.limits.low_pages())),
        }
    }
}

/// How much a group uses.
#[derive(Default)]
pub(super) struct Usage {
    /// Pages that are charged to the group alone.
    charged: Counters<1>,
    /// Pages that are charged to the group and to the groups below it, and pages in stocks. Always 0 for
    /// the root.
    pages: AtomicU64,
    /// The most that `pages` has been. A thread notes `pages` after it has charged, so a peak that lasted
    /// for a shorter time may be missing.
    peak: AtomicU64,
    /// Pages that were added to `pages` so far: how fast threads allocate.
    taken: AtomicU64,
    /// What `taken` was when memory was freed ahead last, and when, in nanoseconds.
    seen: AtomicU64,
    seen_at: AtomicU64,
    /// How many pages are freed ahead.
    ahead: AtomicU64,
}

impl Usage {
    /// Pages that are charged to the group alone. Exact if no other thread allocates.
    pub(super) fn charged_pages(&self) -> u64 {
        self.charged.get(0)
    }

    /// Pages that the group uses, with the groups below it and with stocks.
    pub(super) fn pages(&self) -> u64 {
        self.pages.load(Ordering::SeqCst)
    }

    /// The most pages that the group has used, with the groups below it and with stocks. Linux:
    /// `page_counter.watermark`.
    pub(super) fn peak_pages(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    /// Notes how much the group uses, if it was never more.
    fn note_peak(&self) {
        let pages = self.pages();
        if pages > self.peak.load(Ordering::Relaxed) {
            self.peak.fetch_max(pages, Ordering::Relaxed);
        }
    }

    /// The place gets another group.
    pub(super) fn forget_peak(&self) {
        self.peak.store(0, Ordering::Relaxed);
        self.ahead.store(0, Ordering::Relaxed);
    }

    /// Adds `pages` to the use, if the sum is at most `most`.
    fn take(&self, pages: u64, most: u64) -> bool {
        let more = |used: u64| used.checked_add(pages).filter(|used| *used <= most);
        let taken = self.pages.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok();
        if taken {
            self.taken.fetch_add(pages, Ordering::Relaxed);
        }
        taken
    }

    fn give(&self, pages: u64) {
        let before = self.pages.fetch_sub(pages, Ordering::SeqCst);
        debug_assert!(before >= pages, "{pages} pages are given back of {before} that are used");
    }

    fn count(&self, pages: u64) {
        self.charged.add(0, pages);
    }

    fn discount(&self, pages: u64) {
        self.charged.add(0, pages.wrapping_neg());
    }
}

/// Pages of use that a thread has taken for a group and not charged yet: the group's index in the upper 16
/// bits, the number of pages below.
#[derive(Default)]
pub(super) struct Stock(AtomicU64);

impl Stock {
    const PAGES: u64 = (1 << 48) - 1;

    fn word(index: usize, pages: u64) -> u64 {
        (index as u64) << 48 | pages
    }

    fn parts(word: u64) -> (usize, u64) {
        ((word >> 48) as usize, word & Self::PAGES)
    }

    /// Takes `pages` of the group at `index` out of the stock; `false`: it has fewer.
    fn take(&self, index: usize, pages: u64) -> bool {
        let rest = |word: u64| {
            let (of, had) = Self::parts(word);
            (of == index && had >= pages).then(|| word - pages)
        };
        self.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, rest).is_ok()
    }

    /// Adds pages of the group at `index`. Returns the group and the pages that leave the stock: what is
    /// too much for it, or, if it was another group's stock, all of that.
    fn put(&self, index: usize, pages: u64) -> Option<(usize, u64)> {
        let kept = |word: u64| {
            let (of, had) = Self::parts(word);
            let all = if of == index { had + pages } else { pages };
            Self::word(index, if all > 2 * STOCK { STOCK } else { all })
        };
        let before = self.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |word| Some(kept(word)));
        let before = before.unwrap_or_else(|word| word);
        let (of, had) = Self::parts(before);
        let (_, left) = Self::parts(kept(before));
        let too_much = if of == index { (of, had + pages - left) } else { (of, had) };
        (too_much.1 > 0).then_some(too_much)
    }

    /// Takes out all pages, if they belong to a group that `of` accepts.
    fn empty(&self, of: impl Fn(usize) -> bool) -> Option<(usize, u64)> {
        let rest = |word: u64| {
            let (index, pages) = Self::parts(word);
            (pages > 0 && of(index)).then(|| Self::word(index, 0))
        };
        let before = self.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, rest);
        before.ok().map(Self::parts)
    }
}

/// Why use was not taken.
enum Refused {
    /// The group at this place would use more than its `max`.
    Over(usize),
    /// The group at this place would use more memory and swap than its `memory_swap_max`.
    OverBoth(usize),
    /// The group was removed meanwhile.
    Removed,
}

impl Group {
    /// Sets how much is freed ahead, by what was allocated since the last call: `now` is the time. Calls that
    /// follow within a millisecond change nothing, and of a long pause the last [`LONGEST_LOOK`] count. If
    /// less than a batch would be freed, nothing is: a thread that is refused memory frees a batch itself,
    /// and evicting a large folio for a few pages takes memory from a small group.
    fn look_ahead(&self, now: Duration) {
        let (usage, now) = (&self.usage, now.as_nanos() as u64);
        let time = now.saturating_sub(usage.seen_at.load(Ordering::Relaxed));
        if time < SHORTEST_LOOK.as_nanos() as u64 {
            return;
        }
        usage.seen_at.store(now, Ordering::Relaxed);
        let taken = usage.taken.load(Ordering::Relaxed);
        let new = taken.wrapping_sub(usage.seen.swap(taken, Ordering::Relaxed));
        let time = u128::from(time).min(LONGEST_LOOK.as_nanos());
        let ahead = u128::from(new) * NEAR_MAX_TIME.as_nanos() / time;
        let most = match self.limits.max() {
            UNLIMITED => 0,
            max => max / NEAR_MAX_SHARE,
        };
        let ahead = u64::try_from(ahead).unwrap_or(u64::MAX).min(most);
        usage.ahead.store(if 2 * ahead < STOCK { 0 } else { ahead }, Ordering::Relaxed);
    }
}

impl Groups {
    /// Charges pages to the group that pays for the payer's group ([`Tree::paying`](super::Tree::paying)),
    /// and returns that group. `Err`: the group whose limit does not permit that.
    pub(super) fn charge(&self, payer: Payer, pages: u64) -> Result<GroupId, OverLimit> {
        let group = payer.group;
        if group == GroupId::ROOT {
            self.of(group).usage.count(pages);
            return Ok(group);
        }
        let (node, index) = (self.of(group), group.index());
        let place = node.place();
        let lives = place.state == State::Live && place.life == group.life;
        if lives && self.stocks.mine().take(index, pages) {
            node.usage.count(pages);
            return Ok(group);
        }
        self.charge_slowly(payer, pages)
    }

    /// [`Groups::charge`] for a group that was removed, or of which the thread has no stock.
    #[cold]
    fn charge_slowly(&self, Payer { group, purpose }: Payer, pages: u64) -> Result<GroupId, OverLimit> {
        loop {
            let index = self.payer(group);
            let (payer, place) = (self.id(index), self.at(index).place());
            if payer != GroupId::ROOT && !self.stocks.mine().take(index, pages) {
                match self.take_use((index, place), purpose, pages) {
                    Ok(()) => {}
                    Err(Refused::Removed) => continue,
                    Err(Refused::Over(over)) => return Err(OverLimit::Group(self.id(over))),
                    Err(Refused::OverBoth(over)) => return Err(OverLimit::MemorySwap(self.id(over))),
                }
            }
            self.at(index).usage.count(pages);
            return Ok(payer);
        }
    }

    /// Takes use of a group and of all groups above it, and also a stock for the thread if the limits
    /// permit it. A stock may be used for new memory, so pages that come in fill none.
    fn take_use(&self, of: (usize, Node), purpose: Purpose, pages: u64) -> Result<(), Refused> {
        let fills = pages < STOCK && purpose == Purpose::New;
        if fills && self.try_take(of, purpose, pages + STOCK).is_ok() {
            self.put_in_stock(of.0, STOCK);
            return Ok(());
        }
        match self.try_take(of, purpose, pages) {
            Err(Refused::Over(over) | Refused::OverBoth(over)) => {
                self.drain(over);
                let again = self.try_take(of, purpose, pages);
                if let Err(Refused::Over(over)) = again {
                    self.near_max.note(over);
                }
                again
            }
            other => other,
        }
    }

    fn try_take(&self, (index, place): (usize, Node), purpose: Purpose, pages: u64) -> Result<(), Refused> {
        let own = self.at(index);
        let take = |above: usize| {
            let group = self.at(above);
            if !group.usage.take(pages, group.limits.max()) {
                return Err(Refused::Over(above));
            }
            if purpose == Purpose::New && group.beyond_memory_swap() > 0 {
                group.usage.give(pages);
                return Err(Refused::OverBoth(above));
            }
            Ok(())
        };
        take(index)?;
        // This check comes after the use was taken: a thread that wants to give the place to another group
        // changes the place first and looks at the use last. From here on the place stays the group's, and
        // the groups above stay the same.
        if own.place() != place || place.state != State::Live {
            own.usage.give(pages);
            return Err(Refused::Removed);
        }
        let above = || self.lineage(index).skip(1);
        for (taken, next) in above().enumerate() {
            if let Err(refused) = take(next) {
                above().take(taken).for_each(|above| self.at(above).usage.give(pages));
                own.usage.give(pages);
                return Err(refused);
            }
        }
        self.lineage(index).for_each(|above| self.at(above).usage.note_peak());
        Ok(())
    }

    fn put_in_stock(&self, index: usize, pages: u64) {
        if let Some((index, pages)) = self.stocks.mine().put(index, pages) {
            self.give_use(index, pages);
        }
    }

    fn give_use(&self, index: usize, pages: u64) {
        self.lineage(index).for_each(|above| self.at(above).usage.give(pages));
    }

    /// Takes back the charge of pages from a group.
    pub(super) fn uncharge_pages(&self, group: GroupId, pages: u64) {
        let (index, group) = (group.index(), self.of(group));
        group.usage.discount(pages);
        if index == GroupId::ROOT.index() {
            return;
        }
        if MUTANT_CHARGE_TWICE.planted() {
            self.lineage(index).for_each(|above| _ = self.at(above).usage.take(pages, u64::MAX));
        }
        // Pages beyond a limit do not go to a stock: they would be charged again without a check of the
        // limit.
        let is_over = |above: usize| {
            let group = self.at(above);
            group.usage.pages() > group.limits.max() || group.beyond_memory_swap() > 0
        };
        if pages <= STOCK && group.place().state == State::Live && !self.lineage(index).any(is_over) {
            self.put_in_stock(index, pages);
        } else {
            self.give_use(index, pages);
        }
    }

    /// Gives back the stocks of the group at `index` and of those below it. Linux: `drain_all_stock`.
    pub(super) fn drain(&self, index: usize) {
        let within = |of: usize| self.is_within(of, index);
        let stocks: Vec<_> = self.stocks.all().filter_map(|stock| stock.empty(within)).collect();
        stocks.into_iter().for_each(|(index, pages)| self.give_use(index, pages));
    }

    /// The pages in stocks of a group and of those below it.
    #[cfg(test)]
    pub(super) fn stocked_pages(&self, group: GroupId) -> u64 {
        let stocks = self.stocks.all().map(|stock| Stock::parts(stock.0.load(Ordering::SeqCst)));
        stocks.filter(|(of, _)| self.is_within(*of, group.index())).map(|(_, pages)| pages).sum()
    }
}
