// SPDX-License-Identifier: Apache-2.0
//! The rules by name: what each compares, and what it needs.

use ncclscope_findings::{AboutRule, FindingClass as Class};
use ncclscope_statistics::Limits;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;

/// What looks for one kind of slowness.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Rule {
    /// Ranks, stages and data-parallel ranks that work longer than their peers, or than before.
    SlowRank,
    /// Links and interfaces that are slower than comparable ones.
    SlowLink,
    /// Transfers that became slower.
    SlowedTransfers,
    /// Communicators within a host that are slower than comparable ones.
    SlowNodePath,
    /// Collectives that NCCL runs otherwise than at first.
    ChangedAlgorithm,
    /// GPUs that hold collectives up.
    SlowGpu,
    /// Processes that the system gives too little processor time.
    ShortOfCpu,
}

impl Rule {
    /// All rules, in the order in which they are applied.
    pub const ALL: [Rule; 7] = [
        Rule::SlowRank,
        Rule::SlowLink,
        Rule::SlowedTransfers,
        Rule::SlowNodePath,
        Rule::ChangedAlgorithm,
        Rule::SlowGpu,
        Rule::ShortOfCpu,
    ];

    /// What the rule does.
    #[must_use]
    pub const fn about(self) -> AboutRule {
        let (name, classes, compares, needs): (_, &[Class], _, _) = match self {
            Rule::SlowRank => (
                "slow-rank",
                &[Class::SlowRank, Class::SlowLaunch],
                "the own work of a rank, stage or data-parallel rank with that of its peers, and \
                 with its own before",
                "4 steps, and kernel times of all members of its operations",
            ),
            Rule::SlowLink => (
                "slow-link",
                &[Class::SlowLink, Class::SlowNic],
                "the time on the wire per byte of a link with that of links like it",
                "network transfers (ProxyStep) of several links that are alike",
            ),
            Rule::SlowedTransfers => (
                "slowed-transfers",
                &[Class::TransfersSlowed],
                "the transfer times of a communicator with those before",
                "6 steps, and kernel times of all members",
            ),
            Rule::SlowNodePath => (
                "slow-node-path",
                &[Class::SlowNodePath],
                "the transfer times of a communicator within a host with those of others like it",
                "3 steps, kernel times, and 3 communicators that are alike",
            ),
            Rule::ChangedAlgorithm => (
                "changed-algorithm",
                &[Class::AlgorithmChanged],
                "algorithm, protocol and channels in the last third of the run with the first",
                "20 collectives that changed",
            ),
            Rule::SlowGpu => (
                "slow-gpu",
                &[Class::GpuNotConsuming],
                "for how long a GPU uses neither data nor free buffers with other GPUs",
                "network transfers with the GPU's part (ProxyStep) on both sides of a GPU",
            ),
            Rule::ShortOfCpu => (
                "short-of-cpu",
                &[Class::ShortOfCpu],
                "for how long a process was ready and did not run with other processes",
                "the plugin's looks at its threads",
            ),
        };
        AboutRule { name, classes, compares, needs }
    }

    /// What all rules do.
    #[must_use]
    pub fn all_about() -> [AboutRule; 7] {
        Rule::ALL.map(Rule::about)
    }

    /// The rule of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Rule> {
        Rule::ALL.into_iter().find(|rule| rule.about().name == name)
    }
}

/// How to judge a job, and what to tell of it.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Judging {
    /// The thresholds.
    pub limits: Limits,
    /// The rules that are not applied.
    pub without: BTreeSet<Rule>,
    /// Of which ranks to tell what each rule saw; of all of them if there are none.
    pub why_not: Option<Vec<RangeInclusive<u32>>>,
}

impl From<&Limits> for Judging {
    fn from(limits: &Limits) -> Judging {
        Judging { limits: *limits, ..Judging::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_class_of_slowness_is_of_one_rule() {
        let all: Vec<Class> =
            Rule::ALL.iter().flat_map(|rule| rule.about().classes).copied().collect();
        let distinct: BTreeSet<Class> = all.iter().copied().collect();
        assert_eq!(all.len(), distinct.len());
        for rule in Rule::ALL {
            assert_eq!(Rule::named(rule.about().name), Some(rule));
        }
        assert_eq!(Rule::named("slow"), None);
    }
}
