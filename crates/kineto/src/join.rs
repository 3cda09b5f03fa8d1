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

use crate::align::align;
use crate::facts::Group;
use crate::offset::{self, Offset};
use crate::trace::{Kernel, Trace};
use ncclscope_operations::function::Kind;
use ncclscope_operations::launches::Launch;
use ncclscope_trace::Comm;

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
/// Greatest distance of the starts of a pair that is found by time alone.
const KERNEL_LIMIT_NS: i64 = 200_000_000;

/// Pairs the kernels of a trace with the launches of a recording, whose communicators are `comms`.
#[must_use]
pub fn join(trace: &Trace, launches: &[Launch], comms: &[Comm]) -> Joined {
    let mut joiner = Joiner {
        trace,
        launches,
        comms,
        is_paired: vec![false; trace.kernels.len()],
        is_used: vec![false; launches.len()],
        joined: Joined::default(),
    };
    joiner.by_external_id();
    joiner.find_offset();
    for group in (0..trace.groups.len()).map(Some).chain([None]) {
        joiner.by_order(group);
    }
    joiner.by_time();
    joiner.refine();
    joiner.joined
}

struct Joiner<'a> {
    trace: &'a Trace,
    launches: &'a [Launch],
    comms: &'a [Comm],
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
                let launches = by_id.get(&id)?;
                let mut free = launches.iter().rev().copied().filter(|&l| !self.is_used[l]);
                free.find(|&launch| self.can_be(kernel, launch))
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

    /// Pairs the kernels of a process group (`None`: kernels without one) by order. The group's
    /// communicator is the one with its name, else the one whose launches fit best. A group that
    /// sends and receives between pairs of ranks may have several communicators.
    fn by_order(&mut self, group: Option<usize>) {
        let mut open: Vec<Option<usize>> = (0..self.comms.len()).map(Some).collect();
        if group.is_none() {
            open = vec![None];
        }
        loop {
            let kernels = self.kernels(|k| k.facts.group == group, |k| self.call_ns(k));
            let tries = open.iter().map(|&comm| self.align(&kernels, &self.launches_of(comm)));
            let tries: Vec<Vec<(usize, usize)>> = tries.collect();
            let best = (0..open.len()).filter(|&at| !tries[at].is_empty()).max_by_key(|&at| {
                (self.is_named(group, open[at]), self.fit(&tries[at]), usize::MAX - at)
            });
            let Some(best) = best else { return };
            open.remove(best);
            for &(kernel, launch) in &tries[best] {
                let confidence = self.confidence(kernel, launch);
                self.pair((kernel, launch), Key::Order, confidence);
            }
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

    /// The unused launches of a communicator (`None`: of all), by the time of their call.
    fn launches_of(&self, comm: Option<usize>) -> Vec<usize> {
        let all = self.launches.iter().enumerate();
        let mine = all.filter(|(at, it)| !self.is_used[*at] && (comm.is_none() || it.comm == comm));
        mine.map(|(at, _)| at).collect()
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
    fn is_named(&self, group: Option<usize>, comm: Option<usize>) -> bool {
        let (Some(group), Some(comm)) = (group, comm) else { return false };
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
        let offset = self.joined.offset.ns;
        let mut streams: Vec<_> = self.trace.kernels.iter().map(|k| (&k.pid, &k.tid)).collect();
        streams.sort_by_cached_key(|(pid, tid)| format!("{pid} {tid}"));
        streams.dedup();
        for stream in streams {
            let kernels = self.kernels(|k| (&k.pid, &k.tid) == stream, |k| Some(k.start_ns));
            let times: Vec<i64> = kernels.iter().map(|(time, _)| time - offset).collect();
            let mut free = self.launches_of(None);
            free.sort_by_key(|&at| self.gpu_start_ns(at));
            let starts: Vec<i64> = free.iter().map(|&at| self.gpu_start_ns(at)).collect();
            let limit = offset::to_f64(KERNEL_LIMIT_NS);
            let pairs = align(&times, &starts, limit, |kernel, launch| {
                let found = &self.trace.kernels[kernels[kernel].1];
                let known = &self.launches[free[launch]];
                let (first, last) = known.gpu.unwrap_or((known.start_ns, known.end_ns));
                let distance = (times[kernel] - starts[launch]).abs();
                let fits = found.end_ns - offset >= first - KERNEL_SLACK_NS
                    && times[kernel] <= last + KERNEL_SLACK_NS
                    && distance < KERNEL_LIMIT_NS
                    && self.can_be(found, free[launch]);
                fits.then(|| offset::to_f64(distance))
            });
            for (kernel, launch) in pairs {
                self.pair((kernels[kernel].1, free[launch]), Key::Time, Confidence::Low);
            }
        }
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
        let (group, comm) = (&self.trace.groups[group], &self.comms[comm]);
        // Sends and receives outside of a group use a communicator of two ranks.
        let is_pair = kernel.facts.kind == Some(Kind::SendRecv) && comm.ranks == 2;
        let by_size = group.size == 0 || comm.ranks == 0 || group.size == comm.ranks;
        is_pair || by_size && self.is_rank(group, comm)
    }

    fn is_rank(&self, group: &Group, comm: &Comm) -> bool {
        let Some((rank, _)) = self.trace.identity.rank else { return true };
        let mine = group.ranks.iter().position(|&it| it == rank);
        let Some(mine) = mine.and_then(|at| i32::try_from(at).ok()) else { return true };
        comm.rank < 0 || comm.rank == mine
    }
}
