// SPDX-License-Identifier: Apache-2.0
//! The stages of a diagnosis in order: mismatched calls, the wait graph, then the classes.

use crate::classify::Classifier;
use crate::diagnosis::{Diagnosis, Hidden, HiddenWhy, is_vague};
use crate::ending::CommandEnd;
use crate::job::{Job, NoEnd, Process, ProcessStatus};
use crate::rules::Rule;
use crate::standstill::{self, Standstill};
use crate::wait_graph::{self, SearchParams, Wait, WaitRoots};
use crate::waiting::{self, Waiting};
use crate::{desync, doubts, ended_first, help, python_lines, settings, setup, unseen, words};
use ncclscope_findings::{Doubt, Finding};
use ncclscope_limits::hangs;
use ncclscope_operations::human;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

/// How to diagnose a job.
#[derive(Clone, Debug)]
pub struct Options {
    /// An operation in flight for less than this is not stuck, unless the input was written because
    /// of a hang.
    pub hang: Duration,
    /// The rules that are not applied.
    pub without: BTreeSet<Rule>,
}

impl Default for Options {
    fn default() -> Options {
        Options::of(Duration::from_nanos(hangs::HANG_NS))
    }
}

impl Options {
    /// All rules, with this limit.
    #[must_use]
    pub fn of(hang: Duration) -> Options {
        Options { hang, without: BTreeSet::new() }
    }

    /// The age from which an operation of this job counts as stuck, ns.
    pub(crate) fn hang_ns(&self, job: &Job) -> u64 {
        let asked = u64::try_from(self.hang.as_nanos()).unwrap_or(u64::MAX);
        job.min_age_ns.map_or(asked, |least| least.min(asked))
    }

    /// The wait after which a rank counts as stuck although it goes on in other communicators, ns.
    /// A rank may do so for minutes, while others wait for its next weights: neither a low limit
    /// nor that the job was killed says anything of it.
    fn excused_ns(&self) -> u64 {
        let asked = u64::try_from(self.hang.as_nanos()).unwrap_or(u64::MAX);
        hangs::MOST_NS.max(asked)
    }
}

/// Finds out why the job hangs. A job that does not hang gets no verdict.
#[must_use]
pub fn diagnose(job: &Job, options: &Options) -> Diagnosis {
    search(job, options).0
}

/// Finds out why the job hangs, and which ranks wait for which.
#[must_use]
pub fn diagnose_in_detail(job: &Job, options: &Options) -> (Diagnosis, Vec<Waiting>) {
    let (diagnosis, roots) = search(job, options);
    let waiting = waiting::of(job, &roots.waits);
    (diagnosis, waiting)
}

/// The causes that the input shows; if it shows no waiting rank, the causes that are only probable.
pub(crate) fn search(job: &Job, options: &Options) -> (Diagnosis, WaitRoots) {
    let seen = search_once(job, options);
    if !seen.0.findings.is_empty() || seen.0.waiting_ranks != 0 {
        return seen;
    }
    let Some(job) = unseen::assumed(job, options.hang_ns(job)) else { return seen };
    let (mut diagnosis, roots) = search_once(&job, options);
    for finding in &mut diagnosis.findings {
        finding.doubts.push(Doubt::CallsMayBeOver);
    }
    if diagnosis.findings.is_empty() { seen } else { (diagnosis, roots) }
}

/// What the stages before the classes see.
struct Stages {
    desyncs: Vec<desync::Desync>,
    differs: Vec<settings::Differs>,
    wait_roots: WaitRoots,
}

/// Compares calls, follows waits and compares settings.
fn look(job: &Job, options: &Options, params: &mut SearchParams) -> Stages {
    let has = |rule| !options.without.contains(&rule);
    let mut desyncs = match has(Rule::CallMismatch) {
        true => desync::find(job, params.hang_ns),
        false => Vec::new(),
    };
    for desync in &desyncs {
        let comm = &job.comms[desync.comm as usize];
        let processes = desync.accused.iter().map(|&at| comm.vectors[at as usize].process);
        params.accused.extend(processes.map(|process| (desync.comm, process)));
    }
    let wait_roots = match has(Rule::WaitGraph) {
        true => wait_graph::find(job, params),
        false => WaitRoots::default(),
    };
    if has(Rule::CallMismatch) && wait_roots.waits.is_empty() && desyncs.is_empty() {
        desyncs.extend(desync::find_ended(job));
    }
    let desynced = desyncs.iter().map(|desync| desync.comm).collect();
    let differs = match has(Rule::SettingsMismatch) {
        true => settings::find(job, params.hang_ns, &desynced),
        false => Vec::new(),
    };
    Stages { desyncs, differs, wait_roots }
}

