//! Slots, and their way from the pool to the file.

use super::leaving::Leaving;
use super::*;
use crate::group::{DirtyLimits, GroupId, Groups};
use crate::page::SwapCopy;
use crate::swap::Compressor;
use crate::swap::packed::Packer;
use crate::swap::tier::Corrupt;
use elbowroom_machine::PAGE_SIZE;
use elbowroom_machine::soft::{SoftConfig, SoftMmu};

/// An arena of 64 frames, and who pays for them.
fn arena() -> (SoftMmu, Groups) {
    let mmu = SoftMmu::new(SoftConfig::new(64), &LockStats::new()).unwrap();
    while mmu.grow().unwrap() {}
    (mmu, Groups::new(DirtyLimits::NONE, 0, &LockStats::new()))
}

/// An area for so many pages, with a file.
fn with_file(limit: u64) -> Swap {
    let file = Arc::new(StoreFile::temporary(&std::env::temp_dir(), 0, None).unwrap());
    Swap::new(&LockStats::new(), Quota::new(limit, None), [64, 8], Some((file, None)), true)
}

/// A page of the root that goes out, charged.
fn out(groups: &Groups, sum: u64, spaces: u32) -> OutPage {
    OutPage { sum, spaces, group: groups.charge_swap(GroupId::ROOT, 1).unwrap() }
}

/// Takes back what has become free with a slot; tells whether frames have.
fn take_back(groups: &Groups, mmu: &SoftMmu, released: Released) -> bool {
    let had = !released.frames.is_empty();
    released.frames.into_iter().for_each(|frames| groups.free(mmu, frames));
    released.group.into_iter().for_each(|group| groups.uncharge_swap(group, 1));
    had
}

/// A page comes in; the slot, if swap keeps it for the page's folio.
fn come_in(swap: &Swap, groups: &Groups, mmu: &SoftMmu, number: u64, plenty: bool) -> Option<u64> {
    let (released, is_kept) = swap.release_keeping(number, plenty);
    take_back(groups, mmu, released);
    is_kept.then_some(number)
}

/// What swap still has of a page that goes out. If that is no slot, the page is charged no more.
fn again(swap: &Swap, groups: &Groups, copy: SwapCopy, sum: u64) -> Again {
    let page = out(groups, sum, 1);
    let again = swap.goes_out_again(copy, &page);
    if !matches!(again, Again::Slot(_)) {
        groups.uncharge_swap(page.group, 1);
    }
    again
}

/// The area gives all its frames back, and nobody has others. What is in use is charged.
fn all_is_free(swap: &Swap, groups: &Groups, mmu: &SoftMmu) {
    groups.check_swap(groups_of_slots(swap).into_iter());
    assert_eq!(groups.swap_pages(GroupId::ROOT), swap.used());
    swap.take_frames().into_iter().for_each(|frames| groups.free(mmu, frames));
    assert_eq!(groups.with_charges(), None);
}

#[test]
fn a_slot_lives_as_long_as_anybody_counts_it() {
    let (mmu, groups) = arena();
    let swap = Swap::new(&LockStats::new(), Quota::new(2, None), [64, 8], None, true);
    let mut compressor = Compressor::new();
    let text: Vec<u8> = b"pages that are out ".iter().copied().cycle().take(PAGE_SIZE).collect();
    let placement = compressor.place(&text, swap.room(1, false));
    let mut frames = Vec::new();
    let two = out(&groups, checksum(&text), 2);
    let Err(Short::Frames(missing)) = swap.keep(&placement, None, &two, &mut frames) else {
        panic!("an empty pool has no frames")
    };
    assert_eq!(swap.used(), 0);
    swap.add_frames((0..missing).filter_map(|_| groups.alloc(&mmu, GroupId::ROOT, 0).ok()).collect());
    frames.extend((0..missing).filter_map(|_| swap.take_frame()));
    let first = swap.keep(&placement, None, &two, &mut frames).unwrap();
    let zeros = [0; PAGE_SIZE];
    let one = out(&groups, checksum(&zeros), 1);
    let second = swap.keep(&Placement::Filled(0), None, &one, &mut frames).unwrap();
    assert_eq!(swap.keep(&Placement::Filled(0), None, &one, &mut frames), Err(Short::Slots));
    assert_eq!((swap.used(), swap.pool().objects()), (2, 1));
    let mut page = [1; PAGE_SIZE];
    swap.share(first);
    for _ in 0..2 {
        assert!(!take_back(&groups, &mmu, swap.release(first)));
        assert_eq!(swap.load(first, &mut page).map(|came| came.sum), Ok(checksum(&text)));
        assert_eq!(page[..], text[..]);
    }
    assert_eq!(swap.load(second, &mut page).map(|came| came.sum), Ok(checksum(&zeros)));
    assert_eq!(page, zeros);
    assert!(!take_back(&groups, &mmu, swap.release(first)));
    assert!(!take_back(&groups, &mmu, swap.release(second)));
    assert_eq!((swap.used(), swap.pool().objects(), swap.has_few()), (0, 0, true));
    // A sum that is not that of the page.
    let wrong = swap.keep(&Placement::Filled(7), None, &out(&groups, 1, 1), &mut frames).unwrap();
    assert_eq!(swap.load(wrong, &mut page), Err(NotLoaded::Corrupt));
    all_is_free(&swap, &groups, &mmu);
}

