//! A memory group of the manager, and what was promised to its mappings (`accounts`).

use crate::accounts::{AccountId, Bounds, Locked, NoRoom, accounts};
use crate::caller::Caller;
use crate::failure::{Failure, Kind};
use crate::house::{self, Capacity, House};
use elbowroom::{Errno, GroupId, GroupStats, Limits};
use elbowroom_machine::PAGE_SIZE;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// The least limit of a budget, in bytes: what a few accesses at a time need.
pub const LEAST_LIMIT: u64 = 1 << 20;

/// Of so many bytes of single pages in memory, and in swap, what describes them has one byte at most.
const IN_MEMORY_PER_DESCRIBED: u64 = 16;
const IN_SWAP_PER_DESCRIBED: u64 = 100;

/// How long a lower limit waits until enough is reclaimed, and the time between two attempts. Pages that a
/// fork shares, or that are being written, go a moment later.
const RECLAIM_BOUND: Duration = Duration::from_secs(2);
const RECLAIM_PAUSE: Duration = Duration::from_millis(10);

/// A group of the manager. Removed when the last owner, mapping and inner group of it is gone.
#[derive(Debug)]
pub struct Budget {
    id: GroupId,
    account: AccountId,
    /// The root account of the manager that has the group.
    root: AccountId,
    outer: Option<Arc<Budget>>,
}

impl Budget {
    /// Makes a group inside of `outer`; `None`: inside of the root.
    ///
    /// # Errors
    /// EINVAL: a limit is too small, or above what it can be. ENOSPC: there are too many groups.
    pub fn create<C: Caller>(
        caller: C,
        house: &'static House,
        limits: Limits,
        outer: Option<Arc<Budget>>,
    ) -> Result<Arc<Self>, C::Error> {
        check(&limits).map_err(|failure| caller.error(failure))?;
        check_manager(outer.as_deref()).map_err(|failure| caller.error(failure))?;
        let parent = outer.as_ref().map_or(GroupId::ROOT, |outer| outer.id);
        let made = house.ask(caller, move |house| {
            house.manager.groups().create(parent, &of_manager(&limits, house)).map(|id| {
                let bounds = bounds_of(&limits, &house.capacity);
                let (root, account) = accounts(|accounts| {
                    let root = accounts.root();
                    let around = outer.as_ref().map_or(root, |outer| outer.account);
                    (root, accounts.open(limits, bounds, around))
                });
                // Dropped, and so removed, if nobody takes the answer.
                Arc::new(Budget { id, account, root, outer })
            })
        })?;
        made.map_err(|errno| {
            caller.error(match errno {
                Errno::NOSPC => Failure {
                    errno: libc::ENOSPC,
                    ..Failure::new(
                        Kind::State,
                        "there are 1,023 budgets already: several mappings can share one".to_owned(),
                    )
                },
                errno => Failure::of(errno, "cannot make a budget"),
            })
        })
    }

    /// The group, for mappings.
    pub fn id(&self) -> GroupId {
        self.id
    }

    /// What the mappings of the budget may have.
    pub fn limits(&self) -> Limits {
        accounts(|accounts| accounts.limits(self.account))
    }

    /// The most bytes of memory that it can have: the least limit of it and of the budgets that it is a part
    /// of.
    pub fn least_limit(&self) -> u64 {
        accounts(|accounts| accounts.least_max(self.account))
    }

    /// Bytes of anonymous memory that were promised, here and in inner groups.
    pub fn promised(&self) -> u64 {
        accounts(|accounts| accounts.promised(self.account))
    }

    /// Changes the limits. If more is in memory, it is reclaimed before this returns.
    ///
    /// # Errors
    /// EINVAL: a limit is too small, or less than was promised. EBUSY: the limits are set, but not enough
    /// could be reclaimed within 2 seconds. ENOTSUP: [`check_manager`].
    pub fn set_limits<C: Caller>(
        &self,
        caller: C,
        house: &'static House,
        limits: Limits,
    ) -> Result<(), C::Error> {
        let checked = check(&limits).and_then(|()| check_manager(Some(self)));
        checked.map_err(|failure| caller.error(failure))?;
        let (id, account) = (self.id, self.account);
        let set = house.ask(caller, move |house| change_limits(house, id, account, limits))?;
        set.map_err(|failure| caller.error(failure))
    }

    /// The statistics of the group, with those of all inner groups.
    ///
    /// # Errors
    /// ENOTSUP: [`check_manager`].
    pub fn stats<C: Caller>(&self, caller: C, house: &'static House) -> Result<GroupStats, C::Error> {
        check_manager(Some(self)).map_err(|failure| caller.error(failure))?;
        let id = self.id;
        let stats = house.ask(caller, move |house| house.manager.groups().stats(id))?;
        stats.map_err(|errno| caller.error(Failure::of(errno, "no such budget")))
    }
}

