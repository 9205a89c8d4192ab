//! `elbowroom doctor --fix`: gives users who are not root what `elbowroom run` needs, so that it outlives a
//! reboot.
//!
//! What is missing becomes a list of steps ([`Facts::missing`]), which are printed as lines of a shell, and
//! carried out if this is root. Steps give rights to the group `elbowroom` alone. The exception is
//! `vm.unprivileged_userfaultfd` on kernels that have no /dev/userfaultfd. What changes the machine for all
//! (io_uring, huge pages, overcommit) stays advice.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, ExitCode};

use elbowroom_machine::probe::Probe;

/// Whose members may use the devices.
const GROUP: &str = "elbowroom";

/// The rule that gives the devices to the group at each start of the machine.
const RULE: &str = include_str!("../../../../packaging/60-elbowroom.rules");

/// The rule's file in a directory of rules.
const RULE_NAME: &str = "60-elbowroom.rules";

/// Where udev looks for rules.
const RULE_DIRECTORIES: [&str; 4] =
    ["etc/udev/rules.d", "run/udev/rules.d", "usr/lib/udev/rules.d", "lib/udev/rules.d"];

/// The devices of the rule. The first one is needed.
const DEVICES: [&str; 2] = ["dev/userfaultfd", "dev/cpu_dma_latency"];

/// The file of settings that are set at each start of the machine.
const SETTINGS: &str = "etc/sysctl.d/60-elbowroom.conf";

/// What Linux has by default.
const USUAL_MAPS: u64 = 65_530;

/// One change of the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    /// Makes the group.
    MakeGroup,
    /// Makes a user a member of the group.
    Join(String),
    /// Writes the rule.
    WriteRule,
    /// Gives a device to the group, until the next start of the machine.
    Give(&'static str),
    /// Sets a number, now and at each start: its name with dots, and the value.
    Set(&'static str, u64),
}

impl Step {
    /// The step as lines of a shell.
    fn lines(&self) -> String {
        match self {
            Self::MakeGroup => format!("groupadd --system {GROUP}"),
            Self::Join(user) => {
                format!("usermod --append --groups {GROUP} {}", crate::quote(std::slice::from_ref(user)))
            }
            Self::WriteRule => {
                format!("cat > /{}/{RULE_NAME} <<'END'\n{RULE}END", RULE_DIRECTORIES[0])
            }
            Self::Give(device) => format!("chgrp {GROUP} /{device} && chmod 0660 /{device}"),
            Self::Set(name, value) => {
                format!("echo {name}={value} >> /{SETTINGS} && sysctl -q {name}={value}")
            }
        }
    }

    /// Carries the step out below `root`.
    fn carry_out(&self, root: &Path) -> Result<(), String> {
        let said = |error: io::Error| error.to_string();
        match self {
            Self::MakeGroup => call("groupadd", &["--system", GROUP]),
            Self::Join(user) => call("usermod", &["--append", "--groups", GROUP, user]),
            Self::WriteRule => {
                let directory = root.join(RULE_DIRECTORIES[0]);
                fs::create_dir_all(&directory).map_err(said)?;
                let path = directory.join(RULE_NAME);
                fs::write(&path, RULE).map_err(said)?;
                // Every user may see it, so that `doctor` need not be root to find it.
                fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).map_err(said)
            }
            Self::Give(device) => {
                let group = group(root).ok_or_else(|| format!("there is no group {GROUP}"))?;
                let device = root.join(device);
                chown(&device, None, Some(group.id)).map_err(said)?;
                fs::set_permissions(&device, fs::Permissions::from_mode(0o660)).map_err(said)
            }
            Self::Set(name, value) => {
                let path = root.join(SETTINGS);
                fs::create_dir_all(path.parent().unwrap_or(root)).map_err(said)?;
                let before = match fs::read(&path) {
                    Ok(before) => before,
                    Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
                    Err(error) => return Err(format!("{}: {error}", path.display())),
                };
                // The last line may have no end.
                let end = if before.last().is_none_or(|last| *last == b'\n') { "" } else { "\n" };
                let mut file = fs::OpenOptions::new().create(true).append(true).open(&path).map_err(said)?;
                file.write_all(format!("{end}{name}={value}\n").as_bytes()).map_err(said)?;
                let now = root.join("proc/sys").join(name.replace('.', "/"));
                fs::write(now, value.to_string()).map_err(said)
            }
        }
    }
}

