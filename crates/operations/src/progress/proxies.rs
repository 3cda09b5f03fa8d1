// SPDX-License-Identifier: Apache-2.0
/*!
ProxyOps in flight, indexed by the slot in their handle.

NCCL also starts ProxyOps for shared memory and peer access, and never advances or stops them. A
ProxyOp therefore counts only when it, or an earlier one of the same link, has advanced.
*/

use super::comms::{Comms, Link};
use crate::hash::Map;
use ncclscope_trace::record::{ProxyOp, STEP_SHIFT};
use ncclscope_trace::{Handle, Record, Start, Step};

/// The process that a ProxyOp belongs to, if that is not this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner {
    /// Its process id, as it sees it.
    pub pid: u32,
    /// Its index of the communicator; 65535 if unknown.
    pub comm: u16,
    /// Its rank in the communicator.
    pub rank: i32,
}

/// A ProxyOp, kept until its slot is used again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Proxy {
    pub(super) handle: Handle,
    /// The handle of its operation; null if that is another process's (PXN).
    pub(super) op: Handle,
    pub(super) changed: u64,
    pub(super) moved: bool,
    op_ref: u32,
    steps: u32,
    done: u32,
    pub(super) link: Link,
    pub(super) comm: u16,
    lane: u8,
    channel: u8,
    is_open: bool,
    /// Whether its operation is tracked.
    belongs: bool,
    start: u64,
    /// The process that it belongs to, if that is another one (PXN).
    pub(super) owner: Option<Owner>,
}

/// A ProxyOp in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyView {
    /// Its handle.
    pub handle: Handle,
    /// The communicator's index; meaningless if the ProxyOp is for another process.
    pub comm: u16,
    /// The lane of the proxy thread.
    pub lane: usize,
    /// Channel.
    pub channel: u8,
    /// The other rank.
    pub peer: i32,
    /// A send; else a receive.
    pub is_send: bool,
    /// The process of the node that it belongs to, if that is another one (PXN).
    pub owner: Option<Owner>,
    /// Number of all its steps, as NCCL announced it.
    pub steps: u32,
    /// Steps that stopped.
    pub done: u32,
    /// Its start, in ticks.
    pub start: u64,
    /// Time of its last change in the records, in ticks.
    pub changed: u64,
}

/// All ProxyOps that are tracked.
#[derive(Debug, Default)]
pub(super) struct Proxies {
    slots: Vec<Option<Proxy>>,
}

impl Proxies {
    /// Takes the start of a ProxyOp. Returns the earlier ProxyOp of its slot, if that has not
    /// stopped in the records.
    pub(super) fn start(
        &mut self,
        lane: usize,
        start: &Start,
        op: &ProxyOp,
        parent: Handle,
    ) -> Option<Proxy> {
        let at = start.handle.slot();
        if at >= self.slots.len() {
            self.slots.resize(at + 1, None);
        }
        let ProxyOp { pid, rank, .. } = *op;
        let owner = op.foreign.then_some(Owner { pid, comm: start.comm, rank });
        let proxy = Proxy {
            handle: start.handle,
            op: parent,
            changed: start.ticks,
            moved: false,
            op_ref: start.handle.op_ref(),
            steps: op.steps,
            done: 0,
            link: Link { peer: op.peer, is_send: op.is_send },
            comm: start.comm,
            lane: u8::try_from(lane).unwrap_or(0),
            channel: op.channel,
            is_open: true,
            belongs: false,
            start: start.ticks,
            owner,
        };
        self.slots.get_mut(at)?.replace(proxy).filter(|before| before.is_open)
    }

    /// Takes a step that stopped, as the words of its short record (`Step::short`).
    #[inline]
    pub(super) fn step(
        &mut self,
        lane: usize,
        &[_, start, op_and_size, _, third_and_end]: &[u64; 5],
    ) {
        let op_ref = u32::try_from(op_and_size & 0xffff_ffff).unwrap_or(0);
        self.ended(lane, op_ref, start.wrapping_add((third_and_end >> 32) << STEP_SHIFT));
    }

    /// Takes a step that stopped, as the words of its long record.
    #[cold]
    pub(super) fn long_step(&mut self, lane: usize, words: &[u64]) {
        if let Some(Record::Step(step)) = Record::unpack(words) {
            self.stepped(lane, &step);
        }
    }

    #[inline]
    pub(super) fn stepped(&mut self, lane: usize, step: &Step) {
        self.ended(lane, step.op_ref, step.ticks.saturating_add(step.end << STEP_SHIFT));
    }

