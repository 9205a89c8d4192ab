//! Two mappings of one folio with real pointers, used at once: nobody hangs, and both show the same.
// Pointers into mappings of a manager are what this is about.
#![allow(unsafe_code)]

// The name that the manager has in the workspace.
extern crate elbowroom_manager as elbowroom;

mod support;

use elbowroom::{Config, Host, Manager, Sharing};
use elbowroom_sync::Arc;
use elbowroom_sync::atomic::{AtomicBool, Ordering};
use elbowroom_sync::time::{Duration, Instant};
use support::*;

/// Pages of the file.
const PAGES: usize = 64;

/// Longer than it takes to find out that a folio goes to and fro.
const BOUND: Duration = Duration::from_secs(30);

/// A manager, a file, and two mappings of all of it, in which pointers may be used.
struct Twice {
    manager: Manager<Host>,
    space: Arc<elbowroom::Space<Host>>,
    file: std::path::PathBuf,
    one: usize,
    two: usize,
    _dir: tempfile::TempDir,
}

impl Twice {
    fn start() -> Option<Self> {
        let (manager, space) = match Manager::start(Config::with_memory(64 << 20)) {
            Ok(started) => started,
            Err(why) => {
                skipped(why);
                return None;
            }
        };
        let dir = scratch();
        let file = stamped(dir.path(), "twice", PAGES);
        let object = manager.open(&file, true).unwrap();
        let [one, two] = [(); 2].map(|()| space.map(request(Some(&object), PAGES, Sharing::Shared)).unwrap());
        Some(Self { manager, space: Arc::new(space), file, one, two, _dir: dir })
    }
}

fn load(addr: usize) -> u64 {
    // SAFETY: the address is a word of a mapping of the test's, which lasts as long as the test.
    unsafe { (addr as *const u64).read_volatile() }
}

fn store(addr: usize, word: u64) {
    // SAFETY: as in `load`.
    unsafe { (addr as *mut u64).write_volatile(word) }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn an_instruction_that_needs_both_ends() {
    let Some(t) = Twice::start() else { return };
    let (from, to) = (t.one, t.two + 2 * PAGE);
    ends_within(BOUND, move || {
        // SAFETY: both are ranges of mappings of the test's, and do not overlap in the file.
        unsafe {
            std::arch::asm!(
                "rep movsb",
                inout("rsi") from => _,
                inout("rdi") to => _,
                inout("rcx") 64_usize => _
            );
        }
    });
    // It goes on as soon as its mappings are the kernel's; it is counted when all are.
    let until = Instant::now() + BOUND;
    while t.manager.stats().aliased_files == 0 && Instant::now() < until {
        elbowroom_sync::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(t.manager.stats().aliased_files, 1);
    assert_eq!((load(t.two + 2 * PAGE), load(t.one + 2 * PAGE)), (stamp(0), stamp(0)));
    // Whoever maps it now leaves it to the kernel.
    let object = t.manager.open(&t.file, true).unwrap();
    let again = t.space.map(request(Some(&object), PAGES, Sharing::Shared));
    assert_eq!(again, Err(elbowroom::Errno::OPNOTSUPP));
}

/// While the file goes to the kernel, a store through one mapping shows in the other.
#[test]
fn both_show_the_same_while_they_are_handed_back() {
    let Some(t) = Twice::start() else { return };
    let (one, two) = (t.one, t.two);
    let stop = Arc::new(AtomicBool::new(false));
    // Each thread has a word of each page for itself.
    let threads = [8, 16, 24].map(|at| {
        let stop = stop.clone();
        elbowroom_sync::thread::spawn("alternate", move || {
            let mut round = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                round += 1;
                let page = if round.is_multiple_of(16) { round as usize / 16 % PAGES } else { 0 };
                let (to, from) = if round.is_multiple_of(2) { (one, two) } else { (two, one) };
                store(to + page * PAGE + at, round);
                assert_eq!(load(from + page * PAGE + at), round, "page {page}, word {at}");
            }
        })
        .unwrap()
    });
    let until = Instant::now() + BOUND;
    while t.manager.stats().aliased_files == 0 && Instant::now() < until {
        elbowroom_sync::thread::sleep(Duration::from_millis(20));
    }
    // And for a while after.
    elbowroom_sync::thread::sleep(Duration::from_millis(200));
    stop.store(true, Ordering::Relaxed);
    threads.into_iter().for_each(|thread| thread.join().expect("both show the same"));
    assert_eq!(t.manager.stats().aliased_files, 1);
}
