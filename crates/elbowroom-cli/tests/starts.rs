//! What stands in the way of managing a program is found before the program starts, in each environment: a
//! line and 125 by default, with `--quiet`, too; the program, unmanaged, with `--fallback kernel`; and
//! `doctor` says the same. Tests that need rights or tools that are not there say so and pass.

mod bench;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use elbowroom_options::Options;

use self::bench::{Bench, ELBOWROOM, assert_refused, copy, managed_bench, skipped, stderr, stdout};

/// An environment: a program that makes it and then executes its arguments.
struct Place<'b> {
    bench: &'b Bench,
    wrapper: Vec<String>,
    /// The command, where the wrapper's user can read it.
    command: PathBuf,
}

impl<'b> Place<'b> {
    /// Where `line` of a shell has been done, as `wrapper` executes it. `None`, said aloud, if that fails.
    fn new(bench: &'b Bench, wrapper: &[&str], line: &str) -> Option<Self> {
        let dir = bench.dir.path();
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o755)).unwrap();
        let command = dir.join("elbowroom");
        if !command.exists() {
            copy(Path::new(ELBOWROOM), &command);
            copy(&bench.library(), &dir.join("libelbowroom_heap.so"));
        }
        let script = format!("{line} || exit 99; exec \"$@\"");
        let shell = ["bash", "-c", &script, "bash"];
        let wrapper = wrapper.iter().chain(&shell).map(|word| (*word).to_owned()).collect();
        let place = Self { bench, wrapper, command };
        let tried = place.output(Path::new("true"), &[]);
        if !tried.status.success() {
            skipped(format!("`{line}` cannot be done here: {}", stderr(&tried).trim_end()));
            return None;
        }
        Some(place)
    }

    fn output(&self, program: &Path, arguments: &[&str]) -> Output {
        let mut command = Command::new(&self.wrapper[0]);
        command.args(&self.wrapper[1..]).arg(program).args(arguments);
        command.env("ELBOWROOM_PRELOAD", self.bench.library()).env_remove("LD_PRELOAD");
        command.env_remove("COLUMNS").output().unwrap()
    }

    /// `elbowroom run` with these options, of a program that says `ran` and ends with 7.
    fn run(&self, options: &[&str]) -> Output {
        let program = ["--", "sh", "-c", "echo \"ran $ELBOWROOM_OPTIONS\"; exit 7"];
        self.output(&self.command, &[&["run", "--memory", "16M"], options, &program].concat())
    }

    fn doctor(&self, arguments: &[&str]) -> Output {
        self.output(&self.command, &[&["doctor"], arguments].concat())
    }

    /// Nothing can be managed here, for the reason that `expected` names; `doctor` has it under `about`.
    fn manages_nothing(&self, about: &str, expected: &str) {
        for options in [&[][..], &["--quiet"]] {
            let refused = self.run(options);
            assert_refused(&refused, 125, expected);
            assert_eq!(stderr(&refused).lines().count(), 1, "{}", stderr(&refused));
        }
        let left = self.run(&["--fallback", "kernel"]);
        assert_eq!((left.status.code(), stdout(&left).as_str()), (Some(7), "ran \n"), "{}", stderr(&left));
        assert!(stderr(&left).starts_with("elbowroom: warning: running unmanaged: "), "{}", stderr(&left));
        assert!(stderr(&left).contains(expected), "{}", stderr(&left));
        let silent = self.run(&["--fallback", "kernel", "--quiet"]);
        assert_eq!((silent.status.code(), stderr(&silent).as_str()), (Some(7), ""));
        self.doctor_says(about, expected);
    }

    fn doctor_says(&self, about: &str, expected: &str) {
        let text = self.doctor(&[]);
        let (said, json) = (stdout(&text), self.doctor(&["--json"]));
        assert_eq!((text.status.code(), json.status.code()), (Some(1), Some(1)), "{said}");
        let needed = said.split("What must change:").nth(1).unwrap_or_default();
        assert!(needed.contains(&format!("\n  {about}: ")) && needed.contains(expected), "{said}");
        let object: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
        assert_eq!(object["can_run"], false);
        let advice = object["advice"].as_array().unwrap().iter();
        let same = |line: &&serde_json::Value| line["about"] == about && line["required"] == true;
        assert!(advice.filter(same).count() == 1, "{}", object["advice"]);
    }
}

