// SPDX-License-Identifier: Apache-2.0
//! Reads a whole recording into a [`Timeline`], with its operations and clocks.

use crate::doubts::Doubts;
use crate::pxn::Work;
use crate::timeline::{Event, EventId, Timeline};
use crate::{GpuClocks, Operation, operations};
use ncclscope_trace::handle::LANES;
use ncclscope_trace::{Record, Recording};

/// Bytes of records for each event, if few are those of steps. To move events to a longer list
/// takes more time than to read them.
const EVENT_BYTES: u64 = 16;

/// A recording that was read whole.
#[derive(Debug)]
pub struct Whole<'a> {
    /// Its events.
    pub timeline: Timeline<'a>,
    /// Its operations, in the order of [`Timeline::events`].
    pub operations: Vec<Operation>,
    /// The clocks of its GPUs.
    pub clocks: GpuClocks,
}

impl<'a> Whole<'a> {
    /// Finds the operations and clocks of a timeline.
    #[must_use]
    pub fn of(timeline: Timeline<'a>) -> Whole<'a> {
        let (operations, clocks) = (operations(&timeline), GpuClocks::of(&timeline));
        Whole { timeline, operations, clocks }
    }
}

impl<'a> Timeline<'a> {
    /// Reads every record of a recording. Steps, which are most of a recording, are kept one by one
    /// only with `keep_steps`.
    #[must_use]
    pub fn read(recording: &'a Recording, keep_steps: bool) -> Timeline<'a> {
        let mut steps = Vec::new();
        let mut timeline = Timeline::read_with(recording, None, |_, record, op| {
            if let (Record::Step(step), Some((id, _))) = (record, op)
                && keep_steps
            {
                steps.push((id, *step));
            }
        });
        timeline.keep_steps(steps);
        timeline
    }

    /// Reads every record of a recording, lane by lane, and passes it to `each` with its lane; a
    /// step with its ProxyOp, if that was already read. `work` has the ProxyOps that other
    /// processes ran for this one (PXN).
    #[must_use]
    pub fn read_with(
        recording: &'a Recording,
        work: Option<&Work>,
        mut each: impl FnMut(usize, &Record, Option<(EventId, &Event)>),
    ) -> Timeline<'a> {
        let mut timeline = Timeline::new(recording);
        let bytes: u64 = recording.lanes().iter().map(|lane| lane.bytes()).sum();
        timeline.make_room(usize::try_from(bytes / EVENT_BYTES).unwrap_or(0));
        if let Some(work) = work {
            work.links.iter().for_each(|links| timeline.adopt_links(links));
            work.ops.iter().for_each(|op| timeline.adopt(op));
        }
        for lane in 0..LANES {
            recording.visit_lane(lane, |record| {
                let op = timeline.record(lane, record);
                each(lane, record, op.map(|id| (id, timeline.event(id))));
            });
        }
        timeline.join(None);
        Doubts::new(recording).look(&mut timeline, None);
        timeline
    }
}
