//! The host MMU against the real kernel: pages keep their bytes on the way into a window and home again.

mod common;

use common::{frames, mmu, mmu_with, skipped};
use elbowroom_machine::{
    Access, Ask, Denial, Errno, HostMmu, Mmu, Mover, PAGE_SIZE, Replaced, UnmapError, Wake,
};
use elbowroom_sync::Arc;
use elbowroom_sync::atomic::{AtomicU32, Ordering};
use elbowroom_sync::time::{Duration, Instant};
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

fn mmu_beside(mover: Mover, changes_wait: Option<Ask>) -> Option<HostMmu> {
    mmu_with(mover, changes_wait, None)
}

fn round_trip(mover: Mover, access: Access, order: u8) {
    let Some(mmu) = mmu(mover) else { return };
    round_trip_of(&mmu, access, order);
}

fn round_trip_of(mmu: &HostMmu, access: Access, order: u8) {
    let window = mmu.add_window(64 << 20).unwrap();
    let base = window.start + (8 << 20);
    let mut extent = frames(mmu, order).unwrap();
    let stamp = |i: usize, round: usize| (i * 31 + round * 7 + 1) as u8;
    for round in 0..3 {
        extent.bytes_mut().iter_mut().enumerate().for_each(|(i, b)| *b = stamp(i / 97, round));
        let n = extent.pages();
        mmu.map(&mut extent, base, n / 2..n, access, Wake::Later).unwrap();
        mmu.map(&mut extent, base, 0..n, access, Wake::Now).unwrap();
        assert_eq!(extent.places().len(), 1);
        assert_eq!(extent.place(base).map(|place| place.pages().count()), Some(n));
        for i in (0..n * PAGE_SIZE).step_by(61) {
            // SAFETY: the page was mapped above.
            let byte = unsafe { ((base + i) as *const u8).read_volatile() };
            assert_eq!(byte, stamp(i / 97, round), "byte {i}");
        }
        if access == Access::Write {
            // SAFETY: as above, and writable.
            unsafe { (base as *mut u8).write_volatile(0xEE) };
        }
        mmu.unmap(&mut extent).unwrap();
        assert!(extent.is_home());
        if access == Access::Write {
            assert_eq!(extent.bytes()[0], 0xEE);
        }
        assert_eq!(extent.bytes()[1000], stamp(1000 / 97, round));
    }
    mmu.free(extent);
    while mmu.grow().unwrap() {}
    assert_eq!(mmu.frames_at_hand(), 1500);
}

#[test]
fn pages_keep_their_bytes() {
    for mover in [Mover::Move, Mover::Copy] {
        for access in [Access::ReadOnly, Access::ReadTracked, Access::Write] {
            for order in [0, 4, 9] {
                round_trip(mover, access, order);
            }
        }
    }
}

