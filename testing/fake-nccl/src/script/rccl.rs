// SPDX-License-Identifier: Apache-2.0
//! AMD's RCCL: times of kernels in ticks of the GPU's timer, 256 channels, a diagnosis of its proxy
//! where NCCL has phases of kernels, and a kernel that starts and never stops.

use super::setup::ScriptSetup;
use crate::play::{bit, now_ns};
use std::time::Duration;

/// Elements of every operation.
const COUNT: u64 = 1 << 20;
/// Channels: NCCL's descriptor has one byte for them, so that it says 0.
const CHANNELS: u16 = 256;
/// How long each kernel takes.
const KERNEL: Duration = Duration::from_millis(4);

/// A tick of the timer, ns, from `FAKE_RCCL_KHZ`.
fn tick_ns() -> u64 {
    let khz = std::env::var("FAKE_RCCL_KHZ").ok().and_then(|text| text.parse().ok());
    1_000_000 / khz.filter(|&khz| khz != 0).unwrap_or(100_000)
}

/// AllReduces of 4 ms on 256 channels. Of the last one the kernel of one channel never stops.
pub(super) fn rccl(setup: &ScriptSetup<'_>) {
    let tick_ns = tick_ns();
    let kernel_ns = u64::try_from(KERNEL.as_nanos()).expect("it is short");
    let mut player = setup.player();
    for op in 0..setup.ops {
        let coll = player.enqueue(COUNT, CHANNELS.to_le_bytes()[0]).coll;
        let is_last = op + 1 == setup.ops;
        setup.apart(|| {
            let player = setup.player();
            let start = now_ns();
            let channels = (0..CHANNELS).map(|channel| channel.to_le_bytes()[0]);
            let kernels =
                channels.map(|channel| player.start_kernel(coll, channel, start / tick_ns));
            let kernels: Vec<_> = kernels.collect();
            if setup.plugin.mask().get() & mask(bit::KERNEL_PHASE) != 0 {
                setup.plugin.stop(player.start_raw(bit::KERNEL_PHASE, 0));
            }
            player.op(coll, 0, true, 4);
            std::thread::sleep(Duration::from_nanos((start + kernel_ns).saturating_sub(now_ns())));
            for kernel in kernels.into_iter().skip(usize::from(is_last)) {
                player.stop_kernel(kernel, (start + kernel_ns) / tick_ns);
            }
        });
    }
}

fn mask(bit: u64) -> u32 {
    u32::try_from(bit).expect("masks have 32 bits")
}
