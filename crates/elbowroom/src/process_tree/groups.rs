//! The memory groups of processes in the table of a run: what each uses, and what `ctl` asks of it.
//!
//! A process that shows its groups takes a row for each: its owner, its name, its figures, and one request.
//! Nothing is written there until another process asks for it ([`GroupTable::ask`]): then the process that
//! has the groups notes the figures of all of them, and serves the requests. So groups cost nothing while no
//! command looks at them.
//!
//! Synchronization: atomics. Only the owner's process writes figures. A process that requests something
//! claims the row first; the claim of a process that is gone is taken over. A request is the step of its
//! state from idle to asked, which publishes its words; the answer is the step to done.

use super::gauges::StallAverages;
use super::table::ProcessTree;
use super::table::{GROUP_ROWS, group, head, row};
use elbowroom_machine::{boot_time, process_exists};
use elbowroom_sync::OnceLock;
use elbowroom_sync::atomic::{AtomicUsize, Ordering};
use elbowroom_sync::time::Duration;

/// The longest name of a group that a row has, in bytes. Of a longer one it has the first so many.
pub(super) const NAME_BYTES: usize = 8 * (group::NOTED - group::NAME);

/// No limit.
const NONE: u64 = u64::MAX;

/// No request was made, or its answer was taken.
const IDLE: u64 = 0;
/// A request was made.
const ASKED: u64 = 1;
/// The request was answered.
const DONE: u64 = 2;
/// The bits of the state in its word.
const STATES: u64 = 3;
/// A request that is older than this is not served any more: its command has ended.
const REQUEST_BOUND: Duration = Duration::from_secs(3);

/// What a group uses and has counted, with the groups below it, and its limits. A limit of `u64::MAX`: none.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct GroupUse {
    /// Bytes in use.
    pub usage_bytes: u64,
    /// The most bytes that were in use at a time.
    pub peak_bytes: u64,
    /// Its `max`, in bytes.
    pub max_bytes: u64,
    /// Its `high`, in bytes.
    pub high_bytes: u64,
    /// Its `low`, in bytes.
    pub low_bytes: u64,
    /// Its `min`, in bytes.
    pub min_bytes: u64,
    /// Accesses that found the group over its `high`.
    pub high_events: u64,
    /// Of these, accesses that could reclaim nothing.
    pub high_stuck: u64,
    /// Allocations that `max` did not permit at once.
    pub max_events: u64,
    /// Accesses that failed since the group stayed at its `max`.
    pub failed_events: u64,
    /// Page faults.
    pub pgfault: u64,
    /// Of these, faults that waited for I/O.
    pub pgmajfault: u64,
    /// The time in which at least one thread stalled.
    pub some: StallAverages,
    /// The time in which at least one thread stalled, and none was known to run.
    pub full: StallAverages,
}

impl GroupUse {
    pub(super) const WORDS: usize = 16;

    fn words(&self) -> [u64; Self::WORDS] {
        let ([some, some_us], [full, full_us]) = (self.some.words(), self.full.words());
        [
            self.usage_bytes,
            self.peak_bytes,
            self.max_bytes,
            self.high_bytes,
            self.low_bytes,
            self.min_bytes,
            self.high_events,
            self.high_stuck,
            self.max_events,
            self.failed_events,
            self.pgfault,
            self.pgmajfault,
            some,
            some_us,
            full,
            full_us,
        ]
    }

    fn of(words: [u64; Self::WORDS]) -> Self {
        Self {
            usage_bytes: words[0],
            peak_bytes: words[1],
            max_bytes: words[2],
            high_bytes: words[3],
            low_bytes: words[4],
            min_bytes: words[5],
            high_events: words[6],
            high_stuck: words[7],
            max_events: words[8],
            failed_events: words[9],
            pgfault: words[10],
            pgmajfault: words[11],
            some: StallAverages::of([words[12], words[13]]),
            full: StallAverages::of([words[14], words[15]]),
        }
    }
}

/// A group of a process of a run, as its row in the table describes it.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupRow {
    /// The id of the process.
    pub pid: u32,
    /// Its whole name: the names of the groups above it, and its own, with dots between.
    pub name: String,
    /// What it uses and has counted.
    pub used: GroupUse,
    /// When the process noted that, in nanoseconds since the boot. `None`: never.
    pub noted_at: Option<u64>,
    /// The number of its row, and the row's owner, for [`GroupTable::request`].
    pub(super) at: usize,
    pub(super) owner: u64,
}

