//! The statistics of a group. Threads count in counter rows of their own, so that an event costs no shared
//! cache line. Only the reader adds up, over threads and along the tree.

use super::limits::Limits;
use elbowroom_sync::SparseCounters;

/// The kind of memory that a page is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Pages that belong to one space.
    Anonymous,
    /// Pages of files, or of memory that mappings share.
    File,
}

impl Kind {
    /// How many kinds there are.
    pub const COUNT: usize = 2;

    /// Both kinds, in the order of their numbers.
    pub const ALL: [Self; Self::COUNT] = [Self::Anonymous, Self::File];
}

/// The events that are counted for a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupEvent {
    /// How often pages were reclaimed although the group was within its `low`, since no other pages could
    /// be.
    Low,
    /// Accesses that found the group over its `high`.
    High,
    /// Of these, accesses that did not sleep since nothing could be reclaimed.
    HighStuck,
    /// Of these, accesses that slept.
    HighWaits,
    /// Allocations that the group's `max` did not permit at once.
    Max,
    /// Allocations that the group's `memory_swap_max` did not permit at once.
    MemorySwapMax,
    /// How often pages could not go out since the group's swap was at its `swap_max`: folios that reclaim
    /// met, and scans that left anonymous memory alone.
    SwapMax,
    /// Accesses that failed since the group stayed at its `max`, or at its `memory_swap_max`.
    Failed,
    /// Faults that did not wait for I/O.
    FaultsMinor,
    /// Faults that waited for I/O.
    FaultsMajor,
    /// Evicted pages of a kind that came back.
    Refaults(Kind),
    /// Pages of a kind that reclaim looked at.
    Scanned(Kind),
    /// Pages of a kind that reclaim freed.
    Stolen(Kind),
    /// Pages of a kind that were written to be freed. This and the next two are for the scan balance.
    Pageouts(Kind),
    /// Evicted pages of a kind that came back so early that they count as in use.
    Restores(Kind),
    /// Pages of a kind that reclaim looked at, and that were in use.
    Rotations(Kind),
}

impl GroupEvent {
    pub(super) const COUNT: usize = 10 + 6 * Kind::COUNT;

    /// Its number, below [`GroupEvent::COUNT`].
    pub(super) fn index(self) -> usize {
        let of_kind = |nth: usize, kind: Kind| 10 + nth * Kind::COUNT + kind as usize;
        match self {
            Self::Low => 0,
            Self::High => 1,
            Self::HighStuck => 2,
            Self::HighWaits => 3,
            Self::Max => 4,
            Self::Failed => 5,
            Self::FaultsMinor => 6,
            Self::FaultsMajor => 7,
            Self::MemorySwapMax => 8,
            Self::SwapMax => 9,
            Self::Refaults(kind) => of_kind(0, kind),
            Self::Scanned(kind) => of_kind(1, kind),
            Self::Stolen(kind) => of_kind(2, kind),
            Self::Pageouts(kind) => of_kind(3, kind),
            Self::Restores(kind) => of_kind(4, kind),
            Self::Rotations(kind) => of_kind(5, kind),
        }
    }
}

/// The counters of one group, without the groups below it.
#[derive(Default)]
pub struct GroupCounters(SparseCounters<{ GroupEvent::COUNT }>);

impl GroupCounters {
    /// Counts `n` events of a kind.
    #[inline]
    pub fn add(&self, event: GroupEvent, n: u64) {
        self.0.add(event.index(), n);
    }

    /// How many events of a kind there were.
    pub fn get(&self, event: GroupEvent) -> u64 {
        self.0.get(event.index())
    }

    /// Adds all counts to `sums`, which are by [`GroupEvent::index`].
    pub(super) fn add_to(&self, sums: &mut [u64; GroupEvent::COUNT]) {
        self.0.add_to(sums);
    }

    /// Moves all counts to `heir`, since the place gets another group. No thread counts in `self`
    /// meanwhile.
    pub(super) fn hand_to(&self, heir: &Self) {
        for which in 0..GroupEvent::COUNT {
            let counted = self.0.get(which);
            heir.0.add(which, counted);
            self.0.add(which, counted.wrapping_neg());
        }
    }
}

/// What reclaim did with one kind of memory of a group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct KindStats {
    /// Evicted pages that came back.
    pub refaults: u64,
    /// Pages that reclaim looked at.
    pub scanned: u64,
    /// Pages that reclaim freed.
    pub stolen: u64,
}

impl KindStats {
    fn add(&mut self, below: &Self) {
        let Self { refaults, scanned, stolen } = below;
        self.refaults = self.refaults.wrapping_add(*refaults);
        self.scanned = self.scanned.wrapping_add(*scanned);
        self.stolen = self.stolen.wrapping_add(*stolen);
    }
}

