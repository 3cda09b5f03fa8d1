// SPDX-License-Identifier: Apache-2.0
//! The file of `report --html` and `compare --html`.

use super::export::to_file;
use crate::args::TableFormat;
use crate::io::whole_file::is_place;
use ncclscope_console::failure::{Failure, tell};
use std::io::{self, Write};
use std::path::Path;

const STDOUT: &str = "-";

/// True if the page goes to standard output, which must then contain nothing else.
pub(super) fn is_alone(file: Option<&Path>) -> bool {
    file == Some(Path::new(STDOUT))
}

/// Refuses another format where the page goes to standard output; checks the place of a file.
pub(super) fn check(file: Option<&Path>, format: TableFormat) -> Result<(), Failure> {
    match file {
        Some(_) if is_alone(file) && format != TableFormat::Text => Err(Failure::usage(
            "--html - writes the page to standard output, and --format something else: name a \
             file with --html FILE",
        )),
        Some(file) => is_place(file),
        None => Ok(()),
    }
}

/// Writes a page to a file, completely or not at all; never replaces a recording.
pub(super) fn write(file: &Path, page: &str) -> Result<(), Failure> {
    if is_alone(Some(file)) {
        let mut out = io::stdout().lock();
        out.write_all(page.as_bytes())?;
        return Ok(out.flush()?);
    }
    to_file(file, |mut out| out.write_all(page.as_bytes()))?;
    tell(format_args!("wrote {}; open it in a browser", file.display()));
    Ok(())
}
