// SPDX-License-Identifier: Apache-2.0
//! `ncclscope merge`: adds recordings to the profiles that PyTorch wrote of the same ranks.

use crate::args::MergeArgs;
use crate::io::terminal::Watched;
use crate::io::whole_file::{create_packed, keep_inputs};
use crate::run_input::input::Input;
use crate::run_input::narrow::{Keep, Narrowed};
use ncclscope_console::failure::{BAD_INPUT, Failure, tell, warn};
use ncclscope_kineto::identity::choose;
use ncclscope_kineto::join::{Confidence, Key};
use ncclscope_kineto::write::WriteError;
use ncclscope_kineto::{Rank, Trace, merged};
use ncclscope_operations::Timeline;
use ncclscope_stragglers::input::kineto::is_archive;
use ncclscope_trace::Recording;
use ncclscope_trace::names::is_recording_path;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// How often a trace is read: once to find its content, once to copy it.
const PASSES: u64 = 2;
const ALL_LEFT_OUT: &str = "the filter leaves out the ranks of all traces";

pub(crate) fn run(args: &MergeArgs) -> Result<ExitCode, Failure> {
    let mut files = args.kineto.clone();
    // Run directories may follow the traces on the command line, and then be parsed as traces.
    let mut runs = args.runs.clone();
    if runs.is_empty() {
        let is_run = |path: &PathBuf| path.is_dir() || is_recording_path(path);
        while files.len() > 1
            && let Some(run) = files.pop_if(|file| is_run(file) || runs.is_empty())
        {
            runs.insert(0, run);
        }
    }
    if runs.is_empty() {
        return Err(Failure::usage(
            "merge needs traces and the run directory: --kineto FILE... RUN -o OUT",
        ));
    }
    if args.output == Path::new("-") {
        return Err(Failure::usage("merge writes files: name one with -o"));
    }
    let outputs = outputs(&files, args)?;
    // A single trace may be replaced by the merged one if the user names it as the output.
    let is_free = !args.merged && outputs.iter().eq([&args.output]);
    let kept: &[PathBuf] = if is_free { &[] } else { &files };
    keep_inputs(&[&runs[..], kept].concat(), &outputs)?;
    let mut input = Input::open(&runs, args.of_run.id())?;
    input.leave_out_clockless();
    let narrowed = Narrowed::new(&mut input, &args.filter, Keep::All)?;
    if let Some(text) = narrowed.text() {
        tell(format_args!("filter: {text}"));
    }
    let names: Vec<String> = runs.iter().map(|run| run.display().to_string()).collect();
    let source = Source { input: &input, narrowed: &narrowed, name: names.join(" and ") };
    let done = merge(args, (&files, &outputs), &source);
    // Damage may be the reason that a trace could not be merged.
    let code = input.finish();
    Ok(if done? { code } else { ExitCode::from(BAD_INPUT) })
}

/// Merges the traces. False if some could not be.
fn merge(
    args: &MergeArgs,
    (files, outputs): (&[PathBuf], &[PathBuf]),
    source: &Source<'_>,
) -> Result<bool, Failure> {
    if args.merged {
        let _progress = Watched::by_traces("merging traces", files, PASSES);
        return into_one(files, source, &args.output).map(|()| true);
    }
    if !outputs.contains(&args.output) {
        std::fs::create_dir_all(&args.output).map_err(|e| Failure::write(&args.output, &e))?;
    }
    let mut last = LastRead::default();
    if let ([file], [output]) = (files, outputs) {
        let _progress = Watched::by_traces("merging the trace", files, PASSES);
        return match one(file, source, (output, &mut last))? {
            true => Ok(true),
            false => Err(Failure::usage(ALL_LEFT_OUT)),
        };
    }
    let (mut failed, mut left_out) = (0, 0);
    let progress = Watched::by_traces("merging traces", files, PASSES);
    for (file, output) in files.iter().zip(outputs) {
        match one(file, source, (output, &mut last)) {
            Ok(is_written) => left_out += usize::from(!is_written),
            Err(failure) => {
                warn(failure.text());
                failed += 1;
            }
        }
    }
    drop(progress);
    if left_out == files.len() {
        return Err(Failure::usage(ALL_LEFT_OUT));
    }
    if failed == files.len() {
        return Err(Failure::input("none of the traces could be merged"));
    }
    Ok(failed == 0)
}

