//! How the memory of large folios of files is divided between the lists of a group: as suits the way in which
//! they are used.
//!
//! Accesses to mapped pages are not seen. What is seen of a folio that is used again is its touch on standby,
//! or its read, if it was evicted before. The touch of a large folio costs one fault, and spares the read of
//! all of its pages. How many are used again *soon*, on standby or after at most half as many evictions as
//! memory has pages, tells three ways of use apart, and each has a division of its own:
//!
//! * *Kept*: hardly any, as in passes over more than memory. Nearly all of memory is for active folios, and
//!   those that have become active stay, so the next pass finds them. Passes over hardly more than memory use
//!   all of their folios again soon, but never on standby, however long that is: what comes next is always
//!   what was evicted last. So *long* gives way to *kept* where few of them are found on standby.
//! * *Even*: the division of single pages.
//! * *Long*: many, as of the experts of a model. Half of memory is standby, so folios that are used again
//!   soon are told from others nearly as an LRU list tells them.
//!
//! A change takes two looks in turn that agree, each after as many pages as memory has had their second
//! chance, so there is at most one for each two times that memory is filled anew. Passes over hardly more
//! than memory look like *long* from *kept*, so *long* is tried again only after a pause, which is twice as
//! long after each vain try.
//! `ReclaimConfig::division` fixes the division.

use elbowroom_sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Of a thousand pages that had their second chance so many are used again soon: fewer begin the division
/// *kept*, more end it.
const KEPT_BEGINS: u64 = 20;
const KEPT_ENDS: u64 = 120;

/// More begin the division *long*, fewer end it.
const LONG_BEGINS: u64 = 200;
const LONG_ENDS: u64 = 100;

/// Of so many pages that are used again soon, one at least is found on standby where *long* serves.
const LONG_FINDS_ONE_IN: u64 = 4;

/// For how many looks *long* is not tried after it was in vain once, and at most.
const LONG_PAUSE: u64 = 8;
const LONGEST_PAUSE: u64 = 64;

/// What the division *kept* leaves to pages that are being read, or that a thread goes through: two of the
/// largest reads. Where these find no inactive page, reclaim takes those that were to stay. A fiftieth beside
/// that is for the frames that are kept free.
const KEPT_READS: usize = 2 * 512;

/// A division of the memory of files between the lists of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Division {
    /// As for single pages: most for what was used again, a sixteenth for second chances.
    Even,
    /// For passes over more than memory: what has come in first stays, as much as fits.
    Kept,
    /// For chunks that are used again soon, such as the experts of a model: half is for second chances.
    Long,
}

impl Division {
    pub(crate) const ALL: [Self; 3] = [Self::Even, Self::Kept, Self::Long];

    /// The division of this name: `even`, `kept` or `long`.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "even" => Some(Self::Even),
            "kept" => Some(Self::Kept),
            "long" => Some(Self::Long),
            _ => None,
        }
    }

    /// How many of so many pages are standby. `even`: the even division has one in so many.
    pub(crate) fn standby_share(self, room: usize, even: usize) -> usize {
        let part = match self {
            Self::Even => even,
            Self::Kept => even.max(64),
            Self::Long => even.min(2),
        };
        room / part
    }

    /// How many of so many pages may be active. `even`: in percent, those of the even division.
    pub(crate) fn active_share(self, room: usize, even: usize) -> usize {
        let percent = |percent: usize| room / 100 * percent + room % 100 * percent / 100;
        match self {
            Self::Even => percent(even),
            Self::Kept => percent(98).saturating_sub(KEPT_READS).max(percent(even)),
            Self::Long => percent(even.min(30)),
        }
    }

    /// The division that suits what is used again soon, in pages of a thousand. `found`: on standby.
    fn suits(self, soon: u64, found: u64) -> Self {
        match self {
            Self::Long if soon >= LONG_ENDS && self.is_vain(soon, found) => Self::Kept,
            Self::Long if soon >= LONG_ENDS => Self::Long,
            Self::Kept if soon <= KEPT_ENDS => Self::Kept,
            _ if soon > LONG_BEGINS => Self::Long,
            _ if soon < KEPT_BEGINS => Self::Kept,
            _ => Self::Even,
        }
    }

    /// Whether a long standby list finds next to nothing of what is used again soon.
    fn is_vain(self, soon: u64, found: u64) -> bool {
        self == Self::Long && found.saturating_mul(LONG_FINDS_ONE_IN) < soon
    }
}

/// The division in use, with what has been counted. Counts that get lost because threads race do no harm.
#[derive(Default)]
pub(crate) struct Divided {
    /// Its index in [`Division::ALL`].
    current: AtomicUsize,
    /// The index of the one that suited what the last look found.
    wanted: AtomicUsize,
    /// Pages whose second chance has ended since the last look.
    ended: AtomicU64,
    /// Pages that were used again on standby.
    found: AtomicU64,
    /// Pages that were used again soon after they were evicted.
    back: AtomicU64,
    /// For how many looks *long* is not tried any more.
    pause: AtomicU64,
    /// The length of the last pause; 0: *long* has served since.
    last_pause: AtomicU64,
}

impl Divided {
    /// The division in use.
    pub(crate) fn current(&self) -> Division {
        Division::ALL[self.current.load(Ordering::Relaxed)]
    }

    /// Notes that a folio of so many pages came back, after as many pages of the `room` as `distance` had
    /// been evicted.
    pub(crate) fn note_back(&self, pages: u64, distance: u64, room: usize) {
        if distance <= room as u64 / 2 {
            self.back.fetch_add(pages, Ordering::Relaxed);
        }
    }

