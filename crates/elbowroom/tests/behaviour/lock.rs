//! mlock.

use crate::support::*;
use elbowroom::{Advice, Config, Errno, MapRequest, Sharing};

on_every_machine! {
    locking_brings_pages_in_and_keeps_them
    locks_are_of_parts_and_go_away
}

fn count<M: Machine>(m: &M, addr: usize, pages: usize) -> usize {
    let mut out = vec![0; pages];
    m.space().resident(addr, &mut out).unwrap();
    out.iter().filter(|&&byte| byte == 1).count()
}

fn locking_brings_pages_in_and_keeps_them<M: Machine>() {
    let Some(m) = M::start(Config::with_memory(BUDGET)) else { return };
    let dir = scratch();
    let path = stamped(dir.path(), "locked", 10);
    let object = m.manager().open(&path, true).unwrap();
    for (file, sharing) in EVERY_KIND {
        let addr = m.map(request(file.then_some(&object), 10, sharing));
        m.space().lock(addr + 1, 10 * PAGE - 1, false).unwrap();
        assert_eq!(count(&m, addr, 10), 10);
        m.mark(addr, 0..10, 1);
        for advice in [Advice::DontNeed, Advice::Cold, Advice::PageOut, Advice::Free, Advice::Remove] {
            assert_eq!(m.space().advise(addr, 10 * PAGE, advice), Err(Errno::INVAL), "{advice:?}");
        }
        assert_eq!(m.space().sync(addr, 10 * PAGE, false, true), Err(Errno::BUSY));
        m.check_marks(addr, 0..10, 1);
        m.space().unlock(addr, 10 * PAGE).unwrap();
        m.space().sync(addr, 10 * PAGE, false, true).unwrap();
        m.space().advise(addr, 10 * PAGE, Advice::DontNeed).unwrap();
        m.mark(addr, 0..10, 0);
        m.space().unmap(addr, 10 * PAGE).unwrap();
    }
    let addr = m.map(MapRequest { locked: true, ..request(None, 10, Sharing::Private) });
    assert_eq!(count(&m, addr, 10), 10);
    m.mark(addr, 0..10, 1);
    m.space().advise(addr, 10 * PAGE, Advice::DontNeedLocked).unwrap();
    m.check_zero(addr, 10);
}

fn locks_are_of_parts_and_go_away<M: Machine>() {
    let Some(m) = M::start(Config::with_memory(BUDGET)) else { return };
    let addr = m.map_anon(30, Sharing::Private);
    m.space().lock(addr + 10 * PAGE, 10 * PAGE, true).unwrap();
    assert_eq!(count(&m, addr, 30), 0, "on fault");
    assert_eq!(m.space().areas(addr..addr + 30 * PAGE).len(), 3);
    m.mark(addr, 5..25, 1);
    assert_eq!(m.space().advise(addr, 30 * PAGE, Advice::DontNeed), Err(Errno::INVAL));
    // Those before the locked one have been forgotten, those after have not.
    m.check_zero(addr, 10);
    m.check_marks(addr + 10 * PAGE, 10..25, 1);
    m.space().unlock(addr, 30 * PAGE).unwrap();
    assert_eq!(m.space().areas(addr..addr + 30 * PAGE).len(), 1);
    m.space().unmap(addr + 15 * PAGE, PAGE).unwrap();
    assert_eq!(m.space().lock(addr, 30 * PAGE, false), Err(Errno::NOMEM));
    assert_eq!(m.space().advise(addr + 14 * PAGE, PAGE, Advice::DontNeed), Err(Errno::INVAL));
    assert_eq!(m.space().advise(addr + 16 * PAGE, PAGE, Advice::DontNeed), Ok(()));
    assert_eq!(m.space().lock(addr, usize::MAX - 2 * PAGE, false), Err(Errno::INVAL));
    assert_eq!(m.space().lock(addr, 0, false), Ok(()));
    // What grows out of a locked mapping is locked and brought in, too.
    let locked = m.map(MapRequest { locked: true, ..request(None, 4, Sharing::Private) });
    m.mark(locked, 0..4, 2);
    let grown = m.space().remap(locked, 4 * PAGE, 9 * PAGE, elbowroom::Remap::MayMove).unwrap();
    assert_eq!(count(&m, grown, 9), 9);
    m.check_marks(grown, 0..4, 2);
    assert_eq!(m.space().advise(grown + 8 * PAGE, PAGE, Advice::DontNeed), Err(Errno::INVAL));
}
