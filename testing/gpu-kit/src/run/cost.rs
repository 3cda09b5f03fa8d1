// SPDX-License-Identifier: Apache-2.0
//! Cost of the plugin, of its kernel channel events and of its CUDA events.

use ncclscope_control::releases::InGraphs;
use ncclscope_trace::EventKind;
use std::time::{Duration, Instant};

use super::launch::{Launch, Layout, Said};
use super::part::Part;
use super::row::Found;
use super::setup::Setup;
use crate::facts;

/// The plugin's cost for AllReduces of all sizes.
pub(super) const PLUGIN: Part = Part {
    id: "cost",
    title: "cost of the plugin: AllReduce of 1 KiB to 256 MiB, interleaved rounds",
    expected: "by default at most 1.05 times the time without a plugin at every size, or the noise",
    seconds: 75,
    run: plugin,
};
/// The cost of each kind of event; only on request, since it takes long.
pub(super) const KINDS: Part = Part {
    id: "kinds",
    title: "cost of each kind of event: AllReduce of 1, 8 and 64 KiB, interleaved rounds",
    expected: "by default at most 1.05 times the time without a plugin at every size, or the noise",
    seconds: 240,
    run: kinds,
};
/// Check 6.
pub(super) const QUEUE: Part = Part {
    id: "6",
    title: "kernel channel events with 500 AllReduces queued behind a busy stream",
    expected: "nothing lost; a call at most 1.5 times; up to 2.30 a thread of NCCL polls while \
               work is queued, later its threads take no more",
    seconds: 25,
    run: queue,
};
/// Check 7.
pub(super) const GRAPHS: Part = Part {
    id: "7",
    title: "kernel channel events in a graph of 100 AllReduces of 64 KiB",
    expected: "in a node a host node for each launch with them and none without; no H2 between \
               ranks that stopped at different replays",
    seconds: 25,
    run: graphs,
};
/// Check 8.
pub(super) const PROBE: Part = Part {
    id: "8",
    title: "the CUDA-event probe: a loop of 4 KiB, the default stream, a capture beside",
    expected: "at most 10 us more for each launch; the capture stays whole",
    seconds: 20,
    run: probe,
};

/// A way to run the job: its name, and the environment variables of the plugin; `None` without a
/// plugin.
type Mode = (&'static str, Option<&'static [(&'static str, &'static str)]>);

const MODES: [Mode; 5] = [
    ("off", None),
    // A second run without a plugin: its ratio shows the machine's noise.
    ("again", None),
    ("summary", Some(&[("NCCLSCOPE_EVENTS", "default,-ProxyStep"), ("NCCLSCOPE_KERNEL", "off")])),
    ("default", Some(&[])),
    (
        "all",
        Some(&[
            ("NCCLSCOPE_EVENTS", "all"),
            ("NCCLSCOPE_KERNEL", "on"),
            ("NCCLSCOPE_CUDA_EVENTS", "on"),
        ]),
    ),
];
/// Ways to request more and more kinds of events, and each kind alone with its ancestors, which
/// NCCL adds.
const KINDS_MODES: [Mode; 8] = [
    ("off", None),
    ("again", None),
    ("none", Some(&[("NCCLSCOPE_EVENTS", "0")])),
    ("api", Some(&[("NCCLSCOPE_EVENTS", "GroupApi,CollApi,P2pApi")])),
    ("launch", Some(&[("NCCLSCOPE_EVENTS", "KernelLaunch")])),
    ("coll", Some(&[("NCCLSCOPE_EVENTS", "Group,Coll,P2p")])),
    ("proxy", Some(&[("NCCLSCOPE_EVENTS", "ProxyOp,ProxyStep,NetPlugin")])),
    ("default", Some(&[])),
];
/// Sizes of the AllReduces, bytes.
const SIZES: [u64; 7] = [1 << 10, 8 << 10, 64 << 10, 512 << 10, 4 << 20, 32 << 20, 256 << 20];
const SMALL_SIZES: [u64; 2] = [1 << 10, 64 << 10];
/// The sizes at which the time of a call is not hidden behind the GPU's.
const KINDS_SIZES: [u64; 3] = [1 << 10, 8 << 10, 64 << 10];
/// Time that one size should take in one run, us.
const SIZE_US: f64 = 200_000.0;

