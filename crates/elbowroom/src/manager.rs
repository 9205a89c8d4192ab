//! A manager: its threads, and its verbs.

mod groups;
mod instead;
mod shown;

pub use self::groups::MemoryGroups;
pub use self::instead::ZerosInstead;
#[cfg(not(shuttle))]
pub(crate) use self::shown::counted;

use crate::config::Config;
use crate::core::{Core, Inbox};
use crate::error::{OpenError, StartError};
use crate::fault::{Faults, Handler};
use crate::group::{GroupId, Pressure};
use crate::object::{ALL_PAGES, Access, FileLocking, FileObject, ObjectTable, WhenUnmapped, WriteTicket};
use crate::platform::{Host, Platform, Soft};
use crate::reclaim;
use crate::reclaim::{Patterns, Reclaim};
use crate::space::{Space, Spaces};
use crate::stats::{Brought, Event, LatencySnapshot, LatencyUse, Stats, SwapFileIo, UserfaultfdUse};
use crate::swap::Cipher;
use crate::trace::TraceSnapshot;
use crate::writeback::{Obstacle, Writeback};
use elbowroom_machine::soft::Subscription;
use elbowroom_machine::{Errno, PAGE_SHIFT, Served, WindowTable, probe};
use elbowroom_store::{FileId, Guards, Inject, Origin, Reactor, StoreFile, reactor};
use elbowroom_sync::atomic::Ordering;
use elbowroom_sync::{Arc, LockClass, LockStats, Mutex, thread};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// Virtual memory: a budget, and the spaces that have what is mapped under it.
///
/// Its methods, and those of its spaces, may be called from any thread that shares the file table of the
/// thread that called [`Manager::start`]; those marked "any thread" from any thread at all, in a signal
/// handler too. Verbs may wait for I/O. Errors are the errno values that Linux gives.
///
/// Dropping it stops its threads after everything dirty was written back. With real pointers its windows stay
/// registered until the process ends; do not touch mappings of a dropped manager.
pub struct Manager<P: Platform = Host> {
    core: Arc<Spaces<P>>,
    threads: Mutex<Threads>,
}

/// The threads of a manager.
#[derive(Default)]
struct Threads {
    started: Vec<thread::JoinHandle<()>>,
    /// How many of the two threads that keep files the manager's alone are among them.
    guards: usize,
}

impl Threads {
    fn start<P: Platform>(
        &mut self,
        core: &Arc<Spaces<P>>,
        name: &'static str,
        body: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<()> {
        let core = core.clone();
        self.started.push(thread::spawn(name, move || run_to_the_end(&core, name, Box::new(body)))?);
        Ok(())
    }
}

impl<P: Platform> Manager<P> {
    /// Starts a manager.
    ///
    /// # Errors
    /// What is missing here, and what to do about it.
    pub fn start_on(config: Config) -> Result<Self, StartError> {
        Self::start_with(config, |_| ())
    }

