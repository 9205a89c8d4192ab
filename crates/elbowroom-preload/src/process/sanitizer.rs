//! Programs that have the runtime of a sanitizer among their libraries: they are executed without ours, since
//! such a runtime must be the first one and see all calls.
//!
//! All of this runs in children of vfork, too: nothing is allocated, and no lock is taken. The environment
//! that such a program gets is a list of its own in a mapping of the kernel's, which a successful exec drops
//! with all others. (A child of vfork leaves it to its parent.)

use crate::base::config;
use crate::base::sys;
use elbowroom_options::sanitizer::{self, Sanitizer};
use libc::{Elf64_Phdr, c_char, c_int, c_long, c_void};
use std::ffi::CStr;

pub type Strings = *const *const c_char;

/// The loader's variable, with its `=`.
const PRELOAD: &[u8] = b"LD_PRELOAD=";
/// How the names of our libraries begin.
const OURS: &[u8] = b"libelbowroom_";
/// The most entries of a dynamic section that are read at a time, and at all. The libraries come first.
const ENTRIES: usize = 32;
/// An entry of the dynamic section: tag and value.
type Entry = [u64; 2];
/// The tags of the dynamic section that are looked at.
const DT_NULL: u64 = 0;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;

/// The sanitizer whose runtime is among the libraries of the executable `fd`. `headers` are its program
/// headers.
pub fn of(fd: c_int, headers: &[u8]) -> Option<Sanitizer> {
    let dynamic = parts(headers).find(|part| part.p_type == libc::PT_DYNAMIC)?;
    let count = (dynamic.p_filesz as usize / size_of::<Entry>()).min(ENTRIES);
    let mut entries = [Entry::default(); ENTRIES];
    // SAFETY: `entries` has room for `count` entries; their fields are integers, for which all bytes are
    // valid.
    let n = unsafe { read(fd, entries.as_mut_ptr().cast(), count * size_of::<Entry>(), dynamic.p_offset) };
    let entries = &entries[..n / size_of::<Entry>()];
    let entries = entries.split(|[tag, _]| *tag == DT_NULL).next()?;
    let [_, strings] = entries.iter().find(|[tag, _]| *tag == DT_STRTAB)?;
    let loaded = |part: &Elf64_Phdr| {
        part.p_type == libc::PT_LOAD && strings.checked_sub(part.p_vaddr).is_some_and(|at| at < part.p_filesz)
    };
    let part = parts(headers).find(loaded)?;
    let strings = strings - part.p_vaddr + part.p_offset;
    let needed = entries.iter().filter(|[tag, _]| *tag == DT_NEEDED);
    needed.map(|[_, name]| strings.saturating_add(*name)).find_map(|at| {
        let mut name = [0u8; sanitizer::LONGEST_NAME];
        // SAFETY: as long as said.
        let n = unsafe { read(fd, name.as_mut_ptr(), name.len(), at) };
        sanitizer::of_library(name[..n].split(|byte| *byte == 0).next()?)
    })
}

fn parts(headers: &[u8]) -> impl Iterator<Item = Elf64_Phdr> {
    // SAFETY: plain integers, of which there are enough bytes.
    headers
        .chunks_exact(size_of::<Elf64_Phdr>())
        .map(|part| unsafe { part.as_ptr().cast::<Elf64_Phdr>().read_unaligned() })
}

/// Reads from an offset of a file. Gives how many bytes were read; 0 if it cannot be read.
///
/// # Safety
/// `to` is writable for so many bytes.
unsafe fn read(fd: c_int, to: *mut u8, len: usize, from: u64) -> usize {
    // SAFETY: the caller's promise.
    let n = unsafe { sys::system_call(libc::SYS_pread64, fd as c_long, to, len, from) };
    usize::try_from(n).unwrap_or(0)
}

/// A copy of an environment, without our libraries in LD_PRELOAD and without our options.
pub struct Environment {
    at: *mut c_void,
    bytes: usize,
}

