// SPDX-License-Identifier: Apache-2.0
//! What could not be judged, and how much time it takes: there a slow part would not show.

use crate::model::{Job, LinkTraffic};
use ncclscope_limits::slow;
use ncclscope_operations::human;
use ncclscope_operations::stats::to_f64;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Number of things of which a slow one might not show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Unjudged {
    /// Links (pairs of ranks that the network connects).
    pub links: usize,
    /// The busiest of these links; `None` without one.
    pub busiest: Option<BusyLink>,
    /// Communicators within a node.
    pub node_communicators: usize,
    /// GPUs whose part in collectives is not recorded, because none of their operations of weight
    /// both receives and sends over the network on one channel, or not comparable, because those of
    /// no other GPU of the communicator do.
    pub gpus: usize,
}

/// A link that is on the wire for long.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct BusyLink {
    /// The sending rank.
    pub src: u32,
    /// The receiving rank.
    pub dst: u32,
    /// The part of the steps for which it has data on the wire; above 1 if several communicators
    /// use it at once.
    pub step_share: f64,
    /// Its bandwidth on the wire, GB/s.
    pub transfer_gbs: f64,
}

impl BusyLink {
    /// How much of a step the link takes, if that is much.
    pub(crate) fn text(&self) -> Option<String> {
        let BusyLink { src, dst, step_share, transfer_gbs } = *self;
        (step_share >= slow::BUSY).then(|| {
            format!(
                "rank {src} to {dst} is on the wire for {:.0} % of a step, at {} GB/s; too few \
                 links are like it to judge that: compare it with a run known to be good",
                100.0 * step_share.min(1.0),
                human::three(transfer_gbs)
            )
        })
    }
}

impl Unjudged {
    /// What was not judged, as the end of a line; empty if all was.
    #[must_use]
    pub fn text(self) -> String {
        let Unjudged { links, node_communicators, gpus, .. } = self;
        let links = (links != 0).then(|| human::count(links, "link"));
        let inside = (node_communicators != 0)
            .then(|| format!("{} within nodes", human::count(node_communicators, "communicator")));
        let few: Vec<String> = links.into_iter().chain(inside).collect();
        let few = few.join(", ");
        // Short, because the line of a report has 160 columns.
        let inside = format!("; not judged: {} inside collectives", human::count(gpus, "GPU"));
        match (gpus, few.is_empty()) {
            (0, true) => String::new(),
            (0, false) => format!("; not judged, because too few are alike: {few}"),
            (_, true) => inside,
            (_, false) => format!("{inside}; too few are alike: {few}"),
        }
    }
}

/// Sender and receiver.
type Link = (usize, usize);

/// The busiest of these links in a job of `span` ns.
pub(crate) fn busiest(job: &Job, links: &BTreeSet<Link>, span: f64) -> Option<BusyLink> {
    let mut channels: BTreeMap<(Link, &str, u8), f64> = BTreeMap::new();
    let mut bytes: BTreeMap<Link, u64> = BTreeMap::new();
    let is_of = |edge: &&LinkTraffic| links.contains(&(edge.src, edge.dst));
    for edge in job.edges.iter().filter(is_of).filter(|edge| edge.is_enough()) {
        let link = (edge.src, edge.dst);
        *channels.entry((link, &edge.comm, edge.channel)).or_default() += edge.wire_ns;
        *bytes.entry(link).or_default() += edge.bytes;
    }
    // Channels of a communicator are on the wire at the same time.
    let mut comms: BTreeMap<(Link, &str), f64> = BTreeMap::new();
    for ((link, comm, _), ns) in channels {
        let longest = comms.entry((link, comm)).or_default();
        *longest = ns.max(*longest);
    }
    let mut times: BTreeMap<Link, f64> = BTreeMap::new();
    for ((link, _), ns) in comms {
        *times.entry(link).or_default() += ns;
    }
    let longest = times.into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
    let ((src, dst), ns) = longest.filter(|(_, ns)| *ns > 0.0)?;
    (span > 0.0).then(|| BusyLink {
        src: job.workers[src].rank,
        dst: job.workers[dst].rank,
        step_share: ns / span,
        transfer_gbs: to_f64(bytes[&(src, dst)]) / ns,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pace;
    use crate::model::Worker;
    use crate::time_blocks::TimeBlocks;

    #[test]
    fn the_busiest_link_is_on_the_wire_once_for_all_of_its_channels() {
        let edge = |comm: &str, src, dst, channel, wire_ns| LinkTraffic {
            comm: comm.into(),
            src,
            dst,
            channel,
            transfers: 100,
            bytes: 1 << 20,
            wire_ns,
            pace: Pace::default(),
            blocks: TimeBlocks::default(),
            sample: Vec::new(),
            is_first: false,
        };
        let job = Job {
            workers: (10..13).map(|rank| Worker::new(rank, "")).collect(),
            edges: vec![
                edge("dp", 0, 1, 0, 3e8),
                edge("dp", 0, 1, 1, 2e8),
                edge("pp", 0, 1, 0, 1e8),
                edge("dp", 1, 0, 0, 3e8),
                edge("dp", 1, 2, 0, 9e8),
            ],
            ..Job::default()
        };
        let of = |links: &[Link]| busiest(&job, &links.iter().copied().collect(), 1e9);
        let found = of(&[(0, 1), (1, 0)]).unwrap();
        assert_eq!((found.src, found.dst, found.step_share), (10, 11, 0.4));
        assert_eq!(found.transfer_gbs, f64::from(3 << 20) / 4e8);
        assert_eq!(of(&[]), None);
    }
}
