// SPDX-License-Identifier: Apache-2.0
//! The loads, and the plugins that run under them: data only.
//!
//! An operation of the driver is an AllReduce over 4 channels with 4 network steps each way: about
//! 12 callbacks on the enqueuing thread and 200 on the proxy thread.

/// A plugin with its environment.
#[derive(Debug)]
pub(super) struct Subject {
    /// Name in tables.
    pub(super) name: &'static str,
    pub(super) plugin: Plugin,
    /// The environment, except for the directory of recordings.
    pub(super) env: &'static [(&'static str, &'static str)],
}

/// Where a plugin comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Plugin {
    /// `floor.c` with this `MODE`.
    Floor(u8),
    /// The one of this repository, as it ships.
    Ours,
    /// Refuses every event, and does nothing else (`shut.c`).
    Refusing,
    /// Ours, but `shut.c` hides from the driver that it wants no events.
    Shut,
}

const fn floor(name: &'static str, mode: u8) -> Subject {
    Subject { name, plugin: Plugin::Floor(mode), env: &[] }
}

const fn ours(name: &'static str, env: &'static [(&'static str, &'static str)]) -> Subject {
    Subject { name, plugin: Plugin::Ours, env }
}

/// Does nothing.
pub(super) const NULL: &Subject = &floor("floor-null", 0);
/// Reads the processor's counter.
pub(super) const TSC: &Subject = &floor("floor-tsc", 1);
/// Reads the system's clock.
pub(super) const CLOCK: &Subject = &floor("floor-clock", 2);
/// Reads the counter and writes 32 bytes to a ring that no thread reads.
pub(super) const RING: &Subject = &floor("floor-ring", 3);
/// The plugin as it is.
pub(super) const OURS: &Subject = &ours("ncclscope", &[]);
/// With the clock for machines whose counter is not reliable.
pub(super) const MONOTONIC: &Subject =
    &ours("ncclscope, monotonic", &[("NCCLSCOPE_CLOCK", "monotonic")]);
/// With metrics for a collector that is down, at a far higher rate than useful. TCP port 1 has no
/// listener.
pub(super) const METRICS: &Subject = &ours(
    "ncclscope, metrics",
    &[("NCCLSCOPE_OTLP", "http://127.0.0.1:1"), ("NCCLSCOPE_WINDOW", "0.1")],
);
/// Without network steps.
pub(super) const COARSE: &Subject =
    &ours("ncclscope, no steps", &[("NCCLSCOPE_EVENTS", "default,-ProxyStep,-NetPlugin")]);
/// With room for everything, so that nothing in the recording is overwritten.
pub(super) const TRACE: &Subject = &ours("ncclscope, trace", &[("NCCLSCOPE_MODE", "trace")]);
/// Switched off.
pub(super) const OFF: &Subject = &ours("ncclscope, off", &[("NCCLSCOPE_MODE", "off")]);
/// Does nothing, and returns null handles.
pub(super) const REFUSING: &Subject =
    &Subject { name: "refusing", plugin: Plugin::Refusing, env: &[] };
/// Switched off, but called nevertheless.
pub(super) const SHUT: &Subject = &Subject {
    name: "ncclscope, gate shut",
    plugin: Plugin::Shut,
    env: &[("NCCLSCOPE_MODE", "off")],
};
/// With recording stopped, but called with all events nevertheless.
pub(super) const STOPPED: &Subject = &Subject {
    name: "ncclscope, stopped",
    plugin: Plugin::Shut,
    env: &[("NCCLSCOPE_START", "off")],
};

/// What is played, and to which plugins.
#[derive(Debug)]
pub(super) struct Load {
    /// Name in the results.
    pub(super) name: &'static str,
    pub(super) program: Program,
    /// Its options, after the plugin.
    pub(super) options: &'static str,
    /// The plugins, in the order of each round.
    pub(super) subjects: &'static [&'static Subject],
    /// True if the plugin may refuse events by returning null handles.
    pub(super) may_lose: bool,
    /// What is observed besides the driver's output.
    pub(super) also: Also,
}

/// A program that loads a plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Program {
    /// The neutral driver.
    Driver,
    /// `pollution.c`.
    Pollution,
}

/// What is observed besides the driver's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Also {
    Nothing,
    /// What the recording contains, according to the report.
    Report,
    /// The recording's size.
    Bytes,
    /// The processor time of the plugin's threads while nothing happens.
    Idle,
}

const fn load(
    name: &'static str,
    options: &'static str,
    subjects: &'static [&'static Subject],
) -> Load {
    let program = Program::Driver;
    Load { name, program, options, subjects, may_lose: false, also: Also::Nothing }
}

