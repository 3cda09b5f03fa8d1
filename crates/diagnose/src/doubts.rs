// SPDX-License-Identifier: Apache-2.0
//! The doubts that findings inherit from the ranks that they cite, and from how the job ended.

use crate::job::{Job, Process, ProcessStatus};
use ncclscope_findings::{Doubt, Finding, FindingClass};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// Maximum number of doubts about ranks that a finding inherits.
const MAX_DOUBTS: usize = 4;

/// The job ranks of the processes for which `is_it`.
fn ranks_where(job: &Job, is_it: impl Fn(&Process) -> bool) -> BTreeSet<u32> {
    let all = job.processes.iter().zip(0u32..);
    all.filter(|(one, _)| is_it(one)).map(|(_, at)| job.rank(at)).collect()
}

/// The findings whose evidence may be wrong where a rank at fault may be in a send or receive whose
/// peer the input does not show: such a rank may itself wait for that peer, unless its process is
/// dead. What its calls, its proxy thread, its network or both ends of a path show holds all the
/// same. Beside a confirmed finding, to which the hidden waits may lead, one with such a doubt is
/// left out.
pub(crate) fn of_hidden_peers(findings: &mut Vec<Finding>, job: &Job) {
    let hidden = ranks_where(job, |one| one.hides_p2p && one.status == ProcessStatus::Running);
    let has_hidden = |finding: &Finding| {
        let is_hidden = finding.root_ranks.iter().any(|rank| hidden.contains(rank));
        is_hidden && !rests_on_itself(finding.class)
    };
    if findings.iter().any(|finding| !finding.is_suspect() && !has_hidden(finding)) {
        findings.retain(|finding| !has_hidden(finding));
    }
    // A kernel waits for that of an earlier send or receive, so that it is no cause beside another.
    let waits = |it: &Finding| it.class == FindingClass::KernelNotStarted && has_hidden(it);
    if findings.iter().any(|finding| !waits(finding)) {
        findings.retain(|finding| !waits(finding));
    }
    for finding in findings.iter_mut().filter(|it| !it.is_suspect() && has_hidden(it)) {
        finding.doubts.push(Doubt::PeerNotRecorded);
    }
}

const fn rests_on_itself(class: FindingClass) -> bool {
    use FindingClass::{
        CallMismatch, FlushStalled, NetworkStalled, ProxyStalled, ReceiverNotReady,
    };
    matches!(class, CallMismatch | ProxyStalled | NetworkStalled | ReceiverNotReady | FlushStalled)
}

/// Adds the doubt about ranks with missing events. Counters still show which calls each rank made,
/// but its progress in an operation, and which send matches which receive, is a guess.
pub(crate) fn of_lost_events(findings: &mut [Finding], job: &Job) {
    use FindingClass::{CallNotEnqueued, HostStuck, ProcessGone};
    let lacking = ranks_where(job, |one| one.lacks_events);
    if lacking.is_empty() {
        return;
    }
    // A communicator and the calls on it have one name.
    let mut by_comm: HashMap<&str, BTreeSet<u32>> = HashMap::new();
    for comm in &job.comms {
        let ranks = comm.vectors.iter().map(|vector| job.rank(vector.process));
        by_comm.entry(&comm.name).or_default().extend(ranks.filter(|rank| lacking.contains(rank)));
    }
    let is_by_counters =
        |finding: &Finding| matches!(finding.class, HostStuck | CallNotEnqueued | ProcessGone);
    for finding in findings.iter_mut().filter(|finding| !is_by_counters(finding)) {
        let comms = finding.comm_texts.iter().filter_map(|comm| by_comm.get(comm.as_str()));
        let roots = finding.root_ranks.iter().filter(|rank| lacking.contains(rank));
        let lacking: BTreeSet<u32> = comms.flatten().chain(roots).copied().collect();
        if !lacking.is_empty() {
            finding.doubts.push(Doubt::EventsLost(lacking.into_iter().collect()));
        }
    }
}

/// Adds the doubt about ranks that were killed after a short wait: after one rank has died, the
/// others wait, too, until the launcher kills them. Calls that differ (`by_calls`) and a process
/// that ended long before the others need no wait as evidence. If the records of one rank end
/// first, the waits that its death may explain also count as short.
pub(crate) fn of_kill(
    findings: &mut [Finding],
    job: &Job,
    by_calls: &HashSet<(FindingClass, Vec<u32>)>,
) {
    let Some(least) = job.killed_ns else { return };
    for finding in findings {
        let is_of_first = finding.root_ranks.iter().any(|rank| job.ended_first.contains(rank));
        let (least, first) = match is_of_first {
            false if !job.ended_first.is_empty() => {
                (least.max(job.ended_first_ns), job.ended_first.clone())
            }
            _ => (least, Vec::new()),
        };
        let is_by_calls = by_calls.contains(&(finding.class, finding.root_ranks.clone()));
        let is_gone = finding.class == FindingClass::ProcessGone;
        if !is_by_calls && !is_gone && finding.age_ns.is_none_or(|age| age < least) {
            finding.doubts.push(Doubt::KilledSoon(first, least));
        }
    }
}

/// Adds the doubts about the ranks that a finding cites: those at fault, the ends of its path, and
/// those of its evidence.
pub(crate) fn of_cited_ranks(finding: &mut Finding, doubts: &RankDoubts<'_>) {
    let evidence = finding.evidence.iter().flat_map(|line| [line.rank, line.peer]).flatten();
    let cited = finding.root_ranks.iter().copied();
    let cited: BTreeSet<u32> =
        cited.chain(finding.edge.into_iter().flatten()).chain(evidence).collect();
    // RAS has one doubt about all ranks.
    let mut why: Vec<&Doubt> = Vec::new();
    for doubt in cited.iter().filter_map(|rank| doubts.get(rank)).copied().flatten() {
        if !why.contains(&doubt) {
            why.push(doubt);
        }
    }
    let more = why.len().saturating_sub(MAX_DOUBTS);
    finding.doubts.retain(|doubt| !why.contains(&doubt) && !matches!(doubt, Doubt::MoreRanks(_)));
    finding.doubts.extend(why.into_iter().take(MAX_DOUBTS).cloned());
    finding.doubts.extend((more > 0).then_some(Doubt::MoreRanks(more)));
}

/// The doubts about each rank that has some.
pub(crate) type RankDoubts<'a> = BTreeMap<u32, &'a [Doubt]>;

/// The doubts about each of these processes that has some.
pub(crate) fn of_processes<'a>(job: &'a Job, processes: &[u32]) -> RankDoubts<'a> {
    let all = processes.iter().map(|&at| (job.rank(at), &job.processes[at as usize].doubts[..]));
    all.filter(|(_, doubts)| !doubts.is_empty()).collect()
}

/// The doubts about each rank that has some.
pub(crate) fn of_ranks(job: &Job) -> RankDoubts<'_> {
    let all: Vec<u32> = (0..).take(job.processes.len()).collect();
    of_processes(job, &all)
}
