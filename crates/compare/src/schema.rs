// SPDX-License-Identifier: Apache-2.0
/*!
The comparison: schema `ncclscope.compare/2`.

These structures *are* the JSON, as docs/schemas/compare.schema.json says. Fields may be added, but
never renamed or given another meaning. An unknown value is `null`; times are nanoseconds.
*/

use serde::Serialize;
use std::borrow::Cow;

/// Value of [`Comparison::schema`].
pub const SCHEMA: &str = "ncclscope.compare/2";

/// What became slower or faster from A to B.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Comparison {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// The result in short.
    pub answer: Answer,
    /// The runs that are compared with.
    pub a: Side,
    /// The runs that are compared.
    pub b: Side,
    /// Changed rows by cost, then unknown rows, then rows that are the same. Links that are the
    /// same are left out.
    pub rows: Vec<Row>,
    /// Number of links that are the same on both sides.
    pub same_links: usize,
    /// The settings that differ.
    pub config_differences: Vec<ConfigDifference>,
    /// Limits of the comparison, one sentence each.
    pub notes: Vec<String>,
}

/// The result in short.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub enum State {
    /// Something became slower.
    #[serde(rename = "SLOWER")]
    Slower,
    /// Something became faster, and nothing slower.
    #[serde(rename = "FASTER")]
    Faster,
    /// Neither; a difference would have been found.
    #[serde(rename = "SAME")]
    Same,
    /// Neither, but a difference may be hidden.
    #[serde(rename = "UNKNOWN")]
    Unknown,
}

impl State {
    /// The first word of an answer.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            State::Slower => "SLOWER",
            State::Faster => "FASTER",
            State::Same => "SAME",
            State::Unknown => "CANNOT TELL",
        }
    }
}

/// The answer: the first lines of the output.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Answer {
    /// The result.
    pub state: State,
    /// Number of slower rows.
    pub slower: usize,
    /// Number of faster rows.
    pub faster: usize,
    /// The largest change among the slower rows, as a share.
    pub worst: Option<f64>,
    /// The result in one sentence.
    pub what: String,
    /// Cost of the change; `null` if nothing changed, or no step is known or comparable.
    pub cost: Option<String>,
    /// The first difference in configuration; `null` if configurations cannot be compared.
    pub config: Option<String>,
    /// The command that shows more details.
    pub next: Option<String>,
}

impl Answer {
    /// The answer as at most four lines, each a label and a text; the first label is the state.
    #[must_use]
    pub fn lines(&self) -> Vec<(&'static str, &str)> {
        let more = [("cost", &self.cost), ("config", &self.config), ("next", &self.next)];
        let more = more.into_iter().filter_map(|(label, text)| Some((label, text.as_deref()?)));
        [(self.state.word(), &*self.what)].into_iter().chain(more).collect()
    }
}

/// A side of the comparison, A or B: its runs.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Side {
    /// The names of its runs.
    pub runs: Vec<String>,
    /// The names of the runs that hang.
    pub hung: Vec<String>,
    /// The filters of its saved reports that cover only a part of a run, each once.
    pub filters: Vec<String>,
    /// Total number of training steps; 0 if unknown.
    pub steps: usize,
    /// Median duration of a step, ns; `null` if unknown.
    pub step_ns: Option<f64>,
}

/// The kind of a row.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The duration of a training step.
    Step,
    /// The transfer of an operation, from the arrival of the last rank.
    Transfer,
    /// How long a rank waits for later ranks in a step.
    Waiting,
    /// The wire time per byte of a network link.
    Link,
}

/// What a row compares. Fields that do not apply or are unknown are `null`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct RowKey {
    /// What was measured.
    pub kind: Kind,
    /// The role of the communicators.
    pub role: Option<String>,
    /// The function.
    pub func: Option<String>,
    /// The size; for a class of sizes, the smallest in the class.
    pub bytes: Option<u64>,
    /// For a class of sizes: the smallest size above the class.
    pub bytes_below: Option<u64>,
    /// The algorithm; if it changed, both with ` -> ` between them.
    pub algorithm: Option<String>,
    /// The protocol; if it changed, both with ` -> ` between them.
    pub protocol: Option<String>,
    /// Job rank of a link's sender.
    pub src: Option<u32>,
    /// Job rank of a link's receiver.
    pub dst: Option<u32>,
}

/// The verdict of a row.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// B is slower.
    Slower,
    /// B is faster.
    Faster,
    /// Not enough is known.
    Unknown,
    /// The difference is below the limit.
    Same,
}

/// One measure on both sides.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Row {
    /// What the row compares.
    pub key: RowKey,
    /// Median of A: ns, for links ns per byte.
    pub a: Option<f64>,
    /// The median of B.
    pub b: Option<f64>,
    /// True if `a` is a lower bound because ends are not recorded. Such values are not compared:
    /// the verdict is `unknown`.
    pub a_is_least: bool,
    /// True if `b` is a lower bound.
    pub b_is_least: bool,
    /// Hodges-Lehmann estimate of B divided by A; `null` if a value is 0.
    pub ratio: Option<f64>,
    /// The 95 % interval of `ratio`.
    pub interval: Option<[f64; 2]>,
    /// The value that the limits apply to: `ratio` - 1; for waiting, the difference as a share of a
    /// step.
    pub change: Option<f64>,
    /// The interval of `change`.
    pub change_interval: Option<[f64; 2]>,
    /// Two-sided p value of the rank test.
    pub p: Option<f64>,
    /// `p` adjusted for the number of rows of its kind.
    pub p_adjusted: Option<f64>,
    /// Whether it is slower, faster, the same or unknown.
    pub verdict: Verdict,
    /// Why the verdict is `unknown`.
    pub reason: Option<Cow<'static, str>>,
    /// However far apart its runs are, so few prove nothing among so many rows.
    #[serde(skip)]
    pub lacks_runs: bool,
    /// Cost of the difference; `null` for links, or if no step is known, or if only some runs mark
    /// their steps.
    pub cost: Option<Cost>,
    /// The largest cost or gain within the interval, as a share of a step of A; `None` like `cost`.
    #[serde(skip)]
    pub most_share: Option<f64>,
    /// The units of the comparison.
    pub units: Units,
}

/// What a difference costs each rank.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Cost {
    /// Per step, ns; negative if time is gained.
    pub ns_per_step: f64,
    /// As a share of a step of A.
    pub step_share: f64,
}

/// The observations of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Units {
    /// `block` (of steps), or `run`.
    pub of: &'static str,
    /// Number of units of A.
    pub a: usize,
    /// Number of units of B.
    pub b: usize,
}

/// A setting that differs.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
pub struct ConfigDifference {
    /// Name of the setting.
    pub what: String,
    /// Its values in A.
    pub a: String,
    /// Its values in B.
    pub b: String,
}