/// Adds the bytes of a slot that leaves to a page of the file; tells which part of the page they are.
fn pack(swap: &Swap, packer: &mut Packer, leaving: &Leaving) -> usize {
    let mut object = [0; LARGEST];
    let len = swap.load_leaving(leaving, &mut object).unwrap();
    packer.add(&object[..len]).unwrap()
}

/// What is wrong in the pool is given to nobody, neither from there nor from the file. What shares a page of
/// the file with it comes back.
#[test]
fn a_corrupt_page_does_not_come_back() {
    let (mmu, groups) = arena();
    let mut swap = with_file(1000);
    // Of a page of one word after some other bytes, nearly all that is compressed is a copy; of the other
    // there are bytes as they are, too.
    let copies: Vec<u8> = [1].into_iter().chain([7; PAGE_SIZE - 1]).collect();
    let words = (0..PAGE_SIZE as u32 / 8).flat_map(|at| [at * at, 0]);
    let bytes: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
    swap.inject(Some(Arc::new(Inject::parse("keep:corrupt").unwrap())));
    let bad = [&copies, &bytes].map(|page| keep(&swap, &groups, &mmu, page));
    swap.inject(None);
    let good = keep(&swap, &groups, &mmu, &copies);
    let mut page = vec![0; PAGE_SIZE];
    let numbers = [bad[0], good, bad[1]];
    let mut packer = Packer::new();
    let leaving = numbers.map(|number| {
        assert_eq!(swap.load(number, &mut page).is_ok(), number == good);
        Leaving(number)
    });
    let order = [(); 3].map(|()| oldest(&swap).unwrap().0);
    assert_eq!(order, [bad[0], bad[1], good]);
    let position = swap.take_positions(2).unwrap().start;
    let mut file = vec![0; PAGE_SIZE];
    let parts = leaving.map(|slot| (Spot::part(position, pack(&swap, &mut packer, &slot)), slot));
    packer.finish(&mut file);
    swap.free_positions(position + 1..position + 2);
    swap.use_spots(parts.iter().map(|part| part.0));
    let (arrived, frames) = swap.arrived(parts.map(|(spot, slot)| (slot, spot)).into());
    assert_eq!((arrived, swap.file_pages()), (3, 1));
    frames.into_iter().for_each(|frame| groups.free(&mmu, frame));
    for number in numbers {
        let mut page = file.clone();
        let found = swap.arrive(&[number], &mut page).map(|came| came[0].sum);
        assert_eq!(found, if number == good { Ok(checksum(&copies)) } else { Err(Corrupt) });
        assert!(number != good || page == copies);
    }
    for number in numbers {
        assert_eq!(swap.file_pages(), 1, "as long as one of them is there");
        take_back(&groups, &mmu, swap.release(number));
    }
    assert_eq!((swap.used(), swap.pool().objects(), swap.file_pages()), (0, 0, 0));
    all_is_free(&swap, &groups, &mmu);
}

