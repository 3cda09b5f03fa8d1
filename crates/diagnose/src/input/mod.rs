// SPDX-License-Identifier: Apache-2.0
/*!
From files to a [`Job`]: the kind of a file is detected by its content.

| content | input |
| --- | --- |
| `NCCLSCOP` | a recording of ncclscope ([`recording`]) |
| `NCCLVECT` | a table of vectors ([`vectors`]) |
| a pickle, or JSON with `entries` | a dump of PyTorch's Flight Recorder ([`flight`]) |
| JSON with `communicators`, or text from `NCCL version` on | what [`ras`] printed |
| lines `[TIME] PEER_…`, or JSON with `timestamp`, `group` and `event` | events of [`ras`] |
| tar, gzip or zip | an archive of dumps and outputs of RAS (`archive.rs`) |

A JSON file counts if its first 64 KiB have a key of these; only then is it read whole, and a dump
of more than 256 MiB is not. Beside recordings or tables, dumps are not read, and a warning names
them. In a directory, other files are ignored.
*/

mod activity;
mod archive;
mod assemble;
mod awaited;
mod calls;
mod copies;
mod dumps;
mod file;
mod first_end;
pub mod flight;
mod frames;
pub mod here;
mod json;
pub mod live;
mod losses;
mod older;
mod older_calls;
mod options;
pub mod pickle;
mod rank_layout;
mod ranks;
pub mod ras;
mod reader;
pub mod recording;
mod snapshot;
mod status;
mod vector_checks;
mod vector_jobs;
mod vector_pairs;
mod vector_transfers;
pub mod vectors;

pub use options::{InputOptions, InputProgress};

use crate::job::{Job, ProcessStatus};
use crate::words::named_ranks;
use dumps::Dumps;
use file::{FIRST, FileKind, file_kind, is_json_dump};
use ncclscope_operations::human::{count, if_one};
use ncclscope_trace::names::is_recording_path;
use std::collections::BTreeSet;
use std::io::{Read, Seek};
use std::path::{Path, PathBuf};

/// Maximum number of unreadable files that are named in notes.
const NAMED: usize = 8;
/// Dumps are looked for in folders this deep below one without input, such as one for each node.
const DEEPEST: usize = 2;

/// Files by kind.
#[derive(Debug, Default)]
struct InputFiles {
    recordings: Vec<PathBuf>,
    vectors: Vec<PathBuf>,
    pickles: Vec<PathBuf>,
    json: Vec<PathBuf>,
    ras_texts: Vec<PathBuf>,
    ras_events: Vec<PathBuf>,
    archives: Vec<PathBuf>,
    /// Files of a directory without content.
    empty: Vec<PathBuf>,
    warnings: Vec<String>,
}

/// The job that was read, and a warning for each file that could not be read.
#[derive(Debug)]
pub struct Input {
    /// The job.
    pub job: Job,
    /// The output of RAS, if given.
    pub ras: Option<ras::Ras>,
    /// One line for each file that cannot be read.
    pub warnings: Vec<String>,
}

/// Reads files and directories.
///
/// # Errors
/// One sentence, if nothing can be read, or if the kinds of input do not belong together.
pub fn open(paths: &[PathBuf], settings: &InputOptions) -> Result<Input, String> {
    let mut found = InputFiles::default();
    for path in paths {
        let metadata = std::fs::metadata(path)
            .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        if metadata.is_dir() {
            let (before, archives) = (found.count(), found.archives.len());
            found.directory(path)?;
            if found.count() == before {
                found.dumps_below(path, DEEPEST)?;
            }
            // Beside other input they are copies of it.
            if found.count() > before {
                found.archives.truncate(archives);
            }
            if found.count() == before && paths.len() > 1 {
                found.warnings.push(nothing(std::slice::from_ref(path), &[], &[]));
            }
        } else if !found.add(path)? {
            return Err(format!(
                "{} is not a recording, Flight Recorder dump, RAS JSON or table of vectors",
                path.display()
            ));
        }
    }
    read(found, paths, settings)
}

