//! What a manager is made with, and every bound it keeps.

use crate::ablation::Ablation;
use crate::division::Division;
use crate::process_tree::Member;
use elbowroom_machine::Served;
use elbowroom_store::EngineKind;
use elbowroom_sync::Arc;
use elbowroom_sync::time::Duration;
use std::fmt;
use std::path::PathBuf;

/// How pages get into windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum MoverKind {
    /// UFFDIO_MOVE where the kernel has it, else UFFDIO_COPY.
    Auto,
    /// UFFDIO_MOVE or an error.
    Move,
    /// UFFDIO_COPY.
    Copy,
}

/// How spaces of the host use their userfaultfd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UserfaultfdConfig {
    /// How pages get into windows.
    pub mover: MoverKind,
    /// Which faults are served; `None`: as many as are permitted.
    /// [`UserfaultfdUse::served`](crate::UserfaultfdUse::served) tells.
    pub served: Option<Served>,
}

impl Default for UserfaultfdConfig {
    fn default() -> Self {
        Self { mover: MoverKind::Auto, served: None }
    }
}

/// A group that uses more than its `high`, and of which nothing can be reclaimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HighStuck {
    /// The place of the group among all groups: [`GroupId::number`](crate::GroupId::number).
    pub group: usize,
    /// Bytes that it uses.
    pub usage_bytes: u64,
    /// Its `high`, in bytes.
    pub high_bytes: u64,
}

/// Tells the program a line of text, without its end.
pub type Report = Arc<dyn Fn(&str) + Send + Sync>;

/// Functions of the program that the manager calls, each with what it captures. `None` is the default of
/// each.
#[derive(Clone, Default)]
pub struct Hooks {
    /// Called first by every thread that the manager starts.
    pub on_thread_start: Option<Arc<dyn Fn() + Send + Sync>>,
    /// Tells whether a thread of the program is about to change its mappings in the kernel (mmap, munmap and
    /// the like, of what is not managed), or waits there to. The manager's threads then let it go first, for
    /// 0.1 ms and a third of their time at most, since their own requests would keep the kernel's lock from
    /// it. Called often, by any thread; must not block. For spaces of the host only.
    pub changes_wait: Option<Arc<dyn Fn() -> bool + Send + Sync>>,
    /// Tells whether the program has done anything by which a device may read or write its memory after a
    /// call has returned: asynchronous or direct reads and writes. Where pages are copied (before Linux 6.8),
    /// pages that a device may still use then stay where they are. Buffers that are registered with io_uring
    /// are found without it, up to two milliseconds late. Called often, by any thread; must not block.
    pub transfers: Option<Arc<dyn Fn() -> bool + Send + Sync>>,
    /// Called before the kernel maps a file that was managed, with the file.
    pub on_hand_back: Option<Arc<dyn Fn(elbowroom_store::FileId) + Send + Sync>>,
    /// Called before the manager goes on although a fork was not made within the bound: what its child gets
    /// is not whole.
    pub on_late_fork: Option<Arc<dyn Fn() + Send + Sync>>,
    /// Called with a line, without its end, about a failure that is reported in no other way. `None`: it is
    /// written to standard error. Called by the manager's threads.
    pub report: Option<Report>,
    /// Called when a group uses more than its `high`, and nothing of it can be reclaimed: within a second,
    /// and once in a minute for each group at most. `None`: a line for `report`. Called by a thread of the
    /// manager.
    pub on_high_stuck: Option<Arc<dyn Fn(HighStuck) + Send + Sync>>,
    /// Ends the process, after a thread of the manager has panicked, which was reported: faults would wait
    /// for ever. Called by the thread that panicked, and not to return. `None`, or if it returns: by
    /// [`abort`](std::process::abort).
    pub end_process: Option<Arc<dyn Fn() + Send + Sync>>,
}

