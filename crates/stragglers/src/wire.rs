// SPDX-License-Identifier: Apache-2.0
/*!
How long transfers take on the wire, by what both of their ends show.

The sender alone shows too little where the system takes a send at once, as over TCP: it completes
when the socket's buffer has room, and on a slow link it does so as soon as on a quick one. With
both ends a transfer takes from when it could arrive until it has arrived. It could when the
receiver was ready, the transfer before it had arrived, and the least flight time had passed since
the sender gave it to the network: the least of this link or, if that is longer, the usual one of
links with transfers of this size. So neither the network's latency nor a sender that rarely has
data makes a link slow. The error of the clocks counts for the link. The longer of this time and the
sender's counts.
*/

use crate::clock::Clocks;
use crate::model::{Job, LinkTraffic, Pace, Transfer};
use crate::time_blocks::TimeBlocks;
use ncclscope_limits::links;
use ncclscope_operations::stats::{median, to_f64, to_u64};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// The traffic of a job's links with the longer of the times that the sender and both ends show.
pub(crate) fn measured<'a>(job: &'a Job, clocks: &Clocks) -> Vec<Cow<'a, LinkTraffic>> {
    let errors = errors(job, clocks);
    let flights: Vec<Option<Flight>> =
        job.edges.iter().map(|edge| Flight::of(edge, clocks)).collect();
    let mut alike: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
    for flight in flights.iter().flatten() {
        alike.entry(flight.size).or_default().push(flight.least);
    }
    let usual: BTreeMap<u32, f64> = alike
        .into_iter()
        .filter_map(|(size, mut least)| Some((size, median(&mut least)?)))
        .collect();
    let longer = |(edge, flight): (&'a LinkTraffic, &Option<Flight>)| {
        let ends = [edge.src, edge.dst].map(|worker| clocks.host(worker));
        let error = ends.iter().filter_map(|host| errors.get(host)).copied();
        let error = error.fold(clocks.error, f64::max);
        let of_both = flight.as_ref().and_then(|flight| {
            let least = flight.least.min(usual[&flight.size] + error);
            of_both(job, edge, (clocks, flight.size, least))
        });
        let longer = of_both.filter(|both| both.wire_ns > edge.wire_ns);
        longer.map_or(Cow::Borrowed(edge), Cow::Owned)
    };
    job.edges.iter().zip(&flights).map(longer).collect()
}

/// What the sample of a link shows of its transfers of about the largest size.
struct Flight {
    /// The size, as a power of two.
    size: u32,
    /// The least time from giving a transfer to the network until it has come, ns.
    least: f64,
}

impl Flight {
    /// `None` without a sample, or if the clocks of both ends cannot be compared.
    fn of(edge: &LinkTraffic, clocks: &Clocks) -> Option<Flight> {
        let size = edge.sample.iter().filter_map(|one| one.bytes.checked_ilog2()).max()?;
        let of_size = edge.sample.iter().filter(|one| one.bytes.checked_ilog2() == Some(size));
        let least = of_size.map(|one| flight(edge, one, clocks)).reduce(f64::min)?;
        (clocks.group(edge.src) == clocks.group(edge.dst)).then_some(Flight { size, least })
    }
}

/// From giving a transfer to the network until it has come, ns.
fn flight(edge: &LinkTraffic, one: &Transfer, clocks: &Clocks) -> f64 {
    clocks.time(edge.dst, one.came) - clocks.time(edge.src, one.given)
}

/// By how much the clock of each host is off at least, ns: nothing comes before it was given. (In a
/// ring of two hosts with a slow GPU in one of them the ends of collectives, by which clocks are
/// aligned, are always later there.)
fn errors(job: &Job, clocks: &Clocks) -> BTreeMap<usize, f64> {
    let mut errors: BTreeMap<usize, f64> = BTreeMap::new();
    for edge in &job.edges {
        let early = edge.sample.iter().map(|one| -flight(edge, one, clocks));
        let earliest = early.fold(0.0, f64::max);
        for worker in [edge.src, edge.dst] {
            let error = errors.entry(clocks.host(worker)).or_default();
            *error = error.max(earliest);
        }
    }
    errors
}

/// A transfer on the job's clock, ns.
struct OnWire {
    bytes: u32,
    /// From when it could come until it has come.
    wire: f64,
    /// That time if the sender was the last that it waited for.
    held: f64,
    flight: f64,
    /// When it had come, since 1970.
    at: u64,
}

