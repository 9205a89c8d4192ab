//! The manager of the process (bindings/house), as programs in Rust have it: errors are [`io::Error`], and a
//! thread that calls waits.

use elbowroom_house::caller::{Thread, Words};
use elbowroom_house::failure::{Failure, Kind};
use elbowroom_house::fork;
use elbowroom_house::house::{self, House, Settings};
use std::io;

/// What errors call things.
const WORDS: Words = Words {
    shared_swap: "",
    own_budget: "",
    fork: "execute a program in the child, or map there what it needs",
    trust: "with FileSharing::Trust it is managed all the same",
    swap_dir: "name another directory with Process::swap_dir before the first mapping, or map without a \
               promise (no_reserve_swap)",
    swap: "give the budget more with Budget::with_swap, or map without a promise (no_reserve_swap)",
};

/// The house; starts the manager with the default settings if need be.
///
/// # Errors
/// Unsupported: what is missing on this machine, and what to do.
pub fn house() -> io::Result<&'static House> {
    if let Some(house) = house::started() {
        return Ok(house);
    }
    prepare();
    house::house(Thread).map_err(of_start)
}

/// Starts the manager with these settings.
///
/// # Errors
/// AlreadyExists: it runs. Unsupported, as for [`house()`].
pub fn start_with(settings: Settings) -> io::Result<()> {
    prepare();
    house::start_with(settings, drop).map_err(of_start)
}

/// Registers what is done at forks when the program is loaded, before a thread can fork: what another thread
/// had begun to register at a fork would never be registered in the child.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = register;

extern "C" fn register() {
    fork::register();
}

/// What is there before the manager: the words of its errors, and what is done at a fork and at the end.
fn prepare() {
    house::speak(&WORDS);
    fork::register();
    house::write_back_at_exit();
}

fn of_start(failure: Failure) -> io::Error {
    match failure.kind {
        Kind::Start => io::Error::new(io::ErrorKind::Unsupported, format!("elbowroom: {}", failure.text)),
        Kind::State => io::Error::new(
            io::ErrorKind::AlreadyExists,
            "the manager of elbowroom runs already: start it with settings before the first mapping",
        ),
        _ => failure.into(),
    }
}
