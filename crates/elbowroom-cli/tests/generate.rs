//! `elbowroom generate` from outside: its manual pages and completions are right for the programs that read
//! them. Where such a program is not installed, the test says so.

mod bench;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use self::bench::{ELBOWROOM, assert_refused, skipped, stderr, stdout};

/// The names of all commands, as the help has them: of what `words` says, and of those below.
fn commands(words: &[&str]) -> BTreeSet<String> {
    let output = Command::new(ELBOWROOM).args(words).arg("-h").output().unwrap();
    let text = stdout(&output);
    let mut names =
        BTreeSet::from([["elbowroom"].iter().chain(words).copied().collect::<Vec<_>>().join("-")]);
    let list = text.split("\nCommands:\n").nth(1).unwrap_or("").split("\n\n").next().unwrap_or("");
    for line in list.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   ")) {
        let name = line.split_whitespace().next().unwrap();
        if name != "help" {
            names.extend(commands(&[words, &[name]].concat()));
        }
    }
    names
}

fn pages(directory: &Path) -> Vec<PathBuf> {
    let output = Command::new(ELBOWROOM).args(["generate", "man"]).arg(directory).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let mut pages: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    pages.sort();
    pages
}

#[test]
fn each_command_has_a_manual_page_that_man_shows_without_warnings() {
    let dir = tempfile::tempdir().unwrap();
    let pages = pages(&dir.path().join("new/man1"));
    let names = pages.iter().map(|page| page.file_name().unwrap().to_str().unwrap().to_owned());
    let expected: BTreeSet<_> = commands(&[]).into_iter().map(|name| format!("{name}.1")).collect();
    assert!(expected.contains("elbowroom-run.1") && expected.contains("elbowroom-lab-run.1"), "{expected:?}");
    assert_eq!(names.collect::<BTreeSet<_>>(), expected);
    if !Command::new("man")
        .arg("--version")
        .stdout(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
    {
        return skipped("man is not installed");
    }
    for page in pages {
        let mut command = Command::new("man");
        command.args(["--warnings", "-E", "UTF-8", "-l"]).arg(&page);
        let output = command.env("MANWIDTH", "80").env("LC_ALL", "C.UTF-8").output().unwrap();
        assert_eq!(stderr(&output), "", "{}", page.display());
        let (text, name) = (stdout(&output), page.file_stem().unwrap().to_str().unwrap().to_owned());
        // Lines are filled to both edges, so the number of spaces between words differs.
        let filled = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(filled.contains(&format!("NAME {name} - ")), "{text}");
        if name == "elbowroom-run" {
            let words =
                ["-m, --memory <SIZE>", "EXAMPLES\n", "  elbowroom run --memory 512M -- python3 train.py\n"];
            assert!(words.iter().all(|words| text.contains(words)), "{text}");
            assert!(
                !text.contains("--inject") && filled.contains("Exit status: the program's own"),
                "{text}"
            );
        }
    }
}

fn completions(shell: &str) -> String {
    let output = Command::new(ELBOWROOM).args(["generate", "completions", shell]).output().unwrap();
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
    stdout(&output)
}

#[test]
fn shells_read_their_completions() {
    let dir = tempfile::tempdir().unwrap();
    for (shell, check) in [("bash", "-n"), ("zsh", "-n"), ("fish", "--no-execute")] {
        let file = dir.path().join(shell);
        fs::write(&file, completions(shell)).unwrap();
        match Command::new(shell).arg(check).arg(&file).output() {
            Ok(output) => assert!(output.status.success() && output.stderr.is_empty(), "{}", stderr(&output)),
            Err(error) => skipped(format!("{shell}: {error}")),
        }
    }
}

#[test]
fn bash_completes_commands_options_and_values() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("completions");
    fs::write(&file, completions("bash")).unwrap();
    let complete = |words: &str| {
        let script = "source \"$1\"; shift; COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); \
                      _elbowroom elbowroom \"${COMP_WORDS[COMP_CWORD]}\" \"${COMP_WORDS[COMP_CWORD - 1]}\"; \
                      printf '%s\\n' \"${COMPREPLY[@]}\"";
        let mut command = Command::new("bash");
        command.args(["-c", script, "bash"]).arg(&file).args(words.split(' '));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output).lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(complete("elbowroom doc"), ["doctor"]);
    assert_eq!(complete("elbowroom run --mem"), ["--memory", "--memory-max"]);
    assert_eq!(complete("elbowroom run --io "), ["auto", "uring", "threads"]);
    assert_eq!(complete("elbowroom generate completions ba"), ["bash"]);
}

#[test]
fn what_cannot_be_generated_is_said() {
    let run = |arguments: &[&str]| Command::new(ELBOWROOM).arg("generate").args(arguments).output().unwrap();
    assert_refused(&run(&["completions", "tcsh"]), 2, "[possible values: bash");
    assert_refused(&run(&["man"]), 2, "DIR");
    assert_refused(&run(&["man", "/proc/no"]), 1, "cannot write manual pages to /proc/no");
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut command = Command::new(ELBOWROOM);
    let output = command.args(["generate", "completions", "zsh"]).stdout(full).output().unwrap();
    assert_eq!((output.status.code(), stderr(&output).contains("No space left")), (Some(1), true));
}
