//! `run --swap --fork copy`: forked children go on with their parent's memory, three times the budget, and
//! have a manager of their own.

use elbowroom_tests::program::require;
use elbowroom_tests::{Command, Outcome, Pattern, Scratch, Variant, behaviour, program, skipped};

/// Runs a part of the program `forked` with 48 MiB, beside the kernel, which validates it.
fn forked(variant: Variant, part: &str, swap: &str, more: &[&str]) -> Outcome {
    let plain = Command::new(program("forked")).args([part, "48"]).run().success();
    assert_eq!(plain.stdout, "ok\n", "{}", plain.report());
    let outcome = whole(run(variant, "forked", part, swap, "copy", more));
    assert_eq!(outcome.stat("forked_unmanaged"), 0, "{}", outcome.report());
    outcome
}

/// Runs a part of the program `name` with 48 MiB and `--fork HOW`, however it ends.
fn run(variant: Variant, name: &str, part: &str, swap: &str, how: &str, more: &[&str]) -> Outcome {
    let scratch = Scratch::new();
    let dir = scratch.file("");
    let mut options = vec!["--swap", swap, "--swap-dir", &dir, "--fork", how];
    options.extend(more);
    // Budget, what the library needs, and the program itself.
    let command = Command::new(program(name)).args([part, "48", "44"]);
    command.variant(variant).run_options(&options).run()
}

/// It ended well, and its memory was managed to the end.
fn whole(outcome: Outcome) -> Outcome {
    let outcome = outcome.success();
    assert_eq!(outcome.stdout, "ok\n", "{}", outcome.report());
    assert_eq!(outcome.stat("swap_errors"), 0, "{}", outcome.report());
    assert!(outcome.stat("pswpin") > 7_500, "{}", outcome.report());
    outcome
}

fn both_check_and_change_all_pages(variant: Variant) {
    forked(variant, "both", "256M", &[]);
}
behaviour!(both_check_and_change_all_pages: m16, copy);

/// A thread that ended called into the library while its thread-local variables were freed, and froze each of
/// the first children, where there is no right to serve faults in the kernel.
fn forks_often(variant: Variant) {
    let command = Command::new(program("fork_loop")).args(["30"]).variant(variant);
    let outcome = command.run_options(&["--swap", "200M"]).run().success();
    assert_eq!(outcome.stdout, "ok\n", "{}", outcome.report());
    assert_eq!(outcome.stat("forked_unmanaged"), 0, "{}", outcome.report());
}
behaviour!(forks_often: user_mode);

fn ten_deep(variant: Variant) {
    forked(variant, "deep", "256M", &[]);
}
behaviour!(ten_deep: m16, threads);

fn other_threads_store_while_one_forks(variant: Variant) {
    forked(variant, "threads", "256M", &[]);
}
behaviour!(other_threads_store_while_one_forks: m16, copy);

/// Advice finds the memory at home in the moment in which it goes to the kernel.
fn memory_is_forgotten_while_it_goes_back(variant: Variant) {
    let scratch = Scratch::new();
    let file = scratch.file("data");
    for more in [&["5"][..], &["5", &file]] {
        let command = Command::new(program("fork_forgets")).args(more).variant(variant);
        let outcome = command.run_options(&["--fork", "kernel"]).maybe_unmanaged().run().success();
        assert_eq!(outcome.stdout, "ok\n", "{}", outcome.report());
        assert!(outcome.stat("pgfault") > 100, "{}", outcome.report());
    }
}
behaviour!(memory_is_forgotten_while_it_goes_back: m16, copy);

/// A handler that waited for the manager while that rests would wait for its own thread.
fn signals_come_while_it_forks(variant: Variant) {
    let outcome = Command::new(program("fork_signals")).variant(variant).run().success();
    assert_eq!((outcome.stdout.as_str(), outcome.stderr.as_str()), ("ok\n", ""), "{}", outcome.report());
}
behaviour!(signals_come_while_it_forks: plain, m16, copy);

