//! Random calls of a whole program (`tests/programs/random.c`), under `elbowroom run` and under the plain kernel.
//!
//! The program's transcript is the same on every correct system, so two runs of one seed are compared line by line; a
//! run that stops getting on is killed, which is a difference too. A difference is made as short as possible by
//! leaving out steps, each of which follows from seed and number alone.
//!
//! * [`campaign`]: seeds one after the other, within a number of steps or seconds
//! * [`case`]: what is run, and how a run is started, watched and ended
//! * [`compare`]: the first difference of two runs
//! * [`shrink`]: the fewest steps that differ

pub mod campaign;
pub mod case;
pub mod compare;
pub mod shrink;

pub use campaign::Campaign;
pub use case::{Case, Kinds};
