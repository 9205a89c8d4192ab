//! How much memory a tree of processes has: the sum of PSS, sampled.
//!
//! PSS divides a page that several processes have among them, so that the sum over the tree counts it once.
//! To read PSS, the kernel walks the page tables of the process, and meanwhile faults of the process may
//! wait for mmap_lock. So PSS is read only when its sum may be near the highest so far. To know that, the
//! sampler reads the sum of VmRSS every 10 ms, for which the kernel walks nothing, and subtracts by how
//! much it was above the sum of PSS at the last reading of PSS. The pause between two readings of PSS is at
//! least four times as long as a reading.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::procfs;
use crate::resident::members;
use crate::unmodified::child::Watch;

const PERIOD: Duration = Duration::from_millis(10);
/// How often new processes of the tree are looked for.
const LOOK_PERIOD: Duration = Duration::from_millis(100);
/// PSS is read at least this often, so that the shared part is known.
const MOST_PAUSE: Duration = Duration::from_millis(500);
/// The pause after a reading of PSS is at least so many times as long as the reading.
const REST: u32 = 4;

/// The sum of PSS over a process group.
pub fn of_group(group: u64) -> u64 {
    members(group).into_iter().filter_map(procfs::proportional_bytes).sum()
}

/// Samples the memory of a program and of all processes that it starts.
pub struct TreeSampler {
    group: u64,
    processes: Vec<u64>,
    next_sample: Instant,
    next_look: Instant,
    next_pss: Instant,
    last_pss: Instant,
    /// By how much the sum of VmRSS was above the sum of PSS at the last reading of PSS.
    shared_bytes: u64,
    peak: TreePeak,
}

/// The highest figures of a tree, and how often they were read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TreePeak {
    /// The highest sum of PSS.
    pub pss_bytes: u64,
    /// The greatest number of processes at a time.
    pub processes: u64,
    /// How often VmRSS was read.
    pub samples: u64,
    /// How often PSS was read.
    pub readings: u64,
}

impl TreeSampler {
    /// A sampler that has seen nothing yet.
    pub fn new() -> Self {
        let now = Instant::now();
        Self {
            group: 0,
            processes: Vec::new(),
            next_sample: now,
            next_look: now,
            next_pss: now,
            last_pss: now,
            shared_bytes: 0,
            peak: TreePeak::default(),
        }
    }

    /// The highest figures so far.
    pub fn peak(&self) -> TreePeak {
        self.peak
    }

    fn sample(&mut self, now: Instant) {
        if now >= self.next_look {
            self.next_look = now + LOOK_PERIOD;
            self.processes = members(self.group);
            self.peak.processes = self.peak.processes.max(self.processes.len() as u64);
        }
        let resident = self.processes.iter().filter_map(|pid| procfs::resident(*pid));
        let rss_bytes: u64 = resident.map(|resident| resident.total_bytes).sum();
        self.peak.samples += 1;
        let guess = rss_bytes.saturating_sub(self.shared_bytes);
        let is_high = guess >= self.peak.pss_bytes / 50 * 49 && now >= self.next_pss;
        if !is_high && now < self.last_pss + MOST_PAUSE {
            return;
        }
        let begin = Instant::now();
        let pss_bytes = self.processes.iter().filter_map(|pid| procfs::proportional_bytes(*pid)).sum();
        self.shared_bytes = rss_bytes.saturating_sub(pss_bytes);
        self.peak.pss_bytes = self.peak.pss_bytes.max(pss_bytes);
        self.peak.readings += 1;
        self.last_pss = begin;
        self.next_pss = Instant::now() + REST * begin.elapsed();
    }
}

impl Watch for TreeSampler {
    fn begin(&mut self, pid: u64) {
        self.group = pid;
    }

    fn line(&mut self, _: &str) -> Result<()> {
        Ok(())
    }

    fn tick(&mut self) -> Result<Duration> {
        let now = Instant::now();
        if now >= self.next_sample {
            // Samples are due at fixed times, and missed ones are skipped.
            self.next_sample = (self.next_sample + PERIOD).max(now);
            self.sample(now);
        }
        Ok(self.next_sample.saturating_duration_since(Instant::now()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interrupt::Interrupt;
    use crate::unmodified::child;
    use std::ffi::OsString;

    #[test]
    fn all_processes_of_a_tree_are_seen_and_shared_memory_counts_once() {
        let line = ["/bin/sh", "-c", "sleep 0.5 & sleep 0.5 & sleep 0.5 & wait"].map(OsString::from);
        let mut sampler = TreeSampler::new();
        let interrupt = Interrupt::install().unwrap();
        child::run_watched(&line, Duration::from_secs(60), &interrupt, &mut sampler).unwrap();
        let peak = sampler.peak();
        assert!(peak.processes == 4 && peak.samples >= peak.readings && peak.readings > 0, "{peak:?}");
        // libc alone has 1.5 MiB resident in each process.
        assert!((64 << 10..6 << 20).contains(&peak.pss_bytes), "{peak:?}");
    }
}
