//! Many processes that share files, each ended at a random moment by a random signal; afterwards every byte
//! that was confirmed is on the disk.
//!
//! A *slot* is a place for one process at a time (`tests/programs/soak_kill.c`), which is started again and
//! again, under the plain kernel or under `elbowroom run` with some budget. It tells what it does through a
//! pipe, so what was confirmed is known here whatever becomes of the process. After each end the slot's
//! records are read with plain reads: each word must be of the batch that was confirmed last, or of one that
//! was begun after it.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::place::elbowroom_exe;
use crate::program::program;
use crate::run::describe_threads;

/// The files of a slot: three that all share, and one of its own.
const FILES: usize = 4;
const SHARED: usize = 3;
const SIZES: [u64; FILES] = [6 << 20, 6 << 20, 6 << 20, 8 << 20];
const RECORD: u64 = 64;
const WORDS: u64 = 8;
/// The most records of a batch.
const MOST: u64 = 64;
/// Batches of one life.
const STEPS: u64 = 4000;
/// How long a process may be silent, or take to end once a signal ends it, on processors that others use,
/// too.
const BOUND: Duration = Duration::from_secs(60);
/// How often a process is looked at.
const POLL: Duration = Duration::from_millis(2);
/// The longest life, in milliseconds.
const LIFE: u64 = 1500;

/// The ways to run a process; the plain kernel is one of them.
const WAYS: [&[&str]; 8] = [
    &[],
    &[],
    &["--memory", "16M"],
    &["--memory", "16M", "--min-size", "4K"],
    &["--memory", "24M", "--min-size", "4K", "--writeback-interval", "100ms"],
    &["--memory", "64M"],
    &["--memory", "16M", "--mmu", "copy"],
    &["--memory", "16M", "--io", "threads", "--handlers", "1"],
];

/// How a soak is done.
#[derive(Debug, Clone)]
pub struct Soak {
    /// From which everything follows but the time.
    pub seed: u64,
    /// Processes at once.
    pub slots: u64,
    /// For how long.
    pub time: Duration,
    /// Whether all processes run under the plain kernel: this validates the soak.
    pub plain: bool,
}

/// What a soak has done.
#[derive(Debug, Clone, Copy, Default)]
pub struct Done {
    /// Processes that have ended.
    pub lives: u64,
    /// Of these, by SIGKILL.
    pub killed: u64,
    /// Of these, by another signal.
    pub signalled: u64,
    /// Batches that were confirmed.
    pub confirmed: u64,
    /// Records that were looked at.
    pub checked: u64,
}

impl Soak {
    /// Does it.
    ///
    /// # Panics
    /// If bytes that were confirmed are not there, a process fails a check of its own, or hangs.
    pub fn run(&self, directory: &Path) -> Done {
        let make = |name: String, size| {
            let file = File::create(directory.join(name)).expect("files can be made");
            file.set_len(size).expect("files can be made");
        };
        (0..SHARED).for_each(|index| make(format!("shared.{index}"), SIZES[index]));
        (0..self.slots).for_each(|slot| make(format!("own.{slot}"), SIZES[SHARED]));
        let deadline = Instant::now() + self.time;
        let mut all = Done::default();
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.slots)
                .map(|number| scope.spawn(move || Slot::new(self, number, directory).live(deadline)))
                .collect();
            // All are joined before one's panic goes on, so that no process is left.
            let results: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
            for result in results {
                let done = result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                all.lives += done.lives;
                all.killed += done.killed;
                all.signalled += done.signalled;
                all.confirmed += done.confirmed;
                all.checked += done.checked;
            }
        });
        all
    }
}

/// What is known of a slot's records: batches by record of each file, the confirmed one first, if there is
/// one.
#[derive(Debug, Default)]
struct Known {
    records: [HashMap<u64, Vec<u64>>; FILES],
    /// Batches that were begun, stored, and not yet confirmed.
    begun: [Vec<u64>; FILES],
    stored: [Vec<u64>; FILES],
    highest: u64,
    started: bool,
    ended: bool,
    confirmed: u64,
    last_line: Option<Instant>,
}

struct Slot<'a> {
    soak: &'a Soak,
    number: u64,
    directory: &'a Path,
    known: Arc<Mutex<Known>>,
    random: u64,
    done: Done,
}

/// A process of a slot.
struct Life {
    child: Child,
    managed: bool,
    text: String,
    stderr: PathBuf,
    reader: std::thread::JoinHandle<()>,
}

impl<'a> Slot<'a> {
    fn new(soak: &'a Soak, number: u64, directory: &'a Path) -> Self {
        let random = mix(mix(soak.seed) ^ number ^ 0x736f_616b);
        Self { soak, number, directory, known: Arc::default(), random, done: Done::default() }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random = self.random.wrapping_add(1);
        mix(self.random) % bound
    }

    fn live(mut self, deadline: Instant) -> Done {
        while Instant::now() < deadline {
            let mut life = self.start();
            self.wait_for_start(&mut life);
            let wait = Duration::from_millis(self.below(LIFE));
            self.watch(&mut life, Instant::now() + wait);
            let status = self.end(&mut life);
            self.account(life, status);
            self.check_disk();
        }
        self.done.confirmed = lock(&self.known).confirmed;
        self.done
    }

