// SPDX-License-Identifier: Apache-2.0
/*!
Pairs the NCCL kernels of a trace with those of a recording, each at most once.

1. By External id, if the recording has it.
2. By order: a process group is a communicator with the same number of ranks, and its k-th kernel is
   the k-th launch, after both are converted to one clock. [`crate::offset`] finds the offset of the
   clocks; size and function must agree. The sequence numbers of NCCL and PyTorch are not used,
   because they count different things.
3. By time: kernels without a CPU operation, as in replays of a CUDA graph.
*/

use crate::align::{REACH, align};
use crate::facts::Group;
use crate::offset::{self, Offset};
use crate::trace::{Kernel, Trace};
use ncclscope_operations::function::Kind;
use ncclscope_operations::launches::Launch;
use ncclscope_trace::Comm;
use std::collections::{BTreeMap, BTreeSet};

/// How a pair was found.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Key {
    /// The External id.
    ExternalId,
    /// The order within the process group.
    Order,
    /// The time alone.
    Time,
}

impl Key {
    /// The name in traces.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Key::ExternalId => "external id",
            Key::Order => "order in process group",
            Key::Time => "time",
        }
    }
}

/// How sure a pair is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Confidence {
    /// By time alone, or the clocks' offset is ambiguous.
    Low,
    /// Order and function agree; the size is not known on both sides.
    Medium,
    /// Order, function and size agree.
    High,
    /// The same number on both sides.
    Exact,
}

impl Confidence {
    /// The name in traces.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Confidence::Low => "low",
            Confidence::Medium => "medium",
            Confidence::High => "high",
            Confidence::Exact => "exact",
        }
    }
}

/// A kernel of a trace and its launch in the recording.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pair {
    /// Index in [`Trace::kernels`].
    pub kernel: usize,
    /// Index of the launch.
    pub launch: usize,
    /// How it was found.
    pub key: Key,
    /// How sure it is.
    pub confidence: Confidence,
    /// The kernel's time minus the launch's on one clock, ns: times of the calls, or if the trace
    /// has no call, of the kernels.
    pub residual_ns: i64,
}

/// All pairs of a trace and a recording.
#[derive(Clone, Debug, Default)]
pub struct Joined {
    /// The pairs, by kernel.
    pub pairs: Vec<Pair>,
    /// The offset between the trace's clock and the recording's.
    pub offset: Offset,
}

impl Joined {
    /// Median of the absolute residuals of the pairs with a call on both sides, ns; `None` without
    /// such pairs.
    #[must_use]
    pub fn residual_ns(&self) -> Option<i64> {
        let by_call = self.pairs.iter().filter(|pair| pair.key != Key::Time);
        let mut amounts: Vec<i64> = by_call.map(|pair| pair.residual_ns.abs()).collect();
        amounts.sort_unstable();
        amounts.get(amounts.len() / 2).copied()
    }

    /// Number of pairs that were found by `key`.
    #[must_use]
    pub fn count(&self, key: Key) -> usize {
        self.pairs.iter().filter(|pair| pair.key == key).count()
    }
}

/// Greatest distance of a recorded call from its CPU operation, on one clock.
const CALL_LIMIT_NS: i64 = 5_000_000;
/// Limit to which the time from an operation's start to the call counts as distance: the first
/// collective of a process group creates the communicator, which takes seconds.
const WITHIN_NS: i64 = 500_000;
/// Tolerance by which a kernel may lie outside of the recorded time of its launch.
const KERNEL_SLACK_NS: i64 = 1_000_000;
/// A kernel is compared with that many launches of its External id. An API call makes few; more
/// come only with a trace that is forged, in which each kernel must not be compared with all.
const MOST_OF_ID: usize = 256;
/// Greatest distance of the starts of a pair that is found by time alone.
const KERNEL_LIMIT_NS: i64 = 200_000_000;

/// Pairs the kernels of a trace with the launches of a recording, whose communicators are `comms`.
#[must_use]
pub fn join(trace: &Trace, launches: &[Launch], comms: &[Comm]) -> Joined {
    let mut joiner = Joiner {
        trace,
        launches,
        comms,
        ranks: trace.groups.iter().map(|group| rank_in(group, trace)).collect(),
        is_paired: vec![false; trace.kernels.len()],
        is_used: vec![false; launches.len()],
        joined: Joined::default(),
    };
    joiner.by_external_id();
    joiner.find_offset();
    joiner.by_order();
    joiner.by_time();
    joiner.refine();
    joiner.joined
}

