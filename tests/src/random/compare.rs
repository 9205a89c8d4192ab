//! The first difference of two runs of the same steps.

use crate::random::case::{End, Ran};

/// In what two runs differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Difference {
    /// A line of a thread's transcript is another one.
    Line {
        /// The thread.
        thread: usize,
        /// The line, from 0.
        line: usize,
        /// Under the plain kernel.
        expected: String,
        /// In the other run; cut off, if that ended in the middle of it.
        got: String,
    },
    /// The transcripts are the same, but what the files have after the end is not.
    File {
        /// Its name.
        name: String,
        /// The first byte that differs, or the shorter one's length.
        at: usize,
    },
    /// The other run has done the same and ended in another way.
    End,
}

/// The first difference; of several threads that of the lowest number.
pub fn difference(plain: &Ran, other: &Ran) -> Option<Difference> {
    for (thread, (expected, got)) in plain.transcripts.iter().zip(&other.transcripts).enumerate() {
        if expected == got {
            continue;
        }
        let mut got = got.lines();
        for (line, expected) in expected.lines().enumerate() {
            let got = got.next().unwrap_or("");
            // A run that was killed: this thread may only not have come so far.
            if got.is_empty() && other.end != End::Well {
                break;
            }
            if got != expected {
                let (expected, got) = (expected.to_owned(), got.to_owned());
                return Some(Difference::Line { thread, line, expected, got });
            }
        }
    }
    if other.end != plain.end {
        return Some(Difference::End);
    }
    plain.files.iter().find_map(|(name, expected)| {
        let got = other.files.get(name).map_or(&[][..], Vec::as_slice);
        let same = expected.iter().zip(got).take_while(|(a, b)| a == b).count();
        let differs = expected.len() != got.len() || same < expected.len();
        differs.then(|| Difference::File { name: name.clone(), at: same })
    })
}

/// The number of the step that a line of a transcript is about.
pub fn step_of(line: &str) -> Option<u64> {
    line.split(' ').next()?.parse().ok()
}

/// The last step that a run has begun, for each thread.
pub fn last_steps(ran: &Ran) -> Vec<String> {
    ran.transcripts
        .iter()
        .enumerate()
        .map(|(thread, text)| format!("thread {thread}: {}", text.lines().last().unwrap_or("nothing")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn ran(transcript: &str, end: End) -> Ran {
        let transcripts = vec![transcript.to_owned()];
        Ran { transcripts, files: [].into(), end, stderr: String::new(), elapsed: Duration::ZERO }
    }

    #[test]
    fn the_first_line_that_differs_is_found() {
        let plain = ran("1 a\n2 b\n3 c\n", End::Well);
        assert_eq!(difference(&plain, &ran("1 a\n2 b\n3 c\n", End::Well)), None);
        let line = |line, expected: &str, got: &str| {
            Some(Difference::Line { thread: 0, line, expected: expected.to_owned(), got: got.to_owned() })
        };
        assert_eq!(difference(&plain, &ran("1 a\n2 x\n3 y\n", End::Well)), line(1, "2 b", "2 x"));
        let hung = End::Hung(String::new());
        assert_eq!(difference(&plain, &ran("1 a\n2", hung.clone())), line(1, "2 b", "2"));
        assert_eq!(difference(&plain, &ran("1 a\n", hung)), Some(Difference::End));
    }

    #[test]
    fn files_are_compared_last() {
        let mut plain = ran("1 a\n", End::Well);
        let mut other = ran("1 a\n", End::Well);
        plain.files.insert("t0.f0".to_owned(), vec![1, 2, 3]);
        other.files.insert("t0.f0".to_owned(), vec![1, 2]);
        let file = Some(Difference::File { name: "t0.f0".to_owned(), at: 2 });
        assert_eq!(difference(&plain, &other), file);
    }
}