    /// Notes that the second chance of a folio of so many pages has ended. `room`: the pages that the lists
    /// may have. Returns whether the division has changed.
    pub(crate) fn note_chance(&self, pages: u64, taken: bool, room: usize) -> bool {
        if taken {
            self.found.fetch_add(pages, Ordering::Relaxed);
        }
        let ended = self.ended.fetch_add(pages, Ordering::Relaxed) + pages;
        if ended <= room as u64 {
            return false;
        }
        self.ended.store(0, Ordering::Relaxed);
        let [found, back] = [&self.found, &self.back].map(|pages| pages.swap(0, Ordering::Relaxed));
        let part = |pages: u64| pages.saturating_mul(1000) / ended;
        let (soon, current) = (part(found + back), self.current());
        let wanted = self.rested(current, current.suits(soon, part(found)));
        let before = self.wanted.swap(wanted as usize, Ordering::Relaxed);
        let changes = wanted != current && before == wanted as usize;
        if changes {
            self.current.store(wanted as usize, Ordering::Relaxed);
        }
        if changes && wanted == Division::Kept && soon > KEPT_ENDS {
            let pause = (self.last_pause.load(Ordering::Relaxed) * 2).clamp(LONG_PAUSE, LONGEST_PAUSE);
            self.last_pause.store(pause, Ordering::Relaxed);
            self.pause.store(pause, Ordering::Relaxed);
        }
        changes
    }

    /// What is wanted instead of `current`: during the pause of *long*, *kept* stays.
    fn rested(&self, current: Division, wanted: Division) -> Division {
        if current == Division::Long && wanted == Division::Long {
            self.last_pause.store(0, Ordering::Relaxed);
        }
        let pause = self.pause.load(Ordering::Relaxed);
        self.pause.store(pause.saturating_sub(1), Ordering::Relaxed);
        let waits = pause > 0 && current == Division::Kept && wanted == Division::Long;
        if waits { Division::Kept } else { wanted }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    const ROOM: usize = 100_000;
    const PAGES: u64 = 16;

    /// Looks, with so many of a thousand folios used again soon, half of them on standby.
    fn look(divided: &Divided, looks: u64, soon: u64) {
        for turn in 0..looks * (ROOM as u64 / PAGES + 1) {
            let is_soon = turn * soon / 1000 != (turn + 1) * soon / 1000;
            divided.note_chance(PAGES, is_soon && turn % 2 == 0, ROOM);
            if is_soon && turn % 2 == 1 {
                divided.note_back(PAGES, ROOM as u64 / 2, ROOM);
            }
            divided.note_back(PAGES, ROOM as u64 / 2 + 1, ROOM);
        }
    }

    #[test]
    fn the_division_follows_how_many_are_used_again_soon() {
        let divided = Divided::default();
        assert_eq!(divided.current(), Division::Even);
        let steps = [
            (1, 250, Division::Even, "one look is not enough"),
            (2, 250, Division::Long, "two are"),
            (4, 120, Division::Long, "not much fewer"),
            (4, 50, Division::Even, "far fewer"),
            (4, 10, Division::Kept, "hardly any"),
            (4, 60, Division::Kept, "not many more"),
            (4, 140, Division::Even, "many more"),
            (4, 180, Division::Even, "not enough"),
            (1, 250, Division::Even, "once"),
            (1, 100, Division::Even, "not again"),
            (1, 250, Division::Even, "once more"),
            (4, 5, Division::Kept, "a scan"),
            (4, 400, Division::Long, "many at once"),
        ];
        for (looks, soon, expected, why) in steps {
            look(&divided, looks, soon);
            assert_eq!(divided.current(), expected, "{why}: {soon} in {looks} looks");
        }
    }

    /// Passes over hardly more than memory: all of it comes back soon, and nothing is found on standby.
    #[test]
    fn a_long_standby_list_that_finds_nothing_is_not_kept() {
        let divided = Divided::default();
        let pass = |divided: &Divided| {
            for _ in 0..=ROOM as u64 / PAGES {
                divided.note_back(PAGES, ROOM as u64 / 10, ROOM);
                divided.note_chance(PAGES, false, ROOM);
            }
        };
        let looks_until = |division| {
            let looks = (1..1000).find(|_| {
                pass(&divided);
                divided.current() == division
            });
            looks.unwrap()
        };
        assert_eq!((looks_until(Division::Long), looks_until(Division::Kept)), (2, 2));
        for pause in [8, 16, 32, 64, 64] {
            assert_eq!((looks_until(Division::Long), looks_until(Division::Kept)), (pause + 2, 2));
        }
        // The pause delays nothing else, and is short again once the list has served.
        look(&divided, 2, 140);
        assert_eq!(divided.current(), Division::Even);
        look(&divided, 3, 400);
        assert_eq!(divided.current(), Division::Long);
        assert_eq!((looks_until(Division::Kept), looks_until(Division::Long)), (2, 10));
    }

    #[test]
    fn no_share_is_out_of_range() {
        for (standby, active) in [(1, 0), (16, 60), (usize::MAX, 100)] {
            for (division, room) in
                Division::ALL.into_iter().flat_map(|one| [(one, 0), (one, ROOM), (one, 1)])
            {
                assert!(division.standby_share(room, standby) <= room);
                assert!(division.active_share(room, active) <= room);
            }
        }
        let divided = Divided::default();
        divided.note_chance(u64::MAX >> 8, true, 0);
        divided.note_chance(1, true, usize::MAX);
    }

    /// Of a small memory, too, the division *kept* leaves some to reads, and keeps more than the even one
    /// where it can.
    #[test]
    fn kept_folios_leave_room_for_reads() {
        let kept = |room| Division::Kept.active_share(room, 60);
        assert_eq!([kept(100 * KEPT_READS), kept(4 * KEPT_READS), kept(KEPT_READS)], [99_328, 2990, 614]);
    }
}
