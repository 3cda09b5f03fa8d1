// SPDX-License-Identifier: Apache-2.0
//! The faults and the harmless irregularities that can be planted, by name.

use ncclscope_findings::FindingClass;
use serde::{Deserialize, Serialize};

/// The faults that can be planted in a job. New ones go last: random choices depend on the index.
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
    SlowFunction,
}

/// The effect of a fault on the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultGroup {
    /// It stops the job or corrupts its results.
    Hang,
    /// It slows the job down.
    Slow,
    /// A harmless irregularity: any finding is an error.
    Control,
}

use Fault as F;
use FaultGroup::{Control, Hang, Slow};
use FindingClass as C;

/// Fault, name, effect, class of the expected verdict, and description.
type Row = (Fault, &'static str, FaultGroup, Option<FindingClass>, &'static str);

const HEALTHY: Row = (F::Healthy, "healthy", Control, None, "nothing");

const TABLE: [Row; 49] = [
    (
        F::HostStuck,
        "host-stuck",
        Hang,
        Some(C::HostStuck),
        "a rank's thread sleeps and does not call NCCL again",
    ),
    (
        F::GilLock,
        "gil-lock",
        Hang,
        Some(C::HostStuck),
        "a rank's thread spins and does not call NCCL again",
    ),
    (F::Killed, "killed", Hang, Some(C::ProcessGone), "a process is killed"),
    (
        F::Exit,
        "exit",
        Hang,
        Some(C::ProcessGone),
        "a process exits normally while the others continue",
    ),
    (F::Sigstop, "sigstop", Hang, Some(C::ProcessGone), "a process is stopped; its GPU continues"),
    (
        F::InLaunch,
        "in-launch",
        Hang,
        Some(C::CallNotEnqueued),
        "a launch does not return from the driver",
    ),
    (
        F::ExtraOp,
        "extra-op",
        Hang,
        Some(C::CallMismatch),
        "a rank calls a collective that the others do not",
    ),
    (
        F::WrongType,
        "wrong-type",
        Hang,
        Some(C::CallMismatch),
        "a rank calls a collective with another datatype",
    ),
    (
        F::WrongCount,
        "wrong-count",
        Hang,
        Some(C::CallMismatch),
        "a rank calls a collective with another count",
    ),
    (
        F::WrongRoot,
        "wrong-root",
        Hang,
        Some(C::CallMismatch),
        "a rank calls a Broadcast with another root",
    ),
    (
        F::OrderSwap,
        "order-swap",
        Hang,
        Some(C::Deadlock),
        "a rank uses two communicators in another order",
    ),
    (
        F::P2pUnmatched,
        "p2p-unmatched",
        Hang,
        Some(C::P2pMismatch),
        "a rank receives and no rank sends",
    ),
    (
        F::P2pSize,
        "p2p-size",
        Hang,
        Some(C::P2pMismatch),
        "a rank receives more than its peer sends",
    ),
    (F::GpuDead, "gpu-dead", Hang, Some(C::GpuDead), "a GPU's context dies as a kernel ends"),
    (
        F::StreamBlocked,
        "stream-blocked",
        Hang,
        Some(C::KernelNotStarted),
        "another kernel of the stream does not end",
    ),
    (
        F::SmExhausted,
        "sm-exhausted",
        Hang,
        Some(C::KernelPartlyStarted),
        "a kernel finds free SMs for some channels only",
    ),
    (
        F::NvlinkHang,
        "nvlink-hang",
        Hang,
        Some(C::KernelNotEnding),
        "data between two GPUs of a host stops",
    ),
    (
        F::SenderGpuStuck,
        "sender-gpu-stuck",
        Hang,
        Some(C::GpuNotProducing),
        "a GPU stops within a kernel",
    ),
    (
        F::ReceiverNotReady,
        "receiver-not-ready",
        Hang,
        Some(C::ReceiverNotReady),
        "a rank's network takes no more receives",
    ),
    (
        F::NicDown,
        "nic-down",
        Hang,
        Some(C::NetworkStalled),
        "a rank's network interface stops in both directions",
    ),
    (
        F::LinkDown,
        "link-down",
        Hang,
        Some(C::NetworkStalled),
        "the path from one rank to another stops",
    ),
    (
        F::FlushStuck,
        "flush-stuck",
        Hang,
        Some(C::FlushStalled),
        "received data is not flushed to the GPU",
    ),
    (
        F::ReceiverGpuStuck,
        "receiver-gpu-stuck",
        Hang,
        Some(C::GpuNotConsuming),
        "a GPU stops while it receives only",
    ),
    (
        F::ProxyStalled,
        "proxy-stalled",
        Hang,
        Some(C::ProxyStalled),
        "a proxy progress thread stops",
    ),
    (F::SlowGpu, "slow-gpu", Slow, Some(C::SlowRank), "a GPU computes slower by a factor"),
    (
        F::SlowKernels,
        "slow-kernels",
        Slow,
        Some(C::GpuNotConsuming),
        "a GPU is slow inside collectives",
    ),
    (
        F::SlowLink,
        "slow-link",
        Slow,
        Some(C::SlowLink),
        "the path from one rank to another is slower",
    ),
    (
        F::LossyLink,
        "lossy-link",
        Slow,
        Some(C::SlowLink),
        "a path retransmits a quarter of all data",
    ),
    (
        F::SlowNic,
        "slow-nic",
        Slow,
        Some(C::SlowNic),
        "a rank's network interface is slower in both directions",
    ),
    (
        F::BackgroundTraffic,
        "background-traffic",
        Slow,
        Some(C::SlowNic),
        "other traffic uses a rank's network interface half of the time",
    ),
    (
        F::SlowNvlink,
        "slow-nvlink",
        Slow,
        Some(C::SlowNodePath),
        "a GPU's links within its host are slower",
    ),
    (
        F::Drift,
        "drift",
        Slow,
        Some(C::TransfersSlowed),
        "the whole network becomes slower halfway through the run",
    ),
    (
        F::AlgoChange,
        "algo-change",
        Slow,
        Some(C::AlgorithmChanged),
        "an AllReduce changes its algorithm halfway through the run",
    ),
    (
        F::LaunchBound,
        "launch-bound",
        Slow,
        Some(C::SlowLaunch),
        "a rank's host issues operations too slowly",
    ),
    (
        F::LongLastStage,
        "long-last-stage",
        Slow,
        Some(C::SlowRank),
        "the last pipeline stage computes longer",
    ),
    (F::Jitter, "jitter", Control, None, "all GPUs vary by 15 %, none of them permanently"),
    (F::GcPauses, "gc-pauses", Control, None, "a host pauses for 30 ms in one of 32 steps"),
    (
        F::Imbalance,
        "imbalance",
        Control,
        None,
        "in each step a different replica has more to compute",
    ),
    HEALTHY,
    (
        F::FirstIteration,
        "first-iteration",
        Control,
        None,
        "the first step waits 45 s for a compiler",
    ),
    (F::Checkpoint, "checkpoint", Control, None, "all ranks pause for 60 s"),
    (
        F::EvalPhase,
        "eval-phase",
        Control,
        None,
        "steps without backward pass halfway through the run",
    ),
    (F::SubsetComm, "subset-comm", Control, None, "a rarely used communicator of few ranks"),
    (
        F::CommDestroyed,
        "comm-destroyed",
        Control,
        None,
        "a communicator is destroyed before the job ends",
    ),
    (
        F::ElasticResize,
        "elastic-resize",
        Control,
        None,
        "all communicators are destroyed and created again",
    ),
    (F::Clocks, "clocks", Control, None, "clocks are 1 s and 100 ppm apart"),
    (
        F::DroppedHeartbeats,
        "dropped-heartbeats",
        Control,
        None,
        "a third of the progress records is missing",
    ),
    (F::RingOverflow, "ring-overflow", Control, None, "recordings too small for the run"),
    (
        F::SlowFunction,
        "slow-function",
        Control,
        None,
        "a collective's data moves slower from the start: only a comparison shows it",
    ),
];

impl Fault {
    fn row(self) -> &'static Row {
        TABLE.iter().find(|row| row.0 == self).unwrap_or(&HEALTHY)
    }

    /// All faults.
    pub fn all() -> impl Iterator<Item = Fault> {
        TABLE.iter().map(|row| row.0)
    }

    /// The fault with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Fault> {
        TABLE.iter().find(|row| row.1 == name).map(|row| row.0)
    }

    /// Its name in scenario files and on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// Its effect on a job.
    #[must_use]
    pub fn group(self) -> FaultGroup {
        self.row().2
    }

    /// The class of the expected verdict; none for a control.
    #[must_use]
    pub fn class(self) -> Option<FindingClass> {
        self.row().3
    }

    /// A short description.
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
            assert_eq!(fault.class().is_none(), fault.group() == FaultGroup::Control);
        }
    }
}
