// SPDX-License-Identifier: Apache-2.0
//! Finds the files of NCCL Inspector and nccl-tests that inputs are.

use crate::run_input::input::{all_below, directories_below, recordings_in};
use ncclscope_compare::input::nccl_tests;
use ncclscope_console::failure::Failure;
use ncclscope_inspector::Found;
use ncclscope_trace::names::is_recording_path;
use std::path::{Path, PathBuf};
use std::slice;

/// The files of NCCL Inspector that these inputs are; `None` if they are something else.
pub(crate) fn inspector(inputs: &[PathBuf]) -> Result<Option<Found>, Failure> {
    let has_recordings = |path: &PathBuf| {
        is_recording_path(path) || recordings_in(path).is_ok_and(|files| !files.is_empty())
    };
    if inputs.iter().any(has_recordings) {
        return Ok(None);
    }
    // What cannot be read is told where recordings are opened.
    let Ok(found) = ncclscope_inspector::find(inputs) else { return Ok(None) };
    let copies = || found.copies.iter().map(|(copy, _)| copy);
    let known = || found.files.iter().chain(&found.empty).chain(copies());
    let is_other = |path: &&PathBuf| !path.is_dir() && !known().any(|file| file == *path);
    match inputs.iter().find(is_other) {
        _ if found.files.is_empty() => Ok(None),
        Some(other) => Err(Failure::usage(format!(
            "{} is no file of NCCL Inspector: its files cannot be read together with others",
            other.display()
        ))),
        None => Ok(Some(found)),
    }
}

/// The runs of NCCL Inspector's files at a path, each with its name: a file, those of a directory,
/// or those of each directory below one that has none. Empty if there are none.
pub(crate) fn inspector_runs(path: &Path) -> Result<Vec<(String, Found)>, Failure> {
    let name = |path: &Path| {
        let name = path.file_name().unwrap_or(path.as_os_str());
        name.to_string_lossy().into_owned()
    };
    if let Some(found) = inspector(&[path.to_owned()])? {
        return Ok(vec![(name(path), found)]);
    }
    if !path.is_dir() || !all_below(path).is_empty() {
        return Ok(Vec::new());
    }
    let mut runs = Vec::new();
    for directory in directories_below(path) {
        runs.extend(inspector(slice::from_ref(&directory))?.map(|found| (name(&directory), found)));
    }
    Ok(runs)
}

/// The files at a path that nccl-tests printed: the file, or those of a directory without
/// recordings.
pub(crate) fn nccl_tests_in(path: &Path) -> Vec<PathBuf> {
    if path.is_dir() && !all_below(path).is_empty() {
        return Vec::new();
    }
    let files = match path.is_dir() {
        true => std::fs::read_dir(path).into_iter().flatten().flatten().map(|e| e.path()).collect(),
        false => vec![path.to_owned()],
    };
    let is_one = |path: &PathBuf| path.is_file() && nccl_tests::is_output(path);
    let mut files: Vec<PathBuf> = files.into_iter().filter(is_one).collect();
    files.sort();
    files
}
