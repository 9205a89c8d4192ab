//! A manager in the two processes of a fork. docs/decisions/0025-fork.md
//!
//! The parent's manager is quiet while the kernel copies it. The child goes on with the copy: what a fork
//! does not copy (descriptors, registrations, threads, rings) is made anew under the old numbers.

use crate::core::Job;
use crate::manager::{Manager, counted};
use crate::platform::{Host, Platform};
use crate::quiet::Working;
use crate::space::{Space, Spaces};
use elbowroom_machine::{Errno, PAGE_SIZE};
use elbowroom_store::{Handed, Lifeline, StoreFile, reactor_of_child};
use std::path::PathBuf;

/// Threads of a manager that work by themselves: flusher, watchdog, supplier.
const HELPERS: usize = 3;
/// How often files are given to the kernel before a fork: threads that were mapping files when it began may
/// end that later.
const ROUNDS: u32 = 16;

/// What a child of fork needs beside its copy of the memory: descriptors, of the file table of the thread
/// that began the fork.
pub struct Inheritance {
    /// The parent's swap files, to be opened anew by the forking thread.
    pub files: Vec<Handed>,
    /// Lifelines, to be opened anew, too: as long as the child, or a child of it, has these open, its
    /// ancestors keep what these processes read.
    pub lifelines: Vec<Handed>,
}

/// Has all threads of the manager rest. `false`: that took too long, and all go on.
fn become_quiet<P: Platform>(core: &Spaces<P>) -> bool {
    let wake = || {
        core.to_write.bell.ring_for_stop();
        core.wake_supplier();
        core.wake_threads();
    };
    core.quiet.begin(HELPERS, core.inboxes.len(), wake)
}

impl Manager<Host> {
    /// A fork begins: all mappings of files go back to the kernel, and from then on until
    /// [`Manager::fork_ends`] the manager is quiet. Not within [`Manager::work`]. The space is the
    /// process's own.
    ///
    /// # Errors
    /// EBUSY: the manager does not become quiet within the bound, or a file is managed still. Or what the
    /// kernel answered. After an error there is nothing to end.
    pub fn fork_begins(&self, space: &Space<Host>) -> Result<Inheritance, Errno> {
        let core = self.core();
        core.quiet.begin_without_files();
        let begun = self.rest_without_files(space);
        let handed = begun.and_then(|()| self.hand_down().inspect_err(|_| core.quiet.end()));
        handed.inspect_err(|_| core.quiet.end_without_files())
    }

    /// Gives all files to the kernel and becomes quiet: again, if a thread that had opened a file before has
    /// mapped it in between.
    fn rest_without_files(&self, space: &Space<Host>) -> Result<(), Errno> {
        let core = self.core();
        for _ in 0..ROUNDS {
            for object in core.objects.all() {
                space.give_file(object.id())?;
            }
            if !become_quiet(core) {
                break;
            }
            if core.objects.opened() == 0 {
                return Ok(());
            }
            core.quiet.end();
        }
        Err(Errno::BUSY)
    }

    fn hand_down(&self) -> Result<Inheritance, Errno> {
        let core = self.core();
        let mut lifelines = core.swap.lifelines();
        if core.swap.has_file() {
            let (ours, theirs) = Lifeline::new()?;
            core.swap.watch(ours);
            lifelines.push(theirs);
        }
        core.mmu.fork_begins()?;
        let files = core.swap.lend().iter().flat_map(|file| file.handed()).collect();
        Ok(Inheritance { files, lifelines })
    }

    /// The fork was made, or was not: the parent goes on. It has closed its copy of the child's end of the
    /// lifeline.
    pub fn fork_ends(&self) {
        self.core().mmu.fork_ends();
        if let Some(member) = &self.core().config.member {
            member.shares();
        }
        self.core().quiet.end();
        self.core().quiet.end_without_files();
    }

    /// While the manager is quiet: the page for which this thread waits, until [`Manager::fork_is_given_up`].
    /// Other threads that wait for a page are woken, and fault again.
    pub fn awaited_by(&self, thread: u32) -> Option<usize> {
        self.core().mmu.awaited_by(thread)
    }

    /// The manager goes on before the fork is made, and serves the fault at this page: a child that is made
    /// now has a copy that is not whole. [`Manager::given_up_fork_ends`] follows.
    pub fn fork_is_given_up(&self, page: usize) {
        self.core().quiet.end();
        self.core().mmu.wake(page..page + PAGE_SIZE);
    }

    /// The fork that was given up was made, or was not: later children inherit no windows again.
    pub fn given_up_fork_ends(&self) {
        self.core().mmu.fork_ends();
        self.core().quiet.end_without_files();
    }