/// A file that is mapped while all files go to the kernel for the fork goes there, too: the child has a copy.
fn other_threads_map_files_while_one_forks(variant: Variant) {
    let outcome = forked(variant, "mapping", "256M", &[]);
    assert!(outcome.stat("handed_back_files") > 0, "{}", outcome.report());
    assert_eq!(outcome.stderr, "", "{}", outcome.report());
}
behaviour!(other_threads_map_files_while_one_forks: m16, copy);

/// Some of the forks have copies, others give the memory to the kernel.
fn threads_that_fork_at_the_same_time(variant: Variant) {
    let options = ["--swap", "64M", "--fork", "copy", "--min-size", "4K"];
    let outcome = Command::new(program("forkers")).args(["60"]).variant(variant).run_options(&options).run();
    assert_eq!(outcome.success().stdout, "ok\n");
}
behaviour!(threads_that_fork_at_the_same_time: plain, m16, copy, threads);

fn what_may_only_be_read_stays_so(variant: Variant) {
    forked(variant, "rights", "256M", &[]);
}
behaviour!(what_may_only_be_read_stays_so: m16, copy);

/// libc stores to its streams in the child before anybody else runs there.
fn streams_of_a_managed_heap(variant: Variant) {
    forked(variant, "streams", "256M", &["--heap", "all"]);
}
behaviour!(streams_of_a_managed_heap: m16, copy);

/// A child's child needs pages of the first process's file after the child has gone.
fn orphans(variant: Variant) {
    forked(variant, "orphan", "256M", &[]);
}
behaviour!(orphans: m16, copy);

/// What a child read of the parent's file is free again once it is gone, however it went: the swap has room
/// for the memory twice, and three children leave theirs behind.
fn children_are_killed(variant: Variant) {
    forked(variant, "killed", "112M", &["--swap-encrypt"]);
}
behaviour!(children_are_killed: m16);

/// The parent's memory stays managed and whole, no child is left, and one line says why, of the first fork
/// that failed.
fn a_fork_that_cannot_have_a_copy_fails(variant: Variant) {
    let outcome = whole(run(variant, "fork_refused", "refused", "256M", "fail", &[]));
    let why = "elbowroom: fork fails, since its child cannot have a copy of managed memory: no descriptors";
    assert!(outcome.stderr.starts_with(why) && outcome.stderr.lines().count() == 1, "{}", outcome.report());
    assert_eq!(outcome.stat("forked_unmanaged"), 0, "{}", outcome.report());
}
behaviour!(a_fork_that_cannot_have_a_copy_fails: m16, copy, threads);

/// In milliseconds: the page tables of 16 GiB take longer to be copied, a tenth of a second.
const SHORT: [&str; 2] = ["--fork-bound", "5"];

/// The program's status if its fork was not late: the child began before a thread that waited had the
/// processor to say so.
const NOT_LATE: i32 = 77;

/// Runs a part of the program `fork_refused` until its fork is late.
fn late(variant: Variant, part: &str, how: &str) -> Outcome {
    let mut runs = (0..20).map(|_| run(variant, "fork_refused", part, "256M", how, &SHORT));
    whole(runs.find(|outcome| outcome.status.code() != Some(NOT_LATE)).expect("a fork is late"))
}

fn has_no_copy(outcome: &Outcome, why: &str) {
    let said = |line: &str| line.contains("a forked child touched managed memory") && line.contains(why);
    assert!(outcome.stderr.lines().any(said), "{}", outcome.report());
}

/// Its child has no copy that is whole, and is ended where it needs one; the tree's later forks go the old
/// way.
fn a_fork_that_takes_too_long(variant: Variant) {
    let outcome = late(variant, "late", "copy");
    has_no_copy(&outcome, "it has no copy: the fork took too long");
    // Neither the late child nor the one after it has a manager.
    assert_eq!(outcome.stat("forked_unmanaged"), 2, "{}", outcome.report());
}
behaviour!(a_fork_that_takes_too_long: m16, copy, threads);