impl fmt::Debug for Hooks {
    /// Which of them are there.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { on_thread_start, changes_wait, transfers, on_hand_back, on_late_fork, report, .. } = self;
        f.debug_struct("Hooks")
            .field("on_thread_start", &on_thread_start.is_some())
            .field("changes_wait", &changes_wait.is_some())
            .field("transfers", &transfers.is_some())
            .field("on_hand_back", &on_hand_back.is_some())
            .field("on_late_fork", &on_late_fork.is_some())
            .field("report", &report.is_some())
            .field("on_high_stuck", &self.on_high_stuck.is_some())
            .field("end_process", &self.end_process.is_some())
            .finish()
    }
}

/// What a manager keeps of what happens. By default nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecordConfig {
    /// So many bytes of records are kept for each thread, the last of what it did, for
    /// [`Manager::trace`](crate::Manager::trace). A record has 48 bytes, and 72 threads at most have a
    /// buffer of their own. Not part of the budget. 0: nothing is kept.
    pub trace_bytes: usize,
    /// The file, best by an absolute path, that keeps for later runs which parts of files are read whole. It
    /// is read when a file is mapped, of which it says what was learned before, unless that file has changed;
    /// and replaced when the manager is dropped, or by [`keep_learned`](crate::keep_learned). At most 4 MiB.
    /// Processes may have the same file. [`check_learned_file`](crate::check_learned_file) tells whether it
    /// can be one. `None`: what is learned ends with the manager.
    pub learned: Option<PathBuf>,
}

/// Which pages go, and when. By default those that were not used for longest, when memory is short.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReclaimConfig {
    /// The part of its time that the process may lose so that it has no more memory than it needs, in
    /// ten-thousandths: pages go before memory is short, and their memory goes to the machine. Only as one of
    /// a run ([`Config::member`]). `None`: pages go when memory is short.
    pub slowdown: Option<u32>,
    /// How the memory of files is divided between pages that were used again and others. `None`: each memory
    /// group has the division that suits how its folios of at least 16 pages are used, and changes it when
    /// that does.
    pub division: Option<Division>,
}

/// What a manager is made with.
#[derive(Debug, Clone)]
pub struct Config {
    /// The budget in bytes, at least [`Config::MIN_MEMORY`]: resident managed memory and what describes it.
    pub memory: u64,
    /// Which pages go, and when.
    pub reclaim: ReclaimConfig,
    /// This process as one of a run, whose processes have one budget together; then `memory` is that budget.
    /// `None`: the manager has its budget alone.
    pub member: Option<Arc<Member>>,
    /// How files are read.
    pub engine: EngineKind,
    /// How spaces of the host use their userfaultfd.
    pub userfaultfd: UserfaultfdConfig,
    /// Fault handler threads, 1 to [`MAX_HANDLERS`]; 0 lets the manager choose by the number of processors.
    pub handlers: usize,
    /// A dirty page is written back at the latest after this.
    pub writeback_interval: Duration,
    /// How much may be dirty, in bytes: from half of it on the flusher works, from three quarters on writers
    /// are slowed down, and at all of it they wait. At least two pages, and at most three quarters of the
    /// arena's frames. `None`: three quarters of these, of which the flusher leaves two thirds of the frames
    /// alone until the interval is over.
    pub dirty: Option<u64>,
    /// How much anonymous memory, and copies of files' pages that were stored to, may be out of the frames at
    /// a time, in bytes. What compresses is kept in frames that belong to the budget: at most 40 % of them
    /// where there is a swap file for the rest, else three quarters. 0: what was stored to stays in memory
    /// until it is unmapped.
    pub swap: u64,
    /// Where the swap file is made, for what does not compress, or for which there is no more room in the
    /// budget: a directory on a disk. The file has no name, so it is gone with the process. `None`: there is
    /// none, and what does not compress stays in memory.
    pub swap_dir: Option<PathBuf>,
    /// The swap file is encrypted: AES-256 in XTS mode, with a key that is made at the start and is only in
    /// the process's memory.
    pub swap_encrypt: bool,
    /// Faults to inject into the store, for tests, as `elbowroom_store::Inject` reads them.
    pub inject: Option<String>,
    /// Whether private mappings may be writable. Their pages stay in memory once they were stored to, so a
    /// program that was not written for the manager should not be given many.
    pub private_writes: bool,
    /// Files are written back and closed as soon as no mapping maps them, before the verb that unmapped
    /// them returns; their pages stay for a while. Off: they stay open for a while.
    pub close_unmapped: bool,
    /// Files are managed only while no other process uses them
    /// ([`Manager::open_through`](crate::Manager::open_through)).
    pub alone: bool,
    /// While faults come often, idle processors of the machine are kept from sleeping deeply, if that is
    /// permitted and they are few: each fault wakes two. The handler that does it has a descriptor for it
    /// meanwhile (`/dev/cpu_dma_latency`), and a child that is forked then, and has the same table of
    /// descriptors, goes on with it until it closes that, executes a program or ends.
    pub shallow_idle: bool,
    /// How long what is waited for may take.
    pub bounds: Bounds,
    /// Functions of the program that the manager calls.
    pub hooks: Hooks,
    /// What is kept of what happens.
    pub records: RecordConfig,
    /// Which improvements are on.
    pub ablation: Ablation,
}

