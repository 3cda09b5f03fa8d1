// SPDX-License-Identifier: Apache-2.0
//! The state of the hardware over time: which parts stop, and which are slow.

use crate::func::Func;
use crate::time::{NEVER, Time};
use std::collections::HashMap;

/// When parts of one rank stop working; [`NEVER`] if they do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stops {
    /// The thread that calls NCCL.
    pub(crate) host: Time,
    /// The proxy progress thread.
    pub(crate) proxy: Time,
    pub(crate) gpu: Time,
    /// The flush of received data to the GPU's memory.
    pub(crate) flush: Time,
    /// The plugin's thread that writes progress records.
    pub(crate) drain: Time,
    pub(crate) process: Time,
    /// The process exits normally, so that its recording is closed.
    pub(crate) in_order: bool,
}

impl Stops {
    pub(crate) const NONE: Stops = Stops {
        host: NEVER,
        proxy: NEVER,
        gpu: NEVER,
        flush: NEVER,
        drain: NEVER,
        process: NEVER,
        in_order: false,
    };
}

/// A path from one rank to another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    pub(crate) stop: Time,
    /// When the receiver's network stops taking receives for it.
    pub(crate) post_stop: Time,
    pub(crate) factor: f64,
    /// Mean slowdown factor of a path that retransmits a quarter of all data, late.
    pub(crate) loss: f64,
    /// Slowdown factor in every other tenth of a second.
    pub(crate) busy: f64,
}

impl Default for Path {
    fn default() -> Path {
        Path { stop: NEVER, post_stop: NEVER, factor: 1.0, loss: 1.0, busy: 1.0 }
    }
}

/// The state of the hardware over time.
#[derive(Clone, Debug)]
pub(crate) struct Conditions {
    pub(crate) stops: Vec<Stops>,
    /// Paths with faults, by sender and receiver.
    pub(crate) paths: HashMap<(u32, u32), Path>,
    /// Slowdown factor of each rank's network interface.
    pub(crate) network: Vec<f64>,
    /// Slowdown factor of each rank's network interface in every other tenth of a second.
    pub(crate) busy: Vec<f64>,
    /// Slowdown factor of each rank's links within the host.
    pub(crate) nvlink: Vec<f64>,
    /// Slowdown factor of each rank's GPU inside collectives.
    pub(crate) copy: Vec<f64>,
    /// Collectives whose data moves slower, with their factors.
    pub(crate) functions: Vec<(Func, f64)>,
    /// The time from which the whole network is slower, and the factor.
    pub(crate) drift: (Time, f64),
    /// Kernels that start only on this number of channels, by rank and operation.
    pub(crate) channels: HashMap<(u32, usize), usize>,
    /// Kernels whose end is never reported because the CUDA context dies just then, by rank and
    /// operation.
    pub(crate) lost_ends: HashMap<(u32, usize), ()>,
}

impl Conditions {
    /// Hardware without faults.
    pub(crate) fn new(ranks: u32) -> Conditions {
        let count = ranks as usize;
        Conditions {
            stops: vec![Stops::NONE; count],
            paths: HashMap::new(),
            network: vec![1.0; count],
            busy: vec![1.0; count],
            nvlink: vec![1.0; count],
            copy: vec![1.0; count],
            functions: Vec::new(),
            drift: (NEVER, 1.0),
            channels: HashMap::new(),
            lost_ends: HashMap::new(),
        }
    }

    pub(crate) fn of(&self, rank: u32) -> &Stops {
        &self.stops[rank as usize]
    }

    /// Slowdown factor of the data of a collective.
    pub(crate) fn function(&self, func: Func) -> f64 {
        let of = self.functions.iter().filter(|(slow, _)| *slow == func);
        of.map(|(_, factor)| factor).product()
    }

    /// The path between two ranks, which may be within a host.
    pub(crate) fn path(&self, from: u32, to: u32, is_network: bool) -> Path {
        let path = self.paths.get(&(from, to)).copied().unwrap_or_default();
        let slow = if is_network { &self.network } else { &self.nvlink };
        let worse = |of: &[f64]| of[from as usize].max(of[to as usize]);
        let busy = if is_network { worse(&self.busy) } else { 1.0 };
        Path { factor: path.factor * worse(slow), busy, ..path }
    }
}
