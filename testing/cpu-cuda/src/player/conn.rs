// SPDX-License-Identifier: Apache-2.0
//! Connections: eight slots of memory between two ranks, or a rank and its proxy, with a counter
//! at each end (NCCL `ncclConnInfo`).

use super::block::{Block, Stop, size};
use super::memory::Addr;
use crate::layout::Int;

/// Slots of a connection (`NCCL_STEPS`).
pub(crate) const STEPS: u64 = 8;

/// A protocol that the player supports; the value is its index in `buffs` and `buffSizes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Proto {
    /// Data words with a flag beside each.
    Ll = 0,
    /// Lines of data with a flag at the end of each.
    Ll128 = 1,
    /// Slots of plain data, handed over by counters.
    Simple = 2,
}

/// Which way data flows, from this rank's view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Send,
    Recv,
}

/// What a connection is for; the value is its index among the peer's connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    Coll = 0,
    P2p = 1,
}

/// One direction of a connection, in use by a kernel.
#[derive(Debug)]
pub(crate) struct Conn {
    info: Addr,
    /// Rank at the other end.
    pub(crate) peer: usize,
    way: Direction,
    /// Buffer of the protocol in use.
    pub(crate) buff: Addr,
    /// Counter that the receiver advances.
    pub(crate) head: Addr,
    /// Counter that the sender advances; LL does without.
    pub(crate) tail: Addr,
    fifo: Option<Addr>,
    /// Bytes of a SIMPLE slot.
    pub(crate) step_size: usize,
    /// Next step.
    pub(crate) step: u64,
}

impl Conn {
    /// Opens the connection to `peer` at the step where the last kernel left it.
    pub(crate) fn open(
        block: &Block<'_>,
        peer: usize,
        way: Direction,
        of: Use,
        proto: Proto,
    ) -> Self {
        let layout = block.layout;
        let peers = block.channel.add(layout.channel.peers).load_addr();
        let peer_info = peers.add(8 * peer).load_addr();
        let conns = match way {
            Direction::Send => layout.peer.send,
            Direction::Recv => layout.peer.recv,
        };
        let info = peer_info.add(conns).add(of as usize * layout.conn.size);
        let fifo = info.add(layout.conn.conn_fifo).load_addr();
        Self {
            info,
            peer,
            way,
            buff: info.add(layout.conn.buffs).add(8 * proto as usize).load_addr(),
            head: info.add(layout.conn.head).load_addr(),
            tail: info.add(layout.conn.tail).load_addr(),
            fifo: (!fifo.is_null()).then_some(fifo),
            step_size: size(info.add(layout.conn.step_size)),
            step: info.add(layout.conn.step).load_u64(),
        }
    }

    /// Stores the step counter for the next kernel.
    pub(crate) fn close(&self, block: &Block<'_>) {
        self.info.add(block.layout.conn.step).store_u64(self.step);
    }

    /// Waits until `steps` slots are filled (receiving) or free (sending).
    pub(crate) fn wait(&self, block: &Block<'_>, steps: u64) -> Result<(), Stop> {
        let (counter, credit) = match self.way {
            Direction::Recv => (self.tail, 0),
            Direction::Send => (self.head, STEPS),
        };
        let wanted = self.step + steps;
        let what = || {
            let (way, peer, is) = (self.way, self.peer, counter.load_u64());
            format!("{way:?} with rank {peer}: step {wanted}, counter {is}, credit {credit}")
        };
        // A connection whose slots the proxy hands out begins with a head of -8: no credit yet.
        block.wait(what, || counter.load_u64().wrapping_add(credit) >= wanted)
    }

    /// Describes a wait for one of the connection's lines.
    pub(crate) fn describe(&self, line: usize) -> String {
        format!("line {line} of step {} from rank {}", self.step, self.peer)
    }

    /// Sets the size of the next slot for the proxy, if there is one.
    pub(crate) fn announce(&self, block: &Block<'_>, bytes: usize) {
        if let Some(entry) = self.fifo_entry(block) {
            entry.add(block.layout.fifo.sent.offset).store_u64(bytes as u64);
        }
    }

    /// Advances the counter for the proxy, if there is one, which also looks at the lines' flags.
    pub(crate) fn tell_proxy(&self) {
        if self.fifo.is_some() {
            self.tail.store_u64(self.step);
        }
    }

    /// The address of the next SIMPLE slot, and whether the proxy chose it.
    pub(crate) fn slot(&self, block: &Block<'_>) -> (Addr, bool) {
        if let Some(entry) = self.fifo_entry(block)
            && int(entry, block.layout.fifo.mode) == 1
        {
            return (self.buff.add(int(entry, block.layout.fifo.offset)), true);
        }
        (self.buff.add(self.slot_index() * self.step_size), false)
    }

    /// The next step's slot number.
    pub(crate) fn slot_index(&self) -> usize {
        usize::try_from(self.step % STEPS).expect("at most 8 slots")
    }

    fn fifo_entry(&self, block: &Block<'_>) -> Option<Addr> {
        self.fifo.map(|fifo| fifo.add(self.slot_index() * block.layout.fifo.size))
    }
}

/// Reads an integer whose width the release decides; NCCL's are never negative here.
fn int(base: Addr, place: Int) -> usize {
    let at = base.add(place.offset);
    if place.size == 8 { usize::try_from(at.load_u64()).unwrap_or(0) } else { size(at) }
}
