//! What a process that starts a manager needs besides userfaultfd: /proc, threads, addresses.

use std::ptr;

use elbowroom_sync::{Arc, thread};
use libc::{SYS_rt_sigaction, c_long, syscall};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity};

use super::calls::denied_call;
use super::{Groups, Start, Trial, tasks};

/// The addresses that a managed process reserves beside its arena, in bytes: one window, and what the
/// library's own threads take. The kernel counts them against RLIMIT_AS and RLIMIT_DATA.
pub const RESERVED_BYTES: u64 = WINDOW_BYTES + OWN_BYTES;

/// The most addresses that one window takes, in bytes.
pub const WINDOW_BYTES: u64 = 1 << 40;

/// What the threads of the library take, in bytes: their stacks, and the heap that describes the frames.
pub const OWN_BYTES: u64 = 128 << 20;

/// Threads of a managed process that serve no faults: those that start before the first mapping is managed,
/// and one for a second call at the same time.
const OTHER_THREADS: usize = 12;

/// The most threads that serve faults.
pub const MAX_HANDLERS: usize = 16;

/// How many threads serve faults if the user asks for `asked`; 0: as many as suit the number of processors.
pub fn handlers(asked: usize) -> usize {
    handlers_on(asked, thread::parallelism)
}

/// An upper bound of [`handlers`]: the control group's CPU quota is left out, because it takes reading
/// several files.
fn most_handlers(asked: usize) -> usize {
    let allowed = || sched_getaffinity(None).map_or(CpuSet::MAX_CPU, |set| set.count() as usize);
    handlers_on(asked, allowed)
}

fn handlers_on(asked: usize, processors: impl Fn() -> usize) -> usize {
    match asked {
        0 => processors().div_ceil(2).clamp(2, MAX_HANDLERS),
        n => n.min(MAX_HANDLERS),
    }
}

/// Tries what a manager needs to start in a process of these control groups, if it is asked for so many
/// handlers ([`handlers`]) and has a budget of `memory_bytes`.
pub fn start(asked: usize, memory_bytes: u64, groups: Option<&Groups>) -> Start {
    let threads = OTHER_THREADS + most_handlers(asked);
    let reserved_bytes = RESERVED_BYTES.saturating_add(memory_bytes);
    Start {
        procfs: Trial::of(&rustix::fs::access("/proc/self/maps", rustix::fs::Access::READ_OK)),
        calls: denied_call().map_or_else(Trial::passed, |(call, error)| Trial::failed(call, error)),
        threads: Trial::of(&room_for_threads(threads, groups)),
        thread_count: threads,
        addresses: Trial::of(&reserve(reserved_bytes)),
        reserved_bytes,
    }
}

/// Whether there is room for so many threads. Threads are started for that only if a limit may be in the
/// way: starting them would take half the time of `elbowroom run true`.
fn room_for_threads(count: usize, groups: Option<&Groups>) -> Result<(), Errno> {
    if tasks::leave_room(count as u64, groups) { Ok(()) } else { start_threads(count) }
}

/// Starts so many threads that exist at the same time, and ends them.
fn start_threads(count: usize) -> Result<(), Errno> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
    let read = Arc::new(read);
    let mut started = Vec::new();
    let mut result = Ok(());
    for _ in 0..count {
        let end = read.clone();
        let spawned = thread::spawn("elbowroom-probe", move || {
            // Returns when the writing end is closed: the pipe has no other purpose.
            let _ = rustix::io::read(&*end, &mut [0_u8; 1]);
        });
        match spawned {
            Ok(thread) => started.push(thread),
            Err(error) => {
                result = Err(Errno::from_io_error(&error).unwrap_or(Errno::AGAIN));
                break;
            }
        }
    }
    drop(write);
    for thread in started {
        // It cannot panic.
        let _ = thread.join();
    }
    result
}

