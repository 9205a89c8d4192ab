//! How a file is kept ours alone: who else wants it is noticed before he has it.
//!
//! The manager caches a file's pages where the kernel does not know them, so another process that uses the
//! file at the same time would see other bytes, or have its own overwritten. So while a file is managed it
//! has a [`Guard`]:
//!
//! * **A read lease** (fcntl F_SETLEASE) for a file that nobody writes. The kernel refuses it where somebody
//!   has the file open for writing, and makes whoever opens it so, or truncates it, wait until the lease is
//!   given up.
//! * **A watch** (fanotify FAN_OPEN_PERM) for any other. The kernel asks us before another process has the
//!   file open. Whether one has it already is asked when the watch begins ([`Others::look`]).
//!
//! To look at all processes takes milliseconds, so what was found is used again if a file is mapped soon
//! after it was unmapped. Until then the kernel only tells of opens, for which nobody waits (`Opens`). With
//! the answer it is known up to which number processes were looked at: who was made since, and may have
//! inherited the file, is looked at alone.
//!
//! Whoever comes waits until the file was handed back to the kernel, and then finds everything as without us.
//! What has no guard is not managed, unless the user says that the files are his alone.
//!
//! One thread, [`Guards::listen`], hears of who comes. It answers for our own process at once, and puts
//! everything else in a queue that another thread works off ([`Guards::next`]): handing back may wait for a
//! thread of the program, which may be in open(2) itself.
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

/// How often [`Guards::next`] looks whether it is to end.
const LOOK: Duration = Duration::from_millis(500);

/// How long the listener waits for a free descriptor before it tries again.
const WAIT_FOR_NUMBER: Duration = Duration::from_millis(1);

/// So many files that were unmapped have a mark of `opens` at most. Each keeps an inode in the kernel's
/// memory.
const LEFT_MAX: usize = 64;

/// All guards of a process.
pub struct Guards {
    fanotify: Option<Fanotify>,
    /// Made when a watch first ends: a user has few groups (128), and most processes unmap no file early.
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
    /// Files whose watch has ended, and which no other process had when it did. All of them have a mark of
    /// `opens`.
    left: HashMap<FileId, Looked>,
    /// At least as many as there are marks of `opens`: those of files that another process has opened since
    /// are not in `left`.
    marks: usize,
    /// Threads that have taken events of `opens` and not yet said what they are.
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
    /// Of a watch: that no other process has the file, and how that is known.
    looked: Option<Looked>,
}

/// What tells of who comes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A lease of the descriptor with this number, which is open as long as the guard is here.
    Lease(i32),
    /// The mark of the file's inode, which all watches of it share.
    Watch,
}

/// Somebody who wants a file that has a guard. Dropping this lets him have it.
pub struct Comer {
    /// The file.
    pub id: FileId,
    _answer: Option<Answer>,
}

/// Keeps a file ours alone while it lives. It must be dropped before the descriptor that it was made for is
/// closed.
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

/// Which guards can be had, and why not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trials {
    /// Watches.
    pub watch: Result<(), Errno>,
    /// Leases.
    pub lease: Result<(), Errno>,
}

impl Trials {
    /// Tries both on a file, which nobody may have open for writing, and which is left as it was once `fd` is
    /// closed.
    pub fn make(fd: BorrowedFd<'_>) -> Self {
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        Self {
            watch: Fanotify::new().and_then(|fanotify| fanotify.mark(fd)),
            lease: fanotify::take_lease(fd, tid),
        }
    }
}

impl Guards {
    /// None yet. Guards can be had once a thread is in [`Guards::listen`].
    ///
    /// # Errors
    /// The kernel's: no descriptor for signals.
    pub fn new(locks: &LockStats) -> Result<Arc<Self>, Errno> {
        Ok(Arc::new(Self {
            fanotify: Fanotify::new().ok(),
            opens: OnceLock::new(),
            others: Others::new(),
            signals: fanotify::signal_descriptor()?,
            state: locks.mutex(LockClass::Queue, State::default()),
            changed: Condvar::new(),
        }))
    }

    /// A guard for a file that we only read through `fd`, which was opened for reading only and must stay
    /// open as long as the guard. `None`: somebody has the file open for writing, or the kernel gives no
    /// lease.
    pub fn lease(self: &Arc<Self>, id: FileId, fd: BorrowedFd<'_>) -> Option<Guard> {
        let listener = self.state.lock().listener;
        if listener == 0 || fanotify::take_lease(fd, listener).is_err() {
            return None;
        }
        // A lease that was broken before it is in the table is found by the look that follows.
        let guard = self.enter(&mut self.state.lock(), id, Kind::Lease(fd.as_raw_fd()), None);
        self.look_at_leases();
        Some(guard)
    }

