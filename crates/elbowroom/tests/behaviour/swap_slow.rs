//! Reclaim beside who writes the swap file.

use super::swap::{noise, with_disk};
use crate::support::*;
use elbowroom::{Advice, Config, Sharing};

on_every_machine! {
    what_is_used_stays_while_the_disk_is_slow
    what_advice_put_out_is_not_waited_for
}

/// The disk sets the pace. Meanwhile reclaim does not take all that is used out of its windows, in search of
/// what can go at once.
fn what_is_used_stays_while_the_disk_is_slow<M: Machine>() {
    let dir = scratch();
    let config = Config { inject: Some("write:slow=20ms".to_owned()), ..with_disk(dir.path()) };
    let Some(m) = M::start(config) else { return };
    let (pages, port) = (2 * BUDGET as usize / PAGE, m.port());
    let (used, addr) = (pages / 8, m.map_anon(pages, Sharing::Private));
    for page in 0..pages {
        port.store(addr + page * PAGE, &noise(page));
        // A part of all is used all the time.
        let again = page * 4099 % used;
        if again < page {
            let mut found = [0; PAGE];
            port.load(addr + again * PAGE, &mut found);
            assert!(found == noise(again), "page {again}");
        }
    }
    let stats = m.manager().stats();
    assert!(stats.pswpout > pages as u64 / 3, "{stats:?}");
    assert!(stats.second_chances < 2 * stats.pswpout, "{} of {}", stats.second_chances, stats.pswpout);
    m.space().unmap(addr, pages * PAGE).unwrap();
}

/// What a thread has written by itself is not what the flusher has to write: reclaim goes on.
fn what_advice_put_out_is_not_waited_for<M: Machine>() {
    let dir = scratch();
    let Some(m) = M::start(with_disk(dir.path())) else { return };
    let (pages, port) = (2 * BUDGET as usize / PAGE, m.port());
    let addr = m.map_anon(pages, Sharing::Private);
    for round in 0..2 {
        for page in 0..pages {
            port.store(addr + page * PAGE, &noise(page));
        }
        m.space().advise(addr, pages * PAGE, Advice::PageOut).unwrap();
        let out = m.manager().stats().pswpout;
        assert!(out > (round + 1) * pages as u64 / 2, "{out}");
    }
    for page in 0..pages {
        let mut found = [0; PAGE];
        port.load(addr + page * PAGE, &mut found);
        assert!(found == noise(page), "page {page}");
    }
    m.space().unmap(addr, pages * PAGE).unwrap();
}
