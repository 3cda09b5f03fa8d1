// SPDX-License-Identifier: Apache-2.0
/*!
Examines the command's processes until one of them records, and finds those that have loaded NCCL
and not the plugin.

It reads `/proc` and does not touch the job: first after 50 ms, then less and less often. It ends
with the first recording, so that a correct run costs a few looks. If none comes, it says what the
job's processes do.
*/

use crate::plugin;
use crate::plugin::loading::{LIBRARY_PATH, PLUGIN};
use crate::run_input::input::recordings_in;
use ncclscope_console::failure::warn_lines;
use ncclscope_control::variable::PREFIX;
use ncclscope_node::unrecorded::{Patience, Unrecorded, files, is_nccl};
use rustix::process::geteuid;
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Pause before the first look, and the longest pause.
const PAUSES: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(20)];
/// `AT_SECURE` of `getauxval(3)`: the loader ignores variables that could make it load another
/// file.
const AT_SECURE: u64 = 23;

/// A process that had NCCL loaded when it was last looked at.
#[derive(Debug, Default, Clone)]
pub(super) struct NcclProcess {
    /// Its name, from `/proc/PID/comm`.
    pub(super) name: String,
    /// The libnccl that it loaded.
    pub(super) library: PathBuf,
    /// Its effective user id.
    pub(super) user: u32,
    pub(super) has_plugin: bool,
    /// The plugin's file exists in its mount namespace.
    pub(super) sees_plugin: bool,
    /// The loader ignores `LD_LIBRARY_PATH` in it.
    pub(super) is_secure: bool,
    /// Its environment when it was started.
    pub(super) environment: HashMap<String, String>,
}

/// The thread that looks at processes.
pub(super) struct Watch {
    stop: Sender<()>,
    thread: JoinHandle<BTreeMap<u32, NcclProcess>>,
}

impl Watch {
    /// Looks at the descendants of this process, which record into `directory`. If `says`, reports
    /// processes of this machine that record nothing.
    pub(super) fn start(plugin: PathBuf, directory: PathBuf, says: bool) -> Watch {
        let (stop, stopped) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let (mut all, [mut pause, longest]) = (BTreeMap::new(), PAUSES);
            let mut patience = Patience::default();
            while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                if !recordings_in(&directory).unwrap_or_default().is_empty() {
                    break;
                }
                look(&plugin, &mut all);
                if says {
                    let found = Unrecorded::find(std::slice::from_ref(&directory));
                    patience.look(&found, Instant::now()).into_iter().for_each(warn_lines);
                }
                pause = pause.mul_f64(1.5).min(longest);
            }
            all
        });
        Watch { stop, thread }
    }

    /// The processes that were seen, by process id.
    pub(super) fn end(self) -> BTreeMap<u32, NcclProcess> {
        let _ = self.stop.send(());
        self.thread.join().unwrap_or_default()
    }
}

/// Adds the present processes.
fn look(plugin: &Path, all: &mut BTreeMap<u32, NcclProcess>) {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
        if let Some((pid, parent)) = pid.and_then(|pid| Some((pid, parent(pid)?))) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut next = children.remove(&std::process::id()).unwrap_or_default();
    while let Some(pid) = next.pop() {
        next.extend(children.remove(&pid).unwrap_or_default());
        if let Some(seen) = process(pid, plugin) {
            all.insert(pid, seen);
        }
    }
}

/// Parent process id, from the fields after name and state (`proc_pid_stat(5)`).
fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

/// The process if it has NCCL loaded, else `None`.
fn process(pid: u32, plugin: &Path) -> Option<NcclProcess> {
    let of = |name: &str| PathBuf::from(format!("/proc/{pid}/{name}"));
    let maps = fs::read(of("maps")).ok()?;
    let mut files = files(&maps);
    let name_of = |path: &Path| path.file_name().unwrap_or_default().to_owned();
    let library = files.clone().find(|path| is_nccl(path))?.to_owned();
    let ours = [name_of(plugin), plugin::NAME.into(), plugin::CARGO_NAME.into()];
    let root = of("root").join(plugin.strip_prefix("/").unwrap_or(plugin));
    Some(NcclProcess {
        name: fs::read_to_string(of("comm")).unwrap_or_default().trim_end().to_owned(),
        library,
        user: user(&fs::read_to_string(of("status")).unwrap_or_default()),
        has_plugin: files.any(|path| ours.contains(&name_of(path))),
        sees_plugin: fs::metadata(root).is_ok(),
        is_secure: is_secure(&fs::read(of("auxv")).unwrap_or_default()),
        environment: environment(&fs::read(of("environ")).unwrap_or_default()),
    })
}

/// Effective user id from a process's `status` (`proc_pid_status(5)`), else our own.
fn user(status: &str) -> u32 {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let user = line.and_then(|ids| ids.split_whitespace().nth(1)?.parse().ok());
    user.unwrap_or_else(|| geteuid().as_raw())
}

/// True if [`AT_SECURE`] is set in an auxiliary vector, which consists of pairs of words.
fn is_secure(auxv: &[u8]) -> bool {
    let word = |bytes: &[u8]| bytes.try_into().map(u64::from_ne_bytes).unwrap_or_default();
    auxv.chunks_exact(16).any(|pair| word(&pair[..8]) == AT_SECURE && word(&pair[8..]) != 0)
}

/// The variables that decide what is loaded and recorded.
fn environment(bytes: &[u8]) -> HashMap<String, String> {
    let pair = |entry: &[u8]| {
        let entry = String::from_utf8_lossy(entry);
        let (name, value) = entry.split_once('=')?;
        let is_wanted = [PLUGIN, LIBRARY_PATH].contains(&name) || name.starts_with(PREFIX);
        is_wanted.then(|| (name.to_owned(), value.to_owned()))
    };
    bytes.split(|&byte| byte == 0).filter_map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_read() {
        let pid = std::process::id();
        assert_eq!(parent(pid), Some(std::os::unix::process::parent_id()));
        assert!(process(pid, Path::new("/x.so")).is_none(), "it has no NCCL");
        assert_eq!(user(&fs::read_to_string("/proc/self/status").unwrap()), geteuid().as_raw());
        assert_eq!(user("Name:\tx\nUid:\t1\t77\t1\t1\n"), 77);
        assert!(!is_secure(&fs::read("/proc/self/auxv").unwrap()));
        let secure: Vec<u8> = [AT_SECURE, 1].iter().flat_map(|word| word.to_ne_bytes()).collect();
        assert!(is_secure(&secure));
        let found = environment(b"A=b\0NCCL_PROFILER_PLUGIN=x=y\0NCCLSCOPE_MODE=off\0");
        assert_eq!((found.len(), &*found[PLUGIN]), (2, "x=y"));
    }
}
