// SPDX-License-Identifier: Apache-2.0
//! `ncclscope stragglers`: finds the slow parts of a job that makes progress.

mod reading;

use crate::args::{FilterArgs, StragglersArgs, TableFormat};
use crate::io::formats::{is_sqlite, refuse};
use crate::io::output::{self, in_a_line};
use crate::io::shell_words::words;
use crate::io::terminal::{Watched, fitted, painted, say};
use crate::run_input::input::{Input, named_below, not_an_input, recordings_in, tell_left_out};
use crate::run_input::narrow::{
    FindingsNote, Keep, Narrowed, has_some_rank, tell_filter, timeless,
};
use crate::run_input::other_inputs;
use crate::tables::sheet::{LocatedRow, Sheet};
use crate::tables::table::{Align, Table};
use crate::text;
use ncclscope_console::failure::{BAD_INPUT, FINDINGS, Failure, tell, warn};
use ncclscope_findings::{Finding, Help, SlowPart};
use ncclscope_inspector::Found;
use ncclscope_operations::Filter;
use ncclscope_operations::human::{are, count, if_one, percent};
use ncclscope_operations::stats::to_f64;
use ncclscope_stragglers::causes::Cause;
use ncclscope_stragglers::input::{Error, inspector, kineto, nsys, table};
use ncclscope_stragglers::{Job, Judging, Limits, Rule, Shown, SlowReport, analyze_in_detail};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The fields of a finding that the table shows.
const FINDING: [&str; 13] = [
    "class",
    "name",
    "confidence",
    "root_ranks",
    "host",
    "pid",
    "edge",
    "factor",
    "share",
    "lost_share",
    "since",
    "comms",
    "title",
];
/// Head of the column of findings in other tables.
const FINDING_HEAD: (&str, Align) = ("finding", Align::Left);
/// Cell of that column without a finding.
const NOT_SLOW: &str = "-";
/// Line of the text without findings, for a job that hangs.
const NOTHING_BUT: &str = "  nothing, but the job hangs: see NOTES\n";
/// Maximum length of a list in text; JSON contains all entries.
const LIST_MAX: usize = 20;
/// Maximum number of a finding's lines of evidence that are printed.
const EVIDENCE_MAX: usize = 8;
/// Maximum number of a finding's ranks whose locations are printed.
const PLACES: usize = 4;
/// Minimum share of the waiting of a cause without a finding that is printed.
const SHOWN: f64 = 0.01;
/// Maximum number of ranks that are printed between a cause and those that wait.
const THROUGH: usize = 4;
/// Maximum number of inputs that are repeated in a finding's next command.
const INPUTS_NAMED: usize = 3;

pub(crate) fn run(args: &StragglersArgs) -> Result<ExitCode, Failure> {
    if !args.filter.events.is_empty() {
        return Err(Failure::usage("a finding is of no kind of event: --events does not apply"));
    }
    let Read { mut job, is_hung, code, filter, window } = read(args)?;
    let is_recorded = job.origin_ns.is_some();
    job.keep(&filter, window);
    if job.collectives.is_empty()
        && job.batches.is_empty()
        && (filter.steps, window) != (None, None)
    {
        return Err(Failure::usage("no operation was recorded in these steps or times"));
    }
    let (mut report, _) = analyze_in_detail(&job, &judging(args));
    let Shown { shown, of } = report.show(&filter, &job);
    let judged = match window.is_some() || filter.steps.is_some() {
        true => "all ranks judged in that time",
        false => "all ranks judged",
    };
    let filter = FindingsNote::new(&args.filter, (shown, of), judged);
    let input = words(&args.inputs, args.run.id());
    let hint = is_hung.then(|| format!("the job hangs, see why: ncclscope diagnose {input}"));
    // Tables have no room for the filter and the hint.
    if matches!(args.format, TableFormat::Csv | TableFormat::Md) {
        tell_filter(filter.as_ref().map(|note| note.text.as_str()));
        hint.iter().for_each(tell);
    }
    if let Some(hint) = hint {
        report.notes.insert(0, hint);
    }
    match args.format {
        TableFormat::Json => output::json(&Printed { report: &report, filter })?,
        TableFormat::Text => {
            let filter = filter.map(|note| format!("filter      {}\n", in_a_line(&note.text)));
            let nothing = match (of, is_hung) {
                (0, false) => format!("  nothing{}\n", report.unjudged.text()),
                (0, true) => NOTHING_BUT.to_owned(),
                _ => format!("  {} left out by the filter\n", are(of, "finding")),
            };
            let named = if args.inputs.len() > INPUTS_NAMED { "RUN" } else { &*input };
            let input = is_recorded.then_some(named);
            let body = page(&report, (input, &nothing));
            output::text(&painted(&fitted(&(filter.unwrap_or_default() + &body))))?;
        }
        TableFormat::Csv => sheet(&report)?.print_csv()?,
        TableFormat::Md => output::text(&sheet(&report)?.markdown())?,
    }
    // Unreadable or damaged input takes precedence over findings, because it may hide the actual
    // cause.
    let is_found = code == ExitCode::SUCCESS && !report.findings.is_empty();
    Ok(if is_found { ExitCode::from(FINDINGS) } else { code })
}

