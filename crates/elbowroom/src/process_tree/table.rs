//! The table: its words, its rows, its lock.

use super::choice::Share;
use super::ended;
use super::ended::LargestProcesses;
use super::gauges::ProcessGauges;
use super::groups::{GroupTable, GroupUse};
use super::view::{ProcessUse, TreeLimits};
use crate::pause::{Cause, pause};
use elbowroom_machine::{
    Errno, PAGE_SIZE, SharedWords, boot_time, pid_namespace, process_exists, process_started,
};
use elbowroom_sync::Mutant;
use elbowroom_sync::atomic::{AtomicU64, Ordering};
use elbowroom_sync::time::{Duration, Instant};
use std::fs::File;

/// In tests of the tests: the row of a process that is gone is not freed.
const MUTANT_COUNT_THE_DEAD: Mutant = Mutant::new("count_the_dead");

/// The first word of the table. Another layout of the table has another value.
const MAGIC: u64 = u64::from_le_bytes(*b"elbowrm3");
/// How many rows there are: at most so many processes at a time are counted.
const ROWS: usize = if cfg!(shuttle) { 4 } else { 4096 };
const HEAD_WORDS: usize = 160;
/// Six cache lines.
pub(super) const ROW_WORDS: usize = 48;

/// How many groups of all processes together are shown.
pub(super) const GROUP_ROWS: usize = if cfg!(shuttle) { 4 } else { 1024 };
/// The words of the table.
const TABLE_WORDS: usize = HEAD_WORDS + ROWS * ROW_WORDS + GROUP_ROWS * group::WORDS;

/// After this time the lock is taken from its owner, which may have been stopped.
pub(super) const LOCK_BOUND: Duration = Duration::from_millis(500);
/// A thread that has waited for the lock for this long looks whether its owner still exists.
const OWNER_LOOK: Duration = Duration::from_millis(5);
/// A process that has not given the pages asked of it within this time is asked for no more: another one
/// is.
const ANSWER_BOUND: Duration = Duration::from_millis(100);

/// Words of the head.
pub(super) mod head {
    pub(in crate::process_tree) const MAGIC: usize = 0;
    /// Pages that all processes may have.
    pub(in crate::process_tree) const MAX: usize = 1;
    /// Pages that one process may have.
    pub(in crate::process_tree) const EACH: usize = 2;
    /// Pages that may be in swap.
    pub(in crate::process_tree) const SWAP_MAX: usize = 3;
    /// Pages that can be taken: a guess, for threads that read it without the lock.
    pub(in crate::process_tree) const ROOM: usize = 4;
    /// The lock: 0 if it is free, else the number of its owner's turn.
    pub(in crate::process_tree) const LOCK: usize = 5;
    /// All rows in use have smaller numbers than this.
    pub(in crate::process_tree) const ROWS_USED: usize = 6;
    /// When dead processes were looked for last, in nanoseconds since the boot.
    pub(in crate::process_tree) const LOOKED: usize = 7;
    /// When the run began, in nanoseconds since the boot.
    pub(in crate::process_tree) const BEGAN: usize = 8;
    /// The most pages that all processes had at a time.
    pub(in crate::process_tree) const PEAK: usize = 9;
    /// How many processes have entered.
    pub(in crate::process_tree) const PROCESSES: usize = 10;
    /// The largest value that [`MAX`] has had.
    pub(in crate::process_tree) const MAX_SO_FAR: usize = 11;
    /// The pid namespace in which the ids of the processes are valid: its inode number.
    pub(in crate::process_tree) const NAMESPACE: usize = 12;
    /// All rows of groups in use have smaller numbers than this.
    pub(in crate::process_tree) const GROUPS_USED: usize = 13;
    /// What processes that have ended had counted: [`ProcessUse::WORDS`](super::ProcessUse::WORDS) words.
    pub(in crate::process_tree) const ENDED: usize = 16;
    /// The largest processes that have ended: [`LargestProcesses`](super::LargestProcesses).
    pub(in crate::process_tree) const LARGEST: usize = 64;
}

