// SPDX-License-Identifier: Apache-2.0
//! Names of recordings: `HOST-PID.nscope`, with `.1`, `.2` and so on appended for later processes
//! of the same name.

use std::path::Path;

/// Suffix of the names of recordings, before a number.
pub const SUFFIX: &str = ".nscope";

/// The name of a recording, `HOST-PID.nscope`, without the number that later processes append.
#[must_use]
pub fn recording_name(host: &str, pid: u32) -> String {
    format!("{host}-{pid}{SUFFIX}")
}

/// Whether a file of this name is a recording.
#[must_use]
pub fn is_recording(name: &str) -> bool {
    let is_number = |rest: &str| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit());
    match name.rsplit_once(SUFFIX) {
        Some((_, "")) => true,
        Some((_, rest)) => rest.strip_prefix('.').is_some_and(is_number),
        None => false,
    }
}

/// Whether a path is named as a recording is.
#[must_use]
pub fn is_recording_path(path: &Path) -> bool {
    path.file_name().is_some_and(|name| is_recording(&name.to_string_lossy()))
}

/// The process id in the name of a recording of host `host`; `None` for other names.
#[must_use]
pub fn pid_of(recording: &Path, host: &str) -> Option<u32> {
    let name = recording.file_name()?.to_str()?;
    name.split(SUFFIX).next()?.strip_prefix(host)?.strip_prefix('-')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_recordings() {
        assert!(is_recording("node-1-77.nscope") && is_recording("h-1.nscope.12"));
        assert!(is_recording(&recording_name("h", 1)));
        assert!(!is_recording("run.json") && !is_recording("h-1.nscope.bak"));
        assert!(!is_recording("h-1.nscope.") && !is_recording("h-1.nscope.1.2"));
        assert!(is_recording_path(Path::new("/x/h-1.nscope.1")));
        assert_eq!(pid_of(Path::new("/x/h-1-77.nscope.2"), "h-1"), Some(77));
        assert_eq!(pid_of(Path::new("/x/h-2-77.nscope"), "h-1"), None);
    }
}
