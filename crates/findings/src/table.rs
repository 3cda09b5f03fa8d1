// SPDX-License-Identifier: Apache-2.0
//! The table of classes.

use crate::class::FindingClass as C;
use crate::class::Tool::{self, Diagnose, Stragglers, Watchdog};

const ALL_RANKS: &[Tool] = &[Diagnose];
const ONE_RANK: &[Tool] = &[Watchdog, Diagnose];
const SLOW: &[Tool] = &[Stragglers];

/// The row of a class in the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) class: C,
    pub(crate) code: &'static str,
    pub(crate) name: &'static str,
    /// What is wrong, as the rest of a sentence about one rank.
    pub(crate) title: &'static str,
    /// The same about several ranks.
    pub(crate) several: &'static str,
    pub(crate) explanation: &'static str,
    pub(crate) advice: &'static str,
    /// The verb that shows more about the recordings, with its options, without `ncclscope` and the
    /// run.
    pub(crate) verb: &'static str,
    pub(crate) tools: &'static [Tool],
}

/// One row for each class, in the order of the enum.
pub(crate) const ROWS: [Row; 27] = [
    Row {
        class: C::HostStuck,
        code: "H1a",
        name: "host-stuck",
        title: "stopped calling NCCL: its thread is stuck outside NCCL",
        several: "stopped calling NCCL: their threads are stuck outside NCCL",
        explanation: "Other ranks are in an operation that this rank never called, and it is in \
                      no operation itself. Its process runs.",
        advice: "look at the process's main thread (`py-spy dump`, `gdb`): a data loader, a lock, \
                 a checkpoint, a GIL that another thread holds.",
        verb: "view",
        tools: ALL_RANKS,
    },
    Row {
        class: C::ProcessGone,
        code: "H1b",
        name: "process-gone",
        title: "gives no sign of life: dead, or stopped (SIGSTOP, a debugger, a paused container)",
        several: "give no sign of life: dead, or stopped (SIGSTOP, a debugger, a paused container)",
        explanation: "Other ranks wait for this rank, and its process has exited, is stopped, or \
                      writes no heartbeat.",
        advice: "look for the process on its host: `dmesg` (out of memory, Xid), the exit code in \
                 the launcher's log, a debugger or a paused container.",
        verb: "view",
        tools: ALL_RANKS,
    },
    Row {
        class: C::CallNotEnqueued,
        code: "H1d",
        name: "call-not-enqueued",
        title: "called NCCL, and NCCL never enqueued the operation",
        several: "called NCCL, and NCCL never enqueued the operation",
        explanation: "A call into NCCL does not return, and no operation in flight holds it up; or \
                      the application began a group and did not end it.",
        advice: "look at the calling thread (`py-spy dump`, `gdb`).",
        verb: "report --full",
        tools: ONE_RANK,
    },
    Row {
        class: C::CommSetup,
        code: "H1e",
        name: "comm-setup",
        title: "is in a function that creates or ends a communicator, which does not return",
        several: "are in functions that create or end communicators, which do not return",
        explanation: "A thread is in `ncclCommInitRank…`, `ncclCommSplit`, `ncclCommAbort` or a \
                      similar function: a return address into it is on the thread's stack. The \
                      members of a communicator wait there for one another.",
        advice: "create communicators in one order on all ranks, and on all of their members; look \
                 at the calling threads (`py-spy dump`), at the interface (NCCL_SOCKET_IFNAME) and \
                 at firewalls.",
        verb: "report --full",
        tools: ONE_RANK,
    },
    Row {
        class: C::CallMismatch,
        code: "H2",
        name: "call-mismatch",
        title: "made a different call than the other ranks",
        several: "made a different call than the other ranks",
        explanation: "The ranks of a communicator called different functions, or passed different \
                      types, counts or roots, at the same operation number. The largest group \
                      counts as right.",
        advice: "compare the code paths of the named and the remaining ranks: a branch on the \
                 rank, an uneven batch, an operation that is called conditionally.",
        verb: "report --by rank,func",
        tools: ALL_RANKS,
    },
    Row {
        class: C::P2pMismatch,
        code: "H2b",
        name: "p2p-mismatch",
        title: "made sends and receives that do not match",
        several: "made sends and receives that do not match",
        explanation: "A pair of ranks closes a cycle of waits, or one side continued without its \
                      transfer; or a send and its receive have different sizes.",
        advice: "compare the order, the number and the sizes of sends and receives of the two \
                 ranks; put those that depend on each other into one group.",
        verb: "report --by rank,func",
        tools: ALL_RANKS,
    },
    Row {
        class: C::SettingsMismatch,
        code: "H2c",
        name: "settings-mismatch",
        title: "runs the operation with other settings of NCCL than the other ranks",
        several: "run the operation with other settings of NCCL than the other ranks",
        explanation: "At the same operation number NCCL chose another algorithm, protocol or \
                      number of channels, or the two ends of a transfer have different numbers of \
                      steps, so that the data does not fit. The largest group counts as right.",
        advice: "set the same NCCL variables and `nccl.conf` on all ranks, with one version of \
                 NCCL; if GPUs or CPUs differ (`nvidia-smi -L`, `lscpu`), set NCCL_ALGO and \
                 NCCL_PROTO.",
        verb: "report --full",
        tools: ALL_RANKS,
    },
    Row {
        class: C::KernelNotStarted,
        code: "H3a",
        name: "kernel-not-started",
        title: "has a kernel that did not start: the stream is blocked by other work",
        several: "have kernels that did not start: their streams are blocked by other work",
        explanation: "The operation is enqueued, no channel of its kernel has started, and no \
                      NCCL operation is before it on its stream.",
        advice: "look for another kernel, or a wait for an event, on that stream.",
        verb: "view",
        tools: ONE_RANK,
    },
    Row {
        class: C::KernelPartlyStarted,
        code: "H3b",
        name: "kernel-partly-started",
        title: "has a kernel that started on some channels only: no free SMs",
        several: "have kernels that started on some channels only: no free SMs",
        explanation: "Some channels of the kernel run, and the rest find no free SM.",
        advice: "look for other work that occupies the GPU, such as a second persistent kernel.",
        verb: "view",
        tools: ONE_RANK,
    },
    Row {
        class: C::GpuDead,
        code: "H3c",
        name: "gpu-dead",
        title: "did not finish what its peers finished: the GPU or its context is dead",
        several: "did not finish what their peers finished: the GPUs or their contexts are dead",
        explanation: "The rank is in an operation that its peers finished, or the CUDA driver \
                      reports an error (to CUDA events).",
        advice: "the context is lost: look at `dmesg` for an Xid, and at the GPU's health \
                 (`nvidia-smi -q`, `dcgmi diag`).",
        verb: "view",
        tools: ONE_RANK,
    },
    Row {
        class: C::KernelNotEnding,
        code: "H3d",
        name: "kernel-not-ending",
        title: "runs a kernel that does not end: NVLink, shared memory or a device",
        several: "run kernels that do not end: NVLink, shared memory or a device",
        explanation: "All members of the communicator run the operation's kernel, and no network \
                      transfer explains why it does not end. No event shows which member it is, \
                      so all are named. This class remains when nothing else is seen, so it is \
                      always a suspicion.",
        advice: "look at NVLink (`nvidia-smi nvlink -e`), `dmesg` for an Xid, and at device code \
                 that runs at the same time as NCCL's.",
        verb: "view",
        tools: ALL_RANKS,
    },
    Row {
        class: C::GpuNotProducing,
        code: "N1",
        name: "gpu-not-producing",
        title: "has a GPU that produces nothing to send",
        several: "have GPUs that produce nothing to send",
        explanation: "The rank's transfers wait for its own GPU, which waits for no other rank on \
                      that channel. Its kernel makes no progress. A rank whose peers made a \
                      different call (H2) looks the same to its own watchdog.",
        advice: "look at that GPU: `dmesg` for an Xid, its clocks and its health.",
        verb: "report --full",
        tools: ONE_RANK,
    },
    Row {
        class: C::ReceiverNotReady,
        code: "N2",
        name: "receiver-not-ready",
        title: "is not ready to receive",
        several: "are not ready to receive",
        explanation: "A receive is posted, the kernel runs, and the rank's own network does not \
                      take it; or a sender finds no buffer at this rank.",
        advice: "look at the receiving rank: its proxy thread, its network plugin and NIC.",
        verb: "report --full",
        tools: ONE_RANK,
    },
    Row {
        class: C::NetworkStalled,
        code: "N3",
        name: "network-stalled",
        title: "has data in the network that does not arrive: the wire, a NIC or a switch",
        several: "have data in the network that does not arrive: the wire, a NIC or a switch",
        explanation: "Data was given to the network and is not delivered: the counts of both ends \
                      show it, or the state of the sender. If several paths of one rank stall, its \
                      interface is at fault. From one rank alone, a peer's stalled proxy thread \
                      looks the same.",
        advice: "look at the link, the NIC (`ibstat`, `ethtool -S`), its MTU, firewalls and the \
                 switch between the ranks.",
        verb: "report --full",
        tools: ONE_RANK,
    },
    Row {
        class: C::FlushStalled,
        code: "N4",
        name: "flush-stalled",
        title: "has received data that is not flushed to its GPU: PCIe, IOMMU",
        several: "have received data that is not flushed to their GPUs: PCIe, IOMMU",
        explanation: "Data arrived, and its flush to the GPU's memory does not end. With GDRCopy \
                      the proxy thread itself waits for the flush, which shows as P1.",
        advice: "look at PCIe (ACS, IOMMU, `lspci -vv`, AER messages in `dmesg`).",
        verb: "report --full",
        tools: ONE_RANK,
    },
    Row {
        class: C::GpuNotConsuming,
        code: "N5",
        name: "gpu-not-consuming",
        title: "has a GPU that does not take what arrived",
        several: "have GPUs that do not take what arrived",
        explanation: "Data arrived and the GPU, which has nothing left to send on that channel, \
                      does not take it. `stragglers` reports a GPU that passes on data later \
                      than its peers.",
        advice: "look at that GPU: `dmesg` for an Xid, its clocks, its temperature, what else runs \
                 on it.",
        verb: "report --full",
        tools: &[Watchdog, Diagnose, Stragglers],
    },
    Row {
        class: C::ProxyStalled,
        code: "P1",
        name: "proxy-stalled",
        title: "has a proxy thread that makes no progress",
        several: "have proxy threads that make no progress",
        explanation: "NCCL's proxy thread has work and uses no CPU time, is stopped, or gets no \
                      CPU time; or the kernel ended and NCCL does not report it.",
        advice: "look where the thread waits (the report says it), and how many CPU cores the \
                 process may use.",
        verb: "report --full",
        tools: ONE_RANK,
    },
    Row {
        class: C::Deadlock,
        code: "DEADLOCK",
        name: "deadlock",
        title: "waits for other ranks in a cycle",
        several: "wait for each other in a cycle",
        explanation: "Each rank waits for the next in another operation or communicator.",
        advice: "make all ranks use the communicators in the same order.",
        verb: "report --html FILE",
        tools: ALL_RANKS,
    },
    Row {
        class: C::NotRecorded,
        code: "H0",
        name: "not-recorded",
        title: "makes other ranks wait, and no recording or dump shows what it called",
        several: "make other ranks wait, and no recording or dump shows what they called",
        explanation: "Ranks wait for members without a recording or dump. These may be the cause, \
                      may wait too, or may be dead: a missing file does not show which.",
        advice: "collect the missing recordings or dumps, from all hosts, and run the same command \
                 again.",
        verb: "report --full",
        tools: ALL_RANKS,
    },
    Row {
        class: C::SlowRank,
        code: "S1",
        name: "slow-rank",
        title: "is slow, and the other ranks wait for it",
        several: "are slow, and the other ranks wait for them",
        explanation: "A rank, a pipeline stage or a data-parallel rank takes longer for its own \
                      work than its peers.",
        advice: "look at that rank's GPU (clocks, temperature), its host, and its share of the \
                 work.",
        verb: "report --by rank,step",
        tools: SLOW,
    },
    Row {
        class: C::TransfersSlowed,
        code: "S2",
        name: "transfers-slowed",
        title: "has transfers that became slower during the run",
        several: "have transfers that became slower during the run",
        explanation: "The same operations take longer in the last third of the run than in the \
                      first.",
        advice: "look for what changed: other jobs on the network, a link with reduced speed.",
        verb: "report --by step,func",
        tools: SLOW,
    },
    Row {
        class: C::SlowLink,
        code: "S3",
        name: "slow-link",
        title: "has a slow path to another rank",
        several: "have a slow path between them",
        explanation: "A byte takes longer on this path than on comparable paths.",
        advice: "look at the link's speed and errors, at the network interfaces of both ends, \
                 and at its route through the switches.",
        verb: "report --full",
        tools: SLOW,
    },
    Row {
        class: C::SlowNic,
        code: "S4",
        name: "slow-nic",
        title: "has a slow network interface",
        several: "have slow network interfaces",
        explanation: "Links that carry most of one rank's bytes are slow.",
        advice: "look at the rank's NIC: its speed, its PCIe link, other users of it.",
        verb: "report --full",
        tools: SLOW,
    },
    Row {
        class: C::SlowNodePath,
        code: "S5",
        name: "slow-node-path",
        title: "has a slow path to other GPUs of its host: NVLink, PCIe or shared memory",
        several: "have a slow path between GPUs: NVLink, PCIe or shared memory",
        explanation: "A communicator without network traffic, inside a node or over NVLink across \
                      nodes (MNNVL), is slower than comparable ones.",
        advice: "look at NVLink and PCIe of the named ranks (`nvidia-smi nvlink -s`, `topo -m`).",
        verb: "report --by comm,func",
        tools: SLOW,
    },
    Row {
        class: C::AlgorithmChanged,
        code: "S6",
        name: "algorithm-changed",
        title: "runs operations with another algorithm, protocol or number of channels than at \
                first",
        several: "run operations with another algorithm, protocol or number of channels than at \
                  first",
        explanation: "NCCL ran most operations of a class with one algorithm, protocol and number \
                      of channels in the first third of the run, and with another in the last.",
        advice: "look for what changed: NCCL's variables, a tuner, the communicator.",
        verb: "report --full",
        tools: SLOW,
    },
    Row {
        class: C::SlowLaunch,
        code: "S7",
        name: "slow-launch",
        title: "has a host that launches too slowly",
        several: "have hosts that launch too slowly",
        explanation: "As S1, and the rank's kernels start as soon as they are launched, while \
                      those of its peers wait on their streams.",
        advice: "look at the host: its CPU load, the Python process, synchronizing calls.",
        verb: "view",
        tools: SLOW,
    },
    Row {
        class: C::ShortOfCpu,
        code: "S8",
        name: "short-of-cpu",
        title: "is short of processor time, or was paused",
        several: "are short of processor time, or were paused",
        explanation: "Threads of the process were ready and did not run, its timers came late, or \
                      the quota of its control group was used up, far more than in its peers. \
                      Its links and its operations seem slow because of it.",
        advice: "look for what else runs on its cores (`top -H`, `taskset -pc PID`), at the CPU \
                 quota of its container (`cpu.max`, `throttled_usec` in `cpu.stat`), and for what \
                 stops it (a debugger, SIGSTOP, a freezer).",
        verb: "report --by rank,step",
        tools: SLOW,
    },
];
