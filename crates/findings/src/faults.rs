// SPDX-License-Identifier: Apache-2.0
//! Known faults of NCCL's releases that make jobs hang or crash, with what is known about each. A
//! verdict that looks like one names it as another possible cause, never as the only one.

use crate::class::FindingClass;
use core::ops::Range;

/// How well a fault is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Grade {
    /// NVIDIA's release notes name it.
    Acknowledged,
    /// We reproduced it.
    Reproduced,
    /// Users reported it, with a test of several releases or the place in the code.
    Reported,
}

impl Grade {
    /// As text.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Grade::Acknowledged => "in NVIDIA's release notes",
            Grade::Reproduced => "reproduced",
            Grade::Reported => "reported",
        }
    }
}

/// A known fault.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KnownFault {
    /// The releases, as `ncclGetVersion` has them: from, and the first one without it.
    pub releases: Range<u32>,
    /// It needs an Arm processor.
    pub is_arm: bool,
    /// What else it needs; empty if nothing.
    pub needs: &'static str,
    /// The classes of verdicts that look like it; none if it is a crash.
    pub classes: &'static [FindingClass],
    /// What happens, in one sentence.
    pub what: &'static str,
    /// Where it is described.
    pub source: &'static str,
    /// What the user can do.
    pub workaround: &'static str,
    /// How well it is known.
    pub grade: Grade,
}

use FindingClass as C;

/// All known faults. The 2.30.4 report of NVIDIA/nccl#2167 is not here: its author withdrew it.
pub const FAULTS: [KnownFault; 6] = [
    KnownFault {
        releases: 22_800..22_903,
        is_arm: true,
        needs: "",
        classes: &[C::CallNotEnqueued, C::ProxyStalled, C::HostStuck, C::KernelNotStarted],
        what: "a rank loses the slots of its proxy's operations, until a call of NCCL on it does \
               not return",
        source: "NCCL 2.29.3's release notes, NVIDIA/nccl#2353, marin-community/marin#7344",
        workaround: "use NCCL 2.29.3 or later",
        grade: Grade::Acknowledged,
    },
    KnownFault {
        releases: 21_200..23_102,
        is_arm: false,
        needs: "PXN (several nodes with NVLink), while a communicator is destroyed",
        classes: &[C::CommSetup, C::CallNotEnqueued],
        what: "connecting through another rank may hang",
        source: "NCCL 2.31.2's release notes",
        workaround: "use NCCL 2.31.2 or later, or try NCCL_PXN_DISABLE=1",
        grade: Grade::Acknowledged,
    },
    KnownFault {
        releases: 22_800..23_102,
        is_arm: false,
        needs: "collectives by copy engines on a communicator of two ranks",
        classes: &[C::CallNotEnqueued, C::KernelNotStarted],
        what: "the first such collective may hang",
        source: "NCCL 2.31.2's release notes, NVIDIA/nccl#2241",
        workaround: "use NCCL 2.31.2 or later, or unset NCCL_CTA_POLICY",
        grade: Grade::Acknowledged,
    },
    KnownFault {
        releases: 22_700..23_100,
        is_arm: false,
        needs: "kernel events and a full /dev/shm",
        classes: &[],
        what: "NCCL crashes when it creates a connection",
        source: "NVIDIA/nccl#2326",
        workaround: "make /dev/shm larger, or set NCCLSCOPE_KERNEL=off",
        grade: Grade::Reported,
    },
    KnownFault {
        releases: 23_003..23_004,
        is_arm: false,
        needs: "kernel events",
        classes: &[],
        what: "NCCL crashes in an AlltoAll of several nodes",
        source: "NVIDIA/nccl#2112",
        workaround: "use NCCL 2.30.4 or later, or set NCCLSCOPE_KERNEL=off",
        grade: Grade::Reported,
    },
    KnownFault {
        // Later releases were not tried.
        releases: 23_100..23_300,
        is_arm: false,
        needs: "kernel events that NCCL's RAS turns on (PROFILER_MASK)",
        classes: &[],
        what: "NCCL crashes when a communicator is destroyed",
        source: "docs/ras.md, NVIDIA/nccl#2368",
        workaround: "ncclscope prevents it; do not send that command with another profiler",
        grade: Grade::Reproduced,
    },
];

/// The known faults of a release on a processor.
pub fn known_faults(release: u32, is_arm: bool) -> impl Iterator<Item = &'static KnownFault> {
    FAULTS
        .iter()
        .filter(move |fault| fault.releases.contains(&release) && (is_arm || !fault.is_arm))
}

impl KnownFault {
    /// One sentence about it, for a job with this release.
    #[must_use]
    pub fn sentence(&self, release: &str) -> String {
        let arm = if self.is_arm { " on Arm" } else { "" };
        let needs = match self.needs {
            "" => String::new(),
            needs => format!(" with {needs}"),
        };
        format!(
            "a known fault of NCCL {release}{arm}{needs}: {} ({}: {}); {}",
            self.what,
            self.grade.text(),
            self.source,
            self.workaround
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_of_its_releases_and_processor() {
        let of = |release, is_arm| known_faults(release, is_arm).count();
        assert_eq!(of(22_809, true), of(22_809, false) + 1);
        assert_eq!(of(22_903, true), of(22_903, false));
        assert_eq!(of(23_200, false), 1);
        let [fault] = known_faults(23_203, false).collect::<Vec<_>>()[..] else { panic!() };
        assert!(fault.sentence("2.32.3").starts_with("a known fault of NCCL 2.32.3 with kernel"));
        assert!(FAULTS.iter().all(|fault| !fault.releases.is_empty()));
    }
}
