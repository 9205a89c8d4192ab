//! What bounds the wait of a fault when something is broken: the watchdog, and the end of a process whose
//! manager has lost a thread.
// Pointers into mappings of a manager, and pinning them, are what this is about.
#![allow(unsafe_code)]

// The name that the manager has in the workspace.
extern crate elbowroom_manager as elbowroom;

mod support;

use elbowroom::{Bounds, Config, Hooks, Host, Manager, Sharing};
use elbowroom_sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use elbowroom_sync::time::{Duration, Instant};
use elbowroom_sync::{Arc, thread};
use support::*;

/// The bound of the tests' faults.
const BOUND: Duration = Duration::from_secs(1);

/// Longer than any wait that has a bound.
const LONG: Duration = Duration::from_secs(60);

static REPORTS: AtomicUsize = AtomicUsize::new(0);

fn note_report(line: &str) {
    assert!(!line.contains('\n'));
    REPORTS.fetch_add(1, Ordering::Relaxed);
}

fn a_read_that_never_ends_ends_its_fault<M: Machine>() {
    let config = Config {
        inject: Some("read:slow=8s:file=hung".to_owned()),
        bounds: Bounds { fault: BOUND, ..Bounds::default() },
        hooks: Hooks { report: Some(Arc::new(note_report)), ..Hooks::default() },
        ..Config::with_memory(BUDGET)
    };
    let Some(m) = M::start(config) else { return };
    let dir = scratch();
    let path = stamped(dir.path(), "hung", 8);
    let object = m.manager().open(&path, true).unwrap();
    let addr = m.map_file(&object, 8, Sharing::Shared);
    let (began, reports) = (Instant::now(), REPORTS.load(Ordering::Relaxed));
    m.port().load_fails(addr, Failure::Bus);
    let took = began.elapsed();
    assert!(took >= BOUND && took < Duration::from_secs(7), "{took:?}");
    assert!(REPORTS.load(Ordering::Relaxed) > reports, "it is reported");
    // A load that was woken in between has two.
    assert!(m.manager().stats().overdue_faults >= 1);
    // What comes late is there all the same.
    while !m.port().can_load(addr) {
        assert!(began.elapsed() < LONG, "it never comes");
        thread::sleep(Duration::from_millis(20));
    }
    m.check_marks(addr, 0..8, 0);
}

#[test]
fn a_read_that_never_ends_ends_its_fault_soft() {
    a_read_that_never_ends_ends_its_fault::<SoftMachine>();
}

#[test]
fn a_read_that_never_ends_ends_its_fault_host() {
    a_read_that_never_ends_ends_its_fault::<HostMove>();
}

/// Nor one of the swap file: the page's bytes are nowhere else, so nothing is lost.
fn a_page_that_the_swap_file_never_gives_ends_its_fault<M: Machine>() {
    let dir = scratch();
    let config = Config {
        inject: Some("read:slow=8s".to_owned()),
        bounds: Bounds { fault: BOUND, ..Bounds::default() },
        hooks: Hooks { report: Some(Arc::new(note_report)), ..Hooks::default() },
        swap: BUDGET,
        swap_dir: Some(dir.path().into()),
        ..Config::with_memory(BUDGET)
    };
    let Some(m) = M::start(config) else { return };
    let (addr, port) = (m.map_anon(1, Sharing::Private), m.port());
    // So that it does not compress.
    let mut word = 1_u64;
    let bytes: [u8; PAGE] = std::array::from_fn(|_| {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        word as u8
    });
    port.store(addr, &bytes);
    m.space().advise(addr, PAGE, elbowroom::Advice::PageOut).unwrap();
    assert!(m.manager().stats().swap_file_bytes > 0);
    let began = Instant::now();
    port.load_fails(addr, Failure::Bus);
    let took = began.elapsed();
    assert!(took >= BOUND && took < Duration::from_secs(7), "{took:?}");
    while !port.can_load(addr) {
        assert!(began.elapsed() < LONG, "it never comes");
        thread::sleep(Duration::from_millis(20));
    }
    let mut found = [0; PAGE];
    port.load(addr, &mut found);
    assert!(found == bytes);
}

