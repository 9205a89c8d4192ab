//! How many pages may be in swap: at most as many as the manager may have there and, in a run, as the run
//! has left.

use crate::process_tree::Member;
use elbowroom_sync::Arc;
use elbowroom_sync::atomic::{AtomicU64, Ordering};

/// Pages that are taken from the run at a time: 256 KiB. Few, since the other processes cannot use pages
/// that are taken and not used.
const STEP: u64 = 64;

pub struct Quota {
    limit: u64,
    member: Option<Arc<Member>>,
    /// Pages that were taken from the run.
    taken: AtomicU64,
    /// Pages that were in swap when the process was forked: they count as its parent's.
    inherited: AtomicU64,
}

impl Quota {
    /// A quota of at most `limit` pages, taken from the swap of `member`'s run, if there is one.
    pub fn new(limit: u64, member: Option<Arc<Member>>) -> Self {
        Self { limit, member, taken: AtomicU64::new(0), inherited: AtomicU64::new(0) }
    }

    /// In the child of a fork, at which `used` pages were in swap: they count as its parent's.
    #[cfg(not(shuttle))]
    pub fn inherit(&self, used: u64) {
        self.inherited.store(used, Ordering::Relaxed);
        self.taken.store(0, Ordering::Relaxed);
    }

    /// Pages that may be in swap before more are taken from the run.
    fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed) + self.inherited.load(Ordering::Relaxed)
    }

    /// The most pages that may be in swap.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Whether one page more may be in swap, if `used` are. Takes pages from the run if need be.
    pub fn allows(&self, used: u64) -> bool {
        let Some(member) = &self.member else { return used < self.limit };
        while used >= self.taken() {
            if used >= self.limit || !member.take_swap(STEP as usize) {
                return false;
            }
            self.taken.fetch_add(STEP, Ordering::Relaxed);
        }
        true
    }

    /// How many pages more may be in swap, if `used` are. A guess: nothing is locked.
    pub fn left(&self, used: u64) -> u64 {
        let own = self.limit.saturating_sub(used);
        let Some(member) = &self.member else { return own };
        let taken = self.taken().saturating_sub(used);
        // The run gives whole steps: what is left beyond the last one cannot be had.
        own.min(taken + member.swap_room() as u64 / STEP * STEP)
    }

    /// Gives pages that were taken and are not used back to the run, but for one or two steps. Only one
    /// thread calls this at a time.
    pub fn settle(&self, used: u64) {
        let Some(member) = &self.member else { return };
        self.inherited.fetch_min(used, Ordering::Relaxed);
        let spare = self.taken().saturating_sub(used).min(self.taken.load(Ordering::Relaxed)) / STEP;
        if spare > 1 {
            // Before the run has them back: a thread that needs these pages meanwhile takes them anew.
            self.taken.fetch_sub((spare - 1) * STEP, Ordering::Relaxed);
            member.give_swap(((spare - 1) * STEP) as usize);
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::process_tree::{ProcessTree, TreeLimits};
    use elbowroom_machine::PAGE_SIZE;

    #[test]
    fn two_processes_share_the_swap_of_their_run() {
        let file = tempfile::tempfile().unwrap();
        let pages = |pages: u64| pages * PAGE_SIZE as u64;
        let limits = TreeLimits { max: pages(100), each: None, swap_max: pages(4 * STEP) };
        let tree = ProcessTree::create(&file, &limits).unwrap();
        let member = |tree| Some(Arc::new(Member::enter(Arc::new(tree))));
        let one = Quota::new(4 * STEP, member(tree));
        let other = Quota::new(4 * STEP, member(ProcessTree::open(&file).unwrap()));
        let fill = |quota: &Quota, from: u64| (from..).find(|used| !quota.allows(*used)).unwrap();
        assert!((0..STEP).all(|used| one.allows(used)));
        assert_eq!((fill(&other, 0), other.left(3 * STEP), one.left(STEP)), (3 * STEP, 0, 0));
        assert!(!one.allows(STEP));
        other.settle(10);
        assert_eq!(fill(&one, STEP), 2 * STEP, "the other one keeps a little");
        assert_eq!((one.limit(), other.left(10)), (4 * STEP, 2 * STEP - 10));
        // Pages in swap at the fork count as the parent's, not as the child's.
        one.settle(0);
        other.inherit(100);
        assert_eq!(other.left(100), STEP);
        assert!(other.allows(99) && other.allows(100) && other.left(101) == STEP - 1);
        // Of a run's swap that is no whole number of steps the rest cannot be had, so none is left of that.
        let file = tempfile::tempfile().unwrap();
        let odd = TreeLimits { swap_max: pages(STEP + 40), ..limits };
        let odd = Quota::new(STEP + 40, member(ProcessTree::create(&file, &odd).unwrap()));
        assert_eq!((odd.left(0), fill(&odd, 0), odd.left(STEP)), (STEP, STEP, 0));
        let alone = Quota::new(7, None);
        assert_eq!((fill(&alone, 0), alone.left(3), alone.left(9)), (7, 4, 0));
    }
}
