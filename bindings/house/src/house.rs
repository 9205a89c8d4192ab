//! The manager of the process, and the threads that call it.
//!
//! The first mapping starts the manager. One manager serves the process: the pages of a file are one cache,
//! so two managers of one file would have different bytes. Budgets are groups of that manager.
//!
//! Threads of the program never call the manager: they post jobs, and wait as their language does. Workers do
//! the jobs. Workers and the manager's threads have a file table of their own (`file_table`), block all
//! signals, and never take a lock of an interpreter.
//!
//! Synchronization: a thread that starts or stops the manager, or forks, holds the gate. Jobs are under one
//! mutex, which is held for moments only. A forked child makes a new [`House`], since the mutex may have been
//! held when it was forked.

use crate::caller::{Caller, Words};
use crate::failure::{Failure, Kind};
use crate::file_table;
use crate::shared;
use elbowroom::{
    Config, DefaultSwap, Division, HighStuck, Hooks, Host, Manager, Member, Origin, ReclaimConfig, Report,
    Served, Side, Space, UserfaultfdConfig,
};
use elbowroom_machine::probe;
use elbowroom_store::Room;
use std::cell::Cell;
use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// At most so many workers run. While one waits for a disk, another one takes the next job.
const MAX_WORKERS: usize = 8;
/// Where the swap file is by default.
const SWAP_DIR: &str = "/var/tmp";
/// How long the end of the process waits for what is written back.
const EXIT_BOUND: Duration = Duration::from_secs(60);
/// All budgets together may have this part of the machine's memory, in percent.
const MEMORY_PERCENT: u64 = 75;

/// The end of the addresses that a process can have.
pub const ADDRESS_END: usize = 1 << 47;

/// The manager, its one space, and the queue to the workers. Never freed.
pub struct House {
    /// Lives until [`stop`]: mappings are only valid as long as it serves them.
    pub manager: &'static Manager<Host>,
    /// The process's own address space. Lives as long as the manager.
    pub space: &'static Space<Host>,
    /// What all budgets together can have.
    pub capacity: Capacity,
    jobs: Mutex<Jobs>,
    bell: Condvar,
    owned: Owned,
}

/// What [`stop`] frees.
struct Owned {
    manager: *mut Manager<Host>,
    space: *mut Space<Host>,
}

// SAFETY: only the worker that ends last uses the pointers, and any thread may own what they point to.
unsafe impl Send for Owned {}
// SAFETY: as above.
unsafe impl Sync for Owned {}

/// What all budgets together can have.
#[derive(Debug, Clone)]
pub struct Capacity {
    /// Bytes of memory.
    pub memory: u64,
    /// Bytes of swap; 0: there is no place for it.
    pub swap: u64,
    /// Where the swap file is.
    pub swap_dir: PathBuf,
    /// Other processes share the memory, so any part of it may be theirs.
    pub is_shared: bool,
}

/// What a user has chosen before the start; `None`: the default.
#[derive(Clone, Default)]
pub struct Settings {
    /// [`Capacity::memory`].
    pub memory: Option<u64>,
    /// [`Capacity::swap`].
    pub swap: Option<u64>,
    /// [`Capacity::swap_dir`].
    pub swap_dir: Option<PathBuf>,
    /// [`Config::swap_encrypt`].
    pub swap_encrypt: bool,
    /// [`ReclaimConfig::division`].
    pub division: Option<Division>,
    /// For tests: [`Config::inject`].
    pub inject: Option<String>,
    /// The table of a budget that several processes share ([`crate::shared`]); its memory takes the place of
    /// `memory`.
    pub table: Option<PathBuf>,
    /// [`Hooks::report`]; `None`: a line on the program's standard error.
    pub report: Option<Report>,
    /// [`Hooks::on_high_stuck`].
    pub on_high_stuck: Option<Arc<dyn Fn(HighStuck) + Send + Sync>>,
}