    /// [`Manager::start_on`]; `chores` is called once a second, by the thread that keeps frames at hand.
    fn start_with(config: Config, chores: fn(&Arc<Spaces<P>>)) -> Result<Self, StartError> {
        if config.memory < Config::MIN_MEMORY {
            return Err(StartError::TooSmall(config.memory));
        }
        if config.swap > config.most_swap() {
            let Config { swap, memory, .. } = config;
            return Err(StartError::SwapTooLarge { swap, memory, most: config.most_swap() });
        }
        let locks = LockStats::new();
        let inject = match &config.inject {
            Some(text) => Some(Arc::new(Inject::parse(text).map_err(StartError::Inject)?)),
            None => None,
        };
        let frames = config.arena_frames();
        let mmu = P::mmu(&config, frames, &locks)?;
        let mut reactors: Vec<Box<dyn Reactor>> = Vec::new();
        for number in 0..probe::handlers(config.handlers) {
            let made = reactor(
                config.engine,
                P::watch(&mmu, number),
                inject.clone(),
                config.hooks.on_thread_start.clone(),
            );
            reactors.push(made.map_err(StartError::Engine)?);
        }
        let inboxes = reactors.iter().map(|reactor| Inbox::new(reactor.kicker(), &locks)).collect();
        let when_unmapped = if config.close_unmapped { WhenUnmapped::Close } else { WhenUnmapped::Keep };
        let locking = if config.ablation.narrow_file_lock { FileLocking::Narrow } else { FileLocking::Wide };
        let swap_file = match &config.swap_dir {
            Some(dir) if config.swap > 0 => {
                let made = StoreFile::temporary(dir, config.swap, inject.clone());
                let file = made.map_err(|error| StartError::SwapFile(dir.clone(), error))?;
                let cipher = config.swap_encrypt.then(Cipher::new).transpose();
                Some((Arc::new(file), cipher.map_err(|error| StartError::SwapKey(error.to_string()))?))
            }
            _ => None,
        };
        let objects = ObjectTable::new(inject.clone(), when_unmapped, &locks).locked(locking);
        let guards = if config.alone { Guards::new(&locks).ok() } else { None };
        let mut core = Core::new(config, mmu, objects.guarded(guards), inboxes, swap_file, &locks);
        core.swap.inject(inject);
        let core = Arc::new(Spaces::new(Faults::new(Writeback::new(Reclaim::new(core)))));
        core.prepare_swap();
        let manager = Manager { core, threads: locks.mutex(LockClass::Threads, Threads::default()) };
        manager.start_threads(reactors, chores).map_err(StartError::Thread)?;
        Ok(manager)
    }

    fn start_threads(
        &self,
        reactors: Vec<Box<dyn Reactor>>,
        chores: fn(&Arc<Spaces<P>>),
    ) -> std::io::Result<()> {
        let start = |name, body: Box<dyn FnOnce() + Send>| self.threads.lock().start(&self.core, name, body);
        for (number, reactor) in reactors.into_iter().enumerate() {
            let core = self.core.clone();
            start("elbowroom-fault", Box::new(move || Handler::new(&core, number, reactor).run()))?;
        }
        // The threads from here on are `HELPERS` in number (forking.rs).
        let core = self.core.clone();
        start("elbowroom-flush", Box::new(move || core.run_flusher()))?;
        // In a model time does not pass, and nothing is ever late.
        #[cfg(not(shuttle))]
        {
            let core = self.core.clone();
            start("elbowroom-alarm", Box::new(move || core.run_watchdog()))?;
        }
        let core = self.core.clone();
        let chores = move || {
            core.collapse_some();
            chores(&core);
            shown::note(&core);
        };
        let (core, asked) = (self.core.clone(), self.core.clone());
        start("elbowroom-supply", Box::new(move || core.supplier().run(chores, || shown::serve(&asked))))
    }

    #[cfg(not(shuttle))]
    pub(crate) fn core(&self) -> &Arc<Spaces<P>> {
        &self.core
    }

    /// How many files are open. Any thread.
    pub fn managed_files(&self) -> usize {
        self.core.objects.opened()
    }

    /// How many pages are dirty. Any thread.
    pub fn dirty_pages(&self) -> usize {
        self.core.groups.dirty_pages()
    }

    /// The object of the regular file at `path`, which may be `/proc/<tid>/fd/<n>`, opened if need be.
    /// `writable`: pages will be written back.
    pub fn open(&self, path: &Path, writable: bool) -> Result<Arc<FileObject>, Errno> {
        let (object, given_up) = self.core.objects.open(path, writable)?;
        entered(&self.core, &object, given_up);
        Ok(object)
    }

    /// The memory groups.
    pub fn groups(&self) -> MemoryGroups<'_, P> {
        MemoryGroups::of(&self.core)
    }

    /// The object of an open file.
    pub fn find(&self, id: FileId) -> Option<Arc<FileObject>> {
        self.core.objects.find(id)
    }

