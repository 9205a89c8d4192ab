//! What happened: written everywhere, read by nothing in the core.

mod latency;

pub(crate) use latency::{Kind, Latencies};
pub use latency::{LatencyFigures, LatencySnapshot, LatencyUse};

use crate::process_tree::ProcessUse;
use elbowroom_sync::{LockRow, LockSnapshot, LruUse};

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Faults served without I/O.
    FaultsMinor,
    /// Faults that waited for I/O.
    FaultsMajor,
    /// Faults that found their page mapped.
    FaultsSpurious,
    /// Faults that ended in a signal or EFAULT.
    FaultsDenied,
    /// Faults at addresses that were not managed any more: the kernel decides what becomes of them.
    FaultsForeign,
    /// Faults that were not served because the manager ended.
    FaultsStopped,
    /// Lookups in the fault path that took the layout lock.
    LayoutLockFaults,
    /// Lookups that locked their VMA.
    VmaLockSuccess,
    /// Lookups that met a VMA that was being changed.
    VmaLockAbort,
    /// Lookups that found a VMA which had changed when it was locked.
    VmaLockRetry,
    /// Lookups that found no VMA.
    VmaLockMiss,
    /// Retries after I/O that did not find the folio any more. By design 0.
    RetryIoMiss,
    /// Waits of faults for a folio that was being read.
    WaitsForReads,
    /// Waits of faults for a folio that was being written back.
    WaitsForWriteback,
    /// Waits of faults for a folio that has its bytes, and that another thread had locked: each is followed
    /// by a retry.
    WaitsForLocks,
    /// Short waits of faults for such a folio, under the VMA lock: no retries.
    UptodateWaits,
    /// Waits of faults for memory for page tables.
    WaitsForTables,
    /// Waits of faults for a page that was pinned, or that the kernel was busy with.
    WaitsForPins,
    /// Waits of faults for the end of a change of the layout.
    WaitsForChanges,
    /// Faults that a thread of the program has handed to a handler.
    HandOvers,
    /// Times that a fault was put back, after many looks, so that other faults had their turn.
    Turns,
    /// Bytes read from files, without the swap file.
    ReadBytes,
    /// Reads from files, without the swap file.
    Reads,
    /// Bytes written to files, without the swap file.
    WrittenBytes,
    /// Writes to files, without the swap file.
    Writes,
    /// Bytes read from the swap file.
    SwapReadBytes,
    /// Bytes written to the swap file.
    SwapWrittenBytes,
    /// Reads that failed.
    ReadErrors,
    /// Writes that failed.
    WriteErrors,
    /// Dirty pages that were dropped because they could not be written and memory ran out.
    LostDirtyPages,
    /// Pages evicted.
    EvictedPages,
    /// Evicted pages read again.
    RefaultPages,
    /// Pages that were needed again, and that a quarter more memory would have kept.
    NearQuarterPages,
    /// The same with half more memory.
    NearHalfPages,
    /// The same with twice the memory.
    NearPages,
    /// Memory groups whose memory of files was divided in another way.
    PolicyChanges,
    /// Chunks that were read whole at a fault.
    ChunkReads,
    /// Pages of files that were evicted before any access.
    UnusedPages,
    /// Folios that reclaim put on standby.
    SecondChances,
    /// Pages that reclaim took out of their windows.
    GonePages,
    /// Pages of files that reclaim evicted.
    FileOuts,
    /// Faults that found a page on standby.
    ChancesTaken,
    /// The pages of the folios that they found.
    ChancePagesTaken,
    /// Pages made writable ahead of their stores.
    StoresAhead,
    /// Of these, pages that had not been stored to when they were checked.
    StoresAheadUnused,
    /// Writers made to wait because too much was dirty.
    Throttled,
    /// For how long at most they were to wait, in nanoseconds.
    ThrottledNs,
    /// Files found changed by another process.
    ForeignChanges,
    /// Folios that went from one mapping to another, where the MMU maps each in one place.
    FolioMoves,
    /// Files left to the kernel because they were used through several mappings at once.
    AliasedFiles,
    /// Faults served by a huge folio.
    HugeFaults,
    /// Huge folios split into small ones.
    HugeSplits,
    /// Huge folios made of small ones.
    HugeCollapses,
    /// Pages of anonymous memory that went out. Linux: `pswpout`.
    SwapOuts,
    /// Pages of anonymous memory that came back. Linux: `pswpin`.
    SwapIns,
    /// Compressed pages that went to the swap file. Linux: `zswpwb`.
    SwapWritebacks,
    /// Pages of anonymous memory that went out and that the swap file had still.
    SwapCleanOuts,
    /// Pages of zeros that became nothing instead of going out.
    ZerosDropped,
    /// Writes to the swap file, and pages that came back from swap, that failed.
    SwapErrors,
    /// Faults that found no frame to be had, and waited for one.
    MemoryWaits,
    /// Files given back to the kernel while they were mapped.
    HandedBackFiles,
    /// Files that another process wanted while they were managed.
    ContestedFiles,
    /// Files that another process wanted, and that could not be given within the bound.
    NotGivenFiles,
    /// Faults that were not served within their bound.
    OverdueFaults,
    /// Times that idle processors were kept from sleeping deeply.
    ShallowIdles,
    /// Faults that slept since their group was over its `high`.
    HighWaits,
}

