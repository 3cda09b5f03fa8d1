// SPDX-License-Identifier: Apache-2.0
//! What the local kernel shows about the process of a recording, if the process is on this machine.

pub use super::snapshot::Seen;
use super::snapshot::{Sight, Snapshot};
use ncclscope_limits::{clocks, hangs};
use ncclscope_trace::{Identity, open_to_read, read_header};
use std::fs::read_to_string;
use std::path::Path;
use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How often a recording is looked at.
const LOOKS: u32 = 40;

/// State of a process (`R` etc., `proc_pid_stat(5)`) and its start in clock ticks after boot.
struct Stat {
    state: u8,
    start_ticks: Option<u64>,
}

/// Looks up the processes of recordings that are neither closed nor copies.
pub(crate) fn look(snapshots: &mut [Snapshot]) {
    for one in snapshots.iter_mut().filter(|one| !one.is_closed && !one.is_copy) {
        one.sight = sight(one);
    }
}

fn sight(snapshot: &Snapshot) -> Option<Sight> {
    let seen = of_snapshot(snapshot)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let silent = Duration::from_nanos(snapshot.end_ns.saturating_add(hangs::SILENCE_NS));
    let is_frozen = seen == Seen::Runs && now > silent && has_frozen_group(snapshot.pid);
    let at_ns = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
    Some(Sight { seen, is_frozen, at_ns })
}

/// True if a process that is not visible here (on another host or in a container) still writes its
/// recording. If the job was just killed, this waits; the latest recording stands for all.
pub(crate) fn writes_elsewhere(snapshots: &[Snapshot]) -> bool {
    let is_unseen = |one: &&Snapshot| {
        !one.is_closed && !one.is_copy && !is_here(&one.host, &one.facts.identity)
    };
    let latest = snapshots.iter().filter(is_unseen).max_by_key(|one| one.end_ns);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    // Its clock may differ from that of this host.
    let recent = Duration::from_nanos(clocks::FILES_NS);
    let is_recent = |one: &&Snapshot| now.abs_diff(Duration::from_nanos(one.end_ns)) < recent;
    let wait = Duration::from_nanos(hangs::ALIVE_NS);
    latest.filter(is_recent).is_some_and(|one| is_written(&one.facts.path, wait))
}

/// True if the recording was written to after it was read.
pub(crate) fn grows(snapshot: &Snapshot) -> bool {
    let Ok(file) = open_to_read(&snapshot.facts.path) else { return false };
    read_header(&file).is_ok_and(|(now, _)| now.next_block > snapshot.blocks)
}

/// True if the file is written to within this time.
fn is_written(path: &Path, wait: Duration) -> bool {
    let written = || std::fs::metadata(path).and_then(|file| file.modified()).ok();
    let (before, begun) = (written(), Instant::now());
    while begun.elapsed() < wait {
        std::thread::sleep(wait / LOOKS);
        if written() != before {
            return true;
        }
    }
    false
}

/// True if a process of this machine is frozen with its control group. This reads several files:
/// call it only for a process that records nothing.
#[must_use]
pub fn has_frozen_group(pid: u32) -> bool {
    let groups = read_to_string(format!("/proc/{pid}/cgroup"));
    groups.is_ok_and(|groups| is_frozen(&groups, Path::new("/sys/fs/cgroup")))
}

/// True if a process in these control groups (`/proc/PID/cgroup`) is frozen. Version 1 shows that
/// in the state of its freezer, version 2 in the events of the group; both also show a frozen
/// parent (`Documentation/admin-guide/cgroup-v1/freezer-subsystem.rst`, `cgroup-v2.rst`).
fn is_frozen(groups: &str, mount: &Path) -> bool {
    let is_it = |line: &str| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, group) = (fields.next()?, fields.next()?.trim_start_matches('/'));
        let says = |dir: &str, file: &str, what: &str| {
            let text = read_to_string(mount.join(dir).join(group).join(file));
            text.is_ok_and(|text| text.lines().any(|line| line == what))
        };
        Some(match controllers {
            "" => ["", "unified"].iter().any(|dir| says(dir, "cgroup.events", "frozen 1")),
            _ if controllers.split(',').any(|name| name == "freezer") => {
                says(controllers, "freezer.state", "FROZEN")
            }
            _ => false,
        })
    };
    groups.lines().any(|line| is_it(line) == Some(true))
}

