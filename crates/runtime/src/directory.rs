// SPDX-License-Identifier: Apache-2.0
//! The directories of recordings, and the names of their files.

use crate::sys::descriptor::FILES;
use ncclscope_trace::layout::Header;
use ncclscope_trace::names::recording_name;
use ncclscope_trace::{Writer, create_directories};
use std::io;
use std::path::{Path, PathBuf};

/// Creates `HOST-PID.nscope` in `dir`. If the file exists (left by an earlier process, or by one in
/// another container), the name gets the suffix `nonce`, a number that other processes are unlikely
/// to have.
pub(crate) fn create(
    dir: &Path,
    header: &Header,
    ring_bytes: u64,
    nonce: u32,
) -> io::Result<(Writer, PathBuf)> {
    create_directories(dir)?;
    let name = recording_name(&header.host, header.pid);
    let further = (nonce..=u32::MAX).chain(1..nonce).map(|number| format!("{name}.{number}"));
    // The next names are derived from the nonce, so that they are free unless two nonces collide;
    // the number of recordings in the directory does not matter.
    for name in [name.clone()].into_iter().chain(further.take(16)) {
        let path = dir.join(name);
        match Writer::create_with(&path, header.clone(), ring_bytes, FILES) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            created => return created.map(|writer| (writer, path)),
        }
    }
    Err(io::Error::other(format!("recordings of the name {name} are already there")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pod that is restarted on one volume, so that its process id is 1 each time.
    #[test]
    fn three_hundred_processes_of_one_name_have_a_recording_each() {
        let dir = tempfile::tempdir().unwrap();
        let header = Header { pid: 1, host: "pod".into(), ..Header::default() };
        let mut names = Vec::new();
        for nonce in (1..300_000).step_by(1000) {
            let (_, path) = create(dir.path(), &header, 1 << 20, nonce).unwrap();
            names.push(path.file_name().unwrap().to_str().unwrap().to_owned());
        }
        assert_eq!((names.len(), names[0].as_str()), (300, "pod-1.nscope"));
        assert_eq!(names[299], "pod-1.nscope.299001");
        // The same nonce twice, and the largest nonce.
        for nonce in [1001, u32::MAX, u32::MAX] {
            create(dir.path(), &header, 1 << 20, nonce).unwrap();
        }
    }
}
