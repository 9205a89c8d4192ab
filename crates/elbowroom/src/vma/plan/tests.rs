//! Each case of a decision drawn, and all cases of a small world enumerated against an oracle that looks at
//! single pages.
//!
//! A drawing has a cell for each page of addresses: the letter of what is mapped (`Z` is private anonymous
//! memory), the page of it in hexadecimal, and a mark for any other difference. Bars are where mappings begin
//! and end.

use super::*;
use crate::group::GroupId;

const PAGE: usize = 1 << PAGE_SHIFT;

/// The pages of addresses that are drawn.
const PAGES: usize = 10;

fn pages_of(range: &Range<usize>) -> Range<usize> {
    range.start >> PAGE_SHIFT..range.end >> PAGE_SHIFT
}

/// A mapping as a drawing has it.
fn kind(letter: u8, mark: u8) -> Kind {
    Kind {
        object: (letter != b'Z').then_some(u64::from(letter)),
        origin: (mark == b'f').then_some(7),
        prot: if mark == b'r' { Prot::READ } else { Prot::READ | Prot::WRITE },
        may_write: mark != b'n',
        sharing: if mark == b's' { Sharing::Shared } else { Sharing::Private },
        pattern: if mark == b'q' { Pattern::Sequential } else { Pattern::Detect },
        flags: match mark {
            b'l' => VmaFlags::LOCKED,
            b'o' => VmaFlags::ON_FAULT,
            b'd' => VmaFlags::DONT_FORK,
            b'w' => VmaFlags::WIPE_ON_FORK,
            _ => VmaFlags::empty(),
        },
        group: if mark == b'g' { GroupId::OTHER } else { GroupId::ROOT },
    }
}

/// Every mark: nothing, rights, the right to get rights, sharing, pattern, each flag, another description of
/// the file, and another group.
const MARKS: [u8; 11] = *b" rnsqlodwfg";

/// The letter and the mark of a kind.
fn name_of(kind: &Kind) -> (char, char) {
    let letter = kind.object.map_or(b'Z', |object| object as u8);
    let mark = MARKS.into_iter().find(|&mark| self::kind(letter, mark) == *kind);
    (letter.into(), mark.expect("one of the marks").into())
}

fn side(pages: Range<usize>, first_page: u64, kind: Kind) -> Side {
    Side { range: pages.start * PAGE..pages.end * PAGE, first_page, kind }
}

/// Draws mappings, which are in order and do not overlap.
fn draw<'a>(mappings: impl IntoIterator<Item = &'a Side>) -> String {
    let mut row = [[' '; 4]; PAGES + 1];
    for mapping in mappings {
        let pages = pages_of(&mapping.range);
        let (letter, mark) = name_of(&mapping.kind);
        for (page, index) in pages.clone().zip(mapping.first_page..) {
            let digit = char::from_digit(index as u32, 16).expect("a page that can be drawn");
            row[page] = [row[page][0], letter, digit, mark];
        }
        row[pages.start][0] = '|';
        row[pages.end][0] = '|';
    }
    row.concat().into_iter().collect::<String>().trim_end().to_owned()
}

/// Reads a drawing.
fn read(row: &str) -> Vec<Side> {
    let row = format!("{row:w$}", w = 4 * (PAGES + 1)).into_bytes();
    let mut mappings: Vec<Side> = Vec::new();
    for (page, cell) in row.chunks(4).enumerate().filter(|(_, cell)| cell[1] != b' ') {
        let index = (cell[2] as char).to_digit(16).expect("a page's number").into();
        match mappings.last_mut() {
            Some(last) if cell[0] == b' ' => last.range.end += PAGE,
            _ => mappings.push(side(page..page + 1, index, kind(cell[1], cell[3]))),
        }
    }
    assert_eq!(draw(&mappings), String::from_utf8(row).unwrap().trim_end(), "a drawing that is none");
    mappings
}

/// The neighbours of `new`, the decision, and the index afterwards.
fn merged(mappings: &[Side], new: &Side) -> (Merge, Vec<Side>) {
    let before = mappings.iter().find(|m| m.range.contains(&new.range.start.wrapping_sub(1)));
    let after = mappings.iter().find(|m| m.range.contains(&new.range.end));
    let plan = merge(before, new, after);
    let mut one = new.clone();
    let mut all = mappings.to_vec();
    if let Some(before) = before.filter(|_| plan.with_before()) {
        (one.range.start, one.first_page) = (before.range.start, before.first_page);
    }
    if let Some(after) = after.filter(|_| plan.with_after()) {
        one.range.end = after.range.end;
    }
    all.retain(|m| m.range.start < one.range.start || m.range.end > one.range.end);
    all.push(one);
    all.sort_by_key(|m| m.range.start);
    (plan, all)
}

