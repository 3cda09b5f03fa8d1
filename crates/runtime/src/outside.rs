// SPDX-License-Identifier: Apache-2.0
//! Changes of NCCL's activation mask that this process did not request: an operator's command to
//! NCCL's RAS (`CONTROL PROFILER_MASK`, from NCCL 2.31 on), or another library. The operator's word
//! stands; it ends the recorded window if events that the recording needs are off.

/// What was requested from NCCL, and what its mask was at the last look.
#[derive(Debug)]
pub(crate) struct Outside {
    /// When the mask was last as requested, ticks.
    ours_at: Option<u64>,
    /// Bits that others had set when the first communicator began.
    others: Option<u32>,
    /// The mask, while it is not as requested.
    changed: Option<u32>,
    /// The sample of the window that the change ended, and that goes on when the events are back.
    pub(crate) resumes: Option<u32>,
    /// Kernel events were requested, and must stay off.
    pub(crate) is_held: bool,
    /// Number of lines logged.
    pub(crate) lines: u32,
}

/// A change of the mask.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Change {
    /// The latest time at which it may not have happened yet, ticks.
    pub(crate) since: u64,
    /// NCCL's mask: the bits that all communicators' have.
    pub(crate) mask: u32,
    /// It is as requested again.
    pub(crate) is_ours: bool,
    /// Requested events are off.
    pub(crate) lacks: bool,
}

impl Outside {
    pub(crate) const fn new() -> Outside {
        Outside {
            ours_at: None,
            others: None,
            changed: None,
            resumes: None,
            is_held: false,
            lines: 0,
        }
    }

    /// Takes the mask at `now` ticks: the bits that it has in all NCCLs of the process, and in any;
    /// `None` without a communicator. Returns what has changed since the last look.
    pub(crate) fn look(&mut self, wanted: u32, mask: Option<[u32; 2]>, now: u64) -> Option<Change> {
        let (all, any) = mask.map_or((wanted, wanted), |[all, any]| (all, any));
        if mask.is_some() {
            self.others.get_or_insert(any & !wanted);
        }
        let lacks = all & wanted != wanted;
        let is_ours = !lacks && any & !wanted & !self.others.unwrap_or(0) == 0;
        let before = self.changed;
        self.changed = (!is_ours).then_some(all);
        let since = if before.is_none() { self.ours_at.unwrap_or(now) } else { now };
        if is_ours {
            self.ours_at = Some(now);
        }
        let change = Change { since, mask: all, is_ours, lacks };
        (self.changed != before).then_some(change)
    }

    /// When the mask was last as requested, ticks.
    pub(crate) fn ours_at(&self) -> Option<u64> {
        self.ours_at
    }

    /// The mask, while it is not as requested.
    pub(crate) fn mask(&self) -> Option<u32> {
        self.changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_told_once_with_the_time_before_it() {
        const OURS: u32 = 0x7f9f;
        let (mut outside, both) = (Outside::new(), |mask| Some([mask; 2]));
        let change = |since, mask, is_ours, lacks| Some(Change { since, mask, is_ours, lacks });
        assert_eq!(outside.look(OURS, None, 10), None);
        assert_eq!(outside.look(OURS, both(OURS | 0x8000), 20), None, "another plugin's bit");
        assert_eq!(outside.look(OURS, both(0), 30), change(20, 0, false, true));
        assert_eq!((outside.look(OURS, both(0), 40), outside.mask()), (None, Some(0)));
        assert_eq!(outside.look(OURS, both(2), 50), change(50, 2, false, true));
        assert_eq!(
            outside.look(OURS, both(OURS | 0x20), 60),
            change(60, OURS | 0x20, false, false)
        );
        assert_eq!(outside.look(OURS, both(OURS), 70), change(70, OURS, true, false));
        assert_eq!(outside.look(OURS, Some([2, OURS]), 80), change(70, 2, false, true));
        assert_eq!(outside.look(OURS, None, 90), change(90, OURS, true, false), "all are gone");
    }
}
