// SPDX-License-Identifier: Apache-2.0
//! Operations in flight, with the state of their children.

use super::calls::{Launch, LaunchFate};
use super::comms::{CommState, Comms, FinishedOperation, Sort};
use super::names::Names;
use super::proxies::{Proxy, ProxyView};
use crate::channels::ChannelSet;
use crate::ends::{Over, Signs};
use crate::facts::{Facts, Launched};
use crate::hash::Map;
use crate::order::StreamOrder;
use ncclscope_trace::{EventKind, Handle, Start};
use std::collections::hash_map::Entry;

/// Most tracked operations (`MAX_OPS`) and kernel channels (`MAX_CHILDREN`); of more the oldest are
/// kept.
pub(super) const MAX_OPS: usize = 1 << 13;
const MAX_CHILDREN: usize = 1 << 14;
/// Half seconds without change after which an operation that is over settles: lanes are read up to
/// a quarter of a second late, and ProxyOps that have not moved may still move (`MAY_MOVE_HALVES`).
const SETTLES_HALVES: u64 = 1;
const MAY_MOVE_HALVES: u64 = 4;
/// Half seconds after which a kernel that was recorded on fewer channels than NCCL announced counts
/// as complete, unless kernels of its communicator always run on all channels.
const LACKS_HALVES: u64 = 2;
/// Seconds after which children whose operation's start was not read are removed.
const PATIENCE_S: u64 = 10;

/// An operation in flight, at the last look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpView {
    /// Its handle.
    pub handle: Handle,
    /// [`ncclscope_trace::Comm::index`].
    pub comm: u16,
    /// Its number among the communicator's collectives, or sends and receives; from 1.
    pub number: u64,
    /// Its description.
    pub facts: Facts,
    /// When it started, in ticks.
    pub start: u64,
    /// NCCL has enqueued it.
    pub enqueued: bool,
    /// Time of its last change, or of the end of the operation before it if that is later, in
    /// ticks.
    pub since: u64,
    /// Channels on which its kernel started.
    pub started: ChannelSet,
    /// Channels on which its kernel stopped.
    pub stopped: ChannelSet,
    /// Whether its kernel has not started, so that NCCL has still to report it.
    pub awaits_kernel: bool,
    /// Whether its kernel has started on some channels, and NCCL has still to report others.
    pub awaits_channels: bool,
    /// Whether the stop of its kernel is not its end.
    pub stops_early: bool,
    /// A rank of this process that has not entered it; `None` if there is none.
    pub absent: Option<i32>,
    /// Whether NCCL has still to report its network part.
    pub awaits_network: bool,
    /// The launch of its kernel, if NCCL reported one.
    pub launch: Option<Launch>,
    /// Records of its kernel channels or ProxyOps were lost, or are no longer written.
    pub is_lossy: bool,
    /// No operation of its communicator is over yet.
    pub is_first: bool,
    /// Ticks without progress that all but one in a thousand earlier operations of its
    /// communicator, function and size did not exceed; 0 if there was none.
    pub usual: u64,
    /// All its data was moved, and NCCL has not stopped its ProxyOps, because it stops them
    /// together with those to other peers in the same kernel.
    pub is_only_unstopped: bool,
    /// Its ProxyOps in flight on the network.
    pub proxies: Vec<ProxyView>,
}

/// An operation, or only its children if its start was not read yet.
#[derive(Debug, Default)]
struct Op {
    head: Option<Head>,
    enqueued: bool,
    started: ChannelSet,
    stopped: ChannelSet,
    kernels: usize,
    open_kernels: u32,
    open_parts: u32,
    open_proxies: u32,
    /// A ProxyOp of it moved data.
    network: bool,
    /// Number of its ProxyOps in flight that moved data, in this look (`moving`), and of those that
    /// moved all of it.
    moving: u32,
    moved_all: u32,
    /// It is only in flight because NCCL has not stopped its ProxyOps.
    is_only_unstopped: bool,
    /// Its launch has not ended, by CUDA events.
    runs: bool,
    /// It has ended, by CUDA events.
    ended: bool,
    /// Starts of kernel channels (`lacks_kernels`), or of ProxyOps, were lost.
    lacks_kernels: bool,
    lacks_proxies: bool,
    changed: u64,
    /// A rank of this process has not entered it.
    absent: Option<i32>,
    is_open: bool,
}

