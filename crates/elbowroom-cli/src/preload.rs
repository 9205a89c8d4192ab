//! The libraries that are preloaded into the program: where they are, and how they are named to the loader.
//!
//! Libraries beside the command are used first. A command that has them built in ([`embedded`]) unpacks its
//! own where there are none ([`crate::unpack`]).

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use elbowroom_options::sanitizer;

use crate::failure::{CANNOT_WORK, Failure};
use crate::program::{Target, read_elf};
use crate::unpack::Places;

/// The libraries that are built into this command; none in most builds (build.rs).
mod embedded {
    include!(concat!(env!("OUT_DIR"), "/libraries.rs"));
}

/// The loader's variable.
pub const LOADER_VARIABLE: &str = "LD_PRELOAD";
/// The variable that names another library than the one that was installed with this command.
pub const OVERRIDE_VARIABLE: &str = "ELBOWROOM_PRELOAD";

const FILE_NAME: &str = "libelbowroom_preload.so";

/// The library that stands before malloc; it is preloaded after the other one.
const HEAP_FILE_NAME: &str = "libelbowroom_heap.so";

/// A library that can be preloaded.
#[derive(Debug, PartialEq, Eq)]
pub struct Library {
    /// Absolute, and fit for [`LOADER_VARIABLE`].
    pub path: PathBuf,
    /// What kind of program it can be loaded into.
    pub target: Target,
}

/// Finds the library: the one that is `chosen`, else the one installed with the command `exe`.
///
/// # Errors
/// Says where the library was looked for, or what is wrong with the one that was found.
pub fn find(chosen: Option<&OsStr>, exe: &Path) -> Result<Library, Failure> {
    let fail = |message: String| Failure::new(CANNOT_WORK, message);
    let path = match chosen.filter(|path| !path.is_empty()) {
        Some(path) => {
            std::path::absolute(path).map_err(|error| fail(format!("{OVERRIDE_VARIABLE}: {error}")))?
        }
        None => {
            let places = places(exe, FILE_NAME);
            match places.iter().find(|place| is_installed(place, exe)) {
                Some(found) => found.clone(),
                None => unpacked(FILE_NAME, &places, OVERRIDE_VARIABLE).map_err(fail)?,
            }
        }
    };
    usable(path)
}

/// Finds the library that stands before malloc: beside the other one, or else with the command `exe`.
///
/// # Errors
/// As for [`find`].
pub fn find_heap(library: &Library, exe: &Path) -> Result<Library, Failure> {
    let beside = library.path.with_file_name(HEAP_FILE_NAME);
    let places: Vec<_> = [beside].into_iter().chain(places(exe, HEAP_FILE_NAME)).collect();
    let path = match places.iter().find(|place| is_installed(place, exe)) {
        Some(found) => found.clone(),
        None => unpacked(HEAP_FILE_NAME, &places, "--swap 0")
            .map_err(|message| Failure::new(CANNOT_WORK, message))?,
    };
    usable(path)
}

/// Whether a library is there that was installed with the command `exe`. A command with libraries of its own
/// may be anywhere, in /tmp as well: there it takes only files of its own owner, in directories that others
/// cannot write.
fn is_installed(place: &Path, exe: &Path) -> bool {
    if embedded::LIBRARIES.is_empty() || !place.is_file() {
        return place.is_file();
    }
    let look = |path: &Path| std::fs::metadata(path).ok();
    let same = || Some(look(place)?.uid() == look(exe)?.uid());
    let closed = || Some(look(place.parent()?)?.mode() & 0o022 == 0 && look(place)?.mode() & 0o022 == 0);
    same() == Some(true) && closed() == Some(true)
}

/// Unpacks the libraries that are built into this command, and gives the path of one of them. The error says
/// why that cannot be done, or, in a command without libraries, that the library is not at `places`.
fn unpacked(file_name: &str, places: &[PathBuf], otherwise: &str) -> Result<PathBuf, String> {
    let files = match embedded::LIBRARIES {
        [] => return Err(not_found(file_name, places, otherwise)),
        files => files,
    };
    let version = concat!(env!("CARGO_PKG_VERSION"), "-").to_owned() + embedded::HASH;
    let directory = Places::of_environment().unpack(&version, files).map_err(|refused| {
        format!(
            "the library {file_name}, which is in this command, cannot be put where programs can load it:\
             {refused}\nName a directory of yours in XDG_CACHE_HOME, or {}.",
            other_way(otherwise)
        )
    })?;
    Ok(directory.join(file_name))
}

