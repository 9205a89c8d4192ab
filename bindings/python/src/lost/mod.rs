//! Accesses whose bytes cannot be had: the file ends before them, or its disk fails. The kernel raises
//! SIGBUS, with the manager as without, and we make an exception of it.
//!
//! A C loop that computes on an array cannot be left in the middle. So the handler of the signal (`signal`)
//! has the page show zeros, and the loop goes on; before that, it has the interpreter raise an exception in
//! the thread of the access at its next look. Two threads do for the handler what it cannot do itself:
//!
//! * the shower knows the mappings, and has a page show zeros. It hides them again after a moment, so that
//!   other threads do not read them: an access that comes later raises the signal again.
//! * the teller waits for the interpreter's lock, and has threads raise the exception that do not hold it.
//!   A thread that the interpreter does not know (of BLAS, for example) works for one that it does know.
//!   Which one is not known, and all that may be are told.
//!
//! `desk` is how the handler asks the two, `spans` how it knows which addresses are ours.
//!
//! Synchronization: what is known is under one mutex, which is held for moments, and over a fork.

mod desk;
mod signal;
mod spans;

use crate::interpreter::Interpreter;
use desk::Desk;
use elbowroom::{FileId, ZerosInstead};
use elbowroom_house::caller::Caller;
use elbowroom_house::failure::Failure;
use elbowroom_house::fork::AtFork;
use elbowroom_house::house::{self, House};
use elbowroom_machine::PAGE_SIZE;
use pyo3::prelude::*;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::panic::catch_unwind;
use std::path::PathBuf;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bits of a question, above the address. `LOOK_AT`: is the address in a mapping of ours, and why do accesses
/// to it fail? The reason becomes the note of the thread.
const LOOK_AT: usize = 1 << 62;
/// The page of the address is to show zeros.
const SHOW: usize = 1 << 63;
/// All pages that show zeros are to stop; the address is 0.
const HIDE: usize = LOOK_AT | SHOW;
const ADDRESS: usize = LOOK_AT - 1;
/// Answers.
const NO: u32 = 0;
const YES: u32 = 1;

/// How long an access waits for the shower's answer. A fork stops the shower for at most half of that.
const SHOW_BOUND: Duration = Duration::from_secs(30);
/// How long an access waits until its thread is told. A thread that holds the interpreter's lock for longer
/// may wait for this very access: then the exception comes later.
const TELL_BOUND: Duration = Duration::from_secs(10);
/// How long an access waits at most if another one has waited in vain less than [`IMPATIENT`] ago.
const TELL_BOUND_AGAIN: Duration = Duration::from_millis(100);
/// How long a wait in vain makes the waits after it shorter: the program may do the same again.
const IMPATIENT: Duration = Duration::from_secs(60);
/// How long zeros are shown at first. An access that was not made again meanwhile raises the signal again,
/// and has twice the time.
const SHOWN: Duration = Duration::from_millis(1);
/// How long they are shown at most.
const SHOWN_MOST: Duration = Duration::from_millis(256);
/// How many bytes show zeros at a time at most, if an access follows on others that were shown zeros.
const MOST_SHOWN: usize = 64 * PAGE_SIZE;
/// How long after the end of a showing the shower remembers its length, so that the next showing of that page
/// is twice as long.
const REMEMBERED: Duration = Duration::from_millis(200);
/// A thread's note is kept over later failures in the same file until it is this old, since the first failure
/// tells where the trouble began.
const NOTE_AGE: Duration = Duration::from_secs(10);

static SHOWER: Desk = Desk::new();
static TELLER: Desk = Desk::new();

/// The class of the exception.
static ERROR: AtomicPtr<pyo3::ffi::PyObject> = AtomicPtr::new(null_mut());
/// The function that says which threads may have asked others to work for them.
static CHOOSE: Mutex<Option<Py<PyAny>>> = Mutex::new(None);
/// This process has the two threads.
static SERVING: AtomicBool = AtomicBool::new(false);
/// This process has the shower. If the teller could not be started, the next mapping starts it alone.
static HAS_SHOWER: AtomicBool = AtomicBool::new(false);
/// This process has the teller.
static HAS_TELLER: AtomicBool = AtomicBool::new(false);