/// How long what is waited for may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// How long all threads rest for a fork at most. Must be longer than a fork can take: the child of one
    /// that takes longer has no copy that is whole.
    pub fork: Duration,
    /// A fault that was not served for so long is reported, and ended by SIGBUS.
    pub fault: Duration,
    /// A fault for which there has been no memory for so long is ended by SIGBUS: budget and swap are full of
    /// what cannot be dropped. The first one is reported.
    pub memory_wait: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { fork: FORK_BOUND, fault: FAULT_BOUND, memory_wait: MEMORY_WAIT_BOUND }
    }
}

impl Config {
    /// The smallest budget that works, in bytes.
    #[cfg(not(shuttle))]
    pub const MIN_MEMORY: u64 = 16 << 20;

    /// The smallest budget that has frames, in bytes: under shuttle memory must be short after a few steps.
    #[cfg(shuttle)]
    pub const MIN_MEMORY: u64 = (1 << 20) + (1 << 17);

    /// A configuration with a budget of `memory` bytes and the defaults for everything else.
    pub fn with_memory(memory: u64) -> Self {
        Self {
            memory,
            reclaim: ReclaimConfig::default(),
            member: None,
            hooks: Hooks::default(),
            engine: EngineKind::Auto,
            userfaultfd: UserfaultfdConfig::default(),
            handlers: 0,
            writeback_interval: Duration::from_secs(1),
            dirty: None,
            swap: 0,
            swap_dir: None,
            swap_encrypt: false,
            inject: None,
            private_writes: true,
            close_unmapped: false,
            alone: false,
            shallow_idle: false,
            bounds: Bounds::default(),
            records: RecordConfig::default(),
            ablation: Ablation::default(),
        }
    }

    /// Frames that the arena has at first: the budget less [`FIXED_BYTES`]. It gives
    /// frames up as what describes pages grows (`Core::pay_frames`): a folio with its places in the cache, in
    /// the lists and in the dirty index weighs some 250 bytes, a page that is out, with its slot and its
    /// place in an index, up to 40. Of a budget of single pages with four times as much swap, all of it used,
    /// that is a tenth.
    ///
    /// A model has hardly any frames, and gives none up.
    pub fn arena_frames(&self) -> usize {
        let reserve = FIXED_BYTES + if cfg!(shuttle) { self.memory / 16 } else { 0 };
        (self.memory.saturating_sub(reserve) / elbowroom_machine::PAGE_SIZE as u64) as usize
    }