#[derive(Debug)]
struct Head {
    comm: u16,
    /// By arrival, until a look sorts it (`renumber`).
    number: u64,
    facts: Facts,
    own: Launched,
    launch: Option<Launch>,
}

/// All tracked operations.
#[derive(Debug, Default)]
pub(super) struct Ops {
    ops: Map<Handle, Op>,
    streams: StreamOrder,
    /// Kernel channels and copy parts in flight, with their operation and channel.
    children: Map<Handle, (Handle, u8)>,
}

impl Ops {
    /// Whether there is no room for another operation.
    pub(super) fn is_full(&self) -> bool {
        self.ops.len() >= MAX_OPS
    }

    /// Whether the operation is tracked: in flight, or over but not settled at the last look.
    pub(super) fn has(&self, handle: Handle) -> bool {
        self.ops.contains_key(&handle)
    }

    /// The entry of an operation, whose start may not have been read yet; `None` if there is no
    /// room for it.
    fn place(&mut self, handle: Handle) -> Option<&mut Op> {
        let is_full = self.ops.len() >= MAX_OPS;
        match self.ops.entry(handle) {
            Entry::Vacant(_) if is_full => None,
            entry => Some(entry.or_default()),
        }
    }

    /// Forgets operations that started at `until` or before.
    pub(super) fn forget(&mut self, until: u64) {
        // If only children were read, the operation started before their last change.
        let start = |op: &Op| op.head.as_ref().map_or(op.changed, |head| head.own.start);
        self.ops.retain(|_, op| start(op) > until);
        self.children.retain(|_, (parent, _)| self.ops.contains_key(parent));
    }

    /// Takes the start of an operation. If there is no room for it, it is only counted.
    pub(super) fn head(&mut self, comms: &mut Comms, start: &Start, launch: Option<Launch>) {
        let Some(facts) = Facts::of(&start.detail) else { return };
        let own = Launched::of(start);
        let comm = comms.get(start.comm);
        let number = comm.count(own.start, facts.is_p2p());
        comm.order.operation(&facts, own);
        if self.is_full() && !self.ops.contains_key(&start.handle) {
            return;
        }
        let op = self.ops.entry(start.handle).or_default();
        op.changed = op.changed.max(start.ticks);
        let head = Head { comm: start.comm, number, facts, own, launch };
        if op.kernels > 0 {
            comm.saw_kernel(own, facts.is_p2p());
            self.streams.kernel(launch.map_or(0, |launch| launch.stream), own);
        }
        op.head = Some(head);
    }

    /// Takes the stop of an operation's own event: it is enqueued.
    pub(super) fn enqueued(&mut self, handle: Handle, ticks: u64) {
        let Some(op) = self.place(handle) else { return };
        op.enqueued = true;
        op.changed = op.changed.max(ticks);
    }

    pub(super) fn kernel(&mut self, comms: &mut Comms, start: &Start, channel: u8) {
        if start.parent.is_null() {
            return;
        }
        let head = self.ops.get(&start.parent).and_then(|op| op.head.as_ref());
        let begun = head.map_or(start.ticks, |head| head.own.start);
        if !comms.get(start.comm).order.is_believed(begun) {
            return;
        }
        let is_followed = self.children.len() < MAX_CHILDREN;
        if is_followed {
            self.children.insert(start.handle, (start.parent, channel));
        }
        comms.get(start.comm).kernel_lane = Some(start.handle.lane());
        let Some(op) = self.place(start.parent) else { return };
        op.kernels += 1;
        op.started.insert(channel);
        if is_followed {
            op.open_kernels += 1;
        } else {
            // It is not tracked as a child, so its stop cannot be found and is assumed.
            op.stopped.insert(channel);
        }
        op.changed = op.changed.max(start.ticks);
        let Some(head) = self.ops.get(&start.parent).and_then(|op| op.head.as_ref()) else {
            return;
        };
        comms.get(head.comm).saw_kernel(head.own, head.facts.is_p2p());
        self.streams.kernel(head.launch.map_or(0, |launch| launch.stream), head.own);
    }

