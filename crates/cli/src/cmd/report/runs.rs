// SPDX-License-Identifier: Apache-2.0
/*!
One line for each of several runs: `ncclscope report` of directories with runs below, or of the
directories of several runs.

First the head of each recording is read, to tell the runs apart. The runs of a directory are those
that all verbs find in it. Runs of different directories are one if they share a communicator or a
launch, and no process or rank: one job whose hosts have directories of their own. Then one run
after the other is judged and forgotten, so that the number of runs does not matter for memory.
*/

use super::assessment::Assessment;
use crate::args::{ReportArgs, TableFormat};
use crate::io::output;
use crate::io::shell_words::words;
use crate::io::terminal::Progress;
use crate::run_input::input::{self, Input};
use crate::run_input::narrow::Narrowed;
use crate::tables::sheet::Sheet;
use crate::tables::table::{Align, Table};
use ncclscope_answer::{Answer, Cost, Moment, State};
use ncclscope_console::failure::{BAD_INPUT, Failure, tell, warn};
use ncclscope_operations::human::{self, duration};
use ncclscope_operations::parallel::in_order;
use ncclscope_operations::stats::to_f64;
use ncclscope_trace::Recording;
use ncclscope_trace::identity::ProcessId;
use ncclscope_trace::runs::{ProcessFacts, Run, Runs};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Maximum number of ranges of ranks in a cell.
const RANGES: usize = 4;
/// The fields of a row that CSV shows.
const FIELDS: [&str; 15] = [
    "run",
    "job",
    "start",
    "duration_ns",
    "ranks",
    "job_ranks",
    "state",
    "since",
    "root_ranks",
    "who",
    "classes",
    "why",
    "cost.step_share",
    "cost.gpu_hours_per_day",
    "error",
];

/// What `--format json` prints.
#[derive(Serialize)]
struct Listing<'a> {
    schema: &'static str,
    runs: &'a [Row],
}

/// A run and its answer.
#[derive(Debug, Default, Serialize)]
struct Row {
    /// The arguments with which `report` shows this run.
    run: String,
    /// The job's id.
    job: Option<String>,
    /// The first recorded time, RFC 3339.
    start: Option<String>,
    /// From the first to the latest recorded time.
    duration_ns: Option<u64>,
    /// Number of ranks with a recording.
    ranks: Option<usize>,
    /// Number of ranks of the job, as far as known.
    job_ranks: Option<usize>,
    state: Option<State>,
    since: Option<String>,
    root_ranks: Vec<u32>,
    /// The line about the ranks at fault.
    who: Option<String>,
    classes: Vec<&'static str>,
    why: Option<String>,
    cost: Option<Cost>,
    /// Why the run cannot be read; the fields of the answer are then unknown.
    error: Option<String>,
    /// Hosts of the ranks at fault.
    #[serde(skip)]
    hosts: BTreeSet<String>,
}

/// Prints the table if several runs are given, or directories without recordings but with runs
/// below; else `None`.
pub(super) fn print(args: &ReportArgs) -> Result<Option<ExitCode>, Failure> {
    let is_whole = args.by.is_empty() && !args.full && args.html.is_none();
    if !is_whole || args.run.id().is_some() || !args.filter.is_empty() {
        return Ok(None);
    }
    let Some(found) = Files::of(&args.inputs) else { return Ok(None) };
    input::allow_open_files()?;
    let Heads { facts, errors } = heads(&found);
    let runs = runs(&facts);
    if !found.are_below && runs.len() < 2 {
        return Ok(None);
    }
    let rows = rows(&facts, &runs, errors, args.hang.hang_sec);
    match args.format {
        TableFormat::Json => {
            output::json(&Listing { schema: "ncclscope.runs/1", runs: &rows })?;
        }
        TableFormat::Csv => Sheet::of(&rows, &FIELDS)?.print_csv()?,
        TableFormat::Md => output::text(&table(&rows).sheet().markdown())?,
        TableFormat::Text => {
            let mut out = output::screen();
            let lines = table(&rows).lines("");
            lines.iter().try_for_each(|line| writeln!(out, "{line}"))?;
            out.flush()?;
        }
    }
    let is_bad = rows.iter().any(|row| row.error.is_some());
    Ok(Some(if is_bad { ExitCode::from(BAD_INPUT) } else { ExitCode::SUCCESS }))
}

/// The recordings of directories, or below them if they have none.
struct Files {
    files: Vec<PathBuf>,
    /// Directories without recordings in or below them.
    empty: Vec<PathBuf>,
    /// Some recordings are below a directory that has none itself.
    are_below: bool,
}

impl Files {
    /// `None` for a single directory with recordings, for files, and if there is nothing to read.
    fn of(inputs: &[PathBuf]) -> Option<Files> {
        let mut found = Files { files: Vec::new(), empty: Vec::new(), are_below: false };
        for path in inputs {
            let mut files = input::recordings_in(path).ok()?;
            if files.is_empty() {
                files = input::all_below(path);
                found.are_below |= !files.is_empty();
            }
            if files.is_empty() {
                found.empty.push(path.clone());
            }
            found.files.append(&mut files);
        }
        (!found.files.is_empty() && (found.are_below || inputs.len() > 1)).then_some(found)
    }
}

