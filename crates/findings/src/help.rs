// SPDX-License-Identifier: Apache-2.0
//! Fields that the findings of all tools share: where the ranks run, since when, the cost, and the
//! evidence.

use crate::class::FindingClass;
use serde_core::ser::{Serialize, SerializeMap, SerializeStruct, Serializer};
use std::fmt;

/// Hours of a day.
const HOURS: f64 = 24.0;

/// Where a rank runs. Unknown fields are `null` in JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankLocation {
    /// Rank in the job.
    pub rank: u32,
    /// Host name.
    pub host: Option<String>,
    /// Process id.
    pub pid: Option<u32>,
    /// Index of the process among the job's processes on its host.
    pub local_rank: Option<u64>,
    /// CUDA device, as the process counts them.
    pub device: Option<u64>,
}

/// `rank 10 (node-0002, local rank 2, GPU 2, pid 10640)`.
impl fmt::Display for RankLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let facts = [
            self.host.clone(),
            self.local_rank.map(|rank| format!("local rank {rank}")),
            self.device.map(|device| format!("GPU {device}")),
            self.pid.map(|pid| format!("pid {pid}")),
        ];
        let facts: Vec<String> = facts.into_iter().flatten().collect();
        match facts.is_empty() {
            true => write!(f, "rank {} (no readable recording)", self.rank),
            false => write!(f, "rank {} ({})", self.rank, facts.join(", ")),
        }
    }
}

impl Serialize for RankLocation {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut fields = to.serialize_struct("RankLocation", 5)?;
        fields.serialize_field("rank", &self.rank)?;
        fields.serialize_field("host", &self.host)?;
        fields.serialize_field("pid", &self.pid)?;
        fields.serialize_field("local_rank", &self.local_rank)?;
        fields.serialize_field("device", &self.device)?;
        fields.end()
    }
}

/// What a finding costs the job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// The share of a step's time that is lost: 1 if the job hangs.
    pub step_share: f64,
    /// GPU-hours that the job loses a day, all its GPUs together.
    pub gpu_hours_per_day: f64,
    /// Whether the cost is an upper bound, as for a slow link: the job may do other work meanwhile.
    pub is_most: bool,
    /// The interval in which the share lies with a probability of 95 %; `None` if unknown.
    pub interval: Option<[f64; 2]>,
}

impl Cost {
    /// The cost in a job with `gpus` GPUs; `None` if `step_share` is 0.
    #[must_use]
    pub fn of(step_share: f64, gpus: f64) -> Option<Cost> {
        let gpu_hours_per_day = HOURS * gpus * step_share;
        let (is_most, interval) = (false, None);
        (step_share > 0.0).then_some(Cost { step_share, gpu_hours_per_day, is_most, interval })
    }

    /// A cost in a job with `gpus` GPUs that may be off by so much; from 0 to all of the step.
    #[must_use]
    pub fn between(step_share: f64, error: f64, gpus: f64) -> Cost {
        let interval = [step_share - error, step_share + error].map(|end| end.clamp(0.0, 1.0));
        let step_share = step_share.clamp(0.0, 1.0);
        let gpu_hours_per_day = HOURS * gpus * step_share;
        Cost { step_share, gpu_hours_per_day, is_most: false, interval: Some(interval) }
    }

    /// A cost that may be as high as `most`, an upper bound.
    #[must_use]
    pub fn up_to(self, most: Cost) -> Cost {
        let low = self.interval.map_or(self.step_share, |[low, _]| low).min(most.step_share);
        Cost { interval: Some([low, most.step_share]), ..most.at_most() }
    }

    /// A cost of which there is a second estimate: its interval holds both.
    #[must_use]
    pub fn or(self, other: Cost) -> Cost {
        let one = other.step_share;
        let both = |[low, high]: [f64; 2]| [low.min(one), high.max(one)];
        Cost { interval: self.interval.map(both), ..self }
    }

    /// What two repairs save together, of which the second one's cost is what it saves after the
    /// first.
    #[must_use]
    pub fn and(self, other: Cost) -> Cost {
        let add = |a: f64, b: f64| (a + b).min(1.0);
        let [one, two] = [self.interval, other.interval];
        let interval = one.zip(two).map(|(one, two)| [add(one[0], two[0]), add(one[1], two[1])]);
        Cost {
            step_share: add(self.step_share, other.step_share),
            gpu_hours_per_day: self.gpu_hours_per_day + other.gpu_hours_per_day,
            is_most: self.is_most || other.is_most,
            interval,
        }
    }

