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

/// Which page of so many an access is to, by its number.
type Accesses = fn(&mut fastrand::Rng, usize, usize) -> usize;

/// Neighbours among the pages that are used often are no neighbours in the file.
fn scattered(page: usize, pages: usize) -> usize {
    page * 4099 % pages
}

/// Of three accesses two are to a third of the pages.
fn two_sets(random: &mut fastrand::Rng, _: usize, pages: usize) -> usize {
    let among = if random.u8(0..3) > 0 { pages / 3 } else { pages };
    scattered(random.usize(0..among), pages)
}

/// Of twice as many pages each is used half as often.
fn zipf(random: &mut fastrand::Rng, _: usize, pages: usize) -> usize {
    scattered((pages as f64).powf(random.f64()) as usize - 1, pages)
}

fn uniform(random: &mut fastrand::Rng, _: usize, pages: usize) -> usize {
    random.usize(0..pages)
}

/// A scan of all pages beside accesses to a quarter of them.
fn scan(random: &mut fastrand::Rng, number: usize, pages: usize) -> usize {
    let page = if number.is_multiple_of(4) { number / 4 % pages } else { random.usize(0..pages / 4) };
    scattered(page, pages)
}

/// What would not have come back with more memory does not with so much more: of each kind of access at
/// least nearly, of all together within a tenth of what is read.
#[test]
fn what_more_memory_would_have_spared_is_what_it_spares() {
    const PAGES: usize = 12 << 10;
    const BUDGET: u64 = 16 << 20;
    /// Pages that are read, and those of them that a quarter more, half more and twice the memory would
    /// spare.
    fn read(accesses: Accesses, budget: u64) -> [u64; 4] {
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
        let (mut random, mut numbers) = (fastrand::Rng::with_seed(9), 0..);
        let mut touch = |times: usize| {
            for number in numbers.by_ref().take(times) {
                let page = accesses(&mut random, number, PAGES);
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
    let kinds: [(&str, Accesses); 4] =
        [("two sets", two_sets), ("zipf", zipf), ("uniform", uniform), ("scan", scan)];
    let mores = [BUDGET / 4, BUDGET / 2, BUDGET];
    let off = kinds.map(|(kind, accesses)| {
        let [all, spared @ ..] = read(accesses, BUDGET);
        let off: [f64; 3] = std::array::from_fn(|at| {
            let is = read(accesses, BUDGET + mores[at])[0];
            (all - spared[at]) as f64 / is as f64
        });
        println!("{kind}: {off:.3?}");
        let within = [0.9..1.1, 0.9..1.1, 0.8..1.3];
        assert!(
            off.iter().zip(within).all(|(off, within)| within.contains(off)),
            "{kind}: {off:.3?} of what is read"
        );
        off
    });
    for (at, more) in mores.into_iter().enumerate() {
        let all = off.iter().map(|off| off[at]).sum::<f64>() / off.len() as f64;
        assert!((0.9..1.1).contains(&all), "with {more} bytes more: {off:.3?} of what is read");
    }
}
