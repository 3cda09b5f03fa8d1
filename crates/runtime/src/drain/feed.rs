// SPDX-License-Identifier: Apache-2.0
//! The way of records into the recording's file.

use super::{META, Sink};
use crate::recording::{Job, Recording};
use crate::runtime::Runtime;
use ncclscope_trace::codec::Encoder;
use ncclscope_trace::{ClockSync, Comm, Definition, StrId};
use std::sync::Arc;

/// Hands to the recording what is to be written.
#[derive(Debug)]
pub(super) struct Feed {
    recording: Arc<Recording>,
    encoder: Encoder,
    /// Records of ours, written as one block at the end of the round.
    meta: Vec<u64>,
    /// What is in the file is to be kept, for something is stuck.
    is_frozen: bool,
    /// Something was handed over in this round.
    is_fresh: bool,
}

impl Feed {
    pub(super) fn new(recording: Arc<Recording>) -> Feed {
        Feed {
            recording,
            encoder: Encoder::default(),
            meta: Vec::new(),
            is_frozen: false,
            is_fresh: false,
        }
    }

    /// A record of ours.
    pub(super) fn meta(&mut self, words: &[u64]) {
        self.meta.extend_from_slice(words);
    }

    /// Records of how the process fares: one look's.
    pub(super) fn heartbeats(&mut self, words: Vec<u64>) {
        if !words.is_empty() {
            self.put(Job::Heartbeats(words));
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
        if let Err(Job::Block { block, .. }) = self.recording.put(job) {
            Runtime::get().lose_unwritten(&block.counts);
        }
    }

    /// Hands over a job that is about all before it.
    pub(super) fn finish(&mut self, job: Job) {
        self.hand_over_meta();
        self.put(job);
    }

    /// Grows with each piece of work that the file's thread has done.
    pub(super) fn done(&self) -> u64 {
        self.recording.done()
    }

    /// The round is over: the file's thread may write.
    pub(super) fn flush(&mut self) {
        self.hand_over_meta();
        if std::mem::take(&mut self.is_fresh) {
            self.recording.wake(Runtime::get());
        }
    }

    fn hand_over_meta(&mut self) {
        let mut meta = std::mem::take(&mut self.meta);
        self.blocks(META, 0, &meta);
        meta.clear();
        self.meta = meta;
    }

    /// Words of a lane from a position on, whole records.
    pub(super) fn words(&mut self, lane: usize, from: u64, words: &[u64]) {
        if let Ok(lane) = u16::try_from(lane) {
            self.recording.give_back(&mut self.encoder);
            self.blocks(lane, from, words);
        }
    }

    fn blocks(&mut self, lane: u16, mut from: u64, mut words: &[u64]) {
        while let Some(block) = self.encoder.encode(lane, &mut from, &mut words) {
            self.put(Job::Block { lane, block: Box::new(block) });
        }
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
}
