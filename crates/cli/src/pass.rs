// SPDX-License-Identifier: Apache-2.0
/*!
One pass over the recordings of a run, for the report, for `diagnose` and for `stragglers`.

The records of a recording are decoded once, and each of the three verbs takes the records that it
needs. A recording with more than [`LONG`] bytes of records does not fit into memory as a whole. If
it has an end ([`Ends`]), the report reads all of it as a stream; `stragglers` then reads its last
[`LONG`] bytes again, and `diagnose` as much of its end as it needs.
*/

use crate::narrow::Narrowed;
use ncclscope_diagnose::input::recording::{Snapshot, SnapshotReader, snapshot};
use ncclscope_operations::parallel::in_order;
use ncclscope_operations::pxn::Pxn;
use ncclscope_operations::{Timeline, Whole};
use ncclscope_report::{By, ProcessPart, ReportBuilder, Wanted};
use ncclscope_stragglers::input::recording::{JobPart, JobReader};
use ncclscope_trace::Recording;
use ncclscope_trace::layout::SEGMENT;

/// Segments of a recording's ring that are read whole at most: 8 MiB. In memory they are 140 MB.
const LONG_SEGMENTS: usize = 32;
/// The bytes of its records from which on a recording is long.
const LONG: u64 = LONG_SEGMENTS as u64 * SEGMENT;

/// The ends of long recordings, by the recordings' order.
pub(crate) struct Ends(Vec<Option<Recording>>);

impl Ends {
    /// For recordings that are all read whole.
    pub(crate) fn none(recordings: &[Recording]) -> Ends {
        Ends(recordings.iter().map(|_| None).collect())
    }

    pub(crate) fn of(recordings: &[Recording]) -> Ends {
        let end = |recording: &Recording| {
            let bytes: u64 = recording.lanes().iter().map(|lane| lane.bytes()).sum();
            let is_long = bytes > LONG;
            is_long.then(|| Recording::open_end(recording.path(), LONG_SEGMENTS).ok()).flatten()
        };
        Ends(recordings.iter().map(end).collect())
    }

    /// Says that slowness is judged by the ends.
    pub(crate) fn note(&self) -> Option<String> {
        let long = self.0.iter().flatten().count();
        let note = format!(
            "of {long} long recordings the last {} MiB are judged here: `ncclscope stragglers` \
             reads all of them",
            LONG >> 20
        );
        (long > 0).then_some(note)
    }
}

/// What a report is wanted of, and what its operations are added up by.
type Wish<'r> = (&'r Narrowed, &'r [By]);

/// Reads the recordings of a run, with a report if there is a `wish`. `progress` receives how many
/// were read.
pub(crate) fn read(
    recordings: &[Recording],
    ends: &Ends,
    wish: Option<Wish<'_>>,
    mut progress: impl FnMut(u64),
) -> Read {
    let mut run = Run::new(recordings, ends, wish);
    let (read, foreign) = run.read(&mut progress);
    if foreign == 0 {
        return read;
    }
    // What processes did for one another belongs to those for which they did it.
    run.read_pxn();
    run.read(&mut progress).0
}

/// The recordings of a run in the order of their places, which is that of the ranks.
struct Run<'r> {
    job: JobReader<'r>,
    wish: Option<Wish<'r>>,
    /// Each with its end, where it is long.
    places: Vec<PassInput<'r>>,
}

struct PassInput<'r> {
    number: usize,
    whole: &'r Recording,
    end: Option<&'r Recording>,
}

/// What was read of all recordings.
pub(crate) struct Read {
    /// If it was wanted.
    pub(crate) report: Option<ReportBuilder>,
    /// For `stragglers`.
    pub(crate) job: JobPart,
    /// For `diagnose`.
    pub(crate) snapshots: Vec<Snapshot>,
}

/// What was read of one recording.
struct Part<'r> {
    report: Option<ProcessPart<'r>>,
    job: JobPart,
    snapshot: Option<Snapshot>,
}

impl<'r> Run<'r> {
    fn new(recordings: &'r [Recording], ends: &'r Ends, wish: Option<Wish<'r>>) -> Run<'r> {
        let judged: Vec<&Recording> = recordings
            .iter()
            .zip(&ends.0)
            .map(|(whole, end)| end.as_ref().unwrap_or(whole))
            .collect();
        let job = JobReader::new(&judged);
        let place = |(number, &at): (usize, &usize)| PassInput {
            number,
            whole: &recordings[at],
            end: ends.0[at].as_ref(),
        };
        let places = job.order().iter().enumerate().map(place).collect();
        Run { job, wish, places }
    }

    /// Reads what processes did for one another.
    fn read_pxn(&mut self) {
        let whole: Vec<&Recording> = self.places.iter().map(|place| place.whole).collect();
        self.job.take_pxn(Pxn::read(&whole));
    }

    /// Reads all recordings, each on a thread of its own. Beside what was read: the number of
    /// ProxyOps and steps for other processes.
    fn read(&self, progress: &mut impl FnMut(u64)) -> (Read, u64) {
        let report = self.wish.map(|(_, by)| ReportBuilder::grouped(by.to_vec()));
        let mut read = Read { report, job: self.job.begin(), snapshots: Vec::new() };
        let mut foreign = 0;
        let part = |place: &PassInput<'r>| self.part(place);
        in_order(&self.places, part, |at, Part { report, job, snapshot }| {
            if let Some((sum, report)) = read.report.as_mut().zip(report) {
                foreign += report.foreign();
                sum.add_part(report, self.job.pxn().given(at));
            }
            read.job.add(job);
            read.snapshots.extend(snapshot);
            progress(at as u64 + 1);
        });
        foreign += read.job.foreign();
        (read, foreign)
    }

    fn part(&self, place: &PassInput<'r>) -> Part<'r> {
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
        let report = self.wish.map(|(narrowed, by)| {
            let wanted = Wanted { selection: narrowed.of(place.whole), by: by.to_vec() };
            match place.end {
                None => ProcessPart::of(whole, wanted),
                Some(_) => ProcessPart::read_wanted(place.whole, work, wanted),
            }
        });
        Part { report, job, snapshot }
    }
}