/// What a fault waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitCause {
    /// A folio that is being read.
    Io,
    /// A folio that is being written back.
    Writeback,
    /// The lock of a folio that has its bytes.
    FolioLock,
    /// Frames, of which none can be had now.
    Frame,
    /// Memory for page tables.
    Tables,
    /// The end of a change of the layout.
    Writer,
    /// A page that is pinned, or that the kernel is busy with.
    Pin,
    /// A handler: only they start reads.
    Handler,
    /// Time, which the fault pays since its group is over its `high`.
    High,
    /// The step of the fault took long: the other faults that wait are served first.
    Turn,
}

impl WaitCause {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 10] = [
        Self::Io,
        Self::Writeback,
        Self::FolioLock,
        Self::Frame,
        Self::Tables,
        Self::Writer,
        Self::Pin,
        Self::Handler,
        Self::High,
        Self::Turn,
    ];

    /// What is counted when a fault begins to wait for this cause.
    pub const fn event(self) -> Event {
        match self {
            Self::Io => Event::WaitsForReads,
            Self::Writeback => Event::WaitsForWriteback,
            Self::FolioLock => Event::WaitsForLocks,
            Self::Frame => Event::MemoryWaits,
            Self::Tables => Event::WaitsForTables,
            Self::Writer => Event::WaitsForChanges,
            Self::Pin => Event::WaitsForPins,
            Self::Handler => Event::HandOvers,
            Self::High => Event::HighWaits,
            Self::Turn => Event::Turns,
        }
    }
}

/// The last of the events.
const LAST: Event = Event::HighWaits;

/// The counters of one manager.
#[derive(Default)]
pub struct Counters {
    events: elbowroom_sync::Counters<{ LAST as usize + 1 }>,
    /// How long faults and pins took.
    pub latencies: Latencies,
}

impl Counters {
    /// Counts `n` events of a kind.
    #[inline]
    pub fn add(&self, event: Event, n: u64) {
        self.events.add(event as usize, n);
    }

    /// How many events of a kind there were so far.
    pub fn get(&self, event: Event) -> u64 {
        self.events.get(event as usize)
    }
}

