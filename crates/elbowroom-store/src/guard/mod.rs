//! Guards of managed files: they notice another process that wants a file before that process has it open.
//!
//! The manager caches a file's pages where the kernel does not know them, so another process that uses the
//! file at the same time would see old bytes, or have its own stores overwritten. So while a file is
//! managed it has a [`Guard`]:
//!
//! * **A read lease** (fcntl F_SETLEASE) for a file that no process writes. The kernel refuses the lease if
//!   a process has the file open for writing, and makes a process that opens it for writing, or truncates
//!   it, wait until the lease is given up.
//! * **A watch** (fanotify FAN_OPEN_PERM) for any other. The kernel asks us before another process gets the
//!   file open. Whether a process has it open already is checked when the watch begins ([`Others::look`]).
//!
//! Looking at all processes takes milliseconds, so the result is used again if a file is mapped soon after
//! it was unmapped. In between, the kernel only reports opens, without making them wait (`Opens`). The
//! result includes the highest pid that was looked at: only processes that were made since, which may have
//! inherited the file, are then looked at.
//!
//! A process that comes for the file waits until the file is handed back to the kernel, and then finds it
//! as if it had never been managed. A file without a guard is not managed, unless the user has said that no
//! other process uses the files.
//!
//! One thread, in [`Guards::listen`], gets the kernel's events. It answers those of our own process at
//! once, and puts the others in a queue for another thread ([`Guards::next`]): handing a file back may wait
//! for a thread of the program, which may be in open(2) itself.
//!
//! Synchronization: one mutex, a leaf, around the guards and the queue. A guard leaves the table before its
//! descriptor is closed.

mod fanotify;
mod others;

use crate::calls::Descriptor;
use crate::file::FileId;
use crate::limits;
use crate::origin::Origin;
use elbowroom_machine::Errno;
use elbowroom_sync::time::Duration;
use elbowroom_sync::{Arc, Condvar, LockClass, LockStats, Mutex, OnceLock, thread};
use fanotify::{Answer, Fanotify, Opens};
use others::{Looked, Others};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::fcntl_dupfd_cloexec;
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// How often [`Guards::next`] checks whether it is to end, and the listener checks the leases.
const LOOK: Duration = Duration::from_millis(500);

/// How long the listener waits for a free descriptor before it tries again.
const WAIT_FOR_NUMBER: Duration = Duration::from_millis(1);

/// The most unmapped files that have a mark of `opens`. Each mark keeps an inode in the kernel's memory.
const LEFT_MAX: usize = 64;

/// All guards of a process.
pub struct Guards {
    fanotify: Option<Fanotify>,
    /// Made when a watch first ends: a user can have few fanotify groups (128), and most processes unmap no
    /// file before they end.
    opens: OnceLock<Option<Opens>>,
    others: Others,
    signals: Descriptor,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The thread that gets the signals of leases; 0: none listens.
    listener: i32,
    next: u64,
    guards: HashMap<u64, Entry>,
    waiting: VecDeque<Comer>,
    /// Files whose watch has ended, and which no other process had open at that time. All of them have a
    /// mark of `opens`.
    left: HashMap<FileId, Looked>,
    /// An upper bound of the number of marks of `opens`. It can be more than `left` has: a file that
    /// another process has opened since is no longer in `left`, but still marked.
    marks: usize,
    /// How many threads are reading events of `opens`, which are not yet applied to `left`.
    hearing: usize,
    stop: bool,
}

impl State {
    fn unmark_all(&mut self, opens: &Opens) {
        self.left.clear();
        opens.unmark_all();
        self.marks = 0;
    }
}

struct Entry {
    id: FileId,
    kind: Kind,
    broken: bool,
    /// For a watch: the look that found that no other process had the file.
    looked: Option<Looked>,
}

/// How the kernel tells that another process wants the file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A lease on the descriptor with this number, which is open as long as the guard exists.
    Lease(i32),
    /// The mark of the file's inode, which all watches of it share.
    Watch,
}

/// A process that wants a file that has a guard. Dropping this lets the process go on.
pub struct Comer {
    /// The file.
    pub id: FileId,
    _answer: Option<Answer>,
}

/// Makes other processes wait for a file while it lives. It must be dropped before the descriptor that it
/// was made for is closed.
pub struct Guard {
    guards: Arc<Guards>,
    number: u64,
    watched: Option<Descriptor>,
}

impl std::fmt::Debug for Guard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guard").field("number", &self.number).finish_non_exhaustive()
    }
}

/// Which kinds of guards work here, and if not, why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trials {
    /// Watches.
    pub watch: Result<(), Errno>,
    /// Leases.
    pub lease: Result<(), Errno>,
}

impl Trials {
    /// Tries both on a file that no process has open for writing. The lease ends when `fd` is closed.
    pub fn make(fd: BorrowedFd<'_>) -> Self {
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        Self {
            watch: Fanotify::new().and_then(|fanotify| fanotify.mark(fd)),
            lease: fanotify::take_lease(fd, tid),
        }
    }
}

