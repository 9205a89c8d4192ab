//! `elbowroom run --learned FILE`: a run reads chunks whole from the start that an earlier one went through.

use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use elbowroom_tests::{Command, Outcome, Pattern, Scratch, Variant, behaviour, program};

const SEED: u64 = 7;
const MIB: u64 = 1 << 20;

/// A file with chunks, and another one that keeps what was learned of it.
struct Place {
    scratch: Scratch,
    variant: Variant,
    chunk_kib: u64,
    chunks: u64,
}

impl Place {
    fn new(variant: Variant) -> Self {
        // With the smallest budget no more than 1 MiB is read at once.
        let (chunk_kib, chunks) = if variant.memory_mib == 16 { (1024, 32) } else { (2048, 32) };
        let place = Self { scratch: Scratch::new(), variant, chunk_kib, chunks };
        place.make("data");
        place
    }

    fn bytes(&self) -> u64 {
        self.chunk_kib * self.chunks * 1024
    }

    fn make(&self, name: &str) {
        Pattern::create(&self.scratch.file(name), self.bytes(), SEED);
    }

    fn learned(&self) -> String {
        self.scratch.file("learned")
    }

    fn command(&self, name: &str) -> Command {
        let command = Command::new(program("each_chunk")).variant(self.variant);
        let command = command.run_options(&["--learned", &self.learned(), "--swap", "0"]);
        let command =
            if self.variant == Variant::bare() { command.run_options(&["-m256M"]) } else { command };
        command.args([self.scratch.file(name)]).args([SEED, self.chunk_kib])
    }

    fn run(&self, name: &str) -> Outcome {
        let outcome = self.command(name).run().success();
        assert_eq!(outcome.stdout, format!("{}\n", self.chunks), "{}", outcome.report());
        outcome
    }

    /// A run for which nothing was known of the file. Gives its major faults.
    fn unknown(&self, name: &str, why: &str) -> u64 {
        let outcome = self.run(name);
        let reads = outcome.stat("chunk_reads");
        assert!(reads <= self.chunks / 4, "{why}: {reads} chunks were known\n{}", outcome.report());
        outcome.stat("pgmajfault")
    }

    /// A run for which the chunks of the file were known. Gives its major faults.
    fn known(&self, name: &str, why: &str) -> u64 {
        let outcome = self.run(name);
        // Where the page before a chunk was in memory, it was not seen that accesses begin there.
        let (reads, wanted) = (outcome.stat("chunk_reads"), self.chunks * 5 / 8);
        assert!(reads >= wanted, "{why}: {reads} chunks were known\n{}", outcome.report());
        let read = outcome.stat("read_bytes");
        assert!(read <= self.bytes() * 11 / 10, "{why}: {read} bytes were read\n{}", outcome.report());
        outcome.stat("pgmajfault")
    }
}

/// Changes the file in a way that its times show.
fn change(path: &str, change: impl FnOnce(&File)) {
    let file = File::options().write(true).open(path).unwrap();
    // Kernels before 6.13 tell times by the tick.
    std::thread::sleep(Duration::from_millis(20));
    change(&file);
}

/// A run after the first one knows the chunks, until the file is changed.
fn the_next_run_knows(variant: Variant) {
    let place = Place::new(variant);
    let data = place.scratch.file("data");
    let first = place.unknown("data", "the first run");
    let second = place.known("data", "the second run");
    assert!(second < first, "{second} major faults, {first} in the first run");
    // What the second run has seen does no harm to the third.
    place.known("data", "the third run");
    change(&data, |file| file.set_modified(UNIX_EPOCH).unwrap());
    place.unknown("data", "the file has another time");
    place.known("data", "the file has the time of the run before");
    change(&data, |file| {
        file.set_len(place.bytes() + 4096).unwrap();
        file.set_len(place.bytes()).unwrap();
        file.set_modified(UNIX_EPOCH).unwrap();
    });
    place.unknown("data", "the file was larger in between");
    place.make("other");
    fs::rename(place.scratch.file("other"), &data).unwrap();
    place.unknown("data", "another file has the name");
}
behaviour!(the_next_run_knows: m64, m16, copy, threads, user_mode);

/// With memory for the whole file it is waited for little more than once for each chunk that is known.
#[test]
fn known_chunks_are_waited_for_once() {
    let place = Place::new(Variant::bare());
    let first = place.unknown("data", "the first run");
    let second = place.known("data", "the second run");
    assert!(second * 3 <= first * 2, "{second} major faults, {first} in the first run");
}

/// Processes of a run, which end at once, leave what they know in one file.
fn processes_of_a_run_share_the_file(variant: Variant) {
    let place = Place::new(variant);
    (0..4).for_each(|nth| place.make(&format!("data{nth}")));
    let one = format!("{} \"$0\"$1 {SEED} {}", program("each_chunk").display(), place.chunk_kib);
    let script = format!("for i in 0 1 2 3; do set -- $i; {one} & done; wait");
    let command = Command::new("sh").args(["-c", &script, &data(&place)]).variant(variant).maybe_unmanaged();
    let outcome = command.run_options(&["--learned", &place.learned(), "--swap", "0"]).run().success();
    assert_eq!(outcome.stdout, format!("{}\n", place.chunks).repeat(4), "{}", outcome.report());
    assert_eq!(outcome.stderr, "");
    (0..4).for_each(|nth| _ = place.known(&format!("data{nth}"), "learned by one of four processes"));
}
behaviour!(processes_of_a_run_share_the_file: m64);

