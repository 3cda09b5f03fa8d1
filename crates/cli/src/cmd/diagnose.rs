// SPDX-License-Identifier: Apache-2.0
//! `ncclscope diagnose`: why a job hangs.

mod ras;

use super::export::to_file;
use crate::args::{DiagnoseArgs, FilterArgs, TableFormat};
use crate::io::formats::hint;
use crate::io::output::{self, in_a_line};
use crate::io::shell_words::words;
use crate::io::terminal::{Watched, fitted, painted, say};
use crate::io::whole_folder::{self, Existing};
use crate::run_input::input::{about_run, below, command_end, not_an_input, recordings_in};
use crate::run_input::narrow::{FindingsNote, Known, has_some_rank, tell_filter, timeless};
use crate::tables::sheet::{LocatedRow, Sheet};
use crate::text::why_not;
use ncclscope_console::failure::{BAD_INPUT, FINDINGS, Failure, tell, warn, warn_lines};
use ncclscope_diagnose::input::InputOptions;
use ncclscope_diagnose::input::ras::Ras;
use ncclscope_diagnose::{
    self as diagnose, Diagnosis, HiddenWhy, Input, Job, NoEnd, Options, Rule, Shown, fr_out, text,
};
use ncclscope_findings::Looked;
use ncclscope_node::unrecorded::Unrecorded;
use ncclscope_operations::filter::FUNCTIONS;
use ncclscope_operations::{Filter, human};
use ras::ask_twice;
use serde::Serialize;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The fields of a verdict that the table shows.
const VERDICT: [&str; 16] = [
    "class",
    "name",
    "confidence",
    "root_ranks",
    "host",
    "pid",
    "edge",
    "comm",
    "comm_name",
    "op.func",
    "op.number",
    "op.bytes",
    "age_ns",
    "since",
    "victims",
    "title",
];

pub(crate) fn run(args: &DiagnoseArgs) -> Result<ExitCode, Failure> {
    let filter = filter(&args.filter)?;
    crate::run_input::input::allow_open_files()?;
    let directories: Vec<PathBuf> =
        args.inputs.iter().filter(|path| path.is_dir()).cloned().collect();
    let asked = args.ras.as_deref().map(|address| ask(address, args)).transpose()?;
    let (ras, is_asked) = asked.unwrap_or((None, true));
    let settings = settings(args, ras, &directories);
    directories.iter().for_each(|directory| crate::run_input::input::tell_archives(directory));
    let unrecorded = Unrecorded::find(&directories).lines();
    let read = settings.progress.clone();
    let progress = Watched::growing("reading what is in flight", move || read.get());
    let opened = diagnose::open(&args.inputs, &settings);
    drop(progress);
    say(1, || "read what is in flight".into());
    let Input { job, ras, warnings } = match opened {
        Ok(input) => input,
        Err(error) => {
            // A process that hangs before its first communicator records nothing.
            unrecorded.into_iter().for_each(warn_lines);
            let own = args.inputs.iter().find_map(|path| not_an_input(path));
            return Err(own.unwrap_or_else(|| Failure::input(error + &elsewhere(&directories))));
        }
    };
    crate::run_input::input::warn_of_files(&warnings);
    crate::run_input::input::warn_of_files(&job.damaged);
    // As in other verbs, also where standard output is read by a script.
    job.left_out.iter().for_each(tell);
    if let Some(directory) = &args.fr_out {
        flight_recorder(&job, directory, &args.inputs)?;
    }
    let options = options(args);
    let (mut found, seen) = match args.why_not {
        true => {
            let (found, seen) = diagnose::why_not(&job, &options, &args.filter.rank);
            (found, Some(seen))
        }
        false => (diagnose::diagnose(&job, &options), None),
    };
    found.notes.extend(unrecorded.into_iter().flatten());
    if let Some(ras) = ras {
        ras.add_to(&mut found, &job);
    }
    exists(&filter, &job)?;
    let shown = found.show(&filter, &job);
    let filter = FindingsNote::new(&args.filter, (shown.shown, shown.of), "all ranks judged");
    if matches!(args.format, TableFormat::Csv | TableFormat::Md) {
        tell_filter(filter.as_ref().map(|note| note.text.as_str()));
        let untold = found.notes.iter().filter(|note| !job.left_out.contains(note));
        untold.for_each(|note| tell(format_args!("note: {note}")));
    }
    let input = (!directories.is_empty()).then(|| words(&directories, args.run.id()));
    let printed = Printed { found: &found, filter, why_not: seen };
    printed.print(args.format, (shown, input.as_deref()))?;
    // Where ranks waited for one that died, `stragglers` would call a healthy rank slow.
    let is_killed = job.killed_ns.is_some() && found.waiting_ranks != 0;
    let is_whole = is_asked && warnings.is_empty() && job.damaged.is_empty();
    if let Some(input) = input.filter(|_| shown.of == 0 && !is_killed && is_whole) {
        tell(format_args!("if the job is slow: ncclscope stragglers {input}"));
    }
    Ok(exit_code(&found, is_whole))
}

