// SPDX-License-Identifier: Apache-2.0
//! The answer of a report, and its text of at most five lines.

use crate::cause::{Found, State, causes, doubt_of_hang, past};
use crate::extent::{cost, since, used_gpu_hours};
use crate::locations::RankLocations;
use crate::sentences::{self, ranges, some};
use ncclscope_diagnose::{Ending, FirstEnd, RankExit};
use ncclscope_findings::{Confidence, Cost, Finding, FindingClass, Help, RankLocation};
use ncclscope_limits::slow;
use ncclscope_operations::human::{self, if_one};
use serde::{Serialize, Serializer};
use std::collections::BTreeSet;

/// Maximum number of ranks that are named with their locations. Of more ranks, only the numbers and
/// hosts are named.
const NAMED: usize = 2;
/// The answer, as `answer` in the schema `ncclscope.report/3`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Answer {
    /// Whether the job crashed, hangs, is slow or is fine.
    pub state: State,
    /// Time at which the first processes ended (crashed), since when no rank advances (hung) or
    /// since when the worst finding slows the job down (slow), in whole seconds of UTC (RFC 3339).
    /// `None` if unknown, or if the job is fine.
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
    /// GPU-hours that a crashed job had used, all its GPUs together, from the creation of the first
    /// communicator of each; `None` if it did not crash, or not all of its ranks tell.
    pub used_gpu_hours: Option<f64>,
    /// The reason in one sentence.
    pub why: String,
    /// Commands that show more details, or what is to be done before.
    pub next: Vec<String>,
    /// How the job ended; `None` if a process may still run.
    pub ended: Option<Ended>,
    /// What slowed the job down before it crashed or stood still, in one sentence.
    pub past: Option<String>,
    /// The causes, worst first.
    #[serde(serialize_with = "in_short")]
    causes: Vec<Finding>,
    /// Locations of the first 64 root ranks of each cause.
    #[serde(skip)]
    located: Vec<RankLocation>,
    /// Text of the first line, after the state.
    #[serde(skip)]
    headline: String,
    /// Text after the ranks at fault, or in their place if there are none.
    #[serde(skip)]
    more_of_who: String,
}

/// How a job ended.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ended {
    /// The exit code of the command; `None` if it was not recorded.
    pub exit_code: Option<u8>,
    /// The signal that ended the command itself.
    pub signal: Option<u8>,
    /// The processes that ended first.
    pub first: Option<FirstEnd>,
    /// The ranks that exited with an error, the first 64.
    pub exits: Vec<RankExit>,
}

impl Ended {
    fn of(ending: &Ending) -> Ended {
        Ended {
            exit_code: ending.command.map(|command| command.exit_code),
            signal: ending.command.and_then(|command| command.signal),
            first: ending.first.clone(),
            exits: ending.exits.iter().take(Help::MOST).copied().collect(),
        }
    }
}

impl Answer {
    /// The answer from the analyses' results; `input` is the run as the user's commands name it,
    /// and `limit` an option of `diagnose` with which it finds the same hang, or empty.
    #[must_use]
    pub fn of(found: Found<'_>, input: &str, limit: &str) -> Answer {
        let (state, causes) = causes(found);
        let places = RankLocations::of(found.report);
        let mut root_ranks: Vec<u32> =
            causes.iter().flat_map(|cause| cause.blamed().iter().copied()).collect();
        root_ranks.sort_unstable();
        root_ranks.dedup();
        let mut classes: Vec<&str> = causes.iter().map(|cause| cause.class.code()).collect();
        classes.dedup();
        Answer {
            state,
            since: since(state, found),
            classes,
            places: root_ranks.iter().take(Help::MOST).map(|&rank| places.of_rank(rank)).collect(),
            located: located(&causes).into_iter().map(|rank| places.of_rank(rank)).collect(),
            root_ranks,
            cost: cost(state, found),
            used_gpu_hours: used_gpu_hours(state, found.report),
            why: sentences::why(state, &causes, found),
            next: next(state, &causes, found, (input, limit)),
            headline: sentences::headline(state, found),
            ended: found.hang.ending.as_ref().map(Ended::of),
            past: past(state, &causes, found).map(sentences::past),
            more_of_who: sentences::more_of_who(state, &causes, found),
            causes,
        }
    }

    /// The answer when a filter leaves out recordings: the state is unknown. `input` is the run as
    /// the user's commands name it.
    #[must_use]
    pub fn of_a_part(input: &str) -> Answer {
        Answer::unjudged(
            "a filter leaves out recordings, and these are not judged alone",
            "only a run as a whole shows whether a rank holds up others",
            format!("ncclscope report {input}"),
        )
    }

    /// The answer of an input that does not show the state of a job. `headline` follows the state,
    /// `why` is the reason, and `next` the command that shows more, or what is to be done before.
    #[must_use]
    pub fn unjudged(headline: &str, why: &str, next: String) -> Answer {
        Answer {
            state: State::Unknown,
            since: None,
            classes: Vec::new(),
            root_ranks: Vec::new(),
            places: Vec::new(),
            cost: None,
            used_gpu_hours: None,
            why: why.into(),
            next: vec![next],
            causes: Vec::new(),
            located: Vec::new(),
            ended: None,
            past: None,
            more_of_who: String::new(),
            headline: headline.into(),
        }
    }