fn data(place: &Place) -> String {
    place.scratch.file("data")
}

/// A file that cannot be used costs a line, and no run.
#[test]
fn damaged_files_are_made_anew() {
    let place = Place::new(Variant::m64());
    let learned = place.learned();
    place.run("data");
    let bytes = fs::read(&learned).unwrap();
    for (damage, said) in [
        (&bytes[..bytes.len() - 7], "it is damaged; it is made anew"),
        (
            &[&bytes[..8], &[9, 0, 0, 0], &bytes[12..]].concat(),
            "it has version 9, and not 1; it is made anew",
        ),
    ] {
        fs::write(&learned, damage).unwrap();
        let outcome = place.command("data").with_summary().run().success();
        assert_eq!(outcome.stderr.matches(said).count(), 1, "{}", outcome.report());
        assert_eq!(outcome.stat("chunk_reads"), 0);
        place.known("data", said);
    }
    // With --quiet not even that.
    fs::write(&learned, &bytes[..bytes.len() - 7]).unwrap();
    assert_eq!(place.run("data").stderr, "");
    place.known("data", "made anew");
    // A program that is killed leaves the file as it was.
    let before = fs::read(&learned).unwrap();
    place.make("new");
    let outcome = place.command("new").args(["kill"]).maybe_unmanaged().run();
    assert!(!outcome.status.success() && outcome.stdout == format!("{}\n", place.chunks));
    assert_eq!(fs::read(&learned).unwrap(), before);
    let names = fs::read_dir(place.scratch.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(names.into_iter().all(|name| !name.to_string_lossy().contains("elbowroom-new")));
}

/// What cannot be a file of ours ends `run` before the program starts.
#[test]
fn files_of_another_kind_are_refused() {
    let scratch = Scratch::new();
    let (novel, fifo, link) = (scratch.file("novel"), scratch.file("fifo"), scratch.file("link"));
    fs::write(&novel, "It was a dark and stormy night").unwrap();
    Command::new("mkfifo").args([&fifo]).run().success();
    std::os::unix::fs::symlink("nothing", &link).unwrap();
    let directory = scratch.path().display().to_string();
    for (path, said) in [
        (&novel, "has something else in it, and would be lost: name another file"),
        (&fifo, "is no regular file"),
        (&link, "is a symbolic link to nothing"),
        (&directory, "is a directory"),
        (&scratch.file("no/file"), "cannot be written"),
    ] {
        let options = ["--learned", path];
        let command = Command::new("true").variant(Variant::m64()).run_options(&options).maybe_unmanaged();
        let outcome = command.time_limit(Duration::from_secs(20)).run();
        assert_eq!(outcome.status.code(), Some(2), "{}", outcome.report());
        assert!(outcome.stderr.starts_with("elbowroom: --learned: "), "{}", outcome.report());
        assert!(outcome.stderr.contains(said), "{}", outcome.report());
    }
    assert_eq!(fs::read(&novel).unwrap(), b"It was a dark and stormy night");
    let same = scratch.file("same");
    let options = ["--learned", &same, "--trace", &same];
    let outcome = Command::new("true").variant(Variant::m64()).run_options(&options).maybe_unmanaged().run();
    assert!(outcome.stderr.contains("--trace and --learned name the same file"), "{}", outcome.report());
    // A file that becomes another kind of file meanwhile is left, and that is said.
    let (data, learned) = (scratch.file("data"), scratch.file("learned"));
    Pattern::create(&data, 8 * MIB, SEED);
    let script = format!(
        "{} {data} {SEED} 1024 && rm -f {learned} && mkfifo {learned}; exec {} {data} {SEED} 1024",
        program("each_chunk").display(),
        program("each_chunk").display()
    );
    let command = Command::new("sh").args(["-c", &script]).variant(Variant::m64()).with_summary();
    let outcome = command.run_options(&["--learned", &learned]).maybe_unmanaged().run().success();
    assert!(outcome.stderr.contains("it is no regular file"), "{}", outcome.report());
    assert!(!Path::new(&learned).is_file());
}

/// No file can be made in the directory of the file: the program ends well, and the old file stays whole.
#[test]
fn a_file_that_cannot_be_written_costs_a_line() {
    let place = Place::new(Variant::m64());
    place.run("data");
    let before = fs::read(place.learned()).unwrap();
    // The name is as long as can be, so the new file beside it has none.
    let read = format!("exec {} {} {SEED} 2048", program("each_chunk").display(), data(&place));
    let long = place.scratch.file(&"x".repeat(240));
    let options = ["--learned", &long];
    let command = Command::new("sh").args(["-c", &read]).variant(Variant::m64()).with_summary();
    let outcome = command.run_options(&options).run().success();
    assert!(outcome.stderr.contains("cannot keep in"), "{}", outcome.report());
    assert!(!Path::new(&long).exists(), "it was made to be locked");
    // The program's own limit on file sizes is not ours.
    let script = format!("ulimit -S -f 1; {read}");
    let command = Command::new("sh").args(["-c", &script]).variant(Variant::m64()).with_summary();
    let outcome = command.run_options(&["--learned", &place.learned()]).run().success();
    assert!(!outcome.stderr.contains("cannot keep"), "{}", outcome.report());
    assert_ne!(fs::read(place.learned()).unwrap(), before, "{}", outcome.report());
}
