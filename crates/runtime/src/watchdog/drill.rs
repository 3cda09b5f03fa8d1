// SPDX-License-Identifier: Apache-2.0
//! A simulated hang: the records of an operation that does not exist, with a detector of their own.
//!
//! Nothing else is simulated. According to its records the operation is in flight; it stands still
//! in real time, is reported as stuck after a limit, and ends with its kernel. A drill therefore
//! fails if the watchdog would fail.

use super::clock::Clock;
use super::detect::Detector;
use super::still::Seen;
use super::subject::Suspect;
use ncclscope_operations::progress::{LaunchFate, LiveState};
use ncclscope_recorder::clock as ticks;
use ncclscope_trace::record::{Coll, KernelCh};
use ncclscope_trace::{Comm, Detail, EventKind, Handle, Record, Start};
use std::time::Duration;

/// Maximum limit of a drill, ns: the user does not wait for five minutes.
const MOST_NS: u64 = 1_000_000_000;
/// Process bits of the drill's handles, which are never compared with recorded events.
const PROCESS: u64 = 1;
/// The lane of the drill's records.
const LANE: usize = 0;

/// A simulated hang in progress.
#[derive(Debug)]
pub(super) struct Drill {
    pub(super) detector: Detector,
    comm: u16,
    length_ns: u64,
    limit_ns: u64,
    /// Time of the first look, ns of `CLOCK_MONOTONIC`; `None` before it.
    begun: Option<u64>,
    is_found: bool,
    is_ended: bool,
}

impl Drill {
    /// A drill of `length` on communicator `comm`, in a process whose limit for hangs is `limit`
    /// ns. The drill's own limit is at most a second and at most half of its length.
    pub(super) fn new(length: Duration, limit: u64, comm: Option<Comm>) -> Drill {
        let length_ns = u64::try_from(length.as_nanos()).unwrap_or(u64::MAX);
        let comm = comm.unwrap_or_else(|| Comm { index: u16::MAX, ..Comm::default() });
        let mut detector = Detector::default();
        detector.tracker.comm(&comm);
        let limit_ns = limit.min(length_ns / 2).min(MOST_NS);
        let (begun, is_found, is_ended) = (None, false, false);
        Drill { detector, comm: comm.index, length_ns, limit_ns, begun, is_found, is_ended }
    }

    /// What stands still in the drill, whether stuck or not.
    pub(super) fn look(&mut self, clock: Clock, seen: Seen) -> Vec<Suspect> {
        let now = ticks::now_ns();
        let begun = *self.begun.get_or_insert(now);
        if begun == now {
            // Adds an earlier operation that is over, because a communicator's first operation has
            // a longer limit.
            let before = clock.now.saturating_sub(clock.hz.saturating_mul(2)).max(1);
            self.coll(1, before);
            self.end(1, before);
            self.coll(2, clock.now);
        }
        // Even a short drill ends only after it was found.
        self.is_found |= self.detector.count() > 0;
        if self.is_found && now.saturating_sub(begun) >= self.length_ns {
            self.end(2, clock.now);
            self.is_ended = true;
        }
        let outside = LiveState { is_live: &|_| false, fate: &|_| LaunchFate::Unknown };
        self.detector.look(clock, seen, &outside);
        self.detector.suspects(clock, self.limit_ns, self.limit_ns)
    }

    /// True if the drill's operation has ended and that was reported.
    pub(super) fn is_over(&self) -> bool {
        self.is_ended && self.detector.count() == 0
    }

    /// Adds records: operation `number` is enqueued, and its kernel starts.
    fn coll(&mut self, number: u64, ticks: u64) {
        let coll = handle(EventKind::Coll, number);
        let detail = Detail::Coll(Coll { count: 1, channels: 1, ..Coll::default() });
        self.start(coll, Handle::NULL, detail, ticks);
        self.put(&Record::stop(ticks, coll));
        let detail = Detail::KernelCh(KernelCh { channel: 0, ptimer: 0 });
        self.start(handle(EventKind::KernelCh, number), coll, detail, ticks);
    }

    /// Adds records: the kernel of operation `number` stops.
    fn end(&mut self, number: u64, ticks: u64) {
        self.put(&Record::stop(ticks, handle(EventKind::KernelCh, number)));
    }

    fn start(&mut self, handle: Handle, parent: Handle, detail: Detail, ticks: u64) {
        self.put(&Start { ticks, comm: self.comm, handle, parent, detail }.pack());
    }

    fn put(&mut self, record: &ncclscope_trace::record::Packed) {
        self.detector.tracker.words(LANE, record.words());
    }
}

fn handle(kind: EventKind, number: u64) -> Handle {
    Handle::value(PROCESS, kind, LANE, number)
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn a_drill_is_found_by_the_detector_and_over_with_its_kernel() {
        let mut drill = Drill::new(Duration::from_millis(60), 300 * S, None);
        let (mut seen, mut found, mut over) = (Seen::default(), Vec::new(), 0);
        let begun = ticks::now_ns();
        while !drill.is_over() {
            assert!(ticks::now_ns() - begun < 30 * S, "it ends");
            seen.tick(ticks::now_ns());
            let clock = Clock { now: ticks::now_ns(), hz: S };
            for suspect in drill.look(clock, seen) {
                if suspect.is_stuck() {
                    found.push((suspect.still_ns, suspect.limit_ns));
                    let hang = super::super::OwnProcess::default().blank(0, clock);
                    drill.detector.add(suspect.into_stuck(Some(hang), seen));
                }
            }
            over += drill.detector.take_over().len();
            std::thread::sleep(Duration::from_millis(5));
        }
        let [(still, limit)] = found.as_slice() else { panic!("once: {found:?}") };
        assert!(*limit == 30_000_000 && still >= limit, "by its own limit: {found:?}");
        assert_eq!(over, 1);
    }
}
