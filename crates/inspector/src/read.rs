// SPDX-License-Identifier: Apache-2.0
//! Reads one file, line by line.

use crate::line::{CollPerf, DumpStats, Header, Line, Metadata};
use crate::lines::next_line;
use ncclscope_operations::bandwidth::size_bytes;
use ncclscope_operations::stats::to_f64;
use ncclscope_trace::open_to_read;
use std::borrow::Cow;
use std::io::BufReader;
use std::path::{Path, PathBuf};

/// The variable with which Inspector also writes when operations began.
pub const VERBOSE: &str = "NCCL_INSPECTOR_DUMP_VERBOSE=1";
/// Times are rounded down to multiples of this, ns.
pub const RESOLUTION_NS: f64 = 1e3;
/// Size of the reader's buffer, bytes.
const BUFFER: usize = 1 << 18;
/// The timing source of durations by the GPU's timer.
const BY_GPU: &str = "kernel_gpu";

/// A rank of a communicator, as the file's lines name it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    /// The communicator's hash.
    pub comm: String,
    /// The name that the application gave the communicator.
    pub comm_name: Option<String>,
    /// Rank in the communicator.
    pub rank: i32,
    /// Ranks of the communicator.
    pub nranks: u32,
    /// Nodes of the communicator.
    pub nodes: Option<u32>,
    /// Host name; empty if unknown.
    pub host: String,
    /// Process id; 0 if unknown.
    pub pid: u32,
}

/// A collective of one rank.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Collective<'a> {
    /// NCCL's name of the function.
    pub func: &'a str,
    /// Algorithm; `None` before v4.2.
    pub algo: Option<&'a str>,
    /// Protocol; as `algo`.
    pub proto: Option<&'a str>,
    /// NCCL's number of the operation, by communicator and function.
    pub seq: u64,
    /// Size as nccl-tests defines it, bytes.
    pub bytes: Option<u64>,
    /// From the rank's arrival to the end, ns, in whole us; 0 if it took less than one.
    pub ns: f64,
    /// The duration is by the GPU's timer, not by the host's clock.
    pub is_gpu_timed: bool,
    /// When the host saw the kernel start, ns since 1970; `None` unless the file is verbose.
    pub start_ns: Option<u64>,
}

/// A rank of a communicator, and what its file lacks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemberFacts {
    /// The rank.
    pub member: Member,
    /// Number of its collectives in the file.
    pub collectives: u64,
    /// Number of its collectives by the host's clock, or without a known clock.
    pub host_timed: u64,
    /// Number of its collectives with the time of their start.
    pub started: u64,
    /// Collectives that Inspector's ring overwrote; 0 before v4.1, which do not tell.
    pub dropped: u64,
    /// Sends and receives that it overwrote, likewise.
    pub p2p_dropped: u64,
}

/// A name of NCCL, which Inspector writes as `unknown` if it has none.
fn known<'a>(name: &'a Option<Cow<'_, str>>) -> Option<&'a str> {
    name.as_deref().filter(|name| !["", "unknown"].contains(name))
}

/// What a file holds and lacks.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FileFacts {
    /// The file.
    pub path: PathBuf,
    /// The ranks of communicators, in the order of their first lines.
    pub members: Vec<MemberFacts>,
    /// The versions of the format, such as `v4.2`, each once.
    pub versions: Vec<String>,
    /// Number of sends and receives.
    pub p2p: u64,
    /// Number of parts of proxy threads.
    pub proxy: u64,
    /// Lines that are no JSON of Inspector.
    pub unreadable: u64,
    /// The number of the first of these, from 1.
    pub first_unreadable: u64,
    /// The last line is cut off.
    pub is_torn: bool,
    /// Operations whose line with the header is missing.
    pub headless: u64,
    /// The times of the first and the last dump, us since 1970.
    pub dumps_us: Option<(u64, u64)>,
    /// The file has no line.
    pub is_empty: bool,
}

/// Reads a file and passes its collectives on, each with the position of its rank in
/// [`FileFacts::members`].
///
/// # Errors
/// Why the file cannot be read: its content, or its version. Damaged lines are only counted.
pub fn read(
    path: &Path,
    take: &mut dyn FnMut(usize, &Member, Collective<'_>),
) -> Result<FileFacts, String> {
    let file = open_to_read(path).map_err(|error| error.to_string())?;
    let mut lines = BufReader::with_capacity(BUFFER, file);
    let facts = FileFacts { path: path.to_owned(), is_empty: true, ..FileFacts::default() };
    let mut reader = Reader { facts, current: None, left: 0, take };
    let (mut line, mut number) = (Vec::new(), 0);
    loop {
        line.clear();
        let ends = next_line(&mut lines, &mut line).map_err(|error| error.to_string())?;
        if line.is_empty() && !ends {
            return Ok(reader.facts);
        }
        number += 1;
        if !line.trim_ascii().is_empty() {
            reader.facts.is_empty = false;
            reader.line(&line, (number, ends))?;
        }
    }
}

struct Reader<'a> {
    facts: FileFacts,
    /// The rank whose header came last, and how many lines without one are of it.
    current: Option<usize>,
    left: u64,
    take: &'a mut dyn FnMut(usize, &Member, Collective<'_>),
}

