// SPDX-License-Identifier: Apache-2.0
//! The protocols LL and LL128: data travels in lines that carry their own flags.
//!
//! A line of LL is {data low, flag, data high, flag} in 32-bit words; the flag is the low half of
//! the step plus one, so that a reader recognises a line of this round without a counter. A line of
//! LL128 is 15 words of 64 bits and the step plus one in the last. The sender needs the receiver's
//! head counter only, to know that a slot is free. NCCL's warps scatter a run of 16 lines' data
//! among them (`src/device/prims_ll128.h`); here it lies in order, since only players look at it.

use super::block::{Block, Stop};
use super::conn::{Conn, Proto, STEPS};
use super::memory::Addr;
use super::prims::{Op, PIECE, Prims};

/// The format of a protocol's lines.
#[derive(Debug)]
pub(crate) struct Lines {
    proto: Proto,
    /// Bytes of a line.
    line: usize,
    /// Data bytes of a line.
    pub(crate) data: usize,
    /// Lines that are always sent together.
    pub(crate) unit: usize,
    /// Data bytes that are reduced at a time.
    piece: usize,
}

pub(crate) const LL: Lines = Lines { proto: Proto::Ll, line: 16, data: 8, unit: 1, piece: PIECE };
/// Lines of LL128 (`NCCL_LL128_LINESIZE`, `NCCL_LL128_DATAELEMS`); a warp sends 16 at a time.
pub(crate) const LL128: Lines =
    Lines { proto: Proto::Ll128, line: 128, data: 120, unit: 16, piece: 2 * 1920 };

/// In steps with these bits set all lines of the slot are written, so that a flag of the round
/// before the 32-bit counter wrapped is not mistaken for a new one (`NCCL_LL_CLEAN_MASK`).
const CLEAN: u64 = 0x7fff_fff8;

impl Prims<'_> {
    /// Plays `op` on `n` elements in one step of each connection.
    pub(super) fn play_lines(&mut self, form: &Lines, op: Op, n: usize) -> Result<(), Stop> {
        let (block, element) = (self.block, self.element());
        let bytes = n * element;
        let slot = block.buff_size(form.proto as usize) / usize::try_from(STEPS).expect("8");
        let lines = bytes.div_ceil(form.data).next_multiple_of(form.unit);
        if lines * form.line > slot {
            let proto = form.proto;
            return Err(Stop::Failed(format!("{bytes} bytes exceed a {proto:?} slot of {slot}")));
        }
        let cleans = |conn: &Conn| form.proto == Proto::Ll && conn.step & CLEAN == CLEAN;
        let send = if op.send { &self.send[..] } else { &[] };
        block.step(send.iter().map(|conn| conn.peer), bytes)?;
        for conn in send {
            conn.wait(block, 1)?;
            conn.announce(block, if cleans(conn) { slot } else { lines * form.line });
        }
        for done in (0..bytes).step_by(form.piece) {
            self.play_piece(form, op, slot, done, form.piece.min(bytes - done))?;
        }
        if op.recv {
            for conn in &mut self.recv {
                conn.step += 1;
                conn.head.store_u64(conn.step);
            }
        }
        if op.send {
            for conn in &mut self.send {
                if cleans(conn) {
                    let rest = vec![0; (slot / form.line - lines) * form.data];
                    form.write(conn, slot, lines, &rest);
                }
                conn.step += 1;
                if form.proto == Proto::Ll128 {
                    conn.tell_proxy();
                }
            }
        }
        Ok(())
    }

    /// Plays `n` bytes of the step, `done` bytes into it.
    fn play_piece(
        &self,
        form: &Lines,
        op: Op,
        slot: usize,
        done: usize,
        n: usize,
    ) -> Result<(), Stop> {
        let (mut acc, mut other) = ([0; PIECE], [0; PIECE]);
        let padded = n.next_multiple_of(form.unit * form.data);
        let first_line = done / form.data;
        let reduction = &self.setup.reduction;
        let at = |base: Addr, index: usize| base.add(index * self.element() + done);
        let mut peers = if op.recv { self.recv.iter() } else { [].iter() };
        if let Some(src) = op.src {
            at(self.setup.input, src).copy_to(&mut acc[..n]);
            reduction.pre(&mut acc[..n]);
        } else if let Some(first) = peers.next() {
            form.read(self.block, first, slot, first_line, &mut acc[..padded])?;
        }
        for peer in peers {
            form.read(self.block, peer, slot, first_line, &mut other[..padded])?;
            reduction.combine(&mut acc[..n], &other[..n]);
        }
        if op.post {
            reduction.post(&mut acc[..n]);
        }
        if op.send {
            for conn in &self.send {
                form.write(conn, slot, first_line, &acc[..padded]);
            }
        }
        if let Some(dst) = op.dst {
            at(self.setup.output, dst).copy_from(&acc[..n]);
        }
        Ok(())
    }
}

impl Lines {
    /// Stores `data`, whole lines, from line `first` of the connection's next slot.
    fn write(&self, conn: &Conn, slot: usize, first: usize, data: &[u8]) {
        let base = conn.buff.add(conn.slot_index() * slot + first * self.line);
        if self.proto == Proto::Ll {
            let flag = flag(conn.step);
            for (i, half) in data.as_chunks::<4>().0.iter().enumerate() {
                base.add(8 * i).store_u64(u64::from(u32::from_le_bytes(*half)) | flag);
            }
            return;
        }
        for (i, line) in data.chunks_exact(self.data).enumerate() {
            let at = base.add(i * self.line);
            at.copy_from(line);
            at.add(self.data).store_u64(conn.step + 1);
        }
    }

    /// Reads whole lines, from line `first` of the connection's next slot, as they arrive.
    fn read(
        &self,
        block: &Block<'_>,
        conn: &Conn,
        slot: usize,
        first: usize,
        data: &mut [u8],
    ) -> Result<(), Stop> {
        let base = conn.buff.add(conn.slot_index() * slot + first * self.line);
        if self.proto == Proto::Ll {
            return read_ll(block, conn, base, first, data);
        }
        for (i, line) in data.chunks_exact_mut(self.data).enumerate() {
            let at = base.add(i * self.line);
            let flag = at.add(self.data);
            block.wait(|| conn.describe(first + i), || flag.load_u64() == conn.step + 1)?;
            at.copy_to(line);
        }
        Ok(())
    }
}

/// The flag of an LL step, in the upper half of a word as it lies in each half of a line.
fn flag(step: u64) -> u64 {
    (step + 1) << 32
}

/// Reads lines of LL that begin at `base`, the first being number `first` of its slot.
fn read_ll(
    block: &Block<'_>,
    conn: &Conn,
    base: Addr,
    first: usize,
    data: &mut [u8],
) -> Result<(), Stop> {
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