/// The output path of each merged trace, or of the one of all ranks.
fn outputs(files: &[PathBuf], args: &MergeArgs) -> Result<Vec<PathBuf>, Failure> {
    let output = &args.output;
    if args.merged || files.len() == 1 && !output.is_dir() {
        return Ok(vec![output.into()]);
    }
    let is_named_as_file = [".json", ".gz"].iter().any(|end| has_ending(output, end));
    if is_named_as_file && !output.is_dir() {
        return Err(Failure::usage(format!(
            "{} is to hold {} traces: name a directory, or write one of all ranks with --merged",
            output.display(),
            files.len()
        )));
    }
    let outputs: Vec<PathBuf> =
        files.iter().map(|file| output.join(file.file_name().unwrap_or_default())).collect();
    let mut names = HashSet::new();
    if let Some(path) = outputs.iter().find(|path| !names.insert(*path)) {
        return Err(Failure::usage(format!("two traces are called {}", path.display())));
    }
    Ok(outputs)
}

fn has_ending(path: &Path, end: &str) -> bool {
    path.as_os_str().as_encoded_bytes().ends_with(end.as_bytes())
}

/// The recording that was read last, because a rank often has several consecutive traces.
#[derive(Default)]
struct LastRead<'r>(Option<Timeline<'r>>);

impl<'r> LastRead<'r> {
    fn read(&mut self, recording: &'r Recording) -> &Timeline<'r> {
        let known = self.0.take().filter(|known| std::ptr::eq(known.recording(), recording));
        self.0.insert(known.unwrap_or_else(|| Timeline::read(recording, true)))
    }
}

struct Source<'a> {
    input: &'a Input,
    narrowed: &'a Narrowed,
    /// The run directories as the user named them.
    name: String,
}

/// Merges a trace with the recording of its process. False if the filter leaves it out.
fn one<'r>(
    file: &Path,
    source: &Source<'r>,
    (output, last): (&Path, &mut LastRead<'r>),
) -> Result<bool, Failure> {
    let trace = scan(file)?;
    let Some(recording) = recording_of(&trace, source)? else { return Ok(false) };
    let timeline = last.read(recording);
    let rank = join(&trace, timeline, source)?;
    let slices = create_packed(output, |out| {
        ncclscope_kineto::write(&rank, out).map_err(|error| failed(error, file, output))
    })?;
    say(&rank);
    tell(format_args!("wrote {slices} slices more to {}", output.display()));
    Ok(true)
}

fn into_one(files: &[PathBuf], source: &Source<'_>, output: &Path) -> Result<(), Failure> {
    let mut all = files.iter().map(|file| scan(file)).collect::<Result<Vec<Trace>, _>>()?;
    all.sort_by_key(|trace| trace.identity.rank);
    let (mut traces, mut recordings): (Vec<Trace>, Vec<&Recording>) = (Vec::new(), Vec::new());
    for trace in all {
        let Some(recording) = recording_of(&trace, source)? else { continue };
        if recordings.iter().any(|&other| std::ptr::eq(other, recording)) {
            let file = trace.path.display();
            return Err(Failure::input(format!("two traces are of one rank; one is {file}")));
        }
        recordings.push(recording);
        traces.push(trace);
    }
    if traces.is_empty() {
        return Err(Failure::usage(ALL_LEFT_OUT));
    }
    let base_ns = traces.iter().map(|trace| trace.base_ns).min().unwrap_or(0);
    let slices = create_packed(output, |out| {
        let mut slices = 0;
        let mut shared = merged::Shared::default();
        merged::begin(out, base_ns).map_err(|e| Failure::write(output, &e))?;
        // One timeline at a time, because a rank's steps take most of the memory.
        for (trace, recording) in traces.iter().zip(&recordings) {
            let timeline = Timeline::read(recording, true);
            let rank = join(trace, &timeline, source)?;
            slices += merged::add(out, &rank, base_ns, &mut shared)
                .map_err(|error| failed(error, &trace.path, output))?;
            say(&rank);
        }
        merged::end(out).map_err(|e| Failure::write(output, &e))?;
        Ok(slices)
    })?;
    tell(format_args!("wrote {slices} slices more to {}", output.display()));
    Ok(())
}