impl Guards {
    /// An empty table. Guards can be made once a thread is in [`Guards::listen`].
    ///
    /// # Errors
    /// The kernel's, if it gives no signalfd.
    pub fn new(locks: &LockStats) -> Result<Arc<Self>, Errno> {
        Ok(Arc::new(Self {
            fanotify: Fanotify::new().ok(),
            opens: OnceLock::new(),
            others: Others::new(),
            signals: fanotify::signal_descriptor()?,
            state: locks.mutex(LockClass::Guard, State::default()),
            changed: Condvar::new(),
        }))
    }

    /// A guard for a file that we only read through `fd`, which was opened for reading only and must stay
    /// open as long as the guard. `None`: a process has the file open for writing, or the kernel gives no
    /// lease.
    pub fn lease(self: &Arc<Self>, id: FileId, fd: BorrowedFd<'_>) -> Option<Guard> {
        let listener = self.state.lock().listener;
        if listener == 0 || fanotify::take_lease(fd, listener).is_err() {
            return None;
        }
        // A lease that was broken before it was in the table is found by the check that follows.
        let guard = self.enter(&mut self.state.lock(), id, Kind::Lease(fd.as_raw_fd()), None);
        self.look_at_leases();
        Some(guard)
    }

    /// A guard for a file that we may write, which the program has open as `origin`. `None`: another
    /// process has it open, or it cannot be found out whether one has.
    pub fn watch(self: &Arc<Self>, origin: &Origin) -> Option<Guard> {
        let fanotify = self.fanotify.as_ref().filter(|_| limits::is_room(origin.as_fd()))?;
        let watched = limits::open_kept(|| fcntl_dupfd_cloexec(origin.as_fd(), 0)).ok()?;
        // A process that opened the file earlier, and may have closed it, must not break the new watch: its
        // event is taken here.
        self.known(origin.id());
        let guard = {
            // With the lock held, since another watch of the file that ends meanwhile would remove the
            // mark.
            let mut state = self.state.lock();
            fanotify.mark(origin.as_fd()).ok()?;
            self.enter(&mut state, origin.id(), Kind::Watch, Some(watched))
        };
        // From now on a process that opens the file waits for us. This finds processes that have opened it
        // before.
        let looked = self.others.look(origin.id(), self.known(origin.id()))?;
        let mut state = self.state.lock();
        let entry = state.guards.get_mut(&guard.number).filter(|entry| !entry.broken)?;
        entry.looked = looked;
        drop(state);
        Some(guard)
    }

    /// Whether it is known that no other process had the file a moment ago, when its last watch ended.
    pub fn was_alone(&self, id: FileId) -> bool {
        self.state.lock().left.get(&id).is_some_and(Looked::holds)
    }

    /// The last look at a file whose last watch has ended, if it still holds.
    fn known(&self, id: FileId) -> Option<Looked> {
        if !self.was_alone(id) {
            return None;
        }
        self.hear();
        let state = self.state.lock();
        // Events that another thread is reading just now may be about this file.
        state.left.get(&id).copied().filter(|_| state.hearing == 0)
    }

    /// Reads the events of `opens` and applies them.
    fn hear(&self) {
        let Some(Some(opens)) = self.opens.get() else { return };
        self.state.lock().hearing += 1;
        let heard = opens.take_events(|id| self.was_opened(id));
        let mut state = self.state.lock();
        if heard.is_err() {
            state.left.clear();
        }
        state.hearing -= 1;
    }

    /// Notes that another process has opened a file that has a mark of `opens`.
    fn was_opened(&self, id: FileId) {
        let mut state = self.state.lock();
        state.left.remove(&id);
        // The file was opened before the watch began, but its event is read only now: the process may still
        // have the file open, so the watch is broken.
        let mut late = false;
        for entry in state.guards.values_mut().filter(|entry| entry.id == id && entry.kind == Kind::Watch) {
            late |= !entry.broken;
            entry.broken = true;
        }
        if late {
            state.waiting.push_back(Comer { id, _answer: None });
            self.changed.notify_all();
        }
    }

    /// Remembers that no other process has a file open, and marks it in `opens`, which tells if that
    /// changes.
    fn leave(&self, state: &mut State, id: FileId, looked: Looked, file: BorrowedFd<'_>) {
        let Some(Some(opens)) = self.opens.get() else { return };
        if state.marks >= LEFT_MAX {
            // A program that maps so many files one after another will not map one of them again soon.
            state.unmark_all(opens);
        }
        if opens.mark(file).is_ok() && state.left.insert(id, looked).is_none() {
            state.marks += 1;
        }
    }

    /// Forgets the looks at unmapped files once none of them holds any more.
    fn forget(&self) {
        let Some(Some(opens)) = self.opens.get() else { return };
        let mut state = self.state.lock();
        if state.marks == 0 || state.left.values().any(Looked::holds) {
            return;
        }
        state.unmark_all(opens);
        drop(state);
        // An event that is not read keeps its file system from being unmounted.
        self.hear();
    }