/// The verdicts, and the processes that wait.
fn verdicts(job: &Job, options: &Options, stages: &Stages) -> (Vec<Finding>, HashSet<u32>) {
    let Stages { desyncs, differs, wait_roots } = stages;
    let hang_ns = options.hang_ns(job);
    let mut findings = Classifier::new((job, hang_ns), wait_roots).verdicts(desyncs, differs);
    // The findings about calls and settings come first.
    let of_calls = findings.iter().take(desyncs.len() + differs.len());
    let by_calls: HashSet<_> = of_calls.map(|one| (one.class, one.root_ranks.clone())).collect();
    doubts::of_hidden_peers(&mut findings, job);
    doubts::of_lost_events(&mut findings, job);
    // A vague verdict counts only if there is no other.
    if !findings.iter().all(is_vague) {
        findings.retain(|finding| !is_vague(finding));
    }
    // After that, because it makes findings vague that are as likely as the others.
    doubts::of_kill(&mut findings, job, &by_calls);
    let of_ranks = doubts::of_ranks(job);
    findings.iter_mut().for_each(|finding| doubts::of_cited_ranks(finding, &of_ranks));
    let mut waiting: HashSet<u32> = wait_roots.waits.iter().map(|wait| wait.process).collect();
    if !options.without.contains(&Rule::CommunicatorSetup) {
        findings.extend(setup::find(job, hang_ns, &findings, &mut waiting));
    }
    if !options.without.contains(&Rule::FirstEnd)
        && let Some(first) = ended_first::verdict(job, &findings, &waiting)
    {
        findings = vec![first];
    }
    findings.sort_by_key(|v| (v.is_suspect(), v.class, v.root_ranks.first().copied()));
    (findings, waiting)
}

fn search_once(job: &Job, options: &Options) -> (Diagnosis, WaitRoots) {
    let (hang_ns, excused_ns) = (options.hang_ns(job), options.excused_ns());
    let mut params = SearchParams { hang_ns, excused_ns, ..SearchParams::default() };
    let stages = look(job, options, &mut params);
    let (mut findings, mut waiting) = verdicts(job, options, &stages);
    let wait_roots = stages.wait_roots;
    let mut notes = job.notes.clone();
    let off = options.without.iter().map(|rule| format!("{} is switched off", rule.about().name));
    notes.extend(off);
    notes.extend(moving(job, &wait_roots));
    let is_quiet = findings.is_empty() && waiting.is_empty();
    let hidden = is_quiet.then(|| hidden(job, params.hang_ns)).flatten();
    let is_seen = |_: &Standstill| hidden.is_none() && endless(job).is_empty();
    let standstill = standstill::find(job, params.hang_ns).filter(is_seen);
    if let Some(hidden) = &hidden {
        notes.push(hidden.text.clone());
    } else if is_quiet {
        let short = short_waits(job, &params);
        notes.push(short.as_ref().map_or_else(|| quiet(job, standstill), |(_, note)| note.clone()));
        waiting.extend(short.into_iter().flat_map(|(processes, _)| processes));
    }
    notes.extend(unexplained(&findings, &waiting, job));
    notes.extend(failed(job, findings.is_empty()));
    python_lines::add(job, &waiting, &mut findings);
    help::add(job, waiting.len(), &mut findings);
    let has_input = |one: &&Process| one.status != ProcessStatus::Silent;
    let ranks = job.processes.iter().filter(has_input).count();
    let diagnosis = Diagnosis {
        schema: "ncclscope.diagnosis/2",
        source: job.source.clone(),
        ranks,
        job_ranks: usize::try_from(help::gpus(job)).unwrap_or(usize::MAX).max(ranks),
        findings,
        silent_ranks: silent_ranks(job),
        waiting_ranks: waiting.len(),
        notes,
        hidden,
        standstill,
        ending: job.ending.clone(),
    };
    (diagnosis, wait_roots)
}