/// The file of a mapping.
#[derive(Debug, Clone)]
pub struct FileOf {
    /// Its name when it was mapped.
    pub path: PathBuf,
    /// Which file it is.
    pub id: FileId,
    /// Where in it the mapping begins, in bytes.
    pub offset: u64,
}

/// What stores to a mapping do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rights {
    /// They are not permitted.
    Read,
    /// They reach the file.
    Write,
    /// They stay in the mapping.
    Copy,
}

/// A mapping, as long as this value lives.
pub struct Known {
    start: usize,
}

struct Place {
    end: usize,
    span: usize,
    writable: bool,
    /// Stores stay in the mapping.
    private: bool,
    /// `None`: memory.
    file: Option<FileOf>,
}

/// Why an access failed.
#[derive(Debug, Clone)]
struct Note {
    errno: i32,
    text: String,
    path: Option<PathBuf>,
    offset: Option<u64>,
    at: Instant,
}

/// Pages that show zeros.
struct Shown {
    pages: Range<usize>,
    /// The thread of the access.
    thread: usize,
    /// Where the kernel's mapping of the pages is meanwhile; `None`: the manager shows the zeros.
    aside: Option<usize>,
    until: Instant,
}

#[derive(Default)]
struct State {
    places: BTreeMap<usize, Place>,
    /// Places of `spans` that are empty.
    free: Vec<usize>,
    /// By thread, as the interpreter knows it.
    notes: HashMap<usize, Note>,
    shown: Vec<Shown>,
    /// Pages that were shown lately: until when, and for how long.
    lately: Vec<(usize, Instant, Duration)>,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);

