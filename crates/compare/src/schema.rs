// SPDX-License-Identifier: Apache-2.0
/*!
The comparison: schema `ncclscope.compare/2`.

These structures *are* the JSON, as docs/schemas/compare.schema.json says. Fields may be added, but
never renamed or given another meaning. An unknown value is `null`; times are nanoseconds.
*/

use serde::Serialize;

/// Value of [`Comparison::schema`].
pub const SCHEMA: &str = "ncclscope.compare/2";

/// What became slower or faster from A to B.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Comparison {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// The result in short.
    pub answer: Answer,
    /// What was compared with.
    pub a: Side,
    /// What was compared.
    pub b: Side,
    /// What became slower and faster by cost, then what is unknown, then what is the same.
    /// Links that are the same are left out.
    pub rows: Vec<Row>,
    /// Links that are the same on both sides.
    pub same_links: usize,
    /// What is configured differently.
    pub config_differences: Vec<ConfigDifference>,
    /// What limits the comparison, one sentence each.
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
    /// Neither, and a difference would have been found.
    #[serde(rename = "SAME")]
    Same,
    /// Neither, and a difference may be hidden.
    #[serde(rename = "UNKNOWN")]
    Unknown,
}

impl State {
    /// The word that an answer begins with.
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

/// The first lines.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Answer {
    /// The result.
    pub state: State,
    /// Rows that are slower.
    pub slower: usize,
    /// Rows that are faster.
    pub faster: usize,
    /// The largest change among the slower rows, as a share.
    pub worst: Option<f64>,
    /// The result in one sentence.
    pub what: String,
    /// What the change costs; `null` where nothing changed, or no step is known.
    pub cost: Option<String>,
    /// The first difference in configuration; `null` where nothing can be compared.
    pub config: Option<String>,
    /// The command that says more.
    pub next: Option<String>,
}

impl Answer {
    /// The lines that it is shown as, at most four: a label and a text. The first label is the
    /// state.
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
    /// The names of those that hang.
    pub hung: Vec<String>,
    /// Training steps of all of them; 0 if unknown.
    pub steps: usize,
    /// The median step; `null` unknown.
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

/// What a row is of. What does not apply, or is unknown, is `null`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct RowKey {
    /// What was measured.
    pub kind: Kind,
    /// The role of the communicators.
    pub role: Option<String>,
    /// The function.
    pub func: Option<String>,
    /// The size; of a class of sizes, the smallest that belongs to it.
    pub bytes: Option<u64>,
    /// Where `bytes` begins a class of sizes: the smallest that does not belong to it.
    pub bytes_below: Option<u64>,
    /// The algorithm; of a change, both with ` -> ` between them.
    pub algorithm: Option<String>,
    /// The protocol; likewise.
    pub protocol: Option<String>,
    /// The sender of a link, in the job.
    pub src: Option<u32>,
    /// The receiver.
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

/// A measure on both sides.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Row {
    /// What it is of.
    pub key: RowKey,
    /// The median of A: ns, of links ns per byte.
    pub a: Option<f64>,
    /// The median of B.
    pub b: Option<f64>,
    /// Whether `a` is the least that it took, because the ends are not recorded. Such a time is not
    /// compared: the verdict is `unknown`.
    pub a_is_least: bool,
    /// The same of `b`.
    pub b_is_least: bool,
    /// The Hodges-Lehmann estimate of B to A; `null` where a value is 0.
    pub ratio: Option<f64>,
    /// An interval of 95 % for `ratio`.
    pub interval: Option<[f64; 2]>,
    /// What the limits apply to: `ratio` - 1; of waiting the difference as a share of a step.
    pub change: Option<f64>,
    /// The interval of `change`.
    pub change_interval: Option<[f64; 2]>,
    /// Two-sided p value of the rank test.
    pub p: Option<f64>,
    /// The same, adjusted for the number of rows of its kind.
    pub p_adjusted: Option<f64>,
    /// Whether it is slower, faster, the same or unknown.
    pub verdict: Verdict,
    /// Why it is `unknown`.
    pub reason: Option<&'static str>,
    /// What the difference costs; `null` where no step is known, and of links.
    pub cost: Option<Cost>,
    /// What was compared with what.
    pub units: Units,
}

/// What a difference costs a rank.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Cost {
    /// In a step, ns; less than 0 is gained.
    pub ns_per_step: f64,
    /// As a share of a step of A.
    pub step_share: f64,
}

/// The observations of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Units {
    /// `block` (of steps), or `run`.
    pub of: &'static str,
    /// How many A has.
    pub a: usize,
    /// How many B has.
    pub b: usize,
}

/// Something that is configured differently.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
pub struct ConfigDifference {
    /// The setting that differs, by name.
    pub what: String,
    /// Its values in A.
    pub a: String,
    /// Its values in B.
    pub b: String,
}
