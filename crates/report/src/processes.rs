// SPDX-License-Identifier: Apache-2.0
//! The rows of processes, and of their ranks.

use crate::schema::{Clock, EventCounts, Fact, ProcessRow, RankRow};
use ncclscope_operations::counts::Counts;
use ncclscope_operations::human;
use ncclscope_operations::stats::to_f64;
use ncclscope_operations::threads::roles;
use ncclscope_trace::identity::is_number;
use ncclscope_trace::kind::KINDS;
use ncclscope_trace::{EventKind, Recording, State, TickMap};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// An empty row of a process in a communicator.
pub(crate) fn empty_row(recording: &Recording) -> RankRow {
    let header = recording.header();
    RankRow {
        rank: None,
        comm_rank: None,
        nranks: None,
        nodes: None,
        device: None,
        host: header.host.clone(),
        pid: header.pid,
        comm: None,
        comm_name: None,
        role: None,
        nccl_version: None,
        api_version: None,
        events: BTreeMap::new(),
        states: BTreeMap::new(),
        threads: roles(recording),
        clock: Clock {
            source: header.clock.name(),
            error_ns: recording.tick_map().error_ns(),
            gpu_error_ns: None,
            gpu_granularity_ns: None,
        },
        start_ns: None,
        end_ns: recording
            .has_clock()
            .then(|| recording.tick_map().realtime_ns(recording.last_ticks())),
        file: file_name(recording),
    }
}

pub(crate) fn process_row(recording: &Recording) -> ProcessRow {
    let facts = recording.identity().entries().into_iter().map(|(key, text)| {
        let number = || text.parse().ok().filter(|_| is_number(key));
        (key.to_owned(), number().map_or_else(|| Fact::Text(text.clone()), Fact::Number))
    });
    let is_damaged = !recording.damage_in_short().is_empty();
    ProcessRow { file: file_name(recording), identity: facts.collect(), is_damaged }
}

/// The problem that the host's clock was set during the recording; `None` if it was not.
pub(crate) fn clock_steps(clock: &TickMap) -> Option<String> {
    let (first, more) = clock.steps().split_first()?;
    let length = human::duration(to_f64(first.unsigned_abs()));
    let way = if *first < 0 { "back" } else { "forward" };
    let more = if more.is_empty() { String::new() } else { format!(", and {} more", more.len()) };
    Some(format!(
        "the host's clock was set {length} {way}{more}: all times are by how it was set last"
    ))
}

/// Fills in the counts of events and states.
pub(crate) fn fill_counts(row: &mut RankRow, counts: &Counts, dropped: &[u64; KINDS]) {
    for kind in EventKind::ALL {
        let count = counts.kind(kind);
        let events = EventCounts {
            started: count.started,
            stopped: count.stopped,
            open: count.started - count.stopped,
            dropped: dropped[kind.index()],
            stale: count.stale,
            unknown_parent: count.unknown_parent,
        };
        if events != EventCounts::default() {
            row.events.insert(kind.name(), events);
        }
    }
    let name =
        |state: State| state.name().map_or_else(|| Cow::Owned(state.to_string()), Cow::Borrowed);
    row.states = counts.states().map(|(state, count)| (name(state), count)).collect();
}

/// Number of events that were not recorded, by kind.
pub(crate) fn dropped(recording: &Recording) -> [u64; KINDS] {
    let mut dropped = recording.header().without_memory();
    for lane in recording.lanes() {
        for (sum, lost) in dropped.iter_mut().zip(lane.header.lost) {
            *sum += lost;
        }
    }
    dropped
}

pub(crate) fn file_name(recording: &Recording) -> String {
    let name = recording.path().file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}
