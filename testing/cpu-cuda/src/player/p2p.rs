// SPDX-License-Identifier: Apache-2.0
//! Sends and receives, and the grouped broadcasts that NCCL calls AllGatherV.

use super::block::{Block, Stop};
use super::conn::{Proto, Use};
use super::lead::Lead;
use super::memory::{Addr, addr_at, u32_at, usize_at};
use super::parallel;
use super::prims::{Op, Prims, Setup, Slicing};
use super::reduce::{DataType, RedOp, Reduction};
use crate::layout::{Bits, WorkBcast};

/// Data that is only moved.
const BYTES: Reduction = Reduction { op: RedOp::Sum, ty: DataType::U8, arg: 0 };

/// One direction of a work on this channel.
#[derive(Debug, Clone, Copy)]
struct Transfer {
    send: bool,
    peer: usize,
    addr: Addr,
    bytes: usize,
    chunk: usize,
    proto: Proto,
    /// Thread 0 plays it.
    leads: bool,
}

/// Plays all works of a batch at once: a send may wait for a receive of the same batch. Thread 0
/// plays the first work's send, or its receive if it has no send.
pub(crate) fn play(block: &Block<'_>, works: &[Vec<u8>], lead: &Lead<'_>) -> Result<(), Stop> {
    let mut transfers = vec![];
    for (at, work) in works.iter().enumerate() {
        let (send, recv) = (transfer(block, work, true)?, transfer(block, work, false)?);
        match (send, recv) {
            (Some(send), Some(recv)) if send.peer == block.rank && recv.peer == block.rank => {
                recv.addr.copy_within(send.addr, send.bytes);
            }
            _ => transfers.extend(send.into_iter().chain(recv)),
        }
        if at == 0 {
            transfers.iter_mut().take(1).for_each(|transfer| transfer.leads = true);
        }
    }
    if !transfers.iter().any(|transfer| transfer.leads) {
        lead.through();
    }
    parallel::all(&transfers, block.broken, |transfer| {
        transfer.play(block)?;
        if transfer.leads {
            lead.through();
        }
        Ok(())
    })
}

/// This channel's part of a work in one direction.
fn transfer(block: &Block<'_>, work: &[u8], send: bool) -> Result<Option<Transfer>, Stop> {
    let place = &block.layout.p2p;
    let pick = |a, b| if send { a } else { b };
    let bits = |bits: Bits| usize::try_from(bits.get(work)).expect("small");
    let parts = bits(if send { place.n_send_channels } else { place.n_recv_channels });
    let delta = block.channel_id.wrapping_sub(bits(place.channel_base));
    let part = block.rules.part(delta, bits(place.n_p2p_channels));
    if part >= parts {
        return Ok(None);
    }
    if (if send { place.send_net_reg } else { place.recv_net_reg }).is_some_and(|b| bits(b) == 1) {
        return Err(Stop::Failed("SendRecv with buffers registered to the network".into()));
    }
    let (begin, end) =
        part_bounds(parts, part, usize_at(work, pick(place.send_bytes, place.recv_bytes)));
    let chunk = if send { place.send_chunk_size } else { place.recv_chunk_size };
    let ll = if send { place.send_proto_ll } else { place.recv_proto_ll };
    Ok(Some(Transfer {
        send,
        peer: usize::try_from(u32_at(work, pick(place.send_rank, place.recv_rank)))
            .expect("a 64-bit machine"),
        addr: addr_at(work, pick(place.send_addr, place.recv_addr)).add(begin),
        bytes: end - begin,
        chunk: fp8_decode(bits(chunk)),
        proto: if bits(ll) == 1 { Proto::Ll } else { Proto::Simple },
        leads: false,
    }))
}

impl Transfer {
    fn play(&self, block: &Block<'_>) -> Result<(), Stop> {
        let setup = Setup {
            proto: self.proto,
            slicing: Slicing::ONE,
            of: Use::P2p,
            reduction: BYTES,
            input: self.addr,
            output: self.addr,
        };
        let peer = [self.peer];
        let (recv, to): (&[_], &[_]) = if self.send { (&[], &peer) } else { (&peer, &[]) };
        let mut prims = Prims::open(block, setup, recv, to);
        let mut done = 0;
        // Even an empty transfer takes a step, so that the peer notices it.
        loop {
            let n = self.chunk.max(1).min(self.bytes - done);
            let op = if self.send {
                Op { send: true, src: Some(done), ..Op::default() }
            } else {
                Op { recv: true, dst: Some(done), ..Op::default() }
            };
            prims.play(op, n)?;
            done += n;
            if done == self.bytes {
                break;
            }
        }
        prims.close();
        Ok(())
    }
}

