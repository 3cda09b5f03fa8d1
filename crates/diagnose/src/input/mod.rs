// SPDX-License-Identifier: Apache-2.0
/*!
From files to a [`Job`]: each kind of input is known by what is in it.

| content | input |
| --- | --- |
| `NCCLSCOP` | a recording of ncclscope ([`recording`]) |
| `NCCLVECT` | a table of vectors ([`vectors`]) |
| a pickle, or JSON with `entries` | a dump of PyTorch's Flight Recorder ([`flight`]) |
| JSON with `communicators` | what `ncclras -f json` prints: evidence besides ([`ras`]) |

Files of a directory that are none of these are passed over.
*/

mod assemble;
pub mod flight;
pub mod pickle;
pub mod ras;
pub mod recording;
pub mod vectors;

use crate::job::Job;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Options of the readers.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// An operation younger than this is not held for stuck in a job that runs.
    pub hang: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { hang: Duration::from_secs(30) }
    }
}

/// The kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    Recording,
    Vectors,
    Pickle,
    Json,
    Other,
}

/// Files by kind.
#[derive(Debug, Default)]
struct Found {
    recordings: Vec<PathBuf>,
    vectors: Vec<PathBuf>,
    pickles: Vec<PathBuf>,
    json: Vec<PathBuf>,
    warnings: Vec<String>,
}

/// What was read, with a line for each file that could not be.
#[derive(Debug)]
pub struct Input {
    /// The job.
    pub job: Job,
    /// What RAS says, if it was asked.
    pub ras: Option<ras::Ras>,
    /// Files that could not be read, and why.
    pub warnings: Vec<String>,
}

/// Reads files and directories.
///
/// # Errors
/// One sentence, if nothing can be read, or kinds are mixed that do not belong together.
pub fn open(paths: &[PathBuf], settings: &Settings) -> Result<Input, String> {
    let mut found = Found::default();
    for path in paths {
        let metadata = std::fs::metadata(path)
            .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        if metadata.is_dir() {
            found.directory(path)?;
        } else if !found.add(path)? {
            return Err(format!(
                "{} is no recording, Flight Recorder dump, RAS JSON or table of vectors",
                path.display()
            ));
        }
    }
    read(found, paths, settings)
}

fn read(found: Found, paths: &[PathBuf], settings: &Settings) -> Result<Input, String> {
    let Found { recordings, vectors, pickles, json, mut warnings } = found;
    let mut dumps = flight::Dumps::default();
    for path in &pickles {
        let dump = load(path).and_then(|bytes| pickle::read(&bytes));
        if let Err(error) = dump.and_then(|value| dumps.add(path, value)) {
            warnings.push(format!("cannot read {}: {error}", path.display()));
        }
    }
    let mut ras = None;
    for path in &json {
        match load(path).and_then(|bytes| ras::parse(&bytes)) {
            Ok(value) if ras::is_ras(&value) => ras = Some(ras::Ras::new(&value)),
            Ok(value) if flight::is_dump(&value) => {
                if let Err(error) = dumps.add(path, value) {
                    warnings.push(format!("cannot read {}: {error}", path.display()));
                }
            }
            Ok(_) => {}
            Err(error) => warnings.push(format!("cannot read {}: {error}", path.display())),
        }
    }
    let kinds = [!recordings.is_empty(), !vectors.is_empty(), !dumps.is_empty()];
    if kinds.iter().filter(|&&kind| kind).count() > 1 {
        return Err(
            "recordings, tables of vectors and Flight Recorder dumps are mixed here: give \
                    the files of one kind"
                .into(),
        );
    }
    let job = match kinds {
        [true, ..] => recording::job(&recordings, settings, &mut warnings)?,
        [_, true, _] => vectors::job(&vectors)?,
        [.., true] => dumps.job(),
        _ => match &ras {
            Some(ras) => ras.job(),
            None => return Err(nothing(paths, &warnings)),
        },
    };
    Ok(Input { job, ras, warnings })
}

fn nothing(paths: &[PathBuf], warnings: &[String]) -> String {
    if let Some(first) = warnings.first() {
        return first.clone();
    }
    let names: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    format!(
        "nothing to diagnose in {}: expected recordings (*.nscope), Flight Recorder dumps, RAS \
         JSON or *.vectors",
        names.join(", ")
    )
}

impl Found {
    fn directory(&mut self, directory: &Path) -> Result<(), String> {
        let told = |error| format!("cannot read {}: {error}", directory.display());
        let mut files = Vec::new();
        for entry in std::fs::read_dir(directory).map_err(told)? {
            let path = entry.map_err(told)?.path();
            if path.is_file() {
                files.push(path);
            }
        }
        files.sort();
        for file in files {
            if let Err(error) = self.add(&file) {
                self.warnings.push(error);
            }
        }
        Ok(())
    }

    /// Takes a file to the others of its kind; false if it is of no kind that is read.
    fn add(&mut self, path: &Path) -> Result<bool, String> {
        let told = |error| format!("cannot read {}: {error}", path.display());
        let mut first = Vec::new();
        File::open(path).and_then(|f| f.take(64).read_to_end(&mut first)).map_err(told)?;
        let list = match content(&first) {
            Content::Recording => &mut self.recordings,
            Content::Vectors => &mut self.vectors,
            Content::Pickle => &mut self.pickles,
            Content::Json => &mut self.json,
            // A recording that was cut to nothing is worth a line, not silence.
            Content::Other
                if first.is_empty() && path.extension().is_some_and(|e| e == "nscope") =>
            {
                return Err(format!("cannot read {}: it is empty", path.display()));
            }
            Content::Other => return Ok(false),
        };
        list.push(path.to_owned());
        Ok(true)
    }
}

fn content(first: &[u8]) -> Content {
    if first.starts_with(&ncclscope_trace::layout::MAGIC) {
        Content::Recording
    } else if ncclscope_trace::vectors::is_table(first) {
        Content::Vectors
    } else if pickle::looks_like(first) {
        Content::Pickle
    } else if first.iter().find(|b| !b.is_ascii_whitespace()) == Some(&b'{') {
        Content::Json
    } else {
        Content::Other
    }
}

fn load(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| error.to_string())
}
