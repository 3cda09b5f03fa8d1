// SPDX-License-Identifier: Apache-2.0
//! Reads the recordings of a run once: for its times, for whether it hangs, and for the bandwidths
//! of a page.

use crate::input::RunInput;
use ncclscope_compare::Run;
use ncclscope_compare::input::recorded;
use ncclscope_diagnose::input::InputOptions;
use ncclscope_diagnose::input::recording::{Snapshot, SnapshotReader, assemble};
use ncclscope_diagnose::{Job, Options, diagnose};
use ncclscope_operations::parallel::in_order;
use ncclscope_operations::pxn::Pxn;
use ncclscope_operations::{Timeline, Whole};
use ncclscope_report::{ProcessPart, Report, ReportBuilder, Wanted};
use ncclscope_stragglers::input::recording::{JobPart, JobReader};
use ncclscope_trace::Recording;

/// What one pass reads.
struct Pass {
    job: JobPart,
    snapshots: Vec<Snapshot>,
    report: Option<ReportBuilder>,
}

/// The run, and its report if that is wanted.
pub(super) fn read(input: &RunInput, wants_report: bool) -> (Run, Option<Report>) {
    let recordings: Vec<&Recording> = input.recordings.iter().collect();
    let mut reader = JobReader::new(&recordings);
    let mut all = pass(&reader, wants_report);
    if all.job.foreign() != 0 {
        // What processes did for one another belongs to whom they did it for.
        reader.take_pxn(Pxn::read(reader.recordings()));
        all = pass(&reader, wants_report);
    }
    let mut run = recorded::of_recordings(input.name.clone(), &input.recordings, &all.job.finish());
    run.hangs = assemble(all.snapshots, &InputOptions::default()).is_ok_and(|job| hangs(&job));
    (run, all.report.map(ReportBuilder::finish))
}

/// Whether ranks of a job wait and do not advance.
pub(super) fn hangs(job: &Job) -> bool {
    let found = diagnose(job, &Options::default());
    found.waiting != 0 && !found.verdicts.is_empty()
}

fn pass(reader: &JobReader<'_>, wants_report: bool) -> Pass {
    let places: Vec<usize> = (0..reader.recordings().len()).collect();
    let read = |&place: &usize| {
        let (recording, work) = (reader.recordings()[place], reader.pxn().work(place));
        let (mut job, mut hang) = (reader.process(place), SnapshotReader::default());
        let whole = Whole::of(Timeline::read_with(recording, work, |lane, record, op| {
            job.record(lane, record, op);
            hang.record(lane, record);
        }));
        let (job, snapshot) = (job.finish(&whole), hang.finish(&whole));
        let report = wants_report.then(|| ProcessPart::of(whole, Wanted::default()));
        (job, snapshot, report)
    };
    let report = wants_report.then(ReportBuilder::default);
    let mut all = Pass { job: reader.begin(), snapshots: Vec::new(), report };
    in_order(&places, read, |at, (job, snapshot, report)| {
        all.job.add(job);
        all.snapshots.push(snapshot);
        if let Some((sum, part)) = all.report.as_mut().zip(report) {
            sum.add_part(part, reader.pxn().given(at));
        }
    });
    all
}
