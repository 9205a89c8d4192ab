//! What was promised to anonymous memory, budget by budget: all of it can be stored to at the same time.
//!
//! A budget keeps at most its limit in memory, so what was promised beyond that has to be in swap: in the
//! swap that the budget, and each one around it, may use. The swap is one file, which all budgets share. Each
//! account has two sums: the least swap that its promises need, and the most that they can use. A promise is
//! made only if the least is not above the most, in each account from the budget's own to the root's.
//!
//! Synchronization: one mutex for all accounts, which is held for moments only, and by a thread that forks. A
//! sum is checked and stored in one step.

use elbowroom::Limits;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The name of an account, which no other one has ever had in this process.
pub type AccountId = u64;

/// What the promises of an account may use, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes of memory.
    pub memory: u64,
    /// Of these, bytes that are kept free if not all of the promises fit into memory, at most all of them: a
    /// page comes in from swap before its place there is free.
    pub reserve: u64,
    /// Bytes of swap.
    pub swap: u64,
    /// Bytes of memory and swap together.
    pub both: u64,
}

/// Sums of the promises of an account and of all inner ones, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Sums {
    promised: u64,
    /// The least swap that they need.
    least_swap: u64,
    /// The most swap that they can use.
    most_swap: u64,
}

#[derive(Debug, Clone, Copy)]
struct Account {
    limits: Limits,
    bounds: Bounds,
    /// Promised, but not by inner accounts.
    own: u64,
    /// Of all inner accounts together.
    inner: Sums,
    /// `None`: this is a root.
    outer: Option<AccountId>,
}

impl Account {
    fn sums(&self) -> Sums {
        let Self { bounds, own, inner, .. } = self;
        let promised = own.saturating_add(inner.promised);
        let beyond = match promised.checked_sub(bounds.memory) {
            None | Some(0) => 0,
            Some(beyond) => beyond.saturating_add(bounds.reserve),
        };
        Sums {
            promised,
            least_swap: beyond.max(inner.least_swap),
            most_swap: own.saturating_add(inner.most_swap).min(bounds.swap),
        }
    }

    fn has_room(&self) -> bool {
        let Sums { promised, least_swap, most_swap } = self.sums();
        least_swap <= most_swap && promised <= self.bounds.both
    }

    /// Puts new sums of one inner account in the place of its old ones.
    fn exchange(&mut self, old: Sums, new: Sums) {
        let exchange = |sum: &mut u64, old: u64, new: u64| *sum = (*sum - old).saturating_add(new);
        exchange(&mut self.inner.promised, old.promised, new.promised);
        exchange(&mut self.inner.least_swap, old.least_swap, new.least_swap);
        exchange(&mut self.inner.most_swap, old.most_swap, new.most_swap);
    }
}

/// The account that has no room for what was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoRoom {
    /// Whether it is the root's.
    pub is_root: bool,
    /// The limits of its budget; the root has none.
    pub limits: Limits,
    /// [`Bounds::reserve`].
    pub reserve: u64,
    /// Bytes that were promised before.
    pub promised: u64,
}

/// All accounts.
#[derive(Debug)]
pub struct Accounts {
    accounts: BTreeMap<AccountId, Account>,
    root: AccountId,
    last: AccountId,
}

static ACCOUNTS: Mutex<Option<Accounts>> = Mutex::new(None);