    /// The most swap that leaves half of the budget to pages, in bytes.
    pub fn most_swap(&self) -> u64 {
        self.memory / 2 / SLOT_BYTES * elbowroom_machine::PAGE_SIZE as u64
    }

    /// The room for pages that are out, with an arena of `frames`: for how many, and in how many frames.
    pub(crate) fn swap_pages(&self, frames: usize) -> (u64, u64) {
        let tuning = &self.ablation.tuning;
        let percent = if self.swap_dir.is_some() { tuning.pool_percent } else { tuning.lone_pool_percent };
        let pool = frames * percent / 100;
        (self.swap / elbowroom_machine::PAGE_SIZE as u64, pool as u64)
    }
}

/// One in so many of the pages that went out later than a page, and are back, counts as if it had overtaken
/// the page. Measured: so what a quarter more and half more memory would spare is told within a tenth of what
/// is read then (`what_more_memory_would_have_spared_is_what_it_spares`).
pub(crate) const OVERTAKEN_ONE_IN: u64 = 4;

/// What a manager needs with any budget, in bytes.
pub(crate) const FIXED_BYTES: u64 = 1 << 20;

/// What describes a frame whether it is used or not, in bytes: its shadow entry, and bits of the allocator's.
pub(crate) const FRAME_BYTES: usize = 16;

/// Frames that are owed for what describes pages before they are paid at once: some system calls.
pub(crate) const PAY_AT: usize = 16;

/// What describes a page that is out, in bytes, at most: its slot with its group, and what the table keeps
/// free, 29; its place in the index, and in the block of larger folios, which stays there, 17; the queue of
/// the pool, 4.
pub(crate) const SLOT_BYTES: u64 = 50;

pub use elbowroom_machine::probe::MAX_HANDLERS;

/// How long a thread sleeps at most for one page whose group is over its `high`.
pub const HIGH_BOUND: Duration = Duration::from_millis(200);

/// The most groups of a manager, with the root.
pub const MAX_GROUPS: usize = 1024;

/// The largest folio, in pages: 2 MiB.
pub const MAX_FOLIO_PAGES: u64 = 512;

/// log2 of that.
pub const MAX_FOLIO_ORDER: u8 = MAX_FOLIO_PAGES.ilog2() as u8;

/// log2 of the pages that the fault at the begin of a chunk waits for, at most: 256 KiB. The rest is read
/// meanwhile, in larger parts.
pub const FIRST_PART_ORDER: u8 = 6;

/// A chunk is at most one part in this many of what a read at a fault may be (`Core::read_cap`): an eighth of
/// the arena while no other fault waits.
pub const CHUNK_SHARE: u64 = 4;

/// Nothing more is read ahead by a handler whose reads under way have one part in this many of the arena.
pub const UNDER_WAY_SHARE: usize = 8;

/// Lookups of a fault that fail, before it takes the layout lock to see why.
pub const OPTIMISTIC_LOOKUPS: u32 = 8;

/// How often a fault looks, without giving the processor away, whether the lock of a folio that has its
/// bytes is free. 1,000 looks are some 20 us, as much as mapping a folio takes.
pub const UPTODATE_LOOKS: u32 = 1000;

/// How often it then looks again, giving the processor away after each look.
pub const UPTODATE_YIELDS: u32 = 4;

/// How often it begins these looks, if it finds the lock free and another thread takes it first each time.
pub const UPTODATE_TRIES: u32 = 4;

/// First stores of a thread to one page after the other, before pages are made writable ahead of it. In a
/// model no thread stores to many.
pub const STORES_IN_A_ROW: u64 = if cfg!(shuttle) { 1 } else { 4 };

/// How often an allocation frees a batch before it makes do with a smaller run.
pub const RECLAIM_ROUNDS: usize = 4;

/// Folios that one reclaim looks at, at most, per page that it wants: a second look at each is its second
/// chance.
pub const RECLAIM_SCAN_FACTOR: usize = 8;

