// SPDX-License-Identifier: Apache-2.0
//! Several output files that appear together or not at all.

use ncclscope_console::failure::Failure;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

/// What happens to existing files that have the name of a new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Existing {
    Replaced,
    /// Nothing is written then.
    Kept,
}

/// Lets `write` fill a new directory, and moves its files into `folder`, which is created if it is
/// missing, when all of them are complete. If `write` fails, nothing appears in `folder`; after a
/// kill the new directory stays, as `FOLDER.PID.tmp` or `FOLDER/.PID.tmp`, which no verb takes for
/// a run.
pub(crate) fn fill<T>(
    folder: &Path,
    existing: Existing,
    write: impl FnOnce(&Path) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let failed = |error: io::Error| Failure::write(folder, &error);
    let new = new_folder(folder).map_err(failed)?;
    let result = write(&new).and_then(|written| appear(&new, folder, existing).map(|()| written));
    // What was moved is no longer there.
    let _ = std::fs::remove_dir_all(&new);
    result
}

/// An empty directory on the file system of `folder`: inside it if it exists, else beside it.
fn new_folder(folder: &Path) -> io::Result<PathBuf> {
    let process = std::process::id();
    let new = if folder.is_dir() {
        folder.join(format!(".{process}.tmp"))
    } else {
        if let Some(above) = folder.parent() {
            std::fs::create_dir_all(above)?;
        }
        // Without a slash at the end.
        let mut name: OsString = folder.components().as_path().into();
        name.push(format!(".{process}.tmp"));
        PathBuf::from(name)
    };
    // Of an earlier process with this id. A link is not followed.
    let _ = std::fs::remove_dir_all(&new);
    std::fs::create_dir(&new)?;
    Ok(new)
}

/// Moves the files of `new` into `folder`.
fn appear(new: &Path, folder: &Path, existing: Existing) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::write(folder, &error);
    if !folder.is_dir() {
        return std::fs::rename(new, folder).map_err(failed);
    }
    let entries = std::fs::read_dir(new).and_then(Iterator::collect::<io::Result<Vec<_>>>);
    let moves: Vec<(PathBuf, PathBuf)> = entries
        .map_err(failed)?
        .into_iter()
        .map(|entry| (entry.path(), folder.join(entry.file_name())))
        .collect();
    if let (Existing::Kept, Some((_, to))) =
        (existing, moves.iter().find(|(_, to)| to.symlink_metadata().is_ok()))
    {
        let error = io::Error::new(io::ErrorKind::AlreadyExists, "File exists");
        return Err(Failure::write(to, &error));
    }
    // Nothing is written any more, so that a full disk cannot stop this halfway.
    moves.iter().try_for_each(|(from, to)| std::fs::rename(from, to)).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::fs;

    fn names(folder: &Path) -> BTreeSet<String> {
        let entries = fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    fn two(folder: &Path) -> Result<u8, Failure> {
        fs::write(folder.join("a"), "new").unwrap();
        fs::write(folder.join("b"), "new").unwrap();
        Ok(2)
    }

    fn one_and_a_half(folder: &Path) -> Result<u8, Failure> {
        two(folder)?;
        Err(Failure::environment("the disk is full"))
    }

    #[test]
    fn all_files_are_there_or_none() {
        let place = tempfile::tempdir().unwrap();
        for folder in [place.path().join("deep/new"), place.path().join("slash/")] {
            fill(&folder, Existing::Kept, one_and_a_half).unwrap_err();
            assert!(!folder.exists());
            assert_eq!(fill(&folder, Existing::Kept, two).unwrap(), 2);
            assert_eq!(names(&folder), BTreeSet::from(["a".into(), "b".into()]));
        }
        assert_eq!(names(place.path()), BTreeSet::from(["deep".into(), "slash".into()]));
    }

    #[test]
    fn what_exists_is_replaced_or_kept() {
        let place = tempfile::tempdir().unwrap();
        let old = |name: &str| fs::write(place.path().join(name), "old").unwrap();
        let is = |name: &str| fs::read_to_string(place.path().join(name)).unwrap();
        old("b");
        old("c");
        fill(place.path(), Existing::Replaced, one_and_a_half).unwrap_err();
        fill(place.path(), Existing::Kept, two).unwrap_err();
        assert_eq!((names(place.path()).len(), is("b")), (2, "old".into()));
        fill(place.path(), Existing::Replaced, two).unwrap();
        assert_eq!(names(place.path()).len(), 3);
        assert_eq!((is("a"), is("b"), is("c")), ("new".into(), "new".into(), "old".into()));
        // A directory of files that was named by its link.
        std::os::unix::fs::symlink(place.path(), place.path().join("link")).unwrap();
        old("b");
        fill(&place.path().join("link"), Existing::Replaced, two).unwrap();
        assert_eq!(is("b"), "new");
    }
}
