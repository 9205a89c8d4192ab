//! What the processes of a tree of forks share.
//!
//! The processes that forked and did nothing more are counted, since nothing is managed in them: every fork
//! counts one, and a forked process that executes a program or gets a manager counts itself out. The
//! counter is in memory that all of them share; a program that is executed starts its own. The memory also
//! lists executed programs that cannot be managed, so that each is reported once.
//!
//! A fork that copies the manager is on trial until the child has it: the child says what came of it in one
//! of [`TRIALS`] words, and its parent waits for that before anything of the program's runs in the child.
//!
//! Synchronization: atomics. A trial's word is set to a verdict by the parent or the child, whichever is
//! first.

use super::state;
use super::sys::{self, PAGE};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};

/// In memory that all processes of the tree share. All zero is the start.
#[repr(C)]
struct Shared {
    /// The number of processes that were forked and neither executed a program nor got a manager.
    only_forked: AtomicI64,
    /// Forks that took too long to be made while a manager rested.
    late_forks: AtomicI64,
    /// Programs that processes of the tree executed, and of which nothing is managed.
    unmanaged: [Unmanaged; UNMANAGED],
    /// Forks on trial: [`FREE`], [`UNDER_WAY`], or a [`Verdict`].
    trials: [AtomicU32; TRIALS],
}

/// How many forks of a tree can be on trial at once. Further forks are made without a trial.
const TRIALS: usize = 64;
const FREE: u32 = 0;
const UNDER_WAY: u32 = 1;

/// What came of the copy of a manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Verdict {
    /// The child goes on with it.
    GoesOn = 2,
    /// The child can start no threads, which may be otherwise later.
    NoThreads = 3,
    /// The child is denied something that a manager needs.
    Denied = 4,
    /// The child was gone, or said nothing in time.
    Silent = 5,
    /// The child has no memory, descriptors or disk for a manager, which may be otherwise later.
    NoRoom = 6,
    /// The manager did not rest any more when the child was made.
    NotWhole = 7,
}

impl Verdict {
    /// The verdict with this number.
    pub fn of(number: u32) -> Option<Self> {
        use Verdict::*;

        let all = [GoesOn, NoThreads, Denied, Silent, NoRoom, NotWhole];
        all.into_iter().find(|verdict| *verdict as u32 == number)
    }
}

/// A fork on trial.
#[derive(Debug, Clone, Copy)]
pub struct Trial(usize);

impl Trial {
    /// In the parent, before the fork: takes a free word. `None`: there is none.
    pub fn begin() -> Option<Self> {
        let free = |word: &AtomicU32| {
            word.compare_exchange(FREE, UNDER_WAY, Ordering::AcqRel, Ordering::Acquire).is_ok()
        };
        shared()?.trials.iter().position(free).map(Self)
    }

    fn word(self) -> Option<&'static AtomicU32> {
        shared().map(|shared| &shared.trials[self.0])
    }

    /// Gives a verdict. `false`: the other process has given one.
    pub fn give(self, verdict: Verdict) -> bool {
        let Some(word) = self.word() else { return false };
        let first =
            word.compare_exchange(UNDER_WAY, verdict as u32, Ordering::AcqRel, Ordering::Acquire).is_ok();
        sys::futex_wake_shared(word.as_ptr(), 1);
        first
    }

    /// In the parent: the verdict, if it comes within the time, in milliseconds.
    pub fn wait(self, timeout_ms: u32) -> Option<Verdict> {
        let word = self.word()?;
        if word.load(Ordering::Acquire) == UNDER_WAY {
            sys::futex_wait_shared(word, UNDER_WAY, timeout_ms);
        }
        Verdict::of(word.load(Ordering::Acquire))
    }

    /// In the parent, at the end: frees the word. The child does not look at it any more.
    pub fn end(self) {
        if let Some(word) = self.word() {
            word.store(FREE, Ordering::Release);
        }
    }
}

/// How many programs of which nothing is managed are told apart; further ones are not noted.
const UNMANAGED: usize = 16;

/// A program of which nothing is managed.
#[repr(C)]
struct Unmanaged {
    /// The device and inode of its file, mixed; 0: the entry is free.
    key: AtomicU64,
    /// Why nothing is managed, as a number of the caller's.
    why: AtomicU32,
    /// [`NAMED`] once the name is whole, [`SAID`] once it was said.
    state: AtomicU32,
    /// The name, as far as there is room, and zeros.
    name: [AtomicU8; 48],
}

