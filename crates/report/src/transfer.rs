// SPDX-License-Identifier: Apache-2.0
/*!
The transfer of collectives: their time without the wait for ranks that arrive late.

A rank that arrives early waits inside the collective, so its time depends more on the other ranks
than on the network. The transfer is the time from the last rank's arrival to the end. It needs all
ranks of the communicator, each with its arrival
([`ncclscope_operations::operation::Evidence::with_waiting`]), and a function in which no rank can
end before all have arrived ([`waits_for_all`]):

- In an AllReduce the rank that arrives last does not wait, and its data must reach all ranks before
  it ends. So the least time of all ranks is the transfer, and the rank with the least time is the
  one that the others waited for. This compares durations only, so clocks need not agree.
- In an AllGather or ReduceScatter the last rank may find the others' data already in its buffers,
  and end early. The transfer is the latest end minus the latest arrival, for which all ranks must
  be on one host, with one clock.

Otherwise [`Unknown`] says what is missing.

Collectives are joined by NCCL's sequence number. Memory is bounded: of more than [`KEPT`] in a row
of the report half are kept, then a quarter, and so on, the same ones on all ranks. A number that a
rank uses twice (replays of CUDA graphs) is not joined.
*/

use crate::distribution::Distribution;
use ncclscope_operations::ends::waits_for_all;
use ncclscope_operations::hash::Map;
use ncclscope_operations::operation::End;
use ncclscope_operations::stats::{to_f64, to_u64};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Most collectives that are kept per row.
const KEPT: usize = 1 << 10;

/// The share of collectives that is kept: one in `2^n`.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
struct Share(u32);

impl Share {
    fn has(self, seq: u64) -> bool {
        // The high bits of the product depend on all bits of the number.
        let lot = seq.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        lot.leading_zeros() >= self.0
    }

    /// Halves the share, until at most [`KEPT`] are kept.
    fn thin<T>(&mut self, of: &mut Map<u64, T>) {
        while of.len() > KEPT && self.0 < u64::BITS {
            self.0 += 1;
            of.retain(|seq, _| self.has(*seq));
        }
    }
}

/// The collectives of one rank in a row, by sequence number.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    share: Share,
    /// The rank's part of each collective; `None` if the number occurred twice.
    times: Map<u64, Option<Part>>,
}

/// A rank's part of a collective.
#[derive(Clone, Copy, Debug)]
struct Part {
    /// From the rank's arrival to the end, ns.
    ns: f64,
    end: Option<End>,
}

/// Converts a rank's times to its host's clock.
pub(crate) struct Clocks<'a> {
    /// The host; ranks with the same host have the same clock.
    pub(crate) host: &'a Arc<str>,
    /// Returns an end by that clock, ns.
    pub(crate) host_ns: &'a dyn Fn(End) -> Option<u64>,
}

impl Parts {
    pub(crate) fn add(&mut self, seq: u64, ns: f64, end: Option<End>) {
        if !self.share.has(seq) {
            return;
        }
        self.times.entry(seq).and_modify(|time| *time = None).or_insert(Some(Part { ns, end }));
        self.share.thin(&mut self.times);
    }

    /// Adds further collectives of the same rank, such as those of another training step.
    pub(crate) fn merge(&mut self, other: Parts) {
        if self.times.is_empty() {
            *self = other;
            return;
        }
        if other.share > self.share {
            self.share = other.share;
            self.times.retain(|seq, _| other.share.has(*seq));
        }
        let share = self.share;
        for (seq, part) in other.times.into_iter().filter(|(seq, _)| share.has(*seq)) {
            self.times.entry(seq).and_modify(|time| *time = None).or_insert(part);
        }
        self.share.thin(&mut self.times);
    }
}

/// A collective, from the ranks that were read so far.
#[derive(Clone, Debug)]
struct Collective {
    ranks: u32,
    sum_ns: f64,
    least_ns: f64,
    most_ns: f64,
    /// The rank with `least_ns`.
    least: Option<i32>,
    placed: Option<Placed>,
    is_ambiguous: bool,
}

/// The first arrival, the latest with its rank, the latest end, and the sum of the arrivals of
/// ranks that are all on one host; ns.
#[derive(Clone, Debug)]
struct Placed {
    host: Arc<str>,
    first: u64,
    arrival: u64,
    arrivals: u128,
    rank: Option<i32>,
    end: u64,
}

/// What all parts of a collective show together.
struct Joint {
    /// The transfer, ns.
    ns: f64,
    /// The rank that arrived last.
    last: Option<i32>,
    /// How long all other ranks together waited for it, ns.
    waiting_ns: f64,
    /// The longest wait of a rank, ns.
    longest_ns: f64,
}

/// The collectives of all ranks in a row, by sequence number.
#[derive(Debug, Default)]
pub(crate) struct Collectives {
    share: Share,
    of: Map<u64, Collective>,
}

