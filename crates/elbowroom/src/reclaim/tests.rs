//! Whether the lists have the folios that there are, and groups pay for their own.

use super::Reclaim;
use crate::config::RUN_ORDER;
use crate::group::GroupId;
use crate::lru::Lruvec;
use crate::object::{ALL_PAGES, FileObject};
use crate::platform::Platform;
use crate::{Advice, Config, Manager, MapRequest, Prot, Sharing, Soft, Space};
use elbowroom_machine::PAGE_SIZE;
use elbowroom_sync::thread;
use elbowroom_sync::time::{Duration, Instant};

const BUDGET: usize = 16 << 20;
const PAGES: usize = 2 * BUDGET / PAGE_SIZE;

/// Reclaim has folios that it looks at in no list, and other threads reclaim, too: so this waits until both
/// counts agree.
fn all_are_listed<P: Platform>(core: &Reclaim<P>, when: &str) {
    let since = Instant::now();
    loop {
        core.lists.drain();
        let (listed, folios) = (core.lists.all().map(Lruvec::len).sum::<usize>(), core.groups.folios.count());
        if listed == folios {
            return;
        }
        assert!(since.elapsed() < Duration::from_secs(10), "{when}: {listed} of {folios} are listed");
        thread::sleep(Duration::from_millis(1));
    }
}

/// The space's group pays for the pages that the space has, and for those of the file, which was mapped
/// first in it; for none of the pool.
fn its_own_are_charged(core: &Reclaim<Soft>, space: &Space<Soft>, file: &FileObject) {
    let since = Instant::now();
    loop {
        let charged = core.groups.of(GroupId::OTHER).charged_pages();
        let own: u64 = space.mm.anon.in_range(ALL_PAGES).map(|own| own.1.pages()).sum();
        let cached = file.folios_in(ALL_PAGES).into_iter().filter(|folio| folio.group == GroupId::OTHER);
        let has = own + cached.map(|folio| folio.pages()).sum::<u64>();
        if charged == has {
            return;
        }
        assert!(
            since.elapsed() < Duration::from_secs(10),
            "{charged} pages are charged, the space has {has}"
        );
        thread::sleep(Duration::from_millis(1));
    }
}

/// Anonymous memory, private copies and pages of a file come, go out, are split, and end in each way there
/// is.
#[test]
fn each_folio_is_listed_until_it_dies() {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len((PAGES * PAGE_SIZE) as u64).unwrap();
    let swap = tempfile::tempdir().unwrap();
    let config = Config {
        swap: 8 * BUDGET as u64,
        swap_dir: Some(swap.path().to_owned()),
        ..Config::with_memory(BUDGET as u64)
    };
    let manager = Manager::<Soft>::start_on(config).unwrap();
    let root = manager.create_space().unwrap();
    let space = Space::create(&root.core, GroupId::OTHER).unwrap();
    let (core, cpu) = (&space.core, space.cpu());
    let object = manager.open(file.path(), true).unwrap();
    for round in 0..3 {
        let requests =
            [(None, Sharing::Private), (Some(&object), Sharing::Private), (Some(&object), Sharing::Shared)];
        let starts = requests.map(|(object, sharing)| {
            let memory = MapRequest::private_memory(PAGES * PAGE_SIZE);
            space.map(MapRequest { object: object.cloned(), sharing, ..memory }).unwrap()
        });
        for (turn, start) in starts.into_iter().enumerate() {
            // Zeros, pages that compress, and pages that do not.
            for page in 0..PAGES {
                let addr = start + page * PAGE_SIZE;
                match (page + turn) % 3 {
                    0 => cpu.write_u64(addr, 0).unwrap(),
                    1 => cpu.write_u64(addr, page as u64 + 1).unwrap(),
                    _ => {
                        let mut bytes = [0; PAGE_SIZE];
                        fastrand::Rng::with_seed(page as u64).fill(&mut bytes);
                        cpu.write(addr, &bytes).unwrap();
                    }
                }
            }
            all_are_listed(core, "after stores");
            its_own_are_charged(core, &space, &object);
            // Runs are split where a part of them goes.
            let run = PAGE_SIZE << RUN_ORDER;
            space.advise(start + run / 2, run, Advice::PageOut).unwrap();
            space.advise(start + 4 * run, PAGE_SIZE, Advice::DontNeed).unwrap();
            space.unmap(start + 8 * run, PAGE_SIZE).unwrap();
            all_are_listed(core, "after parts went");
            for page in (0..PAGES / 4).filter(|page| *page != 8 << RUN_ORDER) {
                cpu.read_u64(start + page * PAGE_SIZE).unwrap();
            }
            all_are_listed(core, "after loads");
        }
        if round == 1 {
            let child = space.fork().unwrap();
            for page in 0..64 {
                child.cpu().write_u64(starts[0] + page * PAGE_SIZE, 9).unwrap();
            }
            all_are_listed(core, "after a fork");
            drop(child);
        }
        file.as_file().set_len((PAGES / 2 * PAGE_SIZE) as u64).unwrap();
        manager.resized(&object, (PAGES / 2 * PAGE_SIZE) as u64..(PAGES * PAGE_SIZE) as u64);
        file.as_file().set_len((PAGES * PAGE_SIZE) as u64).unwrap();
        starts.iter().for_each(|start| space.unmap(*start, PAGES * PAGE_SIZE).unwrap());
        all_are_listed(core, "after unmap");
        its_own_are_charged(core, &space, &object);
    }
}

