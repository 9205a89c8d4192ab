//! A memory control group for the kernel's runs, of version 1 or 2, whichever this machine has.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::size::Size;

/// A group is busy for a moment after its last process has ended.
const REMOVE_BOUND: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

/// A control group of the lab's own, removed when dropped.
#[derive(Debug)]
pub struct Cgroup {
    dir: PathBuf,
    version: Version,
    /// A group whose children got the memory controller from us, and must lose it again.
    enabled_in: Option<PathBuf>,
}

impl Cgroup {
    /// Makes a group whose processes may use `limit` of memory, page cache included, and no swap.
    ///
    /// # Errors
    /// If this machine has no memory controller, or does not permit to make a group under it.
    pub fn create(limit: Size) -> Result<Self> {
        Self::create_with(limit, false)
    }

    /// The same; with `swap`, they may use as much of the machine's swap as there is.
    ///
    /// # Errors
    /// As for [`Cgroup::create`].
    pub fn create_with(limit: Size, swap: bool) -> Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").context("cannot read the mounts")?;
        let own =
            fs::read_to_string("/proc/self/cgroup").context("cannot read this process's control group")?;
        let parents = candidates(&mounts, &own);
        let mut reasons = Vec::new();
        for (version, parent) in parents {
            match Self::create_under(&parent, version, limit, swap) {
                Ok(group) => return Ok(group),
                Err(error) => reasons.push(format!("{error:#}")),
            }
        }
        if reasons.is_empty() {
            bail!("this machine has no memory control groups mounted");
        }
        bail!("no memory control group can be made here (root may): {}", reasons.join("; "))
    }

    fn create_under(parent: &Path, version: Version, limit: Size, swap: bool) -> Result<Self> {
        let enabled_in = match version {
            Version::V1 => None,
            Version::V2 => enable_memory(parent)?,
        };
        // The time as well, since a lab that was killed leaves its group behind, and process ids come again.
        let dir = parent.join(format!("elbowroom-lab-{}-{}", std::process::id(), crate::board::now_ns()));
        let group = Self { dir, version, enabled_in };
        fs::create_dir(&group.dir).with_context(|| format!("cannot make {}", group.dir.display()))?;
        match version {
            Version::V1 => {
                group.set("memory.limit_in_bytes", limit)?;
                // Exists only where swap is accounted; memory and swap together may then not exceed the
                // limit.
                if !swap && group.dir.join("memory.memsw.limit_in_bytes").exists() {
                    group.set("memory.memsw.limit_in_bytes", limit)?;
                }
            }
            Version::V2 => {
                group.set("memory.max", limit)?;
                if !swap && group.dir.join("memory.swap.max").exists() {
                    group.set("memory.swap.max", Size::from_bytes(0))?;
                }
            }
        }
        Ok(group)
    }

    fn set(&self, file: &str, size: Size) -> Result<()> {
        let path = self.dir.join(file);
        fs::write(&path, size.bytes().to_string()).with_context(|| format!("cannot write {}", path.display()))
    }

    /// The file through which a process joins.
    pub fn procs(&self) -> PathBuf {
        self.dir.join("cgroup.procs")
    }

    /// The most memory that was charged to the group, where the kernel tells it.
    pub fn peak_bytes(&self) -> Option<u64> {
        let file = match self.version {
            Version::V1 => "memory.max_usage_in_bytes",
            Version::V2 => "memory.peak",
        };
        fs::read_to_string(self.dir.join(file)).ok()?.trim().parse().ok()
    }

    /// How many of the group's processes were killed because its memory did not suffice.
    pub fn oom_kills(&self) -> u64 {
        let file = match self.version {
            Version::V1 => "memory.oom_control",
            Version::V2 => "memory.events",
        };
        let text = fs::read_to_string(self.dir.join(file)).unwrap_or_default();
        counted(&text, "oom_kill").unwrap_or(0)
    }
}

/// What the kernel has counted of the group of this process: its memory.stat. `None` if there is none.
pub fn stats_of_own() -> Option<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    let (_, dir) = candidates(&mounts, &own).into_iter().next()?;
    fs::read_to_string(dir.join("memory.stat")).ok()
}

