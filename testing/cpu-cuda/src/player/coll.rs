// SPDX-License-Identifier: Apache-2.0
//! Schedules of the collectives: the order and the destinations of chunks.
//!
//! Names and order are those of NCCL's `src/device/all_reduce.h` and its neighbours, because the
//! proxies on both sides expect the same number of steps of the same sizes.

use super::block::{Block, Stop};
use super::conn::{Proto, Use};
use super::function::{Algo, Coll};
use super::lead::Lead;
use super::ll;
use super::memory::{Addr, addr_at, u32_at, u64_at, usize_at};
use super::parallel;
use super::prims::{Op, Prims, Setup, Slicing};
use super::reduce::{DataType, RedOp, Reduction};
use crate::layout::Bits;

/// Sends the own input.
const SEND: Op = Op { recv: false, send: true, src: None, dst: None, post: false };
/// Receives into the output.
const RECV: Op = Op { recv: true, send: false, src: None, dst: None, post: false };
/// Receives and passes on.
const RECV_SEND: Op = Op { recv: true, send: true, src: None, dst: None, post: false };

/// A channel's share of a collective, in elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ChannelShare {
    /// Elements of the whole collective.
    total: usize,
    /// First element of this channel.
    offset: usize,
    /// Elements of this channel.
    count: usize,
    /// Elements of a chunk.
    chunk: usize,
}

/// Plays one collective's part of this channel; `lead` is set for the last one of a batch.
pub(crate) fn play(
    block: &Block<'_>,
    work: &[u8],
    (coll, op, ty, algo, proto): (Coll, RedOp, DataType, Algo, Proto),
    lead: Option<&Lead<'_>>,
) -> Result<(), Stop> {
    let layout = &block.layout.coll;
    if layout.net_reg_used.is_some_and(|bits| bits.get(work) == 1) {
        return Err(Stop::Failed(format!("{coll:?} with buffers registered to the network")));
    }
    let mut arg = u64_at(work, layout.red_op_arg);
    if op != RedOp::Sum && layout.red_op_arg_is_ptr.get(work) == 1 {
        let mut word = [0; 8];
        addr_at(work, layout.red_op_arg).copy_to(&mut word[..ty.size()]);
        arg = u64::from_le_bytes(word);
    }
    let slicing = match (coll, algo) {
        (Coll::AllReduce | Coll::AllGather | Coll::ReduceScatter, Algo::Ring) => Slicing::TWO,
        _ => Slicing::ONE,
    };
    let setup = Setup {
        proto,
        slicing,
        of: Use::Coll,
        reduction: Reduction { op, ty, arg },
        input: addr_at(work, layout.sendbuff),
        output: addr_at(work, layout.recvbuff),
    };
    let share = share(block, work, proto, ty.size());
    match (coll, algo) {
        (Coll::AllReduce, Algo::Tree) => tree_all_reduce(block, setup, share, lead),
        _ => ring(block, setup, coll, share, u32_at(work, layout.root)),
    }
}

/// The channel's share (NCCL `ncclCollCbdPart`): the first and the last channel have shares of
/// their own, those between equal ones.
fn share(block: &Block<'_>, work: &[u8], proto: Proto, element: usize) -> ChannelShare {
    let layout = &block.layout.coll;
    let bits = |bits: Bits| usize::try_from(bits.get(work)).expect("small");
    let (lo, hi) = (bits(layout.channel_lo), bits(layout.channel_hi));
    let count = |offset| usize_at(work, offset);
    let (first, mid, last) =
        (count(layout.count_lo), count(layout.count_mid), count(layout.count_hi));
    let between = mid * hi.saturating_sub(lo + 1);
    let total = first + between + last;
    let grain = match proto {
        Proto::Ll => 16,
        Proto::Ll128 => ll::LL128.unit * ll::LL128.data,
        Proto::Simple => 512,
    } / element;
    let share =
        |offset, count, grains| ChannelShare { total, offset, count, chunk: bits(grains) * grain };
    if block.channel_id == lo {
        share(0, first, layout.chunk_grains_lo)
    } else if block.channel_id == hi {
        share(first + between, last, layout.chunk_grains_hi)
    } else {
        let before = mid * block.channel_id.saturating_sub(lo + 1);
        share(first + before, mid, layout.chunk_grains_mid)
    }
}

