// SPDX-License-Identifier: Apache-2.0
//! A diagnosis as text.

use crate::choice::Shown;
use crate::diagnosis::Diagnosis;
use crate::job::RECORDINGS;
use crate::words;
use ncclscope_findings::{Finding, Help};
use ncclscope_operations::human::{are, count, if_one};
use ncclscope_operations::stats::to_f64;
use std::fmt::Arguments;

/// Maximum number of ranks of a finding whose locations are printed.
const PLACES: usize = 4;

/// The text of a diagnosis, one paragraph for each finding. `shown`: how many findings a filter has
/// left out. `input`: the input as arguments of a command line, for the commands that tell more.
#[must_use]
pub fn render(diagnosis: &Diagnosis, shown: Option<Shown>, input: Option<&str>) -> String {
    let mut out = String::new();
    lines(diagnosis, shown, input.unwrap_or("RUN"), &mut out);
    out
}

/// Adds a line. Line breaks in names from the input are replaced, so that they start no new line.
fn line(out: &mut String, line: Arguments<'_>) {
    out.push_str(&line.to_string().replace('\n', "\\n"));
    out.push('\n');
}

fn lines(diagnosis: &Diagnosis, shown: Option<Shown>, input: &str, out: &mut String) {
    let Diagnosis { source, ranks, waiting_ranks, findings, silent_ranks, notes, .. } = diagnosis;
    let ranks = match diagnosis.missing_ranks() {
        0 => count(*ranks, "rank"),
        _ => format!("{ranks} of {}", count(diagnosis.job_ranks, "rank")),
    };
    let wait = if_one(*waiting_ranks, "waits", "wait");
    match diagnosis.hidden {
        _ if diagnosis.job_ranks == 0 => {
            line(out, format_args!("{source}: whether ranks wait is not visible"));
        }
        Some(_) => line(out, format_args!("{ranks} ({source}); whether they wait is not visible")),
        None => {
            line(out, format_args!("{ranks} ({source}), {waiting_ranks} of them {wait} in NCCL"));
        }
    }
    match shown.filter(|shown| shown.of != 0) {
        Some(Shown { shown: 0, of }) => {
            out.push('\n');
            line(out, format_args!("{} left out by the filter.", are(of, "finding")));
        }
        _ if findings.is_empty() => out.push_str("\nNothing found.\n"),
        _ => {}
    }
    let recordings = Some(input).filter(|_| source == RECORDINGS);
    // Ranks that wait for an unknown reason may wait because of any of them.
    let victims: usize = findings.iter().map(|finding| finding.victims).sum();
    let is_unsaid = diagnosis.job_ranks == 0 || *waiting_ranks > victims;
    for finding in findings {
        out.push('\n');
        one(finding, recordings, is_unsaid, out);
    }
    if !silent_ranks.is_empty() {
        out.push('\n');
        line(out, format_args!("No input from {}", words::named_ranks(silent_ranks)));
    }
    if !notes.is_empty() {
        out.push('\n');
    }
    for note in notes {
        line(out, format_args!("note: {note}"));
    }
}

/// `is_unsaid`: that no rank waits because of it is not known.
fn one(finding: &Finding, recordings: Option<&str>, is_unsaid: bool, out: &mut String) {
    let doubt = if finding.is_suspect() { " (suspect)" } else { "" };
    line(out, format_args!("{}{doubt}  {}", finding.class, finding.title()));
    if let Some(comm) = &finding.comm {
        let op = finding.op.as_ref().map_or_else(String::new, |op| {
            let number = op.number.map(|number| format!(", operation {number}"));
            let func = if op.func.is_empty() { "" } else { ", " };
            format!("{}{func}{}", number.unwrap_or_default(), op.func)
        });
        let seconds = finding.age_ns.map(|ns| to_f64(ns) / 1e9);
        let age = seconds.map_or_else(String::new, |age| format!(", for {age:.1} s"));
        let purpose = finding.role.as_ref().or(comm.name.as_ref());
        let purpose = purpose.map_or_else(String::new, |purpose| format!(" ({purpose})"));
        let comm = finding.comm_texts.join(", ");
        line(out, format_args!("  where        {comm}{purpose}{op}{age}"));
    }
    let Help { places, since, cost } = &finding.help;
    let known = || places.iter().filter(|place| place.host.is_some());
    for place in known().take(PLACES) {
        line(out, format_args!("  place        {place}"));
    }
    let unlisted = finding.root_ranks.len().saturating_sub(places.len());
    let more = (known().count() + unlisted).saturating_sub(PLACES);
    if more > 0 && known().next().is_some() {
        line(out, format_args!("  place        and {more} more"));
    }
    if let Some(since) = since {
        line(out, format_args!("  since        {since}"));
    }
    if let Some([from, to]) = finding.edge {
        line(out, format_args!("  path         rank {from} to rank {to}"));
    }
    for evidence in &finding.evidence {
        line(out, format_args!("  evidence     {}", evidence.text));
    }
    match finding.victims {
        0 if is_unsaid => {}
        0 => line(out, format_args!("  victims      none: no other rank waits because of this")),
        of => {
            let (victims, wait) = (count(of, "rank"), if_one(of, "waits", "wait"));
            line(out, format_args!("  victims      {victims} {wait} because of this"));
        }
    }
    if let Some(cost) = cost {
        line(out, format_args!("  cost         {cost}"));
    }
    line(out, format_args!("  do           {}", finding.advice));
    if let Some(input) = recordings {
        line(out, format_args!("  more         ncclscope {} {input}", finding.class.verb()));
    }
    for other in finding.alternatives() {
        line(out, format_args!("  or           {other}"));
    }
}
