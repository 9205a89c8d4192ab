//! The tree of groups: a table of fixed size, in which a place is used again when nothing is left of the
//! group that had it.
//!
//! A group that was removed keeps its place, its charges and its parent until its last page is freed, in
//! memory and in swap. The group has no limits any more, and new memory for it is charged to the nearest
//! group above it that is not removed. Linux: a cgroup that is offline.
//!
//! Synchronization: one word of each group has its state, its parent, and how often its place was used; it
//! changes under the lock of changes. A thread that charges a group adds to its usage first and then looks
//! at that word; a thread that wants the place changes the word first and then looks at the usage. So at
//! least one of the two sees the other's change.

use super::charge::Usage;
use super::limits::{DirtyLimits, Family, LimitPages, Limits, Sibling, UNLIMITED, effective_protection};
use super::stat::{GroupCounters, GroupEvent, GroupStats, Used};
use super::swap::SwapUse;
use super::{GroupId, Groups, Pressure};
use crate::config::{MAX_GROUPS, STUCK_ACCESSES};
use elbowroom_machine::{Errno, PAGE_SHIFT};
use elbowroom_sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use elbowroom_sync::epoch::{ArcCell, pin};
use elbowroom_sync::{Arc, Mutant, OnceLock};

/// In tests of the tests: reclaim takes from a group as if it had no protection.
const MUTANT_IGNORE_PROTECTION: Mutant = Mutant::new("ignore_protection");

/// The state of a place in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum State {
    /// No group has the place.
    Free,
    /// A group has the place.
    Live,
    /// A group that was removed still has the place.
    Removed,
}

/// Where a group is in the tree, and the state of its place in the table. Packed into one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) state: State,
    /// How often the place was used before, modulo 2^16.
    pub(super) life: u16,
    /// The index of the parent.
    pub(super) parent: usize,
    /// How many groups are above this one.
    pub(super) depth: u16,
}

impl Node {
    const ROOT: Self = Self { state: State::Live, life: 0, parent: 0, depth: 0 };

    fn word(self) -> u64 {
        let Self { state, life, parent, depth } = self;
        state as u64 | u64::from(life) << 16 | (parent as u64) << 32 | u64::from(depth) << 48
    }

    fn of_word(word: u64) -> Self {
        let state = match word & 3 {
            0 => State::Free,
            1 => State::Live,
            _ => State::Removed,
        };
        let (life, parent) = ((word >> 16) as u16, usize::from((word >> 32) as u16));
        Self { state, life, parent, depth: (word >> 48) as u16 }
    }
}

/// A group: its place in the tree, its limits and its counts.
pub struct Group {
    place: AtomicU64,
    pub(super) limits: LimitPages,
    pub(super) usage: Usage,
    pub(super) swap: SwapUse,
    /// The events of the group alone, without the groups below it.
    pub counters: GroupCounters,
    /// How many of its pages are dirty: differ from their file.
    dirty: AtomicUsize,
    /// How many of its faults wait for I/O.
    waiting: AtomicUsize,
    /// Replaced when the place gets a new group.
    pressure: ArcCell<Arc<Pressure>>,
    /// How many accesses in a row have found the group over its `high`, and could reclaim nothing of it.
    stuck: AtomicU32,
}

impl Group {
    fn new(place: Node, pressure: Arc<Pressure>) -> Self {
        Self {
            place: AtomicU64::new(place.word()),
            limits: LimitPages::none(),
            usage: Usage::default(),
            swap: SwapUse::default(),
            counters: GroupCounters::default(),
            dirty: AtomicUsize::default(),
            waiting: AtomicUsize::default(),
            pressure: ArcCell::new(Arc::new(pressure)),
            stuck: AtomicU32::new(0),
        }
    }

    /// Notes that an access has found the group over its `high`, and whether pages of it could be reclaimed.
    pub fn note_high(&self, reclaimed: bool) {
        // Threads that note it at the same time may lose one another's: the count is a guess.
        let stuck = self.stuck.load(Ordering::Relaxed);
        let now = if reclaimed { stuck / 2 } else { (stuck + 1).min(4 * STUCK_ACCESSES) };
        if now != stuck {
            self.stuck.store(now, Ordering::Relaxed);
        }
    }

