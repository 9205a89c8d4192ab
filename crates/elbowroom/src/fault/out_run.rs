//! Runs: neighbouring pages that are out and that one fault may bring in at once, and where their bytes
//! are.

use crate::config::RUN_ORDER;
use crate::page::Spot;
use crate::swap::{Source, Swap, follow};
use std::ops::Range;

/// Neighbouring pages that are out, and come in together.
pub(super) struct OutRun {
    pub(super) first: u64,
    /// The swap slot of each page. Their number is a power of two, and `first` is aligned to it.
    pub(super) slots: Vec<u64>,
    /// Where the bytes are.
    pub(super) bytes: Bytes,
}

/// Where the bytes of a run are.
pub(super) enum Bytes {
    Memory,
    /// In the swap file, at these spots, one for each page, one behind the other.
    File(Vec<Spot>),
}

impl Bytes {
    /// Where the bytes of pages with these sources are. `None`: they are partly in memory and partly in the
    /// file, or not one behind the other there, or a slot is free.
    pub(super) fn of(sources: impl Iterator<Item = Option<Source>>) -> Option<Self> {
        let mut sources = sources.peekable();
        if sources.peek()? == &Some(Source::Memory) {
            return sources.all(|source| source == Some(Source::Memory)).then_some(Bytes::Memory);
        }
        let mut spots: Vec<Spot> = Vec::with_capacity(1 << RUN_ORDER);
        for source in sources {
            let Some(Source::File(spot)) = source else { return None };
            if spots.last().is_some_and(|last| !follow(*last, spot)) {
                return None;
            }
            spots.push(spot);
        }
        Some(Bytes::File(spots))
    }
}

impl OutRun {
    pub(super) fn pages(&self) -> Range<u64> {
        self.first..self.first + self.slots.len() as u64
    }

    /// log2 of the number of pages.
    pub(super) fn order(&self) -> u8 {
        self.slots.len().ilog2() as u8
    }

    /// The part of the run that is the 2^`order` pages around `page`, or the whole run if it is smaller.
    pub(super) fn around(self, page: u64, order: u8) -> OutRun {
        let first = (page >> order << order).max(self.first);
        let before = (first - self.first) as usize;
        let part = before..before + self.slots.len().min(1 << order);
        let bytes = match self.bytes {
            Bytes::Memory => Bytes::Memory,
            Bytes::File(spots) => Bytes::File(spots[part.clone()].to_vec()),
        };
        OutRun { first, slots: self.slots[part].to_vec(), bytes }
    }

    /// Whether the bytes seem to be where the run says, still. To a caller that has the slots' counts the
    /// answer is certain.
    pub(super) fn is_where_it_was(&self, swap: &Swap) -> bool {
        let mut seen = self.slots.iter().map(|slot| swap.seems(*slot));
        match &self.bytes {
            Bytes::Memory => seen.all(|seen| seen == Some(Source::Memory)),
            Bytes::File(spots) => seen.eq(spots.iter().map(|spot| Some(Source::File(*spot)))),
        }
    }
}
