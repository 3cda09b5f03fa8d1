// SPDX-License-Identifier: Apache-2.0
/*!
Very large jobs, of which only counters are simulated: a table of vectors, ten communicators per
rank.

All ranks run the same round of collectives on their ten communicators, and wait for their GPU at
the end of each round. Counts are computed without times: a rank continues when all members of the
communicator have begun the same collective.
*/

use crate::error::Error;
use crate::fault::Fault;
use crate::identity::identity;
use crate::layout::Layout;
use crate::scenario::{Planted, Scenario};
use crate::time::mix;
use crate::truth::{JobSizes, SCHEMA, Truth, Verdict};
use ncclscope_trace::progress::{name_hash, roll};
use ncclscope_trace::vectors::{Table, Vector, job_number, origin_number, vector_flags};
use std::collections::HashMap;

/// Number of communicators of a rank.
pub(crate) const COMMS: usize = 10;
/// A round: the communicator of each collective. The host waits for the last one.
const ROUND: [usize; 14] = [1, 4, 1, 3, 7, 1, 8, 2, 6, 2, 5, 9, 1, 0];
/// Number of rounds that count as completed before; `PLAYED` is the number of simulated rounds.
const BEFORE: u32 = 5_000;
const PLAYED: usize = 4;
/// The index in a round of the tensor parallel communicator in its last two collectives, which
/// `order-swap` exchanges.
const SWAPPED: usize = ROUND.len() - 2;

/// The fault of a rank, and the collective from which on it acts.
#[derive(Clone, Copy, Debug)]
struct RankFault {
    fault: Fault,
    at: usize,
}

/// A rank in a communicator: the communicator, its size, and the rank's position.
#[derive(Clone, Copy, Debug)]
struct CommMember {
    comm: usize,
    size: u32,
    rank: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct RankCounts {
    /// Numbers of its collectives that were called, enqueued, started on the GPU, and completed.
    called: usize,
    enqueued: usize,
    started: usize,
    done: usize,
}

#[derive(Debug)]
struct Counting<'a> {
    layout: &'a Layout,
    ill: HashMap<u32, RankFault>,
    reach: Vec<RankCounts>,
    /// Number of members that have begun each collective of each communicator.
    begun: HashMap<(usize, usize), Vec<u32>>,
}

/// The table of a scenario, and the true causes.
pub(crate) fn table(scenario: &Scenario, layout: &Layout) -> Result<(Table, Truth), Error> {
    let mut ill = HashMap::new();
    let mut verdicts = Vec::new();
    for (planted, number) in scenario.fault.iter().zip(0u64..) {
        plant(scenario, layout, (planted, number), &mut ill, &mut verdicts)?;
    }
    let reach = vec![RankCounts::default(); layout.ranks as usize];
    let mut counting = Counting { layout, ill, reach, begun: HashMap::new() };
    counting.play();
    let vectors = counting.vectors(scenario);
    let names: Vec<&str> = scenario.fault.iter().map(|planted| planted.name.name()).collect();
    let Layout { ranks, per_host, tp, pp, dp, ep, .. } = *layout;
    let truth = Truth {
        schema: SCHEMA.into(),
        fault: if names.is_empty() { "healthy".into() } else { names.join("+") },
        seed: scenario.seed,
        injected_ns: crate::record::EPOCH_NS,
        ended_ns: crate::record::EPOCH_NS + u64::from(scenario.job.hold_s) * 1_000_000_000,
        seconds: f64::from(scenario.job.hold_s),
        ended: verdicts.is_empty(),
        verdicts,
        slow: Vec::new(),
        hidden: Vec::new(),
        job: JobSizes { ranks, per_host, tp, pp, dp, ep },
    };
    Ok((Table { vectors, made_ns: truth.ended_ns, ..Table::default() }, truth))
}

