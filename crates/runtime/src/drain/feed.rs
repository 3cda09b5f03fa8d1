// SPDX-License-Identifier: Apache-2.0
//! Passes records to the recording's file.

use super::sink::Sink;
use crate::recording::{Job, Recording};
use crate::shared::Shared;
use ncclscope_trace::codec::{Encoder, META_LANE};
use ncclscope_trace::{ClockSync, Comm, Definition, StrId};
use std::sync::Arc;

/// Passes jobs to the recording.
#[derive(Debug)]
pub(super) struct Feed {
    shared: &'static Shared,
    recording: Arc<Recording>,
    encoder: Encoder,
    /// Records of ours, written as one block at the end of the round.
    meta: Vec<u64>,
    /// The content of the file is kept, because an operation is stuck.
    is_frozen: bool,
    /// Something was handed over in this round.
    is_fresh: bool,
    /// Pieces of work that were handed over.
    handed: u64,
}

impl Feed {
    pub(super) fn new(shared: &'static Shared, recording: Arc<Recording>) -> Feed {
        Feed {
            shared,
            recording,
            encoder: Encoder::default(),
            meta: Vec::new(),
            is_frozen: false,
            is_fresh: false,
            handed: 0,
        }
    }

    /// A record of ours.
    pub(super) fn meta(&mut self, words: &[u64]) {
        self.meta.extend_from_slice(words);
    }

    /// The progress records of one look.
    pub(super) fn heartbeats(&mut self, words: Vec<u64>) {
        if !words.is_empty() {
            self.put(Job::Heartbeats(words));
        }
    }

    /// A comparison of the clocks.
    pub(super) fn clock(&mut self, sync: ClockSync) {
        self.put(Job::Clock(sync));
    }

    /// Something is stuck, or no longer: while it is, the events that led to it are kept.
    pub(super) fn freeze(&mut self, is_stuck: bool) {
        if is_stuck != self.is_frozen {
            self.is_frozen = is_stuck;
            self.put(Job::Freeze(is_stuck));
        }
    }

    /// A new file contains none of the definitions of the file before.
    pub(super) fn begin_anew(&mut self) {
        if self.is_frozen {
            self.put(Job::Freeze(true));
        }
    }

    pub(super) fn define(&mut self, definition: Definition) {
        self.put(Job::Define(definition));
    }

    /// Passes a job on. Records for which there is no room are counted as unwritten.
    pub(super) fn put(&mut self, job: Job) {
        self.is_fresh = true;
        match self.recording.put(job) {
            Ok(()) => self.handed += 1,
            Err(Job::Block(block)) => self.shared.lose_unwritten(&block.counts),
            Err(_) => {}
        }
    }

    /// Hands over a job that is about all before it.
    pub(super) fn finish(&mut self, job: Job) {
        self.hand_over_meta();
        self.put(job);
    }

    /// Grows with each job that the writer thread has done.
    pub(super) fn done(&self) -> u64 {
        self.recording.done()
    }

    /// The writer thread has not done all of its work.
    pub(super) fn is_behind(&self) -> bool {
        self.handed != self.done()
    }

    /// The round is over: the writer thread may write.
    pub(super) fn flush(&mut self) {
        self.hand_over_meta();
        if std::mem::take(&mut self.is_fresh) {
            self.recording.wake(self.shared);
        }
    }

    fn hand_over_meta(&mut self) {
        let mut meta = std::mem::take(&mut self.meta);
        self.blocks(META_LANE, 0, &meta);
        meta.clear();
        self.meta = meta;
    }

    /// Words of a lane from a position on. Returns how many of them are whole records.
    pub(super) fn words(&mut self, lane: usize, from: u64, words: &[u64]) -> usize {
        self.recording.give_back(&mut self.encoder);
        u16::try_from(lane).map_or(0, |lane| self.blocks(lane, from, words))
    }

    fn blocks(&mut self, lane: u16, mut from: u64, words: &[u64]) -> usize {
        let mut rest = words;
        while let Some(block) = self.encoder.encode(lane, &mut from, &mut rest) {
            self.put(Job::Block(Box::new(block)));
        }
        words.len() - rest.len()
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