/// How to judge the job.
fn judging(args: &StragglersArgs) -> Judging {
    let limits = Limits { least_cost: args.threshold / 100.0, ..Limits::default() };
    let without = args.without.iter().copied().collect();
    Judging { limits, without, why_not: args.why_not.then(|| args.filter.rank.clone()) }
}

/// The findings as a table.
fn sheet(report: &SlowReport) -> Result<Sheet, Failure> {
    let rows = report.findings.iter().map(|finding| LocatedRow::of(finding, &finding.help));
    Sheet::of(&rows.collect::<Vec<_>>(), &FINDING)
}

/// What `--format json` prints: the report, and the filter of its findings.
#[derive(Serialize)]
struct Printed<'a> {
    #[serde(flatten)]
    report: &'a SlowReport,
    filter: Option<FindingsNote>,
}

struct Read {
    job: Job,
    /// `diagnose` finds that the job hangs.
    is_hung: bool,
    /// The exit code if there are no findings.
    code: ExitCode,
    filter: Filter,
    /// The time window to judge, ns on the job's clock.
    window: Option<(f64, f64)>,
}

/// The kind of input at a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Recordings,
    Traces,
    Exports,
    Table,
}

fn read(args: &StragglersArgs) -> Result<Read, Failure> {
    let inputs = &args.inputs;
    if let Some(found) = other_inputs::inspector(inputs)? {
        return of_inspector(&found, &args.filter);
    }
    let mut kinds = inputs.iter().map(|path| kind(path));
    let kind = kinds.next().ok_or_else(|| Failure::usage("name a run directory or files"))?;
    if kinds.any(|other| other != kind) {
        return Err(Failure::usage(
            "recordings, traces, exports and tables cannot be read together: name files of one \
             kind",
        ));
    }
    match kind {
        Kind::Recordings => {
            let is_left_out = |name: &str| {
                [".parquet", ".sqlite", ".pt.trace.json", ".pt.trace.json.gz"]
                    .iter()
                    .any(|end| name.ends_with(end))
            };
            tell_others(inputs, is_left_out);
            let mut input = Input::open(inputs, args.run.id())?;
            let narrowed = Narrowed::new(&mut input, &args.filter, Keep::All)?;
            let progress = Watched::by_blocks("reading records", &input.recordings, 1);
            let (mut job, is_hung) = reading::job(&input.recordings);
            drop(progress);
            job.notes.extend(input.unreadable.iter().cloned());
            say(1, || "read the records".into());
            let window = narrowed.since_start();
            Ok(Read { job, is_hung, code: input.finish(), filter: narrowed.filter, window })
        }
        Kind::Traces => {
            let mut files = Vec::new();
            tell_others(inputs, |name| {
                [".parquet", ".sqlite"].iter().any(|end| name.ends_with(end))
                    || kineto::is_archive(Path::new(name))
            });
            for path in inputs {
                files.extend(if path.is_dir() { traces_in(path)? } else { vec![path.clone()] });
            }
            if let Some(failure) = inputs.iter().find_map(|file| not_an_input(file)) {
                return Err(failure);
            }
            let _progress = match files.iter().any(|file| kineto::is_archive(file)) {
                true => Watched::endless("reading traces"),
                false => Watched::by_traces("reading traces", &files, 1),
            };
            of_traces(kineto::read(&files).map_err(fail)?, &args.filter)
        }
        Kind::Exports => {
            let mut files = Vec::new();
            for path in inputs {
                files.extend(if path.is_dir() { exports_in(path) } else { vec![path.clone()] });
            }
            let _progress = Watched::endless("reading exports of Nsight Systems");
            of_traces(nsys::read(&files).map_err(fail)?, &args.filter)
        }
        Kind::Table => match &inputs[..] {
            [path] => {
                let _progress = Watched::endless("reading the table");
                without_times(table::read(path).map_err(fail)?, &args.filter)
            }
            _ => Err(Failure::usage("one table holds all workers: name one .parquet file")),
        },
    }
}