/// The name of this machine and its boot id; cached, because they are needed for very many
/// processes.
static MACHINE: LazyLock<[String; 2]> = LazyLock::new(|| {
    ["hostname", "random/boot_id"]
        .map(|name| read_to_string(format!("/proc/sys/kernel/{name}")).unwrap_or_default())
});

/// True if the process is or was on this machine since it was booted.
fn is_here(host: &str, identity: &Identity) -> bool {
    let [here, boot] = &*MACHINE;
    // A recording contains the host name only up to the first dot.
    identity.boot_id.as_deref().is_none_or(|id| id == boot.trim())
        && here.trim().split('.').next() == host.split('.').next()
}

/// The process with this id and identity; `None` if it is on another machine.
#[must_use]
pub fn see(host: &str, pid: u32, identity: &Identity) -> Option<Seen> {
    if !is_here(host, identity) {
        return None;
    }
    let Ok(text) = std::fs::read(format!("/proc/{pid}/stat")) else { return Some(Seen::Gone) };
    let stat = stat(&String::from_utf8_lossy(&text))?;
    let is_another = identity.start_ticks.is_some_and(|ticks| stat.start_ticks != Some(ticks));
    Some(match stat.state {
        _ if is_another => Seen::Gone,
        b'T' | b't' => Seen::Stopped,
        b'Z' | b'X' => Seen::Gone,
        _ => Seen::Runs,
    })
}

/// The process of a snapshot. If its start is unknown, it must have begun before its recording
/// ended.
fn of_snapshot(snapshot: &Snapshot) -> Option<Seen> {
    let identity = &snapshot.facts.identity;
    let seen = see(&snapshot.host, snapshot.pid, identity)?;
    let is_it = identity.start_ticks.is_some() || has_begun_before(snapshot);
    Some(if is_it { seen } else { Seen::Gone })
}

fn stat(text: &str) -> Option<Stat> {
    // The name, in parentheses, may contain any character.
    let mut fields = text.rsplit_once(") ")?.1.split(' ');
    let state = *fields.next()?.as_bytes().first()?;
    Some(Stat { state, start_ticks: fields.nth(18).and_then(|ticks| ticks.parse().ok()) })
}

