// SPDX-License-Identifier: Apache-2.0
/*!
Why a rank is not named, or a job does not hang: what each rule saw.

This module finds nothing: it puts what [`crate::diagnose`] found next to what each rank does.
*/

use crate::Rule;
use crate::diagnosis::Diagnosis;
use crate::engine::{self, Options};
use crate::job::{CommKind, Job, Process, ProcessStatus, how_stopped};
use crate::wait_graph::WaitRoots;
use crate::{waiting, words};
use ncclscope_findings::{Looked, Outcome};
use ncclscope_operations::human;
use ncclscope_operations::stats::to_f64;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;

/// Finds out why the job hangs, what each rule saw, and what keeps each of these ranks from being
/// named; no ranks are all.
#[must_use]
pub fn why_not(
    job: &Job,
    options: &Options,
    asked: &[RangeInclusive<u32>],
) -> (Diagnosis, Vec<Looked>) {
    let (diagnosis, roots) = engine::search(job, options);
    let mut seen: Vec<Looked> = Rule::ALL
        .into_iter()
        .filter(|rule| !options.without.contains(rule))
        .map(|rule| of_rule(job, rule, (&diagnosis, &roots), options.hang_ns(job)))
        .collect();
    let ranks = Ranks::of(job, &diagnosis, &roots, options.hang_ns(job));
    let is_asked = |rank: &u32| asked.is_empty() || asked.iter().any(|range| range.contains(rank));
    for (process, at) in job.processes.iter().zip(0u32..) {
        let rank = job.known_rank(at).filter(is_asked);
        seen.extend(rank.map(|rank| ranks.look(process, at, rank)));
    }
    (diagnosis, seen)
}

/// What a rule saw in all.
fn of_rule(
    job: &Job,
    rule: Rule,
    (diagnosis, roots): (&Diagnosis, &WaitRoots),
    hang_ns: u64,
) -> Looked {
    let about = rule.about();
    let compared = |kind: &str, has: &dyn Fn(&crate::job::Communicator) -> bool| {
        let comms = job.comms.iter().filter(|comm| has(comm)).count();
        format!("compared {kind} in {}", human::count(comms, "communicator"))
    };
    let saw = match rule {
        Rule::CallMismatch => compared("calls", &|comm| comm.calls.len() > 1),
        Rule::SettingsMismatch => compared("settings", &|comm| comm.settings.len() > 1),
        Rule::WaitGraph => format!(
            "{} in an operation for {} or longer; the waits end at {} outside of an operation, and \
             in {}",
            human::are(
                roots.waits.iter().map(|wait| wait.process).collect::<BTreeSet<_>>().len(),
                "rank"
            ),
            words::duration(hang_ns),
            human::count(roots.late.len(), "rank"),
            human::count(roots.inside.len() + roots.unfinished.len(), "operation"),
        ),
        Rule::CommunicatorSetup => {
            let inside = job.processes.iter().filter(|process| process.setup.is_some()).count();
            let are = human::are(inside, "rank");
            format!("{are} in a function that creates or ends a communicator")
        }
        Rule::FirstEnd => match &job.ending {
            Some(ending) if ending.is_crash() => "the job ended by an error or signal".into(),
            Some(_) => "the job ended in order".into(),
            None => "the job runs, or its end was not recorded".into(),
        },
    };
    let found: BTreeSet<&str> = diagnosis
        .findings
        .iter()
        .filter(|finding| about.classes.contains(&finding.class))
        .map(|finding| finding.class.code())
        .collect();
    let (outcome, because) = match found.is_empty() {
        true => (Outcome::Not, String::from("nothing that explains a wait")),
        false => (Outcome::Found, String::new()),
    };
    let subject = "the job".into();
    Looked { rule: about.name, subject, ranks: Vec::new(), saw, outcome, because, nearness: 0.0 }
}

/// What is known of all ranks.
struct Ranks<'a> {
    job: &'a Job,
    diagnosis: &'a Diagnosis,
    hang_ns: u64,
    /// The operation that each process is in for longest: communicator, member and age in ns.
    oldest: Vec<Option<(usize, usize, u64)>>,
    /// Where ranks wait: for each communicator, in order, the members that have not come.
    absent: Vec<(u32, Vec<u32>)>,
    /// The communicator in which each process waits.
    waits: Vec<Option<u32>>,
    moving: BTreeSet<u32>,
    possible: BTreeSet<u32>,
}

