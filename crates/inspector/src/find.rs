// SPDX-License-Identifier: Apache-2.0
//! Finds the files, by their content.

use ncclscope_trace::open_to_read;
use std::collections::HashMap;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Size of the start of a file that shows what it is, bytes.
const START: usize = 4096;
/// The key that each first line has.
const KEY: &[u8] = b"\"inspector_output_format_version\"";

/// Files of Inspector.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Found {
    /// The files, sorted.
    pub files: Vec<PathBuf>,
    /// Files without content of which the name is one of Inspector's.
    pub empty: Vec<PathBuf>,
    /// Shorter or equal copies that are left out, each with the file that is read.
    pub copies: Vec<(PathBuf, PathBuf)>,
}

/// The files among these paths, and those that lie directly in directories among them.
///
/// # Errors
/// A directory or a path cannot be read.
pub fn find(paths: &[PathBuf]) -> io::Result<Found> {
    let mut found = Found::default();
    let mut starts: HashMap<Vec<u8>, PathBuf> = HashMap::new();
    for path in paths {
        if !std::fs::metadata(path)?.is_dir() {
            found.add(path, &mut starts);
            continue;
        }
        let mut inside = Vec::new();
        for entry in std::fs::read_dir(path)? {
            inside.push(entry?.path());
        }
        inside.sort();
        inside.iter().filter(|path| path.is_file()).for_each(|path| found.add(path, &mut starts));
    }
    found.files.extend(starts.into_values());
    found.files.sort();
    Ok(found)
}

/// Whether a file is one of Inspector, by its first line.
#[must_use]
pub fn is_start(path: &Path) -> bool {
    start(path).is_ok_and(|start| starts_as(&start))
}

/// Whether a file that begins with these bytes is one of Inspector.
#[must_use]
pub fn starts_as(start: &[u8]) -> bool {
    let line = first_line(start);
    line.trim_ascii_start().starts_with(b"{") && line.windows(KEY.len()).any(|part| part == KEY)
}

impl Found {
    fn add(&mut self, path: &Path, starts: &mut HashMap<Vec<u8>, PathBuf>) {
        let Ok(start) = start(path) else { return };
        if start.is_empty() && has_own_name(path) {
            self.empty.push(path.to_owned());
        } else if starts_as(&start) {
            // It has the process and the time of the first dump.
            match starts.get_mut(first_line(&start)) {
                Some(known) if known == path => {}
                Some(known) if length(known) >= length(path) => {
                    self.copies.push((path.to_owned(), known.clone()));
                }
                Some(known) => {
                    let shorter = std::mem::replace(known, path.to_owned());
                    self.copies.push((shorter, path.to_owned()));
                }
                None => drop(starts.insert(first_line(&start).to_owned(), path.to_owned())),
            }
        }
    }
}

fn length(path: &Path) -> u64 {
    path.metadata().map_or(0, |of| of.len())
}

fn start(path: &Path) -> io::Result<Vec<u8>> {
    let mut start = Vec::with_capacity(START);
    open_to_read(path)?.take(START as u64).read_to_end(&mut start)?;
    Ok(start)
}

fn first_line(start: &[u8]) -> &[u8] {
    start.split(|&byte| byte == b'\n').next().unwrap_or_default()
}

/// Whether the name is `HOST-pidPID.log`.
fn has_own_name(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let pid = name.strip_suffix(".log").and_then(|name| name.rsplit_once("-pid"));
    pid.is_some_and(|(_, pid)| !pid.is_empty() && pid.bytes().all(|byte| byte.is_ascii_digit()))
}
