//! The table with threads, and with processes that are killed.

use super::table::row;
use super::*;
use elbowroom_machine::PAGE_SIZE;
use elbowroom_machine::own_pid;
use elbowroom_sync::atomic::{AtomicBool, Ordering};
use elbowroom_sync::time::{Duration, Instant};
use elbowroom_sync::{Arc, thread};
use std::fs::{File, OpenOptions};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command};

const BOUND: Duration = Duration::from_secs(20);
/// The environment variable that gives a child the path of the table.
const TABLE: &str = "ELBOWROOM_TEST_TABLE";

fn limits(pages: usize) -> TreeLimits {
    TreeLimits { max: (pages * PAGE_SIZE) as u64, each: None, swap_max: 0 }
}

fn table(pages: usize) -> (tempfile::NamedTempFile, ProcessTree) {
    let file = tempfile::NamedTempFile::new().unwrap();
    let tree = ProcessTree::create(file.as_file(), &limits(pages)).unwrap();
    (file, tree)
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < BOUND, "{what}");
        thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn members_never_have_more_than_the_tree() {
    let (file, tree) = table(10_000);
    let stop = AtomicBool::new(false);
    let most = thread::scope(|scope| {
        for seed in 0..4 {
            let member = Member::enter(open(file.as_file()));
            let stop = &stop;
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed);
                while !stop.load(Ordering::Relaxed) {
                    let pages = random.usize(1..4_000);
                    if random.bool() {
                        member.take(pages);
                    } else {
                        member.give(pages);
                    }
                }
                member.give_all();
            });
        }
        let began = Instant::now();
        let mut most = 0;
        for turn in 1.. {
            if began.elapsed() > Duration::from_millis(300) {
                break;
            }
            // With this process's id: a lock of a process that is gone may be taken from it.
            let lock = tree.lock(u64::from(own_pid()) << 32 | turn);
            most = most.max(tree.used());
            drop(lock);
        }
        stop.store(true, Ordering::Relaxed);
        most
    });
    assert!((2_000..=10_000).contains(&most), "{most}");
    assert_eq!((tree.used(), tree.room()), (0, 10_000));
    let snapshot = tree.snapshot();
    assert_eq!((snapshot.rows.len(), snapshot.bytes, snapshot.processes), (4, 0, 4));
    assert!(snapshot.peak_bytes <= snapshot.limits.max);
}

#[test]
fn each_is_a_limit_of_its_own() {
    let file = tempfile::tempfile().unwrap();
    let each = Some(1_000 * PAGE_SIZE as u64);
    let tree = ProcessTree::create(&file, &TreeLimits { each, ..limits(10_000) }).unwrap();
    let member = Member::enter(Arc::new(tree));
    assert!(member.take(1_000) && !member.take(1) && !member.has_room());
    member.give(600);
    assert!(member.has_room() && member.room() == 600);
    member.charge(5_000);
    assert_eq!(member.has(), 5_400);
}

#[test]
fn a_process_with_more_is_asked_and_a_smaller_budget_is_shared() {
    let (file, tree) = table(10_000);
    let [large, small] = [0; 2].map(|_| Member::enter(open(file.as_file())));
    assert!(large.take(9_000) && small.take(1_000) && !small.take(512));
    small.ask();
    let asked = large.wanted();
    assert!((512..=4_096).contains(&asked), "{asked}");
    large.give(asked - 100);
    assert_eq!((large.wanted(), small.wanted()), (100, 0), "what it owes still");
    large.give(100);
    assert_eq!(large.wanted(), 0);
    assert!(small.take(512));
    // The new `max` is 1,000 pages below what the processes have; each gives a part in proportion to its
    // spare pages.
    tree.set_max((tree.used() as u64 - 1_000) * PAGE_SIZE as u64);
    let parts = [large.wanted(), small.wanted()];
    assert!((1_000..1_003).contains(&parts.iter().sum::<usize>()) && parts[0] > 10 * parts[1], "{parts:?}");
    assert!(!tree.reclaim(1, 1 << 20) && tree.reclaim(std::process::id(), 1 << 20));
}

/// A process that is stopped while it has the lock does not make others wait for long.
#[test]
fn the_lock_is_taken_from_an_owner_that_keeps_it() {
    let (_file, tree) = table(100);
    let own = u64::from(std::process::id()) << 32;
    let kept = tree.lock(own);
    let began = Instant::now();
    let lock = tree.lock(own | 1);
    assert!((table::LOCK_BOUND..BOUND).contains(&began.elapsed()));
    // The first owner goes on and unlocks; the lock is not its own any more, and stays locked.
    drop(kept);
    let began = Instant::now();
    drop(lock);
    drop(tree.lock(own | 2));
    // A lock whose owner is gone is taken after a few milliseconds.
    std::mem::forget(tree.lock(u64::from(u32::MAX >> 1) << 32));
    drop(tree.lock(own | 3));
    assert!(began.elapsed() < table::LOCK_BOUND);
}

