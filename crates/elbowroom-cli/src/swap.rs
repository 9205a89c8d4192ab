//! How much anonymous memory may be out of the budget, and whether there is a place for it.

use std::path::{Path, PathBuf};

use elbowroom::{Config, DefaultSwap, Lack};
use elbowroom_options::size::Shown;
use elbowroom_options::{Fallback, table};

use crate::failure::{CANNOT_WORK, Failure, USAGE};
use crate::options::Given;

/// Where the swap file is by default.
const DIRECTORY: &str = "/var/tmp";

/// The directory of the swap file if the user names none: the first of /var/tmp, $TMPDIR and /tmp that is on
/// a disk with room for `bytes` or, if these are not given, for the usual amount beside a budget of `memory`;
/// else the first with room for some swap, else /var/tmp.
pub fn usual_directory(memory: u64, bytes: Option<u64>) -> PathBuf {
    let variable = std::env::var_os("TMPDIR").map(PathBuf::from).filter(|path| path.is_absolute());
    let all: Vec<_> = [Some(DIRECTORY.into()), variable, Some("/tmp".into())].into_iter().flatten().collect();
    let has_room = |dir: &&PathBuf| match bytes {
        Some(bytes) => Lack::for_file(dir, bytes).is_none() && DefaultSwap::of(0, dir).lack.is_none(),
        None => DefaultSwap::of(memory, dir).lack.is_none(),
    };
    let has_some = |dir: &&PathBuf| DefaultSwap::of(memory, dir).bytes > 0;
    let found = all.iter().find(has_room).or_else(|| all.iter().find(has_some));
    found.unwrap_or(&all[0]).clone()
}

/// The smallest `--swap`, in bytes: a smaller number probably lacks a unit.
const LEAST: u64 = 1 << 20;

/// What the command line says about swap.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// `--swap`, in bytes.
    pub bytes: Option<u64>,
    /// `--swap-dir`.
    pub dir: Option<&'a Path>,
    /// `--swap-encrypt`.
    pub encrypt: bool,
    /// `--memory` was given. A user who names a budget expects the usual multiple of it as swap, and is
    /// told if there is less.
    pub for_named_budget: bool,
    /// `--fallback`: whether anonymous memory may stay with the kernel.
    pub fallback: Fallback,
}

/// The swap that there will be.
#[derive(Debug, PartialEq, Eq)]
pub struct Swap {
    /// In bytes; 0: anonymous memory stays with the kernel.
    pub bytes: u64,
    /// The amount is a default.
    pub by_default: bool,
    /// Where the file is; absolute.
    pub dir: PathBuf,
    /// What the user should know about it, in one line.
    pub note: Option<String>,
}

impl<'a> Asked<'a> {
    /// From the options that were given.
    pub fn of(given: &'a Given) -> Self {
        let options = &given.options;
        Self {
            bytes: given.names(&table::SWAP).then_some(options.swap.bytes),
            dir: options.swap.dir.as_deref().filter(|_| given.names(&table::SWAP_DIR)),
            encrypt: options.swap.encrypt,
            for_named_budget: given.names(&table::MEMORY)
                && (options.memory_bytes != table::AUTO || options.memory_max_bytes.is_some()),
            fallback: options.fallback,
        }
    }

    /// Checks that a budget of `memory` bytes can describe so much swap.
    ///
    /// # Errors
    /// A failure of usage: too much, or too little, or options that exclude each other.
    pub fn check(&self, memory: u64) -> Result<(), Failure> {
        let most = Config::with_memory(memory).most_swap();
        if let Some(bytes) = self.bytes.filter(|&bytes| bytes > most) {
            let (swap, memory, most) = (Shown(bytes), Shown(memory), Shown(most));
            let why = format!(
                "--swap {swap} is too much for a budget of {memory}: at most {most} can be described in it; \
                 use less swap, or more --memory"
            );
            return Err(Failure::new(USAGE, why));
        }
        if let Some(bytes) = self.bytes.filter(|&bytes| 0 < bytes && bytes < LEAST) {
            let why =
                format!("--swap {bytes} is less than a megabyte; is a unit missing? (`--swap {bytes}G`)");
            return Err(Failure::new(USAGE, why));
        }
        if self.encrypt && self.bytes == Some(0) {
            return Err(Failure::new(USAGE, "--swap-encrypt is for a swap file, and with --swap 0 is none"));
        }
        Ok(())
    }