/// Pages of two folios that go out at the same time leave folio by folio, and so lie in the file.
#[test]
fn slots_that_are_queued_together_leave_together() {
    let (mmu, groups) = arena();
    let swap = with_file(1000);
    let numbers: Vec<_> = (0..6)
        .map(|nth| keep_with(&swap, &groups, &mmu, &text(&format!("number {nth}, which compresses ")), None))
        .collect();
    assert!(oldest(&swap).is_none(), "a slot stays until it is queued");
    for part in [1, 0] {
        let part: Vec<_> = numbers.iter().copied().skip(part).step_by(2).collect();
        swap.queue_up(&part);
    }
    for part in [[1, 3, 5], [0, 2, 4]] {
        let order = part.map(|nth| numbers[nth]);
        assert_eq!(order.map(|_| oldest(&swap).unwrap().0), order);
        assert!(matches!(swap.oldest(), Some(Oldest::Gap)), "and in pages of their own");
    }
    for number in numbers {
        take_back(&groups, &mmu, swap.release(number));
    }
    all_is_free(&swap, &groups, &mmu);
}

/// A page and what the pool makes of it, with all frames that it wants.
fn keep(swap: &Swap, groups: &Groups, mmu: &SoftMmu, page: &[u8]) -> u64 {
    let number = keep_with(swap, groups, mmu, page, None);
    swap.queue_up(&[number]);
    number
}

fn keep_with(swap: &Swap, groups: &Groups, mmu: &SoftMmu, page: &[u8], in_file: Option<Spot>) -> u64 {
    let (mut compressor, mut frames) = (Compressor::new(), Vec::new());
    let placement = compressor.place(page, Room { pool: true, passes: false, file: true });
    let page = out(groups, checksum(page), 1);
    loop {
        match swap.keep(&placement, in_file, &page, &mut frames) {
            Ok(number) => return number,
            Err(Short::Frames(missing)) => {
                swap.add_frames(
                    (0..missing).filter_map(|_| groups.alloc(mmu, GroupId::ROOT, 0).ok()).collect(),
                );
                frames.extend((0..missing).filter_map(|_| swap.take_frame()));
            }
            Err(Short::Slots) => panic!("there are slots"),
        }
    }
}

fn text(word: &str) -> Vec<u8> {
    word.bytes().cycle().take(PAGE_SIZE).collect()
}

/// What leaves the pool next.
fn oldest(swap: &Swap) -> Option<Leaving> {
    match swap.oldest()? {
        Oldest::Leaves(slot) => Some(slot),
        other => panic!("the file has none of them: {other:?}"),
    }
}

/// The oldest go first. What is given up while it is written, and whose number is in use again, is not
/// taken for what was written.
#[test]
fn slots_leave_the_pool_in_their_order_unless_they_are_given_up() {
    let (mmu, groups) = arena();
    let swap = with_file(1000);
    let words: Vec<String> = (0..2 * STRIPES).map(|nth| format!("page number {nth} of some ")).collect();
    let numbers: Vec<u64> = words.iter().map(|word| keep(&swap, &groups, &mmu, &text(word))).collect();
    let mut page = vec![0; PAGE_SIZE];
    let [first, second] = [oldest(&swap).unwrap(), oldest(&swap).unwrap()];
    assert_eq!([first.0, second.0], numbers[..2]);
    let mut packer = Packer::new();
    assert_eq!([&first, &second].map(|slot| pack(&swap, &mut packer, slot)), [0, 1]);
    // They can be loaded meanwhile.
    assert!(swap.load(numbers[1], &mut page).is_ok());
    // The first is given up, and other pages go out until its number is in use again.
    let mut others = Vec::new();
    let free = |swap: &Swap, number| _ = take_back(&groups, &mmu, swap.release(number));
    free(&swap, numbers[0]);
    while !others.contains(&numbers[0]) {
        assert!(others.len() < 2 * STRIPES, "the number is not used again");
        others.push(keep(&swap, &groups, &mmu, &text("another one ")));
    }
    let position = swap.take_positions(1).unwrap().start;
    let spots = [0, 1].map(|nth| Spot::part(position, nth));
    swap.use_spots(spots);
    assert!(swap.arrived_at(first, spots[0]).is_err());
    swap.free_spot(spots[0]);
    assert!(swap.load(numbers[0], &mut page).is_ok());
    assert_eq!(page, text("another one "));
    let frames = swap.arrived_at(second, spots[1]).unwrap();
    frames.into_iter().for_each(|frame| groups.free(&mmu, frame));
    assert_eq!(swap.seems(numbers[1]), Some(Source::File(spots[1])));
    assert_eq!(swap.load(numbers[1], &mut page), Err(NotLoaded::Elsewhere));
    // What could not be written stays, and is the last in the queue.
    let third = oldest(&swap).unwrap();
    assert_eq!(third.0, numbers[2]);
    swap.stays_first(third);
    let third = oldest(&swap).unwrap();
    assert_eq!(third.0, numbers[2], "there was no room for it");
    swap.stays(third);
    assert!(swap.load(numbers[2], &mut page).is_ok());
    let rest: Vec<_> = std::iter::from_fn(|| oldest(&swap)).collect();
    assert_eq!(rest.last().map(|leaving| leaving.0), Some(numbers[2]));
    assert_eq!(rest.len(), numbers.len() - 2 + others.len());
    numbers[1..].iter().chain(&others).for_each(|&number| free(&swap, number));
    assert_eq!((swap.used(), swap.pool().objects(), swap.file_pages()), (0, 0, 0));
    all_is_free(&swap, &groups, &mmu);
}