#[test]
fn after_a_fork_that_took_too_long_others_fail() {
    let outcome = late(Variant::m16(), "late-refused", "fail");
    has_no_copy(&outcome, "it has no copy: the fork took too long");
    let why = "elbowroom: fork fails, since its child cannot have a copy of managed memory: an earlier fork";
    assert!(outcome.stderr.lines().any(|line| line.starts_with(why)), "{}", outcome.report());
}

/// Runs a part of the program `fork_refused` in which forked children have no managed memory. All is right as
/// in a plain run, and one line of standard error says the reason, `why`.
fn by_the_kernel(variant: Variant, part: &str, how: &str, why: &str) {
    by_the_kernel_in(variant, part, how, why, "");
}

/// The same in a control group, if `group` names one.
fn by_the_kernel_in(variant: Variant, part: &str, how: &str, why: &str, group: &str) {
    let command = || Command::new(program("fork_refused")).args([part, "64"]).env("GROUP", group);
    if how != "fail" {
        let plain = command().run().success();
        assert_eq!(plain.stdout, "ok\n", "{}", plain.report());
    }
    let scratch = Scratch::new();
    let dir = scratch.file("");
    let options = ["--swap", "256M", "--swap-dir", &dir, "--fork", how];
    let command = command().variant(variant).run_options(&options).with_summary();
    // Another user may not write the statistics.
    let command = if part.starts_with("other-user") { command.maybe_unmanaged() } else { command };
    let outcome = command.run().success();
    assert_eq!(outcome.stdout, "ok\n", "{}", outcome.report());
    let said = |line: &&str| line.contains("cannot have a copy of managed memory") && line.contains(why);
    assert_eq!(outcome.stderr.lines().filter(said).count(), 1, "{}", outcome.report());
}

/// A child that cannot take the manager over is found out before fork returns: another one has all from the
/// kernel.
fn a_child_that_lacks_something(variant: Variant) {
    by_the_kernel(variant, "denied", "copy", "it is denied something that a manager needs");
}
behaviour!(a_child_that_lacks_something: m16, copy, threads);

/// The same if what it is denied ends it.
fn a_child_that_a_filter_ends(variant: Variant) {
    by_the_kernel(variant, "filtered", "copy", "it ended, or stood still");
}
behaviour!(a_child_that_a_filter_ends: m16, copy);

/// The same in a group of processes that is full (pids.max). fork fails where that is wanted.
fn a_child_without_room_for_threads(variant: Variant) {
    let group = format!("/sys/fs/cgroup/pids/elbowroom-forked-{}-{}", std::process::id(), variant.name);
    for (part, how) in [("few", "copy"), ("few-refused", "fail")] {
        if std::fs::create_dir(&group).is_err() {
            return skipped("no control group of processes can be made");
        }
        by_the_kernel_in(variant, part, how, "it can start no threads", &group);
        std::fs::remove_dir(&group).expect("nothing is left in the group");
    }
}
behaviour!(a_child_without_room_for_threads: m16, threads);

fn a_process_that_becomes_another_users(variant: Variant) {
    by_the_kernel(variant, "other-user", "copy", "may not open its swap file any more");
    by_the_kernel(variant, "other-user-refused", "fail", "may not open its swap file any more");
}
behaviour!(a_process_that_becomes_another_users: m16);

/// All goes to the kernel before.
fn children_of_clone(variant: Variant) {
    let plain = Command::new(program("cloned")).args(["cloned", "48"]).run().success();
    assert_eq!(plain.stdout, "ok\n", "{}", plain.report());
    let outcome = run(variant, "cloned", "cloned", "256M", "copy", &[]).success();
    assert_eq!(outcome.stdout, "ok\n", "{}", outcome.report());
}
behaviour!(children_of_clone: m16, m64, copy);

