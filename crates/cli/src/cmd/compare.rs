// SPDX-License-Identifier: Apache-2.0
//! `ncclscope compare`: what became slower or faster between two sets of runs.

mod reading;

use super::page_file;
use crate::args::{CompareArgs, TableFormat};
use crate::io::output;
use crate::io::shell_words::shell_path;
use crate::io::terminal::{self, Watched};
use crate::io::whole_file::keep_inputs;
use crate::run_input::input::{RunInput, SAVED_MAX, name_damaged, open_runs, saved_in};
use crate::run_input::other_inputs::{inspector_runs, nccl_tests_in};
use crate::tables::sheet::Sheet;
use crate::text::{self, Page};
use ncclscope_compare::input::{inspector, nccl_tests, saved};
use ncclscope_compare::schema::State;
use ncclscope_compare::{Comparison, Limits, Run, compare};
use ncclscope_console::failure::{BAD_INPUT, FINDINGS, Failure, tell, warn};
use ncclscope_diagnose::input::InputOptions;
use ncclscope_diagnose::recorded_job;
use ncclscope_inspector::{Files, Found};
use ncclscope_operations::human;
use ncclscope_page::{ComparisonContent, render_comparison};
use ncclscope_report::{Report, ReportBuilder};
use ncclscope_trace::Recording;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::slice;

/// The kind of input for a side.
#[derive(Debug)]
enum Source {
    Recordings(Vec<RunInput>),
    Saved(Vec<PathBuf>),
    /// NCCL Inspector's files of each run, with its name.
    Inspector(Vec<(String, Found)>),
    /// What nccl-tests printed.
    NcclTests(Vec<PathBuf>),
}

/// The runs of one side of the comparison.
#[derive(Debug, Default)]
struct Side {
    runs: Vec<Run>,
    /// Report of the newest run, if there is one.
    newest: Option<Report>,
}

impl Source {
    fn recordings(&self) -> impl Iterator<Item = &Recording> {
        let runs = match self {
            Source::Recordings(runs) => runs.as_slice(),
            _ => &[],
        };
        runs.iter().flat_map(|run| &run.recordings)
    }

    /// Its files, except recordings.
    fn files(&self) -> Vec<PathBuf> {
        match self {
            Source::Recordings(_) => Vec::new(),
            Source::Saved(files) | Source::NcclTests(files) => files.clone(),
            Source::Inspector(runs) => {
                runs.iter().flat_map(|(_, found)| &found.files).cloned().collect()
            }
        }
    }
}

/// The fields of a row that the table shows.
const ROW: [&str; 21] = [
    "key.kind",
    "key.role",
    "key.func",
    "key.bytes",
    "key.bytes_below",
    "key.algorithm",
    "key.protocol",
    "key.src",
    "key.dst",
    "a",
    "b",
    "a_is_least",
    "b_is_least",
    "ratio",
    "change",
    "p",
    "p_adjusted",
    "cost.step_share",
    "cost.ns_per_step",
    "verdict",
    "reason",
];

