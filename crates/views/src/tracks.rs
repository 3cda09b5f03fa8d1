// SPDX-License-Identifier: Apache-2.0
//! The tracks of a rank in a communicator, and the slices on them.

use crate::pack;
use crate::scene::{Scene, Slice, SliceSource};
use crate::view::{Group, View};
use ncclscope_operations::{Event, Parent, Timeline};
use ncclscope_trace::Detail;
use ncclscope_trace::kind::Part;
use ncclscope_trace::record::{KernelCh, KernelPhase};
use std::collections::BTreeMap;

/// A track. A row whose slices overlap consists of several tracks of the same name.
#[derive(Clone, Debug)]
pub struct Track {
    /// Its name.
    pub name: String,
    /// Its slices, which nest, sorted so that each comes before those inside it.
    pub slices: Vec<Slice>,
}

/// Rows in the order in which they are shown.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Row {
    Operations,
    Api,
    Groups,
    CopyEngine,
    Kernel {
        channel: u8,
    },
    /// ProxyOps of a channel; `is_net`: the network plugin's events of their steps.
    Proxy {
        peer: i32,
        is_send: bool,
        channel: u8,
        foreign: Option<u32>,
        is_net: bool,
    },
    Control,
    Net,
}

impl Row {
    fn of(timeline: &Timeline<'_>, event: &Event) -> Row {
        let parent = || match event.parent {
            Parent::Known(parent) => Row::of_channel(timeline.event(parent)),
            _ => None,
        };
        match event.kind().part() {
            Part::Api => Row::Api,
            Part::Plan => Row::Groups,
            Part::CopyEngine => Row::CopyEngine,
            Part::Kernel | Part::Proxy => {
                Row::of_channel(event).or_else(parent).unwrap_or(Row::Control)
            }
            Part::Control => Row::Control,
            Part::Net => parent().map_or(Row::Net, Row::with_net),
        }
    }

    /// The row of the channel that the event names.
    fn of_channel(event: &Event) -> Option<Row> {
        match event.start.detail {
            Detail::KernelCh(KernelCh { channel, .. })
            | Detail::KernelPhase(KernelPhase { channel, .. }) => Some(Row::Kernel { channel }),
            Detail::ProxyOp(op) => Some(Row::Proxy {
                peer: op.peer,
                is_send: op.is_send,
                channel: op.channel,
                foreign: op.foreign.then_some(op.pid),
                is_net: false,
            }),
            _ => None,
        }
    }

    /// The row of the network plugin's events, beside the row of the ProxyOps.
    fn with_net(self) -> Row {
        match self {
            Row::Proxy { peer, is_send, channel, foreign, .. } => {
                Row::Proxy { peer, is_send, channel, foreign, is_net: true }
            }
            other => other,
        }
    }

    fn name(self) -> String {
        match self {
            Row::Operations => "Operations".into(),
            Row::Api => "API calls".into(),
            Row::Groups => "Groups".into(),
            Row::CopyEngine => "Copy engine".into(),
            Row::Kernel { channel } => format!("Kernel channel {channel}"),
            Row::Proxy { peer, is_send, channel, foreign, is_net } => {
                let what = if is_net { "Network plugin" } else { "Proxy" };
                let way = if is_send { "send to" } else { "receive from" };
                let whose = foreign.map_or(String::new(), |pid| format!(" for process {pid}"));
                format!("{what} {way} rank {peer}, channel {channel}{whose}")
            }
            Row::Control => "Proxy control".into(),
            Row::Net => "Network plugin".into(),
        }
    }
}

/// The tracks of a process's marks, which the application or a client of the control socket set.
#[must_use]
pub fn marks(scene: &Scene<'_, '_>) -> Vec<Track> {
    let shown = scene.marks().filter(|slice| scene.is_shown(slice)).collect();
    let packed = pack::nested(shown).into_iter();
    packed.map(|slices| Track { name: "Steps and marks".into(), slices }).collect()
}

/// The tracks of a rank in a communicator, row by row; only one row's steps are in memory at a
/// time.
pub fn tracks<'s>(
    scene: &'s Scene<'_, '_>,
    group: &Group,
) -> impl Iterator<Item = Track> + use<'s> {
    let mut rows: BTreeMap<Row, Vec<Slice>> = BTreeMap::new();
    let mut put = |row: Row, slice: Slice| {
        if scene.is_shown(&slice) {
            rows.entry(row).or_default().push(slice);
        }
    };
    let timeline = scene.timeline();
    let parts = scene.of_comm(group.comm);
    for &index in &parts.operations {
        put(Row::Operations, scene.operation_slice(index));
    }
    for &id in &parts.events {
        put(Row::of(timeline, timeline.event(id)), scene.event_slice(id));
    }
    rows.into_iter().flat_map(|(row, slices)| {
        let packed = match row {
            Row::Proxy { is_net: false, .. } => pack::families(&slices, steps(scene, &slices)),
            _ => pack::nested(slices),
        };
        packed.into_iter().map(move |slices| Track { name: row.name(), slices })
    })
}

/// All tracks of a rank, for formats without groups of tracks; their names distinguish
/// communicators.
pub fn of_view<'s>(scene: &'s Scene<'_, '_>, view: &'s View) -> impl Iterator<Item = Track> + 's {
    let of_group = move |group: &'s Group| {
        let prefix = view.prefix(group);
        tracks(scene, group)
            .map(move |track| Track { name: format!("{prefix}{}", track.name), ..track })
    };
    marks(scene).into_iter().chain(view.groups.iter().flat_map(of_group))
}

/// The steps of ProxyOps, each with the index of its ProxyOp.
fn steps(scene: &Scene<'_, '_>, ops: &[Slice]) -> Vec<(usize, Slice)> {
    let of = |(at, op): (usize, &Slice)| {
        let steps = match op.what {
            SliceSource::Event(id) if scene.shows_steps() => scene.steps_of(id),
            _ => &[],
        };
        let slices = steps.iter().map(|&step| scene.step_slice(step));
        slices.filter(|slice| scene.is_shown(slice)).map(move |slice| (at, slice))
    };
    ops.iter().enumerate().flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::TRACKS;

    #[test]
    fn tracks_have_the_names_of_the_table() {
        let proxy =
            |is_send| Row::Proxy { peer: 3, is_send, channel: 5, foreign: None, is_net: false };
        let kernel = Row::Kernel { channel: 5 };
        let (first, last) = ([Row::Operations, Row::Api, Row::Groups, Row::CopyEngine], Row::Net);
        let rows = first.into_iter().chain([kernel, proxy(true), proxy(false), Row::Control]);
        let rows = rows.chain([proxy(true).with_net(), last]);
        let names = rows.map(|row| row.name().replace('3', "R").replace('5', "C"));
        let names: Vec<String> = ["Steps and marks".to_owned()].into_iter().chain(names).collect();
        assert_eq!(names, TRACKS.iter().map(|(name, ..)| *name).collect::<Vec<_>>());
    }
}
