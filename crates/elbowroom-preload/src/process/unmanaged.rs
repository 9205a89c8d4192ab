//! Programs that a process executes, and of which nothing will be managed: the loader does not load this
//! library into them, or must not. A line on standard error says so, once for each program in a tree of
//! forks, also with `--quiet`.
//!
//! Where the process that executes such a program has put something else on descriptor 2, the line would be
//! in the program's output. Then a process of the tree that still has its standard error writes the line
//! when it ends.

use crate::base::report::Buffer;
use crate::base::said;
use crate::base::state;
use crate::base::sys::{self, PAGE};
use crate::base::tree;
use crate::process::sanitizer::{self, Environment, Strings};
use libc::{Elf64_Ehdr, Elf64_Phdr, c_char, c_int, c_long};
use std::ffi::CStr;
use std::fmt::Write;

/// How many interpreters are followed, where a script's interpreter is a script itself; Linux follows as
/// many.
const INTERPRETERS: usize = 4;
/// How many bytes of a file are read: the ELF header and the program headers that follow it, or the first
/// line of a script.
const HEAD_BYTES: usize = 1024;

/// Why nothing of a program is managed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    /// The program is static: no loader runs.
    Static = 1,
    /// The program gets rights that its caller does not have, so its loader loads no libraries of the
    /// caller's choice.
    Privileged,
    /// Its environment does not name this library.
    Environment,
    /// It has the runtime of a sanitizer, which works only without this library.
    Sanitizer,
}

impl Why {
    fn words(number: u32) -> &'static str {
        match number {
            1 => "is static",
            2 => "has rights of its own (setuid, setgid, capabilities), so its loader ignores Elbowroom",
            4 => "has the runtime of a sanitizer, beside which no manager can be",
            _ => "is executed without LD_PRELOAD or ELBOWROOM_OPTIONS in its environment",
        }
    }
}

/// Looks at the program at `path`, from `dir` on, which is about to be executed with this environment
/// (`None`: that of this process). Notes it, and says so, if nothing of it will be managed. Gives the
/// environment that it must have instead, if it needs another one.
///
/// # Safety
/// The path is a string. The environment may be anything, but for its strings' ends where it can be read.
pub unsafe fn note(dir: c_int, path: *const c_char, env: Option<Strings>) -> Option<Environment> {
    let kept = sys::errno();
    let env = env.unwrap_or_else(own_environment);
    let is_said = state::for_program().is_some() && said::is_wanted();
    // SAFETY: the caller's promise.
    let instead = unsafe {
        match look(dir, path, env, is_said) {
            Some(Why::Sanitizer) => Environment::without_ours(env),
            _ => None,
        }
    };
    if is_said {
        say();
    }
    sys::set_errno(kept);
    instead
}

/// Says which programs were noted, if standard error is still there.
pub fn say() {
    tree::say_unmanaged(|name, why| {
        said::say(format_args!("{name} {}: nothing of it is managed", Why::words(why)))
    });
}

fn own_environment() -> Strings {
    unsafe extern "C" {
        static environ: *const *const c_char;
    }
    // SAFETY: libc's; a program that changes it meanwhile is at fault itself.
    unsafe { environ }
}

/// # Safety
/// As for [`note`].
#[inline(never)]
unsafe fn look(dir: c_int, path: *const c_char, env: Strings, is_said: bool) -> Option<Why> {
    let preloads = has(env, b"LD_PRELOAD=")? && has(env, b"ELBOWROOM_OPTIONS=")?;
    let mut interpreter = [0u8; HEAD_BYTES];
    let (mut dir, mut path) = (dir, path);
    for _ in 0..=INTERPRETERS {
        let stat = sys::stat_at(dir, path, if path_is_empty(path) { libc::AT_EMPTY_PATH } else { 0 })?;
        if stat.st_mode & libc::S_IFMT != libc::S_IFREG {
            return None;
        }
        let file = Opened::new(dir, path)?;
        let mut head = [0u8; HEAD_BYTES];
        let len = file.read(&mut head)?;
        let head = &head[..len];
        if let Some(line) = head.strip_prefix(b"#!") {
            let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
            let mut words = line.split(|byte| matches!(byte, b' ' | b'\t')).filter(|word| !word.is_empty());
            let word = words.next()?;
            interpreter.fill(0);
            interpreter[..word.len()].copy_from_slice(word);
            (dir, path) = (libc::AT_FDCWD, interpreter.as_ptr().cast());
            continue;
        }
        let name = name_of(path);
        let why = match kind_of(head) {
            Kind::Other => return None,
            Kind::Static if is_loader(name) => return None,
            Kind::Static => Why::Static,
            Kind::Dynamic(_) if gets_rights(&stat, dir, path) => Why::Privileged,
            Kind::Dynamic(_) if !preloads => Why::Environment,
            Kind::Dynamic(headers) if sanitizer::of(file.fd, headers).is_some() => Why::Sanitizer,
            Kind::Dynamic(_) => return None,
        };
        if is_said {
            tree::note_unmanaged(stat.st_dev, stat.st_ino, why as u32, name);
        }
        return Some(why);
    }
    None
}

