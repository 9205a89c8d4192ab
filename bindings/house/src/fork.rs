//! The two processes of a fork (docs/decisions/0025-fork.md): the child goes on with a copy of the manager.
//!
//! libc calls the hooks here, in the thread that forks, right before and after the fork. Before it, a worker
//! has the manager rest, which gives all files to the kernel, in place; the forking thread opens, in its own
//! file table, the descriptors that the child's manager needs. In the child, before anything else, a new
//! thread gives itself a file table with the old numbers and takes the manager over; the forking thread
//! waits for that. The parent goes on when the fork was made.
//!
//! If the manager does not come to rest, or the child cannot take it over, the child's windows have no access
//! rights: an access is SIGSEGV, and a line on standard error says why. It never reads zeros.
//!
//! Synchronization: one word says how far the rest is. One thread forks at a time.

use crate::accounts::{self, accounts};
use crate::file_table;
use crate::house::{self, ADDRESS_END, Capacity, Gate, House};
use crate::kept::Kept;
use crate::mapped::MappedFiles;
use elbowroom::{Inheritance, Side};
use elbowroom_store::Handed;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

/// This process is a forked child: its copy of the manager maps no files.
static IS_CHILD: AtomicBool = AtomicBool::new(false);

/// Whether this process is a forked child of one that had a manager.
pub fn is_child() -> bool {
    IS_CHILD.load(Ordering::Relaxed)
}

/// What a library does besides at a fork, in the forking thread.
#[derive(Debug)]
pub struct AtFork {
    /// Last before the fork.
    pub before: fn(),
    /// First after it, in the parent.
    pub in_parent: fn(),
    /// First after it, in the child, whose only thread this is.
    pub in_child: fn(),
    /// In the child, after it went on with the manager, in a worker.
    ///
    /// Errors: what the system lacks; the child has no manager then.
    pub with_manager: fn(&'static House) -> std::io::Result<()>,
    /// In a child that cannot go on with it, before the windows lose their rights.
    pub without_manager: fn(),
}

static AT_FORK: OnceLock<&'static AtFork> = OnceLock::new();

/// No fork is under way.
const IDLE: u32 = 0;
/// A thread has asked for a rest.
const ASKED: u32 = 1;
/// The manager rests.
const RESTS: u32 = 2;
/// The manager had to go on, since the forking thread itself waits for a page.
const GIVEN_UP: u32 = 3;
/// The fork was made, or is not to be made.
const OVER: u32 = 4;

/// How far the rest is.
static STATE: AtomicU32 = AtomicU32::new(IDLE);

/// How long the forking thread waits for the rest. The manager may take longer: its rest is then begun and
/// ended for nothing.
const REST_BOUND: Duration = Duration::from_secs(15);
/// How often the worker looks whether the fork is over, or the forking thread waits for a page.
const LOOK: Duration = Duration::from_micros(500);
/// The size of a page.
const PAGE: usize = elbowroom_machine::PAGE_SIZE;

/// What the forking thread has at hand until the fork is made.
enum Prepared {
    /// The manager rests.
    Rests(Arc<Rest>),
    /// The child cannot go on with the manager, for this reason.
    Failed(String),
}

/// A rest of the manager, as the worker has begun it.
struct Rest {
    inheritance: Inheritance,
    capacity: Capacity,
    /// The highest number in the file table of the worker.
    top: RawFd,
    /// How many forks were too late before.
    late: u32,
    /// The descriptors of the inheritance: their numbers in the forking thread's table, and in the worker's.
    opened: OnceLock<Vec<(RawFd, RawFd)>>,
}

impl Rest {
    fn handed(&self) -> impl Iterator<Item = &Handed> {
        self.inheritance.files.iter().chain(&self.inheritance.lifelines)
    }

    fn opened(&self) -> &[(RawFd, RawFd)] {
        self.opened.get().map_or(&[], Vec::as_slice)
    }

    fn close(&self) {
        for (fd, _) in self.opened() {
            // SAFETY: opened by `prepare` for this, and known to nobody else.
            unsafe { libc::close(*fd) };
        }
    }
}

thread_local! {
    static PREPARED: Kept<Prepared> = const { Kept::new() };
    /// Held over the fork.
    static FILES: Kept<MappedFiles> = const { Kept::new() };
    /// Held over the fork.
    static ACCOUNTS: Kept<accounts::Locked> = const { Kept::new() };
    /// Held over the fork: the manager is neither started nor stopped meanwhile.
    static GATE: Kept<Gate> = const { Kept::new() };
}

/// How many forks were made too late, in memory that parents and children share.
static LATE: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());

fn late_forks() -> Option<&'static AtomicU32> {
    // SAFETY: the page is mapped for good before its address is stored.
    unsafe { LATE.load(Ordering::Acquire).as_ref() }
}

/// Called by the manager before it goes on although a fork that it rests for was not made in time.
pub fn note_late() {
    if let Some(late) = late_forks() {
        late.fetch_add(1, Ordering::AcqRel);
    }
}

/// Registers the hooks, once, with what the library does besides.
pub fn register_with(besides: &'static AtFork) {
    let _ = AT_FORK.set(besides);
    register();
}

