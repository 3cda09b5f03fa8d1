// SPDX-License-Identifier: Apache-2.0
//! `ncclscope simulate`: writes the recordings of a simulated job.

use crate::args::{Format, SimulateArgs};
use crate::io::terminal::{self, Watched};
use crate::io::whole_folder::{self, Existing};
use crate::run_input::input::recordings_in;
use ncclscope_console::failure::Failure;
use ncclscope_console::printable::{Printable, lines_of};
use ncclscope_findings::FindingClass;
use ncclscope_simulate::{Error, Fault, FaultGroup, Planted, Scenario, Summary};
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::ExitCode;

/// Maximum size of a scenario file, bytes.
const SCENARIO_MAX: u64 = 1 << 20;

pub(crate) fn run(args: &SimulateArgs) -> Result<ExitCode, Failure> {
    if args.list {
        match args.format {
            Format::Text => list()?,
            Format::Json => list_json()?,
        }
        return Ok(ExitCode::SUCCESS);
    }
    let output = args.output.as_deref().ok_or_else(|| {
        Failure::usage("no output directory: give one with -o, or use --list for the faults")
    })?;
    let scenario = scenario(args)?;
    // Before minutes of work.
    ncclscope_simulate::keep_truth(output).map_err(failed)?;
    let summary = whole_folder::fill(output, Existing::Kept, |folder| {
        let _progress = progress(&scenario, folder);
        ncclscope_simulate::run(&scenario, folder).map_err(failed)
    })?;
    tell(&summary, args)?;
    Ok(ExitCode::SUCCESS)
}

fn failed(error: Error) -> Failure {
    match error {
        Error::Scenario(text) => Failure::usage(text),
        Error::Write(path, error) => Failure::write(&path, &error),
    }
}

/// Progress by the number of existing recordings; a table of vectors is written at once.
fn progress(scenario: &Scenario, output: &Path) -> Watched {
    let directory = output.to_owned();
    let all = if scenario.counters { 0 } else { u64::from(scenario.job.ranks) };
    Watched::new("simulating", all, move || {
        recordings_in(&directory).map_or(0, |files| files.len() as u64)
    })
}

/// Reads a file, or a pipe of a shell, of at most [`SCENARIO_MAX`] bytes.
fn read_scenario(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(SCENARIO_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > SCENARIO_MAX {
        let message = format!("it is larger than {} MiB", SCENARIO_MAX >> 20);
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    Ok(text)
}

/// The scenario from the file, if there is one, and the command line's options.
fn scenario(args: &SimulateArgs) -> Result<Scenario, Failure> {
    let mut scenario = match &args.scenario {
        None => Scenario::default(),
        Some(path) => {
            let shown = path.display();
            let text = read_scenario(path)
                .map_err(|error| Failure::input(format!("cannot read {shown}: {error}")))?;
            Scenario::parse(&text)
                .map_err(|error| Failure::input(format!("{shown} is not a scenario: {error}")))?
        }
    };
    let job = &mut scenario.job;
    for (given, to) in [
        (args.ranks, &mut job.ranks),
        (args.tp, &mut job.tp),
        (args.pp, &mut job.pp),
        (args.dp, &mut job.dp),
        (args.ep, &mut job.ep),
        (args.steps, &mut job.steps),
    ] {
        *to = given.unwrap_or(*to);
    }
    if !args.fault.is_empty() {
        scenario.fault = args.fault.iter().map(|&fault| planted(args, fault)).collect();
    }
    scenario.seed = args.seed.unwrap_or(scenario.seed);
    scenario.counters |= args.counters;
    Ok(scenario)
}

fn planted(args: &SimulateArgs, fault: Fault) -> Planted {
    Planted { rank: args.rank, factor: args.factor, ..Planted::new(fault) }
}

fn list() -> io::Result<()> {
    let columns = terminal::width().unwrap_or(usize::MAX);
    let mut out = io::stdout().lock();
    for (group, title) in [
        (FaultGroup::Hang, "The job hangs or computes wrong results"),
        (FaultGroup::Slow, "The job is slow"),
        (FaultGroup::Control, "Nothing is wrong"),
    ] {
        writeln!(out, "{title}:")?;
        for fault in Fault::all().filter(|fault| fault.group() == group) {
            let class = fault.class().map(|class| class.to_string()).unwrap_or_default();
            let first = format!("  {:20}{class:26}", fault.name());
            let indent = first.len();
            for line in lines_of((&first, indent), indent, fault.what(), columns) {
                writeln!(out, "{line}")?;
            }
        }
    }
    Ok(())
}

fn list_json() -> io::Result<()> {
    let group = |group| match group {
        FaultGroup::Hang => "hang",
        FaultGroup::Slow => "slow",
        FaultGroup::Control => "control",
    };
    let row = |fault: Fault| {
        let class = fault.class().map_or("", FindingClass::code);
        serde_json::json!({
            "name": fault.name(), "group": group(fault.group()), "class": class,
            "what": fault.what(),
        })
    };
    let rows: Vec<_> = Fault::all().map(row).collect();
    let list = serde_json::json!({"schema": "ncclscope.faults/1", "faults": rows});
    writeln!(io::stdout().lock(), "{list:#}")
}

fn tell(summary: &Summary, args: &SimulateArgs) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let truth = &summary.truth;
    let place = args.output.as_deref().unwrap_or_else(|| std::path::Path::new("."));
    let how = if truth.ended { "completed" } else { "hangs" };
    writeln!(
        out,
        "{} ranks, {:.1} s, {} operations; the job {how}: {}",
        truth.job.ranks,
        summary.seconds,
        summary.operations,
        Printable(place.to_string_lossy())
    )?;
    for verdict in &truth.verdicts {
        writeln!(out, "planted {}: ranks {:?}", verdict.class, verdict.root_ranks)?;
    }
    for slow in &truth.slow {
        writeln!(out, "planted {}: ranks {:?}", slow.class, slow.root_ranks)?;
    }
    for hidden in &truth.hidden {
        writeln!(out, "{hidden} never took effect: another fault stopped the rank before")?;
    }
    Ok(())
}
