// SPDX-License-Identifier: Apache-2.0
/*!
What this process's proxy thread does for other processes of its node (PXN).

The operation itself is in the other process, whose events do not show the transfer. So a transfer
that stands still can be seen here only, without the operation that it belongs to.
*/

use super::proxies::{Owner, Proxies, ProxyView};
use crate::hash::Map;
use std::collections::BTreeMap;

/// Maximum number of owners whose latest end is kept.
const MOST: usize = 4096;

/// The transfers in flight for one communicator of another process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignWork {
    /// Whose they are.
    pub owner: Owner,
    /// The transfers, the one with the oldest change first.
    pub ops: Vec<ProxyView>,
    /// Latest change of any of them, or end of one before them, in ticks.
    pub since: u64,
    /// None before them has ended.
    pub is_first: bool,
}

/// The latest end of a transfer of each owner, in ticks.
#[derive(Debug, Default)]
pub(super) struct ForeignEnds {
    ends: Map<Owner, u64>,
}

impl ForeignEnds {
    pub(super) fn ended(&mut self, owner: Owner, ticks: u64) {
        // An owner that is forgotten counts as new: its caller's limit for a first one is longer.
        if self.ends.len() >= MOST && !self.ends.contains_key(&owner) {
            self.ends.clear();
        }
        let end = self.ends.entry(owner).or_default();
        *end = (*end).max(ticks);
    }

    /// The work in flight, in the order of the owners.
    pub(super) fn work(&self, proxies: &Proxies) -> Vec<ForeignWork> {
        let mut works: BTreeMap<Owner, Vec<ProxyView>> = BTreeMap::new();
        for view in proxies.views() {
            if let Some(owner) = view.owner {
                works.entry(owner).or_default().push(view);
            }
        }
        let work = |(owner, ops): (Owner, Vec<ProxyView>)| {
            let end = self.ends.get(&owner).copied();
            let since = ops.iter().map(|op| op.changed).chain(end).max().unwrap_or(0);
            ForeignWork { owner, ops, since, is_first: end.is_none() }
        };
        works.into_iter().map(work).collect()
    }
}
