//! What accesses tell: links and marks are learned from the touches of a file.

use super::{
    APART, GRANULE, GRANULE_ORDER, JUST_NOW, LEAST_REACH, MOST_BALANCE, NEAR, REACH_UNIT, Reached, TOGETHER,
    TOUCHES, Table, Touch, hash, lower, raise,
};
use std::ops::Range;

impl Table {
    /// [`Learned::touched`](super::Learned::touched).
    pub(super) fn touched(&mut self, object: u64, access: &Reached, mapped: impl Fn(u64) -> bool) {
        self.clock += 1;
        let file = self.file(object);
        file.note_touch(access);
        let (now, granule) = (file.touches, access.index >> GRANULE_ORDER);
        let lately = |table: &Self, granule| table.touch(object, granule, now);
        let own = lately(self, granule);
        let (mut entered, mut origin, mut was_mark) = (false, None, false);
        if own.is_none_or(|own| own.thread != access.thread) {
            let before = granule.checked_sub(1).and_then(|before| lately(self, before));
            let before = before.filter(|before| before.end.abs_diff(access.index) <= NEAR);
            // Blocks of two threads may meet within a granule.
            let passes = before.filter(|before| own.is_none() || before.thread == access.thread);
            let beside = if before.is_none() { self.beside(object, access, now) } else { None };
            let after = lately(self, granule + 1);
            // Another thread has begun a block behind the one that ends here.
            let is_next = after.is_some_and(|after| before.is_none() || after.thread != access.thread);
            entered = before.or(beside).is_some();
            origin = before.or(beside).and_then(|before| before.origin);
            was_mark = before.or(beside).is_some_and(|before| before.was_mark);
            if let Some(before) = passes {
                self.pass(object, before, granule);
            }
            if is_next {
                self.change(object, granule + 1, |known| raise(&mut known.link));
            }
            if !entered && !is_next && own.is_none() {
                was_mark = self.is_mark(object, access.index);
                origin = self.begins(object, access, mapped).then_some(granule);
                self.join(object, access, (granule, now), origin);
            }
        }
        if self.touches.is_empty() {
            self.touches = vec![Touch::default(); TOUCHES];
        }
        // A touch of a granule that was touched lately continues that touch.
        let (thread, end, pages) = (access.thread, access.folio.end, access.folio.end - access.folio.start);
        let new =
            Touch { object, granule, from: granule, end, pages, thread, entered, origin, was_mark, at: now };
        let touch = own.map_or(new, |own| Touch { end, pages, thread, at: now, ..own });
        let last = access.folio.end.saturating_sub(1) >> GRANULE_ORDER;
        if access.is_first && !access.of_chunk {
            self.guess(object, granule..last + 1, touch.origin);
        }
        for touched in [granule, last] {
            self.touches[hash(object, touched) as usize % TOUCHES] = Touch { granule: touched, ..touch };
        }
    }

    /// The touch with which an access goes on that does not come from the granule before: that of the folio
    /// before, or of another thread that goes through the same chunk, at most [`APART`] granules before.
    fn beside(&self, object: u64, access: &Reached, now: u64) -> Option<Touch> {
        let granule = access.index >> GRANULE_ORDER;
        let start = access.folio.start;
        let before = start.checked_sub(1).and_then(|page| self.touch(object, page >> GRANULE_ORDER, now));
        let is_next = |before: &Touch| {
            start < access.index
                && before.end.abs_diff(start) <= NEAR
                && now.saturating_sub(before.at) <= JUST_NOW
        };
        before.filter(is_next).or_else(|| {
            if self.is_mark(object, access.index) {
                // The thread reads a chunk of its own.
                return None;
            }
            let near = (granule.saturating_sub(APART)..granule).rev();
            let touches = near.filter_map(|granule| self.touch(object, granule, now));
            let is_other =
                |touch: &Touch| touch.thread != access.thread && now.saturating_sub(touch.at) <= TOGETHER;
            touches.into_iter().find(is_other)
        })
    }

    /// Whether accesses have begun at that page before.
    fn is_mark(&self, object: u64, index: u64) -> bool {
        let known = self.known(object, index >> GRANULE_ORDER);
        known.begins > 0 && u64::from(known.first) == index % GRANULE
    }