/// No page has this address.
const NONE: usize = usize::MAX;

/// Reads memory that may not be mapped. Remembers the last page that the kernel could read.
struct Readable {
    page: usize,
}

impl Readable {
    /// The value at an address. `None`: it cannot be read, or lies in two pages.
    fn get<T: Copy>(&mut self, at: *const T) -> Option<T> {
        let page = at.addr() & !(PAGE - 1);
        if page != self.page {
            let mut byte = 0_u8;
            if !sys::copy_in(at.cast(), &mut byte) {
                return None;
            }
            self.page = page;
        }
        // SAFETY: the page is there, and the value does not leave it.
        ((at.addr() + size_of::<T>() - 1) & !(PAGE - 1) == page).then(|| unsafe { at.read_unaligned() })
    }
}

/// Whether the environment has a string that begins so. `None`: it cannot be read, for which the kernel
/// will refuse the call.
fn has(env: Strings, beginning: &[u8]) -> Option<bool> {
    let (mut list, mut text) = (Readable { page: NONE }, Readable { page: NONE });
    let mut at = env;
    while !at.is_null() {
        let string = list.get(at)?.cast::<u8>();
        if string.is_null() {
            break;
        }
        let mut same = true;
        for (index, byte) in beginning.iter().enumerate() {
            if text.get(string.wrapping_add(index))? != *byte {
                same = false;
                break;
            }
        }
        if same {
            return Some(true);
        }
        at = at.wrapping_add(1);
    }
    Some(false)
}

pub fn path_is_empty(path: *const c_char) -> bool {
    let mut first = 0;
    sys::copy_in(path, &mut first) && first == 0
}

/// The part of a path behind the last slash.
fn name_of<'a>(path: *const c_char) -> &'a [u8] {
    // SAFETY: a string, the promise of `note`'s caller, or our own; it outlives its use in `look`.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    if name.is_empty() { b"a program" } else { name }
}

/// Whether this is the loader, which can be executed as a program, and then preloads as always.
fn is_loader(name: &[u8]) -> bool {
    name.starts_with(b"ld-") || name.starts_with(b"ld.") || name.starts_with(b"ld64")
}

/// A file that is open for reading.
struct Opened {
    fd: c_int,
}

impl Opened {
    /// `None`: it may not be read.
    fn new(dir: c_int, path: *const c_char) -> Option<Self> {
        let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
        // Opened anew: the descriptor of a program may be good for executing only (O_PATH).
        let mut own = Buffer::<32>::new();
        let (dir, path) = if path_is_empty(path) {
            let _ = write!(own, "/proc/self/fd/{dir}\0");
            (libc::AT_FDCWD, own.as_bytes().as_ptr().cast())
        } else {
            (dir, path)
        };
        // SAFETY: the kernel checks the path.
        let fd =
            unsafe { sys::system_call(libc::SYS_openat, dir as c_long, path, flags as c_long, 0 as c_long) };
        (fd >= 0).then_some(Self { fd: fd as c_int })
    }

    /// Reads the file's beginning.
    fn read(&self, head: &mut [u8]) -> Option<usize> {
        let (fd, start) = (self.fd as c_long, 0 as c_long);
        // SAFETY: the kernel writes no more than fits.
        let n = unsafe { sys::system_call(libc::SYS_pread64, fd, head.as_mut_ptr(), head.len(), start) };
        usize::try_from(n).ok()
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: opened here.
        unsafe { sys::system_call(libc::SYS_close, self.fd as c_long) };
    }
}

/// What kind of executable a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind<'a> {
    /// Not a 64-bit ELF file for this machine.
    Other,
    /// An executable without a loader.
    Static,
    /// An executable with a loader, and its program headers.
    Dynamic(&'a [u8]),
}

/// Offsets in the header of an ELF file.
const MACHINE: usize = std::mem::offset_of!(Elf64_Ehdr, e_machine);
const HEADERS: usize = std::mem::offset_of!(Elf64_Ehdr, e_phoff);
const HEADER_SIZE: usize = std::mem::offset_of!(Elf64_Ehdr, e_phentsize);
const HEADER_COUNT: usize = std::mem::offset_of!(Elf64_Ehdr, e_phnum);