    /// The group's pressure: the time that threads lose because it lacks memory.
    pub fn pressure(&self) -> Arc<Pressure> {
        self.pressure.load(&pin()).expect("a group has its pressure").clone()
    }

    /// Where the group is in the tree.
    pub(super) fn place(&self) -> Node {
        Node::of_word(self.place.load(Ordering::SeqCst))
    }

    fn move_to(&self, place: Node) {
        self.place.store(place.word(), Ordering::SeqCst);
    }

    /// Pages that are charged to the group alone. A sum of the threads' counters: exact if no other thread
    /// allocates.
    pub fn charged_pages(&self) -> u64 {
        self.usage.charged_pages()
    }

    /// Counts so many more dirty pages.
    pub fn add_dirty(&self, pages: usize) {
        self.dirty.fetch_add(pages, Ordering::AcqRel);
    }

    /// Counts so many fewer dirty pages.
    pub fn remove_dirty(&self, pages: usize) {
        self.dirty.fetch_sub(pages, Ordering::AcqRel);
    }

    /// How many pages of the group are dirty.
    pub fn dirty_pages(&self) -> usize {
        self.dirty.load(Ordering::Acquire)
    }

    /// How many pages of the group may be dirty.
    pub fn dirty_limits(&self) -> DirtyLimits {
        self.limits.dirty()
    }

    /// Counts one more fault that waits for I/O.
    pub fn add_waiting(&self) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one fewer fault that waits for I/O.
    pub fn remove_waiting(&self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// How many faults of the group wait for I/O.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }
}

/// The protection of a group, in pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Protected {
    /// The group.
    pub group: GroupId,
    /// What the group uses, with the groups below it; 0 for the root.
    pub usage: u64,
    /// Pages that reclaim takes only for an access that would fail else.
    pub min: u64,
    /// Pages that reclaim takes only if it can take no others.
    pub low: u64,
}

/// The table of groups.
pub struct Tree {
    table: Box<[OnceLock<Box<Group>>]>,
    /// How many places of the table have, or had, a group.
    made: AtomicUsize,
}

impl Tree {
    /// An empty table.
    pub(super) fn new() -> Self {
        let table = (0..MAX_GROUPS).map(|_| OnceLock::new()).collect();
        Self { table, made: AtomicUsize::new(0) }
    }

    /// The group in a place of the table.
    pub(super) fn at(&self, index: usize) -> &Group {
        self.table[index].get().expect("the place has had a group")
    }

    /// The places of all groups, removed ones that still have their place included.
    pub(super) fn places(&self) -> impl Iterator<Item = (usize, Node)> {
        let places = (0..self.made.load(Ordering::Acquire)).map(|index| (index, self.at(index).place()));
        places.filter(|(_, place)| place.state != State::Free)
    }

    /// The index of the group that pays for what is allocated for `group`: its own, or, if it was removed,
    /// that of the nearest group above it that was not. If its place has another group by now, the root
    /// pays.
    pub(super) fn payer(&self, group: GroupId) -> usize {
        let (mut index, mut place) = (group.index(), self.at(group.index()).place());
        if place.life != group.life {
            return GroupId::ROOT.index();
        }
        while place.state == State::Removed {
            index = place.parent;
            place = self.at(index).place();
        }
        if place.state == State::Live { index } else { GroupId::ROOT.index() }
    }

    /// The group that pays for what is allocated for `group`: see [`Groups::alloc`].
    pub fn paying(&self, group: GroupId) -> GroupId {
        if group == GroupId::ROOT { group } else { self.id(self.payer(group)) }
    }

    /// The name of the group that has a place now.
    pub(super) fn id(&self, index: usize) -> GroupId {
        GroupId { index: index as u16, life: self.at(index).place().life }
    }

    /// The indexes of a group and of the groups above it, without the root.
    pub(super) fn lineage(&self, index: usize) -> impl Iterator<Item = usize> {
        let above = |index: &usize| Some(self.at(*index).place().parent);
        std::iter::successors(Some(index), above).take_while(|index| *index != GroupId::ROOT.index())
    }

