// SPDX-License-Identifier: Apache-2.0
/*!
One pass over the recordings of a run, for the report, for `diagnose` and for `stragglers`.

The records of a recording are decoded and joined once ([`join`]), and each of the three takes what
it needs; none holds a recording. What `stragglers` keeps of an operation grows with a recording, so
of one with more than [`LONG`] bytes of records a report judges only the last of them, and
`diagnose` reads its end by itself, as much as it needs.
*/

use crate::run_input::narrow::Narrowed;
use ncclscope_diagnose::input::recording::{Snapshot, SnapshotReader, snapshot};
use ncclscope_operations::joiner::join;
use ncclscope_operations::parallel::in_order;
use ncclscope_operations::pxn::Pxn;
use ncclscope_report::{By, ProcessPart, ProcessReader, ReportBuilder, Wanted};
use ncclscope_stragglers::input::recording::{JobPart, JobReader};
use ncclscope_trace::Recording;

/// The bytes of its records from which on a recording is long: 8 MiB.
const LONG: u64 = 8 << 20;

/// Where the judged ends of long recordings begin, in ticks, by the recordings' order.
pub(crate) struct Ends(Vec<Option<u64>>);

impl Ends {
    /// For recordings that are judged as a whole.
    pub(crate) fn none(recordings: &[Recording]) -> Ends {
        Ends(vec![None; recordings.len()])
    }

    pub(crate) fn of(recordings: &[Recording]) -> Ends {
        Ends(recordings.iter().map(|recording| recording.start_of_last(LONG)).collect())
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
    recording: &'r Recording,
    /// Where its judged end begins, in ticks, if it is long.
    from: Option<u64>,
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
    fn new(recordings: &'r [Recording], ends: &Ends, wish: Option<Wish<'r>>) -> Run<'r> {
        let job = JobReader::new(&recordings.iter().collect::<Vec<_>>());
        let place = |(number, &at): (usize, &usize)| PassInput {
            number,
            recording: &recordings[at],
            from: ends.0[at],
        };
        let places = job.order().iter().enumerate().map(place).collect();
        Run { job, wish, places }
    }

    /// Reads what processes did for one another.
    fn read_pxn(&mut self) {
        self.job.take_pxn(Pxn::read(self.job.recordings()));
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

    fn part(&self, &PassInput { number, recording, from }: &PassInput<'r>) -> Part<'r> {
        let work = self.job.pxn().work(number);
        let wanted = self
            .wish
            .map(|(narrowed, by)| Wanted { selection: narrowed.of(recording), by: by.to_vec() });
        let report = wanted.map(|wanted| ProcessReader::new(wanted, recording));
        let hang = from.is_none().then(|| SnapshotReader::new(recording));
        let mut readers = (self.job.process(number, from), (report, hang));
        let joined = join(recording, work, &mut readers);
        let (job, (report, hang)) = readers;
        let job = job.finish(&joined);
        let snapshot = match hang {
            Some(hang) => Some(hang.finish(&joined)),
            None => snapshot(recording.path(), work).ok(),
        };
        Part { job, snapshot, report: report.map(|report| report.finish(joined)) }
    }
}