    /// Takes the start of a part of a copy-engine collective.
    pub(super) fn part(&mut self, start: &Start) {
        if start.parent.is_null() || self.children.len() >= MAX_CHILDREN {
            return;
        }
        self.children.insert(start.handle, (start.parent, 0));
        let Some(op) = self.place(start.parent) else { return };
        op.open_parts += 1;
        op.changed = op.changed.max(start.ticks);
    }

    /// Takes the stop of a kernel channel or of a part of a copy-engine collective.
    pub(super) fn child_stopped(&mut self, handle: Handle, ticks: u64) {
        let Some((parent, channel)) = self.children.remove(&handle) else { return };
        let Some(op) = self.ops.get_mut(&parent) else { return };
        if handle.kind() == EventKind::KernelCh {
            op.open_kernels = op.open_kernels.saturating_sub(1);
            op.stopped.insert(channel);
        } else {
            op.open_parts = op.open_parts.saturating_sub(1);
        }
        op.changed = op.changed.max(ticks);
    }

    /// Takes the start of a ProxyOp. False if there is no room for its operation.
    pub(super) fn proxy(&mut self, parent: Handle, ticks: u64) -> bool {
        let Some(op) = self.place(parent) else { return false };
        op.open_proxies += 1;
        op.changed = op.changed.max(ticks);
        true
    }

    pub(super) fn proxy_stopped(&mut self, proxy: &Proxy, ticks: u64) {
        if let Some(op) = self.ops.get_mut(&proxy.op) {
            op.open_proxies = op.open_proxies.saturating_sub(1);
            op.network |= proxy.moved;
            op.changed = op.changed.max(ticks);
        }
    }

    pub(super) fn proxy_moves(&mut self, proxy: &Proxy) {
        if let Some(op) = self.ops.get_mut(&proxy.op) {
            op.network = true;
            op.moving += 1;
            op.moved_all += u32::from(proxy.has_moved_all());
            op.changed = op.changed.max(proxy.changed);
        }
    }

    /// Takes the lost start of a child of `parent`: the operation may have children of that kind
    /// without a record.
    pub(super) fn missed(&mut self, comms: &mut Comms, kind: EventKind, parent: Handle) {
        if parent.is_null() || !matches!(kind, EventKind::KernelCh | EventKind::ProxyOp) {
            return;
        }
        let Some(op) = self.place(parent) else { return };
        op.lacks_kernels |= kind == EventKind::KernelCh;
        op.lacks_proxies |= kind == EventKind::ProxyOp;
        if let Some(head) = op.head.as_ref().filter(|_| op.lacks_kernels) {
            comms.get(head.comm).saw_kernel(head.own, head.facts.is_p2p());
        }
    }

    /// Updates the state of the launch of each operation, from CUDA events.
    pub(super) fn ask(&mut self, comms: &mut Comms, fate: &dyn Fn(Handle) -> LaunchFate) {
        for op in self.ops.values_mut() {
            let Some((comm, launch)) = op.head.as_ref().map(|head| (head.comm, head.launch)) else {
                continue;
            };
            let fate = launch.map_or(LaunchFate::Unknown, |launch| fate(launch.handle));
            let did_run = op.runs;
            op.runs =
                matches!(fate, LaunchFate::Waits | LaunchFate::Runs { .. } | LaunchFate::Lost);
            // A launch that ran and is no longer known has ended.
            op.ended |= matches!(fate, LaunchFate::Ended { .. }) || did_run && !op.runs;
            if let LaunchFate::Runs { since: at } | LaunchFate::Ended { at } = fate {
                op.changed = op.changed.max(at);
            }
            comms.get(comm).is_timed |= fate != LaunchFate::Unknown;
        }
    }

