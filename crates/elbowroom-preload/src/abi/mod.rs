//! The functions that the program finds instead of libc's, one file per family.
//!
//! Each is a shim: libc's arguments go in, and what libc would give comes out. The function that it calls, a
//! floor or two below, does the work.

/// Exports functions under libc's names. Not in unit tests, which must not stand before their own libc.
///
/// Some are cancellation points: a cancelled thread unwinds through the shim. So they have the unwinding ABI,
/// and hold nothing that needs dropping while they call libc.
macro_rules! export {
    ($($name:ident($($a:ident: $t:ty),* $(,)?) -> $r:ty = $body:expr;)*) => {
        $(
            /// libc's function of this name.
            ///
            /// # Safety
            /// As libc's function.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            #[cfg_attr(test, allow(dead_code, non_snake_case))]
            pub unsafe extern "C-unwind" fn $name($($a: $t),*) -> $r {
                // SAFETY: the caller's promise.
                unsafe { $body($($a),*) }
            }
        )*
    };
}

#[macro_use]
mod jump;

mod advise;
mod aio;
mod by_number;
mod children;
mod debugger;
mod exec;
mod lend;
mod limit_calls;
mod map;
mod mask;
mod open;
mod ranges;
mod read;
mod receive;
mod resize;
mod seek;
mod signal;
mod stdio;
mod sync;
mod thread;
mod transfer;
mod write;
