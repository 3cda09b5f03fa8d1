// SPDX-License-Identifier: Apache-2.0
/*!
Finds the operations that are over, and adds their results to the window.

An operation is over by the same rule as in reports and in the watchdog
([`ncclscope_operations::ends`]). Children start late: ProxyOps start after the operation was
enqueued, and the kernel after all earlier work of its stream. An operation therefore settles only
when it has been over for two looks and for [`SETTLE_NS`] without a new child. The time is
[`CHILD_NS`] for an operation without any child. It is [`KERNEL_NS`] if NCCL should report the
operation's kernel and has not yet, or if the kernel's stop is not its end and nothing else shows
the end.
*/

use super::comms::{Comms, InFlight};
use super::family::{Families, Family, Head, PartKind};
use super::launches::Launches;
use super::network::{Network, Sent};
use crate::window::{Metrics, OperationKey, Operations};
use ncclscope_operations::Facts;
use ncclscope_operations::bandwidth::bus_factor;
use ncclscope_operations::hash::Map;
use ncclscope_operations::operation::{Completion, Evidence, Timing};
use ncclscope_operations::stats::to_f64;
use ncclscope_trace::StrId;
use ncclscope_trace::kind::KINDS;
use std::collections::BTreeSet;

/// Time for which an operation must have been over before it settles, ns. A record of another lane
/// may be read 250 ms late.
const SETTLE_NS: f64 = 500e6;

/// As `SETTLE_NS`, for an operation without children, because the proxy progress thread may be
/// delayed.
const CHILD_NS: f64 = 2e9;
/// As `SETTLE_NS`, for an operation whose kernel is missing. Also the time within which a
/// communicator's first operations show whether kernels are reported at all.
const KERNEL_NS: f64 = 10e9;

/// Time after a communicator was finalized at which its open operations count as unfinished, ns.
const UNFINISHED_NS: f64 = 15e9;

/// An operation is over if one that started this much later is over, ns: the operations of a
/// communicator complete in the order of their launches, and those of one group are launched within
/// this time.
const OVERTAKEN_NS: f64 = 30e9;

/// An operation is over if the oldest operation that the rank's watchdog sees in flight started
/// this much later, ns. The watchdog knows the losses, and late records have been read by then.
const PAST_NS: f64 = 5e9;

/// An operation's key in the numbers of the records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Class {
    comm: u16,
    func: StrId,
    algo: StrId,
    proto: StrId,
    is_p2p: bool,
    channels: u16,
    /// As [`OperationKey::size_class`]; `None` if unknown.
    size_class: Option<u8>,
    timing: Timing,
    network: bool,
}

/// Operations that settled since the window began, and operations in flight.
#[derive(Debug, Default)]
pub(super) struct Settled {
    operations: Map<Class, Operations>,
    /// Communicator, start and end (ticks) of the operations that settled in this look.
    times: Vec<(u16, u64, u64)>,
    /// Number of operations that were open when their communicator was finalized, by kind.
    pub(super) unfinished: [u64; KINDS],
    /// Number of operations whose end was lost, by kind: a later one of the communicator is over,
    /// or the rank's watchdog reports them as over.
    pub(super) overtaken: [u64; KINDS],
    pub(super) in_flight: Map<u16, InFlight>,
    /// The starts of the latest operations that are over, by communicator.
    latest: Map<u16, Latest>,
    /// Start of counting, in ticks: operations that ended before it are ignored.
    pub(super) began: Option<u64>,
}

/// Starts, in ticks, of the latest operations of a communicator that are over.
#[derive(Clone, Copy, Debug, Default)]
struct Latest {
    /// Of any operation that is over, even if only its own stop shows it.
    any: u64,
    /// Of an operation whose children show that the GPU ran it.
    seen: u64,
}

/// The parameters of a look.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    pub(super) now: u64,
    pub(super) ns_per_tick: f64,
    /// It is the last look, in which all operations that are over settle.
    pub(super) is_last: bool,
}