/// A time in ns, and the index of the kernel or launch that starts then.
type Timed = (i64, usize);

/// The pairs of a process group's kernels and a communicator's launches.
struct Try {
    comm: usize,
    pairs: Vec<(usize, usize)>,
    is_named: bool,
    fit: i64,
}

/// What the search for the communicators of process groups may still cost. Kernels that it does not
/// reach are paired by time.
struct Work(usize);

impl Work {
    /// Enough for some forty communicators for each kernel. A forged trace of a process with
    /// thousands of communicators would take hours.
    fn new(kernels: usize) -> Work {
        Work((1_usize << 28).saturating_add(kernels.saturating_mul(1 << 12)))
    }

    /// False if it costs too much.
    fn spend(&mut self, steps: usize) -> bool {
        let left = self.0.checked_sub(steps);
        self.0 = left.unwrap_or(0);
        left.is_some()
    }

    /// [`Work::spend`] for an alignment.
    fn spend_on(&mut self, kernels: &[Timed], launches: &[usize]) -> bool {
        self.spend(kernels.len() * launches.len().min(2 * REACH) + launches.len())
    }
}

/// The launches that are candidates of some kernel, of those in `free`. Both are sorted by time.
fn near(free: &BTreeSet<Timed>, kernels: &[Timed]) -> Vec<Timed> {
    let mut found: Vec<Timed> = Vec::new();
    for &(time, _) in kernels {
        let mut before: Vec<Timed> = free.range(..(time, 0)).rev().take(REACH).copied().collect();
        before.reverse();
        let after = free.range((time, 0)..).take(REACH).copied();
        let last = found.last().copied();
        found.extend(before.into_iter().chain(after).filter(|it| last.is_none_or(|l| l < *it)));
    }
    found
}

/// The rank of the trace's process in a process group.
fn rank_in(group: &Group, trace: &Trace) -> Option<i32> {
    let (rank, _) = trace.identity.rank?;
    let at = group.ranks.iter().position(|&it| it == rank)?;
    i32::try_from(at).ok()
}

struct Joiner<'a> {
    trace: &'a Trace,
    launches: &'a [Launch],
    comms: &'a [Comm],
    /// The process's rank in each process group; `None` if unknown.
    ranks: Vec<Option<i32>>,
    is_paired: Vec<bool>,
    is_used: Vec<bool>,
    joined: Joined,
}

