//! A process of a run, and the part of the budget that it has.

use super::choice::{self, KEPT, LEAST};
use super::gauges::ProcessGauges;
use super::groups::{OwnGroups, ShownGroups};
use super::table::{ProcessTree, TreeLock, head, row};
use super::view::{ProcessUse, RunTotals};
use crate::pause::{Cause, pause};
use elbowroom_machine::{boot_time, own_name, own_pid, shared_anonymous_pages};
use elbowroom_sync::Arc;
use elbowroom_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use elbowroom_sync::time::Duration;

/// A process asks others for pages at most this often.
const ASK_PAUSE: Duration = Duration::from_millis(2);
/// Dead processes are looked for at most this often.
const LOOK_FOR_DEAD: Duration = Duration::from_millis(50);
/// A process without a row has no bell: its supplier looks this often whether it has work.
const NO_BELL: Duration = Duration::from_millis(1);
/// A process without a row may have at most the budget divided by this.
const PART_WITHOUT: usize = 16;
/// The shortest and the longest pause between two counts of the pages that other processes share.
const LOOK_AT_SHARED: Duration = Duration::from_millis(100);
const LOOK_SELDOM: Duration = Duration::from_secs(2);
/// In place of a row's number: the process has no row.
const NO_ROW: usize = usize::MAX;

/// This process as a member of a run, with its row of the table.
///
/// The counts of the member decide what the process has; its row is a copy for the other processes.
pub struct Member {
    tree: Arc<ProcessTree>,
    row: AtomicUsize,
    pid: AtomicU32,
    name: [u64; 2],
    has: AtomicUsize,
    /// The most pages that it had at a time.
    peak: AtomicUsize,
    /// Pages of `has` that were given up for metadata: what describes other pages. Their number never
    /// shrinks.
    paid: AtomicUsize,
    /// Pages that it has taken of the run's swap.
    swap: AtomicUsize,
    /// The process has left the run, or executes a program.
    left: AtomicBool,
    /// How many numbers this process has given to turns of the lock ([`Member::turn`]).
    turns: AtomicU32,
    /// The process is in another pid namespace than the run: it cannot see whether the other processes
    /// live.
    is_apart: AtomicBool,
    /// A parent or a child by fork may share some of its pages.
    shares: AtomicBool,
    /// How many of its pages do not count as its own because forked processes share them: each process
    /// counts its proportional share of a page.
    shared: AtomicUsize,
    noted: Noted,
    /// The groups that it shows.
    groups: ShownGroups,
}

/// Figures of earlier events. Times are in nanoseconds since the boot.
#[derive(Default)]
struct Noted {
    /// When another process was asked for pages last.
    asked_at: AtomicU64,
    /// How many refaults and swap-ins there had been when the cost was noted last, and when that was.
    refaults: AtomicU64,
    cost_at: AtomicU64,
    /// When the shared pages are to be counted next, and the pause before that.
    look_at: AtomicU64,
    look_pause: AtomicU64,
    /// What the parent had counted when it forked this process: not counted again.
    base: [AtomicU64; ProcessUse::WORDS],
}

/// The other processes of a run, as one that ends sees them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Others {
    /// There are none.
    None,
    /// All are about to end.
    End,
    /// Some live, or were killed, or cannot be seen from this pid namespace.
    Live,
}

impl Member {
    /// Enters the run.
    pub fn enter(tree: Arc<ProcessTree>) -> Self {
        let member = Self::without_row(tree);
        member.take_row();
        member
    }

    /// Enters the run at the start of a program. The process keeps the row that it had before it executed the
    /// program.
    pub fn enter_program(tree: Arc<ProcessTree>) -> Self {
        let member = Self::without_row(tree);
        let pid = member.pid.load(Ordering::Relaxed);
        let is_apart = member.is_apart.load(Ordering::Relaxed);
        let before = member.tree.rows().find(|row| !is_apart && member.tree.owner(*row) == pid);
        match before {
            Some(row) => {
                let lock = member.lock();
                member.tree.begin_again(row, member.name);
                drop(lock);
                member.row.store(row, Ordering::Release);
            }
            None => member.take_row(),
        }
        member
    }

