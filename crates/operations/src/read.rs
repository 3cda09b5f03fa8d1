// SPDX-License-Identifier: Apache-2.0
//! Reads a whole recording into a [`Timeline`].

use crate::doubts::Doubts;
use crate::timeline::Timeline;
use ncclscope_trace::handle::LANES;
use ncclscope_trace::{Record, Recording};

/// Bytes of records for each event, if few are those of steps. To move events to a longer list
/// takes more time than to read them.
const EVENT_BYTES: u64 = 16;

impl<'a> Timeline<'a> {
    /// Reads every record of a recording. Steps, which are most of a recording, are kept one by one
    /// only with `keep_steps`.
    #[must_use]
    pub fn read(recording: &'a Recording, keep_steps: bool) -> Timeline<'a> {
        let mut steps = Vec::new();
        let mut timeline = Timeline::new(recording);
        let bytes: u64 = recording.lanes().iter().map(|lane| lane.bytes()).sum();
        timeline.make_room(usize::try_from(bytes / EVENT_BYTES).unwrap_or(0));
        for lane in 0..LANES {
            recording.visit_lane(lane, |record| {
                let op = timeline.record(lane, record);
                if let (Record::Step(step), Some(id)) = (record, op)
                    && keep_steps
                {
                    steps.push((id, *step));
                }
            });
        }
        timeline.join(None);
        Doubts::new(recording).look(&mut timeline, None);
        timeline.keep_steps(steps);
        timeline
    }
}
