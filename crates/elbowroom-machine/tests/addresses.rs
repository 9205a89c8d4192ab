//! Addresses that go to the kernel and come back. The test is alone in its process: a thread of another test
//! may have its stack or its heap put where the kernel has just got addresses back.

mod common;

use common::{frames, mmu};
use elbowroom_machine::{Access, Mover, PAGE_SIZE, Wake};
use std::ops::Range;

/// The kernel's mappings in a range: their addresses, and whether a userfaultfd watches them.
fn kernel_vmas(range: &Range<usize>) -> Vec<(Range<usize>, bool)> {
    let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut found = Vec::new();
    for line in text.lines() {
        let address = |text: &str| usize::from_str_radix(text, 16).ok();
        let head = line.split_once(' ').and_then(|(head, _)| head.split_once('-'));
        if let Some((Some(start), Some(end))) = head.map(|(start, end)| (address(start), address(end))) {
            found.push((start..end, false));
        } else if let (Some(flags), Some(last)) = (line.strip_prefix("VmFlags:"), found.last_mut()) {
            last.1 = flags.split(' ').any(|flag| flag == "um");
        }
    }
    found.retain(|(vma, _)| vma.start < range.end && range.start < vma.end);
    found
}

#[test]
fn addresses_go_to_the_kernel_and_come_back_without_end() {
    let Some(mmu) = mmu(Mover::Copy) else { return };
    let window = mmu.add_window(64 << 20).unwrap();
    let page = |i: usize| window.start + i * PAGE_SIZE;
    // Far more ranges than there was once room for.
    for i in (0..10_000).step_by(2) {
        mmu.give_away(&(page(i)..page(i + 1)));
    }
    assert_eq!(mmu.windows().first_owned(page(8000)..window.end), Some(page(8001)..page(8002)));
    let range = page(0)..page(10_000);
    mmu.punch(range.clone()).unwrap();
    assert_eq!(kernel_vmas(&range), []);
    assert!(!mmu.windows().intersects(range.start, range.len()));
    mmu.rearm(&range).unwrap();
    assert!(mmu.windows().covers(window.start, 64 << 20));
    let vmas = kernel_vmas(&range);
    assert!(matches!(&vmas[..], [(vma, true)] if *vma == window), "one, as it was: {vmas:?}");
    // It works as a window does.
    let mut extent = frames(&mmu, 2).unwrap();
    extent.bytes_mut().fill(7);
    mmu.map(&mut extent, page(4998), 0..4, Access::ReadOnly, Wake::Later).unwrap();
    // SAFETY: the page was mapped above.
    assert_eq!(unsafe { (page(5000) as *const u8).read_volatile() }, 7);
    mmu.unmap(&mut extent).unwrap();
    mmu.free(extent);
}
