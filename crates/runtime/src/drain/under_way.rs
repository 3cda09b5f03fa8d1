// SPDX-License-Identifier: Apache-2.0
//! The steps in flight, which are not in a lane yet.

use ncclscope_recorder::region::Region;
use ncclscope_recorder::slots;
use ncclscope_trace::dump::Rest;
use ncclscope_trace::record::schema;
use ncclscope_trace::{Record, Step};
use std::collections::BTreeMap;

/// The identity of a step: its lane, start, operation and number.
type Key = (usize, u64, u32, u32);

/// Steps that were in flight at one moment. The lanes are read after that moment, so that a step
/// that stops in between is in a lane as well; steps found in lanes are removed here.
#[derive(Debug, Default)]
pub(super) struct UnderWay(BTreeMap<Key, Step>);

impl UnderWay {
    /// Stores the steps in flight at `now` in place of earlier ones.
    pub(super) fn note(&mut self, region: &Region, now: u64) {
        let steps = slots::in_flight(region, now).into_iter();
        self.0 = steps.map(|(lane, step)| (key(lane, &step), step)).collect();
    }

    /// Removes the steps found in these words (whole records of a lane): they have stopped.
    pub(super) fn words(&mut self, lane: usize, words: &[u64]) {
        let mut rest = words;
        while !self.0.is_empty()
            && let Some(&head) = rest.first()
        {
            let Some((len, _)) = schema(head.to_le_bytes()[0]) else { return };
            let Some((record, after)) = rest.split_at_checked(len) else { return };
            if let Some(Record::Step(step)) = Record::unpack(record) {
                self.0.remove(&key(lane, &step));
            }
            rest = after;
        }
    }

    /// The remaining steps, each with the position up to which its lane was read.
    pub(super) fn rest(&self, read: &[u64]) -> Vec<Rest> {
        let rest = self.0.iter().filter_map(|(&(lane, ..), step)| {
            let (position, words) = (*read.get(lane)?, step.pack().words().to_vec());
            Some(Rest { lane: u16::try_from(lane).ok()?, position, words })
        });
        rest.collect()
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

fn key(lane: usize, step: &Step) -> Key {
    (lane, step.ticks, step.op_ref, step.step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ncclscope_recorder::{Recorder, clock};
    use ncclscope_trace::Handle;
    use ncclscope_trace::record::ProxyOp;

    fn rest_of(under_way: &UnderWay, read: u64) -> Vec<(u64, u32)> {
        let numbers = under_way.rest(&[read]).into_iter().map(|rest| {
            let Some(Record::Step(step)) = Record::unpack(&rest.words) else { return (0, 0) };
            (rest.position, step.step)
        });
        numbers.collect()
    }

    /// A dump shows one moment: each step is in it exactly once, from a lane or a slot.
    #[test]
    fn a_step_that_stops_while_the_lanes_are_read_is_there_once() {
        clock::choose(true);
        let recorder: &'static Recorder = Box::leak(Box::default());
        recorder.region.reserve(None).unwrap();
        recorder.region.grow(1, 1, None).unwrap();
        recorder.set_process(7);
        let op = recorder.start_op(1, Handle::NULL, &ProxyOp::default());
        let steps = [0, 1, 2].map(|number| recorder.start_step(op, number));
        let (header, ring) =
            (recorder.region.lane_header(0).unwrap(), recorder.region.ring(0).unwrap());
        let mut under_way = UnderWay::default();
        under_way.note(&recorder.region, clock::now());
        recorder.stop(steps[0]);
        // The lanes are read up to here.
        let read = header.head();
        recorder.stop(steps[1]);
        let mut words = Vec::new();
        header.copy(ring, 0..read, &mut words);
        under_way.words(0, &words);
        assert_eq!(rest_of(&under_way, read), [(read, 1), (read, 2)]);
        // The slot of a stopped step is reused by a step of the same number.
        assert!(!recorder.start_step(op, 0).is_null());
        under_way.note(&recorder.region, clock::now());
        under_way.words(0, &words);
        assert_eq!(rest_of(&under_way, read).len(), 2);
        under_way.clear();
        assert!(under_way.rest(&[read]).is_empty());
    }
}