fn plant(
    scenario: &Scenario,
    layout: &Layout,
    (planted, number): (&Planted, u64),
    ill: &mut HashMap<u32, RankFault>,
    verdicts: &mut Vec<Verdict>,
) -> Result<(), Error> {
    use Fault as F;
    let fault = planted.name;
    let name = fault.name();
    match fault {
        F::Healthy => return Ok(()),
        F::HostStuck
        | F::GilLock
        | F::Killed
        | F::Exit
        | F::Sigstop
        | F::InLaunch
        | F::WrongType
        | F::OrderSwap
        | F::GpuDead
        | F::StreamBlocked => {}
        _ => {
            let text = format!(
                "{name} does not show in the counters of more than 1,024 ranks: give fewer \
                 --ranks, or leave out --counters"
            );
            return Err(Error::scenario(text));
        }
    }
    if fault == F::OrderSwap && layout.tp < 2 {
        return Err(Error::scenario("order-swap needs tensor parallel ranks: give --tp 2 or more"));
    }
    let drawn = mix(scenario.seed, number, fault as u64);
    let other = u32::try_from(drawn % u64::from(layout.ranks)).unwrap_or(0);
    let rank = planted.rank.unwrap_or(other) % layout.ranks;
    let place = usize::try_from(mix(drawn, 1, 1) % ROUND.len() as u64).unwrap_or(0);
    let at = match fault {
        F::OrderSwap => ROUND.len() + SWAPPED,
        // At least two ranks must agree on the right call.
        F::WrongType => ROUND.len() * 2 - 1,
        _ => ROUND.len() + place,
    };
    ill.insert(rank, RankFault { fault, at });
    let mut roots = vec![rank];
    if fault == F::OrderSwap && layout.tp == 2 {
        let first = rank / layout.tp * layout.tp;
        roots = (first..first + layout.tp).collect();
    }
    verdicts.extend(fault.class().map(|class| Verdict { class, root_ranks: roots, edge: None }));
    Ok(())
}

