//! Random operations: mostly valid, in a range small enough that they meet each other, from a seed.

use crate::differential::engine::{Descriptor, FILE_PAGES, PAGE};
use crate::differential::mix::{Mix, Rng};
use crate::differential::op::{At, Len, Offset, Op, Place};

/// The kinds of operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Map,
    Unmap,
    Protect,
    Remap,
    Advise,
    Sync,
    Resident,
    Lock,
    Unlock,
    Truncate,
    Load,
    Store,
}

/// Which wild lengths a call may be given without reaching memory outside the range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wild {
    /// It refuses them or stops at the first hole.
    All,
    /// It goes on behind holes: only those that wrap.
    Wrapping,
    /// It is checked against a limit first: only one that counts as nothing.
    Overflowing,
}

/// A source of operations.
#[derive(Debug, Clone)]
pub struct Generator {
    rng: Rng,
    pages: u32,
    mix: Mix,
}

impl Generator {
    /// Operations on a range of so many pages (at least 16).
    pub fn new(seed: u64, pages: u64, mix: Mix) -> Self {
        assert!((16..1 << 20).contains(&pages));
        Self { rng: Rng::new(seed), pages: pages as u32, mix }
    }

    /// The next operations.
    pub fn list(&mut self, len: usize) -> Vec<Op> {
        (0..len).map(|_| self.op()).collect()
    }

    /// The next operation.
    pub fn op(&mut self) -> Op {
        let mix = &self.mix;
        let kinds = [
            (mix.map, Kind::Map),
            (mix.unmap, Kind::Unmap),
            (mix.protect, Kind::Protect),
            (mix.remap, Kind::Remap),
            (mix.advise, Kind::Advise),
            (mix.sync, Kind::Sync),
            (mix.resident, Kind::Resident),
            (mix.lock, Kind::Lock),
            (mix.lock / 2, Kind::Unlock),
            (mix.truncate, Kind::Truncate),
            (mix.load, Kind::Load),
            (mix.store, Kind::Store),
        ];
        match self.rng.pick(&kinds) {
            Kind::Map => self.map(),
            Kind::Unmap => {
                let (at, len) = self.range(Wild::All);
                Op::Unmap(at, len)
            }
            Kind::Protect => {
                let (at, len) = self.range(Wild::All);
                Op::Protect(at, len, self.prot())
            }
            Kind::Remap => self.remap(),
            Kind::Advise => self.advise(),
            Kind::Sync => self.sync(),
            Kind::Resident => {
                let (at, len) = self.range(Wild::All);
                Op::Resident(at, len)
            }
            Kind::Lock => {
                let (at, len) = self.range(Wild::Overflowing);
                Op::Lock(at, len, self.rng.pick(&[(70, 0), (28, 1), (1, 2), (1, 3)]))
            }
            Kind::Unlock => {
                let (at, len) = self.range(Wild::All);
                Op::Unlock(at, len)
            }
            Kind::Truncate => Op::Truncate(self.rng.below(FILE_PAGES as u32 + 9)),
            Kind::Load => {
                let (page, byte, len) = self.bytes();
                Op::Load(page, byte, len)
            }
            Kind::Store => {
                let (page, byte, len) = self.bytes();
                Op::Store(page, byte, len, self.rng.bits() as u8 | 1)
            }
        }
    }

    /// A length in pages: mostly a few.
    fn short(&mut self) -> u32 {
        let end = self.rng.pick(&[(40, 4), (35, 12), (20, 32), (5, self.pages / 2)]);
        1 + self.rng.below(end)
    }

    /// A page from which so many fit: often a round one, so that ranges meet.
    fn page(&mut self, len: u32) -> u32 {
        let page = self.rng.below(self.pages - len + 1);
        if self.rng.percent(50) { page & !7 } else { page }
    }

    fn range(&mut self, wild: Wild) -> (At, Len) {
        let pages = self.short().min(self.pages - 1);
        let page = self.page(pages + 1);
        if !self.rng.percent(self.mix.wild_percent) {
            return (At::Page(page), Len::Pages(pages));
        }
        let at = self.rng.pick(&[(60, At::Page(page)), (30, At::Inside(page, 1)), (10, At::Beyond)]);
        let at = if let At::Inside(page, _) = at { self.inside(page) } else { at };
        let len = match wild {
            Wild::All => [(15, Len::Past), (10, Len::Wrap), (10, Len::Overflow)],
            Wild::Wrapping => [(0, Len::Past), (15, Len::Wrap), (15, Len::Overflow)],
            Wild::Overflowing => [(0, Len::Past), (0, Len::Wrap), (15, Len::Overflow)],
        };
        let odd = pages * PAGE as u32 - self.rng.below(PAGE as u32 - 1);
        let mut lens = vec![(15, Len::Pages(0)), (25, Len::Bytes(odd)), (25, Len::Pages(pages))];
        lens.extend(len);
        (at, self.rng.pick(&lens))
    }