/// Splits `count` elements into chunks of at most `chunk`: (offset, elements).
fn chunks(count: usize, chunk: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..count).step_by(chunk.max(1)).map(move |at| (at, chunk.max(1).min(count - at)))
}

/// A rank's neighbours and order on the channel's ring.
struct Ring {
    index: usize,
    /// Ranks along the ring, this one first.
    ranks: Vec<usize>,
}

fn ring(
    block: &Block<'_>,
    setup: Setup,
    coll: Coll,
    share: ChannelShare,
    root: u32,
) -> Result<(), Stop> {
    let place = &block.layout.channel;
    let int = |at: Addr| usize::try_from(at.load_i32()).unwrap_or(0);
    let user_ranks = block.channel.add(place.ring_user_ranks).load_addr();
    let ring = Ring {
        index: int(block.channel.add(place.ring_index)),
        ranks: (0..block.n_ranks).map(|i| int(user_ranks.add(4 * i))).collect(),
    };
    let prev = int(block.channel.add(place.ring_prev));
    let next = int(block.channel.add(place.ring_next));
    let mut prims = Prims::open(block, setup, &[prev], &[next]);
    let root = usize::try_from(root).expect("a 64-bit machine");
    match coll {
        Coll::AllReduce => all_reduce(&mut prims, &ring, share)?,
        Coll::AllGather => all_gather(&mut prims, &ring, share)?,
        Coll::ReduceScatter => reduce_scatter(&mut prims, &ring, share)?,
        Coll::Broadcast => broadcast(&mut prims, &ring, share, root)?,
        Coll::Reduce => reduce(&mut prims, &ring, share, root)?,
    }
    prims.close();
    Ok(())
}

fn all_reduce(prims: &mut Prims<'_>, ring: &Ring, share: ChannelShare) -> Result<(), Stop> {
    let n_ranks = ring.ranks.len();
    let grain = 16 / prims.element();
    for (at, count) in chunks(share.count, n_ranks * share.chunk) {
        let chunk = if count < n_ranks * share.chunk {
            count.div_ceil(n_ranks).next_multiple_of(grain)
        } else {
            share.chunk
        };
        // Chunks are counted backwards around the ring from this rank's own.
        let piece = |back: usize| {
            let start = (ring.index + n_ranks - back) % n_ranks * chunk;
            (Some(share.offset + at + start), chunk.min(count.saturating_sub(start)))
        };
        let (src, n) = piece(1);
        prims.play(Op { src, ..SEND }, n)?;
        for back in 2..n_ranks {
            let (src, n) = piece(back);
            prims.play(Op { src, ..RECV_SEND }, n)?;
        }
        let (own, n) = piece(0);
        prims.play(Op { src: own, dst: own, post: true, ..RECV_SEND }, n)?;
        for back in 1..n_ranks - 1 {
            let (dst, n) = piece(back);
            prims.play(Op { dst, ..RECV_SEND }, n)?;
        }
        let (dst, n) = piece(n_ranks - 1);
        prims.play(Op { dst, ..RECV }, n)?;
    }
    Ok(())
}

fn all_gather(prims: &mut Prims<'_>, ring: &Ring, share: ChannelShare) -> Result<(), Stop> {
    let n_ranks = ring.ranks.len();
    for (at, n) in chunks(share.count, share.chunk) {
        let src = share.offset + at;
        let dst = |rank: usize| Some(src + rank * share.total);
        prims.play(Op { src: Some(src), dst: dst(ring.ranks[0]), ..SEND }, n)?;
        for j in 1..n_ranks - 1 {
            prims.play(Op { dst: dst(ring.ranks[n_ranks - j]), ..RECV_SEND }, n)?;
        }
        prims.play(Op { dst: dst(ring.ranks[1 % n_ranks]), ..RECV }, n)?;
    }
    Ok(())
}

