// SPDX-License-Identifier: Apache-2.0
//! Looks up the names of functions and algorithms, which records contain as string ids.

use crate::facts::Facts;
use crate::hash::Map;
use crate::kernels::Drifts;
use ncclscope_trace::StrId;

/// The strings of the process's table.
#[derive(Debug, Default)]
pub(super) struct Names {
    texts: Map<StrId, String>,
    /// Finds the operations whose kernel events are not used.
    pub(super) drifts: Drifts,
}

impl Names {
    pub(super) fn string(&mut self, id: StrId, text: &str) {
        self.texts.insert(id, text.to_owned());
        self.drifts.string(id, text);
    }

    /// Whether the stop of an operation's kernel is not its end.
    pub(super) fn stops_early(&self, facts: &Facts) -> bool {
        facts.stops_early(|id| self.texts.get(&id).map_or("", String::as_str))
    }
}