    fn inside(&mut self, page: u32) -> At {
        At::Inside(page, 1 + self.rng.below(PAGE as u32 - 1) as u16)
    }

    fn prot(&mut self) -> i32 {
        let write_only = if self.mix.write_only { 4 } else { 0 };
        let prot = self.rng.pick(&[
            (58, libc::PROT_READ | libc::PROT_WRITE),
            (26, libc::PROT_READ),
            (12, libc::PROT_NONE),
            (write_only, libc::PROT_WRITE),
        ]);
        if self.rng.percent(1) { prot | 0x80 } else { prot }
    }

    fn map(&mut self) -> Op {
        let (at, len) = self.range(Wild::All);
        let pages = len.pages().min(self.pages);
        let place = self.rng.pick(&[
            (45, Place::Fixed),
            (20, Place::Hint),
            (15, Place::FixedNoReplace),
            (20, Place::Anywhere),
        ]);
        let shared_anonymous = if self.mix.shared_anonymous { 8 } else { 0 };
        let (kind, file) = self.rng.pick(&[
            (40, (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, Descriptor::None)),
            (shared_anonymous, (libc::MAP_SHARED | libc::MAP_ANONYMOUS, Descriptor::None)),
            (14, (libc::MAP_PRIVATE, Descriptor::ReadWrite)),
            (8, (libc::MAP_PRIVATE, Descriptor::ReadOnly)),
            (18, (libc::MAP_SHARED, Descriptor::ReadWrite)),
            (8, (libc::MAP_SHARED, Descriptor::ReadOnly)),
            (3, (libc::MAP_SHARED_VALIDATE, Descriptor::ReadWrite)),
            (1, (libc::MAP_SHARED, Descriptor::WriteOnly)),
            (1, (libc::MAP_PRIVATE, Descriptor::WriteOnly)),
            (1, (libc::MAP_PRIVATE, Descriptor::None)),
            (1, (0, Descriptor::ReadWrite)),
            (1, (5, Descriptor::ReadWrite)),
            (1, (libc::MAP_SHARED_VALIDATE | libc::MAP_ANONYMOUS, Descriptor::None)),
        ]);
        let locked = if self.mix.lock > 0 { 4 } else { 0 };
        let flags = self.rng.pick(&[
            (78, 0),
            (10, libc::MAP_POPULATE),
            (5, libc::MAP_NORESERVE),
            (locked, libc::MAP_LOCKED),
            // No kernel knows it.
            (3, 0x40_0000),
        ]);
        let prot = self.prot();
        let offset = self.offset(at);
        let settle = self.page(pages);
        Op::Map { at, len, prot, place, flags: kind | flags, file, offset, settle }
    }

    /// Often the same for a page of the range, so that neighbours continue each other.
    fn offset(&mut self, at: At) -> Offset {
        let any = self.rng.below(FILE_PAGES as u32 + 4);
        let same = if let At::Page(page) = at { page % (FILE_PAGES as u32) } else { any };
        self.rng.pick(&[
            (50, Offset::Page(same)),
            (48, Offset::Page(any)),
            (1, Offset::Unaligned(any)),
            (1, Offset::Overflow),
        ])
    }

    fn remap(&mut self) -> Op {
        let limit = self.pages / 2;
        let old = self.short().min(limit);
        let other = self.short().min(limit);
        let new = self.rng.pick(&[(40, old), (20, old.min(other)), (40, old.max(other))]);
        let at = self.page(old.max(new));
        let to = self.page(new);
        let settle = self.page(new);
        let (may, fixed, keep) = (libc::MREMAP_MAYMOVE, libc::MREMAP_FIXED, libc::MREMAP_DONTUNMAP);
        let named = u32::from(self.mix.named_remap);
        let flags = self.rng.pick(&[
            (30, may),
            (18, 0),
            (36 * named, may | fixed),
            (7 * named, may | fixed | keep),
            (6 * named, may | keep),
            (named, fixed),
            (named, keep),
            (1, may | 8),
        ]);
        let mut op = (At::Page(at), Len::Pages(old), Len::Pages(new), At::Page(to));
        if flags & keep != 0 && self.rng.percent(85) {
            let at = self.page(old);
            let to = self.page(old);
            op = (At::Page(at), Len::Pages(old), Len::Pages(old), At::Page(to));
        }
        if self.rng.percent(3) {
            op.1 = Len::Pages(0);
        }
        if self.rng.percent(self.mix.wild_percent) {
            self.spoil(&mut op);
        }
        let (at, old, new, to) = op;
        Op::Remap { at, old, new, flags, to, settle: settle.min(self.pages - new.pages().min(self.pages)) }
    }