type Job = Box<dyn FnOnce(&'static House) + Send>;

#[derive(Default)]
struct Jobs {
    queue: VecDeque<Job>,
    workers: usize,
    idle: usize,
    /// Workers end when the queue is empty.
    ends: bool,
    /// Told by the last worker, when the manager is gone.
    gone: Option<mpsc::SyncSender<()>>,
}

static HOUSE: AtomicPtr<House> = AtomicPtr::new(std::ptr::null_mut());
/// The houses of managers that were stopped, so that tools that look for leaks find them: some 200 bytes
/// each.
static ENDED: Mutex<Vec<&'static House>> = Mutex::new(Vec::new());
/// What [`configure`] has chosen.
static GATE: Mutex<Option<Settings>> = Mutex::new(None);
static WORDS: AtomicPtr<Words> = AtomicPtr::new(std::ptr::null_mut());

/// The gate: a thread holds it while it starts or stops the manager, or forks.
pub struct Gate(MutexGuard<'static, Option<Settings>>);

impl Gate {
    /// Waits for the gate.
    pub fn lock() -> Self {
        Self(GATE.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Sets the words of the language.
pub fn speak(words: &'static Words) {
    WORDS.store(std::ptr::from_ref(words).cast_mut(), Ordering::Release);
}

/// The words of the language.
pub fn words() -> &'static Words {
    const NONE: Words = Words {
        fork: "execute a program",
        trust: "",
        swap_dir: "",
        shared_swap: "",
        swap: "",
        own_budget: "",
    };
    // SAFETY: the words live for ever, and nothing changes them.
    unsafe { WORDS.load(Ordering::Acquire).as_ref() }.unwrap_or(&NONE)
}

thread_local! {
    static IS_WORKER: Cell<bool> = const { Cell::new(false) };
}

/// Chooses what the manager is started with.
pub fn configure(settings: Settings) {
    *Gate::lock().0 = Some(settings);
}

/// The house, if the manager was started.
pub fn started() -> Option<&'static House> {
    // SAFETY: a house is leaked before its address is stored, and never freed.
    unsafe { HOUSE.load(Ordering::Acquire).as_ref() }
}

/// The house; starts the manager, as [`configure`] says, if need be.
///
/// # Errors
/// [`Kind::Start`]: what is missing on this machine.
pub fn house<C: Caller>(caller: C) -> Result<&'static House, C::Error> {
    if let Some(house) = started() {
        return Ok(house);
    }
    let gate = Gate::lock();
    if let Some(house) = started() {
        return Ok(house);
    }
    begin_with(gate.0.clone().unwrap_or_default()).map_err(|why| caller.error(Failure::new(Kind::Start, why)))
}

/// Starts the manager. What `enter` does is done before another thread can fork, or start or stop a manager.
///
/// # Errors
/// [`Kind::State`]: it runs already. [`Kind::Start`]: what is missing on this machine.
pub fn start_with<R>(settings: Settings, enter: impl FnOnce(&'static House) -> R) -> Result<R, Failure> {
    let _gate = Gate::lock();
    if started().is_some() {
        let text = "the process has a manager already: its groups can have budgets of their own";
        return Err(Failure::new(Kind::State, text.to_owned()));
    }
    begin_with(settings).map(enter).map_err(|why| Failure::new(Kind::Start, why))
}

fn begin_with(settings: Settings) -> Result<&'static House, String> {
    let open = |path| shared::open(path).map_err(|why| format!("{why}; {}", words().own_budget));
    // In this thread: other processes see the member by the name of the thread that enters, which is the
    // program's.
    let member = settings.table.as_deref().map(open).transpose()?.map(shared::enter);
    let make = move || {
        file_table::make_empty()
            .map_err(|error| format!("no file table of its own (Linux 5.9 or later has it): {error}"))?;
        start(settings, member)
    };
    begin(make, |house| {
        house.end();
        ENDED.lock().unwrap_or_else(PoisonError::into_inner).push(house);
    })
}

/// Has the end of the process write back what was stored: mappings that are never given up, such as those of
/// statics, have it else only from the flusher, within a second. Any number of calls are one.
pub fn write_back_at_exit() {
    extern "C" fn write_back() {
        let Some(house) = started() else { return };
        match house.post(|house| house.manager.flush_all()).recv_timeout(EXIT_BOUND) {
            Ok(Ok(())) | Err(RecvTimeoutError::Disconnected) => {}
            Ok(Err(errno)) => {
                let error = std::io::Error::from(errno);
                say(&format!("at the end of the process a file could not be written: {error}"));
            }
            Err(RecvTimeoutError::Timeout) => say(&format!(
                "the process ends before all was written to its files: a disk took longer than {} s",
                EXIT_BOUND.as_secs()
            )),
        }
    }
    static IS_DONE: AtomicBool = AtomicBool::new(false);
    // No thread forks between the two.
    let _gate = Gate::lock();
    if !IS_DONE.swap(true, Ordering::AcqRel) {
        // SAFETY: the library is never unloaded. Without room for the function the flusher remains.
        let _ = unsafe { libc::atexit(write_back) };
    }
}

/// Stops the manager, writes what was stored to the files, and ends its threads. Returns when all is done.
///
/// # Safety
/// No mapping and no budget is left, and no other thread uses the house, or will.
pub unsafe fn stop(house: &'static House, _gate: &Gate) {
    forget();
    let (sender, gone) = mpsc::sync_channel(1);
    {
        let mut jobs = house.lock_jobs();
        jobs.ends = true;
        jobs.gone = Some(sender);
    }
    house.bell.notify_all();
    // An error: a thread of the manager has failed, and none is left to wait for.
    let _ = gone.recv();
    ENDED.lock().unwrap_or_else(PoisonError::into_inner).push(house);
}

/// Runs `make` in a new thread, and then, in the file table of that thread, the workers of what it has made.
/// `end` ends what was made if no worker can be started.
pub fn begin(
    make: impl FnOnce() -> Result<House, String> + Send + 'static,
    end: impl FnOnce(&'static House) + Send + 'static,
) -> Result<&'static House, String> {
    let (sender, made) = mpsc::sync_channel(1);
    let first = move || {
        let house = make().and_then(|house| {
            let house: &'static House = Box::leak(Box::new(house));
            house.spawn_worker().map(|()| house).map_err(|error| {
                end(house);
                format!(
                    "cannot start a thread ({error}): raise `ulimit -u`, or pids.max of the control group"
                )
            })
        });
        let _ = sender.send(house);
    };
    let spawned = spawn("elbowroom-start", first);
    spawned.map_err(|error| format!("cannot start a thread: {error}"))?;
    let house = made.recv().map_err(|_| "the thread that starts the manager has panicked".to_owned())??;
    HOUSE.store(std::ptr::from_ref(house).cast_mut(), Ordering::Release);
    Ok(house)
}

/// Forgets the house: its manager was stopped, or a forked child could not take it over.
pub fn forget() {
    HOUSE.store(std::ptr::null_mut(), Ordering::Release);
}

fn start(mut settings: Settings, member: Option<Arc<Member>>) -> Result<House, String> {
    if let Some(member) = &member {
        settings.memory = Some(member.tree().snapshot().limits.max);
    }
    let capacity = Capacity::of(&settings)?;
    let config = Config {
        member,
        userfaultfd: UserfaultfdConfig { served: served()?, ..UserfaultfdConfig::default() },
        swap: capacity.swap,
        swap_encrypt: settings.swap_encrypt,
        reclaim: ReclaimConfig { division: settings.division, ..ReclaimConfig::default() },
        swap_dir: (capacity.swap > 0).then(|| capacity.swap_dir.clone()),
        inject: settings.inject,
        // When the last mapping of a file is unmapped, the manager writes its dirty pages back, so that
        // read(2) finds them.
        close_unmapped: true,
        alone: true,
        hooks: Hooks {
            report: settings.report.or_else(|| Some(Arc::new(say))),
            on_high_stuck: settings.on_high_stuck,
            on_late_fork: Some(Arc::new(crate::fork::note_late)),
            on_hand_back: Some(Arc::new(crate::mapped::note_given)),
            ..Hooks::default()
        },
        ..Config::with_memory(capacity.memory)
    };
    let mut config = config;
    // Compressed pages are charged to the root, not to the budget that they belong to. Without a pool for
    // them no budget has more in memory than its limit.
    config.ablation.tuning.pool_percent = 0;
    // Free frames are no budget's, but the process has them: 4 MiB are enough for threads that touch new
    // memory.
    config.ablation.tuning.grow_ahead_frames = 1024;
    let (manager, space) = Manager::start(config).map_err(|error| error.to_string())?;
    Ok(House::new(manager, space, capacity))
}

/// Which faults are served, by the variable of the command's option `--faults`.
fn served() -> Result<Option<Served>, String> {
    const VARIABLE: &str = "ELBOWROOM_FAULTS";
    match std::env::var(VARIABLE).as_deref() {
        Err(_) | Ok("auto") => Ok(None),
        Ok("all") => Ok(Some(Served::All)),
        Ok("user-mode") => Ok(Some(Served::UserMode)),
        Ok(other) => Err(format!("{VARIABLE} is auto, all or user-mode, not {other:?}")),
    }
}

/// What all budgets together have if nothing else is asked for, in bytes: a part of the machine's memory, or
/// of what its control group permits.
pub fn default_memory() -> u64 {
    let total = probe::memory().total_bytes;
    let groups = probe::Groups::read();
    let group = groups.as_ref().and_then(probe::memory_cgroup).and_then(|group| group.limit_bytes);
    let all = total.into_iter().chain(group).min().unwrap_or(0);
    (all / 100 * MEMORY_PERCENT).max(Config::MIN_MEMORY)
}

impl Capacity {
    /// What is there for these settings on this machine now.
    ///
    /// # Errors
    /// There is less than the settings ask for.
    pub fn of(settings: &Settings) -> Result<Self, String> {
        let memory = settings.memory.unwrap_or_else(default_memory);
        let most = Config::with_memory(memory).most_swap();
        let named = settings.swap_dir.is_some();
        let swap_dir = settings.swap_dir.clone().unwrap_or_else(|| SWAP_DIR.into());
        let room = room_for_swap(memory, &swap_dir, named);
        let swap = match settings.swap {
            None => room.map_or(0, |room| room.min(most)),
            Some(swap) if swap > most => {
                return Err(format!(
                    "{swap} bytes of swap are too much for {memory} of memory, at most {most}"
                ));
            }
            Some(0) => 0,
            Some(swap) => match room? {
                room if room < swap => {
                    return Err(format!(
                        "{} has room for {room} bytes of swap, not {swap}",
                        swap_dir.display()
                    ));
                }
                _ => swap,
            },
        };
        let page = elbowroom_machine::PAGE_SIZE as u64;
        let is_shared = settings.table.is_some();
        Ok(Self { memory: memory / page * page, swap: swap / page * page, swap_dir, is_shared })
    }
}

/// How large a swap file can be there, in bytes. A directory in memory is used only if it was named.
fn room_for_swap(memory: u64, dir: &Path, named: bool) -> Result<u64, String> {
    let decided = if named { DefaultSwap::in_named(memory, dir) } else { DefaultSwap::of(memory, dir) };
    if decided.bytes == 0 {
        let lack = decided.lack.map_or_else(String::new, |lack| format!(": {lack}"));
        return Err(format!("{} is no place for a swap file{lack}", dir.display()));
    }
    // The file takes blocks only as pages go there; some are left to others.
    Room::look(dir).map(|room| room.bytes() / 10 * 9).map_err(|errno| errno.to_string())
}

impl House {
    /// A house without workers.
    fn new(manager: Manager<Host>, space: Space<Host>, capacity: Capacity) -> Self {
        Self::with(Box::into_raw(Box::new(manager)), space, capacity)
    }

    /// The house of a forked child, whose manager is the copy of the parent's.
    pub fn of_child(before: &Self, space: Space<Host>, capacity: Capacity) -> Self {
        Self::with(before.owned.manager, space, capacity)
    }

    fn with(manager: *mut Manager<Host>, space: Space<Host>, capacity: Capacity) -> Self {
        let owned = Owned { manager, space: Box::into_raw(Box::new(space)) };
        // SAFETY: both are freed by the last worker only, when nothing uses the house any more (`stop`).
        let (manager, space) = unsafe { (&*owned.manager, &*owned.space) };
        Self { manager, space, capacity, jobs: Mutex::default(), bell: Condvar::new(), owned }
    }

    fn lock_jobs(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a worker do a job, and waits for its answer.
    ///
    /// # Errors
    /// The caller's own.
    pub fn ask<C: Caller, R: Send + 'static>(
        &'static self,
        caller: C,
        job: impl FnOnce(&'static House) -> R + Send + 'static,
    ) -> Result<R, C::Error> {
        caller.wait(self.post(job))
    }

    /// Has a worker do a job. A fork waits until it is done.
    pub fn post<R: Send + 'static>(
        &'static self,
        job: impl FnOnce(&'static House) -> R + Send + 'static,
    ) -> mpsc::Receiver<R> {
        let (sender, answer) = mpsc::sync_channel(1);
        self.post_alone(Box::new(move |house: &'static House| {
            let _working = house.manager.work();
            let _ = sender.send(job(house));
        }));
        answer
    }

    /// Has a worker do a job for which a fork does not wait.
    pub fn post_alone(&self, job: Job) {
        self.lock_jobs().queue.push_back(job);
        self.bell.notify_one();
    }

    fn spawn_worker(&'static self) -> std::io::Result<()> {
        self.lock_jobs().workers += 1;
        let spawned = spawn("elbowroom-work", move || self.work());
        if spawned.is_err() {
            self.lock_jobs().workers -= 1;
        }
        spawned
    }

    fn work(&'static self) {
        IS_WORKER.set(true);
        while let Some((job, needs_more)) = self.next_job() {
            if needs_more {
                // Without another worker, jobs wait for this one.
                let _ = self.spawn_worker();
            }
            self.manager.serve("elbowroom-work", move || job(self));
        }
    }

    /// The next job, and whether no worker is left for the one after it. `None`: the manager ends.
    fn next_job(&'static self) -> Option<(Job, bool)> {
        let mut jobs = self.lock_jobs();
        jobs.idle += 1;
        loop {
            if let Some(job) = jobs.queue.pop_front() {
                jobs.idle -= 1;
                return Some((job, jobs.idle == 0 && jobs.workers < MAX_WORKERS));
            }
            if jobs.ends {
                break;
            }
            jobs = self.bell.wait(jobs).unwrap_or_else(PoisonError::into_inner);
        }
        jobs.idle -= 1;
        jobs.workers -= 1;
        if jobs.workers == 0 {
            let gone = jobs.gone.take();
            drop(jobs);
            self.end();
            gone.into_iter().for_each(|gone| _ = gone.send(()));
        }
        None
    }

    /// Frees the manager, in the file table that has its descriptors, and then its addresses: an access to
    /// one fails, and gives no zeros.
    fn end(&'static self) {
        let parts = self.manager.windows().parts(elbowroom_machine::PAGE_SIZE..ADDRESS_END);
        let windows = parts.filter(|(side, _)| *side == Side::Managed).map(|(_, range)| range);
        let addresses: Vec<_> = windows.chain(self.manager.windows().tables()).collect();
        // SAFETY: this is the last worker, or there never was one, and nothing else uses the house, which is
        // the promise of the caller of `stop`. Nothing is mapped in the windows any more.
        unsafe {
            drop(Box::from_raw(self.owned.space));
            drop(Box::from_raw(self.owned.manager));
            for range in addresses {
                libc::munmap(range.start as *mut _, range.len());
            }
        }
    }
}

/// Whether the calling thread is a worker. A worker does a job itself instead of posting it, since it could
/// wait for itself.
pub fn is_worker() -> bool {
    IS_WORKER.get()
}

/// Starts a thread that blocks all signals: handlers of the program run in the program's threads, whose
/// system calls they interrupt.
///
/// # Errors
/// The system has no room for a thread.
pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    // SAFETY: the sets are written before they are read, and are this function's own.
    unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let spawned = thread::Builder::new().name(name.to_owned()).spawn(body);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        spawned.map(drop)
    }
}

/// Writes a line to the standard error that the program has now, which is not in the table of the manager's
/// threads.
pub fn say(line: &str) {
    let Ok(there) = Origin::take(std::process::id(), libc::STDERR_FILENO, 0) else { return };
    let text = format!("elbowroom: {line}\n");
    // SAFETY: the descriptor is open, and the text is as long as is said. An error is ignored: nobody is left
    // to be told.
    let _ = unsafe { libc::write(there.as_fd().as_raw_fd(), text.as_ptr().cast(), text.len()) };
}