    fn without_row(tree: Arc<ProcessTree>) -> Self {
        let member = Self {
            tree,
            row: AtomicUsize::new(NO_ROW),
            pid: AtomicU32::new(own_pid()),
            name: own_name(),
            has: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
            paid: AtomicUsize::new(0),
            swap: AtomicUsize::new(0),
            left: AtomicBool::new(false),
            turns: AtomicU32::new(0),
            is_apart: AtomicBool::new(false),
            shares: AtomicBool::new(false),
            shared: AtomicUsize::new(0),
            noted: Noted { cost_at: AtomicU64::new(boot_time()), ..Noted::default() },
            groups: ShownGroups::default(),
        };
        member.is_apart.store(member.tree.is_of_another_namespace(), Ordering::Relaxed);
        member
    }

    /// The table of the run.
    pub fn tree(&self) -> &ProcessTree {
        &self.tree
    }

    fn take_row(&self) {
        let (before, pid) = (self.row.load(Ordering::Acquire), self.pid.load(Ordering::Relaxed));
        let row = self.tree.enter(pid, self.name).unwrap_or(NO_ROW);
        let taken = self.row.compare_exchange(before, row, Ordering::AcqRel, Ordering::Acquire);
        if taken.is_err() && row != NO_ROW {
            // Another thread has taken a row at the same time: free the row that this thread took.
            let lock = self.lock();
            self.tree.clear(row, pid);
            drop(lock);
        }
    }

    /// In a forked child, on its only thread: the child takes a row of its own, and counts none of its
    /// parent's pages until [`Member::charge_copy`].
    pub fn become_child(&self) {
        self.pid.store(own_pid(), Ordering::Relaxed);
        self.row.store(NO_ROW, Ordering::Relaxed);
        self.peak.store(0, Ordering::Relaxed);
        self.left.store(false, Ordering::Relaxed);
        // Pages in swap at the fork count as the parent's.
        self.swap.store(0, Ordering::Relaxed);
        self.shared.store(0, Ordering::Relaxed);
        self.is_apart.store(self.tree.is_of_another_namespace(), Ordering::Relaxed);
        self.take_row();
    }

    /// In a forked child that goes on with a copy of its parent's manager: the child now has its parent's
    /// pages, less the part of the pages that both still share. What the parent had counted, `used`, is not
    /// counted again.
    pub fn charge_copy(&self, used: &ProcessUse) {
        self.noted.base.iter().zip(used.words()).for_each(|(base, word)| base.store(word, Ordering::Relaxed));
        self.shares();
        self.count_shared();
    }

    /// From now on a forked process may share pages with this one, so they are to be counted
    /// (`count_shared`).
    pub fn shares(&self) {
        self.noted.look_at.store(0, Ordering::Relaxed);
        self.noted.look_pause.store(0, Ordering::Relaxed);
        self.shares.store(true, Ordering::Release);
    }

    /// Counts the pages that other processes share, if there may be some and the count is due. It is
    /// repeated since a store to a page ends its sharing without any process being told. `None`: nothing is
    /// shared. Else the time until the next count: at least [`LOOK_AT_SHARED`], and a hundred times what a
    /// count takes; twice as long after each count that found no change, up to [`LOOK_SELDOM`].
    pub(crate) fn count_shared(&self) -> Option<Duration> {
        if !self.shares.load(Ordering::Acquire) {
            return None;
        }
        let (now, due) = (boot_time(), self.noted.look_at.load(Ordering::Relaxed));
        if now < due {
            return Some(Duration::from_nanos(due - now));
        }
        let shared = shared_anonymous_pages();
        let before = self.shared.swap(shared, Ordering::Relaxed);
        // Fewer shared pages than this are not worth counting: any process shares some, of its stack and
        // its loader.
        if shared < LEAST {
            self.shares.store(false, Ordering::Release);
        }
        self.charge(0);
        let took = Duration::from_nanos(boot_time().saturating_sub(now));
        let is_same = before.abs_diff(shared) <= before / 64;
        let last = Duration::from_nanos(self.noted.look_pause.load(Ordering::Relaxed));
        let pause = if is_same { (2 * last).min(LOOK_SELDOM) } else { LOOK_AT_SHARED };
        let pause = pause.max(LOOK_AT_SHARED).max(100 * took);
        self.noted.look_pause.store(pause.as_nanos() as u64, Ordering::Relaxed);
        self.noted.look_at.store(now + pause.as_nanos() as u64, Ordering::Relaxed);
        Some(pause)
    }

    /// Sets all counts of the process to 0: its manager is gone, or it is a forked child that does not go
    /// on with the copy.
    pub fn give_all(&self) {
        let row = self.own_row();
        let lock = self.lock();
        let all = [&self.has, &self.swap, &self.paid, &self.shared];
        all.iter().for_each(|count| count.store(0, Ordering::Relaxed));
        self.shares.store(false, Ordering::Relaxed);
        self.tell(row);
        drop(lock);
    }

