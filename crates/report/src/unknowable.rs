// SPDX-License-Identifier: Apache-2.0
/*!
Sentences about what a run cannot show; only those that apply.

A profiler sees what NCCL reports. If a release, an option or a kind of operation reports less, the
report says so, so that a gap is not read as "nothing happened".
*/

use ncclscope_operations::operation::{Completion, Operation, Timing};
use ncclscope_operations::timeline::comm_name;
use ncclscope_operations::{Event, EventId, GpuClocks, Parent, Timeline, human};
use ncclscope_trace::{Comm, Detail, EventKind, MarkKind, StrId, Vendor};
use std::collections::{BTreeMap, BTreeSet};

/// A GPU clock with a greater error gets a sentence, ns.
const GPU_ERROR_NS: u64 = 100_000;
/// A GPU timer with a coarser resolution gets a sentence, ns.
const GPU_STEP_NS: u64 = 100;

/// NCCL version codes, as `ncclGetVersion` has them.
const NCCL_2_28: u32 = 22_800;
const NCCL_2_29: u32 = 22_900;

/// Facts about all processes of a run that limit what can be known.
#[derive(Debug, Default)]
pub struct Limits {
    /// Links were left out, because a filter selects by function or time, and links have no such
    /// figures.
    links_left_out: bool,
    hosts: BTreeSet<String>,
    api_versions: BTreeSet<u32>,
    /// Any process has NCCL 2.28 or later, or an unknown version.
    device_api: bool,
    /// Any process has NCCL 2.28: copy-engine collectives, and no event for them (measured on
    /// 2.28.9, `finding_12` of testing/rig).
    copy_engine_untold: bool,
    /// Any process has NCCL 2.29 or later: Broadcasts go to a queue which its profiler code does
    /// not walk (src/plugin/profiler.cc@v2.30.7-1).
    broadcast_untold: bool,
    /// Libraries of processes that can communicate without NCCL.
    beside: BTreeSet<String>,
    kernel_off: bool,
    /// Any process dropped the times of kernels, because the unit of RCCL's is unknown.
    timer_unknown: bool,
    /// Operations were measured by CUDA events.
    event_timed: bool,
    ctrl_off: bool,
    phase_off: bool,
    gpu_unbounded: bool,
    gpu_error_ns: u64,
    gpu_step_ns: u64,
    steps: u64,
    steps_unsized: u64,
    foreign: u64,
    copy_engine: u64,
    graph_calls: u64,
    /// Operations of captured calls without a recorded end.
    graph_unseen: u64,
    /// How often recording was stopped, or had not started when a communicator was created.
    pauses: u64,
    /// Operations that were not in the sample.
    left_out: u64,
    unseen: BTreeMap<String, u64>,
    /// Operations of which only an early stop of the kernel is recorded.
    early: BTreeMap<String, u64>,
    silent: BTreeMap<String, u64>,
    /// Operations that were not tracked to their end, because of the memory limit.
    cut_short: u64,
}

/// The [`Limits`] of one process, counted as its operations end.
#[derive(Debug, Default)]
pub(crate) struct ProcessLimits {
    event_timed: bool,
    /// ProxyOps for other processes (PXN) that could not be assigned to them.
    pub(crate) foreign: u64,
    copy_engine: u64,
    graph_calls: u64,
    graph_unseen: u64,
    /// By position of the communicator.
    unseen: BTreeMap<Option<usize>, u64>,
    early: BTreeMap<Option<usize>, u64>,
    /// By function.
    silent: BTreeMap<StrId, u64>,
}

impl ProcessLimits {
    pub(crate) fn add_operation(&mut self, timeline: &Timeline<'_>, operation: &Operation) {
        if timeline.event(operation.event).kind() == EventKind::CeColl {
            self.copy_engine += 1;
        } else if operation.timing == Timing::Event {
            self.event_timed = true;
        } else if operation.timing == Timing::KernelLead {
            *self.early.entry(operation.comm).or_default() += 1;
        } else if operation.completion == Completion::Unseen {
            *self.unseen.entry(operation.comm).or_default() += 1;
            self.graph_unseen += u64::from(timeline.is_replay(timeline.event(operation.event)));
        }
    }