/// What the thread that forks reads by io_uring meanwhile lands in memory that is out.
fn children_beside_reads_under_way(variant: Variant) {
    let scratch = Scratch::new();
    let (file, dir) = (scratch.file("data"), scratch.file(""));
    Pattern::create(&file, 4 << 20, 5);
    let command = || Command::new(program("ring_forks")).args([&file, "200"]);
    let plain = command().run().success();
    let options = ["--swap", "256M", "--swap-dir", &dir];
    let outcome = command().variant(variant).run_options(&options).run().success();
    outcome.same_as(&plain);
    assert_eq!(outcome.stat("forked_unmanaged"), 0, "{}", outcome.report());
}
behaviour!(children_beside_reads_under_way: m16, copy, threads);

fn children_of_a_server(variant: Variant) {
    forked(variant, "prefork", "256M", &[]);
}
behaviour!(children_of_a_server: m16, copy);

#[test]
fn shells_are_started() {
    let scratch = Scratch::new();
    let dir = scratch.file("");
    let options = ["--swap", "256M", "--swap-dir", &dir, "--fork", "copy"];
    let command = Command::new(program("forked")).args(["exec", "64"]);
    let outcome = command.variant(Variant::m16()).run_options(&options).run().success();
    assert_eq!(outcome.stdout, "ok\n", "{}", outcome.report());
}

const MULTIPROCESSING: &str = r#"
import array, multiprocessing, subprocess
multiprocessing.set_start_method("fork")
N = 8 << 20
numbers = array.array("d", range(N))
small = [i * 3 for i in range(200000)]
def work(k):
    for i in range(k, N, 64):
        numbers[i] = -k
    return k, sum(numbers[k::64]), sum(small[k::64])
with multiprocessing.Pool(3) as pool:
    got = pool.map(work, range(12))
for k, own, rest in got:
    assert own == -k * (N // 64) and rest == sum(small[k::64]), (k, own, rest)
assert sum(numbers) == N * (N - 1) // 2
queue = multiprocessing.Queue()
children = [multiprocessing.Process(target=lambda n=n: queue.put((n, numbers[n]))) for n in (1, 1000, N - 1)]
[child.start() for child in children]
assert sorted(queue.get() for _ in children) == [(n, float(n)) for n in (1, 1000, N - 1)]
[child.join() for child in children]
assert [child.exitcode for child in children] == [0, 0, 0]
assert subprocess.run(["sh", "-c", "exit 7"], preexec_fn=lambda: None).returncode == 7
print("ok")
"#;

#[test]
fn python_multiprocessing() {
    let scratch = Scratch::new();
    let dir = scratch.file("");
    let options = ["--swap", "512M", "--swap-dir", &dir, "--fork", "copy"];
    let command = Command::new("python3").args(["-c", MULTIPROCESSING]);
    let outcome = command.variant(Variant::m16()).run_options(&options).run().success();
    assert_eq!(outcome.stdout, "ok\n", "{}", outcome.report());
    assert!(outcome.stat("pswpin") > 10_000, "{}", outcome.report());
}

/// Drives a redis-server on the socket `s`: values that stay, and rounds of values that are set one after
/// the other, in order, all the time. Each dump has all of the first, and of the others a moment: up to some
/// key the values of a round, and from there on those of the round before. A second server, by itself, loads
/// it.
const BGSAVE: &str = r#"
import hashlib, os, socket, subprocess, sys, threading, time
STAY, ROUND, SIZE = 40000, 500, 1000
class Redis:
    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        for _ in range(300):
            try:
                self.socket.connect(path)
                break
            except OSError:
                time.sleep(0.1)
        self.file = self.socket.makefile("rb")
        while self.do("PING") != "PONG":
            time.sleep(0.1)
    def send(self, *words):
        words = [w if isinstance(w, bytes) else str(w).encode() for w in words]
        return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words)
    def reply(self):
        line = self.file.readline()
        kind, rest = line[:1], line[1:-2]
        if kind == b"$":
            return None if rest == b"-1" else self.file.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return [self.reply() for _ in range(int(rest))]
        if kind == b"-" and not rest.startswith(b"LOADING"):
            raise Exception(rest)
        return rest.decode()
    def do(self, *words):
        self.socket.sendall(self.send(*words))
        return self.reply()
    def many(self, commands):
        self.socket.sendall(b"".join(self.send(*words) for words in commands))
        return [self.reply() for _ in commands]