    /// Finds the operations that are over, and removes those that are over for long enough; with
    /// `in_a_hurry` all that are over.
    pub(super) fn look(
        &mut self,
        comms: &mut Comms,
        names: &Names,
        (now, hz): (u64, u64),
        in_a_hurry: bool,
    ) {
        self.renumber(comms);
        self.learn(comms);
        let streams = &self.streams;
        let mut over = Vec::new();
        let mut left_open: Map<Handle, ()> = Map::default();
        self.ops.retain(|&handle, op| {
            let quiet = now.saturating_sub(op.changed);
            let Some(head) = &op.head else { return quiet < hz.saturating_mul(PATIENCE_S) };
            // Only for collectives, because a rank that has not entered cannot hold up a send or
            // receive between others.
            let absent = (!head.facts.is_p2p()).then(|| comms.absent(head.comm, head.number));
            op.absent = absent.flatten();
            let comm = comms.get(head.comm);
            let stops_early = names.stops_early(&head.facts);
            let passed = head.launch.is_some_and(|it| streams.is_followed(it.stream, head.own));
            op.is_open = op.is_in_flight((head, stops_early), (comm, passed), (quiet, hz));
            op.is_only_unstopped = op.enqueued
                && head.facts.is_p2p()
                && op.moving > 0
                && op.moved_all == op.moving
                && op.open_kernels + op.open_parts == 0;
            if op.is_open {
                let began = (op.is_only_unstopped, head.own.start, head.number);
                comm.add_open(began, head.facts.is_p2p(), op.changed);
            } else if op.shows_its_end() {
                comm.saw_end(op.changed);
            }
            (op.moving, op.moved_all) = (0, 0);
            let halves = if op.open_proxies > 0 { MAY_MOVE_HALVES } else { SETTLES_HALVES };
            // No more records come of a finalized communicator.
            let is_quiet = comm.ended || in_a_hurry || quiet >= hz / 2 * halves;
            let settles = !op.is_open && is_quiet;
            if settles {
                if op.kernels > 0 && !op.lacks_kernels {
                    comm.order.saw_channels(op.kernels, &head.facts, true);
                }
                let is_certain = op.kernels > 0 || comm.is_networked_after(head.own.start);
                if is_certain && !op.network && !op.lacks_proxies {
                    Sort::of(&head.facts).into_iter().for_each(|sort| comm.saw_no_network(sort));
                }
                let Head { comm, number, facts, own, .. } = *head;
                over.push((
                    comm,
                    FinishedOperation { number, facts, start: own.start, end: op.changed },
                ));
            }
            if comm.ended && op.open_kernels + op.open_parts > 0 {
                left_open.insert(handle, ());
            }
            !settles && !comm.ended
        });
        if !left_open.is_empty() {
            self.children.retain(|_, (parent, _)| !left_open.contains_key(parent));
        }
        over.sort_unstable_by_key(|(_, past)| past.start);
        for (comm, past) in over {
            comms.add_past(comm, past);
        }
    }

    /// Gives the tracked operations of a communicator their numbers in the order of their starts,
    /// if they arrived in another one: several threads enqueue them, each on its lane, and a lane
    /// may be read a quarter of a second late. An operation settles later than that.
    fn renumber(&mut self, comms: &mut Comms) {
        let mut unsorted: Map<(u16, bool), Vec<&mut Head>> = comms.take_unsorted();
        if unsorted.is_empty() {
            return;
        }
        for head in self.ops.values_mut().filter_map(|op| op.head.as_mut()) {
            if let Some(heads) = unsorted.get_mut(&(head.comm, head.facts.is_p2p())) {
                heads.push(head);
            }
        }
        for mut heads in unsorted.into_values() {
            let mut numbers: Vec<u64> = heads.iter().map(|head| head.number).collect();
            numbers.sort_unstable();
            heads.sort_by_key(|head| (head.own.start, head.number));
            heads.into_iter().zip(numbers).for_each(|(head, number)| head.number = number);
        }
    }

