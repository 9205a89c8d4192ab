//! hold and quiet: processes with memory of their own, for trees of processes under one budget. Each knows
//! what every page of its memory must begin with. What they say on standard output, a line each, is what the
//! lab waits for.

use std::io::Write;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use elbowroom_lab::board::now_ns;
use elbowroom_lab::content::PageDice;
use elbowroom_lab::histogram::{BUCKETS, Latency, bucket_of};
use elbowroom_lab::{PAGE_BYTES, procfs};

use crate::memory::Mapping;
use crate::tally::Outcome;

/// Pages that are changed between two looks for the file that ends the process.
const CHANGES: u64 = 64;
/// Pages that a quiet process reads between two rests.
const READS: u64 = 1024;
/// New memory that a quiet process maps, touches and unmaps between two rests. Less is not managed.
const NEW_BYTES: u64 = elbowroom_lab::PART_BYTES;
/// How long a quiet process rests.
const QUIET_REST: Duration = Duration::from_millis(5);

/// Memory of which it is known what each page begins with.
struct Own {
    mapping: Mapping,
    /// How often each page was changed.
    changes: Vec<u32>,
    seed: u64,
}

impl Own {
    /// Maps memory, and fills each page: half of its words are random, the others are zero.
    fn filled(bytes: u64) -> Result<Self> {
        let mapping = Mapping::anonymous(bytes).context("cannot map memory")?;
        let pages = bytes / PAGE_BYTES;
        let seed = now_ns() ^ u64::from(std::process::id()) << 32;
        let own = Self { mapping, changes: vec![0; pages as usize], seed };
        for page in 0..pages {
            let mut dice = PageDice::new(seed ^ page);
            let at = page * PAGE_BYTES;
            own.mapping.store_word(at, own.expected(page));
            (16..PAGE_BYTES)
                .step_by(16)
                .for_each(|word| own.mapping.store_word(at + word, dice.next_below(u64::MAX)));
        }
        Ok(own)
    }

    fn pages(&self) -> u64 {
        self.changes.len() as u64
    }

    fn expected(&self, page: u64) -> u64 {
        let first = (self.seed ^ page).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        first.wrapping_add(u64::from(self.changes[page as usize]))
    }

    /// What is wrong with a page, if anything.
    fn wrong(&self, page: u64) -> Option<Outcome> {
        let (got, expected) = (self.mapping.stamp_at(page), self.expected(page));
        let what = || format!("wrong content: page {page} begins with {got:#x}, {expected:#x} expected");
        (got != expected).then(|| Outcome::Wrong(what()))
    }

    /// Verifies a page, and changes it.
    fn change(&mut self, page: u64) -> Option<Outcome> {
        let wrong = self.wrong(page);
        self.changes[page as usize] += 1;
        self.mapping.store_word(page * PAGE_BYTES, self.expected(page));
        wrong
    }

    /// Verifies all pages, and says that they are right.
    fn verified(&self) -> Result<Outcome> {
        if let Some(wrong) = (0..self.pages()).find_map(|page| self.wrong(page)) {
            return Ok(wrong);
        }
        say("right")?;
        Ok(Outcome::Verified)
    }
}

fn say(line: &str) -> Result<()> {
    writeln!(std::io::stdout(), "{line}").context("cannot write to standard output")
}

/// Changes pages of `bytes` of memory at random until the file `until` is there. Says `full` once it has all
/// of its memory, and `right` at the end.
pub fn hold(bytes: u64, until: &Path) -> Result<Outcome> {
    let mut own = Own::filled(bytes)?;
    say("full")?;
    let mut dice = PageDice::new(own.seed);
    while !until.exists() {
        for _ in 0..CHANGES {
            let page = dice.next_below(own.pages());
            if let Some(wrong) = own.change(page) {
                return Ok(wrong);
            }
        }
    }
    own.verified()
}

/// Durations of accesses.
struct Durations {
    counts: Vec<u64>,
    max_ns: u64,
}

impl Durations {
    fn new() -> Self {
        Self { counts: vec![0; BUCKETS], max_ns: 0 }
    }

    /// Does something, and counts how long that took.
    fn of<T>(&mut self, access: impl FnOnce() -> T) -> T {
        let begin = now_ns();
        let result = access();
        let ns = now_ns() - begin;
        self.counts[bucket_of(ns)] += 1;
        self.max_ns = self.max_ns.max(ns);
        result
    }

    fn latency(&self) -> Result<Latency> {
        Latency::from_counts(&self.counts, self.max_ns).context("nothing was measured")
    }
}

/// Reads pages of `bytes` of memory at random, touches new memory, and rests, again and again. Says `quiet`
/// and its process id once it has all of its memory. Measures from when the file `go` is there, for `time`;
/// then it says `measured` with accesses, faults (of its thread, as the kernel counts them), and the 99th
/// percentiles of its reads and of its first touches in nanoseconds, and at the end `right`.
pub fn quiet(bytes: u64, go: &Path, time: Duration) -> Result<Outcome> {
    let own = Own::filled(bytes)?;
    say(&format!("quiet {}", std::process::id()))?;
    let mut dice = PageDice::new(own.seed);
    let mut step = |reads: &mut Durations, touches: &mut Durations| -> Result<Option<Outcome>> {
        for _ in 0..READS {
            let page = dice.next_below(own.pages());
            if let Some(wrong) = reads.of(|| own.wrong(page)) {
                return Ok(Some(wrong));
            }
        }
        let new = Mapping::anonymous(NEW_BYTES).context("cannot map memory")?;
        for page in 0..NEW_BYTES / PAGE_BYTES {
            touches.of(|| new.store_byte(page * PAGE_BYTES, 1));
        }
        drop(new);
        thread::sleep(QUIET_REST);
        Ok(None)
    };
    while !go.exists() {
        if let Some(wrong) = step(&mut Durations::new(), &mut Durations::new())? {
            return Ok(wrong);
        }
    }
    let (mut reads, mut touches) = (Durations::new(), Durations::new());
    let faults = || procfs::faults_of_this_thread().map(|(minor, major)| minor + major);
    let (begin, before) = (Instant::now(), faults()?);
    while begin.elapsed() < time {
        if let Some(wrong) = step(&mut reads, &mut touches)? {
            return Ok(wrong);
        }
    }
    let faults = faults()? - before;
    let (reads, touches) = (reads.latency()?, touches.latency()?);
    let accesses = reads.count + touches.count;
    say(&format!("measured {accesses} {faults} {} {}", reads.p99_ns, touches.p99_ns))?;
    own.verified()
}
