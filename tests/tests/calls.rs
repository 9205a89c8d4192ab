//! System calls on managed memory, and descriptors and mappings of the same file.

use elbowroom_tests::{Command, Pattern, Scratch, Variant, behaviour, program};
use rustix::process::Signal;

fn buffers(variant: Variant) {
    let scratch = Scratch::new();
    let file = scratch.file("data");
    Pattern::create(&file, 32 * 1024 * 1024, 7);
    let outcome = Command::new(program("syscalls")).args([&file, "7"]).variant(variant).run().success();
    assert_eq!(outcome.stdout.lines().count(), 9, "{}", outcome.report());
}
behaviour!(buffers: plain, m64, m16, copy, threads, handlers1);

fn coherence(variant: Variant) {
    let scratch = Scratch::new();
    let command = Command::new(program("coherence")).args([&scratch.file("data"), "5", "3000"]);
    let outcome = command.variant(variant).run().success();
    assert_eq!(outcome.stdout, "ok random_operations\nok new_mappings\nok races\n");
}
behaviour!(coherence: plain, m64, m16, copy, threads, handlers4);

fn by_number(variant: Variant) {
    let scratch = Scratch::new();
    let command = Command::new(program("by_number")).args([&scratch.file("data")]);
    let outcome = command.variant(variant).run().success();
    assert_eq!(outcome.stdout, "ok ranges\nok children\nok files\nok segments\n");
}
behaviour!(by_number: plain, m64, m16, copy, threads, user_mode);

/// Another process writes the file while a program has it mapped.
fn foreign_writes(mode: &str, variant: Variant) {
    let scratch = Scratch::new();
    let file = scratch.file("data");
    for (bytes, bytes_after) in [(20_000_000, 20_000_000), (8_000_000, 9_000_000)] {
        Pattern::create(&file, bytes, 5);
        let mut running = Command::new(program("foreign")).args([&file, "5", mode]).variant(variant).start();
        running.wait_for_line("ready");
        let inode =
            |path: &str| std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(path).expect("it is there"));
        let before = inode(&file);
        let other = scratch.file("other");
        Pattern::create(&other, bytes_after, 6);
        // In place, and without a moment in which the file is shorter: that would be truncation, not a write.
        std::io::copy(
            &mut std::fs::File::open(&other).expect("it is there"),
            &mut std::fs::OpenOptions::new().write(true).open(&file).expect("it is there"),
        )
        .expect("the file can be written");
        assert_eq!(inode(&file), before);
        running.signal(Signal::USR1);
        running.finish().success();
    }
}

/// Who opens and maps the file afterwards sees it at once.
fn foreign_writes_and_new_mappings(variant: Variant) {
    foreign_writes("anew", variant);
}
behaviour!(foreign_writes_and_new_mappings: plain, m64, m16);

/// Who has mapped it before sees it soon.
fn foreign_writes_and_old_mappings(variant: Variant) {
    foreign_writes("old", variant);
}
behaviour!(foreign_writes_and_old_mappings: plain, m64, m16);

/// Calls that are given memory of which most is out.
fn given_memory(variant: Variant) {
    let scratch = Scratch::new();
    let directory = scratch.path().display();
    let command = Command::new(program("given_memory")).args([directory]);
    command.variant(variant).run_options(&["--swap", "200M"]).run().success();
}
behaviour!(given_memory: plain, m16, copy, user_mode);
