// SPDX-License-Identifier: Apache-2.0
//! Kernels in recordings: the time stamps of the GPU beside the host's times and CUDA's events.

use invariants::Expect;
use ncclscope_operations::{
    Completion, Event, EventId, GpuClock, GpuClocks, Parent, Timeline, operations,
};
use ncclscope_report::losses::Losses;
use ncclscope_trace::record::KernelCh;
use ncclscope_trace::{Detail, EventKind, Recording};
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

/// An operation of one rank.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Operation {
    /// NCCL's name of the function.
    pub(crate) func: String,
    /// Time of the enqueueing, ns of `CLOCK_REALTIME`.
    pub(crate) enqueued_ns: u64,
    /// First and last time stamp of the operation's kernel channels.
    pub(crate) kernel: Option<(u64, u64)>,
    /// Number of channels that have kernel events.
    pub(crate) channels: usize,
    /// Duration of the launch by CUDA events, ns.
    pub(crate) event_ns: Option<u64>,
    /// Whether the recording shows the end of the operation.
    pub(crate) is_done: bool,
}

/// Facts from the recording of one process.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    /// Rank in the process's first communicator.
    pub(crate) rank: i32,
    /// Operations in the order of their enqueueing.
    pub(crate) operations: Vec<Operation>,
    /// Number of events by kind.
    pub(crate) events: HashMap<&'static str, usize>,
    /// Every stamp of the GPU's timer.
    pub(crate) stamps: Vec<u64>,
    /// Number of kernel channel events whose start stamp is also the start stamp of another
    /// launch's event on that channel.
    pub(crate) repeated: usize,
    /// Number of kernel channel events whose start stamp is more than 50 us before their launch.
    pub(crate) early: usize,
    /// Offset of the GPU's clock from the host's, ns.
    pub(crate) offset_ns: Option<i64>,
    /// Error bound of `offset_ns`, ns.
    pub(crate) error_ns: Option<u64>,
    /// Reports of the watchdog.
    pub(crate) hangs: Vec<String>,
    /// Losses, as text.
    pub(crate) losses: Vec<String>,
    /// Violations of the invariants of recordings.
    pub(crate) violations: Vec<String>,
}

impl Facts {
    /// Number of events of a kind.
    pub(crate) fn count(&self, kind: EventKind) -> usize {
        self.events.get(kind.name()).copied().unwrap_or(0)
    }

    pub(crate) fn of(&self, func: &str) -> Vec<&Operation> {
        self.operations.iter().filter(|op| op.func == func).collect()
    }
}

/// The recordings of a run directory, by rank.
///
/// # Errors
/// The directory or a recording cannot be read.
pub(crate) fn read(folder: &Path, expect: &Expect) -> Result<Vec<Facts>, String> {
    let entries = std::fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let files = entries.flatten().map(|entry| entry.path());
    let files = files.filter(|file| file.extension().is_some_and(|e| e == "nscope"));
    let facts = files.map(|file: PathBuf| {
        let recording = Recording::open(&file).map_err(|e| format!("{}: {e}", file.display()))?;
        Ok(of_recording(&recording, expect))
    });
    let mut facts = facts.collect::<Result<Vec<Facts>, String>>()?;
    facts.sort_by_key(|facts| facts.rank);
    Ok(facts)
}

fn of_recording(recording: &Recording, expect: &Expect) -> Facts {
    let timeline = Timeline::read(recording, false);
    let mut facts = Facts {
        rank: timeline.rank(0).unwrap_or(i32::MAX),
        hangs: recording.hangs().iter().map(|(_, text)| text.clone()).collect(),
        losses: losses(recording, &timeline),
        ..Facts::default()
    };
    let verdict = invariants::check(recording, expect);
    facts.violations = verdict.violations.iter().map(ToString::to_string).collect();
    for (_, event) in timeline.events() {
        *facts.events.entry(event.kind().name()).or_default() += 1;
    }
    let launches = launches(&timeline);
    facts.operations = ops(&timeline, &launches);
    stamps(&timeline, &launches, &mut facts);
    facts
}

fn losses(recording: &Recording, timeline: &Timeline<'_>) -> Vec<String> {
    let mut losses = Losses::default();
    losses.add(recording, || timeline.records());
    losses.finish().losses.into_iter().map(|loss| loss.what).collect()
}

/// The first launch of each API group: its start in ns and its time by CUDA events.
type Launches = HashMap<EventId, (u64, Option<u64>)>;

