// SPDX-License-Identifier: Apache-2.0
//! The processor quota of the process's control group, from `cpu.stat`.
//!
//! Source: the kernel's `Documentation/admin-guide/cgroup-v2.rst` and `cgroup-v1/`.

use std::fs;
use std::path::{Path, PathBuf};

/// Mount point of version 2; the controllers of version 1 are directories in it.
const UNIFIED: &str = "/sys/fs/cgroup";

/// The statistics of the process's control group.
#[derive(Debug)]
pub(crate) struct Quota {
    stat: Option<PathBuf>,
}

impl Quota {
    pub(crate) fn new() -> Quota {
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Quota { stat: candidates(&groups).into_iter().find(|file| file.exists()) }
    }

    /// Time for which threads were held up because the quota was used up, summed over processors,
    /// us. `None` without control groups.
    pub(crate) fn throttled_us(&self) -> Option<u64> {
        throttled_us(&fs::read_to_string(self.stat.as_ref()?).ok()?)
    }
}

/// The files that may contain the statistics. In a container, the container's group is the root.
fn candidates(groups: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (fields.next(), fields.next()) else { continue };
        let mount = match controllers {
            "" => PathBuf::from(UNIFIED),
            _ if controllers.split(',').any(|name| name == "cpu") => {
                Path::new(UNIFIED).join(controllers)
            }
            _ => continue,
        };
        for group in [group.trim_start_matches('/'), ""] {
            found.push(mount.join(group).join("cpu.stat"));
        }
    }
    found
}

fn throttled_us(stat: &str) -> Option<u64> {
    stat.lines().find_map(|line| match line.split_once(' ')? {
        ("throttled_usec", us) => us.parse().ok(),
        ("throttled_time", ns) => ns.parse::<u64>().ok().map(|ns| ns / 1_000),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_are_read() {
        assert_eq!(throttled_us("usage_usec 7\nnr_throttled 2\nthrottled_usec 350\n"), Some(350));
        assert_eq!(throttled_us("nr_periods 1\nthrottled_time 2500\n"), Some(2));
        assert_eq!(throttled_us("usage_usec 7\n"), None);
        let files = |groups| candidates(groups).into_iter().map(|f| f.display().to_string());
        let two: Vec<_> = files("0::/user.slice/a\n").collect();
        assert_eq!(two, ["/sys/fs/cgroup/user.slice/a/cpu.stat", "/sys/fs/cgroup/cpu.stat"]);
        let one: Vec<_> = files("5:memory:/m\n4:cpu,cpuacct:/c\nnonsense\n").collect();
        let cpu = "/sys/fs/cgroup/cpu,cpuacct";
        assert_eq!(one, [format!("{cpu}/c/cpu.stat"), format!("{cpu}/cpu.stat")]);
        let alone: Vec<_> = files("1:cpu:/c\n").collect();
        assert_eq!(alone, ["/sys/fs/cgroup/cpu/c/cpu.stat", "/sys/fs/cgroup/cpu/cpu.stat"]);
        // On any machine, asking must not fail.
        let _ = Quota::new().throttled_us();
    }
}
