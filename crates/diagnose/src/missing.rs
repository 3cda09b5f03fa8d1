// SPDX-License-Identifier: Apache-2.0
//! The processes without input that must exist as members of communicators.

use crate::job::{CommKind, Job, Process, ProcessStatus};
use crate::rank_layout::RankLayouts;
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of ranks of a communicator; a damaged recording may contain any number.
pub(crate) const MAX_RANKS: u32 = 1 << 18;
/// Maximum number of members without input, summed over all communicators.
const MAX_MISSING: usize = 1 << 20;
/// Processes without input, by communicator (position in [`Job::comms`]) and rank in the
/// communicator.
pub(crate) type SilentRanks = BTreeMap<(usize, u32), u32>;

/// Adds the processes without input that must exist as members of communicators. Those in `cut` are
/// known.
pub(crate) fn add_silent(job: &mut Job, cut: &SilentRanks) -> SilentRanks {
    let known = job.processes.iter().zip(0u32..);
    let mut known: BTreeMap<u32, u32> = known.filter_map(|(p, at)| Some((p.rank?, at))).collect();
    let mut silent = SilentRanks::new();
    forget_impossible_sizes(job);
    let layouts = RankLayouts::new(job);
    for at in 0..job.comms.len() {
        let comm = &job.comms[at];
        let is_whole = comm.vectors.len() >= comm.nranks as usize;
        if comm.kind != CommKind::Collectives || is_whole || !comm.silent.is_empty() {
            continue;
        }
        let there: BTreeSet<u32> = comm.vectors.iter().map(|vector| vector.rank).collect();
        let missing: Vec<u32> = (0..comm.nranks).filter(|rank| !there.contains(rank)).collect();
        let layout = layouts.of(job, comm);
        // Two members are not one process.
        let known_here = cut.range((at, 0)..=(at, u32::MAX)).map(|(_, &process)| process);
        let mut taken: BTreeSet<u32> = known_here.filter_map(|one| job.known_rank(one)).collect();
        for rank in missing {
            if let Some(&process) = cut.get(&(at, rank)) {
                silent.insert((at, rank), process);
                job.comms[at].silent.push(process);
                continue;
            }
            let process = |global: u32| known.get(&global).copied();
            // A process with input is not in this communicator: a guess that names it is wrong.
            let has_no_input = |at: u32| job.processes[at as usize].status == ProcessStatus::Silent;
            let is_free =
                |global: &u32| process(*global).is_none_or(has_no_input) && !taken.contains(global);
            let guess = layout.and_then(|layout| layout.at(rank)).filter(is_free);
            let global = guess.or_else(|| layouts.only_missing.filter(is_free));
            let process = global.and_then(process).unwrap_or_else(|| {
                let new = u32::try_from(job.processes.len()).unwrap_or(u32::MAX);
                let status = ProcessStatus::Silent;
                job.processes.push(Process { rank: global, status, ..Process::default() });
                global.map(|global| known.insert(global, new));
                new
            });
            taken.extend(global);
            silent.insert((at, rank), process);
            job.comms[at].silent.push(process);
        }
    }
    silent
}

/// Sets the size of communicators to unknown if they have more ranks than possible, or once there
/// are too many missing ranks in total.
fn forget_impossible_sizes(job: &mut Job) {
    let mut left = MAX_MISSING;
    let mut forgotten = Vec::new();
    for comm in job.comms.iter_mut().filter(|comm| comm.kind == CommKind::Collectives) {
        let missing = (comm.nranks as usize).saturating_sub(comm.vectors.len());
        let fits = comm.nranks <= MAX_RANKS && missing <= left;
        if fits {
            left = left.saturating_sub(missing);
        } else {
            forgotten.push(format!("{} of {} ranks", comm.name, comm.nranks));
            comm.nranks = 0;
        }
    }
    if let Some(first) = forgotten.first() {
        let more = forgotten.len() - 1;
        let more = if more == 0 { String::new() } else { format!(" and {more} more") };
        job.notes.push(format!("{first}{more}: too many for the input, so none is called missing"));
    }
}
