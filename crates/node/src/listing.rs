// SPDX-License-Identifier: Apache-2.0
/*!
Detects recordings that appear in directories or disappear from them.

A directory is listed when it has changed, and once a minute in any case: of a year of recordings,
only the modification times of their directories are read each second.
*/

use crate::files::recordings_in;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Number of directory levels below a given directory that are searched; each job may have one.
const DEPTH: usize = 2;
/// How often a directory is listed again even if its modification time is unchanged.
const LIST_EVERY: Duration = Duration::from_secs(60);
/// Number of further listings after a change: a file that is created within the same tick of the
/// file system's clock does not change the time again.
const AGAIN: u8 = 2;

/// The known content of some directories.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    roots: Vec<PathBuf>,
    known: BTreeMap<PathBuf, Directory>,
    recordings: BTreeSet<PathBuf>,
    /// Directories that could not be read at the last look, and a line that says why.
    unreadable: BTreeMap<PathBuf, String>,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    /// Recordings that appeared.
    pub(crate) new: Vec<PathBuf>,
    /// Recordings that disappeared.
    pub(crate) gone: Vec<PathBuf>,
}

#[derive(Debug)]
struct Directory {
    changed: (i64, i64),
    listed: Instant,
    again: u8,
    recordings: Vec<PathBuf>,
    below: Vec<PathBuf>,
}

impl Listing {
    /// The recordings in `roots` and below.
    pub(crate) fn new(roots: Vec<PathBuf>) -> Listing {
        Listing { roots, ..Listing::default() }
    }

    /// True if the directory was given by the user.
    pub(crate) fn is_root(&self, directory: &Path) -> bool {
        self.roots.iter().any(|root| root == directory)
    }

    /// The recordings at the last look.
    pub(crate) fn recordings(&self) -> impl Iterator<Item = &Path> {
        self.recordings.iter().map(PathBuf::as_path)
    }

    /// Directories that could not be read at the last look, and a line that says why. What was
    /// known of them before stays.
    pub(crate) fn unreadable(&self) -> &BTreeMap<PathBuf, String> {
        &self.unreadable
    }

    /// Number of given directories among them.
    pub(crate) fn unreadable_roots(&self) -> usize {
        self.unreadable.keys().filter(|path| self.is_root(path)).count()
    }

    /// The changes since the last call.
    pub(crate) fn look(&mut self) -> Changes {
        let before = std::mem::take(&mut self.known);
        self.unreadable.clear();
        let mut is_changed = false;
        let mut left: Vec<(PathBuf, usize)> =
            self.roots.iter().map(|root| (root.clone(), DEPTH)).collect();
        let mut known = before;
        while let Some((path, depth)) = left.pop() {
            if self.known.contains_key(&path) {
                continue;
            }
            let (read, error) = Directory::read(&path, depth, known.remove(&path));
            if let Some(error) = error {
                let line = format!("cannot read {}: {error}", path.display());
                self.unreadable.insert(path.clone(), line);
            }
            let Some((directory, is_new)) = read else { continue };
            is_changed |= is_new;
            left.extend(
                directory.below.iter().map(|below| (below.clone(), depth.saturating_sub(1))),
            );
            self.known.insert(path, directory);
        }
        if is_changed || !known.is_empty() { self.compare() } else { Changes::default() }
    }

    fn compare(&mut self) -> Changes {
        let now = self.known.values().flat_map(|directory| directory.recordings.iter().cloned());
        let now: BTreeSet<PathBuf> = now.collect();
        let changes = Changes {
            new: now.difference(&self.recordings).cloned().collect(),
            gone: self.recordings.difference(&now).cloned().collect(),
        };
        self.recordings = now;
        changes
    }
}

impl Directory {
    /// The present content of a directory, and whether it was listed; `None` if it does not exist.
    /// After an error, which is also returned, the known content stays.
    fn read(
        path: &Path,
        depth: usize,
        known: Option<Directory>,
    ) -> (Option<(Directory, bool)>, Option<io::Error>) {
        let changed = match std::fs::metadata(path) {
            Ok(of) if of.is_dir() => (of.mtime(), of.mtime_nsec()),
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return (known.map(|known| (known, false)), Some(error));
            }
            _ => return (None, None),
        };
        let is_fresh = |known: &Directory| {
            known.changed == changed && known.again == 0 && known.listed.elapsed() < LIST_EVERY
        };
        if known.as_ref().is_some_and(is_fresh) {
            return (known.map(|known| (known, false)), None);
        }
        let same = known.as_ref().filter(|known| known.changed == changed);
        let again = same.map_or(AGAIN, |known| known.again.saturating_sub(1));
        let listed = Instant::now();
        match list(path, depth) {
            Ok((recordings, below)) => {
                (Some((Directory { changed, listed, again, recordings, below }, true)), None)
            }
            // It was removed in the meantime.
            Err(error) if error.kind() == io::ErrorKind::NotFound => (None, None),
            Err(error) => {
                let known = known.map(|known| (Directory { again: AGAIN, ..known }, false));
                (known, Some(error))
            }
        }
    }
}

/// Recordings and subdirectories of a directory; no subdirectories at depth 0.
fn list(path: &Path, depth: usize) -> io::Result<(Vec<PathBuf>, Vec<PathBuf>)> {
    let mut below = Vec::new();
    if depth > 0 {
        for entry in std::fs::read_dir(path)? {
            let entry = entry?;
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                below.push(entry.path());
            }
        }
    }
    Ok((recordings_in(path)?, below))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_listed_when_it_changes() {
        let place = tempfile::tempdir().unwrap();
        let file = |name: &str| place.path().join(name);
        let mut listing = Listing::new(vec![place.path().to_owned(), place.path().to_owned()]);
        std::fs::write(file("a.nscope"), "").unwrap();
        assert_eq!(listing.look(), Changes { new: vec![file("a.nscope")], gone: vec![] });
        std::fs::create_dir_all(file("job/0/too/deep")).unwrap();
        for name in ["job/0/b.nscope", "job/c.nscope.1", "job/0/too/d.nscope", "job/other"] {
            std::fs::write(file(name), "").unwrap();
        }
        let new = vec![file("job/0/b.nscope"), file("job/c.nscope.1")];
        assert_eq!(listing.look(), Changes { new, gone: vec![] });
        (0..4).for_each(|_| assert_eq!(listing.look(), Changes::default()));
        assert!(listing.known.values().all(|directory| directory.again == 0));
        // Such errors are temporary: no free file descriptor, or a file server that does not
        // answer.
        let known = Directory { changed: (0, 0), ..listing.known.remove(place.path()).unwrap() };
        let nul = Path::new("a\0");
        let (kept, error) = Directory::read(nul, DEPTH, Some(known));
        let (kept, is_listed) = kept.unwrap();
        assert!(!is_listed && kept.recordings == [file("a.nscope")] && error.is_some());
        listing.known.insert(place.path().to_owned(), kept);
        std::fs::remove_dir_all(file("job/0")).unwrap();
        std::fs::rename(file("a.nscope"), file("e.nscope")).unwrap();
        let gone = vec![file("a.nscope"), file("job/0/b.nscope")];
        assert_eq!(listing.look(), Changes { new: vec![file("e.nscope")], gone });
        std::fs::remove_dir_all(place.path()).unwrap();
        let gone = vec![file("e.nscope"), file("job/c.nscope.1")];
        assert_eq!(listing.look(), Changes { new: vec![], gone });
    }
}
