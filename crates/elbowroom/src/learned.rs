//! Which parts of files are read whole: chunks, such as the experts of a model, the lists of an index or the
//! rows of a table. Once a chunk was read from its begin, the next fault at that page has all of it read.
//!
//! Files are divided into granules of 64 KiB. Two things are kept of each:
//!
//! * Whether accesses that have come to it came from the granule before (the *link*), as a small balance: one
//!   more for each time that they did, one less for each time that an access began here with nothing before
//!   it, or that the pages were read ahead and were evicted before any access.
//! * At which page accesses began here without one to the page before, and went on to the next granule (the
//!   *mark*).
//!
//! A chunk goes from a mark to the next mark, to the first granule that is not linked, or a little farther
//! than accesses have gone from the mark so far. An access that goes on is seen by what was touched lately in
//! the same file, of whichever thread, so threads that read one chunk together are one reader, also if each
//! takes a block of the chunk, some way before or behind the others. Accesses to
//! mapped pages are not seen: where the page before the one that is touched is mapped, nothing is concluded
//! of where accesses begin.
//!
//! In `kept`, `format` and `packed` is how it is kept for the next run of a program.
//!
//! Synchronization: one lock for all, held for some hundred nanoseconds in faults that map pages of files.

mod format;
mod kept;
mod packed;
mod touches;

pub(crate) use kept::Kept;
pub use kept::check_learned_file;

use elbowroom_machine::PAGE_SIZE;
use elbowroom_sync::{LockClass, LockStats, Mutex};
use std::ops::Range;

/// log2 of the pages of a granule.
const GRANULE_ORDER: u32 = 4;

/// log2 of the granules of a leaf: 4 MiB.
const LEAF_ORDER: u32 = 6;

/// Leaves of a set: the one that was used least recently makes room.
const WAYS: usize = 8;

/// The fewest sets.
const LEAST_SETS: usize = 2;

/// Parts of the budget: what is known takes one of so many, and 30 KiB at least.
const BUDGET_SHARE: usize = 2_000;

/// A balance goes from minus this to this. Two mistakes make what was always right unused.
const MOST_BALANCE: i8 = 2;

/// An access goes on with another one if that was one of the last so many touches of the file: those of as
/// many threads that read it at once.
const LATELY: u64 = 64;

/// And if it is at most so many pages away from what came with the other one: threads that go through a chunk
/// together take turns with parts of a granule or less.
const NEAR: u64 = GRANULE;

/// Threads that go through a chunk at the same time take blocks of it in turn, so they are some way apart: at
/// most so many granules, 1 MiB.
const APART: u64 = 16;

/// Each of them has touched the file in the last so many touches.
const TOGETHER: u64 = 32;

/// A touch was just now if it was one of the last so many of the file.
const JUST_NOW: u64 = 4;

/// Entries of the table of touches, as a power of two.
const TOUCHES: usize = 256;

/// Files of which it is known how much was read for nothing.
const FILES: usize = 64;

/// Of what was read of a file's chunks ahead of threads, as much may wait for an access as one part in so
/// many of what was accessed, or of the budget. If it is more, chunks of that file are read whole only one
/// time in [`TRY_ONE_IN`].
const USED_SHARE: u64 = 4;
const BUDGET_AHEAD: u64 = 8;
const TRY_ONE_IN: u64 = 16;

/// When so many chunks of a file are equally long, others are taken to be so, too.
const AGREED: i8 = 4;

/// After so many touches of a file what was counted before counts half.
const COUNTED_TOUCHES: u64 = 1 << 16;

/// Pages of a granule.
const GRANULE: u64 = 1 << GRANULE_ORDER;

/// Pages of a file that are to be read whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) pages: Range<u64>,
    /// Another chunk begins at the end, so accesses are likely to go that far, and no further.
    pub(crate) is_bounded: bool,
}