/// What came in from the file and was not stored to goes out without being written: at once, or when it
/// leaves the pool. What was stored to gives its page of the file back.
#[test]
fn what_the_file_has_still_is_not_written_again() {
    let (mmu, groups) = arena();
    let swap = with_file(8);
    let page = text("some words ");
    let sum = checksum(&page);
    let spot = Spot::whole(take(&swap, 1).start);
    let number = swap.keep_in_file(spot, &out(&groups, sum, 2)).unwrap();
    assert_eq!(come_in(&swap, &groups, &mmu, number, false), None, "another space has it");
    assert_eq!(come_in(&swap, &groups, &mmu, number, false), Some(number));
    assert_eq!((swap.used(), swap.file_pages()), (0, 1));
    // It goes to the pool, and leaves it.
    let copy = SwapCopy { slot: number, sum };
    assert!(matches!(again(&swap, &groups, copy, sum), Again::File(same) if same == spot));
    let number = keep_with(&swap, &groups, &mmu, &page, Some(spot));
    swap.queue_up(&[number]);
    assert_eq!((swap.seems(number), swap.file_pages()), (Some(Source::Memory), 1));
    let Some(Oldest::Left(frames)) = swap.oldest() else { panic!("the file has it") };
    frames.into_iter().for_each(|frame| groups.free(&mmu, frame));
    assert_eq!((swap.seems(number), swap.pool().objects()), (Some(Source::File(spot)), 0));
    assert!(swap.oldest().is_none());
    // It comes in, and goes to the pool and back.
    assert_eq!(come_in(&swap, &groups, &mmu, number, false), Some(number));
    let copy = SwapCopy { slot: number, sum };
    assert!(matches!(again(&swap, &groups, copy, sum), Again::File(same) if same == spot));
    let number = keep_with(&swap, &groups, &mmu, &page, Some(spot));
    let kept = come_in(&swap, &groups, &mmu, number, false);
    assert_eq!((kept, swap.pool().objects(), swap.file_pages()), (Some(number), 0, 1));
    // Somebody has stored to it.
    let copy = SwapCopy { slot: number, sum };
    assert!(matches!(again(&swap, &groups, copy, sum ^ 1 << 40), Again::Nothing(_)));
    assert_eq!(swap.file_pages(), 0);
    // Nearly all of the file is taken: it is for what is out.
    let positions = take(&swap, 7).chain(take(&swap, 1));
    let numbers = positions
        .map(|position| swap.keep_in_file(Spot::whole(position), &out(&groups, sum, 1)).unwrap())
        .collect::<Vec<_>>();
    let kept = numbers.iter().map(|number| come_in(&swap, &groups, &mmu, *number, false).is_some());
    assert!(kept.eq((0..8).map(|nth| nth > 0)));
    assert_eq!(swap.file_pages(), 7);
    // Pages that go out need the room of the copies.
    let position = take(&swap, 1).start;
    let others =
        [(); 7].map(|()| swap.keep_in_file(Spot::whole(take(&swap, 1).start), &out(&groups, sum, 1)));
    for number in &numbers[1..] {
        assert!(matches!(again(&swap, &groups, SwapCopy { slot: *number, sum }, sum), Again::Nothing(_)));
    }
    assert!(swap.take_positions(1).is_none(), "nothing is left to drop");
    swap.free_spot(Spot::whole(position));
    others.into_iter().for_each(|number| _ = take_back(&groups, &mmu, swap.release(number.unwrap())));
    assert_eq!((swap.used(), swap.file_pages()), (0, 0));
    all_is_free(&swap, &groups, &mmu);
}

