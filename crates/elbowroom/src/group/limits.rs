//! What groups may use: limits that change at any time, and how protection is divided.
//!
//! Synchronization: an atomic for each limit; limits that are set together may be seen one by one.

use crate::ablation::Tuning;
use crate::config::Config;
use crate::process_tree::LimitKey;
use elbowroom_machine::PAGE_SIZE;
use elbowroom_sync::atomic::{AtomicU64, Ordering};

/// The default. Linux: `vm_swappiness`.
const SWAPPINESS: u64 = 60;

/// No limit, in pages.
pub(super) const UNLIMITED: u64 = u64::MAX;

/// How much memory and swap a group and the groups below it may use, in bytes. Linux: `memory.max`,
/// `memory.high`, `memory.low`, `memory.min`, `memory.swap.max` of cgroup v2. Each is rounded down to whole
/// pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The group never uses more memory than this. An access that needs more waits until pages of the group
    /// were reclaimed, and fails after [`Bounds::memory_wait`](crate::Bounds::memory_wait). `u64::MAX`: no
    /// limit.
    pub max: u64,
    /// A thread whose access makes the group use more than this reclaims pages of the group itself, and
    /// then sleeps for at most 200 ms for each access; not at all if nothing can be reclaimed. `u64::MAX`:
    /// no limit.
    pub high: u64,
    /// Memory that is not taken from the group as long as other groups have unprotected memory.
    pub low: u64,
    /// Memory that is not taken from the group by others, unless an access would fail else: it has waited for
    /// a page of the budget, and nothing else is left.
    pub min: u64,
    /// The group never has more than this in swap: pages beyond it stay in memory. A limit below what is in
    /// swap brings nothing back. 0: none of the group's pages goes out. `u64::MAX`: no limit. Linux:
    /// `memory.swap.max`.
    pub swap_max: u64,
    /// The group never has more than this in memory and swap together, but for pages that go out or come in
    /// just now, which are in both. An access that needs more waits until pages of files were reclaimed, and
    /// fails after [`Bounds::memory_wait`](crate::Bounds::memory_wait): that pages go to swap does not help
    /// it. Pages that come in from swap need no room. `u64::MAX`: no limit. Linux:
    /// `memory.memsw.limit_in_bytes` of cgroup v1; cgroup v2 has no such limit.
    pub memory_swap_max: u64,
    /// The group itself, without the groups below it, has at most so many dirty pages of files, which differ
    /// from their files: threads that store to more are slowed down until some are written. Half of that is
    /// written in the background. Never more than three quarters of `max`: dirty pages cannot be evicted.
    /// `u64::MAX`: no further limit. Linux: `vm.dirty_bytes`, and `mem_cgroup_wb_stats` for groups.
    pub dirty: u64,
    /// How readily anonymous memory is taken when memory is reclaimed for this group, beside files: from 0,
    /// only if there are no files, over 100, as readily as files, to 200, before files. Not a number of
    /// bytes. Linux: `vm.swappiness`.
    pub swappiness: u64,
}

impl Default for Limits {
    /// No limit, no protection, and Linux's swappiness of 60.
    fn default() -> Self {
        let none = u64::MAX;
        Self {
            max: none,
            high: none,
            low: 0,
            min: 0,
            swap_max: none,
            memory_swap_max: none,
            dirty: none,
            swappiness: SWAPPINESS,
        }
    }
}

impl Limits {
    /// The same limits, but for one.
    #[must_use]
    pub fn with(mut self, key: LimitKey, value: u64) -> Self {
        *match key {
            LimitKey::Max => &mut self.max,
            LimitKey::High => &mut self.high,
            LimitKey::Low => &mut self.low,
            LimitKey::Min => &mut self.min,
            LimitKey::SwapMax => &mut self.swap_max,
            LimitKey::MemorySwapMax => &mut self.memory_swap_max,
            LimitKey::Dirty => &mut self.dirty,
            LimitKey::Swappiness => &mut self.swappiness,
        } = value;
        self
    }
}

/// [`Limits`] in pages.
pub struct LimitPages {
    max: AtomicU64,
    high: AtomicU64,
    low: AtomicU64,
    min: AtomicU64,
    swap_max: AtomicU64,
    memory_swap_max: AtomicU64,
    dirty: AtomicU64,
    swappiness: AtomicU64,
}

