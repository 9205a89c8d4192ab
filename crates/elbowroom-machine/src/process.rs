//! Facts about processes: which exist, and since when.

use rustix::process::{Pid, getpid, test_kill_process};
use rustix::time::{ClockId, clock_gettime};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;

/// The length of a clock tick of /proc, in nanoseconds: the same on every architecture (USER_HZ).
const TICK_NS: u64 = 10_000_000;
/// No text of /proc/PID/stat is longer: 52 numbers, and a name of 64 bytes.
const STAT_BYTES: usize = 2048;
/// No path of such a file is longer.
const STAT_PATH_BYTES: usize = 32;

/// Nanoseconds since the machine was started, including the time in which it was suspended.
pub fn boot_time() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The processor time of this process, of all its threads, in nanoseconds.
pub fn processor_time() -> u64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// For how long the calling thread has waited for a processor so far, in nanoseconds. 0: the kernel does not
/// say.
pub fn run_delay() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').nth(1).and_then(|delay| delay.parse().ok()).unwrap_or(0)
}

/// The id of this process.
pub fn own_pid() -> u32 {
    getpid().as_raw_nonzero().get().unsigned_abs()
}

/// The name of the calling thread as two words, its first byte the lowest. The main thread's name is that
/// of the program.
pub fn own_name() -> [u64; 2] {
    let mut bytes = [0; 16];
    if let Ok(name) = rustix::thread::name() {
        bytes.iter_mut().zip(name.to_bytes()).for_each(|(to, from)| *to = *from);
    }
    let half = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
    [half(0), half(8)]
}

/// The pid namespace of this process: its inode number. 0: /proc does not say.
pub fn pid_namespace() -> u64 {
    rustix::fs::stat("/proc/self/ns/pid").map_or(0, |stat| stat.st_ino)
}

/// How many anonymous pages of this process do not count as its own, since other processes share them: its
/// anonymous pages less their proportional set size. While a forked process and its parent share pages,
/// each counts only its share of them. The kernel walks all page tables for this, about 5 ms for each GiB.
/// 0: the kernel does not say.
pub fn shared_anonymous_pages() -> usize {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    let kibibytes = |name: &str| -> Option<usize> {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix(" kB")?.trim().parse().ok()
    };
    let (all, part) = (kibibytes("Anonymous:"), kibibytes("Pss_Anon:"));
    all.zip(part).map_or(0, |(all, part)| all.saturating_sub(part) / (crate::PAGE_SIZE >> 10))
}

/// Whether a process with this id exists, if only as a zombie. Allocates nothing.
pub fn process_exists(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    // A process that this one may not signal exists, too: EPERM.
    pid.is_some_and(|pid| test_kill_process(pid) != Err(rustix::io::Errno::SRCH))
}

/// When a process was started, in nanoseconds since the boot, rounded down to 10 ms. 0: it exists, but
/// /proc does not say since when. `None`: it is gone, or a zombie. Allocates nothing.
pub fn process_started(pid: u32) -> Option<u64> {
    let mut text = [0; STAT_BYTES];
    let stat = read_stat(pid, &mut text).and_then(started);
    stat.unwrap_or_else(|| process_exists(pid).then_some(0))
}

/// Reads /proc/PID/stat. `None`: /proc is not there, or the process is not.
fn read_stat(pid: u32, text: &mut [u8; STAT_BYTES]) -> Option<&[u8]> {
    let mut path = [0; STAT_PATH_BYTES];
    let mut rest = path.as_mut_slice();
    write!(rest, "/proc/{pid}/stat").ok()?;
    let len = STAT_PATH_BYTES - rest.len();
    let mut file = File::open(OsStr::from_bytes(&path[..len])).ok()?;
    let len = file.read(text).ok()?;
    Some(&text[..len])
}

/// The start time in a text of /proc/PID/stat. The inner `None`: the process has ended. The outer `None`:
/// the text does not have the form of such a file.
fn started(stat: &[u8]) -> Option<Option<u64>> {
    // The command name, in parentheses, may contain any byte.
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(stat.get(name_end + 2..)?).ok()?;
    let field = |number: usize| rest.split(' ').nth(number - 3);
    let threads: u64 = field(20)?.parse().ok()?;
    let ticks: u64 = field(22)?.parse().ok()?;
    // A zombie main thread does not mean that the process has ended: its other threads may still run.
    let is_gone = matches!(field(3)?, "Z" | "X") && threads <= 1;
    Some((!is_gone).then_some(ticks * TICK_NS))
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_there_and_a_child_that_ended_is_not() {
        let own = process_started(own_pid()).unwrap();
        assert!(own > 0 && own <= boot_time(), "{own}");
        let before = boot_time() / TICK_NS * TICK_NS;
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let began = std::time::Instant::now();
        while let Some(started) = process_started(child.id()) {
            assert!((before..=boot_time()).contains(&started));
            assert!(began.elapsed().as_secs() < 20, "its exit status is left, and it counts as there");
        }
        child.wait().unwrap();
        assert_eq!(process_started(child.id()), None);
        assert_eq!(process_started(1).map(|started| started < before), Some(true));
    }

    #[test]
    fn times_of_processors_grow() {
        let before = processor_time();
        let began = std::time::Instant::now();
        while processor_time() < before + 1_000_000 {
            assert!(began.elapsed() < std::time::Duration::from_secs(20), "it used none");
        }
        assert!(run_delay() < boot_time());
    }

    #[test]
    fn a_process_that_shares_no_memory_has_all_of_it() {
        let memory = vec![1_u8; 64 << 20];
        assert!(shared_anonymous_pages() < memory.len() / crate::PAGE_SIZE / 4);
        assert!(pid_namespace() > 0);
        drop(memory);
    }

    #[test]
    fn the_start_stands_behind_any_name() {
        let rest = "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 THREADS 0 123 9 9";
        let stat = |state: &str, threads: &str| {
            let rest = format!(") {state} {}", rest.replace("THREADS", threads));
            [b"7 (a) \xff".as_slice(), rest.as_bytes()].concat()
        };
        assert_eq!(started(&stat("S", "1")), Some(Some(123 * TICK_NS)));
        assert_eq!(started(&stat("Z", "1")), Some(None));
        assert_eq!(started(&stat("Z", "2")), Some(Some(123 * TICK_NS)));
        assert_eq!(started(b"nothing"), None);
        assert_eq!(started(b"7 (cut)"), None);
    }
}