    /// The row of this process. It takes a new one if the others have taken it for dead and freed its row.
    /// `None`: it has left, or no row is free, and what it has is not counted.
    fn own_row(&self) -> Option<usize> {
        if self.left.load(Ordering::Acquire) {
            return None;
        }
        let row = self.row.load(Ordering::Acquire);
        let pid = self.pid.load(Ordering::Relaxed);
        if row != NO_ROW && self.tree.owner(row) == pid {
            return Some(row);
        }
        self.take_row();
        let row = Some(self.row.load(Ordering::Acquire)).filter(|row| *row != NO_ROW);
        self.write(row);
        row
    }

    fn lock(&self) -> TreeLock<'_> {
        self.tree.lock(self.turn())
    }

    /// A number for the next turn of the lock: the process's id, and a count.
    fn turn(&self) -> u64 {
        let turn = self.turns.fetch_add(1, Ordering::Relaxed);
        u64::from(self.pid.load(Ordering::Relaxed)) << 32 | u64::from(turn)
    }

    /// Writes the row, and publishes how many pages can be taken. The caller has the lock.
    fn tell(&self, row: Option<usize>) {
        self.write(row);
        self.tree.publish(self.tree.used());
    }

    /// Copies the counts of this process into its row.
    fn write(&self, row: Option<usize>) {
        // If the process left while this thread waited for the lock, the row is empty, or another
        // process's.
        let Some(row) = row.filter(|_| !self.left.load(Ordering::Acquire)) else { return };
        let has = self.has().saturating_sub(self.shared.load(Ordering::Relaxed));
        let peak = self.peak.fetch_max(has, Ordering::Relaxed).max(has);
        let words = [
            (row::HAS, has),
            (row::PEAK, peak),
            (row::KEEPS, self.keeps()),
            (row::SWAP, self.swap.load(Ordering::Relaxed)),
        ];
        for (word, value) in words {
            self.tree.row(row, word).store(value as u64, Ordering::Relaxed);
        }
    }

    /// Pages that this process has.
    pub fn has(&self) -> usize {
        self.has.load(Ordering::Relaxed)
    }

    /// The most pages that this process had at a time.
    pub(crate) fn peak(&self) -> usize {
        self.peak.load(Ordering::Relaxed)
    }

    /// Pages that the process keeps whatever others want: those given up for metadata, and frames with
    /// which it can serve faults.
    pub(crate) fn keeps(&self) -> usize {
        KEPT + self.paid.load(Ordering::Relaxed)
    }

    /// Notes that so many more of its pages are given up for metadata.
    pub(crate) fn note_paid(&self, pages: usize) {
        self.paid.fetch_add(pages, Ordering::Relaxed);
    }

    /// Whether enough pages can be taken to be worth it. A guess: nothing is locked.
    pub(crate) fn has_room(&self) -> bool {
        self.room() >= LEAST
    }

    /// Pages that this process can take: what the tree has left, within the limit of one process. A guess.
    pub(crate) fn room(&self) -> usize {
        let most = self.tree.each().min(self.tree.max());
        self.tree.room().min(most.saturating_sub(self.has()))
    }

    /// Takes so many pages from the tree. `false`, and none are taken: the tree, or the limit of one
    /// process, has not so many left.
    pub fn take(&self, pages: usize) -> bool {
        let row = self.own_row();
        let lock = self.lock();
        let (used, own) = (self.tree.used(), self.has());
        let each = match row {
            Some(_) => self.tree.each(),
            // The other processes do not see the pages of a process without a row, so its limit is small.
            None => self.tree.max() / PART_WITHOUT,
        };
        // Pages that it shares now may all become its own later: even then it is to have no more than the
        // budget.
        let most = self.tree.max();
        let fits = used + pages <= most && own + pages <= each.min(most);
        if fits {
            self.has.fetch_add(pages, Ordering::Relaxed);
        }
        self.tell(row);
        drop(lock);
        fits
    }

    /// Takes so many pages even if the tree has not so many left. Then the suppliers of all processes are
    /// woken, to give their parts back.
    pub fn charge(&self, pages: usize) {
        let row = self.own_row();
        let lock = self.lock();
        self.has.fetch_add(pages, Ordering::Relaxed);
        self.tell(row);
        let is_over = self.tree.used() > self.tree.max();
        drop(lock);
        if is_over {
            self.tree.ring_all();
        }
    }

    /// Gives so many pages back to the tree. The kernel has their memory already.
    pub fn give(&self, pages: usize) {
        if pages == 0 {
            return;
        }
        let row = self.own_row();
        let lock = self.lock();
        let less = |has: usize| Some(has.saturating_sub(pages));
        let _ = self.has.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        self.tell(row);
        drop(lock);
        if let Some(row) = row {
            self.tree.note_given(row, pages);
        }
    }

    /// Takes so many pages of the run's swap. `false`, and none are taken: the run's swap has not so many
    /// left.
    pub(crate) fn take_swap(&self, pages: usize) -> bool {
        let row = self.own_row();
        let lock = self.lock();
        let fits = self.tree.swap_used() + pages <= self.tree.swap_max();
        if fits {
            self.swap.fetch_add(pages, Ordering::Relaxed);
        }
        self.tell(row);
        drop(lock);
        fits
    }

    /// Gives so many pages of the run's swap back.
    pub(crate) fn give_swap(&self, pages: usize) {
        let row = self.own_row();
        let lock = self.lock();
        self.swap.fetch_sub(pages, Ordering::Relaxed);
        self.tell(row);
        drop(lock);
    }

    /// Pages of the run's swap that are left. A guess: nothing is locked.
    pub(crate) fn swap_room(&self) -> usize {
        self.tree.swap_max().saturating_sub(self.tree.swap_used())
    }

    /// Asks another process for pages, if the pages of one are worth less than those of this process. Does
    /// not wait for an answer.
    pub fn ask(&self) {
        let (last, now) = (self.noted.asked_at.load(Ordering::Relaxed), boot_time());
        if now.saturating_sub(last) < ASK_PAUSE.as_nanos() as u64
            || self.noted.asked_at.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_err()
        {
            return;
        }
        self.free_the_dead();
        let Some(own) = self.own_row() else { return };
        // A process that was killed between changing its row and publishing may have left a wrong number of
        // pages that can be taken.
        let lock = self.lock();
        self.tell(Some(own));
        drop(lock);
        if self.has_room() || self.has() + LEAST > self.tree.each() {
            return;
        }
        let rows: Vec<_> = self.tree.rows().filter(|row| *row != own && self.tree.owner(*row) != 0).collect();
        let shares: Vec<_> = rows.iter().map(|row| self.tree.share(*row)).collect();
        if let Some((giver, pages)) = choice::giver(&self.tree.share(own), &shares) {
            let row = rows[giver];
            if self.tree.row(row, row::ASKED).load(Ordering::Relaxed) < pages as u64 {
                self.tree.ask_row(row, pages);
            }
        }
    }

    /// How many pages this process is to give: those that it was asked for, or its part of the pages that
    /// all processes have beyond the limit, if that is more.
    pub fn wanted(&self) -> usize {
        let Some(row) = self.own_row() else { return 0 };
        let asked = self.tree.row(row, row::ASKED).load(Ordering::Acquire) as usize;
        let (used, max) = (self.tree.used(), self.tree.max());
        let own = self.tree.share(row);
        let part = if used > max {
            let spare = self.tree.rows().map(|row| self.tree.share(row).spare()).sum();
            choice::part_of(used - max, &own, spare)
        } else {
            0
        };
        asked.max(part).min(self.has().saturating_sub(self.keeps()))
    }

    /// Wakes this process's supplier. `surely`: even if a ring seems to be pending; for callers that have
    /// changed something that the supplier must see.
    pub(crate) fn ring(&self, surely: bool) {
        let row = self.row.load(Ordering::Acquire);
        match (row, surely) {
            (NO_ROW, _) => {}
            (row, true) => self.tree.ring_surely(row),
            (row, false) => self.tree.ring(row),
        }
    }

    /// Sleeps until the supplier of this process is woken, or for `bound`.
    pub(crate) fn sleep(&self, bound: Duration) {
        match self.own_row() {
            Some(row) => self.tree.sleep(row, bound),
            // Without a row there is no bell.
            None => pause(Cause::Frames, bound.min(NO_BELL)),
        }
    }

    /// The groups that this process shows to others.
    pub fn groups(&self) -> OwnGroups<'_> {
        let (row, pid) = (self.own_row(), self.pid.load(Ordering::Relaxed));
        OwnGroups::new(&self.groups, &self.tree, row, pid)
    }

    /// Writes into the row what the process has counted so far, and its cost: the rate of refaults and
    /// swap-ins. Frees the rows of processes that are gone.
    pub fn note_use(&self, used: &ProcessUse) {
        let Some(row) = self.own_row() else { return };
        let base = ProcessUse::of(std::array::from_fn(|at| self.noted.base[at].load(Ordering::Relaxed)));
        let used = &used.since(&base);
        self.tree.note_use(row, used);
        self.groups().take_rows();
        let now = boot_time();
        let elapsed = now.saturating_sub(self.noted.cost_at.swap(now, Ordering::Relaxed)) / 1_000_000;
        let back = used.refaults + used.swapped_in;
        let new = back.saturating_sub(self.noted.refaults.swap(back, Ordering::Relaxed));
        let rate = new * 1000 / elapsed.max(1);
        let cost = rate * 1024 / self.has().max(1) as u64;
        let word = self.tree.row(row, row::COST);
        word.store((word.load(Ordering::Relaxed) + cost) / 2, Ordering::Relaxed);
        self.write(Some(row));
        self.free_the_dead();
    }

    /// Frees the rows of processes that are gone, unless some process of the run has done so within
    /// [`LOOK_FOR_DEAD`].
    fn free_the_dead(&self) {
        let (looked, now) = (self.tree.head(head::LOOKED), boot_time());
        let before = looked.load(Ordering::Relaxed);
        let is_due = now.saturating_sub(before) > LOOK_FOR_DEAD.as_nanos() as u64;
        if is_due && looked.compare_exchange(before, now, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            self.tree.free_the_dead(self.turn());
        }
    }

    /// At the end of the process. A process without memory frees its row. Else the row stays: the memory is
    /// free only once the kernel has ended the process, and other processes free the row then. They cannot
    /// see the end of a process in another pid namespace, which so frees its row in any case.
    pub fn ends(&self) {
        if self.has() == 0 || self.is_apart.load(Ordering::Relaxed) {
            return self.leave();
        }
        let row = self.row.load(Ordering::Acquire);
        if row != NO_ROW && self.tree.owner(row) == self.pid.load(Ordering::Relaxed) {
            self.tree.row(row, row::ENDS).store(1, Ordering::SeqCst);
        }
    }

    /// Leaves the run, and frees the row.
    pub(super) fn leave(&self) {
        self.left.store(true, Ordering::Release);
        let row = self.row.load(Ordering::Acquire);
        if row != NO_ROW {
            let lock = self.lock();
            self.tree.clear(row, self.pid.load(Ordering::Relaxed));
            self.tree.publish(self.tree.used());
            drop(lock);
        }
    }

    /// Before an exec: the process's memory counts as free for the others, since exec drops it. The row
    /// stays, so that the run is not taken for ended. [`Member::came_back`] undoes this if exec fails.
    ///
    /// In another pid namespace the row is freed, since the new program does not find it again by its id.
    pub fn leave_memory(&self) {
        if self.is_apart.load(Ordering::Relaxed) {
            return self.leave();
        }
        self.left.store(true, Ordering::Release);
        let row = self.row.load(Ordering::Acquire);
        if row != NO_ROW && self.tree.owner(row) == self.pid.load(Ordering::Relaxed) {
            let lock = self.lock();
            let words = [row::HAS, row::SWAP, row::ASKED, row::KEEPS];
            words.iter().for_each(|word| self.tree.row(row, *word).store(0, Ordering::Relaxed));
            self.tree.publish(self.tree.used());
            drop(lock);
        }
    }

    /// Whether other processes of the run exist, if only as zombies. A child may exist that has no row yet.
    /// Allocates nothing.
    pub fn others(&self) -> Others {
        let exist = |ends| self.tree.other_exists(self.pid.load(Ordering::Relaxed), ends);
        if self.is_apart.load(Ordering::Relaxed) || exist(false) {
            Others::Live
        } else if exist(true) {
            Others::End
        } else {
            Others::None
        }
    }

    /// Counts the process's memory again after [`Member::leave_memory`]: exec has failed.
    pub fn came_back(&self) {
        self.left.store(false, Ordering::Release);
        self.charge(0);
    }
}

impl RunTotals {
    /// The run so far, without processes that are gone. Allocates nothing.
    pub fn seen_by(member: &Member) -> Self {
        // The other processes may have ended when no process was left that looks for dead ones: this process
        // may have no manager.
        member.tree.free_the_dead(member.turn());
        member.tree.totals()
    }
}

impl ProcessGauges {
    /// Writes the figures into the row of this process.
    pub(crate) fn note(&self, member: &Member) {
        if let Some(row) = member.own_row() {
            member.tree.note_gauges(row, self);
        }
    }
}

impl std::fmt::Debug for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Member").field("row", &self.row).field("has", &self.has).finish_non_exhaustive()
    }
}