    /// Announces that a thread which is none of the manager's uses it until the value is dropped: a fork
    /// waits for that.
    pub fn work(&self) -> impl Drop + '_ {
        let working: Working = self.core().quiet.work();
        working
    }

    /// In the child: takes the manager over. For a thread in whose file table the inherited descriptors
    /// have the numbers that they had, and no other descriptor has a number that one of the parent's had.
    /// Files are not managed in a child: what [`Manager::fork_begins`] has counted is never taken back
    /// there.
    ///
    /// # Errors
    /// What is missing. The windows must not be touched then.
    pub fn renew(&self, inherited: &Inheritance) -> Result<Space<Host>, Errno> {
        let core = self.core();
        core.swap.keep_lifelines(inherited.lifelines.iter().map(|lifeline| lifeline.number).collect());
        if !core.swap.has_what_it_had() {
            return Err(Errno::BADF);
        }
        core.mmu.renew()?;
        if let Some(member) = &core.config.member {
            core.swap.quota.inherit(core.swap.used());
            member.charge_copy(&counted(core));
        }
        core.quiet.renew(&core.locks);
        let dir = core.config.swap_dir.as_ref().filter(|_| core.swap.has_file());
        let new = |dir: &PathBuf| StoreFile::temporary(dir, core.config.swap, core.swap.faults());
        core.swap.renew(dir.map(new).transpose()?);
        let mm = core.spaces.of(0).ok_or(Errno::INVAL)?;
        let space = Space { core: core.clone(), mm, base: 0 };
        space.without_stores().into_iter().try_for_each(|range| core.mmu.protect_again(range))?;
        let mut reactors = Vec::new();
        for (number, inbox) in core.inboxes.iter().enumerate() {
            // Faults of threads that the child does not have.
            let jobs = std::mem::take(&mut *inbox.jobs.lock());
            let asked = jobs.into_iter().flat_map(|job| match job {
                Job::Retry(faults) => faults,
                Job::Prefetch(..) => Vec::new(),
                Job::Arrived(_) => unreachable!("handlers do all of this before they rest"),
            });
            let waiting = inbox.waiting.lock().take_all();
            asked.chain(waiting).for_each(|mut fault| fault.let_go());
            let watch = Host::watch(&core.mmu, number);
            let (faults, on_start) = (core.swap.faults(), core.config.hooks.on_thread_start.clone());
            reactors.push(reactor_of_child(core.config.engine, watch, &inbox.kicker, faults, on_start)?);
        }
        self.start_in_child(reactors)
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))?;
        space.leave_to_parent()?;
        Ok(space)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::core::Inbox;
    use crate::{Config, MapRequest, Soft};
    use elbowroom_sync::atomic::{AtomicBool, Ordering};
    use elbowroom_sync::time::{Duration, Instant};
    use elbowroom_sync::{Arc, thread};

    const BUDGET: u64 = 16 << 20;
    const PAGES: usize = 4 * BUDGET as usize / PAGE_SIZE;
    const READERS: usize = 4;

    /// Handlers give each other what they read, also to one that rests already: all of it is done before a
    /// fork.
    #[test]
    fn what_handlers_gave_each_other_is_done_before_a_fork() {
        let mut config = Config { swap: 8 * BUDGET, handlers: 2, ..Config::with_memory(BUDGET) };
        config.swap_dir = Some(std::env::temp_dir());
        config.ablation.tuning.pool_percent = 0;
        config.ablation.tuning.overload_percent = 0;
        config.ablation.tuning.shared_reads = 1;
        let manager = Manager::<Soft>::start_on(config).unwrap();
        let space = manager.create_space().unwrap();
        let start = space.map(MapRequest::private_memory(PAGES * PAGE_SIZE)).unwrap();
        let cpu = space.cpu();
        (0..PAGES).for_each(|page| cpu.write_u64(start + page * PAGE_SIZE, page as u64 + 1).unwrap());
        drop(cpu);
        let (space, stop) = (Arc::new(space), Arc::new(AtomicBool::new(false)));
        let read = |reader: usize| {
            let (space, stop) = (space.clone(), stop.clone());
            move || {
                let cpu = space.cpu();
                let turns = (reader * PAGES / READERS..).take_while(|_| !stop.load(Ordering::Relaxed));
                for page in turns.map(|turn| turn % PAGES) {
                    assert_eq!(cpu.read_u64(start + page * PAGE_SIZE), Ok(page as u64 + 1));
                }
            }
        };
        let readers: Vec<_> =
            (0..READERS).map(|reader| thread::spawn("reader", read(reader)).unwrap()).collect();
        let given =
            |inbox: &Inbox| inbox.jobs.lock().iter().filter(|job| matches!(job, Job::Arrived(_))).count();
        let (core, began) = (&space.core, Instant::now());
        let mut left = 0;
        while began.elapsed() < Duration::from_secs(2) {
            assert!(become_quiet(core));
            left += core.inboxes.iter().map(given).sum::<usize>();
            core.quiet.end();
            thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        assert_eq!(left, 0);
        assert!(manager.stats().pswpin > 0);
    }
}
