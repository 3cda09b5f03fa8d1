// SPDX-License-Identifier: Apache-2.0
//! Which tracks a rank has, and what lies on them.

use crate::pack;
use crate::scene::{Scene, Slice, View};
use ncclscope_analyze::{Event, EventId};
use ncclscope_trace::{Detail, EventKind};
use std::collections::{BTreeMap, HashMap};

/// A row of a rank. Rows whose slices would overlap come as several tracks of one name.
#[derive(Clone, Debug)]
pub struct Track {
    /// What it is called.
    pub name: String,
    /// Its slices, sorted such that each comes before those inside it. They nest.
    pub slices: Vec<Slice>,
}

/// Rows in the order in which they are shown.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Row {
    Operations,
    Api,
    Groups,
    CopyEngine,
    Kernel { channel: u8 },
    Proxy { peer: i32, is_send: bool, channel: u8, foreign: Option<u32> },
    Control,
    Net,
}

impl Row {
    fn of(event: &Event) -> Row {
        match event.start.detail {
            Detail::GroupApi { .. }
            | Detail::CollApi(_)
            | Detail::P2pApi(_)
            | Detail::KernelLaunch { .. } => Row::Api,
            Detail::Group | Detail::Coll(_) | Detail::P2p(_) => Row::Groups,
            Detail::CeColl(_) | Detail::CeSync { .. } | Detail::CeBatch { .. } => Row::CopyEngine,
            Detail::KernelCh { channel, .. } | Detail::KernelPhase { channel, .. } => {
                Row::Kernel { channel }
            }
            Detail::ProxyOp(op) => Row::Proxy {
                peer: op.peer,
                is_send: op.is_send,
                channel: op.channel,
                foreign: op.foreign.then_some(op.pid),
            },
            Detail::ProxyCtrl => Row::Control,
            Detail::NetPlugin(_) => Row::Net,
        }
    }

    fn name(self) -> String {
        match self {
            Row::Operations => "Operations".into(),
            Row::Api => "API calls".into(),
            Row::Groups => "Groups".into(),
            Row::CopyEngine => "Copy engine".into(),
            Row::Kernel { channel } => format!("Kernel channel {channel}"),
            Row::Proxy { peer, is_send, channel, foreign } => {
                let way = if is_send { "send to" } else { "receive from" };
                let whose = foreign.map_or(String::new(), |pid| format!(" for process {pid}"));
                format!("Proxy {way} rank {peer}, channel {channel}{whose}")
            }
            Row::Control => "Proxy control".into(),
            Row::Net => "Network plugin".into(),
        }
    }
}

/// The tracks of a rank.
#[must_use]
pub fn tracks(scene: &Scene<'_, '_>, view: &View) -> Vec<Track> {
    let mut rows: BTreeMap<Row, Vec<Slice>> = BTreeMap::new();
    let timeline = scene.timeline();
    for (index, operation) in (0..).zip(scene.operations()) {
        if operation.comm == view.comm {
            rows.entry(Row::Operations).or_default().push(scene.operation_slice(index));
        }
    }
    let mut steps = steps_by_op(scene);
    let mut inner: BTreeMap<Row, Vec<(usize, Slice)>> = BTreeMap::new();
    for (id, event) in timeline.events().filter(|(_, e)| timeline.comm_of(e) == view.comm) {
        let row = Row::of(event);
        let outer = rows.entry(row).or_default();
        if event.kind() == EventKind::ProxyOp {
            let own = steps.remove(&id).unwrap_or_default();
            let own = own.into_iter().map(|step| (outer.len(), scene.step_slice(step)));
            inner.entry(row).or_default().extend(own);
        }
        outer.push(scene.event_slice(id));
    }
    let mut tracks = Vec::new();
    for (row, slices) in rows {
        let packed = match inner.remove(&row) {
            Some(steps) => pack::families(&slices, steps),
            None => pack::nested(slices),
        };
        tracks.extend(packed.into_iter().map(|slices| Track { name: row.name(), slices }));
    }
    tracks
}

fn steps_by_op(scene: &Scene<'_, '_>) -> HashMap<EventId, Vec<u32>> {
    let mut steps: HashMap<EventId, Vec<u32>> = HashMap::new();
    for (index, (op, _)) in (0..).zip(scene.timeline().steps()) {
        steps.entry(*op).or_default().push(index);
    }
    steps
}