fn read(
    mut found: InputFiles,
    paths: &[PathBuf],
    settings: &InputOptions,
) -> Result<Input, String> {
    let archives = std::mem::take(&mut found.archives);
    let InputFiles { recordings, vectors, pickles, json, empty, mut warnings, .. } = found;
    warnings.extend(empty_dumps(&empty, pickles.iter().chain(&json)));
    if !recordings.is_empty() && !vectors.is_empty() {
        return Err("the input mixes recordings and tables of vectors: give files of one kind \
                    only"
            .into());
    }
    // Files beside tables of vectors that were not read do not make the tables doubtful.
    let mut damage = std::mem::take(&mut warnings);
    let mut dumps = Dumps::new(recordings.is_empty() && vectors.is_empty());
    for (files, kind) in [
        (&pickles, FileKind::Pickle),
        (&json, FileKind::Json),
        (&found.ras_texts, FileKind::RasText),
        (&found.ras_events, FileKind::RasMonitor),
    ] {
        warnings.extend(files.iter().filter_map(|path| dumps.file(path, kind)));
    }
    for path in &archives {
        warnings.extend(archive::read(path, &mut |content| dumps.content(content)));
    }
    settings.ras.iter().for_each(|ras| dumps.ras(ras.clone()));
    dumps.settle(&mut warnings);
    let ras = dumps.latest_ras();
    let flight = dumps.flight;
    let mut job = if !recordings.is_empty() {
        let mut job = recording::job(&recordings, settings, &mut warnings)?;
        name_unreadable(&mut job, damage.iter().chain(&warnings));
        job
    } else if !vectors.is_empty() {
        vectors::job(&vectors, settings, &mut damage)?
    } else if !flight.is_empty() {
        flight.job(settings.hang)
    } else {
        let job = ras.as_ref().map(|ras| ras.job(settings.hang));
        job.ok_or_else(|| nothing(paths, &damage, &warnings))?
    };
    if let Some(ras) = ras.as_ref().filter(|_| !recordings.is_empty() || !vectors.is_empty()) {
        ras.fill(&mut job, settings.hang);
    }
    damage.append(&mut warnings);
    let warnings = damage;
    Ok(Input { job, ras, warnings })
}

/// A warning for each empty file with the name of a dump: it is that of a rank that could not write
/// it.
fn empty_dumps<'a>(empty: &[PathBuf], dumps: impl Iterator<Item = &'a PathBuf>) -> Vec<String> {
    let without_numbers = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.replace(|c: char| c.is_ascii_digit(), "")
    };
    let names: BTreeSet<String> = dumps.map(without_numbers).collect();
    let alike = empty.iter().filter(|path| names.contains(&without_numbers(path)));
    alike.map(|path| format!("cannot read {}: it is empty", path.display())).collect()
}

/// Adds notes that name what could not be read, and the ranks that may be concerned.
fn name_unreadable<'a>(job: &mut Job, warnings: impl Iterator<Item = &'a String>) {
    let unreadable: Vec<&String> =
        warnings.filter(|line| line.starts_with("cannot read ")).collect();
    job.notes.extend(unreadable.iter().take(NAMED).copied().cloned());
    if let more @ 1.. = unreadable.len().saturating_sub(NAMED) {
        job.notes.push(format!("cannot read {} more", count(more, "file")));
    }
    let silent = job.processes.iter().filter(|one| one.status == ProcessStatus::Silent);
    let mut silent: Vec<u32> = silent.filter_map(|one| one.rank).collect();
    silent.sort_unstable();
    if !unreadable.is_empty() && !silent.is_empty() {
        let (ranks, one) = (named_ranks(&silent), silent.len());
        let (is, these) = (if_one(one, "is", "are"), if_one(one, "it", "these"));
        job.notes.push(format!("{ranks} {is} missing: what cannot be read may be of {these}"));
    }
}

fn nothing(paths: &[PathBuf], damage: &[String], warnings: &[String]) -> String {
    if let Some(first) = damage.iter().chain(warnings).next() {
        return first.clone();
    }
    let names: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    format!(
        "nothing to diagnose in {}: expected recordings (*.nscope), Flight Recorder dumps, RAS \
         JSON or *.vectors",
        names.join(", ")
    )
}

impl InputFiles {
    /// Number of files, and of lines about them.
    fn count(&self) -> usize {
        let ras = [&self.ras_texts, &self.ras_events];
        let others = [&self.recordings, &self.vectors, &self.pickles, &self.json];
        let files = ras.into_iter().chain(others);
        files.map(|list| list.len()).sum::<usize>() + self.warnings.len()
    }

    fn directory(&mut self, directory: &Path) -> Result<(), String> {
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
    fn dumps_below(&mut self, directory: &Path, depth: usize) -> Result<(), String> {
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
    fn add(&mut self, path: &Path) -> Result<bool, String> {
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