    /// A group and all groups above it, the root included.
    pub fn with_all_above(&self, group: GroupId) -> impl Iterator<Item = GroupId> {
        self.lineage(group.index()).map(|index| self.id(index)).chain([GroupId::ROOT])
    }

    /// Whether the group at `index` is the group at index `group`, or below it.
    pub(super) fn is_within(&self, index: usize, group: usize) -> bool {
        group == GroupId::ROOT.index() || self.lineage(index).any(|above| above == group)
    }

    /// Checks that a group exists.
    ///
    /// # Errors
    /// ENOENT: it was removed, or never existed.
    pub fn check(&self, group: GroupId) -> Result<(), Errno> {
        let known = self.table.get(group.index()).and_then(|place| place.get());
        let place = known.map(|known| known.place());
        let lives = |place: &Node| place.state == State::Live && place.life == group.life;
        place.filter(lives).map(|_| ()).ok_or(Errno::NOENT)
    }
}

impl Groups {
    /// Adds the root, or, in tests, a child of it.
    pub(super) fn add_first(&self, index: usize) {
        let place = Node { depth: u16::from(index > 0), ..Node::ROOT };
        let above = (index > 0).then(|| self.at(0).pressure());
        let pressure = Pressure::new(above.as_ref(), &self.locks);
        let _ = self.tree.table[index].set(Box::new(Group::new(place, pressure)));
        self.tree.made.store(index + 1, Ordering::Release);
    }

    /// Makes a group below `parent`.
    ///
    /// # Errors
    /// ENOENT: there is no such parent. ENOSPC: there are [`MAX_GROUPS`], removed ones with pages left
    /// included.
    pub fn create(&self, parent: GroupId, limits: &Limits) -> Result<GroupId, Errno> {
        let _changes = self.changes.lock();
        self.check(parent)?;
        let above = self.at(parent.index()).place();
        let pressure = Pressure::new(Some(&self.of(parent).pressure()), &self.locks);
        let index = match self.tree.made.load(Ordering::Acquire) {
            made if made < MAX_GROUPS => {
                let place = Node { state: State::Free, life: 0, ..above };
                let _ = self.tree.table[made].set(Box::new(Group::new(place, pressure.clone())));
                self.tree.made.store(made + 1, Ordering::Release);
                made
            }
            _ => (1..MAX_GROUPS).find(|index| self.give_up(*index)).ok_or(Errno::NOSPC)?,
        };
        let group = self.at(index);
        group.limits.set(limits);
        group.pressure.store(Some(Arc::new(pressure)), &pin());
        group.stuck.store(0, Ordering::Relaxed);
        let life = group.place().life;
        group.move_to(Node { state: State::Live, life, parent: parent.index(), depth: above.depth + 1 });
        Ok(GroupId { index: index as u16, life })
    }

    /// Frees the place of a group that was removed, if the group has no children left, and no pages in memory
    /// or swap.
    fn give_up(&self, index: usize) -> bool {
        let (group, before) = (self.at(index), self.at(index).place());
        let is_child = |(_, place): (usize, Node)| place.parent == index;
        if before.state == State::Live || self.places().any(is_child) {
            return false;
        }
        group.move_to(Node { state: State::Free, life: before.life.wrapping_add(1), ..before });
        self.drain(index);
        if group.usage.pages() > 0 || group.swap.pages() > 0 {
            group.move_to(before);
            return false;
        }
        group.counters.hand_to(&self.at(before.parent).counters);
        group.usage.forget_peak();
        group.swap.forget_peak();
        true
    }

    /// Removes a group without children. What it uses stays charged to it until it is freed, and counts as
    /// use of the groups above it.
    ///
    /// # Errors
    /// ENOENT: there is no such group. EBUSY: it is the root, or has children.
    pub fn remove(&self, id: GroupId) -> Result<(), Errno> {
        let _changes = self.changes.lock();
        self.check(id)?;
        let is_child = |(_, place): (usize, Node)| place.state == State::Live && place.parent == id.index();
        if id == GroupId::ROOT || self.places().any(is_child) {
            return Err(Errno::BUSY);
        }
        let group = self.of(id);
        group.limits.set(&Limits::default());
        group.move_to(Node { state: State::Removed, ..group.place() });
        self.drain(id.index());
        Ok(())
    }