    /// The answer as at most five lines, each a label and a text; the first label is the state.
    #[must_use]
    pub fn lines(&self) -> Vec<(&'static str, String)> {
        let mut lines = vec![(self.state.word(), self.headline.clone())];
        let who = self.who() + &self.more_of_who;
        let past = self.past.clone().unwrap_or_default();
        let texts = [("who", who), ("why", self.why.clone()), ("past", past)];
        lines.extend(texts.into_iter().filter(|(_, text)| !text.is_empty()));
        if let Some(cost) = self.cost {
            lines.push(("cost", cost.to_string()));
        }
        if let Some(hours) = self.used_gpu_hours.filter(|&hours| hours >= slow::HOURS) {
            lines.push(("cost", format!("the run used {} GPU-hours", human::three(hours))));
        }
        if let Some(next) = self.next.first() {
            lines.push(("next", next.clone()));
        }
        lines
    }

    /// The ranks at fault: those of the worst cause, then the others. If they are at most [`NAMED`]
    /// in all, with their locations.
    fn who(&self) -> String {
        let Some(worst) = self.causes.first() else { return String::new() };
        let of_worst: BTreeSet<u32> = worst.blamed().iter().copied().collect();
        let is_other = |rank: &u32| !of_worst.contains(rank);
        let others: Vec<u32> = self.root_ranks.iter().copied().filter(is_other).collect();
        let place = |rank: &u32| {
            let known = self.located.iter().find(|place| place.rank == *rank);
            known.map_or_else(|| format!("rank {rank}"), ToString::to_string)
        };
        let mut text = match (worst.edge, worst.blamed()) {
            (Some([src, dst]), [_, _, ..]) => {
                format!("the link from {} to {}", place(&src), place(&dst))
            }
            // What is known of them is in the text after this.
            _ if worst.class == FindingClass::NotRecorded => String::new(),
            (_, []) => worst.class.no_rank().into(),
            (_, ranks) if ranks.len() <= NAMED => {
                ranks.iter().map(place).collect::<Vec<_>>().join("; ")
            }
            (_, ranks) => self.listed(ranks),
        };
        match others.len() {
            0 => {}
            _ if self.root_ranks.len() <= NAMED => {
                others.iter().for_each(|rank| text += &format!("; also {}", place(rank)));
            }
            _ => text += &format!("; also {}", self.listed(&others)),
        }
        text
    }

    /// Ranks by their numbers, and the hosts of the first ones.
    fn listed(&self, ranks: &[u32]) -> String {
        let first: BTreeSet<u32> = ranks.iter().copied().collect();
        let is_of = |place: &&RankLocation| first.contains(&place.rank);
        let hosts: BTreeSet<&str> =
            self.located.iter().filter(is_of).filter_map(|place| place.host.as_deref()).collect();
        let at = if hosts.is_empty() { String::new() } else { format!(" on {}", some(&hosts)) };
        format!("{} {}{at}", if_one(ranks.len(), "rank", "ranks"), ranges(ranks))
    }
}

/// The first root ranks of each cause, and the ends of its link.
fn located(causes: &[Finding]) -> BTreeSet<u32> {
    let of = |cause: &Finding| {
        let ranks = cause.blamed().iter().copied().take(Help::MOST);
        ranks.chain(cause.edge.into_iter().flatten()).collect::<Vec<u32>>()
    };
    causes.iter().flat_map(of).collect()
}

fn next(
    state: State,
    causes: &[Finding],
    found: Found<'_>,
    (input, limit): (&str, &str),
) -> Vec<String> {
    if causes.first().is_some_and(|first| first.class == FindingClass::NotRecorded) {
        let missing = sentences::missing_recordings(found.hang);
        return vec![format!("{missing}, then ncclscope report {limit}{input}")];
    }
    let verbs: &[&str] = match state {
        State::Crashed | State::Hung => &["diagnose"],
        State::Slow => &["stragglers"],
        State::Fine => &["report --full", "view"],
        State::Unknown if doubt_of_hang(found).is_none() => &["stragglers --why-not"],
        State::Unknown => &["report --full"],
    };
    let limit = if verbs == ["diagnose"] { limit } else { "" };
    verbs.iter().map(|verb| format!("ncclscope {verb} {limit}{input}")).collect()
}

/// A cause in the JSON of an answer.
#[derive(Serialize)]
struct Cause<'a> {
    class: &'static str,
    name: &'static str,
    confidence: Confidence,
    root_ranks: &'a [u32],
    /// Sending and receiving rank, if the cause is a link.
    edge: Option<[u32; 2]>,
    /// How many times slower it is than the others, if it is slow.
    factor: Option<f64>,
    /// The cause in one sentence.
    text: String,
}

/// The causes without evidence, which `diagnose` and `stragglers` have.
fn in_short<S: Serializer>(causes: &[Finding], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(causes.iter().map(|of| Cause {
        class: of.class.code(),
        name: of.class.name(),
        confidence: of.confidence(),
        root_ranks: of.blamed(),
        edge: of.edge,
        factor: of.factor,
        text: of.sentence(),
    }))
}
