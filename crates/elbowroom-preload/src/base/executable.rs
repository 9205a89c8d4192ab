//! The executable: as which it was executed, and what kind of program it is, by the ELF notes of its image.

use libc::{Elf64_Ehdr, Elf64_Phdr};
use std::ffi::CStr;

/// The name of notes that the Go linker makes, with the final 0 and its padding.
const GO_NAME: &[u8] = b"Go\0\0";
/// The type of the note with the build's number.
const GO_BUILD_ID: u32 = 4;
/// Bytes before the name of a note: the lengths of the name and of what follows, and the type.
const NOTE_HEADER: usize = 12;

/// The path that execve(2) was given: of the executable, or of a script, whose interpreter is the executable.
pub fn path_given() -> Option<String> {
    // SAFETY: takes an integer.
    let path = unsafe { libc::getauxval(libc::AT_EXECFN) } as *const libc::c_char;
    // SAFETY: the kernel has put a string there, beside the environment, that stays.
    let path = (!path.is_null()).then(|| unsafe { CStr::from_ptr(path) });
    path.map(|path| path.to_string_lossy().into_owned())
}

/// Whether a Go linker made the executable: the runtime of such a program maps its heap by system calls of
/// its own, also if libc is there.
pub fn is_go() -> bool {
    notes().into_iter().flatten().any(has_go_note)
}

/// The note segments of the executable.
fn notes() -> Option<impl Iterator<Item = &'static [u8]>> {
    // SAFETY: takes integers.
    let (at, count, size) = unsafe {
        (
            libc::getauxval(libc::AT_PHDR) as *const Elf64_Phdr,
            libc::getauxval(libc::AT_PHNUM) as usize,
            libc::getauxval(libc::AT_PHENT) as usize,
        )
    };
    if at.is_null() || size != size_of::<Elf64_Phdr>() {
        return None;
    }
    // SAFETY: the kernel says where the executable's program headers are; they stay, and are not changed.
    let headers: &'static [Elf64_Phdr] = unsafe { std::slice::from_raw_parts(at, count) };
    // PT_PHDR has the address of the headers before relocation, which gives the load bias of the
    // executable. Without PT_PHDR the headers follow the ELF header, at the start of the first PT_LOAD
    // segment.
    let first = headers.iter().find(|header| header.p_type == libc::PT_LOAD)?;
    let moved = match headers.iter().find(|header| header.p_type == libc::PT_PHDR) {
        Some(own) => (at as u64).wrapping_sub(own.p_vaddr),
        None => (at as u64).wrapping_sub(size_of::<Elf64_Ehdr>() as u64).wrapping_sub(first.p_vaddr),
    };
    let is_loaded = move |note: &Elf64_Phdr| {
        let end = note.p_vaddr.saturating_add(note.p_memsz);
        let mut loaded = headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
        loaded.any(|part| part.p_vaddr <= note.p_vaddr && end <= part.p_vaddr + part.p_filesz)
    };
    let notes = headers.iter().filter(move |header| header.p_type == libc::PT_NOTE && is_loaded(header));
    Some(notes.map(move |note| {
        let begin = note.p_vaddr.wrapping_add(moved) as *const u8;
        // SAFETY: within a part of the executable that is loaded, and that stays.
        unsafe { std::slice::from_raw_parts(begin, note.p_memsz as usize) }
    }))
}

fn has_go_note(mut notes: &[u8]) -> bool {
    let word = |bytes: &[u8], at: usize| {
        let word = bytes.get(at..at + 4)?;
        Some(u32::from_ne_bytes(word.try_into().ok()?))
    };
    let padded = |len: u32| (len as usize).next_multiple_of(4);
    while let (Some(name), Some(rest), Some(kind)) = (word(notes, 0), word(notes, 4), word(notes, 8)) {
        let end = NOTE_HEADER + padded(name);
        if kind == GO_BUILD_ID && notes.get(NOTE_HEADER..end) == Some(GO_NAME) {
            return true;
        }
        let Some(next) = notes.get(end.saturating_add(padded(rest))..) else { return false };
        notes = next;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(name: &[u8], kind: u32, text: &[u8]) -> Vec<u8> {
        let mut note = Vec::new();
        for word in [name.len() as u32, text.len() as u32, kind] {
            note.extend(word.to_ne_bytes());
        }
        for part in [name, text] {
            note.extend(part);
            note.resize(note.len().next_multiple_of(4), 0);
        }
        note
    }

    #[test]
    fn a_go_note_is_found_behind_others_and_nothing_else_is_one() {
        let (gnu, go) = (note(b"GNU\0", 3, b"12345"), note(GO_NAME, GO_BUILD_ID, b"abc/def"));
        assert!(has_go_note(&go) && has_go_note(&[gnu.clone(), go.clone()].concat()));
        assert!(!has_go_note(&gnu) && !has_go_note(&note(GO_NAME, 3, b"x")) && !has_go_note(&[]));
        // A length that lies leads nowhere.
        assert!(!has_go_note(&[[255; 4], [255; 4], [0; 4]].concat()));
        assert!(!has_go_note(&go[..14]));
    }

    #[test]
    fn this_executable_was_given_by_its_path() {
        let name = std::env::current_exe().unwrap().file_name().unwrap().to_string_lossy().into_owned();
        assert!(path_given().unwrap().ends_with(&name));
    }

    #[test]
    fn this_executable_has_notes_and_is_not_go() {
        assert!(notes().is_some_and(|notes| notes.count() > 0));
        assert!(!is_go());
    }
}
