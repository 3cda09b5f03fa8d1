// SPDX-License-Identifier: Apache-2.0
//! When the application last called NCCL, and when an event last completed: in the process, and on
//! each of its communicators, since a process may run several ranks.

use ncclscope_operations::Timeline;
use ncclscope_trace::EventKind;

/// Times in ticks; 0 never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Activity {
    /// The application last called NCCL.
    pub(super) call: u64,
    /// The latest of this call and the last completion of an event.
    pub(super) change: u64,
}

/// The activity of a process, and of its communicators by position.
#[derive(Clone, Debug, Default)]
pub(super) struct Activities {
    pub(super) process: Activity,
    pub(super) comms: Vec<Activity>,
}

impl Activities {
    /// `beats` are the latest calls of communicators by their heartbeats, which are up to a second
    /// late: they are used where calls are missing in the recording.
    pub(super) fn of(timeline: &Timeline<'_>, beats: &[u64], is_partial: bool) -> Activities {
        let (mut process, mut comms) =
            (Activity::default(), vec![Activity::default(); beats.len()]);
        for (_, event) in timeline.events() {
            let is_call = matches!(
                event.kind(),
                EventKind::CollApi | EventKind::P2pApi | EventKind::Coll | EventKind::P2p
            );
            let call = if is_call { event.start.ticks } else { 0 };
            let stop = event.stop.unwrap_or(0);
            let comm = timeline.comm_of(event).and_then(|at| comms.get_mut(at));
            for of in [Some(&mut process), comm].into_iter().flatten() {
                (of.call, of.change) = (of.call.max(call), of.change.max(stop));
            }
        }
        let has_all_calls = !is_partial && timeline.recording().is_whole();
        let latest = beats.iter().max().unwrap_or(&0);
        let all = std::iter::once((&mut process, latest)).chain(comms.iter_mut().zip(beats));
        for (of, &beat) in all {
            if of.call == 0 || !has_all_calls {
                of.call = of.call.max(beat);
            }
            of.change = of.change.max(of.call);
        }
        Activities { process, comms }
    }
}
