// SPDX-License-Identifier: Apache-2.0
/*!
A finding, and the part of the job that is slow. All detectors return findings; [`crate::report`]
puts them together.
*/

use crate::model::Worker;
use crate::onset::Onset;
use ncclscope_findings::{CommId, Confidence, Evidence, FindingClass, Help};
use serde::Serialize;

/// The slow part of a job: a worker, a stage or a data-parallel rank, as the input names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct SlowPart {
    /// Rank in the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// Data-parallel rank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dp_rank: Option<u32>,
    /// Pipeline stage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stage: Option<u32>,
}

impl SlowPart {
    /// A worker.
    #[must_use]
    pub fn of(worker: &Worker) -> SlowPart {
        match worker.cell {
            Some(cell) => {
                SlowPart { rank: None, dp_rank: Some(cell.dp_rank), stage: Some(cell.stage) }
            }
            None => SlowPart { rank: Some(worker.rank), ..SlowPart::default() },
        }
    }

    pub(crate) fn stage(stage: u32) -> SlowPart {
        SlowPart { stage: Some(stage), ..SlowPart::default() }
    }

    pub(crate) fn dp_rank(dp_rank: u32) -> SlowPart {
        SlowPart { dp_rank: Some(dp_rank), ..SlowPart::default() }
    }

    /// The part as text.
    #[must_use]
    pub fn name(&self) -> String {
        let words = [("rank", self.rank), ("DP rank", self.dp_rank), ("stage", self.stage)];
        let words = words.iter().filter_map(|(word, n)| n.map(|n| format!("{word} {n}")));
        words.collect::<Vec<_>>().join(", ")
    }
}

/// Something that makes the job slow.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Finding {
    /// The class: in JSON `class`, its code, `name`, `advice` and `page`.
    #[serde(flatten, serialize_with = "ncclscope_findings::describe")]
    pub class: FindingClass,
    /// The finding in one sentence.
    pub title: String,
    /// How certain the finding is.
    pub confidence: Confidence,
    /// The slow part of the job, for S1, S7, S8 and N5.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub root: Option<SlowPart>,
    /// The ranks at fault, in the job; empty if no rank in particular is.
    pub root_ranks: Vec<u32>,
    /// Where the root ranks run, since when, and the cost: `where`, `since` and `cost`.
    #[serde(flatten)]
    pub help: Help,
    /// When it was first seen, for `since`.
    #[serde(skip)]
    pub(crate) onset: Option<Onset>,
    /// True if it was first seen in the first recorded step, so that it may have begun before.
    #[serde(skip)]
    pub is_from_first_step: bool,
    /// Sender and receiver of a slow link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub edge: Option<[u32; 2]>,
    /// The share of all waiting that it causes; `None` if that is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<f64>,
    /// S1, N5: excess own time as a share of the steps; S8: as a share of the run. `None` if
    /// unknown.
    pub lost_share: Option<f64>,
    /// Upper bound of the cost. S3 to S5: as a share of the run, because the job may do something
    /// else meanwhile. S2: the share of a step by which steps are longer since the onset.
    #[serde(skip)]
    pub most_lost_share: Option<f64>,
    /// S1: the number of steps that exceed the limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<usize>,
    /// S2 to S5: the slowdown factor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub factor: Option<f64>,
    /// The communicators concerned.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub comms: Vec<CommId>,
    /// The communicators concerned, in words.
    #[serde(skip)]
    pub(crate) comm_texts: Vec<String>,
    /// The evidence for the finding.
    pub evidence: Vec<Evidence>,
}

impl Finding {
    /// Sets the share of all waiting that it causes, from 0 to 1.
    pub(crate) fn waited_for(&mut self, share: f64) {
        let text = format!("{:.1} % of all waiting is due to it", 100.0 * share);
        let line = Evidence::about(self.class, text).with([("waiting_share", share)]);
        // The first line is what proves the finding.
        let is_late = matches!(self.class, FindingClass::SlowRank | FindingClass::SlowLaunch);
        let at = if is_late { 0 } else { self.evidence.len() };
        self.evidence.insert(at, line);
        self.share = Some(share);
    }

    /// What the finding is about, such as `link from rank 3 to rank 4`.
    pub(crate) fn subject(&self) -> String {
        let ranks: Vec<String> = self.root_ranks.iter().map(u32::to_string).collect();
        match (self.root, self.edge, &ranks[..], &self.comm_texts[..]) {
            (Some(root), ..) => root.name(),
            (_, Some([src, dst]), ..) => format!("link from rank {src} to rank {dst}"),
            (_, _, [rank], _) => format!("rank {rank}"),
            (_, _, [_, ..], _) => format!("ranks {}", ranks.join(", ")),
            (_, _, [], [comm, ..]) => format!("transfers of {comm}"),
            (_, _, [], []) => self.class.name().to_owned(),
        }
    }

    /// A finding of this class without ranks or numbers.
    pub(crate) fn of(class: FindingClass) -> Finding {
        Finding {
            class,
            title: String::new(),
            confidence: Confidence::default(),
            root: None,
            root_ranks: Vec::new(),
            help: Help::default(),
            onset: None,
            is_from_first_step: false,
            edge: None,
            share: None,
            lost_share: None,
            most_lost_share: None,
            steps: None,
            factor: None,
            comms: Vec::new(),
            comm_texts: Vec::new(),
            evidence: Vec::new(),
        }
    }
}