    /// Accesses have begun at a granule. Where another thread has begun just behind it, that thread has taken
    /// a later block of the same chunk and was faster: no chunk begins there. Unless one began there before:
    /// then it is less certain, and accesses that go on from there say more.
    fn join(&mut self, object: u64, access: &Reached, (granule, now): (u64, u64), origin: Option<u64>) {
        let behind = granule + 1..granule + 1 + APART;
        let touches = behind.clone().filter_map(|granule| self.touch(object, granule, now));
        let has_begun = |touch: &Touch| {
            let is_other = touch.thread != access.thread && now.saturating_sub(touch.at) <= TOGETHER;
            let begun = touch.origin.filter(|begun| is_other && behind.contains(begun));
            begun.map(|begun| (begun, touch.was_mark))
        };
        let Some((begun, was_mark)) = touches.into_iter().find_map(|touch| has_begun(&touch)) else { return };
        if was_mark {
            self.change(object, begun, |known| known.begins = (known.begins - 1).max(0));
            return;
        }
        self.change(object, begun, |known| {
            raise(&mut known.link);
            known.begins = 0;
        });
        for touch in self.touches.iter_mut() {
            if touch.object == object && touch.origin == Some(begun) {
                touch.entered |= touch.from == begun;
                touch.origin = origin;
            }
        }
    }

    /// All of these granules were read with the first one, to which an access has come, since accesses went
    /// on before: where nothing is known, they are taken to go on. If they do not, the next read shows that,
    /// in which the pages behind are a part of their own.
    fn guess(&mut self, object: u64, granules: Range<u64>, origin: Option<u64>) {
        let last = granules.end - 1;
        if let Some(origin) = origin.filter(|origin| *origin < last) {
            self.note_reach(object, origin, last);
        }
        for granule in granules.skip(1) {
            self.change(object, granule, |known| known.link += i8::from(known.link == 0));
        }
    }

    /// Accesses that began at a mark have come to a granule.
    fn note_reach(&mut self, object: u64, origin: u64, granule: u64) {
        let reach = (granule - origin).div_ceil(REACH_UNIT).min(u8::MAX.into()) as u8;
        self.change(object, origin, |known| known.reach = known.reach.max(reach));
    }

    /// An access has come to a granule from the one before, having gone through all that came with the access
    /// `before`. Where it has gone through a mark, nothing begins; where it has begun, it does.
    fn pass(&mut self, object: u64, before: Touch, granule: u64) {
        if before.entered {
            self.change(object, before.from, |known| known.begins = (known.begins - 1).max(0));
        }
        if let Some(origin) = before.origin.filter(|origin| *origin < granule) {
            self.note_reach(object, origin, granule);
            if granule - origin >= LEAST_REACH {
                self.change(object, origin, |known| known.begins = MOST_BALANCE);
            }
        }
        for passed in before.from.min(granule) + 1..=granule {
            self.change(object, passed, |known| {
                raise(&mut known.link);
                if passed < granule || known.first == 0 {
                    known.begins = (known.begins - 1).max(0);
                }
            });
        }
    }

    /// Accesses have begun at a page, if that can be known: they did not come unseen through the page before.
    /// It counts as a begin once they have gone on to the next granule ([`Table::pass`]), and less each time
    /// that they have not. Tells whether it can be known.
    fn begins(&mut self, object: u64, access: &Reached, mapped: impl Fn(u64) -> bool) -> bool {
        let index = access.index;
        let (granule, first) = (index >> GRANULE_ORDER, (index % GRANULE) as u8);
        // Pages of the folio were mapped just now, with this one.
        let is_new = access.is_first && access.folio.start < index;
        if index > 0 && !is_new && mapped(index - 1) {
            return false;
        }
        let (mut is_mark, mut was_mark) = (true, false);
        self.change(object, granule, |known| {
            if known.begins == 0 && known.first != first {
                (known.first, known.reach) = (first, 0);
            }
            (is_mark, was_mark) = (known.first == first, known.begins > 0);
            known.begins = (known.begins - 1).max(0);
            if first == 0 || !was_mark {
                lower(&mut known.link);
            }
        });
        is_mark
    }
}
