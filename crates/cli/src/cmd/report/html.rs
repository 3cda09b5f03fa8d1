// SPDX-License-Identifier: Apache-2.0
//! `report --html`: the report as one HTML file.

use crate::assessment::Assessment;
use crate::cmd::export::to_file;
use crate::failure::{Failure, tell};
use ncclscope_answer::Answer;
use ncclscope_page::{Content, render};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The file that is standard output.
pub(super) const STDOUT: &str = "-";

/// Writes the page to a file, whole or not at all; a recording is never replaced.
pub(super) fn write(
    file: &Path,
    (inputs, filter): (&[PathBuf], Option<&str>),
    answer: &Answer,
    found: &Assessment,
) -> Result<(), Failure> {
    let names: Vec<String> = inputs.iter().map(|path| path.display().to_string()).collect();
    let filter = filter.map_or_else(String::new, |text| format!(" (filter: {text})"));
    let input = names.join(" ") + &filter;
    let page = render(Content {
        input: &input,
        answer,
        report: &found.report,
        slow: &found.slow,
        details: &found.details,
        hang: &found.hang,
        waiting: &found.waiting,
    });
    if file == Path::new(STDOUT) {
        let mut out = io::stdout().lock();
        out.write_all(page.as_bytes())?;
        return Ok(out.flush()?);
    }
    to_file(file, |mut out| out.write_all(page.as_bytes()))?;
    tell(format_args!("wrote {}; open it in a browser", file.display()));
    Ok(())
}
