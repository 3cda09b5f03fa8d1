// SPDX-License-Identifier: Apache-2.0
//! What hangs the watchdog cannot see: said once each, and whenever a client asks.

use super::report::Place;
use super::still::Seen;
use ncclscope_analyze::progress::CommView;
use std::collections::BTreeMap;

/// For so long nothing may tell of the end of a communicator's operations: ns. Children are told of
/// late.
const PATIENCE_NS: u64 = 5_000_000_000;
/// Communicators that are named.
const MOST: usize = 8;

/// What cannot be seen.
#[derive(Debug, Default)]
pub(super) struct Blind {
    /// Since when a communicator has operations of which nothing but the enqueuing is told: time
    /// seen, ns. `None` where it was named.
    silent: BTreeMap<u16, Option<u64>>,
    /// What is said of those that are named.
    names: BTreeMap<u16, String>,
    is_told: bool,
    overrun: Option<&'static str>,
}

impl Blind {
    /// Some lost events are not known. A line the first time.
    pub(super) fn overrun(&mut self) -> Option<String> {
        let line = "the watchdog cannot see hangs of what was in flight when events were lost, \
                    because it is not known which: more are lost at once than are kept";
        self.overrun.replace(line).is_none().then(|| line.to_owned())
    }

    /// Looks for communicators whose operations end unseen. A line the first time.
    pub(super) fn look(
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
                "the watchdog cannot see hangs of {} because NCCL tells no more than that their \
                 operations are enqueued: no kernel events, no network, no CUDA events \
                 (NCCLSCOPE_CUDA_EVENTS=on shows them from NCCL 2.28 on)",
                names.join("; ")
            )
        })
    }

    /// All that cannot be seen now.
    pub(super) fn now(&self) -> Vec<String> {
        self.unseen().into_iter().chain(self.overrun.map(str::to_owned)).collect()
    }
}
