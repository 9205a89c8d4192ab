//! What the kernel says about processes and about the machine, out of /proc.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;

/// Resident memory of a process, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Resident {
    /// VmRSS: all of it.
    pub total_bytes: u64,
    /// RssAnon: private memory.
    pub anon_bytes: u64,
    /// RssFile: mapped pages of files.
    pub file_bytes: u64,
}

/// Resident memory of a process; `None` if it is gone or has no memory any more.
pub fn resident(pid: u64) -> Option<Resident> {
    parse_resident(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?)
}

/// Resident memory of a process, of which a page that several processes have counts in each by its part;
/// `None` if the process is gone or has no memory any more.
pub fn proportional_bytes(pid: u64) -> Option<u64> {
    kibibytes(&fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?, "Pss")
}

/// The most that was resident of this process at any time.
pub fn peak_resident_bytes() -> Option<u64> {
    kibibytes(&fs::read_to_string("/proc/self/status").ok()?, "VmHWM")
}

/// A field of a file of /proc such as status, in bytes.
fn kibibytes(status: &str, name: &str) -> Option<u64> {
    let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

fn parse_resident(status: &str) -> Option<Resident> {
    let field = |name: &str| kibibytes(status, name);
    Some(Resident {
        total_bytes: field("VmRSS")?,
        anon_bytes: field("RssAnon")?,
        file_bytes: field("RssFile")?,
    })
}

/// User and system time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cpu {
    /// In the program.
    pub user: Duration,
    /// In the kernel on its behalf.
    pub system: Duration,
}

impl Cpu {
    /// Both together.
    pub fn total(self) -> Duration {
        self.user + self.system
    }
}

/// What a process and the children it has waited for have used so far. Also tells it of a process that has
/// ended but is not yet waited for.
pub fn cpu(pid: u64) -> Result<Cpu> {
    let path = format!("/proc/{pid}/stat");
    let stat = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    parse_cpu(&stat).with_context(|| format!("{path} is not understood: {stat:?}"))
}

/// How many bytes a process and the children it has waited for have had read from and written to devices, as
/// far as the kernel tells it. Also of a process that has ended but is not yet waited for.
pub fn device_bytes(pid: u64) -> Option<(u64, u64)> {
    parse_device_bytes(&fs::read_to_string(format!("/proc/{pid}/io")).ok()?)
}

fn parse_device_bytes(io: &str) -> Option<(u64, u64)> {
    let field = |name: &str| io.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    Some((field("read_bytes:")?, field("write_bytes:")?))
}

/// What this process has used so far, without its children.
pub fn cpu_of_this_process() -> Result<Duration> {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::try_from(used).context("the clock of this process's CPU time is wrong")
}

fn parse_cpu(stat: &str) -> Option<Cpu> {
    // The name in parentheses may hold anything, so fields are counted from its end; the first of them is
    // field 3.
    let fields: Vec<&str> = stat[stat.rfind(')')? + 1..].split_ascii_whitespace().collect();
    let ticks = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    Some(Cpu { user: of_ticks(ticks(14)? + ticks(16)?), system: of_ticks(ticks(15)? + ticks(17)?) })
}

/// Faults of the calling thread so far, as the kernel counts them: without I/O, and with it (or tried again).
pub fn faults_of_this_thread() -> Result<(u64, u64)> {
    let path = "/proc/thread-self/stat";
    let stat = fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    parse_faults(&stat).with_context(|| format!("{path} is not understood: {stat:?}"))
}

fn parse_faults(stat: &str) -> Option<(u64, u64)> {
    let fields: Vec<&str> = stat[stat.rfind(')')? + 1..].split_ascii_whitespace().collect();
    let count = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    Some((count(10)?, count(12)?))
}

/// How long all processors together have been busy since the machine started: everything but idle, waiting
/// for I/O, and time taken by other machines.
pub fn machine_busy() -> Result<Duration> {
    ticks().map(|ticks| ticks.busy)
}

/// Time of all processors together since the machine started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticks {
    /// In programs.
    pub user: Duration,
    /// Everything but idle, waiting for I/O, and what was taken by other machines.
    pub busy: Duration,
    /// Taken by other machines.
    pub steal: Duration,
}

/// What all processors have done so far.
pub fn ticks() -> Result<Ticks> {
    let stat = fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
    parse_ticks(&stat).context("/proc/stat is not understood")
}

