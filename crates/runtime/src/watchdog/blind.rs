// SPDX-License-Identifier: Apache-2.0
//! Hangs that the watchdog cannot see: reported once each, and whenever a client asks.

use super::place::Place;
use super::still::Seen;
use ncclscope_operations::progress::CommView;
use std::collections::BTreeMap;

/// For so long nothing may show the end of a communicator's operations: ns. NCCL reports children
/// late.
const PATIENCE_NS: u64 = 5_000_000_000;
/// Communicators that are named.
const MOST: usize = 8;
/// That not all is recorded is said no more often than that, for there may be a window a minute:
/// time seen, ns.
const AGAIN_NS: u64 = 3_600_000_000_000;
/// Lost events are reported no more often than that: time seen, ns.
const OVERRUN_AGAIN_NS: u64 = 60_000_000_000;

/// What cannot be seen.
#[derive(Debug, Default)]
pub(super) struct Blind {
    /// Since when NCCL reports nothing but the enqueuing of a communicator's operations: time
    /// seen, ns. `None` where it was named.
    silent: BTreeMap<u16, Option<u64>>,
    /// The text for those that are named.
    names: BTreeMap<u16, String>,
    is_told: bool,
    /// CUDA events were requested.
    pub(super) has_cuda_events: bool,
    /// The report of lost events, and the time of the last one: time seen, ns.
    overrun: Option<(&'static str, u64)>,
    left_out: LeftOut,
}

/// That operations which begin now are left out of the recording.
#[derive(Debug, Default)]
struct LeftOut {
    /// Every how many-th is recorded; 0 none, `None` each.
    every: Option<u32>,
    /// The present state was reported.
    is_told: bool,
    /// When it was said last that none is recorded, and that some are: time seen, ns.
    told: [Option<u64>; 2],
}

impl LeftOut {
    /// Every `sample`-th operation is recorded, as of now. A line when that is news.
    fn look(&mut self, sample: Option<u32>, seen: Seen) -> Option<String> {
        let every = match sample {
            None => Some(0),
            Some(0 | 1) => None,
            more => more,
        };
        self.is_told &= self.every == every;
        self.every = every;
        let told = self.told.get_mut(usize::from(every? > 0))?;
        let is_due = told.is_none_or(|told| seen.total() - told >= AGAIN_NS);
        if self.is_told || !is_due {
            return None;
        }
        (self.is_told, *told) = (true, Some(seen.total()));
        self.now()
    }

    fn now(&self) -> Option<String> {
        Some(match self.every? {
            0 => {
                "the watchdog cannot see hangs of operations issued while recording is stopped, as \
                  it is now"
                    .to_owned()
            }
            every => format!(
                "the watchdog cannot see hangs of unrecorded operations: one operation in \
                 {every} is recorded now"
            ),
        })
    }
}

impl Blind {
    /// Some lost events are not known. A line, unless there was one a minute ago or less.
    pub(super) fn overrun(&mut self, seen: Seen) -> Option<String> {
        let line = "the watchdog cannot see hangs of operations in flight when events were \
                    lost: too many were lost at once to know which ones";
        let is_due = self.overrun.is_none_or(|(_, at)| seen.total() - at >= OVERRUN_AGAIN_NS);
        is_due.then(|| {
            self.overrun = Some((line, seen.total()));
            line.to_owned()
        })
    }

    /// The communicator is gone, perhaps while nothing was recorded.
    pub(super) fn forget(&mut self, comm: u16) {
        self.silent.remove(&comm);
        self.names.remove(&comm);
    }

    /// Looks for what is left out, and for communicators whose operations end unseen; every
    /// `sample`-th operation is recorded, as of now. A line for each when that is news.
    pub(super) fn look(
        &mut self,
        sample: Option<u32>,
        comms: impl Iterator<Item = CommView>,
        place: &Place,
        seen: Seen,
    ) -> Vec<String> {
        let left_out = self.left_out.look(sample, seen);
        let silent = match sample {
            Some(_) => self.look_at(comms, place, seen),
            None => {
                // While nothing is recorded, that nothing comes says nothing.
                self.silent.retain(|_, since| since.is_none());
                None
            }
        };
        left_out.into_iter().chain(silent).collect()
    }

