// SPDX-License-Identifier: Apache-2.0
//! A diagnosis as text.

use crate::verdict::{Diagnosis, Verdict};
use crate::words;
use ncclscope_findings::Confidence;
use std::fmt::Write;

/// The text of a diagnosis, one finding per paragraph.
#[must_use]
pub fn render(diagnosis: &Diagnosis) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = lines(diagnosis, &mut out);
    out
}

fn lines(diagnosis: &Diagnosis, out: &mut String) -> std::fmt::Result {
    let Diagnosis { source, ranks, waiting, verdicts, silent_ranks, notes, .. } = diagnosis;
    let (s, verb) = (plural(*ranks), if *waiting == 1 { "waits" } else { "wait" });
    writeln!(out, "{ranks} rank{s} ({source}), {waiting} of them {verb} in NCCL")?;
    if verdicts.is_empty() {
        writeln!(out, "\nNothing found.")?;
    }
    for verdict in verdicts {
        writeln!(out)?;
        one(verdict, out)?;
    }
    if !silent_ranks.is_empty() {
        writeln!(out, "\nNo input from rank {}", words::ranks(silent_ranks))?;
    }
    if !notes.is_empty() {
        writeln!(out)?;
    }
    for note in notes {
        writeln!(out, "note: {note}")?;
    }
    Ok(())
}

const fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

fn one(verdict: &Verdict, out: &mut String) -> std::fmt::Result {
    let doubt = match verdict.confidence {
        Confidence::Confirmed => "",
        Confidence::Suspect => " (suspect)",
    };
    writeln!(out, "{}{doubt}  {}", verdict.class, verdict.title)?;
    if let Some(comm) = &verdict.comm {
        let op = verdict.op.as_ref().map_or_else(String::new, |op| {
            let func = if op.func.is_empty() { "" } else { ", " };
            format!(", operation {}{func}{}", op.index, op.func)
        });
        let age = verdict.age_s.map_or_else(String::new, |age| format!(", for {age:.1} s"));
        writeln!(out, "  where        {comm}{op}{age}")?;
    }
    if let Some([from, to]) = verdict.edge {
        writeln!(out, "  path         rank {from} to rank {to}")?;
    }
    for line in &verdict.evidence {
        writeln!(out, "  evidence     {}", line.text)?;
    }
    let victims = match verdict.victims {
        1 => "1 rank waits".to_owned(),
        many => format!("{many} ranks wait"),
    };
    writeln!(out, "  victims      {victims} because of this")?;
    for other in &verdict.alternatives {
        writeln!(out, "  or           {other}")?;
    }
    Ok(())
}
