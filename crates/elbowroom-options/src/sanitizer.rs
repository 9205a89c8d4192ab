//! The sanitizers whose runtimes cannot share a process with a manager, by their libraries and symbols.
//!
//! Such a runtime stands before malloc, mmap and pthread_create itself, must be the first library of its
//! process, and watches the memory and the locks of all threads, those of a manager too. Both the command
//! and the preloaded library need this list.

/// The runtime of a sanitizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sanitizer {
    /// What people call it.
    pub name: &'static str,
    /// The beginnings of the names of its libraries: GCC's, and Clang's.
    libraries: &'static [&'static str],
    /// The name of the function that starts it, with the final 0. Each program with the runtime has a
    /// symbol of this name.
    pub symbol: &'static std::ffi::CStr,
}

/// All such sanitizers. UBSan is not among them: its runtime only prints.
pub const ALL: [Sanitizer; 5] = [
    Sanitizer {
        name: "AddressSanitizer",
        libraries: &["libasan.so", "libclang_rt.asan"],
        symbol: c"__asan_init",
    },
    Sanitizer {
        name: "HWAddressSanitizer",
        libraries: &["libhwasan.so", "libclang_rt.hwasan"],
        symbol: c"__hwasan_init",
    },
    Sanitizer {
        name: "ThreadSanitizer",
        libraries: &["libtsan.so", "libclang_rt.tsan"],
        symbol: c"__tsan_init",
    },
    Sanitizer { name: "MemorySanitizer", libraries: &["libclang_rt.msan"], symbol: c"__msan_init" },
    Sanitizer {
        name: "LeakSanitizer",
        libraries: &["liblsan.so", "libclang_rt.lsan"],
        symbol: c"__lsan_init",
    },
];

/// The longest beginning of a library's name that [`of_library`] looks at, in bytes.
pub const LONGEST_NAME: usize = 24;

/// The sanitizer whose runtime is the library at this path.
pub fn of_library(path: &[u8]) -> Option<Sanitizer> {
    let name = path.rsplit(|byte| *byte == b'/').next()?;
    ALL.into_iter()
        .find(|runtime| runtime.libraries.iter().any(|beginning| name.starts_with(beginning.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runtimes_are_known_by_the_names_of_their_libraries() {
        let name = |path: &str| of_library(path.as_bytes()).map(|runtime| runtime.name);
        assert_eq!(name("libasan.so.8"), Some("AddressSanitizer"));
        assert_eq!(name("/usr/lib/libtsan.so.2"), Some("ThreadSanitizer"));
        assert_eq!(name("libclang_rt.asan-x86_64.so"), Some("AddressSanitizer"));
        assert_eq!(name("libubsan.so.1"), None);
        assert_eq!(name("libclang_rt.ubsan_standalone-x86_64.so"), None);
        assert_eq!(name("/libasan.so/libc.so.6"), None);
        assert!(ALL.iter().flat_map(|all| all.libraries).all(|name| name.len() <= LONGEST_NAME));
    }
}