    fn look_at(
        &mut self,
        comms: impl Iterator<Item = CommView>,
        place: &Place,
        seen: Seen,
    ) -> Option<String> {
        for comm in comms {
            let is_silent = comm.colls + comm.p2ps > 0 && !comm.has_ends && !comm.ended;
            if !is_silent {
                self.silent.remove(&comm.comm);
                self.names.remove(&comm.comm);
                continue;
            }
            let since = self.silent.entry(comm.comm).or_insert_with(|| Some(seen.total()));
            let is_late = |since: u64| seen.total() - since >= PATIENCE_NS;
            if since.is_some_and(is_late) {
                *since = None;
                self.names.insert(comm.comm, place.on_comm(comm.comm));
            }
        }
        let line = self.unseen()?;
        (!std::mem::replace(&mut self.is_told, true)).then_some(line)
    }

    fn unseen(&self) -> Option<String> {
        let count = self.names.len();
        let mut names: Vec<String> = self.names.values().take(MOST).cloned().collect();
        if count > MOST {
            names.push(format!("{} more", count - MOST));
        }
        (count > 0).then(|| {
            format!(
                "the watchdog cannot see hangs of {} because NCCL reports only that their \
                 operations are enqueued: no kernel events, no network, no CUDA events{}",
                names.join("; "),
                match self.has_cuda_events {
                    true => "",
                    false => " (NCCLSCOPE_CUDA_EVENTS=on shows them from NCCL 2.28 on)",
                }
            )
        })
    }

    /// All that cannot be seen now.
    pub(super) fn now(&self) -> Vec<String> {
        let overrun = self.overrun.map(|(line, _)| line.to_owned());
        self.left_out.now().into_iter().chain(self.unseen()).chain(overrun).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_loss_is_said_again_but_not_each_of_many() {
        const S: u64 = 1_000_000_000;
        let (mut blind, mut seen) = (Blind::default(), Seen::default());
        let mut said = Vec::new();
        for second in 0..200 {
            seen.tick(second * S);
            said.extend(blind.overrun(seen).map(|_| second));
        }
        assert_eq!(said, [0, 60, 120, 180]);
        assert_eq!(blind.now().len(), 1);
    }

    #[test]
    fn that_not_all_is_recorded_is_said_when_it_becomes_so_but_not_of_each_window() {
        const S: u64 = 1_000_000_000;
        let (mut left_out, mut seen, mut said) = (LeftOut::default(), Seen::default(), Vec::new());
        let mut look = |from: u64, until: u64, sample| {
            for second in from..until {
                seen.tick(second * S);
                said.extend(left_out.look(sample, seen).map(|line| (second, line)));
            }
            (std::mem::take(&mut said), left_out.now())
        };
        assert_eq!(look(1, 9, Some(1)), (vec![], None));
        let (said, now) = look(9, 60, None);
        assert!(now.as_ref().is_some_and(|now| now.contains("recording is stopped")), "{now:?}");
        assert_eq!(said, [(9, now.unwrap())], "once");
        let mut windows = Vec::new();
        for minute in 1..=125 {
            assert_eq!(look(minute * 60, minute * 60 + 5, Some(1)), (vec![], None));
            windows.extend(look(minute * 60 + 5, minute * 60 + 60, None).0);
        }
        let at: Vec<u64> = windows.iter().map(|(second, _)| *second).collect();
        assert_eq!(at, [3609, 7209], "an hour later, and no line a window");
        let (said, now) = look(7560, 7700, Some(16));
        assert!(said[0].1.contains("one operation in 16"), "{said:?}");
        assert_eq!((said.len(), said[0].0), (1, 7560), "that is another matter");
        assert_eq!(now.as_ref(), Some(&said[0].1));
    }

    #[test]
    fn what_is_on_is_not_recommended() {
        let mut blind = Blind::default();
        blind.names.insert(0, "communicator 0x1".into());
        assert!(blind.now()[0].contains("NCCLSCOPE_CUDA_EVENTS=on"));
        blind.has_cuda_events = true;
        assert!(blind.now()[0].ends_with("no kernel events, no network, no CUDA events"));
    }
}
