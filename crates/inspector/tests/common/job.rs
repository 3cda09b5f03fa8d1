// SPDX-License-Identifier: Apache-2.0
//! Writes a job's files as NCCL Inspector does, from the keys of its README.

use std::fmt::Write;
use std::path::Path;

/// A job of one communicator whose ranks call AllReduce in turn.
pub(crate) struct Job {
    /// The version of the format, such as `v4.2`.
    pub(crate) version: &'static str,
    pub(crate) ranks: u32,
    pub(crate) collectives: u64,
    pub(crate) algorithm: &'static str,
    /// Bytes of each AllReduce.
    pub(crate) bytes: u64,
    /// From the last rank's arrival to the end, us.
    pub(crate) transfer_us: u64,
    /// How much later than the others this rank arrives, us.
    pub(crate) late: (u32, u64),
    /// Write when ranks called.
    pub(crate) is_verbose: bool,
    /// Collectives that the ring of each rank overwrote.
    pub(crate) dropped: u64,
}

impl Job {
    pub(crate) fn new(version: &'static str) -> Job {
        Job {
            version,
            ranks: 4,
            collectives: 64,
            algorithm: "RING",
            bytes: 1_000_000,
            transfer_us: 100,
            late: (2, 300),
            is_verbose: false,
            dropped: 0,
        }
    }

    /// Writes the file of each rank.
    pub(crate) fn write(&self, dir: &Path) {
        std::fs::create_dir_all(dir).unwrap();
        for rank in 0..self.ranks {
            std::fs::write(dir.join(format!("n{rank}-pid{}.log", 100 + rank)), self.file(rank))
                .unwrap();
        }
    }

    /// The file of a rank.
    pub(crate) fn file(&self, rank: u32) -> String {
        let name = match self.version {
            "v4.0" | "v4.1" => "",
            _ => r#""comm_name":"DP","#,
        };
        let header =
            format!(r#"{{"id":"0x1f",{name}"rank":{rank},"n_ranks":{},"nnodes":2}}"#, self.ranks);
        let metadata = format!(
            r#"{{"inspector_output_format_version":"{}","git_rev":"","dump_timestamp_us":{},{}}}"#,
            self.version,
            1_700_000_000_000_000 + u64::from(rank),
            format_args!(r#""hostname":"n{rank}","pid":{}"#, 100 + rank)
        );
        let both = format!(r#""header":{header},"metadata":{metadata}"#);
        let mut text = String::new();
        if self.version != "v4.0" {
            let (records, dropped) = (self.collectives, self.dropped);
            let stats = format!(
                r#"{{"coll_records":{records},"coll_dropped_total":{dropped},"p2p_records":0}}"#
            );
            writeln!(text, r#"{{{both},"dump_stats":{stats}}}"#).unwrap();
        }
        for seq in 0..self.collectives {
            let own = if self.version == "v4.3" { String::new() } else { format!("{both},") };
            writeln!(text, r#"{{{own}"coll_perf":{}}}"#, self.collective(rank, seq)).unwrap();
        }
        text
    }

    fn collective(&self, rank: u32, seq: u64) -> String {
        let (late, late_us) = self.late;
        // A little noise, so that no two times are the same.
        let noise = (seq * 7 + u64::from(rank) * 3) % 5;
        let own_us = if rank == late { late_us } else { noise };
        let most_us = late_us.max(4);
        let us = self.transfer_us + (seq % 3) + most_us - own_us;
        let named = match self.version {
            "v4.0" | "v4.1" => String::new(),
            _ => format!(r#""coll_algo":"{}","coll_proto":"SIMPLE","#, self.algorithm),
        };
        let start = 1_700_000_000_000_000 + seq * (1_000 + most_us + self.transfer_us) + own_us;
        let times = match self.is_verbose {
            true => {
                let first = format!(r#"{{"channel_id":0,"kernel_start_ts":{start}}}"#);
                let second = r#"{"channel_id":1,"kernel_start_ts":0}"#;
                let events = format!(r#""kernel_events":[{first},{second}]"#);
                format!(r#","event_trace_ts":{{"coll_start_ts":1,{events}}}"#)
            }
            false => String::new(),
        };
        let figures = format!(
            r#""coll_sn":{seq},"coll_msg_size_bytes":{},"coll_exec_time_us":{us}"#,
            self.bytes
        );
        let clock = r#""coll_timing_source":"kernel_gpu","coll_algobw_gbs":1.0"#;
        format!(r#"{{"coll":"AllReduce",{named}{figures},{clock}{times}}}"#)
    }
}
