// SPDX-License-Identifier: Apache-2.0
//! When `diagnose` and `stragglers` report a class, and when they only suspect it, for
//! `docs/findings.md`. What a class means is in the table.

use crate::class::FindingClass as C;

/// The conditions of each class, in sentences, in the order of the enum. Empty: the explanation of
/// the class has them.
pub(crate) const CONDITIONS: [(C, &str); 27] = [
    (
        C::HostStuck,
        "Suspect if NCCL does not report the end of the operations that the other ranks called.",
    ),
    (
        C::ProcessGone,
        "No sign of life for 3.5 s while other recordings of its host continued, or an end that \
         the recording shows. Suspect if only recordings of other hosts continued (5.5 s), and no \
         rank waited for it before.",
    ),
    (C::CallNotEnqueued, "Suspect if all ranks of the operation are in the call."),
    (
        C::CommSetup,
        "Suspect is a rank that takes no part while other ranks are in such a function.",
    ),
    (
        C::CallMismatch,
        "Calls or rolling hashes differ at the same number. If the recordings no longer have the \
         first difference, the evidence says `up to call N`.",
    ),
    (
        C::P2pMismatch,
        "If no rank waits, one pair of ranks that both ended is named: its results may be wrong.",
    ),
    (
        C::SettingsMismatch,
        "The evidence names the variable, version, processor or GPU that only these ranks have. \
         H2c explains N1, N3, H3c and H3d inside that operation. For finished operations only \
         algorithm and protocol are compared.",
    ),
    (
        C::KernelNotStarted,
        "Suspect if no member's kernel has started: the hosts may be ahead of busy GPUs.",
    ),
    (C::KernelPartlyStarted, ""),
    (
        C::GpuDead,
        "It waits for no data over the network (that is N3). Suspect if its data comes over \
         NVLink or shared memory, or if its kernel may stop early (trees, sends and receives).",
    ),
    (C::KernelNotEnding, ""),
    (C::GpuNotProducing, ""),
    (C::ReceiverNotReady, ""),
    (
        C::NetworkStalled,
        "Stalled paths that share a rank or a host point to its interface, if no other path moved \
         data in that direction. Suspect if the proxy thread of the receiver was not looked at \
         (P1), or if the peer has finished and nothing shows when it gave the data.",
    ),
    (C::FlushStalled, ""),
    (
        C::GpuNotConsuming,
        "In `stragglers`: on one channel data has arrived, a buffer to forward it is free, and \
         the GPU does not move it, for 2 % of the run longer than on comparable ranks, and not by \
         chance (p below 0.01 for all GPUs together).",
    ),
    (
        C::ProxyStalled,
        "It has not polled a transfer for 1 s; or, with transfers in flight, it used less than 1 \
         % of a processor. Suspect if a peer's transfers wait for it, and no kernel events show \
         its own part.",
    ),
    (
        C::Deadlock,
        "If the cycle goes through two communicators with the same members, the smaller group of \
         ranks is named; of two halves, both. Suspect if it goes through a send or receive that \
         only one side is in.",
    ),
    (C::NotRecorded, "Always suspect."),
    (
        C::SlowRank,
        "In 3 steps or more after the first its own work exceeds that of its peers by 2 % of a \
         step (`--threshold`), and not by chance (p below 0.01 for all ranks together); or it does \
         so from some step on; or rare long steps are its own, and chance would not give it as \
         much of their cost. Without that excess the steps would be shorter by 2 %. Suspect if \
         only ranks that do something else can be compared.",
    ),
    (
        C::TransfersSlowed,
        "From some step on the transfers of a communicator, or those of all workers together, take \
         2 % of a step longer than before, and not by chance (p below 0.01 for all splits and \
         communicators together).",
    ),
    (
        C::SlowLink,
        "Over at least 20 transfers its time on the wire for a byte exceeds the usual one of \
         comparable links by 25 %, far beyond their spread, which takes 2 % of the run. \
         No interface or host explains it better.",
    ),
    (
        C::SlowNic,
        "Links as in S3: one factor for all links of a rank (out, in, or both) or of a host \
         explains better which links are slow than these links one by one do.",
    ),
    (
        C::SlowNodePath,
        "Collectives of equal kind take 2 % of a step longer than in the median of other \
         communicators, of which there are two or more, and not by chance (p below 0.01 for all \
         together). Slow communicators with a common rank give one finding, which names the ranks \
         that are in all of them and in no healthy one.",
    ),
    (C::AlgorithmChanged, "Four of five operations of each third."),
    (
        C::SlowLaunch,
        "Its kernels start within 20 µs of their launch, those of its peers 100 µs after it or \
         later.",
    ),
    (
        C::ShortOfCpu,
        "5 % of the run, and three times the median of its peers, as a ratio to the rest of the \
         time; or 5 % by the quota of its control group.",
    ),
];

#[test]
fn each_class_has_its_conditions() {
    assert_eq!(CONDITIONS.map(|(class, _)| class), C::ALL);
}