/// Characters before the first page.
const LABEL: usize = 5;

/// The rows of a drawing, by their labels.
fn rows<const N: usize>(drawing: &str, labels: [&str; N]) -> [Vec<Side>; N] {
    let mut lines = drawing.trim_start().lines();
    labels.map(|label| {
        let line = lines.next().filter(|line| line.starts_with(label)).expect("the label of a row");
        read(line.get(LABEL..).unwrap_or_default())
    })
}

const MERGES: [(Merge, &str); 17] = [
    (
        Merge::Alone,
        "
was
new          |A2 |
then         |A2 |",
    ),
    // A gap on either side.
    (
        Merge::Alone,
        "
was  |A0 |       |A4 |
new          |A2 |
then |A0 |   |A2 |A4 |",
    ),
    (
        Merge::Alone,
        "
was  |A0  A1 |       |A4 |
new              |A3r|
then |A0  A1 |   |A3r|A4 |",
    ),
    // Other pages of the same object: too early, too late.
    (
        Merge::Alone,
        "
was  |A0  A1 |   |A4  A5 |
new          |A1 |
then |A0  A1 |A1 |A4  A5 |",
    ),
    (
        Merge::Alone,
        "
was  |A0  A1 |   |A2  A3 |
new          |A3 |
then |A0  A1 |A3 |A2  A3 |",
    ),
    // Another object, or none.
    (
        Merge::Alone,
        "
was  |A0  A1 |   |C3  C4 |
new          |B2 |
then |A0  A1 |B2 |C3  C4 |",
    ),
    (
        Merge::Alone,
        "
was  |Z0  Z1 |   |Z3  Z4 |
new          |B2 |
then |Z0  Z1 |B2 |Z3  Z4 |",
    ),
    // Other rights, another sharing.
    (
        Merge::Alone,
        "
was  |A0r A1r|   |A3s A4s|
new          |A2 |
then |A0r A1r|A2 |A3s A4s|",
    ),
    (
        Merge::Before,
        "
was  |A0  A1 |
new          |A2  A3 |
then |A0  A1  A2  A3 |",
    ),
    (
        Merge::Before,
        "
was  |A0  A1 |       |A4 |
new          |A2 |
then |A0  A1  A2 |   |A4 |",
    ),
    (
        Merge::Before,
        "
was  |A0  A1 |   |A4  A5 |
new          |A2 |
then |A0  A1  A2 |A4  A5 |",
    ),
    (
        Merge::Before,
        "
was  |Z0l Z1l|   |Z3  Z4 |
new          |Z2l|
then |Z0l Z1l Z2l|Z3  Z4 |",
    ),
    (
        Merge::After,
        "
was  |A0 |       |A3  A4 |
new          |A2 |
then |A0 |   |A2  A3  A4 |",
    ),
    (
        Merge::After,
        "
was  |A9  Aa |   |A3  A4 |
new          |A2 |
then |A9  Aa |A2  A3  A4 |",
    ),
    (
        Merge::After,
        "
was  |A0l A1l|   |A3d A4d|
new          |A2d|
then |A0l A1l|A2d A3d A4d|",
    ),
    (
        Merge::Both,
        "
was  |A0  A1 |   |A3  A4 |
new          |A2 |
then |A0  A1  A2  A3  A4 |",
    ),
    (
        Merge::Both,
        "
was  |Z0w|       |Z3w Z4w|
new      |Z1w Z2w|
then |Z0w Z1w Z2w Z3w Z4w|",
    ),
];

#[test]
fn drawn_merges() {
    for (expected, drawing) in MERGES {
        let [was, new, then] = rows(drawing, ["was", "new", "then"]);
        let (plan, all) = merged(&was, &new[0]);
        assert_eq!((plan, draw(&all)), (expected, draw(&then)), "{drawing}");
    }
}

/// The neighbours that may be beside a new mapping of page 4 or of 4 and 5: none; and of one page or two,
/// beside it or a page away, of every object, with every first page from one too few to one too many, with
/// every mark.
fn neighbours(at: impl Fn(usize, usize) -> Range<usize>) -> Vec<Option<Side>> {
    let mut all = vec![None];
    for (len, distance) in [(1, 0), (2, 0), (1, 1), (2, 1)] {
        let pages = at(len, distance);
        for (letter, mark) in b"ABZ".iter().flat_map(|&letter| MARKS.map(|mark| (letter, mark))) {
            // Private anonymous memory has the number of the page.
            let shifts = if letter == b'Z' { 1..2 } else { 0..3 };
            let sides =
                shifts.map(|shift| side(pages.clone(), (pages.start + shift - 1) as u64, kind(letter, mark)));
            all.extend(sides.map(Some));
        }
    }
    all
}