/// What is known of a granule.
#[derive(Clone, Copy, Default)]
struct Granule {
    /// Whether accesses come from the granule before.
    link: i8,
    /// How certain it is that accesses begin at page `first` and go on; 0: there is no mark.
    begins: i8,
    /// The page of the mark, counted from the granule's first.
    first: u8,
    /// How far accesses have gone from the mark, in granules times [`REACH_UNIT`].
    reach: u8,
}

/// When a leaf was used last, in uses of the table; and, in the lowest bit, whether all is in it that an
/// earlier run has kept of its granules. One word, since a table has as many leaves as have room.
#[derive(Clone, Copy, Default)]
struct LastUse(u64);

/// What is known of neighbouring granules.
struct Leaf {
    object: u64,
    number: u64,
    used: LastUse,
    granules: [Granule; 1 << LEAF_ORDER],
}

/// Accesses that have gone through fewer granules since they began may have been neighbours by chance.
const LEAST_REACH: u64 = 2;

/// Granules of the unit in which it is noted how far accesses go: 256 KiB, so that 64 MiB can be noted.
const REACH_UNIT: u64 = 4;

/// So many granules at most are looked at to find the mark from which pages are mapped: 16 MiB.
const LOOKED_AT: u64 = 256;

/// A touch of pages.
#[derive(Clone, Copy, Default)]
struct Touch {
    object: u64,
    granule: u64,
    /// The granule of the access. All pages from there to the end of `granule` came with it, at once.
    from: u64,
    /// The page behind all of these, how many pages came at once, and which thread brought them.
    end: u64,
    pages: u64,
    thread: u32,
    /// The access had come to that granule from the one before.
    entered: bool,
    /// The granule with the mark at which accesses began that have come here; `None`: it is not known.
    origin: Option<u64>,
    /// That mark was there before they did.
    was_mark: bool,
    /// When it was, in touches of the file.
    at: u64,
}

/// How much of what was read of chunks of a file was accessed.
#[derive(Clone, Copy, Default)]
struct Use {
    object: u64,
    touches: u64,
    /// Pages that were read as parts of chunks that no thread waited for.
    read: u64,
    /// Those of them that were accessed.
    used: u64,
    tries: u64,
    /// How long its chunks are of which begin and end are known, in pages; and how many were so long, less
    /// two for each one that was not.
    length: u64,
    agreed: i8,
}

/// An access to page `index`, which has mapped pages of a folio.
pub(crate) struct Reached {
    pub(crate) thread: u32,
    pub(crate) index: u64,
    /// The pages of the folio, of which `index` is one.
    pub(crate) folio: Range<u64>,
    /// It is the first access to the folio.
    pub(crate) is_first: bool,
    /// The folio was read as a part of a chunk that no thread waited for.
    pub(crate) of_chunk: bool,
}

struct Table {
    sets: Vec<Vec<Leaf>>,
    touches: Vec<Touch>,
    files: [Use; FILES],
    /// Of each file so many pages of chunks may be read that were not accessed yet.
    ahead: u64,
    uses: u64,
    /// Touches of all files: at least as many as those of any file, so that the clock of a file whose entry
    /// was another's in between never goes back.
    clock: u64,
}

/// What is known of the chunks of files.
pub(crate) struct Learned(Mutex<Table>);

impl Learned {
    /// For a memory of so many bytes, of which at most one part in [`BUDGET_SHARE`] is used.
    pub(crate) fn new(bytes: usize, locks: &LockStats) -> Self {
        let others = TOUCHES * size_of::<Touch>() + FILES * size_of::<Use>();
        let leaves = (bytes / BUDGET_SHARE).saturating_sub(others) / size_of::<Leaf>();
        let sets = (leaves / WAYS).max(LEAST_SETS);
        let mut table = Table {
            sets: Vec::new(),
            touches: Vec::new(),
            files: [Use::default(); FILES],
            ahead: bytes as u64 / PAGE_SIZE as u64 / BUDGET_AHEAD,
            uses: 0,
            clock: 0,
        };
        table.sets.resize_with(sets, Vec::new);
        Self(locks.mutex(LockClass::Streams, table))
    }