/// Runs a program, which says itself what it cannot do.
fn call(program: &str, arguments: &[&str]) -> Result<(), String> {
    match Command::new(program).args(arguments).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(status.to_string()),
        Err(error) => Err(format!("{program}: {error}")),
    }
}

/// A group of users.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Group {
    id: u32,
    members: Vec<String>,
}

/// The group, as /etc/group has it.
fn group(root: &Path) -> Option<Group> {
    let text = fs::read_to_string(root.join("etc/group")).ok()?;
    text.lines().find_map(|line| {
        let mut parts = line.split(':');
        let (name, _, id, members) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let members = members.split(',').filter(|member| !member.is_empty()).map(str::to_owned).collect();
        (name == GROUP).then_some(Group { id: id.parse().ok()?, members })
    })
}

/// The name of a user, as /etc/passwd has it.
fn user_name(root: &Path, id: u32) -> Option<String> {
    let text = fs::read_to_string(root.join("etc/passwd")).ok()?;
    text.lines().find_map(|line| {
        let mut parts = line.split(':');
        let (name, _, other) = (parts.next()?, parts.next()?, parts.next()?);
        (other.parse() == Ok(id)).then(|| name.to_owned())
    })
}

/// What there is.
#[derive(Debug, Clone)]
pub struct Facts {
    group: Option<Group>,
    /// The user who wants to run programs; `None`: that is root, who needs no rights.
    user: Option<String>,
    has_rule: bool,
    /// Each device, with its group and its mode; `None`: it is not there.
    devices: [Option<(u32, u32)>; 2],
    /// `vm.unprivileged_userfaultfd`.
    unprivileged: Option<u64>,
    /// The kernel has the device, but /dev here may be without it, as in a container.
    has_driver: bool,
    max_map_count: Option<u64>,
}

impl Facts {
    /// Looks below `root`, for the user `id` or, if that is root, for the user `sudo` that has called sudo.
    pub fn read(root: &Path, found: &Probe, id: u32, sudo: Option<String>) -> Self {
        let user = if id == 0 { sudo.filter(|name| name != "root") } else { user_name(root, id) };
        let rule = |directory: &&str| {
            fs::read_to_string(root.join(directory).join(RULE_NAME))
                .is_ok_and(|text| text.contains("userfaultfd"))
        };
        let device = |path: &str| {
            let found = fs::metadata(root.join(path)).ok()?;
            Some((found.gid(), found.mode() & 0o777))
        };
        Self {
            group: group(root),
            user,
            has_rule: RULE_DIRECTORIES.iter().any(rule),
            devices: DEVICES.map(device),
            unprivileged: found.userfaultfd.sysctl_unprivileged,
            has_driver: fs::read_to_string(root.join("proc/misc"))
                .is_ok_and(|all| all.contains("userfaultfd")),
            max_map_count: found.limits.max_map_count,
        }
    }

    /// What is to be done.
    fn missing(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        let all_may = |mode: u32| mode & 0o006 == 0o006;
        let needs_group = self.devices[0].is_some_and(|(_, mode)| !all_may(mode));
        if needs_group {
            if self.group.is_none() {
                steps.push(Step::MakeGroup);
            }
            if !self.has_rule {
                steps.push(Step::WriteRule);
            }
            let is_the_groups = |gid| self.group.as_ref().is_some_and(|group| group.id == gid);
            for (path, found) in DEVICES.into_iter().zip(self.devices) {
                let is_given = |(gid, mode)| all_may(mode) || is_the_groups(gid) && mode & 0o060 == 0o060;
                if found.is_some_and(|device| !is_given(device)) {
                    steps.push(Step::Give(path));
                }
            }
            let is_member = |user| self.group.as_ref().is_some_and(|group| group.members.contains(user));
            steps.extend(self.user.iter().filter(|user| !is_member(user)).cloned().map(Step::Join));
        }
        if self.devices[0].is_none() && !self.has_driver && self.unprivileged == Some(0) {
            steps.push(Step::Set("vm.unprivileged_userfaultfd", 1));
        }
        if self.max_map_count.is_some_and(|maps| maps < USUAL_MAPS) {
            steps.push(Step::Set("vm.max_map_count", USUAL_MAPS));
        }
        steps
    }

