// SPDX-License-Identifier: Apache-2.0
//! `ncclscope merge`: adds recordings to the profiles that PyTorch wrote of the same ranks.

use crate::args::MergeArgs;
use crate::failure::{BAD_INPUT, Failure, tell, warn};
use crate::input::{Input, keep_recording};
use crate::terminal::{Progress, Watched};
use ncclscope_kineto::file::Output;
use ncclscope_kineto::identity::choose;
use ncclscope_kineto::join::{Confidence, Key};
use ncclscope_kineto::write::WriteError;
use ncclscope_kineto::{Rank, Trace, merged};
use ncclscope_operations::Timeline;
use ncclscope_trace::Recording;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

pub(crate) fn run(args: &MergeArgs) -> Result<ExitCode, Failure> {
    let mut files = args.kineto.clone();
    // The run directory may stand behind the traces, and then looks like one of them.
    let run = match &args.run {
        Some(run) => run.clone(),
        None => files.pop().filter(|_| !files.is_empty()).ok_or_else(|| {
            Failure::usage("merge needs traces and the run directory: --kineto FILE... RUN -o OUT")
        })?,
    };
    if args.output == Path::new("-") {
        return Err(Failure::usage("merge writes files: name one with -o"));
    }
    let input = Input::open(std::slice::from_ref(&run), args.of_run.id())?;
    let done = merge(args, &files, &input, &run);
    // What is damaged may be why a trace could not be merged.
    let code = input.finish();
    Ok(if done? { code } else { ExitCode::from(BAD_INPUT) })
}

/// Merges the traces. False if some could not be.
fn merge(args: &MergeArgs, files: &[PathBuf], input: &Input, run: &Path) -> Result<bool, Failure> {
    if args.merged {
        let _progress = Watched::endless("merging traces");
        return into_one(files, input, run, &args.output).map(|()| true);
    }
    let outputs = outputs(files, &args.output)?;
    let mut last = LastRead::default();
    if let ([file], [output]) = (files, outputs.as_slice()) {
        let _progress = Watched::endless("merging the trace");
        return one(file, input, run, (output, &mut last)).map(|()| true);
    }
    let mut failed = 0;
    let mut progress = Progress::new("merging traces", files.len() as u64);
    for (at, (file, output)) in files.iter().zip(&outputs).enumerate() {
        progress.at(at as u64);
        if let Err(failure) = one(file, input, run, (output, &mut last)) {
            warn(failure.text());
            failed += 1;
        }
    }
    if failed == files.len() {
        return Err(Failure::input("none of the traces could be merged"));
    }
    Ok(failed == 0)
}

/// Where the merged traces go, one for each.
fn outputs(files: &[PathBuf], output: &Path) -> Result<Vec<PathBuf>, Failure> {
    if files.len() == 1 && !output.is_dir() {
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
    std::fs::create_dir_all(output).map_err(|e| Failure::write(output, &e))?;
    let mut outputs: Vec<PathBuf> = Vec::new();
    for file in files {
        let path = output.join(file.file_name().unwrap_or_default());
        if outputs.contains(&path) {
            return Err(Failure::usage(format!("two traces are called {}", path.display())));
        }
        outputs.push(path);
    }
    Ok(outputs)
}

fn has_ending(path: &Path, end: &str) -> bool {
    path.as_os_str().as_encoded_bytes().ends_with(end.as_bytes())
}

/// The recording that was read last: a rank often has several traces, which follow one another.
#[derive(Default)]
struct LastRead<'r>(Option<Timeline<'r>>);