    /// Closes a file that was opened to be mapped, and then was not. Does nothing if another mapping maps
    /// it, or if files that are not mapped are kept open ([`Config::close_unmapped`]).
    pub fn close_unused(&self, object: &Arc<FileObject>) {
        if self.core.config.close_unmapped {
            self.core.close_unmapped(object, Obstacle::Skip);
        }
    }

    /// Announces a write(2) to the bytes `range`: write-back of their pages waits until
    /// [`Manager::write_end`].
    pub fn write_begin(&self, object: &Arc<FileObject>, range: Range<u64>) -> WriteTicket {
        self.core.write_begin(object, range)
    }

    /// The write was made and covered `written`, nothing if it failed.
    pub fn write_end(&self, ticket: WriteTicket, written: Range<u64>) {
        self.core.write_end(ticket, written);
    }

    /// The file's size was changed, and the bytes `changed` perhaps.
    pub fn resized(&self, object: &Arc<FileObject>, changed: Range<u64>) {
        self.core.resized(object, changed);
    }

    /// The file's bytes from `from` on were moved, as FALLOC_FL_COLLAPSE_RANGE and FALLOC_FL_INSERT_RANGE do
    /// it: as [`Manager::resized`], and private mappings lose the copies that they have of them.
    pub fn moved(&self, object: &Arc<FileObject>, from: u64) {
        self.core.moved(object, from);
    }

    /// Writes back the dirty pages with bytes of `range`, without waiting for durability.
    pub fn write_back(&self, object: &Arc<FileObject>, range: Range<u64>) -> Result<(), Errno> {
        self.core.before_read(object, range)
    }

    /// Writes back everything. The first error, after all was tried.
    pub fn flush_all(&self) -> Result<(), Errno> {
        self.core.write_all(Obstacle::Wait)
    }