    /// What the user should know besides.
    fn notes(&self, steps: &[Step], root: &Path) -> Vec<String> {
        let mut notes = Vec::new();
        let uses_group = steps.contains(&Step::MakeGroup) || self.group.is_some();
        if steps.iter().any(|step| matches!(step, Step::Join(_))) {
            notes.push("A user who has become a member of the group must log in again.".to_owned());
        } else if uses_group && self.user.is_none() {
            notes.push(format!("Users become members by `usermod --append --groups {GROUP} NAME`."));
        }
        if self.devices[0].is_none() && self.has_driver {
            notes.push(
                "The kernel has /dev/userfaultfd, and /dev here does not: a container needs `--device \
                 /dev/userfaultfd`."
                    .to_owned(),
            );
        }
        if uses_group && !root.join("run/udev/control").exists() {
            notes.push(
                "No udev runs here, so nothing gives the devices to the group at the next start: in a \
                 container, its host must."
                    .to_owned(),
            );
        }
        notes
    }
}

/// Whether the session has a group that its user is in. It lacks those of which the user became a member
/// after the session began.
fn session_lacks(group: Option<&Group>, user: Option<&String>) -> bool {
    let mut groups = rustix::process::getgroups().unwrap_or_default();
    groups.push(rustix::process::getegid());
    let is_member = |group: &&Group| user.is_some_and(|user| group.members.contains(user));
    group.filter(is_member).is_some_and(|group| groups.iter().all(|id| id.as_raw() != group.id))
}

