// SPDX-License-Identifier: Apache-2.0
//! Ranks within this process, connected as in NCCL, for tests without NCCL.

use std::sync::atomic::AtomicU64;

use super::conn::{Proto, Use};
use super::faults::Faults;
use super::function::Function;
use super::memory::Addr;
use super::rules::Rules;
use super::{Launch, Player};
use crate::layout::tests::synthetic;
use crate::layout::{Bits, Layout};

/// Channels of every rank.
pub(super) const CHANNELS: usize = 2;
/// Bytes of an LL slot: 64 lines, 512 bytes of data.
pub(super) const LL_SLOT: usize = 1024;
/// Bytes of an LL128 slot: two runs of lines, which hold 3840 bytes of data.
pub(super) const LL128_SLOT: usize = 4096;
/// Bytes of a SIMPLE slot.
pub(super) const SIMPLE_SLOT: usize = 4096;

/// Communicators of some ranks.
pub(super) struct World {
    pub(super) player: Player,
    memory: Vec<Vec<AtomicU64>>,
    /// Each rank's kernel communicator.
    pub(super) comms: Vec<Addr>,
    /// Each rank's abort flag.
    pub(super) abort_flags: Vec<Addr>,
}

impl World {
    /// Connects `n_ranks` ranks in a ring, each pair for p2p, and as a tree rooted at rank 0.
    pub(super) fn new(n_ranks: usize, functions: Vec<Function>) -> Self {
        let player = Player {
            layout: synthetic(CHANNELS),
            functions,
            rules: Rules::default(),
            faults: Faults::default(),
            failure: std::sync::Mutex::default(),
        };
        let mut world = Self { player, memory: vec![], comms: vec![], abort_flags: vec![] };
        for rank in 0..n_ranks {
            world.add_rank(rank, n_ranks);
        }
        for channel in 0..CHANNELS {
            for from in 0..n_ranks {
                for to in (0..n_ranks).filter(|&to| to != from) {
                    world.connect(channel, from, to, Use::Coll);
                    world.connect(channel, from, to, Use::P2p);
                }
            }
        }
        world
    }

    /// Zeroed memory that lives as long as the world.
    pub(super) fn alloc(&mut self, bytes: usize) -> Addr {
        let words: Vec<_> = (0..bytes.div_ceil(8)).map(|_| AtomicU64::new(0)).collect();
        let addr = Addr::new(words.as_ptr().expose_provenance());
        self.memory.push(words);
        addr
    }

    /// Memory with the given content.
    pub(super) fn upload(&mut self, bytes: &[u8]) -> Addr {
        let addr = self.alloc(bytes.len());
        addr.copy_from(bytes);
        addr
    }

    pub(super) fn layout(&self) -> &Layout {
        &self.player.layout
    }

    pub(super) fn channel(&self, rank: usize, channel: usize) -> Addr {
        let layout = self.layout();
        self.comms[rank].add(layout.comm.channels.offset + channel * layout.channel.size)
    }

    fn add_rank(&mut self, rank: usize, n_ranks: usize) {
        let place = self.layout().comm.clone();
        let ring = self.layout().channel.clone();
        let comm = self.alloc(place.channels.offset + CHANNELS * ring.size);
        let (abort, started, completed) = (self.alloc(8), self.alloc(1024), self.alloc(1024));
        let phases = self.alloc(1024);
        put_addr(comm.add(place.work_phases.expect("synthetic").offset), phases);
        put_int(comm.add(place.rank), rank);
        put_int(comm.add(place.n_ranks), n_ranks);
        put_int(comm.add(place.buff_sizes), 8 * LL_SLOT);
        put_int(comm.add(place.buff_sizes + 4), 8 * LL128_SLOT);
        put_int(comm.add(place.buff_sizes + 8), 8 * SIMPLE_SLOT);
        put_int(comm.add(place.p2p_chunk_size), SIMPLE_SLOT);
        put_addr(comm.add(place.abort_flag), abort);
        put_addr(comm.add(place.work_started.expect("synthetic").offset), started);
        put_addr(comm.add(place.work_completed.expect("synthetic").offset), completed);
        self.comms.push(comm);
        self.abort_flags.push(abort);
        for channel in 0..CHANNELS {
            let at = self.channel(rank, channel);
            let ranks = self.alloc(4 * n_ranks);
            for i in 0..n_ranks {
                put_int(ranks.add(4 * i), (rank + i) % n_ranks);
            }
            put_addr(at.add(ring.ring_user_ranks), ranks);
            put_int(at.add(ring.ring_index), rank);
            put_int(at.add(ring.ring_prev), (rank + n_ranks - 1) % n_ranks);
            put_int(at.add(ring.ring_next), (rank + 1) % n_ranks);
            let peers = self.alloc(8 * n_ranks);
            for i in 0..n_ranks {
                let peer = self.alloc(self.layout().peer.size);
                put_addr(peers.add(8 * i), peer);
            }
            put_addr(at.add(ring.peers), peers);
            // A binary tree in heap order.
            at.add(ring.tree_up).store_u32(if rank == 0 { u32::MAX } else { 0 });
            if rank != 0 {
                put_int(at.add(ring.tree_up), (rank - 1) / 2);
            }
            let mut children = (2 * rank + 1..=2 * rank + 2).filter(|&child| child < n_ranks);
            for i in 0..3 {
                let down = at.add(ring.tree_down + 4 * i);
                children.next().map_or_else(|| down.store_u32(u32::MAX), |c| put_int(down, c));
            }
        }
    }

