// SPDX-License-Identifier: Apache-2.0
/*!
Directories in shared places that only this user can write to: for control sockets, and for
recordings without another place.
*/

use crate::sys::peer;
use ncclscope_control::directories::{is_private, of_user};
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// This user's directory: control sockets are in it, recordings below it.
#[must_use]
pub(crate) fn directory() -> PathBuf {
    of_user(peer::user())
}

/// The socket's file, which is removed when this value is dropped.
#[derive(Debug)]
pub(crate) struct SocketFile {
    pub(crate) path: PathBuf,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Creates `dir` with this mode, or checks that the existing one belongs to this user.
///
/// # Errors
/// The system's error, or that another user owns the directory.
pub(crate) fn ready(dir: &Path, mode: u32) -> io::Result<()> {
    match fs::DirBuilder::new().mode(mode).create(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    is_private(&fs::symlink_metadata(dir)?, peer::user()).map_err(io::Error::other)
}

/// Creates a directory with an unguessable name beside `dir`, for use when `dir` itself is not
/// private.
///
/// # Errors
/// The system's.
pub(crate) fn instead_of(dir: &Path) -> io::Result<PathBuf> {
    let mut name = dir.as_os_str().to_owned();
    name.push(format!(".{:08x}", crate::sys::nonce()));
    let own = PathBuf::from(name);
    fs::DirBuilder::new().mode(0o700).create(&own)?;
    Ok(own)
}

/// The directory for recordings that should go to `dir`, which is `base` or below it. No other user
/// can write to the result. Also returns a line for the user if the result is another directory.
///
/// # Errors
/// A line with the reason.
pub(crate) fn place(base: &Path, dir: &Path) -> Result<(PathBuf, Option<String>), String> {
    let Err(why) = ready(base, 0o700) else { return Ok((dir.to_owned(), None)) };
    let shown = base.display();
    let other = instead_of(base).map_err(|error| {
        let instead = format!("and no other directory can be created: {error}");
        format!("{shown}: {why}, {instead}")
    })?;
    let other = other.join(dir.strip_prefix(base).unwrap_or_else(|_| Path::new("")));
    let line = format!(
        "{shown}: {why}; recording to {} (NCCLSCOPE_DIR names a better one)",
        other.display()
    );
    Ok((other, Some(line)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn a_directory_of_ones_own_is_made_and_found_again() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("own");
        ready(&dir, 0o700).unwrap();
        assert_eq!(mode(&dir), 0o700);
        ready(&dir, 0o700).unwrap();
        // Other users may be allowed to read.
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
        ready(&dir, 0o700).unwrap();
    }

    #[test]
    fn what_others_can_write_to_or_lead_elsewhere_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let why = |dir: &Path| ready(dir, 0o700).unwrap_err().to_string();
        let (open, link, file) =
            (folder.path().join("open"), folder.path().join("link"), folder.path().join("file"));
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(why(&open), "other users can write to it (mode 777)");
        symlink(folder.path(), &link).unwrap();
        assert_eq!(why(&link), "it is a symbolic link");
        fs::write(&file, "").unwrap();
        assert_eq!(why(&file), "it is not a directory");
        // Only root can give a directory away; for other users, the entries of the root directory
        // are root's.
        let given = folder.path().join("given");
        fs::create_dir(&given).unwrap();
        let foreign = if std::os::unix::fs::chown(&given, Some(1002), None).is_ok() {
            (given.as_path(), 1002)
        } else {
            (Path::new("/usr"), 0)
        };
        let belongs = format!("it belongs to another user (uid {})", foreign.1);
        assert_eq!(why(foreign.0), belongs);
        let own = instead_of(&open).unwrap();
        assert_eq!(mode(&own), 0o700);
        assert!(own.to_str().unwrap().contains("/open."));
    }
}