/// Prints what is missing for the user of this session and, if this is root, does it.
pub fn fix(found: &Probe) -> ExitCode {
    let root = Path::new("/");
    let id = rustix::process::geteuid().as_raw();
    let facts = Facts::read(root, found, id, std::env::var("SUDO_USER").ok());
    let steps = facts.missing();
    let (mut text, mut is_done) = (String::new(), true);
    if steps.is_empty() {
        text.push_str("Nothing is missing that can be given here.\n");
        if id != 0 && session_lacks(facts.group.as_ref(), facts.user.as_ref()) {
            let _ =
                writeln!(text, "Log in again: you are in the group {GROUP}, and this session is not yet.");
            is_done = false;
        }
    } else if id != 0 {
        text.push_str("As root, say `elbowroom doctor --fix`, which does this:\n\n");
        steps.iter().for_each(|step| text.extend([step.lines(), "\n".to_owned()]));
        is_done = false;
    }
    // Written before the steps, whose programs write themselves.
    print(&text);
    for step in steps.iter().filter(|_| id == 0) {
        print(&format!("{}\n", step.lines()));
        if let Err(why) = step.carry_out(root) {
            crate::failure::say(&format!("that failed: {why}"));
            is_done = false;
        }
    }
    let notes = facts.notes(&steps, root);
    if !notes.is_empty() {
        print(&format!("\n{}\n", notes.join("\n")));
    }
    if is_done { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A reader that has closed the pipe does not want the text.
fn print(text: &str) {
    let mut out = io::stdout();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

#[cfg(test)]
mod tests {
    use elbowroom_machine::probe::probe;

    use super::*;

    /// A machine in a directory: its group file, its users, and its devices with modes.
    fn machine(group: &str, modes: [u32; 2]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for path in ["etc", "dev", "proc/sys/vm"] {
            fs::create_dir_all(dir.path().join(path)).unwrap();
        }
        fs::write(dir.path().join("etc/group"), group).unwrap();
        fs::write(dir.path().join("etc/passwd"), "root:x:0:0::/:\nann:x:1000:1000::/:\n").unwrap();
        for (device, mode) in DEVICES.into_iter().zip(modes).filter(|(_, mode)| *mode != 0) {
            fs::write(dir.path().join(device), "").unwrap();
            fs::set_permissions(dir.path().join(device), fs::Permissions::from_mode(mode)).unwrap();
        }
        dir
    }

    fn usual() -> Probe {
        let mut found = probe();
        found.userfaultfd.sysctl_unprivileged = Some(0);
        found.limits.max_map_count = Some(USUAL_MAPS);
        found
    }

    fn missing(machine: &tempfile::TempDir, id: u32, sudo: Option<&str>) -> Vec<Step> {
        Facts::read(machine.path(), &usual(), id, sudo.map(str::to_owned)).missing()
    }

    #[test]
    fn what_is_missing_is_found() {
        use Step::{Give, Join, MakeGroup, WriteRule};
        let fresh = machine("root:x:0:\n", [0o600, 0o600]);
        let all = [MakeGroup, WriteRule, Give(DEVICES[0]), Give(DEVICES[1]), Join("ann".to_owned())];
        assert_eq!(missing(&fresh, 1000, None), all);
        assert_eq!(missing(&fresh, 0, Some("ann")), all);
        assert_eq!(missing(&fresh, 0, Some("root")), all[..4]);
        assert_eq!(missing(&fresh, 0, None), all[..4]);
        // All may use it already.
        assert_eq!(missing(&machine("", [0o666, 0o600]), 1000, None), []);
        let own = fs::metadata(fresh.path()).unwrap().gid();
        let done = machine(&format!("x:x:5:\n{GROUP}:x:{own}:bob,ann\n"), [0o660, 0o660]);
        assert_eq!(missing(&done, 1000, None), [WriteRule]);
        WriteRule.carry_out(done.path()).unwrap();
        assert_eq!(missing(&done, 1000, None), []);
        let rule = |directory: &str| done.path().join(directory).join(RULE_NAME);
        fs::create_dir_all(done.path().join("usr/lib/udev/rules.d")).unwrap();
        fs::rename(rule("etc/udev/rules.d"), rule("usr/lib/udev/rules.d")).unwrap();
        assert_eq!(missing(&done, 1000, None), [], "the rule of a package counts");
        let other = machine(&format!("{GROUP}:x:{own}:bob,anna\n"), [0o640, 0o660]);
        assert_eq!(missing(&other, 1000, None), [WriteRule, Give(DEVICES[0]), Join("ann".to_owned())]);
    }

    #[test]
    fn kernels_without_the_device_need_a_setting() {
        let old = machine("", [0, 0o600]);
        assert_eq!(missing(&old, 1000, None), [Step::Set("vm.unprivileged_userfaultfd", 1)]);
        // A container of a kernel that has the device: the setting would be the whole machine's.
        fs::write(old.path().join("proc/misc"), "126 userfaultfd\n").unwrap();
        let facts = Facts::read(old.path(), &usual(), 1000, None);
        assert_eq!(facts.missing(), []);
        assert!(facts.notes(&[], old.path()).iter().any(|note| note.contains("--device /dev/userfaultfd")));
        fs::remove_file(old.path().join("proc/misc")).unwrap();
        let mut found = usual();
        (found.userfaultfd.sysctl_unprivileged, found.limits.max_map_count) = (Some(1), Some(1000));
        let steps = Facts::read(old.path(), &found, 1000, None).missing();
        assert_eq!(steps, [Step::Set("vm.max_map_count", USUAL_MAPS)]);
        fs::create_dir_all(old.path().join("etc/sysctl.d")).unwrap();
        fs::write(old.path().join(SETTINGS), "vm.swappiness=1").unwrap();
        steps[0].carry_out(old.path()).unwrap();
        let kept = fs::read_to_string(old.path().join(SETTINGS)).unwrap();
        assert_eq!(kept, "vm.swappiness=1\nvm.max_map_count=65530\n", "what was there stays");
        assert_eq!(fs::read_to_string(old.path().join("proc/sys/vm/max_map_count")).unwrap(), "65530");
    }

    #[test]
    fn steps_are_lines_of_a_shell() {
        let facts = Facts::read(machine("", [0o600, 0o600]).path(), &usual(), 0, Some("a b".to_owned()));
        let lines = |step: &Step| step.lines() + "\n";
        let text: String = facts.missing().iter().map(lines).collect();
        assert!(text.contains("usermod --append --groups elbowroom 'a b'\n"), "{text}");
        assert!(text.contains("KERNEL==\"userfaultfd\", GROUP=\"elbowroom\""), "{text}");
        let checked = Command::new("sh").args(["-n", "-c", &text]).status().unwrap();
        assert!(checked.success(), "{text}");
    }

    #[test]
    fn a_session_that_is_older_than_the_membership_is_told_apart() {
        let mine = rustix::process::getgroups().unwrap().first().map_or(0, |id| id.as_raw());
        let (ann, bob) = ("ann".to_owned(), "bob".to_owned());
        let group = |id| Group { id, members: vec![ann.clone()] };
        assert!(session_lacks(Some(&group(4_000_000_000)), Some(&ann)));
        assert!(!session_lacks(Some(&group(4_000_000_000)), Some(&bob)));
        assert!(!session_lacks(None, Some(&ann)));
        if !rustix::process::getgroups().unwrap().is_empty() {
            assert!(!session_lacks(Some(&group(mine)), Some(&ann)));
        }
    }
}
