// SPDX-License-Identifier: Apache-2.0
//! The verdict about ranks that wait for each other in a circle (DEADLOCK, H2b), and which of them
//! used the communicators in another order than most.

use super::Classifier;
use crate::job::{CommKind, Communicator, Vector};
use crate::wait_graph::{Wait, WaitCycle};
use crate::words;
use ncclscope_findings::{Doubt, Evidence, Finding, FindingClass, How};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The processes of a circle that used two communicators in another order than most.
struct OtherOrder<'a> {
    odd: Vec<u32>,
    most: Vec<u32>,
    /// A wait of one of `most`.
    wait: &'a Wait,
}

impl Classifier<'_> {
    pub(super) fn cycle_verdict(&self, cycle: &WaitCycle) -> Finding {
        let WaitCycle { waits, pairs } = cycle;
        let class =
            if pairs.is_empty() { FindingClass::Deadlock } else { FindingClass::P2pMismatch };
        let is_issued = |wait: &Wait| {
            let comm = self.comm(wait.comm);
            let front = comm.vectors[wait.member as usize].front();
            comm.vectors.iter().all(|v| v.enqueued >= front && v.started.is_none())
        };
        let is_connecting = |wait: &Wait| self.comm(wait.comm).kind == CommKind::Call;
        let connect = waits.iter().all(is_connecting);
        // Of a send or receive that only one side is in, the other side has not called it, or has
        // finished it, and the first side's GPU or network does not.
        let is_one_sided = |wait: &Wait| {
            let comm = self.comm(wait.comm);
            comm.kind == CommKind::Sequence
                && comm.vectors.iter().any(|v| v.p2p_number.is_none() && v.enqueued == 0)
        };
        let is_one_sided = waits.iter().any(is_one_sided);
        let doubt = match (connect, is_one_sided) {
            (true, _) => Some(Doubt::CannotConnect),
            (false, true) => Some(Doubt::OneSideFinished),
            _ => waits.iter().all(is_issued).then_some(Doubt::ByDesign),
        };
        let mut processes: Vec<u32> = match class {
            FindingClass::Deadlock => waits.iter().map(|wait| wait.process).collect(),
            _ => {
                let of_pairs = waits.iter().filter(|wait| pairs.contains(&wait.comm));
                of_pairs.flat_map(|wait| &self.comm(wait.comm).vectors).map(|v| v.process).collect()
            }
        };
        let other = self.other_order(waits).filter(|_| pairs.is_empty());
        if let Some(other) = &other {
            processes.clone_from(&other.odd);
        }
        processes.sort_unstable();
        processes.dedup();
        let victims = self.wait_roots.victims(&processes, &[]);
        let evidence = self.lines_of_waits(class, waits);
        let mut finding = self.finding(class, &processes, evidence, victims);
        finding.doubts.extend(doubt);
        if let Some(other) = &other {
            finding.how = How::OtherOrder(self.job_ranks(&other.most));
        }
        // Two ranks may each send where the other receives, so that the cycle goes through both
        // pairs.
        let of_pairs = || waits.iter().filter(|wait| pairs.contains(&wait.comm));
        let lopsided = of_pairs().find(|wait| is_lopsided(self.comm(wait.comm)));
        finding.edge = lopsided.or_else(|| of_pairs().next_back()).and_then(|wait| {
            let ends = self.comm(wait.comm).vectors.iter().map(|end| self.job.rank(end.process));
            <[u32; 2]>::try_from(ends.collect::<Vec<_>>()).ok()
        });
        let of_most = other.map(|other| other.wait);
        if let Some(wait) = lopsided.or(of_most).or_else(|| waits.first()) {
            let comm = self.comm(wait.comm);
            self.locate(&mut finding, comm);
            finding.op = Some(self.op(comm, wait.member));
            finding.age_ns = self.age_ns(&comm.vectors[wait.member as usize]);
        }
        finding
    }

    /// Where each process waits: one line for those that wait alike. Those in another communicator
    /// than the rest come first.
    fn lines_of_waits(&self, class: FindingClass, waits: &[Wait]) -> Vec<Evidence> {
        let mut alike: BTreeMap<_, usize> = BTreeMap::new();
        waits.iter().for_each(|wait| *alike.entry(wait.comm).or_default() += 1);
        let mut ordered: Vec<&Wait> = waits.iter().collect();
        ordered.sort_by_key(|wait| alike.get(&wait.comm).copied());
        let mut places: Vec<(String, Vec<u32>)> = Vec::new();
        let mut known: HashMap<String, usize> = HashMap::new();
        for wait in ordered {
            let comm = self.comm(wait.comm);
            let vector = &comm.vectors[wait.member as usize];
            let place = format!(
                "{} of {} ({})",
                words::op(comm.number(vector), self.call(comm, wait.member, vector.front())),
                words::comm(comm),
                self.counts_text(wait.comm, vector),
            );
            let at = *known.entry(place.clone()).or_insert(places.len());
            match places.get_mut(at) {
                Some((_, processes)) => processes.push(wait.process),
                None => places.push((place, vec![wait.process])),
            }
        }
        let line = |(place, processes): &(String, Vec<u32>)| {
            let first = processes.first().map_or(0, |&process| self.job.rank(process));
            let text = match processes[..] {
                [one] => format!("{} waits in {place}", words::rank(self.job, one)),
                _ => format!("{} wait in {place}", self.ranks(processes)),
            };
            Evidence::of(class, first, text)
        };
        places.iter().map(line).collect()
    }

    /// The processes of a circle that used two communicators in another order than most. Each
    /// process is a member of both, waits in one, and has not come to the operation of the other in
    /// which others wait: so it called the one first, and those the other. `None` if that is not
    /// so, or if both orders have as many.
    fn other_order<'w>(&self, waits: &'w [Wait]) -> Option<OtherOrder<'w>> {
        // A kernel that is queued behind another one only waits for its turn.
        let is_queued = |vector: &Vector| vector.is_inside() && vector.has_started() == Some(false);
        let all: BTreeSet<u32> = waits.iter().map(|wait| wait.process).collect();
        let is_real =
            |wait: &&Wait| !is_queued(&self.comm(wait.comm).vectors[wait.member as usize]);
        let waits: Vec<&Wait> = waits.iter().filter(is_real).collect();
        let mut by_comm: BTreeMap<u32, Vec<&Wait>> = BTreeMap::new();
        waits.iter().for_each(|&wait| by_comm.entry(wait.comm).or_default().push(wait));
        let processes = |waits: &[&Wait]| waits.iter().map(|wait| wait.process).collect();
        let waiting: BTreeSet<u32> = waits.iter().map(|wait| wait.process).collect();
        let mut both: Vec<(u32, Vec<&Wait>)> = by_comm.into_iter().collect();
        both.sort_by_key(|(_, waits)| waits.len());
        let [(of_odd, odd), (of_most, most)] = &both[..] else { return None };
        let has_order = |comm: u32| self.comm(comm).kind == CommKind::Collectives;
        if !has_order(*of_odd) || !has_order(*of_most) {
            return None;
        }
        let is_tie = odd.len() == most.len();
        if is_tie || waiting.len() != waits.len() || waiting != all {
            return None;
        }
        // True if none of `others` has come as far in the communicator as each of `these`.
        let are_behind = |others: &[&Wait], comm: u32, these: &[&Wait]| {
            let front =
                |vector| self.job.front(vector).saturating_sub(u64::from(is_queued(vector)));
            let vectors = self.comm(comm).vectors.iter();
            let fronts: HashMap<u32, u64> =
                vectors.map(|vector| (vector.process, front(vector))).collect();
            let front = |wait: &&Wait| fronts.get(&wait.process).copied();
            let least = these.iter().filter_map(front).min();
            others.iter().all(|other| front(other).is_some_and(|front| Some(front) < least))
        };
        let is_order = are_behind(odd, *of_most, most) && are_behind(most, *of_odd, odd);
        let wait = *most.first()?;
        is_order.then(|| OtherOrder { odd: processes(odd), most: processes(most), wait })
    }
}

/// True if one side of a pair has called more than the other.
fn is_lopsided(comm: &Communicator) -> bool {
    comm.vectors.iter().any(|end| end.enqueued != comm.vectors[0].enqueued)
}