/// Checks that the manager that runs has the group of a budget. A forked child that could not take the
/// manager over may have started another one, whose groups have the same numbers.
///
/// # Errors
/// ENOTSUP: it was the manager of the process that has forked this one.
pub fn check_manager(budget: Option<&Budget>) -> Result<(), Failure> {
    let root = accounts(|accounts| accounts.root());
    if budget.is_none_or(|budget| budget.root == root) {
        return Ok(());
    }
    let text = "the budget was made before a fork, and this child could not take the manager over";
    Err(Failure { errno: libc::ENOTSUP, ..Failure::new(Kind::State, text.to_owned()) })
}

/// Changes the limits of a group, in a worker.
fn change_limits(house: &House, id: GroupId, account: AccountId, limits: Limits) -> Result<(), Failure> {
    let capacity = &house.capacity;
    let store = |limits: Limits| {
        let (bounds, root) = (bounds_of(&limits, capacity), bounds_of_root(capacity));
        accounts(|accounts| {
            let before = accounts.limits(account);
            accounts.set_limits(account, limits, bounds, root).map(|()| before)
        })
    };
    let before = store(limits).map_err(too_little)?;
    let deadline = Instant::now() + RECLAIM_BOUND;
    loop {
        // Another thread may change the limits meanwhile: the manager has those that were stored last.
        let stored = accounts(|accounts| accounts.limits(account));
        match house.manager.groups().set_limits(id, &of_manager(&stored, house)) {
            Err(Errno::BUSY) if Instant::now() < deadline => thread::sleep(RECLAIM_PAUSE),
            Ok(()) | Err(Errno::BUSY) if accounts(|accounts| accounts.limits(account)) != stored => {}
            Ok(()) => return Ok(()),
            Err(Errno::BUSY) => {
                return Err(Failure::of(
                    Errno::BUSY,
                    "the limit is set, but too little memory could be reclaimed at once (pages are pinned, \
                     or swap is full)",
                ));
            }
            Err(errno) => {
                // An error: memory was promised meanwhile that needs the new limits.
                let _ = store(before);
                return Err(Failure::of(errno, "cannot set the limit"));
            }
        }
    }
}

fn too_little(no_room: NoRoom) -> Failure {
    let text = if no_room.is_root {
        "with this limit the memory of all budgets would need more swap than there is".to_owned()
    } else {
        let (room, promised) = (describe(&no_room), no_room.promised);
        format!("{room} are less than the {promised} bytes that memory of the budget has")
    };
    Failure::new(Kind::Value, text)
}

fn describe(NoRoom { limits, reserve, .. }: &NoRoom) -> String {
    let Limits { max, swap_max, memory_swap_max, .. } = limits;
    let both = match reserve {
        0 => format!("{max} bytes of memory and {swap_max} of swap"),
        _ => format!(
            "{max} bytes of memory ({reserve} of them kept free for pages that come in) and {swap_max} of \
             swap"
        ),
    };
    if *memory_swap_max < max.saturating_add(*swap_max) {
        return format!("{both} ({memory_swap_max} together)");
    }
    both
}

/// The limits as the manager has them. If other processes share the memory, they may have all of it, and all
/// that was promised is in swap.
fn of_manager(limits: &Limits, house: &House) -> Limits {
    let more = if house.capacity.is_shared { limits.max } else { 0 };
    Limits { swap_max: limits.swap_max.saturating_add(more), ..*limits }
}

/// What may be promised by a budget. The manager rounds limits down to whole pages.
fn bounds_of(limits: &Limits, capacity: &Capacity) -> Bounds {
    let pages = |bytes: u64| bytes / PAGE_SIZE as u64 * PAGE_SIZE as u64;
    let Limits { max, swap_max, memory_swap_max, .. } = *limits;
    let (memory, swap, both) = (pages(max), pages(swap_max), pages(memory_swap_max));
    if capacity.is_shared {
        // Other processes may have all of the memory (`of_manager`).
        return Bounds { memory: 0, reserve: 0, swap: swap.saturating_add(memory), both };
    }
    Bounds { memory, reserve: LEAST_LIMIT, swap, both }
}

/// What may be promised by all budgets together. Memory that other processes may have at the moment is no
/// room: all that was promised must fit into swap then.
fn bounds_of_root(capacity: &Capacity) -> Bounds {
    let Capacity { memory, swap, is_shared, .. } = *capacity;
    if is_shared {
        return Bounds { memory: 0, reserve: 0, swap, both: u64::MAX };
    }
    // The memory also has what describes pages (`Config::arena_frames`).
    let described = memory / IN_MEMORY_PER_DESCRIBED + swap / IN_SWAP_PER_DESCRIBED;
    let memory = memory.saturating_sub(LEAST_LIMIT + described);
    Bounds { memory, reserve: LEAST_LIMIT.min(memory), swap, both: u64::MAX }
}