fn launches(timeline: &Timeline<'_>) -> Launches {
    let mut launches = Launches::new();
    for (id, event) in timeline.events() {
        if let (EventKind::KernelLaunch, Parent::Known(group)) = (event.kind(), event.parent) {
            let launch = (timeline.ns(event.start.ticks), timeline.launch_ns(id));
            launches.entry(group).or_insert(launch);
        }
    }
    launches
}

/// The launch that an event descends from.
fn launch_of(timeline: &Timeline<'_>, event: &Event, all: &Launches) -> Option<(u64, Option<u64>)> {
    let mut parent = event.parent;
    while let Parent::Known(id) = parent {
        if let Some(launch) = all.get(&id) {
            return Some(*launch);
        }
        parent = timeline.event(id).parent;
    }
    None
}

/// The outermost ancestor of an event.
fn oldest(timeline: &Timeline<'_>, event: &Event) -> Option<EventId> {
    let (mut parent, mut oldest) = (event.parent, None);
    while let Parent::Known(id) = parent {
        oldest = Some(id);
        parent = timeline.event(id).parent;
    }
    oldest
}

fn ops(timeline: &Timeline<'_>, launches: &Launches) -> Vec<Operation> {
    let all = operations(timeline).into_iter().map(|op| {
        let event = timeline.event(op.event);
        let (mut kernel, mut channels) = (None, HashSet::new());
        for &child in timeline.children(op.event) {
            let child = timeline.event(child);
            let Detail::KernelCh(KernelCh { channel, ptimer }) = child.start.detail else {
                continue;
            };
            channels.insert(channel);
            let Some((stop, _)) = child.ptimer_stop.filter(|_| ptimer != 0) else { continue };
            let (first, last) = kernel.unwrap_or((ptimer, stop));
            kernel = Some((ptimer.min(first), stop.max(last)));
        }
        Operation {
            func: timeline.string(op.func).to_owned(),
            enqueued_ns: timeline.ns(event.start.ticks),
            kernel,
            channels: channels.len(),
            event_ns: launch_of(timeline, event, launches).and_then(|(_, ns)| ns),
            is_done: matches!(op.completion, Completion::Done(_)),
        }
    });
    let mut all: Vec<Operation> = all.collect();
    all.sort_by_key(|op| op.enqueued_ns);
    all
}

fn stamps(timeline: &Timeline<'_>, launches: &Launches, facts: &mut Facts) {
    const SLACK_NS: u64 = 50_000;
    let clocks = GpuClocks::of(timeline);
    let mut seen: HashMap<_, HashSet<Option<EventId>>> = HashMap::new();
    for (_, event) in timeline.events() {
        let Detail::KernelCh(KernelCh { channel, ptimer }) = event.start.detail else { continue };
        facts.stamps.extend(event.ptimer_stop.map(|(stop, _)| stop));
        if ptimer == 0 {
            continue;
        }
        facts.stamps.push(ptimer);
        let comm = timeline.comm_of(event);
        // The sends and receives of one batch have the same stamp, so only stamps of different
        // launches count as repeated.
        seen.entry((comm, channel, ptimer)).or_default().insert(oldest(timeline, event));
        let clock = comm.and_then(|comm| clocks.of_comm(comm));
        if let (Some(clock), Some((start, _))) = (clock, launch_of(timeline, event, launches)) {
            facts.early += usize::from(clock.host_ns(ptimer).saturating_add(SLACK_NS) < start);
        }
    }
    facts.repeated = seen.values().map(|launches| launches.len() - 1).sum();
    let clock = clocks.iter().next();
    facts.error_ns = clock.and_then(GpuClock::error_ns);
    let first = facts.stamps.iter().min().copied();
    facts.offset_ns = clock
        .zip(first)
        .map(|(clock, first)| clock.host_ns(first).wrapping_sub(first).cast_signed());
}

/// The greatest common divisor of all differences of these times; 0 for fewer than two times.
pub(crate) fn granularity(mut stamps: Vec<u64>) -> u64 {
    stamps.sort_unstable();
    stamps.windows(2).fold(0, |so_far, pair| gcd(so_far, pair[1] - pair[0]))
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn granularity_is_the_common_divisor() {
        assert_eq!(granularity(vec![1_000_096, 1_000_000, 1_000_032, 1_000_160]), 32);
        assert_eq!(granularity(vec![7]), 0);
        assert_eq!(granularity(vec![5, 5, 6]), 1);
    }
}
