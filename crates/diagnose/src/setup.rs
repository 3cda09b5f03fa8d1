// SPDX-License-Identifier: Apache-2.0
/*!
Communicators that are being created or ended: processes that stand in such a function of NCCL.

NCCL reports no event for these functions, so that the wait graph does not have them. If ranks wait
in an operation for such a process, [`crate::classify`] gives it the class H1e. This module finds
the others: processes in such a function while no operation waits for them. If a member of the
communicator is gone, that one is at fault.
*/

use crate::gone;
use crate::job::{CommKind, Communicator, Job, Process, ProcessStatus};
use crate::settings;
use crate::words;
use ncclscope_findings::{Doubt, Evidence, Finding, FindingClass, How};
use ncclscope_operations::human;
use ncclscope_operations::stats::to_f64;
use std::collections::{BTreeSet, HashSet};

/// Maximum number of evidence lines.
const MAX_EVIDENCE: usize = 16;
/// Maximum number of variables that are named.
const NAMED: usize = 4;

/// Processes in such a function, and what they wait for.
struct Waits<'a> {
    job: &'a Job,
    /// The processes, and for how long the call has stood at least.
    inside: Vec<(u32, u64)>,
    /// Running processes that are outside, and have called nothing for as long.
    outside: Vec<u32>,
    /// The members of the communicator that they create; empty if it is not known.
    members: Vec<u32>,
}

/// The verdict about processes that have stood in such a function for the limit, if `waiting` ones
/// and `findings` do not name them. Adds them to the waiting ones.
pub(crate) fn find(
    job: &Job,
    hang_ns: u64,
    findings: &[Finding],
    waiting: &mut HashSet<u32>,
) -> Option<Finding> {
    let runs = |one: &Process| one.status == ProcessStatus::Running;
    let all = || job.processes.iter().zip(0u32..).filter(|(one, _)| runs(one));
    let still = |one: &Process| one.idle_ns.filter(|&idle| idle >= hang_ns);
    let age = |one: &Process| one.setup.as_ref().map(|setup| setup.age_ns);
    let inside = all().filter_map(|(one, at)| Some((at, age(one)?)));
    let inside: Vec<(u32, u64)> = inside.filter(|&(_, age)| age >= hang_ns).collect();
    let is_named = |&(process, _): &(u32, u64)| {
        let rank = job.rank(process);
        let of_class = |it: &&Finding| it.class == FindingClass::CommSetup;
        findings.iter().filter(of_class).any(|it| it.root_ranks.contains(&rank))
    };
    if inside.is_empty() || inside.iter().all(is_named) {
        return None;
    }
    let is_outside = |one: &Process, at: u32| {
        one.setup.is_none() && still(one).is_some() && !waiting.contains(&at)
    };
    let outside = all().filter(|&(one, at)| is_outside(one, at)).map(|(_, at)| at).collect();
    waiting.extend(inside.iter().map(|(process, _)| process));
    let members = members(job, &inside);
    Some(Waits { job, inside, outside, members }.finding())
}

/// The members of the communicator that these processes create: NCCL tells of it before all members
/// have connected. No member has called an operation of it.
fn members(job: &Job, inside: &[(u32, u64)]) -> Vec<u32> {
    let is_new = |comm: &&Communicator| {
        let mut vectors = comm.vectors.iter();
        let has = |process: u32| comm.vectors.iter().any(|vector| vector.process == process);
        comm.kind == CommKind::Collectives
            && vectors.all(|vector| vector.api == 0 && vector.enqueued == 0 && !vector.has_left)
            && inside.iter().all(|&(process, _)| has(process))
    };
    let new = job.comms.iter().rfind(is_new);
    new.into_iter().flat_map(|comm| &comm.vectors).map(|vector| vector.process).collect()
}