    /// What to read for a fault of `thread` at page `index` of a file: the chunk that begins there, at most
    /// `most` pages of it. If none is known: how many pages came with an access of another thread with which
    /// this one goes on; 0: there was none lately. `mapped` says whether accesses to a page are not seen. A
    /// chunk of which the first part is mapped begins behind that part.
    pub(crate) fn to_read(
        &self,
        thread: u32,
        (object, index): (u64, u64),
        most: u64,
        mapped: impl Fn(u64) -> bool,
    ) -> Result<Chunk, u64> {
        let mut table = self.0.lock();
        table.chunk(object, index, most, mapped).ok_or_else(|| table.came_before(object, index, thread))
    }

    /// Up to which page a thread that has come to page `index` of a file should have pages read ahead: the
    /// end of the chunk that it is in. `None`: no chunk is known there.
    pub(crate) fn end(&self, object: u64, index: u64, most: u64) -> Option<u64> {
        let table = self.0.lock();
        let granule = index.checked_sub(1)? >> GRANULE_ORDER;
        let usual = table.usual_end(object, index).map(|end| end.min(index + most));
        let linked = || table.end(object, index - 1, most + 1).0.max(index);
        if table.is_linked(object, granule) { Some(linked().min(usual.unwrap_or(u64::MAX))) } else { usual }
    }

    /// Behind which page the chunk ends that accesses have lately gone through up to page `index` of a file,
    /// if it is as long as the file's chunks usually are. `None`: nothing is known.
    pub(crate) fn usual_end(&self, object: u64, index: u64) -> Option<u64> {
        self.0.lock().usual_end(object, index)
    }

    /// Notes an access. `mapped` says whether accesses to a page of another folio would not have been seen.
    pub(crate) fn touched(&self, object: u64, access: &Reached, mapped: impl Fn(u64) -> bool) {
        self.0.lock().touched(object, access, mapped);
    }

    /// Notes that so many pages are read as parts of a chunk that no thread waits for.
    pub(crate) fn note_read(&self, object: u64, pages: u64) {
        self.0.lock().file(object).read += pages;
    }

    /// Notes that pages that were read ahead are evicted, and were never accessed.
    pub(crate) fn unused(&self, object: u64, pages: Range<u64>) {
        let mut table = self.0.lock();
        for granule in granules(&pages) {
            // Only of what accesses came to is anything to be known.
            if table.leaf(object, granule).is_some() {
                table.change(object, granule, |known| lower(&mut known.link));
            }
        }
    }
}

impl Use {
    fn note_touch(&mut self, access: &Reached) {
        self.touches += 1;
        if access.is_first && access.of_chunk {
            self.used += access.folio.end - access.folio.start;
        }
        if self.touches.is_multiple_of(COUNTED_TOUCHES) {
            self.read /= 2;
            self.used /= 2;
        }
    }

    /// Notes how long a chunk is whose begin and end are known.
    fn note_length(&mut self, pages: u64) {
        // Where chunks are no multiples of a page, their lengths differ by one.
        if self.length.abs_diff(pages) <= 1 {
            self.agreed = (self.agreed + 1).min(2 * AGREED);
        } else if self.agreed > 0 {
            self.agreed = (self.agreed - 2).max(0);
        } else {
            self.length = pages;
        }
    }

    /// How long the chunks of the file are, if nearly all are equally long.
    fn usual_length(&self) -> Option<u64> {
        (self.agreed >= AGREED).then_some(self.length)
    }

    /// Whether reading whole chunks of the file is worth it, or is to be tried again. `ahead`: how many pages
    /// may be read that were not accessed yet.
    fn is_worth_it(&mut self, ahead: u64) -> bool {
        self.tries += 1;
        let waiting = self.read.saturating_sub(self.used);
        waiting <= ahead.max(self.used / USED_SHARE) || self.tries.is_multiple_of(TRY_ONE_IN)
    }
}