/// What two pages of one mapping have in common: all but their numbers, which differ as their addresses do.
fn color(side: &Side) -> (u64, Kind) {
    (side.first_page.wrapping_sub(pages_of(&side.range).start as u64), side.kind)
}

#[test]
fn every_merge() {
    let mut seen = [0; 4];
    for new in [4..5, 4..6].into_iter().flat_map(|pages| {
        [b'A', b'Z'].map(|letter| side(pages.clone(), pages.start as u64, kind(letter, b' ')))
    }) {
        let (start, end) = (pages_of(&new.range).start, pages_of(&new.range).end);
        let befores = neighbours(|len, distance| start - distance - len..start - distance);
        let afters = neighbours(|len, distance| end + distance..end + distance + len);
        for (before, after) in befores.iter().flat_map(|b| afters.iter().map(move |a| (b, a))) {
            let fits = |neighbour: &Option<Side>, touches: fn(&Side, &Side) -> bool| {
                neighbour.as_ref().is_some_and(|n| touches(n, &new) && color(n) == color(&new))
            };
            let expected = match (
                fits(before, |n, new| n.range.end == new.range.start),
                fits(after, |n, new| n.range.start == new.range.end),
            ) {
                (false, false) => Merge::Alone,
                (true, false) => Merge::Before,
                (false, true) => Merge::After,
                (true, true) => Merge::Both,
            };
            let plan = merge(before.as_ref(), &new, after.as_ref());
            seen[plan as usize] += 1;
            assert_eq!(plan, expected, "\nwas  {}\nnew  {}", draw(before.iter().chain(after)), draw([&new]));
        }
    }
    // On each side 1 + 4 places * marks * (3 + 3 + 1 first pages of A, B, Z) neighbours, of which the two
    // lengths beside it fit.
    let (fit, not) = (2, 1 + 4 * MARKS.len() * 7 - 2);
    assert_eq!(seen, [not * not, fit * not, not * fit, fit * fit].map(|cases| 4 * cases));
}

/// What is mapped, what is cut out, what is before it, in it and after it.
const CUTS: [&str; 8] = [
    "
was      |A4  A5  A6  A7 |
cut          |-0  -1 |
then     |A4 |A5  A6 |A7 |",
    "
was      |A4  A5  A6  A7 |
cut      |-0 |
then     |A4 |A5  A6  A7 |",
    "
was      |A4  A5  A6  A7 |
cut  |-0  -1  -2 |
then     |A4  A5 |A6  A7 |",
    "
was      |A4  A5  A6  A7 |
cut                  |-0 |
then     |A4  A5  A6 |A7 |",
    "
was      |A4  A5  A6  A7 |
cut              |-0  -1  -2 |
then     |A4  A5 |A6  A7 |",
    "
was      |A4  A5  A6  A7 |
cut  |-0  -1  -2  -3  -4  -5 |
then     |A4  A5  A6  A7 |",
    "
was      |A4  A5 |
cut  |-0 |
then",
    "
was      |A4  A5 |
cut              |-0 |
then",
];

/// The pieces of a cut, in order, as mappings of the kind.
fn pieces(carved: Option<Carved>, kind: Kind) -> Vec<Side> {
    let Some(Carved { before, inside, after }) = carved else { return Vec::new() };
    let pieces = [before, Some(inside), after].into_iter().flatten();
    pieces.map(|piece| Side { range: piece.range, first_page: piece.first_page, kind }).collect()
}

#[test]
fn drawn_cuts() {
    for drawing in CUTS {
        let [was, cut, then] = rows(drawing, ["was", "cut", "then"]);
        let carved = carve(&was[0].range, was[0].first_page, &cut[0].range);
        let inside = carved.as_ref().map(|carved| carved.inside.range.clone());
        assert_eq!(draw(&pieces(carved, was[0].kind)), draw(&then), "{drawing}");
        // It is the cut's part that is inside.
        let both = was[0].range.start.max(cut[0].range.start)..was[0].range.end.min(cut[0].range.end);
        assert_eq!(inside, (!both.is_empty()).then_some(both), "{drawing}");
    }
}

