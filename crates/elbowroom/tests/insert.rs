//! Placing received pages into a soft space.

// The name that the manager has in the workspace.
extern crate elbowroom_manager as elbowroom;

use elbowroom::{
    Advice, Buffer, Config, Errno, Intent, Manager, MapRequest, PartialInsert, Place, Prot, Sharing, Soft,
    Space,
};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const PAGE: usize = 4096;

fn start() -> (Manager<Soft>, Space<Soft>) {
    let manager = Manager::<Soft>::start_on(Config::with_memory(16 << 20)).unwrap();
    let space = manager.create_space().unwrap();
    (manager, space)
}

fn map_at(space: &Space<Soft>, place: Place, pages: usize, prot: Prot) -> usize {
    let request = MapRequest {
        place,
        len: pages * PAGE,
        prot,
        may_write: true,
        sharing: Sharing::Private,
        object: None,
        offset: 0,
        populate: false,
        locked: false,
        no_reserve: false,
        group: None,
    };
    space.map(request).unwrap()
}

fn map(space: &Space<Soft>, pages: usize) -> usize {
    map_at(space, Place::Anywhere, pages, Prot::READ | Prot::WRITE)
}

fn filled(space: &Space<Soft>, bytes: impl IntoIterator<Item = u8>) -> Vec<Buffer> {
    let fill = |byte| {
        let mut buffer = space.receive_buffer().unwrap();
        assert!(
            buffer.bytes().len() == PAGE && buffer.bytes().iter().all(|b| *b == 0),
            "a new page is all zeros"
        );
        buffer.bytes_mut().fill(byte);
        buffer
    };
    bytes.into_iter().map(fill).collect()
}

fn byte_at(space: &Space<Soft>, addr: usize) -> u8 {
    let mut page = [0; PAGE];
    space.cpu().read(addr & !(PAGE - 1), &mut page).unwrap();
    assert!(page.iter().all(|b| *b == page[0]), "the page is of one kind");
    page[0]
}

#[test]
fn pages_go_in_and_what_was_there_comes_back() {
    let (_manager, space) = start();
    let addr = map(&space, 4);
    space.cpu().fill(addr + PAGE, PAGE, 7).unwrap();
    let mut pages = filled(&space, [1, 2, 3]);
    space.insert_pages(addr, &mut pages).unwrap();
    let empty: Vec<_> = pages.iter().map(Buffer::is_empty).collect();
    assert_eq!(empty, [true, false, true], "only one page was touched before");
    assert!(pages[1].bytes().iter().all(|b| *b == 7));
    assert_eq!([0, 1, 2, 3].map(|page| byte_at(&space, addr + page * PAGE)), [1, 2, 3, 0]);
    // They are memory like any other: stored to, let go of.
    space.cpu().fill(addr, PAGE, 9).unwrap();
    assert_eq!(byte_at(&space, addr), 9);
    space.advise(addr, 2 * PAGE, Advice::DontNeed).unwrap();
    assert_eq!([0, 1, 2].map(|page| byte_at(&space, addr + page * PAGE)), [0, 0, 3]);
}

#[test]
fn a_batch_may_run_over_several_mappings_and_stops_at_a_hole() {
    let (_manager, space) = start();
    let addr = map(&space, 6);
    space.protect(addr + PAGE, PAGE, Prot::READ).unwrap();
    space.unmap(addr + 3 * PAGE, PAGE).unwrap();
    let mut pages = filled(&space, 1..=5);
    let stopped = space.insert_pages(addr, &mut pages);
    assert_eq!(stopped, Err(PartialInsert { inserted: 3, errno: Errno::NOMEM }));
    assert_eq!(pages[3].bytes()[0], 4, "what was not inserted is as it was");
    assert_eq!([0, 1, 2, 4].map(|page| byte_at(&space, addr + page * PAGE)), [1, 2, 3, 0]);
    assert!(space.cpu().write_u64(addr + PAGE, 1).is_err(), "the mapping is still read-only");
    space.protect(addr + PAGE, PAGE, Prot::empty()).unwrap();
    let refused = space.insert_pages(addr + PAGE, &mut filled(&space, [1]));
    assert_eq!(refused, Err(PartialInsert { inserted: 0, errno: Errno::ACCESS }));
}

