//! The epoch under a model checker: every retired value is dropped as soon as it may be, and the run fails
//! if a guard could still use it then.

use crate::Arc;
use crate::Mutant;
use crate::atomic::{AtomicUsize, Ordering, fence};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::marker::PhantomData;
use std::sync::atomic as plain;
// The model's own books are kept with std's types: they must not be points at which the checker switches
// threads.
use std::sync::{Arc as Plain, Mutex, MutexGuard, PoisonError, Weak};

/// In tests of the tests: retired values are dropped at once.
const MUTANT_NO_GRACE: Mutant = Mutant::new("no_grace");

/// A value that a cell holds or held. The value is dropped with the last owner of the version, so a use
/// after a wrong drop is reported, and never reaches freed memory.
struct Version<T> {
    value: Arc<T>,
    /// How many guards have loaded it and are still pinned.
    users: plain::AtomicUsize,
}

/// A version of any type.
trait Used: Send + Sync {
    fn users(&self) -> &plain::AtomicUsize;
}

impl<T: Send + Sync> Used for Version<T> {
    fn users(&self) -> &plain::AtomicUsize {
        &self.users
    }
}

/// A retired version that waits for its grace period.
struct Retired {
    /// The guards that were pinned when the version was retired and still are.
    awaited: BTreeSet<u64>,
    version: Plain<dyn Used>,
    /// Takes the version out of its cell's books.
    forget: Box<dyn FnOnce() + Send>,
}

#[derive(Default)]
struct Books {
    next_guard: u64,
    pinned: BTreeSet<u64>,
    retired: Vec<Retired>,
}

/// The epoch of one execution.
struct Epoch {
    /// Changed by every unpin and every retirement, so that the checker tries both orders of any two of
    /// them.
    gate: AtomicUsize,
    books: Mutex<Books>,
}

#[cfg(loom)]
loom::lazy_static! {
    static ref EPOCH: Epoch = Epoch { gate: AtomicUsize::new(0), books: Mutex::default() };
}

#[cfg(shuttle)]
shuttle::lazy_static! {
    static ref EPOCH: Epoch = Epoch { gate: AtomicUsize::new(0), books: Mutex::default() };
}