/// Every mapping and every cut in six pages, with every first page up to three, page by page.
#[test]
fn every_cut() {
    let ranges = || (0..6).flat_map(|start| (start + 1..=6).map(move |end| start..end));
    for (was, cut) in ranges().flat_map(|was| ranges().map(move |cut| (was.clone(), cut))) {
        for first_page in 0..4 {
            let was = side(was.clone(), first_page, kind(b'A', b' '));
            let cut = side(cut.clone(), 0, kind(b'-', b' '));
            let carved = carve(&was.range, first_page, &cut.range);
            let drawing = || {
                let then = pieces(carve(&was.range, first_page, &cut.range), was.kind);
                format!("\nwas  {}\ncut  {}\nthen {}", draw([&was]), draw([&cut]), draw(&then))
            };
            let (old, gone) = (pages_of(&was.range), pages_of(&cut.range));
            let Some(carved) = carved else {
                assert!(old.clone().all(|page| !gone.contains(&page)), "{}", drawing());
                continue;
            };
            let parts = [(carved.before, false), (Some(carved.inside), true), (carved.after, false)];
            let mut seen = Vec::new();
            for (piece, is_cut) in parts.into_iter().filter_map(|(piece, is_cut)| Some((piece?, is_cut))) {
                assert!(!piece.range.is_empty(), "{}", drawing());
                for (page, index) in pages_of(&piece.range).zip(piece.first_page..) {
                    assert_eq!(gone.contains(&page), is_cut, "{}", drawing());
                    assert_eq!(index, first_page + (page - old.start) as u64, "{}", drawing());
                    seen.push(page);
                }
            }
            assert_eq!(seen, old.collect::<Vec<_>>(), "{}", drawing());
        }
    }
}

/// What is asked for, what is taken, what is free of it.
const GAPS: [&str; 8] = [
    "
in       |-0  -1  -2  -3 |
has
free     |-0  -1  -2  -3 |",
    "
in       |-0  -1  -2  -3 |
has      |A0  A1  A2  A3 |
free",
    "
in       |-0  -1  -2  -3 |
has  |A0  A1 |B2  B3  B4  B5 |
free",
    "
in       |-0  -1  -2  -3 |
has  |A0  A1 |       |B0  B1 |
free         |-1  -2 |",
    "
in       |-0  -1  -2  -3 |
has          |A0 |B0 |
free     |-0 |       |-3 |",
    "
in       |-0  -1  -2  -3 |
has          |A0 |   |B0 |
free     |-0 |   |-2 |",
    "
in       |-0  -1  -2  -3 |
has      |A0 |       |B0 |
free         |-1  -2 |",
    "
in       |-0  -1  -2  -3 |
has              |A0  A1  A2 |
free     |-0  -1 |",
];

#[test]
fn drawn_gaps() {
    let numbers =
        |side: &Side| (side.range.start >> PAGE_SHIFT) as u64..(side.range.end >> PAGE_SHIFT) as u64;
    for drawing in GAPS {
        let [within, has, free] = rows(drawing, ["in", "has", "free"]);
        let found = gaps(&numbers(&within[0]), has.iter().map(numbers));
        assert_eq!(found, free.iter().map(numbers).collect::<Vec<_>>(), "{drawing}");
    }
}

/// Every set of pages that may be taken in and around a range of six, as runs, with neighbouring runs joined
/// and not.
#[test]
fn every_gap() {
    let range = 2..8_u64;
    for taken in 0..1_u32 << 10 {
        let is_taken = |page: u64| taken >> page & 1 == 1;
        let drawing: String = (0..10).map(|page| if is_taken(page) { 'x' } else { '.' }).collect();
        let single = (0..10).filter(|&page| is_taken(page)).map(|page| page..page + 1);
        let mut runs: Vec<Range<u64>> = Vec::new();
        for page in single.clone() {
            match runs.last_mut().filter(|run| run.end == page.start) {
                Some(run) => run.end = page.end,
                None => runs.push(page),
            }
        }
        let overlaps = |run: &Range<u64>| run.end > range.start && run.start < range.end;
        let free = gaps(&range, runs.into_iter().filter(overlaps));
        let pages: Vec<u64> = free.iter().cloned().flatten().collect();
        let expected: Vec<u64> = range.clone().filter(|&page| !is_taken(page)).collect();
        assert_eq!(pages, expected, "\n  |----|\n{drawing}");
        let apart = free.windows(2).all(|pair| pair[0].end < pair[1].start);
        assert!(apart && free.iter().all(|gap| !gap.is_empty()), "\n  |----|\n{drawing}");
        assert_eq!(free, gaps(&range, single.filter(overlaps)), "\n  |----|\n{drawing}");
    }
}

#[test]
fn every_flag_keeps_neighbours_apart() {
    let with = |pages: Range<usize>, flags| Side {
        kind: Kind { flags, ..kind(b'Z', b' ') },
        ..side(pages.clone(), pages.start as u64, kind(b'Z', b' '))
    };
    for flag in VmaFlags::all().iter() {
        let (plain, flagged) = (with(1..2, VmaFlags::empty()), with(2..3, flag));
        assert_eq!(merge(Some(&plain), &flagged, None), Merge::Alone, "{flag:?}");
        assert_eq!(merge(Some(&with(1..2, flag)), &flagged, None), Merge::Before, "{flag:?}");
    }
    assert_eq!(VmaFlags::all().iter().count(), 9, "docs/advice.md has them");
}