/// The traffic of a link with the time that both ends show of its transfers of a size, which cannot
/// come sooner than `least` ns after they were given to the network.
fn of_both(
    job: &Job,
    edge: &LinkTraffic,
    (clocks, size, least): (&Clocks, u32, f64),
) -> Option<LinkTraffic> {
    let origin = job.origin_ns.unwrap_or_default();
    let on_wire = |one: &Transfer| {
        let [ready, came] = [one.ready, one.came].map(|ns| clocks.time(edge.dst, ns));
        let from = ready.max(clocks.time(edge.src, one.given) + least);
        let wire = (came - from).max(0.0);
        let held = if from > ready { wire } else { 0.0 };
        let at = origin.saturating_add(to_u64(one.came));
        OnWire { bytes: one.bytes, wire, held, flight: flight(edge, one, clocks), at }
    };
    let of_size = edge.sample.iter().filter(|one| one.bytes.checked_ilog2() == Some(size));
    let mut all: Vec<OnWire> = of_size.map(on_wire).collect();
    all.sort_unstable_by(|a, b| a.wire.total_cmp(&b.wire));
    all.truncate(all.len() - all.len().div_ceil(links::LONGEST_OF));
    let bytes: u64 = all.iter().map(|one| u64::from(one.bytes)).sum();
    let mut blocks = TimeBlocks::default();
    all.iter().for_each(|one| blocks.add(one.bytes, one.wire, one.at));
    let times = to_f64(edge.bytes) / to_f64(bytes);
    let sum = |of: fn(&OnWire) -> f64| times * all.iter().map(of).sum::<f64>();
    (bytes > 0).then(|| LinkTraffic {
        comm: edge.comm.clone(),
        wire_ns: sum(|one| one.wire),
        pace: Pace { held_ns: sum(|one| one.held), flight_ns: sum(|one| one.flight.max(0.0)) },
        blocks,
        sample: Vec::new(),
        ..*edge
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

    /// The longest transfers are left out.
    fn is_near(took: f64, expected: f64) -> bool {
        (took / expected - 1.0).abs() < 0.03
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
        assert!(is_near(per_transfer(0), 5e4), "{}", per_transfer(0));
        assert_eq!(per_transfer(1), 2e3, "the sender's time is longer");
        let costs: Vec<f64> = measured[0].blocks.costs().collect();
        let per_byte = |cost: &f64| is_near(*cost, 5e4 / 1_048_576.0);
        assert!(costs.iter().filter(|cost| per_byte(cost)).count() + 1 >= costs.len());
    }

    /// A link over which each transfer comes so many ns after it was given, and long after the one
    /// before it.
    fn alone(src: usize, dst: usize, flights: [f64; 2]) -> LinkTraffic {
        let mut edge = link(src, dst, 0.0);
        for (at, one) in edge.sample.iter_mut().enumerate() {
            (one.ready, one.came) = (one.given, one.given + flights[at % 2]);
        }
        edge
    }

    #[test]
    fn a_sender_that_rarely_has_data_does_not_make_a_link_slow() {
        let took = |flights| {
            let others = (1..4).map(|src| alone(src, src - 1, [5e4, 6e4]));
            let job = job(others.chain([alone(0, 3, flights)]).collect());
            measured(&job, &Clocks::fit(&job))[3].wire_ns / 1000.0
        };
        assert!(is_near(took([5e4, 6e4]), 5e3), "what varies, beyond the latency");
        // Not even the least is as short as usual, within the error of the clocks.
        let error = ERROR_ON_HOST;
        assert!(is_near(took([1.5e5; 2]), 1e5 - error), "{}", took([1.5e5; 2]));
        assert_eq!(took([5.9e4, 5.9e4]), 2e3, "only the sender's time is known");
    }

    /// The error of the clocks of workers of one host.
    const ERROR_ON_HOST: f64 = 1e4;

    /// What one host sends seems to come before it is given.
    #[test]
    fn what_comes_too_early_shows_the_error_of_the_clocks() {
        let mut job = job(vec![alone(0, 1, [3.2e5; 2]), alone(1, 0, [-2.8e5; 2])]);
        job.workers[1] = Worker::new(1, "b");
        let errors = errors(&job, &Clocks::fit(&job));
        assert_eq!(errors.values().copied().collect::<Vec<_>>(), [2.8e5, 2.8e5]);
    }

    #[test]
    fn a_pause_is_no_property_of_a_link() {
        let mut paused = link(0, 1, 5e4);
        paused.sample[7].came += 1e9;
        let job = job(vec![paused]);
        let took = measured(&job, &Clocks::fit(&job))[0].wire_ns / 1000.0;
        assert!(is_near(took, 5e4), "{took}");
    }
}
