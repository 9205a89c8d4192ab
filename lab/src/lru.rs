//! A cache of whole chunks that drops the one that was used least recently: what an engine's reads are
//! compared with.

use serde::Serialize;

/// The end of the list.
const NONE: u32 = u32::MAX;

/// A simulated cache. Chunks have numbers below a count that is known at the beginning.
#[derive(Debug)]
pub struct ChunkLru {
    capacity_bytes: u64,
    used_bytes: u64,
    /// Of each chunk the ones that were used just before and just after it, and whether it is there.
    links: Vec<Link>,
    oldest: u32,
    newest: u32,
    result: LruResult,
}

/// What a simulated cache was asked for, and what it did not have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct LruResult {
    /// All bytes that were asked for.
    #[serde(rename = "lru_wanted_bytes")]
    pub wanted_bytes: u64,
    /// Those of chunks that were not there.
    #[serde(rename = "lru_missed_bytes")]
    pub missed_bytes: u64,
}

#[derive(Debug, Clone, Copy)]
struct Link {
    older: u32,
    newer: u32,
    len_bytes: u64,
}

impl ChunkLru {
    /// An empty cache of so many bytes, of chunks with numbers below `count`.
    pub fn new(capacity_bytes: u64, count: u64) -> Self {
        let links = vec![Link { older: NONE, newer: NONE, len_bytes: 0 }; count as usize];
        let result = LruResult::default();
        Self { capacity_bytes, used_bytes: 0, links, oldest: NONE, newest: NONE, result }
    }

    /// Asks for a chunk of so many bytes.
    ///
    /// # Panics
    /// If the number is not below the count.
    pub fn ask(&mut self, chunk: u64, len_bytes: u64) {
        let number = chunk as u32;
        self.result.wanted_bytes += len_bytes;
        if self.links[number as usize].len_bytes > 0 {
            self.unlink(number);
        } else {
            self.result.missed_bytes += len_bytes;
            if len_bytes > self.capacity_bytes {
                return;
            }
            while self.used_bytes + len_bytes > self.capacity_bytes {
                let oldest = self.oldest;
                self.unlink(oldest);
            }
        }
        self.push(number, len_bytes);
    }

    /// What it was asked for until now.
    pub fn result(&self) -> LruResult {
        self.result
    }

    fn unlink(&mut self, number: u32) {
        let Link { older, newer, len_bytes } = self.links[number as usize];
        match older {
            NONE => self.oldest = newer,
            older => self.links[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.links[newer as usize].older = older,
        }
        self.links[number as usize].len_bytes = 0;
        self.used_bytes -= len_bytes;
    }

    fn push(&mut self, number: u32, len_bytes: u64) {
        self.links[number as usize] = Link { older: self.newest, newer: NONE, len_bytes };
        match self.newest {
            NONE => self.oldest = number,
            newest => self.links[newest as usize].newer = number,
        }
        self.newest = number;
        self.used_bytes += len_bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::PageDice;

    #[test]
    fn it_misses_what_a_list_in_order_of_use_misses() {
        let mut dice = PageDice::new(5);
        let lens: Vec<u64> = (0..40).map(|_| 1 + dice.next_below(9)).collect();
        let (mut lru, mut missed) = (ChunkLru::new(60, 40), 0);
        let mut kept: Vec<u64> = Vec::new();
        for _ in 0..20_000 {
            let chunk = dice.next_below(40);
            lru.ask(chunk, lens[chunk as usize]);
            match kept.iter().position(|other| *other == chunk) {
                Some(at) => drop(kept.remove(at)),
                None => missed += lens[chunk as usize],
            }
            kept.push(chunk);
            while kept.iter().map(|chunk| lens[*chunk as usize]).sum::<u64>() > 60 {
                kept.remove(0);
            }
        }
        assert_eq!(lru.result().missed_bytes, missed);
        assert!(missed > 0 && missed < lru.result().wanted_bytes);
    }

    #[test]
    fn what_never_fits_is_missed_each_time_and_drops_nothing() {
        let mut lru = ChunkLru::new(10, 3);
        lru.ask(0, 10);
        lru.ask(1, 11);
        lru.ask(0, 10);
        assert_eq!(lru.result(), LruResult { wanted_bytes: 31, missed_bytes: 21 });
    }
}
