// SPDX-License-Identifier: Apache-2.0
//! `ncclscope export`: recordings as a trace.

use crate::args::{Export as Args, TraceFormat};
use crate::failure::{Failure, tell};
use crate::input::Input;
use ncclscope_export::{chrome, pftrace};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let input = Input::open(&args.input)?;
    if args.output == Path::new("-") {
        write(&input, args.to, io::stdout().lock())?;
        return Ok(input.exit_code());
    }
    let slices = to_file(&input, args)?;
    tell(format_args!(
        "wrote {} slices of {} processes to {}; open it at https://ui.perfetto.dev",
        slices,
        input.recordings.len(),
        args.output.display()
    ));
    Ok(input.exit_code())
}

/// Writes beside the file and renames, so that a trace is there whole or not at all.
fn to_file(input: &Input, args: &Args) -> Result<u64, Failure> {
    let failed = |e: io::Error| Failure::write(&args.output, &e);
    // A pipe or a device cannot be replaced.
    if std::fs::metadata(&args.output).is_ok_and(|it| !it.is_file() && !it.is_dir()) {
        let file = File::options().write(true).open(&args.output).map_err(failed)?;
        return write(input, args.to, file).map_err(failed);
    }
    let mut name = args.output.clone().into_os_string();
    name.push(format!(".{}.tmp", std::process::id()));
    let file = File::create(&name).map_err(failed)?;
    let result = write(input, args.to, file).and_then(|slices| {
        std::fs::rename(&name, &args.output)?;
        Ok(slices)
    });
    result.map_err(|error| {
        let _ = std::fs::remove_file(&name);
        failed(error)
    })
}

fn write(input: &Input, format: TraceFormat, out: impl Write) -> io::Result<u64> {
    let mut out = BufWriter::with_capacity(1 << 20, out);
    let slices = match format {
        TraceFormat::Chrome => chrome::write(&input.recordings, &mut out),
        TraceFormat::Pftrace => pftrace::write(&input.recordings, &mut out),
    }?;
    out.flush()?;
    Ok(slices)
}
