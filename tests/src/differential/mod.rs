//! Differential tests: the same random calls of the mmap family, loads and stores on two engines, which must
//! stay the same.
//!
//! An [`Engine`] is one thread's view of a range of an address space: the kernel itself ([`Kernel`]), a plain
//! model of Linux's rules ([`Model`]), or a space of Elbowroom's. After each operation the results, error
//! numbers and faults are compared, and the layout around what it touched; every so often the whole layout
//! and all bytes.
//!
//! Three rules make two engines comparable:
//! * Layouts are compared merged ([`canonical`], which says what that hides).
//! * An mremap whose outcome depends on the extent of its VMA is passed over where the engines have merged
//!   differently.
//! * What is placed anywhere is moved to a named page of the range at once, so that no later operation
//!   depends on where that was. A hint, and growth in place, are compared exactly.
//!
//! * `engine`: what is compared
//! * `op`, `mix`, `generate`: the operations
//! * `drive`, `compare`: one step, and two engines in step
//! * `campaign`, `shrink`: many steps, and the report of a failure
//! * `kernel` (with `site`, `maps` and `raw`, which has the unsafe code), `model`: the engines
//! * `bent`: an engine with a planted bug

mod bent;
mod campaign;
mod compare;
mod drive;
mod engine;
mod generate;
mod kernel;
mod maps;
mod mix;
mod model;
mod op;
mod ours;
pub mod raw;
mod shrink;
mod site;

pub use bent::{Bend, Bent};
pub use campaign::{Campaign, EPISODE, Failure, PAGES, SEED_VARIABLE, STEPS, STEPS_VARIABLE};
pub use compare::{Checks, Divergence, Pair, Tally};
pub use drive::{Outcome, apply};
pub use engine::{
    Area, Backing, Descriptor, Engine, Errno, FILE_PAGES, Fault, PAGE, canonical, clipped, initial_file,
};
pub use generate::Generator;
pub use kernel::Kernel;
pub use mix::{Mix, Rng};
pub use model::Model;
pub use op::{At, Len, Offset, Op, Place, advice_text};
pub use ours::{Ours, Pointers, Reach};
pub use shrink::{MAX_TRIES, shrink};
pub use site::Site;
