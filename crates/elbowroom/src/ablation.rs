//! What can be switched off, to measure what it is worth.

/// Which improvements are on. Each is read in one place; all are on unless the lab wants to show what one is
/// worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ablation {
    /// Faults lock their VMA. Off: each look of a fault takes the layout lock for reading and keeps it to its
    /// end, as Linux did before per-VMA locks.
    pub vma_locks: bool,
    /// A fault that has waited for I/O tries again under the VMA lock, and keeps the folio from reclaim
    /// meanwhile. Off: it takes the layout lock for reading then, and keeps nothing, as Linux does without
    /// "retry the fault under the VMA lock": the page may be gone by the time it looks.
    pub retry_under_vma_lock: bool,
    /// A folio that has its bytes, and is locked for a moment, is waited for under the VMA lock. Off: the
    /// fault lets everything go and begins again when the folio is unlocked.
    pub uptodate_wait: bool,
    /// The first store to a page of a file is done with one fault, throttled or not. Off: the page is mapped
    /// for loads, and the store faults again; as Linux did before `VM_FAULT_COMPLETED`.
    pub completed: bool,
    /// The lock of a file's reverse map covers the tree only, and mappings in different spaces have different
    /// ones. Off: each file has one for all, and the index of VMAs is changed inside it.
    pub narrow_file_lock: bool,
    /// Private anonymous memory is had 2 MiB at a time where that fits. Off: page by page.
    pub huge_folios: bool,
    /// Reclaim drops single pages where they are while hardly any is touched on standby. Off: each gets its
    /// second chance.
    pub skipped_chances: bool,
    /// The pool of compressed pages is made larger and smaller by how late pages come back, and its oldest
    /// pages go to the swap file. Off: it is filled, and what it has no room for goes to the file.
    pub pool_sizing: bool,
    /// What compresses is written to the swap file compressed where the file is what limits. Off: only what
    /// the pool has given up is.
    pub packed_swap_file: bool,
    /// Threads of the manager let the program's own changes of its mappings go first. Off: they do not look.
    /// For spaces of the host only.
    pub given_way: bool,
    /// A handler that works nearly all the time shares new faults, and what was read from the swap file, with
    /// the others. Off: it does all that it has taken.
    pub shared_faults: bool,
    /// Idle processors do not sleep deeply while faults come often, where the configuration wants that. Off:
    /// they do.
    pub shallow_idle: bool,
    /// What it costs to take from each kind of memory is counted by threads in rows of their own, and added
    /// up by the thread that reclaims. Off: each event records its cost under the lock of the lists, and
    /// again for each group above, and a scan takes the lock to copy two numbers; as Linux did before.
    pub scan_cost: bool,
    /// What was read whole from its first page is read whole at the next fault there. Off: each read of it is
    /// larger than the one before.
    pub learned_chunks: bool,
    /// Constants that were chosen by measuring.
    pub tuning: Tuning,
}

impl Default for Ablation {
    fn default() -> Self {
        Self {
            vma_locks: true,
            retry_under_vma_lock: true,
            uptodate_wait: true,
            completed: true,
            narrow_file_lock: true,
            huge_folios: true,
            skipped_chances: true,
            pool_sizing: true,
            packed_swap_file: true,
            given_way: true,
            shared_faults: true,
            shallow_idle: true,
            scan_cost: true,
            learned_chunks: true,
            tuning: Tuning::default(),
        }
    }
}

impl Ablation {
    fn switches(&mut self) -> [(&'static str, &mut bool); 14] {
        [
            ("vma_locks", &mut self.vma_locks),
            ("retry_under_vma_lock", &mut self.retry_under_vma_lock),
            ("uptodate_wait", &mut self.uptodate_wait),
            ("completed", &mut self.completed),
            ("narrow_file_lock", &mut self.narrow_file_lock),
            ("huge_folios", &mut self.huge_folios),
            ("skipped_chances", &mut self.skipped_chances),
            ("pool_sizing", &mut self.pool_sizing),
            ("packed_swap_file", &mut self.packed_swap_file),
            ("given_way", &mut self.given_way),
            ("shared_faults", &mut self.shared_faults),
            ("shallow_idle", &mut self.shallow_idle),
            ("scan_cost", &mut self.scan_cost),
            ("learned_chunks", &mut self.learned_chunks),
        ]
    }

    /// The improvements and constants that are off, and the constants that have another value than the tuned
    /// one, each as [`Ablation::without`] takes it.
    pub fn off(mut self) -> Vec<String> {
        let constants = self.tuning.off();
        let switches = self.switches().into_iter().filter(|(_, on)| !**on).map(|(name, _)| name.to_owned());
        switches.chain(constants).collect()
    }

    /// All on and as tuned, but for those that are named, switches or constants of [`Tuning`]; commas are
    /// between the names. A constant may be given another value: `pool_percent=50`.
    ///
    /// # Errors
    /// A line that says which name there is not, and which there are; or which value is not one.
    pub fn without(names: &str) -> Result<Self, String> {
        let mut ablation = Self::default();
        for name in names.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            if let Some((constant, value)) = name.split_once('=') {
                ablation.tuning.set(constant, value)?;
            } else if let Some((_, on)) = ablation.switches().into_iter().find(|(known, _)| *known == name) {
                *on = false;
            } else if !ablation.tuning.switch_off(name) {
                let known = Self::names().join(", ");
                return Err(format!("there is no improvement \"{name}\"; there are {known}"));
            }
        }
        Ok(ablation)
    }