    fn spoil(&mut self, op: &mut (At, Len, Len, At)) {
        let wild = self.rng.pick(&[(1, Len::Past), (1, Len::Wrap), (1, Len::Overflow), (1, Len::Bytes(0))]);
        let odd = |rng: &mut Rng, len: Len| {
            let pages = len.pages().clamp(1, 1 << 16);
            Len::Bytes(pages * PAGE as u32 - rng.below(PAGE as u32 - 1))
        };
        match self.rng.below(6) {
            0 => op.0 = self.inside(0),
            1 => op.0 = At::Beyond,
            2 => op.3 = self.rng.pick(&[(1, At::Beyond), (1, At::Inside(1, 9))]),
            3 => op.1 = wild,
            4 => op.2 = if wild == Len::Bytes(0) { Len::Pages(0) } else { wild },
            _ => {
                op.1 = odd(&mut self.rng, op.1);
                op.2 = odd(&mut self.rng, op.2);
            }
        }
    }

    fn advise(&mut self) -> Op {
        let (at, len) = self.range(Wild::Wrapping);
        let slow = self.mix.slow_percent;
        let remove = if self.mix.remove { 4 } else { 0 };
        let advice = self.rng.pick(&[
            (4, libc::MADV_NORMAL),
            (3, libc::MADV_RANDOM),
            (3, libc::MADV_SEQUENTIAL),
            (8, libc::MADV_WILLNEED),
            (28, libc::MADV_DONTNEED),
            (3, libc::MADV_DONTNEED_LOCKED),
            (8, libc::MADV_FREE),
            (6, libc::MADV_COLD),
            (slow, libc::MADV_PAGEOUT),
            (remove, libc::MADV_REMOVE),
            (10, libc::MADV_POPULATE_READ),
            (10, libc::MADV_POPULATE_WRITE),
            (3, libc::MADV_DONTFORK),
            (3, libc::MADV_DOFORK),
            (3, libc::MADV_WIPEONFORK),
            (3, libc::MADV_KEEPONFORK),
            (1, 99),
            (1, -1),
        ]);
        Op::Advise(at, len, advice)
    }

    fn sync(&mut self) -> Op {
        let (at, len) = self.range(Wild::Wrapping);
        let slow = self.mix.slow_percent;
        let flags = self.rng.pick(&[
            (50, libc::MS_ASYNC),
            (20, libc::MS_INVALIDATE),
            (15, libc::MS_ASYNC | libc::MS_INVALIDATE),
            (10, 0),
            (slow, libc::MS_SYNC),
            (slow, libc::MS_SYNC | libc::MS_INVALIDATE),
            (1, libc::MS_SYNC | libc::MS_ASYNC),
            (1, 8),
        ]);
        Op::Sync(at, len, flags)
    }

    /// Bytes of one page: its first ones, its last ones, or any.
    fn bytes(&mut self) -> (u32, u16, u8) {
        let page = self.rng.below(self.pages);
        let len = self.rng.pick(&[(50, 8_u8), (30, 1), (20, 4)]);
        let last = PAGE as u16 - u16::from(len);
        let any = self.rng.below(u32::from(last) + 1) as u16;
        (page, self.rng.pick(&[(40, 0), (20, last), (40, any)]), len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_list_and_another_seed_another() {
        let list = |seed| Generator::new(seed, 64, Mix::default()).list(500);
        assert_eq!(list(1), list(1));
        assert_ne!(list(1), list(2));
    }

    #[test]
    fn valid_ranges_stay_inside() {
        let pages = 64;
        for op in Generator::new(3, pages, Mix::default().with_truncation()).list(100_000) {
            for (first, len) in op.touches() {
                let wild = len >= u32::MAX - 1;
                assert!(wild || u64::from(first) + u64::from(len) <= pages, "{op}");
            }
            match op {
                Op::Advise(_, len, _) | Op::Sync(_, len, _) => assert_ne!(len, Len::Past, "{op}"),
                Op::Lock(_, len, _) => assert!(!matches!(len, Len::Past | Len::Wrap), "{op}"),
                _ => {}
            }
        }
    }
}
