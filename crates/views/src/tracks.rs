// SPDX-License-Identifier: Apache-2.0
//! Which tracks a rank has in a communicator, and what lies on them.

use crate::pack;
use crate::scene::{Group, Scene, Slice, What};
use ncclscope_operations::Event;
use ncclscope_trace::Detail;
use ncclscope_trace::record::{KernelCh, KernelPhase};
use std::collections::BTreeMap;

/// A row of tracks. Rows whose slices would overlap come as several tracks of one name.
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
            Detail::GroupApi(_)
            | Detail::CollApi(_)
            | Detail::P2pApi(_)
            | Detail::KernelLaunch(_) => Row::Api,
            Detail::Group | Detail::Coll(_) | Detail::P2p(_) => Row::Groups,
            Detail::CeColl(_) | Detail::CeSync(_) | Detail::CeBatch(_) => Row::CopyEngine,
            Detail::KernelCh(KernelCh { channel, .. })
            | Detail::KernelPhase(KernelPhase { channel, .. }) => Row::Kernel { channel },
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
                let way = if is_send { "send to" } else { "recv from" };
                let whose = foreign.map_or(String::new(), |pid| format!(" for process {pid}"));
                format!("Proxy {way} rank {peer}, channel {channel}{whose}")
            }
            Row::Control => "Proxy control".into(),
            Row::Net => "Network plugin".into(),
        }
    }
}

/// The tracks of a process: what the application, or who controls the recording, said.
#[must_use]
pub fn marks(scene: &Scene<'_, '_>) -> Vec<Track> {
    let packed = pack::nested(scene.marks().collect()).into_iter();
    packed.map(|slices| Track { name: "Steps and marks".into(), slices }).collect()
}

/// The tracks of a rank in a communicator, row by row: a row's steps are in memory while its tracks
/// are taken.
pub fn tracks<'s>(scene: &'s Scene<'_, '_>, group: &Group) -> impl Iterator<Item = Track> + 's {
    let mut rows: BTreeMap<Row, Vec<Slice>> = BTreeMap::new();
    let timeline = scene.timeline();
    for (index, operation) in (0..).zip(scene.operations()) {
        if operation.comm == group.comm {
            rows.entry(Row::Operations).or_default().push(scene.operation_slice(index));
        }
    }
    for (id, event) in timeline.events().filter(|(_, e)| timeline.comm_of(e) == group.comm) {
        rows.entry(Row::of(event)).or_default().push(scene.event_slice(id));
    }
    rows.into_iter().flat_map(|(row, slices)| {
        let packed = match row {
            Row::Proxy { .. } => pack::families(&slices, steps(scene, &slices)),
            _ => pack::nested(slices),
        };
        packed.into_iter().map(move |slices| Track { name: row.name(), slices })
    })
}

/// The steps of ProxyOps, each with the index of its ProxyOp.
fn steps(scene: &Scene<'_, '_>, ops: &[Slice]) -> Vec<(usize, Slice)> {
    let of = |(at, op): (usize, &Slice)| {
        let steps = match op.what {
            What::Event(id) => scene.steps_of(id),
            _ => &[],
        };
        steps.iter().map(move |&step| (at, scene.step_slice(step)))
    };
    ops.iter().enumerate().flat_map(of).collect()
}