/// The ranks without input, as far as they are known, ascending.
fn silent_ranks(job: &Job) -> Vec<u32> {
    let all = job.processes.iter().zip(0u32..);
    let silent = all.filter(|(process, _)| process.status == ProcessStatus::Silent);
    let mut silent: Vec<u32> = silent.filter_map(|(_, at)| job.known_rank(at)).collect();
    silent.sort_unstable();
    silent
}

/// A note that the command that started the job ended with an error.
fn failed(job: &Job, is_unexplained: bool) -> Option<String> {
    let command = job.ending.as_ref()?.command.filter(CommandEnd::has_failed)?;
    let unknown = "; no recording shows which rank ended first: look for the first error in the \
                   launcher's log";
    Some(command.text() + if is_unexplained { unknown } else { "" })
}

/// A note about ranks that others wait for, and that go on. Those that ended first do not.
fn moving(job: &Job, wait_roots: &WaitRoots) -> Option<String> {
    let first = job.ending.as_ref().and_then(|ending| ending.first.as_ref());
    let has_ended = |rank: &u32| first.is_some_and(|first| first.ranks.contains(rank));
    let moving = wait_roots.moving.iter().map(|&p| job.rank(p));
    let mut moving: Vec<u32> = moving.filter(|rank| !has_ended(rank)).collect();
    moving.sort_unstable();
    (!moving.is_empty()).then(|| {
        format!(
            "other ranks wait for {}, whose counters still advance: slow, not stuck",
            words::named_ranks(&moving)
        )
    })
}

/// A note about ranks that wait but are neither victims nor roots of the only verdict.
fn unexplained(findings: &[Finding], waiting: &HashSet<u32>, job: &Job) -> Option<String> {
    let [finding] = findings else { return None };
    let is_root = |&&process: &&u32| finding.root_ranks.contains(&job.rank(process));
    let explained = finding.victims + waiting.iter().filter(is_root).count();
    let more = waiting.len().checked_sub(explained).filter(|&more| more > 0)?;
    Some(format!(
        "{} {}, and the input does not show that it is because of this",
        human::count(more, "more rank"),
        human::if_one(more, "waits", "wait")
    ))
}

/// The processes that wait for less than the limit, and a note about them.
fn short_waits(job: &Job, params: &SearchParams) -> Option<(Vec<u32>, String)> {
    let lower = SearchParams {
        hang_ns: hangs::SHORTEST_NS,
        excused_ns: u64::MAX,
        ..SearchParams::default()
    };
    let mut found = wait_graph::find(job, &lower);
    // In a running job a recording ends in some wait.
    let is_usual = |wait: &Wait| standstill::is_usual(&job.processes[wait.process as usize]);
    if job.killed_ns.is_none() {
        found.waits.retain(|wait| !is_usual(wait));
    }
    let age = |wait: &Wait| job.comms[wait.comm as usize].vectors[wait.member as usize].age_ns;
    let oldest = found.waits.iter().filter_map(age).max()?;
    let mut waiting: Vec<u32> = found.waits.iter().map(|wait| wait.process).collect();
    waiting.sort_unstable();
    waiting.dedup();
    let mut causes: Vec<u32> =
        found.late.iter().chain(&found.moving).map(|&process| job.rank(process)).collect();
    causes.sort_unstable();
    let for_whom = match causes.as_slice() {
        [] => String::new(),
        causes => format!(" for {}", words::named_ranks(causes)),
    };
    let waits = format!(
        "{} {}{for_whom}, the longest for {}",
        human::count(waiting.len(), "rank"),
        human::if_one(waiting.len(), "waits", "wait"),
        words::duration(oldest)
    );
    // With a lower limit, the ranks that waited for the killed one would look like the cause.
    let note = match job.killed_ns {
        Some(_) => format!(
            "{waits}: too short to show the cause, because a rank that was killed within the last \
             second before the other ranks cannot be distinguished from them; look for the first \
             exit in the launcher's log"
        ),
        None => {
            let limit = words::duration(params.hang_ns);
            format!("{waits}: below the limit of {limit} (--hang-sec)")
        }
    };
    Some((waiting, note))
}

