//! How much memory the processes of a program have: sampled every 10 ms.
//!
//! What counts is VmRSS of each process, which is the kernel's count of all pages that it has mapped. Under
//! Elbowroom frames and the pool of compressed pages are in one anonymous mapping, the arena, and so is all
//! that the windows show of it: a page is in one of the two. /proc/PID/smaps tells which part of VmRSS that
//! is: what is registered with userfaultfd is managed. The rest is what Elbowroom needs itself (its
//! libraries, its heap, its rings), and what it does not manage.
//!
//! The kernel walks the page tables for smaps, and keeps mmap_lock meanwhile. So smaps is read only when
//! there is about as much as ever before, and so rarely that it takes a fiftieth of the time.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::procfs;
use crate::size::Size;

const PERIOD: Duration = Duration::from_millis(10);
/// How often new processes of the group are looked for.
const LOOK_PERIOD: Duration = Duration::from_millis(250);
/// Between two readings of smaps at least so many times what the last one took.
const REST: u32 = 50;
/// What the manager may have beside the budget.
const BESIDE_BUDGET: u64 = 32 << 20;

/// What VmRSS consists of, in bytes, as smaps has it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Parts {
    /// The arena, and what the windows show of it: with the pool of compressed pages.
    #[serde(rename = "managed_bytes")]
    pub managed: u64,
    /// Elbowroom's libraries, heap and rings.
    #[serde(rename = "own_bytes")]
    pub own: u64,
    /// All else.
    #[serde(rename = "unmanaged_bytes")]
    pub unmanaged: u64,
}

/// The most that one process had.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Peak {
    /// VmRSS, of all samples the highest.
    pub rss_bytes: u64,
    /// What it consisted of, by the last reading of smaps near the peak; none where nothing is managed.
    #[serde(flatten)]
    pub parts: Option<Parts>,
    /// How many samples there are.
    pub samples: u64,
}

impl Peak {
    /// The most that it should be with that budget: what is unmanaged comes on top. `None` without a manager.
    pub fn allowed(&self, budget: Size) -> Option<u64> {
        self.parts.map(|parts| budget.bytes() + BESIDE_BUDGET + parts.unmanaged)
    }

    /// Whether it is no more than that.
    pub fn is_kept(&self, budget: Size) -> Option<bool> {
        self.allowed(budget).map(|allowed| self.rss_bytes <= allowed)
    }
}

/// Whose memory is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Managed {
    /// Of a process that Elbowroom is in: smaps is read.
    Yes,
    /// Of any other.
    No,
}

struct Process {
    peak: Peak,
    last: Option<Parts>,
    next_parts: Instant,
}

impl Process {
    fn new() -> Self {
        Self { peak: Peak::default(), last: None, next_parts: Instant::now() }
    }
}

/// Samples a process and those of its process group.
pub struct Sampler {
    managed: Managed,
    processes: BTreeMap<u64, Process>,
    group: Option<u64>,
    next_sample: Instant,
    next_look: Instant,
}

impl Sampler {
    /// One that has seen nothing yet.
    pub fn new(managed: Managed) -> Self {
        let now = Instant::now();
        Self { managed, processes: BTreeMap::new(), group: None, next_sample: now, next_look: now }
    }

    /// Tells it the process, which leads its group.
    pub fn begin(&mut self, pid: u64) {
        self.group = Some(pid);
        self.processes.entry(pid).or_insert_with(Process::new);
        self.next_look = Instant::now() + LOOK_PERIOD;
    }

    /// How long until the next sample.
    pub fn rest(&self) -> Duration {
        self.next_sample.saturating_duration_since(Instant::now())
    }

    /// Takes a sample, if one is due.
    pub fn tick(&mut self) {
        let now = Instant::now();
        let Some(group) = self.group.filter(|_| now >= self.next_sample) else { return };
        // At fixed times, but none is made up for.
        self.next_sample = (self.next_sample + PERIOD).max(now);
        if now >= self.next_look {
            self.next_look = now + LOOK_PERIOD;
            for pid in members(group) {
                self.processes.entry(pid).or_insert_with(Process::new);
            }
        }
        for (pid, process) in &mut self.processes {
            let Some(resident) = procfs::resident(*pid) else { continue };
            process.peak.samples += 1;
            process.peak.rss_bytes = process.peak.rss_bytes.max(resident.total_bytes);
            // What is near the peak tells what that consists of.
            if resident.total_bytes < process.peak.rss_bytes / 50 * 49 {
                continue;
            }
            if self.managed == Managed::Yes && Instant::now() >= process.next_parts {
                let begin = Instant::now();
                let smaps = fs::read_to_string(format!("/proc/{pid}/smaps"));
                // Gone meanwhile: then the last reading counts.
                process.last = smaps.ok().map(|smaps| parse_parts(&smaps)).or(process.last);
                process.next_parts = Instant::now() + REST * begin.elapsed();
            }
            process.peak.parts = process.last;
        }
    }

