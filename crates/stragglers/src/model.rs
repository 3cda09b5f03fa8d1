// SPDX-License-Identifier: Apache-2.0
/*!
The communication of a job: which worker took part in which operation, and when.

Times are ns by each worker's own clock; the clocks are not aligned here. This module only holds the
data of an input.
*/

use crate::edges::LinkTraffic;
use crate::stalls::GpuStall;
use std::collections::{BTreeMap, BTreeSet};

/// A position in the job's parallel layout.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct LayoutPosition {
    /// Data-parallel rank.
    pub dp_rank: u32,
    /// Pipeline stage.
    pub stage: u32,
}

/// One timeline: a process, or the tensor-parallel group that a trace shows as one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Worker {
    /// Its global rank; for a group, the first one.
    pub rank: u32,
    /// Its position in the layout, if the input names workers only by that.
    pub cell: Option<LayoutPosition>,
    /// Its pipeline stage, if known.
    pub stage: Option<u32>,
    /// Its data-parallel rank, if known.
    pub dp_rank: Option<u32>,
    /// Host name; empty if unknown.
    pub host: String,
    /// Identifies the machine, and so the clock, among hosts of one name; empty if unknown.
    pub machine: String,
}

/// Whether the members of an operation complete it together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EndSync {
    /// No member can end before all have arrived, and all end within a few network latencies.
    Together,
    /// Members may end far apart (Broadcast, Reduce), or their times include something else.
    Apart,
}

/// One member's part in an operation.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Part {
    /// Index of its worker.
    pub worker: usize,
    /// When it arrived, ns by its own clock.
    pub start: f64,
    /// When it ended for this member.
    pub end: f64,
}

/// Collectives of one class are comparable: same communicator, function and size.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct CollectiveClass {
    /// The communicator's name.
    pub comm: String,
    /// The function.
    pub func: String,
    /// The size as nccl-tests defines it; `None` if unknown.
    pub bytes: Option<u64>,
    /// Members of the communicator.
    pub members: u32,
}

/// A collective of all its members.
#[derive(Clone, PartialEq, Debug)]
pub struct Collective {
    /// Index of its class.
    pub class: usize,
    /// Index of its algorithm, protocol and channels in [`Job::shapes`].
    pub shape: usize,
    /// Its training step, if known.
    pub step: Option<i64>,
    /// Whether its members end it together.
    pub ends: EndSync,
    /// The recorded members, each worker once.
    pub parts: Vec<Part>,
}

/// Sends and receives that a worker began and ended as one group.
#[derive(Clone, PartialEq, Debug)]
pub struct P2pBatch {
    /// The worker and its times.
    pub part: Part,
    /// The training step, if known.
    pub step: Option<i64>,
    /// The batches at the other ends, as indices into [`Job::batches`].
    pub partners: Vec<usize>,
}

/// How long after its enqueueing a kernel started.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Launch {
    /// Index of its worker.
    pub worker: usize,
    /// From the end of its enqueueing to its start on the GPU, ns.
    pub delay: f64,
}

/// A job.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Job {
    /// The workers.
    pub workers: Vec<Worker>,
    /// The classes of collectives.
    pub classes: Vec<CollectiveClass>,
    /// Algorithms, protocols and channels of collectives, as text.
    pub shapes: Vec<String>,
    /// The collectives.
    pub collectives: Vec<Collective>,
    /// The sends and receives.
    pub batches: Vec<P2pBatch>,
    /// Work without other participants, with its step.
    pub own: Vec<(Part, Option<i64>)>,
    /// Traffic over network links.
    pub edges: Vec<LinkTraffic>,
    /// Delays of kernel starts.
    pub launches: Vec<Launch>,
    /// Times in which GPUs held up network transfers, if recorded.
    pub stalls: Vec<GpuStall>,
    /// Times restart at 0 in each step; else one clock runs through all steps.
    pub steps_restart: bool,
    /// Arrival and end are those of kernels on the GPU.
    pub is_kernel_timed: bool,
    /// Workers whose oldest operations were overwritten, and the arrival of the first complete
    /// operation, ns by the worker's own clock. Steps that began earlier are ignored.
    pub whole_from: BTreeMap<usize, f64>,
    /// Workers that lack operations at unknown times: they are not reported as slow.
    pub gappy: BTreeSet<usize>,
    /// Remarks about the input, one sentence each.
    pub notes: Vec<String>,
}

impl Worker {
    /// A worker without a known position in the layout.
    #[must_use]
    pub fn new(rank: u32, host: impl Into<String>) -> Worker {
        let host: String = host.into();
        Worker { rank, cell: None, stage: None, dp_rank: None, machine: host.clone(), host }
    }

    /// A worker that is known by its position in the layout.
    #[must_use]
    pub fn at(rank: u32, cell: LayoutPosition) -> Worker {
        let (stage, dp_rank) = (Some(cell.stage), Some(cell.dp_rank));
        let (host, machine) = (String::new(), String::new());
        Worker { rank, cell: Some(cell), stage, dp_rank, host, machine }
    }
}

impl Job {
    /// The index of an equal element, which is added if it is new.
    pub(crate) fn intern<T: PartialEq>(list: &mut Vec<T>, item: T) -> usize {
        list.iter().position(|known| *known == item).unwrap_or_else(|| {
            list.push(item);
            list.len() - 1
        })
    }
}