/// Registers the hooks, once.
pub fn register() {
    static REGISTERED: AtomicBool = AtomicBool::new(false);
    if REGISTERED.swap(true, Ordering::AcqRel) {
        return;
    }
    count_late();
    // SAFETY: the hooks stay valid, since the library is never unloaded.
    unsafe { libc::pthread_atfork(Some(prepare), Some(in_parent), Some(in_child)) };
}

/// Counts late forks from 0 on, apart from those of the parent.
fn count_late() {
    let before = LATE.load(Ordering::Acquire);
    let fixed = if before.is_null() { 0 } else { libc::MAP_FIXED };
    let (rights, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS | fixed);
    // SAFETY: new memory, or in the place of the page that is only used here; it is never unmapped. All zero
    // is an atomic.
    let at = unsafe { libc::mmap(before.cast(), PAGE, rights, flags, -1, 0) };
    let at = if at == libc::MAP_FAILED { std::ptr::null_mut() } else { at };
    LATE.store(at.cast(), Ordering::Release);
}

unsafe extern "C" fn prepare() {
    GATE.with(|gate| gate.set(Gate::lock()));
    if let Some(house) = house::started() {
        prepare_for(house);
    }
    // Not before: the manager notes in the table which files it gives to the kernel.
    FILES.with(|files| files.set(MappedFiles::lock()));
    // Not before: a worker's job, for which the rest waits, may lock them.
    ACCOUNTS.with(|accounts| accounts.set(accounts::Locked::new()));
    if let Some(besides) = AT_FORK.get() {
        (besides.before)();
    }
}

fn prepare_for(house: &'static House) {
    let deadline = Instant::now() + REST_BOUND;
    while STATE.compare_exchange(IDLE, ASKED, Ordering::AcqRel, Ordering::Acquire).is_err() {
        // The worker has not ended the rest of an earlier fork yet.
        if Instant::now() > deadline {
            let why = "the rest for an earlier fork has not ended".to_owned();
            return PREPARED.with(|prepared| prepared.set(Prepared::Failed(why)));
        }
        thread::sleep(LOOK);
    }
    let prepared = have_rest(house, deadline).unwrap_or_else(|why| {
        end_rest();
        Prepared::Failed(why)
    });
    PREPARED.with(|kept| kept.set(prepared));
}

fn have_rest(house: &'static House, deadline: Instant) -> Result<Prepared, String> {
    // SAFETY: a system call without arguments.
    let forker = unsafe { libc::gettid() } as u32;
    let begun = ask_for_rest(house, forker);
    let rest = begun
        .recv_timeout(deadline.saturating_duration_since(Instant::now()))
        .map_err(|_| "the manager does not come to rest".to_owned())?;
    let (tid, rest) = rest?;
    let mut opened = Vec::new();
    for file in rest.handed() {
        let path = format!("/proc/self/task/{tid}/fd/{}\0", file.number);
        let flags = file.flags.bits() as libc::c_int | libc::O_CLOEXEC;
        // SAFETY: the path ends.
        let fd = unsafe { libc::open(path.as_ptr().cast(), flags) };
        if fd < 0 {
            let error = std::io::Error::last_os_error();
            let _ = rest.opened.set(opened);
            rest.close();
            return Err(format!("its swap file cannot be opened again: {error}"));
        }
        opened.push((fd, file.number));
    }
    let _ = rest.opened.set(opened);
    Ok(Prepared::Rests(rest))
}

/// Has a worker bring the manager to rest, and wait there until the fork is over. The answer: the worker's
/// thread id, and the rest.
fn ask_for_rest(house: &'static House, forker: u32) -> Receiver<Result<(u32, Arc<Rest>), String>> {
    let (sender, begun) = mpsc::sync_channel(1);
    house.post_alone(Box::new(move |house: &'static House| {
        let late = late_forks().map_or(0, |late| late.load(Ordering::Acquire));
        let inheritance = match house.manager.fork_begins(house.space) {
            Ok(inheritance) => inheritance,
            Err(errno) => {
                let why = std::io::Error::from(errno);
                let _ = sender.send(Err(format!("the manager does not come to rest ({why})")));
                return until_over();
            }
        };
        let (top, capacity) = (file_table::highest_number(), house.capacity.clone());
        let rest = Arc::new(Rest { inheritance, capacity, top, late, opened: OnceLock::new() });
        // SAFETY: a system call without arguments.
        let tid = unsafe { libc::gettid() } as u32;
        // If the forking thread does not wait any more (OVER), this rest ends at once.
        let _ = STATE.compare_exchange(ASKED, RESTS, Ordering::AcqRel, Ordering::Acquire);
        let _ = sender.send(Ok((tid, rest.clone())));
        // From here to the end of the rest nothing is allocated: the child has a copy of the heap as it is.
        match until_waited(house, forker) {
            None => house.manager.fork_ends(),
            Some(page) => {
                house.manager.fork_is_given_up(page);
                // The next fork must not begin before the manager has ended this one.
                wait_until_over();
                house.manager.given_up_fork_ends();
            }
        }
        // The inheritance owns descriptors of this thread's file table, so it is dropped in this thread.
        drop(rest);
        STATE.store(IDLE, Ordering::Release);
    }));
    begun
}

