// SPDX-License-Identifier: Apache-2.0
//! Which findings a filter shows. All ranks are judged whatever the filter is, because a rank waits
//! because of others.

use crate::diagnosis::Diagnosis;
use crate::job::Job;
use ncclscope_findings::Finding;
use ncclscope_operations::Filter;
use ncclscope_operations::timeline::role_or_size;
use std::collections::BTreeMap;

/// How many findings a filter shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    /// Verdicts that are shown.
    pub shown: usize,
    /// Number of findings, shown or not.
    pub of: usize,
}

impl Diagnosis {
    /// Removes the findings that do not concern the filter's ranks, hosts, communicators and
    /// functions.
    pub fn show(&mut self, filter: &Filter, job: &Job) -> Shown {
        let hosts: BTreeMap<u32, &str> = job
            .processes
            .iter()
            .filter_map(|process| Some((process.rank?, process.host.as_deref()?)))
            .collect();
        let of = self.findings.len();
        self.findings.retain(|finding| {
            let ranks = finding.root_ranks.iter().chain(finding.edge.iter().flatten());
            let has_rank = |&rank: &u32| {
                let host = hosts.get(&rank).copied().unwrap_or_default();
                filter.has_rank(rank) && filter.has_host(host)
            };
            let is_of_rank = !filter.chooses_recordings() || ranks.into_iter().any(has_rank);
            is_of_rank && has_comm(finding, filter, job) && has_func(finding, filter)
        });
        Shown { shown: self.findings.len(), of }
    }
}

/// True if the finding concerns a communicator of the filter. A finding without a communicator
/// concerns all.
fn has_comm(finding: &Finding, filter: &Filter, job: &Job) -> bool {
    if filter.comms.is_empty() && filter.roles.is_empty() {
        return true;
    }
    let Some(of) = &finding.comm else { return true };
    job.comms.iter().filter(|comm| comm.parent.is_none()).any(|comm| {
        let ranks = Some(comm.nranks).filter(|&ranks| ranks != 0);
        let role = role_or_size(comm.role.as_deref(), ranks);
        of.comm == comm.name && filter.has_named_comm(&comm.name, &role)
    })
}

fn has_func(finding: &Finding, filter: &Filter) -> bool {
    let func = finding.op.as_ref().map(|op| op.func.as_str()).filter(|func| !func.is_empty());
    func.is_none_or(|func| filter.has_func(func))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{Communicator, Process};
    use ncclscope_findings::{CommId, FindingClass, Op};

    fn finding(root_ranks: Vec<u32>, comm: &str, func: &str) -> Finding {
        let class = FindingClass::HostStuck;
        Finding {
            comm: (!comm.is_empty()).then(|| CommId { comm: comm.into(), ..CommId::default() }),
            op: Some(Op { func: func.into(), ..Op::default() }),
            victims: 1,
            ..Finding::new(class, root_ranks)
        }
    }

    #[test]
    fn findings_are_shown_by_rank_host_communicator_and_function() {
        let process = |rank, host: &str| Process {
            rank: Some(rank),
            host: Some(host.into()),
            ..Process::default()
        };
        let comm = |name: &str, role: &str| Communicator {
            name: name.into(),
            role: Some(role.into()),
            ..Communicator::default()
        };
        let job = Job {
            processes: vec![process(0, "a"), process(1, "b")],
            comms: vec![comm("0x1f", "tp"), comm("0x2e", "dp")],
            ..Job::default()
        };
        let found = Diagnosis {
            schema: "",
            source: String::new(),
            ranks: 2,
            job_ranks: 2,
            findings: vec![finding(vec![0], "0x1f", "AllReduce"), finding(vec![1], "", "")],
            silent_ranks: Vec::new(),
            waiting_ranks: 1,
            notes: Vec::new(),
            hidden: None,
            standstill: None,
            ending: None,
        };
        let shown = |filter: Filter| {
            let mut diagnosis = found.clone();
            assert_eq!(diagnosis.show(&filter, &job).of, 2);
            diagnosis.findings.iter().map(|one| one.root_ranks[0]).collect::<Vec<_>>()
        };
        let none = Filter::default;
        assert_eq!(shown(none()), [0, 1]);
        assert_eq!(shown(Filter { ranks: vec![1..=9], ..none() }), [1]);
        assert_eq!(shown(Filter { hosts: vec!["a".into()], ..none() }), [0]);
        assert_eq!(shown(Filter { roles: vec!["dp".into()], ..none() }), [1]);
        assert_eq!(shown(Filter { comms: vec!["1f".into()], ..none() }), [0, 1]);
        assert_eq!(shown(Filter { funcs: vec!["Send".into()], ..none() }), [1]);
    }
}