    /// A guard for a file that we may write, which the program has open as `origin`. `None`: another process
    /// has it open, or that cannot be known here.
    pub fn watch(self: &Arc<Self>, origin: &Origin) -> Option<Guard> {
        let fanotify = self.fanotify.as_ref().filter(|_| limits::is_room(origin.as_fd()))?;
        let watched = limits::open_kept(|| fcntl_dupfd_cloexec(origin.as_fd(), 0)).ok()?;
        // A process that opened the file earlier, and may have closed it, must not break the new watch: its
        // event is taken here.
        self.known(origin.id());
        let guard = {
            // With the lock: a watch that ends meanwhile must not take the mark away.
            let mut state = self.state.lock();
            fanotify.mark(origin.as_fd()).ok()?;
            self.enter(&mut state, origin.id(), Kind::Watch, Some(watched))
        };
        // From now on whoever opens the file waits for us. Who has opened it before, if not just now?
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

    /// What is known still of a file whose last watch has ended.
    fn known(&self, id: FileId) -> Option<Looked> {
        if !self.was_alone(id) {
            return None;
        }
        self.hear();
        let state = self.state.lock();
        // What another thread hears just now may be about this file.
        state.left.get(&id).copied().filter(|_| state.hearing == 0)
    }

    /// Takes note of what `opens` has to tell.
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

    /// Another process has opened a file that has a mark of `opens`.
    fn was_opened(&self, id: FileId) {
        let mut state = self.state.lock();
        state.left.remove(&id);
        // The open came when there was no watch, and its event only now: the process may still have the file.
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

    /// Remembers that no other process has a file, and has `opens` tell if that changes.
    fn leave(&self, state: &mut State, id: FileId, looked: Looked, file: BorrowedFd<'_>) {
        let Some(Some(opens)) = self.opens.get() else { return };
        if state.marks >= LEFT_MAX {
            // A program that maps so many files in turn comes back to none of them soon.
            state.unmark_all(opens);
        }
        if opens.mark(file).is_ok() && state.left.insert(id, looked).is_none() {
            state.marks += 1;
        }
    }

    /// Forgets what is known of files that nobody maps, if it is of no use any more.
    fn forget(&self) {
        let Some(Some(opens)) = self.opens.get() else { return };
        let mut state = self.state.lock();
        if state.marks == 0 || state.left.values().any(Looked::holds) {
            return;
        }
        state.unmark_all(opens);
        drop(state);
        // An event that nobody takes keeps its file system from being unmounted.
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

    /// Hears of who comes, until [`Guards::stop`]. One thread calls this; it has the signals of leases
    /// blocked.
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
            // Interrupted: the descriptors are looked at all the same.
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

    /// Somebody is about to have a watched file open.
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

    /// Looks which leases somebody waits for.
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

    /// The next who comes; waits for one. `None` after [`Guards::stop`].
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
    /// Whether somebody has come for the file.
    pub fn is_broken(&self) -> bool {
        self.guards.state.lock().guards.get(&self.number).is_none_or(|entry| entry.broken)
    }

    /// Has [`Guards::next`] tell once more that somebody has come for the file: when he came it could not be
    /// found yet.
    pub fn announce_again(&self) {
        let mut state = self.guards.state.lock();
        if let Some(id) = state.guards.get(&self.number).map(|entry| entry.id) {
            state.waiting.push_back(Comer { id, _answer: None });
            self.guards.changed.notify_all();
        }
    }

    /// Whether it is a lease: nobody has the file open for writing.
    pub fn is_lease(&self) -> bool {
        self.watched.is_none()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.watched.is_some() {
            // Without the lock: making it may wait for a descriptor's number.
            self.guards.opens.get_or_init(|| limits::open_briefly(Opens::new).ok());
        }
        let mut state = self.guards.state.lock();
        let Some(gone) = state.guards.remove(&self.number) else { return };
        let more = state.guards.values().any(|entry| entry.id == gone.id && entry.kind == Kind::Watch);
        if let (false, Some(watched), Some(fanotify)) = (more, &self.watched, &self.guards.fanotify) {
            let looked = gone.looked.filter(|looked| !gone.broken && looked.holds());
            if let Some(looked) = looked {
                // Before the other mark goes, so that no open is between the two.
                self.guards.leave(&mut state, gone.id, looked, watched.as_fd());
            }
            fanotify.unmark(watched.as_fd());
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