    /// Runs `f` for a thread that serves others. If it panics, what it had locked stays locked, and threads
    /// that wait for that would wait for ever: so the process ends, as it does if a thread of the manager
    /// panics.
    pub fn serve<R>(&self, thread: &str, f: impl FnOnce() -> R) -> R {
        catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|_| self.core.end_process(thread))
    }

    /// The lock statistics, from the manager's start: [`LockStats::snapshot`] has rows to take differences
    /// of, and text for Prometheus; [`LockUse`](crate::LockUse) is made of one, as `--stats` has it.
    pub fn locks(&self) -> &LockStats {
        &self.core.locks
    }

    /// The time that threads lose because memory lacks: its figures ([`Pressure::figures`]), and watches for
    /// events ([`Pressure::watch`]).
    pub fn pressure(&self) -> Arc<Pressure> {
        self.core.groups.of(GroupId::ROOT).pressure()
    }

    /// How long faults and pins took so far, as histograms and as text for Prometheus.
    pub fn latencies(&self) -> LatencySnapshot {
        self.core.counters.latencies.snapshot()
    }

    /// What happened last; `None`: that is not kept
    /// ([`RecordConfig::trace_bytes`](crate::RecordConfig::trace_bytes)).
    pub fn trace(&self) -> Option<TraceSnapshot> {
        self.core.trace.as_ref().map(|trace| trace.snapshot(&self.core.locks))
    }

    /// A summary of what happened so far.
    pub fn stats(&self) -> Stats {
        let (core, c) = (&self.core, &self.core.counters);
        let latency = c.latencies.snapshot();
        Stats {
            budget_bytes: core.config.memory,
            peak_bytes: core.peak_bytes(),
            resident_bytes: core.resident_bytes(),
            pgfault: c.get(Event::FaultsMinor) + c.get(Event::FaultsMajor),
            pgmajfault: c.get(Event::FaultsMajor),
            faults_spurious: c.get(Event::FaultsSpurious),
            faults_denied: c.get(Event::FaultsDenied),
            faults_foreign: c.get(Event::FaultsForeign),
            faults_stopped: c.get(Event::FaultsStopped),
            fault_p50_ns: latency.faults.quantile_ns(0.5),
            fault_p99_ns: latency.faults.quantile_ns(0.99),
            fault_max_ns: latency.faults.max_ns(),
            latency: LatencyUse::from(&latency),
            read_bytes: c.get(Event::ReadBytes),
            reads: c.get(Event::Reads),
            written_bytes: c.get(Event::WrittenBytes),
            writes: c.get(Event::Writes),
            read_errors: c.get(Event::ReadErrors),
            write_errors: c.get(Event::WriteErrors),
            lost_dirty_pages: c.get(Event::LostDirtyPages),
            layout_lock_faults: c.get(Event::LayoutLockFaults),
            vma_lock_success: c.get(Event::VmaLockSuccess),
            vma_lock_abort: c.get(Event::VmaLockAbort),
            vma_lock_retry: c.get(Event::VmaLockRetry),
            vma_lock_miss: c.get(Event::VmaLockMiss),
            retry_io_miss: c.get(Event::RetryIoMiss),
            retry_mmap_drop: c.get(Event::WaitsForReads),
            waits_for_writeback: c.get(Event::WaitsForWriteback),
            waits_for_locks: c.get(Event::WaitsForLocks),
            uptodate_waits: c.get(Event::UptodateWaits),
            waits_for_tables: c.get(Event::WaitsForTables),
            waits_for_pins: c.get(Event::WaitsForPins),
            waits_for_changes: c.get(Event::WaitsForChanges),
            hand_overs: c.get(Event::HandOvers),
            turns: c.get(Event::Turns),
            evicted_pages: c.get(Event::EvictedPages),
            brought: Brought {
                refault_pages: c.get(Event::RefaultPages),
                near_pages: c.get(Event::NearPages),
                policy_changes: c.get(Event::PolicyChanges),
                near_half_pages: c.get(Event::NearHalfPages),
                near_quarter_pages: c.get(Event::NearQuarterPages),
                chunk_reads: c.get(Event::ChunkReads),
                unused_pages: c.get(Event::UnusedPages),
            },
            second_chances: c.get(Event::SecondChances),
            stores_ahead: c.get(Event::StoresAhead),
            stores_ahead_unused: c.get(Event::StoresAheadUnused),
            throttled_writers: c.get(Event::Throttled),
            throttled_ns: c.get(Event::ThrottledNs),
            memory_waits: c.get(Event::MemoryWaits),
            overdue_faults: c.get(Event::OverdueFaults),
            shallow_idles: c.get(Event::ShallowIdles),
            foreign_changes: c.get(Event::ForeignChanges),
            folio_moves: c.get(Event::FolioMoves),
            aliased_files: c.get(Event::AliasedFiles),
            handed_back_files: c.get(Event::HandedBackFiles),
            contested_files: c.get(Event::ContestedFiles),
            not_given_files: c.get(Event::NotGivenFiles),
            huge_faults: c.get(Event::HugeFaults),
            huge_splits: c.get(Event::HugeSplits),
            huge_collapses: c.get(Event::HugeCollapses),
            pswpout: c.get(Event::SwapOuts),
            pswpin: c.get(Event::SwapIns),
            swap_clean_outs: c.get(Event::SwapCleanOuts),
            zeros_dropped: c.get(Event::ZerosDropped),
            zswpwb: c.get(Event::SwapWritebacks),
            swap_errors: c.get(Event::SwapErrors),
            swap_io: SwapFileIo {
                swap_read_bytes: c.get(Event::SwapReadBytes),
                swap_written_bytes: c.get(Event::SwapWrittenBytes),
            },
            swap_used_bytes: core.swap.used() << PAGE_SHIFT,
            swap_file_bytes: core.swap.file_pages() << PAGE_SHIFT,
            need: reclaim::need(core),
            swap_compressed_bytes: core.swap.pool().bytes(),
            swap_pool_bytes: core.swap.pool().pages() << PAGE_SHIFT,
            userfaultfd: UserfaultfdUse {
                mmu: P::name(&core.mmu),
                served: match P::served(&core.mmu) {
                    Served::All => "all",
                    Served::UserMode => "user-mode",
                },
            },
        }
    }
}

