// SPDX-License-Identifier: Apache-2.0
//! The faults and the harmless oddities that can be planted, by name.

use serde::{Deserialize, Serialize};

/// What can be planted in a job. New ones come last: what a seed draws depends on the place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "the table below says what each of them is")]
pub enum Fault {
    HostStuck,
    GilLock,
    Killed,
    Sigstop,
    InLaunch,
    ExtraOp,
    WrongType,
    WrongCount,
    WrongRoot,
    OrderSwap,
    P2pUnmatched,
    GpuDead,
    StreamBlocked,
    SmExhausted,
    NvlinkHang,
    SenderGpuStuck,
    ReceiverNotReady,
    NicDown,
    LinkDown,
    FlushStuck,
    ReceiverGpuStuck,
    ProxyStalled,
    SlowGpu,
    SlowLink,
    SlowNic,
    SlowNvlink,
    Drift,
    AlgoChange,
    LaunchBound,
    LongLastStage,
    Jitter,
    Healthy,
    FirstIteration,
    Checkpoint,
    EvalPhase,
    SubsetComm,
    CommDestroyed,
    Clocks,
    DroppedHeartbeats,
    RingOverflow,
    P2pSize,
    Exit,
    LossyLink,
    BackgroundTraffic,
    SlowKernels,
    GcPauses,
    Imbalance,
    ElasticResize,
}

/// What a planted thing does to the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// It stops the job, or corrupts it.
    Hang,
    /// It slows the job down.
    Slow,
    /// Nothing is wrong: whoever finds something errs.
    Control,
}

use Fault as F;
use Group::{Control, Hang, Slow};

