// SPDX-License-Identifier: Apache-2.0
//! Counts, on the stand-in, the additional work that each kind of event causes in NCCL.
//!
//! The same steps run without a plugin, and with one kind of event at a time. The stand-in counts
//! what NCCL puts into streams and graphs; `/proc` gives NCCL's threads and their processor time
//! while work is queued. Other times are left out: they are those of a CPU.

use clap::Args;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use super::launch::{Launch, Layout, Said};
use super::setup::Setup;

/// Operations between two counts, outside of graphs.
const OPERATIONS: f64 = 20.0;
/// Operations captured into the graph.
const CAPTURED: f64 = 10.0;
const REPLAYS: f64 = 10.0;
/// The requested events: a name, the value of `NCCLSCOPE_EVENTS`, and the first release that has
/// them.
const KINDS: [(&str, &str, u32); 7] = [
    ("Coll", "Coll", 0),
    ("ProxyOp", "ProxyOp", 0),
    ("ProxyStep", "ProxyStep", 0),
    ("ProxyCtrl", "ProxyCtrl", 0),
    ("CollApi", "CollApi", 22800),
    ("KernelLaunch", "KernelLaunch", 22800),
    ("KernelCh", "KernelCh", 22600),
];
const LAYOUTS: [(&str, Layout); 2] = [("network", Layout::Processes), ("one node", Layout::Node)];
/// Counts of the stand-in, and their names in the table.
const COUNTED: [(&str, &str); 7] = [
    ("kernel", "kernel"),
    ("host", "host function"),
    ("memop", "memory operation"),
    ("record", "event record"),
    ("wait", "event wait"),
    ("copy", "copy"),
    ("set", "fill"),
];
/// Percent of a core: up to `IDLE`, threads are idle; from `BUSY` on, a thread polls. This also
/// holds on a machine that shares its cores.
const IDLE: f64 = 5.0;
const BUSY: f64 = 15.0;
/// Threshold in milliseconds: 256 round trips to a proxy thread take longer than this, a slow start
/// on a machine that shares its cores takes less.
const SLOW_MS: f64 = 250.0;
const LIMIT: Duration = Duration::from_secs(90);

/// The command line.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The releases of NCCL
    #[arg(value_name = "LIBNCCL", required = true)]
    libraries: Vec<PathBuf>,
}

/// Work that one rank causes in NCCL; arrays are in the order of [`COUNTED`].
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Work {
    /// Counts up to the end of the first operation.
    first: [f64; COUNTED.len()],
    /// Counts for one operation in a stream.
    streamed: [f64; COUNTED.len()],
    /// Graph nodes for one operation in a graph.
    nodes: [f64; COUNTED.len()],
    /// Counts in streams for one replay.
    replayed: [f64; COUNTED.len()],
    /// Number of NCCL's threads.
    threads: f64,
    /// Processor time of NCCL's threads while operations wait behind other work, percent of a core.
    busy: f64,
    /// Duration of the first operation, ms.
    first_ms: f64,
}

/// A job with the steps whose output [`Work::of`] evaluates.
fn job<'a>(setup: &'a Setup, name: &str, layout: Layout) -> Launch<'a> {
    let job = Launch::new(setup, name).layout(layout).step("allreduce:65536").step("counts");
    let job = job.step(format!("allreduce:65536:{OPERATIONS}")).step("counts");
    let job = job.step(format!("graph:65536:{CAPTURED}")).step("counts");
    let job = job.step(format!("replay:{REPLAYS}")).step("counts").step("barrier");
    job.steps(["spin:1500", "queue:1024:20", "usage:800", "sync"])
}

impl Work {
    fn of(said: &Said) -> Result<Self, String> {
        let at = |key: &str| said.values(0, "counts", key);
        let of = |key: &str, from: Option<usize>, to: usize, by: f64| {
            let all = at(key);
            let before = from.map_or(Some(0.0), |from| all.get(from).copied());
            let after = all.get(to).copied();
            let more = before.zip(after).map(|(before, after)| (after - before) / by);
            more.ok_or_else(|| format!("{} counts of {key}", all.len()))
        };
        let mut work = Self::default();
        for (index, (key, _)) in COUNTED.iter().enumerate() {
            let node = format!("node_{key}");
            work.first[index] = of(key, None, 0, 1.0)?;
            work.streamed[index] = of(key, Some(0), 1, OPERATIONS)?;
            work.nodes[index] = of(&node, Some(1), 2, CAPTURED)?;
            work.replayed[index] = of(key, Some(2), 3, REPLAYS)?;
        }
        work.threads = at("threads").last().copied().unwrap_or(0.0);
        work.busy = said.value(0, "usage", "nccl_percent")?;
        work.first_ms = said.value(0, "allreduce", "us")? / 1e3;
        Ok(work)
    }

