//! The kernel's swap, for as long as the lab needs it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::size::Size;

/// A swap file that the kernel uses for as long as this lives.
pub struct KernelSwap(PathBuf);

impl KernelSwap {
    /// Makes it in a directory on a disk, with room for so much, and puts it before all others.
    ///
    /// # Errors
    /// If there is no room, or the kernel refuses.
    pub fn on(dir: &Path, size: Size) -> Result<Self> {
        let path = dir.join(format!("elbowroom-lab-swap-{}", std::process::id()));
        let swap = Self(path);
        let bytes = size.bytes() + (16 << 20);
        // Not a hole: swapon(2) refuses files with holes.
        let file = std::fs::File::create_new(&swap.0)
            .with_context(|| format!("cannot make {}", swap.0.display()))?;
        rustix::fs::fchmod(&file, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)?;
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes)
            .with_context(|| format!("no room for a swap file of {} MiB", bytes >> 20))?;
        drop(file);
        command("mkswap", &[], &swap.0)?;
        command("swapon", &["-p", "32767"], &swap.0)
            .context("the kernel's swap needs root; leave the kernel out by --engines")?;
        Ok(swap)
    }
}

impl Drop for KernelSwap {
    fn drop(&mut self) {
        if let Err(error) = command("swapoff", &[], &self.0) {
            eprintln!("elbowroom: {error:#}; swapoff {} does it", self.0.display());
        } else {
            let _ = std::fs::remove_file(&self.0);
        }
    }
}

/// Runs a program of util-linux on a path.
fn command(name: &str, options: &[&str], path: &Path) -> Result<()> {
    let found =
        ["/usr/sbin", "/sbin", "/usr/bin"].iter().map(|dir| Path::new(dir).join(name)).find(|p| p.exists());
    let program = found.with_context(|| format!("{name} is missing; apt install mount util-linux"))?;
    let output = Command::new(program).args(options).arg(path).output()?;
    if !output.status.success() {
        bail!("{name} {}: {}", path.display(), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}