/// Bytes [begin, end) of a part (NCCL `ncclP2pPartBounds`): parts are whole 4 KiB pages.
fn part_bounds(parts: usize, part: usize, bytes: usize) -> (usize, usize) {
    let size = bytes.div_ceil(parts).next_multiple_of(4096);
    ((part * size).min(bytes), ((part + 1) * size).min(bytes))
}

/// Decodes a size of 5 bits exponent and 3 bits mantissa (NCCL `u32fp8Decode`).
fn fp8_decode(code: usize) -> usize {
    match (code >> 3, code & 7) {
        (0, mantissa) => mantissa,
        (exponent, mantissa) => (mantissa | 8) << (exponent - 1),
    }
}

/// One broadcast of a group, and its progress.
struct Bcast {
    depth: usize,
    chunk: usize,
    sendbuff: Addr,
    recvbuff: Addr,
    left: usize,
    done: usize,
}

/// Plays grouped broadcasts: a chunk of each in turn, over the ring.
pub(crate) fn play_bcasts(
    block: &Block<'_>,
    works: &[Vec<u8>],
    place: &WorkBcast,
    proto: Proto,
) -> Result<(), Stop> {
    let mut bcasts: Vec<_> = works.iter().map(|work| bcast(work, place)).collect();
    let int = |at: Addr| usize::try_from(at.load_i32()).unwrap_or(0);
    let prev = int(block.channel.add(block.layout.channel.ring_prev));
    let next = int(block.channel.add(block.layout.channel.ring_next));
    let nowhere = Addr::new(0);
    let setup = Setup {
        proto,
        slicing: Slicing::ONE,
        of: Use::Coll,
        reduction: BYTES,
        input: nowhere,
        output: nowhere,
    };
    let mut prims = Prims::open(block, setup, &[prev], &[next]);
    while bcasts.iter().any(|bcast| bcast.left != 0) {
        for bcast in &mut bcasts {
            let n = bcast.chunk.max(1).min(bcast.left);
            if n == 0 {
                continue;
            }
            let root = bcast.depth == 0;
            prims.retarget(bcast.sendbuff, bcast.recvbuff);
            let op = Op {
                recv: !root,
                send: bcast.depth + 1 != block.n_ranks,
                src: root.then_some(bcast.done),
                dst: Some(bcast.done),
                post: false,
            };
            prims.play(op, n)?;
            bcast.left -= n;
            bcast.done += n;
        }
    }
    prims.close();
    Ok(())
}

fn bcast(work: &[u8], place: &WorkBcast) -> Bcast {
    let int = |offset| usize::try_from(u32_at(work, offset)).expect("a 64-bit machine");
    Bcast {
        depth: int(place.ring_depth),
        chunk: int(place.chunk_size),
        sendbuff: addr_at(work, place.sendbuff),
        recvbuff: addr_at(work, place.recvbuff),
        left: usize_at(work, place.bytes),
        done: usize_at(work, place.bytes_done),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_pages_and_cover_everything() {
        assert_eq!(part_bounds(2, 0, 10_000), (0, 8192));
        assert_eq!(part_bounds(2, 1, 10_000), (8192, 10_000));
        assert_eq!(part_bounds(4, 3, 4096), (4096, 4096), "nothing is left for the last");
        assert_eq!(part_bounds(1, 0, 0), (0, 0));
    }

    #[test]
    fn chunk_sizes_decode() {
        assert_eq!(fp8_decode(0), 0);
        assert_eq!(fp8_decode(7), 7);
        assert_eq!(fp8_decode(8), 8, "the first size with an exponent");
        assert_eq!(fp8_decode(0x88), 1 << 19, "512 KiB");
        assert_eq!(fp8_decode(0x8c), 3 << 18, "768 KiB");
        let sizes: Vec<_> = (0..=255).map(fp8_decode).collect();
        assert!(sizes.is_sorted_by(|a, b| a < b), "codes order as sizes do");
    }
}