pub(crate) fn run(args: &CompareArgs) -> Result<ExitCode, Failure> {
    page_file::check(args.html.as_deref(), args.format)?;
    let mut bad = 0;
    let sources = [source(&args.a, &mut bad)?, source(&args.b, &mut bad)?];
    if let Some(file) = &args.html {
        let mut inputs: Vec<PathBuf> = sources.iter().flat_map(Source::files).collect();
        inputs.extend([args.a.clone(), args.b.clone()]);
        keep_inputs(&inputs, slice::from_ref(file))?;
    }
    let is_of_tests = |source: &Source| matches!(source, Source::NcclTests(_));
    if sources.iter().any(is_of_tests) && !sources.iter().all(is_of_tests) {
        return Err(Failure::usage(
            "nccl-tests prints means of many iterations, which are no times of a job: compare its \
             output with other output of nccl-tests",
        ));
    }
    // A saved report has other times than the other inputs, which are therefore converted to
    // reports, too.
    let has_saved = sources.iter().any(|source| matches!(source, Source::Saved(_)));
    let [a, b] = &sources;
    let recordings = sources.iter().flat_map(Source::recordings);
    let progress = Watched::by_blocks("reading records", recordings, 1);
    let wants_page = args.html.is_some();
    let mut read = |source: &Source| match has_saved {
        true => as_reports(source, &mut bad),
        false => as_recorded(source, wants_page, &mut bad),
    };
    let (a, b) = (read(a)?, read(b)?);
    drop(progress);
    bad += name_damaged(sources.iter().flat_map(Source::recordings));
    let limits = Limits { min_effect: args.min_effect / 100.0, ..Limits::default() };
    let mut comparison = compare(&a.runs, &b.runs, &limits);
    comparison.answer.next = next(&comparison, &sources[1], args);
    if !page_file::is_alone(args.html.as_deref()) {
        print(&comparison, args)?;
    }
    if let Some(file) = &args.html {
        page_file::write(file, &page(&comparison, [&a, &b], args))?;
    }
    let limit = args.fail_above.map_or(f64::INFINITY, |percent| percent / 100.0);
    let is_slower = comparison.answer.worst.is_some_and(|worst| worst > limit);
    let hangs_now = comparison.a.hung.is_empty() && !comparison.b.hung.is_empty();
    let is_worse = is_slower || hangs_now && args.fail_above.is_some();
    if let (Some(why), false, true) =
        (undecided(&comparison, limit), is_worse, args.fail_above.is_some())
    {
        warn(why);
        bad += 1;
    }
    Ok(match (bad, is_worse) {
        // Unreadable or damaged input takes precedence, because it may hide the actual difference.
        (1.., _) => ExitCode::from(BAD_INPUT),
        (0, true) => ExitCode::from(FINDINGS),
        (0, false) => ExitCode::SUCCESS,
    })
}

/// Why a gate can neither pass nor fail; `None` if it can.
fn undecided(comparison: &Comparison, limit: f64) -> Option<String> {
    if !comparison.judges() {
        let why = "no row can be judged, so that --fail-above passes nothing: the rows name the \
                   reasons";
        return Some(why.into());
    }
    let gone = comparison.gone();
    if gone > 0 {
        let rows = human::are(gone, "row");
        return Some(format!("{rows} without values on B: what became of them is unknown"));
    }
    let open = comparison.undecided(limit);
    (open > 0).then(|| {
        let rows = human::are(open, "row");
        format!(
            "{rows} slower by more than --fail-above, and too few runs show whether that is \
             chance: the rows name how many are enough"
        )
    })
}

fn print(comparison: &Comparison, args: &CompareArgs) -> Result<(), Failure> {
    match args.format {
        TableFormat::Json => output::json(comparison)?,
        TableFormat::Text => {
            let page = Page::new(terminal::has_colour());
            output::text(&text::comparison(comparison, args.full, page))?;
        }
        TableFormat::Md => {
            output::text(&text::comparison(comparison, args.full, Page::markdown()))?;
        }
        TableFormat::Csv => Sheet::of(&comparison.rows, &ROW)?.print_csv()?,
    }
    Ok(())
}

/// The comparison as an HTML page, with the bandwidths of the newest run of each side.
fn page(comparison: &Comparison, sides: [&Side; 2], args: &CompareArgs) -> String {
    let reports: Option<[&Report; 2]> = match sides.map(|side| side.newest.as_ref()) {
        [Some(a), Some(b)] => Some([a, b]),
        _ => None,
    };
    let inputs = [&args.a, &args.b].map(|path| path.display().to_string());
    let inputs = inputs.each_ref().map(String::as_str);
    render_comparison(ComparisonContent { inputs, comparison, reports })
}

/// The content of a path; adds the number of unreadable recordings to `bad`.
fn source(path: &Path, bad: &mut usize) -> Result<Source, Failure> {
    let of_inspector = inspector_runs(path)?;
    if !of_inspector.is_empty() {
        return Ok(Source::Inspector(of_inspector));
    }
    let of_tests = nccl_tests_in(path);
    if !of_tests.is_empty() {
        return Ok(Source::NcclTests(of_tests));
    }
    let saved = saved_in(path)?;
    if !saved.is_empty() {
        return Ok(Source::Saved(saved));
    }
    let (runs, unreadable) = open_runs(path)?;
    *bad += unreadable;
    Ok(Source::Recordings(runs))
}

