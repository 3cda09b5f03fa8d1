// SPDX-License-Identifier: Apache-2.0
//! Generates `docs/findings.md`.

use crate::class::{FindingClass, Tool};
use crate::faults::FAULTS;
use crate::lookup::anchor;
use std::fmt::Write as _;

const HEAD: &str = "\
# Findings: all classes

Generated from the table in `crates/findings` by `cargo run -p ncclscope-findings --example
findings-docs`. A class has a name and a code; both mean the same. JSON has the code as `class` and
the name as `name`. The watchdog ([hang.md](hang.md)) reports what one rank can tell by itself,
`ncclscope diagnose` ([diagnose.md](diagnose.md)) compares all ranks of a job that hangs, and
`ncclscope stragglers` ([stragglers.md](stragglers.md)) those of a job that is slow.

";

const FAULTS_HEAD: &str = "
# Known faults of NCCL

`ncclscope doctor` names those of the NCCL that it finds. A verdict of `diagnose` that looks like
one names it under \"or\", as another possible cause.

| NCCL | processors | needs | what happens | source | workaround |
| --- | --- | --- | --- | --- | --- |
";

/// The page of all classes.
#[must_use]
pub fn page() -> String {
    let mut out = HEAD.to_owned();
    // Writing to a string cannot fail.
    let _ = classes(&mut out);
    let _ = faults(&mut out);
    out
}

fn faults(out: &mut String) -> std::fmt::Result {
    out.push_str(FAULTS_HEAD);
    for fault in &FAULTS {
        let version = |code: u32| format!("{}.{}.{}", code / 10_000, code / 100 % 100, code % 100);
        let until = match fault.releases.end {
            u32::MAX => "present".into(),
            end => format!("before {}", version(end)),
        };
        let arm = if fault.is_arm { "Arm" } else { "all" };
        writeln!(
            out,
            "| {} to {until} | {arm} | {} | {} | {} ({}) | {} |",
            version(fault.releases.start),
            fault.needs,
            fault.what,
            fault.source,
            fault.grade.text(),
            fault.workaround
        )?;
    }
    Ok(())
}

fn classes(out: &mut String) -> std::fmt::Result {
    writeln!(out, "| code | name | what is wrong | reported by |\n| --- | --- | --- | --- |")?;
    for class in FindingClass::ALL {
        let link = format!("[{}](#{})", class.name(), anchor(class));
        writeln!(out, "| {} | {link} | {} | {} |", class.code(), class.title(), tools(class))?;
    }
    for class in FindingClass::ALL {
        writeln!(out, "\n## {class}\n\n{}\n", class.explanation())?;
        writeln!(out, "What to do: {}\n", class.advice())?;
        writeln!(out, "What tells more: `ncclscope {} RUN`", class.verb())?;
    }
    Ok(())
}

fn tools(class: FindingClass) -> String {
    let all = [
        (Tool::Watchdog, "watchdog"),
        (Tool::Diagnose, "diagnose"),
        (Tool::Stragglers, "stragglers"),
    ];
    let names = all.into_iter().filter(|&(tool, _)| class.is_reported_by(tool));
    names.map(|(_, name)| name).collect::<Vec<_>>().join(", ")
}
