// SPDX-License-Identifier: Apache-2.0
//! A diagnosis as text.

use crate::verdict::{Diagnosis, Verdict};
use crate::words;
use ncclscope_findings::Confidence;
use std::fmt::Arguments;

/// The text of a diagnosis, one finding per paragraph.
#[must_use]
pub fn render(diagnosis: &Diagnosis) -> String {
    let mut out = String::new();
    lines(diagnosis, &mut out);
    out
}

/// Adds a line. A line break in a name of the input begins no other.
fn line(out: &mut String, line: Arguments<'_>) {
    out.push_str(&line.to_string().replace('\n', "\\n"));
    out.push('\n');
}

fn lines(diagnosis: &Diagnosis, out: &mut String) {
    let Diagnosis { source, ranks, waiting, verdicts, silent_ranks, notes, .. } = diagnosis;
    let (s, verb) = (plural(*ranks), if *waiting == 1 { "waits" } else { "wait" });
    line(out, format_args!("{ranks} rank{s} ({source}), {waiting} of them {verb} in NCCL"));
    if verdicts.is_empty() {
        out.push_str("\nNothing found.\n");
    }
    for verdict in verdicts {
        out.push('\n');
        one(verdict, out);
    }
    if !silent_ranks.is_empty() {
        out.push('\n');
        line(out, format_args!("No input from rank {}", words::ranks(silent_ranks)));
    }
    if !notes.is_empty() {
        out.push('\n');
    }
    for note in notes {
        line(out, format_args!("note: {note}"));
    }
}

const fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

fn one(verdict: &Verdict, out: &mut String) {
    let doubt = match verdict.confidence {
        Confidence::Confirmed => "",
        Confidence::Suspect => " (suspect)",
    };
    line(out, format_args!("{}{doubt}  {}", verdict.class, verdict.title));
    if let Some(comm) = &verdict.comm {
        let op = verdict.op.as_ref().map_or_else(String::new, |op| {
            let number = op.index.map(|number| format!(", operation {number}"));
            let func = if op.func.is_empty() { "" } else { ", " };
            format!("{}{func}{}", number.unwrap_or_default(), op.func)
        });
        let age = verdict.age_s.map_or_else(String::new, |age| format!(", for {age:.1} s"));
        line(out, format_args!("  where        {comm}{op}{age}"));
    }
    if let Some([from, to]) = verdict.edge {
        line(out, format_args!("  path         rank {from} to rank {to}"));
    }
    for evidence in &verdict.evidence {
        line(out, format_args!("  evidence     {}", evidence.text));
    }
    let victims = match verdict.victims {
        1 => "1 rank waits".to_owned(),
        many => format!("{many} ranks wait"),
    };
    line(out, format_args!("  victims      {victims} because of this"));
    for other in &verdict.alternatives {
        line(out, format_args!("  or           {other}"));
    }
}
