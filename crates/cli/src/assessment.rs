// SPDX-License-Identifier: Apache-2.0
/*!
What a run shows, from one pass over its recordings: the report, why it hangs, and what is slow.

The records of a recording are decoded once, and each of the three takes what it needs of them. A
recording with more than [`LONG`] bytes of records does not fit into memory whole. The report reads
it as a stream; `stragglers` reads its end again, of [`LONG`] bytes, and `diagnose` as much of its
end as it needs.
*/

use crate::input::Input;
use crate::narrow::Narrowed;
use crate::terminal::{Progress, say};
use ncclscope_diagnose::input::InputOptions;
use ncclscope_diagnose::input::recording::{Snapshot, SnapshotReader, assemble, snapshot};
use ncclscope_diagnose::{Diagnosis, Options, Waiting, diagnose_in_detail};
use ncclscope_operations::parallel::in_order;
use ncclscope_operations::pxn::Pxn;
use ncclscope_operations::{Timeline, Whole};
use ncclscope_report::{By, ProcessPart, Report, ReportBuilder, Wanted};
use ncclscope_stragglers::input::recording::{JobPart, JobReader};
use ncclscope_stragglers::{Details, Limits, Report as Slow, analyze_in_detail};
use ncclscope_trace::Recording;
use ncclscope_trace::layout::SEGMENT;
use std::panic::resume_unwind;
use std::thread;
use std::time::Duration;

/// Segments of a recording's ring that are read whole at most: 8 MiB. In memory they are 140 MB.
const LONG_SEGMENTS: usize = 32;
/// The bytes of its records from which on a recording is long.
const LONG: u64 = LONG_SEGMENTS as u64 * SEGMENT;

/// What a run shows.
pub(crate) struct Assessment {
    /// Tables.
    pub(crate) report: Report,
    /// Why it hangs, as `diagnose` finds it.
    pub(crate) hang: Diagnosis,
    /// Which ranks wait for which.
    pub(crate) waiting: Vec<Waiting>,
    /// What is slow, as `stragglers` finds it.
    pub(crate) slow: Slow,
    /// How long the others waited for each rank.
    pub(crate) details: Details,
}

impl Assessment {
    /// Of recordings; what is in flight for `hang` in a running job is stuck. The tables are of
    /// what the filter selects, all else of all recordings.
    pub(crate) fn of(
        input: &Input,
        (narrowed, by): (&Narrowed, &[By]),
        hang: Duration,
    ) -> Assessment {
        let ends = Ends::of(&input.recordings);
        let mut run = Run::new(&input.recordings, &ends, (narrowed, by));
        let mut read = run.read();
        if read.foreign != 0 {
            run.read_pxn();
            read = run.read();
        }
        let Read { report, job, snapshots, .. } = read;
        say(1, || "read the records".into());
        // None of the three needs the others.
        thread::scope(|scope| {
            let slow = scope.spawn(|| {
                let mut slow = job.finish();
                slow.notes.extend(ends.note());
                let slow = analyze_in_detail(&slow, &Limits::default());
                say(1, || "judged stragglers".into());
                slow
            });
            let report = scope.spawn(|| report.finish());
            let settings = InputOptions { hang, ..InputOptions::default() };
            let job = assemble(snapshots, &settings).unwrap_or_default();
            let (hang, waiting) = diagnose_in_detail(&job, &Options { hang });
            say(1, || "judged hangs".into());
            let (slow, details) = slow.join().unwrap_or_else(|panic| resume_unwind(panic));
            let report = report.join().unwrap_or_else(|panic| resume_unwind(panic));
            Assessment { report, hang, waiting, slow, details }
        })
    }
}

/// The ends of long recordings, by the recordings' order.
struct Ends(Vec<Option<Recording>>);