/// Folios that reclaim takes out of their windows together, at most: they are off all lists meanwhile.
pub const RECLAIM_BATCH_FOLIOS: usize = 64;

/// The arena grows ahead of need while fewer frames are free than a part of those in use, one in so many.
/// Memory that is never used costs a short process the time in which it is cleared.
pub const AHEAD_SHARE: usize = 4;

/// The same, whatever is in use, while fewer than so many are free: 512 KiB.
pub const LEAST_AHEAD_FRAMES: usize = 128;

/// The arena of a process of a run grows ahead of need by one part in so many of what all may take together,
/// at most.
pub const GROW_AHEAD_SHARE: usize = 16;

/// In a group that was refused memory at its `max`, twice as much is freed ahead as its threads allocated
/// lately in this time.
pub const NEAR_MAX_TIME: Duration = Duration::from_millis(10);

/// What [`NEAR_MAX_TIME`] stands for is at most one part in so many of `max`, so twice that is freed ahead.
pub const NEAR_MAX_SHARE: u64 = 128;

/// A process that gives pages to others keeps so many free frames: 512 KiB.
pub const FRAMES_AT_HAND: usize = 128;

/// A process that is to give pages to others reclaims for so long at a time.
pub const GIVE_BOUND: Duration = Duration::from_millis(50);

/// Pages that the thread that keeps frames at hand frees at a time, before it lets others have the processor.
pub const FREE_AHEAD_PAGES: usize = 16;

/// How long a fork waits for all threads to rest, and for other forks.
pub const QUIET_BOUND: Duration = Duration::from_secs(10);

/// How long all threads rest for a fork at most, if nothing else is asked for. Copying page tables takes
/// the kernel some ms for each GiB.
pub const FORK_BOUND: Duration = Duration::from_secs(20);

/// How long the thread that keeps frames at hand sleeps at most before it looks by itself.
pub const SUPPLY_LOOK: Duration = Duration::from_secs(1);

/// Second chances of single pages are given up (`Ablation::skipped_chances`) while fewer than one in this
/// many is taken. One costs a copy and a share of a TLB shootdown, about a tenth of the processor time of
/// the read that it saves; and that read makes a thread wait.
pub const CHANCE_BAD_ONE_IN: u64 = 20;

/// Second chances are given again when more than one in this many is taken.
pub const CHANCE_GOOD_ONE_IN: u64 = 12;

/// While second chances are given up, one page in this many gets one all the same.
pub const CHANCE_SAMPLE_ONE_IN: usize = 16;

/// How often a fault repeats its look, because something has changed meanwhile, before it lets others go
/// on.
pub const REPEATS_AT_ONCE: u32 = 64;

/// A file is left to the kernel if one folio of it has gone from mapping to mapping more often than this
/// within [`SUPPLY_LOOK`]: less often than where one instruction needs two mappings of it at once, and far
/// more often than where mappings are used in turn for different parts.
pub const ALIAS_MOVES: u32 = 2000;

/// Mappings of each space in which folios to collapse are looked for at a time, at most.
pub const COLLAPSE_LOOKS: usize = 64;

/// A throttled writer goes on after this, whatever is dirty: memory runs out for it as for everybody. Linux:
/// `MAX_PAUSE`.
pub const THROTTLE_BOUND: Duration = Duration::from_millis(200);

/// A writer pauses when it owes so much time: shorter pauses cost more than they are worth.
pub const THROTTLE_MIN: Duration = Duration::from_millis(4);

/// A writer never pauses when it owes less time than this, even where only few pages may be dirty.
pub const THROTTLE_LEAST: Duration = Duration::from_micros(200);

/// So much time a writer can save up by dirtying nothing.
pub const DIRTY_CREDIT: Duration = Duration::from_millis(10);

/// Writers whose dirty pages are counted apart, at most: a multiple of 4.
pub const DIRTY_WRITERS: usize = 1024;