impl LimitPages {
    /// The limits of a new group: none.
    pub(super) fn none() -> Self {
        let limits = Self {
            max: AtomicU64::new(UNLIMITED),
            high: AtomicU64::new(UNLIMITED),
            low: AtomicU64::new(0),
            min: AtomicU64::new(0),
            swap_max: AtomicU64::new(UNLIMITED),
            memory_swap_max: AtomicU64::new(UNLIMITED),
            dirty: AtomicU64::new(UNLIMITED),
            swappiness: AtomicU64::new(SWAPPINESS),
        };
        limits.set(&Limits::default());
        limits
    }

    /// Sets all limits.
    pub(super) fn set(&self, limits: &Limits) {
        let pages = |bytes: u64| if bytes == u64::MAX { UNLIMITED } else { bytes / PAGE_SIZE as u64 };
        let Limits { max, high, low, min, swap_max, memory_swap_max, dirty, swappiness } = *limits;
        self.swappiness.store(swappiness, Ordering::Release);
        let all = [max, high, low, min, swap_max, memory_swap_max, dirty];
        let Self { max, high, low, min, swap_max, memory_swap_max, dirty, .. } = self;
        let own = [max, high, low, min, swap_max, memory_swap_max, dirty];
        for (limit, bytes) in own.into_iter().zip(all) {
            limit.store(pages(bytes), Ordering::Release);
        }
    }

    /// The pages that `low` protects.
    pub(super) fn low_pages(&self) -> u64 {
        self.low.load(Ordering::Acquire)
    }

    /// All limits, in bytes.
    pub(super) fn get(&self) -> Limits {
        let bytes = |limit: &AtomicU64| match limit.load(Ordering::Acquire) {
            UNLIMITED => u64::MAX,
            pages => pages * PAGE_SIZE as u64,
        };
        Limits {
            max: bytes(&self.max),
            high: bytes(&self.high),
            low: bytes(&self.low),
            min: bytes(&self.min),
            swap_max: bytes(&self.swap_max),
            memory_swap_max: bytes(&self.memory_swap_max),
            dirty: bytes(&self.dirty),
            swappiness: self.swappiness(),
        }
    }

    /// How readily anonymous memory is taken.
    pub(super) fn swappiness(&self) -> u64 {
        self.swappiness.load(Ordering::Acquire)
    }

    /// The most pages that the group may use.
    pub(super) fn max(&self) -> u64 {
        self.max.load(Ordering::Acquire)
    }

    /// The group's threads are slowed down while it uses more pages than this.
    pub(super) fn high(&self) -> u64 {
        self.high.load(Ordering::Acquire)
    }

    /// How many pages of the group itself may be dirty.
    pub(super) fn dirty(&self) -> DirtyLimits {
        let most = match self.max() {
            UNLIMITED => UNLIMITED,
            max => max / 4 * 3,
        };
        match self.dirty.load(Ordering::Acquire).min(most) {
            UNLIMITED => DirtyLimits::NONE,
            pages => DirtyLimits::of((pages as usize).max(2)),
        }
    }

    /// The most pages that the group may have in swap.
    pub(super) fn swap_max(&self) -> u64 {
        self.swap_max.load(Ordering::Acquire)
    }

    /// The most pages that the group may have in memory and swap together.
    pub(super) fn memory_swap_max(&self) -> u64 {
        self.memory_swap_max.load(Ordering::Acquire)
    }

    /// The pages that are protected: `min`, `low`.
    pub(super) fn protected(&self) -> [u64; 2] {
        [&self.min, &self.low].map(|limit| limit.load(Ordering::Acquire))
    }
}

/// A group beside its siblings, for [`effective_protection`].
#[derive(Debug, Clone, Copy)]
pub struct Sibling {
    /// What the group uses, with all groups below it.
    pub usage: u64,
    /// The protection that the group asks for: its `min`, or its `low`.
    pub setting: u64,
}

impl Sibling {
    /// What the group claims of its parent's protection: no more than it uses.
    pub fn claim(&self) -> u64 {
        self.usage.min(self.setting)
    }
}

/// A parent, and the claims of all its children on its protection.
#[derive(Debug, Clone, Copy)]
pub struct Family {
    /// What the parent uses.
    pub usage: u64,
    /// What is protected of the parent.
    pub protection: u64,
    /// The sum of its children's claims.
    pub claims: u64,
}