    /// The swap that there will be with a budget of `memory` bytes: what was asked for, or an error. If
    /// nothing was asked for, as much as is possible; if nothing is possible, an error, or none with
    /// `--fallback kernel`.
    ///
    /// # Errors
    /// What the directory lacks.
    pub fn decide(&self, memory: u64) -> Result<Swap, Failure> {
        let dir = self.dir.map_or_else(|| usual_directory(memory, self.bytes), Path::to_owned);
        let dir = std::path::absolute(&dir).unwrap_or(dir);
        let shown = dir.display();
        let impossible = |lack: Lack, asked: &str| {
            let why = format!("{asked}no place for a swap file in {shown}: {lack}");
            Err(Failure::new(CANNOT_WORK, format!("{why}; {}", remedy(lack))))
        };
        // With the default a process may use less than that; an amount that was named is used, or is an
        // error.
        let done = |bytes, by_default, note| Ok(Swap { bytes, by_default, dir: dir.clone(), note });
        if let Some(bytes) = self.bytes {
            return match Lack::for_file(&dir, bytes).filter(|_| bytes > 0) {
                Some(lack) => impossible(lack, &format!("--swap {}: ", Shown(bytes))),
                None => done(bytes, false, self.dir.and_then(in_memory)),
            };
        }
        let named = self.dir.is_some();
        let of = if named { DefaultSwap::in_named } else { DefaultSwap::of };
        match of(memory, &dir) {
            DefaultSwap { bytes, lack: None } => done(bytes, true, None),
            DefaultSwap { bytes, lack: Some(Lack::Disk | Lack::Direct) } if bytes > 0 => {
                done(bytes, false, self.dir.and_then(in_memory))
            }
            DefaultSwap { bytes, lack: Some(lack) } if bytes > 0 => {
                let swap = Shown(bytes);
                let note = || format!("--swap is {swap}, less than usual: in {shown}, {lack}");
                done(bytes, true, self.for_named_budget.then(note))
            }
            // A user who names a directory, or wants the file encrypted, wants a swap file: without one,
            // this fails.
            DefaultSwap { lack: Some(lack), .. } if named => impossible(lack, "--swap-dir: "),
            DefaultSwap { lack: Some(lack), .. } if self.encrypt => impossible(lack, "--swap-encrypt: "),
            DefaultSwap { lack: Some(lack), .. } if self.fallback == Fallback::None => {
                impossible(lack, "anonymous memory cannot be managed, ")
            }
            DefaultSwap { lack: Some(lack), .. } => {
                let why = format!("there is no place for a swap file in {shown}: {lack}; {}", remedy(lack));
                done(0, true, Some(format!("anonymous memory stays with the kernel, since {why}")))
            }
        }
    }
}

/// A note, if a swap file in the directory takes memory that the budget does not bound.
fn in_memory(dir: &Path) -> Option<String> {
    match DefaultSwap::in_named(0, dir).lack {
        Some(lack @ (Lack::Disk | Lack::Direct)) => {
            Some(format!("the swap file in {} takes memory beside the budget: {lack}", dir.display()))
        }
        _ => None,
    }
}

/// What to do about a directory without a place for a swap file.
fn remedy(lack: Lack) -> &'static str {
    match lack {
        Lack::File(_) | Lack::Disk | Lack::Direct => {
            "name another directory with --swap-dir, or leave anonymous memory to the kernel with --swap 0"
        }
        Lack::Space(_) | Lack::FileLimit(_) => {
            "name another directory with --swap-dir, less with --memory and --swap, or leave anonymous \
             memory to the kernel with --swap 0"
        }
    }
}

