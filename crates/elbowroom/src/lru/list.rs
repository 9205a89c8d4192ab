//! Doubly linked lists in one table, whose entries leave in O(1) wherever they are. Plain data. Linux:
//! `struct list_head`, and the lists of a `struct lruvec`.

/// In the place of an entry's number: none.
const NO_ENTRY: u32 = u32::MAX;

/// Entries are allocated in blocks of so many, which stay where they are: a table that doubled would be
/// copied while all threads that need the lists wait.
const BLOCK: usize = 1024;

struct Entry<T> {
    /// `None`: the entry is free.
    value: Option<T>,
    /// The neighbours in the list; `after` of a free entry is the next free one.
    before: u32,
    after: u32,
    /// The pages that the value counts as.
    pages: u32,
    /// The list's number.
    list: u8,
}

/// A list's ends and its size.
#[derive(Clone, Copy)]
struct Ends {
    first: u32,
    last: u32,
    pages: usize,
}

/// `N` lists. A value is in at most one of them, and keeps its number as long as it is in it.
pub(crate) struct Lists<T, const N: usize> {
    blocks: Vec<Vec<Entry<T>>>,
    free: u32,
    ends: [Ends; N],
}

impl<T, const N: usize> Default for Lists<T, N> {
    fn default() -> Self {
        let empty = Ends { first: NO_ENTRY, last: NO_ENTRY, pages: 0 };
        Self { blocks: Vec::new(), free: NO_ENTRY, ends: [empty; N] }
    }
}

impl<T, const N: usize> Lists<T, N> {
    /// Adds a value, which counts as so many pages, at a list's end. Returns it with its number, which is
    /// never `u32::MAX`.
    ///
    /// # Panics
    /// With 2^32 - 1 entries.
    pub(crate) fn push(&mut self, list: usize, value: T, pages: u32) -> (&T, u32) {
        let last = self.ends[list].last;
        let number = self.free_entry();
        let entry = self.entry(number);
        self.free = entry.after;
        *self.entry(number) =
            Entry { value: Some(value), before: last, after: NO_ENTRY, pages, list: list as u8 };
        match last {
            NO_ENTRY => self.ends[list].first = number,
            last => self.entry(last).after = number,
        }
        let ends = &mut self.ends[list];
        ends.last = number;
        ends.pages += pages as usize;
        (self.entry(number).value.as_ref().expect("it was just stored"), number)
    }

    /// Takes the first value of a list, with the pages that it counts as. Does not touch what the value
    /// refers to.
    pub(crate) fn pop(&mut self, list: usize) -> Option<(T, u32)> {
        match self.ends[list].first {
            NO_ENTRY => None,
            first => Some((self.remove(first), self.entry(first).pages)),
        }
    }

    /// The value that has a number now, if any has.
    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        self.blocks.get(number as usize / BLOCK)?[number as usize % BLOCK].value.as_ref()
    }

    /// Takes a value out of its list.
    ///
    /// # Panics
    /// If no value has the number.
    pub(crate) fn remove(&mut self, number: u32) -> T {
        let free = self.free;
        let entry = self.entry(number);
        let value = entry.value.take().expect("the entry is in a list");
        let (before, after, list, pages) = (entry.before, entry.after, usize::from(entry.list), entry.pages);
        entry.after = free;
        self.free = number;
        match before {
            NO_ENTRY => self.ends[list].first = after,
            before => self.entry(before).after = after,
        }
        match after {
            NO_ENTRY => self.ends[list].last = before,
            after => self.entry(after).before = before,
        }
        let ends = &mut self.ends[list];
        ends.pages -= pages as usize;
        value
    }

    /// How many values a list has.
    #[cfg(test)]
    pub(crate) fn len(&self, list: usize) -> usize {
        let entry = |number: u32| &self.blocks[number as usize / BLOCK][number as usize % BLOCK];
        let there = |number: u32| (number != NO_ENTRY).then_some(number);
        std::iter::successors(there(self.ends[list].first), |number| there(entry(*number).after)).count()
    }

    /// The pages that the values of a list count as.
    pub(crate) fn pages(&self, list: usize) -> usize {
        self.ends[list].pages
    }

    fn entry(&mut self, number: u32) -> &mut Entry<T> {
        &mut self.blocks[number as usize / BLOCK][number as usize % BLOCK]
    }

    /// The number of a free entry, which stays the first free one.
    fn free_entry(&mut self) -> u32 {
        if self.free == NO_ENTRY {
            let start = u32::try_from(self.blocks.len() * BLOCK).expect("there is room for the entries");
            let end = start + BLOCK as u32;
            let after = (start + 1..end).chain([NO_ENTRY]);
            let block = after.map(|after| Entry { value: None, before: NO_ENTRY, after, pages: 0, list: 0 });
            self.blocks.push(block.collect());
            self.free = start;
        }
        self.free
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// Random calls on three lists, beside queues that are searched.
    #[test]
    fn lists_are_as_queues_that_are_searched() {
        let mut random = fastrand::Rng::with_seed(7);
        let mut lists = Lists::<u64, 3>::default();
        let mut queues: [VecDeque<(u64, u32, u32)>; 3] = Default::default();
        for value in 0..20_000 {
            let list = random.usize(0..3);
            match random.u32(0..100) {
                // As many come as go, and at times none comes for long.
                0..50 if value / 5000 % 2 == 0 => {
                    let pages = 1 << random.u32(0..5);
                    let number = lists.push(list, value, pages).1;
                    queues[list].push_back((value, number, pages));
                }
                0..75 => {
                    assert_eq!(lists.pop(list), queues[list].pop_front().map(|entry| (entry.0, entry.2)))
                }
                _ if queues[list].is_empty() => {}
                _ => {
                    let at = random.usize(0..queues[list].len());
                    let (value, number, _) = queues[list].remove(at).unwrap();
                    assert_eq!(lists.get(number), Some(&value));
                    assert_eq!(lists.remove(number), value);
                    assert_eq!(lists.get(number), None);
                }
            }
            assert_eq!(lists.len(list), queues[list].len());
            let pages = queues[list].iter().map(|entry| entry.2 as usize).sum::<usize>();
            assert_eq!(lists.pages(list), pages);
        }
        for (list, queue) in queues.iter().enumerate() {
            let left: Vec<_> = std::iter::from_fn(|| lists.pop(list)).map(|entry| entry.0).collect();
            assert_eq!(left, queue.iter().map(|entry| entry.0).collect::<Vec<_>>());
        }
    }

    #[test]
    fn entries_are_used_again() {
        let mut lists = Lists::<usize, 1>::default();
        for value in 0..10 * BLOCK {
            let number = lists.push(0, value, 1).1;
            assert_eq!(lists.remove(number), value);
        }
        assert_eq!((lists.blocks.len(), lists.len(0), lists.pages(0)), (1, 0, 0));
    }

    #[test]
    #[should_panic(expected = "the entry is in a list")]
    fn an_entry_is_removed_once() {
        let mut lists = Lists::<u8, 1>::default();
        let number = lists.push(0, 1, 1).1;
        lists.remove(number);
        lists.remove(number);
    }
}
