//! `elbowroom doctor --fix` from outside, with a copy of /etc and devices of its own in a mount namespace:
//! the system is not changed. Where that cannot be made, the tests say so and pass.

mod bench;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use self::bench::{ELBOWROOM, copy, skipped, stderr, stdout};

/// Puts a copy of /etc, and two devices, into the place of the real ones.
const APART: &str = "set -e
mkdir \"$GROUND/etc\" && cp -a /etc/. \"$GROUND/etc\"
mount --bind \"$GROUND/etc\" /etc
for name in userfaultfd cpu_dma_latency; do
    mknod -m 600 \"$GROUND/$name\" c $((0x$(stat -c %t /dev/$name))) $((0x$(stat -c %T /dev/$name)))
    mount --bind \"$GROUND/$name\" /dev/$name
done
rm -f /etc/udev/rules.d/60-elbowroom.rules
useradd --no-create-home er-tester
tester='setpriv --reuid er-tester --regid er-tester --bounding-set=-all --inh-caps=-all'
as_tester() { $tester --init-groups \"$@\"; }
doctor() { \"$GROUND/elbowroom\" doctor \"$@\"; }
";

/// Runs a script of bash there. `None`, said aloud: there is no such place here.
fn apart(script: &str) -> Option<Output> {
    let is_there = ["/dev/userfaultfd", "/dev/cpu_dma_latency", "/usr/sbin/useradd"];
    if let Some(missing) = is_there.iter().find(|path| !Path::new(path).exists()) {
        skipped(format!("{missing} is not there"));
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    copy(Path::new(ELBOWROOM), &dir.path().join("elbowroom"));
    let run = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "bash", "-c", script]).env("GROUND", dir.path()).env_remove("SUDO_USER");
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").output().unwrap()
    };
    let tried = run("mkdir \"$GROUND/x\" && mount --bind \"$GROUND/x\" /etc && mknod \"$GROUND/null\" c 1 3");
    if !tried.status.success() {
        skipped(format!("no namespace of mounts can be made here: {}", stderr(&tried).trim_end()));
        return None;
    }
    Some(run(&format!("{APART}{script}")))
}

#[test]
fn root_gives_the_devices_to_a_group_and_the_user_joins_it() {
    let script = "
as_tester \"$GROUND/elbowroom\" doctor --fix > \"$GROUND/asked\" && exit 90
grep -q '^As root, say `elbowroom doctor --fix`' \"$GROUND/asked\" || exit 91
! getent group elbowroom || exit 92
SUDO_USER=er-tester doctor --fix
[[ $(id -nG er-tester) == *elbowroom* ]] || exit 93
[[ $(stat -c '%G %a' /dev/userfaultfd) == 'elbowroom 660' ]] || exit 94
[[ $(stat -c '%G %a' /dev/cpu_dma_latency) == 'elbowroom 660' ]] || exit 95
grep -q 'KERNEL==\"userfaultfd\", GROUP=\"elbowroom\"' /etc/udev/rules.d/60-elbowroom.rules || exit 96
as_tester \"$GROUND/elbowroom\" doctor | grep -q 'works here: userfaultfd by device' || exit 97
as_tester \"$GROUND/elbowroom\" doctor --fix | grep -q '^Nothing is missing' || exit 98
SUDO_USER=er-tester doctor --fix > \"$GROUND/again\" || exit 99
grep -q '^Nothing is missing' \"$GROUND/again\" || exit 100
# A session from before the user became a member has only its old groups.
$tester --clear-groups \"$GROUND/elbowroom\" doctor --fix > \"$GROUND/old\" && exit 101
grep -q '^Log in again' \"$GROUND/old\" || exit 102
# What was printed for the user does the same, by hand.
gpasswd -d er-tester elbowroom > /dev/null
groupdel elbowroom
rm /etc/udev/rules.d/60-elbowroom.rules
chgrp root /dev/userfaultfd /dev/cpu_dma_latency
chmod 600 /dev/userfaultfd /dev/cpu_dma_latency
sed -n '/^$/,/^$/p' \"$GROUND/asked\" | sh -e
as_tester \"$GROUND/elbowroom\" doctor --fix | grep -q '^Nothing is missing' || exit 103
";
    let Some(output) = apart(script) else { return };
    assert!(output.status.success(), "{}: {}{}", output.status, stdout(&output), stderr(&output));
    let text = stdout(&output);
    let steps =
        ["groupadd --system elbowroom", "cat > /etc/udev", "chgrp elbowroom /dev/userfaultfd", "usermod"];
    let places: Vec<_> =
        steps.iter().map(|step| text.find(step).unwrap_or_else(|| panic!("{step}: {text}"))).collect();
    assert!(places.is_sorted(), "{text}");
    assert!(text.contains("must log in again"), "{text}");
}

#[test]
fn what_cannot_be_done_is_said() {
    let script = "mkdir -p /etc/udev
mount -t tmpfs -o ro none /etc/udev
doctor --fix && exit 90
doctor --fix --json && exit 91
true
";
    let Some(output) = apart(script) else { return };
    assert!(output.status.success(), "{}: {}{}", output.status, stdout(&output), stderr(&output));
    let said = stderr(&output);
    assert!(said.contains("elbowroom: that failed: Read-only file system"), "{said}");
    assert!(said.contains("cannot be used with"), "{said}");
}
