// SPDX-License-Identifier: Apache-2.0
/*!
What a filter means for slowness: which times are judged, and which findings are shown.

Only times and training steps choose operations. A rank is slow because others wait for it, in any
communicator, and what it does between operations counts as its own work: without the operations of
other ranks, communicators or functions that sum would be wrong. So these choose among the findings.
*/

use crate::model::{Collective, Job};
use crate::report::{ArriverRow, SlowReport};
use ncclscope_findings::Finding;
use ncclscope_operations::Filter;
use std::collections::{BTreeMap, BTreeSet};

impl Job {
    /// Keeps the operations of the filter's training steps and of a time window on the job's clock
    /// (ns). A collective is kept or dropped as a whole, by its first arrival.
    pub fn keep(&mut self, filter: &Filter, window: Option<(f64, f64)>) {
        if filter.steps.is_none() && window.is_none() {
            return;
        }
        let has_step = |step: Option<i64>| {
            filter.steps.is_none_or(|(first, last)| {
                let step = step.and_then(|step| u64::try_from(step).ok());
                step.is_some_and(|step| (first..=last).contains(&step))
            })
        };
        let has_time = |ns: f64| window.is_none_or(|(from, to)| ns >= from && ns <= to);
        let first = |one: &Collective| {
            one.parts.iter().map(|part| part.start).fold(f64::INFINITY, f64::min)
        };
        // A step that began before would look short.
        let begun = self.collectives.iter().map(|one| (one.step, first(one)));
        let begun = begun.chain(self.batches.iter().map(|one| (one.step, one.part.start)));
        let begun = begun.filter(|(_, ns)| window.is_some_and(|(from, _)| *ns < from));
        let cut: BTreeSet<i64> = begun.filter_map(|(step, _)| step).collect();
        let has_step = |step| has_step(step) && step.is_none_or(|step| !cut.contains(&step));
        self.collectives.retain(|one| has_step(one.step) && has_time(first(one)));
        let kept: Vec<bool> =
            self.batches.iter().map(|one| has_step(one.step) && has_time(one.part.start)).collect();
        self.keep_batches(&kept);
        self.own.retain(|(part, step)| has_step(*step) && has_time(part.start));
        // These are sums over the whole run, which cannot be filtered by time.
        let has_sums =
            !self.edges.is_empty() || !self.stalls.is_empty() || !self.launches.is_empty();
        self.networked.extend(self.edges.drain(..).map(|edge| edge.comm));
        self.stalls.clear();
        self.launches.clear();
        if has_sums {
            self.notes.push(
                "links, GPUs inside collectives and delays of launches are not judged for a part \
                 of the time: they are known as sums over all of it"
                    .into(),
            );
        }
    }

    /// Keeps only the batches with `kept`, and updates the indices of their partners.
    fn keep_batches(&mut self, kept: &[bool]) {
        let mut next = 0;
        let number = |&is_kept: &bool| {
            let number = is_kept.then_some(next);
            next += usize::from(is_kept);
            number
        };
        let numbers: Vec<Option<usize>> = kept.iter().map(number).collect();
        let mut at = 0;
        self.batches.retain_mut(|batch| {
            let new = |&partner: &usize| numbers.get(partner).copied().flatten();
            batch.partners = batch.partners.iter().filter_map(new).collect();
            at += 1;
            kept[at - 1]
        });
    }
}

/// How many findings a filter shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    /// Findings that are shown.
    pub shown: usize,
    /// Number of findings, shown or not.
    pub of: usize,
}

impl SlowReport {
    /// Removes the findings that do not concern the filter's ranks, hosts and communicators, and
    /// the rows of collectives of other communicators and functions.
    pub fn show(&mut self, filter: &Filter, job: &Job) -> Shown {
        let hosts: BTreeMap<u32, &str> =
            job.workers.iter().map(|worker| (worker.rank, worker.host.as_str())).collect();
        let has_rank = |rank: u32| {
            filter.has_rank(rank) && filter.has_host(hosts.get(&rank).copied().unwrap_or_default())
        };
        let has_comm = |comm: &String| {
            filter.has_named_comm(comm, job.roles.get(comm).map_or("", String::as_str))
        };
        let of = self.findings.len();
        self.findings.retain(|finding| concerns(finding, filter, has_rank, has_comm));
        self.last_arrivers.retain(|row| has_comm(&row.comm_text) && filter.has_func(&row.func));
        self.judged_arrivals = self.last_arrivers.len();
        let has_last = |row: &ArriverRow| {
            let rank = row.last.and_then(|last| last.rank);
            !filter.chooses_recordings() || rank.is_some_and(has_rank)
        };
        self.last_arrivers.retain(has_last);
        Shown { shown: self.findings.len(), of }
    }
}

