//! Finding the program, and whether the loader will preload a library into it.
//!
//! A program that the loader does not preload into would run unmanaged without a word, so everything that the
//! loader and the kernel decide about it is decided here first: dynamic or static, which machine, which libc,
//! which rights.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use elbowroom_machine::probe;
use elbowroom_options::sanitizer::{self, Sanitizer};
use object::Endianness;
use object::elf;
use object::read::ReadCache;
use object::read::elf::{Dyn, FileHeader, ProgramHeader, Sym};
use rustix::fs::{Access, AtFlags, CWD};

use crate::failure::{CANNOT_RUN, Failure, NOT_FOUND};

/// Why a program cannot be run as it was asked for.
#[derive(Debug)]
pub enum Obstacle {
    /// The program can be run, but its memory cannot be managed. The text says why.
    Unmanageable(String),
    /// The program cannot be run at all.
    Broken(Failure),
}

/// What the header of an ELF file says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Elf {
    /// The machine it is for: class, byte order and instruction set.
    pub target: Target,
    /// The loader it asks for (PT_INTERP).
    pub interpreter: Option<PathBuf>,
    /// Whether it has a dynamic section.
    pub dynamic: bool,
    /// Whether it maps all its memory by system calls of its own: Go's runtime does, unless C code is
    /// linked in.
    pub maps_by_itself: bool,
    /// The sanitizer whose runtime is among its libraries.
    pub sanitizer: Option<Sanitizer>,
}

/// What must be the same for a program and a library that is loaded into it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// 32 or 64.
    pub bits: u8,
    little_endian: bool,
    machine: elf::Machine,
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = match self.machine {
            elf::EM_X86_64 => "x86-64",
            elf::EM_386 => "x86",
            elf::EM_AARCH64 => "aarch64",
            elf::EM_ARM => "arm",
            elf::EM_RISCV => "risc-v",
            elf::EM_PPC64 => "powerpc64",
            elf::EM_S390 => "s390",
            _ => "another machine",
        };
        let order = if self.little_endian { "little" } else { "big" };
        write!(f, "{name}, {} bits, {order}-endian", self.bits)
    }
}

/// Finds `name` as execvp does: itself if it has a slash, else in the directories of `search` (the value of
/// PATH).
///
/// # Errors
/// 127 if there is no such file, 126 if there is one that may not be executed.
pub fn find(name: &OsStr, search: Option<&OsStr>) -> Result<PathBuf, Failure> {
    let shown = name.to_string_lossy();
    if name.as_bytes().contains(&b'/') {
        return match examine(Path::new(name)) {
            Found::Executable => Ok(name.into()),
            Found::Refused(why) => Err(Failure::new(CANNOT_RUN, format!("cannot execute {shown}: {why}"))),
            Found::Nothing(why) => Err(Failure::new(NOT_FOUND, format!("{shown}: {why}"))),
        };
    }
    if name.is_empty() {
        return Err(Failure::new(NOT_FOUND, "the name of the program is empty"));
    }
    let search = search.unwrap_or(OsStr::new("/bin:/usr/bin"));
    let mut refused = None;
    for directory in search.as_bytes().split(|&byte| byte == b':').filter(|_| !name.is_empty()) {
        // An empty directory is the current one; the "./" keeps the path from being searched for again.
        let directory =
            if directory.is_empty() { Path::new(".") } else { Path::new(OsStr::from_bytes(directory)) };
        let path = directory.join(name);
        match examine(&path) {
            Found::Executable => return Ok(path),
            Found::Refused(why) => refused = refused.or(Some((path, why))),
            Found::Nothing(_) => {}
        }
    }
    match refused {
        Some((path, why)) => {
            Err(Failure::new(CANNOT_RUN, format!("cannot execute {}: {why}", path.display())))
        }
        None => Err(Failure::new(
            NOT_FOUND,
            format!("program '{shown}' not found in PATH; for a file here, write ./{shown}"),
        )),
    }
}

enum Found {
    Executable,
    Refused(String),
    Nothing(String),
}

fn examine(path: &Path) -> Found {
    let metadata = match path.metadata() {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            return Found::Refused(error.to_string());
        }
        Err(error) => return Found::Nothing(error.to_string()),
    };
    if metadata.is_dir() {
        return Found::Refused("it is a directory".to_owned());
    }
    match rustix::fs::accessat(CWD, path, Access::EXEC_OK, AtFlags::EACCESS) {
        Ok(()) => Found::Executable,
        Err(error) => Found::Refused(std::io::Error::from(error).to_string()),
    }
}

/// What the kernel will execute for a program, as far as it could be read. A file that may be executed but
/// not read is taken to be manageable.
pub struct Binary(Option<Headers>);

struct Headers {
    path: PathBuf,
    metadata: Metadata,
    elf: Elf,
}

