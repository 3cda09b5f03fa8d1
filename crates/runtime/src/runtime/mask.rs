// SPDX-License-Identifier: Apache-2.0
//! Watches NCCL's activation mask: see [`crate::outside`].

use super::Runtime;
use crate::log::Severity;
use crate::outside::Change;
use crate::state::State;
use crate::sys::kernel_hold;
use ncclscope_recorder::{clock, gate};
use ncclscope_trace::{Mark, MarkKind};

/// Maximum number of lines about changes from outside.
const LINES: u32 = 20;

impl Runtime {
    /// Compares NCCL's activation mask with what was requested. If requested events are off, the
    /// window ends, and goes on when they are back.
    pub(super) fn watch_mask(&self, state: &mut State) {
        let Some(events) = state.mask else { return };
        let (masks, now) = (state.masks.look(), clock::now());
        let wanted = match state.outside.resumes {
            Some(_) => events,
            None => state.wanted_mask().unwrap_or(0),
        };
        // After a look that found kernel events off, they must stay off.
        let refused = events & kernel_hold::refused_events();
        let wanted = wanted & !refused;
        let since = state.outside.ours_at().unwrap_or(now);
        let is_news = refused != 0 && !std::mem::replace(&mut state.outside.is_held, true);
        let Some(change) = state.outside.look(wanted, masks, now) else {
            if is_news {
                // They were off for a moment between two looks.
                let value = |is_ours| Mark::mask_value(wanted, is_ours);
                self.moment_at(since, MarkKind::Mask, value(false));
                self.moment_at(now, MarkKind::Mask, value(true));
            }
            return;
        };
        let value = Mark::mask_value(change.mask, change.is_ours);
        self.moment_at(change.since, MarkKind::Mask, value);
        if change.lacks
            && let Some(sample) = gate::sample()
            && gate::stop()
        {
            state.outside.resumes = Some(sample);
            self.moment_at(change.since, MarkKind::Stop, 0);
        }
        if !change.lacks
            && let Some(sample) = state.outside.resumes.take()
        {
            self.moment_at(now, MarkKind::Start, u64::from(sample));
            gate::start();
        }
        state.outside.lines += 1;
        if state.outside.lines <= LINES {
            self.say_mask(change, wanted, refused);
        }
    }

    fn say_mask(&self, Change { mask, is_ours, lacks, .. }: Change, wanted: u32, refused: u32) {
        let kernels = match refused {
            0 => "",
            _ => "; events of kernels stay off, because this NCCL crashes if they are turned on",
        };
        let line = match (is_ours, lacks) {
            (true, _) => {
                let line = format!("NCCL's activation mask is {mask:#x} again, as requested");
                return self.shared.log.say(Severity::Info, &line);
            }
            (_, true) => format!(
                "NCCL's activation mask was changed from outside to {mask:#x} (RAS: CONTROL \
                 PROFILER_MASK): no operation is recorded until it has {wanted:#x} again, or until \
                 `ncclscope start`{kernels}"
            ),
            (_, false) => format!(
                "NCCL's activation mask was changed from outside to {mask:#x} (RAS: CONTROL \
                 PROFILER_MASK): NCCL reports more events than requested"
            ),
        };
        self.shared.problem(&line);
        if kernel_hold::is_strange() {
            self.shared.problem(
                "this NCCL keeps its mask in an unknown place: it may crash when a communicator is \
                 destroyed, if PROFILER_MASK turned kernel events on",
            );
        }
    }
}
