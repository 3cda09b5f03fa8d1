// SPDX-License-Identifier: Apache-2.0
//! The primitives of all schedules: send, receive, copy, reduce, and combinations.
//!
//! One primitive moves one chunk. SIMPLE, played here, cuts it into slices and transfers each
//! through a slot and the connection's counters; LL and LL128 are in `ll.rs`.

use super::block::{Block, Stop};
use super::conn::{Conn, Direction, Proto, Use};
use super::ll;
use super::memory::Addr;
use super::reduce::Reduction;

/// Bytes that are reduced at a time; a multiple of every element's size.
pub(crate) const PIECE: usize = 4096;

/// How SIMPLE cuts a chunk (`ProtoSimple<SlicePerChunk, StepPerSlice>`).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slicing {
    /// Slices of a chunk; all are played, empty ones too.
    pub(crate) slices: usize,
    /// Steps that a slice takes up.
    pub(crate) steps: u64,
}

impl Slicing {
    /// Ring AllReduce, AllGather, ReduceScatter.
    pub(crate) const TWO: Self = Self { slices: 2, steps: 2 };
    /// Everything else.
    pub(crate) const ONE: Self = Self { slices: 1, steps: 1 };

    /// Elements of a slice of a chunk of `n`, where a step holds `step` elements.
    pub(crate) fn slice(self, n: usize, step: usize) -> usize {
        let least = step * usize::try_from(self.steps).expect("small") / 32;
        (n.div_ceil(16 * self.slices) * 16).max(least)
    }
}

/// The settings of a primitive.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setup {
    /// Protocol.
    pub(crate) proto: Proto,
    /// Slices, for SIMPLE.
    pub(crate) slicing: Slicing,
    /// Which of a peer's connections.
    pub(crate) of: Use,
    /// Reduction and element type.
    pub(crate) reduction: Reduction,
    /// The user's input.
    pub(crate) input: Addr,
    /// The user's output.
    pub(crate) output: Addr,
}

/// One primitive: the source and the destination of data.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Op {
    /// Receive from every receive connection.
    pub(crate) recv: bool,
    /// Send on every send connection.
    pub(crate) send: bool,
    /// Element of the user's input to begin with.
    pub(crate) src: Option<usize>,
    /// Element of the user's output to store to.
    pub(crate) dst: Option<usize>,
    /// The result is final.
    pub(crate) post: bool,
}

/// The connections in use, and the settings.
#[derive(Debug)]
pub(crate) struct Prims<'a> {
    pub(super) block: &'a Block<'a>,
    pub(super) setup: Setup,
    pub(super) recv: Vec<Conn>,
    pub(super) send: Vec<Conn>,
}

impl<'a> Prims<'a> {
    /// Opens connections to receive from and to send to the given ranks.
    pub(crate) fn open(block: &'a Block<'a>, setup: Setup, recv: &[usize], send: &[usize]) -> Self {
        let open = |peers: &[usize], way| {
            let open = |&peer: &usize| Conn::open(block, peer, way, setup.of, setup.proto);
            peers.iter().map(open).collect()
        };
        let mut prims = Self {
            block,
            setup,
            recv: open(recv, Direction::Recv),
            send: open(send, Direction::Send),
        };
        if setup.proto == Proto::Simple {
            prims.round_up();
        }
        prims
    }

    /// Saves the connections for the next kernel. Not called after an abort.
    pub(crate) fn close(self) {
        for conn in self.recv.iter().chain(&self.send) {
            conn.close(self.block);
        }
    }

    /// A SIMPLE chunk begins at a multiple of its steps; credits for steps left out are returned.
    fn round_up(&mut self) {
        let slicing = self.setup.slicing;
        let chunk = slicing.steps * u64::try_from(slicing.slices).expect("small");
        for conn in self.recv.iter_mut().chain(&mut self.send) {
            conn.step = conn.step.next_multiple_of(chunk);
        }
        for conn in &self.recv {
            conn.head.store_u64(conn.step);
        }
    }

    /// Continues with other user buffers.
    pub(crate) fn retarget(&mut self, input: Addr, output: Addr) {
        (self.setup.input, self.setup.output) = (input, output);
    }

    /// Bytes of an element.
    pub(crate) fn element(&self) -> usize {
        self.setup.reduction.ty.size()
    }

    /// Plays `op` on `n` elements.
    pub(crate) fn play(&mut self, op: Op, n: usize) -> Result<(), Stop> {
        match self.setup.proto {
            Proto::Simple => self.play_simple(op, n),
            Proto::Ll => self.play_lines(&ll::LL, op, n),
            Proto::Ll128 => self.play_lines(&ll::LL128, op, n),
        }
    }

    fn play_simple(&mut self, op: Op, n: usize) -> Result<(), Stop> {
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