impl Collectives {
    /// Adds the collectives of a rank.
    pub(crate) fn add(&mut self, parts: Parts, rank: Option<i32>, clocks: &Clocks<'_>) {
        if parts.share > self.share {
            self.share = parts.share;
            self.of.retain(|seq, _| parts.share.has(*seq));
        }
        let share = self.share;
        for (seq, part) in parts.times.into_iter().filter(|(seq, _)| share.has(*seq)) {
            let one = Collective::of(part, rank, clocks);
            match self.of.get_mut(&seq) {
                Some(sum) => sum.merge(one),
                None => drop(self.of.insert(seq, one)),
            }
        }
        self.share.thin(&mut self.of);
    }

    /// The transfers, in a communicator of `nranks`, or why they are unknown.
    pub(crate) fn transfer(&self, func: &str, nranks: Option<u32>) -> Result<Transfer, Unknown> {
        if !waits_for_all(func) {
            return Err(Unknown::Function);
        }
        let nranks = nranks.ok_or(Unknown::Size)?;
        let mut transfer = Transfer::default();
        let is_whole = |one: &&Collective| one.ranks == nranks && !one.is_ambiguous;
        for one in self.of.values().filter(is_whole) {
            transfer.whole += 1;
            let Some(joint) = one.transfer(func) else { continue };
            let Joint { ns, last, waiting_ns, longest_ns } = joint;
            transfer.ns.add(ns);
            transfer.waiting_ns.add(longest_ns);
            transfer.joined += 1;
            transfer.arrivals += u64::from(one.ranks);
            transfer.after_last_ns += (one.sum_ns - waiting_ns).max(0.0);
            if let Some(rank) = last {
                let sum = transfer.last.entry(rank).or_default();
                sum.times += 1;
                sum.waiting_ns += waiting_ns;
            }
        }
        match (transfer.joined, transfer.whole) {
            _ if self.of.is_empty() => Err(Unknown::Arrival),
            (0, 0) if self.of.values().any(|one| one.is_ambiguous) => Err(Unknown::Replays),
            (0, 0) => Err(Unknown::Ranks),
            (0, _) => Err(Unknown::Clocks),
            _ => Ok(transfer),
        }
    }
}

impl Collective {
    fn of(part: Option<Part>, rank: Option<i32>, clocks: &Clocks<'_>) -> Collective {
        let ns = part.map_or(0.0, |part| part.ns);
        let end = part.and_then(|part| (clocks.host_ns)(part.end?));
        let placed = end.map(|end| {
            let arrival = end.saturating_sub(to_u64(ns));
            let (host, arrivals) = (clocks.host.clone(), arrival.into());
            Placed { host, first: arrival, arrival, arrivals, rank, end }
        });
        Collective {
            ranks: 1,
            sum_ns: ns,
            least_ns: ns,
            most_ns: ns,
            least: rank,
            placed,
            is_ambiguous: part.is_none(),
        }
    }

    fn merge(&mut self, other: Collective) {
        self.ranks += other.ranks;
        self.sum_ns += other.sum_ns;
        self.most_ns = self.most_ns.max(other.most_ns);
        self.is_ambiguous |= other.is_ambiguous;
        if other.least_ns < self.least_ns {
            (self.least_ns, self.least) = (other.least_ns, other.least);
        }
        let both = self.placed.take().zip(other.placed);
        self.placed = both.filter(|(one, other)| one.host == other.host).map(|(one, other)| {
            let (end, arrivals) = (one.end.max(other.end), one.arrivals + other.arrivals);
            let first = one.first.min(other.first);
            let last = if other.arrival > one.arrival { other } else { one };
            Placed { first, end, arrivals, ..last }
        });
    }

    /// The transfer; `None` if the ranks have no common clock.
    fn transfer(&self, func: &str) -> Option<Joint> {
        if func == "AllReduce" {
            let waiting = self.sum_ns - self.least_ns * f64::from(self.ranks);
            return Some(Joint {
                ns: self.least_ns,
                last: self.least,
                waiting_ns: waiting.max(0.0),
                longest_ns: self.most_ns - self.least_ns,
            });
        }
        let placed = self.placed.as_ref()?;
        let until = u128::from(placed.arrival) * u128::from(self.ranks);
        let waiting = u64::try_from(until.saturating_sub(placed.arrivals)).unwrap_or(u64::MAX);
        Some(Joint {
            ns: to_f64(placed.end.saturating_sub(placed.arrival)),
            last: placed.rank,
            waiting_ns: to_f64(waiting),
            longest_ns: to_f64(placed.arrival - placed.first),
        })
    }
}

