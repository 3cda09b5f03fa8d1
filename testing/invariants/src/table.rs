// SPDX-License-Identifier: Apache-2.0
//! The events that NCCL is documented to emit, by profiler API version. Counts are checked against
//! this table.
//!
//! Sources: the activation bits of `src/include/plugin/nccl_profiler.h` and the headers
//! `src/include/plugin/profiler/profiler_v{1..7}.h` (NCCL v2.31.2-1).

use ncclscope_trace::EventKind;

/// The API version that first has each kind of event, by the kind's number.
pub const SINCE: [u32; ncclscope_trace::kind::KINDS] =
    [1, 1, 1, 1, 1, 1, 3, 3, 5, 5, 5, 5, 6, 6, 6, 7];

/// True if a release with profiler API `version` has this kind of event at all.
#[must_use]
pub fn has(version: u32, kind: EventKind) -> bool {
    version >= SINCE[kind.index()]
}

/// The kinds that the parent of an event of `kind` can have; empty if it has no parent.
#[must_use]
pub fn parents(version: u32, kind: EventKind) -> &'static [EventKind] {
    use EventKind as K;
    let has_api = has(version, K::GroupApi);
    match kind {
        K::Group | K::GroupApi | K::ProxyCtrl => &[],
        K::CollApi | K::P2pApi | K::KernelLaunch => &[K::GroupApi],
        K::Coll if has_api => &[K::CollApi],
        K::P2p if has_api => &[K::P2pApi],
        K::Coll | K::P2p => &[K::Group],
        K::ProxyOp | K::KernelCh => &[K::Coll, K::P2p],
        K::ProxyStep => &[K::ProxyOp],
        K::NetPlugin => &[K::ProxyStep],
        K::CeColl => &[K::CollApi],
        K::CeSync | K::CeBatch => &[K::CeColl],
        K::KernelPhase => &[K::KernelCh],
    }
}

/// ProxyOps of a rank for a collective of `channels` channels between two ranks on two nodes: each
/// channel sends and receives, but those of a Broadcast or a Reduce only do one of both. `None` for
/// functions and algorithms that this table does not cover.
#[must_use]
pub fn proxy_ops_of_two(func: &str, algo: &str, channels: u8) -> Option<u64> {
    let channels = u64::from(channels);
    match (func, algo) {
        ("AllReduce", "RING" | "TREE") | ("AllGather" | "ReduceScatter", "RING") => {
            Some(2 * channels)
        }
        ("Broadcast" | "Reduce", "RING") => Some(channels),
        _ => None,
    }
}

/// True if NCCL reports nothing of a collective below its API call: Broadcasts have a queue of
/// their own, which the profiler does not walk (`src/plugin/profiler.cc`,
/// `ncclProfilerStartTaskEvents` @v2.29.2-1 to @v2.32.3-1).
#[must_use]
pub fn is_api_only(version: u32, func: &str) -> bool {
    version >= 6 && func == "Broadcast"
}