/// Operations on one thread, with pauses that leave the drain thread time to empty the lanes. A
/// load of a few milliseconds is not enough: the frequency of the processor has settled only then
/// (`docs/rfcs/0009-process-starts.md`).
pub(super) const BULK1: &Load = &load(
    "bulk, one thread",
    "--threads 1 --bulk --colls 3000 --warmup 1000 --period-us 100",
    &[NULL, TSC, CLOCK, RING, OURS],
);
/// Like [`BULK1`], with a proxy thread.
pub(super) const BULK2: &Load = &load(
    "bulk, two threads",
    "--threads 2 --bulk --colls 3000 --warmup 1000 --period-us 100",
    &[NULL, TSC, CLOCK, RING, OURS, MONOTONIC],
);
/// [`BULK1`] in many processes: does the cost depend on where a process has its memory?
pub(super) const STARTS: &Load =
    &Load { name: "process starts", subjects: &[RING, OURS], ..*BULK1 };
/// What NCCL calls if network steps are off.
pub(super) const SUMMARY: &Load = &load(
    "summary",
    "--threads 2 --bulk --colls 3000 --warmup 1000 --period-us 100 --mask 0xf4f",
    &[NULL, TSC, RING, COARSE],
);
/// Kernel channels alone, with the operations that they belong to.
pub(super) const KERNEL: &Load = &load(
    "kernel channels",
    "--threads 2 --bulk --colls 350 --warmup 50 --steps 0 --channels 8 --mask 0x42",
    &[NULL, TSC, OURS],
);
/// A send that waits for its receiver reports that at every poll.
pub(super) const POLL: &Load =
    &load("polling", "--threads 2 --bulk --colls 350 --warmup 50 --retries 32", &[NULL, TSC, OURS]);
/// Only network steps; at each poll the first two cache levels are filled with other data.
pub(super) const TOUCHED_512K: &Load =
    &Load { program: Program::Pollution, ..load("512 KiB touched", "512", &[NULL, TSC, OURS]) };
/// Like [`TOUCHED_512K`], with 4 MiB.
pub(super) const TOUCHED_4M: &Load =
    &Load { program: Program::Pollution, ..load("4 MiB touched", "4096", &[NULL, TSC, OURS]) };
/// Callbacks one by one; the threads spin between operations.
pub(super) const HOT: &Load =
    &load("paced, hot", "--threads 2 --colls 8000 --period-us 250", &[NULL, RING, OURS]);
/// Callbacks one by one; the threads sleep between operations.
pub(super) const COLD: &Load =
    &load("paced, cold", "--threads 2 --colls 3000 --period-us 500 --sleep", &[NULL, RING, OURS]);
/// The network steps of a 400 Gbit/s adapter with 128 KiB each, in both directions: 763,000 per
/// second.
pub(super) const RATE: &Load = &Load {
    also: Also::Bytes,
    ..load("full rate", "--threads 2 --bulk --colls 3000 --steps 32 --period-us 335", &[NULL, OURS])
};
/// Long enough for twenty windows of metrics.
pub(super) const METERED: &Load =
    &load("metrics", "--threads 2 --bulk --colls 4000 --period-us 500", &[OURS, METRICS]);
/// Callbacks at the highest possible rate, most of which find the lane full.
pub(super) const SATURATED: &Load = &Load {
    may_lose: true,
    also: Also::Report,
    ..load("saturated", "--threads 2 --bulk --colls 10000 --settle-ms 300", &[NULL, TSC, TRACE])
};
/// What NCCL calls if all events are off: nothing.
pub(super) const UNASKED: &Load = &load("off", "--threads 2 --bulk --colls 1000", &[OFF]);
/// Calls of the plugin while its gate is shut or recording is stopped.
pub(super) const CLOSED: &Load = &Load {
    may_lose: true,
    ..load("gate shut", "--threads 2 --bulk --colls 2000", &[REFUSING, SHUT, NULL, STOPPED])
};
/// One communicator.
pub(super) const ONE: &Load = &load(
    "one communicator",
    "--threads 2 --colls 3000 --period-us 200 --sleep --settle-ms 300",
    &[NULL, OURS],
);
/// Sixteen communicators, which share the load.
pub(super) const SIXTEEN: &Load = &load(
    "sixteen communicators",
    "--ranks 16 --threads 2 --colls 200 --period-us 200 --sleep --settle-ms 300",
    &[NULL, OURS],
);
/// A communicator without operations.
pub(super) const IDLE: &Load =
    &Load { also: Also::Idle, ..load("idle", "--threads 2 --colls 10 --settle-ms 7000", &[OURS]) };

/// All loads of a round, in order; [`STARTS`] is played once, in many processes.
pub(super) const LOADS: &[&Load] = &[
    BULK1,
    BULK2,
    SUMMARY,
    KERNEL,
    POLL,
    TOUCHED_512K,
    TOUCHED_4M,
    HOT,
    COLD,
    RATE,
    METERED,
    SATURATED,
    UNASKED,
    CLOSED,
    ONE,
    SIXTEEN,
    IDLE,
];
