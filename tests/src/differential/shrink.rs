//! Makes a failing list of operations short, and its operations simple.
//!
//! Delta debugging (Zeller and Hildebrandt, 2002, without its complements): pieces are left out, large ones
//! first, as long as what is left still fails; then each operation is tried in simpler forms.

use crate::differential::op::{At, Len, Offset, Op, Place};

/// How many lists are tried at most. A list of a thousand operations needs some hundreds.
pub const MAX_TRIES: usize = 3000;

/// The shortest failing list that was found. `fails` is asked about candidates only; the whole list is known
/// to fail.
pub fn shrink(ops: &[Op], mut fails: impl FnMut(&[Op]) -> bool) -> Vec<Op> {
    let mut tries = 0;
    let mut fails = |ops: &[Op]| {
        tries += 1;
        tries <= MAX_TRIES && fails(ops)
    };
    let mut ops = ops.to_vec();
    loop {
        let before = ops.clone();
        leave_out(&mut ops, &mut fails);
        simplify(&mut ops, &mut fails);
        if ops == before {
            return ops;
        }
    }
}

fn leave_out(ops: &mut Vec<Op>, fails: &mut impl FnMut(&[Op]) -> bool) {
    let mut size = (ops.len() / 2).max(1);
    loop {
        // From the end: what is last depends on what is first, seldom the other way round.
        let mut end = ops.len();
        while end > 0 {
            let start = end.saturating_sub(size);
            let rest: Vec<Op> = ops[..start].iter().chain(&ops[end..]).cloned().collect();
            if fails(&rest) {
                *ops = rest;
            }
            end = start;
        }
        if size == 1 {
            return;
        }
        size = (size / 2).max(1);
    }
}

fn simplify(ops: &mut [Op], fails: &mut impl FnMut(&[Op]) -> bool) {
    for index in 0..ops.len() {
        // Each simpler form has simpler forms of its own; every one of them is strictly simpler, so this
        // ends.
        'again: loop {
            for simpler in simpler(&ops[index]) {
                let original = std::mem::replace(&mut ops[index], simpler);
                if fails(ops) {
                    continue 'again;
                }
                ops[index] = original;
            }
            break;
        }
    }
}

/// Forms of an operation that are simpler in one respect.
fn simpler(op: &Op) -> Vec<Op> {
    let mut forms = Vec::new();
    match *op {
        Op::Map { at, len, prot, place, flags, file, offset, settle } => {
            let map = |at, len, place, offset| Op::Map { at, len, prot, place, flags, file, offset, settle };
            forms.extend(shorter(len).into_iter().map(|len| map(at, len, place, offset)));
            if let (At::Page(page), Len::Pages(pages), Offset::Page(first)) = (at, len, offset)
                && pages > 1
            {
                let last = pages - 1;
                forms.push(map(At::Page(page + last), Len::Pages(1), place, Offset::Page(first + last)));
                forms.push(map(At::Page(page + 1), Len::Pages(last), place, Offset::Page(first + 1)));
            }
            if place != Place::Fixed {
                forms.push(map(at, len, Place::Fixed, offset));
                if at != At::Page(settle) {
                    forms.push(map(At::Page(settle), len, Place::Fixed, offset));
                }
            }
            if offset != Offset::Page(0) {
                forms.push(map(at, len, place, Offset::Page(0)));
            }
            let plain = flags & (libc::MAP_TYPE | libc::MAP_ANONYMOUS);
            let write = libc::PROT_READ | libc::PROT_WRITE;
            let with = |prot, flags| Op::Map { at, len, prot, place, flags, file, offset, settle };
            if flags != plain {
                forms.push(with(prot, plain));
            }
            if prot != write {
                forms.push(with(write, flags));
            }
        }
        Op::Remap { at, old, new, flags, to, settle } => {
            let with = |at, old, new, to| Op::Remap { at, old, new, flags, to, settle };
            if old == new {
                forms.extend(shorter(old).into_iter().map(|len| with(at, len, len, to)));
                if let (At::Page(from), Len::Pages(pages), At::Page(page)) = (at, old, to)
                    && pages > 1
                {
                    let (from, rest, page) = (At::Page(from + 1), Len::Pages(pages - 1), At::Page(page + 1));
                    forms.push(with(from, rest, rest, page));
                }
            }
            forms.extend(shorter(old).into_iter().map(|old| with(at, old, new, to)));
            forms.extend(shorter(new).into_iter().map(|new| with(at, old, new, to)));
        }
        Op::Unmap(at, len) => forms.extend(ranges(at, len).map(|(at, len)| Op::Unmap(at, len))),
        Op::Protect(at, len, prot) => {
            forms.extend(ranges(at, len).map(|(at, len)| Op::Protect(at, len, prot)));
        }
        Op::Advise(at, len, advice) => {
            forms.extend(ranges(at, len).map(|(at, len)| Op::Advise(at, len, advice)));
        }
        Op::Sync(at, len, flags) => forms.extend(ranges(at, len).map(|(at, len)| Op::Sync(at, len, flags))),
        Op::Resident(at, len) => forms.extend(ranges(at, len).map(|(at, len)| Op::Resident(at, len))),
        Op::Lock(at, len, flags) => forms.extend(ranges(at, len).map(|(at, len)| Op::Lock(at, len, flags))),
        Op::Unlock(at, len) => forms.extend(ranges(at, len).map(|(at, len)| Op::Unlock(at, len))),
        Op::Load(page, byte, len) if byte != 0 || len != 1 => forms.push(Op::Load(page, 0, 1.min(len))),
        Op::Store(page, byte, len, seed) if byte != 0 || len != 1 => {
            forms.push(Op::Store(page, 0, 1.min(len), seed));
        }
        Op::Truncate(_) | Op::Load(..) | Op::Store(..) => {}
    }
    forms
}

fn shorter(len: Len) -> Vec<Len> {
    match len {
        Len::Pages(pages) if pages > 1 => vec![Len::Pages(1), Len::Pages(pages / 2), Len::Pages(pages - 1)],
        Len::Bytes(bytes) if bytes > 1 => vec![Len::Pages(len.pages())],
        _ => vec![],
    }
}

/// Shorter ranges, from the same start or to the same end.
fn ranges(at: At, len: Len) -> impl Iterator<Item = (At, Len)> {
    let mut all: Vec<(At, Len)> = shorter(len).into_iter().map(|len| (at, len)).collect();
    if let (At::Page(page), Len::Pages(pages)) = (at, len)
        && pages > 1
    {
        all.push((At::Page(page + pages - 1), Len::Pages(1)));
        all.push((At::Page(page + 1), Len::Pages(pages - 1)));
    }
    all.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::differential::generate::Generator;
    use crate::differential::mix::Mix;

    #[test]
    fn what_does_not_matter_is_left_out() {
        let mut ops = Generator::new(7, 64, Mix::default()).list(300);
        ops[50] = Op::Unmap(At::Page(3), Len::Pages(9));
        ops[200] = Op::Truncate(5);
        let fails = |ops: &[Op]| {
            let unmap = |op: &Op| match op {
                Op::Unmap(At::Page(page), Len::Pages(n)) => (*page..*page + n).contains(&7),
                _ => false,
            };
            let truncate = |op: &Op| *op == Op::Truncate(5);
            let first = ops.iter().position(unmap);
            first.is_some_and(|first| ops[first..].iter().any(truncate))
        };
        assert!(fails(&ops));
        assert_eq!(shrink(&ops, fails), [Op::Unmap(At::Page(7), Len::Pages(1)), Op::Truncate(5)]);
    }
}
