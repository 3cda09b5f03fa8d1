// SPDX-License-Identifier: Apache-2.0
//! Which events a recording lacks, after it was read.

use ncclscope_trace::{EventKind, MarkKind, Recording};

/// All that say which collectives were called.
const CALLS: [EventKind; 3] = [EventKind::CollApi, EventKind::Coll, EventKind::CeColl];

/// No call of a collective is missing between others: what was lost is of other kinds, as a rule
/// network steps.
pub(super) fn has_all_calls(recording: &Recording) -> bool {
    let header = recording.header();
    let lanes = recording.lanes().iter().map(|lane| &lane.header.lost);
    let mut lost = [&header.unwritten, &header.without_lane].into_iter().chain(lanes);
    let is_stopped = recording.marks().iter().any(|mark| mark.what == MarkKind::Stop);
    let is_recorded = !recording.has_hole() && header.left_out == 0 && !is_stopped;
    is_recorded && lost.all(|lost| CALLS.iter().all(|kind| lost[kind.index()] == 0))
}