#[test]
fn a_page_that_the_swap_file_never_gives_ends_its_fault_soft() {
    a_page_that_the_swap_file_never_gives_ends_its_fault::<SoftMachine>();
}

#[test]
fn a_page_that_the_swap_file_never_gives_ends_its_fault_host() {
    a_page_that_the_swap_file_never_gives_ends_its_fault::<HostMove>();
}

/// While a handler hangs, even the one that the kernel wakes, the others serve.
#[test]
fn a_handler_that_hangs_is_stood_in_for() {
    static HANG: AtomicBool = AtomicBool::new(false);
    const HANGS: Duration = Duration::from_secs(12);
    fn hangs() -> bool {
        // The hook of a program that breaks its promise is the way to have a handler hang. Others call it,
        // too.
        let is_handler =
            std::thread::current().name().is_some_and(|name| name.starts_with("elbowroom-fault"));
        if is_handler && HANG.swap(false, Ordering::Relaxed) {
            std::thread::sleep(HANGS);
        }
        false
    }
    let hooks = Hooks { changes_wait: Some(Arc::new(hangs)), ..Hooks::default() };
    let config = Config { hooks, handlers: 2, ..Config::with_memory(BUDGET) };
    let Some(m) = HostMove::start(config) else { return };
    let dir = scratch();
    let path = stamped(dir.path(), "stood", 64);
    let object = m.manager().open(&path, true).unwrap();
    let addr = m.map_file(&object, 64, Sharing::Shared);
    std::thread::scope(|scope| {
        HANG.store(true, Ordering::Relaxed);
        let began = Instant::now();
        let first = scope.spawn(|| assert_eq!(m.word(addr), stamp(0)));
        while HANG.load(Ordering::Relaxed) {
            assert!(began.elapsed() < LONG, "no handler came by");
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(m.word(addr + 40 * PAGE), stamp(40));
        assert!(began.elapsed() < HANGS * 3 / 4, "{:?}", began.elapsed());
        first.join().unwrap();
    });
}

/// A thread of the manager that panics ends the process, which would hang else.
#[test]
fn a_panic_of_a_thread_ends_the_process() {
    const CHILD: &str = "ELBOWROOM_TEST_PANICS";
    fn panics() {
        panic!("on purpose");
    }
    if std::env::var_os(CHILD).is_some() {
        let hooks = Hooks { on_thread_start: Some(Arc::new(panics)), ..Hooks::default() };
        let config = Config { hooks, ..Config::with_memory(BUDGET) };
        let m = SoftMachine::start(config).unwrap();
        let dir = scratch();
        let object = m.manager().open(&stamped(dir.path(), "panics", 1), false).unwrap();
        m.word(m.map_file(&object, 1, Sharing::Shared));
        return;
    }
    let (sender, receiver) = std::sync::mpsc::channel();
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_panic_of_a_thread_ends_the_process", "--nocapture"])
        .env(CHILD, "1")
        .stderr(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let mut text = String::new();
    let mut stderr = child.stderr.take().unwrap();
    std::thread::spawn(move || {
        let _ = std::io::Read::read_to_string(&mut stderr, &mut text);
        sender.send(text)
    });
    let text = receiver.recv_timeout(LONG);
    let _ = child.kill();
    let status = child.wait().unwrap();
    let text = text.expect("it hangs");
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(6), "{status:?}: {text}");
    assert!(text.contains("has panicked, so the process ends"), "{text}");
}

/// Pins a page as a device does that reads or writes it: as a registered buffer of an io_uring.
fn pin(addr: usize) -> Option<std::os::fd::OwnedFd> {
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
    const SETUP: i64 = 425;
    const REGISTER: i64 = 427;
    unsafe extern "C" {
        fn syscall(number: i64, ...) -> i64;
    }
    let mut params = [0_u64; 15];
    // SAFETY: the parameters of io_uring_setup(2) are 120 bytes, zero for a ring without options.
    let ring = unsafe { syscall(SETUP, 1_i64, params.as_mut_ptr()) };
    if ring < 0 {
        skipped("no io_uring, so nothing can be pinned");
        return None;
    }
    // SAFETY: the descriptor was just made, and is nobody else's.
    let ring = unsafe { OwnedFd::from_raw_fd(ring as i32) };
    let buffer = [addr, PAGE];
    // SAFETY: as io_uring_register(2) says: one buffer, which the kernel checks.
    let done = unsafe { syscall(REGISTER, i64::from(ring.as_raw_fd()), 0_i64, buffer.as_ptr(), 1_i64) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    Some(ring)
}

/// A page that is pinned in one mapping cannot be had in another: that fails after a while, and does not
/// hang.
#[test]
fn a_page_that_stays_pinned_elsewhere_is_a_bus_error() {
    let (manager, space): (Manager<Host>, _) = match Manager::start(Config::with_memory(BUDGET)) {
        Ok(started) => started,
        Err(why) => return skipped(why),
    };
    let dir = scratch();
    let object = manager.open(&stamped(dir.path(), "pinned", 8), true).unwrap();
    let [one, two] = [(); 2].map(|()| space.map(request(Some(&object), 8, Sharing::Shared)).unwrap());
    // SAFETY: a word of a mapping of the test's, which lasts as long as the test.
    unsafe { (one as *mut u64).write_volatile(7) };
    let Some(ring) = pin(one) else { return };
    let began = Instant::now();
    // SAFETY: the kernel reads the byte, and says EFAULT for SIGBUS.
    let written = ends_within(LONG, move || {
        let (_reader, writer) = std::io::pipe().unwrap();
        unsafe extern "C" {
            fn write(fd: i32, from: *const u8, len: usize) -> isize;
        }
        // SAFETY: the kernel checks the address, and reads one byte.
        unsafe { write(std::os::fd::AsRawFd::as_raw_fd(&writer), two as *const u8, 1) }
    });
    assert_eq!(written, -1, "after {:?}", began.elapsed());
    drop(ring);
    // SAFETY: as above.
    assert_eq!(unsafe { (one as *const u64).read_volatile() }, 7, "where it was pinned it stays");
}

/// Pages that the program drops by a system call of which nobody is told do not hang those who take pages
/// home.
fn pages_dropped_by_others_hang_nobody(copy: bool) {
    let mover = if copy { elbowroom::MoverKind::Copy } else { elbowroom::MoverKind::Move };
    let userfaultfd = elbowroom::UserfaultfdConfig { mover, served: None };
    let config = Config { userfaultfd, handlers: 1, ..Config::with_memory(BUDGET) };
    let (manager, space): (Manager<Host>, _) = match Manager::start(config) {
        Ok(started) => started,
        Err(why) => return skipped(why),
    };
    const LARGE: usize = 8192;
    let dir = scratch();
    let [small, large] = [("small", 256), ("large", LARGE)]
        .map(|(name, pages)| manager.open(&stamped(dir.path(), name, pages), true).unwrap());
    let [small, large] = [(&small, 256), (&large, LARGE)]
        .map(|(f, pages)| space.map(request(Some(f), pages, Sharing::Shared)).unwrap());
    unsafe extern "C" {
        fn madvise(addr: usize, len: usize, advice: i32) -> i32;
    }
    ends_within(LONG, move || {
        // SAFETY: words of mappings of the test's.
        let load = |addr: usize| unsafe { (addr as *const u64).read_volatile() };
        // In strides, so that pages are read one by one.
        for page in (0..256).map(|turn| turn * 97 % 256) {
            assert_eq!(load(small + page * PAGE), stamp(page));
        }
        for page in 0..128 {
            // SAFETY: a store to a mapping of the test's.
            unsafe { ((small + page * PAGE) as *mut u64).write_volatile(1) };
        }
        // SAFETY: the pages are the test's, and their bytes are not needed.
        assert_eq!(unsafe { madvise(small, 256 * PAGE, 4) }, 0);
        for page in (0..LARGE).map(|turn| turn * 4099 % LARGE) {
            assert_eq!(load(large + page * PAGE), stamp(page));
        }
        // What was lost is read anew.
        for page in 128..256 {
            assert_eq!(load(small + page * PAGE), stamp(page));
        }
    });
}

#[test]
fn pages_dropped_by_others_hang_nobody_who_moves() {
    pages_dropped_by_others_hang_nobody(false);
}

#[test]
fn pages_dropped_by_others_hang_nobody_who_copies() {
    pages_dropped_by_others_hang_nobody(true);
}