def value(i):
    text, seed = b"", hashlib.sha256(b"%d" % i).digest()
    return (seed * (SIZE // 64) + b"%08d" % i * (SIZE // 16))[:SIZE]
redis = Redis("s")
for at in range(0, STAY, 200):
    redis.many([("SET", "stay:%d" % i, value(i)) for i in range(at, at + 200)])
redis.many([("SET", "round:%d" % i, 0) for i in range(ROUND)])
stop, rounds = threading.Event(), 0
def load():
    global rounds
    own = Redis("s")
    while not stop.is_set():
        rounds += 1
        for i in range(ROUND):
            own.do("SET", "round:%d" % i, rounds)
            if i % 10 == 0:
                at = (i * 7919 + rounds * 104729) % STAY
                assert own.do("GET", "stay:%d" % at) == value(at), at
thread = threading.Thread(target=load)
thread.start()
for nth in range(3):
    before = rounds
    assert redis.do("BGSAVE").startswith("Background"), nth
    while True:
        info = redis.do("INFO", "persistence").decode()
        if "rdb_bgsave_in_progress:0" in info:
            break
        time.sleep(0.05)
    assert "rdb_last_bgsave_status:ok" in info, info
    assert rounds > before, "nothing was stored meanwhile"
    os.rename("dump.rdb", "dump%d.rdb" % nth)
    second = subprocess.Popen(["redis-server", "--port", "0", "--unixsocket", os.getcwd() + "/s2", "--save",
        "", "--dbfilename", "dump%d.rdb" % nth, "--logfile", "log2"])
    loaded = Redis("s2")
    assert loaded.do("DBSIZE") == str(STAY + ROUND)
    for at in range(0, STAY, 200):
        got = loaded.do("MGET", *["stay:%d" % i for i in range(at, at + 200)])
        for i, g in zip(range(at, at + 200), got):
            assert g == value(i), (nth, i, g)
    got = [int(g) for g in loaded.do("MGET", *["round:%d" % i for i in range(ROUND)])]
    assert got == sorted(got, reverse=True) and got[0] - got[-1] <= 1, (nth, got)
    assert nth == 0 or got[0] > 0
    loaded.socket.sendall(loaded.send("SHUTDOWN", "NOSAVE"))
    assert second.wait(60) == 0
stop.set()
thread.join()
for at in range(0, STAY, 200):
    got = redis.do("MGET", *["stay:%d" % i for i in range(at, at + 200)])
    for i, g in zip(range(at, at + 200), got):
        assert g == value(i), (i, g)
redis.socket.sendall(redis.send("SHUTDOWN", "NOSAVE"))
print("ok")
"#;

#[test]
fn redis_saves_under_load() {
    let Some(redis) = require("redis-server", "redis-server") else { return };
    let scratch = Scratch::new();
    let dir = scratch.file("");
    let socket = scratch.file("s");
    let options = ["--swap", "256M", "--swap-dir", &dir, "--fork", "copy"];
    let server = ["--port", "0", "--unixsocket", &socket, "--save", "", "--logfile", "log"];
    let command = Command::new(redis).args(server).directory(dir.as_ref());
    let server = command.variant(Variant::m16()).run_options(&options).start();
    let client = Command::new("python3").args(["-c", BGSAVE]).directory(dir.as_ref()).run().success();
    assert_eq!(client.stdout, "ok\n", "{}", client.report());
    let outcome = server.finish().success();
    assert_eq!(outcome.stat("forked_unmanaged"), 0, "{}", outcome.report());
    assert!(outcome.stat("pswpin") > 1000 && outcome.stat("pswpout") > 5000, "{}", outcome.report());
}