/// A byte of a path that the loader's variable cannot hold.
pub fn unfit(path: &Path) -> Option<u8> {
    path.as_os_str().as_bytes().iter().copied().find(|byte| b" :$".contains(byte))
}

/// Checks that a file that was found is a library, and can be named to the loader.
fn usable(path: PathBuf) -> Result<Library, Failure> {
    let fail = |message: String| Failure::new(CANNOT_WORK, message);
    let shown = path.display();
    if let Some(bad) = unfit(&path) {
        return Err(fail(format!(
            "the library's path {shown} contains '{}', which {LOADER_VARIABLE} cannot hold; move it, or make \
             a symbolic link to it elsewhere and name that in {OVERRIDE_VARIABLE}",
            char::from(bad)
        )));
    }
    let file =
        File::open(&path).map_err(|error| fail(format!("cannot open the library {shown}: {error}")))?;
    match read_elf(file) {
        Ok(elf) if elf.dynamic => Ok(Library { path, target: elf.target }),
        Ok(_) => Err(fail(format!("{shown} is not a shared library"))),
        Err(why) => Err(fail(format!("{shown} is not a shared library: {why}"))),
    }
}

/// Where the library may be: beside the command (a cargo target directory), in the lib directory of an
/// installation, among cargo's intermediate files.
fn places(exe: &Path, file_name: &str) -> Vec<PathBuf> {
    let beside = exe.parent().unwrap_or(Path::new("/"));
    let lib = beside.parent().unwrap_or(Path::new("/")).join("lib");
    [beside.to_owned(), lib.clone(), lib.join("elbowroom"), beside.join("deps")]
        .into_iter()
        .map(|directory| directory.join(file_name))
        .collect()
}

/// Says where a library was looked for, and what else can be done: a variable that names it, or an option.
fn not_found(file_name: &str, places: &[PathBuf], otherwise: &str) -> String {
    let mut message = format!("the library {file_name} was not found. It was looked for at");
    for place in places {
        message.push_str(&format!("\n  {}", place.display()));
    }
    message.push_str(&format!(
        "\nBuild it with `cargo build --release` in Elbowroom's sources, or {}.",
        other_way(otherwise)
    ));
    message
}

/// What else can be done, as a part of a sentence.
fn other_way(otherwise: &str) -> String {
    match otherwise.strip_prefix("--") {
        Some(_) => format!("say {otherwise}"),
        None => format!("name the library in {otherwise}"),
    }
}

/// The loader's variable with our libraries first and what was there after them. The runtime of a sanitizer
/// stays before ours: it starts only as the first library.
pub fn loader_value(ours: &[&Path], before: Option<&OsStr>) -> OsString {
    let is_runtime = |library: &&[u8]| sanitizer::of_library(library).is_some();
    let (runtimes, others): (Vec<_>, Vec<_>) = others(ours, before.unwrap_or_default()).partition(is_runtime);
    let ours = ours.iter().map(|library| library.as_os_str().as_bytes());
    let all: Vec<_> = runtimes.into_iter().chain(ours).chain(others).collect();
    OsString::from_vec(all.join(&b':'))
}

/// Whether the loader's variable has the libraries that Valgrind puts there for a program that it runs.
pub fn has_valgrind(libraries: &OsStr) -> bool {
    others(&[], libraries).any(|library| {
        Path::new(OsStr::from_bytes(library))
            .file_name()
            .is_some_and(|name| name.as_bytes().starts_with(b"vgpreload_core"))
    })
}

/// The libraries that the loader's variable names beside ours. (A run inside a run finds ours there
/// already.)
fn others<'a>(ours: &[&Path], before: &'a OsStr) -> impl Iterator<Item = &'a [u8]> {
    let is_ours = |other: &[u8]| {
        let path = Path::new(OsStr::from_bytes(other));
        ours.contains(&path) || path.file_name() == Some(OsStr::new(HEAP_FILE_NAME))
    };
    // The loader takes both as separators.
    let all = before.as_bytes().split(|byte| b" :".contains(byte)).filter(|other| !other.is_empty());
    all.filter(move |other| !is_ours(other)).collect::<Vec<_>>().into_iter()
}