/// The runs of a side, with the report of the newest one of recordings if requested.
fn as_recorded(source: &Source, wants_report: bool, bad: &mut usize) -> Result<Side, Failure> {
    let mut side = Side::default();
    match source {
        Source::Recordings(runs) => {
            for (at, run) in runs.iter().enumerate() {
                let is_newest = at + 1 == runs.len();
                let (run, report) = reading::read(run, wants_report && is_newest);
                side.runs.push(run);
                side.newest = report;
            }
        }
        Source::Inspector(runs) => {
            for (name, found) in runs {
                let read = inspector::read(name.clone(), found).map_err(Failure::input)?;
                *bad += warn_of(&read.files);
                side.runs.push(read.run);
            }
        }
        Source::NcclTests(files) => {
            for file in files {
                side.runs.extend(nccl_tests::read(file).map_err(Failure::input)?);
            }
        }
        Source::Saved(_) => {}
    }
    Ok(side)
}

/// Names the files that cannot be read, or not whole, and returns their number.
fn warn_of(files: &Files) -> usize {
    files.copies.iter().for_each(tell);
    let damage = [&files.unreadable[..], &files.damage()].concat();
    damage.iter().for_each(warn);
    damage.len()
}

/// The runs of a side as reports, which are saved or made from recordings.
fn as_reports(source: &Source, bad: &mut usize) -> Result<Side, Failure> {
    let defect = |error| Failure::environment(format!("a report cannot be compared: {error}"));
    let mut side = Side::default();
    match source {
        Source::Saved(files) => {
            side.runs = files.iter().map(|file| read_saved(file)).collect::<Result<_, _>>()?;
        }
        Source::Recordings(runs) => {
            for run in runs {
                let report = ReportBuilder::build_all(&run.recordings);
                let mut read = saved::of_report(run.name.clone(), &report).map_err(defect)?;
                read.hangs = hangs_at_its_end(run);
                side.runs.push(read);
                side.newest = Some(report);
            }
        }
        Source::Inspector(runs) => {
            for (name, found) in runs {
                let read = ncclscope_report::inspector::read(found);
                let (report, files) = read.map_err(Failure::input)?;
                *bad += warn_of(&files);
                side.runs.push(saved::of_report(name.clone(), &report).map_err(defect)?);
            }
        }
        Source::NcclTests(_) => {}
    }
    Ok(side)
}

/// True if a run hangs, according to the ends of its recordings. A saved report contains this
/// itself.
fn hangs_at_its_end(run: &RunInput) -> bool {
    let paths: Vec<PathBuf> = run.recordings.iter().map(|one| one.path().to_owned()).collect();
    // Unreadable recordings were reported before.
    let job = recorded_job(&paths, &InputOptions::default(), &mut Vec::new());
    job.is_ok_and(|job| reading::hangs(&job))
}

fn read_saved(file: &Path) -> Result<Run, Failure> {
    let shown = file.display();
    let cannot_read = |error: String| Failure::input(format!("cannot read {shown}: {error}"));
    let mut bytes = Vec::new();
    let opened = File::open(file).map_err(|error| cannot_read(error.to_string()))?;
    let read = opened.take(SAVED_MAX + 1).read_to_end(&mut bytes);
    read.map_err(|error| cannot_read(error.to_string()))?;
    if bytes.len() as u64 > SAVED_MAX {
        return Err(cannot_read(format!("it is larger than {} GiB", SAVED_MAX >> 30)));
    }
    let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    saved::read(name, &bytes).map_err(cannot_read)
}

/// The command that shows more details.
fn next(comparison: &Comparison, b: &Source, args: &CompareArgs) -> Option<String> {
    let is_one_run = matches!(b, Source::Recordings(runs) if runs.len() == 1);
    let path = shell_path(&args.b.to_string_lossy());
    match comparison.answer.state {
        _ if is_one_run && !comparison.b.hung.is_empty() => {
            Some(format!("ncclscope diagnose {path}"))
        }
        State::Slower if is_one_run => Some(format!("ncclscope stragglers {path}")),
        State::Slower | State::Faster if !args.full => Some("--full prints all rows".into()),
        _ => None,
    }
}