/// Tries until all is home, as those do that must have it.
fn bring_home(mmu: &HostMmu, extent: &mut elbowroom_machine::Extent) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while mmu.unmap(extent) != Ok(()) {
        assert!(Instant::now() < deadline, "a page stays away");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A pipe has a reference of a page, as a transfer would.
#[test]
fn a_page_that_the_kernel_has_a_reference_of_keeps_its_frame() {
    const PINNED: usize = 3;
    let Some(mmu) = mmu_with(Mover::Copy, None, Some(Arc::new(|| true))) else { return };
    let base = mmu.add_window(1 << 21).unwrap().start;
    let mut extent = frames(&mmu, 4).unwrap();
    (0..16).for_each(|page| extent.bytes_mut()[page * PAGE_SIZE] = page as u8);
    mmu.map(&mut extent, base, 0..16, Access::Write, Wake::Later).unwrap();
    let at = |page: usize| (base + page * PAGE_SIZE) as *mut u8;
    // SAFETY: the page is in the window, writable, and nobody else's.
    unsafe { at(PINNED).write_volatile(77) };
    let (out, into) = rustix::pipe::pipe().unwrap();
    // SAFETY: the page stays mapped until the pipe is closed.
    let part =
        rustix::pipe::IoSliceRaw::from_slice(unsafe { std::slice::from_raw_parts(at(PINNED), PAGE_SIZE) });
    // SAFETY: as above.
    let given = unsafe { rustix::pipe::vmsplice(&into, &[part], rustix::pipe::SpliceFlags::empty()) };
    assert_eq!(given, Ok(PAGE_SIZE));
    for turn in 0..20 {
        assert_eq!(mmu.unmap(&mut extent), Err(UnmapError::Busy));
        assert!(is_present(at(PINNED) as usize));
        // SAFETY: as above; it is writable, so nobody has to let the store through.
        unsafe { at(PINNED).add(1).write_volatile(turn) };
        std::thread::sleep(Duration::from_millis(1));
    }
    // The other pages are home, but for those that a processor has not listed yet.
    assert!((0..16).filter(|page| is_present(at(*page) as usize)).count() < 8);
    let mut seen = [0; PAGE_SIZE];
    assert_eq!(rustix::io::read(&out, &mut seen[..]), Ok(PAGE_SIZE));
    assert_eq!(&seen[..2], [77, 19], "the receiver has another frame");
    bring_home(&mmu, &mut extent);
    for page in 0..16 {
        let bytes = &extent.bytes()[page * PAGE_SIZE..][..2];
        assert_eq!(bytes, if page == PINNED { [77, 19] } else { [page as u8, 0] });
    }
    mmu.free(extent);
}

/// What was mapped just now, perhaps by another processor, waits to be listed by the kernel, which has a
/// reference meanwhile.
#[test]
fn fresh_pages_are_soon_home_where_there_may_be_transfers() {
    let Some(mmu) = mmu_with(Mover::Copy, None, Some(Arc::new(|| true))) else { return };
    let base = mmu.add_window(1 << 21).unwrap().start;
    let mut extent = frames(&mmu, 1).unwrap();
    extent.bytes_mut().fill(5);
    let began = Instant::now();
    for _ in 0..50 {
        std::thread::scope(|threads| {
            threads.spawn(|| mmu.map(&mut extent, base, 0..2, Access::Write, Wake::Later).unwrap());
        });
        bring_home(&mmu, &mut extent);
    }
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert!(extent.bytes().iter().all(|byte| *byte == 5));
    mmu.free(extent);
}

#[test]
fn the_arena_ends_where_it_was_told_to() {
    let Some(mmu) = mmu(Mover::Copy) else { return };
    let mut held = Vec::new();
    while let Some(extent) = frames(&mmu, 3) {
        held.push(extent);
    }
    // 1500 is 187 runs of 8 and a rest of 4.
    assert_eq!((held.len(), mmu.frames_at_hand(), mmu.populated_frames()), (187, 4, 1500));
    assert!(frames(&mmu, 2).is_some());
}

/// What was never populated is given up first, then free frames, of which the kernel gets the memory back;
/// nothing that is in use.
#[test]
fn frames_are_given_up() {
    let Some(mmu) = mmu(Mover::Move) else { return };
    let mut held = frames(&mmu, 9).unwrap();
    held.bytes_mut().fill(7);
    let free = frames(&mmu, 5).unwrap();
    let range = free.bytes().as_ptr() as usize..free.bytes().as_ptr() as usize + free.bytes().len();
    mmu.free(free);
    let populated = mmu.populated_frames();
    assert_eq!(
        (mmu.frames(), mmu.allowance().withhold(1500 - populated), mmu.frames()),
        (1500, 1500 - populated, populated)
    );
    assert!(!mmu.can_grow() && !mmu.grow().unwrap());
    assert_eq!(mmu.populated_frames(), populated);
    let has_memory = || range.clone().step_by(PAGE_SIZE).filter(|page| is_present(*page)).count();
    assert_eq!(has_memory(), 32);
    // More than are free.
    assert_eq!(mmu.allowance().withhold(usize::MAX), populated - 512);
    assert_eq!((mmu.frames(), mmu.populated_frames(), mmu.allowance().withheld()), (512, 512, 1500 - 512));
    assert_eq!((has_memory(), mmu.frames_at_hand()), (0, 0));
    assert!(frames(&mmu, 0).is_none());
    assert!(held.bytes().iter().all(|byte| *byte == 7));
    mmu.free(held);
    assert!(frames(&mmu, 9).is_some(), "what is in use is not given up");
}

/// Whether an address has memory.
fn is_present(page: usize) -> bool {
    use std::os::unix::fs::FileExt;
    let mut entry = [0; 8];
    let map = std::fs::File::open("/proc/self/pagemap").unwrap();
    map.read_exact_at(&mut entry, (page / PAGE_SIZE * 8) as u64).unwrap();
    u64::from_ne_bytes(entry) >> 63 == 1
}

#[test]
fn many_clean_pages_come_home_together() {
    for mover in [Mover::Move, Mover::Copy] {
        let Some(mmu) = mmu(mover) else { return };
        let base = mmu.add_window(64 << 20).unwrap().start;
        let mut extents: Vec<_> = (0..200).map(|_| frames(&mmu, 0).unwrap()).collect();
        for round in 1..4_u8 {
            for (i, extent) in extents.iter_mut().enumerate() {
                extent.bytes_mut().fill(round.wrapping_mul(i as u8 + 1));
                let access = if i % 3 == 0 { Access::ReadTracked } else { Access::ReadOnly };
                mmu.map(extent, base + i * 3 * PAGE_SIZE, 0..1, access, Wake::Now).unwrap();
            }
            mmu.unmap_clean(&mut extents[..150]);
            extents[150..].iter_mut().for_each(|extent| mmu.unmap(extent).unwrap());
            for (i, extent) in extents.iter().enumerate() {
                assert!(extent.is_home());
                assert!(extent.bytes().iter().all(|&b| b == round.wrapping_mul(i as u8 + 1)), "page {i}");
            }
        }
        extents.into_iter().for_each(|extent| mmu.free(extent));
    }
}

/// Frames of discarded pages are free, and as good as others: single ones, those in runs, and those of pages
/// that were exchanged.
#[test]
fn discarded_pages_leave_their_frames() {
    for mover in [Mover::Move, Mover::Copy] {
        let Some(mmu) = mmu(mover) else { return };
        let base = mmu.add_window(64 << 20).unwrap().start;
        let at = |i: usize| base + i * 2 * PAGE_SIZE;
        let mut held = Vec::new();
        for round in 0..20_usize {
            let stamp = |i: usize| (round * 31 + i) as u8;
            for i in 0..1000 {
                let mut extent = frames(&mmu, 0).unwrap();
                extent.bytes_mut().fill(stamp(i));
                // The same addresses come again after four rounds: nothing must be left there.
                let base = at(round % 4 * 1000 + i);
                mmu.map(&mut extent, base, 0..1, Access::ReadOnly, Wake::Now).unwrap();
                held.push(extent);
            }
            for (i, extent) in held.iter_mut().enumerate().step_by(7) {
                let base = extent.places()[0].base();
                mmu.unmap(extent).unwrap();
                assert!(extent.bytes().iter().all(|&b| b == stamp(i)), "page {i} of round {round}");
                mmu.map(extent, base, 0..1, Access::ReadOnly, Wake::Now).unwrap();
            }
            mmu.discard_clean(held.split_off(100));
            held.iter_mut().for_each(|extent| mmu.unmap(extent).unwrap());
            held.drain(..).for_each(|extent| mmu.free(extent));
            while mmu.grow().unwrap() {}
            assert_eq!(mmu.frames_at_hand(), 1500);
            // Each attempt fills some of the empty homes.
            let large = [(); 2].map(|()| (0..1500).find_map(|_| frames(&mmu, 9)));
            let large = large.map(|run| run.expect("free frames join again"));
            for mut extent in large {
                extent.bytes_mut().fill(1);
                mmu.free(extent);
            }
        }
    }
}

/// A page that was denied and is allowed again is a VMA of its own for the kernel, which serves no request
/// across two.
#[test]
fn runs_go_in_and_out_across_a_page_that_was_denied() {
    for mover in [Mover::Move, Mover::Copy] {
        let Some(mmu) = mmu(mover) else { return };
        let base = mmu.add_window(64 << 20).unwrap().start + (8 << 20);
        assert_eq!(mmu.deny(base + 5 * PAGE_SIZE, Denial::Bus, || true), Ok(true));
        mmu.allow(base..base + (1 << 20)).unwrap();
        for access in [Access::ReadOnly, Access::ReadTracked] {
            let mut extent = frames(&mmu, 6).unwrap();
            extent.bytes_mut().chunks_mut(PAGE_SIZE).enumerate().for_each(|(i, page)| page.fill(i as u8 + 1));
            mmu.map(&mut extent, base, 0..64, access, Wake::Now).unwrap();
            for page in 0..64 {
                // SAFETY: the page was mapped above.
                let byte = unsafe { ((base + page * PAGE_SIZE) as *const u8).read_volatile() };
                assert_eq!(byte, page as u8 + 1);
            }
            mmu.unmap(&mut extent).unwrap();
            assert_eq!(extent.bytes()[5 * PAGE_SIZE], 6);
            mmu.free(extent);
        }
    }
}

#[test]
fn zeros_are_shown_where_an_access_would_raise_a_signal_and_then_frames_again() {
    for mover in [Mover::Move, Mover::Copy] {
        let Some(mmu) = mmu(mover) else { return };
        let base = mmu.add_window(64 << 20).unwrap().start + (8 << 20);
        let (page, range) = (base + 5 * PAGE_SIZE, base..base + 64 * PAGE_SIZE);
        assert_eq!(mmu.show_zeros(page), Ok(0), "nothing is denied there");
        assert_eq!(mmu.deny(page, Denial::NoAccess, || true), Ok(true));
        assert_eq!(mmu.show_zeros(page), Ok(0), "another signal");
        mmu.allow(range.clone()).unwrap();
        let passages = mmu.passages();
        for round in 0..3 {
            assert_eq!(mmu.deny(page, Denial::Bus, || true), Ok(true));
            assert_eq!(mmu.deny(page + PAGE_SIZE, Denial::BusReadOnly, || true), Ok(true));
            assert_eq!(mmu.deny(page + 3 * PAGE_SIZE, Denial::Bus, || true), Ok(true));
            assert_eq!(mmu.show_zeros(page + 17), Ok(2), "up to the first that is not denied");
            assert_eq!(mmu.show_zeros(page), Ok(0), "they are shown already");
            assert!(mmu.denies(range.clone()));
            // SAFETY: the page can be read and written.
            unsafe {
                assert_eq!((page as *const u8).read_volatile(), 0);
                (page as *mut u8).write_volatile(round);
                assert_eq!(((page + PAGE_SIZE) as *const u8).read_volatile(), 0);
            }
            assert_eq!(mmu.show_zeros(page + 3 * PAGE_SIZE), Ok(1));
            mmu.allow(range.clone()).unwrap();
            assert!(!mmu.denies(range.clone()));
        }
        assert_eq!(mmu.passages(), passages, "no moment without rights");
        let mut extent = frames(&mmu, 6).unwrap();
        extent.bytes_mut().fill(7);
        mmu.map(&mut extent, base, 0..64, Access::ReadOnly, Wake::Now).unwrap();
        // SAFETY: the page was mapped above.
        assert_eq!(unsafe { (page as *const u8).read_volatile() }, 7);
        mmu.unmap(&mut extent).unwrap();
        mmu.free(extent);
    }
}

/// Of which a process has only so many.
#[test]
fn neighbours_that_are_denied_are_one_mapping() {
    let mappings = |range: &Range<usize>| {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let address = |hex: &str| usize::from_str_radix(hex, 16).unwrap();
        let ends = maps.lines().filter_map(|line| line.split(' ').next()?.split_once('-'));
        ends.filter(|(start, end)| address(start) < range.end && range.start < address(end)).count()
    };
    let Some(mmu) = mmu(Mover::Move) else { return };
    let base = mmu.add_window(64 << 20).unwrap().start + (8 << 20);
    let range = base..base + 64 * PAGE_SIZE;
    // From both ends.
    for page in (0..32).flat_map(|page| [page, 63 - page]) {
        assert_eq!(mmu.deny(base + page * PAGE_SIZE, Denial::Bus, || true), Ok(true));
    }
    assert!(mmu.denies(range.clone()));
    assert_eq!(mappings(&range), 1);
    let passages = mmu.passages();
    mmu.allow(range.clone()).unwrap();
    assert!(!mmu.denies(range.clone()));
    assert_eq!((mappings(&range), mmu.passages()), (1, passages + 2));
}

#[test]
fn changes_of_the_programs_mappings_go_first() {
    // Somebody waits until asked so often.
    static WAITS_FOR: AtomicU32 = AtomicU32::new(0);
    fn waits() -> bool {
        WAITS_FOR.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
    }
    /// Whether `f` waits until nobody else does. Not at each try: a thread that loses its processor goes on
    /// at once afterwards, and the next ones, too.
    fn gives_way(mut f: impl FnMut()) -> bool {
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(20) {
            WAITS_FOR.store(5, Ordering::Relaxed);
            f();
            if WAITS_FOR.swap(0, Ordering::Relaxed) == 0 {
                return true;
            }
        }
        false
    }
    let Some(mmu) = mmu_beside(Mover::Move, Some(Arc::new(waits))) else { return };
    let window = mmu.add_window(4 << 20).unwrap();
    let mut extent = frames(&mmu, 3).unwrap();
    assert!(gives_way(|| mmu.give_way()));
    assert!(gives_way(|| {
        mmu.unmap(&mut extent).unwrap();
        mmu.map(&mut extent, window.start, 0..8, Access::ReadOnly, Wake::Now).unwrap();
    }));
    assert!(mmu.populated_frames() < 1500 && gives_way(|| assert!(mmu.grow().unwrap())));
    mmu.unmap(&mut extent).unwrap();
    mmu.free(extent);
}

#[test]
fn a_program_that_never_stops_changing_its_mappings_stops_nobody() {
    let Some(mmu) = mmu_beside(Mover::Move, Some(Arc::new(|| true))) else { return };
    for access in [Access::ReadOnly, Access::Write] {
        round_trip_of(&mmu, access, 4);
    }
}

#[test]
fn only_what_is_the_kernels_comes_back() {
    let Some(mmu) = mmu(Mover::Copy) else { return };
    let window = mmu.add_window(64 << 20).unwrap();
    let range = window.start + (1 << 20)..window.start + (3 << 20);
    mmu.give_away(&(range.start..range.end - PAGE_SIZE));
    let refused = mmu.rearm(&range).unwrap_err();
    assert_eq!((refused.errno, refused.replaced), (Errno::INVAL, Replaced::No));
    let outside = window.end - PAGE_SIZE..window.end + PAGE_SIZE;
    assert_eq!(mmu.rearm(&outside).unwrap_err().errno, Errno::INVAL);
    assert!(mmu.rearm(&(range.start + 1..range.start + PAGE_SIZE)).is_err());
    mmu.rearm(&(range.start..range.end - PAGE_SIZE)).unwrap();
    assert!(mmu.windows().covers(window.start, 64 << 20));
}

#[test]
#[should_panic(expected = "an extent of another arena")]
fn an_extent_of_another_mmu_is_noticed() {
    let (Some(one), Some(other)) = (mmu(Mover::Copy), mmu(Mover::Copy)) else {
        panic!("an extent of another arena: SKIPPED, no userfaultfd");
    };
    let extent = frames(&one, 0).unwrap();
    other.free(extent);
}

/// Pins a page as a device does that reads or writes it: as a registered buffer of an io_uring.
fn pin(addr: usize) -> Option<OwnedFd> {
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
    let buffer = [addr, PAGE_SIZE];
    // SAFETY: as io_uring_register(2) says: one buffer, which the kernel checks.
    let done = unsafe { syscall(REGISTER, i64::from(ring.as_raw_fd()), 0_i64, buffer.as_ptr(), 1_i64) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    Some(ring)
}

/// A page that was lost is told of, also if the unmapping that found it failed for another page.
#[test]
fn a_loss_is_not_forgotten_when_another_page_is_pinned() {
    let Some(mmu) = mmu(Mover::Move) else { return };
    let base = mmu.add_window(64 << 20).unwrap().start + (8 << 20);
    let mut extent = frames(&mmu, 2).unwrap();
    extent.bytes_mut().fill(7);
    mmu.map(&mut extent, base, 0..4, Access::Write, Wake::Now).unwrap();
    unsafe extern "C" {
        fn madvise(addr: usize, len: usize, advice: i32) -> i32;
    }
    let Some(ring) = pin(base + 2 * PAGE_SIZE) else { return };
    // SAFETY: the page is the test's, and nobody needs its bytes.
    assert_eq!(unsafe { madvise(base, PAGE_SIZE, 4) }, 0);
    assert_eq!(mmu.unmap(&mut extent), Err(UnmapError::Busy));
    assert!(extent.is_damaged());
    drop(ring);
    let until = Instant::now() + Duration::from_secs(30);
    let mut unmapped = mmu.unmap(&mut extent);
    while unmapped == Err(UnmapError::Busy) {
        // The kernel takes rings apart when it has time.
        assert!(Instant::now() < until, "it stays pinned");
        elbowroom_sync::thread::sleep(Duration::from_millis(1));
        unmapped = mmu.unmap(&mut extent);
    }
    assert_eq!(unmapped, Err(UnmapError::Lost));
    // It is told once.
    assert_eq!(mmu.unmap(&mut extent), Ok(()));
    mmu.free(extent);
}

/// With UFFDIO_COPY pages are read out of windows: one that is gone there is lost, and nobody waits for it.
#[test]
fn a_page_that_is_gone_is_not_waited_for() {
    let Some(mmu) = mmu(Mover::Copy) else { return };
    let base = mmu.add_window(64 << 20).unwrap().start + (8 << 20);
    let mut extent = frames(&mmu, 1).unwrap();
    extent.bytes_mut().fill(7);
    mmu.map(&mut extent, base, 0..2, Access::Write, Wake::Now).unwrap();
    unsafe extern "C" {
        fn madvise(addr: usize, len: usize, advice: i32) -> i32;
    }
    // SAFETY: the page is the test's, and nobody needs its bytes.
    assert_eq!(unsafe { madvise(base, PAGE_SIZE, 4) }, 0);
    assert_eq!(mmu.unmap(&mut extent), Err(UnmapError::Lost));
    assert!(extent.bytes()[PAGE_SIZE..].iter().all(|byte| *byte == 7), "the other page is as it was");
    mmu.free(extent);
}

/// Whether the page is present, and whether stores to it are kept for us to see: bits 63 and 57 of its entry
/// in /proc/self/pagemap.
fn present_and_protected(addr: usize) -> (bool, bool) {
    let pagemap = std::fs::File::open("/proc/self/pagemap").unwrap();
    let mut entry = [0; 8];
    std::os::unix::fs::FileExt::read_exact_at(&pagemap, &mut entry, (addr / PAGE_SIZE * 8) as u64).unwrap();
    let entry = u64::from_ne_bytes(entry);
    (entry >> 63 & 1 == 1, entry >> 57 & 1 == 1)
}

/// A run of pages of which one cannot get to its place, since something is there: those before it have
/// arrived. A store to one of them must be seen: it makes the page dirty.
#[test]
fn a_move_that_stops_half_way_leaves_no_page_writable() {
    const STOP: usize = 11;
    for mover in [Mover::Move, Mover::Copy] {
        let Some(mmu) = mmu(mover) else { continue };
        let base = mmu.add_window(64 << 20).unwrap().start + (8 << 20);
        let (mut run, mut other) = (frames(&mmu, 4).unwrap(), frames(&mmu, 0).unwrap());
        run.bytes_mut().fill(7);
        mmu.map(&mut other, base + STOP * PAGE_SIZE, 0..1, Access::Write, Wake::Now).unwrap();
        let n = run.pages();
        assert_eq!(mmu.map(&mut run, base, 0..n, Access::ReadOnly, Wake::Now), Err(Errno::EXIST));
        for page in 0..n {
            let (present, protected) = present_and_protected(base + page * PAGE_SIZE);
            assert_eq!(present, run.is_mapped(base, page) || page == STOP, "{mover:?}: page {page}");
            assert_eq!(protected, run.is_mapped(base, page), "{mover:?}: page {page}");
        }
        mmu.unmap(&mut other).unwrap();
        mmu.unmap(&mut run).unwrap();
        assert!(run.bytes().iter().all(|&byte| byte == 7));
        mmu.free(run);
        mmu.free(other);
    }
}

/// An access to a page while the kernel moves it has it look twice, and Linux 6.18 forgets to count what it
/// moved then: pages are where the extent says they are all the same.
#[test]
fn pages_that_are_accessed_while_they_move_are_counted() {
    const ROUNDS: u32 = 20_000;
    // Of delays before the access, which are to span the time that a move takes.
    const DELAYS: u32 = 200;
    // Clears the accessed bit of a page table entry, so that an access changes the entry.
    const MADV_COLD: i32 = 20;
    let Some(mmu) = mmu(Mover::Move) else { return };
    let base = mmu.add_window(64 << 20).unwrap().start + (8 << 20);
    let mut extent = frames(&mmu, 2).unwrap();
    let (n, round, accessed) = (extent.pages(), AtomicU32::new(0), AtomicU32::new(0));
    extent.bytes_mut().fill(7);
    unsafe extern "C" {
        fn madvise(addr: usize, len: usize, advice: i32) -> i32;
    }
    // A panic would wait for the other thread, which may wait for a page for ever.
    let must = |is_right: bool| {
        if !is_right {
            eprintln!("pages are not where the extent says they are");
            std::process::abort();
        }
    };
    let wait_for = |number: &AtomicU32, wanted: u32| {
        while number.load(Ordering::Acquire) < wanted {
            std::hint::spin_loop();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for this in 1..=ROUNDS {
                wait_for(&round, this);
                (0..this % DELAYS).for_each(|_| std::hint::spin_loop());
                // SAFETY: the page is in a window, for which this waits if it must; nobody else stores there.
                unsafe { (base as *mut u8).write_volatile(7) };
                accessed.store(this, Ordering::Release);
            }
        });
        for this in 1..=ROUNDS {
            must(mmu.map(&mut extent, base, 0..n, Access::Write, Wake::Later).is_ok());
            // SAFETY: the page was mapped above, and keeps its bytes.
            must(unsafe { madvise(base, PAGE_SIZE, MADV_COLD) } == 0);
            round.store(this, Ordering::Release);
            must(mmu.unmap(&mut extent).is_ok());
            // The other thread waits for the page now, or has stored to it before.
            must(mmu.map(&mut extent, base, 0..n, Access::Write, Wake::Now).is_ok());
            wait_for(&accessed, this);
            must(mmu.unmap(&mut extent).is_ok());
        }
    });
    assert!(extent.bytes().iter().all(|&byte| byte == 7));
    mmu.free(extent);
}