/// What a group and all groups below it have in swap, and how often their limits were met.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct SwapStats {
    /// Bytes in swap. A page that several spaces share since a fork counts once.
    pub bytes: u64,
    /// The most bytes that were in swap at a time.
    pub peak_bytes: u64,
    /// How often pages could not go out since the group's swap was at its `swap_max`: folios that reclaim
    /// met, and scans that left the group's anonymous memory alone.
    pub max: u64,
    /// Allocations that the group's `memory_swap_max` did not permit at once.
    pub memory_max: u64,
}

impl SwapStats {
    /// Adds what a group below has counted. Its bytes are among the group's own.
    fn add(&mut self, below: &Self) {
        self.max = self.max.wrapping_add(below.max);
        self.memory_max = self.memory_max.wrapping_add(below.memory_max);
    }
}

/// The bytes that a group uses, with the groups below it.
pub(super) struct Used {
    pub(super) bytes: u64,
    pub(super) peak_bytes: u64,
    pub(super) swap_bytes: u64,
    pub(super) swap_peak_bytes: u64,
}

/// What a group and all groups below it use and have counted so far, removed groups included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupStats {
    /// Bytes in use.
    pub usage_bytes: u64,
    /// The most bytes that were in use at a time, stocks of threads included. 0 for the root: the statistics
    /// of the manager have its peak.
    pub peak_bytes: u64,
    /// The group's limits as they are now.
    pub limits: Limits,
    /// How often pages were reclaimed although the group was within its `low`, since no other pages could
    /// be.
    pub low: u64,
    /// Accesses that found the group over its `high`.
    pub high: u64,
    /// Of these, accesses that slept.
    pub high_waits: u64,
    /// Of these, accesses that did not sleep since nothing could be reclaimed.
    pub high_stuck: u64,
    /// Allocations that the group's `max` did not permit at once.
    pub max: u64,
    /// Accesses that failed since the group stayed at its `max`, or at its `memory_swap_max`.
    pub failed: u64,
    /// Faults served, with and without I/O.
    pub pgfault: u64,
    /// Of these, faults that waited for I/O.
    pub pgmajfault: u64,
    /// What reclaim did with anonymous memory.
    pub anonymous: KindStats,
    /// What reclaim did with pages of files.
    pub file: KindStats,
    /// The pages in swap.
    pub swap: SwapStats,
}

impl GroupStats {
    /// Puts the statistics together. `of`: how many events of a kind there were.
    pub(super) fn new(used: Used, limits: Limits, of: impl Fn(GroupEvent) -> u64) -> Self {
        let kind = |kind| KindStats {
            refaults: of(GroupEvent::Refaults(kind)),
            scanned: of(GroupEvent::Scanned(kind)),
            stolen: of(GroupEvent::Stolen(kind)),
        };
        Self {
            usage_bytes: used.bytes,
            peak_bytes: used.peak_bytes,
            limits,
            low: of(GroupEvent::Low),
            high: of(GroupEvent::High),
            high_waits: of(GroupEvent::HighWaits),
            high_stuck: of(GroupEvent::HighStuck),
            max: of(GroupEvent::Max),
            failed: of(GroupEvent::Failed),
            pgfault: of(GroupEvent::FaultsMinor) + of(GroupEvent::FaultsMajor),
            pgmajfault: of(GroupEvent::FaultsMajor),
            anonymous: kind(Kind::Anonymous),
            file: kind(Kind::File),
            swap: SwapStats {
                bytes: used.swap_bytes,
                peak_bytes: used.swap_peak_bytes,
                max: of(GroupEvent::SwapMax),
                memory_max: of(GroupEvent::MemorySwapMax),
            },
        }
    }

    /// The same, with a use of 0 where the sum is below 0: a reader may see that a page was freed, and not
    /// yet that another thread had allocated it.
    pub(super) fn settled(self) -> Self {
        Self { usage_bytes: (self.usage_bytes as i64).max(0) as u64, ..self }
    }

    /// Adds what a group below has used and counted. The peak, the bytes in swap, which have those of the
    /// group below, and the limits stay.
    pub(super) fn add(&mut self, below: &Self) {
        let Self { usage_bytes, low, high, high_waits, high_stuck, max, failed, pgfault, pgmajfault, .. } =
            self;
        let sums = [usage_bytes, low, high, high_waits, high_stuck, max, failed, pgfault, pgmajfault];
        let Self { usage_bytes, low, high, high_waits, high_stuck, max, failed, pgfault, pgmajfault, .. } =
            *below;
        let more = [usage_bytes, low, high, high_waits, high_stuck, max, failed, pgfault, pgmajfault];
        sums.into_iter().zip(more).for_each(|(sum, more)| *sum = sum.wrapping_add(more));
        self.anonymous.add(&below.anonymous);
        self.file.add(&below.file);
        self.swap.add(&below.swap);
    }
}
