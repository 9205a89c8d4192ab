//! Elbowroom's manager: virtual memory as a library.
//!
//! A [`Manager`] has a hard budget and serves the faults of the mappings made under it. Programs that are not
//! written for it get one through `elbowroom run`, whose preloaded library calls the verbs here.
//!
//! What is where: `fault` serves faults, `space` has the mmap family, `object` and `page` the page cache of
//! files, `reclaim` and `writeback` make memory free, `vma` has the mappings, `core` what they share. The
//! order of these layers is in `core`; it is checked by the tidy test. Locks: docs/locking.md.
#![forbid(unsafe_code)]

mod ablation;
mod config;
mod core;
#[cfg(not(shuttle))]
mod default_swap;
mod division;
mod error;
mod fault;
#[cfg(not(shuttle))]
mod forking;
mod group;
mod learned;
mod lru;
mod manager;
mod object;
mod outside;
mod page;
mod pause;
mod platform;
mod process_tree;
#[cfg_attr(shuttle, allow(dead_code, reason = "a model does not fork its process"))]
mod quiet;
mod readahead;
mod reclaim;
mod runs;
mod space;
mod stats;
mod swap;
mod trace;
mod vma;
mod writeback;

pub use ablation::{Ablation, Tuning};
pub use config::{
    Bounds, Config, FAULT_BOUND, FORK_BOUND, HighStuck, Hooks, MAX_HANDLERS, MEMORY_WAIT_BOUND, MoverKind,
    ReclaimConfig, RecordConfig, Report, UserfaultfdConfig,
};
#[cfg(not(shuttle))]
pub use default_swap::{DefaultSwap, Lack};
pub use division::Division;
pub use elbowroom_machine::soft::{Intent, Invalidation, Pin, Subscription};
pub use elbowroom_machine::{Errno, Served, Side, WindowTable};
pub use elbowroom_store::{EngineKind, FileId, Origin, with_own_limit};
pub use error::{OpenError, StartError};
#[cfg(not(shuttle))]
pub use forking::Inheritance;
pub use group::{
    GroupId, GroupStats, KindStats, Limits, Pressure, PressureUse, StallExtent, StallKind, StallKinds,
    StallSource, StallTime, SwapStats, Trigger, Watch,
};
pub use learned::check_learned_file;
pub use manager::{Manager, MemoryGroups, ZerosInstead, keep_learned};
pub use object::{FileObject, WriteTicket};
pub use platform::{Host, Platform, Soft};
#[cfg(not(shuttle))]
pub use process_tree::ShownAlone;
pub use process_tree::{
    GroupAnswer, GroupRequest, GroupRow, GroupTable, GroupUse, LargeProcess, LargestProcesses, LimitKey,
    Member, Others, OwnGroups, ProcessGauges, ProcessPressure, ProcessRow, ProcessTree, ProcessUse,
    RunTotals, StallAverages, StalledFor, TableFile, TreeLimits, TreeSnapshot,
};
pub use space::{
    AccessError, Advice, Area, Buffer, Cpu, Dumpable, MapRequest, Mapping, PartialInsert, Place, Remap, Space,
};
pub use stats::{
    Brought, LatencyFigures, LatencySnapshot, LatencyUse, LockFigures, LockUse, NeedUse, Stats, SwapFileIo,
    UserfaultfdUse,
};
pub use trace::{TraceAbout, TraceSnapshot};
pub use vma::{Prot, Sharing};