#[test]
fn another_file_is_no_table() {
    let file = tempfile::tempfile().unwrap();
    assert!(ProcessTree::open(&file).is_err(), "it is empty");
    file.set_len(4 << 20).unwrap();
    assert!(ProcessTree::open(&file).is_err());
}

/// A wrong row makes other processes have too little memory, and does no other harm.
#[test]
fn a_row_of_nonsense_harms_nobody() {
    let (file, tree) = table(10_000);
    let [one, other] = [0; 2].map(|_| Member::enter(open(file.as_file())));
    assert!(one.take(1_000));
    let mut random = fastrand::Rng::with_seed(11);
    for _ in 0..2_000 {
        let word = random.usize(1..table::ROW_WORDS);
        tree.row(1, word).store(random.u64(..), Ordering::Relaxed);
        one.take(random.usize(1..100));
        one.ask();
        let wanted = one.wanted();
        assert!(wanted <= one.has());
        one.give(wanted.min(50));
        let _ = (tree.totals(), LargestProcesses::of(&tree).iter().map(LargeProcess::name_text).count());
        for row in tree.snapshot().rows {
            let StallAverages { avg10, avg60, avg300, .. } = row.gauges.pressure.some;
            let is_percent = |average| (0.0..=100.0).contains(&average);
            assert!([avg10, avg60, avg300].into_iter().all(is_percent), "{row:?}");
        }
        assert!(one.has() <= 10_000);
    }
    drop(other);
}

/// The table, mapped once more, as another process maps it.
fn open(file: &File) -> Arc<ProcessTree> {
    Arc::new(ProcessTree::open(file).unwrap())
}

/// The main function of the processes that [`a_killed_process_leaves_nothing_behind`] starts and kills:
/// takes and gives pages until it is killed, or the test has ended.
fn take_and_give(path: &std::ffi::OsStr) -> ! {
    let test = std::os::unix::process::parent_id();
    let member = Member::enter(open(&OpenOptions::new().read(true).write(true).open(path).unwrap()));
    let mut random = fastrand::Rng::new();
    while std::os::unix::process::parent_id() == test {
        let pages = random.usize(1..600);
        if random.bool() {
            member.take(pages);
        } else {
            member.give(pages);
        }
    }
    std::process::exit(1)
}

