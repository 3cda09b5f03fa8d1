// SPDX-License-Identifier: Apache-2.0
//! Reads recordings for `stragglers`, and finds out in the same pass whether the job hangs.

use ncclscope_diagnose::input::InputOptions;
use ncclscope_diagnose::input::recording::{Snapshot, SnapshotReader};
use ncclscope_diagnose::{Options, assemble, diagnose};
use ncclscope_operations::joiner::join;
use ncclscope_operations::parallel::in_order;
use ncclscope_operations::pxn::Pxn;
use ncclscope_stragglers::Job;
use ncclscope_stragglers::input::recording::{JobPart, JobReader};
use ncclscope_trace::Recording;

/// The job of these recordings, one per process, and whether `diagnose` finds that it hangs.
pub(super) fn job(recordings: &[Recording]) -> (Job, bool) {
    let recordings: Vec<&Recording> = recordings.iter().collect();
    let mut reader = JobReader::new(&recordings);
    let (mut parts, snapshots) = read(&reader);
    if parts.foreign() != 0 {
        reader.take_pxn(Pxn::read(reader.recordings()));
        parts = read(&reader).0;
    }
    let job = assemble(snapshots, &InputOptions::default()).unwrap_or_default();
    let is_hung = !diagnose(&job, &Options::default()).findings.is_empty();
    (parts.finish(), is_hung)
}

/// Reads all recordings of a job in one pass.
fn read(reader: &JobReader<'_>) -> (JobPart, Vec<Snapshot>) {
    let places: Vec<usize> = (0..reader.recordings().len()).collect();
    let one = |&place: &usize| {
        let (recording, work) = (reader.recordings()[place], reader.pxn().work(place));
        let mut readers = (reader.process(place, None), SnapshotReader::new(recording));
        let joined = join(recording, work, &mut readers);
        (readers.0.finish(&joined), readers.1.finish(&joined))
    };
    let (mut all, mut snapshots) = (reader.begin(), Vec::new());
    in_order(&places, one, |_, (part, snapshot)| {
        all.add(part);
        snapshots.push(snapshot);
    });
    (all, snapshots)
}
