//! The kernel's dirty limit, which is the whole machine's: so much may be dirty before writers have to wait.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::size::Size;

const DIR: &str = "/proc/sys/vm";

/// The files that say it, in pairs: to write one of a pair sets the other to 0.
const PAIRS: [[&str; 2]; 2] =
    [["dirty_bytes", "dirty_ratio"], ["dirty_background_bytes", "dirty_background_ratio"]];

/// Restores the limit when dropped.
#[derive(Debug)]
pub struct DirtyLimitGuard {
    dir: PathBuf,
    before: Vec<(&'static str, u64)>,
}

/// Sets the limit until the guard is dropped; from half of it on the kernel writes back by itself.
///
/// # Errors
/// If that is not permitted; nothing is changed then.
pub fn set(limit: Size) -> Result<DirtyLimitGuard> {
    set_in(PathBuf::from(DIR), limit)
}

fn set_in(dir: PathBuf, limit: Size) -> Result<DirtyLimitGuard> {
    let mut guard = DirtyLimitGuard { dir, before: Vec::new() };
    for ([bytes, ratio], value) in PAIRS.into_iter().zip([limit.bytes(), limit.bytes() / 2]) {
        let (old_bytes, old_ratio) = (guard.read(bytes)?, guard.read(ratio)?);
        guard.write(bytes, value).with_context(|| {
            format!("cannot set the dirty limit by {DIR}/{bytes}; be root, or leave --dirty-limit out")
        })?;
        guard.before.push(if old_bytes != 0 { (bytes, old_bytes) } else { (ratio, old_ratio) });
    }
    Ok(guard)
}

impl DirtyLimitGuard {
    fn read(&self, file: &str) -> Result<u64> {
        let path = self.dir.join(file);
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        text.trim().parse().with_context(|| format!("{} is not understood", path.display()))
    }

    fn write(&self, file: &str, value: u64) -> std::io::Result<()> {
        fs::write(self.dir.join(file), value.to_string())
    }
}

impl Drop for DirtyLimitGuard {
    fn drop(&mut self) {
        for (file, value) in &self.before {
            if let Err(error) = self.write(file, *value) {
                eprintln!("could not restore {DIR}/{file} to {value}: {error}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_set_before_is_restored() {
        let dir = tempfile::tempdir().unwrap();
        let put = |file: &str, value: u64| fs::write(dir.path().join(file), format!("{value}\n")).unwrap();
        let get = |file: &str| fs::read_to_string(dir.path().join(file)).unwrap().trim().to_owned();
        for (file, value) in [
            ("dirty_bytes", 0),
            ("dirty_ratio", 20),
            ("dirty_background_bytes", 7),
            ("dirty_background_ratio", 0),
        ] {
            put(file, value);
        }
        let guard = set_in(dir.path().to_owned(), Size::from_bytes(4096)).unwrap();
        assert_eq!([get("dirty_bytes"), get("dirty_background_bytes")], ["4096", "2048"]);
        // What the kernel does.
        put("dirty_ratio", 0);
        drop(guard);
        assert_eq!([get("dirty_ratio"), get("dirty_background_bytes")], ["20", "7"]);

        fs::remove_file(dir.path().join("dirty_background_ratio")).unwrap();
        put("dirty_bytes", 0);
        assert!(set_in(dir.path().to_owned(), Size::from_bytes(4096)).is_err());
        // What was set before the failure is undone, too.
        assert_eq!(get("dirty_ratio"), "20");
    }
}
