// SPDX-License-Identifier: Apache-2.0
//! Whether a recording is incomplete because it was started, stopped or sampled.

use ncclscope_trace::{MarkKind, Recording};

/// Not everything since the first communicator was to be recorded. The window that opens with the
/// run is none of these.
#[must_use]
pub fn is_windowed(recording: &Recording) -> bool {
    let first = recording.comms().iter().map(|comm| comm.ticks).min();
    recording.marks().iter().any(|mark| match mark.what {
        MarkKind::Stop => true,
        MarkKind::Start => mark.value > 1 || first.is_some_and(|first| first < mark.ticks),
        _ => false,
    })
}
