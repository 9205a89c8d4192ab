//! The block device under a directory: what it has read, and its readahead.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::size::Size;

/// The unit of the kernel's disk statistics, whatever the device's own sectors are.
const SECTOR_BYTES: u64 = 512;

/// The block device that a directory's filesystem is on.
#[derive(Debug, Clone)]
pub struct Device {
    name: String,
    /// `/sys/class/block/NAME` of the device or partition.
    sysfs: PathBuf,
    /// The file with the readahead of the whole device, in KiB.
    readahead_kb: PathBuf,
}

impl Device {
    /// Finds the device under `dir`.
    ///
    /// # Errors
    /// If the filesystem is on no block device that can be found, as with tmpfs, NFS or overlayfs.
    pub fn under(dir: &Path) -> Result<Self> {
        let dev = fs::metadata(dir).with_context(|| format!("cannot look at {}", dir.display()))?.dev();
        let number = device_number(dev).or_else(|| mount_source(dev));
        let number =
            number.with_context(|| format!("{} is on no block device that can be found", dir.display()))?;
        let link = PathBuf::from(format!("/sys/dev/block/{number}"));
        let sysfs = fs::canonicalize(&link).with_context(|| format!("cannot resolve {}", link.display()))?;
        // Readahead belongs to the whole disk, which is the parent directory of a partition.
        let disk = if sysfs.join("partition").exists() { sysfs.parent().unwrap_or(&sysfs) } else { &sysfs };
        let disk_number = fs::read_to_string(disk.join("dev")).context("the device has no number")?;
        let name = sysfs.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let readahead_kb = PathBuf::from(format!("/sys/class/bdi/{}/read_ahead_kb", disk_number.trim()));
        Ok(Self { name, sysfs, readahead_kb })
    }

    /// The device's name, as in /dev.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many bytes the device has read since the machine started.
    pub fn read_bytes(&self) -> Result<u64> {
        let path = self.sysfs.join("stat");
        let stat = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let sectors: Option<u64> =
            stat.split_ascii_whitespace().nth(2).and_then(|sectors| sectors.parse().ok());
        Ok(sectors.with_context(|| format!("{} is not understood", path.display()))? * SECTOR_BYTES)
    }

    /// The readahead as it is set now.
    pub fn readahead(&self) -> Result<Size> {
        let path = &self.readahead_kb;
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let kib: u64 =
            text.trim().parse().with_context(|| format!("{} is not understood", path.display()))?;
        Ok(Size::from_bytes(kib << 10))
    }

    /// Sets the readahead until the guard is dropped.
    ///
    /// # Errors
    /// If that is not permitted, or the device takes another value than the one asked for; the old one is
    /// restored then.
    pub fn with_readahead(&self, wanted: Size) -> Result<ReadaheadGuard> {
        let guard = ReadaheadGuard { device: self.clone(), before: self.readahead()? };
        self.set_readahead(wanted)?;
        let got = self.readahead()?;
        ensure!(got == wanted, "the device {} makes {got} of a readahead of {wanted}", self.name);
        Ok(guard)
    }

    fn set_readahead(&self, size: Size) -> Result<()> {
        let path = &self.readahead_kb;
        fs::write(path, (size.bytes() >> 10).to_string()).with_context(|| {
            let path = path.display();
            format!("cannot set the readahead by {path}; be root, or leave --kernel-readahead out")
        })
    }
}

/// Restores the readahead when dropped.
#[derive(Debug)]
pub struct ReadaheadGuard {
    device: Device,
    before: Size,
}

impl Drop for ReadaheadGuard {
    fn drop(&mut self) {
        if let Err(error) = self.device.set_readahead(self.before) {
            eprintln!(
                "could not restore the readahead of {} to {}: {error:#}",
                self.device.name, self.before
            );
        }
    }
}

/// The number of a real block device, as `major:minor`.
fn device_number(dev: u64) -> Option<String> {
    let number = format!("{}:{}", rustix::fs::major(dev), rustix::fs::minor(dev));
    Path::new("/sys/dev/block").join(&number).exists().then_some(number)
}

/// The number of the device that is mounted with the filesystem number `dev`, for filesystems with numbers of
/// their own (btrfs).
fn mount_source(dev: u64) -> Option<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let source =
        source_in(&mounts, &format!("{}:{}", rustix::fs::major(dev), rustix::fs::minor(dev)))?.to_owned();
    device_number(fs::metadata(source).ok()?.rdev())
}

fn source_in<'a>(mountinfo: &'a str, number: &str) -> Option<&'a str> {
    mountinfo.lines().filter(|line| line.split(' ').nth(2) == Some(number)).find_map(|line| {
        let source = line.split_once(" - ")?.1.split(' ').nth(1)?;
        source.starts_with("/dev/").then_some(source)
    })
}

/// Checks that files in a directory are on a disk.
///
/// # Errors
/// If the directory does not exist or its filesystem keeps files in memory.
pub fn check_on_disk(dir: &Path) -> Result<()> {
    /// tmpfs, ramfs and hugetlbfs, by the numbers of statfs(2).
    const IN_MEMORY: [u64; 3] = [0x0102_1994, 0x8584_58f6, 0x9584_58f6];
    let stat = rustix::fs::statfs(dir).with_context(|| format!("cannot look at {}", dir.display()))?;
    if IN_MEMORY.contains(&(stat.f_type as u64 & 0xffff_ffff)) {
        bail!("{} is in memory, not on a disk; name a directory on a disk with --dir", dir.display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_of_a_mount_is_found_by_its_number() {
        let mounts =
            "22 1 0:30 /sub /data rw shared:1 - btrfs /dev/sda2 rw\n23 1 0:31 / /t rw - tmpfs tmpfs rw";
        assert_eq!(source_in(mounts, "0:30"), Some("/dev/sda2"));
        assert_eq!(source_in(mounts, "0:31"), None);
    }

    #[test]
    fn memory_is_no_disk() {
        assert!(check_on_disk(Path::new("/dev/shm")).unwrap_err().to_string().contains("--dir"));
        assert!(check_on_disk(Path::new("/no/such/directory")).is_err());
    }
}
