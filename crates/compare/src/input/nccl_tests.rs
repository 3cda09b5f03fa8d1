// SPDX-License-Identifier: Apache-2.0
/*!
Runs from the output of nccl-tests: its text (`src/util.cu`, `writeResultHeader`), also in a log
with other lines and with the prefix of a launcher, or its JSON (option `-J`).

A row gives one value for each of out-of-place and in-place: the mean time of its iterations. Rows
of one size in one invocation (option `-N`) are values in the order of time. An invocation that
repeats a collective of the run before begins a new run, so that a log of several equal invocations
has several runs.
*/

mod json;
mod made;
mod table;

use crate::run::Run;
use made::Made;
use ncclscope_inspector::next_line;
use ncclscope_trace::open_to_read;
use std::io::{self, BufReader, Read};
use std::path::Path;
use table::Log;

/// Size of the start of a file that shows what it is, bytes.
const START: u64 = 64 << 10;
/// Whether a file is the output of nccl-tests: its text or its JSON.
#[must_use]
pub fn is_output(path: &Path) -> bool {
    let mut start = Vec::new();
    let read = open_to_read(path).and_then(|file| file.take(START).read_to_end(&mut start));
    read.is_ok() && starts_as(&start)
}

/// Whether a file that begins with these bytes is one. A log may have other lines before, and those
/// of NCCL between the first line and the columns.
#[must_use]
pub fn starts_as(start: &[u8]) -> bool {
    let text = String::from_utf8_lossy(start);
    let is_first = |line: &str| line.contains("# nThread ") && line.contains(" minBytes ");
    json::starts_as(&text) || text.lines().any(|line| is_first(line) || table::is_header(line))
}

/// Reads the runs of a file.
///
/// # Errors
/// Why it cannot be read, or that it has no results.
pub fn read(path: &Path) -> Result<Vec<Run>, String> {
    let cannot = |why: String| format!("cannot read {}: {why}", path.display());
    let fail = |error: io::Error| cannot(error.to_string());
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut lines = BufReader::new(open_to_read(path).map_err(fail)?);
    let mut made = Made::new(&name);
    let mut line = Vec::new();
    let mut log = Log::default();
    let mut is_first = true;
    loop {
        line.clear();
        let ends = next_line(&mut lines, &mut line).map_err(fail)?;
        let text = String::from_utf8_lossy(&line);
        if is_first && json::starts_as(&text) {
            json::read(path, &mut made).map_err(cannot)?;
            break;
        }
        is_first = false;
        log.line(&text, &mut made);
        if !ends {
            break;
        }
    }
    made.finish(log.broken).map_err(cannot)
}