/// What came in from the pool while memory is plenty, and was not stored to, goes out without being
/// compressed. The pool gives it up before it writes anything.
#[test]
fn what_the_pool_has_still_is_not_compressed_again() {
    let (mmu, groups) = arena();
    let swap = with_file(8);
    let free = |frames: Vec<Frames>| frames.into_iter().for_each(|frame| groups.free(&mmu, frame));
    let page = text("some words ");
    let sum = checksum(&page);
    let number = keep(&swap, &groups, &mmu, &page);
    let kept = SwapCopy { slot: number, sum };
    let in_again = |plenty| come_in(&swap, &groups, &mmu, number, plenty);
    swap.share(number);
    assert_eq!(in_again(true), None, "another space has it");
    assert_eq!(in_again(true), Some(kept.slot));
    assert_eq!((swap.used(), swap.pool().objects()), (0, 1), "nothing is out");
    let mut found = vec![0; PAGE_SIZE];
    assert!(matches!(again(&swap, &groups, kept, sum), Again::Slot(same) if same == number));
    let loaded = swap.load(number, &mut found).map(|came| came.sum);
    assert_eq!((loaded, swap.used(), swap.outs.count_out()), (Ok(sum), 1, 1));
    assert_eq!(found, page);
    // Somebody has stored to it.
    assert_eq!(in_again(true), Some(kept.slot));
    let Again::Nothing(frames) = again(&swap, &groups, kept, sum ^ 1 << 40) else { panic!("it has changed") };
    free(frames);
    assert_eq!((swap.used(), swap.pool().objects()), (0, 0));
    assert_eq!(swap.outs.count_out(), 0, "each came back once");
    // The pool gives it up: it has nothing to write.
    let number = keep(&swap, &groups, &mmu, &page);
    let kept = SwapCopy { slot: number, sum };
    assert_eq!(come_in(&swap, &groups, &mmu, number, true), Some(kept.slot));
    let Some(Oldest::Left(frames)) = swap.oldest() else { panic!("a folio has it") };
    free(frames);
    assert_eq!(swap.pool().objects(), 0);
    assert!(matches!(again(&swap, &groups, kept, sum), Again::Nothing(_)));
    // Memory becomes short.
    let number = keep(&swap, &groups, &mmu, &page);
    let kept = SwapCopy { slot: number, sum };
    assert_eq!(come_in(&swap, &groups, &mmu, number, true), Some(kept.slot));
    assert!(!swap.pool_is_over(true) && swap.pool_is_over(false));
    free(swap.drop_kept());
    assert!(swap.pool().objects() == 0 && !swap.pool_is_over(false));
    assert!(matches!(again(&swap, &groups, kept, sum), Again::Nothing(_)));
    // A folio ends.
    let number = keep(&swap, &groups, &mmu, &page);
    free(swap.forget(come_in(&swap, &groups, &mmu, number, true).unwrap()));
    assert_eq!(swap.outs.count_out(), 0, "each came back once");
    // Memory is short; or so many slots are taken that they are for what is out.
    let number = keep(&swap, &groups, &mmu, &page);
    let none = come_in(&swap, &groups, &mmu, number, false);
    assert_eq!((none, swap.used(), swap.pool().objects()), (None, 0, 0));
    let numbers = [(); 5].map(|()| keep(&swap, &groups, &mmu, &page));
    let kept = numbers.map(|number| come_in(&swap, &groups, &mmu, number, true));
    assert_eq!(kept.map(|kept| kept.is_some()), [false, true, true, true, true]);
    // There is no slot for it any more.
    let others = [(); 8].map(|()| keep(&swap, &groups, &mmu, &page));
    let last = SwapCopy { slot: kept[4].unwrap(), sum };
    let Again::Nothing(frames) = again(&swap, &groups, last, sum) else { panic!("all slots are taken") };
    free(frames);
    kept.into_iter().take(4).flatten().for_each(|slot| free(swap.forget(slot)));
    others.into_iter().for_each(|number| _ = take_back(&groups, &mmu, swap.release(number)));
    assert_eq!((swap.used(), swap.pool().objects()), (0, 0));
    all_is_free(&swap, &groups, &mmu);
}