    fn start(&mut self) -> Life {
        let way = if self.soak.plain { &[][..] } else { WAYS[self.below(WAYS.len() as u64) as usize] };
        // A job in the background ignores some signals, and its children would.
        let mut arguments = vec!["env".to_owned(), "--default-signal".to_owned()];
        if !way.is_empty() {
            arguments.push(elbowroom_exe().display().to_string());
            arguments.push("run".to_owned());
            arguments.extend(way.iter().map(|&option| option.to_owned()));
            arguments.extend(["--quiet".to_owned(), "--".to_owned()]);
        }
        arguments.push(program("soak_kill").display().to_string());
        arguments.push(self.directory.display().to_string());
        let steps = 1 + self.below(STEPS);
        let first = lock(&self.known).highest + 1;
        for number in [self.soak.seed, self.number, self.soak.slots, first, steps] {
            arguments.push(number.to_string());
        }
        let stderr = self.directory.join(format!("stderr.{}", self.number));
        let mut child = std::process::Command::new(&arguments[0])
            .args(&arguments[1..])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(&stderr).expect("a file can be made"))
            .process_group(0)
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", arguments[0]));
        let known = Arc::clone(&self.known);
        {
            let mut known = lock(&known);
            (known.started, known.ended, known.last_line) = (false, false, Some(Instant::now()));
        }
        let stdout = BufReader::new(child.stdout.take().expect("there is a pipe"));
        let (seed, slot, slots) = (self.soak.seed, self.number, self.soak.slots);
        let reader = std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                lock(&known).hear(&line, seed, slot, slots);
            }
        });
        Life { child, managed: !way.is_empty(), text: arguments.join(" "), stderr, reader }
    }

    fn wait_for_start(&self, life: &mut Life) {
        while !lock(&self.known).started && !ended(life) {
            self.check_silence(life);
            std::thread::sleep(POLL);
        }
    }

    fn watch(&self, life: &mut Life, until: Instant) {
        while Instant::now() < until && !ended(life) {
            self.check_silence(life);
            std::thread::sleep(POLL);
        }
    }

    /// Sends signals until it has ended, if it does not end by itself.
    fn end(&mut self, life: &mut Life) -> ExitStatus {
        let pid = Pid::from_child(&life.child);
        for round in 0_u64.. {
            if let Some(status) = life.child.try_wait().expect("a child can be waited for") {
                return status;
            }
            // Some end nothing: these are followed by others, and by SIGKILL at last.
            let number = match self.below(4) {
                0 => libc::SIGKILL,
                _ if round > 6 => libc::SIGKILL,
                1 => libc::SIGRTMIN() + self.below(20) as i32,
                _ => 1 + self.below(31) as i32,
            };
            let Some(signal) = Signal::from_named_raw(number) else {
                send_realtime(pid, number);
                self.wait_after(life, number, true);
                continue;
            };
            let _ = kill_process(pid, signal);
            let stops = [libc::SIGSTOP, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU].contains(&number);
            if stops {
                std::thread::sleep(Duration::from_millis(self.below(50)));
                let _ = kill_process(pid, Signal::CONT);
            }
            let harmless = [libc::SIGCHLD, libc::SIGURG, libc::SIGWINCH, libc::SIGCONT].contains(&number);
            // The program may have a handler for these two.
            let handled = [libc::SIGUSR1, libc::SIGTERM].contains(&number);
            self.wait_after(life, number, !(stops || harmless || handled));
        }
        unreachable!("the loop ends by itself")
    }

    /// A signal that ends the program does so within the bound; another is given a moment.
    fn wait_after(&mut self, life: &mut Life, signal: i32, deadly: bool) {
        let sent = Instant::now();
        let moment = Duration::from_millis(self.below(300));
        while !ended(life) && (deadly || sent.elapsed() < moment) {
            if sent.elapsed() > BOUND {
                self.hang(life, &format!("was sent signal {signal}, which ends it, and lives on"));
            }
            if !deadly {
                self.check_silence(life);
            }
            std::thread::sleep(POLL);
        }
    }

    fn check_silence(&self, life: &mut Life) {
        let silent = lock(&self.known).last_line.is_some_and(|last| last.elapsed() > BOUND);
        if silent && !ended(life) {
            self.hang(life, "has said nothing");
        }
    }

    fn hang(&self, life: &mut Life, what: &str) -> ! {
        let threads = describe_threads(life.child.id());
        let _ = kill_process_group(Pid::from_child(&life.child), Signal::KILL);
        let _ = life.child.wait();
        panic!(
            "seed {}, slot {}: {} {what} for {BOUND:?}.\nIts threads:\n{threads}\nstandard error:\n{}",
            self.soak.seed,
            self.number,
            life.text,
            std::fs::read_to_string(&life.stderr).unwrap_or_default()
        );
    }

    /// What its end means for what it had stored.
    fn account(&mut self, life: Life, status: ExitStatus) {
        life.reader.join().expect("the reader does not panic");
        let stderr = std::fs::read_to_string(&life.stderr).unwrap_or_default();
        let (seed, slot) = (self.soak.seed, self.number);
        let mut known = lock(&self.known);
        let killed = status.signal() == Some(libc::SIGKILL);
        assert!(
            status.signal().is_some() || (status.success() && known.ended),
            "seed {seed}, slot {slot}: {} ended with {status}:\n{stderr}",
            life.text
        );
        self.done.lives += 1;
        self.done.killed += u64::from(killed);
        self.done.signalled += u64::from(status.signal().is_some() && !killed);
        for file in 0..FILES {
            // Whoever ends, but by SIGKILL, has written back what was stored; the kernel always has.
            if !(killed && life.managed) {
                known.confirm_stored(file, seed, slot, self.soak.slots);
            }
            known.begun[file].clear();
            known.stored[file].clear();
        }
    }

    /// Reads the slot's records as anybody else would.
    fn check_disk(&mut self) {
        let known = lock(&self.known);
        for file in 0..FILES {
            let path = match file {
                SHARED => self.directory.join(format!("own.{}", self.number)),
                _ => self.directory.join(format!("shared.{file}")),
            };
            let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            for (&record, batches) in &known.records[file] {
                self.done.checked += 1;
                for word in 0..WORDS {
                    let at = (record * RECORD + word * 8) as usize;
                    let found = u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
                    let right = batches.iter().any(|&batch| match batch {
                        0 => found == 0,
                        _ => found == word_of(self.soak.seed, file, record, word, batch),
                    });
                    assert!(
                        right,
                        "seed {}, slot {}: word {word} of record {record} (offset {at:#x}) of {} is \
                         {found:#x} (batch {}), but batch {} is confirmed, and begun after it are {:?}",
                        self.soak.seed,
                        self.number,
                        path.display(),
                        found & 0xff_ffff,
                        batches[0],
                        &batches[1..]
                    );
                }
            }
        }
    }
}