/// What would not have come back with more memory does not with so much more.
#[test]
fn what_more_memory_would_have_spared_is_what_it_spares() {
    const PAGES: usize = 12 << 10;
    const BUDGET: u64 = 16 << 20;
    /// Pages that are read, and those of them that a quarter more, half more and twice the memory would
    /// spare.
    fn read(budget: u64) -> [u64; 4] {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len((PAGES * PAGE_SIZE) as u64).unwrap();
        let manager = Manager::<Soft>::start_on(Config::with_memory(budget)).unwrap();
        let space = manager.create_space().unwrap();
        let object = manager.open(file.path(), false).unwrap();
        let request = MapRequest {
            prot: Prot::READ,
            may_write: false,
            sharing: Sharing::Shared,
            object: Some(object),
            ..MapRequest::private_memory(PAGES * PAGE_SIZE)
        };
        let (start, cpu) = (space.map(request).unwrap(), space.cpu());
        let mut random = fastrand::Rng::with_seed(9);
        // Of three accesses two are to a third of the pages.
        let mut touch = |times: usize| {
            for _ in 0..times {
                let among = if random.u8(0..3) > 0 { PAGES / 3 } else { PAGES };
                let page = random.usize(0..among) * 4099 % PAGES;
                cpu.read_u64(start + page * PAGE_SIZE).unwrap();
            }
        };
        let counted = || {
            let (brought, read) = (manager.stats().brought, manager.stats().read_bytes / PAGE_SIZE as u64);
            let spared = [brought.near_quarter_pages, brought.near_half_pages, brought.near_pages];
            [read, spared[0], spared[1], spared[2]]
        };
        touch(4 * PAGES);
        let before = counted();
        touch(8 * PAGES);
        let after = counted();
        std::array::from_fn(|at| after[at] - before[at])
    }
    let [all, quarter, half, twice] = read(BUDGET);
    // With twice the memory more than twice as many pages fit, since a manager takes some for itself.
    let cases = [(quarter, BUDGET / 4, 0.9..1.1), (half, BUDGET / 2, 0.9..1.1), (twice, BUDGET, 0.8..1.3)];
    for (spared, more, within) in cases {
        let (predicted, is) = (all - spared, read(BUDGET + more)[0]);
        let off = predicted as f64 / is as f64;
        assert!(within.contains(&off), "with {more} bytes more: {predicted} of {all}, and it is {is}");
    }
}
