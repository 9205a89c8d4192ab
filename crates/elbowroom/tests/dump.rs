//! What a core dump is made to have.

// The name that the manager has in the workspace.
extern crate elbowroom_manager as elbowroom;

mod support;

use elbowroom::{Advice, Config, Dumpable, Sharing};
use elbowroom_sync::time::{Duration, Instant};
use support::*;

const PAGES: usize = 64;
const BYTES: u64 = (PAGES * PAGE) as u64;

/// Private copies of a file's pages are memory of the program's: they go to the kernel only where there is
/// room for them, and are missing otherwise.
#[test]
fn private_copies_are_bounded_and_counted() {
    let Some(m) = HostMove::start(Config { swap: BUDGET, ..Config::with_memory(BUDGET) }) else { return };
    let dir = scratch();
    let object = m.manager().open(&stamped(dir.path(), "copied", PAGES), true).unwrap();
    let addr = m.map_file(&object, PAGES, Sharing::Private);
    m.mark(addr, 0..PAGES, 1);
    let until = Instant::now() + Duration::from_secs(60);
    let page_out = || m.space().advise(addr, PAGES * PAGE, Advice::PageOut).unwrap();
    for most_bytes in [0, BYTES - 1] {
        page_out();
        let Dumpable { given_bytes, missing_bytes } = m.space().make_dumpable(most_bytes, until, None);
        assert_eq!(given_bytes, 0);
        // A page that another thread has in its hands just then is passed by, and stays in memory.
        assert!(missing_bytes > BYTES / 2 && missing_bytes <= BYTES, "{missing_bytes}");
    }
    page_out();
    let there = m.space().make_dumpable(BYTES - 1, until, Some(addr)).missing_bytes;
    assert!(there > BYTES / 2, "an access failed there: {there}");
    assert_eq!(m.manager().stats().handed_back_files, 0);
    let all = m.space().make_dumpable(BYTES, until, None);
    assert_eq!(all, Dumpable { given_bytes: BYTES, missing_bytes: 0 });
    assert_eq!(m.manager().stats().handed_back_files, 1);
    m.check_marks(addr, 0..PAGES, 1);
}