fn fail(error: Error) -> Failure {
    match error.is_of_place() {
        true => Failure::environment(error.to_string()),
        false => Failure::input(error.to_string()),
    }
}

/// The job of traces, with a warning for each that cannot be read.
fn of_traces(traces: kineto::Traces, args: &FilterArgs) -> Result<Read, Failure> {
    traces.unreadable.iter().for_each(warn);
    let code = if traces.unreadable.is_empty() { 0 } else { BAD_INPUT };
    Ok(Read { code: ExitCode::from(code), ..without_times(traces.job, args)? })
}

/// The job of NCCL Inspector's files.
fn of_inspector(found: &Found, args: &FilterArgs) -> Result<Read, Failure> {
    let progress = Watched::endless("reading NCCL Inspector's files");
    let (job, files) = inspector::read(found).map_err(Failure::input)?;
    drop(progress);
    files.copies.iter().for_each(tell);
    let damage = [&files.unreadable[..], &files.damage()].concat();
    damage.iter().for_each(warn);
    let code = if damage.is_empty() { 0 } else { BAD_INPUT };
    Ok(Read { code: ExitCode::from(code), ..without_times(job, args)? })
}

/// A job that was not read from recordings, to which time filters do not apply.
fn without_times(job: Job, args: &FilterArgs) -> Result<Read, Failure> {
    if args.from.is_some() || args.until.is_some() {
        return Err(Failure::usage("--from and --until are for recordings; --steps is for all"));
    }
    let filter = timeless(args);
    has_some_rank(&filter, &job.workers.iter().map(|worker| worker.rank).collect())?;
    Ok(Read { job, is_hung: false, code: ExitCode::SUCCESS, filter, window: None })
}

fn kind(path: &Path) -> Kind {
    if path.is_dir() {
        let has_recordings = recordings_in(path).is_ok_and(|files| !files.is_empty());
        let has_traces = traces_in(path).is_ok_and(|files| !files.is_empty());
        return match (has_recordings, has_traces) {
            (false, true) => Kind::Traces,
            (false, false) if !exports_in(path).is_empty() => Kind::Exports,
            _ => Kind::Recordings,
        };
    }
    if path.extension().is_some_and(|end| end == "parquet") {
        Kind::Table
    } else if kineto::is_trace(path) || kineto::is_archive(path) {
        Kind::Traces
    } else if nsys::is_export(path) || is_sqlite(path) {
        Kind::Exports
    } else {
        Kind::Recordings
    }
}

/// Prints which files of the directories are ignored although they could be read on their own.
fn tell_others(inputs: &[PathBuf], is_one: impl Fn(&str) -> bool) {
    for directory in inputs.iter().filter(|path| path.is_dir()) {
        tell_left_out(directory, &is_one, "of a directory, files of one kind are; name it alone");
    }
}

/// The traces in a directory or, if there are none, below it.
fn traces_in(directory: &Path) -> Result<Vec<PathBuf>, Failure> {
    let unreadable = |e| Failure::input(format!("cannot read {}: {e}", directory.display()));
    let entries = std::fs::read_dir(directory).map_err(unreadable)?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.map_err(unreadable)?.path();
        if kineto::is_trace(&path) && path.file_name().is_none_or(|name| name != "truth.json") {
            files.push(path);
        }
    }
    files.sort();
    if files.is_empty() {
        // A folder for each rank. JSON of others is no trace.
        files = named_below(directory, |name| kineto::is_trace(Path::new(name)));
        files.retain(|file| refuse("stragglers", [file]).is_ok() && not_an_input(file).is_none());
    }
    Ok(files)
}