/// Waits until the fork is over, and lets the next one begin.
fn until_over() {
    wait_until_over();
    STATE.store(IDLE, Ordering::Release);
}

/// Waits until the fork is over.
fn wait_until_over() {
    while STATE.load(Ordering::Acquire) != OVER {
        thread::sleep(LOOK);
    }
}

/// Waits until the fork is over, or the forking thread itself waits for a page: then gives that page.
fn until_waited(house: &House, forker: u32) -> Option<usize> {
    while STATE.load(Ordering::Acquire) == RESTS {
        thread::sleep(LOOK);
        if let Some(page) = house.manager.awaited_by(forker)
            && STATE.compare_exchange(RESTS, GIVEN_UP, Ordering::AcqRel, Ordering::Acquire).is_ok()
        {
            return Some(page);
        }
    }
    None
}

/// The fork was made, or is not to be made.
fn end_rest() {
    STATE.store(OVER, Ordering::Release);
}

unsafe extern "C" fn in_parent() {
    if let Some(besides) = AT_FORK.get() {
        (besides.in_parent)();
    }
    unlock();
    end_in_parent();
    drop(GATE.with(Kept::take));
}

/// Unlocks what was locked last before the fork.
fn unlock() {
    drop(ACCOUNTS.with(Kept::take));
    drop(FILES.with(Kept::take));
}

fn end_in_parent() {
    match PREPARED.with(Kept::take) {
        Some(Prepared::Rests(rest)) => {
            rest.close();
            // The worker drops it last.
            drop(rest);
            end_rest();
            while STATE.load(Ordering::Acquire) == OVER {
                thread::sleep(LOOK);
            }
        }
        Some(Prepared::Failed(_)) | None => {}
    }
}

unsafe extern "C" fn in_child() {
    if let Some(besides) = AT_FORK.get() {
        (besides.in_child)();
    }
    unlock();
    begin_in_child();
    drop(GATE.with(Kept::take));
}

fn begin_in_child() {
    // A child without the parent's manager may start one of its own.
    let Some(prepared) = PREPARED.with(Kept::take) else { return count_late() };
    IS_CHILD.store(true, Ordering::Release);
    // SAFETY: this is the child's only thread, before it does anything else.
    unsafe { elbowroom_sync::epoch::after_fork() };
    let given_up = STATE.swap(IDLE, Ordering::AcqRel) == GIVEN_UP;
    let taken = match prepared {
        Prepared::Failed(why) => Err(why),
        Prepared::Rests(rest) => {
            // The child's copy of the rest owns descriptor numbers that mean other descriptors here. It is
            // leaked, so that it closes none of them.
            let rest: &'static Rest = Box::leak(Box::new(rest));
            let taken = match given_up {
                true => Err("the forking thread waited for memory itself".to_owned()),
                false => take_over(rest),
            };
            // Also if the child cannot have the manager: the parent keeps pages in swap for a child that has
            // the lifeline open.
            rest.close();
            taken
        }
    };
    let Err(why) = taken else { return };
    let manager = house::started().map(|house| house.manager);
    house::forget();
    accounts(accounts::Accounts::renew);
    count_late();
    if let Some(besides) = AT_FORK.get() {
        (besides.without_manager)();
    }
    let text = format!(
        "elbowroom: this forked child cannot use the managed memory of its parent, and an access to it will \
         end the child ({why}): {}\n",
        house::words().fork
    );
    // SAFETY: the text is as long as is said.
    let _ = unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
    for (side, range) in manager.iter().flat_map(|manager| manager.windows().parts(PAGE..ADDRESS_END)) {
        if side == Side::Managed {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
            let (at, len) = (range.start as *mut _, range.len());
            // SAFETY: the windows are ours, and nothing serves them here: without rights an access fails.
            unsafe { libc::mmap(at, len, libc::PROT_NONE, flags, -1, 0) };
        }
    }
}

/// Goes on with the copy of the manager.
fn take_over(rest: &'static Rest) -> Result<(), String> {
    let late = late_forks().map_or(0, |late| late.load(Ordering::Acquire));
    if late != rest.late {
        return Err("the fork took too long".to_owned());
    }
    let Some(before) = house::started() else { return Err("there is no manager".to_owned()) };
    let manager = before.manager;
    let renew = move || {
        file_table::inherit(rest.opened(), rest.top).map_err(|error| error.to_string())?;
        let space =
            manager.renew(&rest.inheritance).map_err(|errno| std::io::Error::from(errno).to_string())?;
        Ok(House::of_child(before, space, rest.capacity.clone()))
    };
    // Without a worker the copy of the manager stays: nothing of it is the child's to free.
    let house = house::begin(renew, |_| {})?;
    let Some(besides) = AT_FORK.get() else { return Ok(()) };
    let done = house.post(besides.with_manager).recv();
    done.map_err(|_| "a thread has failed".to_owned())?.map_err(|error| error.to_string())
}
