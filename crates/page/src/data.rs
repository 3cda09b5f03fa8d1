// SPDX-License-Identifier: Apache-2.0
/*!
The figures of the page as JSON, for its script and for other programs.

`answer`, `roles`, `sizes`, `latencies`, `lost`, `problems`, `notes` and `unknowable` are those of
`report --format json`, `stragglers` and `diagnosis` those of the other verbs. Rows of tables have
the values of the keys that their columns name.
*/

use crate::content::Content;
use crate::facts::{Facts, RankFacts};
use crate::lateness::Heat;
use crate::links;
use crate::table::{Kind, Table};
use ncclscope_answer::Answer;
use ncclscope_diagnose::{Diagnosis, Waiting};
use ncclscope_operations::human;
use ncclscope_operations::stats::to_f64;
use ncclscope_report::schema::{
    Histogram, LatencyRow, Lost, OpenOperation, OperationRow, PeerRow, RoleRow, SizeRow,
};
use ncclscope_stragglers::{Details, SlowReport};
use serde::Serialize;
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::collections::HashMap;

/// Maximum number of sentences in a list.
const SENTENCES: usize = 1000;
/// Maximum number of histograms; with all of them a page stays below 10 MB.
const LATENCIES: usize = 60;

#[derive(Debug, Serialize)]
pub(crate) struct Data<'a> {
    schema: &'static str,
    input: &'a str,
    report_schema: &'static str,
    answer: &'a Answer,
    roles: &'a [RoleRow],
    sizes: &'a [SizeRow],
    latencies: &'a [LatencyRow],
    lost: &'a Lost,
    problems: &'a [String],
    notes: &'a [String],
    unknowable: &'a [String],
    stragglers: AllFindings<'a, SlowReport>,
    diagnosis: AllFindings<'a, Diagnosis>,
    heat: Option<Heat>,
    tables: Vec<Table>,
}

/// The findings of a verb in its JSON schema, without a filter.
#[derive(Debug, Serialize)]
struct AllFindings<'a, T> {
    #[serde(flatten)]
    found: &'a T,
    filter: Option<()>,
}

impl<'a, T> AllFindings<'a, T> {
    fn of(found: &'a T) -> AllFindings<'a, T> {
        AllFindings { found, filter: None }
    }
}

impl<'a> Data<'a> {
    pub(crate) fn of(content: Content<'a>, facts: &Facts<'_>) -> Data<'a> {
        let Content { report, .. } = content;
        Data {
            schema: "ncclscope.page/2",
            input: content.input,
            report_schema: report.schema,
            answer: content.answer,
            roles: &report.roles,
            sizes: &report.sizes,
            latencies: first(&report.latencies, LATENCIES),
            lost: &report.lost,
            problems: first(&report.problems, SENTENCES),
            notes: first(&report.notes, SENTENCES),
            unknowable: first(&report.unknowable, SENTENCES),
            stragglers: AllFindings::of(content.slow),
            diagnosis: AllFindings::of(content.hang),
            heat: Heat::of(content),
            tables: tables(content, facts),
        }
    }

    pub(crate) fn tables(&self) -> &[Table] {
        &self.tables
    }
}

/// Data as the content of a `script` element. `</` and `<!--`, which could end or hide it, are
/// escaped.
pub(crate) fn script(data: &impl Serialize) -> String {
    serde_json::to_string(data).unwrap_or_default().replace('<', "\\u003c")
}

fn first<T>(all: &[T], most: usize) -> &[T] {
    all.get(..most).unwrap_or(all)
}

/// The tables with at least one row.
fn tables(content: Content<'_>, facts: &Facts<'_>) -> Vec<Table> {
    let report = content.report;
    let all = [
        waits(content.waiting),
        open(&report.open_operations, facts),
        ranks(content, facts),
        sizes(&report.sizes),
        latencies(&report.latencies),
        operations(&report.operations, facts),
        peers(&report.peers, facts),
    ];
    all.into_iter().filter(|table| !table.rows.is_empty()).collect()
}

