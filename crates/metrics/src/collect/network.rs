// SPDX-License-Identifier: Apache-2.0
//! The links and channels of a process, which steps find by index, because a step must cost little.

use super::comms::{Comms, OTHERS};
use crate::window::{Channel, ChannelKey, Link, LinkKey, Metrics, Waits};
use ncclscope_operations::hash::Map;
use ncclscope_operations::stats::to_f64;
use ncclscope_operations::steps::{StepExt, earliest};
use ncclscope_trace::Step;
use ncclscope_trace::record::{ProxyOp, step_flags};
use std::collections::BTreeSet;

/// Most links, and most channels, that are distinguished: in a recording that is read as a whole
/// (`MAX_PLACES`), and in a running process, which exports no more series than that (`MAX_LIVE`). A
/// link takes some KiB.
const MAX_PLACES: usize = 1 << 14;
const MAX_LIVE: usize = 1 << 11;
/// Additional places for links and channels that are not distinguished.
const MAX_FOLDED: usize = 1 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct LinkId {
    comm: u16,
    rank: i32,
    peer: i32,
    is_send: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct ChannelId {
    comm: u16,
    rank: i32,
    channel: u8,
    /// The other rank; `None` for kernels.
    peer: Option<i32>,
    is_send: bool,
}

/// The sums of a link in this window; times are in ticks, which add up without rounding.
#[derive(Debug)]
struct LinkSums {
    id: LinkId,
    is_known: bool,
    waits: [u64; 3],
    link: Link,
}

/// The sums of a channel in this window.
#[derive(Debug)]
struct ChannelSums {
    id: ChannelId,
    ticks: u64,
    kernel_ns: u64,
    sums: Channel,
}

/// The indices under which the steps of a ProxyOp are counted.
#[derive(Clone, Copy, Debug)]
pub(super) struct LinkChannel {
    link: usize,
    channel: usize,
}

/// The transfers of an operation's send steps.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sent {
    /// Number of steps.
    pub(super) transfers: u64,
    pub(super) bytes: u64,
    /// Sum of their times on the network, in ticks.
    pub(super) ticks: u64,
    /// When the GPU had delivered the first of their data, in ticks.
    pub(super) ready: Option<u64>,
    /// Stop of the last of the ProxyOps, in ticks.
    pub(super) stop: Option<u64>,
}

impl Sent {
    /// Adds other transfers.
    pub(super) fn add(&mut self, other: Sent) {
        self.transfers += other.transfers;
        self.bytes += other.bytes;
        self.ticks = self.ticks.saturating_add(other.ticks);
        self.ready = earliest(self.ready, other.ready);
        self.stop = self.stop.max(other.stop);
    }
}

/// All links and channels.
#[derive(Debug, Default)]
pub(super) struct Network {
    links: Vec<LinkSums>,
    link_ids: Map<LinkId, usize>,
    channels: Vec<ChannelSums>,
    channel_ids: Map<ChannelId, usize>,
    free_links: Vec<usize>,
    free_channels: Vec<usize>,
}

impl Network {
    /// The indices under which a ProxyOp's steps are counted. If there are too many links or
    /// channels, these are those of communicators without a key; `None` if even these are full.
    /// `comm` is a [`Comms::place`].
    pub(super) fn place(
        &mut self,
        comm: u16,
        op: &ProxyOp,
        tells_all: bool,
    ) -> Option<LinkChannel> {
        let most = if tells_all { MAX_PLACES } else { MAX_LIVE };
        let ProxyOp { is_send, channel, .. } = *op;
        // Communicator ranks have no meaning if the communicator is not distinguished.
        let (rank, peer) = if comm == OTHERS { (-1, -1) } else { (op.rank, op.peer) };
        let others = ChannelId { comm: OTHERS, rank: -1, channel, peer: Some(-1), is_send };
        let channel = self
            .channel(ChannelId { comm, rank, channel, peer: Some(peer), is_send }, most)
            .or_else(|| self.channel(others, most + MAX_FOLDED))?;
        let others = LinkId { comm: OTHERS, rank: -1, peer: -1, is_send };
        let link = self
            .link(LinkId { comm, rank, peer, is_send }, most)
            .or_else(|| self.link(others, most + MAX_FOLDED))?;
        Some(LinkChannel { link, channel })
    }

