// SPDX-License-Identifier: Apache-2.0
/*!
The first call that differs, if it is older than the latest calls of a communicator.

Of each member the latest calls are kept, and hashes over all calls. A mismatch that does not hang
at once is older: the hashes differ, or the kept calls differ from the first one on. The recordings
may still contain the calls, so those of one member of each group are read whole, then those of
members whose group is not known, and the first call that differs is added to the job.
*/

use super::losses::has_all_calls;
use crate::desync;
use crate::job::{Call, Communicator, Job};
use ncclscope_operations::bandwidth::size_bytes;
use ncclscope_operations::timeline::comm_name;
use ncclscope_trace::progress::{Heartbeat, count_matters, name_hash, roll};
use ncclscope_trace::record::ApiCall;
use ncclscope_trace::{Comm, Detail, EventKind, Record, Recording};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Members of which the calls are read. Most mismatches have two groups.
const MAX_MEMBERS: usize = 4;

/// All recorded calls of collectives of a member.
struct Calls {
    recording: Recording,
    comm: Comm,
    /// Number of the first of them.
    first: u64,
    /// Start in ticks, and call.
    calls: Vec<(u64, ApiCall)>,
}

/// Adds the first call that differs to each communicator in which it is not known. `files` are the
/// recordings of the job.
pub(crate) fn add(job: &mut Job, files: &[PathBuf]) {
    for comm in &mut job.comms {
        let Some(members) = desync::needs_older(comm) else { continue };
        let read = members.iter().take(MAX_MEMBERS).filter_map(|&member| {
            let rank = comm.vectors.get(member as usize)?.rank;
            let named = |recording: &Recording| {
                let is_it =
                    |it: &&Comm| comm_name(it) == comm.name && it.rank == rank.cast_signed();
                recording.comms().iter().find(is_it).cloned()
            };
            let calls = files.iter().find_map(|file| Calls::read(file, named))?;
            Some((member, calls))
        });
        let read: Vec<(u32, Calls)> = read.collect();
        if let Some(at) = first_difference(&read) {
            insert(comm, &read, at);
        }
    }
}

/// Number of the first call that is not the same in all of these, if an earlier one is known.
fn first_difference(read: &[(u32, Calls)]) -> Option<u64> {
    let (_, first) = read.first()?;
    let others = || read.iter().skip(1).map(|(_, calls)| calls);
    let from = read.iter().map(|(_, calls)| calls.first).max()?;
    let until = read.iter().map(|(_, calls)| calls.end()).min()?;
    let differs = |at: &u64| others().any(|other| other.key(*at) != first.key(*at));
    let at = (from..until).find(differs)?;
    (at > from || at == 1).then_some(at)
}

fn insert(comm: &mut Communicator, read: &[(u32, Calls)], at: u64) {
    for (member, calls) in read {
        if let Some(call) = calls.call(at) {
            let known = comm.calls.entry(*member).or_default();
            let mut all = BTreeMap::clone(known);
            all.insert(at, Arc::new(call));
            *known = Arc::new(all);
        }
    }
}

impl Calls {
    /// The calls of the communicator that `find` finds in a recording, if none of them was lost.
    fn read(file: &Path, find: impl Fn(&Recording) -> Option<Comm>) -> Option<Calls> {
        // Most recordings are of other ranks.
        let comm = find(&Recording::open_end(file, 1).ok()?)?;
        let recording = Recording::open(file).ok()?.with_content().ok()?;
        if !has_all_calls(&recording) {
            return None;
        }
        let progress =
            recording.heartbeats().iter().rev().find_map(|heartbeat| match heartbeat {
                Heartbeat::Progress(progress) if progress.comm == comm.index => Some(*progress),
                _ => None,
            })?;
        let mut calls: Vec<(u64, ApiCall)> = Vec::new();
        for (lane, of) in recording.lanes().iter().enumerate() {
            if of.header.kinds & EventKind::CollApi.bit() == 0 {
                continue;
            }
            recording.visit_lane(lane, |record| {
                if let Record::Start(start) = record
                    && let (true, Detail::CollApi(call)) = (start.comm == comm.index, start.detail)
                {
                    calls.push((start.ticks, call));
                }
            });
        }
        calls.sort_by_key(|(ticks, _)| *ticks);
        let new = calls.iter().filter(|(ticks, _)| *ticks > progress.ticks).count() as u64;
        let first = (progress.api + new + 1).checked_sub(calls.len() as u64)?;
        (first > 0).then_some(Calls { recording, comm, first, calls })
    }

    /// The number after that of the last one.
    fn end(&self) -> u64 {
        self.first + self.calls.len() as u64
    }

    fn get(&self, at: u64) -> Option<&(u64, ApiCall)> {
        self.calls.get(usize::try_from(at.checked_sub(self.first)?).ok()?)
    }

    fn text(&self, id: ncclscope_trace::StrId) -> &str {
        self.recording.string(id).unwrap_or_default()
    }

    /// What of a call must be the same on all ranks.
    fn key(&self, at: u64) -> Option<u64> {
        let (_, call) = self.get(at)?;
        let [func, datatype] =
            [call.func, call.datatype].map(|id| name_hash(self.text(id).as_bytes()));
        Some(roll(0, func, datatype, call.root, call.count))
    }

    fn call(&self, at: u64) -> Option<Call> {
        let (ticks, call) = self.get(at)?;
        let (func, datatype) =
            (self.text(call.func).to_owned(), self.text(call.datatype).to_owned());
        let nranks = Some(self.comm.ranks).filter(|&ranks| ranks > 0);
        Some(Call {
            size: format!("{} elements", call.count),
            bytes: size_bytes(&func, &datatype, call.count, nranks),
            count: count_matters(&func).then_some(call.count),
            more_counts: Vec::new(),
            root: Some(call.root),
            called_ns: Some(self.recording.tick_map().realtime_ns(*ticks)),
            func,
            datatype,
        })
    }
}