/// The transfers of the collectives of a row.
#[derive(Debug, Default)]
pub(crate) struct Transfer {
    /// From the last rank's arrival to the end, ns.
    pub(crate) ns: Distribution,
    /// The longest wait of a rank in each collective, ns.
    pub(crate) waiting_ns: Distribution,
    /// Number of collectives with a known transfer.
    pub(crate) joined: u64,
    /// Number of arrivals in these collectives: each has one for each of its ranks.
    arrivals: u64,
    /// Time of all ranks in them after the last one's arrival, ns.
    after_last_ns: f64,
    /// Number of collectives of which all ranks were read.
    whole: u64,
    /// The ranks that arrived last, by their rank in the communicator.
    last: BTreeMap<i32, Last>,
}

/// The collectives in which a rank arrived last.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Last {
    /// Number of these collectives.
    pub(crate) times: u64,
    /// How long all other ranks together waited in them, ns.
    pub(crate) waiting_ns: f64,
}

impl Transfer {
    /// A rank's mean time after the last one's arrival, ns: less than the transfer if ranks end
    /// before the last one does.
    pub(crate) fn after_last(&self) -> f64 {
        self.after_last_ns / to_f64(self.arrivals.max(1))
    }

    /// The ranks that arrived last, the one that the others waited longest for first. If only a
    /// part of the row's collectives is joined, the waiting is extrapolated to all: `arrivals` is
    /// the row's number of arrivals, and `total_ns` the waiting in all of it, which the sum does
    /// not exceed.
    pub(crate) fn last(&self, arrivals: u64, total_ns: f64) -> Vec<(i32, Last)> {
        let joined: f64 = self.last.values().map(|last| last.waiting_ns).sum();
        let all = to_f64(arrivals) / to_f64(self.arrivals.max(1));
        let factor = if joined * all > total_ns { total_ns / joined } else { all };
        let scaled = |last: &Last| Last { waiting_ns: last.waiting_ns * factor, ..*last };
        let mut ranks: Vec<_> =
            self.last.iter().map(|(rank, last)| (*rank, scaled(last))).collect();
        ranks.sort_by(|(_, a), (_, b)| b.waiting_ns.total_cmp(&a.waiting_ns));
        ranks
    }
}

/// Why the transfer is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unknown {
    /// A rank may end before the last one arrives.
    Function,
    /// The number of ranks is unknown.
    Size,
    /// The arrival or the end of the ranks is unknown.
    Arrival,
    /// No collective has all of its ranks in the input.
    Ranks,
    /// The ranks are on several hosts, whose clocks cannot be compared.
    Clocks,
    /// Sequence numbers occurred more than once.
    Replays,
    /// The operation is a send or receive, whose other half is not joined.
    Pair,
}

impl Unknown {
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Unknown::Function => "a rank may end before another arrives",
            Unknown::Size => "NCCL does not report the number of ranks",
            Unknown::Arrival => "arrival or end of the ranks is not recorded",
            Unknown::Ranks => {
                "no collective has the arrival and the end of all ranks of the communicator"
            }
            Unknown::Clocks => "the clocks of its hosts are not comparable",
            Unknown::Pair => "a send and its receive are not joined",
            Unknown::Replays => "replays of a CUDA graph cannot be told apart",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(times: impl Iterator<Item = (u64, f64)>) -> Parts {
        let mut parts = Parts::default();
        times.for_each(|(seq, ns)| parts.add(seq, ns, Some(End::Host(1_000))));
        parts
    }

    /// Adds a rank on `host` that ends at 1 us.
    fn add(all: &mut Collectives, parts: Parts, rank: i32, host: &str) {
        let host_ns = |end| match end {
            End::Host(ns) => Some(ns),
            End::Gpu(_) => None,
        };
        all.add(parts, Some(rank), &Clocks { host: &host.into(), host_ns: &host_ns });
    }

    #[test]
    fn the_last_to_arrive_shows_the_transfer() {
        let of = |func, hosts: [&str; 3]| {
            let mut all = Collectives::default();
            for ((rank, ns), host) in [(0, 900.0), (1, 100.0), (2, 800.0)].into_iter().zip(hosts) {
                add(&mut all, parts((0..10).map(|seq| (seq, ns))), rank, host);
            }
            let mut transfer = all.transfer(func, Some(3))?;
            let last = Last { times: 10, waiting_ns: 15_000.0 };
            assert_eq!((transfer.joined, transfer.last(30, 15_000.0)), (10, vec![(1, last)]));
            let quantiles = [transfer.ns.quantiles(), transfer.waiting_ns.quantiles()];
            Ok(quantiles.map(|quantiles| quantiles.unwrap()[1]))
        };
        assert_eq!(of("AllReduce", ["a", "b", "c"]), Ok([100.0, 800.0]));
        assert_eq!(of("ReduceScatter", ["a"; 3]), Ok([100.0, 800.0]));
        assert_eq!(of("ReduceScatter", ["a", "a", "c"]), Err(Unknown::Clocks));
    }