    fn enter(
        self: &Arc<Self>,
        state: &mut State,
        id: FileId,
        kind: Kind,
        watched: Option<Descriptor>,
    ) -> Guard {
        state.next += 1;
        let number = state.next;
        state.guards.insert(number, Entry { id, kind, broken: false, looked: None });
        Guard { guards: self.clone(), number, watched }
    }

    /// Reads the kernel's events, until [`Guards::stop`]. One thread calls this; it blocks the signals of
    /// leases for itself.
    pub fn listen(&self) {
        fanotify::block_signal();
        self.state.lock().listener = rustix::thread::gettid().as_raw_nonzero().get();
        self.changed.notify_all();
        while !self.state.lock().stop {
            let timeout = rustix::time::Timespec { tv_sec: 0, tv_nsec: LOOK.subsec_nanos().into() };
            let mut fds = vec![PollFd::new(&self.signals, PollFlags::IN)];
            if let Some(fanotify) = &self.fanotify {
                fds.push(PollFd::new(fanotify, PollFlags::IN));
            }
            // If poll was interrupted, the descriptors are read all the same.
            let quiet = poll(&mut fds, Some(&timeout)) == Ok(0);
            drop(fds);
            if fanotify::take_signals(&self.signals) || quiet {
                self.look_at_leases();
            }
            if let Some(fanotify) = &self.fanotify
                && !fanotify.take_events(|id, answer| self.comes(id, answer))
            {
                thread::sleep(WAIT_FOR_NUMBER);
            }
        }
    }

    /// Waits until a thread listens.
    pub fn wait_for_listener(&self) {
        let mut state = self.state.lock();
        while state.listener == 0 && !state.stop {
            self.changed.wait_timeout(&mut state, LOOK);
        }
    }

    /// Queues another process that is about to open a watched file, and breaks the file's guards.
    fn comes(&self, id: FileId, answer: Answer) {
        let mut state = self.state.lock();
        state.left.remove(&id);
        let mut guarded = false;
        for entry in state.guards.values_mut().filter(|entry| entry.id == id) {
            entry.broken = true;
            guarded = true;
        }
        if guarded {
            state.waiting.push_back(Comer { id, _answer: Some(answer) });
            self.changed.notify_all();
        }
    }

    /// Breaks the leases that a process waits for, and queues them.
    fn look_at_leases(&self) {
        let mut state = self.state.lock();
        let State { guards, waiting, .. } = &mut *state;
        for entry in guards.values_mut().filter(|entry| !entry.broken) {
            let Kind::Lease(fd) = entry.kind else { continue };
            if fanotify::lease_is_wanted(fd) {
                entry.broken = true;
                waiting.push_back(Comer { id: entry.id, _answer: None });
            }
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Waits for the next process that comes for a file. `None` after [`Guards::stop`].
    pub fn next(&self) -> Option<Comer> {
        let mut state = self.state.lock();
        loop {
            if let Some(comer) = state.waiting.pop_front() {
                return Some(comer);
            }
            if state.stop {
                return None;
            }
            self.changed.wait_timeout(&mut state, LOOK);
            drop(state);
            self.forget();
            state = self.state.lock();
        }
    }

    /// Ends [`Guards::listen`] and [`Guards::next`].
    pub fn stop(&self) {
        self.state.lock().stop = true;
        self.changed.notify_all();
    }
}

impl Guard {
    /// Whether another process has come for the file.
    pub fn is_broken(&self) -> bool {
        self.guards.state.lock().guards.get(&self.number).is_none_or(|entry| entry.broken)
    }

    /// Has [`Guards::next`] report once more that a process has come for the file: when it was first
    /// reported, the file could not be found yet.
    pub fn announce_again(&self) {
        let mut state = self.guards.state.lock();
        if let Some(id) = state.guards.get(&self.number).map(|entry| entry.id) {
            state.waiting.push_back(Comer { id, _answer: None });
            self.guards.changed.notify_all();
        }
    }

    /// Whether the guard is a lease: then no process has the file open for writing.
    pub fn is_lease(&self) -> bool {
        self.watched.is_none()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.watched.is_some() {
            // Without the lock held, because this may wait for a free descriptor number.
            self.guards.opens.get_or_init(|| limits::open_briefly(Opens::new).ok());
        }
        let mut state = self.guards.state.lock();
        let Some(gone) = state.guards.remove(&self.number) else { return };
        let more = state.guards.values().any(|entry| entry.id == gone.id && entry.kind == Kind::Watch);
        if let (false, Some(watched), Some(fanotify)) = (more, &self.watched, &self.guards.fanotify) {
            let looked = gone.looked.filter(|looked| !gone.broken && looked.holds());
            if let Some(looked) = looked {
                // Before the watch's mark is removed, so that no open goes unnoticed in between.
                self.guards.leave(&mut state, gone.id, looked, watched.as_fd());
            }
            fanotify.unmark(watched.as_fd());
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