/// One of the [`Limits`](crate::Limits) of a group, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitKey {
    /// [`Limits::max`](crate::Limits::max).
    Max,
    /// [`Limits::high`](crate::Limits::high).
    High,
    /// [`Limits::low`](crate::Limits::low).
    Low,
    /// [`Limits::min`](crate::Limits::min).
    Min,
    /// [`Limits::swap_max`](crate::Limits::swap_max).
    SwapMax,
    /// [`Limits::memory_swap_max`](crate::Limits::memory_swap_max).
    MemorySwapMax,
    /// [`Limits::dirty`](crate::Limits::dirty).
    Dirty,
    /// [`Limits::swappiness`](crate::Limits::swappiness).
    Swappiness,
}

impl LimitKey {
    /// All keys.
    pub const ALL: [Self; 8] = [
        Self::Max,
        Self::High,
        Self::Low,
        Self::Min,
        Self::SwapMax,
        Self::MemorySwapMax,
        Self::Dirty,
        Self::Swappiness,
    ];

    /// The name in a file of groups.
    pub fn name(self) -> &'static str {
        match self {
            Self::Max => "max",
            Self::High => "high",
            Self::Low => "low",
            Self::Min => "min",
            Self::SwapMax => "swap-max",
            Self::MemorySwapMax => "memory-swap-max",
            Self::Dirty => "dirty",
            Self::Swappiness => "swappiness",
        }
    }
}

/// A request for a group. Sizes are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupRequest {
    /// Another value of a limit. What the group has beyond its new `max` or `memory_swap_max` is reclaimed.
    Set(LimitKey, u64),
    /// So much of the group's memory is to be reclaimed.
    Reclaim(u64),
}

impl GroupRequest {
    /// The number of [`GroupRequest::Reclaim`] in the table.
    const RECLAIM: u64 = 1;
    /// The number of a request for the first limit. Those for the others follow, as in [`LimitKey::ALL`].
    const SET: u64 = 2;

    fn words(self) -> [u64; 2] {
        match self {
            Self::Reclaim(bytes) => [Self::RECLAIM, bytes],
            Self::Set(key, value) => [Self::SET + key as u64, value],
        }
    }

    /// `None`: there is no such request.
    fn of([what, bytes]: [u64; 2]) -> Option<Self> {
        if what == Self::RECLAIM {
            return Some(Self::Reclaim(bytes));
        }
        let key = *LimitKey::ALL.get(usize::try_from(what.checked_sub(Self::SET)?).ok()?)?;
        Some(Self::Set(key, bytes))
    }
}

/// What came of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupAnswer {
    /// An errno value. 0: it is done. EBUSY: too little could be reclaimed.
    pub errno: u64,
    /// By how many bytes the group uses less than when it was begun.
    pub freed_bytes: u64,
}

/// How far a process has come with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The request is done, or has failed: an errno value, or 0.
    Done(u64),
    /// There is more to reclaim.
    Begun,
}

/// The groups of a run's processes, in its table.
pub struct GroupTable<'t>(&'t ProcessTree);

impl<'t> GroupTable<'t> {
    /// The groups in a table.
    pub fn of(tree: &'t ProcessTree) -> Self {
        Self(tree)
    }

    /// The owner's word of the groups of a row's process. Rows are freed and taken again, and so are ids:
    /// both together are of one process.
    fn owner_of(row: usize, pid: u32) -> u64 {
        u64::from(pid) << 32 | (row as u64 + 1)
    }

    fn numbers(&self) -> std::ops::Range<usize> {
        0..(self.0.head(head::GROUPS_USED).load(Ordering::Acquire) as usize).min(GROUP_ROWS)
    }

