// SPDX-License-Identifier: Apache-2.0
//! Rules by name, and what each saw.

use crate::io::output::{self, in_a_line};
use crate::io::terminal::fitted;
use crate::tables::table::{Align, Table};
use ncclscope_console::failure::Failure;
use ncclscope_findings::{AboutRule, Looked, Outcome};
use ncclscope_limits::Limit;
use std::process::ExitCode;

/// Maximum number of parts of the job that are printed: those that came nearest to a finding.
const MOST: usize = 12;
/// The name under which findings that another one explains are noted.
const EXPLAINS: &str = "explains";

/// Prints the rules: what each compares and needs, and their limits.
pub(crate) fn list_rules(all: &[AboutRule], limits: &[&[Limit]]) -> Result<ExitCode, Failure> {
    let mut text = String::new();
    for AboutRule { name, classes, compares, needs } in all {
        let classes: Vec<&str> = classes.iter().map(|class| class.code()).collect();
        text += &format!("{name} ({})\n", classes.join(", "));
        text += &format!("  compares  {compares}\n  needs     {needs}\n");
    }
    text += "\nLIMITS\n";
    let columns = ["limit", "value", "origin", "why", "rules"].map(|name| (name, Align::Left));
    let mut table = Table::new(&columns);
    let is_of = |limit: &Limit| {
        limit.rules.is_empty() || all.iter().any(|rule| limit.rules.contains(&rule.name))
    };
    for limit in limits.iter().flat_map(|part| part.iter()).filter(|limit| is_of(limit)) {
        let Limit { name, value, rules, origin, why } = limit;
        let (number, unit) = value.split_once(' ').unwrap_or((value, ""));
        let value = format!("{} {}", number.replace('_', ""), unit.replace('_', " "));
        let cells = [&name.to_lowercase(), &*value, origin.name(), why, &rules.join(", ")];
        table.row(cells.map(str::to_owned).to_vec());
    }
    text += &(table.lines("  ").join("\n") + "\n");
    output::text(&fitted(&text))?;
    Ok(ExitCode::SUCCESS)
}

/// How many parts of the job each rule looked at, then those that came nearest to a finding.
pub(crate) fn why_not(rules: &[AboutRule], seen: &[Looked]) -> String {
    let outcomes = [Outcome::Found, Outcome::CannotTell, Outcome::Not];
    let right = outcomes.map(|outcome| (outcome.name(), Align::Right));
    let left = [("rule", Align::Left), ("looked at", Align::Right)];
    let mut table = Table::new(&[&left[..], &right].concat());
    let mut names: Vec<&str> = rules.iter().map(|rule| rule.name).collect();
    names.extend(seen.iter().any(|one| one.rule == EXPLAINS).then_some(EXPLAINS));
    for name in names {
        let of: Vec<&Looked> = seen.iter().filter(|one| one.rule == name).collect();
        let number = |outcome| of.iter().filter(|one| one.outcome == outcome).count().to_string();
        let counts = outcomes.map(number);
        table.row([vec![name.to_owned(), of.len().to_string()], counts.to_vec()].concat());
    }
    let mut text = format!("\nWHY NOT MORE\n{}\n", table.lines("  ").join("\n"));
    // What is explained away was a finding.
    let nearness = |one: &Looked| if one.rule == EXPLAINS { f64::INFINITY } else { one.nearness };
    let mut nearest: Vec<&Looked> = seen.iter().collect();
    nearest.sort_by(|a, b| nearness(b).total_cmp(&nearness(a)));
    for Looked { rule, subject, saw, outcome, because, .. } in nearest.into_iter().take(MOST) {
        let because = if because.is_empty() { String::new() } else { format!(": {because}") };
        text += &format!("  {rule}  {}\n", in_a_line(subject));
        text += &format!("      saw    {}\n", in_a_line(saw));
        text += &format!("      {}{}\n", outcome.name(), in_a_line(&because));
    }
    if seen.len() > MOST {
        text += &format!("  and {} more: --format json has all\n", seen.len() - MOST);
    }
    text
}
