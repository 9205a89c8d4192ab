//! The library that is preloaded into the program: where it is, and how it is named to the loader.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::failure::{CANNOT_WORK, Failure};
use crate::program::{Target, read_elf};

/// The loader's variable.
pub const LOADER_VARIABLE: &str = "LD_PRELOAD";
/// Names another library than the one that was installed with this command.
pub const OVERRIDE_VARIABLE: &str = "ELBOWROOM_PRELOAD";

const FILE_NAME: &str = "libelbowroom_preload.so";

/// A library that can be preloaded.
#[derive(Debug, PartialEq, Eq)]
pub struct Library {
    /// Absolute, and fit for [`LOADER_VARIABLE`].
    pub path: PathBuf,
    /// What it can be loaded into.
    pub target: Target,
}

/// Finds the library: the one that is `chosen`, else the one installed with the command `exe`.
///
/// # Errors
/// Says where it was looked for, or what is wrong with what was found.
pub fn find(chosen: Option<&OsStr>, exe: &Path) -> Result<Library, Failure> {
    let fail = |message: String| Failure::new(CANNOT_WORK, message);
    let path = match chosen.filter(|path| !path.is_empty()) {
        Some(path) => {
            std::path::absolute(path).map_err(|error| fail(format!("{OVERRIDE_VARIABLE}: {error}")))?
        }
        None => {
            let places = places(exe);
            let found = places.iter().find(|place| place.is_file());
            found.cloned().ok_or_else(|| fail(not_found(&places)))?
        }
    };
    let shown = path.display();
    if let Some(bad) = path.as_os_str().as_bytes().iter().find(|byte| b" :$".contains(byte)) {
        return Err(fail(format!(
            "the library's path {shown} contains '{}', which {LOADER_VARIABLE} cannot hold; move it, or make \
             a symbolic link to it elsewhere and name that in {OVERRIDE_VARIABLE}",
            char::from(*bad)
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
fn places(exe: &Path) -> Vec<PathBuf> {
    let beside = exe.parent().unwrap_or(Path::new("/"));
    let lib = beside.parent().unwrap_or(Path::new("/")).join("lib");
    [beside.to_owned(), lib.clone(), lib.join("elbowroom"), beside.join("deps")]
        .into_iter()
        .map(|directory| directory.join(FILE_NAME))
        .collect()
}

fn not_found(places: &[PathBuf]) -> String {
    let mut message = format!("the library {FILE_NAME} was not found. It was looked for at");
    for place in places {
        message.push_str(&format!("\n  {}", place.display()));
    }
    message.push_str(&format!(
        "\nBuild it with `cargo build --release` in Elbowroom's sources, or name it in {OVERRIDE_VARIABLE}."
    ));
    message
}

/// The loader's variable with the library first and what was there after it.
pub fn loader_value(library: &Path, before: Option<&OsStr>) -> OsString {
    let library = library.as_os_str();
    let mut value = library.as_bytes().to_vec();
    let before = before.unwrap_or_default().as_bytes();
    // The loader separates by both. A run inside a run finds the library there already.
    for other in before.split(|byte| b" :".contains(byte)) {
        if !other.is_empty() && other != library.as_bytes() {
            value.push(b':');
            value.extend_from_slice(other);
        }
    }
    OsString::from_vec(value)
}

/// The loader's variable without the installed library, for a program that runs unmanaged; `None` if nothing
/// is left.
pub fn loader_value_without(library: &Path, before: &OsStr) -> Option<OsString> {
    let with = loader_value(library, Some(before)).into_vec();
    with.strip_prefix(library.as_os_str().as_bytes())
        .and_then(|rest| rest.strip_prefix(b":"))
        .map(|rest| OsString::from_vec(rest.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_preloaded_before_comes_after() {
        let library = Path::new("/l/e.so");
        let value = |before: &str| loader_value(library, Some(OsStr::new(before))).into_string().unwrap();
        assert_eq!(loader_value(library, None), "/l/e.so");
        assert_eq!(value(""), "/l/e.so");
        assert_eq!(value("a.so b.so:c.so"), "/l/e.so:a.so:b.so:c.so");
        assert_eq!(value("/l/e.so:a.so"), "/l/e.so:a.so");
        assert_eq!(loader_value_without(library, OsStr::new("/l/e.so a.so")), Some("a.so".into()));
        assert_eq!(loader_value_without(library, OsStr::new("/l/e.so")), None);
    }

    #[test]
    fn places_are_beside_in_lib_and_in_deps() {
        let places = places(Path::new("/opt/bin/elbowroom"));
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
