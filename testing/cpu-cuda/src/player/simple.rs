// SPDX-License-Identifier: Apache-2.0
//! The protocol SIMPLE: a chunk is cut into slices, and each goes through a slot and the
//! connection's counters.

use super::block::{Block, Stop};
use super::conn::{Conn, Proto, Use};
use super::memory::Addr;
use super::prims::{Op, PIECE, Prims};
use super::reduce::Reduction;

impl Prims<'_> {
    pub(super) fn play_simple(&mut self, op: Op, n: usize) -> Result<(), Stop> {
        let (slicing, element) = (self.setup.slicing, self.element());
        let step = match self.setup.of {
            Use::Coll => self.block.buff_size(Proto::Simple as usize) / 8,
            Use::P2p => self.block.p2p_chunk_size(),
        };
        let mut size = slicing.slice(n, step / element);
        let mut done = 0;
        for _ in 0..slicing.slices {
            size = size.min(n - done);
            self.play_slice(op, done, size * element)?;
            done += size;
        }
        if done == n {
            return Ok(());
        }
        Err(Stop::Failed(format!("{n} elements do not fit into {} slices", slicing.slices)))
    }

    /// Plays one slice that begins `done` elements into the chunk.
    fn play_slice(&mut self, op: Op, done: usize, bytes: usize) -> Result<(), Stop> {
        let (block, steps) = (self.block, self.setup.slicing.steps);
        let recv = if op.recv { &mut self.recv[..] } else { &mut [] };
        let send = if op.send { &mut self.send[..] } else { &mut [] };
        block.step(send.iter().map(|conn| conn.peer), bytes)?;
        for conn in recv.iter().chain(send.iter()) {
            conn.wait(block, steps)?;
        }
        for conn in send.iter() {
            conn.announce(block, bytes);
        }
        let slots = |conns: &[Conn]| {
            conns.iter().map(|conn| slot(block, conn, bytes, steps)).collect::<Result<Vec<_>, _>>()
        };
        let (peers, mut dsts) = (slots(recv)?, slots(send)?);
        let element = self.setup.reduction.ty.size();
        let own = op.src.map(|src| self.setup.input.add((src + done) * element));
        dsts.extend(op.dst.map(|dst| self.setup.output.add((dst + done) * element)));
        move_data(&self.setup.reduction, own, &peers, op.post, &dsts, bytes);
        for conn in recv {
            conn.step += steps;
            conn.head.store_u64(conn.step);
        }
        for conn in send {
            conn.step += steps;
            conn.tail.store_u64(conn.step);
        }
        Ok(())
    }
}

/// The slot for the next `steps` of a connection, checked to hold `bytes`.
fn slot(block: &Block<'_>, conn: &Conn, bytes: usize, steps: u64) -> Result<Addr, Stop> {
    let (addr, placed) = conn.slot(block);
    let room = conn.step_size * usize::try_from(steps).expect("small");
    if placed || bytes <= room {
        return Ok(addr);
    }
    Err(Stop::Failed(format!("a slice of {bytes} bytes exceeds its slots' {room}")))
}

/// Combines the user's data and the peers' data, and stores the result in all destinations.
fn move_data(
    reduction: &Reduction,
    own: Option<Addr>,
    peers: &[Addr],
    post: bool,
    dsts: &[Addr],
    bytes: usize,
) {
    let (mut acc, mut other) = ([0; PIECE], [0; PIECE]);
    for done in (0..bytes).step_by(PIECE) {
        let n = PIECE.min(bytes - done);
        let (acc, other) = (&mut acc[..n], &mut other[..n]);
        let mut peers = peers.iter();
        if let Some(own) = own {
            own.add(done).copy_to(acc);
            reduction.pre(acc);
        } else if let Some(first) = peers.next() {
            first.add(done).copy_to(acc);
        }
        for peer in peers {
            peer.add(done).copy_to(other);
            reduction.combine(acc, other);
        }
        if post {
            reduction.post(acc);
        }
        for dst in dsts {
            dst.add(done).copy_from(acc);
        }
    }
}
