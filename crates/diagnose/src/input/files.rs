// SPDX-License-Identifier: Apache-2.0
//! Finds the files to read, and tells their kinds.

use super::file::{FIRST, FileKind, file_kind, is_json_dump};
use ncclscope_trace::names::is_recording_path;
use std::io::{Read, Seek};
use std::path::{Path, PathBuf};

/// Dumps are looked for in folders this deep below one without input, such as one for each node.
pub(crate) const DEEPEST: usize = 2;

/// Files by kind.
#[derive(Debug, Default)]
pub(crate) struct InputFiles {
    pub(crate) recordings: Vec<PathBuf>,
    pub(crate) vectors: Vec<PathBuf>,
    pub(crate) pickles: Vec<PathBuf>,
    pub(crate) json: Vec<PathBuf>,
    pub(crate) ras_texts: Vec<PathBuf>,
    pub(crate) ras_events: Vec<PathBuf>,
    pub(crate) archives: Vec<PathBuf>,
    /// Files of a directory without content.
    pub(crate) empty: Vec<PathBuf>,
    pub(crate) warnings: Vec<String>,
}

impl InputFiles {
    /// Number of files, and of lines about them.
    pub(crate) fn count(&self) -> usize {
        let ras = [&self.ras_texts, &self.ras_events];
        let others = [&self.recordings, &self.vectors, &self.pickles, &self.json];
        let files = ras.into_iter().chain(others);
        files.map(|list| list.len()).sum::<usize>() + self.warnings.len()
    }

    pub(crate) fn directory(&mut self, directory: &Path) -> Result<(), String> {
        let mut files = content(directory)?;
        files.retain(|path| path.is_file() || is_recording_path(path));
        for file in files {
            if let Err(error) = self.add(&file) {
                self.warnings.push(error);
            }
            // A recording that was renamed does not belong to the run, as in all verbs.
            self.recordings.pop_if(|last| *last == file && !is_recording_path(&file));
        }
        Ok(())
    }

    /// Adds the dumps in the folders of a directory, up to a depth.
    pub(crate) fn dumps_below(&mut self, directory: &Path, depth: usize) -> Result<(), String> {
        for folder in content(directory)?.into_iter().filter(|path| path.is_dir()) {
            let before = (self.recordings.len(), self.vectors.len(), self.warnings.len());
            self.directory(&folder)?;
            // Runs below a directory are runs of their own.
            self.recordings.truncate(before.0);
            self.vectors.truncate(before.1);
            self.warnings.truncate(before.2);
            if depth > 1 {
                self.dumps_below(&folder, depth - 1)?;
            }
        }
        Ok(())
    }

    /// Adds a file to those of its kind; false if its kind is unknown.
    pub(crate) fn add(&mut self, path: &Path) -> Result<bool, String> {
        let cannot_read = |error| format!("cannot read {}: {error}", path.display());
        if !path.is_file() {
            return Err(format!("cannot read {}: it is not an ordinary file", path.display()));
        }
        let mut first = Vec::new();
        // Reading a file of /proc may block, too.
        let mut file = ncclscope_trace::open_to_read(path).map_err(cannot_read)?;
        (&mut file).take(FIRST as u64).read_to_end(&mut first).map_err(cannot_read)?;
        file.rewind().map_err(cannot_read)?;
        let list = match file_kind(&first) {
            FileKind::Recording => &mut self.recordings,
            FileKind::Vectors => &mut self.vectors,
            FileKind::Pickle => &mut self.pickles,
            FileKind::Json if is_json_dump(file) => &mut self.json,
            FileKind::RasText => &mut self.ras_texts,
            FileKind::RasMonitor => &mut self.ras_events,
            FileKind::Archive => &mut self.archives,
            // Other files are ignored, except that a recording or table that cannot be read causes
            // a warning.
            FileKind::Other if is_recording_path(path) => {
                let what = if first.is_empty() { "empty" } else { "no recording, or damaged" };
                return Err(format!("cannot read {}: it is {what}", path.display()));
            }
            FileKind::Json | FileKind::Other if is_named_as_table(path) => {
                let what =
                    if first.is_empty() { "empty" } else { "no table of vectors, or damaged" };
                return Err(format!("cannot read {}: it is {what}", path.display()));
            }
            FileKind::Json | FileKind::Other => {
                if first.is_empty() {
                    self.empty.push(path.to_owned());
                }
                return Ok(false);
            }
        };
        list.push(path.to_owned());
        Ok(true)
    }
}

/// What a directory contains, in order.
fn content(directory: &Path) -> Result<Vec<PathBuf>, String> {
    let read = std::fs::read_dir(directory).and_then(|all| {
        all.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<PathBuf>>>()
    });
    let mut paths =
        read.map_err(|error| format!("cannot read {}: {error}", directory.display()))?;
    paths.sort();
    Ok(paths)
}

/// True for a file name such as `NAME.vectors`.
fn is_named_as_table(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.ends_with(ncclscope_trace::vectors::SUFFIX)
}
