// SPDX-License-Identifier: Apache-2.0
/*!
The report of NCCL Inspector's files.

They have the duration of each collective of each rank, so that rows of operations, their
bandwidths and the ranks that others wait for are as those of recordings. Times of the run, links,
windows and API calls are not in the files.
*/

use crate::build::ReportBuilder;
use crate::key::Key;
use crate::rows::RankOperations;
use crate::schema::{Clock, Fact, Loss, ProcessRow, RankRow, Report};
use ncclscope_inspector::{Files, Found, Member};
use ncclscope_operations::ends::is_stop_end;
use ncclscope_operations::operation::Timing;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// [`Clock::source`] of such files: their times are whole microseconds.
pub const CLOCK: &str = "inspector";

/// The operations of the ranks of one file, by the position of the rank.
type Rows = HashMap<(usize, Key), RankOperations>;

/// Reads the files, and returns their report and what they lack.
///
/// # Errors
/// Why the first file cannot be read, if none can.
pub fn read(found: &Found) -> Result<(Report, Files), String> {
    let mut builder = ReportBuilder::default();
    let (mut current, mut rows) = (0, Rows::new());
    let files = Files::read(found, |(file, at), member, one| {
        if file != current {
            builder.add_rows(std::mem::take(&mut rows));
            current = file;
        }
        let key = Key {
            comm: member.comm.clone(),
            func: one.func.to_owned(),
            bytes: one.bytes,
            algo: one.algo.map(str::to_owned),
            proto: one.proto.map(str::to_owned),
            channels: None,
        };
        let timing = match (one.is_gpu_timed, is_stop_end(one.func, one.algo.unwrap_or_default())) {
            (true, true) => Timing::Kernel,
            (true, false) => Timing::KernelLead,
            (false, _) => Timing::Enqueue,
        };
        let of = rows.entry((at, key)).or_insert_with(|| RankOperations::of(member));
        of.add(timing, one.seq, one.ns);
    })?;
    builder.add_rows(rows);
    files.facts.iter().for_each(|file| {
        builder.add_file(&file.path, file.members.iter().map(|of| &of.member));
    });
    let mut report = builder.finish();
    if let Some((count, what, advice)) = files.dropped() {
        report.lost.total = count;
        report.lost.losses.push(Loss { what, advice: Some(advice.into()) });
    }
    let is_damaged: Vec<String> =
        files.facts.iter().filter(|file| file.is_damaged()).map(|file| name(&file.path)).collect();
    report.processes.iter_mut().for_each(|row| row.is_damaged = is_damaged.contains(&row.file));
    report.problems = [&files.unreadable[..], &files.damage(), &files.gaps()].concat();
    report.notes.clone_from(&files.copies);
    report.unknowable = files.limits();
    Ok((report, files))
}

impl ReportBuilder {
    fn add_rows(&mut self, rows: Rows) {
        rows.into_iter().for_each(|((_, key), of)| self.operations.add_rank(key, of));
    }

    /// Adds the process of a file, with its rank in each of these communicators.
    fn add_file<'a>(&mut self, path: &Path, members: impl Iterator<Item = &'a Member>) {
        let process = self.told.len();
        self.told.push(None);
        let mut identity = BTreeMap::new();
        for member in members {
            identity.entry("host".to_owned()).or_insert_with(|| Fact::Text(member.host.clone()));
            identity.entry("pid".to_owned()).or_insert_with(|| Fact::Number(member.pid.into()));
            self.ranks.push((process, rank_row(path, member)));
        }
        self.processes.push(ProcessRow { file: name(path), identity, is_damaged: false });
    }
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn rank_row(path: &Path, member: &Member) -> RankRow {
    RankRow {
        rank: None,
        comm_rank: Some(member.rank),
        nranks: Some(member.nranks),
        nodes: member.nodes,
        device: None,
        host: member.host.clone(),
        pid: member.pid,
        comm: Some(member.comm.clone()),
        comm_name: member.comm_name.clone(),
        role: None,
        nccl_version: None,
        api_version: None,
        events: BTreeMap::new(),
        states: BTreeMap::new(),
        threads: Vec::new(),
        clock: Clock { source: CLOCK, error_ns: 0, gpu_error_ns: None, gpu_granularity_ns: None },
        start_ns: None,
        end_ns: None,
        file: name(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write;

    /// A file of a rank with `times` of one AllReduce each, us.
    fn file(dir: &Path, (rank, ranks): (u32, u32), algo: &str, times: &[u64]) {
        let mut text = String::new();
        for (seq, us) in times.iter().enumerate() {
            let header = format!(r#"{{"id":"0x1f","rank":{rank},"n_ranks":{ranks},"nnodes":1}}"#);
            let version = r#""inspector_output_format_version":"v4.2""#;
            let metadata = format!(r#"{{{version},"hostname":"n{rank}","pid":{rank}}}"#);
            let name = format!(r#""coll":"AllReduce","coll_algo":"{algo}","coll_proto":"LL""#);
            let figures = format!(
                r#""coll_sn":{seq},"coll_msg_size_bytes":1000000,"coll_exec_time_us":{us}"#
            );
            let perf = format!(r#"{{{name},{figures},"coll_timing_source":"kernel_gpu"}}"#);
            writeln!(text, r#"{{"header":{header},"metadata":{metadata},"coll_perf":{perf}}}"#)
                .unwrap();
        }
        std::fs::write(dir.join(format!("n{rank}-pid{rank}.log")), text).unwrap();
    }

    fn read_folder(dir: &Path) -> Report {
        read(&ncclscope_inspector::find(&[dir.to_owned()]).unwrap()).unwrap().0
    }

    #[test]
    fn the_shortest_time_of_all_ranks_is_the_transfer_and_its_rank_the_last() {
        let dir = tempfile::tempdir().unwrap();
        for (rank, us) in [(0, 900), (1, 100), (2, 800), (3, 900)] {
            file(dir.path(), (rank, 4), "RING", &[us; 20]);
        }
        let report = read_folder(dir.path());
        let [row] = &report.operations[..] else { panic!("{report:#?}") };
        assert_eq!((row.count, row.ranks, row.timing, row.timed), (20, 4, "kernel", 80));
        assert_eq!(row.transfer_ns.as_ref().map(|of| of.p50), Some(100_000));
        assert_eq!((row.algbw_gbs, row.busbw_gbs), (Some(10.0), Some(15.0)));
        let [late] = &report.late_ranks[..] else { panic!("{report:#?}") };
        assert_eq!((late.rank, late.host.as_deref()), (Some(1), Some("n1")));
        assert_eq!(report.problems, [""; 0]);
    }

    #[test]
    fn without_all_ranks_or_with_a_tree_there_is_no_transfer() {
        let of = |ranks: std::ops::Range<u32>, algo| {
            let dir = tempfile::tempdir().unwrap();
            ranks.for_each(|rank| file(dir.path(), (rank, 4), algo, &[500; 20]));
            read_folder(dir.path())
        };
        let part = of(0..3, "RING");
        assert_eq!(part.operations[0].transfer_ns, None);
        assert_eq!(part.problems, ["communicator 0x1f of 4 ranks: no file of 3"]);
        assert!(part.operations[0].busbw_with_waiting_gbs.is_some() && part.late_ranks.is_empty());
        let tree = of(0..4, "TREE");
        assert_eq!(
            (tree.operations[0].timing, tree.operations[0].busbw_gbs),
            ("kernel_lead", None)
        );
    }
}
