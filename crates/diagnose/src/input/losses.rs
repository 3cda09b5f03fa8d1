// SPDX-License-Identifier: Apache-2.0
//! Which events a recording lacks, after it was read.

use ncclscope_trace::{EventKind, Recording};

/// All that say which collectives were called.
const CALLS: [EventKind; 3] = [EventKind::CollApi, EventKind::Coll, EventKind::CeColl];

/// No call of a collective is missing between others: what was lost is of other kinds, as a rule
/// network steps.
pub(super) fn has_all_calls(recording: &Recording) -> bool {
    let is_recorded = !recording.has_hole() && !recording.has_pauses();
    is_recorded && CALLS.iter().all(|&kind| recording.lost(kind) == 0)
}