    /// Changes the limits of a group. Does not reclaim what it uses beyond them.
    ///
    /// # Errors
    /// ENOENT: there is no such group. EINVAL: it is the root, whose limit is the arena.
    pub fn change_limits(&self, id: GroupId, change: impl FnOnce(Limits) -> Limits) -> Result<(), Errno> {
        let _changes = self.changes.lock();
        self.check(id)?;
        if id == GroupId::ROOT {
            return Err(Errno::INVAL);
        }
        let limits = &self.of(id).limits;
        limits.set(&change(limits.get()));
        self.drain(id.index());
        Ok(())
    }

    /// How readily anonymous memory is taken when memory is reclaimed for a group.
    pub fn swappiness(&self, id: GroupId) -> u64 {
        self.of(id).limits.swappiness()
    }

    /// The limits of a group.
    pub fn limits(&self, id: GroupId) -> Limits {
        self.of(id).limits.get()
    }

    /// How many pages a group uses beyond its `max`.
    pub fn beyond_max(&self, id: GroupId) -> u64 {
        let group = self.of(id);
        group.usage.pages().saturating_sub(group.limits.max())
    }

    /// The nearest group, from `group` on upwards, that uses more than its `high`, with its usage and its
    /// `high`, in pages.
    pub fn over_high(&self, group: GroupId) -> Option<(GroupId, [u64; 2])> {
        let over = |index: usize| {
            let (usage, high) = (self.at(index).usage.pages(), self.at(index).limits.high());
            (high != UNLIMITED && usage > high).then(|| (self.id(index), [usage, high]))
        };
        self.lineage(self.payer(group)).find_map(over)
    }

    /// The groups that use more than their `high`, and of which nearly all of the last accesses could reclaim
    /// nothing ([`STUCK_ACCESSES`]); each with its usage and its `high`, in pages.
    pub fn stuck_over_high(&self) -> Vec<(GroupId, [u64; 2])> {
        let stuck = |(index, place): (usize, Node)| {
            let group = self.at(index);
            let (usage, high) = (group.usage.pages(), group.limits.high());
            let is_stuck = group.stuck.load(Ordering::Relaxed) >= STUCK_ACCESSES;
            let is_over = place.state == State::Live && high != UNLIMITED && usage > high;
            (is_stuck && is_over).then(|| (self.id(index), [usage, high]))
        };
        self.places().filter_map(stuck).collect()
    }

    /// The protection of `target` and of each group below it, if memory is reclaimed for `target`: none for
    /// `target` itself, all that they ask for for its children, and for the groups below these their parts
    /// (`effective_protection`).
    pub fn protected_below(&self, target: GroupId) -> Vec<Protected> {
        let (root, target) = (GroupId::ROOT.index(), target.index());
        let alone = |index: usize| Protected { group: self.id(index), usage: 0, min: 0, low: 0 };
        if self.tree.made.load(Ordering::Acquire) == 1 {
            return vec![alone(root)];
        }
        let mut places: Vec<_> = self.places().filter(|place| self.is_within(place.0, target)).collect();
        // Parents first.
        places.sort_unstable_by_key(|(_, place)| place.depth);
        let (mut at, mut claims) = ([usize::MAX; MAX_GROUPS], vec![[0_u64; 2]; places.len()]);
        places.iter().enumerate().for_each(|(nth, (index, _))| at[*index] = nth);
        let siblings: Vec<[Sibling; 2]> = places
            .iter()
            .map(|(index, _)| {
                let group = self.at(*index);
                let usage = if *index == root { 0 } else { group.usage.pages() };
                group.limits.protected().map(|setting| Sibling { usage, setting })
            })
            .collect();
        for (nth, (index, place)) in places.iter().enumerate().filter(|(_, (index, _))| *index != target) {
            debug_assert!(*index != root && nth > 0);
            for (claims, sibling) in claims[at[place.parent]].iter_mut().zip(siblings[nth]) {
                *claims += sibling.claim();
            }
        }
        let mut result: Vec<Protected> = Vec::with_capacity(places.len());
        for (nth, (index, place)) in places.iter().enumerate() {
            let [min, low] = siblings[nth];
            let usage = min.usage;
            let [min, low] = if *index == target || MUTANT_IGNORE_PROTECTION.planted() {
                [0, 0]
            } else if place.parent == target {
                [min.setting, low.setting]
            } else {
                let above = at[place.parent];
                let parent = &result[above];
                let families = [parent.min, parent.low].into_iter().zip(claims[above]);
                let mut each = families.zip([min, low]).map(|((protection, claims), sibling)| {
                    effective_protection(sibling, Family { usage: parent.usage, protection, claims })
                });
                [each.next().unwrap_or(0), each.next().unwrap_or(0)]
            };
            result.push(Protected { usage, min, low, ..alone(*index) });
        }
        result
    }