/// Replaces the file of [`RecordConfig::learned`](crate::RecordConfig::learned), if there is one, by what is
/// known of files now, beside what other processes have written there. Waits for these, for three seconds at
/// most. The old file is whole until it is replaced. Dropping the manager does this, too.
///
/// Gives lines for the user about what went wrong: that the file cannot be written, or that nothing of it was
/// used, since it is damaged.
pub fn keep_learned<P: Platform>(manager: &Manager<P>) -> Vec<String> {
    let Patterns { files, kept, .. } = manager.core.patterns();
    kept.as_ref().map_or_else(Vec::new, |kept| kept.save(files))
}

/// A file was opened to be mapped.
fn entered<P: Platform>(core: &Spaces<P>, object: &Arc<FileObject>, given_up: Option<Arc<FileObject>>) {
    if let Some(old) = given_up {
        core.drop_clean(&old, ALL_PAGES);
    }
    // A program that maps a file expects its bytes as they are now.
    core.check_foreign(object);
    if let Some(kept) = &core.patterns().kept {
        kept.opened(&core.patterns().files, object);
    }
}

/// Runs a thread of the manager to its end. If it panics, the process ends: faults would wait for ever.
fn run_to_the_end<P: Platform>(core: &Arc<Spaces<P>>, name: &str, body: Box<dyn FnOnce() + Send>) {
    let life = || {
        if let Some(starts) = &core.config.hooks.on_thread_start {
            starts();
        }
        body();
    };
    if cfg!(shuttle) {
        // The model checker shows a panic itself.
        return life();
    }
    if catch_unwind(AssertUnwindSafe(life)).is_err() {
        core.end_process(name);
    }
}

/// Gives each file to the kernel that another process comes for, until the guards are stopped.
fn give_files(core: &Arc<Spaces<Host>>, comers: &Guards) {
    let Some(mm) = core.spaces.of(0) else { return };
    let space = Space { core: core.clone(), mm, base: 0 };
    while let Some(comer) = comers.next() {
        let _working = core.quiet.work();
        core.counters.add(Event::ContestedFiles, 1);
        if space.give_file(comer.id).is_err() {
            core.counters.add(Event::NotGivenFiles, 1);
            // A file that could not be given in time is at least written back: the other process does not
            // wait for ever.
            if let Some(object) = core.objects.find(comer.id) {
                let _ = core.before_read(&object, 0..u64::MAX);
            }
        }
    }
}

/// What a thread that has time does once a second where pointers are real.
fn host_chores(core: &Arc<Spaces<Host>>) {
    if let Some(mm) = core.spaces.of(0) {
        Space { core: core.clone(), mm, base: 0 }.settle_aliases();
    }
    #[cfg(not(shuttle))]
    core.swap.look_after_children();
}

impl Manager<Host> {
    /// Starts a manager of real pointers, with the process's own space.
    ///
    /// # Errors
    /// What is missing here, and what to do about it.
    pub fn start(config: Config) -> Result<(Self, Space<Host>), StartError> {
        let manager = Self::start_with(config, host_chores)?;
        let mm = manager.core.spaces.add(0, GroupId::ROOT, &manager.core.locks);
        let space = Space { core: manager.core.clone(), mm, base: 0 };
        Ok((manager, space))
    }