/// How to diagnose the job.
fn options(args: &DiagnoseArgs) -> Options {
    let without = args.without.iter().copied().collect();
    Options { without, ..Options::of(args.hang.hang_sec) }
}

fn exit_code(found: &Diagnosis, is_whole: bool) -> ExitCode {
    // Two outputs of RAS between which nothing was launched, and the job may hang.
    let launches = HiddenWhy::NoEnd(NoEnd::Launches);
    let is_decided = found.hidden.as_ref().is_none_or(|hidden| hidden.why != launches);
    match (is_whole, found.findings.is_empty()) {
        // Unreadable or damaged input takes precedence, because it may hide the actual cause.
        (false, _) => ExitCode::from(BAD_INPUT),
        (true, false) => ExitCode::from(FINDINGS),
        (true, true) if is_decided => ExitCode::SUCCESS,
        (true, true) => ExitCode::from(BAD_INPUT),
    }
}

/// What RAS shows, and whether it has answered twice. Where there are other inputs, they are judged
/// without it.
fn ask(address: &str, args: &DiagnoseArgs) -> Result<(Option<Ras>, bool), Failure> {
    match ask_twice(address, args.hang.hang_sec) {
        Ok(shown) => {
            if shown.has_others {
                warn(format_args!(
                    "processes of several jobs answer at {address}: the job that answered first is \
                     judged; give each job an NCCL_RAS_ADDR of its own"
                ));
            }
            let is_whole = shown.lacks.is_none();
            if let Some(why) = shown.lacks {
                warn(format_args!("{why}: the first answer alone is judged"));
            }
            Ok((Some(shown.ras), is_whole))
        }
        Err(error) if args.inputs.is_empty() => Err(Failure::input(error)),
        Err(error) => {
            warn(error);
            Ok((None, false))
        }
    }
}

fn settings(args: &DiagnoseArgs, ras: Option<Ras>, directories: &[PathBuf]) -> InputOptions {
    let about = directories.iter().find_map(|directory| about_run(directory));
    InputOptions {
        hang: args.hang.hang_sec,
        run: args.run.id().map(str::to_owned),
        command: about.as_ref().and_then(command_end),
        ras,
        ..InputOptions::default()
    }
}

/// Where recordings are below directories that have none, or what reads the files of these, as the
/// end of an error.
fn elsewhere(directories: &[PathBuf]) -> String {
    let is_empty = |path: &&PathBuf| recordings_in(path).is_ok_and(|files| files.is_empty());
    let found = directories.iter().filter(is_empty).find_map(|path| below(path));
    found.map_or_else(|| hint(directories), |found| format!("; {found}"))
}

/// What `--format json` prints: the diagnosis, and the filter of its verdicts.
#[derive(Serialize)]
struct Printed<'a> {
    #[serde(flatten)]
    found: &'a Diagnosis,
    filter: Option<FindingsNote>,
    #[serde(skip_serializing_if = "Option::is_none")]
    why_not: Option<Vec<Looked>>,
}

impl Printed<'_> {
    /// Prints it; `input` is the input as arguments of a command line.
    fn print(
        &self,
        format: TableFormat,
        (shown, input): (Shown, Option<&str>),
    ) -> Result<(), Failure> {
        match format {
            TableFormat::Json => output::json(self)?,
            TableFormat::Text => {
                let filter = self.filter.as_ref();
                let filter = filter.map(|note| format!("filter: {}\n", in_a_line(&note.text)));
                let seen = self.why_not.as_ref().map(|seen| why_not(&Rule::all_about(), seen));
                let body = text::render(self.found, Some(shown), input);
                let parts = [filter.unwrap_or_default(), body, seen.unwrap_or_default()];
                output::text(&painted(&fitted(&parts.concat())))?;
            }
            TableFormat::Csv => sheet(self.found)?.print_csv()?,
            TableFormat::Md => output::text(&sheet(self.found)?.markdown())?,
        }
        Ok(())
    }
}