fn kind_of(head: &[u8]) -> Kind<'_> {
    let half = |at: usize| Some(u16::from_ne_bytes(head.get(at..at + 2)?.try_into().ok()?));
    let headers = || {
        let at =
            usize::try_from(u64::from_ne_bytes(head.get(HEADERS..HEADERS + 8)?.try_into().ok()?)).ok()?;
        let (size, count) = (half(HEADER_SIZE)? as usize, half(HEADER_COUNT)? as usize);
        head.get(at..at.checked_add(size.checked_mul(count)?)?).filter(|_| size == size_of::<Elf64_Phdr>())
    };
    let own_machine = if cfg!(target_arch = "x86_64") { libc::EM_X86_64 } else { libc::EM_AARCH64 };
    if !head.starts_with(b"\x7fELF\x02\x01") || half(MACHINE) != Some(own_machine) {
        return Kind::Other;
    }
    let Some(headers) = headers() else { return Kind::Other };
    let mut kinds = headers.chunks_exact(size_of::<Elf64_Phdr>()).map(|header| &header[..4]);
    if kinds.any(|kind| kind == libc::PT_INTERP.to_ne_bytes()) {
        Kind::Dynamic(headers)
    } else {
        Kind::Static
    }
}

/// Whether the kernel gives a program rights that its caller does not have: AT_SECURE.
fn gets_rights(stat: &libc::stat, dir: c_int, path: *const c_char) -> bool {
    // SAFETY: integers.
    let [uid, gid, no_more] = unsafe {
        [
            sys::system_call(libc::SYS_getuid),
            sys::system_call(libc::SYS_getgid),
            sys::system_call(libc::SYS_prctl, libc::PR_GET_NO_NEW_PRIVS as c_long, 0, 0, 0, 0),
        ]
    };
    if no_more == 1 {
        return false;
    }
    let as_user = stat.st_mode & libc::S_ISUID != 0 && stat.st_uid as c_long != uid;
    let as_group = stat.st_mode & (libc::S_ISGID | libc::S_IXGRP) == libc::S_ISGID | libc::S_IXGRP
        && stat.st_gid as c_long != gid;
    // Root has all capabilities already.
    let capable = || {
        let name = c"security.capability".as_ptr();
        // SAFETY: both are strings, and nothing is written. A path that does not begin at the root is of the
        // working directory only for a `dir` of AT_FDCWD.
        dir == libc::AT_FDCWD
            && unsafe { sys::system_call(libc::SYS_getxattr, path, name, std::ptr::null_mut::<u8>(), 0) } > 0
    };
    as_user || as_group || uid != 0 && capable()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elf(kinds: &[u32]) -> Vec<u8> {
        let mut head = vec![0; size_of::<Elf64_Ehdr>()];
        head[..6].copy_from_slice(b"\x7fELF\x02\x01");
        let machine = if cfg!(target_arch = "x86_64") { libc::EM_X86_64 } else { libc::EM_AARCH64 };
        head[MACHINE..MACHINE + 2].copy_from_slice(&machine.to_ne_bytes());
        head[HEADERS..HEADERS + 8].copy_from_slice(&(size_of::<Elf64_Ehdr>() as u64).to_ne_bytes());
        head[HEADER_SIZE..HEADER_SIZE + 2].copy_from_slice(&(size_of::<Elf64_Phdr>() as u16).to_ne_bytes());
        head[HEADER_COUNT..HEADER_COUNT + 2].copy_from_slice(&(kinds.len() as u16).to_ne_bytes());
        for kind in kinds {
            head.extend(kind.to_ne_bytes());
            head.resize(head.len() + size_of::<Elf64_Phdr>() - 4, 0);
        }
        head
    }

    #[test]
    fn what_has_no_loader_is_static() {
        let dynamic = elf(&[libc::PT_PHDR, libc::PT_INTERP, libc::PT_LOAD]);
        let size = 3 * size_of::<Elf64_Phdr>();
        assert!(matches!(kind_of(&dynamic), Kind::Dynamic(headers) if headers.len() == size));
        assert_eq!(kind_of(&elf(&[libc::PT_LOAD, libc::PT_NOTE])), Kind::Static);
        let whole = elf(&[libc::PT_LOAD; 4]);
        assert_eq!(kind_of(&whole[..whole.len() - 1]), Kind::Other);
        assert_eq!(kind_of(b"#!/bin/sh\n"), Kind::Other);
        assert_eq!(kind_of(b""), Kind::Other);
    }

    #[test]
    fn names_are_what_follows_the_last_slash() {
        assert_eq!(name_of(c"/usr/bin/busybox".as_ptr()), b"busybox");
        assert_eq!(name_of(c"busybox".as_ptr()), b"busybox");
        assert_eq!(name_of(c"".as_ptr()), b"a program");
    }
}