impl Known {
    fn hear(&mut self, line: &str, seed: u64, slot: u64, slots: u64) {
        self.last_line = Some(Instant::now());
        let mut words = line.split(' ');
        let what = words.next().unwrap_or("");
        let mut number =
            || words.next().and_then(|word| word.parse::<u64>().ok()).expect("a line has its numbers");
        match what {
            "S" => self.started = true,
            "E" => self.ended = true,
            "B" => {
                let (file, batch) = (number() as usize, number());
                self.highest = self.highest.max(batch);
                self.begun[file].push(batch);
                for record in records_of(seed, slot, slots, file, batch) {
                    self.records[file].entry(record).or_insert_with(|| vec![0]).push(batch);
                }
            }
            "D" => {
                let file = number() as usize;
                self.stored[file].push(number());
            }
            "C" => {
                let (file, batch) = (number() as usize, number());
                self.stored[file].retain(|&stored| stored != batch);
                self.confirm(file, batch, seed, slot, slots);
            }
            "F" => {
                let file = number() as usize;
                self.confirm_stored(file, seed, slot, slots);
            }
            // A line that the end cut short.
            _ => {}
        }
    }

    fn confirm_stored(&mut self, file: usize, seed: u64, slot: u64, slots: u64) {
        for batch in std::mem::take(&mut self.stored[file]) {
            self.confirm(file, batch, seed, slot, slots);
        }
    }

    /// Nothing before this batch may be in its records any more.
    fn confirm(&mut self, file: usize, batch: u64, seed: u64, slot: u64, slots: u64) {
        self.confirmed += 1;
        for record in records_of(seed, slot, slots, file, batch) {
            if let Some(batches) = self.records[file].get_mut(&record) {
                batches.retain(|&other| other >= batch);
            }
        }
    }
}

/// The records of a batch, as the program computes them.
fn records_of(seed: u64, slot: u64, slots: u64, file: usize, batch: u64) -> Vec<u64> {
    let (slots, slot_in_file) = if file < SHARED { (slots, slot) } else { (1, 0) };
    let own = SIZES[file] / RECORD / slots;
    let hash = mix(seed ^ mix((slot << 32) ^ ((file as u64) << 56) ^ batch));
    let count = 1 + hash % MOST;
    (0..count)
        .map(|i| if hash >> 63 == 1 { (hash / MOST + i) % own } else { mix(hash.wrapping_add(i)) % own })
        .map(|nth| nth * slots + slot_in_file)
        .collect()
}

fn word_of(seed: u64, file: usize, record: u64, word: u64, batch: u64) -> u64 {
    let place = (((file as u64) << 40) | (record << 4) | word) ^ seed;
    (mix(mix(place) ^ batch) << 24) | batch
}

/// As in `tests/programs/common.h`.
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn lock(known: &Mutex<Known>) -> MutexGuard<'_, Known> {
    known.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Whether it has ended; it can still be waited for.
fn ended(life: &mut Life) -> bool {
    !matches!(life.child.try_wait(), Ok(None))
}

/// The names that rustix has end at 31.
fn send_realtime(pid: Pid, number: i32) {
    let _ = std::process::Command::new("kill")
        .args([format!("-{number}"), pid.as_raw_nonzero().to_string()])
        .status();
}