impl Ends {
    fn of(recordings: &[Recording]) -> Ends {
        let end = |recording: &Recording| {
            let bytes: u64 = recording.lanes().iter().map(|lane| lane.bytes()).sum();
            let is_long = bytes > LONG;
            is_long.then(|| Recording::open_end(recording.path(), LONG_SEGMENTS).ok()).flatten()
        };
        Ends(recordings.iter().map(end).collect())
    }

    /// Says that slowness is judged by the ends.
    fn note(&self) -> Option<String> {
        let long = self.0.iter().flatten().count();
        let note = format!(
            "of {long} long recordings the last {} MiB are judged here: `ncclscope stragglers` \
             reads all of them",
            LONG >> 20
        );
        (long > 0).then_some(note)
    }
}

/// The recordings of a run in the order of their places, which is that of the ranks.
struct Run<'r> {
    job: JobReader<'r>,
    narrowed: &'r Narrowed,
    /// What operations are added up by.
    by: &'r [By],
    /// Each with its end, where it is long.
    places: Vec<Place<'r>>,
}

struct Place<'r> {
    number: usize,
    whole: &'r Recording,
    end: Option<&'r Recording>,
}

/// What was read of all recordings.
struct Read {
    report: ReportBuilder,
    job: JobPart,
    snapshots: Vec<Snapshot>,
    /// ProxyOps for other processes.
    foreign: u64,
}

/// What was read of one recording.
struct Part<'r> {
    report: ProcessPart<'r>,
    job: JobPart,
    snapshot: Option<Snapshot>,
}

impl<'r> Run<'r> {
    fn new(
        recordings: &'r [Recording],
        ends: &'r Ends,
        (narrowed, by): (&'r Narrowed, &'r [By]),
    ) -> Run<'r> {
        let judged: Vec<&Recording> = recordings
            .iter()
            .zip(&ends.0)
            .map(|(whole, end)| end.as_ref().unwrap_or(whole))
            .collect();
        let job = JobReader::new(&judged);
        let place = |(number, &at): (usize, &usize)| Place {
            number,
            whole: &recordings[at],
            end: ends.0[at].as_ref(),
        };
        let places = job.order().iter().enumerate().map(place).collect();
        Run { job, narrowed, by, places }
    }

    /// Reads what processes did for one another.
    fn read_pxn(&mut self) {
        let whole: Vec<&Recording> = self.places.iter().map(|place| place.whole).collect();
        self.job.take_pxn(Pxn::read(&whole));
    }

    /// Reads all recordings, each on a thread of its own.
    fn read(&self) -> Read {
        let mut read = Read {
            report: ReportBuilder::grouped(self.by.to_vec()),
            job: self.job.begin(),
            snapshots: Vec::new(),
            foreign: 0,
        };
        let mut progress = Progress::new("reading records", self.places.len() as u64);
        let part = |place: &Place<'r>| self.part(place);
        in_order(&self.places, part, |at, Part { report, job, snapshot }| {
            read.foreign += report.foreign();
            read.report.add_part(report, self.job.pxn().given(at));
            read.job.add(job);
            read.snapshots.extend(snapshot);
            progress.at(at as u64 + 1);
        });
        read
    }

    fn part(&self, place: &Place<'r>) -> Part<'r> {
        let work = self.job.pxn().work(place.number);
        let (mut job, mut hang) = (self.job.process(place.number), SnapshotReader::default());
        let judged = place.end.unwrap_or(place.whole);
        let whole = Whole::of(Timeline::read_with(judged, work, |lane, record, op| {
            job.record(lane, record, op);
            hang.record(lane, record);
        }));
        let job = job.finish(&whole);
        let snapshot = match place.end {
            None => Some(hang.finish(&whole)),
            Some(end) => snapshot(end.path(), work).ok(),
        };
        let wanted = Wanted { selection: self.narrowed.of(place.whole), by: self.by.to_vec() };
        let report = match place.end {
            None => ProcessPart::of(whole, wanted),
            Some(_) => ProcessPart::read_wanted(place.whole, work, wanted),
        };
        Part { report, job, snapshot }
    }
}