#[test]
fn a_killed_process_leaves_nothing_behind() {
    if let Some(path) = std::env::var_os(TABLE) {
        take_and_give(&path);
    }
    let (file, tree) = table(20_000);
    let own = Member::enter(open(file.as_file()));
    assert!(own.take(100));
    let start = || -> Child {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([
            "--exact",
            "process_tree::tests::a_killed_process_leaves_nothing_behind",
            "--nocapture",
        ]);
        command.env(TABLE, file.path()).stdout(std::process::Stdio::null()).spawn().unwrap()
    };
    let mut random = fastrand::Rng::with_seed(3);
    let mut children: Vec<Child> = (0..3).map(|_| start()).collect();
    for turn in 0..30 {
        let has_row = |pid| tree.snapshot().rows.iter().any(|row| row.pid == pid && row.bytes > 0);
        let at = random.usize(..children.len());
        let pid = children[at].id();
        wait_until("the child takes nothing", || has_row(pid));
        thread::sleep(Duration::from_micros(random.u64(..2_000)));
        children[at].kill().unwrap();
        if turn % 2 == 0 {
            // Without the wait the child stays a zombie.
            assert_eq!(children[at].wait().unwrap().signal(), Some(9));
        }
        wait_until("its row is counted on", || {
            own.note_use(&ProcessUse::default());
            !has_row(pid)
        });
        let _ = std::mem::replace(&mut children[at], start()).wait();
        assert!(tree.used() <= 20_000);
    }
    for mut child in children {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    wait_until("something is left behind", || {
        own.note_use(&ProcessUse::default());
        tree.used() == 100
    });
    assert_eq!(tree.snapshot().rows.len(), 1);
    // A process that is killed before it has written when it entered.
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let row = tree.enter(child.id(), [0; 2]).unwrap();
    tree.row(row, row::SINCE).store(0, Ordering::Relaxed);
    tree.free_the_dead(u64::from(own_pid()) << 32);
    assert_eq!(tree.owner(row), child.id(), "it may still live");
    child.wait().unwrap();
    tree.free_the_dead(u64::from(own_pid()) << 32);
    assert_eq!(tree.owner(row), 0, "its row is never freed");
    assert!(own.others() == Others::None && tree.is_in_use());
}

/// A process that has more than a smaller `max` gives the difference back.
#[test]
fn a_smaller_max_does_not_hide_what_a_process_has() {
    let page = PAGE_SIZE as u64;
    let limits = TreeLimits { max: 10_000 * page, each: None, swap_max: 0 };
    let file = tempfile::tempfile().unwrap();
    let tree = ProcessTree::create(&file, &limits).unwrap();
    let member = Member::enter(ProcessTree::open(&file).unwrap().into());
    assert!(member.take(9_000));
    tree.set_max(4_000 * page);
    assert_eq!((tree.totals().bytes, member.wanted()), (9_000 * page, 5_000));
    member.give(5_000);
    assert_eq!((tree.totals().bytes, member.wanted()), (4_000 * page, 0));
    tree.row(0, table::row::HAS).store(u64::MAX, Ordering::Relaxed);
    assert_eq!(tree.totals().bytes, 10_000 * page, "no row has more than all ever could");
}

#[test]
fn a_row_says_when_it_was_noted() {
    let limits = TreeLimits { max: 1 << 30, each: None, swap_max: 0 };
    let file = tempfile::tempfile().unwrap();
    let tree = ProcessTree::create(&file, &limits).unwrap();
    let member = Member::enter(ProcessTree::open(&file).unwrap().into());
    assert_eq!(tree.snapshot().rows[0].noted, None);
    member.note_use(&ProcessUse { faults: 7, ..ProcessUse::default() });
    let snapshot = tree.snapshot();
    let first = snapshot.rows[0].noted.unwrap();
    assert!(first <= snapshot.age && snapshot.rows[0].used.faults == 7);
    thread::sleep(Duration::from_millis(2));
    member.note_use(&ProcessUse::default());
    assert!(tree.snapshot().rows[0].noted.unwrap() >= first + Duration::from_millis(2));
    member.leave();
    member.came_back();
    assert_eq!(tree.snapshot().rows[0].noted, None, "another process may have the row");
}

#[test]
fn a_row_has_what_the_process_shows_of_itself() {
    let (file, tree) = table(10_000);
    let member = Member::enter(open(file.as_file()));
    let averages = |avg10| StallAverages { avg10, avg60: 100.0, avg300: 0.01, total_us: 1 << 40 };
    let pressure = ProcessPressure {
        some: averages(12.34),
        full: averages(0.0),
        file_read_us: 1,
        swap_in_us: 2,
        frames_us: 3,
        dirty_us: u64::MAX,
    };
    let gauges = ProcessGauges {
        pressure,
        pool_bytes: 4,
        swap_file_bytes: 5,
        out_bytes: 6,
        lock: ProcessGauges::name("a lock with too long a name"),
        lock_wait_us: 7,
        lru_wait_us: 8,
        stalled_for: Some((StalledFor::File { device: 9, inode: 10 }, 11)),
        high_stuck: 12,
    };
    for stalled_for in [gauges.stalled_for, Some((StalledFor::Memory { address: 13 }, 14)), None] {
        let gauges = ProcessGauges { stalled_for, ..gauges };
        gauges.note(&member);
        assert_eq!(tree.snapshot().rows[0].gauges, gauges);
    }
    // The next process with the row has nothing of it.
    member.leave();
    let _next = Member::enter(open(file.as_file()));
    assert_eq!(tree.snapshot().rows[0].gauges, ProcessGauges::default());
}

#[test]
fn the_largest_processes_are_known_after_their_end() {
    let (file, tree) = table(10_000);
    let peaks = |tree: &ProcessTree| {
        LargestProcesses::of(tree)
            .iter()
            .map(|process| process.peak_bytes / PAGE_SIZE as u64)
            .collect::<Vec<_>>()
    };
    assert_eq!(peaks(&tree), []);
    for pages in (1..=15).map(|nth| nth * 7 % 16 * 10) {
        let member = Member::enter(open(file.as_file()));
        assert!(member.take(pages));
        member.note_use(&ProcessUse { faults: pages as u64, swapped_out: 3, ..ProcessUse::default() });
        member.give_all();
        member.leave();
    }
    let ended = [150, 140, 130, 120, 110, 100, 90, 80, 70, 60];
    assert_eq!(peaks(&tree), ended);
    let nothing = Member::enter(open(file.as_file()));
    nothing.leave();
    // A process that is there counts, too.
    let member = Member::enter(open(file.as_file()));
    assert!(member.take(125));
    assert_eq!(peaks(&tree), [150, 140, 130, 125, 120, 110, 100, 90, 80, 70]);
    let largest = *LargestProcesses::of(&tree).iter().next().unwrap();
    let swapped = 3 * PAGE_SIZE as u64;
    assert_eq!((largest.pid, largest.faults), (std::process::id(), 150));
    assert_eq!((largest.swapped_out_bytes, largest.name_text().is_empty()), (swapped, false));
    assert!(largest.time < BOUND);
    // A program that a process executes is another process of the list.
    let _program = Member::enter_program(open(file.as_file()));
    assert_eq!(peaks(&tree)[3], 125);
}

#[test]
fn groups_are_shown_and_do_what_is_asked() {
    let (file, tree) = table(10_000);
    let (member, pid) = (Member::enter(open(file.as_file())), std::process::id());
    let parent = std::os::unix::process::parent_id();
    member.groups().show(vec![(7, "cache".to_owned()), (8, "cache.index".to_owned())]);
    let table = GroupTable::of(&tree);
    let named = |name: &str| table.rows().into_iter().find(|group| group.name == name).unwrap();
    assert_eq!((named("cache").noted_at, named("cache.index").pid), (None, pid));
    assert!(!member.groups().is_asked() && !table.ask(1));
    assert!(table.ask(pid) && member.groups().is_asked() && !member.groups().is_asked());
    // Figures are there once they were asked for.
    let averages = StallAverages { avg10: 1.25, total_us: 9, ..StallAverages::default() };
    let of = |key: u64| GroupUse {
        usage_bytes: key << 20,
        max_bytes: u64::MAX,
        some: averages,
        ..GroupUse::default()
    };
    member.groups().serve(|_, _, _| panic!("nothing is requested"), |key| Some(of(key)));
    assert_eq!((named("cache").used, named("cache.index").used), (of(7), of(8)));
    assert!(named("cache").age().is_some_and(|age| age < BOUND));
    // A request that takes two rounds. Nobody else can request something meanwhile.
    let cache = named("cache");
    assert!(table.request(&cache, GroupRequest::Reclaim(100), pid));
    assert!(!table.request(&cache, GroupRequest::Set(LimitKey::Low, 1), parent));
    assert_eq!((member.groups().is_asked(), table.answer(&cache)), (true, None));
    let act = |expected: Option<u64>, now, progress| {
        move |key, request, began| {
            assert_eq!((key, request, began), (7, GroupRequest::Reclaim(100), expected));
            (1000, now, progress)
        }
    };
    member.groups().serve(act(None, 940, Progress::Begun), |_| None);
    assert_eq!((member.groups().is_asked(), table.answer(&cache)), (true, None));
    member.groups().serve(act(Some(1000), 880, Progress::Done(16)), |_| None);
    assert_eq!(table.answer(&cache), Some(GroupAnswer { errno: 16, freed_bytes: 120 }));
    assert!(!member.groups().is_asked());
    table.end_request(&cache);
    // The claim of a process that is gone is taken over.
    assert!(table.request(&cache, GroupRequest::Set(LimitKey::Min, 1), u32::MAX >> 1));
    assert!(table.request(&cache, GroupRequest::Set(LimitKey::Swappiness, 5), pid));
    member.groups().serve(
        |_, request, _| {
            assert_eq!(request, GroupRequest::Set(LimitKey::Swappiness, 5));
            (0, 0, Progress::Done(0))
        },
        |_| None,
    );
    assert!(table.answer(&cache).is_some_and(|answer| answer.errno == 0));
    // Nonsense is refused, and does no harm.
    let mut random = fastrand::Rng::with_seed(5);
    for _ in 0..2_000 {
        let (at, word) = (random.usize(0..3), random.usize(0..super::table::group::WORDS));
        tree.group(at, word).store(random.u64(..), Ordering::Relaxed);
        member.groups().serve(|_, _, _| (1, 0, Progress::Done(0)), |key| Some(of(key)));
        let _ = table.rows();
    }
    // Once the process has left, its groups are gone, and the next process has rows of its own.
    (0..3).for_each(|at| {
        (0..super::table::group::WORDS).for_each(|word| tree.group(at, word).store(0, Ordering::Relaxed))
    });
    member.note_use(&ProcessUse::default());
    assert_eq!(table.rows().len(), 2);
    member.leave();
    assert_eq!(table.rows(), []);
}