    fn link(&mut self, id: LinkId, most: usize) -> Option<usize> {
        if let Some(&at) = self.link_ids.get(&id) {
            return Some(at);
        }
        let sums = LinkSums { id, is_known: false, waits: [0; 3], link: Link::default() };
        let link = put(&mut self.links, &mut self.free_links, sums, most)?;
        self.link_ids.insert(id, link);
        Some(link)
    }

    fn channel(&mut self, id: ChannelId, most: usize) -> Option<usize> {
        if let Some(&at) = self.channel_ids.get(&id) {
            return Some(at);
        }
        let sums = ChannelSums { id, ticks: 0, kernel_ns: 0, sums: Channel::default() };
        let channel = put(&mut self.channels, &mut self.free_channels, sums, most)?;
        self.channel_ids.insert(id, channel);
        Some(channel)
    }

    /// Frees the links and channels of communicators, after the end of a window. No ProxyOp may
    /// still have their indices.
    pub(super) fn forget(&mut self, comms: &BTreeSet<u16>) {
        let Network { link_ids, free_links, channel_ids, free_channels, .. } = self;
        link_ids.retain(|id, link| {
            let is_gone = comms.contains(&id.comm);
            free_links.extend(is_gone.then_some(*link));
            !is_gone
        });
        channel_ids.retain(|id, channel| {
            let is_gone = comms.contains(&id.comm);
            free_channels.extend(is_gone.then_some(*channel));
            !is_gone
        });
    }

    /// Whether any step ever went over the link; false for links that are not distinguished.
    pub(super) fn is_known(&self, place: LinkChannel) -> bool {
        self.links.get(place.link).is_some_and(|link| link.is_known && link.id.comm != OTHERS)
    }

    /// Adds a step; one that did not stop is not counted, but makes the link known. Returns its
    /// transfer if it is a send that carried data.
    pub(super) fn add(&mut self, place: LinkChannel, step: &Step, seconds_per_tick: f64) -> Sent {
        let Some(sums) = self.links.get_mut(place.link) else { return Sent::default() };
        sums.is_known = true;
        if !step.has(step_flags::STOPPED) {
            return Sent::default();
        }
        let ticks = step.network();
        sums.add(step, ticks, seconds_per_tick);
        let is_sized = step.has(step_flags::SIZED);
        let (bytes, ticks) = (if is_sized { step.size.into() } else { 0 }, ticks.unwrap_or(0));
        if let Some(channel) = self.channels.get_mut(place.channel) {
            channel.sums.transfers += 1;
            channel.sums.bytes += bytes;
            channel.ticks = channel.ticks.saturating_add(ticks);
        }
        if !step.has(step_flags::IS_SEND) || is_sized && bytes == 0 {
            return Sent::default();
        }
        Sent { transfers: 1, bytes, ticks, ready: step.ready(), stop: None }
    }

    /// Adds bytes that a state of a ProxyOp reports (API v1 to v3). Returns them as a transfer if
    /// it is a send.
    pub(super) fn add_told(&mut self, place: LinkChannel, bytes: u64) -> Sent {
        let Some(sums) = self.links.get_mut(place.link) else { return Sent::default() };
        sums.link.bytes = sums.link.bytes.saturating_add(bytes);
        let is_send = sums.id.is_send;
        if let Some(channel) = self.channels.get_mut(place.channel) {
            channel.sums.bytes = channel.sums.bytes.saturating_add(bytes);
        }
        Sent { bytes: if is_send { bytes } else { 0 }, ..Sent::default() }
    }