fn waits(waiting: &[Waiting]) -> Table {
    let mut rows: Vec<&Waiting> = waiting.iter().collect();
    rows.sort_by_key(|row| Reverse(row.ranks.len()));
    let columns = [
        ("role", "role", Kind::Role),
        ("comm", "communicator", Kind::Text),
        ("func", "function", Kind::Text),
        ("number", "operation", Kind::Number),
        ("waiting", "ranks waiting", Kind::Number),
        ("ranks", "which wait", Kind::Ranks),
        ("missing", "ranks absent", Kind::Number),
        ("absent", "which are absent", Kind::Ranks),
    ];
    let about = "Communicators in which ranks wait, and the members that have not come.";
    Table::new(["waits", "Waits", about], &columns, &rows, |row| {
        vec![
            json!(row.role),
            json!(row.comm),
            json!(row.func),
            json!(row.number),
            json!(row.ranks.len()),
            ranges(&row.ranks),
            json!(row.absent.len()),
            ranges(&row.absent),
        ]
    })
}

/// All ranks, in their order: a rank, or the first and last of a range.
fn ranges(ranks: &[u32]) -> Value {
    let one_or_more = |(from, to)| if from == to { json!(from) } else { json!([from, to]) };
    human::ranges(ranks.iter().copied()).into_iter().map(one_or_more).collect()
}

fn open(open: &[OpenOperation], facts: &Facts<'_>) -> Table {
    let mut rows: Vec<&OpenOperation> = open.iter().collect();
    rows.sort_by_key(|row| Reverse(row.age_ns));
    let columns = [
        ("rank", "rank", Kind::Rank),
        ("host", "host", Kind::Text),
        ("role", "role", Kind::Role),
        ("func", "function", Kind::Text),
        ("bytes", "size", Kind::Bytes),
        ("number", "number", Kind::Number),
        ("peer", "other rank", Kind::Rank),
        ("age_ns", "age", Kind::Ns),
        ("waits_for", "waits for", Kind::Text),
    ];
    let about = "Operations and calls that were not over at the end of their recording.";
    Table::new(["open", "Open operations", about], &columns, &rows, |row| {
        vec![
            json!(row.rank),
            json!(row.host),
            json!(row.comm.as_deref().map(|comm| facts.role(comm))),
            json!(row.func),
            json!(row.bytes),
            json!(row.number),
            json!(row.peer),
            json!(row.age_ns),
            json!(row.waits_for.first()),
        ]
    })
}

/// Means over all steps, by rank: the time that other ranks waited because it took longer than its
/// peers, as a share of a step, and its own time in ns.
fn means(details: &Details, slow: &SlowReport) -> HashMap<u32, [f64; 2]> {
    let known: Vec<_> = details
        .steps
        .iter()
        .zip(&slow.steps)
        .filter(|(step, _)| step.caused_ms.len() == details.ranks.len())
        .collect();
    let whole: f64 = known.iter().map(|(_, row)| row.duration_ms()).sum();
    let steps: usize = known.iter().map(|(_, row)| row.step_count).sum();
    let mean = |at: usize| {
        let caused: f64 = known.iter().map(|(step, _)| f64::from(step.caused_ms[at])).sum();
        let own: f64 = known.iter().map(|(step, _)| f64::from(step.own_ms[at])).sum();
        [caused / whole, 1e6 * own / to_f64(steps as u64)]
    };
    let all = details.ranks.iter().enumerate().filter(|_| whole > 0.0);
    all.map(|(at, &rank)| (rank, mean(at))).collect()
}