/// All mappings, notes and shown pages of the process. A thread that forks holds the lock until the fork is
/// made.
struct Locked(MutexGuard<'static, Option<State>>);

impl Locked {
    fn lock() -> Self {
        Self(STATE.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn state(&mut self) -> &mut State {
        self.0.get_or_insert_default()
    }
}

fn locked<R>(look: impl FnOnce(&mut State) -> R) -> R {
    look(Locked::lock().state())
}

impl State {
    /// The mapping that an address is in, with its first address.
    fn place(&self, address: usize) -> Option<(usize, &Place)> {
        let (start, place) = self.places.range(..=address).next_back()?;
        (address < place.end).then_some((*start, place))
    }

    /// Chooses how long the page shows zeros now: twice as long as last time, if that was lately.
    fn time_for(&mut self, page: usize, now: Instant) -> Duration {
        self.lately.retain(|(_, until, _)| *until + REMEMBERED > now);
        let before = self.lately.iter().find(|(at, ..)| *at == page);
        let time = before.map_or(SHOWN, |(.., time)| (*time * 2).min(SHOWN_MOST));
        self.lately.retain(|(at, ..)| *at != page);
        self.lately.push((page, now + time, time));
        time
    }
}

impl Known {
    /// Makes a mapping known, from the first access on. `file`: `None` for memory.
    ///
    /// # Errors
    /// OSError: the handler of signals, or a thread, cannot be set up.
    pub fn new(py: Python<'_>, range: Range<usize>, rights: Rights, file: Option<FileOf>) -> PyResult<Self> {
        let caller = Interpreter(py);
        let failed = |error: io::Error| {
            caller.error(Failure::of_io(&error, "cannot make errors of accesses exceptions"))
        };
        let house = house::house(caller)?;
        if !SERVING.load(Ordering::Acquire) {
            house.ask(caller, begin)?.map_err(failed)?;
        }
        let mut locked = Locked::lock();
        // Each time: the program may have put another handler there since.
        signal::stand_in_front().map_err(failed)?;
        let state = locked.state();
        // Without a place the signal ends the process, as it does without us.
        let span = spans::enter(&range, state.free.pop()).unwrap_or(usize::MAX);
        state.places.insert(
            range.start,
            Place {
                end: range.end,
                span,
                writable: rights != Rights::Read,
                private: rights == Rights::Copy,
                file,
            },
        );
        Ok(Self { start: range.start })
    }
}

impl Drop for Known {
    fn drop(&mut self) {
        locked(|state| {
            let Some(place) = state.places.remove(&self.start) else { return };
            if place.span != usize::MAX {
                spans::clear(place.span);
                state.free.push(place.span);
            }
            let range = self.start..place.end;
            state.shown.retain(|shown| {
                let gone = range.contains(&shown.pages.start);
                if let (true, Some(aside)) = (gone, shown.aside) {
                    // SAFETY: it was put there by `show_by_kernel`, for a mapping that nobody uses any more.
                    unsafe { libc::munmap(aside as *mut _, shown.pages.len()) };
                }
                // Pages that the manager shows stay listed: hiding them later undoes denials, which are made
                // again where another mapping needs them.
                !(gone && shown.aside.is_some())
            });
        });
    }
}

/// Starts the two threads, in a worker, whose file table they get.
///
/// # Errors
/// The system has no room for a thread.
fn begin(house: &'static House) -> io::Result<()> {
    start(&HAS_SHOWER, "elbowroom-bus", move || {
        loop {
            house.manager.serve("elbowroom-bus", || serve(house));
        }
    })?;
    start(&HAS_TELLER, "elbowroom-tell", || {
        loop {
            TELLER.serve(None, |[thread, is_known]| {
                // What panics here has told nobody, and the next question has its own answer.
                catch_unwind(|| tell(thread, is_known == 1)).unwrap_or(NO)
            });
        }
    })?;
    // Another thread may be about to start one, and fail.
    let has_both = HAS_SHOWER.load(Ordering::Acquire) && HAS_TELLER.load(Ordering::Acquire);
    SERVING.store(has_both, Ordering::Release);
    Ok(())
}

/// Starts a thread, unless the process has it.
///
/// # Errors
/// The system has no room for a thread.
fn start(has: &AtomicBool, name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    if has.swap(true, Ordering::AcqRel) {
        return Ok(());
    }
    house::spawn(name, body).inspect_err(|_| {
        has.store(false, Ordering::Release);
        SERVING.store(false, Ordering::Release);
    })
}

thread_local! {
    /// Held over the fork.
    static KNOWN: RefCell<Option<Locked>> = const { RefCell::new(None) };
}

/// What is done at a fork.
pub static AT_FORK: AtFork = AtFork {
    before: || KNOWN.set(Some(Locked::lock())),
    in_parent: || drop(KNOWN.take()),
    in_child,
    with_manager: begin,
    without_manager: hide_all,
};

/// The child has none of the threads, and its only thread has asked for nothing.
fn in_child() {
    KNOWN.take();
    for flag in [&SERVING, &HAS_SHOWER, &HAS_TELLER] {
        flag.store(false, Ordering::Release);
    }
    SHOWER.forget();
    TELLER.forget();
}

/// In a forked child without a manager: hides what the kernel shows.
fn hide_all() {
    locked(|state| {
        state.shown.retain(|shown| !shown.aside.is_some_and(|aside| hide_by_kernel(&shown.pages, aside)))
    });
}

/// One round of the shower.
fn serve(house: &House) {
    let next = locked(|state| state.shown.iter().map(|shown| shown.until).min());
    SHOWER.serve(next, |[question, thread]| {
        let address = question & ADDRESS;
        match question & !ADDRESS {
            LOOK_AT => u32::from(look_at(house, address, thread)),
            SHOW => u32::from(show(house, address, thread)),
            HIDE => u32::from(hide(house, |_| true)),
            _ => NO,
        }
    });
    if next.is_some() {
        let now = Instant::now();
        hide(house, |shown| shown.until <= now);
    }
}

/// Whether an address is ours; notes for its thread what is wrong there.
fn look_at(house: &House, address: usize, thread: usize) -> bool {
    let Some((start, file)) =
        locked(|state| state.place(address).map(|(start, place)| (start, place.file.clone())))
    else {
        return false;
    };
    let note = match file {
        None => Note {
            errno: libc::EIO,
            text: format!(
                "memory of an array cannot be had: the swap file in {} cannot be read, or there is no room",
                house.capacity.swap_dir.display()
            ),
            path: None,
            offset: None,
            at: Instant::now(),
        },
        Some(file) => {
            let offset = file.offset + (address - start) as u64;
            let page = offset / PAGE_SIZE as u64 * PAGE_SIZE as u64;
            let (errno, text) = match size_of(house, &file) {
                Some(size) if size <= page => {
                    (libc::ENXIO, format!("the file was cut to {size} bytes, and byte {offset} was accessed"))
                }
                _ => (libc::EIO, format!("the file cannot be read at byte {offset}")),
            };
            Note { errno, text, path: Some(file.path), offset: Some(offset), at: Instant::now() }
        }
    };
    locked(|state| add_note(state, thread, note));
    true
}

fn add_note(state: &mut State, thread: usize, note: Note) {
    match state.notes.get(&thread) {
        Some(before) if before.path == note.path && before.at.elapsed() < NOTE_AGE => {}
        _ => _ = state.notes.insert(thread, note),
    }
}

/// How long a file is now, in bytes, if that is known.
fn size_of(house: &House, file: &FileOf) -> Option<u64> {
    let stat = std::fs::metadata(&file.path).ok();
    let same = stat.filter(|stat| (FileId { device: stat.dev(), inode: stat.ino() }) == file.id);
    same.map(|stat| stat.len()).or_else(|| house.manager.find(file.id).map(|object| object.size()))
}

/// Has the page of a failing access show zeros. If the thread comes from the page before, following pages
/// beyond the end of the file do, too.
fn show(house: &House, address: usize, thread: usize) -> bool {
    let page = address / PAGE_SIZE * PAGE_SIZE;
    let now = Instant::now();
    let follows = locked(|state| {
        let own = state.shown.iter().filter(|shown| shown.thread == thread);
        own.map(|shown| shown.pages.clone()).find(|pages| pages.end == page)
    });
    if let Some(last) = &follows {
        // What the thread has passed is hidden at once, so that another thread that goes the same way does
        // not find zeros all along. The last one stays: one instruction may access both.
        hide(house, |shown| shown.thread == thread && shown.pages.end == last.start);
    }
    if house.manager.windows().covers(page, PAGE_SIZE) {
        let shown = {
            let _working = house.manager.work();
            ZerosInstead::of(house.manager).show(page)
        };
        return match shown {
            // It can be accessed by now, or waits for the manager.
            Ok(0) => true,
            Ok(count) => locked(|state| {
                let until = now + state.time_for(page, now);
                state.shown.push(Shown { pages: page..page + count * PAGE_SIZE, thread, aside: None, until });
                true
            }),
            Err(_) => false,
        };
    }
    // Asks the file, without the lock.
    let beyond = locked(|state| state.place(page).map(|(start, place)| (start, place.file.clone())));
    let beyond = beyond.is_some_and(|(start, file)| {
        let size = file.as_ref().and_then(|file| Some(size_of(house, file)?.saturating_sub(file.offset)));
        size.is_some_and(|size| size <= (page - start) as u64)
    });
    locked(|state| {
        let Some((_, place)) = state.place(page) else { return false };
        let (end, writable, private) = (place.end.next_multiple_of(PAGE_SIZE), place.writable, place.private);
        let is_shown =
            |at: usize| state.shown.iter().any(|shown| shown.aside.is_some() && shown.pages.contains(&at));
        if is_shown(page) {
            return true;
        }
        let mut pages = page..page + PAGE_SIZE;
        // A loop that goes through the pages beyond the end of the file.
        if beyond && !private && follows.is_some() {
            while pages.end < end && pages.len() < MOST_SHOWN && !is_shown(pages.end) {
                pages.end += PAGE_SIZE;
            }
        }
        let Some(aside) = show_by_kernel(&pages, writable) else { return false };
        let until = now + state.time_for(page, now);
        state.shown.push(Shown { pages, thread, aside: Some(aside), until });
        true
    })
}

/// Moves the kernel's mapping of pages elsewhere, and maps zeros in its place. Returns where it is. At no
/// moment nothing is mapped at the pages. `None`: the kernel refuses it (Linux before 5.13, or too many
/// mappings).
fn show_by_kernel(pages: &Range<usize>, writable: bool) -> Option<usize> {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP;
    let rights = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
    let zeros = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    let at = pages.start as *mut libc::c_void;
    // SAFETY: the pages are a mapping's that is known, which keeps it from being unmapped. Its only change
    // here is that of its bytes, which could not be read.
    unsafe {
        // With this flag the kernel takes the last argument for a wish.
        let anywhere = null_mut::<libc::c_void>();
        let aside = libc::mremap(at, pages.len(), pages.len(), flags, anywhere);
        if aside == libc::MAP_FAILED {
            return None;
        }
        if libc::mmap(at, pages.len(), rights, zeros, -1, 0) == libc::MAP_FAILED {
            hide_by_kernel(pages, aside as usize);
            return None;
        }
        Some(aside as usize)
    }
}

/// Moves the kernel's mapping of pages back.
fn hide_by_kernel(pages: &Range<usize>, aside: usize) -> bool {
    let (flags, len) = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED, pages.len());
    // SAFETY: it was put aside by `show_by_kernel`, and the mapping of the pages is still known.
    unsafe {
        libc::mremap(aside as *mut _, len, len, flags, pages.start as *mut libc::c_void) != libc::MAP_FAILED
    }
}

/// Hides the pages for which `is_over` says true. Pages that cannot be hidden now stay listed, and are tried
/// again after [`SHOWN`].
fn hide(house: &House, is_over: impl Fn(&Shown) -> bool) -> bool {
    let by_manager = locked(|state| {
        let mut by_manager = Vec::new();
        state.shown.retain_mut(|shown| {
            if !is_over(shown) {
                return true;
            }
            let hidden = match shown.aside {
                None => {
                    by_manager.push((shown.pages.clone(), shown.thread));
                    true
                }
                Some(aside) => hide_by_kernel(&shown.pages, aside),
            };
            // What the kernel has no room for now is tried again.
            shown.until = Instant::now() + SHOWN;
            !hidden
        });
        by_manager
    });
    if by_manager.is_empty() {
        return true;
    }
    let _working = house.manager.work();
    for (pages, thread) in by_manager {
        if ZerosInstead::of(house.manager).hide(pages.clone()).is_err() {
            let until = Instant::now() + SHOWN;
            locked(|state| state.shown.push(Shown { pages, thread, aside: None, until }));
        }
    }
    true
}

/// Has a thread raise the exception that was noted for it; if the interpreter does not know the thread, those
/// that it may work for.
fn tell(thread: usize, is_known: bool) -> u32 {
    let told = Python::try_attach(|py| {
        // The exception of an earlier access has taken the note, and stands for this access, too.
        if !locked(|state| state.notes.contains_key(&thread)) {
            return true;
        }
        if is_known {
            // SAFETY: this thread holds the interpreter's lock.
            return unsafe { signal::set_exception(thread) };
        }
        let choose = CHOOSE.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|f| f.clone_ref(py));
        let chosen =
            choose.map(|choose| choose.call0(py).and_then(|chosen| chosen.extract::<Vec<usize>>(py)));
        let Some(Ok(chosen)) = chosen else { return false };
        locked(|state| {
            let Some(note) = state.notes.remove(&thread) else { return };
            for known in &chosen {
                add_note(state, *known, note.clone());
            }
        });
        for known in &chosen {
            // SAFETY: as above.
            unsafe { signal::set_exception(*known) };
        }
        !chosen.is_empty()
    });
    if told == Some(true) { YES } else { NO }
}

/// Names the class of the exception, and the function that says which threads may have asked others to work
/// for them: it returns their identities.
#[pyfunction]
pub fn set_access_error(class: Bound<'_, PyAny>, choose: Py<PyAny>) {
    // Kept for good: a handler of signals uses it.
    ERROR.store(class.into_ptr(), Ordering::Release);
    *CHOOSE.lock().unwrap_or_else(PoisonError::into_inner) = Some(choose);
}

/// What is noted for the calling thread, which is forgotten with that: errno, text, path, offset. From now on
/// no page shows zeros: the thread has its exception, and what it accesses next is to raise another one.
///
/// The path is returned as text, since a `PathBuf` would become an object of pathlib. PyO3 imports that
/// module with a lock held, and the exception of another access may call this function inside of the import:
/// the thread would wait for itself.
#[pyfunction]
pub fn take_note() -> Option<(i32, String, Option<OsString>, Option<u64>)> {
    // SAFETY: a function without arguments.
    let thread = unsafe { libc::pthread_self() } as usize;
    let note = locked(|state| state.notes.remove(&thread))?;
    let _ = SHOWER.ask([HIDE, thread], SHOW_BOUND);
    Some((note.errno, note.text, note.path.map(PathBuf::into_os_string), note.offset))
}
