// SPDX-License-Identifier: Apache-2.0
//! `ncclscope export`: writes recordings as a trace.

pub(super) mod size;

use crate::args::{ExportArgs, TraceFormat};
use crate::io::terminal::Watched;
use crate::io::whole_file::{self, create_packed, is_packed, keep_inputs};
use crate::io::whole_folder::{self, Existing};
use crate::run_input::input::Input;
use crate::run_input::narrow::{Keep, Narrowed};
use ncclscope_console::failure::{Failure, tell, warn};
use ncclscope_operations::human::count;
use ncclscope_views::pftrace::{Exporter, Written};
use ncclscope_views::{Shown, archive, chrome, pftrace};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;
use std::slice;

/// Refuses outputs that cannot be written, before there are inputs.
pub(crate) fn check(args: &ExportArgs) -> Result<(), Failure> {
    format(args)?;
    whole_file::is_place(&args.output)
}

pub(crate) fn run(args: &ExportArgs) -> Result<ExitCode, Failure> {
    let format = format(args)?;
    keep_inputs(&args.inputs, slice::from_ref(&args.output))?;
    let mut input = Input::open(&args.inputs, args.run.id())?;
    input.leave_out_clockless();
    let narrowed = Narrowed::new(&mut input, &args.filter, Keep::Needed)?;
    if let Some(text) = narrowed.text() {
        tell(format_args!("filter: {text}"));
    }
    let shown = narrowed.shown(&input.recordings);
    // With --per-rank the output is a directory, whose files are not compressed.
    size::foretell(shown, format, is_packed(&args.output) && !args.per_rank);
    // Several recordings are read twice, for the definitions of tracks and for the arrows.
    let times = if input.recordings.len() > 1 { 2 } else { 1 };
    let progress = Watched::by_blocks("writing the trace", &input.recordings, times);
    if args.output == Path::new("-") {
        write(shown, format, io::stdout().lock())?;
        drop(progress);
        return Ok(input.finish());
    }
    let written = if args.per_rank {
        per_process(shown, &args.output)?
    } else {
        create_packed(&args.output, |out| {
            write(shown, format, out).map_err(|e| Failure::write(&args.output, &e))
        })?
    };
    drop(progress);
    if written.slices == 0 && narrowed.note.is_some() {
        warn("the filter leaves nothing to show: the trace is empty");
    }
    tell(format_args!(
        "wrote {} of {} to {}; open it at https://ui.perfetto.dev",
        count(written.slices, "slice"),
        count(input.recordings.len(), "process"),
        args.output.display()
    ));
    tell_missing_arrows(&written);
    Ok(input.finish())
}

/// The format given by `--to`, else by the file name's extension.
fn format(args: &ExportArgs) -> Result<TraceFormat, Failure> {
    let whole = match is_packed(&args.output) {
        true => args.output.with_extension(""),
        false => args.output.clone(),
    };
    let ending = whole.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
    let by_name = match ending {
        _ if args.per_rank => Some(TraceFormat::Pftrace),
        "pftrace" | "perfetto-trace" => Some(TraceFormat::Pftrace),
        "tar" => Some(TraceFormat::PerfettoTar),
        "json" => Some(TraceFormat::Chrome),
        _ => None,
    };
    if args.per_rank && args.to.is_some_and(|to| to != TraceFormat::Pftrace) {
        return Err(Failure::usage("--per-rank writes pftrace only"));
    }
    if args.per_rank && args.output == Path::new("-") {
        return Err(Failure::usage("--per-rank writes several files: name a directory with -o"));
    }
    args.to.or(by_name).ok_or_else(|| {
        let name = args.output.display();
        Failure::usage(format!(
            "name a format with --to: `{name}` does not end in .pftrace, .json or .tar, nor in one \
             of these and .gz"
        ))
    })
}

/// Prints why some network steps have no arrow to the other rank, if several ranks are shown.
fn tell_missing_arrows(written: &Written) {
    let arrows = written.arrows;
    if arrows.linked != 0 && arrows.alone + arrows.unknowable != 0 {
        tell(format_args!(
            "{} of {} network steps have no arrow to the other rank: it did not record {} of them, \
             and {} cannot be matched (events were lost or left out, or the \
             communicator's hash is not known)",
            arrows.alone + arrows.unknowable,
            arrows.linked + arrows.alone + arrows.unknowable,
            arrows.alone,
            arrows.unknowable,
        ));
    }
}

/// Writes a file for each process into a directory, which is created if missing.
fn per_process(shown: Shown<'_>, directory: &Path) -> Result<Written, Failure> {
    whole_folder::fill(directory, Existing::Replaced, |folder| {
        let mut exporter = Exporter::new(shown);
        let mut written = Written::default();
        for (index, recording) in shown.recordings.iter().enumerate() {
            let path = folder.join(archive::file_name(index, recording));
            let one = to_file(&path, |file| buffered(file, |out| exporter.process(index, out)))?;
            written.add(one);
        }
        Ok(written)
    })
}

/// Writes a file that appears complete or not at all.
pub(super) fn to_file<T>(
    path: &Path,
    write: impl FnOnce(File) -> io::Result<T>,
) -> Result<T, Failure> {
    whole_file::create(path, |file| write(file).map_err(|e| Failure::write(path, &e)))
}

pub(super) fn write(shown: Shown<'_>, format: TraceFormat, out: impl Write) -> io::Result<Written> {
    buffered(out, |out| match format {
        TraceFormat::Chrome => chrome::write(shown, out),
        TraceFormat::Pftrace => pftrace::write(shown, out),
        TraceFormat::PerfettoTar => archive::write(shown, out),
    })
}

fn buffered<W: Write>(
    out: W,
    write: impl FnOnce(&mut BufWriter<W>) -> io::Result<Written>,
) -> io::Result<Written> {
    let mut out = BufWriter::with_capacity(1 << 20, out);
    let written = write(&mut out)?;
    out.flush()?;
    Ok(written)
}