impl Table {
    fn set_of(&self, object: u64, leaf: u64) -> usize {
        hash(object, leaf) as usize % self.sets.len()
    }

    fn leaf(&self, object: u64, granule: u64) -> Option<&Leaf> {
        let number = granule >> LEAF_ORDER;
        self.sets[self.set_of(object, number)].iter().find(|leaf| leaf.is(object, number))
    }

    fn known(&self, object: u64, granule: u64) -> Granule {
        self.leaf(object, granule).map_or(Granule::default(), |leaf| leaf.granules[place(granule)])
    }

    fn is_linked(&self, object: u64, granule: u64) -> bool {
        self.known(object, granule).link > 0
    }

    /// Changes what is known of a granule.
    fn change(&mut self, object: u64, granule: u64, change: impl FnOnce(&mut Granule)) {
        change(&mut self.leaf_mut(object, granule >> LEAF_ORDER).granules[place(granule)]);
    }

    fn file(&mut self, object: u64) -> &mut Use {
        let touches = self.clock;
        let file = &mut self.files[hash(object, 0) as usize % FILES];
        if file.object != object {
            *file = Use { object, touches, ..Use::default() };
        }
        file
    }

    /// [`Learned::to_read`].
    fn chunk(&mut self, object: u64, index: u64, most: u64, mapped: impl Fn(u64) -> bool) -> Option<Chunk> {
        let begin = self.begin(object, index, &mapped);
        if begin == Some(index) && self.comes_from_before(object, index) {
            return Some(Chunk { pages: index..index + 1, is_bounded: true });
        }
        let known = begin.map(|begin| self.known_chunk(object, begin, index, most));
        let chunk = match known {
            Some(known) if known.is_bounded => {
                if begin == Some(index) {
                    self.file(object).note_length(known.pages.end - index);
                }
                known
            }
            known => {
                let begins = || {
                    self.usual_end(object, index) == Some(index)
                        || self.comes_from_nowhere(object, index, mapped)
                };
                let begin = begin.or_else(|| begins().then_some(index));
                let (Some(length), Some(begin)) = (self.file(object).usual_length(), begin) else {
                    return known.filter(|known| self.is_worth_it(object, known));
                };
                let most = most.min((begin + length).saturating_sub(index));
                let end = self.end_of_unknown(object, index, most);
                // Accesses that have gone on to the next chunk seem to say that this one is longer.
                let usual = || Chunk { pages: index..end, is_bounded: true };
                if index < begin + length { usual() } else { known.unwrap_or_else(usual) }
            }
        };
        self.is_worth_it(object, &chunk).then_some(chunk)
    }

    /// What is known of the chunk that begins at the mark `begin`, from page `index` on.
    fn known_chunk(&self, object: u64, begin: u64, index: u64, most: u64) -> Chunk {
        // A little farther, since of what accesses go through last only the first page is seen.
        let reach = u64::from(self.known(object, begin >> GRANULE_ORDER).reach) * REACH_UNIT;
        let far = begin + ((reach + reach / 4 + 1) << GRANULE_ORDER);
        let (end, is_bounded) = self.end(object, index, most.min(far.saturating_sub(index)));
        Chunk { pages: index..end, is_bounded }
    }

    /// Whether an access to the first page of a chunk comes from the page before. Where chunks are no
    /// multiples of a page, the first page also has the end of the chunk before, which may be all that is
    /// wanted. If accesses go on to the next page, the rest is read there.
    fn comes_from_before(&self, object: u64, index: u64) -> bool {
        let now = self.now(object);
        let before = self.touch_before(object, index);
        before.is_some_and(|before| {
            before.granule << GRANULE_ORDER < index && now.saturating_sub(before.at) <= TOGETHER
        })
    }

