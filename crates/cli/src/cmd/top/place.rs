// SPDX-License-Identifier: Apache-2.0
/*!
Chooses the directories that `top` reads.

Without a directory on the command line or in the environment, these are the ones that the recorded
processes of this host write to. Their process ids are the names of their control sockets, and their
recordings are what they have open (`/proc/PID/fd`). No request is sent to a process.
*/

use crate::args::TopArgs;
use crate::control;
use ncclscope_console::failure::Failure;
use ncclscope_control::directories::pid_of_socket;
use ncclscope_control::table::DIR;
use ncclscope_trace::names::is_recording_path;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

pub(super) fn directories(args: &TopArgs) -> Result<Vec<PathBuf>, Failure> {
    let set = || std::env::var_os(DIR.name).filter(|dir| !dir.is_empty()).map(PathBuf::from);
    if let Some(dir) = args.dir.clone().or_else(set) {
        if !dir.is_dir() {
            return Err(Failure::input(format!("{}: no such directory", dir.display())));
        }
        return Ok(vec![dir]);
    }
    let found = written_to(&control::directory());
    Ok(if found.is_empty() { vec![".".into()] } else { found })
}

/// The directories of the recordings that are open in processes with a socket in `sockets`.
fn written_to(sockets: &Path) -> Vec<PathBuf> {
    let entries = |path: &Path| std::fs::read_dir(path).into_iter().flatten().flatten();
    let pids = entries(sockets).filter_map(|entry| pid_of_socket(&entry.path()));
    let open = pids.flat_map(|pid| {
        let files = entries(&PathBuf::from(format!("/proc/{pid}/fd")));
        files.filter_map(|entry| std::fs::read_link(entry.path()).ok()).collect::<Vec<_>>()
    });
    let folders = open
        .filter(|path| is_recording_path(path))
        .filter_map(|path| path.parent().map(Path::to_owned));
    folders.collect::<BTreeSet<_>>().into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_show_where_they_record_without_being_asked() {
        let place = tempfile::tempdir().unwrap();
        let socket = place.path().join(format!("{}-1.sock", std::process::id()));
        std::fs::write(socket, "").unwrap();
        std::fs::write(place.path().join("4194305-1.sock"), "").unwrap();
        assert_eq!(written_to(place.path()), Vec::<PathBuf>::new());
        let run = place.path().join("run");
        std::fs::create_dir(&run).unwrap();
        let _open = std::fs::File::create(run.join("host-1.nscope")).unwrap();
        let _other = std::fs::File::create(run.join("host-1.txt")).unwrap();
        assert_eq!(written_to(place.path()), [run.canonicalize().unwrap()]);
        assert_eq!(written_to(&place.path().join("none")), Vec::<PathBuf>::new());
    }
}
