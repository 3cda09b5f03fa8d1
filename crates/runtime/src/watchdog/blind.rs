// SPDX-License-Identifier: Apache-2.0
//! Kinds of hangs that the watchdog cannot see: reported once each, and whenever a client asks.

use super::own_process::OwnProcess;
use super::still::Seen;
use ncclscope_control::value::CudaEvents;
use ncclscope_operations::progress::CommView;
use std::collections::BTreeMap;

/// How long a communicator must have operations without a visible end until it is reported, ns.
/// NCCL reports children late.
const PATIENCE_NS: u64 = 5_000_000_000;
/// Maximum number of communicators that are named.
const MOST: usize = 8;
/// Minimum time between two reports that operations are left out of the recording, because there
/// may be a window every minute; time seen, ns.
const AGAIN_NS: u64 = 3_600_000_000_000;
/// Minimum time between two reports of lost events; time seen, ns.
const OVERRUN_AGAIN_NS: u64 = 60_000_000_000;

/// The kinds of hangs that cannot be seen at present.
#[derive(Debug, Default)]
pub(super) struct Blind {
    /// By communicator: since when NCCL has reported only that operations are enqueued (time seen,
    /// ns), or `None` if the communicator was reported.
    silent: BTreeMap<u16, Option<u64>>,
    /// The text for each reported communicator.
    names: BTreeMap<u16, String>,
    is_told: bool,
    /// Which launches have CUDA events.
    pub(super) cuda_events: CudaEvents,
    /// NCCL's activation mask, if others than the plugin changed it.
    pub(super) others_mask: Option<u32>,
    /// The report of lost events, and when it was last made (time seen, ns).
    overrun: Option<(&'static str, u64)>,
    left_out: LeftOut,
}

/// Whether new operations are left out of the recording, and what was reported about it.
#[derive(Debug, Default)]
struct LeftOut {
    /// One operation in this many is recorded; `Some(0)` if none, `None` if all.
    every: Option<u32>,
    /// The present value was reported.
    is_told: bool,
    /// When it was last reported that no operations are recorded, and that only some are; time
    /// seen, ns.
    told: [Option<u64>; 2],
}

impl LeftOut {
    /// Takes the present sample (`None`: no operation is recorded). Returns a line if it is to be
    /// reported.
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
    /// Notes that lost events are unknown. Returns a line, unless there was one within the last
    /// minute.
    pub(super) fn overrun(&mut self, seen: Seen) -> Option<String> {
        let line = "the watchdog cannot see hangs of operations in flight when events were \
                    lost: too many were lost at once to know which ones";
        let is_due = self.overrun.is_none_or(|(_, at)| seen.total() - at >= OVERRUN_AGAIN_NS);
        is_due.then(|| {
            self.overrun = Some((line, seen.total()));
            line.to_owned()
        })
    }

    /// Forgets a communicator that is gone, perhaps while nothing was recorded.
    pub(super) fn forget(&mut self, comm: u16) {
        self.silent.remove(&comm);
        self.names.remove(&comm);
    }

    /// Checks whether operations are left out (`sample` as in
    /// [`gate::sample`](ncclscope_recorder::gate::sample)), and which communicators have operations
    /// without a visible end. Returns a line for each change to be reported.
    pub(super) fn look(
        &mut self,
        sample: Option<u32>,
        comms: impl Iterator<Item = CommView>,
        own: &OwnProcess,
        seen: Seen,
    ) -> Vec<String> {
        let left_out = match self.others_mask {
            // The runtime logs it.
            Some(_) => None,
            None => self.left_out.look(sample, seen),
        };
        let silent = match sample {
            Some(_) => self.look_at(comms, own, seen),
            None => {
                // While nothing is recorded, the absence of events means nothing.
                self.silent.retain(|_, since| since.is_none());
                None
            }
        };
        left_out.into_iter().chain(silent).collect()
    }

    fn look_at(
        &mut self,
        comms: impl Iterator<Item = CommView>,
        own: &OwnProcess,
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
                self.names.insert(comm.comm, own.on_comm(comm.comm));
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
                match self.cuda_events {
                    CudaEvents::Auto | CudaEvents::On => "",
                    CudaEvents::Off => " (NCCLSCOPE_CUDA_EVENTS=auto shows them from NCCL 2.28 on)",
                }
            )
        })
    }

    /// All kinds of hangs that cannot be seen now, one line each.
    pub(super) fn now(&self) -> Vec<String> {
        let overrun = self.overrun.map(|(line, _)| line.to_owned());
        let left_out = match self.others_mask {
            Some(mask) => Some(format!(
                "the watchdog cannot see hangs of operations issued now: NCCL's activation mask \
                 was changed from outside to {mask:#x} (RAS: CONTROL PROFILER_MASK)"
            )),
            None => self.left_out.now(),
        };
        left_out.into_iter().chain(self.unseen()).chain(overrun).collect()
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
        let mut blind = Blind { cuda_events: CudaEvents::Off, ..Blind::default() };
        blind.names.insert(0, "communicator 0x1".into());
        assert!(blind.now()[0].contains("NCCLSCOPE_CUDA_EVENTS=auto"));
        blind.cuda_events = CudaEvents::Auto;
        assert!(blind.now()[0].ends_with("no kernel events, no network, no CUDA events"));
    }
}