    /// The object of the file that descriptor `fd` of thread `tid` of this process is, and what the kernel
    /// would keep of the descriptor in a mapping: for [`Space::map_through`](crate::Space::map_through). With
    /// [`Config::alone`] the file is kept ours alone from now on: if another process comes, it goes back to
    /// the kernel before that process has it open.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_through(
        &self,
        tid: u32,
        fd: i32,
        writable: bool,
    ) -> Result<(Arc<FileObject>, Arc<Origin>), OpenError> {
        if self.core.quiet.is_without_files() {
            return Err(OpenError::NotAlone);
        }
        let objects = &self.core.objects;
        let origin = Origin::take_or_open(tid, fd, objects.next_serial()).map_err(OpenError::Failed)?;
        let started = self.start_guards();
        started.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))?;
        let access = match (&objects.guards, self.core.config.alone) {
            (Some(guards), _) => Access::Alone(guards),
            (None, false) => Access::Anybody,
            (None, true) => return Err(OpenError::NotAlone),
        };
        let (object, given_up) = objects.open_origin(&origin, writable, access)?;
        entered(&self.core, &object, given_up);
        let origin = object.known_origin(origin);
        Ok((object, origin))
    }

    /// In the child of a fork: starts all threads again, but for the guards'.
    #[cfg(not(shuttle))]
    pub(crate) fn start_in_child(&self, reactors: Vec<Box<dyn Reactor>>) -> std::io::Result<()> {
        if let Some(kept) = &self.core.patterns().kept {
            kept.forget();
        }
        // The parent's threads, which cannot be joined.
        std::mem::forget(std::mem::take(&mut *self.threads.lock()));
        self.start_threads(reactors, host_chores)
    }

    /// Starts the two threads that notice when another process wants a managed file, and give it back,
    /// unless they run, or no file needs them. `false`: no file is managed now, so they were not started.
    /// [`Manager::open_through`] calls this; a thread that should not start threads has another one call it
    /// before.
    ///
    /// # Errors
    /// The system has no room for another thread.
    pub fn start_guards(&self) -> std::io::Result<bool> {
        let Some(guards) = &self.core.objects.guards else { return Ok(true) };
        if self.core.quiet.is_without_files() {
            return Ok(false);
        }
        let mut threads = self.threads.lock();
        if threads.guards == 0 {
            let (comers, core) = (guards.clone(), self.core.clone());
            threads.start(&self.core, "elbowroom-give", move || give_files(&core, &comers))?;
            threads.guards = 1;
        }
        if threads.guards == 1 {
            let listens = guards.clone();
            threads.start(&self.core, "elbowroom-guard", move || listens.listen())?;
            threads.guards = 2;
        }
        drop(threads);
        guards.wait_for_listener();
        Ok(true)
    }

    /// Which addresses are managed. Any thread.
    pub fn windows(&self) -> &WindowTable {
        self.core.mmu.windows()
    }

    /// How often pages began or ended a passage back into a window: odd while some have no rights. An access
    /// to a window that raised SIGSEGV with SEGV_ACCERR meanwhile is to be done again. Any thread; waits for
    /// nothing.
    pub fn passages(&self) -> u64 {
        self.core.mmu.passages()
    }

    /// Whether any of `range` is memory of the manager's own: frames, or what it keeps beside windows.
    pub fn has_memory_of_its_own_in(&self, range: &std::ops::Range<usize>) -> bool {
        self.core.mmu.has_memory_of_its_own_in(range)
    }
}

impl Manager<Soft> {
    /// Makes an empty soft space.
    ///
    /// # Errors
    /// ENOMEM: there are as many as there may be.
    pub fn create_space(&self) -> Result<Space<Soft>, Errno> {
        Space::create(&self.core, GroupId::ROOT)
    }

    /// Begins to tell which translations of soft spaces become invalid, for a user that keeps some. Linux:
    /// `mmu_notifier_register`.
    pub fn subscribe(&self) -> Subscription {
        self.core.mmu.subscribe()
    }
}

impl<P: Platform> Drop for Manager<P> {
    fn drop(&mut self) {
        // Errors were recorded with their files; no caller is left to tell.
        let _ = self.flush_all();
        keep_learned(self).iter().for_each(|line| self.core.report(line));
        self.core.stop.store(true, Ordering::Release);
        self.core.to_write.bell.ring_for_stop();
        self.core.wake_supplier();
        if let Some(guards) = &self.core.objects.guards {
            guards.stop();
        }
        self.core.wake_threads();
        for thread in std::mem::take(&mut *self.threads.lock()).started {
            let _ = thread.join();
        }
    }
}
