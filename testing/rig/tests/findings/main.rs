// SPDX-License-Identifier: Apache-2.0
//! Facts about real NCCL, one test each: what the release does, and what a user of the product then
//! sees. The numbers are those of the project's notes on NCCL.
//!
//! A finding is asserted through the report, the trace and the check of the recordings, on the
//! releases that have it. A release that changes one of them fails its test here.

mod api;
mod faults;
mod job;
mod kernels;
mod symbol;
mod trace;

use job::{Run, record};
use rig::topology::Topology;
use std::sync::OnceLock;

/// The number of floats of operations whose size matters: odd, and over two channels.
const COUNT: u64 = 300_001;

/// The steps of [`mixed_2_28`] and [`mixed_2_32`].
const MIXED: [&str; 5] = [
    "allreduce:1000",
    "repeat:3:allreduce:1000",
    "broadcast:300001",
    "sendrecv:300001",
    "graph:3x4096",
];

/// One job on 2.28.9, for several findings.
fn mixed_2_28() -> Option<&'static Run> {
    static RUN: OnceLock<Option<Run>> = OnceLock::new();
    RUN.get_or_init(|| record("2.28.9", |job| job, &MIXED)).as_ref()
}

/// As [`mixed_2_28`], on 2.32.3 and without kernel events: a Broadcast makes their counts wrong
/// there.
fn mixed_2_32() -> Option<&'static Run> {
    static RUN: OnceLock<Option<Run>> = OnceLock::new();
    RUN.get_or_init(|| record("2.32.3", |job| job, &MIXED)).as_ref()
}

/// Kernel events on 2.32.3, without a Broadcast.
fn kernels_2_32() -> Option<&'static Run> {
    static RUN: OnceLock<Option<Run>> = OnceLock::new();
    let steps = [&MIXED[..2], &MIXED[3..]].concat();
    RUN.get_or_init(|| record("2.32.3", with_kernels, &steps)).as_ref()
}

/// A job with kernel events, even if they are off by default.
fn with_kernels(job: rig::job::Job) -> rig::job::Job {
    job.env("NCCLSCOPE_KERNEL", "on")
}

/// An AllGather by copy engines and then a Broadcast, on 2.30.7.
fn copies_2_30() -> Option<&'static Run> {
    static RUN: OnceLock<Option<Run>> = OnceLock::new();
    RUN.get_or_init(|| copies("2.30.7", &["ce:1000", "broadcast:300001"])).as_ref()
}

/// A job in which NCCL prefers copy engines to kernels where it can.
fn copies(version: &str, steps: &[&str]) -> Option<Run> {
    let configure =
        |job: rig::job::Job| job.topology(Topology::P2pCumem).env("NCCL_CTA_POLICY", "2");
    record(version, configure, steps)
}