/// What the heads of recordings say, and what cannot be read: (directory, reason).
struct Heads {
    facts: Vec<ProcessFacts>,
    errors: Vec<(PathBuf, String)>,
}

fn heads(Files { files, empty, .. }: &Files) -> Heads {
    let mut heads = Heads { facts: Vec::with_capacity(files.len()), errors: Vec::new() };
    let nothing = |directory: &PathBuf| (directory.clone(), "no recordings (*.nscope)".to_owned());
    heads.errors.extend(empty.iter().map(nothing));
    let mut progress = Progress::new("opening recordings", files.len() as u64);
    let head = |file: &PathBuf| {
        Recording::open(file)?.with_content().map(|recording| ProcessFacts::of(&recording))
    };
    in_order(files, head, |at, head| {
        progress.at(at as u64 + 1);
        match head {
            Ok(facts) => heads.facts.push(facts),
            Err(error) => {
                let directory = directory_of(&files[at]).to_owned();
                let line = format!("cannot read {}: {error}", files[at].display());
                heads.errors.push((directory, line));
            }
        }
    });
    heads
}

fn directory_of(file: &Path) -> &Path {
    file.parent().unwrap_or_else(|| Path::new(""))
}

/// A run: its recordings, one for each process, and what tells it from others.
struct OneRun {
    id: String,
    members: Vec<usize>,
    processes: BTreeSet<ProcessId>,
    ranks: BTreeSet<u32>,
    launches: BTreeSet<String>,
    comms: BTreeSet<u64>,
    begin_ns: u64,
    end_ns: u64,
}

impl OneRun {
    fn of(run: &Run, facts: &[ProcessFacts], indices: &[usize]) -> OneRun {
        let members: Vec<usize> = run.members.iter().map(|&at| indices[at]).collect();
        let all = || members.iter().map(|&at| &facts[at]);
        let hashes = all().flat_map(|one| one.comms.iter().map(|comm| comm.0));
        OneRun {
            id: run.id.clone(),
            processes: all().map(|one| one.identity.process()).collect(),
            ranks: all().filter_map(|one| one.identity.rank).collect(),
            launches: all().filter_map(|one| one.identity.run.clone()).collect(),
            comms: hashes.filter(|&hash| hash != 0).collect(),
            begin_ns: run.begin_ns,
            end_ns: run.end_ns,
            members,
        }
    }

    /// True if both are parts of one run.
    fn joins(&self, other: &OneRun) -> bool {
        let has_common =
            !self.comms.is_disjoint(&other.comms) || !self.launches.is_disjoint(&other.launches);
        has_common
            && self.processes.is_disjoint(&other.processes)
            && self.ranks.is_disjoint(&other.ranks)
    }

    fn take(&mut self, other: OneRun) {
        self.members.extend(other.members);
        self.processes.extend(other.processes);
        self.ranks.extend(other.ranks);
        self.launches.extend(other.launches);
        self.comms.extend(other.comms);
        self.begin_ns = self.begin_ns.min(other.begin_ns);
        self.end_ns = self.end_ns.max(other.end_ns);
    }

    /// The directories of its recordings.
    fn directories<'a>(&self, facts: &'a [ProcessFacts]) -> BTreeSet<&'a Path> {
        self.members.iter().filter_map(|&at| facts[at].path.parent()).collect()
    }
}

/// The runs, the oldest first.
fn runs(facts: &[ProcessFacts]) -> Vec<OneRun> {
    let mut directories: BTreeMap<&Path, Vec<usize>> = BTreeMap::new();
    for (at, one) in facts.iter().enumerate() {
        directories.entry(directory_of(&one.path)).or_default().push(at);
    }
    let mut all: Vec<OneRun> = Vec::new();
    for indices in directories.values() {
        let here: Vec<ProcessFacts> = indices.iter().map(|&at| facts[at].clone()).collect();
        let found = Runs::split(&here);
        found.copies(&here).iter().for_each(tell);
        // Runs of one directory stay apart.
        let others = all.len();
        for run in &found.runs {
            let run = OneRun::of(run, facts, indices);
            match all[..others].iter_mut().find(|other| other.joins(&run)) {
                Some(other) => other.take(run),
                None => all.push(run),
            }
        }
    }
    all.sort_by_key(|run| (run.begin_ns, run.end_ns));
    all
}