/// The verdicts as a table.
fn sheet(found: &Diagnosis) -> Result<Sheet, Failure> {
    let rows = found.findings.iter().map(|verdict| LocatedRow::of(verdict, &verdict.help));
    Sheet::of(&rows.collect::<Vec<_>>(), &VERDICT)
}

/// The filter of the verdicts, without times: a hang is the state at the end of a run.
fn filter(args: &FilterArgs) -> Result<Filter, Failure> {
    let is_of_time = args.from.is_some() || args.until.is_some() || args.steps.is_some();
    if is_of_time || !args.events.is_empty() {
        return Err(Failure::usage(
            "diagnose judges the end of a run: --from, --until, --steps and --events do not apply",
        ));
    }
    Ok(timeless(args))
}

/// Checks that the filter matches something in the job. Not every input contains all facts.
fn exists(filter: &Filter, job: &Job) -> Result<(), Failure> {
    has_some_rank(filter, &job.processes.iter().filter_map(|process| process.rank).collect())?;
    let comms = job.comms.iter().filter(|comm| comm.parent.is_none());
    let called = job.comms.iter().flat_map(|comm| comm.flights.values());
    let called = called.map(|flight| flight.call.func.as_str()).filter(|func| !func.is_empty());
    let known = Known {
        hosts: job.processes.iter().filter_map(|one| one.host.as_deref()).collect(),
        comms: comms
            .map(|one| {
                let role = one.role.as_deref().unwrap_or_default();
                (one.name.clone(), one.comm_name.as_deref(), role)
            })
            .collect(),
        funcs: FUNCTIONS.into_iter().chain(called).collect(),
        is_complete: false,
    };
    known.has_some(filter)?;
    let mut processes = job.processes.iter();
    let has_both = processes.any(|one| {
        one.rank.is_none_or(|rank| filter.has_rank(rank))
            && one.host.as_deref().is_none_or(|host| filter.has_host(host))
    });
    match job.processes.is_empty() || has_both {
        true => Ok(()),
        false => Err(Failure::usage("none of these ranks runs on these hosts")),
    }
}

/// The file for all ranks in the directory of `--fr-out`.
const ALL_RANKS: &str = "flight-recorder.json";

/// Writes the operations in flight as PyTorch's Flight Recorder does: `_dump_RANK` files for its
/// tools, and one JSON file for all ranks. Refuses the input's directory, where the files could
/// replace or later be taken for input, and one with dumps of PyTorch.
fn flight_recorder(job: &Job, directory: &Path, inputs: &[PathBuf]) -> Result<(), Failure> {
    std::fs::create_dir_all(directory).map_err(|error| Failure::write(directory, &error))?;
    let place = directory.canonicalize().ok();
    let folder_of = |input: &PathBuf| {
        let input = input.canonicalize().ok()?;
        if input.is_dir() { Some(input) } else { input.parent().map(Path::to_owned) }
    };
    if place.is_some() && inputs.iter().any(|input| folder_of(input) == place) {
        let place = directory.display();
        return Err(Failure::usage(format!(
            "{place} is the directory of the input: name another one with --fr-out"
        )));
    }
    // Dumps beside such a file are ours.
    let entries = std::fs::read_dir(directory).map_err(|e| Failure::write(directory, &e))?;
    let mut names = entries.filter_map(|entry| Some(entry.ok()?.file_name()));
    if !directory.join(ALL_RANKS).exists()
        && names.any(|name| name.to_string_lossy().starts_with("_dump_"))
    {
        let place = directory.display();
        return Err(Failure::usage(format!(
            "{place} has Flight Recorder dumps: name another directory with --fr-out"
        )));
    }
    let written = whole_folder::fill(directory, Existing::Replaced, |folder| {
        to_file(&folder.join(ALL_RANKS), |file| {
            let mut out = BufWriter::new(file);
            fr_out::write_all(job, &mut out)?;
            out.flush()
        })?;
        let mut written = 0;
        for (rank, dump) in fr_out::dumps(job) {
            let path = folder.join(format!("_dump_{rank}"));
            to_file(&path, |mut file| file.write_all(&fr_out::pickle(&dump)))?;
            written += 1;
        }
        Ok(written)
    })?;
    let left_out = fr_out::count(job) - written;
    if left_out != 0 {
        let most = fr_out::MAX_BYTES >> 30;
        warn(format_args!(
            "{} left out: all of them take more than {most} GiB",
            human::are(left_out, "dump")
        ));
    }
    Ok(())
}
