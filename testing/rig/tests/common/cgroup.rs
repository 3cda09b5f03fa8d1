// SPDX-License-Identifier: Apache-2.0
//! Control groups for a rank, with a quota of processor time or a freezer. They need root, and a
//! mounted, writable controller.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A control group, which is removed when this is dropped.
pub(crate) struct Group {
    path: PathBuf,
    /// The freezer's file, and the words that freeze and thaw the group.
    freezer: Option<[&'static str; 3]>,
}

/// The freezer's file and words in each version of control groups.
const FREEZERS: [[&str; 3]; 2] =
    [["freezer.state", "FROZEN", "THAWED"], ["cgroup.freeze", "1", "0"]];

impl Group {
    /// A group with a quota of 10 ms of processor time per 100 ms; `None` if it cannot be created.
    pub(crate) fn with_quota() -> Option<Group> {
        let versions: [(&str, &[(&str, &str)]); 2] = [
            ("/sys/fs/cgroup", &[("cpu.max", "10000 100000")]),
            (
                "/sys/fs/cgroup/cpu",
                &[("cpu.cfs_period_us", "100000"), ("cpu.cfs_quota_us", "10000")],
            ),
        ];
        versions.into_iter().find_map(|(mount, settings)| {
            let group = Group::below(mount, &["cgroup.procs", "cpu.cfs_quota_us"])?;
            let set = |&(file, value): &(&str, &str)| std::fs::write(group.path.join(file), value);
            settings.iter().all(|setting| set(setting).is_ok()).then_some(group)
        })
    }

    /// A group of each version that has a freezer on this machine.
    pub(crate) fn with_freezer() -> Vec<Group> {
        let mounts = [
            ("/sys/fs/cgroup/freezer", FREEZERS[0]),
            ("/sys/fs/cgroup", FREEZERS[1]),
            ("/sys/fs/cgroup/unified", FREEZERS[1]),
        ];
        let group = |(mount, freezer): (&str, [&'static str; 3])| {
            let mut group = Group::below(mount, &["cgroup.procs"])?;
            let [file, _, thaw] = freezer;
            std::fs::write(group.path.join(file), thaw).ok()?;
            group.freezer = Some(freezer);
            Some(group)
        };
        mounts.into_iter().filter_map(group).collect()
    }

    /// A new group below `mount`, if one of these files is there.
    fn below(mount: &str, files: &[&str]) -> Option<Group> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        if !files.iter().any(|file| Path::new(mount).join(file).exists()) {
            return None;
        }
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("ncclscope-test-{}-{number}", std::process::id());
        let path = Path::new(mount).join(name);
        std::fs::create_dir(&path).ok()?;
        Some(Group { path, freezer: None })
    }

    /// Moves a process into the group.
    pub(crate) fn take(&self, pid: u32) {
        std::fs::write(self.path.join("cgroup.procs"), pid.to_string()).expect("a group of ours");
    }

    /// Freezes or thaws the group's processes.
    pub(crate) fn freeze(&self, is_frozen: bool) {
        let Some([file, freeze, thaw]) = self.freezer else { return };
        let what = if is_frozen { freeze } else { thaw };
        std::fs::write(self.path.join(file), what).expect("a freezer of ours");
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some([file, _, thaw]) = self.freezer {
            let _thawed = std::fs::write(self.path.join(file), thaw);
        }
        // The group is empty when its processes have ended; the kernel removes only empty groups.
        let _removed = std::fs::remove_dir(&self.path);
    }
}