impl MemberFacts {
    fn of(member: Member) -> MemberFacts {
        MemberFacts {
            member,
            collectives: 0,
            host_timed: 0,
            started: 0,
            dropped: 0,
            p2p_dropped: 0,
        }
    }
}

impl FileFacts {
    /// Whether lines are cut off, unreadable, or without their header.
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        self.is_torn || self.unreadable > 0 || self.headless > 0
    }
}

impl Reader<'_> {
    fn line(&mut self, bytes: &[u8], (number, ends): (u64, bool)) -> Result<(), String> {
        let Ok(line) = serde_json::from_slice::<Line<'_>>(bytes) else {
            if ends {
                if self.facts.unreadable == 0 {
                    self.facts.first_unreadable = number;
                }
                self.facts.unreadable += 1;
                // It may have been the line with the header.
                (self.current, self.left) = (None, 0);
            } else {
                self.facts.is_torn = true;
            }
            return Ok(());
        };
        if let Some(metadata) = &line.metadata {
            self.version(&metadata.inspector_output_format_version)?;
        }
        if let Some(header) = &line.header {
            self.current = Some(self.member(header, line.metadata.as_ref()));
            self.left = 0;
        } else if line.dump_stats.is_none() {
            if self.left == 0 {
                self.facts.headless += 1;
                return Ok(());
            }
            self.left -= 1;
        }
        if let Some(stats) = line.dump_stats {
            self.stats(stats);
        }
        self.facts.p2p += u64::from(line.p2p_perf.is_some());
        self.facts.proxy += u64::from(line.proxy_trace.is_some());
        if let Some((coll, at)) = line.coll_perf.as_ref().zip(self.current) {
            self.collective(at, coll);
        }
        Ok(())
    }

    fn version(&mut self, version: &str) -> Result<(), String> {
        if self.facts.versions.iter().any(|known| known == version) {
            return Ok(());
        }
        if !version.starts_with("v4.") {
            return Err(format!(
                "it is NCCL Inspector's JSON of format {version}; v4.0 to v4.3 are read"
            ));
        }
        self.facts.versions.push(version.to_owned());
        Ok(())
    }

    /// The position of the rank of a header.
    fn member(&mut self, header: &Header<'_>, metadata: Option<&Metadata<'_>>) -> usize {
        if let Some(us) = metadata.and_then(|metadata| metadata.dump_timestamp_us) {
            let (first, last) = self.facts.dumps_us.unwrap_or((us, us));
            self.facts.dumps_us = Some((first.min(us), last.max(us)));
        }
        let is_same =
            |of: &MemberFacts| of.member.rank == header.rank && of.member.comm == header.id;
        let latest = self.current.filter(|&at| self.facts.members.get(at).is_some_and(is_same));
        if let Some(at) = latest.or_else(|| self.facts.members.iter().position(is_same)) {
            return at;
        }
        let member = Member {
            comm: header.id.clone().into_owned(),
            comm_name: known(&header.comm_name).map(str::to_owned),
            rank: header.rank,
            nranks: header.n_ranks,
            nodes: header.nnodes,
            host: metadata.and_then(|of| of.hostname.as_deref()).unwrap_or_default().to_owned(),
            pid: metadata.and_then(|of| of.pid).unwrap_or(0),
        };
        self.facts.members.push(MemberFacts::of(member));
        self.facts.members.len() - 1
    }

    fn stats(&mut self, stats: DumpStats) {
        self.left = stats.records();
        let Some(of) = self.current.and_then(|at| self.facts.members.get_mut(at)) else { return };
        of.dropped = of.dropped.max(stats.coll_dropped_total);
        of.p2p_dropped = of.p2p_dropped.max(stats.p2p_dropped_total);
    }

    fn collective(&mut self, at: usize, coll: &CollPerf<'_>) {
        let Some(of) = self.facts.members.get_mut(at) else { return };
        let is_gpu_timed = coll.coll_timing_source.as_deref() == Some(BY_GPU);
        let events = coll.event_trace_ts.iter().flat_map(|times| &times.kernel_events);
        let start_us = events.map(|event| event.kernel_start_ts).filter(|&us| us != 0).min();
        of.collectives += 1;
        of.host_timed += u64::from(!is_gpu_timed);
        of.started += u64::from(start_us.is_some());
        let nranks = Some(of.member.nranks);
        // One rank's bytes, as a datatype of one byte.
        let bytes = size_bytes(&coll.coll, "ncclInt8", coll.coll_msg_size_bytes, nranks);
        let ns = coll.coll_exec_time_us * RESOLUTION_NS;
        let one = Collective {
            func: &coll.coll,
            algo: known(&coll.coll_algo),
            proto: known(&coll.coll_proto),
            seq: coll.coll_sn,
            bytes,
            ns: if ns.is_finite() { ns.clamp(0.0, to_f64(u64::MAX >> 1)) } else { 0.0 },
            is_gpu_timed,
            start_ns: start_us.and_then(|us| us.checked_mul(1000)),
        };
        (self.take)(at, &of.member, one);
    }
}