    pub(crate) fn add_event(&mut self, timeline: &Timeline<'_>, id: EventId, event: &Event) {
        let call = match event.start.detail {
            Detail::ProxyOp(op) => {
                self.foreign += u64::from(op.foreign);
                return;
            }
            Detail::CollApi(call) => call,
            Detail::P2pApi(call) => {
                self.graph_calls += u64::from(call.graph);
                return;
            }
            _ => return,
        };
        // Before its group ends, a call has no children yet.
        let is_over = match event.parent {
            Parent::Known(group) => timeline.event(group).stop.is_some(),
            _ => false,
        };
        let is_sampled = timeline.recording().header().left_out != 0;
        if call.graph {
            self.graph_calls += 1;
        } else if is_over && !is_sampled && !timeline.has_children(id) {
            *self.silent.entry(call.func).or_default() += 1;
        }
    }
}

impl Limits {
    /// Notes that links are left out, because their figures cannot be split by function or time.
    pub(crate) fn leave_out_links(&mut self) {
        self.links_left_out = true;
    }

    /// Adds a process. `cut_short` is the number of operations that were not tracked to their end.
    pub(crate) fn add(
        &mut self,
        timeline: &Timeline<'_>,
        process: &ProcessLimits,
        gpus: &GpuClocks,
        cut_short: u64,
    ) {
        let header = timeline.recording().header();
        self.hosts.insert(header.host.clone());
        let beside = timeline.recording().identity().beside.as_deref().unwrap_or_default();
        self.beside.extend(beside.split(',').filter(|name| !name.is_empty()).map(str::to_owned));
        let marks = timeline.recording().marks();
        self.pauses += marks.iter().filter(|mark| mark.what == MarkKind::Stop).count() as u64;
        self.left_out += header.left_out;
        let comms = timeline.recording().comms();
        self.api_versions.extend(comms.iter().map(|comm| comm.api_version));
        self.timer_unknown |= timeline.recording().identity().timer_ns == Some(0);
        self.device_api |= comms.iter().any(|c| c.nccl_version == 0 || c.nccl_version >= NCCL_2_28);
        let versions = || comms.iter().map(|comm| comm.nccl_version);
        let is_untold = |comm: &Comm| {
            comm.vendor == Vendor::Nvidia && (NCCL_2_28..NCCL_2_29).contains(&comm.nccl_version)
        };
        self.copy_engine_untold |= comms.iter().any(is_untold);
        self.broadcast_untold |= versions().any(|version| version >= NCCL_2_29);
        let has_phases = |comm: &Comm| comm.vendor == Vendor::Nvidia && comm.api_version >= 7;
        let asked = |kind: EventKind| header.mask & kind.bit() != 0;
        self.kernel_off |= !asked(EventKind::KernelCh);
        self.ctrl_off |= !asked(EventKind::ProxyCtrl);
        self.phase_off |= !asked(EventKind::KernelPhase) && comms.iter().any(has_phases);
        for gpu in gpus.iter() {
            self.gpu_unbounded |= gpu.error_ns().is_none();
            self.gpu_error_ns = self.gpu_error_ns.max(gpu.error_ns().unwrap_or(0));
            self.gpu_step_ns = self.gpu_step_ns.max(gpu.granularity_ns().unwrap_or(0));
        }
        for (_, link) in timeline.links().iter() {
            self.steps += link.transfers;
            self.steps_unsized += if link.is_told { 0 } else { link.transfers - link.sized };
        }
        self.cut_short += cut_short;
        self.event_timed |= process.event_timed;
        self.foreign += process.foreign;
        self.copy_engine += process.copy_engine;
        self.graph_calls += process.graph_calls;
        self.graph_unseen += process.graph_unseen;
        let name = |comm: Option<usize>| {
            comm.map_or_else(|| "unknown".into(), |comm| comm_name(timeline.comm(comm)))
        };
        for (sums, counts) in
            [(&mut self.unseen, &process.unseen), (&mut self.early, &process.early)]
        {
            for (&comm, count) in counts {
                *sums.entry(name(comm)).or_default() += count;
            }
        }
        for (&func, count) in &process.silent {
            *self.silent.entry(timeline.string(func).to_owned()).or_default() += count;
        }
    }

