// SPDX-License-Identifier: Apache-2.0
//! What the local kernel shows about a process, if it runs on this host since the same boot.

use crate::input::host_name;
use ncclscope_trace::Identity;

/// The identity of this host, to decide whether a process runs on it.
#[derive(Debug)]
pub(super) struct Here {
    host: String,
    boot_id: String,
}

/// The state of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    Alive,
    /// A signal or a debugger stopped it.
    Stopped,
    Gone,
}

impl Here {
    pub(super) fn new() -> Here {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
        Here { host: host_name(), boot_id: boot.unwrap_or_default().trim().to_owned() }
    }

    /// The state of a process; `None` for a process of another host or container.
    pub(super) fn see(&self, host: &str, pid: u32, identity: &Identity) -> Option<Seen> {
        let is_here = identity.boot_id.as_deref().is_none_or(|id| id == self.boot_id);
        if !is_here || host != self.host {
            return None;
        }
        let Ok(stat) = std::fs::read(format!("/proc/{pid}/stat")) else { return Some(Seen::Gone) };
        let (state, began) = parse(&String::from_utf8_lossy(&stat))?;
        // The process id was reused by another process.
        if identity.start_ticks.is_some_and(|ticks| ticks != began) {
            return Some(Seen::Gone);
        }
        Some(match state {
            'T' | 't' => Seen::Stopped,
            'Z' | 'X' => Seen::Gone,
            _ => Seen::Alive,
        })
    }
}

/// State and start of a process (`proc_pid_stat(5)`); its name may contain any character.
fn parse(stat: &str) -> Option<(char, u64)> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(18)?.trim().parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Pid, Signal, kill_process};
    use std::process::Command;
    use std::time::{Duration, Instant};

    #[test]
    fn a_process_is_seen_to_run_to_stop_and_to_be_gone() {
        let here = Here::new();
        let see = |pid, identity: &Identity| here.see(&here.host, pid, identity);
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let (pid, unknown) = (child.id(), Identity::default());
        assert_eq!(see(pid, &unknown), Some(Seen::Alive));
        let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let start_ticks = parse(&text).map(|(_, began)| began);
        let known = Identity { start_ticks, ..Identity::default() };
        assert_eq!(see(pid, &known), Some(Seen::Alive));
        let other = Identity { start_ticks: Some(1), ..Identity::default() };
        assert_eq!(see(pid, &other), Some(Seen::Gone), "the id is another process's now");
        kill_process(Pid::from_child(&child), Signal::STOP).unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        while see(pid, &known) != Some(Seen::Stopped) {
            assert!(Instant::now() < until);
            std::thread::sleep(Duration::from_millis(5));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(see(pid, &known), Some(Seen::Gone));
        assert_eq!(here.see("elsewhere", pid, &known), None);
        let boot_id = Some("another".to_owned());
        assert_eq!(see(pid, &Identity { boot_id, ..known }), None);
    }

    #[test]
    fn a_name_cannot_pass_for_a_state() {
        let fields = (4..=21).map(|n| format!(" {n}")).collect::<String>();
        assert_eq!(parse(&format!("7 (a) T b) S{fields} 99 0")), Some(('S', 99)));
        assert_eq!(parse("7 (a"), None);
    }
}
