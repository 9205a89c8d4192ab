//! `elbowroom version`, and what `--version` prints.

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::LazyLock;

use clap::Args;

use crate::failure::{NOT_DONE, say};

/// Say which build this is, and which licences it and what is linked into it have
#[derive(Args)]
pub struct VersionArgs {}

/// The version, and the commit that this command was built from.
pub static VERSION: LazyLock<String> = LazyLock::new(|| {
    let commit = elbowroom_lab::COMMIT.unwrap_or("unknown");
    format!("{} (commit {commit})", env!("CARGO_PKG_VERSION"))
});

/// The crates that are linked into the command and its libraries (packaging/licences writes the list).
const CRATES: &str = include_str!("licences.txt");

/// Prints all of it.
pub fn version() -> ExitCode {
    let licence = env!("CARGO_PKG_LICENSE");
    let text = format!(
        "elbowroom {}\nLicence: {licence}\n\nThese crates are in it, each with its licence:\n{CRATES}",
        VERSION.as_str()
    );
    let mut out = io::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // A pager that was left early closes the pipe: that is no error.
        Err(why) if why.kind() != io::ErrorKind::BrokenPipe => {
            say(&format!("cannot print this: {why}"));
            ExitCode::from(NOT_DONE)
        }
        _ => ExitCode::SUCCESS,
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn the_list_of_licences_is_that_of_the_crates() {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/licences");
        let output = Command::new(script).env("CARGO_NET_OFFLINE", "true").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let now = String::from_utf8(output.stdout).unwrap();
        assert!(now == CRATES, "say packaging/licences > crates/elbowroom-cli/src/licences.txt\n{now}");
        assert!(now.lines().count() > 50 && now.lines().all(|line| line.contains(": ")), "{now}");
    }
}