    /// Takes a row for a group of a process. `None`: no row is free.
    pub(super) fn enter(&self, row: usize, pid: u32, key: u64, name: &str) -> Option<usize> {
        let owner = Self::owner_of(row, pid);
        let free = |at: &usize| {
            let word = self.0.group(*at, group::OWNER);
            word.compare_exchange(0, owner, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        // Before the row has its owner: other processes free the rows below this number only.
        let take = |at: &usize| {
            self.0.head(head::GROUPS_USED).fetch_max(*at as u64 + 1, Ordering::AcqRel);
            free(at)
        };
        let is_free = |at: &usize| self.0.group(*at, group::OWNER).load(Ordering::Relaxed) == 0;
        let at = (0..GROUP_ROWS).filter(is_free).find(take)?;
        // A request to the row's owner before is not one to this owner.
        (group::NOTED..group::WORDS).for_each(|word| self.0.group(at, word).store(0, Ordering::Relaxed));
        let mut bytes = [0; NAME_BYTES];
        bytes.iter_mut().zip(name.bytes()).for_each(|(to, from)| *to = from);
        for (nth, word) in bytes.chunks_exact(8).enumerate() {
            let word = u64::from_le_bytes(std::array::from_fn(|byte| word[byte]));
            self.0.group(at, group::NAME + nth).store(word, Ordering::Relaxed);
        }
        self.0.group(at, group::KEY).store(key, Ordering::Relaxed);
        Some(at)
    }

    /// Whether a row is that of a process's group.
    pub(super) fn is_of(&self, at: usize, row: usize, pid: u32, key: u64) -> bool {
        at < GROUP_ROWS
            && self.0.group(at, group::OWNER).load(Ordering::Acquire) == Self::owner_of(row, pid)
            && self.0.group(at, group::KEY).load(Ordering::Relaxed) == key
    }

    /// Frees the rows of all groups of a process.
    pub(super) fn clear(&self, row: usize, pid: u32) {
        let owner = Self::owner_of(row, pid);
        let is_its = |at: &usize| self.0.group(*at, group::OWNER).load(Ordering::Acquire) == owner;
        for at in self.numbers().filter(is_its) {
            (group::OWNER + 1..group::WORDS)
                .for_each(|word| self.0.group(at, word).store(0, Ordering::Relaxed));
            let word = self.0.group(at, group::OWNER);
            let _ = word.compare_exchange(owner, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// The groups of all processes that are there, as they were noted last.
    pub fn rows(&self) -> Vec<GroupRow> {
        let group_of = |at: usize| {
            let word = |word| self.0.group(at, word).load(Ordering::Relaxed);
            let owner = self.0.group(at, group::OWNER).load(Ordering::Acquire);
            // First, so that the figures are not older than that.
            let noted = self.0.group(at, group::NOTED).load(Ordering::Acquire);
            let (pid, row) = ((owner >> 32) as u32, (owner as u32 as usize).checked_sub(1)?);
            let lives = self.0.rows().contains(&row) && self.0.owner(row) == pid && pid != 0;
            let bytes: Vec<u8> = (group::NAME..group::NOTED)
                .flat_map(|at| word(at).to_le_bytes())
                .take_while(|b| *b != 0)
                .collect();
            lives.then(|| GroupRow {
                pid,
                name: String::from_utf8_lossy(&bytes).into_owned(),
                used: GroupUse::of(std::array::from_fn(|nth| word(group::FIGURES + nth))),
                noted_at: Some(noted).filter(|noted| *noted > 0),
                at,
                owner,
            })
        };
        self.numbers().filter_map(group_of).collect()
    }

    /// Asks a process to note the figures of its groups, and to look for requests. `false`: there is no such
    /// process.
    pub fn ask(&self, pid: u32) -> bool {
        let row = self.0.rows().find(|row| self.0.owner(*row) == pid);
        row.into_iter().for_each(|row| self.ask_row(row));
        row.is_some()
    }

    fn ask_row(&self, row: usize) {
        self.0.row(row, row::GROUPS_ASKED).store(1, Ordering::Release);
        self.0.ring_surely(row);
    }

    /// Requests something of a group, for this process, whose id is `own`. `false`: another process's request
    /// is not done. The answer is to be taken by [`GroupTable::answer`], or the request to be given up.
    pub fn request(&self, of: &GroupRow, request: GroupRequest, own: u32) -> bool {
        let claim = self.0.group(of.at, group::CLAIM);
        let before = claim.load(Ordering::Acquire);
        if before != 0 && before != u64::from(own) && process_exists(before as u32)
            || claim.compare_exchange(before, u64::from(own), Ordering::AcqRel, Ordering::Relaxed).is_err()
        {
            return false;
        }
        if !self.is_same(of) {
            claim.store(0, Ordering::Release);
            return false;
        }
        let [what, bytes] = request.words();
        self.0.group(of.at, group::WHAT).store(what, Ordering::Relaxed);
        self.0.group(of.at, group::BYTES).store(bytes, Ordering::Relaxed);
        self.0.group(of.at, group::FREED).store(0, Ordering::Relaxed);
        self.0.group(of.at, group::BEGAN).store(0, Ordering::Relaxed);
        self.0.group(of.at, group::FOR).store(of.owner, Ordering::Relaxed);
        self.0.group(of.at, group::STATE).store(boot_time() << 2 | ASKED, Ordering::Release);
        let is_there = self.ask(of.pid);
        if !is_there {
            self.end_request(of);
        }
        is_there
    }

    /// Whether a row still is that of the same process.
    fn is_same(&self, of: &GroupRow) -> bool {
        self.0.group(of.at, group::OWNER).load(Ordering::Acquire) == of.owner
    }

    /// The answer to the last request to a group. `None`: it is not done.
    pub fn answer(&self, of: &GroupRow) -> Option<GroupAnswer> {
        let word = |word| self.0.group(of.at, word).load(Ordering::Relaxed);
        let is_done = self.0.group(of.at, group::STATE).load(Ordering::Acquire) & STATES == DONE;
        (is_done && self.is_same(of))
            .then(|| GroupAnswer { errno: word(group::RESULT), freed_bytes: word(group::FREED) })
    }

    /// Gives up a request, or takes notice of its answer: other processes can request something.
    pub fn end_request(&self, of: &GroupRow) {
        if !self.is_same(of) {
            return;
        }
        self.0.group(of.at, group::STATE).store(IDLE, Ordering::Release);
        self.0.group(of.at, group::CLAIM).store(0, Ordering::Release);
    }

    /// Whether the process of a row was asked about its groups. It is not any more then.
    pub(super) fn take_asked(&self, row: usize) -> bool {
        let word = self.0.row(row, row::GROUPS_ASKED);
        // The load comes first: without a request nothing is stored to a line that other processes read.
        word.load(Ordering::Acquire) != 0 && word.swap(0, Ordering::AcqRel) != 0
    }

    /// Serves a request for a group of the process `owner`. `act` has the request, and the use of the group
    /// when the request was begun, in bytes (`None`: it begins now). The result of `act` is that figure, the
    /// use now, and the progress. `true`: the request is not done yet.
    pub(super) fn serve(
        &self,
        at: usize,
        owner: u64,
        act: impl FnOnce(GroupRequest, Option<u64>) -> (u64, u64, Progress),
    ) -> bool {
        let word = |word| self.0.group(at, word);
        let (state, asked) = (word(group::STATE), word(group::STATE).load(Ordering::Acquire));
        let answer = |answer: u64| {
            let _ = state.compare_exchange(asked, answer, Ordering::AcqRel, Ordering::Relaxed);
        };
        if asked & STATES != ASKED {
            return false;
        }
        // The command may have been killed: its request is given up by its age.
        let age = Duration::from_nanos(boot_time().saturating_sub(asked >> 2));
        if word(group::FOR).load(Ordering::Relaxed) != owner || age > REQUEST_BOUND {
            answer(IDLE);
            return false;
        }
        let [what, bytes, began] =
            [group::WHAT, group::BYTES, group::BEGAN].map(|at| word(at).load(Ordering::Relaxed));
        let (began, now, progress) = match GroupRequest::of([what, bytes]) {
            Some(request) => act(request, began.checked_sub(1)),
            None => (0, 0, Progress::Done(u64::from(elbowroom_machine::Errno::INVAL.raw_os_error() as u32))),
        };
        // The request may have been given up meanwhile, and another one made.
        if state.load(Ordering::Acquire) != asked {
            return false;
        }
        word(group::BEGAN).store(began.saturating_add(1), Ordering::Relaxed);
        word(group::FREED).store(began.saturating_sub(now), Ordering::Relaxed);
        if let Progress::Done(errno) = progress {
            word(group::RESULT).store(errno, Ordering::Relaxed);
            answer(asked & !STATES | DONE);
        }
        progress == Progress::Begun
    }

    /// Writes the figures of a group.
    pub(super) fn note(&self, at: usize, used: &GroupUse) {
        for (nth, value) in used.words().into_iter().enumerate() {
            self.0.group(at, group::FIGURES + nth).store(value, Ordering::Relaxed);
        }
        self.0.group(at, group::NOTED).store(boot_time(), Ordering::Release);
    }
}

/// The groups that a process shows: empty until it shows some.
pub(super) type ShownGroups = OnceLock<Vec<ShownGroup>>;

/// A group that a process shows.
pub(super) struct ShownGroup {
    /// What the manager knows it by.
    key: u64,
    name: String,
    /// The number of its row; [`NO_ROW`]: it has none.
    row: AtomicUsize,
}

/// In place of a row's number: the group has no row.
const NO_ROW: usize = usize::MAX;

/// The groups of this process.
pub struct OwnGroups<'m> {
    shown: &'m ShownGroups,
    tree: &'m ProcessTree,
    /// The process's row. `None`: it has none.
    row: Option<usize>,
    pid: u32,
}

impl<'m> OwnGroups<'m> {
    pub(super) fn new(shown: &'m ShownGroups, tree: &'m ProcessTree, row: Option<usize>, pid: u32) -> Self {
        Self { shown, tree, row, pid }
    }

    /// Shows groups to other processes, with the keys by which the manager knows them, and their names. Only
    /// the first call counts. Groups for which the table has no room are not shown.
    pub(crate) fn show(&self, groups: Vec<(u64, String)>) {
        let shown = |(key, name)| ShownGroup { key, name, row: AtomicUsize::new(NO_ROW) };
        let groups: Vec<_> = groups.into_iter().map(shown).collect();
        // Before others see them: two threads would take two rows for a group.
        self.rows_for(&groups);
        let _ = self.shown.set(groups);
    }

    /// Shows groups that have these names and no manager, for tests of commands that look at them.
    #[doc(hidden)]
    pub fn show_names(&self, names: &[&str]) {
        self.show((1..).zip(names).map(|(key, name)| (key, (*name).to_owned())).collect());
    }

    /// Takes rows for groups that have none, since this is a forked child, or the process was taken for dead.
    pub(super) fn take_rows(&self) {
        self.shown.get().into_iter().for_each(|groups| self.rows_for(groups));
    }

    fn rows_for(&self, groups: &[ShownGroup]) {
        let (Some(row), table) = (self.row, GroupTable::of(self.tree)) else { return };
        for group in groups {
            let at = group.row.load(Ordering::Relaxed);
            if !table.is_of(at, row, self.pid, group.key) {
                let at = table.enter(row, self.pid, group.key, &group.name);
                group.row.store(at.unwrap_or(NO_ROW), Ordering::Relaxed);
                if at.is_none() {
                    return;
                }
            }
        }
    }

    /// Whether another process has asked about the groups since the last call.
    pub(crate) fn is_asked(&self) -> bool {
        self.row.is_some_and(|row| GroupTable::of(self.tree).take_asked(row))
    }

    /// Serves the requests of other processes for the groups, and notes the groups' figures. `act` has the
    /// key of a group, and the rest as [`GroupTable`] gives it. `used` has the figures of a group. If there
    /// is more to do, this process is asked again.
    pub(crate) fn serve(
        &self,
        act: impl Fn(u64, GroupRequest, Option<u64>) -> (u64, u64, Progress),
        used: impl Fn(u64) -> Option<GroupUse>,
    ) {
        self.take_rows();
        let (Some(groups), Some(row), table) = (self.shown.get(), self.row, GroupTable::of(self.tree)) else {
            return;
        };
        let mut is_more = false;
        for group in groups {
            let at = group.row.load(Ordering::Relaxed);
            if table.is_of(at, row, self.pid, group.key) {
                let owner = GroupTable::owner_of(row, self.pid);
                is_more |= table.serve(at, owner, |request, began| act(group.key, request, began));
                if let Some(used) = used(group.key) {
                    table.note(at, &used);
                }
            }
        }
        if is_more {
            table.ask_row(row);
        }
    }
}

impl GroupUse {
    /// A limit; `None`: there is none.
    pub fn limit(bytes: u64) -> Option<u64> {
        (bytes != NONE).then_some(bytes)
    }
}

impl GroupRow {
    /// How long ago its figures were noted. `None`: never.
    pub fn age(&self) -> Option<Duration> {
        self.noted_at.map(|noted| Duration::from_nanos(boot_time().saturating_sub(noted)))
    }
}