fn ranks(content: Content<'_>, facts: &Facts<'_>) -> Table {
    let means = means(content.details, content.slow);
    let mut open: HashMap<(&str, u32), u64> = HashMap::new();
    for row in &content.report.open_operations {
        *open.entry((&row.host, row.pid)).or_default() += 1;
    }
    let of = |one: &RankFacts<'_>| one.rank.and_then(|rank| means.get(&rank));
    let mut rows: Vec<&RankFacts<'_>> = facts.ranks.iter().collect();
    let caused = |one: &RankFacts<'_>| of(one).map_or(0.0, |[caused, _]| *caused);
    rows.sort_by(|a, b| caused(b).total_cmp(&caused(a)));
    let columns = [
        ("rank", "rank", Kind::Rank),
        ("host", "host", Kind::Text),
        ("local_rank", "local rank", Kind::Number),
        ("device", "GPU", Kind::Number),
        ("pid", "pid", Kind::Id),
        ("roles", "roles", Kind::Role),
        ("caused", "others wait for it", Kind::Percent),
        ("own_ns", "own time a step", Kind::Ns),
        ("open", "open operations", Kind::Number),
    ];
    let about = "The share of a step that other ranks wait because a rank's own work takes longer \
                 than that of its peers, and its time in a step outside of waits and transfers: \
                 means over all steps.";
    Table::new(["ranks", "Ranks", about], &columns, &rows, |one| {
        let roles: Vec<&str> = one.roles.iter().copied().collect();
        vec![
            json!(one.rank),
            json!(one.host),
            json!(one.local_rank),
            json!(one.device),
            json!(one.pid),
            json!(roles.join(", ")),
            json!(of(one).map(|[caused, _]| (caused * 1e5).round() / 1e5)),
            json!(of(one).map(|[_, own]| own.round())),
            json!(open.get(&(one.host, one.pid)).copied().unwrap_or(0)),
        ]
    })
}

fn sizes(sizes: &[SizeRow]) -> Table {
    let columns = [
        ("bytes", "size", Kind::Bytes),
        ("func", "function", Kind::Text),
        ("role", "role", Kind::Role),
        ("nranks", "ranks", Kind::Number),
        ("count", "count", Kind::Number),
        ("transfer_ns", "time", Kind::Ns),
        ("algbw_gbs", "algbw GB/s", Kind::Three),
        ("busbw_gbs", "busbw GB/s", Kind::Three),
        ("least.busbw_gbs", "lowest", Kind::Three),
        ("least.comm", "of communicator", Kind::Text),
        ("busbw_with_waiting_gbs", "with waiting", Kind::Three),
    ];
    let about = "As nccl-tests defines sizes and bandwidths; of the transfer, and of several \
                 communicators the median.";
    Table::new(["sizes", "Sizes", about], &columns, sizes, |row| {
        vec![
            json!(row.bytes),
            json!(row.func),
            json!(row.role),
            json!(row.nranks),
            json!(row.count),
            json!(row.transfer_ns),
            json!(row.algbw_gbs),
            json!(row.busbw_gbs),
            json!(row.least.as_ref().map(|least| least.busbw_gbs)),
            json!(row.least.as_ref().map(|least| &least.comm)),
            json!(row.busbw_with_waiting_gbs),
        ]
    })
}

fn latencies(latencies: &[LatencyRow]) -> Table {
    let columns = [
        ("role", "role", Kind::Role),
        ("func", "function", Kind::Text),
        ("bytes", "size", Kind::Bytes),
        ("with_waiting_ns.count", "durations", Kind::Number),
        ("with_waiting_ns.min", "min", Kind::Ns),
        ("with_waiting_ns.p50", "median", Kind::Ns),
        ("with_waiting_ns.p90", "p90", Kind::Ns),
        ("with_waiting_ns.p99", "p99", Kind::Ns),
        ("with_waiting_ns.max", "max", Kind::Ns),
        ("transfer_ns.p50", "transfer", Kind::Ns),
        ("transfer_ns.p99", "p99", Kind::Ns),
        ("transfer_ns.max", "max", Kind::Ns),
    ];
    let about = "Of all communicators with one role, those with the most time first: of each rank, \
                 with the wait for later ranks, and of the transfer.";
    Table::new(["latencies", "Durations", about], &columns, latencies, |row| {
        let with = |pick: fn(&Histogram) -> u64| json!(row.with_waiting_ns.as_ref().map(pick));
        let transfer = |pick: fn(&Histogram) -> u64| json!(row.transfer_ns.as_ref().map(pick));
        vec![
            json!(row.role),
            json!(row.func),
            json!(row.bytes),
            with(|of| of.count),
            with(|of| of.min),
            with(|of| of.p50),
            with(|of| of.p90),
            with(|of| of.p99),
            with(|of| of.max),
            transfer(|of| of.p50),
            transfer(|of| of.p99),
            transfer(|of| of.max),
        ]
    })
}

