//! The table that the processes of a run share: where its file is, and which files are left over.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use elbowroom::{ProcessTree, TableFile, TreeLimits};
use elbowroom_options::Options;
use elbowroom_store::with_highest_file_limit;

/// By default one process may have four times the budget in swap, and all processes together so many times
/// as much as one: forked children that read inherited memory need room for copies. In practice the disk is
/// the limit.
const DEFAULT_SWAP: u64 = 16;

/// Table files of this age without a process are removed. Younger ones stay: `run` makes the file before
/// the program enters the run.
const LEFT_OVER: Duration = Duration::from_secs(60);

/// The directories that may have table files, in the order in which [`make`] tries them.
pub fn directories(swap_dir: Option<&Path>) -> Vec<PathBuf> {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let runtime = runtime.filter(|dir| dir.is_absolute());
    let fixed = ["/dev/shm", "/tmp"].map(PathBuf::from);
    runtime.into_iter().chain(fixed).chain(swap_dir.map(Path::to_path_buf)).collect()
}

/// The tables of this user's runs in a directory, with the paths of their files.
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
    let named = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(TableFile::PREFIX));
    named.filter_map(|entry| open(entry.path())).collect()
}

/// Makes the table file of a run in the first directory in which that works. `Err`: no directory can have
/// it, and why the last one cannot.
pub fn make(options: &Options) -> Result<PathBuf, String> {
    let times = if options.swap.by_default { DEFAULT_SWAP } else { 1 };
    let swap_max = options.swap.bytes.saturating_mul(times);
    let limits = TreeLimits { max: options.memory_bytes, each: options.each_bytes, swap_max };
    let mut why = "there is no directory for it".to_owned();
    for dir in directories(options.swap.dir.as_deref()) {
        remove_left_over(&dir);
        let path = dir.join(format!("{}{}-{:08x}", TableFile::PREFIX, std::process::id(), fastrand::u32(..)));
        // RLIMIT_FSIZE is meant for the program's own files, so it is raised meanwhile: the kernel would
        // end this process by SIGXFSZ if the table were larger.
        let made = with_highest_file_limit(|most| {
            if most < ProcessTree::BYTES {
                return Err(std::io::Error::other("the limit on sizes of files (`ulimit -f`) is too low"));
            }
            let file = new_file(&path)?;
            // Allocates all blocks now: on a full tmpfs a store to the mapped table would be a SIGBUS
            // later, in any process of the run.
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

/// Removes the table files of runs whose last process was killed, and so could not remove its file.
fn remove_left_over(dir: &Path) {
    for (path, tree) in tables(dir) {
        let changed = fs::metadata(&path).and_then(|metadata| metadata.modified());
        let age = changed.ok().and_then(|changed| SystemTime::now().duration_since(changed).ok());
        if age.is_some_and(|age| age > LEFT_OVER) && !tree.is_in_use() {
            let _ = fs::remove_file(&path);
        }
    }
}
