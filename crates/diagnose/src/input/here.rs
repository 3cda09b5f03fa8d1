// SPDX-License-Identifier: Apache-2.0
//! What this machine's kernel says about the process of a recording, if it is a process of this
//! machine.

use super::snapshot::Snapshot;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The state of a process in `proc_pid_stat(5)`, such as `R`, and when it began, in clock ticks
/// after boot.
struct Stat {
    state: u8,
    start_ticks: Option<u64>,
}

/// The process still exists on this machine.
pub(super) fn is_alive(snapshot: &Snapshot) -> bool {
    state(snapshot).is_some_and(|state| !matches!(state, b'Z' | b'X'))
}

/// The process exists on this machine, is stopped, and has written no record for this time, ns.
pub(super) fn is_stopped(snapshot: &Snapshot, silence_ns: u64) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let end = Duration::from_nanos(snapshot.end_ns.saturating_add(silence_ns));
    matches!(state(snapshot), Some(b'T' | b't')) && now.is_ok_and(|now| now > end)
}

/// The state of the process; `None` if it is gone, or is of another machine.
fn state(snapshot: &Snapshot) -> Option<u8> {
    let here = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let identity = &snapshot.facts.identity;
    let is_here = identity.boot_id.as_deref().is_none_or(|id| id == boot.trim());
    // A recording names its host up to the first dot.
    if !is_here || here.trim().split('.').next() != snapshot.host.split('.').next() {
        return None;
    }
    let stat = stat(&std::fs::read_to_string(format!("/proc/{}/stat", snapshot.pid)).ok()?)?;
    let is_it = match (identity.start_ticks, stat.start_ticks) {
        (Some(recorded), Some(now)) => recorded == now,
        _ => has_begun_before(snapshot),
    };
    is_it.then_some(stat.state)
}

fn stat(text: &str) -> Option<Stat> {
    // The name, in parentheses, may hold any character.
    let mut fields = text.rsplit_once(") ")?.1.split(' ');
    let state = *fields.next()?.as_bytes().first()?;
    Some(Stat { state, start_ticks: fields.nth(18).and_then(|ticks| ticks.parse().ok()) })
}

/// The process of this number began before the recording ended.
fn has_begun_before(snapshot: &Snapshot) -> bool {
    let made = std::fs::metadata(format!("/proc/{}", snapshot.pid)).and_then(|of| of.modified());
    let made = made.ok().and_then(|made| made.duration_since(UNIX_EPOCH).ok());
    made.is_some_and(|made| made <= Duration::from_nanos(snapshot.end_ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The snapshot of this process.
    fn own() -> Snapshot {
        let text = std::fs::read_to_string("/proc/self/stat").unwrap();
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
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
        let mut snapshot = own();
        assert!(is_alive(&snapshot) && !is_stopped(&snapshot, 0));
        snapshot.facts.identity.start_ticks = Some(1);
        assert!(!is_alive(&snapshot), "another process has had this number");
        let elsewhere = Snapshot { host: "no-such-host".into(), ..own() };
        assert!(!is_alive(&elsewhere));
    }

    #[test]
    fn the_name_of_a_process_may_look_like_a_state() {
        let fields: Vec<String> = (4..24).map(|field| field.to_string()).collect();
        let read = stat(&format!("7 (x) R (y) T {}", fields.join(" "))).unwrap();
        assert_eq!((read.state, read.start_ticks), (b'T', Some(22)));
    }
}