/// All accounts, locked.
pub struct Locked(MutexGuard<'static, Option<Accounts>>);

impl Locked {
    /// Locks the accounts. A thread that forks holds the lock meanwhile, so that the child's copy is not that
    /// of another thread, which would never unlock it there.
    pub fn new() -> Self {
        Self(ACCOUNTS.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The accounts.
    pub fn accounts(&mut self) -> &mut Accounts {
        self.0.get_or_insert_with(Accounts::new)
    }
}

/// Looks at the accounts, or changes them.
pub fn accounts<R>(look: impl FnOnce(&mut Accounts) -> R) -> R {
    look(Locked::new().accounts())
}

impl Accounts {
    fn new() -> Self {
        let mut new = Self { accounts: BTreeMap::new(), root: 0, last: 0 };
        new.renew();
        new
    }

    /// Makes a root without promises. A child that could not take its parent's manager over may start one of
    /// its own: the budgets and promises that it has copies of count in the old root.
    pub fn renew(&mut self) {
        let none = Bounds { memory: 0, reserve: 0, swap: 0, both: 0 };
        self.root = self.enter(Limits::default(), none, None);
    }

    /// The root of the manager that there is.
    pub fn root(&self) -> AccountId {
        self.root
    }

    /// Opens an account inside of another one.
    pub fn open(&mut self, limits: Limits, bounds: Bounds, outer: AccountId) -> AccountId {
        self.enter(limits, bounds, Some(outer))
    }

    fn enter(&mut self, limits: Limits, bounds: Bounds, outer: Option<AccountId>) -> AccountId {
        self.last += 1;
        self.accounts.insert(self.last, Account { limits, bounds, own: 0, inner: Sums::default(), outer });
        self.last
    }

    /// Closes an account, which has no promises and no inner accounts.
    pub fn close(&mut self, id: AccountId) {
        let closed = self.accounts.remove(&id);
        debug_assert!(closed.is_some_and(|account| account.sums() == Sums::default()));
    }

    /// The limits of an account.
    pub fn limits(&self, id: AccountId) -> Limits {
        self.line(id).next().map(|account| account.limits).unwrap_or_default()
    }

    /// The least `max` of an account and of those around it.
    pub fn least_max(&self, id: AccountId) -> u64 {
        self.line(id).map(|account| account.limits.max).min().unwrap_or(u64::MAX)
    }

    /// Bytes that an account and its inner ones have promised.
    pub fn promised(&self, id: AccountId) -> u64 {
        self.line(id).next().map_or(0, |account| account.sums().promised)
    }

    fn line(&self, id: AccountId) -> impl Iterator<Item = &Account> {
        let outer = |account: &&Account| account.outer.and_then(|outer| self.accounts.get(&outer));
        std::iter::successors(self.accounts.get(&id), outer)
    }

    /// Promises so many bytes more. `root`: what the root may use.
    ///
    /// # Errors
    /// An account has no room for them. Nothing is promised then.
    pub fn promise(&mut self, id: AccountId, bytes: u64, root: Bounds) -> Result<(), NoRoom> {
        self.change(id, root, |account| account.own = account.own.saturating_add(bytes))
    }

    /// Takes back so many bytes that were promised.
    pub fn take_back(&mut self, id: AccountId, bytes: u64) {
        for (id, account) in self.changed(id, |account| account.own -= bytes) {
            self.accounts.insert(id, account);
        }
    }

    /// Changes the limits of an account. `root`: what the root may use.
    ///
    /// # Errors
    /// An account would have no room for what was promised. Nothing is changed then.
    pub fn set_limits(
        &mut self,
        id: AccountId,
        limits: Limits,
        bounds: Bounds,
        root: Bounds,
    ) -> Result<(), NoRoom> {
        self.change(id, root, |account| (account.limits, account.bounds) = (limits, bounds))
    }

    fn change(
        &mut self,
        id: AccountId,
        root: Bounds,
        change: impl FnOnce(&mut Account),
    ) -> Result<(), NoRoom> {
        if let Some(account) = self.accounts.get_mut(&self.root) {
            account.bounds = root;
        }
        let changed = self.changed(id, change);
        if let Some((id, account)) = changed.iter().find(|(_, account)| !account.has_room()) {
            let (is_root, promised) = (account.outer.is_none(), self.promised(*id));
            return Err(NoRoom {
                is_root,
                limits: account.limits,
                reserve: account.bounds.reserve,
                promised,
            });
        }
        self.accounts.extend(changed);
        Ok(())
    }

    /// An account and those around it as they are after a change of that account.
    fn changed(&self, id: AccountId, change: impl FnOnce(&mut Account)) -> Vec<(AccountId, Account)> {
        let mut changed = Vec::new();
        let (mut id, mut next) = (id, self.accounts.get(&id).copied());
        let mut old = next.as_ref().map(Account::sums).unwrap_or_default();
        if let Some(account) = &mut next {
            change(account);
        }
        while let Some(account) = next {
            changed.push((id, account));
            let Some(outer) = account.outer else { break };
            (id, next) = (outer, self.accounts.get(&outer).copied());
            if let Some(outer) = &mut next {
                let before = outer.sums();
                outer.exchange(old, account.sums());
                old = before;
            }
        }
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounds(memory: u64, swap: u64) -> Bounds {
        Bounds { memory, reserve: 0, swap, both: u64::MAX }
    }

    /// Whether each page of three accounts can be in memory or in swap at the same time: all ways are tried.
    fn fits(root: Bounds, outer: Bounds, inner: Bounds, pages: [u64; 3]) -> bool {
        let [in_root, in_outer, in_inner] = pages;
        let holds = |bounds: Bounds, memory: u64, swap: u64| {
            let kept = if memory + swap > bounds.memory { bounds.reserve } else { 0 };
            memory <= bounds.memory - kept && swap <= bounds.swap
        };
        let ways = (0..=in_root).flat_map(|a| (0..=in_outer).map(move |b| (a, b)));
        let mut ways = ways.flat_map(|(a, b)| (0..=in_inner).map(move |c| (a, b, c)));
        ways.any(|(a, b, c)| {
            let (rest_of_outer, rest_of_inner) = (in_outer - b, in_inner - c);
            holds(inner, c, rest_of_inner)
                && holds(outer, b + c, rest_of_outer + rest_of_inner)
                && holds(root, a + b + c, in_root - a + rest_of_outer + rest_of_inner)
        })
    }

    #[test]
    fn a_promise_is_made_exactly_if_it_can_be_kept() {
        let all = || {
            let some = (0..3).flat_map(|memory| (0..3).map(move |swap| bounds(memory, swap)));
            some.chain([Bounds { reserve: 1, ..bounds(2, 2) }, Bounds { reserve: 1, ..bounds(1, 3) }])
        };
        let mut made = 0;
        for (root, outer, inner) in all().flat_map(|a| all().flat_map(move |b| all().map(move |c| (a, b, c))))
        {
            let mut accounts = Accounts::new();
            let outer_id = accounts.open(Limits::default(), outer, accounts.root());
            let inner_id = accounts.open(Limits::default(), inner, outer_id);
            let ids = [accounts.root(), outer_id, inner_id];
            let mut pages = [0; 3];
            // An order in which each account is asked between promises of the others.
            for which in [2, 1, 0, 1, 2, 0, 2, 1] {
                let mut more = pages;
                more[which] += 1;
                let done = accounts.promise(ids[which], 1, root).is_ok();
                assert_eq!(done, fits(root, outer, inner, more), "{root:?} {outer:?} {inner:?} {more:?}");
                if done {
                    pages = more;
                    made += 1;
                }
            }
            assert_eq!(accounts.promised(ids[0]), pages.iter().sum::<u64>());
            for (id, bytes) in ids.into_iter().zip(pages) {
                accounts.take_back(id, bytes);
            }
            assert_eq!(accounts.promised(ids[0]), 0);
            accounts.close(inner_id);
            accounts.close(outer_id);
        }
        assert!(made > 1000, "{made}");
    }

    #[test]
    fn limits_are_changed_only_if_promises_are_kept() {
        let mut accounts = Accounts::new();
        let root = bounds(100, 20);
        let one = accounts.open(Limits::default(), bounds(50, 20), accounts.root());
        let other = accounts.open(Limits::default(), bounds(50, 20), accounts.root());
        accounts.promise(one, 60, root).unwrap();
        let text = |done: Result<(), NoRoom>| done.map_err(|no_room| (no_room.is_root, no_room.promised));
        // Both need the same swap.
        assert_eq!(text(accounts.promise(other, 61, root)), Err((true, 60)));
        accounts.promise(other, 60, root).unwrap();
        let less = Limits { max: 49, ..Limits::default() };
        assert_eq!(text(accounts.set_limits(one, less, bounds(49, 20), root)), Err((true, 120)));
        assert_eq!(accounts.limits(one), Limits::default());
        let both = Bounds { both: 59, ..bounds(50, 20) };
        assert_eq!(text(accounts.set_limits(one, less, both, root)), Err((false, 60)));
        accounts.take_back(other, 1);
        accounts.set_limits(one, less, bounds(49, 20), root).unwrap();
        assert_eq!((accounts.limits(one), accounts.least_max(one)), (less, 49));
    }
}
