// SPDX-License-Identifier: Apache-2.0
//! The findings: causes of a hang, then what slows the job down, each with its evidence and advice.

use crate::content::Content;
use crate::section::Section;
use maud::{Markup, html};
use ncclscope_findings::{Finding, Help};

/// Maximum number of ranks of a finding whose locations are named.
const PLACES: usize = 4;
/// Maximum number of findings; `LINES` is that of a finding's lines of evidence, and of remarks.
const FINDINGS: usize = 40;
const LINES: usize = 24;

pub(crate) fn section(content: Content<'_>) -> Section {
    let Content { hang, slow, .. } = content;
    let all = hang.findings.len() + slow.findings.len();
    let cards: Vec<Markup> =
        hang.findings.iter().chain(&slow.findings).take(FINDINGS).map(card).collect();
    let remarks: Vec<&str> =
        hang.notes.iter().chain(&slow.quiet).chain(&slow.notes).map(String::as_str).collect();
    Section {
        id: "findings",
        title: "Findings",
        about: "What diagnose and stragglers found, with the evidence for it.",
        body: html! {
            @if cards.is_empty() {
                p.absent { "Neither a cause of a hang nor something slow was found." }
            }
            @for card in &cards { (card) }
            @if all > FINDINGS {
                p.note { (all - FINDINGS) " further findings: " code { "ncclscope diagnose" }
                    " and " code { "ncclscope stragglers" } " print all." }
            }
            @if !remarks.is_empty() {
                details {
                    summary { "Remarks (" (remarks.len()) ")" }
                    (list(&remarks))
                }
            }
        },
    }
}

fn card(finding: &Finding) -> Markup {
    let mut lines: Vec<String> = finding.evidence.iter().map(|line| line.text.clone()).collect();
    lines.extend(finding.alternatives().iter().map(|other| format!("doubt: {other}")));
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let class = finding.class;
    html! {
        article.finding {
            h3 { span.code { (class.code()) } " " (finding.title()) }
            p.tags { (class.name()) " · " (finding.confidence().name()) }
            @for (label, text) in facts(&finding.help) {
                p { strong { (label) ": " } (text) }
            }
            p { strong { "Next: " } (code(finding.advice)) }
            p { strong { "More: " } code { "ncclscope " (class.verb()) " RUN" } }
            @if !lines.is_empty() {
                details {
                    summary { "Evidence (" (lines.len()) ")" }
                    (list(&lines))
                }
            }
        }
    }
}

/// Location, onset and cost of a finding, as far as known.
fn facts(help: &Help) -> Vec<(&'static str, String)> {
    let known = help.places.iter().filter(|place| place.host.is_some());
    let places: Vec<String> = known.take(PLACES).map(ToString::to_string).collect();
    let more = help.places.len().saturating_sub(places.len());
    let mut facts = Vec::new();
    if !places.is_empty() {
        let more = if more == 0 { String::new() } else { format!("; and {more} more") };
        facts.push(("Where", places.join("; ") + &more));
    }
    facts.extend(help.since.clone().map(|since| ("Since", since)));
    facts.extend(help.cost.map(|cost| ("Cost", cost.to_string())));
    facts
}

/// A sentence with the text between backticks as code.
fn code(text: &str) -> Markup {
    html! {
        @for (at, part) in text.split('`').enumerate() {
            @if at % 2 == 1 { code { (part) } } @else { (part) }
        }
    }
}

/// A list of sentences, with a note if some are left out.
pub(crate) fn list(lines: &[&str]) -> Markup {
    html! {
        ul {
            @for line in lines.iter().take(LINES) { li { (line) } }
            @if lines.len() > LINES { li { "… and " (lines.len() - LINES) " more" } }
        }
    }
}