fn of_mode<'a>(setup: &'a Setup, name: &str, (_, mode): Mode) -> Launch<'a> {
    let launch = Launch::new(setup, name).layout(Layout::at_once(setup));
    match mode {
        None => launch.without_plugin(),
        Some(all) => all.iter().fold(launch, |launch, (name, value)| launch.env(name, value)),
    }
}

pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn plugin(setup: &Setup, limit: Duration) -> Result<Found, String> {
    compare(setup, "cost", &MODES, if setup.small { &SMALL_SIZES } else { &SIZES }, limit)
}

fn kinds(setup: &Setup, limit: Duration) -> Result<Found, String> {
    compare(setup, "kinds", &KINDS_MODES, &KINDS_SIZES, limit)
}

/// Runs the same steps in all modes, in turns, as often as the limit allows.
fn compare(
    setup: &Setup,
    folder: &str,
    modes: &[Mode],
    sizes: &[u64],
    limit: Duration,
) -> Result<Found, String> {
    let begin = Instant::now();
    let first = sizes.iter().fold(of_mode(setup, &format!("{folder}/first"), modes[0]), |l, b| {
        l.step(format!("allreduce:{b}:2")).step(format!("allreduce:{b}:2"))
    });
    let first = times(&first.run(limit)?, sizes);
    let of_size =
        |us: &Vec<f64>| (SIZE_US / us.last().copied().unwrap_or(SIZE_US)).clamp(2.0, 5000.0);
    let counts: Vec<f64> = first.iter().map(of_size).map(f64::floor).collect();
    let mut measured = vec![vec![Vec::new(); sizes.len()]; modes.len()];
    let (most, mut rounds, mut longest) = (setup.scale(25, 1), 0, Duration::ZERO);
    while rounds < most && (rounds == 0 || begin.elapsed() + longest < limit) {
        let round = Instant::now();
        for turn in 0..modes.len() {
            // Each round begins with another mode, so that none is always first.
            let mode = (turn + rounds) % modes.len();
            let name = format!("{folder}/{}-{rounds}", modes[mode].0);
            let job = of_mode(setup, &name, modes[mode]);
            let job = sizes.iter().zip(&counts).fold(job, |job, (bytes, count)| {
                let count = if setup.small { 2.0 } else { *count };
                job.step(format!("allreduce:{bytes}:2")).step(format!("allreduce:{bytes}:{count}"))
            });
            let left = limit.saturating_sub(begin.elapsed()).max(Duration::from_secs(5));
            for (size, us) in times(&job.run(left)?, sizes).iter().enumerate() {
                measured[mode][size].extend(us.last());
            }
        }
        (rounds, longest) = (rounds + 1, longest.max(round.elapsed()));
    }
    Ok(ratios(setup, modes, sizes, rounds, &measured))
}

/// For each size, the time of an operation in each step of that size, us.
fn times(said: &Said, sizes: &[u64]) -> Vec<Vec<f64>> {
    let bytes = said.values(0, "allreduce", "bytes");
    let us = said.values(0, "allreduce", "us");
    let of = |size: &u64| {
        let pairs = bytes.iter().zip(&us).filter(|(b, _)| **b == *size as f64);
        pairs.map(|(_, us)| *us).collect()
    };
    sizes.iter().map(of).collect()
}

/// The medians, over the rounds, of the ratios to the time without a plugin.
fn ratios(
    setup: &Setup,
    modes: &[Mode],
    sizes: &[u64],
    rounds: usize,
    measured: &[Vec<Vec<f64>>],
) -> Found {
    let (mut figures, mut worst, mut noise, mut parts) = (Vec::new(), 1.0_f64, 1.0_f64, Vec::new());
    for (at, size) in sizes.iter().enumerate() {
        let off = median(measured[0][at].clone());
        figures.push((format!("off_{size}_us"), off));
        let mut words = vec![];
        for (mode, (name, _)) in modes.iter().enumerate().skip(1) {
            let pairs = measured[mode][at].iter().zip(&measured[0][at]);
            let ratio = median(pairs.map(|(us, off)| us / off).collect());
            figures.push((format!("{name}_{size}_ratio"), ratio));
            words.push(format!("{ratio:.3}"));
            match *name {
                "again" => noise = noise.max(ratio).max(1.0 / ratio),
                "default" => worst = worst.max(ratio),
                _ => {}
            }
        }
        parts.push(format!("{} KiB: {off:.1} us, {}", size >> 10, words.join(" ")));
    }
    let names: Vec<&str> = modes[1..].iter().map(|(name, _)| *name).collect();
    let text = format!(
        "medians of {rounds} rounds without, then of the ratios of {}: {}",
        names.join(", "),
        parts.join("; ")
    );
    Found::judged(setup.stand_in || worst <= noise.max(1.05), text)
        .figure("rounds", rounds as f64)
        .figures(figures)
}

