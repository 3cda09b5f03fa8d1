// SPDX-License-Identifier: Apache-2.0
/*!
The analysis of a run from one pass over its recordings: the report, why the run hangs, and what is
slow.

[`crate::run_input::pass`] describes which parts are read, also of long recordings.
*/

use crate::io::terminal::{Progress, say};
use crate::run_input::input::{Input, command_end};
use crate::run_input::narrow::Narrowed;
use crate::run_input::pass::{Ends, Read, read};
use ncclscope_answer::{Answer, Found};
use ncclscope_diagnose::input::InputOptions;
use ncclscope_diagnose::{Diagnosis, Options, Waiting, assemble, diagnose_in_detail};
use ncclscope_report::{By, Report};
use ncclscope_stragglers::{Details, Judging, SlowReport, analyze_in_detail};
use std::panic::resume_unwind;
use std::thread;
use std::time::Duration;

/// The results of all analyses of a run.
pub(crate) struct Assessment {
    pub(crate) report: Report,
    /// Why the job hangs, as found by `diagnose`.
    pub(crate) hang: Diagnosis,
    /// Which ranks wait for which.
    pub(crate) waiting: Vec<Waiting>,
    /// What is slow, as found by `stragglers`.
    pub(crate) slow: SlowReport,
    /// How long the other ranks waited for each rank.
    pub(crate) details: Details,
}

impl Assessment {
    /// The assessment of recordings. In a running job, an operation counts as stuck after `hang` in
    /// flight. The tables cover what the filter selects, everything else covers all recordings.
    pub(crate) fn of(
        input: &Input,
        (narrowed, by): (&Narrowed, &[By]),
        hang: Duration,
    ) -> Assessment {
        let ends = Ends::of(&input.recordings);
        let mut progress = Progress::new("reading records", input.recordings.len() as u64);
        let Read { report, job, snapshots } =
            read(&input.recordings, &ends, Some((narrowed, by)), |done| progress.at(done));
        drop(progress);
        say(1, || "read the records".into());
        // None of the three depends on another.
        thread::scope(|scope| {
            let slow = scope.spawn(|| {
                let mut slow = job.finish();
                slow.notes.extend(ends.note());
                let slow = analyze_in_detail(&slow, &Judging::default());
                say(1, || "judged stragglers".into());
                slow
            });
            let report = scope.spawn(|| {
                let mut report = report.unwrap_or_default().finish();
                report.problems.splice(..0, input.unreadable.iter().cloned());
                report
            });
            let command = input.run.as_ref().and_then(command_end);
            let settings =
                InputOptions { hang, is_checked: true, command, ..InputOptions::default() };
            let job = assemble(snapshots, &settings).unwrap_or_default();
            let (hang, waiting) = diagnose_in_detail(&job, &Options::of(hang));
            say(1, || "judged hangs".into());
            let (slow, details) = slow.join().unwrap_or_else(|panic| resume_unwind(panic));
            let report = report.join().unwrap_or_else(|panic| resume_unwind(panic));
            Assessment { report, hang, waiting, slow, details }
        })
    }

    /// The answer with this limit of a hang; `input` is the argument of the suggested commands.
    pub(crate) fn answer(&self, input: &str, limit: Duration) -> Answer {
        let Assessment { report, hang, slow, .. } = self;
        let option = match limit == Options::default().hang {
            true => String::new(),
            false => format!("--hang-sec {} ", limit.as_secs_f64()),
        };
        Answer::of(Found { hang, slow, report }, input, &option)
    }
}