    fn connect(&mut self, channel: usize, from: usize, to: usize, of: Use) {
        let (ll, simple) = (self.alloc(8 * LL_SLOT), self.alloc(8 * SIMPLE_SLOT));
        let ll128 = self.alloc(8 * LL128_SLOT);
        let (head, tail) = (self.alloc(8), self.alloc(8));
        let layout = self.layout();
        for (rank, peer, ends) in [(from, to, layout.peer.send), (to, from, layout.peer.recv)] {
            let peers = self.channel(rank, channel).add(layout.channel.peers).load_addr();
            let ends = peers.add(8 * peer).load_addr().add(ends);
            let conn = ends.add(of as usize * layout.conn.size);
            put_addr(conn.add(layout.conn.buffs + 8 * Proto::Ll as usize), ll);
            put_addr(conn.add(layout.conn.buffs + 8 * Proto::Ll128 as usize), ll128);
            put_addr(conn.add(layout.conn.buffs + 8 * Proto::Simple as usize), simple);
            put_addr(conn.add(layout.conn.head), head);
            put_addr(conn.add(layout.conn.tail), tail);
            put_int(conn.add(layout.conn.step_size), SIMPLE_SLOT);
        }
    }

    /// A launch of one batch per channel with the same works.
    pub(super) fn launch(
        &self,
        rank: usize,
        func: usize,
        work_type: u64,
        works: &[Vec<u8>],
    ) -> Launch {
        let (place, batch) = (&self.layout().args, &self.layout().batch);
        let base = place.size + CHANNELS * batch.size;
        let mut args = vec![0; base];
        put(&mut args, place.comm, self.comms[rank].get());
        put(&mut args, place.channel_mask, (1 << CHANNELS) - 1);
        for channel in 0..CHANNELS {
            let at = &mut args[place.size + channel * batch.size..][..batch.size];
            put_bits(at, batch.work_type, work_type);
            put_bits(at, batch.func_id, func as u64);
            put(at, batch.offset_base, base as u64);
            put(at, batch.offset_bitset, (1 << works.len()) - 1);
        }
        args.extend(works.concat());
        Launch { args, grid: u32::try_from(CHANNELS).expect("small"), block: 640 }
    }

    /// Runs one launch per rank, all at once.
    pub(super) fn run(&self, launches: &[Launch]) {
        std::thread::scope(|scope| {
            for launch in launches {
                scope.spawn(|| self.player.run(launch));
            }
        });
    }
}

/// Stores a C `int`.
pub(super) fn put_int(at: Addr, value: usize) {
    at.store_u32(u32::try_from(value).expect("small"));
}

fn put_addr(at: Addr, value: Addr) {
    at.store_u64(value.get());
}

/// Writes 8 bytes of a struct.
pub(super) fn put(bytes: &mut [u8], offset: usize, value: u64) {
    bytes[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
}

/// Writes a bit field that fills whole bytes.
pub(super) fn put_bits(bytes: &mut [u8], bits: Bits, value: u64) {
    let (first, width) = (bits.first / 8, bits.width / 8);
    bytes[first..first + width].copy_from_slice(&value.to_le_bytes()[..width]);
}
