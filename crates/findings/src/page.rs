// SPDX-License-Identifier: Apache-2.0
//! Generates `docs/findings.md`.

use crate::class::{FindingClass, Tool};
use crate::conditions::CONDITIONS;
use crate::faults::FAULTS;
use crate::lookup::anchor;
use std::fmt::Write as _;

const HEAD: &str = "\
# Findings: all classes

Generated from `crates/findings` by `cargo run -p ncclscope-findings --example findings-docs`. JSON
has the code as `class` and the name as `name`. The [watchdog](hang.md) reports what one rank can
see, [diagnose](diagnose.md) compares all ranks of a job that hangs, and
[stragglers](stragglers.md) those of a slow job. A finding is confirmed unless its conditions say
suspect. `ncclscope VERB RUN` shows more.

";

const FAULTS_HEAD: &str = "
# Known faults of NCCL

`ncclscope doctor` names the faults of the NCCL that it finds. `diagnose` names a similar one under
\"or\", as another possible cause.

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
    writeln!(out, "| code | name | what is wrong | reported by | verb |")?;
    writeln!(out, "| --- | --- | --- | --- | --- |")?;
    for class in FindingClass::ALL {
        let link = format!("[{}](#{})", class.name(), anchor(class));
        let [code, title, verb] = [class.code(), class.predicate(true), class.verb()];
        writeln!(out, "| {code} | {link} | {title} | {} | `{verb}` |", tools(class))?;
    }
    for (class, conditions) in CONDITIONS {
        writeln!(out, "\n## {class}\n\n{}\n", class.explanation())?;
        if !conditions.is_empty() {
            writeln!(out, "Conditions: {conditions}\n")?;
        }
        writeln!(out, "What to do: {}", class.advice())?;
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