/// Words of a row.
pub(super) mod row {
    /// The process's id; 0: the row is free.
    pub(in crate::process_tree) const OWNER: usize = 0;
    /// When the process entered, in nanoseconds since the boot.
    pub(in crate::process_tree) const SINCE: usize = 1;
    /// Pages that the process has.
    pub(in crate::process_tree) const HAS: usize = 2;
    /// Pages that it has in swap.
    pub(in crate::process_tree) const SWAP: usize = 3;
    /// Pages that others have asked of the process, and that it has not given yet.
    pub(in crate::process_tree) const ASKED: usize = 4;
    /// When the process was asked first, or gave pages last, in nanoseconds since the boot.
    pub(in crate::process_tree) const ASKED_AT: usize = 5;
    /// The bell of its supplier: 1 once it has rung.
    pub(in crate::process_tree) const BELL: usize = 6;
    /// [`super::super::choice::Share::cost`].
    pub(in crate::process_tree) const COST: usize = 7;
    /// Pages of the process that other processes do not get.
    pub(in crate::process_tree) const LOW: usize = 8;
    /// Its name, in two words.
    pub(in crate::process_tree) const NAME: usize = 9;
    /// The most pages that it had at a time.
    pub(in crate::process_tree) const PEAK: usize = 11;
    /// [`super::super::choice::Share::keeps`].
    pub(in crate::process_tree) const KEEPS: usize = 12;
    /// What the process has counted: [`ProcessUse::WORDS`](super::ProcessUse::WORDS) words.
    pub(in crate::process_tree) const USE: usize = 13;
    /// When the process wrote that, in nanoseconds since the boot.
    pub(in crate::process_tree) const NOTED: usize = 20;
    /// What the process shows of itself: [`ProcessGauges::WORDS`](super::ProcessGauges::WORDS) words.
    pub(in crate::process_tree) const GAUGES: usize = 21;
    /// 1: the process is asked to note its groups, and to look for requests.
    pub(in crate::process_tree) const GROUPS_ASKED: usize = 41;
    /// 1: the process ends, and looks at the table no more.
    pub(in crate::process_tree) const ENDS: usize = 42;
}

/// Words of a group's row: [`GroupTable`].
pub(super) mod group {
    /// How many there are: six cache lines.
    pub(in crate::process_tree) const WORDS: usize = 48;
    /// The process's id in the upper half, the number of its row and 1 in the lower; 0: the row is free.
    pub(in crate::process_tree) const OWNER: usize = 0;
    /// What the process knows the group by.
    pub(in crate::process_tree) const KEY: usize = 1;
    /// The name, in 16 words.
    pub(in crate::process_tree) const NAME: usize = 2;
    /// When the figures were written, in nanoseconds since the boot.
    pub(in crate::process_tree) const NOTED: usize = 18;
    /// The figures.
    pub(in crate::process_tree) const FIGURES: usize = 19;
    /// The id of the process that requests something; 0: none does.
    pub(in crate::process_tree) const CLAIM: usize = 40;
    /// When it was requested, in nanoseconds since the boot, times 4, and the state of the request. So no two
    /// requests have the same word.
    pub(in crate::process_tree) const STATE: usize = 41;
    /// The kind of the request, and its number of bytes.
    pub(in crate::process_tree) const WHAT: usize = 42;
    pub(in crate::process_tree) const BYTES: usize = 43;
    /// By how many bytes the group uses less since the request was begun.
    pub(in crate::process_tree) const FREED: usize = 44;
    /// What came of it: an errno value, or 0.
    pub(in crate::process_tree) const RESULT: usize = 45;
    /// What the group used when the request was begun, in bytes, and 1; 0: it was not begun.
    pub(in crate::process_tree) const BEGAN: usize = 46;
    /// Of which owner's group it is requested: the row may have got another owner meanwhile.
    pub(in crate::process_tree) const FOR: usize = 47;
}

// What has several words has room for them.
const _: () = assert!(head::ENDED + ProcessUse::WORDS <= head::LARGEST);
const _: () = assert!(head::LARGEST + ended::PLACES * ended::WORDS <= HEAD_WORDS);
const _: () = assert!(row::GAUGES + ProcessGauges::WORDS <= row::GROUPS_ASKED);
const _: () = assert!(group::FIGURES + GroupUse::WORDS <= group::CLAIM);