impl<'r> LastRead<'r> {
    fn read(&mut self, recording: &'r Recording) -> &Timeline<'r> {
        let known = self.0.take().filter(|known| std::ptr::eq(known.recording(), recording));
        self.0.insert(known.unwrap_or_else(|| Timeline::read(recording, true)))
    }
}

/// Merges a trace with the recording of its process.
fn one<'r>(
    file: &Path,
    input: &'r Input,
    run: &Path,
    (output, last): (&Path, &mut LastRead<'r>),
) -> Result<(), Failure> {
    let trace = scan(file)?;
    let recording = recording_of(&trace, &input.recordings, run)?;
    let timeline = last.read(recording);
    let rank = join(&trace, timeline, run)?;
    let slices = create(output, |out| {
        ncclscope_kineto::write(&rank, out).map_err(|error| failed(error, file, output))
    })?;
    say(&rank);
    tell(format_args!("wrote {slices} slices more to {}", output.display()));
    Ok(())
}

/// Merges all traces into one.
fn into_one(files: &[PathBuf], input: &Input, run: &Path, output: &Path) -> Result<(), Failure> {
    let mut traces = files.iter().map(|file| scan(file)).collect::<Result<Vec<Trace>, _>>()?;
    traces.sort_by_key(|trace| trace.identity.rank);
    let mut recordings: Vec<&Recording> = Vec::new();
    for trace in &traces {
        let recording = recording_of(trace, &input.recordings, run)?;
        if recordings.iter().any(|&other| std::ptr::eq(other, recording)) {
            let file = trace.path.display();
            return Err(Failure::input(format!("two traces are of one rank; one is {file}")));
        }
        recordings.push(recording);
    }
    let base_ns = traces.iter().map(|trace| trace.base_ns).min().unwrap_or(0);
    let slices = create(output, |out| {
        let mut slices = 0;
        let mut shared = merged::Shared::default();
        merged::begin(out, base_ns).map_err(|e| Failure::write(output, &e))?;
        // One timeline at a time: a rank's steps are most of the memory.
        for (trace, recording) in traces.iter().zip(recordings) {
            let timeline = Timeline::read(recording, true);
            let rank = join(trace, &timeline, run)?;
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
    let trace = Trace::scan(file)
        .map_err(|e| Failure::input(format!("cannot read {}: {e}", file.display())))?;
    if trace.is_merged {
        let file = file.display();
        return Err(Failure::input(format!("{file} has lanes of ncclscope already")));
    }
    Ok(trace)
}

fn recording_of<'r>(
    trace: &Trace,
    recordings: &'r [Recording],
    run: &Path,
) -> Result<&'r Recording, Failure> {
    let found = choose(&trace.identity, recordings);
    found.and_then(|at| recordings.get(at)).ok_or_else(|| {
        Failure::input(format!(
            "no recording in {} is from the process of {} ({}): is it another run?",
            run.display(),
            trace.path.display(),
            trace.identity.text()
        ))
    })
}

fn join<'t, 'r>(
    trace: &'t Trace,
    timeline: &'t Timeline<'r>,
    run: &Path,
) -> Result<Rank<'t, 'r>, Failure> {
    let rank = Rank::new(trace, timeline);
    if rank.is_foreign() {
        return Err(Failure::input(format!(
            "no recording in {} overlaps {}, which has {} NCCL kernels: is it another run, or was \
             nothing recorded then?",
            run.display(),
            trace.path.display(),
            trace.kernels.len()
        )));
    }
    Ok(rank)
}

/// Says how well a trace and its recording fit.
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

/// Writes beside the file and renames, so that a trace is there whole or not at all. A recording is
/// never replaced.
fn create(
    path: &Path,
    write: impl FnOnce(&mut Output) -> Result<u64, Failure>,
) -> Result<u64, Failure> {
    let failed = |e: std::io::Error| Failure::write(path, &e);
    keep_recording(path)?;
    // A pipe or a device cannot be replaced.
    let in_place = std::fs::metadata(path).is_ok_and(|it| !it.is_file() && !it.is_dir());
    let mut name = path.to_owned().into_os_string();
    if !in_place {
        name.push(format!(".{}.tmp", std::process::id()));
    }
    let file = if in_place { File::options().write(true).open(path) } else { File::create(&name) };
    let mut out = Output::new(file.map_err(failed)?, has_ending(path, ".gz"));
    let result = write(&mut out).and_then(|slices| {
        let renamed = || if in_place { Ok(()) } else { std::fs::rename(&name, path) };
        out.finish().and_then(|()| renamed()).map_err(failed)?;
        Ok(slices)
    });
    if result.is_err() && !in_place {
        let _ = std::fs::remove_file(&name);
    }
    result
}
