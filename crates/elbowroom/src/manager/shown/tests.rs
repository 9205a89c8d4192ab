//! A manager of a library user has a table, and serves requests of other processes for its groups.

use crate::process_tree::{GroupAnswer, GroupRequest, GroupRow, GroupTable, ProcessTree, ShownAlone};
use crate::{Config, GroupId, LimitKey, Limits, Manager, MapRequest, Soft};
use elbowroom_machine::{Errno, PAGE_SIZE, own_pid};
use elbowroom_sync::thread;
use elbowroom_sync::time::{Duration, Instant};
use std::fs::OpenOptions;

const MIB: u64 = 1 << 20;
const BOUND: Duration = Duration::from_secs(20);

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < BOUND, "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Requests something of a group, as `ctl` does.
fn request(table: &GroupTable<'_>, group: &GroupRow, request: GroupRequest) -> GroupAnswer {
    assert!(table.request(group, request, own_pid()));
    wait_until("there is no answer", || table.answer(group).is_some());
    let answer = table.answer(group).unwrap();
    table.end_request(group);
    answer
}

#[test]
fn a_program_that_uses_the_library_is_seen_and_its_groups_are_changed() {
    let dir = tempfile::tempdir().unwrap();
    let config =
        Config { swap: 256 * MIB, swap_dir: Some(dir.path().into()), ..Config::with_memory(64 * MIB) };
    let shown = ShownAlone::new(dir.path(), config.memory, config.swap).unwrap();
    let file = std::fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap();
    assert!(file.file_name().to_string_lossy().starts_with(&format!("elbowroom-run-{}-", own_pid())));
    // As another process opens it.
    let opened = OpenOptions::new().read(true).write(true).open(file.path()).unwrap();
    let tree = ProcessTree::open(&opened).unwrap();
    let table = GroupTable::of(&tree);
    let manager = Manager::<Soft>::start_on(Config { member: Some(shown.member()), ..config }).unwrap();
    let groups = manager.groups();
    let [high, gone] = [(); 2].map(|()| groups.create(GroupId::ROOT, &Limits::default()).unwrap());
    groups.show(&[(high, "memory"), (gone, "gone")]);
    let space = groups.create_space(high).unwrap();
    let bytes = 24 * MIB as usize;
    let start = space.map(MapRequest::private_memory(bytes)).unwrap();
    let cpu = space.cpu();
    (0..bytes / PAGE_SIZE).for_each(|page| cpu.write_u64(start + page * PAGE_SIZE, !page as u64).unwrap());

    wait_until("nothing is noted", || tree.snapshot().rows[0].used.faults > 0);
    let row = tree.snapshot().rows.remove(0);
    assert!(row.pid == own_pid() && row.bytes >= 24 * MIB && row.bytes <= 64 * MIB, "{row:?}");
    assert_eq!((row.gauges.out_bytes, table.rows().len()), (0, 2));
    let memory = table.rows().into_iter().find(|group| group.name == "memory").unwrap();
    assert!(memory.noted_at.is_none(), "nobody has asked");
    let usage = || {
        let before = Instant::now();
        table.ask(own_pid());
        let noted = || table.rows().into_iter().find(|group| group.name == "memory").unwrap();
        wait_until("no figures", || noted().age().is_some_and(|age| age < before.elapsed()));
        noted().used.usage_bytes
    };
    assert!((24 * MIB..25 * MIB).contains(&usage()));

    // More than a round of the thread can reclaim.
    let answer = request(&table, &memory, GroupRequest::Set(LimitKey::Max, 8 * MIB));
    assert_eq!(answer.errno, 0);
    assert!(answer.freed_bytes >= 15 * MIB && usage() <= 8 * MIB, "{answer:?}");
    assert_eq!(groups.stats(high).unwrap().limits.max, 8 * MIB);
    let answer = request(&table, &memory, GroupRequest::Reclaim(2 * MIB));
    assert!(answer.errno == 0 && answer.freed_bytes >= 2 * MIB && usage() <= 6 * MIB, "{answer:?}");
    request(&table, &memory, GroupRequest::Set(LimitKey::Low, 3 * MIB));
    request(&table, &memory, GroupRequest::Set(LimitKey::Min, MIB));
    assert_eq!(request(&table, &memory, GroupRequest::Set(LimitKey::High, u64::MAX)).errno, 0);
    let limits = groups.stats(high).unwrap().limits;
    assert_eq!((limits.low, limits.min, limits.high), (3 * MIB, MIB, u64::MAX));
    wait_until("what is out is not noted", || tree.snapshot().rows[0].gauges.out_bytes >= 16 * MIB);

    // To ask for more than there is is no error. A group that was removed has nothing.
    let answer = request(&table, &memory, GroupRequest::Reclaim(64 * MIB));
    assert!(answer.errno == 0 && usage() <= MIB, "{answer:?} {}", usage());
    groups.remove(gone).unwrap();
    let gone = table.rows().into_iter().find(|group| group.name == "gone").unwrap();
    let answer = request(&table, &gone, GroupRequest::Set(LimitKey::Max, 8 * MIB));
    assert_eq!(answer.errno, u64::from(Errno::NOENT.raw_os_error().unsigned_abs()));

    for page in 0..bytes / PAGE_SIZE {
        assert_eq!(cpu.read_u64(start + page * PAGE_SIZE), Ok(!page as u64));
    }
    drop(shown);
    assert!(!file.path().exists());
}