/// True if the process with this id started before the recording ended.
fn has_begun_before(snapshot: &Snapshot) -> bool {
    let made = std::fs::metadata(format!("/proc/{}", snapshot.pid)).and_then(|of| of.modified());
    let made = made.ok().and_then(|made| made.duration_since(UNIX_EPOCH).ok());
    made.is_some_and(|made| made <= Duration::from_nanos(snapshot.end_ns))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// The snapshot of this process.
    fn own() -> Snapshot {
        let text = read_to_string("/proc/self/stat").unwrap();
        let host = read_to_string("/proc/sys/kernel/hostname").unwrap();
        let mut snapshot = Snapshot {
            host: host.trim().to_owned(),
            pid: std::process::id(),
            ..Snapshot::default()
        };
        snapshot.facts.identity.start_ticks = stat(&text).unwrap().start_ticks;
        snapshot
    }

    #[test]
    fn a_process_is_told_by_its_number_and_its_beginning() {
        let mut another = own();
        another.facts.identity.start_ticks = Some(1);
        let elsewhere = Snapshot { host: "no-such-host".into(), ..own() };
        let closed = Snapshot { is_closed: true, ..own() };
        let mut all = [own(), another, elsewhere, closed];
        look(&mut all);
        let seen = all.each_ref().map(|one| one.sight.map(|it| (it.seen, it.is_frozen)));
        let [runs, gone] = [Seen::Runs, Seen::Gone].map(|seen| Some((seen, false)));
        assert_eq!(seen, [runs, gone, None, None], "another process has had the number");
        let over = all.each_ref().map(Snapshot::may_be_over);
        assert_eq!(over, [false, true, true, true]);
    }

    #[test]
    fn a_process_of_another_host_lives_while_it_writes() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("other-1.nscope");
        std::fs::write(&path, "1").unwrap();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let end_ns = u64::try_from(now.as_nanos()).unwrap();
        let mut other = Snapshot { host: "no-such-host".into(), end_ns, ..own() };
        other.facts.path.clone_from(&path);
        let writes = |snapshot: &Snapshot| writes_elsewhere(std::slice::from_ref(snapshot));
        assert!(!writes(&other), "it was killed");
        let writer = std::thread::spawn(move || {
            for _ in 0..40 {
                std::fs::write(&path, "2").unwrap();
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        assert!(writes(&other));
        for not in [
            Snapshot { end_ns: end_ns - 100_000_000_000, ..other.clone() },
            Snapshot { is_closed: true, ..other.clone() },
            Snapshot { is_copy: true, ..other.clone() },
            Snapshot { host: own().host, ..other.clone() },
        ] {
            assert!(!writes(&not), "{not:?}");
        }
        writer.join().unwrap();
    }

    #[test]
    fn a_frozen_group_is_seen_in_both_versions() {
        let mount = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| {
            let path = mount.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("freezer/one/freezer.state", "FROZEN\n");
        write("freezer/two/freezer.state", "THAWED\n");
        write("three/cgroup.events", "populated 1\nfrozen 1\n");
        write("unified/four/cgroup.events", "populated 1\nfrozen 1\n");
        write("unified/five/cgroup.events", "populated 1\nfrozen 0\n");
        let frozen = |groups| is_frozen(groups, mount.path());
        assert!(frozen("8:pids:/\n6:freezer:/one\n0::/\n"));
        assert!(frozen("0::/three\n") && frozen("6:freezer:/two\n0::/four\n"));
        assert!(!frozen("6:freezer:/two\n0::/five\n") && !frozen("6:freezer:/six\nnonsense\n"));
    }

    #[test]
    fn a_process_is_seen_to_run_to_stop_and_to_be_gone() {
        let host = MACHINE[0].trim();
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let (pid, unknown) = (child.id(), Identity::default());
        assert_eq!(see(host, pid, &unknown), Some(Seen::Runs));
        let text = read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let known = Identity { start_ticks: stat(&text).unwrap().start_ticks, ..unknown };
        assert_eq!((see(host, pid, &known), has_frozen_group(pid)), (Some(Seen::Runs), false));
        let other = Identity { start_ticks: Some(1), ..Identity::default() };
        assert_eq!(see(host, pid, &other), Some(Seen::Gone), "the id is another process's now");
        let id = pid.to_string();
        assert!(Command::new("kill").args(["-STOP", &id]).status().unwrap().success());
        let until = Instant::now() + Duration::from_secs(20);
        while see(host, pid, &known) != Some(Seen::Stopped) {
            assert!(Instant::now() < until);
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(!has_frozen_group(pid), "by a signal");
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(see(host, pid, &known), Some(Seen::Gone));
        assert_eq!(see("elsewhere", pid, &known), None);
        let boot_id = Some("another".to_owned());
        assert_eq!(see(host, pid, &Identity { boot_id, ..known }), None);
    }

    #[test]
    fn the_name_of_a_process_may_look_like_a_state() {
        let fields: Vec<String> = (4..24).map(|field| field.to_string()).collect();
        let read = stat(&format!("7 (x) R (y) T {}", fields.join(" "))).unwrap();
        assert_eq!((read.state, read.start_ticks), (b'T', Some(22)));
        assert!(stat("7 (a").is_none());
    }
}
