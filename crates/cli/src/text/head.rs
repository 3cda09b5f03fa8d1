// SPDX-License-Identifier: Apache-2.0
//! The head of the report: the run and its losses.

use super::page::Page;
use crate::output::in_a_line;
use ncclscope_answer::Moment;
use ncclscope_operations::human::count;
use ncclscope_report::Report;
use ncclscope_report::schema::Fact;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Maximum length of a command that is shown in full.
const COMMAND_MAX: usize = 240;
/// Maximum length of a variable's values on one screen.
const VALUE_MAX: usize = 40;
/// Maximum number of names of a kind that are listed.
const NAMES: usize = 8;

/// How much room there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    Screen,
    Full,
}

pub(super) fn write(page: &mut Page, report: &Report, run: Option<&Value>, room: Room) {
    page.heading("RUN");
    if let Some(run) = run {
        command(page, run);
    }
    let hosts: BTreeSet<&str> = report.ranks.iter().map(|row| row.host.as_str()).collect();
    let versions: BTreeSet<&str> =
        report.ranks.iter().filter_map(|row| row.nccl_version.as_deref()).collect();
    let api: BTreeSet<String> =
        report.ranks.iter().filter_map(|row| row.api_version).map(|v| format!("v{v}")).collect();
    fact(page, "processes", &format!("{} on {}", report.processes.len(), some(&hosts)));
    for key in ["job", "run"] {
        let values = facts(report, key);
        if !values.is_empty() {
            fact(page, key, &some(&values));
        }
    }
    let nccl = if versions.is_empty() { "of unknown version".into() } else { some(&versions) };
    let api: BTreeSet<&str> = api.iter().map(String::as_str).collect();
    let api = if api.is_empty() { "unknown".into() } else { some(&api) };
    fact(page, "NCCL", &format!("{nccl}, profiler API {api}"));
    variables(page, report, room);
    let span = (
        report.ranks.iter().filter_map(|row| row.start_ns).min(),
        report.ranks.iter().filter_map(|row| row.end_ns).max(),
    );
    if let (Some(start), Some(end)) = span {
        let seconds = ncclscope_operations::human::duration(ncclscope_operations::stats::to_f64(
            end.saturating_sub(start),
        ));
        let start = Moment::from_ns(start).rfc3339();
        fact(page, "recorded", &format!("from {start} for {seconds}"));
    }
    fact(page, "lost", &summary(report));
}

/// A line with a label. Line breaks in names are escaped, so that they start no line.
fn fact(page: &mut Page, label: &str, text: &str) {
    page.wrapped(&format!("  {label:<12}"), &in_a_line(text));
}

/// NCCL's variables, each with its values in all processes.
fn variables(page: &mut Page, report: &Report, room: Room) {
    let mut all: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (key, fact) in report.processes.iter().flat_map(|process| &process.identity) {
        if let (true, Fact::Text(text)) = (key.starts_with("NCCL_"), fact) {
            all.entry(key).or_default().insert(text);
        }
    }
    let one = |(key, values): (&&str, &BTreeSet<&str>)| {
        let values: Vec<&str> = values.iter().copied().collect();
        let values = values.join(" or ");
        match room {
            Room::Screen => format!("{key}={}", cut(&values, VALUE_MAX)),
            Room::Full => format!("{key}={values}"),
        }
    };
    let most = if room == Room::Full { all.len() } else { NAMES };
    let shown: Vec<String> = all.iter().take(most).map(one).collect();
    let more = match all.len() - shown.len() {
        0 => String::new(),
        more => format!(" and {more} more (--full)"),
    };
    if !shown.is_empty() {
        fact(page, "variables", &(shown.join(", ") + &more));
    }
}

/// The distinct values of a key in the processes' identities.
fn facts<'a>(report: &'a Report, key: &str) -> BTreeSet<&'a str> {
    let values = report.processes.iter().filter_map(|process| process.identity.get(key));
    values
        .filter_map(|fact| if let Fact::Text(text) = fact { Some(&**text) } else { None })
        .collect()
}

fn summary(report: &Report) -> String {
    let lost = &report.lost;
    let overwritten: u64 = lost.overwritten_by_kind.values().sum();
    match (lost.losses.is_empty(), lost.total, overwritten) {
        (true, ..) if !report.problems.is_empty() => {
            "nothing that was counted, but see PROBLEMS".into()
        }
        (true, ..) => "nothing".into(),
        (_, total, 0) => format!("{}: see below", count(total, "record")),
        (_, 0, old) => format!("only the oldest {}: see below", count(old, "record")),
        (_, total, old) => format!("{} and the oldest {old}: see below", count(total, "record")),
    }
}

fn command(page: &mut Page, run: &Value) {
    let words = run["command"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let words: Vec<&str> = words.collect();
    let rank = run["rank"].as_u64().map(|rank| format!("rank {rank} ")).unwrap_or_default();
    let ended = match run["exit_code"].as_u64() {
        Some(code) => format!("{rank}with exit status {code}"),
        None => "unknown".into(),
    };
    page.wrapped("  command     ", &cut(&words.join(" "), COMMAND_MAX));
    page.line(&format!("  ended       {ended}"));
}

/// A text, cut to its first characters if necessary.
fn cut(text: &str, characters: usize) -> String {
    match text.char_indices().nth(characters) {
        Some((end, _)) => format!("{} ...", &text[..end]),
        None => text.to_owned(),
    }
}

/// The communicators, one line each.
pub(super) fn communicators(page: &mut Page, report: &Report) {
    page.heading("COMMUNICATORS");
    let mut comms: BTreeMap<&str, (BTreeSet<&str>, Option<u32>, usize)> = BTreeMap::new();
    for row in &report.ranks {
        let Some(comm) = &row.comm else { continue };
        let (names, nranks, seen) = comms.entry(comm).or_default();
        names.extend(row.comm_name.iter().chain(&row.role).map(String::as_str));
        *nranks = nranks.or(row.nranks);
        *seen += 1;
    }
    for (comm, (names, nranks, seen)) in comms {
        let name: String = names.iter().map(|name| format!(" \"{name}\"")).collect();
        let ranks = match nranks {
            Some(nranks) => format!("{seen} of {}", count(nranks, "rank")),
            None => count(seen, "rank"),
        };
        page.line(&format!("  {comm}{name}: {ranks} recorded"));
    }
}

/// The names if they are few, else their number.
fn some(names: &BTreeSet<&str>) -> String {
    let shown: Vec<&str> = names.iter().copied().take(NAMES).collect();
    match names.len() - shown.len() {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}
