// SPDX-License-Identifier: Apache-2.0
//! The verdict about processes of a crashed job that ended before all others.

use crate::ending::{FirstEnd, Others, RankExit, exits_text};
use crate::gone;
use crate::job::{Job, ProcessStatus};
use crate::words;
use ncclscope_findings::{Doubt, Evidence, Finding, FindingClass, How};
use std::collections::HashSet;

/// A verdict about the processes that ended first, if the job crashed and their end explains the
/// `others`: no rank waits, or only since they may have ended. It then replaces these.
pub(crate) fn verdict(job: &Job, others: &[Finding], waiting: &HashSet<u32>) -> Option<Finding> {
    let ending = job.ending.as_ref().filter(|ending| ending.is_crash())?;
    let first = ending.first.as_ref()?;
    let class = FindingClass::ProcessGone;
    // Calls that differ need no wait as evidence.
    let is_explained = |verdict: &Finding| {
        use FindingClass::{CallMismatch, P2pMismatch, ProcessGone};
        let is_known = matches!(verdict.class, CallMismatch | P2pMismatch | ProcessGone);
        !is_known && verdict.age_ns.is_some_and(|age| age < job.ended_first_ns)
    };
    if !others.iter().all(is_explained) {
        return None;
    }
    let is_of_first = |process: &u32| first.ranks.contains(&job.rank(*process));
    let count = u32::try_from(job.processes.len()).unwrap_or(u32::MAX);
    let processes: Vec<u32> = (0..count).filter(is_of_first).collect();
    let who = match processes.as_slice() {
        [one] => words::rank(job, *one),
        many => words::placed_ranks(job, &first.ranks, many),
    };
    let of_first = |exit: &&RankExit| first.ranks.contains(&exit.rank);
    let exits: Vec<RankExit> = ending.exits.iter().filter(of_first).copied().collect();
    let before = first.before_ns.map_or_else(String::new, |ns| {
        format!(" {} or more before {}", words::duration(ns), first.others.text())
    });
    let what = match first.is_broken_off {
        true => "the recording breaks off",
        false => "the recording was closed",
    };
    let mut evidence = vec![Evidence {
        rank: first.ranks.first().copied(),
        ..Evidence::about(class, format!("{who}: {what}{before}"))
    }];
    evidence.extend(exits_text(&exits).map(|text| Evidence::about(class, text)));
    let command = ending.command.filter(|command| command.has_failed());
    evidence.extend(command.map(|command| Evidence::about(class, command.text())));
    let ended = gone::advice(job, ProcessStatus::Ended).unwrap_or_default();
    let advice = if first.is_broken_off { gone::ENDED } else { ended };
    Some(Finding {
        how: How::EndedFirst {
            is_broken_off: first.is_broken_off,
            is_error: exits.len() == first.ranks.len(),
            is_alone: first.others == Others::EndedWell,
        },
        advice,
        age_ns: others.iter().filter_map(|verdict| verdict.age_ns).max(),
        called_ns: Some(first.end_ns),
        victims: waiting.iter().filter(|process| !processes.contains(process)).count(),
        evidence,
        doubts: doubt(first).into_iter().collect(),
        ..Finding::new(class, first.ranks.clone())
    })
}

/// Why another end may be the cause; `None` if nothing else shows.
const fn doubt(first: &FirstEnd) -> Option<Doubt> {
    match (first.others, first.is_broken_off) {
        (Others::EndedWell, true) => Some(Doubt::ExitUnseen),
        (Others::EndedWell, false) | (Others::All | Others::OwnHost, true) => None,
        // Which error came first only times show, and which end was the cause.
        _ => Some(Doubt::EndsAlike),
    }
}