    /// The names of all that can be switched off: improvements first, then constants.
    pub fn names() -> Vec<&'static str> {
        let switches = Self::default().switches().map(|(name, _)| name);
        switches.into_iter().chain(Tuning::NAMES.iter().copied()).collect()
    }
}

/// Constants with the value that was chosen and the one with which they do nothing, or the least that they
/// can.
macro_rules! tuning {
    ($($(#[$doc:meta])* $name:ident: $type:ty = $value:expr, off $off:expr;)*) => {
        /// Constants that were chosen by measuring. Each has a value with which it does nothing, or the least
        /// that it can; `elbowroom lab tune` compares the two, and docs/performance.md has what that showed.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct Tuning {
            $($(#[$doc])* #[doc = ""] #[doc = concat!("Off: ", stringify!($off), ".")] pub $name: $type,)*
        }

        impl Default for Tuning {
            fn default() -> Self {
                Self { $($name: $value,)* }
            }
        }

        impl Tuning {
            /// The names of all constants.
            const NAMES: &[&str] = &[$(stringify!($name),)*];

            /// The constants that do not have the value that was chosen: those that do nothing by name,
            /// others with their value.
            fn off(&self) -> Vec<String> {
                let (tuned, mut off) = (Self::default(), Vec::new());
                $(if self.$name == $off {
                    off.push(stringify!($name).to_owned());
                } else if self.$name != tuned.$name {
                    off.push(format!("{}={}", stringify!($name), self.$name));
                })*
                off
            }

            /// Gives a constant the value with which it does nothing; `false`: there is none of that name.
            fn switch_off(&mut self, name: &str) -> bool {
                match name {
                    $(stringify!($name) => self.$name = $off,)*
                    _ => return false,
                }
                true
            }

            /// Gives a constant another value.
            fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
                let bad = || format!("\"{name}\" has no value \"{value}\"; it is a number");
                match name {
                    $(stringify!($name) => self.$name = value.parse().map_err(|_| bad())?,)*
                    _ => return Err(format!("there is no constant \"{name}\"")),
                }
                Ok(())
            }
        }
    };
}

tuning! {
    /// How many pages the first read of a stream that nothing is known of takes.
    first_read_pages: u64 = 4, off 1;
    /// One in so many streams of a file begins with a page, to see how long its streams are; the others begin
    /// with as much as is usual.
    sample_one_in: u64 = 8, off 1 << 40;
    /// How many pages a read takes at least while a quarter of the arena is free, in a file of at most four
    /// times its size: what is read too much takes memory that nothing else needs yet, and is used sooner
    /// or later.
    free_read_pages: u64 = 32, off 1;
    /// By how much a read of a sequential stream is larger than the one before.
    read_growth: u64 = 4, off 1;
    /// While the arena grows, reads are as large as if it had at least so many frames (16 MiB).
    early_read_frames: usize = 4096, off 0;
    /// A read may take one part in this many of the arena, divided by the faults that wait.
    waiting_share: u64 = 2, off 1;
    /// A part that is read ahead of its reader is at most one part in this many of what a waiting fault may
    /// read: no thread waits for it, nothing else bounds how much of that there is, and what does not fit
    /// is evicted before it was used.
    ahead_share: u64 = 4, off 1;
    /// What was advised to be read is started in pieces of so many pages; between them faults are looked for.
    ahead_piece_pages: u64 = 512, off 1 << 40;
    /// How many pages around a read fault in a writable shared mapping are copied in.
    tracked_around_pages: usize = 16, off 1;
    /// How many pages are made writable ahead of a thread that stores to one page after the other. Each gets
    /// a checksum, some 0.3 us.
    stores_ahead_pages: u64 = 512, off 0;
    /// A thread of its own frees frames once less than one in this many is free, until twice as many are.
    /// Linux: the low and the high watermark of `kswapd`.
    low_share: usize = 128, off usize::MAX;
    /// Pages that reclaim frees at a time, at least.
    reclaim_batch_pages: usize = 64, off 1;
    /// One refault in so many is activated although it came later than the active list is long.
    bimodal_one_in: u64 = 16, off u64::MAX;
    /// Huge folios that are collapsed from small ones at a time, once a second.
    collapses_at_once: usize = 16, off 0;
    /// So many percent of the arena may be dirty, if nothing else is asked for.
    dirty_percent: usize = 75, off 33;
    /// From so many percent on the flusher works then, before the interval is over: pages that are stored to
    /// again and again, and fit, are best left alone.
    dirty_background_percent: usize = 66, off 16;
    /// With fewer free frames than this, the arena grows ahead of need: 16 MiB. In a run of several processes
    /// at most a part of what all may take together (`config::GROW_AHEAD_SHARE`).
    grow_ahead_frames: usize = 4096, off 0;
    /// So many percent of the arena may have compressed pages, where there is a swap file.
    pool_percent: usize = 40, off 0;
    /// So many percent of the arena may have compressed pages, where there is no swap file.
    lone_pool_percent: usize = 75, off 0;
    /// Slots of the table of access streams: threads that read at once, times the files each reads.
    stream_slots: usize = 4096, off 8;
    /// With more faults waiting than this, sequential streams are not read ahead of their readers.
    read_on_max_waiting: usize = 16, off usize::MAX;
    /// Runs of 64 KiB that are read from the swap file ahead of a thread that goes through anonymous memory.
    swap_ahead_runs: u64 = 32, off 0;
    /// Pages that a fault brings at most of those whose bytes are in memory, where a thread goes through them
    /// in order. At least a run.
    swap_run_pages: u64 = 64, off 16;
    /// One part in this many of the arena waits, unmapped, to be touched again or freed.
    standby_share: usize = 16, off usize::MAX;
    /// Memory is divided between the lists of files as folios of at least so many pages are used: 64 KiB.
    division_pages: u64 = 16, off u64::MAX;
    /// How much of the arena the active list may have, in percent.
    active_percent: usize = 60, off 0;
    /// A handler looks for new faults after so many reads that it completed. A look costs a system call, and
    /// submitting early a notification of the device; too few of them and the device runs dry meanwhile.
    /// Between 3 and 8 random reads are about equally fast, a seventh faster than with none.
    reads_between_looks: usize = 6, off usize::MAX;
    /// A handler is overloaded while it works for more than so many percent of its time.
    overload_percent: u64 = 75, off 100;
    /// If so many reads of the swap file end together, or more, an overloaded handler gives half of them to
    /// another one.
    shared_reads: usize = 4, off usize::MAX;
    /// Runs of so many pages at most are copied into a window, longer ones moved. A copy costs as much as the
    /// MOVE of one page, but no TLB shootdown. For spaces of the host, as the next two.
    copy_max_pages: usize = 2, off 0;
    /// Homes of copied pages that are emptied together, with one TLB shootdown.
    empty_batch: usize = 32, off 1;
    /// Empty homes that are filled together when a single frame is wanted and none has memory.
    fill_at_once: usize = 4, off 1;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn improvements_are_switched_off_by_name() {
        assert_eq!(Ablation::without(""), Ok(Ablation::default()));
        let off = Ablation::without("given_way, huge_folios").unwrap();
        assert_eq!(off, Ablation { given_way: false, huge_folios: false, ..Ablation::default() });
        // Each name is that of one switch or constant, and none has two.
        let all = Ablation::names();
        let alone: Vec<_> = all.iter().map(|name| Ablation::without(name).unwrap()).collect();
        for (nth, off) in alone.iter().enumerate() {
            assert!(*off != Ablation::default() && !alone[..nth].contains(off), "{}", all[nth]);
            assert_eq!(off.off(), [all[nth]]);
        }
        let other = Ablation::without("pool_percent=12, given_way").unwrap();
        assert_eq!((other.tuning.pool_percent, other.given_way), (12, false));
        assert_eq!(other.off(), ["given_way", "pool_percent=12"]);
        assert!(Ablation::without("pool_percent=much").unwrap_err().contains("much"));
        assert!(Ablation::without("given_way=1").unwrap_err().contains("given_way"));
        let error = Ablation::without("vma_locks,vma_lock").unwrap_err();
        assert!(error.contains("\"vma_lock\"") && error.contains("given_way"), "{error}");
        assert!(error.contains("standby_share"), "{error}");
    }
}