/// The exports of Nsight Systems in a directory or, if there are none, below it.
fn exports_in(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let is_one = |path: &PathBuf| nsys::is_export(path) && path.is_file();
    let files: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_one).collect();
    match files.is_empty() {
        true => named_below(directory, |name| nsys::is_export(Path::new(name))),
        false => files,
    }
}

/// The report as text: the findings first, or the line `nothing`, then the causes of the waiting.
/// `input`: recordings as arguments of a command line, for the verbs with more details.
fn page(report: &SlowReport, (input, nothing): (Option<&str>, &str)) -> String {
    let mut text = format!(
        "{}, {}, {} {} of sends and receives, {} (from {})\n",
        count(report.workers, "worker"),
        count(report.collectives, "collective"),
        report.batches,
        if_one(report.batches, "batch", "batches"),
        count(report.step_count(), "step"),
        report.steps_from
    );
    let clock = &report.clock;
    text += &format!(
        "clocks      up to {:.3} ms apart, aligned with a residual of {:.3} ms by {}\n",
        to_f64(clock.max_offset_ns) / 1e6,
        to_f64(clock.max_residual_ns) / 1e6,
        count(clock.pairs, "pair")
    );
    section(&mut text, "SLOW");
    if report.findings.is_empty() {
        text += nothing;
    }
    report.findings.iter().for_each(|finding| add_finding(&mut text, finding, input));
    if let Some(seen) = &report.why_not {
        text += &text::why_not(&Rule::all_about(), seen);
    }
    causes(&mut text, report);
    arrivers(&mut text, report);
    for (title, lines) in [("NOT SAID", &report.quiet), ("NOTES", &report.notes)] {
        if !lines.is_empty() {
            section(&mut text, title);
            lines.iter().for_each(|line| text += &format!("  - {}\n", in_a_line(line)));
        }
    }
    text
}

fn section(text: &mut String, title: &str) {
    *text += &format!("\n{title}\n");
}

fn add_finding(text: &mut String, finding: &Finding, input: Option<&str>) {
    let sure = finding.confidence().name();
    let factor = finding.factor.map_or_else(String::new, |factor| format!(", {factor:.1}x slower"));
    let title = in_a_line(&finding.title());
    *text += &format!("  {}  {title} ({sure}{factor})\n", finding.class);
    if finding.root_ranks.len() > 1 {
        let ranks: Vec<String> = finding.root_ranks.iter().map(u32::to_string).collect();
        *text += &format!("      ranks {}\n", ranks.join(", "));
    }
    for line in finding.evidence.iter().take(EVIDENCE_MAX) {
        *text += &format!("      {}\n", in_a_line(&line.text));
    }
    if finding.evidence.len() > EVIDENCE_MAX {
        let more = finding.evidence.len() - EVIDENCE_MAX;
        *text += &format!("      and {}: --format json has all\n", count(more, "more line"));
    }
    for doubt in finding.alternatives() {
        *text += &format!("      or     {}\n", in_a_line(&doubt));
    }
    let Help { places, since, cost } = &finding.help;
    for place in places.iter().filter(|place| place.host.is_some()).take(PLACES) {
        *text += &format!("      place  {}\n", in_a_line(&place.to_string()));
    }
    if let Some(since) = since {
        let first = if finding.is_from_first_step { " (the first recorded step)" } else { "" };
        *text += &format!("      since  {since}{first}\n");
    }
    if let Some(cost) = cost {
        *text += &format!("      cost   {cost}\n");
    }
    *text += &format!("      do     {}\n", finding.class.advice());
    if let Some(input) = input {
        *text += &format!("      more   ncclscope {} {input}\n", finding.class.verb());
    }
}