impl Swap {
    /// Leaves anonymous memory to the kernel after all, and says why.
    pub fn leave(&mut self, why: &Failure) {
        self.bytes = 0;
        self.note = Some(format!("anonymous memory stays with the kernel: {why}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: u64 = 64 << 20;
    const NOTHING: Asked<'static> =
        Asked { bytes: None, dir: None, encrypt: false, for_named_budget: true, fallback: Fallback::None };

    #[test]
    fn what_a_budget_cannot_describe_is_an_error_of_usage() {
        let check = |bytes| Asked { bytes: Some(bytes), ..NOTHING }.check(MEMORY);
        let most = Config::with_memory(MEMORY).most_swap();
        assert!(check(most).is_ok() && check(0).is_ok() && NOTHING.check(MEMORY).is_ok());
        let refused = check(most + 1).unwrap_err();
        assert_eq!(refused.code, USAGE);
        assert!(refused.message.contains("too much for a budget of 64 MiB"), "{refused}");
        let sealed = Asked { encrypt: true, bytes: Some(0), ..NOTHING };
        assert_eq!(sealed.check(MEMORY).unwrap_err().code, USAGE);
        assert!(Asked { bytes: None, ..sealed }.check(MEMORY).is_ok());
    }

    #[test]
    fn what_was_asked_for_is_given_or_refused() {
        let dir = tempfile::tempdir().unwrap();
        let here = Asked { dir: Some(dir.path()), ..NOTHING };
        let given = Asked { bytes: Some(8192), ..here }.decide(MEMORY).unwrap();
        assert_eq!((given.bytes, given.by_default, given.note), (8192, false, None));
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        for (asked, word) in [
            (Asked { bytes: Some(8192), dir: Some(&file), ..NOTHING }, "--swap 8 KiB"),
            (Asked { bytes: Some(1 << 60), ..here }, "free there"),
            (Asked { dir: Some(&file), ..NOTHING }, "--swap-dir: no place"),
            (Asked { dir: Some(Path::new("/proc")), encrypt: true, ..NOTHING }, "no file can be made"),
        ] {
            let refused = asked.decide(MEMORY).unwrap_err();
            assert_eq!(refused.code, CANNOT_WORK, "{refused}");
            assert!(refused.message.contains(word), "{refused}");
        }
        // Nothing is made for nothing.
        let none = Asked { bytes: Some(0), dir: Some(&file), ..NOTHING }.decide(MEMORY).unwrap();
        assert_eq!((none.bytes, none.by_default, none.note), (0, false, None));
    }

    #[test]
    fn a_directory_in_memory_is_used_where_it_is_named() {
        let shm = Path::new("/dev/shm");
        let room = elbowroom_store::Room::look(shm);
        if !room.is_ok_and(|room| room.in_memory && room.bytes() >= MEMORY) {
            return;
        }
        let here = Asked { dir: Some(shm), ..NOTHING };
        let by_size = Asked { bytes: Some(MEMORY), ..here }.decide(MEMORY).unwrap();
        let by_default = here.decide(MEMORY).unwrap();
        assert_eq!((by_size.bytes, by_size.by_default), (MEMORY, false));
        assert!(by_default.bytes >= MEMORY && !by_default.by_default);
        assert!(by_size.note.as_ref().is_some_and(|note| note.contains("memory beside the budget")));
        assert_eq!(by_size.note, by_default.note);
    }

    #[test]
    fn by_default_there_is_what_is_possible() {
        let dir = tempfile::tempdir().unwrap();
        let here = Asked { dir: Some(dir.path()), ..NOTHING }.decide(16 << 20).unwrap();
        assert!(here.by_default && here.dir == dir.path());
        match here.bytes {
            bytes if bytes == 64 << 20 => assert_eq!(here.note, None),
            less => assert!(less < 64 << 20 && here.note.unwrap().contains("less than usual")),
        }
        // Of what is free on the disk, two thirds: more than once that, and less than four times.
        let two_thirds = elbowroom_store::Room::look(dir.path()).unwrap().bytes() / 3 * 2;
        for for_named_budget in [true, false] {
            let some =
                Asked { dir: Some(dir.path()), for_named_budget, ..NOTHING }.decide(two_thirds).unwrap();
            assert!(some.bytes >= two_thirds && some.bytes < 2 * two_thirds, "{some:?}");
            assert_eq!(some.note.is_some(), for_named_budget, "{some:?}");
        }
    }
}