/// The loader's variable without our libraries, wherever they are, for a program that runs unmanaged; `None`
/// if nothing is left. `chosen` names the library that is used instead of the installed one.
pub fn loader_value_without_ours(chosen: Option<&OsStr>, before: &OsStr) -> Option<OsString> {
    let chosen = chosen.map(Path::new);
    let is_ours = |other: &&[u8]| {
        let path = Path::new(OsStr::from_bytes(other));
        Some(path) == chosen || path.file_name() == Some(OsStr::new(FILE_NAME))
    };
    let others: Vec<_> = others(&[], before).filter(|other| !is_ours(other)).collect();
    (!others.is_empty()).then(|| OsString::from_vec(others.join(&b':')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_preloaded_before_comes_after() {
        let library = Path::new("/l/e.so");
        let value = |before: &str| loader_value(&[library], Some(OsStr::new(before))).into_string().unwrap();
        assert_eq!(loader_value(&[library], None), "/l/e.so");
        assert_eq!(value(""), "/l/e.so");
        assert_eq!(value("a.so b.so:c.so"), "/l/e.so:a.so:b.so:c.so");
        assert_eq!(value("/l/e.so:a.so"), "/l/e.so:a.so");
        assert!(has_valgrind(OsStr::new("a.so:/v/vgpreload_core-amd64-linux.so")));
        assert!(!has_valgrind(OsStr::new("/vgpreload_core/a.so")));
        assert_eq!(value("a.so /usr/lib/libasan.so.8"), "/usr/lib/libasan.so.8:/l/e.so:a.so");
        let without = |before: &OsStr| loader_value_without_ours(Some(library.as_os_str()), before);
        assert_eq!(without(OsStr::new("/l/e.so a.so")), Some("a.so".into()));
        assert_eq!(without(OsStr::new("/l/e.so:/elsewhere/libelbowroom_preload.so")), None);
        assert_eq!(loader_value_without_ours(None, OsStr::new("/l/e.so")), Some("/l/e.so".into()));
        let heap = Path::new("/l").join(HEAP_FILE_NAME);
        let before = OsStr::new("/l/e.so:/elsewhere/libelbowroom_heap.so:a.so");
        assert_eq!(loader_value(&[library, &heap], Some(before)), "/l/e.so:/l/libelbowroom_heap.so:a.so");
        assert_eq!(value("/l/libelbowroom_heap.so a.so"), "/l/e.so:a.so");
        assert_eq!(without(before), Some("a.so".into()));
    }

    #[test]
    fn places_are_beside_in_lib_and_in_deps() {
        let places = places(Path::new("/opt/bin/elbowroom"), FILE_NAME);
        let shown: Vec<_> = places.iter().map(|place| place.to_str().unwrap()).collect();
        assert_eq!(
            shown,
            [
                "/opt/bin/libelbowroom_preload.so",
                "/opt/lib/libelbowroom_preload.so",
                "/opt/lib/elbowroom/libelbowroom_preload.so",
                "/opt/bin/deps/libelbowroom_preload.so",
            ]
        );
    }

    #[test]
    fn a_missing_library_says_where_and_how() {
        let dir = tempfile::tempdir().unwrap();
        let message = find(None, &dir.path().join("elbowroom")).unwrap_err().message;
        assert!(message.contains(&dir.path().join(FILE_NAME).display().to_string()), "{message}");
        assert!(message.contains("cargo build --release"), "{message}");
    }

    #[test]
    fn paths_that_the_loader_would_split_are_refused() {
        for path in ["/tmp/a b/l.so", "/tmp/a:b/l.so", "/tmp/$LIB/l.so"] {
            let failure = find(Some(OsStr::new(path)), Path::new("/bin/x")).unwrap_err();
            assert!(failure.message.contains("cannot hold"), "{failure}");
            assert_eq!(failure.code, CANNOT_WORK);
        }
    }

    #[test]
    fn what_is_not_a_library_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let text = dir.path().join("text.so");
        std::fs::write(&text, "hello").unwrap();
        let refused = |path: &Path| find(Some(path.as_os_str()), Path::new("/bin/x")).unwrap_err().message;
        assert!(refused(&text).contains("not a shared library"));
        assert!(refused(&dir.path().join("none.so")).contains("No such file"));
    }
}