    #[inline]
    fn ended(&mut self, lane: usize, op_ref: u32, ticks: u64) {
        // The slot's number is in the low bits.
        let at = Handle(u64::from(op_ref) << 3).slot();
        if let Some(Some(proxy)) = self.slots.get_mut(at)
            && proxy.op_ref == op_ref
            && usize::from(proxy.lane) == lane
        {
            proxy.done += 1;
            proxy.moved = true;
            proxy.changed = ticks;
        }
    }

    /// Takes a state of a ProxyOp.
    pub(super) fn moved(&mut self, handle: Handle, ticks: u64) {
        if let Some(proxy) = self.get(handle) {
            proxy.moved = true;
            proxy.changed = proxy.changed.max(ticks);
        }
    }

    /// Takes the stop of a ProxyOp. Returns it at its first stop.
    pub(super) fn stop(&mut self, handle: Handle) -> Option<Proxy> {
        let proxy = self.get(handle).filter(|proxy| proxy.is_open)?;
        proxy.is_open = false;
        // ProxyOps that move no data never stop, so this one does.
        proxy.moved = true;
        Some(*proxy)
    }

    /// Finds the ProxyOps that are on the network. Returns those that stopped without a record.
    pub(super) fn look(
        &mut self,
        comms: &mut Comms,
        is_live: &dyn Fn(Handle) -> bool,
    ) -> Vec<Proxy> {
        let mut gone = Vec::new();
        for proxy in self.slots.iter_mut().flatten().filter(|proxy| proxy.is_open) {
            if !is_live(proxy.handle) {
                proxy.is_open = false;
                // It may have moved and stopped after the lanes were read for this look.
                proxy.moved |=
                    proxy.owner.is_none() && comms.get(proxy.comm).is_network(proxy.link);
                gone.push(*proxy);
            } else if proxy.owner.is_none() {
                let comm = comms.get(proxy.comm);
                if proxy.moved {
                    comm.moves(proxy.link);
                }
                proxy.moved |= comm.is_network(proxy.link);
            }
        }
        gone
    }

    /// The ProxyOps in flight that move data over the network for an operation of this process.
    pub(super) fn on_network(&self) -> impl Iterator<Item = &Proxy> {
        let all = self.slots.iter().flatten();
        all.filter(|proxy| proxy.is_open && proxy.moved && proxy.owner.is_none())
    }

    /// Notes that the operation of a ProxyOp is tracked.
    pub(super) fn belongs(&mut self, handle: Handle) {
        self.get(handle).into_iter().for_each(|proxy| proxy.belongs = true);
    }

    /// The ProxyOps of operations that are or were tracked that have not moved since they started.
    pub(super) fn still(&self) -> impl Iterator<Item = &Proxy> {
        let all = self.slots.iter().flatten();
        all.filter(|proxy| proxy.is_open && !proxy.moved && proxy.belongs)
    }

    /// The ProxyOps in flight on the network, by operation.
    pub(super) fn by_op(&self) -> Map<Handle, Vec<ProxyView>> {
        let mut all: Map<Handle, Vec<ProxyView>> = Map::default();
        for proxy in self.on_network() {
            all.entry(proxy.op).or_default().push(proxy.view());
        }
        all
    }

    pub(super) fn views(&self) -> Vec<ProxyView> {
        let all = self.slots.iter().flatten().filter(|proxy| proxy.is_open && proxy.moved);
        let mut all: Vec<ProxyView> = all.map(Proxy::view).collect();
        all.sort_by_key(|proxy| proxy.changed);
        all
    }

    /// Forgets the ProxyOps that have not changed after `until`.
    pub(super) fn forget(&mut self, until: u64) {
        for slot in &mut self.slots {
            slot.take_if(|proxy| proxy.changed <= until);
        }
    }

    fn get(&mut self, handle: Handle) -> Option<&mut Proxy> {
        self.slots.get_mut(handle.slot())?.as_mut().filter(|proxy| proxy.handle == handle)
    }
}

impl Proxy {
    /// Whether all announced steps have stopped. NCCL stops a ProxyOp together with those to other
    /// peers in the same kernel.
    pub(super) const fn has_moved_all(&self) -> bool {
        self.steps > 0 && self.done >= self.steps
    }

    fn view(&self) -> ProxyView {
        ProxyView {
            handle: self.handle,
            comm: self.comm,
            lane: self.lane.into(),
            channel: self.channel,
            peer: self.link.peer,
            is_send: self.link.is_send,
            owner: self.owner,
            start: self.start,
            steps: self.steps,
            done: self.done,
            changed: self.changed,
        }
    }
}
