// SPDX-License-Identifier: Apache-2.0
//! The LL protocol: each 8 bytes of data travel in a 16-byte line with two flags.
//!
//! A line is {data low, flag, data high, flag} in 32-bit words; the flag is the low half of the
//! step plus one, so that a reader knows a line of this round without any counter. The sender
//! needs the receiver's head counter only, to know that a slot is free.

use super::block::{Block, Stop};
use super::conn::{Conn, Proto, STEPS};
use super::memory::Addr;
use super::prims::{Op, PIECE, Prims};

/// Bytes of a line.
pub(crate) const LINE: usize = 16;
/// Data bytes of a line.
pub(crate) const DATA: usize = 8;
/// In steps with these bits set all lines of the slot are written, lest a flag of the round
/// before the 32-bit counter wrapped be taken for new (`NCCL_LL_CLEAN_MASK`).
const CLEAN: u64 = 0x7fff_fff8;

impl Prims<'_> {
    /// Plays `op` on `n` elements in one step of each connection.
    pub(super) fn play_ll(&mut self, op: Op, n: usize) -> Result<(), Stop> {
        let (block, element) = (self.block, self.element());
        let bytes = n * element;
        let slot = block.buff_size(Proto::Ll as usize) / usize::try_from(STEPS).expect("8");
        let lines = bytes.div_ceil(DATA);
        if lines * LINE > slot {
            return Err(Stop::Failed(format!("{bytes} bytes exceed an LL slot of {slot}")));
        }
        let send = if op.send { &self.send[..] } else { &[] };
        block.step(send.iter().map(|conn| conn.peer), bytes)?;
        if op.send {
            for conn in &self.send {
                conn.wait(block, 1)?;
                conn.announce(block, if cleans(conn.step) { slot } else { lines * LINE });
            }
        }
        for done in (0..bytes).step_by(PIECE) {
            self.play_piece(op, slot, done, PIECE.min(bytes - done))?;
        }
        if op.recv {
            for conn in &mut self.recv {
                conn.step += 1;
                conn.head.store_u64(conn.step);
            }
        }
        if op.send {
            for conn in &mut self.send {
                if cleans(conn.step) {
                    write_lines(conn, slot, lines, &vec![0; (slot / LINE - lines) * DATA]);
                }
                conn.step += 1;
            }
        }
        Ok(())
    }

    /// Plays `n` bytes of the step, `done` bytes into it.
    fn play_piece(&self, op: Op, slot: usize, done: usize, n: usize) -> Result<(), Stop> {
        let (mut acc, mut other) = ([0; PIECE], [0; PIECE]);
        let padded = n.next_multiple_of(DATA);
        let first_line = done / DATA;
        let reduction = &self.setup.reduction;
        let at = |base: Addr, index: usize| base.add(index * self.element() + done);
        let mut peers = if op.recv { self.recv.iter() } else { [].iter() };
        if let Some(src) = op.src {
            at(self.setup.input, src).copy_to(&mut acc[..n]);
            reduction.pre(&mut acc[..n]);
        } else if let Some(first) = peers.next() {
            read_lines(self.block, first, slot, first_line, &mut acc[..padded])?;
        }
        for peer in peers {
            read_lines(self.block, peer, slot, first_line, &mut other[..padded])?;
            reduction.combine(&mut acc[..n], &other[..n]);
        }
        if op.post {
            reduction.post(&mut acc[..n]);
        }
        if op.send {
            for conn in &self.send {
                write_lines(conn, slot, first_line, &acc[..padded]);
            }
        }
        if let Some(dst) = op.dst {
            at(self.setup.output, dst).copy_from(&acc[..n]);
        }
        Ok(())
    }
}

/// Whether the step writes every line of its slot.
fn cleans(step: u64) -> bool {
    step & CLEAN == CLEAN
}

/// The flag of a step, in the upper half of a word as it lies in each half of a line.
fn flag(step: u64) -> u64 {
    (step + 1) << 32
}

/// Stores `data`, whole lines, from line `first` of the connection's next slot.
fn write_lines(conn: &Conn, slot: usize, first: usize, data: &[u8]) {
    let base = conn.buff.add(conn.slot_index() * slot + first * LINE);
    let flag = flag(conn.step);
    for (i, half) in data.as_chunks::<4>().0.iter().enumerate() {
        base.add(8 * i).store_u64(u64::from(u32::from_le_bytes(*half)) | flag);
    }
}

/// Reads whole lines, from line `first` of the connection's next slot, as they arrive.
fn read_lines(
    block: &Block<'_>,
    conn: &Conn,
    slot: usize,
    first: usize,
    data: &mut [u8],
) -> Result<(), Stop> {
    let base = conn.buff.add(conn.slot_index() * slot + first * LINE);
    let flag = flag(conn.step);
    for (i, half) in data.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let word = base.add(8 * i);
        let mut value = word.load_u64();
        if value & !0xffff_ffff != flag {
            let arrived = || {
                value = word.load_u64();
                value & !0xffff_ffff == flag
            };
            block.wait(|| conn.describe(first + i / 2), arrived)?;
        }
        half.copy_from_slice(&value.to_le_bytes()[..4]);
    }
    Ok(())
}
