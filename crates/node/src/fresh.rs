// SPDX-License-Identifier: Apache-2.0
//! Creates new files safely: a link that another user placed there is not followed.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::Path;

/// Creates a file for writing. An existing file or link of that name, such as one of an earlier
/// process with this id, is removed and not followed.
///
/// # Errors
/// The system's error.
pub fn create(path: &Path) -> io::Result<File> {
    let open = || OpenOptions::new().write(true).create_new(true).open(path);
    match open() {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            std::fs::remove_file(path)?;
            open()
        }
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_link_at_its_place_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (victim, place) = (folder.path().join("victim"), folder.path().join(".out.7.tmp"));
        std::fs::write(&victim, "theirs").unwrap();
        std::os::unix::fs::symlink(&victim, &place).unwrap();
        create(&place).unwrap().write_all(b"ours").unwrap();
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "theirs");
        assert_eq!(std::fs::read_to_string(&place).unwrap(), "ours");
        assert!(!place.is_symlink());
        create(&folder.path().join("none/x")).unwrap_err();
    }
}
