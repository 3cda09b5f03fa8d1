// SPDX-License-Identifier: Apache-2.0
//! `ncclscope diagnose`: why a job hangs.

use crate::args::{DiagnoseArgs, Format};
use crate::failure::{BAD_INPUT, Failure, warn};
use crate::output;
use ncclscope_diagnose::input::{self, Input, InputOptions};
use ncclscope_diagnose::{Job, Options, diagnose, fr_out, text};
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

/// Exit code: there are verdicts.
const FINDINGS: u8 = 1;

pub(crate) fn run(args: &DiagnoseArgs) -> Result<ExitCode, Failure> {
    crate::input::allow_open_files();
    let settings = InputOptions { hang: args.hang_sec };
    let Input { job, ras, warnings } =
        input::open(&args.inputs, &settings).map_err(Failure::input)?;
    for line in &warnings {
        warn(line);
    }
    if let Some(directory) = &args.fr_out {
        flight_recorder(&job, directory)?;
    }
    let mut found = diagnose(&job, &Options { hang: args.hang_sec });
    if let Some(ras) = ras {
        ras.add_to(&mut found, &job);
    }
    match args.format {
        Format::Json => output::json(&found)?,
        Format::Text => {
            let mut out = std::io::stdout().lock();
            out.write_all(text::render(&found).as_bytes())?;
            out.flush()?;
        }
    }
    Ok(match (found.verdicts.is_empty(), warnings.is_empty()) {
        (false, _) => ExitCode::from(FINDINGS),
        (true, true) => ExitCode::SUCCESS,
        // Nothing was found in the readable part of the input.
        (true, false) => ExitCode::from(BAD_INPUT),
    })
}

/// Writes the operations in flight as PyTorch's Flight Recorder does: `_dump_RANK` for its tools,
/// and one JSON file of all ranks.
fn flight_recorder(job: &Job, directory: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(directory).map_err(|error| Failure::write(directory, &error))?;
    let write = |name: String, bytes: &[u8]| {
        let path = directory.join(name);
        std::fs::write(&path, bytes).map_err(|error| Failure::write(&path, &error))
    };
    for (rank, dump) in fr_out::dumps(job) {
        write(format!("_dump_{rank}"), &fr_out::pickle(&dump))?;
    }
    write("flight-recorder.json".into(), fr_out::all(job).to_string().as_bytes())
}