/// A mount namespace of its own, for one process.
const OWN_MOUNTS: &[&str] = &["unshare", "--mount"];

/// Root without the right to raise hard limits, as in most containers.
const NO_RESOURCE: &[&str] = &["setpriv", "--bounding-set", "-sys_resource"];

#[test]
fn no_place_for_a_swap_file() {
    let Some(bench) = managed_bench() else { return };
    for (line, why) in [
        ("mount -t tmpfs none /var", "No such file or directory"),
        ("mount -t tmpfs -o ro none /var/tmp", "Read-only file system"),
        ("mount -t tmpfs none /var/tmp", "its file system is in memory"),
    ] {
        // No other directory for temporary files has a place, either. The command is in one of them.
        let dir = bench.dir.path().display();
        let line = format!(
            "{line} && unset TMPDIR && mount -t tmpfs -o mode=1777 none /mnt && \
             new=/mnt/$(basename {dir}) && mkdir $new && cp -a {dir}/. $new && mount --bind /mnt /tmp"
        );
        let Some(place) = Place::new(&bench, OWN_MOUNTS, &line) else { continue };
        for options in [&[][..], &["--quiet"]] {
            let refused = place.run(options);
            assert_refused(&refused, 125, "cannot be managed, no place for a swap file in /var/tmp");
            assert!(stderr(&refused).contains(why) && stderr(&refused).contains("--swap 0"));
            assert_eq!(stderr(&refused).lines().count(), 1);
        }
        // Files can be managed, so they are.
        let options = |output: &Output| Options::parse(stdout(output)[4..].trim_end().as_ref()).unwrap();
        let left = place.run(&["--fallback", "kernel"]);
        assert_eq!((left.status.code(), options(&left).swap.bytes), (Some(7), 0));
        assert!(stderr(&left).contains("note: anonymous memory stays with the kernel"), "{}", stderr(&left));
        for silent in [&["--fallback", "kernel", "--quiet"][..], &["--swap", "0"]] {
            let output = place.run(silent);
            assert_eq!((output.status.code(), options(&output).swap.bytes), (Some(7), 0));
            assert_eq!(stderr(&output), "", "{silent:?}");
        }
        place.doctor_says("swap", why);
    }
}

#[test]
fn a_named_directory_in_memory_is_used_with_a_size_and_without() {
    let Some(bench) = managed_bench() else { return };
    let Some(place) = Place::new(&bench, OWN_MOUNTS, "mount -t tmpfs -o size=96M none /var/tmp") else {
        return;
    };
    for size in [&[][..], &["--swap", "64M"]] {
        let output = place.run(&[size, &["--swap-dir", "/var/tmp"]].concat());
        assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
        let options = Options::parse(stdout(&output)[4..].trim_end().as_ref()).unwrap();
        assert_eq!((options.swap.bytes, options.swap.by_default), (64 << 20, false));
        assert!(stderr(&output).contains("takes memory beside the budget"), "{}", stderr(&output));
        assert_eq!(stderr(&output).lines().count(), 1);
    }
}

#[test]
fn threads_that_cannot_be_started() {
    let Some(bench) = managed_bench() else { return };
    let nobody = ["setpriv", "--reuid", "65533", "--regid", "65533", "--clear-groups"];
    // Two are the wrapper and the program.
    if let Some(place) = Place::new(&bench, &nobody, "ulimit -u 5") {
        place.manages_nothing("threads", "threads more, and they cannot be started");
    }
}