/// Name, what it does, class of the verdict that is right, and what happens.
type Row = (Fault, &'static str, Group, &'static str, &'static str);

const HEALTHY: Row = (F::Healthy, "healthy", Control, "", "nothing");

const TABLE: [Row; 48] = [
    (F::HostStuck, "host-stuck", Hang, "H1a", "a rank's thread sleeps and calls NCCL no more"),
    (F::GilLock, "gil-lock", Hang, "H1a", "a rank's thread spins and calls NCCL no more"),
    (F::Killed, "killed", Hang, "H1b", "a process is killed"),
    (F::Exit, "exit", Hang, "H1b", "a process ends in order while the others go on"),
    (F::Sigstop, "sigstop", Hang, "H1b", "a process is stopped; its GPU goes on"),
    (F::InLaunch, "in-launch", Hang, "H1d", "a launch does not return from the driver"),
    (F::ExtraOp, "extra-op", Hang, "H2", "a rank calls a collective that the others do not"),
    (F::WrongType, "wrong-type", Hang, "H2", "a rank calls a collective with another datatype"),
    (F::WrongCount, "wrong-count", Hang, "H2", "a rank calls a collective with another count"),
    (F::WrongRoot, "wrong-root", Hang, "H2", "a rank calls a Broadcast with another root"),
    (
        F::OrderSwap,
        "order-swap",
        Hang,
        "DEADLOCK",
        "a rank uses two communicators in another order",
    ),
    (F::P2pUnmatched, "p2p-unmatched", Hang, "H2b", "a rank receives what nobody sends"),
    (F::P2pSize, "p2p-size", Hang, "H2b", "a rank receives more than its peer sends"),
    (F::GpuDead, "gpu-dead", Hang, "H3c", "a GPU's context dies as a kernel ends"),
    (F::StreamBlocked, "stream-blocked", Hang, "H3a", "another kernel of the stream does not end"),
    (F::SmExhausted, "sm-exhausted", Hang, "H3b", "a kernel finds room for some channels only"),
    (F::NvlinkHang, "nvlink-hang", Hang, "H3d", "data between two GPUs of a host stops"),
    (F::SenderGpuStuck, "sender-gpu-stuck", Hang, "N1", "a GPU stops within a kernel"),
    (F::ReceiverNotReady, "receiver-not-ready", Hang, "N2", "a network takes no more receives"),
    (F::NicDown, "nic-down", Hang, "N3", "a rank's network interface stops, both ways"),
    (F::LinkDown, "link-down", Hang, "N3", "the path from one rank to another stops"),
    (F::FlushStuck, "flush-stuck", Hang, "N4", "received data is not flushed to the GPU"),
    (F::ReceiverGpuStuck, "receiver-gpu-stuck", Hang, "N5", "a GPU stops while it receives only"),
    (F::ProxyStalled, "proxy-stalled", Hang, "P1", "a proxy progress thread stops"),
    (F::SlowGpu, "slow-gpu", Slow, "S1", "a GPU computes slower by a factor"),
    (F::SlowKernels, "slow-kernels", Slow, "N5", "a GPU is slow inside collectives"),
    (F::SlowLink, "slow-link", Slow, "S3", "the path from one rank to another is slower"),
    (F::LossyLink, "lossy-link", Slow, "S3", "a path sends a quarter of all data again"),
    (F::SlowNic, "slow-nic", Slow, "S4", "a rank's network interface is slower, both ways"),
    (
        F::BackgroundTraffic,
        "background-traffic",
        Slow,
        "S4",
        "something else uses a rank's network interface half of the time",
    ),
    (F::SlowNvlink, "slow-nvlink", Slow, "S5", "a GPU's links within its host are slower"),
    (F::Drift, "drift", Slow, "S2", "the whole network becomes slower half way"),
    (F::AlgoChange, "algo-change", Slow, "S6", "an AllReduce changes its algorithm half way"),
    (F::LaunchBound, "launch-bound", Slow, "S7", "a rank's host issues operations too slowly"),
    (F::LongLastStage, "long-last-stage", Slow, "S1", "the last pipeline stage computes longer"),
    (F::Jitter, "jitter", Control, "", "all GPUs vary by 15 %, none of them for long"),
    (F::GcPauses, "gc-pauses", Control, "", "a host pauses for 30 ms in one of 32 steps"),
    (F::Imbalance, "imbalance", Control, "", "in each step another replica has more to compute"),
    HEALTHY,
    (F::FirstIteration, "first-iteration", Control, "", "the first step waits 45 s for a compiler"),
    (F::Checkpoint, "checkpoint", Control, "", "all ranks pause for 60 s"),
    (F::EvalPhase, "eval-phase", Control, "", "steps without backward pass half way"),
    (F::SubsetComm, "subset-comm", Control, "", "a communicator that few ranks have, seldom used"),
    (F::CommDestroyed, "comm-destroyed", Control, "", "a communicator ends before the job does"),
    (F::ElasticResize, "elastic-resize", Control, "", "all communicators end and are made anew"),
    (F::Clocks, "clocks", Control, "", "clocks are 1 s and 100 ppm apart"),
    (F::DroppedHeartbeats, "dropped-heartbeats", Control, "", "a third of the progress is missing"),
    (F::RingOverflow, "ring-overflow", Control, "", "recordings too small for the run"),
];

impl Fault {
    fn row(self) -> &'static Row {
        TABLE.iter().find(|row| row.0 == self).unwrap_or(&HEALTHY)
    }

    /// All of them.
    pub fn all() -> impl Iterator<Item = Fault> {
        TABLE.iter().map(|row| row.0)
    }

    /// The one of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Fault> {
        TABLE.iter().find(|row| row.1 == name).map(|row| row.0)
    }

    /// Its name, as scenario files and the command line have it.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// What it does to a job.
    #[must_use]
    pub fn group(self) -> Group {
        self.row().2
    }

    /// The class of the right verdict; empty for a control.
    #[must_use]
    pub fn class(self) -> &'static str {
        self.row().3
    }

    /// What happens, in a few words.
    #[must_use]
    pub fn what(self) -> &'static str {
        self.row().4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_its_own_row_and_one_name() {
        for fault in Fault::all() {
            assert_eq!(fault.row().0, fault);
            assert_eq!(Fault::from_name(fault.name()), Some(fault));
            assert_eq!(serde_json::to_value(fault).unwrap(), fault.name());
            assert_eq!(fault.class().is_empty(), fault.group() == Group::Control);
        }
    }
}
