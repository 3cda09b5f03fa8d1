// SPDX-License-Identifier: Apache-2.0
//! Access to records and counters of a later version in a recording, by the names that the file
//! declares.

use super::Recording;
use crate::record::START;
use std::collections::BTreeMap;

impl Recording {
    /// The name that the file declares for records with this code.
    #[must_use]
    pub fn record_name(&self, code: u8) -> Option<&str> {
        // A later declaration of a code replaces an earlier one.
        let mut declared = self.declared.iter().rev();
        declared.find(|it| it.code == code).map(|it| it.name.as_str())
    }

    /// Number of records in blocks of [`crate::codec::META_LANE`] that this version does not know,
    /// by code.
    #[must_use]
    pub fn unknown_records(&self) -> &BTreeMap<u8, u64> {
        &self.unknown
    }

    /// Lost events of kinds that this version does not know, by the name that the file declares for
    /// the kind's starts, else by the kind's number.
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

    /// Values of the counters that the file declares and this version does not have, by name;
    /// counters at 0 are left out.
    #[must_use]
    pub fn counters_of_later_versions(&self) -> &BTreeMap<String, u64> {
        &self.later_counters
    }
}