/// Pages that a device is thought to take in a second before any were written: 100 MiB. Linux: `INIT_BW`.
pub const FIRST_WRITE_RATE: u64 = 25_600;

/// How often it is looked whether writers dirty as much as the device takes. Linux: `BANDWIDTH_INTERVAL`.
pub const RATE_WINDOW: Duration = Duration::from_millis(100);

/// log2 of the pages of the largest folio of anonymous memory, but for huge ones: 64 KiB come and go at once.
pub const RUN_ORDER: u8 = 4;

/// log2 of the compressed pages that are written to the swap file at a time. A model has hardly any frames.
pub const STAGING_ORDER: u8 = if cfg!(shuttle) { 0 } else { RUN_ORDER };

/// Frames are freed for a run only while less than one part in this many of the arena is free in pieces.
pub const PIECES_SHARE: usize = 8;

/// Frames are freed for a run in so many rounds at most, if other threads take what is freed.
pub const RUN_ROUNDS: usize = 64;

/// Neighbouring dirty folios are written together, up to so many pages: 1 MiB.
pub const CLUSTER_PAGES: u64 = 256;

/// Pages of anonymous memory that wait to be written to the swap file, at most, before reclaim stops: those
/// of a few clusters.
pub const WRITES_AHEAD: usize = 4 * CLUSTER_PAGES as usize;

/// Of the free slots of swap, pages for one part in so many are on their way there at a time, at most.
pub const SLOTS_AHEAD_SHARE: u64 = 4;

/// Rings for writes to several places of a file at once, one for each thread that writes back at a time.
pub const WRITE_RINGS: usize = 4;

/// If nothing could be written, the flusher waits for this before it tries again because much is dirty.
pub const FLUSH_AGAIN: Duration = Duration::from_millis(100);

/// So long MADV_PAGEOUT leaves a page to the thread that wanted it. The kernel maps a page in the thread's
/// own time, and has what just came in on no list that MADV_PAGEOUT finds; here the thread must be woken
/// first.
pub const FRESH: Duration = Duration::from_millis(1);

/// How long a handler waits before it tries again what found no memory or a pinned page.
pub const DELAY: Duration = Duration::from_millis(1);

/// How long a thread sleeps at most before it looks again whether a change of the layout has ended: a bound,
/// not a poll.
pub const CHANGE_LOOK: Duration = Duration::from_millis(10);

/// Over how long it is measured how often a handler is woken, before idle processors may sleep deeply or may
/// not.
pub const SHALLOW_IDLE_WINDOW: Duration = Duration::from_millis(20);

/// From so many wake-ups in a second on, idle processors may not sleep deeply. Each wake-up takes some 50
/// us less then: one part in twenty of all time.
pub const SHALLOW_IDLE_BEGINS: u32 = 1000;

/// From so few wake-ups in a second on, they may sleep deeply again.
pub const SHALLOW_IDLE_ENDS: u32 = 250;

/// How long new changes of a layout are kept waiting at first for a moment without any. If there is none,
/// changes may begin for as long before the next try.
pub const STILL_PATIENCE: Duration = Duration::from_millis(10);

/// Each time that there was no such moment, new changes are kept waiting for twice as long, up to this.
pub const STILL_PATIENCE_MOST: Duration = Duration::from_secs(1);

/// For how long such a moment is waited for. Each change that is under way ends in less, unless it waits for
/// a disk.
pub const STILL_BOUND: Duration = Duration::from_secs(30);

/// How long a fault waits for memory before it fails with SIGBUS rather than hang, if nothing else is asked
/// for.
pub const MEMORY_WAIT_BOUND: Duration = Duration::from_secs(30);

/// Faults that wait for memory are tried again after the time for which none has got some, divided by this:
/// at least after [`DELAY`], at most after [`STARVED_DELAY`]. Each try looks at many pages, and compresses
/// them: where swap is full, tries without a pause would keep a processor busy for as long as the faults
/// wait.
pub const STARVED_PART: u32 = 32;

