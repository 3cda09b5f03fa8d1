// SPDX-License-Identifier: Apache-2.0
//! What is missing: losses with remedies, problems of files, and what the run cannot show.

use crate::findings::list;
use crate::section::Section;
use maud::{Markup, html};
use ncclscope_report::Report;
use ncclscope_report::schema::Lost;
use std::collections::BTreeMap;

pub(crate) fn section(report: &Report) -> Section {
    let part = |title: &str, lines: &[String]| {
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        html! {
            @if !lines.is_empty() { h3 { (title) } (list(&lines)) }
        }
    };
    Section {
        id: "losses",
        title: "Losses and limits",
        about: "What was not recorded, and what this run cannot show.",
        body: html! {
            (lost(&report.lost))
            (part("Problems", &report.problems))
            (part("What this run cannot show", &report.unknowable))
            (part("Notes of the plugin", &report.notes))
        },
    }
}

fn lost(lost: &Lost) -> Markup {
    let kinds = [
        ("events, lane full", &lost.by_kind),
        ("ends of events, lane full", &lost.ends_by_kind),
        ("events without a lane", &lost.without_lane_by_kind),
        ("ProxyOps without a slot", &lost.without_slot_by_kind),
        ("records not written", &lost.unwritten_by_kind),
        ("overwritten by newer ones", &lost.overwritten_by_kind),
    ];
    let rows: Vec<(&str, &str, u64)> =
        kinds.iter().flat_map(|(what, kinds)| rows(what, kinds)).collect();
    html! {
        @if lost.losses.is_empty() { p.absent { "Nothing was lost." } }
        @for loss in &lost.losses {
            p.loss {
                (loss.what)
                @if let Some(advice) = &loss.advice { br; strong { "Next: " } (advice) }
            }
        }
        @if !rows.is_empty() {
            div.scroll tabindex="0" role="group" aria-label="Losses by kind of event" {
                table {
                    thead { tr {
                        th scope="col" { "lost" } th scope="col" { "kind" }
                        th.number scope="col" { "count" }
                    } }
                    tbody {
                        @for (what, kind, n) in rows {
                            tr { td { (what) } td { (kind) } td.number { (n) } }
                        }
                    }
                }
            }
        }
    }
}

fn rows<'a>(
    what: &'a str,
    kinds: &'a BTreeMap<&'static str, u64>,
) -> impl Iterator<Item = (&'a str, &'a str, u64)> {
    kinds.iter().filter(|(_, n)| **n != 0).map(move |(kind, n)| (what, *kind, *n))
}
