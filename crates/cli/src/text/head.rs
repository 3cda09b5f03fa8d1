// SPDX-License-Identifier: Apache-2.0
//! The head of the report: the run and its losses.

use super::page::Page;
use crate::io::output::in_a_line;
use ncclscope_answer::Moment;
use ncclscope_operations::human::{self, count};
use ncclscope_report::Report;
use ncclscope_report::schema::{Fact, ProcessRow};
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

/// NCCL's variables with their values. One that not all processes have alike comes first, each of
/// its values with the processes that have it.
fn variables(page: &mut Page, report: &Report, room: Room) {
    let mut all: BTreeMap<&str, BTreeMap<&str, Vec<&ProcessRow>>> = BTreeMap::new();
    for process in &report.processes {
        for (key, fact) in process.identity.iter().filter(|(key, _)| key.starts_with("NCCL_")) {
            if let Fact::Text(text) = fact {
                all.entry(key).or_default().entry(text).or_default().push(process);
            }
        }
    }
    let short = |text: &str| match room {
        Room::Screen => cut(text, VALUE_MAX),
        Room::Full => text.to_owned(),
    };
    let is_alike = |values: &BTreeMap<&str, Vec<&ProcessRow>>| {
        values.values().next().is_some_and(|of| of.len() == report.processes.len())
    };
    let one = |(key, values): (&str, &BTreeMap<&str, Vec<&ProcessRow>>)| {
        let alike = is_alike(values);
        let value = |(text, of): (&&str, &Vec<&ProcessRow>)| match alike {
            true => short(text),
            false => format!("{} ({})", short(text), owners(of)),
        };
        let values: Vec<String> = values.iter().map(value).collect();
        let more = values.len().saturating_sub(NAMES);
        let more =
            if more == 0 { String::new() } else { format!(" and {}", count(more, "more value")) };
        format!("{key}={}{more}", values[..values.len().min(NAMES)].join(" or "))
    };
    let (alike, differ): (Vec<_>, Vec<_>) = all.iter().partition(|(_, values)| is_alike(values));
    let most = if room == Room::Full { all.len() } else { NAMES };
    let ordered = differ.into_iter().chain(alike).take(most);
    let shown: Vec<String> = ordered.map(|(key, values)| one((key, values))).collect();
    let more = match all.len() - shown.len() {
        0 => String::new(),
        more => format!(" and {more} more (--full)"),
    };
    if !shown.is_empty() {
        fact(page, "variables", &(shown.join(", ") + &more));
    }
}

/// The ranks of these processes, else their hosts: `rank 1`, `ranks 0, 2-7`, `node-1`.
fn owners(of: &[&ProcessRow]) -> String {
    let rank = |process: &&ProcessRow| match process.identity.get("rank") {
        Some(Fact::Number(rank)) => u32::try_from(*rank).ok(),
        _ => None,
    };
    if let Some(mut ranks) = of.iter().map(rank).collect::<Option<Vec<u32>>>() {
        ranks.sort_unstable();
        let ranges = human::list_of_ranges(&human::ranges(ranks.iter().copied()), NAMES);
        return format!("{} {ranges}", human::if_one(ranks.len(), "rank", "ranks"));
    }
    let host = |process: &&ProcessRow| match process.identity.get("host") {
        Some(Fact::Text(host)) => host.clone(),
        _ => process.file.clone(),
    };
    let hosts: BTreeSet<String> = of.iter().map(host).collect();
    some(&hosts.iter().map(String::as_str).collect())
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
        _ if lost.removed != 0 => "what came before the files were removed: see below".into(),
        (_, 0, 0) => "no record, but see below".into(),
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
