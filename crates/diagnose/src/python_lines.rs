// SPDX-License-Identifier: Apache-2.0
//! The lines of the user's script, as evidence: where a rank at fault called last, and where the
//! other ranks wait.

use crate::job::{Job, PythonLine};
use crate::words::named_ranks;
use ncclscope_findings::{Evidence, Finding};
use std::collections::{BTreeMap, HashSet};

/// Maximum number of lines of each finding: ranks at one line are told together.
const MOST: usize = 4;

/// Adds the lines of the ranks at fault to each finding, and those of the ranks that wait.
pub(crate) fn add(job: &Job, waiting: &HashSet<u32>, findings: &mut [Finding]) {
    for finding in findings {
        let mut lines: BTreeMap<(bool, &str, bool), Vec<u32>> = BTreeMap::new();
        for (process, at) in job.processes.iter().zip(0u32..) {
            let Some(PythonLine { text, is_open }) = &process.python else { continue };
            let rank = job.rank(at);
            let is_root = finding.root_ranks.contains(&rank);
            if is_root || waiting.contains(&at) {
                lines.entry((!is_root, text, *is_open)).or_default().push(rank);
            }
        }
        let more = lines.len().saturating_sub(MOST);
        let mut lines: Vec<_> = lines.into_iter().collect();
        // Those at fault first, then the lines of most ranks.
        lines.sort_by_key(|((is_victim, ..), ranks)| (*is_victim, std::cmp::Reverse(ranks.len())));
        for ((_, text, is_open), ranks) in lines.into_iter().take(MOST) {
            let what = match (is_open, ranks.len()) {
                (true, 1) => "waits at",
                (true, _) => "wait at",
                (false, _) => "called last at",
            };
            let evidence =
                Evidence::about(finding.class, format!("{} {what} {text}", named_ranks(&ranks)));
            finding.evidence.push(Evidence { rank: ranks.first().copied(), ..evidence });
        }
        if more > 0 {
            let text = format!("{more} more lines of Python");
            finding.evidence.push(Evidence::about(finding.class, text));
        }
    }
}