fn concerns(
    finding: &Finding,
    filter: &Filter,
    has_rank: impl Fn(u32) -> bool,
    has_comm: impl Fn(&String) -> bool,
) -> bool {
    let ranks: BTreeSet<u32> =
        finding.root_ranks.iter().chain(finding.edge.iter().flatten()).copied().collect();
    let is_of_rank = !filter.chooses_recordings() || ranks.into_iter().any(has_rank);
    // A finding without a communicator concerns all of them.
    is_of_rank && (finding.comm_texts.is_empty() || finding.comm_texts.iter().any(has_comm))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Collective, EndSync, P2pBatch, Part, Worker};
    use ncclscope_findings::{CommId, FindingClass, SlowPart};
    use ncclscope_operations::stats::to_f64;

    fn part(start: f64) -> Part {
        Part { worker: 0, start, end: start + 1.0 }
    }

    fn batch(start: f64, step: i64, partners: Vec<usize>) -> P2pBatch {
        P2pBatch {
            class: None,
            part: part(start),
            released: (start + 1.0, start + 1.0),
            step: Some(step),
            partners,
            is_lacking: false,
            has_end: true,
        }
    }

    #[test]
    fn times_and_steps_keep_whole_collectives_and_the_partners_of_batches() {
        let collective = |starts: &[f64], step| Collective {
            class: 0,
            shape: 0,
            step: Some(step),
            ends: EndSync::Together,
            has_ends: true,
            parts: starts.iter().map(|&start| part(start)).collect(),
        };
        let job = Job {
            collectives: vec![collective(&[5.0, 15.0], 1), collective(&[12.0, 30.0], 2)],
            batches: vec![batch(1.0, 1, vec![1]), batch(11.0, 2, vec![2]), batch(12.0, 2, vec![1])],
            ..Job::default()
        };
        let mut timed = job.clone();
        timed.keep(&Filter::default(), Some((10.0, 20.0)));
        assert_eq!(timed.collectives, [job.collectives[1].clone()]);
        assert_eq!(timed.batches, [batch(11.0, 2, vec![1]), batch(12.0, 2, vec![0])]);
        // The rest of a step that began before is left out.
        let mut cut = job.clone();
        cut.collectives.extend([cut.collectives[0].clone(), cut.collectives[1].clone()]);
        for (at, part) in cut.collectives[2..].iter_mut().flat_map(|c| &mut c.parts).enumerate() {
            part.start = 15.0 + to_f64(at as u64);
        }
        cut.keep(&Filter::default(), Some((10.0, 20.0)));
        assert_eq!(cut.collectives.iter().map(|one| one.step).collect::<Vec<_>>(), [Some(2); 2]);
        let mut stepped = job.clone();
        stepped.keep(&Filter { steps: Some((1, 1)), ..Filter::default() }, None);
        assert_eq!(stepped.collectives, [job.collectives[0].clone()]);
        assert_eq!(stepped.batches, [batch(1.0, 1, vec![])]);
        let mut all = job.clone();
        all.keep(&Filter { ranks: vec![7..=7], ..Filter::default() }, None);
        assert_eq!(all, job);
    }

    #[test]
    fn findings_are_shown_by_rank_host_and_communicator() {
        let job = Job {
            workers: vec![Worker::new(0, "a"), Worker::new(1, "b")],
            roles: BTreeMap::from([("0x1f \"tp\"".to_owned(), "tp".to_owned())]),
            ..Job::default()
        };
        let slow = Finding::new(FindingClass::SlowRank, vec![1]);
        let comm_texts = vec!["0x1f \"tp\"".to_owned()];
        let link = Finding {
            edge: Some([0, 1]),
            comm_texts,
            ..Finding::new(FindingClass::SlowLink, Vec::new())
        };
        let found = [slow, link];
        let row = |rank| ArriverRow {
            comm: CommId::default(),
            comm_text: "0x1f \"tp\"".to_owned(),
            func: "AllReduce".to_owned(),
            last: Some(SlowPart { rank: Some(rank), ..SlowPart::default() }),
            late_ns: 1,
        };
        let shown = |filter: &Filter| {
            let mut report = crate::analyze(&Job::default(), &crate::Limits::default());
            report.findings = found.to_vec();
            report.last_arrivers = vec![row(1), row(2), row(1)];
            let Shown { shown, of } = report.show(filter, &job);
            assert_eq!((shown, of), (report.findings.len(), 2));
            // The number of collectives in which a rank came last does not depend on which ranks
            // are shown.
            let rows = (report.last_arrivers.len(), report.judged_arrivals);
            let is_of_rank_1 = filter.ranks == [1..=1];
            assert!(if is_of_rank_1 { rows == (2, 3) } else { rows.1 == rows.0 || rows.0 == 0 });
            report.findings.iter().map(|finding| finding.class).collect::<Vec<_>>()
        };
        let both = vec![FindingClass::SlowRank, FindingClass::SlowLink];
        let link = vec![FindingClass::SlowLink];
        assert_eq!(shown(&Filter { ranks: vec![1..=1], ..Filter::default() }), both);
        assert_eq!(shown(&Filter { hosts: vec!["a".into()], ..Filter::default() }), link);
        assert_eq!(shown(&Filter { roles: vec!["TP".into()], ..Filter::default() }), both);
        let other = Filter { comms: vec!["0x2".into()], ..Filter::default() };
        assert_eq!(shown(&other), vec![FindingClass::SlowRank]);
    }
}