/// The table of a run.
pub struct ProcessTree {
    words: SharedWords,
}

impl ProcessTree {
    /// The size of the table's file, in bytes. All of it has memory: on a full tmpfs a store to a page
    /// without memory would end the process.
    pub const BYTES: u64 = (TABLE_WORDS * 8) as u64;

    /// Makes the table of a new run in an empty file.
    ///
    /// # Errors
    /// The kernel's.
    pub fn create(file: &File, limits: &TreeLimits) -> std::io::Result<Self> {
        if !cfg!(shuttle) {
            file.set_len(Self::BYTES)?;
        }
        let tree = Self { words: SharedWords::map(file, TABLE_WORDS)? };
        tree.head(head::BEGAN).store(boot_time(), Ordering::Relaxed);
        tree.head(head::SWAP_MAX).store(limits.swap_max / PAGE_SIZE as u64, Ordering::Relaxed);
        let each = limits.each.map_or(u64::MAX, |bytes| bytes / PAGE_SIZE as u64);
        tree.head(head::EACH).store(each, Ordering::Relaxed);
        tree.head(head::NAMESPACE).store(pid_namespace(), Ordering::Relaxed);
        tree.set_max(limits.max);
        tree.head(head::MAGIC).store(MAGIC, Ordering::Release);
        Ok(tree)
    }

    /// Maps the table of a file.
    ///
    /// # Errors
    /// The kernel's. EINVAL: the file has no table of this version.
    pub fn open(file: &File) -> Result<Self, Errno> {
        let tree = Self { words: SharedWords::map(file, TABLE_WORDS)? };
        let is_ours = tree.head(head::MAGIC).load(Ordering::Acquire) == MAGIC;
        if is_ours { Ok(tree) } else { Err(Errno::INVAL) }
    }

    pub(super) fn head(&self, word: usize) -> &AtomicU64 {
        self.words.word(word)
    }

    pub(super) fn row(&self, row: usize, word: usize) -> &AtomicU64 {
        self.words.word(number(row, word))
    }

    pub(super) fn group(&self, at: usize, word: usize) -> &AtomicU64 {
        self.words.word(HEAD_WORDS + ROWS * ROW_WORDS + at * group::WORDS + word)
    }

    /// How many pages all processes together may have.
    pub(super) fn max(&self) -> usize {
        self.head(head::MAX).load(Ordering::Relaxed) as usize
    }

    /// How many pages one process may have.
    pub(super) fn each(&self) -> usize {
        self.head(head::EACH).load(Ordering::Relaxed) as usize
    }

    /// Changes how many bytes all processes together may have. If they have more, each gives its part back:
    /// they give most of it within a second.
    pub fn set_max(&self, bytes: u64) {
        let pages = bytes / PAGE_SIZE as u64;
        self.head(head::MAX_SO_FAR).fetch_max(pages, Ordering::Relaxed);
        self.head(head::MAX).store(pages, Ordering::Relaxed);
        self.publish(self.used());
        self.ring_all();
    }

    /// Protects so many bytes of a process: others get none of them. `false`: there is no such process.
    pub fn set_low(&self, pid: u32, bytes: u64) -> bool {
        let row = self.rows().find(|row| self.owner(*row) == pid);
        if let Some(row) = row {
            self.row(row, row::LOW).store(bytes / PAGE_SIZE as u64, Ordering::Relaxed);
            // The process may have to give pages now that were protected.
            self.ring_surely(row);
        }
        row.is_some()
    }

    /// Asks a process to give so many bytes back, protected bytes too; it gives what it can free. `false`:
    /// there is no such process.
    pub fn reclaim(&self, pid: u32, bytes: u64) -> bool {
        let row = self.rows().find(|row| self.owner(*row) == pid);
        if let Some(row) = row {
            self.ask_row(row, bytes as usize / PAGE_SIZE);
        }
        row.is_some()
    }

    /// The numbers of rows that may be in use.
    pub(super) fn rows(&self) -> std::ops::Range<usize> {
        0..(self.head(head::ROWS_USED).load(Ordering::Acquire) as usize).min(ROWS)
    }

