//! Notifications of translations that are no longer valid.

use crate::support::*;
use elbowroom::{Advice, Config, Invalidation, Prot, Remap, Sharing, Subscription};

fn names(subscription: &mut Subscription, page: usize) -> bool {
    let mut named = false;
    subscription.poll(|invalid| {
        named |= match invalid {
            Invalidation::Range(range) => range.contains(&page),
            Invalidation::Everything => true,
        }
    });
    named
}

#[test]
fn whatever_takes_a_page_away_is_told() {
    type Verb = fn(&SoftMachine, usize);
    let verbs: [(&str, Verb); 6] = [
        ("unmap", |m, addr| m.space().unmap(addr, PAGE).unwrap()),
        ("protect", |m, addr| m.space().protect(addr, PAGE, Prot::READ).unwrap()),
        ("remap", |m, addr| {
            m.space().remap(addr, PAGE, PAGE, Remap::DontUnmap(m.base())).unwrap();
        }),
        ("dont need", |m, addr| m.space().advise(addr, PAGE, Advice::DontNeed).unwrap()),
        ("fork", |m, _| drop(m.space().fork().unwrap())),
        ("map over it", |m, addr| {
            let place = elbowroom::Place::Fixed(addr);
            m.map(elbowroom::MapRequest { place, ..request(None, 1, Sharing::Private) });
        }),
    ];
    let m = SoftMachine::start(Config::with_memory(BUDGET)).unwrap();
    for (name, verb) in verbs {
        let addr = m.map_anon(4, Sharing::Private);
        m.mark(addr, 0..4, 1);
        let mut subscription = m.manager().subscribe();
        let page = addr + PAGE;
        let since = subscription.begin();
        m.check_marks(addr, 0..4, 1);
        assert!(
            !names(&mut subscription, page) && !subscription.retry(since, &(page..page + PAGE)),
            "{name}"
        );
        verb(&m, page);
        assert!(subscription.retry(since, &(page..page + PAGE)), "{name}");
        assert!(names(&mut subscription, page), "{name}");
        assert!(!names(&mut subscription, page), "{name}: told once");
        if name != "fork" {
            assert!(
                !subscription.retry(since, &(addr + 2 * PAGE..addr + 4 * PAGE)),
                "{name}: its neighbours stay"
            );
        }
    }
}

#[test]
fn reclaim_tells() {
    let m = SoftMachine::start(Config::with_memory(BUDGET)).unwrap();
    let dir = scratch();
    let pages = 3 * BUDGET as usize / PAGE;
    let path = stamped(dir.path(), "reclaimed", pages);
    let object = m.manager().open(&path, true).unwrap();
    let addr = m.map_file(&object, pages, Sharing::Shared);
    assert_eq!(m.word(addr), stamp(0));
    let subscription = m.manager().subscribe();
    let since = subscription.begin();
    m.check_marks(addr, 0..pages, 0);
    let mut resident = [9];
    m.space().resident(addr, &mut resident).unwrap();
    // What was read first has left, or at least has been out once; the log may have lost the page, which it
    // says.
    assert!(subscription.retry(since, &(addr..addr + PAGE)));
    m.resize(&object, &path, PAGE as u64);
    let since = subscription.begin();
    assert_eq!(m.word(addr), stamp(0));
    m.resize(&object, &path, 0);
    assert!(subscription.retry(since, &(addr..addr + PAGE)), "truncation");
}
