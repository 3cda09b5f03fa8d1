// SPDX-License-Identifier: Apache-2.0
/*!
How far each lane is read, and how far its words are on their way into the file.

The drain thread reads a lane, and says up to where ([`Tracks::ready`]). The file's thread copies
from there ([`Tracks::take`]), writes, and only then gives the words' place back to the producer.
Where it does not come, the drain thread takes the words out instead ([`Tracks::rescue`]); what is
taken later waits until those are written ([`Tracks::written`]), so that a lane's words stay in
their order.
*/

use crate::sys::lock::Lock;
use core::ops::Range;
use ncclscope_recorder::lane::{LaneHeader, Ring};
use ncclscope_trace::record::schema;

/// The lanes of a process.
#[derive(Debug)]
pub(crate) struct Tracks(Lock<Vec<Track>>);

/// How far a lane has come: `taken` <= `ready`.
#[derive(Clone, Copy, Debug, Default)]
struct Track {
    /// Position up to which the drain thread has read it.
    ready: u64,
    /// Position up to which its words are copied.
    taken: u64,
    /// Rescued words of the lane that are not written yet.
    rescued: u32,
}

impl Tracks {
    /// Nothing is read.
    pub(crate) fn new() -> Tracks {
        Tracks(Lock::new(Vec::new()))
    }

    /// The drain thread has read each lane up to these positions.
    pub(crate) fn ready(&self, read: &[u64]) {
        let mut tracks = self.0.lock();
        let len = tracks.len().max(read.len());
        tracks.resize(len, Track::default());
        for (track, &read) in tracks.iter_mut().zip(read) {
            track.ready = read;
        }
    }

    /// Up to where each lane is ready.
    pub(crate) fn heads(&self) -> Vec<u64> {
        self.0.lock().iter().map(|track| track.ready).collect()
    }

    /// Copies up to `most` words of what lies in a lane before `end`, to where it is ready, whole
    /// records; where they lay, if there are any. Their place is the producer's again after
    /// [`LaneHeader::take_until`].
    pub(crate) fn take(
        &self,
        lane: usize,
        (header, ring): (&LaneHeader, &Ring),
        (end, most): (u64, u64),
        words: &mut Vec<u64>,
    ) -> Option<Range<u64>> {
        // The lock keeps the drain thread from giving the words' place away meanwhile.
        let mut tracks = self.0.lock();
        let track = tracks.get_mut(lane).filter(|track| track.rescued == 0)?;
        let from = track.taken;
        words.clear();
        header.copy(ring, from..end.min(from + most).max(from), words);
        if end > from + most {
            words.truncate(whole_records(words));
        }
        track.taken = from + words.len() as u64;
        (!words.is_empty()).then_some(from..track.taken)
    }

    /// Takes all that is ready in a lane, and gives its place back to the producer. The words, from
    /// this position on, are to be written and [`Tracks::written`], or given up and that.
    pub(crate) fn rescue(
        &self,
        lane: usize,
        (header, ring): (&LaneHeader, &Ring),
    ) -> Option<(u64, Vec<u64>)> {
        let mut tracks = self.0.lock();
        let track = tracks.get_mut(lane).filter(|track| track.taken < track.ready)?;
        let from = std::mem::replace(&mut track.taken, track.ready);
        let mut words = Vec::new();
        header.copy(ring, from..track.ready, &mut words);
        header.take_until(track.ready);
        track.rescued += 1;
        Some((from, words))
    }

    /// Words of a lane that were rescued are written, or given up.
    pub(crate) fn written(&self, lane: usize) {
        if let Some(track) = self.0.lock().get_mut(lane) {
            track.rescued = track.rescued.saturating_sub(1);
        }
    }
}

/// How many of the words are whole records.
fn whole_records(words: &[u64]) -> usize {
    let mut end = 0;
    while let Some(&head) = words.get(end)
        && let Some((len, _)) = schema(head.to_le_bytes()[0])
        && end + len <= words.len()
    {
        end += len;
    }
    // Words that are no record are the writer's to count.
    if end == 0 { words.len() } else { end }
}