    /// Collects what operations imply about others, before any is judged, because the map is
    /// unordered.
    fn learn(&self, comms: &mut Comms) {
        for op in self.ops.values() {
            let Some(head) = &op.head else { continue };
            let comm = comms.get(head.comm);
            if let Some(sort) = Sort::of(&head.facts).filter(|_| op.network) {
                comm.saw_network(head.own.start, sort);
            }
            if !head.facts.is_p2p() && (op.kernels > 0 || op.lacks_kernels) {
                comm.started = comm.started.max(head.number);
            }
            comm.order.saw_channels(op.kernels, &head.facts, false);
        }
    }

    /// The operations in flight, the oldest first, without their ProxyOps.
    pub(super) fn views(&self, comms: &Comms, names: &Names) -> Vec<OpView> {
        let open = self.ops.iter().filter(|(_, op)| op.is_open);
        let mut all: Vec<OpView> = open
            .filter_map(|(&handle, op)| {
                let head = op.head.as_ref()?;
                let comm = comms.find(head.comm)?;
                Some(OpView {
                    handle,
                    comm: head.comm,
                    number: head.number,
                    facts: head.facts,
                    start: head.own.start,
                    enqueued: op.enqueued,
                    since: op.changed.max(comm.last_end),
                    started: op.started,
                    stopped: op.stopped,
                    awaits_kernel: op.awaits_kernel(head, comm),
                    awaits_channels: op.awaits_channels(head, comm),
                    awaits_network: op.awaits_network(head, comm),
                    stops_early: names.stops_early(&head.facts),
                    absent: op.absent,
                    launch: head.launch,
                    is_lossy: op.lacks_kernels
                        || op.lacks_proxies
                        || comm.order.is_settled(head.own.start),
                    is_first: comm.over == 0,
                    usual: comm.usual(&head.facts),
                    is_only_unstopped: op.is_only_unstopped,
                    proxies: Vec::new(),
                })
            })
            .collect();
        all.sort_unstable_by_key(|op| (op.start, op.number));
        all
    }
}

impl Op {
    /// Whether it is in flight, by the rule of [`crate::ends`]. `passed`: a later kernel of its
    /// stream has started.
    fn is_in_flight(
        &self,
        (head, stops_early): (&Head, bool),
        (comm, passed): (&CommState, bool),
        (quiet, hz): (u64, u64),
    ) -> bool {
        let (followed, awaited) = comm.order.later(head.own);
        let awaits = if self.kernels == 0 && !self.network {
            self.awaits_kernel(head, comm) || self.awaits_network(head, comm)
        } else {
            // NCCL may report the last channels later, but does not always use all that it
            // announces.
            let is_late = quiet < hz / 2 * LACKS_HALVES && self.lacks_channels(head, comm);
            is_late || self.awaits_channels(head, comm)
        };
        let signs = Signs {
            enqueued: self.enqueued,
            open: (self.open_kernels + self.open_parts + self.moving) as usize,
            kernels: self.kernels,
            network: self.network,
            awaits,
            runs: self.runs,
            event: if self.ended { Some(true) } else { self.runs.then_some(false) },
            stops_early,
            followed: followed || passed,
            awaited,
            absent: self.absent.is_some(),
        };
        signs.over() == Over::No
    }

    /// Whether any record besides the enqueuing shows its end.
    const fn shows_its_end(&self) -> bool {
        self.kernels > 0 || self.network || self.ended
    }

    fn awaits_kernel(&self, head: &Head, comm: &CommState) -> bool {
        !self.lacks_kernels && comm.order.awaits(&head.facts, head.own)
    }

    fn lacks_channels(&self, head: &Head, comm: &CommState) -> bool {
        !self.lacks_kernels && comm.order.lacks_channels(self.kernels, &head.facts, head.own)
    }

    fn awaits_channels(&self, head: &Head, comm: &CommState) -> bool {
        let may_come = !self.lacks_kernels && !self.ended;
        may_come && comm.order.awaits_channels(self.kernels, &head.facts, head.own)
    }

    fn awaits_network(&self, head: &Head, comm: &CommState) -> bool {
        let sort = Sort::of(&head.facts);
        !self.network && !self.lacks_proxies && comm.awaits_network(head.own.start, sort)
    }
}