    /// What the run cannot show, one sentence each.
    #[must_use]
    pub fn sentences(&self) -> Vec<String> {
        let mut out = Vec::new();
        if self.links_left_out {
            out.push(
                "Links between ranks are left out: their figures are not known by function, kind \
                 of event or time, by which the filter chooses."
                    .into(),
            );
        }
        self.windows(&mut out);
        if self.timer_unknown && !self.kernel_off {
            out.push(
                "The GPU's times of kernels were dropped: RCCL gives them in ticks of a timer of \
                 which HIP did not tell the rate, or told several."
                    .into(),
            );
        }
        self.kernels(&mut out);
        self.invisible(&mut out);
        self.details(&mut out);
        out
    }

    fn windows(&self, out: &mut Vec<String>) {
        if self.pauses != 0 {
            out.push(format!(
                "Recording was stopped {}: what was issued until it was started again is not \
                 here, nor are launches of CUDA graphs that were captured meanwhile.",
                human::count(self.pauses, "time")
            ));
        }
        if self.left_out != 0 {
            out.push(format!(
                "{} left out of the sample, and only API calls show what was. Counts and bytes are \
                 of the operations that were recorded.",
                human::are(self.left_out, "operation")
            ));
        }
    }

    fn kernels(&self, out: &mut Vec<String>) {
        let oldest = self.api_versions.first().copied().unwrap_or(7);
        if self.kernel_off && self.event_timed {
            out.push(
                "Kernel events were off: only an operation with a launch of its own has a \
                 duration by the GPU, by CUDA events."
                    .into(),
            );
        } else if self.kernel_off {
            out.push(
                "Kernel events were off: no duration is measured by the GPU, and operations \
                 without network traffic show no end."
                    .into(),
            );
        } else if oldest < 3 {
            out.push(format!("Profiler API v{oldest} has no kernel events."));
        } else if oldest < 4 {
            out.push(
                "Profiler API v3 gives kernel events without GPU time stamps: durations are by \
                 the host's clock."
                    .into(),
            );
        }
        if let Some((place, count)) = place_and_count(&self.unseen) {
            out.push(format!(
                "{place}: {} neither network traffic nor kernel events. The end of such operations \
                 cannot be known; their times are enqueue times.",
                have(count, "operation")
            ));
        }
        if let Some((place, count)) = place_and_count(&self.early) {
            out.push(format!(
                "{place}: of {} NCCL reports when one thread of the kernel was through, which is \
                 not the end (sends and receives, TREE, NVLS): times of such operations are the \
                 least that they took. NCCLSCOPE_CUDA_EVENTS=on measures the end.",
                human::count(count, "operation")
            ));
        }
        if self.copy_engine != 0 {
            out.push(format!(
                "{}: NCCL reports when such operations were enqueued, not when they ended.",
                human::count(self.copy_engine, "copy-engine collective")
            ));
        }
        if self.gpu_unbounded {
            out.push(
                "GPU times are placed on the host's clock without a known error: no kernel \
                 launch bounds them."
                    .into(),
            );
        }
        if self.gpu_error_ns > GPU_ERROR_NS {
            out.push(format!(
                "GPU times may be off by {} on the host's clock. Durations measured by the GPU \
                 are not affected.",
                human::duration(ncclscope_operations::stats::to_f64(self.gpu_error_ns))
            ));
        }
        if self.gpu_step_ns > GPU_STEP_NS {
            let step = human::duration(ncclscope_operations::stats::to_f64(self.gpu_step_ns));
            out.push(format!(
                "The timer of a GPU moves in steps of {step}: a duration that it measured may be \
                 off by as much."
            ));
        }
    }