impl Binary {
    /// The binary of the program at `path`; scripts are followed to their interpreters.
    ///
    /// # Errors
    /// Says why it cannot be executed.
    pub fn of(path: &Path) -> Result<Self, Obstacle> {
        let Some((path, file)) = binary(path)? else { return Ok(Self(None)) };
        let metadata = file.metadata().map_err(|error| broken(&path, &error.to_string()))?;
        let elf = read_elf(file).map_err(|why| broken(&path, &format!("not a usable ELF file: {why}")))?;
        Ok(Self(Some(Headers { path, metadata, elf })))
    }

    /// The sanitizer whose runtime is among its libraries.
    pub fn sanitizer(&self) -> Option<Sanitizer> {
        self.0.as_ref()?.elf.sanitizer
    }

    /// Whether the loader will preload a library for `target` into it.
    ///
    /// # Errors
    /// What stands in the way.
    pub fn check(&self, target: Target) -> Result<(), Obstacle> {
        self.0.as_ref().map_or(Ok(()), |found| check_elf(&found.path, &found.metadata, &found.elf, target))
    }
}

/// The ELF file that the kernel will execute for the program at `path`. `None`: there is none, or it may
/// not be read.
fn binary(path: &Path) -> Result<Option<(PathBuf, File)>, Obstacle> {
    // The kernel gives up after about as many.
    const MOST_INTERPRETERS: usize = 5;
    let mut path = path.to_owned();
    for _ in 0..=MOST_INTERPRETERS {
        let Ok(mut file) = File::open(&path) else { return Ok(None) };
        match kind(&mut file).map_err(|error| broken(&path, &error.to_string()))? {
            Kind::Elf => return Ok(Some((path, file))),
            Kind::Unknown => return Ok(None),
            Kind::Script(interpreter) => {
                find_interpreter(&path, &interpreter)?;
                path = interpreter;
            }
        }
    }
    Err(broken(&path, "too many interpreters of interpreters"))
}

fn broken(path: &Path, why: &str) -> Obstacle {
    Obstacle::Broken(Failure::new(CANNOT_RUN, format!("cannot run {}: {why}", path.display())))
}

fn find_interpreter(script: &Path, interpreter: &Path) -> Result<(), Obstacle> {
    let (code, why) = match examine(interpreter) {
        Found::Executable => return Ok(()),
        Found::Refused(why) => (CANNOT_RUN, why),
        Found::Nothing(why) => (NOT_FOUND, why),
    };
    let message =
        format!("cannot run {}: its interpreter {}: {why}", script.display(), interpreter.display());
    Err(Obstacle::Broken(Failure::new(code, message)))
}

enum Kind {
    Elf,
    /// A script, with its interpreter; a text that names none is for the shell, as execvp has it.
    Script(PathBuf),
    /// Neither; perhaps a file for the kernel's binfmt_misc.
    Unknown,
}

fn kind(file: &mut File) -> std::io::Result<Kind> {
    // As much as the kernel looks at.
    const HEAD_BYTES: u64 = 256;
    let mut head = Vec::with_capacity(HEAD_BYTES as usize);
    file.by_ref().take(HEAD_BYTES).read_to_end(&mut head)?;
    if head.starts_with(&elf::ELFMAG) {
        return Ok(Kind::Elf);
    }
    let shell = || Kind::Script(PathBuf::from("/bin/sh"));
    if let Some(rest) = head.strip_prefix(b"#!") {
        let line = rest.split(|&byte| byte == b'\n' || byte == 0).next().unwrap_or_default();
        let mut words = line.split(|byte| b" \t".contains(byte)).filter(|word| !word.is_empty());
        return Ok(words
            .next()
            .map_or_else(shell, |word| Kind::Script(OsString::from_vec(word.to_vec()).into())));
    }
    Ok(if head.contains(&0) { Kind::Unknown } else { shell() })
}

fn check_elf(path: &Path, metadata: &Metadata, found: &Elf, target: Target) -> Result<(), Obstacle> {
    let shown = path.display();
    let refuse = |why: String| Err(Obstacle::Unmanageable(why));
    if found.target != target {
        let is_for = found.target;
        return refuse(format!(
            "{shown} is for {is_for}, but this Elbowroom is for {target}; use one built for it"
        ));
    }
    if found.interpreter.is_none() && !(found.dynamic && is_loader(path)) {
        return refuse(format!(
            "{shown} is statically linked: the loader, which would preload Elbowroom's library, has no part \
             in it, so its memory cannot be managed; use a dynamically linked build"
        ));
    }
    let musl = found.interpreter.as_deref().is_some_and(|loader| file_name(loader).starts_with("ld-musl"));
    if musl != cfg!(target_env = "musl") {
        let libc = if musl { "musl" } else { "another libc than musl" };
        return refuse(format!(
            "{shown} is linked with {libc}, this Elbowroom is not; use one built with the same libc"
        ));
    }
    if found.maps_by_itself {
        return refuse(format!(
            "{shown} was built by Go without C: its memory and files are mapped by system calls of its own, \
             which Elbowroom does not see, so none of its memory can be managed; build it with \
             CGO_ENABLED=1 and a package that uses C (net, os/user, runtime/cgo)"
        ));
    }
    match gains_rights(path, metadata) {
        Some(how) => refuse(format!(
            "{shown} {how}, and the loader preloads nothing into programs that gain rights; run it as the \
             user whose rights it needs"
        )),
        None => Ok(()),
    }
}

