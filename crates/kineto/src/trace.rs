// SPDX-License-Identifier: Apache-2.0
/*!
Reads what a trace contains about NCCL: the kernels, the CPU operations that launched them, and the
identity of the process.

A kernel's External id identifies its `record_param_comms`. Kernels in traces of older releases have
no such id; for them a second pass finds the launch of each kernel by its correlation number, and
the operation around the launch.
*/

use crate::beside;
use crate::event::{self, Event, Needles};
use crate::facts::{Facts, Group, kind_of_kernel};
use crate::file;
use crate::json::{Error, Insert, Part, Scanner};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};

/// A CPU operation `record_param_comms`.
#[derive(Clone, Debug)]
pub struct CommOp {
    /// "External id".
    pub external_id: Option<u64>,
    /// The External ids of the annotation inside it (`nccl:all_reduce`) and of the operator around
    /// it (`c10d::allreduce_`): which id is current when NCCL is called depends on the release.
    pub aliases: Vec<u64>,
    /// Start, ns since 1970 by the trace's clock.
    pub start_ns: i64,
    /// End; as `start_ns`.
    pub end_ns: i64,
    thread: Thread,
    /// What it records about the collective.
    pub facts: Facts,
}

/// A NCCL kernel.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// Its row's `pid`: a device.
    pub pid: Value,
    /// Its row's `tid`: a stream.
    pub tid: Value,
    /// Start, ns since 1970 by the trace's clock.
    pub start_ns: i64,
    /// End; as `start_ns`.
    pub end_ns: i64,
    /// "External id".
    pub external_id: Option<u64>,
    /// "correlation": the number of its launch.
    pub correlation: Option<u64>,
    /// Index of its CPU operation in [`Trace::ops`].
    pub op: Option<usize>,
    /// Time of its launch, if it was searched for; as `start_ns`.
    pub launch_ns: Option<i64>,
    /// The facts of the kernel and its CPU operation about the collective.
    pub facts: Facts,
}

/// The identity of a trace's process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Global rank and number of ranks ("distributedInfo").
    pub rank: Option<(u32, u32)>,
    /// "host_name".
    pub host: Option<String>,
    /// Process id of its CPU operations.
    pub pid: Option<u32>,
}

/// The NCCL content of a trace.
#[derive(Clone, Debug)]
pub struct Trace {
    /// Its file.
    pub path: PathBuf,
    /// Length in bytes, uncompressed.
    pub bytes: u64,
    /// Events in it.
    pub events: u64,
    /// Number of events about NCCL that could not be parsed.
    pub unreadable: u64,
    /// The place for further events.
    pub insert: Insert,
    /// `CLOCK_REALTIME` at `ts` 0, ns.
    pub base_ns: i64,
    /// The identity of its process.
    pub identity: Identity,
    /// The process groups.
    pub groups: Vec<Group>,
    /// The CPU operations of collectives, by start.
    pub ops: Vec<CommOp>,
    /// The NCCL kernels, in the trace's order.
    pub kernels: Vec<Kernel>,
    /// Number of kernels that communicate beside NCCL, by the name of their library.
    pub beside: BTreeMap<&'static str, u64>,
    /// The trace already has our tracks.
    pub is_merged: bool,
    /// The time that the trace covers; as [`CommOp::start_ns`]. Empty if it is unknown.
    pub window: (i64, i64),
}

/// `pid` and `tid` of an event.
type Thread = (u64, u64);
/// Start and end of an event.
type Times = (i64, i64);

impl Trace {
    /// Reads a trace.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn scan(path: &Path) -> Result<Trace, Error> {
        let mut found = Found::default();
        let needles = Needles::default();
        let mut scanner = Scanner::new(file::open(path)?);
        while let Some(part) = scanner.next()? {
            match part {
                Part::Member { key, value } => found.member(&key, value),
                Part::Event(bytes) => {
                    found.events += 1;
                    if needles.is_of_interest(bytes) {
                        found.event(bytes);
                    }
                }
            }
        }
        let (insert, bytes) = (scanner.insert()?, scanner.position());
        let mut trace = found.finish(path, insert, bytes);
        if trace.kernels.iter().any(|kernel| kernel.op.is_none()) {
            trace.find_launches(&needles)?;
        }
        Ok(trace)
    }

    /// Reads the trace a second time, for the launches of kernels whose operation is unknown.
    fn find_launches(&mut self, needles: &Needles) -> Result<(), Error> {
        let wanted: HashSet<u64> =
            self.kernels.iter().filter(|k| k.op.is_none()).filter_map(|k| k.correlation).collect();
        let mut launches = HashMap::new();
        let mut scanner = Scanner::new(file::open(&self.path)?);
        while let Some(part) = scanner.next()? {
            let Part::Event(bytes) = part else { continue };
            if !needles.is_launch(bytes) {
                continue;
            }
            let Ok(event) = Event::parse(bytes) else { continue };
            if let (Some(id), Some(ts)) = (event.number("correlation"), event.ts)
                && event.is_kernel_launch()
                && wanted.contains(&id)
            {
                launches.insert(id, (event.thread(), self.base_ns + ts));
            }
        }
        let around = Nesting::of_ops(&self.ops);
        for kernel in self.kernels.iter_mut().filter(|k| k.op.is_none()) {
            let launch = kernel.correlation.and_then(|id| launches.get(&id));
            let Some(&(thread, ns)) = launch else { continue };
            kernel.launch_ns = Some(ns);
            kernel.op = around.at(thread, ns);
            if let Some(op) = kernel.op.and_then(|op| self.ops.get(op)) {
                kernel.facts = together(&kernel.facts, &op.facts);
            }
        }
        Ok(())
    }
}

