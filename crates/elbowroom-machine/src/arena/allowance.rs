//! How many frames of the arena may have memory. This changes while the process runs: as a member of a run
//! it takes memory from the kernel and gives it back, and metadata takes the place of frames.

use super::{Arena, BLOCK_PAGES, State};
use crate::{MAX_ORDER, PAGE_SHIFT, PAGE_SIZE};
use elbowroom_sync::atomic::Ordering;
use rustix::mm::{self, Advice};

/// The calls that change how many frames of an arena may have memory.
pub struct Allowance<'a>(pub(crate) &'a Arena);

impl Allowance<'_> {
    /// From now on only as many frames may have memory as have some now, plus those that [`Allowance::add`]
    /// adds.
    pub fn restrict(&self) {
        self.0.restrict_frames();
    }

    /// Lets so many more frames have memory.
    pub fn add(&self, frames: usize) {
        self.0.allow_frames(frames);
    }

    /// Takes back the permission for at most so many frames to have memory, and returns for how many.
    /// Frames that may be populated and are not go first; then the memory of free frames is given to the
    /// kernel.
    pub fn give(&self, most: usize) -> usize {
        self.0.give_frames(most)
    }

    /// Gives up at most so many free frames for good, since something else needs the memory: frames without
    /// memory first. Returns how many it gave up.
    pub fn withhold(&self, most: usize) -> usize {
        self.0.withhold(most)
    }

    /// How many frames were given up for good.
    pub fn withheld(&self) -> usize {
        self.0.withheld()
    }
}

impl Arena {
    /// From now on only as many frames may have memory as have some now, plus those that
    /// [`Arena::allow_frames`] adds.
    pub(crate) fn restrict_frames(&self) {
        let mut state = self.state.lock();
        state.allowed = state.held;
        self.publish(&state);
    }

    /// Lets so many more frames have memory.
    pub(crate) fn allow_frames(&self, frames: usize) {
        let mut state = self.state.lock();
        state.allowed = state.allowed.saturating_add(frames);
        self.publish(&state);
    }

    /// Takes back the permission for at most so many frames to have memory, and returns for how many.
    /// Frames that may be populated and are not go first; then the memory of free frames is given to the
    /// kernel.
    pub(crate) fn give_frames(&self, most: usize) -> usize {
        let mut state = self.state.lock();
        let unused = state.allowed.saturating_sub(state.held).min(most);
        let empty = state.unbacked.len().min(most - unused);
        let kept = state.unbacked.len() - empty;
        let mut homes = state.unbacked.split_off(kept);
        let mut left = most - unused - empty;
        let mut taken = Vec::new();
        // The largest runs first, so that few requests to the kernel are needed.
        for order in (0..=MAX_ORDER).rev() {
            while left >> order > 0
                && let Some(first) = state.buddy.take(order)
            {
                state.note_used(first, order);
                taken.push((first, order));
                left -= 1 << order;
            }
        }
        let given = most - left - unused;
        state.held -= given;
        state.allowed = state.allowed.saturating_sub(unused + given);
        self.publish(&state);
        drop(state);
        for (first, order) in taken {
            let start = self.base + ((first as usize) << PAGE_SHIFT);
            let len = PAGE_SIZE << order;
            // SAFETY: the frames were free, and are not allocated before they are in `absent`.
            let _ = unsafe { mm::madvise(start as *mut _, len, Advice::LinuxDontNeed) };
            homes.extend((start..start + len).step_by(PAGE_SIZE));
        }
        self.populated.fetch_sub(given, Ordering::Relaxed);
        let mut state = self.state.lock();
        state.absent.append(&mut homes);
        self.publish(&state);
        unused + given
    }

