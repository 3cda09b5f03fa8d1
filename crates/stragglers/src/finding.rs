// SPDX-License-Identifier: Apache-2.0
/*!
A finding, and the part of the job that is slow. All detectors return findings; [`crate::report`]
puts them together.
*/

use crate::model::Worker;
use crate::onset::Onset;
use ncclscope_findings::{CommId, Doubt, Evidence, FindingClass, Help, How, SlowPart, State};
use ncclscope_statistics::Effect;

impl From<&Worker> for SlowPart {
    fn from(worker: &Worker) -> SlowPart {
        match worker.cell {
            Some(cell) => {
                SlowPart { rank: None, dp_rank: Some(cell.dp_rank), stage: Some(cell.stage) }
            }
            None => SlowPart { rank: Some(worker.rank), ..SlowPart::default() },
        }
    }
}

/// Something that makes the job slow, while the detectors work on it: with what they need to make a
/// [`ncclscope_findings::Finding`] of it.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Finding {
    pub(crate) class: FindingClass,
    /// The finding in one sentence.
    pub(crate) title: String,
    /// Why it may be wrong.
    pub(crate) doubts: Vec<Doubt>,
    pub(crate) root: Option<SlowPart>,
    pub(crate) root_ranks: Vec<u32>,
    pub(crate) help: Help,
    /// When it was first seen, for `since`.
    pub(crate) onset: Option<Onset>,
    pub(crate) is_from_first_step: bool,
    pub(crate) edge: Option<[u32; 2]>,
    pub(crate) share: Option<f64>,
    pub(crate) lost_share: Option<f64>,
    /// Upper bound of the cost. S3 to S5: as a share of the run, because the job may do something
    /// else meanwhile. S2: the share of a step by which steps are longer since the onset.
    pub(crate) most_lost_share: Option<f64>,
    pub(crate) steps: Option<usize>,
    pub(crate) factor: Option<f64>,
    pub(crate) comms: Vec<CommId>,
    /// The communicators concerned, in words.
    pub(crate) comm_texts: Vec<String>,
    pub(crate) evidence: Vec<Evidence>,
}

/// The figures of what something costs more than usual.
pub(crate) fn excess_figures(effect: &Effect) -> [(&'static str, f64); 4] {
    let [low, high] = effect.interval;
    [
        ("excess_share", effect.mean),
        ("excess_share_from", low),
        ("excess_share_to", high),
        ("p", effect.p),
    ]
}

/// A link in words.
pub(crate) fn link_name(src: u32, dst: u32) -> String {
    format!("link from rank {src} to rank {dst}")
}

impl From<Finding> for ncclscope_findings::Finding {
    fn from(of: Finding) -> ncclscope_findings::Finding {
        ncclscope_findings::Finding {
            state: State::Slow,
            how: How::Said(of.title),
            doubts: of.doubts,
            root: of.root,
            help: of.help,
            is_from_first_step: of.is_from_first_step,
            edge: of.edge,
            share: of.share,
            lost_share: of.lost_share,
            steps: of.steps,
            factor: of.factor,
            comms: of.comms,
            comm_texts: of.comm_texts,
            evidence: of.evidence,
            ..ncclscope_findings::Finding::new(of.class, of.root_ranks)
        }
    }
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
            (_, Some([src, dst]), ..) => link_name(src, dst),
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
            doubts: Vec::new(),
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