/// Why ranks may wait although no recorded operation shows it: recording has been off for longer
/// than the limit; or only a sample is recorded, or the last operation shows no end, and for so
/// long no rank, or not that rank, has called NCCL.
fn hidden(job: &Job, hang_ns: u64) -> Option<Hidden> {
    let runs =
        |one: &&Process| matches!(one.status, ProcessStatus::Running | ProcessStatus::Stopped(_));
    let running: Vec<&Process> = job.processes.iter().filter(runs).collect();
    let off = running.iter().filter_map(|one| one.off_ns.filter(|&ns| ns >= hang_ns));
    let off: Vec<u64> = off.collect();
    if let Some(&ns) = off.iter().max() {
        let of = human::count(running.len(), "rank");
        return Some(Hidden {
            why: HiddenWhy::Off,
            text: format!(
                "recording has been off on {} of {of} for up to {}: whether ranks wait in what \
                 they called since then is not seen",
                off.len(),
                words::duration(ns)
            ),
            ns,
        });
    }
    let idle: Option<Vec<u64>> = running.iter().map(|one| one.idle_ns).collect();
    let least = idle.and_then(|idle| idle.into_iter().min()).filter(|&ns| ns >= hang_ns);
    let is_sampled = running.iter().any(|one| one.is_sampled);
    if let Some(ns) = least.filter(|_| is_sampled) {
        return Some(Hidden {
            why: HiddenWhy::Sampled,
            text: format!(
                "only a sample of the operations is recorded, and no rank has called NCCL for {}: \
                 whether ranks wait in an operation outside of the sample is not seen",
                words::duration(ns)
            ),
            ns,
        });
    }
    without_end(job, hang_ns)
}

/// The processes whose last operation shows no end, and why it does not.
fn endless(job: &Job) -> BTreeMap<u32, NoEnd> {
    let mut found = BTreeMap::new();
    for vector in job.comms.iter().flat_map(|comm| &comm.vectors) {
        let process = &job.processes[vector.process as usize];
        let may_wait = !matches!(process.status, ProcessStatus::Ended | ProcessStatus::Silent);
        if may_wait && vector.shows_no_end() {
            let why = match process.no_end {
                _ if vector.is_captured => NoEnd::Captured,
                NoEnd::OldNccl => NoEnd::OldNccl,
                _ if vector.started.is_some() => NoEnd::EarlyStop,
                why => why,
            };
            found.insert(vector.process, why);
        }
    }
    found
}

fn without_end(job: &Job, hang_ns: u64) -> Option<Hidden> {
    let idle = |process: u32| job.processes[process as usize].idle_ns.filter(|&ns| ns >= hang_ns);
    let found: Vec<(u64, NoEnd)> =
        endless(job).into_iter().filter_map(|(process, why)| Some((idle(process)?, why))).collect();
    let ns = found.iter().map(|&(ns, _)| ns).min()?;
    let why = found.iter().map(|&(_, why)| why).min()?;
    let text = format!(
        "NOT VISIBLE: {}; the last operation of {} of {} shows no end, and {} called nothing for \
         {}",
        why.text(),
        found.len(),
        human::count(job.processes.len(), "rank"),
        human::if_one(found.len(), "it has", "they have"),
        words::duration(ns)
    );
    Some(Hidden { why: HiddenWhy::NoEnd(why), text, ns })
}

/// The note for a job in which no rank waits in NCCL.
fn quiet(job: &Job, standstill: Option<Standstill>) -> String {
    let endless = endless(job);
    if let Some(why) = endless.values().min() {
        let many = human::count(endless.len(), "rank");
        return format!(
            "no rank is seen to wait in NCCL; the last operation of {many} shows no end, because \
             {}",
            why.text()
        );
    }
    match standstill {
        Some(Standstill { still_ns, .. }) => format!(
            "OUTSIDE_NCCL: no rank is in an NCCL operation, and none has called NCCL for {}: each \
             is outside NCCL, or creates, splits, aborts or destroys a communicator, which NCCL \
             does not report",
            words::duration(still_ns)
        ),
        None if job.processes.is_empty() => {
            "the input names no ranks, and no operations: whether ranks wait is not visible".into()
        }
        None if job.processes.iter().any(|process| process.hides_calls) => {
            "no rank waits in an NCCL operation that is enqueued; NCCL before 2.28 does not report \
             the calls in which it connects ranks, so a rank that waits there is not seen"
                .into()
        }
        None => "no rank waits in an NCCL operation".into(),
    }
}