impl Environment {
    /// The copy of `env`. `None`: our libraries are not in it, or there is no memory.
    ///
    /// # Safety
    /// A list of strings that ends with a null pointer, or null.
    pub unsafe fn without_ours(env: Strings) -> Option<Self> {
        if env.is_null() {
            return None;
        }
        // SAFETY: the caller's promise.
        let strings = || unsafe { Listed::new(env) };
        let before = strings().find_map(|string| string.to_bytes().strip_prefix(PRELOAD))?;
        if !before.split(separates).any(is_ours) {
            return None;
        }
        let pointers = (strings().count() + 1) * size_of::<*const c_char>();
        let bytes = pointers + PRELOAD.len() + before.len() + 1;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping.
        let at = unsafe {
            sys::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
        };
        if at == libc::MAP_FAILED {
            return None;
        }
        let made = Self { at, bytes };
        let mut text = Text { at: at.wrapping_byte_add(pointers).cast() };
        let (value, mut others) = (text.at.cast_const().cast::<c_char>(), false);
        // SAFETY: the mapping has room for all pointers and for the text, which is no longer than before.
        unsafe {
            text.push(PRELOAD);
            for other in before.split(separates).filter(|other| !other.is_empty() && !is_ours(other)) {
                text.push(if others { b":" } else { b"" });
                text.push(other);
                others = true;
            }
            text.push(&[0]);
            let mut next = at.cast::<*const c_char>();
            for string in strings() {
                let bytes = string.to_bytes();
                let kept = match bytes.strip_prefix(PRELOAD) {
                    Some(_) => Some(value).filter(|_| others),
                    None if is_options(bytes) => None,
                    None => Some(string.as_ptr()),
                };
                if let Some(kept) = kept {
                    next.write(kept);
                    next = next.add(1);
                }
            }
            next.write(std::ptr::null());
        }
        Some(made)
    }

    /// The list.
    pub fn list(&self) -> Strings {
        self.at.cast_const().cast()
    }
}

impl Drop for Environment {
    fn drop(&mut self) {
        // SAFETY: made here, and not used any more.
        unsafe { sys::munmap(self.at, self.bytes) };
    }
}

/// A place in memory that text is appended to.
struct Text {
    at: *mut u8,
}

impl Text {
    /// # Safety
    /// There is room.
    unsafe fn push(&mut self, text: &[u8]) {
        // SAFETY: the caller's promise.
        unsafe {
            self.at.copy_from_nonoverlapping(text.as_ptr(), text.len());
            self.at = self.at.add(text.len());
        }
    }
}

/// The strings of a list that a null pointer ends.
struct Listed {
    at: Strings,
}

impl Listed {
    /// # Safety
    /// A list of strings that ends with a null pointer, and that is not changed.
    unsafe fn new(at: Strings) -> Self {
        Self { at }
    }
}

impl Iterator for Listed {
    type Item = &'static CStr;

    fn next(&mut self) -> Option<&'static CStr> {
        // SAFETY: the promise of `new`: a string or the end.
        unsafe {
            let string = *self.at;
            if string.is_null() {
                return None;
            }
            self.at = self.at.add(1);
            Some(CStr::from_ptr(string))
        }
    }
}

fn separates(byte: &u8) -> bool {
    matches!(byte, b' ' | b':')
}

fn is_ours(library: &[u8]) -> bool {
    library.rsplit(|byte| *byte == b'/').next().is_some_and(|name| name.starts_with(OURS))
}

fn is_options(string: &[u8]) -> bool {
    string.strip_prefix(config::VARIABLE.as_bytes()).is_some_and(|rest| rest.first() == Some(&b'='))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn without(env: &[&CStr]) -> Option<Vec<String>> {
        let list: Vec<_> = env.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect();
        // SAFETY: a list of strings with its end.
        let made = unsafe { Environment::without_ours(list.as_ptr()) }?;
        // SAFETY: made so.
        let listed = unsafe { Listed::new(made.list()) };
        Some(listed.map(|string| string.to_str().unwrap().to_owned()).collect())
    }

    #[test]
    fn our_libraries_and_options_are_taken_out() {
        let ours = c"LD_PRELOAD=/a/libelbowroom_preload.so:/a/libelbowroom_heap.so";
        assert_eq!(without(&[c"A=1", ours, c"ELBOWROOM_OPTIONS=x", c"B="]).unwrap(), ["A=1", "B="]);
        let mixed = c"LD_PRELOAD=x.so /a/libelbowroom_preload.so:/y/z.so";
        assert_eq!(without(&[mixed]).unwrap(), ["LD_PRELOAD=x.so:/y/z.so"]);
        assert_eq!(without(&[c"LD_PRELOAD=x.so", c"ELBOWROOM_OPTIONS=x"]), None);
        assert_eq!(without(&[]), None);
    }

    #[test]
    fn an_executable_without_a_runtime_has_none() {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let mut head = [0; 1024];
        std::os::unix::fs::FileExt::read_at(&file, &mut head, 0).unwrap();
        let at = size_of::<libc::Elf64_Ehdr>();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
        assert_eq!(of(fd, &head[at..at + 12 * size_of::<Elf64_Phdr>()]), None);
    }
}
