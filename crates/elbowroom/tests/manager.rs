//! The manager through its library interface, on real files and real faults.

use elbowroom::{Config, FileObject, Host, Manager, MapRequest, MoverKind, Place, Prot, Sharing, Space};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const PAGE: usize = 4096;

/// A file whose page `i` is filled with a stamp of `i`.
fn stamped(dir: &Path, name: &str, pages: usize) -> PathBuf {
    let path = dir.join(name);
    let mut file = std::io::BufWriter::new(std::fs::File::create(&path).unwrap());
    for page in 0..pages as u64 {
        let stamp = (page + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes();
        (0..PAGE / 8).for_each(|_| file.write_all(&stamp).unwrap());
    }
    file.into_inner().unwrap().sync_all().unwrap();
    path
}

fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn start(mover: MoverKind, handlers: usize) -> Option<(Manager, Space<Host>)> {
    let config = Config { mover, handlers, ..Config::with_memory(16 << 20) };
    match Manager::start(config) {
        Ok(started) => Some(started),
        Err(e) => {
            eprintln!("SKIPPED: {e}");
            None
        }
    }
}

fn request(object: &Arc<FileObject>, pages: usize, prot: Prot) -> MapRequest {
    MapRequest {
        place: Place::Anywhere,
        len: pages * PAGE,
        prot,
        may_write: prot.contains(Prot::WRITE),
        sharing: Sharing::Shared,
        object: Some(object.clone()),
        offset: 0,
        populate: false,
        locked: false,
    }
}

fn load(addr: usize) -> u64 {
    // SAFETY: the tests only pass addresses of their own mappings.
    unsafe { (addr as *const u64).read_volatile() }
}

fn store(addr: usize, value: u64) {
    // SAFETY: as above, writable ones.
    unsafe { (addr as *mut u64).write_volatile(value) }
}

fn stamp(page: usize) -> u64 {
    (page as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

#[test]
fn a_file_four_times_the_budget_reads_right_from_many_threads() {
    let dir = scratch();
    let pages = 16384;
    let path = stamped(dir.path(), "large", pages);
    for (mover, handlers) in [(MoverKind::Move, 1), (MoverKind::Move, 3), (MoverKind::Copy, 2)] {
        let Some((manager, space)) = start(mover, handlers) else { return };
        let object = manager.open(&path, false).unwrap();
        let base = space.map(request(&object, pages, Prot::READ)).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..8 {
                scope.spawn(move || {
                    for i in 0..pages {
                        let page = match thread % 4 {
                            0 => i,
                            1 => pages - 1 - i,
                            2 => i * 7919 % pages,
                            _ => (i + thread * 1000) % pages,
                        };
                        assert_eq!(load(base + page * PAGE + 8 * (i % 512)), stamp(page), "page {page}");
                    }
                });
            }
        });
        let stats = manager.stats();
        assert!(stats.peak_bytes <= 16 << 20, "{stats:?}");
        assert!(
            stats.evicted_pages > 0 && stats.retry_io_misses == 0 && stats.layout_lock_faults == 0,
            "{stats:?}"
        );
        space.unmap(base, pages * PAGE).unwrap();
    }
}

#[test]
fn stores_reach_the_file() {
    let dir = scratch();
    let pages = 8192;
    let path = stamped(dir.path(), "written", pages);
    for mover in [MoverKind::Move, MoverKind::Copy] {
        let Some((manager, space)) = start(mover, 2) else { return };
        let object = manager.open(&path, true).unwrap();
        let base = space.map(request(&object, pages, Prot::READ | Prot::WRITE)).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                scope.spawn(move || {
                    for page in (thread..pages).step_by(4) {
                        let addr = base + page * PAGE;
                        assert_eq!(load(addr + 16), stamp(page));
                        store(addr + 24, page as u64 ^ 0xABCD);
                        assert_eq!(load(addr + 24), page as u64 ^ 0xABCD);
                    }
                });
            }
        });
        space.sync(base, pages * PAGE, true, false).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        for page in 0..pages {
            let word = |i: usize| u64::from_le_bytes(bytes[page * PAGE + i..][..8].try_into().unwrap());
            assert_eq!((word(16), word(24)), (stamp(page), page as u64 ^ 0xABCD), "page {page}");
        }
        space.unmap(base, pages * PAGE).unwrap();
        assert_eq!(manager.dirty_pages(), 0);
        drop((space, manager));
        stamped(dir.path(), "written", pages);
    }
}