fn reduce_scatter(prims: &mut Prims<'_>, ring: &Ring, share: ChannelShare) -> Result<(), Stop> {
    let n_ranks = ring.ranks.len();
    for (at, n) in chunks(share.count, share.chunk) {
        let dst = share.offset + at;
        let src = |rank: usize| Some(dst + rank * share.total);
        prims.play(Op { src: src(ring.ranks[n_ranks - 1]), ..SEND }, n)?;
        for j in 2..n_ranks {
            prims.play(Op { src: src(ring.ranks[n_ranks - j]), ..RECV_SEND }, n)?;
        }
        let src = src(ring.ranks[0]);
        prims.play(Op { src, dst: Some(dst), post: true, ..RECV }, n)?;
    }
    Ok(())
}

fn broadcast(
    prims: &mut Prims<'_>,
    ring: &Ring,
    share: ChannelShare,
    root: usize,
) -> Result<(), Stop> {
    for (at, n) in chunks(share.count, share.chunk) {
        let at = Some(share.offset + at);
        let op = if ring.ranks[0] == root {
            Op { src: at, dst: at, ..SEND }
        } else if ring.ranks[1 % ring.ranks.len()] == root {
            Op { dst: at, ..RECV }
        } else {
            Op { dst: at, ..RECV_SEND }
        };
        prims.play(op, n)?;
    }
    Ok(())
}

fn reduce(
    prims: &mut Prims<'_>,
    ring: &Ring,
    share: ChannelShare,
    root: usize,
) -> Result<(), Stop> {
    for (at, n) in chunks(share.count, share.chunk) {
        let at = Some(share.offset + at);
        let op = if ring.ranks[ring.ranks.len() - 1] == root {
            Op { src: at, ..SEND }
        } else if ring.ranks[0] == root {
            Op { src: at, dst: at, post: true, ..RECV }
        } else {
            Op { src: at, ..RECV_SEND }
        };
        prims.play(op, n)?;
    }
    Ok(())
}

/// Sums travel up the tree while finished sums travel down, as two halves of a block do it; thread
/// 0 belongs to the first.
fn tree_all_reduce(
    block: &Block<'_>,
    setup: Setup,
    share: ChannelShare,
    lead: Option<&Lead<'_>>,
) -> Result<(), Stop> {
    let place = &block.layout.channel;
    let peer = |at: Addr| usize::try_from(at.load_i32()).ok();
    let up = peer(block.channel.add(place.tree_up));
    let down: Vec<_> =
        (0..3).map_while(|i| peer(block.channel.add(place.tree_down + 4 * i))).collect();
    let pass = |recv: &[usize], send: &[usize], op: fn(Option<usize>) -> Op| {
        let mut prims = Prims::open(block, setup, recv, send);
        for (at, n) in chunks(share.count, share.chunk) {
            let mut op = op(Some(share.offset + at));
            (op.recv, op.send) = (!recv.is_empty(), !send.is_empty());
            prims.play(op, n)?;
        }
        prims.close();
        Ok(())
    };
    let Some(up) = up else {
        return pass(&down, &down, |at| Op { src: at, dst: at, post: true, ..RECV_SEND });
    };
    parallel::all(&[true, false], block.broken, |&reduce| {
        if reduce {
            pass(&down, &[up], |src| Op { src, ..RECV_SEND })?;
            lead.into_iter().for_each(Lead::through);
            Ok(())
        } else {
            pass(&[up], &down, |dst| Op { dst, ..RECV_SEND })
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_everything_once() {
        let all: Vec<_> = chunks(10, 4).collect();
        assert_eq!(all, [(0, 4), (4, 4), (8, 2)]);
        assert_eq!(chunks(0, 4).count(), 0);
        assert_eq!(chunks(3, 0).count(), 3, "a chunk of nothing must not loop forever");
    }
}
