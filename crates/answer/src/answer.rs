// SPDX-License-Identifier: Apache-2.0
//! The answer of a report, and its text of at most five lines.

use crate::cause::{Cause, Found, State, causes};
use crate::extent::{cost, since};
use crate::locations::RankLocations;
use crate::sentences::{self, ranges, some};
use ncclscope_findings::{Cost, Help, RankLocation};
use serde::Serialize;
use std::collections::BTreeSet;

/// Maximum number of ranks that are named with their locations. Of more ranks, only the numbers and
/// hosts are named.
const NAMED: usize = 2;

/// The answer, as `answer` in the schema `ncclscope.report/3`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Answer {
    /// Whether the job hangs, is slow or is fine.
    pub state: State,
    /// Time since when no rank advances (hung) or since when the worst finding slows the job down
    /// (slow), in whole seconds of UTC (RFC 3339). `None` if unknown, or if the job is fine.
    pub since: Option<String>,
    /// The codes of the causes' classes, worst first.
    pub classes: Vec<&'static str>,
    /// The job ranks at fault, ascending.
    pub root_ranks: Vec<u32>,
    /// Locations of the first 64 root ranks.
    #[serde(rename = "where")]
    pub places: Vec<RankLocation>,
    /// The cost of the hang or slowdown; `None` if unknown.
    pub cost: Option<Cost>,
    /// The reason in one sentence.
    pub why: String,
    /// Commands that show more details.
    pub next: Vec<String>,
    #[serde(skip)]
    causes: Vec<Cause>,
    /// Text of the first line, after the state.
    #[serde(skip)]
    headline: String,
}

impl Answer {
    /// The answer from the analyses' results; `input` is the run as the user's commands name it.
    #[must_use]
    pub fn of(found: Found<'_>, input: &str) -> Answer {
        let (state, causes) = causes(found);
        let places = RankLocations::of(found.report);
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

    /// The answer when a filter leaves out recordings: the state is unknown. `input` is the run as
    /// the user's commands name it.
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

    /// The answer as at most five lines, each a label and a text; the first label is the state.
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

    /// The ranks at fault; with their locations if they are at most [`NAMED`].
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
                let is_worst = |place: &&RankLocation| {
                    self.causes.first().is_some_and(|it| it.root_ranks.contains(&place.rank))
                };
                let (worst, others): (Vec<&RankLocation>, Vec<&RankLocation>) =
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