/// The causes of the waiting.
fn causes(text: &mut String, report: &SlowReport) {
    let waits = report.steps.iter().filter_map(|step| step.waiting_share);
    let (number, sum) = waits.fold((0, 0.0), |(number, sum), share| (number + 1, sum + share));
    let Some(usual) = report.usual_share.filter(|_| number > 0) else { return };
    let columns = [
        ("cause", Align::Left),
        ("waiting", Align::Right),
        ("first in", Align::Right),
        ("through", Align::Left),
        FINDING_HEAD,
    ];
    let mut table = Table::new(&columns);
    let is_listed = |cause: &&Cause| cause.finding.is_some() || cause.share >= SHOWN;
    let listed: Vec<&Cause> = report.causes.iter().filter(is_listed).take(LIST_MAX).collect();
    for cause in &listed {
        table.row(vec![
            cause.name.clone(),
            percent(cause.share),
            count(cause.steps, "step"),
            through(&cause.through),
            cause.finding.unwrap_or(NOT_SLOW).to_owned(),
        ]);
    }
    let rest = 1.0 - usual - listed.iter().map(|cause| cause.share).sum::<f64>();
    let sums = [("further ranks and transfers", rest), ("usual work and transfers", usual)];
    for (name, share) in sums.into_iter().filter(|(_, share)| *share >= 0.0005) {
        table.row(vec![name.into(), percent(share), String::new(), String::new(), String::new()]);
    }
    let mean = sum / f64::from(small(number));
    section(text, &format!("CAUSES OF THE WAITING ({} of a step in the mean)", percent(mean)));
    table.lines("  ").iter().for_each(|line| *text += &format!("{line}\n"));
    if let Some(lost) = report.variation_share.filter(|share| *share >= 0.001) {
        let lost = percent(lost);
        *text += &format!("  {lost} of each step is lost to variation, without a single cause\n");
    }
}

/// The ranks that pass a wait on.
fn through(ranks: &[u32]) -> String {
    let named: Vec<String> = ranks.iter().take(THROUGH).map(u32::to_string).collect();
    let more = if ranks.len() > THROUGH { ", ..." } else { "" };
    match named.len() {
        0 => String::new(),
        1 => format!("rank {}", named[0]),
        _ => format!("ranks {}{more}", named.join(", ")),
    }
}

/// The codes of the findings whose root is this part of the job.
fn findings(part: Option<&SlowPart>, report: &SlowReport) -> String {
    let Some(part) = part else { return NOT_SLOW.into() };
    let fits = |named: Option<u32>, of: Option<u32>| named.is_none() || named == of;
    let is_of = |finding: &&Finding| {
        finding.root.is_some_and(|root| {
            fits(root.rank, part.rank)
                && fits(root.dp_rank, part.dp_rank)
                && fits(root.stage, part.stage)
        }) || part.rank.is_some_and(|rank| finding.root_ranks.contains(&rank))
    };
    let codes: BTreeSet<&str> =
        report.findings.iter().filter(is_of).map(|finding| finding.class.code()).collect();
    match codes.is_empty() {
        true => NOT_SLOW.into(),
        false => codes.into_iter().collect::<Vec<_>>().join(", "),
    }
}

fn small(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

fn arrivers(text: &mut String, report: &SlowReport) {
    let rows = &report.last_arrivers;
    if rows.is_empty() {
        return;
    }
    section(text, "LAST TO ARRIVE");
    let last = |root: Option<&SlowPart>| root.map_or_else(|| "uncertain".into(), SlowPart::name);
    let mut table;
    if rows.len() <= LIST_MAX {
        let left = ["function", "comm", "last"].map(|name| (name, Align::Left));
        table = Table::new(&[&left[..], &[("later by", Align::Right)], &[FINDING_HEAD]].concat());
        for row in rows {
            let late = format!("{:.3} ms", to_f64(row.late_ns) / 1e6);
            let (comm, finding) = (row.comm_text.clone(), findings(row.last.as_ref(), report));
            table.row(vec![row.func.clone(), comm, last(row.last.as_ref()), late, finding]);
        }
    } else {
        table = Table::new(&[("last", Align::Left), ("collectives", Align::Right), FINDING_HEAD]);
        let mut counts: BTreeMap<String, (usize, Option<&SlowPart>)> = BTreeMap::new();
        for row in rows {
            let sum = counts.entry(last(row.last.as_ref())).or_default();
            *sum = (sum.0 + 1, row.last.as_ref());
        }
        let mut counts: Vec<_> = counts.into_iter().collect();
        counts.sort_by_key(|(_, (count, _))| std::cmp::Reverse(*count));
        for (name, (count, part)) in counts.into_iter().take(LIST_MAX) {
            table.row(vec![
                name,
                format!("{count} of {}", report.judged_arrivals),
                findings(part, report),
            ]);
        }
    }
    table.lines("  ").iter().for_each(|line| *text += &format!("{line}\n"));
}