    fn invisible(&self, out: &mut Vec<String>) {
        for (func, count) in &self.silent {
            let why = if func == "Broadcast" && self.broadcast_untold {
                "From 2.29 on NCCL reports no more of a Broadcast: its time, its channels and its \
                 network traffic are not known."
            } else {
                "NCCL reports no more for operations of one rank or no elements, and for kernels \
                 on symmetric memory (up to 2.30)."
            };
            let calls = human::count(*count, &format!("{func} call"));
            let show = human::if_one(*count, "shows", "show");
            out.push(format!("{calls} {show} nothing below the API. {why}"));
        }
        if self.copy_engine_untold {
            out.push(
                "NCCL 2.28 does not report collectives that it does with copy engines, not even \
                 their API calls."
                    .into(),
            );
        }
        if self.graph_calls != 0 {
            out.push(format!(
                "{} captured into CUDA graphs. A replay without network traffic and kernel events \
                 is invisible.",
                human::are(self.graph_calls, "call")
            ));
        }
        if self.graph_unseen != 0 {
            out.push(format!(
                "Replays of {} are invisible: NCCL reports neither kernels nor network traffic of \
                 what was captured into these CUDA graphs. An operation counts once, as it was \
                 captured, whatever its graph did.",
                human::count(self.graph_unseen, "operation")
            ));
        }
        if self.device_api {
            out.push(
                "One-sided operations (put, signal, wait), GIN and communication started by \
                 device code are never reported to profilers."
                    .into(),
            );
        }
        out.push(
            "Communication that does not go through NCCL is not here: NVSHMEM, symmetric memory of \
             PyTorch, all-reduce kernels of inference servers."
                .into(),
        );
        if !self.beside.is_empty() {
            let names: Vec<&str> = self.beside.iter().map(String::as_str).collect();
            out.push(format!(
                "Processes of this run have libraries loaded that can communicate without NCCL: \
                 {}. Whether they do is not known, and what they move is not here.",
                names.join(", ")
            ));
        }
        if self.foreign != 0 {
            out.push(format!(
                "{} done for other processes (PXN) whose recordings are not among these: the \
                 communicator and the operation of such work are not known here.",
                human::are(self.foreign, "proxy operation")
            ));
        }
    }

    fn details(&self, out: &mut Vec<String>) {
        if self.cut_short != 0 {
            out.push(format!(
                "{} counted as open, because too many were in flight to follow each to its end.",
                human::are(self.cut_short, "operation")
            ));
        }
        if self.ctrl_off {
            out.push("ProxyCtrl events were off: when proxy threads slept is not known.".into());
        }
        if self.phase_off {
            out.push("KernelPhase events were off: phases inside a kernel are not known.".into());
        }
        if self.steps_unsized != 0 {
            out.push(format!(
                "{} of {} without a size: bytes of peers are too low or unknown.",
                self.steps_unsized,
                human::are(self.steps, "network step")
            ));
        }
        if self.api_versions.first().is_some_and(|&version| version < 4) {
            out.push(
                "Profiler API v1 to v3 do not identify communicators: they are matched across \
                 ranks by the order in which they were made."
                    .into(),
            );
        }
        if self.hosts.len() > 1 {
            out.push(format!(
                "Times of the {} hosts are compared as their clocks show them; how well these \
                 agree is not measured.",
                self.hosts.len()
            ));
        }
    }
}

fn have(number: u64, what: &str) -> String {
    format!("{} {}", human::count(number, what), human::if_one(number, "has", "have"))
}

/// `Communicator 0x1f` or `3 communicators`, and the sum of their counts; `None` if there are none.
fn place_and_count(counts: &BTreeMap<String, u64>) -> Option<(String, u64)> {
    let first = counts.keys().next()?;
    let place = match counts.len() {
        1 => format!("Communicator {first}"),
        many => format!("{many} communicators"),
    };
    Some((place, counts.values().sum()))
}
