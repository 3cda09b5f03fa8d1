// SPDX-License-Identifier: Apache-2.0
/*!
How long transfers take on the wire, by what both of their ends show.

The sender alone shows too little where the system takes a send at once, as over TCP: it completes
when the socket's buffer has room, and on a slow link it does so as soon as on a quick one. A
transfer takes from when it could begin (the sender had given it to the network, the receiver was
ready, and the transfer before it had come) until it has come. That the sender had given it counts
only from the clocks' error on, so that the time is a lower limit. The longer of both ends' time and
the sender's counts.
*/

use crate::clock::Clocks;
use crate::model::{Job, LinkTraffic, Pace, Transfer};
use crate::time_blocks::TimeBlocks;
use ncclscope_operations::stats::{to_f64, to_u64};
use std::borrow::Cow;

/// One in this many transfers, the longest, is left out: a pause of either process is not a
/// property of the link.
const OF: usize = 50;

/// The traffic of a job's links with the longer of the times that the sender and both ends show.
pub(crate) fn measured<'a>(job: &'a Job, clocks: &Clocks) -> Vec<Cow<'a, LinkTraffic>> {
    let longer = |edge: &'a LinkTraffic| {
        let of_both = of_both(job, edge, clocks);
        let longer = of_both.filter(|both| both.wire_ns > edge.wire_ns);
        longer.map_or(Cow::Borrowed(edge), Cow::Owned)
    };
    job.edges.iter().map(longer).collect()
}

/// The traffic of a link with the time that a sample of both ends shows; `None` without one, or if
/// their clocks cannot be compared.
fn of_both(job: &Job, edge: &LinkTraffic, clocks: &Clocks) -> Option<LinkTraffic> {
    if clocks.group(edge.src) != clocks.group(edge.dst) {
        return None;
    }
    let origin = job.origin_ns.unwrap_or_default();
    let wire = |transfer: &Transfer| {
        let given = clocks.time(edge.src, transfer.given) + clocks.error;
        let [ready, came] = [transfer.ready, transfer.came].map(|ns| clocks.time(edge.dst, ns));
        let at = origin.saturating_add(to_u64(transfer.came));
        ((came - given.max(ready)).max(0.0), transfer.bytes, at)
    };
    let mut all: Vec<(f64, u32, u64)> = edge.sample.iter().map(wire).collect();
    all.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    all.truncate(all.len() - all.len().div_ceil(OF));
    let bytes: u64 = all.iter().map(|(_, bytes, _)| u64::from(*bytes)).sum();
    let mut blocks = TimeBlocks::default();
    all.iter().for_each(|&(ns, bytes, at)| blocks.add(bytes, ns, at));
    let ns: f64 = all.iter().map(|(ns, ..)| ns).sum();
    let wire_ns = ns / to_f64(bytes) * to_f64(edge.bytes);
    let (pace, sample) = (Pace::default(), Vec::new());
    let LinkTraffic { comm, src, dst, channel, transfers, bytes: all, is_first, .. } = edge;
    (bytes > 0).then(|| LinkTraffic {
        comm: comm.clone(),
        src: *src,
        dst: *dst,
        channel: *channel,
        transfers: *transfers,
        bytes: *all,
        wire_ns,
        pace,
        blocks,
        sample,
        is_first: *is_first,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Worker;

    /// A link over which the sender's sends complete at once, and whose transfers of 1 MiB come so
    /// many ns after they could begin: each is given 1 us after the one before.
    fn link(src: usize, dst: usize, wire: f64) -> LinkTraffic {
        let transfer = |at: u32| {
            let (given, came) = (1e3 * f64::from(at) - 2e5, wire * f64::from(at + 1));
            Transfer { bytes: 1 << 20, given, ready: came - wire, came }
        };
        LinkTraffic {
            src,
            dst,
            transfers: 1000,
            bytes: 1000 << 20,
            wire_ns: 1000.0 * 2e3,
            sample: (0..100).map(transfer).collect(),
            ..LinkTraffic::default()
        }
    }

    fn job(edges: Vec<LinkTraffic>) -> Job {
        let workers = (0..4).map(|rank| Worker::new(rank, "one")).collect();
        Job { workers, edges, ..Job::default() }
    }

    #[test]
    fn a_link_is_as_slow_as_the_receiver_sees_it() {
        let job = job(vec![link(0, 1, 5e4), link(1, 2, 1e3)]);
        let measured = measured(&job, &Clocks::fit(&job));
        let per_transfer = |at: usize| measured[at].wire_ns / 1000.0;
        assert!((per_transfer(0) - 5e4).abs() < 1.0, "{}", per_transfer(0));
        assert_eq!(per_transfer(1), 2e3, "the sender's time is longer");
        let costs: Vec<f64> = measured[0].blocks.costs().collect();
        assert!(!costs.is_empty() && costs.iter().all(|of| (of - 5e4 / 1_048_576.0).abs() < 1e-3));
    }

    /// Where the sender's clock says when a transfer began, its error is not time on the wire.
    #[test]
    fn the_error_of_clocks_does_not_make_a_link_slow() {
        let mut early = link(0, 1, 0.0);
        early.sample.iter_mut().for_each(|it| (it.ready, it.came) = (it.given, it.given + 3e4));
        let job = job(vec![early]);
        let took = |error| {
            let mut clocks = Clocks::fit(&job);
            clocks.error = error;
            measured(&job, &clocks)[0].wire_ns / 1000.0
        };
        assert!((took(0.0) - 3e4).abs() < 1.0);
        assert!((took(2e4) - 1e4).abs() < 1.0);
        assert_eq!(took(4e4), 2e3, "only the sender's time is known");
    }

    #[test]
    fn a_pause_is_no_property_of_a_link() {
        let mut paused = link(0, 1, 5e4);
        paused.sample[7].came += 1e9;
        let job = job(vec![paused]);
        let took = measured(&job, &Clocks::fit(&job))[0].wire_ns / 1000.0;
        assert!((took - 5e4).abs() < 1.0, "{took}");
    }
}
