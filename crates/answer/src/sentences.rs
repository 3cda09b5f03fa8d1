// SPDX-License-Identifier: Apache-2.0
//! The sentences of an answer: the headline and the reason.

use crate::cause::{Cause, Found, State, doubt, is_mismatch_without_wait};
use crate::extent::{age_ns, gpus, since};
use ncclscope_diagnose::Hidden;
use ncclscope_findings::Confidence;
use ncclscope_operations::human::{self, count, duration, if_one, list_of_ranges};
use ncclscope_operations::stats::to_f64;
use ncclscope_report::Report;
use ncclscope_stragglers::SlowReport;
use std::collections::BTreeSet;

/// Maximum number of ranges of ranks, of hosts, or of further causes that are named.
const LISTED: usize = 4;

/// The text of the first line, after the state.
pub(crate) fn headline(state: State, found: Found<'_>) -> String {
    let Found { hang, slow, report } = found;
    match state {
        State::Hung => {
            let since = since(state, found).map(|since| format!("since {since}: "));
            let age = age_ns(hang).map(|ns| format!(" for {}", duration(to_f64(ns))));
            format!(
                "{}{} of {} {} in NCCL{}",
                since.unwrap_or_default(),
                hang.waiting_ranks,
                count(hang.ranks + hang.silent_ranks.len(), "rank"),
                if_one(hang.waiting_ranks, "waits", "wait"),
                age.unwrap_or_default()
            )
        }
        State::Slow => {
            let mean = slow.mean_step_ns().map(|ns| format!("; a step takes {}", duration(ns)));
            let step = mean.unwrap_or_default();
            let advance = match &hang.hidden {
                // What comes after that may be a hang.
                Some(Hidden { ns, .. }) => {
                    format!("advanced until {} before the end", duration(to_f64(*ns)))
                }
                None => if_one(hang.ranks, "advances", "advance").to_owned(),
            };
            let hold = if hang.hidden.is_some() { "held" } else { "holds" };
            let them = if_one(hang.ranks, "it", "them");
            let ranks = count(hang.ranks, "rank");
            let since = since(state, found).map(|since| {
                let is_first = slow.findings.first().is_some_and(|first| first.is_from_first_step);
                let first = if is_first { ", from the first recorded step on" } else { "" };
                format!("since {since}{first}: ")
            });
            let since = since.unwrap_or_default();
            format!("{since}{ranks} {advance}, and something {hold} {them} up{step}")
        }
        State::Fine => {
            let gpus = gpus(report);
            let (ranks, them) = (count(gpus, "rank"), if_one(gpus, "it", "them"));
            let more = slow.unjudged.text() + &damage(report);
            let judged = match (slow.unjudged.links, slow.unjudged.gpus) {
                (0, 0) => "rank, link or GPU",
                (0, _) => "rank or link",
                (_, 0) => "rank or GPU",
                _ => "rank",
            };
            format!("{ranks}: nothing hangs, and no {judged} slows {them} down{more}")
        }
        State::Unknown if is_mismatch_without_wait(hang) => {
            "no rank waits, and ranks made different calls: results may be wrong".into()
        }
        State::Unknown if hang.hidden.is_some() => {
            "whether ranks wait in NCCL is not visible in what was recorded".into()
        }
        State::Unknown => {
            "nothing hangs in what was recorded; the recordings do not show more".into()
        }
    }
}

/// How many recordings are damaged, as the end of a line.
fn damage(report: &Report) -> String {
    let all = report.processes.len();
    match report.processes.iter().filter(|process| process.is_damaged).count() {
        0 => String::new(),
        damaged if damaged == all => "; the recordings are damaged: see PROBLEMS".into(),
        damaged => {
            let are = if_one(damaged, "is", "are");
            format!("; {damaged} of {all} recordings {are} damaged: see PROBLEMS")
        }
    }
}

/// A link that is not judged is named if it is on the wire for this part of the steps.
const BUSY: f64 = 0.25;

/// How much of a step the busiest link takes of those that are not judged, if that is much.
fn busy_link(slow: &SlowReport) -> Option<String> {
    let link = slow.unjudged.busiest.filter(|link| link.step_share >= BUSY)?;
    Some(format!(
        "rank {} to {} is on the wire for {:.0} % of a step, at {} GB/s; too few links are like \
         it to judge that: compare it with a run known to be good",
        link.src,
        link.dst,
        100.0 * link.step_share.min(1.0),
        human::three(link.transfer_gbs)
    ))
}

/// The reason in one sentence.
pub(crate) fn why(state: State, causes: &[Cause], found: Found<'_>) -> String {
    let Some(first) = causes.first() else {
        return match state {
            State::Unknown => doubt(found).map(|doubt| doubt + &damage(found.report)),
            _ => busy_link(found.slow),
        }
        .unwrap_or_default();
    };
    let sure = |cause: &Cause| match cause.confidence {
        Confidence::Confirmed => "confirmed",
        Confidence::Suspect => "suspected",
    };
    let factor = first.factor.map_or_else(String::new, |f| format!(", {f:.1}x slower"));
    let mut text = format!("{}, {}{factor}: {}", first.class, sure(first), first.text);
    let more = &causes[1..];
    for cause in more.iter().take(LISTED) {
        text += &format!("; also {}, {}", cause.class, sure(cause));
        if !cause.root_ranks.is_empty() {
            let ranks = if_one(cause.root_ranks.len(), "rank", "ranks");
            text += &format!(", {ranks} {}", ranges(&cause.root_ranks));
        }
    }
    if more.len() > LISTED {
        text += &format!("; and {} more", more.len() - LISTED);
    }
    text
}

/// Ranges of ranks, such as `1-2, 5-8 and 3 more`.
pub(crate) fn ranges(ranks: &[u32]) -> String {
    list_of_ranges(&human::ranges(ranks.iter().copied()), LISTED)
}

/// The names if they are few, else their number.
pub(crate) fn some(names: &BTreeSet<&str>) -> String {
    let shown: Vec<&str> = names.iter().copied().take(LISTED).collect();
    match names.len() - shown.len() {
        0 => shown.join(", "),
        more => format!("{} and {}", shown.join(", "), count(more, "more host")),
    }
}