    /// The id of a row's process; 0: the row is free.
    pub(super) fn owner(&self, row: usize) -> u32 {
        self.row(row, row::OWNER).load(Ordering::Acquire) as u32
    }

    /// The pages of a row's process. The figure is capped at the largest `max` of the run, since a row with
    /// more is wrong. It may be above the present `max`, which may have been made smaller.
    pub(super) fn has(&self, row: usize) -> usize {
        let most = self.head(head::MAX_SO_FAR).load(Ordering::Relaxed) as usize;
        match self.owner(row) {
            0 => 0,
            _ => (self.row(row, row::HAS).load(Ordering::Relaxed) as usize).min(most),
        }
    }

    /// The pages that all processes have.
    pub(super) fn used(&self) -> usize {
        self.rows().map(|row| self.has(row)).sum()
    }

    /// Whether all processes together have no more than they may. Exact, since it takes the lock. `turn`: a
    /// number for the turn of the lock, not 0, which no other thread of any process uses or has used: the
    /// process's id in the upper 32 bits, a count in the lower ones.
    pub fn is_within_limits(&self, turn: u64) -> bool {
        let lock = self.lock(turn);
        let fits = self.used() <= self.max();
        drop(lock);
        fits
    }

    /// How many pages may be in swap.
    pub(super) fn swap_max(&self) -> usize {
        self.head(head::SWAP_MAX).load(Ordering::Relaxed) as usize
    }

    /// The pages that all processes have in swap.
    pub(super) fn swap_used(&self) -> usize {
        let swap = |row| (self.row(row, row::SWAP).load(Ordering::Relaxed) as usize).min(self.swap_max());
        self.rows().filter(|row| self.owner(*row) != 0).map(swap).sum()
    }

    /// How many pages of the budget are left. A guess: nothing is locked.
    pub(super) fn room(&self) -> usize {
        self.head(head::ROOM).load(Ordering::Relaxed) as usize
    }

    /// Publishes how many pages of the budget are left, and the peak. `used`: the pages that all processes
    /// have.
    pub(super) fn publish(&self, used: usize) {
        let room = self.max().saturating_sub(used);
        self.head(head::ROOM).store(room as u64, Ordering::Relaxed);
        self.head(head::PEAK).fetch_max(used as u64, Ordering::Relaxed);
    }

    /// The figures of a row's process, for [`super::choice`].
    pub(super) fn share(&self, row: usize) -> Share {
        let word = |word| self.row(row, word).load(Ordering::Relaxed);
        let since = Duration::from_nanos(boot_time().saturating_sub(word(row::ASKED_AT)));
        Share {
            has: self.has(row),
            keeps: word(row::KEEPS).min(self.max() as u64) as usize,
            low: word(row::LOW) as usize,
            cost: word(row::COST).min(1 << 32),
            is_silent: word(row::ASKED) > 0 && since > ANSWER_BOUND,
        }
    }

    /// Asks the process of a row for pages.
    pub(super) fn ask_row(&self, row: usize, pages: usize) {
        if self.row(row, row::ASKED).fetch_add(pages as u64, Ordering::AcqRel) == 0 {
            self.row(row, row::ASKED_AT).store(boot_time(), Ordering::Relaxed);
        }
        self.ring_surely(row);
    }

    /// Wakes the supplier of a row's process, unless a ring seems to be pending.
    pub(super) fn ring(&self, row: usize) {
        let bell = self.row(row, row::BELL);
        // The load comes first, so that threads that ring again and again write to no shared cache line.
        if bell.load(Ordering::Relaxed) == 0 {
            self.ring_surely(row);
        }
    }

    /// Wakes the supplier of a row's process, for callers that have changed something that it must see. A
    /// ring that seems to be pending may have been answered before the change, so the bell is always
    /// written.
    pub(super) fn ring_surely(&self, row: usize) {
        if self.row(row, row::BELL).swap(1, Ordering::AcqRel) == 0 {
            self.words.wake(number(row, row::BELL));
        }
    }