#[test]
fn hard_limits_of_addresses_and_data() {
    let Some(bench) = managed_bench() else { return };
    for (line, shown) in
        [("ulimit -v 4000000", "`ulimit -v`: 3.8 GiB"), ("ulimit -d 1000000", "`ulimit -d`: 976.6 MiB")]
    {
        if let Some(place) = Place::new(&bench, NO_RESOURCE, line) {
            place.manages_nothing("address space", shown);
        }
    }
    // A soft limit is raised, and the program sees its own.
    if let Some(place) = Place::new(&bench, NO_RESOURCE, "ulimit -Sv 4000000") {
        let output = place.run(&["--swap", "0"]);
        assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(7), ""));
        let limit = place.output(
            &place.command,
            &["run", "--memory", "16M", "--swap", "0", "--", "bash", "-c", "ulimit -Sv"],
        );
        assert_eq!(stdout(&limit), "4000000\n");
    }
}

#[test]
fn few_descriptors() {
    let Some(bench) = managed_bench() else { return };
    if let Some(place) = Place::new(&bench, &["env"], "ulimit -n 64") {
        place.manages_nothing("open files", "64 open files are too few");
    }
    for enough in ["ulimit -Sn 64", "ulimit -n 160"] {
        let Some(place) = Place::new(&bench, &["env"], enough) else { continue };
        let output = place.run(&["--swap", "64M", "--quiet"]);
        assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(7), ""), "{enough}");
    }
}

#[test]
fn no_proc() {
    let Some(bench) = managed_bench() else { return };
    if let Some(place) = Place::new(&bench, OWN_MOUNTS, "mount -t tmpfs none /proc") {
        place.manages_nothing("/proc", "mount -t proc proc /proc");
    }
}

/// A memory group of version 1 that is removed when it is dropped.
struct Group(PathBuf);

impl Group {
    fn new(limit: &str) -> Option<Self> {
        let path =
            Path::new("/sys/fs/cgroup/memory").join(format!("elbowroom-starts-{}", std::process::id()));
        let made = std::fs::create_dir(&path).map(|()| Self(path.clone()));
        let made = made.and_then(|group| {
            std::fs::write(path.join("memory.limit_in_bytes"), limit)?;
            Ok(group)
        });
        made.map_err(|error| skipped(format!("no memory group of version 1 can be made: {error}"))).ok()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[test]
fn a_memory_group_is_warned_of_and_the_default_fits() {
    let Some(bench) = managed_bench() else { return };
    let Some(group) = Group::new("192M") else { return };
    let enter = format!("echo $$ > {}/cgroup.procs", group.0.display());
    let Some(place) = Place::new(&bench, &["env"], &enter) else { return };
    for options in [&[][..], &["--quiet"]] {
        let show = ["--swap", "0", "--", "sh", "-c", "echo $ELBOWROOM_OPTIONS"];
        let with = |memory: &[&str]| {
            let output = place.output(&place.command, &[&["run"], options, memory, &show].concat());
            assert!(output.status.success(), "{}", stderr(&output));
            (Options::parse(stdout(&output).trim_end().as_ref()).unwrap().memory_bytes, stderr(&output))
        };
        let (_, said) = with(&["--memory", "192M"]);
        assert!(said.starts_with("elbowroom: warning: a budget of 192 MiB does not fit into"), "{said}");
        assert!(said.contains("limit of 192 MiB") && said.contains("--memory 96M or less"), "{said}");
        assert_eq!(said.lines().count(), 1);
        let (memory, said) = with(&[]);
        assert!((64 << 20..=96 << 20).contains(&memory), "{memory}");
        assert_eq!((said.as_str(), with(&["--memory", "96M"]).1.as_str()), ("", ""));
    }
    let json: serde_json::Value = serde_json::from_slice(&place.doctor(&["--json"]).stdout).unwrap();
    let found = &json["probe"]["memory_cgroup"];
    assert_eq!(found["limit_bytes"], 192 << 20);
    assert!(found["left_bytes"].as_u64().is_some_and(|left| left <= 192 << 20), "{found}");
    assert!(stdout(&place.doctor(&[])).contains("\n  memory limit: "));
}