/// A summary of a manager's life so far. Serializes to the JSON that `--stats` writes.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Stats {
    /// The budget, in bytes.
    pub budget_bytes: u64,
    /// The most memory that frames and what describes them have taken, in bytes.
    pub peak_bytes: u64,
    /// Of the budget, what is in use now: pages in memory, mapped or not, compressed ones, and what describes
    /// pages, in bytes. What /proc/self/status says of the process does not follow that.
    pub resident_bytes: u64,
    /// Faults served, with and without I/O. Linux: the same name in /proc/vmstat.
    pub pgfault: u64,
    /// Of these, faults that waited for I/O. Linux: the same.
    pub pgmajfault: u64,
    /// Of all, faults that found their page mapped already.
    pub faults_spurious: u64,
    /// Faults that ended in a signal or EFAULT.
    pub faults_denied: u64,
    /// Faults at addresses that were not managed any more: the kernel decides what becomes of them.
    pub faults_foreign: u64,
    /// Faults that were not served because the manager ended.
    pub faults_stopped: u64,
    /// Median time from reading a fault's event to its wake-up, in nanoseconds.
    pub fault_p50_ns: u64,
    /// 99th percentile of the same.
    pub fault_p99_ns: u64,
    /// Maximum of the same.
    pub fault_max_ns: u64,
    /// How long faults and pins took, by kind.
    pub latency: LatencyUse,
    /// Bytes read from files.
    pub read_bytes: u64,
    /// Reads from files.
    pub reads: u64,
    /// Bytes written to files.
    pub written_bytes: u64,
    /// Writes to files.
    pub writes: u64,
    /// Reads that failed.
    pub read_errors: u64,
    /// Writes that failed.
    pub write_errors: u64,
    /// Dirty pages given up because they could not be written and memory ran out.
    pub lost_dirty_pages: u64,
    /// Lookups in the fault path that took the layout lock.
    pub layout_lock_faults: u64,
    /// Lookups in the fault path that locked their mapping.
    pub vma_lock_success: u64,
    /// Lookups that met a mapping that was being changed.
    pub vma_lock_abort: u64,
    /// Lookups that found a mapping which had changed by the time it was locked.
    pub vma_lock_retry: u64,
    /// Lookups that found no mapping.
    pub vma_lock_miss: u64,
    /// Retries after I/O that did not find the folio any more.
    pub retry_io_miss: u64,
    /// Waits of faults for a folio that was being read: each is followed by a retry.
    pub retry_mmap_drop: u64,
    /// Waits of faults for a folio that was being written back.
    pub waits_for_writeback: u64,
    /// Waits of faults for a folio that has its bytes, and that another thread had locked.
    pub waits_for_locks: u64,
    /// Short waits of faults for such a folio, under the VMA lock, after which nothing was tried again.
    pub uptodate_waits: u64,
    /// Waits of faults for memory for page tables.
    pub waits_for_tables: u64,
    /// Waits of faults for a page that was pinned, or that the kernel was busy with.
    pub waits_for_pins: u64,
    /// Waits of faults for the end of a change of the layout.
    pub waits_for_changes: u64,
    /// Faults of threads of the program, of soft spaces or by populating, that were handed to a handler.
    pub hand_overs: u64,
    /// Times that a fault was put back, after many looks, so that other faults had their turn.
    pub turns: u64,
    /// Pages evicted.
    pub evicted_pages: u64,
    /// What reads brought.
    #[serde(flatten)]
    pub brought: Brought,
    /// Folios that reclaim took out of their window and put on standby, to see whether they are touched
    /// again.
    pub second_chances: u64,
    /// Pages made writable ahead of their stores.
    pub stores_ahead: u64,
    /// Of these, pages that had not been stored to when they were checked.
    pub stores_ahead_unused: u64,
    /// Writers that waited because too much was dirty.
    pub throttled_writers: u64,
    /// All the pauses that they were given, in nanoseconds; some ended earlier, since less was dirty.
    pub throttled_ns: u64,
    /// Times that a fault found no free memory and waited for some.
    pub memory_waits: u64,
    /// Faults that were not served within their bound, and ended by SIGBUS.
    pub overdue_faults: u64,
    /// Times that idle processors were kept from sleeping deeply, for as long as faults came often.
    pub shallow_idles: u64,
    /// Files found changed by another process.
    pub foreign_changes: u64,
    /// Folios that went from one mapping to another: with real pointers each is mapped in one place.
    pub folio_moves: u64,
    /// Files left to the kernel because they were used through several mappings at once.
    pub aliased_files: u64,
    /// Files given back to the kernel, with all their mappings, for whatever reason.
    pub handed_back_files: u64,
    /// Files that another process opened, or was about to write, while they were managed.
    pub contested_files: u64,
    /// Of these, files that could not be given back within 10 s: both processes may write them from then
    /// on.
    pub not_given_files: u64,
    /// Faults on private anonymous memory that were served by a huge folio, of 2 MiB.
    pub huge_faults: u64,
    /// Huge folios split into small ones.
    pub huge_splits: u64,
    /// Huge folios made of small ones.
    pub huge_collapses: u64,
    /// Pages of anonymous memory that went out.
    pub pswpout: u64,
    /// Pages of anonymous memory that came back.
    pub pswpin: u64,
    /// Pages of anonymous memory that went out and that swap had still: they were not stored to since they
    /// came in from it.
    pub swap_clean_outs: u64,
    /// Pages of anonymous memory that were all zeros, and became nothing instead of going out.
    pub zeros_dropped: u64,
    /// Compressed pages that went to the swap file.
    pub zswpwb: u64,
    /// Writes to the swap file that failed, and pages of anonymous memory that could not be had again with
    /// the bytes with which they went out: accesses to these fail.
    pub swap_errors: u64,
    /// What was read and written of the swap file.
    #[serde(flatten)]
    pub swap_io: SwapFileIo,
    /// Bytes of anonymous memory that are out now.
    pub swap_used_bytes: u64,
    /// Bytes of the swap file that are taken.
    pub swap_file_bytes: u64,
    /// What was allocated, and what was needed. `None`: that is not found out
    /// ([`ReclaimConfig::slowdown`](crate::ReclaimConfig::slowdown)).
    #[serde(flatten)]
    pub need: Option<NeedUse>,
    /// Bytes of the compressed pages in the pool.
    pub swap_compressed_bytes: u64,
    /// Bytes of the frames in which these are.
    pub swap_pool_bytes: u64,
    /// How the userfaultfd is used.
    #[serde(flatten)]
    pub userfaultfd: UserfaultfdUse,
}