impl Joiner<'_> {
    fn pair(&mut self, (kernel, launch): (usize, usize), key: Key, confidence: Confidence) {
        self.is_paired[kernel] = true;
        self.is_used[launch] = true;
        let residual_ns = 0;
        self.joined.pairs.push(Pair { kernel, launch, key, confidence, residual_ns });
    }

    /// The unpaired kernels for which `pick` is true, as (`time`, index), sorted by time.
    fn kernels(
        &self,
        pick: impl Fn(&Kernel) -> bool,
        time: impl Fn(&Kernel) -> Option<i64>,
    ) -> Vec<(i64, usize)> {
        let all = self.trace.kernels.iter().enumerate();
        let mut some: Vec<_> = all
            .filter(|(at, kernel)| !self.is_paired[*at] && pick(kernel))
            .filter_map(|(at, kernel)| Some((time(kernel)?, kernel.start_ns, at)))
            .collect();
        some.sort_unstable();
        some.into_iter().map(|(time, _, at)| (time, at)).collect()
    }

    /// Pairs by External id. One API call may launch several kernels, which have the same order on
    /// both sides.
    fn by_external_id(&mut self) {
        let mut by_id: std::collections::HashMap<u64, Vec<usize>> = Default::default();
        for (at, launch) in self.launches.iter().enumerate().rev() {
            for &id in &launch.external_ids {
                by_id.entry(id).or_default().push(at);
            }
        }
        if by_id.is_empty() {
            return;
        }
        for (_, at) in self.kernels(|_| true, |kernel| Some(kernel.start_ns)) {
            let kernel = &self.trace.kernels[at];
            let op = kernel.op.map(|op| &self.trace.ops[op]);
            let own = kernel.external_id.into_iter();
            let of_op = op.into_iter().flat_map(|op| op.external_id.iter().chain(&op.aliases));
            let found = own.chain(of_op.copied()).find_map(|id| {
                let launches = by_id.get_mut(&id)?;
                while launches.last().is_some_and(|&launch| self.is_used[launch]) {
                    launches.pop();
                }
                let free = launches.iter().rev().copied().filter(|&l| !self.is_used[l]);
                free.take(MOST_OF_ID).find(|&launch| self.can_be(kernel, launch))
            });
            if let Some(launch) = found {
                self.pair((at, launch), Key::ExternalId, Confidence::Exact);
            }
        }
    }

    fn find_offset(&mut self) {
        let known = self.joined.pairs.iter().filter_map(|pair| {
            let call = self.call_ns(&self.trace.kernels[pair.kernel])?;
            Some(call - self.launches[pair.launch].call_ns)
        });
        let known: Vec<i64> = known.collect();
        self.joined.offset = if known.is_empty() {
            let kernels = self.kernels(|_| true, |kernel| self.call_ns(kernel));
            let calls: Vec<i64> = self.launches.iter().map(|launch| launch.call_ns).collect();
            offset::vote(&kernels, &calls, |kernel, launch| {
                self.can_be(&self.trace.kernels[kernel], launch)
            })
        } else {
            Offset::known(known)
        };
    }

    /// Pairs kernels by order, process group by process group; last those without a group.
    fn by_order(&mut self) {
        let mut kernels: BTreeMap<Option<usize>, Vec<Timed>> = BTreeMap::new();
        for (time, at) in self.kernels(|_| true, |kernel| self.call_ns(kernel)) {
            let group = self.trace.kernels[at].facts.group;
            kernels.entry(group).or_default().push((time, at));
        }
        let mut launches = vec![Vec::new(); self.comms.len()];
        for at in self.free_launches() {
            if let Some(of_comm) = self.launches[at].comm.and_then(|comm| launches.get_mut(comm)) {
                of_comm.push(at);
            }
        }
        let mut work = Work::new(self.trace.kernels.len());
        let without = kernels.remove(&None);
        for (group, of_group) in kernels {
            if let Some(group) = group {
                self.in_group(group, of_group, &launches, &mut work);
            }
        }
        if let Some(kernels) = without {
            let pairs = self.align(&kernels, &self.free_launches());
            self.pair_by_order(&pairs);
        }
    }

    /// Pairs the kernels of a process group. Its communicator is the one with its name, else the
    /// one whose launches fit best. A group that sends and receives between pairs of ranks may have
    /// several communicators.
    fn in_group(
        &mut self,
        group: usize,
        mut kernels: Vec<Timed>,
        launches: &[Vec<usize>],
        work: &mut Work,
    ) {
        if !work.spend(self.comms.len()) {
            return;
        }
        let kind = |at: usize| self.trace.kernels[at].facts.kind;
        let sends = kernels.iter().any(|&(_, at)| kind(at) == Some(Kind::SendRecv));
        let comms = (0..self.comms.len())
            .filter(|&comm| !launches[comm].is_empty() && self.may_be(group, comm, sends));
        let mut tries: Vec<Try> = comms
            .filter(|&comm| work.spend_on(&kernels, &launches[comm]))
            .map(|comm| self.attempt(group, comm, &kernels, &launches[comm]))
            .collect();
        loop {
            tries.retain(|it| !it.pairs.is_empty());
            // Of equal ones the first.
            let merit = |at: &usize| (tries[*at].is_named, tries[*at].fit, usize::MAX - at);
            let Some(best) = (0..tries.len()).max_by_key(merit) else { return };
            let best = tries.remove(best);
            self.pair_by_order(&best.pairs);
            kernels.retain(|(_, at)| !self.is_paired[*at]);
            if !work.spend(tries.iter().map(|it| it.pairs.len()).sum()) {
                return;
            }
            // The others stay as they are: the kernels that they have are still free.
            for it in tries.iter_mut().filter(|it| self.has_lost_kernels(it)) {
                if !work.spend_on(&kernels, &launches[it.comm]) {
                    return;
                }
                *it = self.attempt(group, it.comm, &kernels, &launches[it.comm]);
            }
        }
    }

    fn attempt(&self, group: usize, comm: usize, kernels: &[Timed], launches: &[usize]) -> Try {
        // Another group may have used some.
        let free = launches.iter().copied().filter(|&at| !self.is_used[at]);
        let pairs = self.align(kernels, &free.collect::<Vec<_>>());
        let (is_named, fit) = (self.is_named(group, comm), self.fit(&pairs));
        Try { comm, pairs, is_named, fit }
    }

    fn has_lost_kernels(&self, it: &Try) -> bool {
        it.pairs.iter().any(|&(kernel, _)| self.is_paired[kernel])
    }

    fn pair_by_order(&mut self, pairs: &[(usize, usize)]) {
        for &(kernel, launch) in pairs {
            let confidence = self.confidence(kernel, launch);
            self.pair((kernel, launch), Key::Order, confidence);
        }
    }

    /// A score of pairs, in which near pairs count more than far ones.
    fn fit(&self, pairs: &[(usize, usize)]) -> i64 {
        let fit = |&(kernel, launch): &(usize, usize)| {
            let distance = self.distance(kernel, launch).unwrap_or(CALL_LIMIT_NS);
            WITHIN_NS * 1000 / (WITHIN_NS + distance)
        };
        pairs.iter().map(fit).sum()
    }

    /// The unused launches, by the time of their call.
    fn free_launches(&self) -> Vec<usize> {
        (0..self.launches.len()).filter(|&at| !self.is_used[at]).collect()
    }

    fn align(&self, kernels: &[(i64, usize)], launches: &[usize]) -> Vec<(usize, usize)> {
        let offset = self.joined.offset.ns;
        let times: Vec<i64> = kernels.iter().map(|(time, _)| time - offset).collect();
        let calls: Vec<i64> = launches.iter().map(|&at| self.launches[at].call_ns).collect();
        let limit = offset::to_f64(CALL_LIMIT_NS + WITHIN_NS);
        let pairs = align(&times, &calls, limit, |kernel, launch| {
            let (kernel, launch) = (kernels[kernel].1, launches[launch]);
            let distance = self.distance(kernel, launch)?;
            self.can_be(&self.trace.kernels[kernel], launch).then(|| offset::to_f64(distance))
        });
        pairs.into_iter().map(|(kernel, launch)| (kernels[kernel].1, launches[launch])).collect()
    }

    /// The distance of a kernel's call from a launch's, ns; `None` if it exceeds [`CALL_LIMIT_NS`].
    fn distance(&self, kernel: usize, launch: usize) -> Option<i64> {
        let kernel = &self.trace.kernels[kernel];
        let call = self.launches[launch].call_ns + self.joined.offset.ns;
        let start = self.call_ns(kernel)?;
        let end = kernel.op.map_or(start, |op| self.trace.ops[op].end_ns);
        let outside = (start - call).max(call - end).max(0);
        let within = (call.min(end) - start).clamp(0, WITHIN_NS);
        (outside < CALL_LIMIT_NS).then_some(outside + within)
    }

    /// Whether the communicator has the process group's name or description.
    fn is_named(&self, group: usize, comm: usize) -> bool {
        let group = &self.trace.groups[group];
        let name = self.comms[comm].name.as_deref().unwrap_or_default();
        !name.is_empty() && [&group.name, &group.description].iter().any(|it| *it == name)
    }

    fn confidence(&self, kernel: usize, launch: usize) -> Confidence {
        let is_sized = self.trace.kernels[kernel].facts.bytes.is_some()
            && !self.launches[launch].sizes.is_empty();
        match (self.joined.offset.is_ambiguous, is_sized) {
            (true, _) => Confidence::Low,
            (false, false) => Confidence::Medium,
            (false, true) => Confidence::High,
        }
    }

    /// Pairs the remaining kernels by the GPU's time, stream by stream.
    fn by_time(&mut self) {
        let mut streams: BTreeMap<String, Vec<Timed>> = BTreeMap::new();
        for (time, at) in self.kernels(|_| true, |kernel| Some(kernel.start_ns)) {
            let Kernel { pid, tid, .. } = &self.trace.kernels[at];
            let time = time - self.joined.offset.ns;
            streams.entry(format!("{pid} {tid}")).or_default().push((time, at));
        }
        let free = self.free_launches().into_iter();
        let mut free: BTreeSet<Timed> = free.map(|at| (self.gpu_start_ns(at), at)).collect();
        for kernels in streams.into_values() {
            for ((_, kernel), launch) in self.align_in_time(&kernels, &near(&free, &kernels)) {
                free.remove(&launch);
                self.pair((kernel, launch.1), Key::Time, Confidence::Low);
            }
        }
    }

    /// Pairs of kernels and launches, both with their start by the recording's clock and sorted by
    /// it.
    fn align_in_time(&self, kernels: &[Timed], launches: &[Timed]) -> Vec<(Timed, Timed)> {
        let times = |of: &[Timed]| of.iter().map(|(time, _)| *time).collect::<Vec<i64>>();
        let limit = offset::to_f64(KERNEL_LIMIT_NS);
        let pairs = align(&times(kernels), &times(launches), limit, |kernel, launch| {
            let ((time, kernel), (start, launch)) = (kernels[kernel], launches[launch]);
            let (found, known) = (&self.trace.kernels[kernel], &self.launches[launch]);
            let (first, last) = known.gpu.unwrap_or((known.start_ns, known.end_ns));
            let distance = (time - start).abs();
            let fits = found.end_ns - self.joined.offset.ns >= first - KERNEL_SLACK_NS
                && time <= last + KERNEL_SLACK_NS
                && distance < KERNEL_LIMIT_NS
                && self.can_be(found, launch);
            fits.then(|| offset::to_f64(distance))
        });
        pairs.into_iter().map(|(kernel, launch)| (kernels[kernel], launches[launch])).collect()
    }

    fn gpu_start_ns(&self, launch: usize) -> i64 {
        let launch = &self.launches[launch];
        launch.gpu.map_or(launch.start_ns, |(first, _)| first)
    }

    /// Computes the clocks' offset from all pairs, and the residual of each.
    fn refine(&mut self) {
        let mut differences = Vec::new();
        for pair in self.joined.pairs.iter().filter(|pair| pair.key != Key::Time) {
            if let Some(call) = self.call_ns(&self.trace.kernels[pair.kernel]) {
                differences.push(call - self.launches[pair.launch].call_ns);
            }
        }
        if !differences.is_empty() {
            let is_ambiguous = self.joined.offset.is_ambiguous;
            self.joined.offset = Offset { is_ambiguous, ..Offset::known(differences) };
        }
        let offset = self.joined.offset.ns;
        let mut pairs = std::mem::take(&mut self.joined.pairs);
        for pair in &mut pairs {
            let kernel = &self.trace.kernels[pair.kernel];
            let call = self.call_ns(kernel).filter(|_| pair.key != Key::Time);
            pair.residual_ns = match call {
                Some(call) => call - self.launches[pair.launch].call_ns - offset,
                None => kernel.start_ns - self.gpu_start_ns(pair.launch) - offset,
            };
        }
        pairs.sort_by_key(|pair| pair.kernel);
        self.joined.pairs = pairs;
    }

    /// When the application called for a kernel, by the trace's clock.
    fn call_ns(&self, kernel: &Kernel) -> Option<i64> {
        let op = kernel.op.map(|op| self.trace.ops[op].start_ns);
        op.or(kernel.launch_ns)
    }

    /// Whether all facts that both sides know agree.
    fn can_be(&self, kernel: &Kernel, launch: usize) -> bool {
        let launch = &self.launches[launch];
        let facts = &kernel.facts;
        let by_kind =
            facts.kind.is_none_or(|it| launch.kinds.is_empty() || launch.kinds.contains(&it));
        let sum: u64 = launch.sizes.iter().sum();
        let by_size = facts
            .bytes
            .is_none_or(|it| launch.sizes.is_empty() || it == sum || launch.sizes.contains(&it));
        by_kind && by_size && self.is_comm(kernel, launch)
    }

    fn is_comm(&self, kernel: &Kernel, launch: &Launch) -> bool {
        let (Some(group), Some(comm)) = (kernel.facts.group, launch.comm) else { return true };
        self.may_be(group, comm, kernel.facts.kind == Some(Kind::SendRecv))
    }

    /// Whether a communicator may be a process group's, for kernels that send and receive
    /// (`sends`) or do not.
    fn may_be(&self, group: usize, comm: usize, sends: bool) -> bool {
        let (size, comm) = (self.trace.groups[group].size, &self.comms[comm]);
        // Sends and receives outside of a group use a communicator of two ranks.
        let is_pair = sends && comm.ranks == 2;
        let by_size = size == 0 || comm.ranks == 0 || size == comm.ranks;
        let by_rank = self.ranks[group].is_none_or(|rank| comm.rank < 0 || comm.rank == rank);
        is_pair || by_size && by_rank
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Facts;
    use crate::json::Insert;
    use crate::trace::Identity;
    use serde_json::Value;

    fn trace(kernels: Vec<Kernel>, groups: Vec<Group>) -> Trace {
        Trace {
            path: "trace.json".into(),
            bytes: 0,
            events: 0,
            unreadable: 0,
            insert: Insert { at: 0, is_first: false },
            base_ns: 0,
            identity: Identity::default(),
            groups,
            ops: Vec::new(),
            kernels,
            beside: BTreeMap::new(),
            is_merged: false,
            window: (0, 0),
        }
    }

    fn kernel(tid: usize, start_ns: i64, group: Option<usize>) -> Kernel {
        Kernel {
            pid: Value::from(0),
            tid: Value::from(tid),
            start_ns,
            end_ns: start_ns + 1_000,
            external_id: None,
            correlation: None,
            op: None,
            launch_ns: group.map(|_| start_ns),
            facts: Facts { group, ..Facts::default() },
        }
    }

    fn launch(call_ns: i64, comm: usize) -> Launch {
        let (start_ns, end_ns) = (call_ns, call_ns + 1_000);
        Launch { comm: Some(comm), call_ns, start_ns, end_ns, ..Launch::default() }
    }

    fn pairs(joined: &Joined) -> Vec<(usize, usize)> {
        joined.pairs.iter().map(|pair| (pair.kernel, pair.launch)).collect()
    }

    /// All launches fit, or only those after very many of another function. Time that is not in
    /// proportion is hours: nextest ends this test and the next two after ten minutes.
    #[test]
    fn kernels_of_one_external_id_take_time_in_proportion() {
        for others in [0, 100_000] {
            let kernels = (0..200_000).map(|at| {
                let external_id = Some(7);
                let facts = Facts { kind: Some(Kind::AllReduce), ..Facts::default() };
                Kernel { external_id, facts, ..kernel(0, at * 2_000, None) }
            });
            let launches = (0..200_000).map(|at| {
                let is_other = at < others;
                let external_ids = vec![7];
                let kinds = if is_other { vec![Kind::AllGather] } else { Vec::new() };
                Launch { external_ids, kinds, ..launch(at * 2_000, 0) }
            });
            let (trace, launches) =
                (trace(kernels.collect(), Vec::new()), launches.collect::<Vec<_>>());
            let joined = join(&trace, &launches, &[Comm::default()]);
            let by_id = joined.count(Key::ExternalId);
            assert_eq!(by_id, if others == 0 { 200_000 } else { 0 });
        }
    }

    #[test]
    fn kernels_on_as_many_streams_take_time_in_proportion() {
        // The latter half has no launches nearby.
        let of = |at: usize| i64::try_from(at).unwrap() * 20_000_000;
        let kernels = (0..40_000).map(|at| kernel(at, of(at), None)).collect();
        let launches: Vec<Launch> = (0..20_000).map(|at| launch(of(at), 0)).collect();
        let trace = trace(kernels, Vec::new());
        let joined = join(&trace, &launches, &[Comm::default()]);
        let found = pairs(&joined);
        assert!(found.len() == 20_000 && found.iter().all(|(kernel, launch)| kernel == launch));
    }

    #[test]
    fn a_group_with_thousands_of_communicators_takes_bounded_time() {
        let comms: Vec<Comm> =
            (0..1_500).map(|index| Comm { index, ranks: 2, rank: 1, ..Comm::default() }).collect();
        let group = Group { name: "p2p".into(), size: 2, ..Group::default() };
        // One launch of each communicator.
        let of = |at: usize| i64::try_from(at * 20_000_000 + at * 7919 % 1009 * 10_000).unwrap();
        let kernels = (0..comms.len()).map(|at| kernel(0, of(at), Some(0))).collect();
        let launches: Vec<Launch> = (0..comms.len()).map(|at| launch(of(at), at)).collect();
        let joined = join(&trace(kernels, vec![group]), &launches, &comms);
        assert_eq!((joined.count(Key::Order), joined.pairs.len()), (1_500, 1_500));
        assert!(pairs(&joined).iter().all(|(kernel, launch)| kernel == launch));
    }

    #[test]
    fn work_that_costs_too_much_is_not_begun() {
        let mut work = Work::new(0);
        assert!(work.spend(1 << 28) && !work.spend(1) && work.spend(0));
    }
}
