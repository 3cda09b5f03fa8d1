// SPDX-License-Identifier: Apache-2.0
//! The sentences of an answer: the headline and the reason.

use crate::cause::{
    Found, State, doubt, doubt_of_hang, is_all_broken_off, is_mismatch_without_wait,
};
use crate::extent::{age_ns, gpus, since};
use ncclscope_diagnose::{CommandEnd, Diagnosis, Ends, FirstEnd, Hidden, Standstill, exits_text};
use ncclscope_findings::{Confidence, Finding, FindingClass};
use ncclscope_operations::human::{self, count, duration, if_one, list_of_ranges};
use ncclscope_operations::stats::to_f64;
use ncclscope_report::Report;
use std::collections::BTreeSet;

/// Maximum number of ranges of ranks, of hosts, or of further causes that are named.
const LISTED: usize = 4;

/// The text of the first line, after the state.
pub(crate) fn headline(state: State, found: Found<'_>) -> String {
    let Found { hang, slow, report } = found;
    match state {
        State::Crashed => crash(found),
        State::Hung => {
            let since = since(state, found).map(|since| format!("since {since}: "));
            let age = age_ns(hang).map(|ns| format!(" for {}", duration(to_f64(ns))));
            format!(
                "{}{} of {} {} in NCCL{}{}{}",
                since.unwrap_or_default(),
                hang.waiting_ranks,
                count(hang.job_ranks, "rank"),
                if_one(hang.waiting_ranks, "waits", "wait"),
                age.unwrap_or_default(),
                end_of_command(hang),
                missing(found)
            )
        }
        State::Slow => {
            let mean = slow.mean_step_ns().map(|ns| format!("; a step takes {}", duration(ns)));
            let step = mean.unwrap_or_default();
            let advance = match &hang.hidden {
                // What comes after that may be a hang.
                Some(Hidden { ns, .. }) => {
                    format!("made progress until {} before the end", duration(to_f64(*ns)))
                }
                None => if_one(hang.ranks, "makes progress", "make progress").to_owned(),
            };
            let they = if_one(hang.ranks, "it", "they");
            let ranks = count(hang.ranks, "rank");
            let since = since(state, found).map(|since| {
                let is_first = slow.findings.first().is_some_and(|first| first.is_from_first_step);
                let first = if is_first { ", from the first recorded step on" } else { "" };
                format!("since {since}{first}: ")
            });
            let since = since.unwrap_or_default();
            let end = end_of_command(hang) + &missing(found);
            format!("{since}{ranks} {advance}, but more slowly than {they} could{step}{end}")
        }
        State::Fine => {
            let gpus = gpus(report);
            let (ranks, them) = (count(gpus, "rank"), if_one(gpus, "it", "them"));
            let more = slow.unjudged.text() + &damage(report) + &end_of_command(hang);
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
        State::Unknown => match hang.standstill {
            Some(standstill) => stands_still(hang, standstill),
            None if is_all_broken_off(hang) => {
                "nothing hangs in what was recorded, and no process ended in order".into()
            }
            None if doubt_of_hang(found).is_none() => {
                "nothing hangs; whether a part of the job is slow is not shown".into()
            }
            None => "nothing hangs in what was recorded; the recordings do not show more".into(),
        },
    }
}

/// That the job stands still, for how long, and how many ranks wait.
fn stands_still(hang: &Diagnosis, Standstill { still_ns, usual_ns }: Standstill) -> String {
    let still = duration(to_f64(still_ns));
    let than = usual_ns
        .filter(|&usual| usual < still_ns)
        .map(|usual| format!(" (the longest pause before: {})", duration(to_f64(usual))));
    let what = match hang.waiting_ranks {
        0 => "no rank has called NCCL, and no operation has ended".to_owned(),
        waiting => {
            let (all, wait) = (count(hang.job_ranks, "rank"), if_one(waiting, "waits", "wait"));
            format!("{waiting} of {all} {wait} in NCCL, and nothing has moved")
        }
    };
    format!("the job stands still: {what} for {still}{}", than.unwrap_or_default())
}

/// The first line about a job that crashed.
fn crash(found: Found<'_>) -> String {
    let hang = found.hang;
    let ranks = count(hang.job_ranks, "rank");
    let since = since(State::Crashed, found).map(|since| format!("at {since}: "));
    let command = hang.ending.as_ref().and_then(|ending| ending.command);
    let exits = hang.ending.as_ref().and_then(|ending| exits_text(&ending.exits));
    let how = match (command.filter(CommandEnd::has_failed), exits, hang.findings.first()) {
        (Some(command), ..) => command.text(),
        (None, Some(exits), _) => exits,
        (None, None, Some(first)) => {
            let known = hang.ending.as_ref().and_then(|ending| ending.first.as_ref());
            let is_before = known.is_some_and(|known| known.before_ns.is_some());
            let how = if is_before { "before" } else { "in another way than" };
            format!("{} of {ranks} ended {how} the other ranks", first.root_ranks.len())
        }
        (None, None, None) => String::new(),
    };
    let waited = age_ns(hang).filter(|_| hang.waiting_ranks != 0).map(|age| {
        let age = duration(to_f64(age));
        format!("; {} of {ranks} waited in NCCL for {age}", hang.waiting_ranks)
    });
    since.unwrap_or_default() + &how + &waited.unwrap_or_default() + &missing(found)
}

/// How many recordings are missing, as the end of a line.
fn missing(found: Found<'_>) -> String {
    let hang = found.hang;
    let or_damaged = if has_damage(found.report) { " or damaged" } else { "" };
    match hang.missing_ranks() {
        0 => String::new(),
        missing => {
            let are = if_one(missing, "is", "are");
            format!("; {missing} of {} recordings {are} missing{or_damaged}", hang.job_ranks)
        }
    }
}

/// `ranks 16-23`, of which there is no recording; `None` if they are not all known.
fn missing_ranks(hang: &Diagnosis) -> Option<String> {
    let missing = hang.missing_ranks();
    let ranks = || format!("{} {}", if_one(missing, "rank", "ranks"), ranges(&hang.silent_ranks));
    (hang.silent_ranks.len() == missing).then(ranks)
}

/// `no recording of ranks 16-23 (8 of 64)`.
fn not_recorded(found: Found<'_>) -> String {
    let hang = found.hang;
    let (missing, of) = (hang.missing_ranks(), hang.job_ranks);
    let readable = if has_damage(found.report) { "readable " } else { "" };
    match missing_ranks(hang) {
        Some(ranks) => format!("no {readable}recording of {ranks} ({missing} of {of})"),
        None => format!("no {readable}recording of {missing} of {}", count(of, "rank")),
    }
}

fn has_damage(report: &Report) -> bool {
    report.processes.iter().any(|process| process.is_damaged)
}

/// `collect the recordings of ranks 16-23`.
pub(crate) fn missing_recordings(hang: &Diagnosis) -> String {
    let ranks = missing_ranks(hang).unwrap_or_else(|| "the other ranks".into());
    format!("collect the recordings of {ranks}")
}

/// How the command ended if not with status 0, as the end of a line about a job that did not crash.
fn end_of_command(hang: &Diagnosis) -> String {
    let command = hang.ending.as_ref().and_then(|ending| ending.command);
    let failed = command.filter(|command| command.exit_code != 0);
    failed.map_or_else(String::new, |command| format!("; {}", command.text()))
}

/// What the line about the ranks at fault says after them, or in their place.
pub(crate) fn more_of_who(state: State, causes: &[Finding], found: Found<'_>) -> String {
    if causes.first().is_some_and(|first| first.class == FindingClass::NotRecorded) {
        return format!("CANNOT TELL who: {}", not_recorded(found));
    }
    let Some(ending) = found.hang.ending.as_ref().filter(|_| state == State::Crashed) else {
        return String::new();
    };
    if causes.is_empty() {
        let spread = duration(to_f64(ending.spread_ns));
        return match exits_text(&ending.exits) {
            _ if ending.ends == Ends::Well => "no rank: all exited with status 0".into(),
            Some(exits) => format!("CANNOT TELL who was first: {exits}, within {spread}"),
            None => format!(
                "CANNOT TELL who: the recordings end within {spread} of one another, which does \
                 not show which rank ended first"
            ),
        };
    }
    let first = ending.first.as_ref();
    let is_told = |first: &&FirstEnd| first.ranks == causes[0].blamed();
    let before = |first: &FirstEnd| {
        let lead = duration(to_f64(first.before_ns?));
        let ended = if_one(first.ranks.len(), "it", "they");
        Some(format!("; {ended} ended {lead} or more before {}", first.others.text()))
    };
    first.filter(is_told).and_then(before).unwrap_or_default()
}

/// What slowed the job down before it crashed.
pub(crate) fn past(cause: &Finding) -> String {
    format!("SLOW before: {} ({}): {}", cause.class, sure(cause), cause.sentence())
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

fn sure(cause: &Finding) -> &'static str {
    match cause.confidence() {
        Confidence::Confirmed => "confirmed",
        Confidence::Suspect => "suspected",
    }
}

/// Why a job crashed that has no finding.
fn why_crashed(hang: &Diagnosis) -> String {
    let is_well = hang.ending.as_ref().is_some_and(|ending| ending.ends == Ends::Well);
    match is_well {
        true => "the command failed, and no process that used NCCL did: look for the first error \
                 in its log"
            .into(),
        false => "no recording shows why: look for the first error in the launcher's log".into(),
    }
}

/// The reason in one sentence.
pub(crate) fn why(state: State, causes: &[Finding], found: Found<'_>) -> String {
    let Some(first) = causes.first() else {
        return match state {
            State::Crashed => Some(why_crashed(found.hang)),
            State::Unknown => doubt(found).map(|doubt| doubt + &damage(found.report)),
            _ => None,
        }
        .unwrap_or_default();
    };
    let factor = first.factor.map_or_else(String::new, |f| format!(", {f:.1}x slower"));
    let mut text = format!("{} ({}{factor}): {}", first.class, sure(first), first.sentence());
    let more = &causes[1..];
    for cause in more.iter().take(LISTED) {
        text += &format!("; also {} ({})", cause.class, sure(cause));
        if !cause.blamed().is_empty() {
            let ranks = if_one(cause.blamed().len(), "rank", "ranks");
            text += &format!(", {ranks} {}", ranges(cause.blamed()));
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
