// SPDX-License-Identifier: Apache-2.0
//! `ncclscope doctor`: finds problems before the job starts.

use crate::args::{DoctorArgs, Format};
use crate::doctor::{Check, Status, checks};
use crate::io::output::{self, in_a_line};
use crate::io::terminal;
use crate::run_input::input::host_name;
use ncclscope_console::failure::{ENVIRONMENT, Failure};
use ncclscope_console::printable::{Colour, lines_of};
use serde::Serialize;
use std::io::Write;
use std::process::ExitCode;

#[derive(Serialize)]
struct Checks<'a> {
    schema: &'static str,
    checks: &'a [Check],
}

pub(crate) fn run(args: &DoctorArgs) -> Result<ExitCode, Failure> {
    let checks = checks(args);
    match args.format {
        Format::Json => {
            output::json(&Checks { schema: "ncclscope.doctor/1", checks: &checks })?;
        }
        Format::Text if args.quiet => print_quietly(&checks)?,
        Format::Text => print(&checks)?,
    }
    let has_failed = checks.iter().any(|check| check.status == Status::Fail);
    Ok(if has_failed { ExitCode::from(ENVIRONMENT) } else { ExitCode::SUCCESS })
}

/// One line for each check that is not well, as several hosts print them at once.
fn print_quietly(checks: &[Check]) -> std::io::Result<()> {
    let mut out = output::screen();
    let host = host_name();
    let bad = checks.iter().filter(|check| check.status != Status::Ok);
    for Check { name, status, detail, advice } in bad {
        let word = if *status == Status::Fail { "FAIL" } else { "warn" };
        let advice = advice.as_ref().map_or_else(String::new, |advice| format!(" -> {advice}"));
        writeln!(out, "{host}: {word} {name}: {}", in_a_line(&format!("{detail}{advice}")))?;
    }
    out.flush()
}

fn print(checks: &[Check]) -> std::io::Result<()> {
    let has_colour = terminal::has_colour();
    let columns = terminal::width().unwrap_or(usize::MAX);
    let width = checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    let mut out = output::screen();
    for Check { name, status, detail, advice } in checks {
        let (word, colour) = match status {
            Status::Ok => ("ok  ", Colour::Green),
            Status::Warn => ("warn", Colour::Yellow),
            Status::Fail => ("FAIL", Colour::Red),
        };
        let name = format!("  {name:width$}  ");
        let indent = word.len() + name.len();
        let word = if has_colour { colour.paint(word) } else { word.to_owned() };
        let mut write = |first: &str, indent, text: &str| -> std::io::Result<()> {
            let lines = lines_of((first, indent), indent, text, columns);
            lines.iter().try_for_each(|line| writeln!(out, "{line}"))
        };
        write(&format!("{word}{name}"), indent, detail)?;
        if let Some(advice) = advice {
            let arrow = format!("{:indent$}-> ", "");
            write(&arrow, arrow.len(), advice)?;
        }
    }
    out.flush()
}
