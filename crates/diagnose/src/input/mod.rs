// SPDX-License-Identifier: Apache-2.0
/*!
From files to a [`Job`]: the kind of a file is detected by its content.

| content | input |
| --- | --- |
| `NCCLSCOP` | a recording of ncclscope ([`recording`]) |
| `NCCLVECT` | a table of vectors ([`vectors`]) |
| a pickle, or JSON with `entries` | a dump of PyTorch's Flight Recorder ([`flight`]) |
| JSON with `communicators` | output of `ncclras -f json`: additional evidence ([`ras`]) |

In a directory, other files are ignored.
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
pub struct InputOptions {
    /// In a job that still runs, an operation in flight for less than this is not stuck.
    pub hang: Duration,
}

impl Default for InputOptions {
    fn default() -> InputOptions {
        InputOptions { hang: Duration::from_secs(30) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileKind {
    Recording,
    Vectors,
    Pickle,
    Json,
    Other,
}

/// Files by kind.
#[derive(Debug, Default)]
struct InputFiles {
    recordings: Vec<PathBuf>,
    vectors: Vec<PathBuf>,
    pickles: Vec<PathBuf>,
    json: Vec<PathBuf>,
    warnings: Vec<String>,
}

/// The job, and a line for each file that cannot be read.
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
            found.directory(path)?;
        } else if !found.add(path)? {
            return Err(format!(
                "{} is not a recording, Flight Recorder dump, RAS JSON or table of vectors",
                path.display()
            ));
        }
    }
    read(found, paths, settings)
}

fn read(found: InputFiles, paths: &[PathBuf], settings: &InputOptions) -> Result<Input, String> {
    let InputFiles { recordings, vectors, pickles, json, mut warnings } = found;
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
            "the input mixes recordings, tables of vectors and Flight Recorder dumps: give files \
                    of one kind only"
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

impl InputFiles {
    fn directory(&mut self, directory: &Path) -> Result<(), String> {
        let cannot_read = |error| format!("cannot read {}: {error}", directory.display());
        let mut files = Vec::new();
        for entry in std::fs::read_dir(directory).map_err(cannot_read)? {
            let path = entry.map_err(cannot_read)?.path();
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

    /// Adds a file to those of its kind; false if it is of no known kind.
    fn add(&mut self, path: &Path) -> Result<bool, String> {
        let cannot_read = |error| format!("cannot read {}: {error}", path.display());
        let mut first = Vec::new();
        File::open(path).and_then(|f| f.take(64).read_to_end(&mut first)).map_err(cannot_read)?;
        let list = match file_kind(&first) {
            FileKind::Recording => &mut self.recordings,
            FileKind::Vectors => &mut self.vectors,
            FileKind::Pickle => &mut self.pickles,
            FileKind::Json => &mut self.json,
            // Another empty file is ignored, but an empty recording is worth a warning.
            FileKind::Other
                if first.is_empty() && path.extension().is_some_and(|e| e == "nscope") =>
            {
                return Err(format!("cannot read {}: it is empty", path.display()));
            }
            FileKind::Other => return Ok(false),
        };
        list.push(path.to_owned());
        Ok(true)
    }
}

fn file_kind(first: &[u8]) -> FileKind {
    if first.starts_with(&ncclscope_trace::layout::MAGIC) {
        FileKind::Recording
    } else if ncclscope_trace::vectors::is_table(first) {
        FileKind::Vectors
    } else if pickle::looks_like(first) {
        FileKind::Pickle
    } else if first.iter().find(|b| !b.is_ascii_whitespace()) == Some(&b'{') {
        FileKind::Json
    } else {
        FileKind::Other
    }
}

fn load(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| error.to_string())
}
