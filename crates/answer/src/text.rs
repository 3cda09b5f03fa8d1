// SPDX-License-Identifier: Apache-2.0
//! The answer as at most five lines.

use crate::{Answer, Cause, Found, State, age_ns, doubt, gpus, is_mismatch_without_wait, since};
use ncclscope_findings::Confidence;
use ncclscope_operations::human::{self, count, duration, if_one, list_of_ranges};
use ncclscope_operations::stats::to_f64;
use ncclscope_stragglers::Unjudged;
use std::collections::BTreeSet;

/// How many ranks are named with their places; of more only numbers and hosts are.
const NAMED: usize = 2;
/// How many ranges of ranks, hosts or further causes are named.
const LISTED: usize = 4;

impl Answer {
    /// At most five lines, each a label and a text: the state first.
    #[must_use]
    pub fn lines(&self) -> Vec<(&'static str, String)> {
        let mut lines = vec![(self.state.word(), self.headline.clone())];
        if !self.causes.is_empty() {
            lines.push(("who", self.who()));
        }
        if !self.why.is_empty() {
            lines.push(("why", self.why.clone()));
        }
        if let Some(cost) = self.cost {
            let hours = cost.gpu_hours_per_day;
            lines.push(match self.state {
                State::Hung => ("cost", format!("all of the job: {hours:.0} GPU-hours a day")),
                _ => {
                    let share = 100.0 * cost.step_share;
                    ("cost", format!("{share:.1} % of each step: {hours:.0} GPU-hours a day"))
                }
            });
        }
        if let Some(next) = self.next.first() {
            lines.push(("next", next.clone()));
        }
        lines
    }

    /// The ranks at fault, with their places where they are few.
    fn who(&self) -> String {
        if let [Cause { edge: Some([src, dst]), root_ranks, .. }] = &self.causes[..]
            && root_ranks.len() > 1
        {
            let place = |rank: &u32| {
                let known = self.places.iter().find(|place| place.rank == *rank);
                known.map_or_else(|| format!("rank {rank}"), ToString::to_string)
            };
            return format!("the link from {} to {}", place(src), place(dst));
        }
        match self.root_ranks.len() {
            0 => "no rank in particular".into(),
            few if few <= NAMED => {
                let places: Vec<String> = self.places.iter().map(ToString::to_string).collect();
                places.join("; ")
            }
            _ => {
                let hosts: BTreeSet<&str> =
                    self.places.iter().filter_map(|place| place.host.as_deref()).collect();
                let at = if hosts.is_empty() { String::new() } else { " on ".to_owned() };
                format!("ranks {}{at}{}", ranges(&self.root_ranks), some(&hosts))
            }
        }
    }
}

impl State {
    /// As the first word of a report.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            State::Hung => "HUNG",
            State::Slow => "SLOW",
            State::Fine => "FINE",
            State::Unknown => "CANNOT TELL",
        }
    }
}

/// What the first line says after the state.
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
            let steps: Vec<f64> = slow.steps.iter().map(|step| step.duration_ms()).collect();
            let mean = steps.iter().sum::<f64>() / to_f64(steps.len().max(1) as u64);
            let step = match steps.is_empty() {
                true => String::new(),
                false => format!("; a step takes {}", duration(mean * 1e6)),
            };
            let advance = if_one(hang.ranks, "advances", "advance");
            let them = if_one(hang.ranks, "it", "them");
            let ranks = count(hang.ranks, "rank");
            let since = since(state, found).map(|since| {
                let is_first = slow.findings.first().is_some_and(|first| first.is_from_first_step);
                let first = if is_first { ", from the first recorded step on" } else { "" };
                format!("since {since}{first}: ")
            });
            let since = since.unwrap_or_default();
            format!("{since}{ranks} {advance}, and something holds {them} up{step}")
        }
        State::Fine => {
            let gpus = gpus(report);
            let (ranks, them) = (count(gpus, "rank"), if_one(gpus, "it", "them"));
            let unjudged = unjudged(slow.unjudged);
            let link = if slow.unjudged.links == 0 { ", link" } else { "" };
            format!("{ranks}: nothing hangs, and no rank{link} or GPU slows {them} down{unjudged}")
        }
        State::Unknown if is_mismatch_without_wait(hang) => {
            "no rank waits, and ranks made different calls: results may be wrong".into()
        }
        State::Unknown => {
            "nothing hangs in what was recorded; the recordings do not show more".into()
        }
    }
}

/// What could be slow without having been found, as the end of a line.
fn unjudged(Unjudged { links, node_communicators }: Unjudged) -> String {
    let links = (links != 0).then(|| count(links, "link"));
    let inside = (node_communicators != 0)
        .then(|| format!("{} within nodes", count(node_communicators, "communicator")));
    let all = links.into_iter().chain(inside);
    match all.collect::<Vec<_>>().join(", ") {
        none if none.is_empty() => none,
        some => format!("; not judged, because too few are alike: {some}"),
    }
}

/// Why, in one sentence.
pub(crate) fn why(state: State, causes: &[Cause], found: Found<'_>) -> String {
    let Some(first) = causes.first() else {
        return if state == State::Unknown {
            doubt(found).unwrap_or_default()
        } else {
            String::new()
        };
    };
    let sure = |cause: &Cause| match cause.confidence {
        Confidence::Confirmed => "confirmed",
        Confidence::Suspect => "suspected",
    };
    let factor = first.factor.map_or_else(String::new, |f| format!(", {f:.1}x slower"));
    let mut text = format!("{}, {}{factor}: {}", first.class, sure(first), first.class.title());
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

/// `1-2, 5-8 and 3 more`.
fn ranges(ranks: &[u32]) -> String {
    list_of_ranges(&human::ranges(ranks.iter().copied()), LISTED)
}

/// A few names, or how many there are.
fn some(names: &BTreeSet<&str>) -> String {
    let shown: Vec<&str> = names.iter().copied().take(LISTED).collect();
    match names.len() - shown.len() {
        0 => shown.join(", "),
        more => format!("{} and {}", shown.join(", "), count(more, "more host")),
    }
}