    /// Adds a kernel channel's time by the GPU's timer.
    pub(super) fn add_kernel(&mut self, comm: u16, rank: i32, channel: u8, ns: u64) {
        let id = ChannelId { comm, rank, channel, peer: None, is_send: true };
        let at = self.channel(id, MAX_PLACES);
        if let Some(channel) = at.and_then(|at| self.channels.get_mut(at)) {
            channel.sums.kernels += 1;
            channel.kernel_ns = channel.kernel_ns.saturating_add(ns);
        }
    }

    /// Adds the sums to the window, and resets them.
    pub(super) fn take(&mut self, metrics: &mut Metrics, comms: &Comms, seconds_per_tick: f64) {
        let used = |sums: &&mut LinkSums| sums.link.transfers > 0 || sums.link.bytes > 0;
        for sums in self.links.iter_mut().filter(used) {
            let LinkId { comm, rank, peer, is_send } = sums.id;
            let mut link = std::mem::take(&mut sums.link);
            let waits = std::mem::take(&mut sums.waits).map(|t| to_f64(t) * seconds_per_tick);
            link.waits = waits_of(is_send, waits);
            let key = LinkKey { comm: comms.key(comm), rank, peer, is_send };
            metrics.links.entry(key).or_default().merge(&link);
        }
        let used = |sums: &&mut ChannelSums| sums.sums != Channel::default();
        for sums in self.channels.iter_mut().filter(used) {
            let ChannelId { comm, rank, channel, peer, is_send } = sums.id;
            let mut window = std::mem::take(&mut sums.sums);
            window.seconds = to_f64(std::mem::take(&mut sums.ticks)) * seconds_per_tick;
            window.kernel_seconds = to_f64(std::mem::take(&mut sums.kernel_ns)) / 1e9;
            let key = ChannelKey { comm: comms.key(comm), rank, channel, peer, is_send };
            metrics.channels.entry(key).or_default().merge(&window);
        }
    }
}

/// Stores a value at a free index or a new one; `None` if there are already `most`.
fn put<T>(places: &mut Vec<T>, free: &mut Vec<usize>, value: T, most: usize) -> Option<usize> {
    if let Some((at, place)) = free.pop().and_then(|at| Some((at, places.get_mut(at)?))) {
        *place = value;
        return Some(at);
    }
    let at = places.len();
    (at < most).then(|| places.push(value))?;
    Some(at)
}

impl LinkSums {
    fn add(&mut self, step: &Step, network: Option<u64>, seconds_per_tick: f64) {
        self.link.transfers += 1;
        for (sum, wait) in self.waits.iter_mut().zip(step.waits()) {
            *sum = sum.saturating_add(wait);
        }
        let seconds = network.map(|ticks| to_f64(ticks) * seconds_per_tick);
        if let Some(seconds) = seconds {
            self.link.seconds.add(seconds);
        }
        if !step.has(step_flags::SIZED) {
            return;
        }
        self.link.bytes += u64::from(step.size);
        self.link.size.add(f64::from(step.size));
        // The time of a receive is not used, because it contains the wait for the sender.
        if let Some(us) = seconds.filter(|_| self.id.is_send).map(|seconds| seconds * 1e6) {
            self.link.fit.add(step.size, us);
        }
    }
}

fn waits_of(is_send: bool, [first, second, third]: [f64; 3]) -> Waits {
    if is_send {
        Waits { gpu: first, peer: second, network: third, flush: 0.0 }
    } else {
        Waits { network: first, flush: second, gpu: third, peer: 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_beyond_the_cap_are_counted_together() {
        let mut network = Network::default();
        for peer in 0..100_000 {
            let op = ProxyOp { peer, is_send: peer % 2 == 0, ..ProxyOp::default() };
            assert!(network.place(3, &op, false).is_some(), "none goes uncounted");
        }
        assert_eq!(network.links.len(), MAX_LIVE + 2, "and the rest, each way");
        let op = ProxyOp { peer: 99_999, ..ProxyOp::default() };
        let place = network.place(3, &op, false).unwrap();
        assert_eq!(network.links[place.link].id.comm, OTHERS);
    }
}