fn scan(file: &Path) -> Result<Trace, Failure> {
    let trace = Trace::scan(file).map_err(|error| {
        let advice = match is_archive(file) {
            true => ": merge reads no archives; unpack it, and name its traces",
            false => "",
        };
        Failure::input(format!("cannot read {}: {error}{advice}", file.display()))
    })?;
    if trace.is_merged {
        let file = file.display();
        return Err(Failure::input(format!("{file} has lanes of ncclscope already")));
    }
    Ok(trace)
}

/// The recording of a trace's process; `None` if the filter leaves it out.
fn recording_of<'r>(trace: &Trace, source: &Source<'r>) -> Result<Option<&'r Recording>, Failure> {
    let recordings = &source.input.recordings;
    let found = choose(&trace.identity, recordings);
    let Some((at, recording)) = found.and_then(|at| Some((at, recordings.get(at)?))) else {
        return Err(Failure::input(format!(
            "no recording in {} is from the process of {} ({}): is it another run?",
            source.name,
            trace.path.display(),
            trace.identity.text()
        )));
    };
    if !source.narrowed.has(at) {
        tell(format_args!("{} is left out: the filter has other ranks", trace.path.display()));
        return Ok(None);
    }
    Ok(Some(recording))
}

fn join<'t, 'r>(
    trace: &'t Trace,
    timeline: &'t Timeline<'r>,
    source: &Source<'_>,
) -> Result<Rank<'t, 'r>, Failure> {
    let rank = Rank::new(trace, timeline);
    if rank.is_foreign() {
        return Err(Failure::input(format!(
            "no recording in {} overlaps {}, which has {} NCCL kernels: is it another run, or was \
             nothing recorded then?",
            source.name,
            trace.path.display(),
            trace.kernels.len()
        )));
    }
    Ok(rank.of(&source.narrowed.of(timeline.recording())))
}

/// Prints how well a trace and its recording match.
fn say(rank: &Rank<'_, '_>) {
    let (trace, joined) = (rank.trace(), rank.joined());
    let file = trace.path.display();
    let mut line =
        format!("{file}: {} of {} NCCL kernels joined", joined.pairs.len(), trace.kernels.len());
    let keys = [Key::ExternalId, Key::Order, Key::Time];
    let by_key = keys.into_iter().map(|key| (key.name(), joined.count(key)));
    let by_key: Vec<String> =
        by_key.filter(|(_, n)| *n != 0).map(|(key, n)| format!("{n} by {key}")).collect();
    if !by_key.is_empty() {
        line.push_str(&format!(" ({})", by_key.join(", ")));
    }
    if let Some(residual) = joined.residual_ns() {
        line.push_str(&format!(
            "; clocks {:.1} us apart, calls within {:.1} us",
            micros(joined.offset.ns),
            micros(residual)
        ));
    }
    tell(line);
    let alone = trace.kernels.len() - joined.pairs.len();
    if alone != 0 {
        warn(format_args!("{file}: {alone} NCCL kernels have no operation in the recording"));
    }
    let unsure = joined.pairs.iter().filter(|pair| pair.confidence == Confidence::Low).count();
    if unsure != 0 {
        warn(format_args!("{file}: {unsure} are joined with low confidence"));
    }
    if trace.unreadable != 0 {
        warn(format_args!("{file}: {} events of NCCL are no JSON", trace.unreadable));
    }
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
fn micros(ns: i64) -> f64 {
    ns as f64 / 1000.0
}

fn failed(error: WriteError, file: &Path, output: &Path) -> Failure {
    match error {
        WriteError::Input(e) => Failure::input(format!("cannot read {}: {e}", file.display())),
        WriteError::Output(e) => Failure::write(output, &e),
    }
}
