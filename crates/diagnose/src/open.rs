// SPDX-License-Identifier: Apache-2.0
//! From files to a [`Job`]: reads them, looks at their processes, and concludes.

use crate::input::archive;
use crate::input::dumps::Dumps;
use crate::input::file::FileKind;
use crate::input::files::{DEEPEST, InputFiles};
use crate::input::options::InputOptions;
use crate::input::recording::{self, Snapshot};
use crate::input::{here, older_calls, ras, vectors};
use crate::job::{Job, ProcessStatus};
use crate::recorded::{self, Looks};
use crate::words::named_ranks;
use ncclscope_operations::human::{count, if_one};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Maximum number of unreadable files that are named in notes.
const NAMED: usize = 8;

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
        let mut job = recorded_job(&recordings, settings, &mut warnings)?;
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

/// The job that the recordings show.
///
/// # Errors
/// One sentence, if no recording can be read.
pub fn recorded_job(
    paths: &[PathBuf],
    settings: &InputOptions,
    warnings: &mut Vec<String>,
) -> Result<Job, String> {
    let snapshots = recording::snapshots(paths, settings, warnings);
    if snapshots.is_empty() {
        return Err(warnings.pop().unwrap_or_else(|| "no recording can be read".into()));
    }
    assemble(recording::with_pxn(snapshots, paths), settings)
}

/// The job of these processes.
///
/// # Errors
/// One sentence, if there is no run with the requested name.
pub fn assemble(snapshots: Vec<Snapshot>, settings: &InputOptions) -> Result<Job, String> {
    let files: Vec<PathBuf> = snapshots.iter().map(|one| one.facts.path.clone()).collect();
    let (mut run, left_out) = recorded::one_run(snapshots, settings)?;
    here::look(&mut run);
    let is_written = run.iter().all(Snapshot::may_be_over) && here::writes_elsewhere(&run);
    let mut job = recorded::job(&run, settings, &Looks { is_written, grows: &here::grows });
    job.left_out.clone_from(&left_out);
    job.notes.splice(..0, left_out);
    older_calls::add(&mut job, &files);
    Ok(job)
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
