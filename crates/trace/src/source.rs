// SPDX-License-Identifier: Apache-2.0
/*!
The file of an open recording.

A run may have more recordings than a process may have descriptors. The first recordings keep
theirs, as many as [`crate::descriptors`] allows; the file of each further one is opened again when
a block is read.
*/

use crate::descriptors::held_at_most;
use crate::files::open_to_read;
use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Number of recordings of this process that keep their descriptor.
static HELD: AtomicUsize = AtomicUsize::new(0);

/// A file that is open, or can be opened again.
#[derive(Debug)]
pub(crate) struct Source {
    path: PathBuf,
    /// Device and inode.
    id: (u64, u64),
    file: Option<File>,
    is_counted: bool,
}

#[derive(Debug)]
pub(crate) enum Opened<'a> {
    Held(&'a File),
    Again(File),
}

impl Deref for Opened<'_> {
    type Target = File;

    fn deref(&self) -> &File {
        match self {
            Opened::Held(file) => file,
            Opened::Again(file) => file,
        }
    }
}

impl Source {
    /// Opens the file, which stays open until [`Source::rest`].
    pub(crate) fn open(path: &Path) -> io::Result<Source> {
        let file = open_to_read(path)?;
        Ok(Source { path: path.to_owned(), id: id(&file)?, file: Some(file), is_counted: false })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Ends the first reading. The file stays open if fewer than [`held_at_most`] recordings do.
    pub(crate) fn rest(&mut self) {
        self.is_counted = HELD.fetch_add(1, Relaxed) < held_at_most();
        if !self.is_counted {
            HELD.fetch_sub(1, Relaxed);
            self.file = None;
        }
    }

    /// The open file. An error if its path now names another file.
    pub(crate) fn get(&self) -> io::Result<Opened<'_>> {
        if let Some(file) = &self.file {
            return Ok(Opened::Held(file));
        }
        let file = open_to_read(&self.path)?;
        if id(&file)? == self.id {
            return Ok(Opened::Again(file));
        }
        Err(io::Error::other("another file has taken its place"))
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        if self.is_counted {
            HELD.fetch_sub(1, Relaxed);
        }
    }
}

fn id(file: &File) -> io::Result<(u64, u64)> {
    let metadata = file.metadata()?;
    Ok((metadata.dev(), metadata.ino()))
}