impl Epoch {
    fn books(&self) -> MutexGuard<'_, Books> {
        lock(&self.books)
    }

    /// Drops the versions that wait for no guard. The drops run with the books unlocked, since the checker
    /// may switch threads in them.
    fn reclaim(&self) {
        let ready: Vec<Retired> = {
            let mut books = self.books();
            books.retired.extract_if(.., |retired| retired.awaited.is_empty()).collect()
        };
        for Retired { version, forget, .. } in ready {
            forget();
            if version.users().load(plain::Ordering::Relaxed) > 0 {
                used_after_grace_period();
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn used_after_grace_period() {
    if !std::thread::panicking() {
        panic!("a value is used after its grace period");
    }
}

/// A read-side section: while it lives, nothing that this thread can load from an [`ArcCell`] is dropped.
pub struct Guard {
    number: u64,
    /// Every version that was loaded under this guard, kept so that its references stay valid whatever
    /// happens.
    loaded: RefCell<Vec<Plain<dyn Used>>>,
    not_send: PhantomData<*const ()>,
}

/// Begins a read-side section, which ends when the guard is dropped.
pub fn pin() -> Guard {
    let epoch: &Epoch = &EPOCH;
    let number = {
        let mut books = epoch.books();
        books.next_guard += 1;
        let number = books.next_guard;
        books.pinned.insert(number);
        number
    };
    fence(Ordering::SeqCst);
    Guard { number, loaded: RefCell::default(), not_send: PhantomData }
}

impl Guard {
    /// Does nothing in the model: values are dropped as soon as they may be.
    pub fn flush(&self) {}

    fn retire(&self, version: Plain<dyn Used>, forget: Box<dyn FnOnce() + Send>) {
        let epoch: &Epoch = &EPOCH;
        fence(Ordering::SeqCst);
        epoch.gate.fetch_add(1, Ordering::AcqRel);
        {
            let mut books = epoch.books();
            let awaited = if MUTANT_NO_GRACE.planted() { BTreeSet::new() } else { books.pinned.clone() };
            books.retired.push(Retired { awaited, version, forget });
        }
        epoch.reclaim();
    }

    /// Notes that `version` is in use until this guard is dropped.
    fn keep<T: Send + Sync + 'static>(&self, version: Plain<Version<T>>) -> &T {
        let value: *const T = &*version.value;
        version.users.fetch_add(1, plain::Ordering::Relaxed);
        self.loaded.borrow_mut().push(version);
        // SAFETY: `value` points into the heap, owned by the version's `Arc`, and the version is in `loaded`,
        // which only grows until the guard is dropped; the result borrows the guard.
        unsafe { &*value }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The run has failed and the checker may be gone; a second panic would hide the first.
            return;
        }
        let epoch: &Epoch = &EPOCH;
        let loaded = self.loaded.take();
        for version in &loaded {
            version.users().fetch_sub(1, plain::Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
        epoch.gate.fetch_add(1, Ordering::AcqRel);
        {
            let mut books = epoch.books();
            books.pinned.remove(&self.number);
            for retired in &mut books.retired {
                retired.awaited.remove(&self.number);
            }
        }
        drop(loaded);
        epoch.reclaim();
    }
}

/// Every version of a cell that a reader may find, by its number.
type Versions<T> = Mutex<BTreeMap<usize, Plain<Version<T>>>>;

/// An optional `Arc` that readers load without touching its count.
pub struct ArcCell<T> {
    /// The number of the version that is current; 0 for none.
    current: AtomicUsize,
    next: plain::AtomicUsize,
    versions: Plain<Versions<T>>,
}

impl<T: Send + Sync + 'static> ArcCell<T> {
    /// A cell that holds nothing.
    pub fn empty() -> Self {
        Self { current: AtomicUsize::new(0), next: plain::AtomicUsize::new(1), versions: Plain::default() }
    }

    /// A cell that holds `value`.
    pub fn new(value: Arc<T>) -> Self {
        let mut cell = Self::empty();
        cell.current = AtomicUsize::new(cell.enter(Some(value)));
        cell
    }

    /// The value as it is now, valid as long as both the guard and the cell are.
    ///
    /// # Panics
    /// If the value is past its grace period.
    pub fn load<'g>(&'g self, guard: &'g Guard) -> Option<&'g T> {
        Some(guard.keep(self.current()?))
    }

    /// Another handle on the value as it is now, valid without a guard.
    pub fn load_arc(&self, _guard: &Guard) -> Option<Arc<T>> {
        Some(self.current()?.value.clone())
    }

    /// Publishes `value`; the cell's handle on the old one is dropped after a grace period.
    pub fn store(&self, value: Option<Arc<T>>, guard: &Guard) {
        drop(self.swap(value, guard));
    }

    /// As [`store`](Self::store), and returns an extra handle on the old value.
    pub fn swap(&self, value: Option<Arc<T>>, guard: &Guard) -> Option<Arc<T>> {
        let old = self.current.swap(self.enter(value), Ordering::AcqRel);
        let version = lock(&self.versions).get(&old).cloned()?;
        let handle = version.value.clone();
        guard.retire(version, Box::new(self.forgetting(old)));
        Some(handle)
    }

    /// A function that takes version `number` out of the cell's books, if the cell still exists.
    fn forgetting(&self, number: usize) -> impl FnOnce() + Send + 'static {
        let versions: Weak<Versions<T>> = Plain::downgrade(&self.versions);
        move || {
            if let Some(versions) = versions.upgrade() {
                let forgotten = lock(&versions).remove(&number);
                drop(forgotten);
            }
        }
    }

    /// As [`store`](Self::store) of `value`, but the old value goes to `limbo`, and back to the writer
    /// after a grace period.
    pub fn store_reusing(&self, value: Arc<T>, limbo: &mut Limbo<T>, guard: &Guard) {
        let old = self.current.swap(self.enter(Some(value)), Ordering::AcqRel);
        // A statement of its own: the books must not be locked where the checker may switch threads.
        let version = lock(&self.versions).get(&old).cloned();
        if let Some(version) = version {
            let over = Plain::new(plain::AtomicBool::new(false));
            if limbo.keep > 0 {
                limbo.waiting.push_back((over.clone(), version.clone()));
            }
            let forget = self.forgetting(old);
            guard.retire(
                version,
                Box::new(move || {
                    forget();
                    over.store(true, plain::Ordering::Relaxed);
                }),
            );
        }
    }

    /// Takes the value out of a cell that no other thread can use, so that no grace period is needed.
    pub fn take(&mut self) -> Option<Arc<T>> {
        let old = self.current.swap(0, Ordering::AcqRel);
        let version = lock(&self.versions).remove(&old)?;
        Some(version.value.clone())
    }

    /// Enters `value` into the books as a version that will become current, and returns its number.
    fn enter(&self, value: Option<Arc<T>>) -> usize {
        let Some(value) = value else { return 0 };
        let number = self.next.fetch_add(1, plain::Ordering::Relaxed);
        let version = Plain::new(Version { value, users: plain::AtomicUsize::new(0) });
        lock(&self.versions).insert(number, version);
        number
    }

    fn current(&self) -> Option<Plain<Version<T>>> {
        let number = self.current.load(Ordering::Acquire);
        let version = lock(&self.versions).get(&number).cloned();
        if number != 0 && version.is_none() {
            used_after_grace_period();
        }
        version
    }
}

impl<T: Send + Sync + 'static> Default for ArcCell<T> {
    fn default() -> Self {
        Self::empty()
    }
}

/// Takes the values that a writer removes from [`ArcCell`]s, and gives them back to it after a grace
/// period.
pub struct Limbo<T: Send + Sync + 'static> {
    /// Whether the grace period is over, and the version.
    waiting: VecDeque<(Plain<plain::AtomicBool>, Plain<Version<T>>)>,
    keep: usize,
}

impl<T: Send + Sync + 'static> Limbo<T> {
    /// An empty limbo. In the model it keeps all values for reuse, or none if `keep` is 0.
    pub const fn new(keep: usize) -> Self {
        Self { waiting: VecDeque::new(), keep }
    }

    /// Does nothing in the model: values are dropped as soon as they may be.
    pub fn collect(&mut self) {}

    /// A value that was retired here and that no guard can reach any more, if there is one.
    pub fn reuse(&mut self) -> Option<Arc<T>> {
        let at = self.waiting.iter().position(|(over, _)| over.load(plain::Ordering::Relaxed))?;
        let (_, version) = self.waiting.remove(at)?;
        if version.users.load(plain::Ordering::Relaxed) > 0 {
            used_after_grace_period();
        }
        Plain::into_inner(version).map(|version| version.value)
    }
}
