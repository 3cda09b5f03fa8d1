// SPDX-License-Identifier: Apache-2.0
//! What the names of functions and algorithms say, for records have only their numbers.

use super::ops::Facts;
use crate::ends::is_stop_end;
use crate::hash::Map;
use crate::kernels::Drifts;
use ncclscope_trace::StrId;

/// The strings of the process's table.
#[derive(Debug, Default)]
pub(super) struct Names {
    texts: Map<StrId, String>,
    /// Whose kernels are not believed.
    pub(super) drifts: Drifts,
}

impl Names {
    pub(super) fn string(&mut self, id: StrId, text: &str) {
        self.texts.insert(id, text.to_owned());
        self.drifts.string(id, text);
    }

    /// Whether the stop of an operation's kernel is not its end.
    pub(super) fn stops_early(&self, facts: &Facts) -> bool {
        let text = |id: StrId| self.texts.get(&id).map_or("", String::as_str);
        // A symmetric kernel has no number of channels.
        let is_symmetric = facts.wanted == 0;
        facts.is_p2p() || !is_stop_end(text(facts.func), text(facts.algo), is_symmetric)
    }
}
