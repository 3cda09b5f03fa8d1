// SPDX-License-Identifier: Apache-2.0
/*!
Which rank of the job a process is. RAS has ranks of communicators: they are those of the job in
one that has all processes. A job of tensor and data parallelism alone may have none; there, the
ranks are positions, in the order of hosts and GPUs, with a note.
*/

use super::output::{Key, Ras};
use crate::job::Job;
use ncclscope_operations::positions;
use std::collections::{BTreeMap, BTreeSet};

impl Ras {
    /// The position of the widest communicator, if it has all processes of the job.
    pub(super) fn world(&self) -> Option<usize> {
        let sizes = || self.comms.iter().map(|(_, size, _)| *size);
        let widest = sizes().max()?;
        let at = sizes().position(|size| size == widest)?;
        // The text form names few ranks, and the number of all.
        if let Some(gpus) = self.gpus {
            return (gpus == widest).then_some(at);
        }
        let named = |at: usize| {
            let (name, _, members) = &self.comms[at];
            let known = members.iter().filter(|member| member.is_named());
            known.map(|member| member.key(name)).collect::<BTreeSet<Key<'_>>>()
        };
        let of_widest = named(at);
        (0..self.comms.len()).all(|other| named(other).is_subset(&of_widest)).then_some(at)
    }
}

/// Gives processes without a rank of the job a position, and notes which process it is.
pub(super) fn number(job: &mut Job, places: &BTreeMap<Key<'_>, u32>) {
    let mut order: Vec<(&Key<'_>, u32)> = places.iter().map(|(key, &at)| (key, at)).collect();
    // The key of a rank whose process the output does not name has its communicator.
    let is_named = |at: u32| job.processes[at as usize].host.is_some();
    order.sort_by_cached_key(|&(&(host, pid, device), at)| {
        (!is_named(at), positions::by_numbers(host), device, pid)
    });
    let mut list = Vec::with_capacity(order.len());
    for (&((host, pid, device), at), rank) in order.iter().zip(0..) {
        let of = job.processes[at as usize].host.as_ref();
        let pid = pid.map_or_else(String::new, |pid| format!("process {pid} on "));
        let gpu = device.map_or_else(String::new, |gpu| format!(" (GPU {gpu})"));
        let what = match of {
            Some(host) => format!("{pid}{host}{gpu}"),
            None => format!("rank {} of communicator {host}", device.unwrap_or(0)),
        };
        job.processes[at as usize].rank = Some(rank);
        list.push((rank, what));
    }
    job.notes.push(format!(
        "no communicator has all processes, so that ranks are positions: {}",
        positions::list(list.into_iter())
    ));
}
