//! Recordings: files of a fixed size with the newest samples.
//!
//! The format: a first line, then a ring of lines, each `NUMBER CHECKSUM JSON`. A line that does not fit
//! before the end of the file goes behind the first line, and overwrites the oldest samples. The rest of a
//! line that was overwritten in part has a wrong checksum and is skipped, as are lines that a power loss
//! has damaged. The numbers give the order of the samples. So the file can be replayed even if the recorder
//! was killed.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::top::sample::Sample;

/// The first line.
const FIRST: &str = "elbowroom top recording, version 1\n";

/// A recording that is being made.
#[derive(Debug)]
pub struct Recorder {
    file: File,
    /// The size of the file at the most, in bytes.
    size: u64,
    /// Where the next line begins.
    at: u64,
    /// The number of the next line.
    number: u64,
}

impl Recorder {
    /// Makes the file, or empties it.
    ///
    /// # Errors
    /// The kernel's.
    pub fn create(path: &Path, size: u64) -> io::Result<Self> {
        let file = File::create(path)?;
        file.write_all_at(FIRST.as_bytes(), 0)?;
        Ok(Self { file, size, at: FIRST.len() as u64, number: 0 })
    }

    /// Adds a sample.
    ///
    /// # Errors
    /// The kernel's; or the sample alone is larger than the file may be.
    pub fn add(&mut self, sample: &Sample) -> io::Result<()> {
        let json = serde_json::to_string(sample)?;
        let number = self.number;
        let line = format!("{number} {:016x} {json}\n", checksum(number, &json));
        let (len, first) = (line.len() as u64, FIRST.len() as u64);
        if first + len > self.size {
            return Err(io::Error::other(format!(
                "a sample has {len} bytes, more than the file may have: say more with --record-size"
            )));
        }
        if self.at + len > self.size {
            // Cuts off the lines behind the last one. They are of the round before, and older than the
            // lines that will be overwritten next.
            self.file.set_len(self.at)?;
            self.at = first;
        }
        self.file.write_all_at(line.as_bytes(), self.at)?;
        self.at += len;
        self.number += 1;
        Ok(())
    }
}

/// FNV-1a: enough to tell whole lines from the rests of overwritten and damaged ones.
fn checksum(number: u64, json: &str) -> u64 {
    let bytes = number.to_le_bytes().into_iter().chain(json.bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// The samples of a recording, the oldest first. `None`: this is no recording.
pub fn samples(bytes: &[u8]) -> Option<Vec<Sample>> {
    let lines = bytes.strip_prefix(FIRST.as_bytes())?.split(|byte| *byte == b'\n');
    let mut numbered: Vec<_> = lines.filter_map(|line| sample(std::str::from_utf8(line).ok()?)).collect();
    numbered.sort_by_key(|(number, _)| *number);
    Some(numbered.into_iter().map(|(_, sample)| sample).collect())
}

fn sample(line: &str) -> Option<(u64, Sample)> {
    let (number, rest) = line.split_once(' ')?;
    let (sum, json) = rest.split_once(' ')?;
    let number = number.parse().ok()?;
    let is_whole = u64::from_str_radix(sum, 16) == Ok(checksum(number, json));
    is_whole.then(|| serde_json::from_str(json).ok().map(|sample| (number, sample)))?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::sample::Row;

    /// A sample whose size differs from number to number.
    fn numbered(number: u64) -> Sample {
        let rows = (0..number % 7).map(|pid| Row { pid: pid as u32, ..Row::default() }).collect();
        Sample { at_ms: number, command: "a\nb".to_owned(), rows, ..Sample::default() }
    }

    #[test]
    fn the_newest_samples_are_kept_in_a_file_of_fixed_size() {
        const SIZE: u64 = 20_000;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("recording");
        let mut recorder = Recorder::create(&path, SIZE).unwrap();
        assert_eq!(samples(&std::fs::read(&path).unwrap()), Some(vec![]));
        for number in 0..200 {
            recorder.add(&numbered(number)).unwrap();
            let bytes = std::fs::read(&path).unwrap();
            assert!(bytes.len() as u64 <= SIZE);
            let kept = samples(&bytes).unwrap();
            // All of the newest samples, each whole.
            let first = number + 1 - kept.len() as u64;
            let expected: Vec<_> = (first..=number).map(numbered).collect();
            assert!(kept == expected, "{:?} of {number}", kept.iter().map(|s| s.at_ms).collect::<Vec<_>>());
            assert!(first == 0 || bytes.len() as u64 > SIZE - 4_000, "{} bytes are used", bytes.len());
            assert!(kept.len() as u64 > number.min(4), "only {} are kept", kept.len());
        }
    }

    #[test]
    fn what_is_damaged_is_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("recording");
        let mut recorder = Recorder::create(&path, 1 << 20).unwrap();
        (0..3).for_each(|number| recorder.add(&numbered(number)).unwrap());
        let whole = std::fs::read(&path).unwrap();
        let at_ms = |bytes: &[u8]| samples(bytes).unwrap().iter().map(|s| s.at_ms).collect::<Vec<_>>();
        assert_eq!(at_ms(&whole), [0, 1, 2]);
        let mut changed = whole.clone();
        let second = whole.windows(9).position(|part| part == b"\"at_ms\":1").unwrap();
        changed[second + 8] = b'7';
        assert_eq!(at_ms(&changed), [0, 2], "no sample with a changed figure");
        for len in FIRST.len()..whole.len() - 1 {
            assert!(at_ms(&whole[..len]).len() < 3);
        }
        assert_eq!(samples(b"{}"), None);
    }

    #[test]
    fn a_sample_that_is_too_large_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let mut recorder = Recorder::create(&dir.path().join("recording"), 100).unwrap();
        assert!(recorder.add(&numbered(6)).unwrap_err().to_string().contains("--record-size"));
    }
}
