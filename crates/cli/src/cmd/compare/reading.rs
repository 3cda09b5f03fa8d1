// SPDX-License-Identifier: Apache-2.0
//! Reads the recordings of a run once, for its times, for whether it hangs, and for the bandwidths
//! of a page.

use crate::run_input::input::RunInput;
use crate::run_input::narrow::Narrowed;
use crate::run_input::pass::{self, Ends, Read};
use ncclscope_compare::Run;
use ncclscope_compare::input::recorded;
use ncclscope_diagnose::input::InputOptions;
use ncclscope_diagnose::{Job, Options, assemble, diagnose};
use ncclscope_report::{Report, ReportBuilder};

/// The run, and its report if requested.
pub(super) fn read(input: &RunInput, wants_report: bool) -> (Run, Option<Report>) {
    let (recordings, all) = (&input.recordings, Narrowed::default());
    let wish = wants_report.then_some((&all, &[][..]));
    let Read { report, job, snapshots } =
        pass::read(recordings, &Ends::none(recordings), wish, |_| ());
    let mut run = recorded::of_recordings(input.name.clone(), recordings, &job.finish());
    run.hangs = assemble(snapshots, &InputOptions::default()).is_ok_and(|job| hangs(&job));
    (run, report.map(ReportBuilder::finish))
}

/// True if ranks of the job wait and do not advance.
pub(super) fn hangs(job: &Job) -> bool {
    let found = diagnose(job, &Options::default());
    found.waiting_ranks != 0 && !found.findings.is_empty()
}
