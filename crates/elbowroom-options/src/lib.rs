//! The options of `elbowroom run`: each is described once, and each size and duration is parsed once.
//!
//! * [`table`]: what each option is called, what its value may be, its default and its help text ([`Spec`]).
//!   The command makes its command line of it.
//! * [`Options`]: the values of all options. [`Options::encode`] writes them into the environment variable
//!   [`VARIABLE`] for the preloaded libraries, in the spelling of the command line, and [`Options::parse`]
//!   reads them there, by the same parsers. `memory=1.5G` is therefore right in both places.
//! * [`HeapOptions`]: what the library that stands before malloc needs of the same variable. That library
//!   cannot allocate when it reads the variable, and [`HeapOptions::parse`] does not.
//! * [`GroupSpec`]: the memory groups of `--group`, and the rules by which memory goes to them, with all
//!   checks.
//! * [`size`] and [`duration`]: the parsers, which the lab uses, too, and how sizes are shown.
//! * [`sanitizer`]: the sanitizers whose programs both the command and the library leave unmanaged.
//! * [`choices`]: the options that have a few named values, as types.
//!
//! This crate is pure: it reads no environment, no files and no clock. It depends on no other crate of
//! Elbowroom. What only the manager can judge (a path, the names of `--ablate`) the command checks.
#![forbid(unsafe_code)]

pub mod choices;
pub mod duration;
mod groups;
mod heap;
mod options;
pub mod sanitizer;
pub mod size;
pub mod table;
mod value;

pub use choices::{Core, Fallback, Faults, Fork, Heap, Idle, Io, MemoryKind, Mmu, Policy, Sharing};
pub use groups::{
    Entry, Group, GroupLimits, GroupSpec, LEAST_LIMIT, LEAST_PROTECTION, MOST_SWAPPINESS, Mistake, Rule,
    RunFacts, What,
};
pub use heap::HeapOptions;
pub use options::{
    C_VARIABLE, GroupOptions, KernelOptions, Options, ReclaimOptions, ReportOptions, SwapOptions,
    TestOptions, VARIABLE,
};
pub use table::{GivenIn, Kind, Spec};
pub use value::{Problem, Value, escaped_len};