/// Faults that wait for memory are tried again after this at the latest.
pub const STARVED_DELAY: Duration = Duration::from_millis(25);

/// Faults that wait for memory are seen more often than this.
pub const STARVED_LOOK: Duration = Duration::from_secs(1);

/// For so long faults wait for memory, without any getting some, before groups give what their `min`
/// protects.
pub const MIN_HOLDS: Duration = Duration::from_millis(100);

/// For so long groups give what their `min` protects to accesses that find nothing else, once they do.
pub const MIN_GIVES: Duration = Duration::from_secs(1);

/// How long dirty pages that could not be written are kept while others wait for memory.
pub const FAILED_DIRTY_KEEP: Duration = Duration::from_secs(5);

/// How long a fault waits for anything before it is reported and fails with SIGBUS, if nothing else is asked
/// for: longer than any bound here, and than it takes the kernel to give up a disk that does not answer.
pub const FAULT_BOUND: Duration = Duration::from_secs(180);

/// How often it is looked whether handlers get on, and faults are served.
pub const WATCH_LOOK: Duration = Duration::from_secs(1);

/// If so many more accesses find a group over its `high` and can reclaim nothing, that is reported. One
/// access alone may have found pages that are being written, which the next one reclaims. An access that
/// reclaims something halves the count, which is at most four times this.
pub const STUCK_ACCESSES: u32 = 4;

/// That a group stays over its `high` is reported again after this.
pub const STUCK_AGAIN: Duration = Duration::from_secs(60);

/// If the watchdog has not looked for so long, the process was stopped: that time counts as no wait.
pub const STOPPED: Duration = Duration::from_secs(5);

/// How long a thread that has panicked waits for the flusher to write what is dirty, before the process ends.
pub const LAST_FLUSH_BOUND: Duration = Duration::from_secs(2);

/// If one thread's fault on one page is answered so many times in a row, and the page is there, the fault
/// counts as not answered. An endless loop gets as many answers in a second. Threads that meet at a barrier
/// and then touch a page that went out may be late each time, too, but not so often while a fault's bound
/// lasts.
pub const MOST_REPEATS: u64 = 10_000;

/// How long a fault or a verb waits, in all, for pages that are pinned, for writes through descriptors, or
/// for others that give the same file back.
pub const PINNED_BOUND: Duration = Duration::from_secs(10);

/// How long fork waits for a page that is pinned.
pub const FORK_PINNED_BOUND: Duration = Duration::from_millis(100);

/// How often opening a file is tried, if another thread closes it meanwhile each time.
pub const OPEN_ROUNDS: usize = 16;

/// How long closing a file waits for threads that are in the middle of using its descriptor.
pub const CLOSE_BOUND: Duration = Duration::from_secs(1);

/// Two changes of a file that are nearer to each other may have the same time: two ticks of the slowest
/// kernel clock.
pub const TIME_GRAIN: Duration = Duration::from_millis(20);

/// What write calls of the program leave in the kernel's page cache of a managed file is dropped once it is
/// so many bytes, or at the flusher's next round.
pub const KERNEL_CACHE_BYTES: u64 = 16 << 20;

/// How often the end of a file that has grown is settled anew, if it changes meanwhile.
pub const SETTLE_ROUNDS: usize = 16;

/// A file that no mapping maps is closed, and its pages dropped, after this.
pub const IDLE_FILE_KEEP: Duration = Duration::from_secs(10);

/// A handler shares a batch of more new faults than this with the others, while it is overloaded. Off:
/// `Ablation::shared_faults`.
pub const HAND_OVER_FAULTS: usize = 1;

/// Over how long a handler's load is measured, about.
pub const LOAD_WINDOW: Duration = Duration::from_millis(4);