/// Builds jobs with kernel channel events and without, with the same steps.
fn on_and_off<'a>(
    setup: &'a Setup,
    name: &str,
    steps: &[String],
) -> impl Fn(&str) -> Launch<'a> + use<'a> {
    let (name, steps) = (name.to_owned(), steps.to_vec());
    move |kernel| {
        let launch = Launch::new(setup, &format!("{name}-{kernel}")).layout(Layout::at_once(setup));
        launch.env("NCCLSCOPE_KERNEL", kernel).steps(steps.iter().map(String::as_str))
    }
}

fn queue(setup: &Setup, limit: Duration) -> Result<Found, String> {
    if setup.version < 22600 {
        return Ok(Found::skipped("this release has no kernel channel events"));
    }
    let (spin, count, look) = setup.scale((5000, 500, 3000), (800, 50, 400));
    let steps = ["allreduce:1024:3".into(), "barrier".into(), format!("spin:{spin}")];
    let more = [format!("queue:1024:{count}"), format!("usage:{look}"), "sync".into()];
    let job = on_and_off(setup, "6-queue", &[&steps[..], &more[..]].concat());
    let [mut calls, mut percent, mut rss] = [[0.0; 2]; 3];
    let mut losses = vec![];
    for (at, kernel) in ["on", "off"].into_iter().enumerate() {
        let job = job(kernel);
        let said = job.run(limit / 2)?;
        calls[at] = said.value(0, "queue", "us")?;
        percent[at] = said.value(0, "usage", "nccl_percent")?;
        rss[at] = said.value(0, "usage", "rss_mib")?;
        let facts = facts::read(&job.folder, &invariants::Expect::default())?;
        losses.extend(facts.into_iter().flat_map(|f| f.losses));
    }
    let text = format!(
        "with and without: a call {:.1} and {:.1} us, NCCL's threads {:.0} and {:.0} % of a core, \
         memory {:.0} and {:.0} MiB, lost: {losses:?}",
        calls[0], calls[1], percent[0], percent[1], rss[0], rss[1]
    );
    // Over a network, NCCL's thread polls in any case.
    let polls = setup.kernel_events().in_graphs != InGraphs::HostFunctions;
    let is_quiet = polls || percent[0] <= percent[1] + 50.0;
    let is_cheap = is_quiet && calls[0] <= 1.5 * calls[1];
    let names = ["call_us", "nccl_percent", "rss_mib"];
    let figures = names
        .into_iter()
        .zip([calls, percent, rss])
        .flat_map(|(name, [on, off])| [(format!("{name}_on"), on), (format!("{name}_off"), off)]);
    Ok(Found::judged(losses.is_empty() && (setup.stand_in || is_cheap), text).figures(figures))
}