    /// Notes that a process has given so many pages: others want so many fewer of it.
    pub(super) fn note_given(&self, row: usize, pages: usize) {
        let less = |asked: u64| (asked > 0).then(|| asked.saturating_sub(pages as u64));
        let asked = self.row(row, row::ASKED).fetch_update(Ordering::AcqRel, Ordering::Relaxed, less);
        if asked.is_ok() {
            self.row(row, row::ASKED_AT).store(boot_time(), Ordering::Relaxed);
        }
    }

    /// Wakes the suppliers of all processes.
    pub(super) fn ring_all(&self) {
        self.rows().filter(|row| self.owner(*row) != 0).for_each(|row| self.ring_surely(row));
    }

    /// Sleeps until the bell of a row has rung, or for `bound`.
    pub(super) fn sleep(&self, row: usize, bound: Duration) {
        if self.row(row, row::BELL).load(Ordering::Acquire) == 0 {
            self.words.wait(number(row, row::BELL), 0, bound);
        }
        self.row(row, row::BELL).swap(0, Ordering::AcqRel);
    }

    /// Takes the lock of the table. `turn`: a number that no other process and no other turn of this
    /// process has; its upper 32 bits are the process's id.
    pub(super) fn lock(&self, turn: u64) -> TreeLock<'_> {
        let word = self.head(head::LOCK);
        let take = |from| word.compare_exchange(from, turn, Ordering::Acquire, Ordering::Relaxed);
        let mut since = None::<Instant>;
        while let Err(owner) = take(0) {
            // The time since this thread began to wait counts, even if the lock has had several owners
            // since.
            let waited = since.get_or_insert_with(Instant::now).elapsed();
            let is_gone = || waited > OWNER_LOOK && !process_exists((owner >> 32) as u32);
            if (waited > LOCK_BOUND || is_gone()) && take(owner).is_ok() {
                break;
            }
            pause(Cause::Contended, Duration::from_micros(50));
        }
        TreeLock { word, turn }
    }

    /// Takes a free row for a process. `None`: no row is free.
    pub(super) fn enter(&self, pid: u32, name: [u64; 2]) -> Option<usize> {
        let free = |row: &usize| {
            let owner = self.row(*row, row::OWNER);
            owner.load(Ordering::Relaxed) == 0
                && owner.compare_exchange(0, u64::from(pid), Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let row = (0..ROWS).find(free)?;
        self.row(row, row::SINCE).store(boot_time(), Ordering::Relaxed);
        self.row(row, row::NAME).store(name[0], Ordering::Relaxed);
        self.row(row, row::NAME + 1).store(name[1], Ordering::Relaxed);
        self.head(head::ROWS_USED).fetch_max(row as u64 + 1, Ordering::AcqRel);
        self.head(head::PROCESSES).fetch_add(1, Ordering::Relaxed);
        Some(row)
    }

    /// Frees a row, and adds what its process has counted to the sum of the processes that have ended. The
    /// caller has the lock. If it is killed in the middle, the row still has its owner, and the next
    /// process that looks for dead ones does the rest.
    pub(super) fn clear(&self, row: usize, pid: u32) {
        if self.owner(row) != pid {
            return;
        }
        GroupTable::of(self).clear(row, pid);
        self.empty(row);
        let owner = self.row(row, row::OWNER);
        let _ = owner.compare_exchange(u64::from(pid), 0, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Empties the row of a process that has executed a program, and so has no memory yet. The caller has
    /// the lock.
    pub(super) fn begin_again(&self, row: usize, name: [u64; 2]) {
        GroupTable::of(self).clear(row, self.owner(row));
        self.empty(row);
        self.row(row, row::NAME).store(name[0], Ordering::Relaxed);
        self.row(row, row::NAME + 1).store(name[1], Ordering::Relaxed);
        self.row(row, row::SINCE).store(boot_time(), Ordering::Relaxed);
        self.publish(self.used());
    }

    /// Empties all words of a row but its owner. What the process has counted goes to the sum of the ended
    /// ones, and the process to the list of the largest ones.
    fn empty(&self, row: usize) {
        LargestProcesses::note_ended(self, row);
        for word in 0..ProcessUse::WORDS {
            let counted = self.row(row, row::USE + word).swap(0, Ordering::Relaxed);
            self.head(head::ENDED + word).fetch_add(counted, Ordering::Relaxed);
        }
        // The start time last: a row with an owner and no start time is left alone, even if its process was
        // killed in the middle of this.
        for word in (row::SINCE + 1..row::USE).chain(row::NOTED..ROW_WORDS).chain([row::SINCE]) {
            self.row(row, word).store(0, Ordering::Relaxed);
        }
    }

    /// Frees the rows of processes that are gone. Does nothing in another pid namespace, from which they
    /// cannot be seen. `turn`: a number for the turn of the lock, as for [`ProcessTree::is_within_limits`].
    /// Allocates nothing.
    pub fn free_the_dead(&self, turn: u64) {
        if self.is_of_another_namespace() || MUTANT_COUNT_THE_DEAD.planted() {
            return;
        }
        for row in self.rows() {
            let (pid, since) = (self.owner(row), self.row(row, row::SINCE).load(Ordering::Relaxed));
            if pid != 0 && u64::from(pid) != turn >> 32 && !is_there(pid, since) {
                let lock = self.lock(turn);
                self.clear(row, pid);
                self.publish(self.used());
                drop(lock);
            }
        }
    }

    /// Whether the run's process ids are of another pid namespace than that of this process.
    pub(super) fn is_of_another_namespace(&self) -> bool {
        self.head(head::NAMESPACE).load(Ordering::Relaxed) != pid_namespace()
    }

    /// Whether any process of the run lives. `true`, too, in another pid namespace, from which they cannot
    /// be seen. Rows are looked at one after the other, so processes may come and go meanwhile.
    pub fn is_in_use(&self) -> bool {
        if self.is_of_another_namespace() {
            return true;
        }
        let mut since = self.rows().map(|row| (self.owner(row), self.row(row, row::SINCE)));
        since.any(|(pid, since)| pid != 0 && is_there(pid, since.load(Ordering::Relaxed)))
    }

    /// Whether a process of the run other than `own` exists, if only as a zombie, that is about to end or, if
    /// not `ends`, that was killed or still has to look whether it is the last one. Allocates nothing.
    pub(super) fn other_exists(&self, own: u32, ends: bool) -> bool {
        let at_end = |row: &usize| self.row(*row, row::ENDS).load(Ordering::SeqCst) != 0;
        self.rows().filter(|row| at_end(row) == ends).any(|row| {
            let pid = self.owner(row);
            pid != 0 && pid != own && process_exists(pid)
        })
    }

    /// Writes into a row what its process shows of itself.
    pub(super) fn note_gauges(&self, row: usize, gauges: &ProcessGauges) {
        for (at, value) in gauges.words().into_iter().enumerate() {
            self.row(row, row::GAUGES + at).store(value, Ordering::Relaxed);
        }
    }

    /// Writes into a row what its process has counted so far.
    pub(super) fn note_use(&self, row: usize, used: &ProcessUse) {
        for (at, value) in used.words().into_iter().enumerate() {
            self.row(row, row::USE + at).store(value, Ordering::Relaxed);
        }
        self.row(row, row::NOTED).store(boot_time(), Ordering::Relaxed);
    }
}

/// The index in the table of a row's word.
fn number(row: usize, word: usize) -> usize {
    HEAD_WORDS + row * ROW_WORDS + word
}

/// Whether the process that had this id at `since` still lives, and is not a zombie. A process that has
/// started later has got the id anew. 0 for `since`: the process is taking its row just now, or was killed
/// while it did, which is certain only if no process has the id.
fn is_there(pid: u32, since: u64) -> bool {
    match since {
        0 => process_exists(pid),
        since => process_started(pid).is_some_and(|started| started <= since),
    }
}

/// The table's lock. It is released when this is dropped.
pub(super) struct TreeLock<'a> {
    word: &'a AtomicU64,
    turn: u64,
}

impl Drop for TreeLock<'_> {
    fn drop(&mut self) {
        // Another process may have taken the lock from this one: then it is not released.
        let _ = self.word.compare_exchange(self.turn, 0, Ordering::Release, Ordering::Relaxed);
    }
}
