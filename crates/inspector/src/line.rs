// SPDX-License-Identifier: Apache-2.0
//! The keys of a line, as far as they are used.

use serde::Deserialize;
use serde::de::IgnoredAny;
use std::borrow::Cow;

/// A line of the file. The operations of v4.3 have no header and no metadata.
#[derive(Deserialize)]
pub(crate) struct Line<'a> {
    #[serde(borrow)]
    pub(crate) header: Option<Header<'a>>,
    #[serde(borrow)]
    pub(crate) metadata: Option<Metadata<'a>>,
    #[serde(borrow)]
    pub(crate) coll_perf: Option<CollPerf<'a>>,
    pub(crate) p2p_perf: Option<IgnoredAny>,
    pub(crate) proxy_trace: Option<IgnoredAny>,
    pub(crate) dump_stats: Option<DumpStats>,
}

#[derive(Deserialize)]
pub(crate) struct Header<'a> {
    #[serde(borrow)]
    pub(crate) id: Cow<'a, str>,
    #[serde(borrow)]
    pub(crate) comm_name: Option<Cow<'a, str>>,
    pub(crate) rank: i32,
    pub(crate) n_ranks: u32,
    pub(crate) nnodes: Option<u32>,
}

#[derive(Deserialize)]
pub(crate) struct Metadata<'a> {
    #[serde(borrow)]
    pub(crate) inspector_output_format_version: Cow<'a, str>,
    #[serde(borrow)]
    pub(crate) hostname: Option<Cow<'a, str>>,
    pub(crate) pid: Option<u32>,
    pub(crate) dump_timestamp_us: Option<u64>,
}

/// A collective. Some writers print whole numbers as floating-point ones.
#[derive(Deserialize)]
pub(crate) struct CollPerf<'a> {
    #[serde(borrow)]
    pub(crate) coll: Cow<'a, str>,
    #[serde(borrow)]
    pub(crate) coll_algo: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(crate) coll_proto: Option<Cow<'a, str>>,
    pub(crate) coll_sn: u64,
    pub(crate) coll_msg_size_bytes: u64,
    pub(crate) coll_exec_time_us: f64,
    #[serde(borrow)]
    pub(crate) coll_timing_source: Option<Cow<'a, str>>,
    pub(crate) event_trace_ts: Option<EventTimes>,
}

/// The host's times of an operation, in verbose files.
#[derive(Deserialize)]
pub(crate) struct EventTimes {
    #[serde(default)]
    pub(crate) kernel_events: Vec<KernelTimes>,
}

#[derive(Deserialize)]
pub(crate) struct KernelTimes {
    /// When the host saw the channel's kernel start, us since 1970; 0 if it did not.
    #[serde(default)]
    pub(crate) kernel_start_ts: u64,
}

/// What a dump of a communicator wrote, and what its full rings had overwritten.
#[derive(Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub(crate) struct DumpStats {
    pub(crate) coll_records: u64,
    pub(crate) coll_dropped_total: u64,
    pub(crate) p2p_records: u64,
    pub(crate) p2p_dropped_total: u64,
    pub(crate) proxy_records: u64,
}

impl DumpStats {
    /// Number of lines that follow.
    pub(crate) fn records(&self) -> u64 {
        self.coll_records.saturating_add(self.p2p_records).saturating_add(self.proxy_records)
    }
}
