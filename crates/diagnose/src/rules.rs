// SPDX-License-Identifier: Apache-2.0
//! The rules by name: what each compares, and what it needs.

use ncclscope_findings::{AboutRule, FindingClass as Class};

/// What looks for one kind of hang.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Rule {
    /// Calls that differ between the members of a communicator.
    CallMismatch,
    /// Settings with which NCCL runs an operation that differ between its members.
    SettingsMismatch,
    /// Waits, followed to the ranks and operations that wait for nothing.
    WaitGraph,
    /// Functions that create or end a communicator.
    CommunicatorSetup,
    /// The process of a crashed job that ended first.
    FirstEnd,
}

impl Rule {
    /// All rules, in the order in which they are applied.
    pub const ALL: [Rule; 5] = [
        Rule::CallMismatch,
        Rule::SettingsMismatch,
        Rule::WaitGraph,
        Rule::CommunicatorSetup,
        Rule::FirstEnd,
    ];

    /// What the rule does.
    #[must_use]
    pub const fn about(self) -> AboutRule {
        let (name, classes, compares, needs): (_, &[Class], _, _) = match self {
            Rule::CallMismatch => (
                "call-mismatch",
                &[Class::CallMismatch, Class::P2pMismatch],
                "function, count, type and root of the calls of a communicator's members",
                "the calls of two members or more",
            ),
            Rule::SettingsMismatch => (
                "settings-mismatch",
                &[Class::SettingsMismatch],
                "algorithm, protocol, channels and steps of the members' operations",
                "settings of the same operation on two members or more (NCCL 2.28 or later)",
            ),
            Rule::WaitGraph => (
                "wait-graph",
                &[
                    Class::HostStuck,
                    Class::ProcessGone,
                    Class::CallNotEnqueued,
                    Class::KernelNotStarted,
                    Class::KernelPartlyStarted,
                    Class::GpuDead,
                    Class::KernelNotEnding,
                    Class::GpuNotProducing,
                    Class::ReceiverNotReady,
                    Class::NetworkStalled,
                    Class::FlushStalled,
                    Class::GpuNotConsuming,
                    Class::ProxyStalled,
                    Class::Deadlock,
                    Class::NotRecorded,
                ],
                "how far each rank has come, and which ranks wait for which, down to the ranks and \
                 operations that wait for nothing",
                "what is in flight on each rank, for longer than --hang-sec",
            ),
            Rule::CommunicatorSetup => (
                "communicator-setup",
                &[Class::CommSetup],
                "for how long ranks stand in functions that create or end a communicator",
                "the plugin's looks at its threads",
            ),
            Rule::FirstEnd => (
                "first-end",
                &[Class::ProcessGone],
                "when the processes of a crashed job ended",
                "recordings of a job that ended",
            ),
        };
        AboutRule { name, classes, compares, needs }
    }

    /// What all rules do.
    #[must_use]
    pub fn all_about() -> [AboutRule; 5] {
        Rule::ALL.map(Rule::about)
    }

    /// The rule of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Rule> {
        Rule::ALL.into_iter().find(|rule| rule.about().name == name)
    }
}