/// Combines the facts of a kernel and its operation; the kernel's take precedence. The operation's
/// size is not used if the functions differ, because an operation may consist of others (an
/// AllGather of uneven parts consists of Broadcasts).
fn together(kernel: &Facts, op: &Facts) -> Facts {
    let is_same = kernel.kind.is_none_or(|kind| op.kind.is_none_or(|of_op| of_op == kind));
    Facts {
        group: kernel.group.or(op.group),
        kind: kernel.kind.or(op.kind),
        bytes: kernel.bytes.or(op.bytes).filter(|_| is_same),
        seq: kernel.seq.or(op.seq),
    }
}

/// The state while a trace is read; times are still relative to its base.
#[derive(Default)]
struct Found {
    events: u64,
    unreadable: u64,
    base_ns: i64,
    identity: Identity,
    groups: Vec<Group>,
    /// Ranks of groups by name, of `pg_config`; none for those of the whole job.
    configured: BTreeMap<String, Vec<u32>>,
    ops: Vec<CommOp>,
    annotations: Vec<(Thread, i64, u64)>,
    operators: Vec<(Thread, Times, u64)>,
    kernels: Vec<Kernel>,
    beside: BTreeMap<&'static str, u64>,
    is_merged: bool,
    window: Option<(i64, i64)>,
}

impl Found {
    fn member(&mut self, key: &str, value: &[u8]) {
        let value = || serde_json::from_slice::<Value>(value).unwrap_or_default();
        match key {
            "baseTimeNanoseconds" => self.base_ns = value().as_i64().unwrap_or(0),
            "host_name" => self.identity.host = value().as_str().map(str::to_owned),
            "distributedInfo" => {
                let info = value();
                let number = |key: &str| info[key].as_u64().and_then(|n| u32::try_from(n).ok());
                self.identity.rank = number("rank").zip(number("world_size"));
                let groups = info["pg_config"].as_array().into_iter().flatten();
                self.configured.extend(groups.filter_map(|group| {
                    let ranks = serde_json::from_value(group["ranks"].clone()).ok()?;
                    Some((group["pg_name"].as_str()?.to_owned(), ranks))
                }));
            }
            _ => {}
        }
    }

    fn event(&mut self, bytes: &[u8]) {
        let Ok(event) = Event::parse(bytes) else {
            self.unreadable += 1;
            return;
        };
        if event.is_process_of_ours() {
            self.is_merged = true;
        }
        let (Some(start), "X") = (event.ts, event.ph.as_str()) else { return };
        let end = start.saturating_add(event.dur.unwrap_or(0));
        if event.is_nccl_kernel() {
            self.kernel(event, (start, end));
        } else if event.name == "record_param_comms" {
            self.comm_op(&event, (start, end));
        } else if event.is_annotation() {
            if let Some(id) = event.number(event::EXTERNAL_ID) {
                self.annotations.push((event.thread(), start, id));
            }
        } else if event.name.starts_with("c10d::") {
            if let Some(id) = event.number(event::EXTERNAL_ID) {
                self.operators.push((event.thread(), (start, end), id));
            }
        } else if event.cat == "Trace" {
            self.widen(start, end);
        } else if let (true, Some(of)) = (event.is_kernel(), beside::library(&event.name)) {
            *self.beside.entry(of).or_default() += 1;
        }
    }

    fn kernel(&mut self, event: Event, (start_ns, end_ns): (i64, i64)) {
        let mut facts = self.facts(&event);
        // The kernel's name has the function.
        let kind = kind_of_kernel(&event.name);
        facts = together(&Facts { kind, ..Facts::default() }, &facts);
        let correlation = event.number("correlation");
        self.kernels.push(Kernel {
            start_ns,
            end_ns,
            // Older Kineto wrote the correlation number if there was no External id.
            external_id: event.number(event::EXTERNAL_ID).filter(|&id| Some(id) != correlation),
            correlation,
            op: None,
            launch_ns: None,
            facts,
            pid: event.pid,
            tid: event.tid,
        });
        self.widen(start_ns, end_ns);
    }

