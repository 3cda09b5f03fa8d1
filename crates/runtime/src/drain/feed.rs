// SPDX-License-Identifier: Apache-2.0
//! Passes records to the recording's file.

use super::sink::Sink;
use crate::recording::{Job, Recording};
use crate::shared::Shared;
use ncclscope_trace::codec::{Encoder, META_LANE};
use ncclscope_trace::{ClockSync, Comm, Definition, StrId};
use std::sync::Arc;

/// Passes jobs to the writer thread.
#[derive(Debug)]
pub(super) struct Feed {
    shared: &'static Shared,
    recording: Arc<Recording>,
    encoder: Encoder,
    /// Records of the plugin itself, written as one block at the end of the round.
    meta: Vec<u64>,
    /// The content of the file is kept, because an operation is stuck.
    is_frozen: bool,
    /// A job was queued in this round.
    is_fresh: bool,
    /// Number of jobs queued so far.
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

    /// Adds a record of the plugin itself.
    pub(super) fn meta(&mut self, words: &[u64]) {
        self.meta.extend_from_slice(words);
    }

    /// Queues the progress records of one look of the watchdog.
    pub(super) fn heartbeats(&mut self, words: Vec<u64>) {
        if !words.is_empty() {
            self.put(Job::Heartbeats(words));
        }
    }

    /// Queues a comparison of the clocks.
    pub(super) fn clock(&mut self, sync: ClockSync) {
        self.put(Job::Clock(sync));
    }

    /// Keeps the content of the file while something is stuck, so that the events that led to it
    /// remain.
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

    /// Queues a job. If there is no room, its records are counted as unwritten.
    pub(super) fn put(&mut self, job: Job) {
        self.is_fresh = true;
        match self.recording.put(job) {
            Ok(()) => self.handed += 1,
            Err(Job::Block(block)) => self.shared.lose_unwritten(&block.counts),
            Err(_) => {}
        }
    }

    /// Queues a job that needs all earlier ones to be queued.
    pub(super) fn finish(&mut self, job: Job) {
        self.hand_over_meta();
        self.put(job);
    }

    /// Number of jobs that the writer thread has done.
    pub(super) fn done(&self) -> u64 {
        self.recording.done()
    }

    /// True while the writer thread has not done all queued jobs.
    pub(super) fn is_behind(&self) -> bool {
        self.handed != self.done()
    }

    /// Ends the round: the writer thread may write.
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

    /// Queues words of a lane from a position on. Returns the number of words that form whole
    /// records.
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
