//! memmap2's own tests, with elbowroom in the place of memmap2. The script `run` finds them in the source
//! that cargo has fetched, and names the file; nothing of it is in this repository.
#![cfg_attr(test, allow(unsafe_code))]

// What the tests take from `crate` and `super`.
#[cfg(all(test, feature = "fetched"))]
pub use elbowroom_api::*;

#[cfg(all(test, feature = "fetched"))]
mod advice {
    pub use elbowroom_api::Advice;
}

#[cfg(all(test, feature = "fetched"))]
#[allow(
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    missing_docs,
    unexpected_cfgs,
    reason = "the code of others"
)]
mod test {
    include!(env!("MEMMAP2_TESTS"));
}

/// The tests would pass with the kernel's mappings, too.
#[cfg(test)]
#[test]
fn files_where_the_tests_run_are_managed() {
    let file = tempfile::tempfile().unwrap();
    file.set_len(4096).unwrap();
    // SAFETY: nobody else knows the file.
    let map = unsafe { elbowroom_api::MmapMut::map_mut(&file).unwrap() };
    assert!(map.is_managed(), "{:?}", map.unmanaged_reason());
}