    /// The same cost, marked as an upper bound.
    #[must_use]
    pub fn at_most(self) -> Cost {
        Cost { is_most: true, ..self }
    }
}

/// `23.8 % of each step (22.7 to 24.9 %): 92 GPU-hours a day`, with `at most` in front if it is an
/// upper bound.
impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let most = if self.is_most { "at most " } else { "" };
        match self.step_share < 1.0 {
            true => write!(f, "{most}{:.1} % of each step", 100.0 * self.step_share)?,
            false => write!(f, "{most}all of the job")?,
        }
        if let Some([low, high]) = self.interval {
            write!(f, " ({:.1} to {:.1} %)", 100.0 * low, 100.0 * high)?;
        }
        write!(f, ": {:.0} GPU-hours a day", self.gpu_hours_per_day)
    }
}

impl Serialize for Cost {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut fields = to.serialize_struct("Cost", 4)?;
        fields.serialize_field("step_share", &self.step_share)?;
        fields.serialize_field("gpu_hours_per_day", &self.gpu_hours_per_day)?;
        fields.serialize_field("is_most", &self.is_most)?;
        fields.serialize_field("interval", &self.interval)?;
        fields.end()
    }
}

/// The ranks of a finding, its begin and its cost: the fields `where`, `since` and `cost` of the
/// object that they are flattened into.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Help {
    /// Where the ranks at fault run: the first [`Help::MOST`] of them.
    pub places: Vec<RankLocation>,
    /// Since when, RFC 3339 in UTC; `None` if unknown.
    pub since: Option<String>,
    /// What it costs; `None` if unknown.
    pub cost: Option<Cost>,
}

impl Help {
    /// Most locations that a finding lists; `root_ranks` has all ranks.
    pub const MOST: usize = 64;
}

impl Serialize for Help {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut fields = to.serialize_struct("Help", 3)?;
        fields.serialize_field("where", &self.places)?;
        fields.serialize_field("since", &self.since)?;
        fields.serialize_field("cost", &self.cost)?;
        fields.end()
    }
}

/// A communicator: the fields `comm` and `comm_name`, also of an object that it is flattened into.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct CommId {
    /// Its hash, or another identifier if the input has no hash.
    pub comm: String,
    /// The name that the application gave it.
    pub name: Option<String>,
}

impl Serialize for CommId {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut fields = to.serialize_struct("CommId", 2)?;
        fields.serialize_field("comm", &self.comm)?;
        fields.serialize_field("comm_name", &self.name)?;
        fields.end()
    }
}

/// One line of evidence.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Evidence {
    /// The code of the class whose rule used it.
    pub rule: &'static str,
    /// The rank that it is about.
    pub rank: Option<u32>,
    /// The rank at the other end of the transfer.
    pub peer: Option<u32>,
    /// The channel.
    pub channel: Option<u8>,
    /// The measured values, by names that end in the unit.
    pub figures: Vec<(&'static str, f64)>,
    /// The line, with its numbers.
    pub text: String,
}

impl Evidence {
    /// A line about a rank, without figures.
    #[must_use]
    pub fn of(rule: FindingClass, rank: u32, text: String) -> Evidence {
        Evidence { rank: Some(rank), ..Evidence::about(rule, text) }
    }

    /// A line about no rank in particular, without figures.
    #[must_use]
    pub fn about(rule: FindingClass, text: String) -> Evidence {
        Evidence { rule: rule.code(), text, ..Evidence::default() }
    }

    /// Adds figures to the line.
    #[must_use]
    pub fn with(mut self, figures: impl IntoIterator<Item = (&'static str, f64)>) -> Evidence {
        self.figures.extend(figures);
        self
    }
}

/// Leaves out unknown fields.
impl Serialize for Evidence {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let Evidence { rule, rank, peer, channel, figures, text } = self;
        let mut fields = to.serialize_map(None)?;
        fields.serialize_entry("rule", rule)?;
        let numbers = [("rank", *rank), ("peer", *peer), ("channel", channel.map(u32::from))];
        for (name, number) in numbers {
            if let Some(number) = number {
                fields.serialize_entry(name, &number)?;
            }
        }
        if !figures.is_empty() {
            fields.serialize_entry("figures", &Figures(figures))?;
        }
        fields.serialize_entry("text", text)?;
        fields.end()
    }
}

struct Figures<'a>(&'a [(&'static str, f64)]);

impl Serialize for Figures<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.0.iter().copied())
    }
}