/// The process's action for the signal that libc uses between its threads. libc sets a handler for it when
/// it starts the first thread, and exec resets a handler to the default action; so after [`start`] a
/// program that is executed would not inherit that the signal is ignored.
#[derive(Debug)]
pub struct InternalSignal(Option<KernelAction>);

/// `struct sigaction` of the kernel, opaque here: handler, flags, restorer, and a mask of 64 signals.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
struct KernelAction([u64; 4]);

impl InternalSignal {
    /// glibc's SIGSETXID. Its sigaction refuses the number, so the system call is made directly.
    const NUMBER: c_long = 33;

    /// Reads the present action for the signal.
    pub fn look() -> Self {
        let mut there = KernelAction::default();
        // SAFETY: no action is set; the kernel writes at most the 32 bytes of its structure to `there`.
        let result = unsafe {
            let (set, bytes) = (ptr::null::<KernelAction>(), size_of::<u64>());
            syscall(SYS_rt_sigaction, Self::NUMBER, set, &raw mut there, bytes)
        };
        Self((result == 0).then_some(there))
    }

    /// Restores that action. Only for a process that executes a program next: libc still expects its own
    /// handler, and a setuid in a process of several threads would wait for it for ever.
    pub fn put_back(self) {
        let Some(there) = self.0 else { return };
        // SAFETY: the kernel gave this action itself, for the same signal of the same process; what it
        // executes for the signal, if anything, is the handler that was there then, which is code that stays
        // loaded.
        unsafe {
            let (old, bytes) = (ptr::null_mut::<KernelAction>(), size_of::<u64>());
            // It can fail only for the same reasons as `look`, which succeeded.
            let _ = syscall(SYS_rt_sigaction, Self::NUMBER, &raw const there, old, bytes);
        }
    }
}

/// Whether the limits of address space and of data leave room for so many bytes more, or can be raised so
/// that they do. Raises limits only for a moment.
fn reserve(bytes: u64) -> Result<(), Errno> {
    [Resource::As, Resource::Data].into_iter().try_for_each(|resource| reserve_in(resource, bytes))
}

fn reserve_in(resource: Resource, bytes: u64) -> Result<(), Errno> {
    let own = getrlimit(resource);
    let Some(soft) = own.current else { return Ok(()) };
    let current = Some(soft.saturating_add(bytes));
    let both = Rlimit { current, maximum: own.maximum.map(|hard| hard.saturating_add(bytes)) };
    let soft_only = Rlimit { current, maximum: own.maximum };
    let raised = setrlimit(resource, both).or_else(|_| setrlimit(resource, soft_only));
    if raised.is_ok() {
        // Lowering what was just raised is always allowed.
        setrlimit(resource, own)?;
    }
    raised
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn here_a_process_can_start() {
        let limits = [Resource::As, Resource::Data].map(getrlimit);
        let found = start(0, 64 << 20, Groups::read().as_ref());
        assert!(found.procfs.works && found.threads.works, "{found:?}");
        assert_eq!(found.reserved_bytes, RESERVED_BYTES + (64 << 20));
        assert!(found.thread_count > OTHER_THREADS);
        assert_eq!(start(7, 0, None).thread_count, OTHER_THREADS + 7);
        assert_eq!([Resource::As, Resource::Data].map(getrlimit), limits);
        if limits.iter().all(|limit| limit.current.is_none()) {
            assert!(found.addresses.works, "{found:?}");
        }
    }

    #[test]
    fn what_is_done_about_the_internal_signal_comes_back() {
        // In a process that has threads already, libc's handler is there and stays.
        let before = InternalSignal::look();
        start_threads(1).unwrap();
        let there = before.0.unwrap().0;
        before.put_back();
        assert_eq!(InternalSignal::look().0.unwrap().0, there);
    }

    #[test]
    fn threads_that_were_tried_are_gone() {
        let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
        // Other tests have threads, too, but not as many as would be left here.
        let before = threads();
        for _ in 0..20 {
            start_threads(30).unwrap();
        }
        assert!(threads() < before + 100);
    }
}