    fn comm_op(&mut self, event: &Event, (start_ns, end_ns): (i64, i64)) {
        let facts = self.facts(event);
        let thread = event.thread();
        self.ops.push(CommOp {
            external_id: event.number(event::EXTERNAL_ID),
            aliases: Vec::new(),
            start_ns,
            end_ns,
            thread,
            facts,
        });
        self.identity.pid = u32::try_from(thread.0).ok().or(self.identity.pid);
        self.widen(start_ns, end_ns);
    }

    fn facts(&mut self, event: &Event) -> Facts {
        let groups = &mut self.groups;
        Facts::of_args(&event.args, |group| {
            let known = groups.iter().position(|g| *g == group);
            known.unwrap_or_else(|| {
                groups.push(group);
                groups.len() - 1
            })
        })
    }

    fn widen(&mut self, start: i64, end: i64) {
        let (first, last) = self.window.unwrap_or((start, end));
        self.window = Some((first.min(start), last.max(end)));
    }

    fn finish(mut self, path: &Path, insert: Insert, bytes: u64) -> Trace {
        let base = self.base_ns;
        self.groups.iter_mut().for_each(|group| group.complete(&self.configured));
        self.ops.sort_by_key(|op| op.start_ns);
        let around = Nesting::of_ops(&self.ops);
        for (thread, start, id) in std::mem::take(&mut self.annotations) {
            if let Some(op) = around.at(thread, start) {
                self.ops[op].aliases.push(id);
            }
        }
        let operators = self.operators.iter().map(|&(thread, times, _)| (thread, times));
        let around = Nesting::new(operators);
        for op in &mut self.ops {
            let operator = around.at(op.thread, op.start_ns);
            op.aliases.extend(operator.map(|at| self.operators[at].2));
        }
        let by_id = ops_by_id(&self.ops);
        for kernel in &mut self.kernels {
            kernel.op = kernel.external_id.and_then(|id| by_id.get(&id).copied());
            if let Some(op) = kernel.op {
                kernel.facts = together(&kernel.facts, &self.ops[op].facts);
            }
            kernel.start_ns = kernel.start_ns.saturating_add(base);
            kernel.end_ns = kernel.end_ns.saturating_add(base);
        }
        for op in &mut self.ops {
            op.start_ns = op.start_ns.saturating_add(base);
            op.end_ns = op.end_ns.saturating_add(base);
        }
        let (first, last) = self.window.unwrap_or((0, 0));
        Trace {
            path: path.into(),
            bytes,
            events: self.events,
            unreadable: self.unreadable,
            insert,
            base_ns: base,
            identity: self.identity,
            groups: self.groups,
            ops: self.ops,
            kernels: self.kernels,
            beside: self.beside,
            is_merged: self.is_merged,
            window: (first.saturating_add(base), last.saturating_add(base)),
        }
    }
}

/// Maps External ids, of operations and of events inside them, to the operation's index.
fn ops_by_id(ops: &[CommOp]) -> HashMap<u64, usize> {
    let mut by_id = HashMap::new();
    for (at, op) in ops.iter().enumerate() {
        for &id in &op.aliases {
            by_id.entry(id).or_insert(at);
        }
    }
    for (at, op) in ops.iter().enumerate() {
        if let Some(id) = op.external_id {
            by_id.insert(id, at);
        }
    }
    by_id
}

/// Events by thread, for finding the event around a time.
struct Nesting(HashMap<Thread, Vec<(Times, usize)>>);

/// Greatest depth of nesting of these events.
const DEPTH: usize = 4;

impl Nesting {
    fn new(events: impl Iterator<Item = (Thread, Times)>) -> Nesting {
        let mut by_thread: HashMap<Thread, Vec<_>> = HashMap::new();
        for (at, (thread, times)) in events.enumerate() {
            by_thread.entry(thread).or_default().push((times, at));
        }
        by_thread.values_mut().for_each(|events| events.sort_unstable());
        Nesting(by_thread)
    }

    fn of_ops(ops: &[CommOp]) -> Nesting {
        Nesting::new(ops.iter().map(|op| (op.thread, (op.start_ns, op.end_ns))))
    }

    /// The index of the innermost event of a thread around a time.
    fn at(&self, thread: Thread, ns: i64) -> Option<usize> {
        let mine = self.0.get(&thread)?;
        let before = mine.partition_point(|((start, _), _)| *start <= ns);
        let inside = mine[..before].iter().rev().take(DEPTH);
        inside.copied().find(|((_, end), _)| *end >= ns).map(|(_, at)| at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ncclscope_operations::function::Kind;

    #[test]
    fn the_size_of_what_is_made_of_others_is_not_theirs() {
        let kernel = |kind| Facts { kind, ..Facts::default() };
        let op = Facts { kind: Some(Kind::AllGather), bytes: Some(8), ..Facts::default() };
        let bytes = |kind| together(&kernel(kind), &op).bytes;
        assert_eq!(bytes(Some(Kind::AllGather)), Some(8));
        assert_eq!(bytes(Some(Kind::Broadcast)), None);
        // A generic kernel has the function of its operation.
        assert_eq!((bytes(None), together(&kernel(None), &op).kind), (Some(8), op.kind));
    }
}