#[test]
fn what_is_no_insertion_is_refused() {
    let (_manager, space) = start();
    let (_other_manager, other) = start();
    let addr = map(&space, 2);
    let invalid = Err(PartialInsert { inserted: 0, errno: Errno::INVAL });
    assert_eq!(space.insert_pages(addr + 8, &mut filled(&space, [1])), invalid);
    assert_eq!(space.insert_pages(addr, &mut filled(&other, [1])), invalid, "another manager's page");
    let mut pages = filled(&space, [1]);
    space.insert_pages(addr, &mut pages).unwrap();
    assert!(pages[0].is_empty());
    assert_eq!(space.insert_pages(addr, &mut pages), invalid, "no page");
    assert_eq!(space.insert_pages(addr, &mut []), Ok(()));
    space.unmap(addr, 2 * PAGE).unwrap();
    let hole = Err(PartialInsert { inserted: 0, errno: Errno::NOMEM });
    assert_eq!(space.insert_pages(addr, &mut []), hole);
}

#[test]
fn a_forked_space_keeps_its_page() {
    let (_manager, space) = start();
    let addr = map(&space, 1);
    space.cpu().fill(addr, PAGE, 7).unwrap();
    let child = space.fork().unwrap();
    let mut pages = filled(&space, [8]);
    space.insert_pages(addr, &mut pages).unwrap();
    assert!(pages[0].is_empty(), "the child has the old page");
    let child_addr = addr - space.base() + child.base();
    assert_eq!((byte_at(&space, addr), byte_at(&child, child_addr)), (8, 7));
    let mut pages = filled(&space, [9]);
    space.insert_pages(addr, &mut pages).unwrap();
    assert_eq!((pages[0].bytes()[0], byte_at(&space, addr)), (8, 9));
}

#[test]
fn buffers_count_and_come_back() {
    let (_manager, space) = start();
    let addr = map(&space, 1);
    let mut taken = Vec::new();
    while let Ok(buffer) = space.receive_buffer() {
        taken.push(buffer);
    }
    assert!((2000..4096).contains(&taken.len()), "16 MiB less what describes them: {}", taken.len());
    drop(taken);
    space.insert_pages(addr, &mut filled(&space, [1])).unwrap();
    assert_eq!(byte_at(&space, addr), 1);
}

#[test]
fn a_pinned_page_is_waited_for() {
    let (_manager, space) = start();
    let addr = map(&space, 1);
    let cpu = space.cpu();
    let pin = cpu.pin(addr, 8, Intent::Write).unwrap();
    let unpinned = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let inserted = scope.spawn(|| {
            space.insert_pages(addr, &mut filled(&space, [5])).unwrap();
            assert!(unpinned.load(Ordering::Acquire), "the page was replaced under its pin");
        });
        std::thread::sleep(std::time::Duration::from_millis(50));
        unpinned.store(true, Ordering::Release);
        drop(pin);
        inserted.join().unwrap();
    });
    assert_eq!(byte_at(&space, addr), 5);
}

#[test]
fn readers_see_whole_messages_while_pages_are_replaced_and_the_layout_changes() {
    let (manager, space) = start();
    let addr = map(&space, 8);
    let beside = map(&space, 8);
    let (stop, seen) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let cpu = space.cpu();
            let mut last = [0_u64; 8];
            while !stop.load(Ordering::Relaxed) {
                for (page, last) in last.iter_mut().enumerate() {
                    let message = cpu.read_u64(addr + page * PAGE).unwrap();
                    assert!(message >= *last, "an old message is back: {message} after {last}");
                    *last = message;
                    let end = cpu.read_u64(addr + page * PAGE + PAGE - 8).unwrap();
                    assert!(end >= message, "the page was filled before it was inserted");
                    seen.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                for prot in [Prot::READ, Prot::READ | Prot::WRITE] {
                    space.protect(beside + 2 * PAGE, 4 * PAGE, prot).unwrap();
                }
            }
        });
        // It has begun, unless it has failed, which the scope tells.
        while seen.load(Ordering::Relaxed) == 0 && !reader.is_finished() {
            std::thread::yield_now();
        }
        let mut pages = filled(&space, [0; 4]);
        for message in 1..=20_000_u64 {
            for buffer in &mut pages {
                if buffer.is_empty() {
                    *buffer = space.receive_buffer().unwrap();
                }
                buffer.bytes_mut()[..8].copy_from_slice(&message.to_ne_bytes());
                buffer.bytes_mut()[PAGE - 8..].copy_from_slice(&message.to_ne_bytes());
            }
            space.insert_pages(addr + (message as usize % 2) * 4 * PAGE, &mut pages).unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(manager.stats().vma_lock_success >= 20_000);
}