impl Counting<'_> {
    /// A rank's communicator of a kind.
    fn place(&self, rank: u32, kind: usize) -> CommMember {
        let Layout { ranks, tp, pp, dp, ep, .. } = *self.layout;
        let (tensor, rest) = (rank % tp, rank / tp);
        let (data, stage) = (rest % dp, rest / dp);
        // Index of the communicator among those of its kind, size, and position in it.
        let (number, size, at) = match kind {
            1 => (rest, tp, tensor),
            2 => (stage * tp + tensor, dp, data),
            3 => (data * tp + tensor, pp, stage),
            4 => ((stage * tp + tensor) * (dp / ep) + data / ep, ep, data % ep),
            5 => (data, tp * pp, stage * tp + tensor),
            6 => (stage, tp * dp, data * tp + tensor),
            7 => ((stage * tp + tensor) * ep + data % ep, dp / ep, data / ep),
            8 => (rank / 16, 16.min(ranks - rank / 16 * 16), rank % 16),
            _ => (0, ranks, rank),
        };
        CommMember { comm: number as usize * COMMS + kind, size, rank: at }
    }

    /// The kind of the communicator of a rank's collective.
    fn kind(&self, rank: u32, index: usize) -> usize {
        let swaps = |ill: &RankFault| {
            ill.fault == Fault::OrderSwap && (ill.at..ill.at + 2).contains(&index)
        };
        let place = index % ROUND.len();
        let swapped = self.ill.get(&rank).is_some_and(swaps);
        if swapped { ROUND[SWAPPED * 2 + 1 - place] } else { ROUND[place] }
    }

    fn play(&mut self) {
        let mut work: Vec<u32> = (0..self.layout.ranks).collect();
        while let Some(rank) = work.pop() {
            self.advance(rank, &mut work);
        }
    }

    /// Advances a rank until it has to wait, and adds the ranks that waited for it to `work`.
    fn advance(&mut self, rank: u32, work: &mut Vec<u32>) {
        self.call(rank);
        let at = rank as usize;
        while self.reach[at].started == self.reach[at].done
            && self.reach[at].started < self.reach[at].enqueued
        {
            let index = self.reach[at].started;
            if self.hit(rank, Fault::StreamBlocked) == Some(index) {
                return;
            }
            self.reach[at].started += 1;
            let kind = self.kind(rank, index);
            let place = self.place(rank, kind);
            let number = self.number(rank, index, kind);
            let waiting = self.begun.entry((place.comm, number)).or_default();
            waiting.push(rank);
            if waiting.len() < place.size as usize {
                return;
            }
            for member in self.begun.remove(&(place.comm, number)).unwrap_or_default() {
                let reach = self.reach[member as usize];
                if self.hit(member, Fault::GpuDead) != Some(reach.started - 1) {
                    self.reach[member as usize].done = reach.started;
                    if member != rank {
                        work.push(member);
                    }
                }
            }
            self.call(rank);
        }
    }

    /// The collective at which a fault hits a rank, if it has that fault.
    fn hit(&self, rank: u32, fault: Fault) -> Option<usize> {
        self.ill.get(&rank).filter(|ill| ill.fault == fault).map(|ill| ill.at)
    }

    /// The number of collectives of the same kind before one, in a rank's order.
    fn number(&self, rank: u32, index: usize, kind: usize) -> usize {
        let rounds = index / ROUND.len();
        let first = rounds * ROUND.len();
        let each = ROUND.iter().filter(|&&of| of == kind).count();
        rounds * each + (first..index).filter(|&at| self.kind(rank, at) == kind).count()
    }

    /// The host calls ahead to the end of the round; it calls the last two collectives one by one.
    fn call(&mut self, rank: u32) {
        let done = self.reach[rank as usize].done;
        let (round, place) = (done / ROUND.len(), done % ROUND.len());
        let ahead = if place < SWAPPED { SWAPPED + 1 } else { place + 1 };
        let mut called = (round * ROUND.len() + ahead).min(PLAYED * ROUND.len());
        let mut enqueued = called;
        if let Some(ill) = self.ill.get(&rank) {
            match ill.fault {
                Fault::HostStuck
                | Fault::GilLock
                | Fault::Killed
                | Fault::Exit
                | Fault::Sigstop => {
                    called = called.min(ill.at);
                }
                Fault::InLaunch => {
                    called = called.min(ill.at + 1);
                    enqueued = enqueued.min(ill.at);
                }
                // The next launch fails.
                Fault::GpuDead => called = called.min(ill.at + 1),
                _ => {}
            }
            enqueued = enqueued.min(called);
        }
        let reach = &mut self.reach[rank as usize];
        (reach.called, reach.enqueued) = (called, enqueued);
    }

    fn vectors(&self, scenario: &Scenario) -> Vec<Vector> {
        let mut vectors = Vec::with_capacity(self.layout.ranks as usize * COMMS);
        let age_ms = scenario.job.hold_s * 1_000;
        for rank in 0..self.layout.ranks {
            let reach = &self.reach[rank as usize];
            let counts: Vec<[u32; 4]> = (0..COMMS).map(|kind| self.counts(rank, kind)).collect();
            let silent = [Fault::Killed, Fault::Exit, Fault::Sigstop]
                .iter()
                .any(|f| self.hit(rank, *f).is_some());
            let identity = identity(scenario.seed, self.layout, rank);
            let (job, origin) = (job_number(&identity), origin_number(&identity));
            for (kind, &[api, enqueued, started, done]) in counts.iter().enumerate() {
                let place = self.place(rank, kind);
                let is_open = enqueued > done;
                let is_elsewhere = reach.enqueued > reach.done && !is_open;
                let mut flags = if silent { vector_flags::SILENT } else { 0 };
                flags |= if is_elsewhere { vector_flags::BUSY_ELSEWHERE } else { 0 };
                vectors.push(Vector {
                    comm: mix(scenario.seed, place.comm as u64, 0x7665_6374) | 1,
                    process: rank,
                    rank: place.rank,
                    nranks: place.size,
                    api,
                    enqueued,
                    started,
                    done,
                    age_ms: if is_open { age_ms } else { 0 },
                    born_ms: if is_open { age_ms } else { 0 },
                    changed_ms: age_ms,
                    hash: self.hash(rank, kind, api),
                    hash_at: api,
                    flags,
                    job,
                    origin,
                    ..Vector::default()
                });
            }
        }
        vectors
    }

    /// Counts of a rank on one communicator.
    fn counts(&self, rank: u32, kind: usize) -> [u32; 4] {
        let each = ROUND.iter().filter(|&&of| of == kind).count();
        let before = BEFORE * u32::try_from(each).unwrap_or(0);
        let reach = &self.reach[rank as usize];
        [reach.called, reach.enqueued, reach.started, reach.done]
            .map(|upto| before + u32::try_from(self.number(rank, upto, kind)).unwrap_or(u32::MAX))
    }

    /// The rolling hash over a rank's first `count` collectives on a communicator; those completed
    /// before the simulation count as one.
    fn hash(&self, rank: u32, kind: usize, count: u32) -> u64 {
        let each = ROUND.iter().filter(|&&of| of == kind).count();
        let played = count.saturating_sub(BEFORE * u32::try_from(each).unwrap_or(0));
        let wrong = self.hit(rank, Fault::WrongType).filter(|&at| self.kind(rank, at) == kind);
        let wrong = wrong.map(|at| self.number(rank, at, kind));
        (0..played as usize).fold(mix(kind as u64, 1, 1), |hash, number| {
            let datatype = if wrong == Some(number) { "ncclFloat32" } else { "ncclBfloat16" };
            let names = ["AllReduce", datatype].map(|name| name_hash(name.as_bytes()));
            roll(hash, names[0], names[1], 0, 1 << 20)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn simulate(fault: Fault, ranks: u32) -> (Vec<Vector>, Truth) {
        let mut scenario =
            Scenario { seed: 4, fault: vec![Planted::new(fault)], ..Scenario::default() };
        scenario.job.ranks = ranks;
        let layout = Layout::new(&scenario).unwrap();
        let (table, truth) = table(&scenario, &layout).unwrap();
        (table.vectors, truth)
    }

    #[test]
    fn a_healthy_job_has_nothing_in_flight_and_equal_counts() {
        let (vectors, truth) = simulate(Fault::Healthy, 64);
        assert_eq!(vectors.len(), 64 * COMMS);
        assert!(truth.verdicts.is_empty());
        let mut seen: HashMap<u64, Vec<&Vector>> = HashMap::new();
        for vector in &vectors {
            assert_eq!((vector.api, vector.enqueued), (vector.done, vector.started));
            seen.entry(vector.comm).or_default().push(vector);
        }
        for members in seen.values() {
            assert_eq!(members.len(), members[0].nranks as usize);
            assert!(members.iter().all(|v| (v.api, v.hash) == (members[0].api, members[0].hash)));
        }
    }

    #[test]
    fn a_stuck_host_holds_up_all_and_is_in_flight_nowhere() {
        for fault in [Fault::HostStuck, Fault::Killed, Fault::Sigstop] {
            let (vectors, truth) = simulate(fault, 64);
            let root = truth.verdicts[0].root_ranks[0];
            let in_flight = |rank| vectors.iter().any(|v| v.process == rank && v.enqueued > v.done);
            for rank in 0..64 {
                assert_eq!(in_flight(rank), rank != root, "{} {rank}", fault.name());
            }
        }
    }

    #[test]
    fn a_cycle_holds_its_members() {
        let (vectors, truth) = simulate(Fault::OrderSwap, 64);
        let roots = &truth.verdicts[0].root_ranks;
        for rank in 0..64 {
            let stuck = vectors.iter().any(|v| v.process == rank && v.started > v.done);
            assert!(stuck, "{rank} of {roots:?}");
        }
    }
}
