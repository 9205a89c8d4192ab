//! Patterns of paths.

/// Whether a text fits a pattern as a whole: `?` is one character but `/`, `*` any number of these, `**` any
/// number of any characters. All else stands for itself.
pub fn fits(pattern: &str, text: &str) -> bool {
    let pattern: Vec<_> = parts(pattern).collect();
    // For each part: whether the text so far fits all parts before it. The time is the product of both
    // lengths, whatever the pattern.
    let mut ready = vec![false; pattern.len() + 1];
    ready[0] = true;
    skip_empty(&pattern, &mut ready);
    for c in text.chars() {
        let mut next = vec![false; pattern.len() + 1];
        for (at, part) in pattern.iter().enumerate().filter(|(at, _)| ready[*at]) {
            match part {
                Part::One(wanted) => next[at + 1] |= *wanted == c,
                Part::AnyOne => next[at + 1] |= c != '/',
                Part::Name => next[at] |= c != '/',
                Part::All => next[at] = true,
            }
        }
        skip_empty(&pattern, &mut next);
        ready = next;
    }
    ready[pattern.len()]
}

/// `*` and `**` fit nothing as well.
fn skip_empty(pattern: &[Part], ready: &mut [bool]) {
    for (at, part) in pattern.iter().enumerate() {
        if ready[at] && matches!(part, Part::Name | Part::All) {
            ready[at + 1] = true;
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    One(char),
    AnyOne,
    Name,
    All,
}

fn parts(pattern: &str) -> impl Iterator<Item = Part> {
    let mut rest = pattern.chars().peekable();
    std::iter::from_fn(move || {
        Some(match rest.next()? {
            '*' if rest.next_if_eq(&'*').is_some() => Part::All,
            '*' => Part::Name,
            '?' => Part::AnyOne,
            c => Part::One(c),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (pattern, right, wrong) in [
            ("a.bin", &["a.bin"][..], &["a.bi", "a.bin2", "xa.bin", ""][..]),
            ("*.bin", &["a.bin", ".bin", "a.b.bin", "é.bin"], &["a.bin.gz", "bin", "d/a.bin"]),
            ("a?c", &["abc", "aéc"], &["ac", "a/c", "abbc"]),
            ("/data/*", &["/data/a", "/data/"], &["/data/a/b", "/data", "/dat/a"]),
            ("/data/**", &["/data/a", "/data/a/b.c"], &["/data", "/date/a"]),
            ("/**/x", &["/a/x", "/a/b/x", "//x"], &["/x", "/a/xx"]),
            ("**/*.npy", &["/a.npy", "/d/e/a.npy"], &["a.npy", "/d/a.npz"]),
            ("*", &["", "a"], &["a/b"]),
            ("**", &["", "a", "a/b"], &[]),
            ("*a*b*", &["ab", "xaxbx"], &["ba", "a"]),
            ("[a]", &["[a]"], &["a"]),
        ] {
            for text in right {
                assert!(fits(pattern, text), "{pattern} {text}");
            }
            for text in wrong {
                assert!(!fits(pattern, text), "{pattern} {text}");
            }
        }
        // No pattern takes long.
        assert!(!fits(&"*a".repeat(200), &"a".repeat(199)));
    }
}
