// SPDX-License-Identifier: Apache-2.0
/*!
The progress of each process, as the vectors that `ncclscope diagnose` reads for very many ranks.

The ranks' drain threads write the progress once a second ([`ncclscope_trace::progress`]). The agent
combines it and serves it at `/vectors`, where a tool collects it from all nodes of a job. This
module does not judge it.
*/

use ncclscope_trace::progress::{OpProgress, Progress, progress_flags};
use ncclscope_trace::vectors::{Edge, Vector, job_number, origin_number, vector_flags};
use ncclscope_trace::{Comm, Definition, Heartbeat, Identity};
use std::collections::BTreeMap;

/// The progress of one process.
#[derive(Debug, Default)]
pub(super) struct Reach {
    comms: BTreeMap<u16, Comm>,
    latest: BTreeMap<u16, Progress>,
    /// Operations in flight at the latest progress record of their communicator.
    ops: BTreeMap<u16, Vec<OpProgress>>,
    identity: Identity,
}

impl Reach {
    pub(super) fn identify(&mut self, identity: &Identity) {
        if self.identity != *identity {
            self.identity = identity.clone();
        }
    }

    pub(super) fn define(&mut self, definition: &Definition) {
        match definition {
            Definition::Comm(comm) => {
                self.comms.insert(comm.index, comm.clone());
            }
            Definition::CommEnd { index, .. } => {
                self.comms.remove(index);
                self.latest.remove(index);
                self.ops.remove(index);
            }
            _ => {}
        }
    }

    pub(super) fn note(&mut self, heartbeat: &Heartbeat) {
        match heartbeat {
            Heartbeat::Progress(progress) => {
                self.latest.insert(progress.comm, *progress);
            }
            Heartbeat::Op(op) => {
                let ops = self.ops.entry(op.comm).or_default();
                ops.retain(|other| other.ticks == op.ticks);
                ops.push(*op);
            }
            Heartbeat::Checkpoints(_)
            | Heartbeat::Thread(_)
            | Heartbeat::Shortage(_)
            | Heartbeat::Setup(_) => {}
        }
    }

    /// The vectors of its communicators at `now` ticks (`hz` per second). `state` has the flags of
    /// the process, such as [`vector_flags::SILENT`]. Unchanged progress is recorded less often, so
    /// that ages grow by the time since the record.
    pub(super) fn vectors(&self, state: u32, now: u64, hz: u64) -> Vec<Vector> {
        let known = self.latest.values().filter_map(|p| Some((p, self.comms.get(&p.comm)?)));
        let is_busy = |progress: &Progress| {
            progress.done < progress.enqueued || progress.p2p_done < progress.p2p_enqueued
        };
        let busy = known.clone().filter(|(progress, _)| is_busy(progress)).count();
        let process = self.process();
        let (job, origin) = (job_number(&self.identity), origin_number(&self.identity));
        let age_ms = |progress: &Progress| match progress.age_ms {
            0 => 0,
            age => {
                let ticks = u128::from(now.saturating_sub(progress.ticks)) * 1_000;
                let more = ticks.checked_div(u128::from(hz)).unwrap_or(0);
                age.saturating_add(u32::try_from(more).unwrap_or(u32::MAX))
            }
        };
        let vector = |(progress, comm): (&Progress, &Comm)| {
            let elsewhere = busy > usize::from(is_busy(progress));
            let link = self.waiting(progress);
            Vector {
                comm: comm.hash,
                process,
                rank: comm.rank.cast_unsigned(),
                nranks: comm.ranks,
                api: clip(progress.api),
                enqueued: clip(progress.enqueued),
                started: clip(progress.started),
                done: clip(progress.done),
                age_ms: age_ms(progress),
                hash: progress.hash,
                hash_at: clip(progress.api),
                flags: u32::from(progress.flags)
                    | state
                    | if elsewhere { vector_flags::BUSY_ELSEWHERE } else { 0 }
                    | if is_in_p2p_call(progress) { vector_flags::IN_P2P_CALL } else { 0 },
                peer: link.map_or(-1, |op| op.peer),
                edge: link.map_or(0, |op| self.edge(op).bits()),
                job,
                origin,
                p2p_enqueued: clip(progress.p2p_enqueued),
                p2p_done: clip(progress.p2p_done),
            }
        };
        known.map(vector).collect()
    }