    /// The most that one process had.
    pub fn peak(&self) -> Option<Peak> {
        let peaks = self.processes.values().map(|process| process.peak);
        peaks.filter(|peak| peak.rss_bytes > 0).max_by_key(|peak| peak.rss_bytes)
    }
}

/// The processes of a group.
pub fn members(group: u64) -> Vec<u64> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u64>().ok());
    let is_member = |pid: &u64| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        group_of(&stat) == Some(group)
    };
    pids.filter(is_member).collect()
}

fn group_of(stat: &str) -> Option<u64> {
    // State, parent and group follow the name, which may hold anything.
    stat[stat.rfind(')')? + 1..].split_ascii_whitespace().nth(2)?.parse().ok()
}

/// Sums up the mappings of a process.
fn parse_parts(smaps: &str) -> Parts {
    let mut parts = Parts::default();
    let (mut path, mut rss) = ("", 0);
    for line in smaps.lines() {
        let Some((key, rest)) = line.split_once(' ') else { continue };
        match key {
            "Rss:" => rss = rest.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0) << 10,
            "VmFlags:" => {
                let has = |flag: &str| rest.split_ascii_whitespace().any(|other| other == flag);
                // Our heap is reserved (nr), and of pages of 4 KiB (nh); our windows are that, too, but they
                // are registered (um: for missing pages, uw: for write protection).
                let own = path.contains("/libelbowroom_")
                    || path.ends_with("anon_inode:[io_uring]")
                    || path.is_empty() && has("nr") && has("nh");
                let part = match (has("um") || has("uw"), own) {
                    (true, _) => &mut parts.managed,
                    (false, true) => &mut parts.own,
                    (false, false) => &mut parts.unmanaged,
                };
                *part += rss;
            }
            // The first line of a mapping: addresses, rights, offset, device, inode, path.
            _ if !key.ends_with(':') => {
                path = rest.splitn(5, ' ').nth(4).unwrap_or("").trim();
                rss = 0;
            }
            _ => {}
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
2a00eee9b000-2a00ef300000 rw-p 00000000 00:00 0 
Rss:                4356 kB
VmFlags: rd wr mr mw me nr nh 
5593aa016000-5593aa19d000 rw-p 00000000 00:00 0                          [heap]
Size:               1564 kB
Rss:                1436 kB
VmFlags: rd wr mr mw me ac 
7eea71615000-7fea71615000 rw-p 00000000 00:00 0 
Rss:               75012 kB
VmFlags: rd wr mr mw me um uw dc nr dd nh 
7fea75a00000-7fea7acc0000 rw-p 00000000 00:00 0 
Rss:                9760 kB
VmFlags: rd wr mr mw me um dc nr dd nh 
7fea7b65e000-7fea7b830000 r-xp 0005d000 fe:00 5664225                    /a dir/libelbowroom_preload.so
Rss:                1800 kB
VmFlags: rd ex mr mw me 
";

    #[test]
    fn what_is_registered_is_managed_and_ours_is_told_apart() {
        let parts = parse_parts(SMAPS);
        let kib = |kib: u64| kib << 10;
        let expected = Parts { managed: kib(75012 + 9760), own: kib(4356 + 1800), unmanaged: kib(1436) };
        assert_eq!(parts, expected);
    }

    #[test]
    fn what_is_unmanaged_comes_on_top_of_the_budget() {
        let parts = Parts { managed: 0, own: 0, unmanaged: 5 << 20 };
        let peak = |mib: u64| Peak { rss_bytes: mib << 20, parts: Some(parts), samples: 1 };
        let budget = Size::from_bytes(100 << 20);
        assert_eq!([137, 138].map(|mib| peak(mib).is_kept(budget)), [Some(true), Some(false)]);
        assert_eq!(Peak { parts: None, ..peak(1) }.is_kept(budget), None);
    }

    #[test]
    fn parts_of_this_process_are_its_memory_and_children_are_found() {
        let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
        let parts = parse_parts(&smaps);
        let all = procfs::resident(u64::from(std::process::id())).unwrap().total_bytes;
        let sum = parts.managed + parts.own + parts.unmanaged;
        // Other tests of this process allocate meanwhile.
        assert!(sum > all / 2 && sum < 2 * all, "{sum} {all}");
        let stat = fs::read_to_string("/proc/self/stat").unwrap();
        assert!(members(group_of(&stat).unwrap()).contains(&u64::from(std::process::id())));
        assert_eq!(group_of("7 (a) b (c) S 1 9 7 0"), Some(9));
    }
}