fn operations(operations: &[OperationRow], facts: &Facts<'_>) -> Table {
    let mut rows: Vec<&OperationRow> = operations.iter().collect();
    rows.sort_by_key(|row| Reverse(row.total_ns));
    let columns = [
        ("role", "role", Kind::Role),
        ("comm", "communicator", Kind::Text),
        ("func", "function", Kind::Text),
        ("bytes", "size", Kind::Bytes),
        ("algorithm", "algorithm", Kind::Text),
        ("protocol", "protocol", Kind::Text),
        ("channels", "channels", Kind::Number),
        ("count", "count", Kind::Number),
        ("open", "open", Kind::Number),
        ("timing", "timing", Kind::Text),
        ("duration_ns.p50", "median", Kind::Ns),
        ("duration_ns.p99", "p99", Kind::Ns),
        ("duration_ns.max", "max", Kind::Ns),
        ("transfer_ns.p50", "transfer", Kind::Ns),
        ("busbw_gbs", "busbw GB/s", Kind::Three),
        ("last_rank.rank", "last rank", Kind::Rank),
    ];
    let about = "One row for each communicator, function, size, algorithm, protocol and number of \
                 channels, those with the most time first. Times are of the operations with this \
                 timing; kernel_lead: the least that they took; proxy: from the enqueueing to the \
                 end; enqueue: how long the host took to enqueue them.";
    Table::new(["operations", "Operations", about], &columns, &rows, |row| {
        let duration = row.duration_ns;
        vec![
            json!(facts.role(&row.comm)),
            json!(row.comm),
            json!(row.func),
            json!(row.bytes),
            json!(row.algorithm),
            json!(row.protocol),
            json!(row.channels),
            json!(row.count),
            json!(row.open),
            json!(row.timing),
            json!(duration.map(|of| of.p50)),
            json!(duration.map(|of| of.p99)),
            json!(duration.map(|of| of.max)),
            json!(row.transfer_ns.map(|of| of.p50)),
            json!(row.busbw_gbs),
            json!(row.last_rank.and_then(|last| last.rank)),
        ]
    })
}

fn peers(peers: &[PeerRow], facts: &Facts<'_>) -> Table {
    let mut rows: Vec<&PeerRow> = peers.iter().collect();
    let speed = |row: &PeerRow| links::gbs(row).unwrap_or(f64::MAX);
    rows.sort_by(|a, b| speed(a).total_cmp(&speed(b)));
    let columns = [
        ("role", "role", Kind::Role),
        ("src", "src rank", Kind::Rank),
        ("src_host", "host", Kind::Text),
        ("dst", "dst rank", Kind::Rank),
        ("dst_host", "host", Kind::Text),
        ("bytes", "bytes", Kind::Bytes),
        ("transfers", "transfers", Kind::Number),
        ("transfer_gbs", "GB/s of a transfer", Kind::Three),
        ("waits_ns.send_gpu", "sender's GPU", Kind::Ns),
        ("waits_ns.send_peer", "receiver's buffer", Kind::Ns),
        ("waits_ns.send_network", "network", Kind::Ns),
        ("waits_ns.recv_gpu", "receiver's GPU", Kind::Ns),
    ];
    let about = "Network traffic from rank to rank, the slowest link first. The last columns are \
                 what the steps of its transfers waited for: steps overlap.";
    let host = |rank: Option<u32>| rank.and_then(|rank| facts.host(rank));
    Table::new(["links", "Links", about], &columns, &rows, |row| {
        let waits = row.waits_ns;
        vec![
            json!(facts.role(&row.comm)),
            json!(row.src),
            json!(host(row.src)),
            json!(row.dst),
            json!(host(row.dst)),
            json!(row.bytes),
            json!(row.transfers),
            json!(row.transfer_gbs),
            json!(waits.send_gpu),
            json!(waits.send_peer),
            json!(waits.send_network),
            json!(waits.recv_gpu),
        ]
    })
}