/// How much of a group is protected: what it claims, or, if all claims are more than the parent's protection,
/// a part of that in proportion to the claims. Protection that no child claims goes to the children in
/// proportion to what they use beyond their claims. Linux: `effective_protection`, with
/// `memory_recursiveprot`.
pub fn effective_protection(group: Sibling, family: Family) -> u64 {
    let part = |of: u64, share: u64, all: u64| (u128::from(of) * u128::from(share) / u128::from(all)) as u64;
    let Family { usage, protection, claims } = family;
    let claim = group.claim();
    if claims > protection {
        return part(protection, claim, claims);
    }
    let (unclaimed, beyond) = (protection - claims, usage.saturating_sub(claims));
    if unclaimed == 0 || beyond == 0 {
        return claim;
    }
    claim + part(unclaimed, (group.usage - claim).min(beyond), beyond)
}

/// How many pages may be dirty. Linux: `dirty_background_ratio` and `dirty_ratio`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirtyLimits {
    /// The flusher works while more pages are dirty.
    pub background: usize,
    /// Writers wait while more pages are dirty; at least `background`.
    pub hard: usize,
}

impl DirtyLimits {
    /// No limits.
    pub const NONE: Self = Self { background: usize::MAX / 2, hard: usize::MAX };

    /// A hard limit, and half of it for the background, as Linux has them.
    pub fn of(hard: usize) -> Self {
        Self { background: hard / 2, hard }
    }

    /// The limits that the configuration asks for, in an arena of `frames`.
    pub fn for_arena(config: &Config, frames: usize) -> Self {
        let percent = |percent: usize| frames * percent / 100;
        // Dirty pages cannot be evicted, and reads need frames, too.
        let most = percent(75);
        // The background limit is at least 1 page: else a flusher that is always quicker than the thread
        // whose store it waits for would take the page away before each store.
        match config.dirty {
            Some(bytes) => {
                let pages = usize::try_from(bytes / PAGE_SIZE as u64).unwrap_or(frames);
                Self::of(pages.min(most).max(2))
            }
            None => {
                let Tuning { dirty_percent, dirty_background_percent, .. } = config.ablation.tuning;
                let hard = percent(dirty_percent).min(most).max(2);
                Self { background: percent(dirty_background_percent).clamp(1, hard - 1), hard }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The effective protection of each child of a parent with 50 protected pages. `children`: the usage
    /// and the setting of each.
    fn divided(children: &[(u64, u64)]) -> Vec<u64> {
        let children: Vec<_> = children.iter().map(|&(usage, setting)| Sibling { usage, setting }).collect();
        let usage = children.iter().map(|child| child.usage).sum();
        let claims = children.iter().map(Sibling::claim).sum();
        let family = Family { usage, protection: 50, claims };
        children.iter().map(|child| effective_protection(*child, family)).collect()
    }

    #[test]
    fn protection_is_divided_by_what_is_used_of_it() {
        assert_eq!(divided(&[(50, 75), (50, 25), (50, 0), (0, 500)]), [33, 16, 0, 0]);
        assert_eq!(divided(&[(20, 25), (20, 20)]), [20, 20], "neither uses what it does not claim");
        assert_eq!(divided(&[(100, 20), (20, 0)]), [44, 6], "80 and 20 beyond the claims share 30");
        assert_eq!(divided(&[(100, 0), (300, 0)]), [12, 37]);
        assert_eq!(divided(&[(10, 0)]), [50]);
        assert_eq!(divided(&[(0, 0), (0, 7)]), [0, 0]);
    }

    /// The children together never have more protection than the parent, whatever they use and ask for.
    #[test]
    fn children_have_no_more_protection_than_their_parent() {
        for protection in [0, 1, 7, 50] {
            for code in 0..6_u64.pow(4) {
                let digit = |nth: u32| code / 6_u64.pow(nth) % 6 * 5;
                let children = [
                    Sibling { usage: digit(0), setting: digit(1) },
                    Sibling { usage: digit(2), setting: digit(3) },
                ];
                let usage = children.iter().map(|child| child.usage).sum();
                let family = Family { usage, protection, claims: children.iter().map(Sibling::claim).sum() };
                let each = children.map(|child| effective_protection(child, family));
                assert!(each.iter().sum::<u64>() <= protection, "{children:?} {family:?} {each:?}");
                let enough = family.claims <= protection;
                let kept = children.iter().zip(each).all(|(child, each)| each >= child.claim());
                assert!(!enough || kept, "{children:?} {family:?} {each:?}");
            }
        }
    }
}