/// What reads brought, in [`Stats`].
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Brought {
    /// Evicted pages that were read again.
    pub refault_pages: u64,
    /// Of these, and of the pages that came in from swap (`pswpin`), those that twice the memory would have
    /// kept: no more pages that went out later were still out than so much more memory has.
    pub near_pages: u64,
    /// How often the memory of files of a memory group was divided in another way, since its folios were used
    /// in another way.
    pub policy_changes: u64,
    /// The same with half more memory.
    pub near_half_pages: u64,
    /// The same with a quarter more memory.
    pub near_quarter_pages: u64,
    /// Chunks of files that were read whole, since accesses had gone through them before.
    pub chunk_reads: u64,
    /// Pages of files that were read ahead, and evicted before any access.
    pub unused_pages: u64,
}

/// What was read and written of the swap file, in [`Stats`].
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct SwapFileIo {
    /// Bytes read from the swap file, which `read_bytes` does not have.
    pub swap_read_bytes: u64,
    /// Bytes written to the swap file, which `written_bytes` does not have.
    pub swap_written_bytes: u64,
}

/// How much memory a process needs, in [`Stats`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct NeedUse {
    /// The most bytes that it had at a time, with those that were out.
    pub allocated_bytes: u64,
    /// The bytes that it had in the last fifth of its time, or so: the mean, in which what was longer ago
    /// counts less.
    pub needed_bytes: u64,
}

/// How the userfaultfd is used, in [`Stats`].
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct UserfaultfdUse {
    /// How pages get into windows: `move` or `copy`.
    pub mmu: &'static str,
    /// Which faults are served: `all`, or `user-mode` without those of system calls.
    pub served: &'static str,
}

/// What one lock has seen, for [`LockUse`].
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct LockFigures {
    /// The name of the lock's class, or `folio`, `folio-io`, `vma` or `change`: docs/locking.md.
    pub lock: &'static str,
    /// `read` or `write`; a mutex is for writing.
    pub mode: &'static str,
    /// What it was taken for, of the lock of the LRU lists in [`LockUse::by_caller`]. Absent otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lru_use: Option<&'static str>,
    /// File and line of the call. `None`: at all call sites; in [`LockUse::by_caller`] at those without room
    /// in the table. Acquisitions have one only if they are counted in detail.
    pub caller: Option<String>,
    /// How often it was taken.
    pub acquisitions: u64,
    /// How often a thread or a fault waited for it.
    pub contended: u64,
    /// Sum of the waits, in nanoseconds.
    pub wait_ns: u64,
    /// The mean of the waits, in nanoseconds; 0 without any.
    pub wait_average_ns: u64,
    /// The longest wait, in nanoseconds.
    pub wait_max_ns: u64,
    /// How many waits were of [0,1), [1,10), [10,100), [100,1000), [1000,10000), [10000,100000) and
    /// [100000,1000000) microseconds, and longer.
    pub waits_by_decade: [u64; 8],
    /// For how many acquisitions the time was measured for which the lock was held.
    pub holds_measured: u64,
    /// The mean of these times, in nanoseconds; 0 without any.
    pub hold_average_ns: u64,
    /// The longest of these times, in nanoseconds.
    pub hold_max_ns: u64,
}

impl From<&LockRow> for LockFigures {
    fn from(row: &LockRow) -> Self {
        Self {
            lock: row.lock.name(),
            mode: row.mode.name(),
            lru_use: row.lru_use.map(LruUse::name),
            caller: row.caller.map(|caller| format!("{}:{}", caller.file(), caller.line())),
            acquisitions: row.acquisitions,
            contended: row.contended(),
            wait_ns: row.wait_ns,
            wait_average_ns: row.average_wait_ns(),
            wait_max_ns: row.max_wait_ns,
            waits_by_decade: row.decades,
            holds_measured: row.holds,
            hold_average_ns: row.average_hold_ns(),
            hold_max_ns: row.max_hold_ns,
        }
    }
}

/// The lock statistics of a manager in the form in which `--stats` has them. All lists begin with the most
/// total wait.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct LockUse {
    /// By lock and mode.
    pub by_lock: Vec<LockFigures>,
    /// By lock, mode and call site: those with a wait.
    pub by_caller: Vec<LockFigures>,
}

impl From<&LockSnapshot> for LockUse {
    fn from(all: &LockSnapshot) -> Self {
        let waited = all.rows().iter().filter(|row| row.contended() > 0);
        Self {
            by_lock: all.by_lock().iter().map(LockFigures::from).collect(),
            by_caller: waited.map(LockFigures::from).collect(),
        }
    }
}
impl From<&Stats> for ProcessUse {
    fn from(stats: &Stats) -> Self {
        Self {
            faults: stats.pgfault,
            major_faults: stats.pgmajfault,
            refaults: stats.brought.refault_pages,
            read_bytes: stats.read_bytes,
            written_bytes: stats.written_bytes,
            swapped_in: stats.pswpin,
            swapped_out: stats.pswpout,
        }
    }
}
