//! What the scenarios under shuttle share: how schedules are run, and a small manager to run them on.
//!
//! A scenario is the real manager on the soft MMU, with a few dozen frames; all of its threads, and the
//! scenario's, are tasks of shuttle, which chooses at every access to an atomic and at every lock who goes
//! on. Half of the schedules are random walks, half are PCT's (priorities that change at a few random points:
//! long delays of one thread, which random walks hardly ever make).
//!
//! What is not under shuttle's control is listed in the documentation of `elbowroom_sync`; besides, the files
//! are real, and their system calls are points at which nobody else runs.
//!
//! Run with `.ci/models shuttle -p elbowroom-shuttle --test spaces`. Environment:
//! * `ELBOWROOM_SHUTTLE_SCHEDULES` (2000): how many, for each scenario; a slow one has a part of them.
//! * `ELBOWROOM_SHUTTLE_SEED` (fixed, printed by every scenario): all schedules follow from it.
//! * `ELBOWROOM_SHUTTLE_REPLAY`: a file with a schedule, which is run alone.
//!
//! A schedule that fails is written to a file in the directory for temporary files, whose name is printed; to
//! run it again, name that file and the test: `ELBOWROOM_SHUTTLE_REPLAY=/tmp/schedule000.txt .ci/models
//! shuttle -p elbowroom-shuttle --test spaces -- twice`. It is the same as long as the code is. (A random
//! walk also prints a seed of its own: with that and one schedule, it is run alone.)
#![cfg(shuttle)]

mod keep;
mod run;
mod world;

pub use keep::Keep;
pub use run::check;
pub use world::{Files, PAGE, Witness, World, encode, request};
