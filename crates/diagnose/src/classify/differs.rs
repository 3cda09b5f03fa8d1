// SPDX-License-Identifier: Apache-2.0
//! The verdict about ranks that run an operation otherwise than the others (H2c), and what makes
//! NCCL do so there.

use super::Classifier;
use crate::settings::{self, Differs};
use crate::words;
use ncclscope_findings::{Evidence, Finding, FindingClass};
use ncclscope_operations::human;
use std::collections::BTreeSet;

/// Maximum number of transfers and of variables that are named.
const NAMED: usize = 4;

/// Evidence if the processes differ in nothing that is recorded.
const NO_REASON: &str = "no recorded variable of NCCL, no NCCL version and no driver's version \
    differs between them: compare nccl.conf, tuner plugins, CPUs and GPUs";

const CLASS: FindingClass = FindingClass::SettingsMismatch;

impl Classifier<'_> {
    pub(super) fn differs_verdict(&self, differs: &Differs) -> Finding {
        let comm = self.comm(differs.comm);
        let process = |&at: &u32| comm.vectors[at as usize].process;
        let of = |members: &[u32]| members.iter().map(process).collect::<Vec<u32>>();
        let odd = of(&differs.odd);
        let mut evidence = Vec::new();
        for (members, how) in differs.groups.iter().filter(|_| differs.transfers.is_empty()) {
            let run = human::if_one(members.len(), "runs", "run");
            let ranks = self.ranks(&of(members));
            let text = format!("{ranks} {run} operation {} as {how}", differs.number);
            evidence.push(self.line(members.first().map(process), text));
        }
        for (from, to, steps) in differs.transfers.iter().take(NAMED) {
            let [from, to] = [from, to].map(process);
            let [sender, receiver] = [from, to].map(|one| words::rank(self.job, one));
            let mut line = self.line(Some(to), format!("{sender} to {receiver}, {steps}"));
            line.peer = Some(self.job.rank(from));
            evidence.push(line);
        }
        let why = self.why_differs(differs, &odd);
        match why.first() {
            Some(_) => evidence.extend(why.iter().map(|text| self.line(None, text.clone()))),
            None => evidence.push(self.line(None, NO_REASON.to_owned())),
        }
        for &process in &odd {
            let threads = &self.job.processes[process as usize].threads;
            let mut proxies = threads.iter().filter(|it| it.role.is_proxy()).peekable();
            if proxies.peek().is_some() && proxies.all(|it| it.thread.is_gone()) {
                let who = words::rank(self.job, process);
                let text = format!("{who}: NCCL's proxy thread has ended, as after an error");
                evidence.push(self.line(Some(process), text));
            }
        }
        let inside = if differs.is_stuck { &[differs.comm][..] } else { &[] };
        let victims = self.wait_roots.victims(&odd, inside);
        let mut finding = self.finding(CLASS, &odd, evidence, victims);
        // Which variable it is, is what a reader needs first.
        finding.detail = why.first().cloned();
        self.locate(&mut finding, comm);
        let first = differs.odd.first().copied().unwrap_or(0);
        let call = self.call(comm, first, differs.number).cloned().unwrap_or_default();
        let number = if comm.is_pair() { None } else { Some(differs.number) };
        finding.op = Some(crate::diagnosis::op(number, call));
        let waits = comm.vectors.iter().filter(|v| v.is_inside() && v.front() == differs.number);
        finding.age_ns = waits.filter_map(|vector| self.age_ns(vector)).max();
        finding
    }

    /// What makes NCCL differ: what the smaller groups have and no other rank has, as sentences.
    fn why_differs(&self, differs: &Differs, odd: &[u32]) -> Vec<String> {
        let process = |&at: &u32| self.comm(differs.comm).vectors[at as usize].process;
        let is_odd = |(members, _): &&(Vec<u32>, String)| {
            members.iter().any(|member| differs.odd.contains(member))
        };
        let processes =
            |(members, _): &(Vec<u32>, String)| members.iter().map(process).collect::<Vec<u32>>();
        // Where no group is larger, the first one is compared with the others.
        let (here, there): (Vec<u32>, Vec<u32>) = match differs.groups.split_first() {
            Some((first, others)) if others.iter().all(|group| is_odd(&group)) => {
                (processes(first), others.iter().flat_map(processes).collect())
            }
            _ => {
                let right = differs.groups.iter().filter(|group| !is_odd(group));
                (odd.to_vec(), right.flat_map(processes).collect())
            }
        };
        let values = |values: &BTreeSet<Option<&str>>| {
            let texts = values.iter().map(|value| value.unwrap_or("not set"));
            texts.collect::<Vec<_>>().join(" or ")
        };
        let line = |(key, [own, other]): &(&str, [BTreeSet<Option<&str>>; 2])| {
            let key = settings::name(key);
            let (here, there) = (self.ranks(&here), self.ranks(&there));
            format!("{key}: {} on {here}, {} on {there}", values(own), values(other))
        };
        settings::environment(self.job, &here, &there).iter().take(NAMED).map(line).collect()
    }

    /// Text such as `ranks 1, 2`.
    pub(super) fn ranks(&self, processes: &[u32]) -> String {
        words::named_ranks(&self.job_ranks(processes))
    }

    fn line(&self, process: Option<u32>, text: String) -> Evidence {
        match process {
            Some(process) => Evidence::of(CLASS, self.job.rank(process), text),
            None => Evidence::about(CLASS, text),
        }
    }
}
