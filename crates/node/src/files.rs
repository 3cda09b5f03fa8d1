// SPDX-License-Identifier: Apache-2.0
//! The recordings of a directory, their damage, and the limit of open files.

use ncclscope_console::failure::{Failure, warn};
use ncclscope_control::directories;
use ncclscope_operations::human;
use ncclscope_trace::names::is_recording;
use ncclscope_trace::{Recording, descriptors};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io;
use std::path::{Path, PathBuf};

/// Maximum number of damaged recordings that are named.
pub const NAMED: usize = 8;
/// Minimum number of files that must be possible to keep open.
const LEAST_FILES: usize = 8;

/// The recordings in a directory, sorted by name.
pub fn recordings_in(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if is_recording(&name) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// The name of this host, as in recordings.
pub fn host_name() -> String {
    directories::host_name(&rustix::system::uname().nodename().to_string_lossy())
}

/// Names the damaged recordings, one line each up to [`NAMED`], and returns their number.
pub fn name_damaged<'a>(recordings: impl IntoIterator<Item = &'a Recording>) -> usize {
    warn_of_damaged(recordings.into_iter().filter_map(damage))
}

/// Prints these lines, up to [`NAMED`], and returns their number.
pub fn warn_of_damaged(lines: impl Iterator<Item = String>) -> usize {
    let damaged: Vec<String> = lines.collect();
    let count = damaged.len();
    first_of(damaged.into_iter(), "damaged").iter().for_each(warn);
    count
}

/// The first [`NAMED`] lines of one for each recording, and one on how many more are `alike`.
pub fn first_of(lines: impl Iterator<Item = String>, alike: &str) -> Vec<String> {
    first_lines(lines, |more| format!("{} {alike}", human::are(more, "more recording")))
}

/// The first [`NAMED`] lines, and one on how many more there are.
pub fn first_lines(
    mut lines: impl Iterator<Item = String>,
    rest: impl FnOnce(usize) -> String,
) -> Vec<String> {
    let mut first: Vec<String> = lines.by_ref().take(NAMED).collect();
    if let more @ 1.. = lines.count() {
        first.push(rest(more));
    }
    first
}

/// The damage of a recording that was read, as a line; `None` if there is none.
pub fn damage(recording: &Recording) -> Option<String> {
    let all = recording.damage_in_short();
    let path = recording.path().display();
    (!all.is_empty()).then(|| format!("{path} is damaged: {}", all.join("; ")))
}

/// Raises the soft limit of open files (usually 1024), because recordings stay open while they are
/// read. Fails if the limit is too low even for reading one after the other.
pub fn allow_open_files() -> Result<(), Failure> {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    let room = descriptors::room();
    if room >= LEAST_FILES {
        return Ok(());
    }
    Err(Failure::environment(format!(
        "only {} can be opened, and reading takes {LEAST_FILES}: raise the limit with \
         `ulimit -n 1024`",
        human::count(room, "more file")
    )))
}