fn check(limits: &Limits) -> Result<(), Failure> {
    let Limits { max, swappiness, .. } = *limits;
    if max < LEAST_LIMIT {
        let text =
            format!("a budget of {max} bytes is too small, at least 1MiB is needed: is a unit missing?");
        return Err(Failure::new(Kind::Value, text));
    }
    if swappiness > 200 {
        return Err(Failure::new(Kind::Value, format!("swappiness is from 0 to 200, not {swappiness}")));
    }
    Ok(())
}

/// Bytes of anonymous memory that a budget has promised, as long as the value lives. All of them can be
/// stored to at the same time: memory that is promised, and then is not there, would end the process at an
/// access.
#[derive(Debug)]
pub struct Promise {
    bytes: u64,
    account: AccountId,
    budget: Option<Arc<Budget>>,
}

impl Promise {
    /// Promises so many bytes, of a budget or, without one, of the root.
    ///
    /// # Errors
    /// ENOMEM: memory and swap of a budget, or those of all budgets together, do not have so much. ENOTSUP:
    /// [`check_manager`].
    pub fn of(house: &House, bytes: u64, budget: Option<&Arc<Budget>>) -> Result<Self, Failure> {
        check_manager(budget.map(Arc::as_ref))?;
        let capacity = &house.capacity;
        let promised = accounts(|accounts| {
            let account = budget.map_or(accounts.root(), |budget| budget.account);
            accounts.promise(account, bytes, bounds_of_root(capacity)).map(|()| account)
        });
        let account = promised.map_err(|no_room| no_room_for(bytes, no_room, capacity))?;
        Ok(Self { bytes, account, budget: budget.cloned() })
    }

    /// Promises so many bytes more.
    ///
    /// # Errors
    /// As for [`Promise::of`]. The promise is as before.
    pub fn grow(&mut self, house: &House, more: u64) -> Result<(), Failure> {
        let mut more = Self::of(house, more, self.budget.as_ref())?;
        self.bytes += std::mem::take(&mut more.bytes);
        Ok(())
    }

    /// Takes back so many bytes, at most what is promised.
    pub fn shrink(&mut self, less: u64) {
        let bytes = less.min(self.bytes);
        self.bytes -= bytes;
        accounts(|accounts| accounts.take_back(self.account, bytes));
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        accounts(|accounts| accounts.take_back(self.account, self.bytes));
    }
}

fn no_room_for(bytes: u64, no_room: NoRoom, capacity: &Capacity) -> Failure {
    let NoRoom { is_root, promised, .. } = no_room;
    let (memory, swap, dir) = (capacity.memory, capacity.swap, capacity.swap_dir.display());
    let text = if !is_root {
        let (room, how) = (describe(&no_room), house::words().swap);
        format!("{bytes} bytes do not fit into a budget of {room}, of which {promised} are in use: {how}")
    } else if capacity.is_shared {
        format!(
            "{bytes} bytes do not fit into the {swap} bytes of swap in {dir}, of which {promised} are \
             promised: other processes share the memory and may need all of it, so memory without a file \
             must fit into swap; {}",
            house::words().shared_swap
        )
    } else {
        format!(
            "{bytes} bytes do not fit into the {memory} bytes of memory and {swap} of swap in {dir} that all \
             mappings of the process have together, with what describes them, and of which {promised} are in \
             use: make room there, or {}",
            house::words().swap_dir
        )
    };
    Failure::new(Kind::Memory, text)
}

impl Drop for Budget {
    fn drop(&mut self) {
        let has_manager = {
            let mut locked = Locked::new();
            let accounts = locked.accounts();
            accounts.close(self.account);
            accounts.root() == self.root
        };
        let Some(house) = house::started().filter(|_| has_manager) else { return };
        let (id, outer) = (self.id, self.outer.take());
        let remove = move |house: &'static House| {
            let groups = house.manager.groups();
            // The group may still pay for cached pages of files that no mapping maps. They are reclaimed, so
            // that the group's entry in the table is free at once.
            if let Ok(stats) = groups.stats(id) {
                let _ = groups.reclaim(id, stats.usage_bytes);
            }
            // An error would be a bug: the group has no inner ones, since they keep it.
            let removed = groups.remove(id);
            debug_assert!(removed.is_ok(), "{removed:?}");
            // Its group may be removed only after this one.
            drop(outer);
        };
        if house::is_worker() { remove(house) } else { drop(house.post(remove)) }
    }
}
