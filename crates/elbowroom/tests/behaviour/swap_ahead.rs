//! What comes from the swap file with a page that is out.

use super::swap::noise;
use crate::support::*;
use elbowroom::{Config, Sharing};
use elbowroom_sync::{thread, time::Duration};

on_every_machine! {
    what_is_in_pieces_in_the_file_comes_with_few_waits
}

/// Pages that went out at different times are not together in the file. Who reads them in order has them all
/// the same, and waits for few.
fn what_is_in_pieces_in_the_file_comes_with_few_waits<M: Machine>() {
    let dir = scratch();
    let config =
        Config { swap: 8 * BUDGET, swap_dir: Some(dir.path().into()), ..Config::with_memory(BUDGET) };
    let Some(m) = M::start(config) else { return };
    let (pages, port) = (2 * BUDGET as usize / PAGE, m.port());
    let addr = m.map_anon(pages, Sharing::Private);
    let again = |page: usize| page.is_multiple_of(5);
    (0..pages).for_each(|page| port.store(addr + page * PAGE, &noise(page)));
    // In no order, so that they come and go alone.
    for page in (0..pages).map(|nth| nth * 4099 % pages).filter(|page| again(*page)) {
        port.store(addr + page * PAGE, &noise(pages + page));
    }
    let before = m.manager().stats();
    for page in 0..pages {
        let mut found = [0; PAGE];
        port.load(addr + page * PAGE, &mut found);
        assert!(found == noise(if again(page) { pages + page } else { page }), "page {page}");
        if page.is_multiple_of(16) {
            // The rest of the run comes meanwhile.
            thread::sleep(Duration::from_millis(3));
        }
    }
    let after = m.manager().stats();
    let (waits, came) = (after.pgmajfault - before.pgmajfault, after.pswpin - before.pswpin);
    assert!(came > pages as u64 / 2 && waits < came / 4, "{waits} waits for {came} of {pages} pages");
    m.space().unmap(addr, pages * PAGE).unwrap();
    let stats = m.manager().stats();
    assert_eq!((stats.swap_used_bytes, stats.swap_file_bytes, stats.swap_errors), (0, 0, 0));
}
