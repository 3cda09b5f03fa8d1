// SPDX-License-Identifier: Apache-2.0
//! Which events a recording lacks, according to what was read.

use ncclscope_trace::{EventKind, Recording};

/// The kinds of events that show which collectives were called.
const CALLS: [EventKind; 3] = [EventKind::CollApi, EventKind::Coll, EventKind::CeColl];

/// True if no call of a collective is missing between others: the lost events were of other kinds,
/// usually network steps.
pub(super) fn has_all_calls(recording: &Recording) -> bool {
    let is_recorded = !recording.has_hole() && !recording.has_pauses();
    is_recorded && CALLS.iter().all(|&kind| recording.lost(kind) == 0)
}
