// SPDX-License-Identifier: Apache-2.0
//! The answer, and its at most five lines.

use crate::cause::{Cause, Found, State, causes};
use crate::extent::{cost, since};
use crate::place::Places;
use crate::sentences::{self, ranges, some};
use ncclscope_findings::{Cost, Help, Place};
use serde::Serialize;
use std::collections::BTreeSet;

/// How many ranks are named with their places; of more only numbers and hosts are.
const NAMED: usize = 2;

/// The answer, as `answer` in the schema `ncclscope.report/3`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Answer {
    /// Whether it hangs, is slow or is fine.
    pub state: State,
    /// Since when nothing advances, or the worst finding slows it down, in whole seconds of UTC
    /// (RFC 3339); `None` if that is unknown, and of a job that is fine.
    pub since: Option<String>,
    /// The codes of the causes' classes, worst first.
    pub classes: Vec<&'static str>,
    /// The ranks at fault, ascending: ranks in the job.
    pub root_ranks: Vec<u32>,
    /// Where the first 64 of them run.
    #[serde(rename = "where")]
    pub places: Vec<Place>,
    /// What it costs; `None` where that is unknown.
    pub cost: Option<Cost>,
    /// Why, in one sentence.
    pub why: String,
    /// The commands that say more.
    pub next: Vec<String>,
    #[serde(skip)]
    causes: Vec<Cause>,
    /// The first line after the state.
    #[serde(skip)]
    headline: String,
}

impl Answer {
    /// The answer from what was found; `input` is the run as a command names it.
    #[must_use]
    pub fn of(found: Found<'_>, input: &str) -> Answer {
        let (state, causes) = causes(found);
        let places = Places::of(found.report);
        let mut root_ranks: Vec<u32> =
            causes.iter().flat_map(|cause| cause.root_ranks.iter().copied()).collect();
        root_ranks.sort_unstable();
        root_ranks.dedup();
        let mut classes: Vec<&str> = causes.iter().map(|cause| cause.class.code()).collect();
        classes.dedup();
        Answer {
            state,
            since: since(state, found),
            classes,
            places: root_ranks.iter().take(Help::MOST).map(|&rank| places.of_rank(rank)).collect(),
            root_ranks,
            cost: cost(state, found),
            why: sentences::why(state, &causes, found),
            next: next(state, input),
            headline: sentences::headline(state, found),
            causes,
        }
    }

    /// The answer where a filter leaves out recordings: there is none. `input` is the run as a
    /// command names it.
    #[must_use]
    pub fn of_a_part(input: &str) -> Answer {
        let state = State::Unknown;
        Answer {
            state,
            since: None,
            classes: Vec::new(),
            root_ranks: Vec::new(),
            places: Vec::new(),
            cost: None,
            why: "only a run as a whole shows whether a rank holds up others".into(),
            next: vec![format!("ncclscope report {input}")],
            causes: Vec::new(),
            headline: "a filter leaves out recordings, and these are not judged alone".into(),
        }
    }

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
            lines.push(("cost", cost.to_string()));
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
            0 => self.causes.first().map_or("all ranks alike", |it| it.class.no_rank()).into(),
            few if few <= NAMED => {
                let is_worst = |place: &&Place| {
                    self.causes.first().is_some_and(|it| it.root_ranks.contains(&place.rank))
                };
                let (worst, others): (Vec<&Place>, Vec<&Place>) =
                    self.places.iter().partition(is_worst);
                let worst = worst.into_iter().map(ToString::to_string);
                let others = others.into_iter().map(|place| format!("also {place}"));
                worst.chain(others).collect::<Vec<_>>().join("; ")
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

fn next(state: State, input: &str) -> Vec<String> {
    let verbs: &[&str] = match state {
        State::Hung => &["diagnose"],
        State::Slow => &["stragglers"],
        State::Fine => &["report --full", "view"],
        State::Unknown => &["report --full"],
    };
    verbs.iter().map(|verb| format!("ncclscope {verb} {input}")).collect()
}
