// SPDX-License-Identifier: Apache-2.0
//! The findings: causes of a hang, then what slows the job down, each with its evidence and what to
//! do.

use crate::{Content, Section};
use maud::{Markup, html};
use ncclscope_diagnose::Verdict;
use ncclscope_findings::{Confidence, FindingClass};
use ncclscope_stragglers::finding::Finding;

/// The most findings, lines of evidence of one, and remarks.
const FINDINGS: usize = 40;
const LINES: usize = 24;

pub(crate) fn section(content: Content<'_>) -> Section {
    let Content { hang, slow, .. } = content;
    let all = hang.verdicts.len() + slow.summary.len();
    let cards: Vec<Markup> = hang
        .verdicts
        .iter()
        .map(verdict)
        .chain(slow.summary.iter().map(finding))
        .take(FINDINGS)
        .collect();
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

fn verdict(verdict: &Verdict) -> Markup {
    let mut lines: Vec<&str> = verdict.evidence.iter().map(|line| &*line.text).collect();
    let others: Vec<String> =
        verdict.alternatives.iter().map(|other| format!("it may also be: {other}")).collect();
    lines.extend(others.iter().map(String::as_str));
    card(verdict.class, verdict.confidence, &verdict.title, &lines)
}

fn finding(finding: &Finding) -> Markup {
    let lines: Vec<&str> = finding.evidence.iter().map(|line| &*line.text).collect();
    card(finding.class, finding.confidence, &finding.title, &lines)
}

fn card(class: FindingClass, confidence: Confidence, title: &str, lines: &[&str]) -> Markup {
    let sure = format!("{confidence:?}").to_lowercase();
    html! {
        article.finding {
            h3 { span.code { (class.code()) } " " (title) }
            p.tags { (class.name()) " · " (sure) }
            p { strong { "Next: " } (code(class.advice())) }
            @if !lines.is_empty() {
                details {
                    summary { "Evidence (" (lines.len()) ")" }
                    (list(lines))
                }
            }
        }
    }
}

/// A sentence of ours, with what stands between backticks as code.
fn code(text: &str) -> Markup {
    html! {
        @for (at, part) in text.split('`').enumerate() {
            @if at % 2 == 1 { code { (part) } } @else { (part) }
        }
    }
}

/// A list of sentences, which says what it leaves out.
pub(crate) fn list(lines: &[&str]) -> Markup {
    html! {
        ul {
            @for line in lines.iter().take(LINES) { li { (line) } }
            @if lines.len() > LINES { li { "… and " (lines.len() - LINES) " more" } }
        }
    }
}
