// SPDX-License-Identifier: Apache-2.0
//! From the dumps of a process group's members to its communicators.

use super::dump::Dump;
use super::entries::{Direction, Entry};
use crate::job::{Call, CommKind, Communicator, InFlightOp, Vector};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

/// Builds the communicators of one process group.
pub(super) struct GroupBuilder<'a> {
    /// By rank.
    pub(super) dumps: &'a BTreeMap<u32, Dump>,
    /// Job ranks in the order of the processes.
    pub(super) ranks: &'a [u32],
    pub(super) name: &'a str,
    pub(super) members: &'a [u32],
    pub(super) desc: &'a str,
    /// When the dumps were written, ns since 1970, if known.
    pub(super) written_ns: Option<u64>,
}

impl GroupBuilder<'_> {
    pub(super) fn add_to(&self, comms: &mut Vec<Communicator>) {
        let sends = self.known().any(|(.., dump)| dump.of(self.name).any(|entry| entry.is_p2p));
        if sends && self.members.len() == 2 {
            let mut pair = self.communicator(true);
            pair.kind = CommKind::Sequence;
            // PyTorch numbers the sends and receives of such a group as well.
            pair.vectors.iter_mut().for_each(|vector| vector.p2p_number = Some(vector.front()));
            comms.push(pair);
        } else if sends {
            comms.extend(self.pairs());
        }
        comms.push(self.communicator(!sends));
    }

    /// Members with a dump: (rank in the group, rank in the job, dump).
    fn known(&self) -> impl Iterator<Item = (u32, u32, &Dump)> {
        let members = self.members.iter().zip(0..);
        members.filter_map(|(&job, rank)| Some((rank, job, self.dumps.get(&job)?)))
    }

    fn process(&self, rank: u32) -> u32 {
        self.ranks.binary_search(&rank).ok().and_then(|at| u32::try_from(at).ok()).unwrap_or(0)
    }

    fn named(&self) -> Communicator {
        Communicator {
            name: self.name.to_owned(),
            role: (!self.desc.is_empty()).then(|| self.desc.to_owned()),
            nranks: u32::try_from(self.members.len()).unwrap_or(u32::MAX),
            ..Communicator::default()
        }
    }

    /// The collectives of the group, numbered by `pg_status` if `use_status`, else by the entries.
    fn communicator(&self, use_status: bool) -> Communicator {
        let mut comm = self.named();
        let (mut all_calls, mut may_be_cut) = (BTreeMap::new(), Vec::new());
        for (rank, job, dump) in self.known() {
            let Some(vector) = self.vector(rank, job, dump, use_status) else { continue };
            let at = u32::try_from(comm.vectors.len()).unwrap_or(u32::MAX);
            let mut calls: BTreeMap<u64, Arc<Call>> = BTreeMap::new();
            for entry in dump.of(self.name).filter(|entry| !entry.is_p2p) {
                // Operations of one coalesced call share one number.
                calls
                    .entry(entry.seq)
                    .and_modify(|call| join(Arc::make_mut(call), &entry.call))
                    .or_insert_with(|| Arc::clone(&entry.call));
            }
            if vector.is_inside() {
                let call =
                    calls.get(&vector.front()).map(|call| Call::clone(call)).unwrap_or_default();
                comm.flights.insert(at, InFlightOp { call, ..InFlightOp::default() });
            }
            may_be_cut
                .extend(calls.keys().next().filter(|_| dump.lacks_older).map(|&seq| (at, seq)));
            all_calls.insert(at, calls);
            comm.vectors.push(vector);
        }
        let seen: HashSet<u32> = comm.vectors.iter().map(|vector| vector.process).collect();
        let all = self.members.iter().map(|&rank| (rank, self.process(rank)));
        let silent = all.filter(|(rank, process)| match self.dumps.contains_key(rank) {
            // A group without collectives shows those of none.
            true => !seen.is_empty() && !seen.contains(process),
            false => true,
        });
        comm.silent = silent.map(|(_, process)| process).collect();
        drop_cut(&mut all_calls, &may_be_cut);
        comm.calls = all_calls.into_iter().map(|(at, calls)| (at, Arc::new(calls))).collect();
        comm
    }

    fn vector(&self, rank: u32, job: u32, dump: &Dump, use_status: bool) -> Option<Vector> {
        let group = dump.groups.get(self.name)?;
        let entries = || dump.of(self.name).filter(|entry| use_status || !entry.is_p2p);
        let open = || entries().filter(|entry| entry.is_open);
        let last = entries().map(|entry| entry.seq).max();
        let first_open = open().map(|entry| entry.seq).min();
        let (enqueued, started, done) = match (group.status.filter(|_| use_status), last) {
            (Some(status), _) => status,
            (None, Some(last)) => {
                (last, None, first_open.map_or(last, |first| first.saturating_sub(1)))
            }
            (None, None) if group.is_uncalled => (0, None, 0),
            // Sends and receives only.
            (None, None) if !dump.lacks_older && dump.of(self.name).next().is_some() => {
                (0, None, 0)
            }
            (None, None) => return None,
        };
        let born = open().map(|entry| entry.created_ns).min();
        Some(Vector {
            process: self.process(job),
            rank,
            api: enqueued,
            enqueued,
            started,
            done: done.min(enqueued),
            age_ns: born.map(|born| self.age_ns(dump, born)),
            born_ns: born.map(|born| self.age_ns(dump, born)),
            changed_ns: None,
            is_blind: false,
            is_of_launches: false,
            is_captured: false,
            has_left: false,
            connects: false,
            p2p_number: None,
        })
    }

    /// The age of an operation when the dumps were written; else of the newest operation.
    fn age_ns(&self, dump: &Dump, created_ns: u64) -> u64 {
        self.written_ns.unwrap_or_else(|| dump.newest_ns()).saturating_sub(created_ns)
    }

    /// Sends and receives in flight between two members of a larger group. The dumps show only
    /// whether the other side is in the same transfer, not its progress.
    fn pairs(&self) -> Vec<Communicator> {
        let mut running: BTreeMap<(u32, u32), [Option<u64>; 2]> = BTreeMap::new();
        for (_, _, dump) in self.known() {
            for (entry, (is_send, here, there)) in self.running(dump) {
                let key = if is_send { (here, there) } else { (there, here) };
                let age = self.age_ns(dump, entry.created_ns);
                let side = &mut running.entry(key).or_default()[usize::from(!is_send)];
                *side = (*side).max(Some(age));
            }
        }
        let member = |rank: u32| self.members.get(rank as usize).copied();
        let pairs = running.into_iter().filter_map(|((src, dst), ages)| {
            let mut comm = Communicator { kind: CommKind::Sequence, ..self.named() };
            for (rank, age_ns) in [src, dst].into_iter().zip(ages) {
                let job = member(rank)?;
                if !self.dumps.contains_key(&job) {
                    comm.silent.push(self.process(job));
                    continue;
                }
                let enqueued = u64::from(age_ns.is_some());
                let process = self.process(job);
                let base = Vector { process, rank, age_ns, enqueued, ..Vector::default() };
                comm.vectors.push(Vector { api: enqueued, born_ns: age_ns, ..base });
            }
            Some(comm)
        });
        pairs.collect()
    }

    /// The sends and receives of a member that are first on their stream, with their direction:
    /// others in flight do not run yet. Coalesced calls run on the stream of the group, and each
    /// pair of ranks has a stream for all else.
    fn running<'b>(&self, dump: &'b Dump) -> impl Iterator<Item = (&'b Entry, Direction)> {
        let open = dump
            .entries
            .iter()
            .filter(|entry| &*entry.group == self.name && entry.is_p2p && entry.is_open);
        let open: Vec<(&Entry, Direction)> =
            open.filter_map(|entry| Some((entry, entry.direction()?))).collect();
        let stream = |(entry, (_, _, there)): &(&Entry, Direction)| {
            if entry.is_part { None } else { Some(*there) }
        };
        let mut first: HashMap<Option<u32>, u64> = HashMap::new();
        for one in &open {
            let seq = first.entry(stream(one)).or_insert(one.0.seq);
            *seq = one.0.seq.min(*seq);
        }
        open.into_iter().filter(move |one| first.get(&stream(one)) == Some(&one.0.seq))
    }
}

