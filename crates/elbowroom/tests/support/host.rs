//! The process's own space.
//!
//! Accesses that must work are the program's own. Those that must fail are made by the kernel, which says
//! EFAULT instead of sending a signal: a byte is written from the address into a pipe, or read from one to
//! it.

use super::{Failure, Machine, Port, ablated, host_config, skipped};
use elbowroom::{Config, Host, Manager, Side, Space};
use elbowroom_machine::PAGE_SIZE;
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd;

/// A manager of real pointers; by UFFDIO_COPY if `COPY`, else by UFFDIO_MOVE.
pub struct HostMachine<const COPY: bool> {
    space: ManuallyDrop<Space<Host>>,
    manager: ManuallyDrop<Manager<Host>>,
}

/// The end of a user's addresses, on x86-64.
const ADDRESS_END: usize = 1 << 47;

/// Unmaps the windows, as the libraries for other languages do: they stay reserved else, a terabyte for each
/// manager, and a process has 128.
impl<const COPY: bool> Drop for HostMachine<COPY> {
    fn drop(&mut self) {
        let windows = self.manager.windows();
        let parts = windows.parts(PAGE_SIZE..ADDRESS_END);
        let managed = parts.filter(|(side, _)| *side == Side::Managed).map(|(_, range)| range);
        let addresses: Vec<_> = managed.chain(windows.tables()).collect();
        // SAFETY: both are dropped here only, and the tests touch nothing of a machine that is gone.
        unsafe {
            ManuallyDrop::drop(&mut self.space);
            ManuallyDrop::drop(&mut self.manager);
            for range in addresses {
                libc::munmap(range.start as *mut _, range.len());
            }
        }
    }
}

impl<const COPY: bool> Machine for HostMachine<COPY> {
    type Platform = Host;

    fn start(config: Config) -> Option<Self> {
        match Manager::start(host_config(ablated(config), COPY)) {
            Ok((manager, space)) => {
                Some(Self { space: ManuallyDrop::new(space), manager: ManuallyDrop::new(manager) })
            }
            Err(e) => {
                skipped(e);
                None
            }
        }
    }

    fn manager(&self) -> &Manager<Host> {
        &self.manager
    }

    fn space(&self) -> &Space<Host> {
        &self.space
    }

    fn base(&self) -> usize {
        0
    }

    fn port(&self) -> impl Port {
        Pointers
    }
}

/// The program's own loads and stores.
struct Pointers;

impl Port for Pointers {
    fn load(&self, addr: usize, out: &mut [u8]) {
        for (i, byte) in out.iter_mut().enumerate() {
            // SAFETY: the tests load only where they have mapped something that may be loaded from.
            *byte = unsafe { ((addr + i) as *const u8).read_volatile() };
        }
    }

    fn store(&self, addr: usize, data: &[u8]) {
        for (i, &byte) in data.iter().enumerate() {
            // SAFETY: as above, and that may be stored to.
            unsafe { ((addr + i) as *mut u8).write_volatile(byte) };
        }
    }

    fn word(&self, addr: usize) -> u64 {
        // SAFETY: as above; the tests' words are aligned.
        unsafe { (addr as *const u64).read_volatile() }
    }

    fn set_word(&self, addr: usize, word: u64) {
        // SAFETY: as above; the tests' words are aligned.
        unsafe { (addr as *mut u64).write_volatile(word) };
    }

    #[track_caller]
    fn try_word(&self, addr: usize) -> Option<u64> {
        let (mut reader, writer) = pipe();
        // SAFETY: the kernel checks the address; nothing here is stored to.
        let done = unsafe { write(writer.as_raw_fd(), addr as *const u8, 8) };
        if done == 8 {
            let mut bytes = [0; 8];
            reader.read_exact(&mut bytes).unwrap();
            return Some(u64::from_le_bytes(bytes));
        }
        assert_eq!((done, errno_of(done)), (-1, Some(EFAULT)));
        None
    }

    #[track_caller]
    fn try_set_word(&self, addr: usize, word: u64) -> bool {
        let (reader, mut writer) = pipe();
        writer.write_all(&word.to_le_bytes()).unwrap();
        // SAFETY: the kernel checks the address, which is in one of the tests' mappings.
        let done = unsafe { read(reader.as_raw_fd(), addr as *mut u8, 8) };
        assert!(done == 8 || (done, errno_of(done)) == (-1, Some(EFAULT)), "{done}");
        done == 8
    }

    fn can_load(&self, addr: usize) -> bool {
        kernel_loads(addr).0 == 1
    }

    #[track_caller]
    fn load_fails(&self, addr: usize, how: Failure) {
        assert_eq!(kernel_loads(addr), (-1, Some(EFAULT)), "load at {addr:#x}: {how:?} expected");
    }

    #[track_caller]
    fn store_fails(&self, addr: usize, how: Failure) {
        let (reader, mut writer) = pipe();
        writer.write_all(&[1]).unwrap();
        // SAFETY: the kernel checks the address; it is one of the tests' mappings or of nobody's.
        let done = unsafe { read(reader.as_raw_fd(), addr as *mut u8, 1) };
        assert_eq!((done, errno_of(done)), (-1, Some(EFAULT)), "store at {addr:#x}: {how:?} expected");
    }
}

const EFAULT: i32 = 14;

/// What write(2) of a byte says.
fn kernel_loads(addr: usize) -> (isize, Option<i32>) {
    let (_reader, writer) = pipe();
    // SAFETY: the kernel checks the address; nothing here is stored to.
    let done = unsafe { write(writer.as_raw_fd(), addr as *const u8, 1) };
    (done, errno_of(done))
}

fn pipe() -> (PipeReader, PipeWriter) {
    std::io::pipe().unwrap()
}

fn errno_of(done: isize) -> Option<i32> {
    (done < 0).then(|| std::io::Error::last_os_error().raw_os_error()).flatten()
}

// From the C library, which std links: std's own calls want references, and these addresses are none.
unsafe extern "C" {
    fn write(fd: i32, from: *const u8, len: usize) -> isize;
    fn read(fd: i32, to: *mut u8, len: usize) -> isize;
}