    /// The work that `self` has in addition to `base`, as text; empty if both are alike.
    fn more_than(&self, base: &Self) -> String {
        let mut words = vec![];
        let parts = [
            (&self.streamed, &base.streamed, "an operation"),
            (&self.nodes, &base.nodes, "a captured operation"),
            (&self.replayed, &base.replayed, "a replay"),
            (&self.first, &base.first, "the first operation"),
        ];
        for (own, other, of) in parts {
            for (index, (_, name)) in COUNTED.iter().enumerate() {
                let more = own[index] - other[index];
                if more.abs() >= 0.5 {
                    words.push(format!("{more:+.1} {name} for {of}").replace(".0 ", " "));
                }
            }
        }
        let threads = self.threads - base.threads;
        if threads.abs() >= 0.5 {
            words.push(format!("{threads:+} thread of NCCL"));
        }
        if base.busy < IDLE && self.busy >= BUSY {
            words.push("a thread of NCCL polls while work is queued".into());
        }
        if self.first_ms - base.first_ms >= SLOW_MS {
            words.push("a slow first operation".into());
        }
        words.join(", ")
    }
}

/// Prints the table for the given NCCL libraries.
pub(crate) fn run(options: &Options) -> ExitCode {
    match table(&options.libraries) {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("gpu-kit: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The table; releases with the same counts share a row.
fn table(libraries: &[PathBuf]) -> Result<String, String> {
    let mut merged: Vec<(String, String)> = Vec::new();
    for library in libraries {
        let out = std::env::temp_dir().join(format!("event-costs-{}", std::process::id()));
        let setup = super::Options::of_stand_in(library.clone(), out.clone()).setup();
        let rows = setup.and_then(|setup| Ok((setup.version, rows(&setup)?)));
        // A leftover in the folder for temporary files is harmless.
        let _ = std::fs::remove_dir_all(&out);
        let (version, rows) = rows?;
        for row in rows {
            match merged.iter_mut().find(|(_, other)| *other == row) {
                Some((releases, _)) => *releases += &format!(", {}", shown(version)),
                None => merged.push((shown(version), row)),
            }
        }
    }
    let mut text = String::from("| NCCL | ranks | without a plugin | more with |\n");
    text += "| --- | --- | --- | --- |\n";
    for (releases, row) in merged {
        writeln!(text, "| {releases} | {row} |").map_err(|e| e.to_string())?;
    }
    Ok(text)
}

/// The cells of a release, for each layout.
fn rows(setup: &Setup) -> Result<Vec<String>, String> {
    let mut rows = vec![];
    for (place, layout) in LAYOUTS {
        let base = job(setup, &format!("{place}/none"), layout).without_plugin().run(LIMIT)?;
        let base = Work::of(&base)?;
        let mut more = vec![];
        for (kind, events, since) in KINDS {
            if setup.version < since {
                continue;
            }
            let kernel = if kind == "KernelCh" { "on" } else { "off" };
            let job = job(setup, &format!("{place}/{kind}"), layout);
            let job = job.env("NCCLSCOPE_EVENTS", events).env("NCCLSCOPE_KERNEL", kernel);
            let work = Work::of(&job.run(LIMIT)?)?;
            let words = work.more_than(&base);
            eprintln!(
                "{} {place} {kind}: {words}; first operation {:.0} ms against {:.0}, threads {:.0} \
                 and {:.0} %",
                setup.version, work.first_ms, base.first_ms, work.busy, base.busy
            );
            if !words.is_empty() {
                more.push(format!("`{kind}`: {words}"));
            }
        }
        let more = if more.is_empty() { "nothing".to_owned() } else { more.join("; ") };
        let (threads, nodes) = (base.threads, base.nodes[1]);
        let base = format!("{threads} threads, {nodes} host nodes for a captured operation");
        rows.push(format!("{place} | {base} | {more}"));
    }
    Ok(rows)
}

/// `2.30.7` of 23007.
fn shown(version: u32) -> String {
    format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_more_is_named() {
        let base = Work { threads: 2.0, ..Work::default() };
        let mut more = Work { threads: 3.0, ..base };
        more.nodes[1] = 1.0;
        more.replayed[0] = 0.1;
        assert_eq!(base.more_than(&base), "");
        let words = "+1 host function for a captured operation, +1 thread of NCCL";
        assert_eq!(more.more_than(&base), words);
        assert_eq!(shown(23007), "2.30.7");
    }
}