    /// Lets at most a block of frames whose memory was given away have memory again. `is_registered`: such
    /// a home gets its memory by a request to the userfaultfd, once its frame is wanted. `false`: there are
    /// no such frames, or no more may have memory.
    pub(super) fn take_back(&self, state: &mut State, is_registered: bool) -> bool {
        let most = state.allowed.saturating_sub(state.held).min(BLOCK_PAGES).min(state.absent.len());
        let rest = state.absent.len() - most;
        let homes = state.absent.split_off(rest);
        state.held += most;
        self.populated.fetch_add(most, Ordering::Relaxed);
        if is_registered {
            state.unbacked.extend(homes);
        } else {
            homes.into_iter().for_each(|home| state.buddy.release(self.frame_at(home), 0));
        }
        self.publish(state);
        most > 0
    }

    /// Gives up at most so many free frames for good, since something else needs the memory: frames without
    /// memory first. Returns how many it gave up.
    pub(crate) fn withhold(&self, most: usize) -> usize {
        let mut state = self.state.lock();
        let mut ungrown = state.lanes.withhold(most);
        let absent = state.absent.len().min(most - ungrown);
        let kept = state.absent.len() - absent;
        state.absent.truncate(kept);
        ungrown += absent;
        let empty = state.unbacked.len().min(most - ungrown);
        let kept = state.unbacked.len() - empty;
        state.unbacked.truncate(kept);
        let left = most - ungrown - empty;
        let taken: Vec<u32> = std::iter::from_fn(|| state.buddy.take(0)).take(left).collect();
        state.held -= empty + taken.len();
        self.publish(&state);
        drop(state);
        for first in &taken {
            let start = self.base + ((*first as usize) << PAGE_SHIFT);
            // SAFETY: the frame was free, and is never allocated again. A stray read of it would find
            // zeros.
            let _ = unsafe { mm::madvise(start as *mut _, PAGE_SIZE, Advice::LinuxDontNeed) };
        }
        self.populated.fetch_sub(empty + taken.len(), Ordering::Relaxed);
        let all = ungrown + empty + taken.len();
        self.withheld.fetch_add(all, Ordering::Relaxed);
        all
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::Extent;
    use elbowroom_sync::LockStats;

    /// Memory goes to the kernel and comes back, and no frame is lost or allocated twice.
    #[test]
    fn what_is_given_away_comes_back() {
        const FRAMES: usize = 10 * BLOCK_PAGES;
        let arena = Arena::new(FRAMES, &LockStats::new()).unwrap();
        arena.restrict_frames();
        assert_eq!((arena.grow(None, || ()), arena.can_grow()), (Ok(false), false));
        let mut random = fastrand::Rng::with_seed(5);
        let (mut held, mut allowed) = (Vec::<Extent>::new(), 0);
        for turn in 0..20_000_u64 {
            match random.u32(0..100) {
                0..10 => {
                    let more = random.usize(1..2 * BLOCK_PAGES).min(FRAMES - allowed);
                    arena.allow_frames(more);
                    allowed += more;
                }
                10..30 => while random.bool() && arena.grow(None, || ()).unwrap() {},
                30..60 => held.extend(arena.alloc(random.u8(0..=6)).into_iter().map(|mut extent| {
                    extent.clear();
                    assert!(extent.bytes().iter().all(|byte| *byte == 0));
                    extent.bytes_mut().fill(turn as u8);
                    extent
                })),
                60..90 if !held.is_empty() => arena.free(held.swap_remove(random.usize(..held.len()))),
                _ => {
                    let given = arena.give_frames(random.usize(1..BLOCK_PAGES));
                    allowed -= given;
                }
            }
            let (populated, used) = (arena.populated_frames(), held.iter().map(Extent::pages).sum::<usize>());
            assert!(populated <= allowed);
            assert_eq!(arena.frames_at_hand() + used, populated);
        }
        arena.allow_frames(FRAMES - allowed);
        while arena.grow(None, || ()).unwrap() {}
        held.extend(std::iter::from_fn(|| arena.alloc(0)));
        assert_eq!(held.iter().map(Extent::pages).sum::<usize>(), FRAMES);
        held.into_iter().for_each(|extent| arena.free(extent));
    }
}