fn graphs(setup: &Setup, limit: Duration) -> Result<Found, String> {
    let few = setup.scale(20, 3);
    let replays = if setup.has_threads() { setup.scale(100, 5) } else { few };
    let operations = setup.scale(100, 4);
    let steps =
        ["allreduce:65536:2".into(), format!("graph:65536:{operations}"), "replay:2".into()];
    let more = [format!("replay:{replays}"), "barrier".into(), "mark".into()];
    let apart = ["1/sleep:3000".into(), "replay:1".into()];
    let job = on_and_off(setup, "7-graphs", &[&steps[..], &more[..], &apart[..]].concat());
    let [mut host, mut us, mut events] = [[0.0; 2]; 3];
    let mut accused = false;
    for (at, kernel) in ["on", "off"].into_iter().enumerate() {
        let job = job(kernel);
        let mut ranks = job.start()?;
        let begun = ranks.wait_for("0 mark", limit / 2);
        std::thread::sleep(Duration::from_millis(if begun { 2000 } else { 0 }));
        let verdict = setup.tool(&["diagnose", "--hang-sec", "1"], &job.folder)?;
        accused |= verdict.contains("H2");
        let ended = ranks.wait(limit / 2);
        let said = ranks.said();
        if !ended.is_some_and(|all| all.iter().all(std::process::ExitStatus::success)) {
            let words = said.last_words();
            return Err(format!("kernel {kernel}: the ranks did not end well: {words}"));
        }
        host[at] = said.value(0, "graph", "host")?;
        us[at] = said.values(0, "replay", "us").get(1).copied().unwrap_or(f64::NAN);
        let facts = facts::read(&job.folder, &invariants::Expect::default())?;
        let seen: usize = facts.iter().map(|f| f.count(EventKind::Coll)).sum();
        events[at] = seen as f64 / facts.len().max(1) as f64;
    }
    let text = format!(
        "with and without: {} and {} host nodes of {operations} operations, {:.1} and {:.1} us a \
         replay, {} and {} Coll events a process in {} replays; diagnose {} H2",
        host[0],
        host[1],
        us[0],
        us[1],
        events[0],
        events[1],
        replays + 3,
        if accused { "says" } else { "does not say" }
    );
    let figures = [("host_nodes", host), ("replay_us", us), ("coll_events", events)];
    let figures = figures
        .into_iter()
        .flat_map(|(name, [on, off])| [(format!("{name}_on"), on), (format!("{name}_off"), off)]);
    // Over a network, the graph has NCCL's host nodes anyway; before 2.26 there are no kernel
    // events.
    let (on, off) = match Layout::at_once(setup) {
        Layout::Threads if setup.version >= 22600 => (f64::from(operations), 0.0),
        Layout::Threads => (0.0, 0.0),
        _ => (f64::from(operations), f64::from(operations)),
    };
    Ok(Found::judged(!accused && host == [on, off], text).figures(figures))
}

fn probe(setup: &Setup, limit: Duration) -> Result<Found, String> {
    if setup.version < 22800 {
        return Ok(Found::skipped("the probe needs NCCL 2.28 or later"));
    }
    let begin = Instant::now();
    let many = if setup.has_threads() { 2000 } else { 200 };
    let (rounds, count) = setup.scale((2, many), (1, 20));
    let mut us = [vec![], vec![]];
    for round in 0..rounds {
        for (at, events) in ["on", "off"].into_iter().enumerate() {
            let job = Launch::new(setup, &format!("8-probe/{events}-{round}"));
            let job = job.layout(Layout::at_once(setup)).env("NCCLSCOPE_CUDA_EVENTS", events);
            let job = job.step("allreduce:4096:20").step(format!("allreduce:4096:{count}"));
            let left = limit.saturating_sub(begin.elapsed()).max(Duration::from_secs(3));
            us[at].extend(job.run(left)?.values(0, "allreduce", "us").last());
        }
    }
    // Uses two processes: ranks of one process that share a GPU also share its default stream, in
    // which the kernel of one rank would wait behind the kernel of the other.
    let job = Launch::new(setup, "8-probe/beside").env("NCCLSCOPE_CUDA_EVENTS", "on");
    let job = job.steps(["allreduce:4096:5", "null:4096:20", "0/capture-beside:4096:10"]);
    let job = job.step("1/allreduce:4096:10");
    let said = job.run(limit.saturating_sub(begin.elapsed()).max(Duration::from_secs(5)))?;
    let whole = said.value(0, "captured", "whole")? > 0.0;
    let facts = facts::read(&job.folder, &invariants::Expect::default())?;
    let timed = facts.iter().flat_map(|f| &f.operations).filter(|op| op.event_ns.is_some()).count();
    let [on, off] = us.map(median);
    let text = format!(
        "{on:.1} us with and {off:.1} us without, {:.1} us more; {timed} operations timed on both \
         streams; the capture beside is {}; green contexts are not tried",
        on - off,
        if whole { "whole" } else { "broken" }
    );
    let cheap = setup.stand_in || on - off <= 10.0;
    Ok(Found::judged(whole && cheap && timed > 0, text)
        .figure("on_us", on)
        .figure("off_us", off)
        .figure("timed", timed as f64))
}