    /// The transfer that has waited longest.
    fn waiting(&self, progress: &Progress) -> Option<&OpProgress> {
        let ops = self.ops.get(&progress.comm)?;
        let now = ops.iter().filter(|op| op.ticks == progress.ticks && op.done < op.steps);
        now.min_by_key(|op| op.since)
    }

    /// The protocol of the operation is unknown here.
    fn edge(&self, &OpProgress { channel, is_send, reached, .. }: &OpProgress) -> Edge {
        let may_be_early = !is_send && self.identity.net_plugin.is_some();
        Edge { channel, is_send, reached, may_be_early }
    }

    /// The job rank; if no launcher set it, the rank in the largest communicator.
    fn process(&self) -> u32 {
        let largest = self.comms.values().max_by_key(|comm| (comm.ranks, u16::MAX - comm.index));
        self.identity
            .rank
            .unwrap_or_else(|| largest.map_or(0, |comm| comm.rank.max(0).cast_unsigned()))
    }
}

/// True if the process has called sends and receives that NCCL has not enqueued.
fn is_in_p2p_call(progress: &Progress) -> bool {
    let says_nothing = progress_flags::NO_API | progress_flags::CAPTURED;
    progress.flags & says_nothing == 0 && progress.p2p_api > progress.p2p_enqueued
}

fn clip(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_of_each_living_communicator_is_told() {
        let mut reach = Reach::default();
        for (index, ranks, rank) in [(0, 8, 5), (1, 2, 1), (2, 4, 0)] {
            let hash = 0x10 + u64::from(index);
            let comm = Comm { index, hash, ranks, rank, ..Comm::default() };
            reach.define(&Definition::Comm(comm));
        }
        reach.define(&Definition::CommEnd { index: 2, ticks: 9 });
        for (ticks, done) in [(10, 3), (20, 4)] {
            let (api, enqueued, started) = (7, 6, 5);
            let (age_ms, p2p_enqueued, p2p_done) = (9, 5, 4);
            let p = Progress { ticks, api, enqueued, started, done, age_ms, ..Progress::default() };
            let p = Progress { p2p_enqueued, p2p_done, ..p };
            reach.note(&Heartbeat::Progress(p));
            reach.note(&Heartbeat::Progress(Progress { ticks, comm: 1, ..Progress::default() }));
            for (peer, since) in [(3, 8), (4, 7)] {
                let op = OpProgress { ticks, peer, since, steps: 2, ..OpProgress::default() };
                reach.note(&Heartbeat::Op(OpProgress { is_send: true, reached: Some(3), ..op }));
            }
        }
        let found = reach.vectors(vector_flags::SILENT, 50, 1_000);
        assert_eq!(found.len(), 2);
        let [first, second] = [found[0], found[1]];
        assert_eq!((first.comm, first.process, first.rank, first.nranks), (0x10, 5, 5, 8));
        let counts = [first.api, first.enqueued, first.started, first.done, first.age_ms];
        assert_eq!(counts, [7, 6, 5, 4, 9 + 30], "it was written 30 ms ago");
        assert_eq!(second.age_ms, 0, "nothing is in flight");
        assert_eq!((first.peer, first.edge), (4, 1 << 8 | 3 << 9 | 1 << 11));
        assert_eq!(first.flags, vector_flags::SILENT);
        assert_eq!(second.flags, vector_flags::SILENT | vector_flags::BUSY_ELSEWHERE);
        assert_eq!(second.peer, -1);
        assert_eq!((first.p2p_enqueued, first.p2p_done, first.job), (5, 4, 0));
        let (p2p_api, p2p_enqueued) = (6, 5);
        let p = Progress { ticks: 40, p2p_api, p2p_enqueued, ..Progress::default() };
        reach.note(&Heartbeat::Progress(p));
        let op = OpProgress { ticks: 40, peer: 3, steps: 2, ..OpProgress::default() };
        reach.note(&Heartbeat::Op(OpProgress { reached: Some(3), ..op }));
        let mut identity = Identity { rank: Some(42), ..Identity::default() };
        identity.set("job", "4711.0");
        identity.set("net_plugin", "libnccl-net-ofi.so");
        reach.identify(&identity);
        let found = reach.vectors(0, 50, 1_000)[0];
        assert_eq!((found.process, found.job), (42, job_number(&identity)));
        assert_eq!(found.origin, origin_number(&identity));
        assert_eq!(found.flags, vector_flags::IN_P2P_CALL);
        assert!(Edge::of(found.edge).may_be_early);
    }
}