/// The rows of all runs. Recordings that cannot be read are warnings, unless their directory has no
/// others.
fn rows(
    facts: &[ProcessFacts],
    runs: &[OneRun],
    errors: Vec<(PathBuf, String)>,
    limit: Duration,
) -> Vec<Row> {
    // The newest run of each directory is the one that `run.json` describes.
    let mut here: BTreeMap<&Path, Vec<&str>> = BTreeMap::new();
    for run in runs {
        for directory in run.directories(facts) {
            here.entry(directory).or_default().push(&run.id);
        }
    }
    let mut progress = Progress::new("judging runs", runs.len() as u64);
    let mut rows = Vec::with_capacity(runs.len());
    for (at, run) in runs.iter().enumerate() {
        let directories = run.directories(facts);
        let is_alone = directories.iter().all(|directory| here[directory].len() == 1);
        let id = (!is_alone).then_some(run.id.as_str());
        let words = words(&directories.iter().collect::<Vec<_>>(), id);
        let is_newest = |directory: &&&Path| here[*directory].last() == Some(&&*run.id);
        let about = directories.iter().find(is_newest).copied();
        rows.push(row(facts, run, (words, about), limit));
        progress.at(at as u64 + 1);
    }
    let mut broken: BTreeMap<PathBuf, String> = BTreeMap::new();
    for (directory, error) in errors {
        match here.contains_key(directory.as_path()) {
            true => warn(error),
            false => {
                broken.entry(directory).or_insert(error);
            }
        }
    }
    rows.extend(broken.into_iter().map(|(directory, error)| Row {
        run: words(&[directory], None),
        error: Some(error),
        ..Row::default()
    }));
    rows
}

/// The row of a run.
fn row(
    facts: &[ProcessFacts],
    run: &OneRun,
    (words, about): (String, Option<&Path>),
    limit: Duration,
) -> Row {
    let members: Vec<PathBuf> = run.members.iter().map(|&at| facts[at].path.clone()).collect();
    let jobs = run.members.iter().map(|&at| &facts[at].identity);
    let row = Row {
        run: words,
        job: jobs.clone().find_map(|one| one.job_name.clone().or_else(|| one.job.clone())),
        start: (run.begin_ns != 0).then(|| Moment::from_ns(run.begin_ns).rfc3339()),
        duration_ns: run.end_ns.checked_sub(run.begin_ns).filter(|_| run.begin_ns != 0),
        ranks: Some(members.len()),
        ..Row::default()
    };
    let input = match Input::of_run(&members, about) {
        Ok(input) => input,
        Err(failure) => return Row { error: Some(failure.text()), ..row },
    };
    let assessment = Assessment::of(&input, (&Narrowed::default(), &[]), limit);
    let answer = assessment.answer(&row.run, limit);
    let who = answer.lines().into_iter().find_map(|(label, text)| (label == "who").then_some(text));
    let Answer { state, since, root_ranks, classes, why, cost, places, .. } = answer;
    Row {
        ranks: Some(assessment.hang.ranks),
        job_ranks: Some(assessment.hang.job_ranks),
        state: Some(state),
        since,
        root_ranks,
        who,
        classes,
        why: Some(why).filter(|why| !why.is_empty()),
        cost,
        hosts: places.into_iter().filter_map(|place| place.host).collect(),
        ..row
    }
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new(&[
        ("RUN", Align::Left),
        ("JOB", Align::Left),
        ("START", Align::Left),
        ("LENGTH", Align::Right),
        ("RANKS", Align::Right),
        ("STATE", Align::Left),
        ("WHO", Align::Left),
        ("CLASS", Align::Left),
        ("GPU-HOURS A DAY", Align::Right),
    ])
    .key("RUN")
    .spare(&["JOB", "LENGTH", "START"]);
    let text = |value: Option<&str>| value.unwrap_or("-").to_owned();
    for row in rows {
        let ranks = match (row.ranks, row.job_ranks) {
            (Some(ranks), Some(all)) if ranks < all => format!("{ranks} of {all}"),
            (Some(ranks), _) => ranks.to_string(),
            (None, _) => "-".into(),
        };
        table.row(vec![
            row.run.clone(),
            text(row.job.as_deref()),
            text(row.start.as_deref()),
            row.duration_ns.map_or_else(|| "-".into(), |ns| duration(to_f64(ns))),
            ranks,
            row.state.map_or_else(|| "ERROR".into(), |state| state.word().to_owned()),
            row.short_who(),
            if row.classes.is_empty() { "-".into() } else { row.classes.join(" ") },
            row.cost.map_or_else(|| "-".into(), |cost| format!("{:.0}", cost.gpu_hours_per_day)),
        ]);
    }
    table
}

impl Row {
    /// The ranks at fault and their hosts, or why the run cannot be read.
    fn short_who(&self) -> String {
        if let Some(error) = &self.error {
            return error.clone();
        }
        let ranks = human::ranges(self.root_ranks.iter().copied());
        if ranks.is_empty() {
            let has_cause = !self.classes.is_empty() || self.state == Some(State::Crashed);
            return if has_cause { "CANNOT TELL" } else { "-" }.into();
        }
        let ranks = human::list_of_ranges(&ranks, RANGES);
        let hosts: Vec<&str> = self.hosts.iter().map(String::as_str).take(RANGES).collect();
        let more = if self.hosts.len() > RANGES { ", …" } else { "" };
        match hosts.is_empty() {
            true => ranks,
            false => format!("{ranks} ({}{more})", hosts.join(", ")),
        }
    }
}
