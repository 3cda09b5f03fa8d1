// SPDX-License-Identifier: Apache-2.0
//! The classes of findings.

/// What is wrong with a job or a part of it.
///
/// Verdicts of equal confidence are listed in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "the table explains each")]
pub enum FindingClass {
    HostStuck,
    ProcessGone,
    CallNotEnqueued,
    CommSetup,
    CallMismatch,
    P2pMismatch,
    /// NCCL runs the operation otherwise than on the other ranks.
    SettingsMismatch,
    KernelNotStarted,
    KernelPartlyStarted,
    GpuDead,
    KernelNotEnding,
    GpuNotProducing,
    ReceiverNotReady,
    NetworkStalled,
    FlushStalled,
    GpuNotConsuming,
    ProxyStalled,
    Deadlock,
    /// There is no input from ranks that others wait for.
    NotRecorded,
    SlowRank,
    TransfersSlowed,
    SlowLink,
    SlowNic,
    SlowNodePath,
    AlgorithmChanged,
    SlowLaunch,
    /// A process is short of processor time, or was paused.
    ShortOfCpu,
}

/// How sure a finding is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Confidence {
    /// Measurements or the counts of the ranks prove it.
    Confirmed,
    /// It would explain the observations, but part of the evidence is missing, or something else
    /// would explain them as well.
    #[default]
    Suspect,
}

impl Confidence {
    /// `confirmed` or `suspect`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Confidence::Confirmed => "confirmed",
            Confidence::Suspect => "suspect",
        }
    }
}

/// A part of ncclscope that reports findings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tool {
    /// The watchdog in each rank: the evidence of one rank is enough.
    Watchdog,
    /// `ncclscope diagnose`: compares all ranks.
    Diagnose,
    /// `ncclscope stragglers`: compares all ranks of a slow job.
    Stragglers,
}