    /// Whether to read the chunk. Not if it is within a granule: so short runs are had by the size of the
    /// file's usual runs.
    fn is_worth_it(&mut self, object: u64, chunk: &Chunk) -> bool {
        let Range { start, end } = chunk.pages;
        let ahead = self.ahead;
        end > start && start >> GRANULE_ORDER != (end - 1) >> GRANULE_ORDER && {
            self.file(object).is_worth_it(ahead)
        }
    }

    /// Whether an access to a page goes on with no other one, as far as can be seen, and nothing is known of
    /// where accesses that come to it begin.
    fn comes_from_nowhere(&self, object: u64, index: u64, mapped: impl Fn(u64) -> bool) -> bool {
        let (now, granule) = (self.now(object), index >> GRANULE_ORDER);
        let near = granule.saturating_sub(1)..=granule + 1;
        let goes_on = near.into_iter().any(|granule| self.touch(object, granule, now).is_some());
        !goes_on && self.known(object, granule).link <= 0 && !(index > 0 && mapped(index - 1))
    }

    /// Behind which page a chunk ends of which only the usual length is known, at most `most` pages from page
    /// `index`: before the next mark.
    fn end_of_unknown(&self, object: u64, index: u64, most: u64) -> u64 {
        let granules = index >> GRANULE_ORDER..(index + most).div_ceil(GRANULE);
        let marks = granules.filter_map(|granule| {
            let known = self.known(object, granule);
            let mark = (granule << GRANULE_ORDER) + u64::from(known.first);
            (known.begins > 0 && mark > index).then_some(mark)
        });
        marks.min().unwrap_or(u64::MAX).min(index + most)
    }

    /// [`Learned::usual_end`]. `None`: the file's chunks have no usual length, or it is not known where the
    /// accesses began, or they have gone on.
    fn usual_end(&self, object: u64, index: u64) -> Option<u64> {
        let length = self.use_of(object)?.usual_length()?;
        let origin = self.touch_before(object, index)?.origin?;
        let end = (origin << GRANULE_ORDER) + u64::from(self.known(object, origin).first) + length;
        (end >= index).then_some(end)
    }

    /// What is counted of a file, if anything.
    fn use_of(&self, object: u64) -> Option<&Use> {
        Some(&self.files[hash(object, 0) as usize % FILES]).filter(|file| file.object == object)
    }

    /// The clock of a file.
    fn now(&self, object: u64) -> u64 {
        self.use_of(object).map_or(self.clock, |file| file.touches)
    }

    /// The touch with which an access to a page goes on: the last one of its granule or of the one before.
    fn touch_before(&self, object: u64, index: u64) -> Option<Touch> {
        let (now, granule) = (self.now(object), index >> GRANULE_ORDER);
        let near = [Some(granule), granule.checked_sub(1)].into_iter().flatten();
        let near = near.filter_map(|granule| self.touch(object, granule, now));
        near.filter(|touch| touch.end.abs_diff(index) <= NEAR).max_by_key(|touch| touch.at)
    }

    /// How many pages came with an access of another thread with which an access to a page goes on.
    fn came_before(&self, object: u64, index: u64, thread: u32) -> u64 {
        let before = self.touch_before(object, index);
        before.filter(|touch| touch.thread != thread).map_or(0, |touch| touch.pages)
    }

    /// The page of the mark at which the accesses began that have come to page `index`: those with which this
    /// one goes on; if there were none lately, those that can have come unseen through the mapped pages
    /// before.
    fn begin(&self, object: u64, index: u64, mapped: impl Fn(u64) -> bool) -> Option<u64> {
        let origin = self.touch_before(object, index).and_then(|before| before.origin);
        // What accesses were seen to go through need not be looked up.
        let passed = |page| origin.is_some_and(|origin| page >> GRANULE_ORDER >= origin) || mapped(page);
        let first = index >> GRANULE_ORDER;
        for granule in (first.saturating_sub(LOOKED_AT)..=first).rev() {
            let (known, start) = (self.known(object, granule), granule << GRANULE_ORDER);
            let mark = start + u64::from(known.first);
            if known.begins > 0 && mark <= index && (mark == index || passed(mark) && passed(index - 1)) {
                return Some(mark);
            }
            if known.link <= 0 || start < index && !passed(start) {
                return None;
            }
        }
        None
    }