impl Settled {
    /// Lets operations settle. Returns communicator, start and end (ticks) of those that did.
    pub(super) fn look(
        &mut self,
        look: Look,
        families: &mut Families,
        (comms, network, launches): (&mut Comms, &Network, &mut Launches),
    ) -> Vec<(u16, u64, u64)> {
        let ended = comms.ended(|at| look.ns_since(at) >= UNFINISHED_NS);
        self.in_flight.clear();
        families.settle(|families, family| {
            let Some(head) = &family.head else { return false };
            let Some(facts) = Facts::of(&head.start.detail) else { return true };
            let (mut evidence, sent) = judge(families, family, head, (network, comms), &facts);
            evidence.add_launch(launches.of_call(head.start.parent, !look.is_last));
            comms.saw_channels(head.start.comm, evidence.kernels(), &facts, false);
            comms.add_order(&mut evidence, &facts, (&head.start, head.stream));
            let completion =
                if facts.is_copy() { evidence.ce_completion() } else { evidence.completion() };
            // At the end, a heartbeat of the last second may be older than the operation's end.
            let is_certain = !look.is_last || look.ns_since(head.start.ticks) >= CHILD_NS;
            let is_watched = is_certain
                && completion == Completion::Unseen
                && comms.is_seen_in_flight(head.start.comm, head.start.ticks);
            let completion = if is_watched { Completion::Open } else { completion };
            let has_ended = ended.contains(&head.start.comm);
            if completion == Completion::Open && has_ended {
                self.unfinished[head.start.handle.kind().index()] += 1;
                return true;
            }
            let is_overtaken =
                || self.is_overtaken(head, &evidence, look) || look.is_past(head, comms);
            if completion == Completion::Open && is_overtaken() {
                self.overtaken[head.start.handle.kind().index()] += 1;
                return true;
            }
            if completion == Completion::Open {
                self.add_open(head, facts);
                family.quiet_since = None;
                return false;
            }
            let wait_ns = look.wait_ns(head, &facts, &evidence, comms);
            let is_over =
                look.is_last || has_ended || look.was_over_before(family.quiet_since, wait_ns);
            let is_unseen = is_over && completion == Completion::Unseen;
            if is_over {
                comms.streams.forget(&head.start);
            }
            if is_unseen && comms.is_invisible_replay(&head.start) {
                launches.forget(head.start.parent);
            } else if is_over {
                comms.saw_channels(head.start.comm, evidence.kernels(), &facts, true);
                self.add(head, &facts, (&evidence, completion), sent, (comms, look.ns_per_tick));
                launches.forget(head.start.parent);
            } else if family.quiet_since.is_none_or(|since| since > look.now) {
                family.quiet_since = Some(look.now);
            }
            is_over
        });
        std::mem::take(&mut self.times)
    }
}

impl Look {
    /// The time for which an operation must have been over, ns.
    fn wait_ns(&self, head: &Head, facts: &Facts, evidence: &Evidence, comms: &Comms) -> f64 {
        let comm = head.start.comm;
        let is_new = |first| self.ns_since(first) < KERNEL_NS;
        match evidence.lacks_kernels() {
            Some(has_some) if has_some || comms.awaits_kernel(facts, &head.start) => KERNEL_NS,
            Some(_) if comms.untried_since(comm).is_some_and(is_new) => KERNEL_NS,
            _ if evidence.is_childless() => CHILD_NS,
            // A later kernel may still show its end.
            _ if evidence.completion() == Completion::Unseen => KERNEL_NS,
            _ => SETTLE_NS,
        }
    }

    fn was_over_before(&self, since: Option<u64>, wait_ns: f64) -> bool {
        since.is_some_and(|since| self.ns_since(since) >= wait_ns)
    }

    /// Whether an operation that seems open is not in flight according to the rank's watchdog.
    fn is_past(&self, head: &Head, comms: &Comms) -> bool {
        let by = comms.past_since(head.start.comm, head.start.ticks);
        to_f64(by) * self.ns_per_tick >= PAST_NS
    }

    pub(super) fn ns_since(&self, since: u64) -> f64 {
        to_f64(self.now.saturating_sub(since)) * self.ns_per_tick
    }

    /// Whether `since` is so long ago that all late records have come.
    pub(super) fn is_long_after(&self, since: u64) -> bool {
        self.ns_since(since) >= SETTLE_NS
    }
}

/// The facts that the children of an operation show.
fn judge(
    families: &Families,
    family: &Family,
    head: &Head,
    (network, comms): (&Network, &Comms),
    facts: &Facts,
) -> (Evidence, Option<Sent>) {
    let stops_early = facts.stops_early(|id| comms.name(id));
    let mut evidence = Evidence::new(head.start.ticks, head.stop, facts, stops_early);
    let mut sent: Option<Sent> = None;
    let is_own = facts.sends_own_first(|id| comms.name(id));
    for part in family.parts.iter().filter_map(|&at| families.part(at)) {
        match part.kind {
            _ if facts.is_copy() => evidence.add_child(part.stop),
            // NCCL also starts ProxyOps for shared memory, and never advances or stops them.
            PartKind::Proxy | PartKind::Adopted
                if part.moved || part.place.is_some_and(|p| network.is_known(p)) =>
            {
                evidence.add_child(part.stop);
                evidence.add_ready(part.sent.ready.filter(|_| is_own));
                sent.get_or_insert_default().add(Sent { stop: part.stop, ..part.sent });
            }
            PartKind::Proxy | PartKind::Adopted | PartKind::Copy => {}
            PartKind::Kernel { ptimer, .. } => {
                evidence.add_kernel((part.start, part.stop), (ptimer, part.ptimer_stop));
            }
        }
    }
    (evidence, sent)
}

