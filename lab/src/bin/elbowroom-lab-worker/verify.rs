//! Reads a file that was stored to, by read(2), and compares.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use elbowroom_lab::{PAGE_BYTES, content};

use crate::CommonArgs;
use crate::ground::Ground;
use crate::tally::Outcome;

/// Where in a page workloads store: behind the stamp, which says which page it is.
pub const STORED: usize = 8;

const CHUNK_BYTES: usize = 1 << 20;

/// A file that was stored to.
pub enum Stored {
    /// One of the data files, by its number: each page has its stamp.
    Data(u64),
    /// One that was a hole.
    Hole(PathBuf),
}

/// Fails unless each page of a file begins as it did before, and has behind that the bytes that `expected`
/// gives for it, if it does.
pub fn file<const N: usize>(
    common: &CommonArgs,
    ground: &Ground,
    stored: &Stored,
    expected: impl Fn(u64) -> Option<[u8; N]>,
) -> Result<Outcome> {
    ground.flush()?;
    let path = match stored {
        Stored::Data(number) => common.file(*number),
        Stored::Hole(path) => path.clone(),
    };
    let context = || format!("cannot read {}", path.display());
    let mut file = File::open(&path).with_context(context)?;
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut page = 0;
    while page < common.pages() {
        let bytes = CHUNK_BYTES.min(((common.pages() - page) * PAGE_BYTES) as usize);
        file.read_exact(&mut chunk[..bytes]).with_context(context)?;
        for bytes in chunk[..bytes].chunks_exact(PAGE_BYTES as usize) {
            let stamp = match stored {
                Stored::Data(number) => content::stamp(common.seed, *number, page).to_le_bytes(),
                Stored::Hole(_) => [0; STORED],
            };
            if bytes[..STORED] != stamp {
                return Ok(wrong(&path, page, "starts with", &bytes[..STORED], &stamp));
            }
            let got = &bytes[STORED..STORED + N];
            if let Some(stored) = expected(page).filter(|stored| got != stored) {
                return Ok(wrong(&path, page, "was stored to, but has", got, &stored));
            }
            page += 1;
        }
    }
    Ok(Outcome::Verified)
}

fn wrong(path: &Path, page: u64, what: &str, got: &[u8], expected: &[u8]) -> Outcome {
    Outcome::Wrong(format!(
        "wrong content: file {}, page {page} {what} {got:02x?}, {expected:02x?} expected",
        path.file_name().unwrap_or_default().display()
    ))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const PAGES: u64 = 600;

    #[test]
    fn a_store_that_was_lost_is_found_and_said_where() {
        let dir = tempfile::tempdir().unwrap();
        let common = CommonArgs {
            dir: dir.path().to_owned(),
            board: dir.path().join("board"),
            threads: 1,
            seconds: 1.0,
            file_bytes: PAGES * PAGE_BYTES,
            seed: 3,
            soft_memory: None,
            soft_hold_times: false,
            soft_ablate: String::new(),
            stats: None,
        };
        let mut bytes = vec![0; common.file_bytes as usize];
        for (page, bytes) in (0..).zip(bytes.chunks_exact_mut(PAGE_BYTES as usize)) {
            content::fill_page(bytes, 3, 0, page);
            // The even ones are stored to.
            bytes[STORED] = if page % 2 == 0 { 7 } else { bytes[STORED] };
        }
        let check = |bytes: &[u8]| {
            fs::write(common.file(0), bytes).unwrap();
            match file(&common, &Ground::Pointers, &Stored::Data(0), |page| (page % 2 == 0).then_some([7]))
                .unwrap()
            {
                Outcome::Verified => None,
                Outcome::Wrong(what) => Some(what),
            }
        };
        assert_eq!(check(&bytes), None);
        let last = (PAGES as usize - 2) * PAGE_BYTES as usize;
        bytes[last + STORED] = 6;
        let what = check(&bytes).unwrap();
        assert!(what.contains("file 0, page 598 was stored to"), "{what}");
        bytes[last + STORED] = 7;
        bytes[last + PAGE_BYTES as usize] ^= 1;
        let what = check(&bytes).unwrap();
        assert!(what.contains("file 0, page 599 starts with"), "{what}");
    }
}
