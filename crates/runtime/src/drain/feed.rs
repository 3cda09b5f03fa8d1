// SPDX-License-Identifier: Apache-2.0
//! The way of records into the recording's file.

use super::{META, Sink};
use crate::recording::{Job, Recording};
use crate::runtime::Runtime;
use ncclscope_recorder::lane::{LaneHeader, Ring};
use ncclscope_trace::{ClockSync, Comm, Definition, StrId};
use std::sync::Arc;

/// Hands to the recording what is to be written.
#[derive(Debug)]
pub(super) struct Feed {
    recording: Arc<Recording>,
    /// Records of ours, written as one block at the end of the round.
    meta: Vec<u64>,
    /// What is in the file is to be kept, for something is stuck.
    is_frozen: bool,
    /// Something was handed over in this round.
    is_fresh: bool,
}

impl Feed {
    pub(super) fn new(recording: Arc<Recording>) -> Feed {
        Feed { recording, meta: Vec::new(), is_frozen: false, is_fresh: false }
    }

    /// A record of ours.
    pub(super) fn meta(&mut self, words: &[u64]) {
        self.meta.extend_from_slice(words);
    }

    /// Records of how the process fares: one look's.
    pub(super) fn vitals(&mut self, words: Vec<u64>) {
        if !words.is_empty() {
            self.put(Job::Vitals(words));
        }
    }

    /// A comparison of the clocks.
    pub(super) fn clock(&mut self, sync: ClockSync) {
        self.put(Job::Clock(sync));
    }

    /// Something is stuck, or nothing any more: what led to it is kept that long.
    pub(super) fn freeze(&mut self, is_stuck: bool) {
        if is_stuck != self.is_frozen {
            self.is_frozen = is_stuck;
            self.put(Job::Freeze(is_stuck));
        }
    }

    /// A new file knows nothing of what the one before was told.
    pub(super) fn begin_anew(&mut self) {
        if self.is_frozen {
            self.put(Job::Freeze(true));
        }
    }

    /// A definition.
    pub(super) fn define(&mut self, definition: Definition) {
        self.put(Job::Define(definition));
    }

    /// Hands a job over. Records for which there is no room are counted as unwritten.
    pub(super) fn put(&mut self, job: Job) {
        self.is_fresh = true;
        count_lost(self.recording.put(job));
    }

    /// Hands over a job that is about all before it: records of ours, and each lane up to `read`.
    /// The file's thread may come to it at once.
    pub(super) fn finish(&mut self, job: Job, read: &[u64]) {
        self.hand_over_meta();
        self.recording.ready(read);
        self.put(job);
    }

    /// Makes room in a lane that the file's thread does not come to write.
    pub(super) fn rescue(&mut self, lane: usize, header: &LaneHeader, ring: &Ring) {
        let Ok(lane) = u16::try_from(lane) else { return };
        self.is_fresh = true;
        count_lost(self.recording.rescue(lane, (header, ring)));
    }

    /// Grows with each piece of work that the file's thread has done.
    pub(super) fn done(&self) -> u64 {
        self.recording.done()
    }

    /// The round is over, each lane is read up to `read`: the file's thread may write.
    pub(super) fn flush(&mut self, read: &[u64]) {
        self.hand_over_meta();
        if std::mem::take(&mut self.is_fresh) {
            self.recording.ready(read);
            self.recording.wake(Runtime::get());
        }
    }

    fn hand_over_meta(&mut self) {
        if !self.meta.is_empty() {
            let words = std::mem::take(&mut self.meta);
            self.put(Job::Words { lane: META, from: 0, words });
        }
    }
}

/// Counts the records that found no room as unwritten.
fn count_lost(result: Result<(), Job>) {
    if let Err(Job::Words { words, .. }) = result {
        Runtime::get().lose_unwritten(&words);
    }
}

impl Sink for Feed {
    fn string(&mut self, id: StrId, text: &str) {
        self.define(Definition::String { id, text: text.to_owned() });
    }

    fn comm(&mut self, comm: &Comm) {
        self.define(Definition::Comm(comm.clone()));
    }

    fn comm_end(&mut self, index: u16, ticks: u64) {
        self.define(Definition::CommEnd { index, ticks });
    }

    fn words(&mut self, _lane: usize, _words: &[u64]) {
        // They stay in their lane until they are written.
        self.is_fresh = true;
    }
}
