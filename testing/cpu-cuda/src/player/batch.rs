// SPDX-License-Identifier: Apache-2.0
//! Reads a launch's arguments: the participating channels and their works.

use super::memory::{Addr, addr_at, u32_at, u64_at};
use crate::layout::Layout;

/// The kernel's arguments, `ncclDevKernelArgs` and the batches behind it.
#[derive(Debug)]
pub(crate) struct Args<'a> {
    layout: &'a Layout,
    bytes: &'a [u8],
    /// The kernel's communicator.
    pub(crate) comm: Addr,
    channel_mask: u64,
    storage: u64,
    work_mask: usize,
    work_buf: Addr,
}

/// The kind of works in a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WorkType {
    P2p,
    Coll,
    CollReg,
    Bcast,
}

/// The works that a channel plays in one step.
#[derive(Debug)]
pub(crate) struct Batch {
    /// Index into the function table.
    pub(crate) func: usize,
    /// Kind of all works.
    pub(crate) work_type: WorkType,
    /// The works, each a copy of its struct's memory.
    pub(crate) works: Vec<Vec<u8>>,
    /// FIFO bytes read up to and with the last work.
    pub(crate) consumed: u32,
    /// Index of the channel's next batch.
    pub(crate) next: Option<usize>,
}

impl<'a> Args<'a> {
    /// Decodes the arguments of a launch.
    pub(crate) fn read(layout: &'a Layout, bytes: &'a [u8]) -> Result<Self, String> {
        let place = &layout.args;
        if bytes.len() < place.size {
            return Err(format!("{} bytes of kernel arguments, not NCCL's", bytes.len()));
        }
        Ok(Self {
            layout,
            bytes,
            comm: addr_at(bytes, place.comm),
            channel_mask: u64_at(bytes, place.channel_mask),
            storage: place.work_storage_type.get(bytes),
            work_mask: index(u32_at(bytes, place.work_mask)),
            work_buf: addr_at(bytes, place.work_buf),
        })
    }

    /// The channel of a block: the n-th that takes part.
    pub(crate) fn channel(&self, block: u32) -> Option<usize> {
        let mut mask = self.channel_mask;
        for _ in 0..block {
            mask &= mask.wrapping_sub(1);
        }
        (mask != 0).then(|| index(mask.trailing_zeros()))
    }

    /// Whether the works are in the FIFO, whose space must be returned to NCCL.
    pub(crate) fn in_fifo(&self) -> bool {
        self.storage == 1
    }

    /// Reads the batch at `at` and those that extend it.
    pub(crate) fn batch(&self, mut at: usize) -> Result<Batch, String> {
        let place = &self.layout.batch;
        let mut works = vec![];
        loop {
            let start = self.layout.args.size + at * place.size;
            let bytes = self
                .bytes
                .get(start..start + place.size)
                .ok_or_else(|| format!("batch {at} lies behind the arguments"))?;
            let get = |bits: crate::layout::Bits| usize::try_from(bits.get(bytes)).expect("small");
            let work_type = match get(place.work_type) {
                0 => WorkType::P2p,
                1 => WorkType::Coll,
                2 => WorkType::CollReg,
                _ => WorkType::Bcast,
            };
            let size = self.work_size(work_type)?;
            let base = index(u32_at(bytes, place.offset_base));
            let mut set = u64_at(bytes, place.offset_bitset);
            let mut consumed = 0;
            while set != 0 {
                let offset = base + index(set.trailing_zeros()) * size;
                works.push(self.work(offset, size)?);
                consumed = u32::try_from(offset + size).unwrap_or(u32::MAX);
                set &= set - 1;
            }
            let jump = get(place.next_jump);
            if get(place.next_extends) == 0 {
                let next = (jump != 0).then(|| at + jump);
                return Ok(Batch { func: get(place.func_id), work_type, works, consumed, next });
            }
            at += jump;
        }
    }

    /// Copies one work from the arguments or the work buffer, which may wrap within it.
    fn work(&self, offset: usize, size: usize) -> Result<Vec<u8>, String> {
        if self.storage == 0 {
            let work = self.bytes.get(offset..offset + size);
            return work
                .map(<[u8]>::to_vec)
                .ok_or_else(|| format!("a work at {offset} lies behind the arguments"));
        }
        let mut work = vec![0; size];
        for (i, pack) in work.chunks_mut(16).enumerate() {
            self.work_buf.add((offset + 16 * i) & self.work_mask).copy_to(pack);
        }
        Ok(work)
    }

    fn work_size(&self, work_type: WorkType) -> Result<usize, String> {
        let layout = self.layout;
        match work_type {
            WorkType::P2p => Ok(layout.p2p.size),
            WorkType::Coll => Ok(layout.coll.size),
            WorkType::CollReg => Ok(layout.coll_reg.size),
            WorkType::Bcast => {
                let bcast = layout.bcast.as_ref();
                bcast.map(|bcast| bcast.size).ok_or_else(|| "unknown type of work".into())
            }
        }
    }
}

impl Batch {
    /// For each work, whether the device code writes its times: it treats everything except sends
    /// and receives as a plain collective (`profilerEnabled` in NCCL's `src/device/common.h`).
    pub(crate) fn profiled(&self, layout: &Layout) -> Vec<bool> {
        let (size, enabled) = match self.work_type {
            WorkType::P2p => (layout.p2p.size, layout.p2p.profiler_enabled),
            _ => (layout.coll.size, layout.coll.profiler_enabled),
        };
        let storage = self.works.concat();
        let is_set = |at: usize| {
            let work = storage.get(at * size..(at + 1) * size)?;
            Some(enabled?.get(work) == 1)
        };
        (0..self.works.len()).map(|at| is_set(at).unwrap_or(false)).collect()
    }
}

fn index(value: u32) -> usize {
    usize::try_from(value).expect("a 64-bit machine")
}
