// SPDX-License-Identifier: Apache-2.0
//! What identifies a simulated process, in recordings and in tables of vectors.

use crate::layout::Layout;
use crate::time::mix;
use ncclscope_trace::identity::{Identity, nccl_version};

/// The NCCL version of all ranks: 2.30.7, with version 6 of the profiler API.
pub(crate) const NCCL: u32 = 23_007;
pub(crate) const API: u32 = 6;

/// The identity of a rank's process. It depends only on the scenario, so that the same scenario
/// gives the same files.
pub(crate) fn identity(seed: u64, layout: &Layout, rank: u32) -> Identity {
    let (host, local) = (layout.host(rank), rank % layout.per_host.max(1));
    Identity {
        job: Some(format!("simulated-{seed}")),
        run: Some(format!("simulated-{seed}")),
        boot_id: Some(format!("00000000-0000-4000-8000-{host:012x}")),
        start_ticks: Some(100_000 + u64::from(local)),
        nonce: Some(format!("{:08x}", mix(seed, rank.into(), 0x6e6f_6e63) >> 32)),
        rank: Some(rank),
        local_rank: Some(local),
        node_rank: Some(host),
        world_size: Some(layout.ranks),
        device: Some(local),
        device_pci: Some(format!("0000:{:02x}:00.0", 0x10 + local % 0xe0)),
        nccl: nccl_version(NCCL),
        profiler_api: Some(API),
        ..Identity::default()
    }
}