/// The number behind a key, in a text of one such pair a line.
pub fn counted(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        if self.version == Version::V1 {
            // Cached pages stay charged to a removed group, which would live on for them. Failure only means
            // that.
            let _ = fs::write(self.dir.join("memory.force_empty"), "0");
        }
        let until = Instant::now() + REMOVE_BOUND;
        loop {
            match fs::remove_dir(&self.dir) {
                Ok(()) => break,
                Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                Err(error) if Instant::now() >= until => {
                    eprintln!("could not remove {}: {error}", self.dir.display());
                    break;
                }
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
        if let Some(parent) = &self.enabled_in {
            // Fails with EBUSY if somebody else has begun to use it meanwhile, and then it should stay.
            let _ = fs::write(parent.join("cgroup.subtree_control"), "-memory");
        }
    }
}

/// Lets the children of a version 2 group have limits; gives the group back if that had to be switched on.
fn enable_memory(parent: &Path) -> Result<Option<PathBuf>> {
    let has_memory = |file: &str| {
        let text = fs::read_to_string(parent.join(file)).unwrap_or_default();
        text.split_ascii_whitespace().any(|controller| controller == "memory")
    };
    if has_memory("cgroup.subtree_control") {
        return Ok(None);
    }
    if !has_memory("cgroup.controllers") {
        bail!("{} has no memory controller", parent.display());
    }
    // Refused while the group holds processes itself; a group further up may do.
    fs::write(parent.join("cgroup.subtree_control"), "+memory")
        .with_context(|| format!("cannot give the memory controller to groups in {}", parent.display()))?;
    Ok(Some(parent.to_owned()))
}

/// The groups under which one may be made, best first: this process's own, then those above it.
///
/// `mountinfo` and `own` are the texts of /proc/self/mountinfo and /proc/self/cgroup.
fn candidates(mountinfo: &str, own: &str) -> Vec<(Version, PathBuf)> {
    let mut found = Vec::new();
    for line in mountinfo.lines() {
        let Some((left, right)) = line.split_once(" - ") else { continue };
        let (left, right): (Vec<_>, Vec<_>) = (left.split(' ').collect(), right.split(' ').collect());
        let (Some(root), Some(mount), Some(kind), Some(options)) =
            (left.get(3), left.get(4), right.first(), right.get(2))
        else {
            continue;
        };
        let version = match *kind {
            "cgroup" if options.split(',').any(|option| option == "memory") => Version::V1,
            "cgroup2" => Version::V2,
            _ => continue,
        };
        let mount = Path::new(mount);
        let path = own_path(own, version).and_then(|path| Path::new(path).strip_prefix(root).ok());
        let ancestors = path.unwrap_or(Path::new("")).ancestors();
        found.extend(ancestors.map(|path| (version, mount.join(path))));
    }
    // A hybrid machine mounts both; the memory controller is then where version 1 says.
    found.sort_by_key(|(version, _)| *version == Version::V2);
    found
}

/// This process's group: `number:controllers:path`, with no controllers for version 2.
fn own_path(own: &str, version: Version) -> Option<&str> {
    own.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        let fits = match version {
            Version::V1 => controllers.split(',').any(|controller| controller == "memory"),
            Version::V2 => controllers.is_empty(),
        };
        fits.then_some(path)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_one_comes_first_and_goes_up_to_the_mount() {
        let mounts = "1 0 0:1 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n\
                      2 0 0:2 / /sys/fs/cgroup/memory rw,relatime shared:1 - cgroup cgroup rw,memory\n\
                      3 0 0:3 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu";
        let own = "4:memory:/a/b\n1:cpu:/x\n0::/";
        let paths: Vec<_> = candidates(mounts, own).into_iter().map(|(_, path)| path).collect();
        let expected = ["memory/a/b", "memory/a", "memory/", "unified/"];
        assert_eq!(paths, expected.map(|path| Path::new("/sys/fs/cgroup").join(path)));
    }

    #[test]
    fn a_container_sees_its_own_group_as_the_root_of_the_mount() {
        let mounts = "1 0 0:1 /docker/7 /sys/fs/cgroup rw - cgroup2 cgroup rw";
        let own = "0::/docker/7/inner";
        let paths: Vec<_> = candidates(mounts, own).into_iter().map(|(_, path)| path).collect();
        assert_eq!(paths, ["/sys/fs/cgroup/inner", "/sys/fs/cgroup/"].map(PathBuf::from));
    }
}
