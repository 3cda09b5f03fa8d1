// SPDX-License-Identifier: Apache-2.0
//! The primitives of all schedules: send, receive, copy, reduce, and combinations.
//!
//! One primitive moves one chunk over the connections that are open. How it does so is its
//! protocol's: SIMPLE is in `simple.rs`, LL and LL128 are in `ll.rs`.

use super::block::Block;
use super::conn::{Conn, Direction, Proto, Use};
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
    pub(crate) proto: Proto,
    /// Slices, for SIMPLE.
    pub(crate) slicing: Slicing,
    /// The use, which selects one of a peer's connections.
    pub(crate) of: Use,
    /// Reduction and element type.
    pub(crate) reduction: Reduction,
    pub(crate) input: Addr,
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
}
