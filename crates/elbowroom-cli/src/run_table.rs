//! The table that the processes of a run share: where its file is, and which files are left over.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use elbowroom::{ProcessTree, TreeLimits};
use elbowroom_options::Options;
use elbowroom_store::with_highest_file_limit;

/// How the names of the files begin; then follow the id of the process that the command becomes, and a
/// number.
pub const PREFIX: &str = "elbowroom-run-";

/// By default each process may have four times the budget in swap, and all processes so many times as much:
/// forked children that read what they have inherited need room for copies. The disk is what limits them.
const DEFAULT_SWAP: u64 = 16;

/// A file without a process is left alone for so long: `run` makes the file before the program enters the
/// run.
const LEFT_OVER: Duration = Duration::from_secs(60);

/// The directories that can have such files, the best first.
pub fn directories(swap_dir: Option<&Path>) -> Vec<PathBuf> {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let runtime = runtime.filter(|dir| dir.is_absolute());
    let fixed = ["/dev/shm", "/tmp"].map(PathBuf::from);
    runtime.into_iter().chain(fixed).chain(swap_dir.map(Path::to_path_buf)).collect()
}

/// The tables of runs of this user that a directory has, with their files.
pub fn tables(dir: &Path) -> Vec<(PathBuf, ProcessTree)> {
    let own = rustix::process::geteuid().as_raw();
    let open = |path: PathBuf| {
        let flags = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
        let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(&path).ok()?;
        let metadata = file.metadata().ok().filter(|metadata| metadata.is_file())?;
        let tree = (metadata.uid() == own).then(|| ProcessTree::open(&file).ok())??;
        Some((path, tree))
    };
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let named = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX));
    named.filter_map(|entry| open(entry.path())).collect()
}

/// Makes the table of a run with these options. `Err`: no directory can have it, and why.
pub fn make(options: &Options) -> Result<PathBuf, String> {
    let times = if options.swap_by_default { DEFAULT_SWAP } else { 1 };
    let swap_max = options.swap_bytes.saturating_mul(times);
    let limits = TreeLimits { max: options.memory_bytes, each: options.each_bytes, swap_max };
    let mut why = "there is no directory for it".to_owned();
    for dir in directories(options.swap_dir.as_deref()) {
        remove_left_over(&dir);
        let path = dir.join(format!("{PREFIX}{}-{:08x}", std::process::id(), fastrand::u32(..)));
        // The limit on file sizes is for the program's own files. Beyond it, the kernel would end this
        // process.
        let made = with_highest_file_limit(|most| {
            if most < ProcessTree::BYTES {
                return Err(std::io::Error::other("the limit on sizes of files (`ulimit -f`) is too low"));
            }
            let file = new_file(&path)?;
            // A directory in memory may be full: a store to the table would be a SIGBUS then, in any process.
            rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, ProcessTree::BYTES)
                .inspect_err(|_| _ = fs::remove_file(&path))?;
            ProcessTree::create(&file, &limits).inspect_err(|_| _ = fs::remove_file(&path))
        });
        match made {
            Ok(_) => return Ok(path),
            Err(error) => why = format!("{}: {error}", dir.display()),
        }
    }
    Err(why)
}

fn new_file(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)
}

/// Removes the files of runs that have ended without being able to: their last process was killed.
fn remove_left_over(dir: &Path) {
    for (path, tree) in tables(dir) {
        let changed = fs::metadata(&path).and_then(|metadata| metadata.modified());
        let age = changed.ok().and_then(|changed| SystemTime::now().duration_since(changed).ok());
        if age.is_some_and(|age| age > LEFT_OVER) && !tree.is_in_use() {
            let _ = fs::remove_file(&path);
        }
    }
}
