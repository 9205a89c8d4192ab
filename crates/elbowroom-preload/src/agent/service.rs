//! The service threads: they start the manager, serve requests, and watch for the end of the program.
//!
//! The first service thread gives itself an empty file table (docs/decisions/0002) and starts the manager;
//! all others, the manager's included, are its children and share that table. One worker of a lane is always
//! free: a worker that takes a request while no other waits starts another, up to a bound.
//!
//! One thread more, the watcher, stays in the program's file table. It sleeps until the program's last thread
//! has ended after its main thread left by pthread_exit: libc counts our threads and would wait for them for
//! ever, so the watcher calls exit(0), with the program's descriptors there for stdio to flush to.
//!
//! Synchronization: requests come over the lanes (request.rs); between a lane and its workers stands a queue
//! under a mutex that only service threads take.

use super::file_table;
use super::groups;
use super::request::{Answer, Op, Request};
use super::rest::{self, Rest};
use super::serve;
use super::stderr as own_stderr;
use crate::base::config::{self, Faults, Idle, Io, Mmu, Options, Sharing};
use crate::base::lane::{LaneKind, Node};
use crate::base::real;
use crate::base::reason::Reason;
use crate::base::report::{Bytes, program_name};
use crate::base::reserve;
use crate::base::run;
use crate::base::said;
use crate::base::state::{self, ALIVE, FAILED, NONE, Process, STARTING};
use crate::base::stderr;
use crate::base::sys::{self, Except, SignalsBlocked};
use crate::base::tree::{self, Verdict};
use elbowroom::{
    Bounds, Config, DefaultSwap, Division, EngineKind, HighStuck, Hooks, Host, Manager, MoverKind, Origin,
    ReclaimConfig, RecordConfig, Served, Space, UserfaultfdConfig,
};
use elbowroom_machine::probe::denied_call;
use elbowroom_store::open_briefly;
use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Workers per lane, by [`LaneKind`]. Each weighs about half a megabyte (its stack and its part of the
/// heap); their waits end without the help of another worker, so few are enough.
const MAX_WORKERS: [u32; 2] = [16, 4];
/// Bytes of stack of a service thread.
const STACK_BYTES: usize = 512 << 10;
/// How often the end of the main thread is looked for.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// The manager of this process, started if need be; `None` if it cannot be had (counted).
///
/// The first call of a process starts threads, which is more than a signal handler may do; later calls only
/// wait.
pub fn manager(process: &'static Process) -> Option<&'static Manager> {
    if process.phase.compare_exchange(NONE, STARTING, Ordering::AcqRel, Ordering::Acquire).is_ok() {
        start(process);
    }
    loop {
        match process.phase.load(Ordering::Acquire) {
            ALIVE => return process.manager(),
            STARTING => sys::futex_wait(&process.phase, STARTING, None),
            _ => {
                process.count(Reason::ManagerUnavailable);
                return None;
            }
        }
    }
}

fn start(process: &'static Process) {
    let reserve = || reserve::prepare(state::options().map_or(0, |options| options.memory_bytes));
    start_threads(process, reserve, move || first_thread(process));
    if process.phase.load(Ordering::Acquire) == FAILED {
        report_failure(process);
    }
}

/// Starts, after `prepare`, the watcher, and a thread that does `first`, after which the manager serves or
/// has failed.
fn start_threads(process: &'static Process, prepare: impl FnOnce(), first: impl FnOnce() + Send + 'static) {
    let kept = sys::errno();
    // Calls that libc and std make on this thread while it starts threads go straight to the kernel. Calls
    // of a signal handler of the program must not.
    let blocked = SignalsBlocked::new(Except::LibcInternal);
    state::set_service_thread(true);
    prepare();
    if let Some((call, error)) = denied_call() {
        fail(process, format!("the system call {call} is denied by a filter: {error}"));
    } else if let Err(error) =
        spawn("elbowroom-watch", move || watch(process)).and_then(|()| spawn("elbowroom-svc", first))
    {
        no_thread(process, &error);
    }
    while process.phase.load(Ordering::Acquire) == STARTING {
        sys::futex_wait(&process.phase, STARTING, None);
    }
    state::set_service_thread(false);
    drop(blocked);
    sys::set_errno(kept);
    // SAFETY: leaked before the phase was set.
    if let Some(note) = unsafe { process.note.load(Ordering::Acquire).as_ref() } {
        said::say(format_args!("{note}"));
    }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    let body = move || {
        state::enter_service_thread();
        body();
    };
    std::thread::Builder::new().name(name.to_owned()).stack_size(STACK_BYTES).spawn(body).map(drop)
}

/// Why a forked child's manager has not started, if that may be otherwise later: a [`Verdict`]. (A child's
/// copy of the parent's value never names a lack: a parent that forks its manager has started it.)
static LACK: AtomicU32 = AtomicU32::new(0);

fn no_thread(process: &Process, error: &std::io::Error) {
    LACK.store(Verdict::NoThreads as u32, Ordering::Release);
    fail(process, format!("cannot start a thread: {error}"));
}

fn fail(process: &Process, why: String) {
    process.set_error(why);
    process.exit_now.store(WATCH_NO_MORE, Ordering::Release);
    sys::futex_wake(process.exit_now.as_ptr(), 1);
    set_phase(process, FAILED);
}

fn set_phase(process: &Process, phase: u32) {
    process.phase.store(phase, Ordering::Release);
    sys::futex_wake(process.phase.as_ptr(), i32::MAX);
}

/// Says why the manager did not start, once in a process. The program goes on without: `elbowroom run` has
/// found out before that a manager can work here, and what the program has done since to its limits or its
/// system is no reason to end it.
pub fn report_failure(process: &Process) {
    let why = process.error().unwrap_or("unknown reason");
    said::say(format_args!("running without a manager, nothing is managed: {why}"));
}

fn first_thread(process: &'static Process) {
    let Some(options) = state::options() else { return fail(process, "no options".to_owned()) };
    if let Err(error) = file_table::make_empty() {
        return fail(
            process,
            format!("cannot get a file table of its own (Linux 5.9 or later has it): {error}"),
        );
    }
    report_panics();
    let mut config = config(options);
    if let Some(lack) = run::lack() {
        let note = format!(
            "this process has a budget of its own, of {}, since it cannot have its part of the run's: {lack}",
            Bytes(config.memory)
        );
        process.note.store(Box::into_raw(Box::new(note)), Ordering::Release);
    }
    if options.swap.by_default {
        swap_that_can_be_had(process, &mut config);
    }
    let (manager, space) = match Manager::start(config) {
        Ok(started) => started,
        Err(error) => return fail(process, error.to_string()),
    };
    if let Err(why) = groups::make(options, &manager) {
        process.note.store(Box::into_raw(Box::new(why)), Ordering::Release);
    }
    if options.report.contention {
        manager.locks().count_in_detail();
    }
    // The manager lives as long as the process: pointers to it are read without locks, by forked children
    // too.
    serve_with(process, Box::leak(Box::new(manager)), space);
}

/// Starts the threads that serve requests.
fn serve_with(process: &'static Process, manager: &'static Manager, space: Space<Host>) {
    let pool = Arc::new(Pool {
        process,
        manager,
        space,
        queues: Default::default(),
        wanted: Default::default(),
        house_bell: AtomicU32::new(0),
        guards: AtomicU32::new(NOT_WANTED),
    });
    let house = pool.clone();
    let spawned = pool
        .spawn_worker(LaneKind::Ordinary)
        .and_then(|()| pool.spawn_worker(LaneKind::Ending))
        .and_then(|()| spawn("elbowroom-house", move || keep_house(&house)));
    if let Err(error) = spawned {
        return no_thread(process, &error);
    }
    own_stderr::take();
    process.set_manager(manager);
    set_phase(process, ALIVE);
}

/// In a forked child, on its only thread: has the copy of its parent's manager go on.
pub fn take_over(process: &'static Process, manager: &'static Manager, rest: &'static Rest) -> Verdict {
    let first = move || {
        let opened: Vec<_> = rest.opened().collect();
        let renewed = file_table::inherit(&opened, rest.top).and_then(|()| {
            let renewed = manager.renew(&rest.inheritance);
            renewed.map_err(|errno| std::io::Error::from_raw_os_error(errno.raw_os_error()))
        });
        match renewed {
            Ok(space) => serve_with(process, manager, space),
            Err(error) => {
                let lack = match error.raw_os_error() {
                    Some(libc::EAGAIN) => Verdict::NoThreads as u32,
                    Some(libc::ENOMEM | libc::EMFILE | libc::ENFILE | libc::ENOSPC | libc::EDQUOT) => {
                        Verdict::NoRoom as u32
                    }
                    _ => 0,
                };
                LACK.store(lack, Ordering::Release);
                fail(process, format!("a forked child cannot go on with the memory it has: {error}"));
            }
        }
    };
    process.phase.store(STARTING, Ordering::Release);
    start_threads(process, || (), first);
    match process.phase.load(Ordering::Acquire) {
        ALIVE => Verdict::GoesOn,
        _ => Verdict::of(LACK.load(Ordering::Acquire)).unwrap_or(Verdict::Denied),
    }
}

/// Cuts the default swap to what this process can have, since the user has not asked for swap. The process
/// may not see the directory that the command saw, or may not write there, and the disk may have less room
/// by now.
fn swap_that_can_be_had(process: &Process, config: &mut Config) {
    let Some(dir) = config.swap_dir.clone().filter(|_| config.swap > 0) else { return };
    let default = DefaultSwap::of(config.memory, &dir);
    config.swap = config.swap.min(default.bytes);
    if config.swap > 0 {
        return;
    }
    (config.swap_dir, config.private_writes) = (None, false);
    state::leave_private();
    if let Some(lack) = default.lack {
        let dir = dir.display();
        let note =
            format!("anonymous memory stays with the kernel, since {dir} has no place for swap: {lack}");
        process.note.store(Box::into_raw(Box::new(note)), Ordering::Release);
    }
}

/// Which pages go, and when.
fn reclaim(options: &Options) -> ReclaimConfig {
    let slowdown = options.reclaim.slowdown.filter(|_| run::member().is_some());
    ReclaimConfig {
        slowdown: slowdown.and_then(|part| part.try_into().ok()),
        // Of `auto` there is none.
        division: Division::named(options.reclaim.policy.name()),
    }
}

fn config(options: &Options) -> Config {
    Config {
        memory: options.each_bytes.map_or(options.memory_bytes, |each| each.min(options.memory_bytes)),
        reclaim: reclaim(options),
        member: run::member().cloned(),
        engine: match options.kernel.io {
            Io::Auto => EngineKind::Auto,
            Io::Uring => EngineKind::Uring,
            Io::Threads => EngineKind::Threads,
        },
        userfaultfd: UserfaultfdConfig {
            mover: match options.kernel.mmu {
                Mmu::Auto => MoverKind::Auto,
                Mmu::Move => MoverKind::Move,
                Mmu::Copy => MoverKind::Copy,
            },
            served: match options.kernel.faults {
                Faults::Auto => None,
                Faults::All => Some(Served::All),
                Faults::UserMode => Some(Served::UserMode),
            },
        },
        handlers: options.handlers,
        writeback_interval: options.writeback_interval,
        dirty: options.dirty_bytes,
        swap: options.swap.bytes,
        swap_dir: options.swap.dir.clone(),
        swap_encrypt: options.swap.encrypt,
        inject: options.tests.inject.clone(),
        private_writes: options.swap.bytes > 0,
        close_unmapped: true,
        alone: options.sharing == Sharing::Auto,
        shallow_idle: options.idle == Idle::Shallow,
        bounds: Bounds {
            fork: options.tests.fork_bound_ms.map_or(elbowroom::FORK_BOUND, Duration::from_millis),
            ..Bounds::default()
        },
        hooks: Hooks {
            on_thread_start: Some(Arc::new(state::enter_service_thread)),
            changes_wait: Some(Arc::new(state::changes_wait)),
            transfers: Some(Arc::new(state::may_transfer)),
            on_hand_back: Some(Arc::new(|id| state::KERNEL_MAPPED.add_given(id.device, id.inode))),
            on_late_fork: Some(Arc::new(tree::note_late)),
            report: Some(Arc::new(|line| say(&with_options(line)))),
            on_high_stuck: Some(Arc::new(say_high_stuck)),
            end_process: Some(Arc::new(|| die())),
        },
        records: RecordConfig {
            trace_bytes: if options.report.trace.is_some() { options.report.trace_bytes } else { 0 },
            learned: options.report.learned.clone(),
        },
        ablation: config::ablation(options),
    }
}

/// A line of the manager's, with the options that change what it speaks of. The manager knows no options,
/// since programs use it as a library, too.
fn with_options(line: &str) -> String {
    line.replace("a larger budget", "a larger budget (--memory)").replace("more swap", "more swap (--swap)")
}

/// A panic of the manager is a bug that the user must see; the service threads' own descriptor 2 leads
/// nowhere, so the text goes to the program's.
fn report_panics() {
    std::panic::set_hook(Box::new(|info| {
        say(&format!("internal error: {info}"));
    }));
}

/// Ends the process by SIGABRT, whatever disposition the program has set, and without our work at the end
/// of a process, which would wait for the thread that has failed.
fn die() -> ! {
    // SAFETY: all zero is a valid disposition, SIG_DFL; the set of signals is 64 bits, as the kernel has it;
    // and the rest are integers.
    unsafe {
        let action: libc::sigaction = std::mem::zeroed();
        let _ = real::sigaction(libc::SIGABRT, &action, std::ptr::null_mut());
        let set = 1_u64 << (libc::SIGABRT - 1);
        let (how, none) = (libc::SIG_UNBLOCK as libc::c_long, std::ptr::null_mut::<u64>());
        sys::system_call(libc::SYS_rt_sigprocmask, how, &raw const set, none, 8 as libc::c_long);
        let (process, thread) = (sys::getpid() as libc::c_long, sys::gettid() as libc::c_long);
        sys::system_call(libc::SYS_tgkill, process, thread, libc::SIGABRT as libc::c_long);
    }
    sys::exit_group(128 + libc::SIGABRT)
}

/// Writes a line to the program's standard error, if the program has that still.
fn say(line: &str) {
    let text = format!("elbowroom: {line}\n");
    // Through the program's own open file description: a new one has a position of its own, and the
    // program's next text, or the summary, would overwrite the line.
    match Origin::take(sys::getpid(), 2, 0) {
        Ok(there) if own_stderr::is_remembered(there.as_fd()) => {
            stderr::write_to(there.as_fd().as_raw_fd(), text.as_bytes());
        }
        Ok(_) => {}
        Err(_) if own_stderr::write(text.as_bytes()) => {}
        Err(_) => {
            let path = format!("/proc/{}/fd/2", sys::getpid());
            let opened = open_briefly(|| std::fs::OpenOptions::new().append(true).open(&path));
            if let Some(file) = opened.ok().filter(|file| own_stderr::is_remembered(file.as_fd())) {
                stderr::write_to(file.as_raw_fd(), text.as_bytes());
            }
        }
    }
}

/// Says that a group stays over its `high`.
fn say_high_stuck(stuck: HighStuck) {
    let HighStuck { group, usage_bytes, high_bytes } = stuck;
    let (name, usage, high) = (groups::name(group), Bytes(usage_bytes), Bytes(high_bytes));
    say(&format!(
        "{} (pid {}): group {name} has {usage}, more than its high of {high}, and nothing of it can be \
         reclaimed",
        program_name(),
        sys::getpid()
    ));
}

/// The workers' side of the lanes.
struct Pool {
    process: &'static Process,
    manager: &'static Manager,
    space: Space<Host>,
    queues: [Mutex<VecDeque<Taken>>; 2],
    /// Workers that are to be started, by [`LaneKind`].
    wanted: [AtomicU32; 2],
    /// A futex, changed when `wanted` or `guards` was.
    house_bell: AtomicU32,
    /// Whether the threads that guard files are to be started: a futex.
    guards: AtomicU32,
}

/// [`Pool::guards`].
const NOT_WANTED: u32 = 0;
const WANTED: u32 = 1;
const RUNNING: u32 = 2;

/// A request that was taken off its lane.
struct Taken(*mut Request);

// SAFETY: the request's caller waits until it is completed, and exactly one thread holds the `Taken`.
unsafe impl Send for Taken {}

impl Pool {
    /// Asks for another worker. The house thread starts it: libc allocates for a thread that starts another,
    /// in memory that it maps for each thread once (reserve/stacks.rs).
    fn want_worker(&self, kind: LaneKind) {
        if self.process.lanes[kind as usize].workers.load(Ordering::Acquire) < MAX_WORKERS[kind as usize] {
            self.wanted[kind as usize].store(1, Ordering::Release);
            self.ring_house();
        }
    }

    fn ring_house(&self) {
        self.house_bell.fetch_add(1, Ordering::AcqRel);
        sys::futex_wake(self.house_bell.as_ptr(), 1);
    }

    /// Has the house thread start the threads that guard files, and waits until it has tried to.
    fn have_guards(&self) {
        if self.guards.load(Ordering::Acquire) == RUNNING {
            return;
        }
        let (new, there) = (Ordering::AcqRel, Ordering::Acquire);
        if self.guards.compare_exchange(NOT_WANTED, WANTED, new, there).is_ok() {
            self.ring_house();
        }
        while self.guards.load(Ordering::Acquire) == WANTED {
            sys::futex_wait(&self.guards, WANTED, None);
        }
    }

    fn start_wanted_guards(&self) {
        if self.guards.load(Ordering::Acquire) == WANTED {
            // If they cannot be started now, the next file tries again.
            let run = self.manager.start_guards().unwrap_or(false);
            self.guards.store(if run { RUNNING } else { NOT_WANTED }, Ordering::Release);
            sys::futex_wake(self.guards.as_ptr(), i32::MAX);
        }
    }

    /// Starts the workers that were asked for.
    fn spawn_wanted(self: &Arc<Self>) {
        for kind in [LaneKind::Ordinary, LaneKind::Ending] {
            if self.wanted[kind as usize].swap(0, Ordering::AcqRel) != 0 {
                // Without another worker, the present ones serve all requests, only later: no reason to
                // refuse one.
                let _ = self.spawn_worker(kind);
            }
        }
    }

    fn spawn_worker(self: &Arc<Self>, kind: LaneKind) -> std::io::Result<()> {
        let lane = &self.process.lanes[kind as usize];
        if lane.workers.fetch_add(1, Ordering::AcqRel) >= MAX_WORKERS[kind as usize] {
            lane.workers.fetch_sub(1, Ordering::AcqRel);
            return Ok(());
        }
        let pool = self.clone();
        spawn("elbowroom-svc", move || pool.work(kind)).inspect_err(|_| {
            lane.workers.fetch_sub(1, Ordering::AcqRel);
        })
    }

    fn work(self: Arc<Self>, kind: LaneKind) {
        let lane = &self.process.lanes[kind as usize];
        loop {
            let bell = lane.doorbell.load(Ordering::Acquire);
            let Some(Taken(request)) = self.next(kind) else {
                lane.idle.fetch_add(1, Ordering::AcqRel);
                sys::futex_wait(&lane.doorbell, bell, None);
                lane.idle.fetch_sub(1, Ordering::AcqRel);
                continue;
            };
            if lane.idle.load(Ordering::Acquire) == 0 {
                self.want_worker(kind);
            }
            // SAFETY: taken off the lane by this thread.
            let asked = unsafe { &mut *request };
            if matches!(asked.op, Op::Map { .. }) {
                self.have_guards();
            }
            let forks = matches!(asked.op, Op::ForkBegins(_));
            let working = (!forks).then(|| self.manager.work());
            serve::serve(self.process, self.manager, &self.space, asked);
            let rest = if let Ok(Answer::Rests(rest)) = &asked.reply { Some(rest.clone()) } else { None };
            drop(working);
            // SAFETY: as above; `asked` is not used any more.
            unsafe { Node::complete(request.cast()) };
            if let Some(rest) = rest {
                rest::until_over(self.manager, &rest);
            }
        }
    }

    /// The oldest request that waits.
    fn next(&self, kind: LaneKind) -> Option<Taken> {
        let mut queue = self.queues[kind as usize].lock().unwrap_or_else(PoisonError::into_inner);
        self.process.lanes[kind as usize].drain(|node| queue.push_back(Taken(node.cast())));
        queue.pop_front()
    }
}

/// [`Process::exit_now`] where no manager has started: libc ends the process itself.
const WATCH_NO_MORE: u32 = 2;

/// Sleeps until the program is only our threads, then ends it as libc would have.
fn watch(process: &'static Process) {
    while process.exit_now.load(Ordering::Acquire) == 0 {
        sys::futex_wait(&process.exit_now, 0, None);
    }
    if process.exit_now.load(Ordering::Acquire) == WATCH_NO_MORE {
        return;
    }
    // From here on this is the program's last thread: calls of its exit handlers are served as those of any
    // thread.
    state::set_service_thread(false);
    // SAFETY: this is how libc ends a process whose last thread has ended.
    unsafe { libc::exit(0) }
}

/// Starts threads, and looks each second whether the program has ended.
fn keep_house(pool: &Arc<Pool>) {
    let (process, pid) = (pool.process, sys::getpid());
    let mut looked = Instant::now();
    loop {
        let bell = pool.house_bell.load(Ordering::Acquire);
        pool.spawn_wanted();
        pool.start_wanted_guards();
        let rest = WATCH_INTERVAL.saturating_sub(looked.elapsed());
        if !rest.is_zero() {
            sys::futex_wait(&pool.house_bell, bell, Some(rest.as_millis() as u32 + 1));
            continue;
        }
        looked = Instant::now();
        own_stderr::look();
        let ending = process.exit_now.load(Ordering::Acquire) != 0;
        if !ending && main_thread_ended(pid) && only_our_threads(process, pid) {
            process.exit_now.store(1, Ordering::Release);
            sys::futex_wake(process.exit_now.as_ptr(), 1);
        }
    }
}

fn main_thread_ended(pid: u32) -> bool {
    open_briefly(|| std::fs::read_to_string(format!("/proc/self/task/{pid}/stat")))
        .is_ok_and(|stat| is_zombie(&stat))
}

/// The state follows the command name, which is in parentheses and may contain any character.
fn is_zombie(stat: &str) -> bool {
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['Z', 'X']))
}

fn only_our_threads(process: &Process, pid: u32) -> bool {
    let Ok(tasks) = open_briefly(|| std::fs::read_dir("/proc/self/task")) else { return false };
    tasks
        .flatten()
        .filter_map(|task| task.file_name().to_str()?.parse().ok())
        .all(|tid: u32| tid == pid || process.is_our_thread(tid) || is_kernel_worker(tid))
}

/// The kernel's io_uring workers appear among our threads.
fn is_kernel_worker(tid: u32) -> bool {
    open_briefly(|| std::fs::read_to_string(format!("/proc/self/task/{tid}/comm")))
        .is_ok_and(|name| name.starts_with("iou-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_is_read_behind_any_name() {
        assert!(is_zombie("12 (a) Z b) Z 1 1"));
        assert!(!is_zombie("12 (a) Z b) S 1 1"));
        assert!(!is_zombie(""));
    }

    #[test]
    fn lines_of_the_manager_get_the_options() {
        let said = with_options("All is in use. It needs a larger budget or more swap.");
        assert_eq!(said, "All is in use. It needs a larger budget (--memory) or more swap (--swap).");
    }

    #[test]
    fn this_process_runs() {
        assert!(!main_thread_ended(sys::getpid()));
    }
}