/// Adds a further operation to a coalesced call.
fn join(call: &mut Call, more: &Call) {
    call.func.extend(["+", &more.func]);
    call.size.extend([" + ", &more.size]);
    call.more_counts.push(more.count.unwrap_or(0));
    call.bytes = call.bytes.zip(more.bytes).map(|(all, one)| all.saturating_add(one));
}

/// Drops the oldest calls, of members whose ring has overwritten older entries, that are the end of
/// a coalesced call of another member: the ring may have kept only that part of the same call.
fn drop_cut(calls: &mut BTreeMap<u32, BTreeMap<u64, Arc<Call>>>, oldest: &[(u32, u64)]) {
    let numbers: HashSet<u64> = oldest.iter().map(|&(_, seq)| seq).collect();
    let mut coalesced: HashMap<u64, HashSet<&str>> = HashMap::new();
    for (seq, call) in calls.values().flatten().filter(|(seq, _)| numbers.contains(seq)) {
        coalesced.entry(*seq).or_default().insert(&call.func);
    }
    let is_cut = |&&(at, seq): &&(u32, u64)| {
        let func = calls.get(&at).and_then(|calls| Some(&*calls.get(&seq)?.func));
        let is_longer = |other: &&str, func: &str| {
            other.strip_suffix(func).is_some_and(|before| before.ends_with('+'))
        };
        let all = coalesced.get(&seq);
        func.zip(all).is_some_and(|(func, all)| all.iter().any(|other| is_longer(other, func)))
    };
    let cut: Vec<(u32, u64)> = oldest.iter().filter(is_cut).copied().collect();
    for (at, seq) in cut {
        calls.get_mut(&at).and_then(|calls| calls.remove(&seq));
    }
}