const NAMED: u32 = 1;
const SAID: u32 = 2;

static SHARED: AtomicPtr<Shared> = AtomicPtr::new(std::ptr::null_mut());
/// This process is one of those that only forked.
static IS_ONLY_FORKED: AtomicBool = AtomicBool::new(false);

/// Maps the memory that the processes share. Called by the constructor.
pub fn set_up() {
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping, wherever the kernel puts it.
    let page = unsafe { sys::mmap(std::ptr::null_mut(), PAGE, prot, flags, -1, 0) };
    if page != libc::MAP_FAILED {
        SHARED.store(page.cast(), Ordering::Release);
    }
}

fn shared() -> Option<&'static Shared> {
    // SAFETY: null, or the page of `set_up`, which is never unmapped; all of it is atomics.
    unsafe { SHARED.load(Ordering::Acquire).as_ref() }
}

/// How many forks of this tree took longer than the manager could rest for them. The child of such a fork
/// has a torn copy of the manager; it knows by the changed number.
pub fn late_forks() -> i64 {
    shared().map_or(1, |shared| shared.late_forks.load(Ordering::SeqCst))
}

/// Counts a fork that takes too long.
pub fn note_late() {
    if let Some(shared) = shared() {
        shared.late_forks.fetch_add(1, Ordering::SeqCst);
    }
}

/// Notes a program that is executed and of which nothing is managed, for [`say_unmanaged`]: once for each
/// file in the tree.
pub fn note_unmanaged(device: u64, inode: u64, why: u32, name: &[u8]) {
    let Some(shared) = shared() else { return };
    let key = device.rotate_left(40) ^ inode | 1 << 63;
    for slot in &shared.unmanaged {
        match slot.key.compare_exchange(0, key, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                slot.why.store(why, Ordering::Relaxed);
                for (to, from) in slot.name.iter().zip(name) {
                    to.store(*from, Ordering::Relaxed);
                }
                slot.state.store(NAMED, Ordering::Release);
                return;
            }
            Err(other) if other == key => return,
            Err(_) => {}
        }
    }
}

/// Calls `say` with the name and the reason of each program that was noted and not reported yet. A program
/// for which `say` gives `false` is left to another process of the tree.
pub fn say_unmanaged(say: impl Fn(&str, u32) -> bool) {
    for slot in shared().iter().flat_map(|shared| &shared.unmanaged) {
        if slot.state.compare_exchange(NAMED, SAID, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            let mut name = [0; 48];
            name.iter_mut().zip(&slot.name).for_each(|(to, from)| *to = from.load(Ordering::Relaxed));
            let len = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
            let text = std::str::from_utf8(&name[..len]).unwrap_or("?");
            if !say(text, slot.why.load(Ordering::Relaxed)) {
                slot.state.store(NAMED, Ordering::Release);
            }
        }
    }
}

fn count(change: i64) {
    if let Some(shared) = shared() {
        shared.only_forked.fetch_add(change, Ordering::AcqRel);
    }
}

/// How many processes of this tree were forked, and then neither executed a program nor got a manager. A
/// child that is about to do so counts until it has.
pub fn unmanaged_children() -> u64 {
    shared().map_or(0, |shared| shared.only_forked.load(Ordering::Acquire).try_into().unwrap_or(0))
}

/// Counts this process, which was forked and has no manager.
pub fn only_forked() {
    count(1);
    IS_ONLY_FORKED.store(true, Ordering::Release);
}

/// Counts this process out, since it has a manager now.
pub fn now_managed() {
    leave();
}

/// Counts this process out, since it is about to execute a program. The result is for [`came_back`].
pub fn about_to_exec() -> bool {
    leave()
}

/// Counts this process again, if [`about_to_exec`] has counted it out: the program was not executed.
pub fn came_back(left: bool) {
    if left {
        IS_ONLY_FORKED.store(true, Ordering::Release);
        count(1);
    }
}

/// Counts this process out, unless it is a child that shares its parent's memory (vfork): then the count is
/// for the parent. Tells whether it was counted.
fn leave() -> bool {
    let left = IS_ONLY_FORKED.load(Ordering::Acquire)
        && state::process().is_some_and(|process| process.is_home())
        && IS_ONLY_FORKED.swap(false, Ordering::AcqRel);
    if left {
        count(-1);
    }
    left
}