fn parse_ticks(stat: &str) -> Option<Ticks> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<u64> = line.split_ascii_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
    // user nice system idle iowait irq softirq steal; guest time is part of user.
    let sum = |columns: &[usize]| columns.iter().map(|column| ticks.get(*column)).sum::<Option<u64>>();
    let steal = of_ticks(ticks.get(7).copied().unwrap_or(0));
    Some(Ticks { user: of_ticks(sum(&[0, 1])?), busy: of_ticks(sum(&[0, 1, 2, 5, 6])?), steal })
}

/// The load average of the last minute.
pub fn load_average() -> Option<f64> {
    fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()
}

/// How many threads run or could run now.
pub fn runnable() -> Option<u64> {
    let loadavg = fs::read_to_string("/proc/loadavg").ok()?;
    loadavg.split(' ').nth(3)?.split('/').next()?.parse().ok()
}

/// The share of the last 10 s in which some thread waited for a processor; `None` where the kernel does not
/// tell.
pub fn cpu_pressure_percent() -> Option<f64> {
    parse_pressure(&fs::read_to_string("/proc/pressure/cpu").ok()?)
}

fn parse_pressure(text: &str) -> Option<f64> {
    text.strip_prefix("some avg10=")?.split(' ').next()?.parse().ok()
}

fn of_ticks(ticks: u64) -> Duration {
    Duration::from_nanos(ticks.saturating_mul(1_000_000_000 / rustix::param::clock_ticks_per_second().max(1)))
}

/// The machine that the figures are of.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    /// Name and release of the kernel.
    pub kernel: String,
    /// What the processor calls itself.
    pub processor: Option<String>,
    /// Processors that can be used.
    pub cpus: usize,
    /// Memory of the machine.
    pub memory_bytes: u64,
}

/// The model of the first processor, where /proc/cpuinfo has one.
fn processor() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let (_, name) = text.lines().find(|line| line.starts_with("model name"))?.split_once(':')?;
    Some(name.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Looks at this machine.
pub fn machine() -> Result<Machine> {
    let release =
        fs::read_to_string("/proc/sys/kernel/osrelease").context("cannot read the kernel's release")?;
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let kernel = format!("Linux {}", release.trim());
    Ok(Machine { kernel, processor: processor(), cpus, memory_bytes: meminfo_bytes("MemTotal")? })
}

/// Memory that programs can have without anything being paged out, as the kernel guesses.
pub fn available_bytes() -> Result<u64> {
    meminfo_bytes("MemAvailable")
}

fn meminfo_bytes(key: &str) -> Result<u64> {
    let text = fs::read_to_string("/proc/meminfo").context("cannot read /proc/meminfo")?;
    let of_key = |line: &str| {
        line.strip_prefix(key)?.strip_prefix(':')?.trim().strip_suffix(" kB")?.parse::<u64>().ok()
    };
    let kib = text.lines().find_map(of_key).with_context(|| format!("/proc/meminfo has no {key}"))?;
    Ok(kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_parentheses_do_not_shift_the_fields() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 10 0 0 0 100 200 3 4 20 0 1 0 5 6 7";
        let cpu = parse_cpu(stat).unwrap();
        assert_eq!((cpu.user, cpu.system), (of_ticks(103), of_ticks(204)));
        assert_eq!(parse_faults(stat), Some((10, 0)));
    }

    #[test]
    fn what_a_device_did_is_told_apart_from_calls() {
        let io = "rchar: 1\nwchar: 2\nread_bytes: 30\nwrite_bytes: 40\ncancelled_write_bytes: 5\n";
        assert_eq!(parse_device_bytes(io), Some((30, 40)));
        assert_eq!(parse_device_bytes("rchar: 1\n"), None);
    }

    #[test]
    fn busy_leaves_out_idle_iowait_and_steal() {
        let ticks = parse_ticks("cpu  1 2 4 1000 1000 8 16 500 0 0\ncpu0 1").unwrap();
        let expected = Ticks { user: of_ticks(3), busy: of_ticks(31), steal: of_ticks(500) };
        assert_eq!((ticks, parse_ticks("cpu0 1")), (expected, None));
    }

    #[test]
    fn pressure_is_that_of_some_threads_over_ten_seconds() {
        let text = "some avg10=51.07 avg60=85.55 avg300=54.98 total=269945172\nfull avg10=0.00";
        assert_eq!((parse_pressure(text), parse_pressure("")), (Some(51.07), None));
    }

    #[test]
    fn this_process_is_resident_and_has_used_something() {
        let resident = resident(u64::from(std::process::id())).unwrap();
        assert!(resident.total_bytes >= resident.anon_bytes && resident.anon_bytes > 0);
        assert!(cpu(u64::from(std::process::id())).is_ok() && machine_busy().unwrap() > Duration::ZERO);
        assert!(machine().unwrap().memory_bytes > available_bytes().unwrap());
    }
}