impl Waits<'_> {
    fn process(&self, at: u32) -> &Process {
        &self.job.processes[at as usize]
    }

    fn finding(&self) -> Finding {
        let inside: Vec<u32> = self.inside.iter().map(|(process, _)| *process).collect();
        let gone = self.gone();
        // A process that takes no part may not be a member, nor one that is gone.
        let (roots, is_certain) = match (gone.as_slice(), self.outside.as_slice()) {
            ([_, ..], _) => (&gone, !self.members.is_empty()),
            ([], []) => (&inside, true),
            _ => (&self.outside, false),
        };
        let mut ranks: Vec<u32> = roots.iter().map(|&process| self.job.rank(process)).collect();
        ranks.sort_unstable();
        let functions = self.functions();
        let stand = human::if_one(inside.len(), "stands", "stand");
        let stand = format!("{} {stand} in {functions}", human::count(inside.len(), "rank"));
        let status = gone::common_status(self.job, &gone);
        let (class, how, detail) = match (gone.as_slice(), self.outside.as_slice()) {
            ([_, ..], _) => {
                let how = status.map(|status| gone::how(self.job, status)).unwrap_or_default();
                (FindingClass::ProcessGone, how, Some(stand))
            }
            ([], []) => (FindingClass::CommSetup, How::Inside(functions), None),
            _ => (FindingClass::CommSetup, How::TakesNoPart, Some(stand)),
        };
        let advice = status.and_then(|status| gone::advice(self.job, status));
        Finding {
            how,
            detail,
            advice: advice.unwrap_or_else(|| class.advice()),
            age_ns: self.inside.iter().map(|(_, age)| *age).max(),
            victims: if *roots == inside { 0 } else { inside.len() },
            evidence: self.evidence(class),
            doubts: if is_certain { Vec::new() } else { vec![Doubt::NotMembers] },
            ..Finding::new(class, ranks)
        }
    }

    /// The members of the communicator that are gone. Before NCCL has told of the communicator, its
    /// members are not known: then all processes that are gone.
    fn gone(&self) -> Vec<u32> {
        use ProcessStatus::{Dead, Ended, Stopped};
        let is_gone = |at: &u32| matches!(self.process(*at).status, Dead | Ended | Stopped(_));
        if self.members.is_empty() {
            return (0..).take(self.job.processes.len()).filter(is_gone).collect();
        }
        self.members.iter().copied().filter(is_gone).collect()
    }

    /// The functions, each once.
    fn functions(&self) -> String {
        let setups = self.inside.iter().filter_map(|(at, _)| self.process(*at).setup.as_ref());
        let all: BTreeSet<&str> = setups.map(|setup| setup.function.as_str()).collect();
        all.into_iter().collect::<Vec<_>>().join(" or ")
    }

    fn evidence(&self, class: FindingClass) -> Vec<Evidence> {
        let line = |&(at, age): &(u32, u64)| {
            let line = Evidence::of(class, self.job.rank(at), text(self.job, at));
            line.with([("age_ns", to_f64(age))])
        };
        let mut lines: Vec<Evidence> = self.inside.iter().take(MAX_EVIDENCE).map(line).collect();
        let more = self.inside.len().saturating_sub(MAX_EVIDENCE);
        if more > 0 {
            let text = format!("and {} of this kind", human::count(more, "more line"));
            lines.push(Evidence::about(class, text));
        }
        let differ = settings::differences(self.job, &self.members).into_iter().take(NAMED);
        lines.extend(differ.map(|text| Evidence::about(class, text)));
        lines
    }
}

