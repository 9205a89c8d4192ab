//! The behaviours, by what they are about. Each is a function over [`crate::support::Machine`], and a test on
//! each machine.

/// Turns each function, generic over a [`Machine`], into a test on each of the machines.
macro_rules! on_every_machine {
    ($($(#[$about:meta])* $name:ident)*) => {
        mod soft {
            $($(#[$about])* #[test] fn $name() { super::$name::<crate::support::SoftMachine>(); })*
        }
        mod host_move {
            $($(#[$about])* #[test] fn $name() { super::$name::<crate::support::HostMove>(); })*
        }
        mod host_copy {
            $($(#[$about])* #[test] fn $name() { super::$name::<crate::support::HostCopy>(); })*
        }
    };
}
mod advise;
mod anon;
mod errors;
mod files;
mod huge;
mod layout;
mod lock;
mod pressure;
mod refusals;
mod remap;
mod resize;
mod stores;
mod storm;
mod swap;
mod swap_ahead;
mod swap_full;
mod swap_packed;
mod swap_slow;
mod zeros;