    /// Behind which page the chunk ends that has page `index`, at most `most` pages from there; and whether
    /// another chunk begins there.
    fn end(&self, object: u64, index: u64, most: u64) -> (u64, bool) {
        let mut granule = index >> GRANULE_ORDER;
        loop {
            let known = self.known(object, granule);
            let mark = (granule << GRANULE_ORDER) + u64::from(known.first);
            if known.begins > 0 && mark > index {
                return (mark.min(index + most), mark <= index + most);
            }
            granule += 1;
            let next = granule << GRANULE_ORDER;
            if next >= index + most || !self.is_linked(object, granule) {
                let behind = self.known(object, granule);
                let begins = behind.begins > 0 && behind.first == 0;
                return (next.min(index + most), begins && next <= index + most);
            }
        }
    }

    /// The touch of a granule, if that was lately.
    fn touch(&self, object: u64, granule: u64, now: u64) -> Option<Touch> {
        let touch = self.touches.get(hash(object, granule) as usize % TOUCHES)?;
        let same = touch.at > 0 && (touch.object, touch.granule) == (object, granule);
        (same && now.saturating_sub(touch.at) <= LATELY).then_some(*touch)
    }
}

impl LastUse {
    fn at(self) -> u64 {
        self.0 >> 1
    }

    fn is_loaded(self) -> bool {
        self.0 & 1 == 1
    }

    fn set_at(&mut self, at: u64) {
        self.0 = at << 1 | self.0 & 1;
    }

    fn set_loaded(&mut self, is_loaded: bool) {
        self.0 = self.0 & !1 | u64::from(is_loaded);
    }
}

impl Leaf {
    fn new(object: u64, number: u64) -> Self {
        Self { object, number, used: LastUse::default(), granules: [Granule::default(); 1 << LEAF_ORDER] }
    }

    fn is(&self, object: u64, number: u64) -> bool {
        (self.object, self.number) == (object, number)
    }
}

fn lower(balance: &mut i8) {
    *balance = (*balance - 1).max(-MOST_BALANCE);
}

fn raise(balance: &mut i8) {
    *balance = (*balance + 1).min(MOST_BALANCE);
}

fn place(granule: u64) -> usize {
    granule as usize % (1 << LEAF_ORDER)
}

/// The granules that have these pages.
fn granules(pages: &Range<u64>) -> Range<u64> {
    pages.start >> GRANULE_ORDER..pages.end.div_ceil(GRANULE)
}

fn hash(object: u64, number: u64) -> u64 {
    (object.rotate_left(32) ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 24
}

impl Chunk {
    /// log2 of the pages of the part that is read at page `index`, at most `most`. Behind the part with the
    /// first page, `index` is the first page of a granule. Where it is not known that the chunk ends at its
    /// end, parts become smaller towards it, so that what is not wanted of it is seen in parts of their own.
    pub(crate) fn part_order(&self, index: u64, most: u8) -> u8 {
        let left = self.pages.end.saturating_sub(index).max(1);
        let aligned = (index & !(GRANULE - 1)).trailing_zeros();
        let order = match left {
            0..8 => left.next_power_of_two().ilog2().min(index.trailing_zeros()),
            8..32 => GRANULE_ORDER.min(aligned),
            _ if self.is_bounded => left.ilog2().min(aligned),
            _ => (left / 2).ilog2().min(aligned),
        };
        order.min(u32::from(most)) as u8
    }

    /// The chunk without the pages before `index`.
    pub(crate) fn from(self, index: u64) -> Self {
        Self { pages: index.min(self.pages.end)..self.pages.end, ..self }
    }
}

#[cfg(test)]
mod tests;