/// Where a process stands, to whom it connects without an answer, and where it waits for others.
pub(crate) fn text(job: &Job, at: u32) -> String {
    let one = &job.processes[at as usize];
    let setup = one.setup.clone().unwrap_or_default();
    let (who, age) = (words::rank(job, at), words::duration(setup.age_ns));
    let mut text = format!("{who}: in {} for {age}", setup.function);
    if !setup.connects.is_empty() {
        text += &format!(", connects to {} without an answer", setup.connects);
    }
    if !setup.listens.is_empty() {
        text += &format!(", waits for others at {}", setup.listens);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Options, diagnose};
    use crate::job::{SetupCall, Vector};
    use ncclscope_findings::Confidence;
    use std::sync::Arc;
    use std::time::Duration;

    const S: u64 = 1_000_000_000;

    /// The ranks' functions, and for how long they have been there or outside.
    fn job(ranks: &[(Option<&str>, u64)]) -> Job {
        let process = |(&(function, idle), rank): (&(Option<&str>, u64), u32)| Process {
            rank: Some(rank),
            idle_ns: Some(idle * S),
            still_ns: Some(idle * S),
            setup: function.map(|function| SetupCall {
                age_ns: idle * S,
                function: function.into(),
                connects: "10.0.0.3:99".into(),
                listens: String::new(),
            }),
            ..Process::default()
        };
        Job { processes: ranks.iter().zip(0..).map(process).collect(), ..Job::default() }
    }

    fn found(job: &Job) -> crate::Diagnosis {
        diagnose(job, &Options::of(Duration::from_secs(30)))
    }

    #[test]
    fn ranks_that_create_a_communicator_wait_for_one_another() {
        let init = Some("ncclCommInitRank");
        let all = found(&job(&[(init, 40), (init, 41)]));
        let [verdict] = &all.findings[..] else { panic!("{all:#?}") };
        assert_eq!(verdict.title(), "ranks 0-1 are in ncclCommInitRank, which does not return");
        assert_eq!(
            (verdict.class, verdict.confidence()),
            (FindingClass::CommSetup, Confidence::Confirmed)
        );
        assert_eq!((verdict.age_ns, all.waiting_ranks), (Some(41 * S), 2));
        let line = &verdict.evidence[0].text;
        assert!(line.ends_with("for 40.0 s, connects to 10.0.0.3:99 without an answer"), "{line}");
        assert!(found(&job(&[(init, 20), (init, 21)])).findings.is_empty(), "below the limit");
        // They computed for long, and then ended the communicator.
        let mut late = job(&[(Some("ncclCommDestroy"), 400), (Some("ncclCommDestroy"), 400)]);
        late.processes[0].setup.as_mut().unwrap().age_ns = 2 * S;
        late.processes[1].setup.as_mut().unwrap().age_ns = 0;
        assert!(found(&late).findings.is_empty(), "the pause before is no part of the call");
    }

    #[test]
    fn a_rank_that_takes_no_part_is_the_likely_cause() {
        let split = Some("ncclCommSplit");
        let all = found(&job(&[(split, 40), (None, 40), (split, 40)]));
        let [verdict] = &all.findings[..] else { panic!("{all:#?}") };
        assert_eq!(verdict.title(), "rank 1 takes no part; 2 ranks stand in ncclCommSplit");
        assert_eq!(
            (&verdict.root_ranks[..], verdict.confidence()),
            (&[1][..], Confidence::Suspect)
        );
        assert_eq!((verdict.victims, all.waiting_ranks), (2, 2));
        let works = found(&job(&[(split, 40), (None, 1), (split, 40)]));
        assert_eq!(works.findings[0].root_ranks, [0, 2], "it goes on: it is no member");
    }

    /// Rank 1 of three exited in an error while the others create the communicator. Rank 2 has
    /// another variable.
    #[test]
    fn a_member_that_exited_is_at_fault_and_what_differs_is_said() {
        let init = Some("ncclCommInitRankConfig");
        let mut job = job(&[(init, 40), (None, 41), (init, 40)]);
        job.processes[1].status = ProcessStatus::Ended;
        let own = [("NCCL_MAX_NCHANNELS".to_owned(), "1".to_owned())];
        job.processes[2].environment = Arc::new(own.into());
        let vector = |process| Vector { process, rank: process, ..Vector::default() };
        let vectors = (0..3).map(vector).collect();
        job.comms = vec![Communicator { nranks: 3, vectors, ..Communicator::default() }];
        let all = found(&job);
        let [verdict] = &all.findings[..] else { panic!("{all:#?}") };
        let gone = "rank 1 exited; 2 ranks stand in ncclCommInitRankConfig";
        assert_eq!(verdict.title(), gone);
        assert_eq!((verdict.class, &verdict.root_ranks[..]), (FindingClass::ProcessGone, &[1][..]));
        assert!(verdict.advice.contains("traceback"), "{}", verdict.advice);
        let differs = "NCCL_MAX_NCHANNELS: not set on ranks 0-1, 1 on rank 2";
        assert_eq!(verdict.evidence.last().unwrap().text, differs);
        assert!(all.findings[0].doubts.is_empty(), "{all:#?}");
        // A communicator that was used is not the one that they create. Its members are not known.
        job.comms[0].vectors[0].api = 1;
        let found = &found(&job).findings[0];
        assert_eq!((found.class, &found.root_ranks[..]), (FindingClass::ProcessGone, &[1][..]));
        assert_eq!((found.confidence(), found.doubts.len()), (Confidence::Suspect, 1));
    }
}
