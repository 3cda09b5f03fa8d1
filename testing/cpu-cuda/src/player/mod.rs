// SPDX-License-Identifier: Apache-2.0
//! Plays NCCL's kernels on CPU threads: one thread per block of the grid.
//!
//! A launch of NCCL carries everything in its arguments: the communicator, and per channel a chain
//! of batches of works. The player reads them with the layouts of the library's own DWARF and
//! executes the same operations as the device code, in the same order, with the same steps and
//! sizes, because the other side of each connection is NCCL's real proxy or another player.
//!
//! Played: ring and tree AllReduce; ring AllGather, ReduceScatter, Broadcast, Reduce; sends and
//! receives; grouped broadcasts; protocols SIMPLE, LL and LL128. Not played: PAT, NVLS, CollNet,
//! symmetric kernels, buffers registered to the network. A launch that needs one of those ends at
//! once, with a message on stderr and through [`Player::failure`].

mod batch;
mod block;
mod coll;
mod conn;
mod dispatch;
#[cfg(test)]
mod fake;
pub mod faults;
mod function;
mod lead;
mod ll;
mod memory;
mod p2p;
mod parallel;
mod prims;
mod prof;
pub mod reduce;
mod rules;
mod simple;
#[cfg(test)]
mod tests;

use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, PoisonError};

use batch::{Args, Batch, WorkType};
use block::{Block, Stop};
use faults::Faults;
use function::Function;
use lead::Lead;
use prof::{Phase, Profiler};
use rules::Rules;

use crate::elf::Image;
use crate::layout::Layout;

/// A kernel launch, with its arguments copied at call time.
#[derive(Debug, Clone)]
pub struct Launch {
    /// `ncclDevKernelArgs` and the data after it.
    pub args: Vec<u8>,
    /// Blocks of the grid, one per channel.
    pub grid: u32,
    /// Threads of a block; the player needs one.
    pub block: u32,
}

/// Plays the kernels of one loaded NCCL library.
#[derive(Debug)]
pub struct Player {
    layout: Layout,
    functions: Vec<Function>,
    rules: Rules,
    faults: Faults,
    failure: Mutex<Option<String>>,
}

impl Player {
    /// Reads the player's data about the loaded library `image`; `faults` are planted.
    ///
    /// # Errors
    ///
    /// The library has no DWARF, lacks a struct or member, or its function table is not found;
    /// the message says which.
    pub fn new(image: &Image, faults: Faults) -> Result<Self, String> {
        Ok(Self {
            layout: Layout::read(&image.path)?,
            functions: function::table(image)?,
            rules: Rules::of(image.nccl_version()),
            faults,
            failure: Mutex::new(None),
        })
    }

    /// Plays a launch; returns when all its blocks have finished, given up or been aborted.
    ///
    /// The arguments must be what NCCL passed to the driver for a kernel named `ncclDevKernel_…`,
    /// for a communicator that exists until this returns.
    pub fn run(&self, launch: &Launch) {
        let args = match Args::read(&self.layout, &launch.args) {
            Ok(args) => args,
            Err(error) => return self.fail(&error),
        };
        let blocks: Vec<_> = (0..launch.grid).collect();
        let broken = AtomicBool::new(false);
        let launch = self.faults.launch(args.comm);
        let run = |&block: &u32| self.run_block(&args, (launch, block), &broken);
        match parallel::all(&blocks, &broken, run) {
            Ok(()) | Err(Stop::Aborted) => {}
            Err(Stop::Failed(error)) => self.fail(&error),
        }
    }

    /// The first failure of any launch: what the player could not play. The results of that and
    /// later launches are worthless.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    #[expect(clippy::print_stderr, reason = "a test must not fail silently")]
    fn fail(&self, error: &str) {
        eprintln!("cpu-cuda: launch failed: {error}");
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.get_or_insert_with(|| error.to_owned());
    }

    /// Plays one block of a launch, both by number.
    fn run_block(
        &self,
        args: &Args<'_>,
        (launch, index): (u64, u32),
        broken: &AtomicBool,
    ) -> Result<(), Stop> {
        let channel =
            args.channel(index).ok_or_else(|| failed(format!("block {index} has no channel")))?;
        let mut block = Block::new(&self.layout, args.comm, channel, broken);
        block.rules = self.rules;
        block.faults = self.faults.here(block.rank, launch, channel);
        if block.faults.as_ref().is_some_and(faults::Here::never) {
            return block.hang();
        }
        if block.faults.as_ref().is_some_and(faults::Here::fails) {
            return Err(failed("CPU_CUDA_FAULTS wants it".into()));
        }
        let mut profiler = Profiler::open(&block);
        let mut next = usize::try_from(index).ok();
        let mut result = Ok(());
        while let Some(at) = next.take().filter(|_| result.is_ok()) {
            let batch = args.batch(at).map_err(failed)?;
            self.return_credit(args, &block, &batch);
            let profiled = batch.profiled(&self.layout);
            profiler.begin(&profiled);
            let phased = batch.work_type != WorkType::P2p;
            profiler.phase(Phase::AfterOpen, &profiled, phased);
            let end = || {
                profiler.phase(Phase::BeforeClose, &profiled, phased);
                profiler.end(&profiled);
            };
            // Between batches the block waits for all of its threads.
            let leads = batch.next.is_none() && !(phased && profiler.joins());
            let lead = Lead::new(&end, leads);
            if block.faults.as_ref().is_some_and(faults::Here::early) {
                lead.through();
            }
            result = self.play(&block, &batch, &lead);
            lead.end();
            profiler.advance(profiled.len());
            next = batch.next;
        }
        profiler.close();
        result
    }

    /// Up to 2.26 the kernel reports to NCCL how much of the FIFO it has read.
    fn return_credit(&self, args: &Args<'_>, block: &Block<'_>, batch: &Batch) {
        if let Some(consumed) = self.layout.comm.work_consumed
            && args.in_fifo()
        {
            let per_channel = block.comm.add(consumed).load_addr();
            per_channel.add(4 * block.channel_id).store_u32(batch.consumed);
        }
    }

    fn play(&self, block: &Block<'_>, batch: &Batch, lead: &Lead<'_>) -> Result<(), Stop> {
        let Some(function) = self.functions.get(batch.func) else {
            return Err(failed(format!("function {} is not in NCCL's table", batch.func)));
        };
        match (function, batch.work_type, &self.layout.bcast) {
            (Function::SendRecv, WorkType::P2p, _) => p2p::play(block, &batch.works, lead),
            (Function::AllGatherV(proto), WorkType::Bcast, Some(place)) => {
                p2p::play_bcasts(block, &batch.works, place, *proto)
            }
            (&Function::Coll(coll, op, ty, algo, proto), WorkType::Coll | WorkType::CollReg, _) => {
                let last = batch.works.len().saturating_sub(1);
                batch.works.iter().enumerate().try_for_each(|(at, work)| {
                    let lead = (at == last).then_some(lead);
                    coll::play(block, work, (coll, op, ty, algo, proto), lead)
                })
            }
            (Function::Unsupported(name), ..) => {
                Err(failed(format!("the player does not know {name}")))
            }
            _ => Err(failed(format!("{function:?} with works of type {:?}", batch.work_type))),
        }
    }
}

fn failed(error: String) -> Stop {
    Stop::Failed(error)
}