impl Ranks<'_> {
    fn of<'a>(
        job: &'a Job,
        diagnosis: &'a Diagnosis,
        roots: &WaitRoots,
        hang_ns: u64,
    ) -> Ranks<'a> {
        let mut oldest: Vec<Option<(usize, usize, u64)>> = vec![None; job.processes.len()];
        for (at, comm) in job.comms.iter().enumerate() {
            for (member, vector) in comm.vectors.iter().enumerate() {
                let Some(age) = vector.age_ns else { continue };
                let known = &mut oldest[vector.process as usize];
                if known.is_none_or(|(.., known)| known < age) {
                    *known = Some((at, member, age));
                }
            }
        }
        let mut waits = vec![None; job.processes.len()];
        roots.waits.iter().for_each(|wait| waits[wait.process as usize] = Some(wait.comm));
        let comms: BTreeSet<u32> = roots.waits.iter().map(|wait| wait.comm).collect();
        let absent = waiting::of(job, &roots.waits).into_iter().map(|one| one.absent);
        let absent = comms.into_iter().zip(absent).collect();
        let set = |of: &[u32]| of.iter().copied().collect();
        let (moving, possible) = (set(&roots.moving), set(&roots.possible));
        Ranks { job, diagnosis, hang_ns, oldest, absent, waits, moving, possible }
    }

    /// What is seen of a process.
    fn look(&self, process: &Process, at: u32, rank: u32) -> Looked {
        let is_root = |of: &&ncclscope_findings::Finding| of.root_ranks.contains(&rank);
        let named = self.diagnosis.findings.iter().find(is_root);
        let (outcome, because) = match named {
            Some(_) => (Outcome::Found, String::new()),
            None => self.why(process, at),
        };
        let named = named.map_or_else(String::new, |of| format!("; {} names it", of.class.code()));
        let age = self.oldest[at as usize].map_or(0, |(.., age)| age);
        Looked {
            rule: Rule::WaitGraph.about().name,
            subject: format!("rank {rank}"),
            ranks: vec![rank],
            saw: self.saw(process, at) + &named,
            outcome,
            because,
            nearness: to_f64(age) / to_f64(self.hang_ns.max(1)),
        }
    }

    /// The members that have not come to the operation in which a process waits.
    fn absent_for(&self, process: u32) -> Option<&[u32]> {
        let comm = self.waits[process as usize]?;
        let at = self.absent.binary_search_by_key(&comm, |(comm, _)| *comm).ok()?;
        Some(&self.absent[at].1)
    }

    /// Where a process is.
    fn saw(&self, process: &Process, at: u32) -> String {
        let in_operation = self.oldest[at as usize].map(|(comm, member, age)| {
            let comm = &self.job.comms[comm];
            let front = comm.vectors[member].front();
            let member = u32::try_from(member).unwrap_or(u32::MAX);
            let calls = comm.calls.get(&member).and_then(|calls| calls.get(&front));
            let call = comm.flights.get(&member).map(|flight| &flight.call);
            let number = (comm.kind != CommKind::Call).then_some(front);
            format!(
                "in {} of {} for {}",
                words::op(number, call.or_else(|| calls.map(|call| &**call))),
                words::comm(comm),
                words::duration(age)
            )
        });
        let idle = || match process.idle_ns {
            Some(ns) => format!("in no operation; it last called NCCL {} ago", words::duration(ns)),
            None => "in no operation".into(),
        };
        in_operation.unwrap_or_else(idle)
    }

    /// Why a process is not named.
    fn why(&self, process: &Process, at: u32) -> (Outcome, String) {
        let age = self.oldest[at as usize].map(|(.., age)| age);
        let limit = words::duration(self.hang_ns);
        match (process.status, self.absent_for(at)) {
            (ProcessStatus::Silent, _) => (Outcome::CannotTell, "there is no input of it".into()),
            (_, Some([])) => {
                (Outcome::Not, "all its members are in it: what holds it up is elsewhere".into())
            }
            (_, Some(absent)) => {
                let absent = words::named_ranks(absent);
                (Outcome::Not, format!("it waits for {absent}, not there yet or without input"))
            }
            (ProcessStatus::Dead | ProcessStatus::Ended, _) => {
                (Outcome::Not, "it ended, and no rank waits for it".into())
            }
            (ProcessStatus::Stopped(by), _) => {
                (Outcome::Not, format!("it {}, and no rank waits for it", how_stopped(by)))
            }
            (ProcessStatus::Running, _) if self.moving.contains(&at) => {
                (Outcome::Not, "ranks wait for it, and its counters still advance".into())
            }
            (ProcessStatus::Running, _) if self.possible.contains(&at) => {
                let why = "only calls that name no peer may wait for it";
                (Outcome::CannotTell, why.into())
            }
            (ProcessStatus::Running, _) if age.is_some_and(|age| age < self.hang_ns) => {
                (Outcome::Not, format!("not in it for {limit} yet (--hang-sec)"))
            }
            (ProcessStatus::Running, _) => (Outcome::Not, "no rank waits for it".into()),
        }
    }
}
