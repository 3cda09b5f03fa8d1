// SPDX-License-Identifier: Apache-2.0
/*!
Estimates the size of a trace before it is written.

A network step becomes up to four slices, and all other records together less than one each. So the
estimate has one term for each; the share of steps in a lane is taken from its first records. The
factors were measured on simulated jobs of 2 to 64 ranks. A test compares the estimate with traces
of other jobs, and fails beyond a factor of 2.
*/

use ncclscope_operations::stats::{to_f64, to_u64};
use ncclscope_trace::reader::Lane;
use ncclscope_trace::{Record, Recording};

/// Greatest trace that Perfetto's UI opens in a browser, bytes; its memory is limited to 4 GiB.
pub const UI_MAX: u64 = 2_000_000_000;

/// Number of records per lane that are sampled.
const SAMPLE: usize = 512;

/// A format of traces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Perfetto's: one file, or one for each process.
    Pftrace,
    /// Chrome's JSON.
    Chrome,
}

impl Kind {
    /// Bytes per network step, and per other record.
    const fn bytes(self) -> (f64, f64) {
        match self {
            Kind::Pftrace => (195.0, 34.0),
            Kind::Chrome => (720.0, 117.0),
        }
    }
}

/// An upper bound of the bytes of a trace of these recordings, for any records. It decodes nothing.
#[must_use]
pub fn most<'r>(recordings: impl IntoIterator<Item = &'r Recording>, kind: Kind) -> u64 {
    let lanes = recordings.into_iter().flat_map(Recording::lanes);
    let records: u64 = lanes.map(Lane::records).sum();
    to_u64(to_f64(records) * kind.bytes().0)
}

/// An estimate of the bytes of a trace of these recordings.
#[must_use]
pub fn estimate<'r>(recordings: impl IntoIterator<Item = &'r Recording>, kind: Kind) -> u64 {
    to_u64(recordings.into_iter().map(|recording| of_one(recording, kind)).sum())
}

fn of_one(recording: &Recording, kind: Kind) -> f64 {
    let (step, other) = kind.bytes();
    let lanes = recording.lanes().iter().enumerate().filter(|(_, lane)| lane.records() != 0);
    let of_lane = |(number, lane): (usize, &Lane)| {
        let (mut steps, mut all) = (0u64, 0u64);
        for record in recording.records(number).take(SAMPLE) {
            steps += u64::from(matches!(record, Record::Step(_)));
            all += 1;
        }
        let share = to_f64(steps) / to_f64(all.max(1));
        to_f64(lane.records()) * (share * step + (1.0 - share) * other)
    };
    lanes.map(of_lane).sum()
}
