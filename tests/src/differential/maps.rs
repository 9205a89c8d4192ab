//! Single VMAs of this process, from /proc/self/maps: by its ioctl, or on older kernels from its text.

use std::fs::File;
use std::os::fd::AsFd;

use rustix::io::Errno;

use crate::differential::raw::{ProcmapQuery, procmap_query};

/// A VMA as the kernel describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vma {
    /// First address.
    pub start: u64,
    /// Behind the last one.
    pub end: u64,
    /// 1 readable, 2 writable, 4 executable, 8 shared.
    pub flags: u64,
    /// Where in the object it begins, in bytes.
    pub offset: u64,
    /// The object's device: the major number shifted by 32, and the minor one.
    pub device: u64,
    /// The object's inode number, 0 for private anonymous memory.
    pub inode: u64,
}

/// /proc/self/maps.
#[derive(Debug)]
pub struct Maps {
    file: File,
    /// The kernel knows the ioctl (Linux 6.11).
    has_query: bool,
}

impl Maps {
    /// Opens it.
    ///
    /// # Panics
    /// If /proc is not mounted.
    pub fn open() -> Self {
        let file = File::open("/proc/self/maps").expect("/proc is mounted");
        let has_query = query(&file, 0) != Err(Errno::NOTTY);
        Self { file, has_query }
    }

    /// The VMA that covers an address, or the next one.
    ///
    /// # Panics
    /// If the kernel does not say.
    pub fn at_or_after(&self, addr: u64) -> Option<Vma> {
        if !self.has_query {
            return from_text(addr);
        }
        match query(&self.file, addr) {
            Ok(vma) => Some(vma),
            Err(Errno::NOENT) => None,
            Err(error) => panic!("PROCMAP_QUERY: {error}"),
        }
    }
}

fn query(maps: &File, addr: u64) -> Result<Vma, Errno> {
    let mut query = ProcmapQuery::covering_or_next(addr);
    procmap_query(maps.as_fd(), &mut query)?;
    let ProcmapQuery { start, end, flags, offset, inode, dev_major, dev_minor, .. } = query;
    Ok(Vma { start, end, flags, offset, device: device(dev_major.into(), dev_minor.into()), inode })
}

fn device(major: u64, minor: u64) -> u64 {
    major << 32 | minor
}

/// The same by reading the whole file, some hundred times slower.
fn from_text(addr: u64) -> Option<Vma> {
    let text = std::fs::read_to_string("/proc/self/maps").expect("/proc is mounted");
    text.lines().filter_map(parse).find(|vma| vma.end > addr)
}

fn parse(line: &str) -> Option<Vma> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let permissions = fields.next()?;
    let flags = "rwxs".chars().enumerate().filter(|&(_, letter)| permissions.contains(letter));
    let flags = flags.map(|(bit, _)| 1 << bit).sum();
    let offset = hex(fields.next()?)?;
    let (major, minor) = fields.next()?.split_once(':')?;
    let device = device(hex(major)?, hex(minor)?);
    let inode = fields.next()?.parse().ok()?;
    Some(Vma { start: hex(start)?, end: hex(end)?, flags, offset, device, inode })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_says_what_the_ioctl_says() {
        let maps = Maps::open();
        // Code and data of the program: other threads do not change them.
        for addr in [parse as *const () as u64, &raw const TEXT as u64] {
            let (asked, read) = (maps.at_or_after(addr), from_text(addr));
            assert_eq!(asked, read);
            assert!(asked.is_some_and(|vma| (vma.start..vma.end).contains(&addr)), "{asked:?}");
        }
    }

    static TEXT: &str =
        "7f0000001000-7f0000003000 -w-s 00002000 00:01 77                 /dev/zero (deleted)";

    #[test]
    fn a_line_is_read() {
        let vma = parse(TEXT).expect("it is a line");
        let (start, end) = (0x7f00_0000_1000, 0x7f00_0000_3000);
        assert_eq!(vma, Vma { start, end, flags: 10, offset: 0x2000, device: 1, inode: 77 });
    }
}
