// SPDX-License-Identifier: Apache-2.0
//! What a later version wrote into a recording, by the names that the file declares.

use super::Recording;
use crate::record::START;
use std::collections::BTreeMap;

impl Recording {
    /// What the file's writer calls its records with this code.
    #[must_use]
    pub fn record_name(&self, code: u8) -> Option<&str> {
        // A later declaration of a code replaces the one before.
        let mut declared = self.declared.iter().rev();
        declared.find(|it| it.code == code).map(|it| it.name.as_str())
    }

    /// Records of the recording's own that this version does not know: how many of each code.
    #[must_use]
    pub fn unknown_records(&self) -> &BTreeMap<u8, u64> {
        &self.unknown
    }

    /// Records that were lost of kinds of events that this version does not know, by the name that
    /// the file has for the kind's starts, or its number.
    #[must_use]
    pub fn losses_of_later_kinds(&self) -> BTreeMap<String, u64> {
        let lanes = self.lanes.iter().flat_map(|lane| &lane.header.later_kinds);
        let mut losses = BTreeMap::new();
        for (&kind, count) in self.header.later_kinds.iter().chain(lanes) {
            let name = self.record_name(START + kind).map(String::from);
            let losses: &mut u64 =
                losses.entry(name.unwrap_or_else(|| format!("kind {kind}"))).or_default();
            *losses = losses.saturating_add(*count);
        }
        losses
    }

    /// What the counters say that the file declares and this version does not have, by their names;
    /// those at 0 are left out.
    #[must_use]
    pub fn counters_of_later_versions(&self) -> &BTreeMap<String, u64> {
        &self.later_counters
    }
}