    /// What a group and those below it have used and counted.
    ///
    /// # Errors
    /// ENOENT: there is no such group.
    pub fn stats(&self, id: GroupId) -> Result<GroupStats, Errno> {
        self.check(id)?;
        let within: Vec<_> = self.places().map(|(index, _)| index).collect();
        let within: Vec<_> = within.into_iter().filter(|index| self.is_within(*index, id.index())).collect();
        let mut sums = Sums::default();
        within.iter().for_each(|index| sums.add_own(self.at(*index)));
        Ok(sums.stats_of(self.of(id)).settled())
    }

    /// What each group and those below it have used and counted, for all groups that were not removed: each
    /// group is looked at once, and its sums are added to those of the group above it, the deepest groups
    /// first. Linux: `cgroup_rstat_flush`.
    ///
    /// Locks: `groups`, for a moment.
    pub fn all_stats(&self) -> Vec<(GroupId, GroupStats)> {
        let places: Vec<_> = {
            // A group is deeper than its parent as long as no place gets another group.
            let _changes = self.changes.lock();
            self.places().collect()
        };
        let (mut at, mut all) = ([0_u16; MAX_GROUPS], Vec::with_capacity(places.len()));
        for (nth, (index, place)) in places.iter().enumerate() {
            let (group, mut own) = (self.at(*index), Sums::default());
            own.add_own(group);
            at[*index] = nth as u16;
            all.push((GroupId { index: *index as u16, life: place.life }, own.stats_of(group)));
        }
        let mut deepest_first: Vec<u16> = (1..places.len() as u16).collect();
        let place = |nth: u16| &places[usize::from(nth)].1;
        deepest_first.sort_unstable_by_key(|nth| std::cmp::Reverse(place(*nth).depth));
        for nth in deepest_first {
            let below = all[usize::from(nth)].1;
            all[usize::from(at[place(nth).parent])].1.add(&below);
        }
        let mut states = places.iter().map(|(_, place)| place.state);
        all.retain(|_| states.next() == Some(State::Live));
        all.iter_mut().for_each(|(_, stats)| *stats = stats.settled());
        all
    }
}

/// What groups have used and counted, added up.
#[derive(Clone, Copy, Default)]
struct Sums {
    pages: u64,
    events: [u64; GroupEvent::COUNT],
}

impl Sums {
    /// Adds what a group alone has used and counted.
    fn add_own(&mut self, group: &Group) {
        self.pages = self.pages.wrapping_add(group.charged_pages());
        group.counters.add_to(&mut self.events);
    }

    /// The statistics of a group that has these sums.
    fn stats_of(&self, group: &Group) -> GroupStats {
        let used = Used {
            bytes: self.pages << PAGE_SHIFT,
            peak_bytes: group.usage.peak_pages() << PAGE_SHIFT,
            swap_bytes: group.swap.pages() << PAGE_SHIFT,
            swap_peak_bytes: group.swap.peak_pages() << PAGE_SHIFT,
        };
        GroupStats::new(used, group.limits.get(), |event| self.events[event.index()])
    }
}