    /// A graph is replayed in two training steps: the rank has each number twice.
    #[test]
    fn the_parts_of_two_steps_are_one_ranks() {
        let mut all = Collectives::default();
        let mut of_rank = parts([(7, 500.0), (8, 500.0)].into_iter());
        of_rank.merge(parts([(8, 300.0), (9, 300.0)].into_iter()));
        add(&mut all, of_rank, 0, "a");
        let mut numbers: Vec<(u64, u32, bool)> =
            all.of.iter().map(|(seq, one)| (*seq, one.ranks, one.is_ambiguous)).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, [(7, 1, false), (8, 1, true), (9, 1, false)]);
    }

    #[test]
    fn what_the_last_finds_in_its_buffers_is_not_all_of_a_transfer() {
        let mut all = Collectives::default();
        // Rank 1 arrives at 500 ns and ends at 600; rank 0 ends at 1000.
        for (rank, ns, end) in [(0, 1000.0, 1000), (1, 100.0, 600)] {
            let mut parts = Parts::default();
            parts.add(7, ns, Some(End::Host(end)));
            add(&mut all, parts, rank, "a");
        }
        let mut transfer = all.transfer("ReduceScatter", Some(2)).unwrap();
        assert_eq!(transfer.ns.quantiles(), Some([500.0; 4]));
        // Rank 0 waited 500 ns, and rank 1 ended 400 ns before it.
        assert_eq!(transfer.last(2, 500.0), [(1, Last { times: 1, waiting_ns: 500.0 })]);
        assert_eq!(transfer.after_last(), 300.0);
        assert_eq!(transfer.waiting_ns.quantiles(), Some([500.0; 4]));
    }

    /// Rank 0 is last nine times, by little, and rank 1 once, by much.
    #[test]
    fn ranks_are_ordered_by_how_long_the_others_waited_and_not_by_how_often() {
        let transfer = |seqs: std::ops::Range<u64>| {
            let mut all = Collectives::default();
            let first = |seq| if seq == 5 { 6_100.0 } else { 100.0 };
            let second = |seq| if seq == 5 { 100.0 } else { 110.0 };
            add(&mut all, parts(seqs.clone().map(|seq| (seq, first(seq)))), 0, "a");
            add(&mut all, parts(seqs.map(|seq| (seq, second(seq)))), 1, "a");
            all.transfer("AllReduce", Some(2)).unwrap()
        };
        let last = |times, waiting_ns| Last { times, waiting_ns };
        let ranks = transfer(0..10);
        assert_eq!(ranks.last(20, 6_090.0), [(1, last(1, 6_000.0)), (0, last(9, 90.0))]);
        // A row with twice as many collectives, half of them joined.
        let all = ranks.last(40, 20_000.0);
        assert_eq!(all, [(1, last(1, 12_000.0)), (0, last(9, 180.0))]);
        // It never exceeds what the row waited.
        let all = ranks.last(40, 609.0);
        assert_eq!(all, [(1, last(1, 600.0)), (0, last(9, 9.0))]);
    }

    #[test]
    fn what_is_not_joined_says_why() {
        let why = |func, nranks, ranks: i32, seqs: &[u64]| {
            let mut all = Collectives::default();
            for rank in 0..ranks {
                add(&mut all, parts(seqs.iter().map(|&seq| (seq, 1.0))), rank, "a");
            }
            all.transfer(func, nranks).err()
        };
        assert_eq!(why("AllReduce", Some(2), 2, &[1]), None);
        assert_eq!(why("AllReduce", Some(2), 1, &[1]), Some(Unknown::Ranks));
        assert_eq!(why("AllReduce", Some(2), 2, &[1, 1]), Some(Unknown::Replays));
        assert_eq!(why("AllReduce", Some(2), 0, &[]), Some(Unknown::Arrival));
        assert_eq!(why("AllReduce", None, 2, &[1]), Some(Unknown::Size));
        assert_eq!(why("Broadcast", Some(2), 2, &[1]), Some(Unknown::Function));
    }

    #[test]
    fn of_many_the_same_are_kept_in_all_ranks() {
        let mut all = Collectives::default();
        for (rank, until) in [(0, 100_000), (1, 50_000)] {
            let parts = parts((0..until).map(|seq| (seq, 1.0)));
            assert!(parts.times.len() <= KEPT && parts.times.len() > KEPT / 4);
            add(&mut all, parts, rank, "a");
        }
        let transfer = all.transfer("AllReduce", Some(2)).unwrap();
        assert!(transfer.joined > 100, "{}", transfer.joined);
        let last = Last { times: transfer.joined, waiting_ns: 0.0 };
        assert_eq!(transfer.last(150_000, 0.0), [(0, last)], "of equals the first");
    }
}
