// SPDX-License-Identifier: Apache-2.0
/*!
What is known of a job's communication: who took part in what, and when.

Times are ns by each worker's own clock; nothing here says how the clocks are set. This module does
not judge: it only holds what an input told.
*/

use crate::edges::Edge;
use crate::stalls::Stall;
use std::collections::{BTreeMap, BTreeSet};

/// A place in the job's layout, where the input tells it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Cell {
    /// Data-parallel rank.
    pub dp_rank: u32,
    /// Pipeline stage.
    pub stage: u32,
}

/// One timeline: a process, or the tensor-parallel group that a trace shows as one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Worker {
    /// Its global rank; of a group the first one's.
    pub rank: u32,
    /// Its place, where the input has no other name for it.
    pub cell: Option<Cell>,
    /// Its pipeline stage, where the input tells.
    pub stage: Option<u32>,
    /// Its data-parallel rank, where the input tells.
    pub dp_rank: Option<u32>,
    /// Its host; empty unknown.
    pub host: String,
    /// What tells its host, whose clock it has, from others of the name; empty unknown.
    pub machine: String,
}

/// Whether the members of an operation end it together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ends {
    /// No member can end before all have arrived, and all end within some network latencies.
    Together,
    /// Members may end long apart (Broadcast, Reduce), or something else is in their times.
    Apart,
}

/// One member's part in an operation.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Part {
    /// Index of its worker.
    pub worker: usize,
    /// When it arrived, ns by its own clock.
    pub start: f64,
    /// When it was over for it.
    pub end: f64,
}

/// What operations are alike.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Class {
    /// The communicator's name.
    pub comm: String,
    /// The function.
    pub func: String,
    /// The size as nccl-tests define it; `None` unknown.
    pub bytes: Option<u64>,
    /// Members of the communicator.
    pub members: u32,
}

/// A collective of all its members.
#[derive(Clone, PartialEq, Debug)]
pub struct Collective {
    /// Index of its class.
    pub class: usize,
    /// Index of how it was done, in [`Job::shapes`].
    pub shape: usize,
    /// Its step, where the input tells.
    pub step: Option<i64>,
    /// How it ends.
    pub ends: Ends,
    /// The members seen, each worker once.
    pub parts: Vec<Part>,
}

/// Sends and receives that a worker began and ended as one.
#[derive(Clone, PartialEq, Debug)]
pub struct Batch {
    /// The worker and its times.
    pub part: Part,
    /// The step, where the input tells.
    pub step: Option<i64>,
    /// The batches at the other ends, as indices of [`Job::batches`].
    pub partners: Vec<usize>,
}

/// When a KernelCh started, by its worker's own clock, and when its operation had been enqueued.
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
    /// The kinds of collectives.
    pub classes: Vec<Class>,
    /// Algorithms, protocols and channels of collectives, as text.
    pub shapes: Vec<String>,
    /// The collectives.
    pub collectives: Vec<Collective>,
    /// The sends and receives.
    pub batches: Vec<Batch>,
    /// Work without other participants; only for the length of steps.
    pub own: Vec<(Part, Option<i64>)>,
    /// What went over network links.
    pub edges: Vec<Edge>,
    /// How fast kernels started.
    pub launches: Vec<Launch>,
    /// What GPUs held up on the network, where recordings tell.
    pub stalls: Vec<Stall>,
    /// Each step has its own time 0; else one clock runs through.
    pub steps_restart: bool,
    /// Arrival and end are those of kernels on the GPU.
    pub is_kernel_timed: bool,
    /// Workers whose oldest operations were overwritten, and when the first that is whole arrived,
    /// ns by the worker's own clock. Steps that began before are left out.
    pub whole_from: BTreeMap<usize, f64>,
    /// Workers with missing operations at unknown times: they are not reported as slow.
    pub gappy: BTreeSet<usize>,
    /// What the reader should know of the input.
    pub notes: Vec<String>,
}

impl Worker {
    /// One of no known place.
    #[must_use]
    pub fn new(rank: u32, host: impl Into<String>) -> Worker {
        let host: String = host.into();
        Worker { rank, cell: None, stage: None, dp_rank: None, machine: host.clone(), host }
    }

    /// One that is known by its place.
    #[must_use]
    pub fn at(rank: u32, cell: Cell) -> Worker {
        let (stage, dp_rank) = (Some(cell.stage), Some(cell.dp_rank));
        let (host, machine) = (String::new(), String::new());
        Worker { rank, cell: Some(cell), stage, dp_rank, host, machine }
    }
}

impl Job {
    /// The index of an equal element, which is added if there is none.
    pub(crate) fn intern<T: PartialEq>(list: &mut Vec<T>, item: T) -> usize {
        list.iter().position(|known| *known == item).unwrap_or_else(|| {
            list.push(item);
            list.len() - 1
        })
    }
}
