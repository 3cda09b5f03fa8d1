// SPDX-License-Identifier: Apache-2.0
//! One block of a kernel's grid: the channel it plays and how it waits.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::faults::{Here, Verdict};
use super::memory::Addr;
use super::rules::Rules;
use crate::layout::Layout;
use crate::util::nap;

/// Polls without giving up the processor.
const SPINS: u32 = 64;
/// Polls that yield to other threads, before polls that sleep.
const YIELDS: u32 = 64;
/// A wait of this length is reported once: it is what a hang looks like.
const STALL: Duration = Duration::from_secs(15);

/// Why a block ends early.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Stop {
    /// NCCL raised the abort flag, or another part of the launch failed.
    Aborted,
    /// The player cannot play this.
    Failed(String),
}

/// The shared state of a block's parts.
#[derive(Debug)]
pub(crate) struct Block<'a> {
    pub(crate) layout: &'a Layout,
    /// Channel that the block plays.
    pub(crate) channel_id: usize,
    /// Its `ncclDevChannel`.
    pub(crate) channel: Addr,
    /// The kernel's communicator.
    pub(crate) comm: Addr,
    pub(crate) rank: usize,
    /// Ranks in the communicator.
    pub(crate) n_ranks: usize,
    /// Some part of the launch failed, so that the others need not wait for it.
    pub(crate) broken: &'a AtomicBool,
    pub(crate) rules: Rules,
    pub(crate) faults: Option<Here<'a>>,
    abort_flag: Addr,
}

impl<'a> Block<'a> {
    /// The block that plays channel `channel_id` of the kernel communicator at `comm`.
    pub(crate) fn new(
        layout: &'a Layout,
        comm: Addr,
        channel_id: usize,
        broken: &'a AtomicBool,
    ) -> Self {
        let channel = comm.add(layout.comm.channels.offset).add(channel_id * layout.channel.size);
        Self {
            layout,
            channel_id,
            channel,
            comm,
            rank: size(comm.add(layout.comm.rank)),
            n_ranks: size(comm.add(layout.comm.n_ranks)),
            broken,
            rules: Rules::default(),
            faults: None,
            abort_flag: comm.add(layout.comm.abort_flag).load_addr(),
        }
    }

    /// Bytes of a connection's buffer for a protocol (its index in `buffSizes`).
    pub(crate) fn buff_size(&self, proto: usize) -> usize {
        size(self.comm.add(self.layout.comm.buff_sizes).add(4 * proto))
    }

    /// Bytes of a p2p step.
    pub(crate) fn p2p_chunk_size(&self) -> usize {
        size(self.comm.add(self.layout.comm.p2p_chunk_size))
    }

    /// Waits until `ready`, yielding the CPU: with fewer cores than threads the awaited thread must
    /// run. `what` describes the wait for the report of a stall.
    pub(crate) fn wait(
        &self,
        what: impl Fn() -> String,
        mut ready: impl FnMut() -> bool,
    ) -> Result<(), Stop> {
        let mut begun = None;
        let mut is_reported = false;
        for poll in 0_u32.. {
            if ready() {
                return Ok(());
            }
            if self.given_up() {
                return Err(Stop::Aborted);
            }
            if poll < SPINS {
                std::hint::spin_loop();
            } else if poll < SPINS + YIELDS {
                std::thread::yield_now();
            } else {
                let waited = begun.get_or_insert_with(Instant::now).elapsed();
                // Only once: such a wait usually never ends.
                if waited > STALL && !is_reported {
                    is_reported = true;
                    self.report_stall(&what());
                }
                std::thread::sleep(nap(waited));
            }
        }
        Err(Stop::Failed(format!("gave up waiting for {}", what())))
    }

    /// Begins a step that sends `bytes` to each of `peers`: faults are applied here.
    pub(crate) fn step(
        &self,
        peers: impl Iterator<Item = usize>,
        bytes: usize,
    ) -> Result<(), Stop> {
        let Some(here) = &self.faults else { return Ok(()) };
        match here.step(peers, bytes) {
            Verdict::After(time) => self.pause(time),
            Verdict::Stuck => self.hang(),
        }
    }

    /// Waits for nothing but an abort.
    pub(crate) fn hang(&self) -> Result<(), Stop> {
        self.wait(|| "nothing, as CPU_CUDA_FAULTS wants".into(), || false)
    }

    fn pause(&self, time: Duration) -> Result<(), Stop> {
        let begun = Instant::now();
        while let Some(left) = time.checked_sub(begun.elapsed()).filter(|left| !left.is_zero()) {
            if self.given_up() {
                return Err(Stop::Aborted);
            }
            std::thread::sleep(left.min(Duration::from_millis(1)));
        }
        Ok(())
    }

    fn given_up(&self) -> bool {
        self.abort_flag.load_u32() != 0 || self.broken.load(Ordering::Relaxed)
    }

    /// Reports what a long wait is for.
    #[expect(clippy::print_stderr, reason = "a test that hangs must show where")]
    fn report_stall(&self, what: &str) {
        let (rank, channel) = (self.rank, self.channel_id);
        eprintln!("cpu-cuda: rank {rank} channel {channel} still waits for {what}");
    }
}

/// Reads a C `int` that is never negative.
pub(crate) fn size(at: Addr) -> usize {
    usize::try_from(at.load_i32()).unwrap_or(0)
}