impl Settled {
    /// Whether a later operation shows that this one is over and its end was lost. For an operation
    /// without children any later operation that is over proves it, because calls are made one
    /// after another.
    fn is_overtaken(&self, head: &Head, evidence: &Evidence, look: Look) -> bool {
        let Some(latest) = self.latest.get(&head.start.comm) else { return false };
        let by = if evidence.is_childless() { latest.any } else { latest.seen };
        to_f64(by.saturating_sub(head.start.ticks)) * look.ns_per_tick >= OVERTAKEN_NS
    }

    fn add_open(&mut self, head: &Head, facts: Facts) {
        let (comm, oldest) = (head.start.comm, head.start.ticks);
        let open = self.in_flight.entry(comm).or_insert(InFlight { count: 0, oldest, facts });
        open.count += 1;
        if oldest < open.oldest {
            (open.oldest, open.facts) = (oldest, facts);
        }
    }

    fn add(
        &mut self,
        head: &Head,
        facts: &Facts,
        (evidence, completion): (&Evidence, Completion),
        sent: Option<Sent>,
        (comms, ns_per_tick): (&Comms, f64),
    ) {
        let comm = head.start.comm;
        let end = match completion {
            Completion::Done(stop) => stop,
            _ => head.stop.unwrap_or(head.start.ticks),
        };
        if self.began.is_some_and(|began| end <= began) {
            return;
        }
        self.times.push((comm, head.start.ticks, end));
        let (timing, ns) = if facts.is_copy() {
            evidence.ce_duration(ns_per_tick)
        } else {
            evidence.duration(ns_per_tick)
        };
        let latest = self.latest.entry(comm).or_default();
        latest.any = latest.any.max(head.start.ticks);
        if timing != Timing::Enqueue {
            latest.seen = latest.seen.max(head.start.ticks);
        }
        let ranks = comms.ranks(comm);
        let bytes = facts.bytes(|id| comms.name(id), ranks);
        let class = Class {
            comm: comms.place(comm),
            func: facts.func,
            algo: facts.algo,
            proto: facts.proto,
            is_p2p: facts.is_p2p(),
            channels: evidence.channels(facts),
            size_class: bytes.map(size_class),
            timing,
            network: sent.is_some(),
        };
        let sums = self.operations.entry(class).or_default();
        sums.count += 1;
        sums.bytes = sums.bytes.saturating_add(bytes.unwrap_or(0));
        let seconds = ns.unwrap_or(0.0) / 1e9;
        sums.duration.add(seconds);
        let factor = bus_factor(&comms.name(facts.func), ranks);
        let kernel = evidence.kernel_ns().filter(|ns| *ns > 0.0);
        if let Some(ns) = kernel {
            sums.compat.kernel.add(ns / 1e9);
        }
        if let Some(((bytes, factor), ns)) = bytes.zip(factor).zip(kernel) {
            sums.compat.kernel_bandwidth.add(to_f64(bytes) * factor / ns * 1e9);
        }
        if let Some(stop) = sent.and_then(|sent| sent.stop) {
            sums.compat.proxy.add(evidence.host_ns(stop, ns_per_tick) / 1e9);
        }
        let with_waiting = evidence.with_waiting(ns_per_tick).filter(|ns| *ns > 0.0);
        if let Some((bytes, ns)) = bytes.zip(with_waiting.filter(|_| !facts.is_copy())) {
            let rate = to_f64(bytes) / ns * 1e9;
            sums.algo_bandwidth.add(rate);
            if let Some(factor) = factor {
                sums.bus_bandwidth.add(rate * factor);
            }
        }
        let sent = sent.unwrap_or_default();
        sums.transfers += sent.transfers;
        sums.transfer_bytes += sent.bytes;
        sums.transfer_seconds += to_f64(sent.ticks) * ns_per_tick / 1e9;
    }

    /// Forgets finalized communicators.
    pub(super) fn forget(&mut self, comms: &BTreeSet<u16>) {
        self.latest.retain(|comm, _| !comms.contains(comm));
    }

    /// Moves the sums of the settled operations to the window.
    pub(super) fn take(&mut self, metrics: &mut Metrics, comms: &Comms) {
        for (class, sums) in self.operations.drain() {
            let key = OperationKey {
                comm: comms.key(class.comm),
                rank: comms.rank(class.comm),
                func: comms.name(class.func),
                is_p2p: class.is_p2p,
                algo: comms.name(class.algo),
                proto: comms.name(class.proto),
                channels: class.channels,
                size_class: class.size_class,
                timing: class.timing,
                network: class.network,
            };
            metrics.operations.entry(key).or_default().merge(&sums);
        }
    }
}

/// The exponent of the greatest power of two that is at most `bytes`.
fn size_class(bytes: u64) -> u8 {
    u8::try_from(bytes.max(1).ilog2()).unwrap_or(u8::MAX)
}
