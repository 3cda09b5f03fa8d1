// SPDX-License-Identifier: Apache-2.0
//! Which events a recording lacks, according to what was read.

use ncclscope_trace::{EventKind, Recording};

/// The kinds of events that show which collectives were called.
const CALLS: [EventKind; 3] = [EventKind::CollApi, EventKind::Coll, EventKind::CeColl];

/// True if no call of a collective is missing between others: the lost events were of other kinds,
/// usually network steps. Calls are numbered from the last one on, and a file that is cut off may
/// lack blocks with calls, but have later blocks with counters.
pub(super) fn has_all_calls(recording: &Recording) -> bool {
    let is_whole = recording.damage().is_empty() && !recording.has_hole();
    let is_recorded = is_whole && !recording.has_pauses();
    is_recorded && CALLS.iter().all(|&kind| recording.lost(kind) == 0)
}