/// A slot that was given up and is in use again is met a second time for the same batch: it has the bytes
/// that were taken from it last.
#[test]
fn a_number_that_is_twice_in_a_batch_has_its_later_bytes() {
    let (mmu, groups) = arena();
    let swap = with_file(1000);
    let free = |frames: Vec<Frames>| frames.into_iter().for_each(|frame| groups.free(&mmu, frame));
    let number = keep(&swap, &groups, &mmu, &text("the first "));
    let mut batch = vec![oldest(&swap).unwrap()];
    take_back(&groups, &mmu, swap.release(number));
    let mut others = Vec::new();
    while !others.contains(&number) {
        assert!(others.len() < 2 * STRIPES, "the number is not used again");
        others.push(keep(&swap, &groups, &mmu, &text("the second ")));
    }
    batch.extend(std::iter::from_fn(|| oldest(&swap)));
    let at = batch.iter().rposition(|leaving| leaving.0 == number).unwrap();
    assert!(at > 0);
    let spots: Vec<_> = take(&swap, batch.len() as u64).map(Spot::whole).collect();
    let written = spots[at];
    let (arrived, frames) = swap.arrived(batch.into_iter().zip(spots).collect());
    free(frames);
    assert_eq!(arrived, others.len() as u64);
    assert_eq!(swap.seems(number), Some(Source::File(written)));
    assert_eq!(swap.file_pages(), arrived);
    others.into_iter().for_each(|number| _ = take_back(&groups, &mmu, swap.release(number)));
    assert_eq!((swap.used(), swap.file_pages()), (0, 0));
    all_is_free(&swap, &groups, &mmu);
}

/// Takes pages of the file that follow each other, all of which are in use.
fn take(swap: &Swap, pages: u64) -> std::ops::Range<u64> {
    let positions = swap.take_positions(pages).unwrap();
    assert_eq!(positions.end - positions.start, pages);
    swap.use_spots(positions.clone().map(Spot::whole));
    positions
}

/// Pages of an ancestor's file are its business, however full the own one is.
#[test]
fn a_child_gives_pages_of_its_own_file_back_only() {
    let ((mmu, groups), swap) = (arena(), with_file(4));
    assert_eq!(take(&swap, 4), 0..4);
    let keep = |page| swap.keep_in_file(Spot::whole(page), &out(&groups, 0, 1)).unwrap();
    let slots: Vec<_> = (0..4).map(keep).collect();
    let ancestor = swap.place(3).unwrap();
    swap.renew(Some(StoreFile::temporary(&std::env::temp_dir(), 0, None).unwrap()));
    assert!(Arc::ptr_eq(&swap.place(3).unwrap().0, &ancestor.0));
    assert_eq!(swap.file_pages(), 0);
    let own = take(&swap, 4);
    assert!(own.start > 4, "{own:?}");
    let (file, at) = swap.place(own.start + 1).unwrap();
    assert!(!Arc::ptr_eq(&file, &ancestor.0) && at == PAGE_SIZE as u64);
    // All of the own file is taken, so none is kept.
    assert_eq!(come_in(&swap, &groups, &mmu, slots[3], false), None);
    assert!(!take_back(&groups, &mmu, swap.release(slots[2])));
    assert_eq!(swap.file_pages(), 4);
    own.clone().for_each(|page| swap.free_spot(Spot::whole(page)));
    let kept = come_in(&swap, &groups, &mmu, slots[1], false);
    assert_eq!(kept, Some(slots[1]), "the ancestor has it for as long as this lives");
    assert_eq!((swap.file_pages(), swap.used()), (0, 1));
}