/// Whether it is the loader itself, which preloads although it asks for no other loader: `ld.so PROGRAM`.
fn is_loader(path: &Path) -> bool {
    let target = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    [path, &target].into_iter().any(|path| {
        let name = file_name(path);
        name == "ld.so" || name.starts_with("ld-")
    })
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// What gives the program rights that its caller does not have, so that the kernel sets AT_SECURE; `None`:
/// nothing.
fn gains_rights(path: &Path, metadata: &Metadata) -> Option<&'static str> {
    const SETUID: u32 = 0o4000;
    const SETGID_AND_GROUP_EXECUTES: u32 = 0o2010;
    let user = rustix::process::getuid();
    let mode = metadata.mode();
    let setuid = mode & SETUID != 0 && metadata.uid() != user.as_raw();
    let setgid = mode & SETGID_AND_GROUP_EXECUTES == SETGID_AND_GROUP_EXECUTES
        && metadata.gid() != rustix::process::getgid().as_raw();
    // Root has all capabilities anyway, so files give it none.
    let capable =
        !user.is_root() && rustix::fs::getxattr(path, "security.capability", &mut [0_u8; 64]).is_ok();
    if !(setuid || setgid || capable) || rights_are_ignored(path) {
        return None;
    }
    Some(match (setuid, setgid) {
        (true, _) => "is setuid",
        (_, true) => "is setgid",
        _ => "has file capabilities",
    })
}

fn rights_are_ignored(path: &Path) -> bool {
    let nosuid = rustix::fs::statvfs(path)
        .is_ok_and(|filesystem| filesystem.f_flag.contains(rustix::fs::StatVfsMountFlags::NOSUID));
    nosuid || probe::security().no_new_privs
}

/// Reads an ELF file's headers, and what the loader and the kernel decide by.
///
/// # Errors
/// Says what is wrong with the file.
pub fn read_elf(file: File) -> Result<Elf, String> {
    let cache = ReadCache::new(file);
    match object::FileKind::parse(&cache) {
        Ok(object::FileKind::Elf64) => read_headers::<elf::FileHeader64<Endianness>>(&cache, 64),
        Ok(object::FileKind::Elf32) => read_headers::<elf::FileHeader32<Endianness>>(&cache, 32),
        Ok(_) => return Err("it is of another format".to_owned()),
        Err(error) => Err(error),
    }
    .map_err(|error| error.to_string())
}

fn read_headers<H: FileHeader<Endian = Endianness>>(
    cache: &ReadCache<File>,
    bits: u8,
) -> object::Result<Elf> {
    let header = H::parse(cache)?;
    let endian = header.endian()?;
    let mut interpreter = None;
    let (mut dynamic, mut go) = (false, false);
    for segment in header.program_headers(endian, cache)? {
        if let Some(mut notes) = segment.notes(endian, cache)? {
            while let Some(note) = notes.next()? {
                go |= note.name() == b"Go";
            }
        }
        dynamic |= segment.p_type(endian) == elf::PT_DYNAMIC;
        if let Some(path) = segment.interpreter(endian, cache)? {
            interpreter = Some(PathBuf::from(OsStr::from_bytes(path)));
        }
    }
    let little_endian = header.is_little_endian();
    let target = Target { bits, little_endian, machine: header.e_machine(endian) };
    let maps_by_itself = go && !imports(header, endian, cache, b"mmap")?;
    let sanitizer = sanitizer_of(header, endian, cache)?;
    Ok(Elf { target, interpreter, dynamic, maps_by_itself, sanitizer })
}

/// The sanitizer whose runtime the program needs as a library (DT_NEEDED).
fn sanitizer_of<H: FileHeader<Endian = Endianness>>(
    header: &H,
    endian: Endianness,
    cache: &ReadCache<File>,
) -> object::Result<Option<Sanitizer>> {
    let sections = header.sections(endian, cache)?;
    let Some((entries, names)) = sections.dynamic(endian, cache)? else { return Ok(None) };
    let names = sections.strings(endian, cache, names)?;
    for entry in entries {
        if entry.tag(endian) == elf::DT_NEEDED
            && let Some(sanitizer) = sanitizer::of_library(entry.string(endian, names)?)
        {
            return Ok(Some(sanitizer));
        }
    }
    Ok(None)
}

/// Whether the program imports the function from a library.
fn imports<H: FileHeader<Endian = Endianness>>(
    header: &H,
    endian: Endianness,
    cache: &ReadCache<File>,
    function: &[u8],
) -> object::Result<bool> {
    let symbols = header.sections(endian, cache)?.symbols(endian, cache, elf::SHT_DYNSYM)?;
    for symbol in symbols.iter() {
        if symbol.is_undefined(endian) && symbols.symbol_name(endian, symbol)? == function {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests;
