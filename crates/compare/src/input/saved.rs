// SPDX-License-Identifier: Apache-2.0
/*!
A run from a report that was saved: `ncclscope report --format json`.

A report has distributions without an order in time, so a run gives one value for each operation:
the median over its communicators. Whether two such values differ by more than chance shows only
with several reports on each side. Steps, waiting in a step, and times of links are not in a report.
*/

use super::{how, operation};
use crate::configuration::Topology;
use crate::run::{Measure, Operation, Run, Shape};
use ncclscope_inspector::RESOLUTION_NS;
use ncclscope_operations::stats::to_f64;
use ncclscope_operations::timeline::role_or_size;
use ncclscope_report::Report;
use ncclscope_report::inspector::CLOCK;
use ncclscope_report::schema::SCHEMA as CURRENT;
use serde::Deserialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Prefix of the schemas of reports.
const SCHEMA: &str = "ncclscope.report/";
/// Schemas of earlier versions, which lack the times of transfers and use other names.
const OLD: [&str; 2] = ["ncclscope.report/1", "ncclscope.report/2"];

/// The state in the answer of a report of a hung job.
const HUNG: &str = "HUNG";

/// The part of a report that is compared; all other fields may be missing.
#[derive(Deserialize)]
struct Saved {
    #[serde(default)]
    ranks: Vec<Rank>,
    #[serde(default)]
    processes: Vec<Process>,
    #[serde(default)]
    operations: Vec<Row>,
    /// Missing if the file is not a complete report.
    answer: Option<Answer>,
    /// The part of the run that the user chose; null for all of it.
    filter: Option<Filter>,
}

#[derive(Deserialize)]
struct Filter {
    #[serde(default)]
    text: String,
}

#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    state: String,
}

#[derive(Deserialize)]
struct Rank {
    #[serde(default)]
    host: String,
    nranks: Option<u32>,
    comm: Option<String>,
    comm_name: Option<String>,
    role: Option<String>,
    nccl_version: Option<String>,
    #[serde(default)]
    file: String,
    #[serde(default)]
    clock: Clock,
}

#[derive(Default, Deserialize)]
struct Clock {
    #[serde(default)]
    source: String,
}

#[derive(Deserialize)]
struct Process {
    #[serde(default)]
    identity: BTreeMap<String, Value>,
}

#[derive(Deserialize)]
struct Row {
    comm: String,
    func: String,
    bytes: Option<u64>,
    algorithm: Option<String>,
    protocol: Option<String>,
    channels: Option<u64>,
    transfer_ns: Option<Durations>,
}

#[derive(Deserialize)]
struct Durations {
    p50: u64,
}

/// The run of a saved report.
///
/// # Errors
/// Why it cannot be read, in a few words.
pub fn read(name: String, json: &[u8]) -> Result<Run, String> {
    parse(name, json, "is a saved report")
}

/// As [`read`]; `what` says in a note what the run is.
fn parse(name: String, json: &[u8], what: &str) -> Result<Run, String> {
    let value: Value = serde_json::from_slice(json).map_err(|error| match error.is_eof() {
        true => "it ends in the middle: make it again with `ncclscope report --format json`".into(),
        false => error.to_string(),
    })?;
    let schema = value["schema"].as_str().unwrap_or_default();
    if !schema.starts_with(SCHEMA) {
        return Err("it is not the output of `ncclscope report --format json`".into());
    }
    if OLD.contains(&schema) {
        return Err(format!(
            "it is a report of an earlier ncclscope ({schema}; this one reads {CURRENT}): make it \
             again with `ncclscope report --format json`"
        ));
    }
    if schema != CURRENT {
        return Err(format!(
            "it is a report of a version that this ncclscope does not read ({schema}; this one \
             reads {CURRENT}): use the ncclscope that printed it, or a newer one"
        ));
    }
    if !value["operations"].is_array() {
        return Err("it is not a whole report: it has no `operations`; make it again with \
                    `ncclscope report --format json`"
            .into());
    }
    let saved: Saved = serde_json::from_value(value).map_err(|error| error.to_string())?;
    let mut run = of_saved(name, &saved);
    run.notes.push(format!(
        "{} {what}: it gives one value of each operation, and neither steps, waiting nor links",
        run.name
    ));
    Ok(run)
}

/// The run of a report, converted as if it had been saved.
///
/// # Errors
/// Why it cannot be read, which would be a defect of ncclscope.
pub fn of_report(name: String, report: &Report) -> Result<Run, String> {
    let json = serde_json::to_vec(report).map_err(|error| error.to_string())?;
    parse(name, &json, "is compared by its report, because the other side is a saved one")
}

fn of_saved(name: String, saved: &Saved) -> Run {
    let hangs = saved.answer.as_ref().is_some_and(|answer| answer.state == HUNG);
    let filter = saved.filter.as_ref().map(|filter| filter.text.clone());
    let is_coarse = saved.ranks.iter().any(|rank| rank.clock.source == CLOCK);
    let resolution_ns = if is_coarse { RESOLUTION_NS } else { 0.0 };
    let mut run = Run { name, hangs, filter, resolution_ns, ..Run::default() };
    let roles = roles(&saved.ranks);
    configure(&mut run, saved, &roles);
    for row in &saved.operations {
        let Some(transfer) = &row.transfer_ns else { continue };
        let key = Operation {
            role: roles.get(row.comm.as_str()).cloned().unwrap_or_else(|| "unknown".into()),
            func: row.func.clone(),
            bytes: row.bytes,
            shape: Shape {
                algo: row.algorithm.clone().unwrap_or_default(),
                proto: row.protocol.clone().unwrap_or_default(),
                channels: row.channels.map_or_else(String::new, |n| n.to_string()),
            },
            ranks: Vec::new(),
        };
        run.configuration.choice(&operation(&key.role, &key.func, key.bytes), how(&key.shape));
        let series = run.series.entry(Measure::Transfer(key)).or_default();
        series.values.push((0, to_f64(transfer.p50)));
    }
    // A setting, so that the answer names it if the sides differ.
    run.configuration.fact("filter", run.filter.as_deref().unwrap_or("none"));
    if let Some(filter) = &run.filter {
        run.notes.push(format!("{} is the report of a part of its run: {filter}", run.name));
    }
    run
}

/// The role of each communicator, as the report names it.
fn roles(ranks: &[Rank]) -> BTreeMap<&str, String> {
    let mut roles = BTreeMap::new();
    for row in ranks {
        let Some(comm) = row.comm.as_deref() else { continue };
        let said = row.role.as_deref().or(row.comm_name.as_deref());
        let known = roles.entry(comm).or_insert_with(|| role_or_size(said, row.nranks));
        // The application may have declared the role on some of its ranks only.
        if let Some(role) = said {
            *known = role.to_owned();
        }
    }
    roles
}

fn configure(run: &mut Run, saved: &Saved, roles: &BTreeMap<&str, String>) {
    for (key, value) in saved.processes.iter().flat_map(|process| &process.identity) {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        run.configuration.identity(key, &text);
    }
    let mut topology = Topology::default();
    let processes: BTreeSet<(&str, &str)> =
        saved.ranks.iter().map(|row| (&*row.file, &*row.host)).collect();
    processes.iter().for_each(|(_, host)| topology.process(host));
    for row in &saved.ranks {
        topology.size(row.nranks.unwrap_or(0));
        let version = row.nccl_version.iter();
        version.for_each(|version| run.configuration.identity("nccl", version));
        if let Some(comm) = row.comm.as_deref() {
            topology.comm(roles.get(comm).map_or("unknown", String::as_str), row.nranks, comm);
        }
    }
    run.configuration.topology(&topology);
    run.gpus = topology.gpus();
}

#[cfg(test)]
mod tests {
    use super::*;
    use ncclscope_report::ReportBuilder;

    const HEAD: &str = r#""schema": "ncclscope.report/3", "operations": []"#;

    #[test]
    fn medians_of_communicators_are_values_of_their_role() {
        let json = r#"{"schema": "ncclscope.report/3", "later": 1,
            "ranks": [{"comm": "0x1", "role": "tp", "nranks": 2, "host": "n1", "file": "f"},
                      {"comm": "0x2", "nranks": 2, "host": "n1", "file": "g"},
                      {"comm": "0x3", "nranks": 8, "host": "n1", "file": "g"}],
            "operations": [
                {"comm": "0x1", "func": "AllReduce", "bytes": 64, "algorithm": "RING",
                 "transfer_ns": {"min": 1, "p50": 5, "p99": 7, "max": 9}},
                {"comm": "0x2", "func": "AllReduce", "bytes": 64, "transfer_ns": null}]}"#;
        let run = read("x.json".into(), json.as_bytes()).unwrap();
        let [(Measure::Transfer(key), series)] = &run.series.iter().collect::<Vec<_>>()[..] else {
            panic!("{run:?}");
        };
        assert_eq!((key.role.as_str(), key.shape.algo.as_str()), ("tp", "RING"));
        // Two processes of a job of eight ranks.
        assert_eq!((series.values.as_slice(), run.gpus), (&[(0, 5.0)][..], 8));
    }

    #[test]
    fn a_report_of_a_part_says_so() {
        let of = |filter: &str| {
            let json = format!(r#"{{{HEAD}, "filter": {filter}}}"#);
            read("x.json".into(), json.as_bytes()).unwrap()
        };
        let text = "steps 1-5; 16 of 16 recordings";
        let part = of(&format!(r#"{{"text": "{text}", "recordings": 16, "of": 16}}"#));
        assert_eq!(part.filter.as_deref(), Some(text));
        let note = format!("x.json is the report of a part of its run: {text}");
        assert!(part.notes.contains(&note), "{part:?}");
        let whole = of("null");
        assert_eq!((&whole.filter, whole.notes.len()), (&None, 1));
        let found = crate::compare(&[whole], &[part], &crate::Limits::default());
        assert_eq!((found.a.filters.len(), &*found.b.filters), (0, &[text.to_owned()][..]));
        let [setting] = &found.config_differences[..] else { panic!("{found:#?}") };
        assert_eq!([&*setting.what, &*setting.a, &*setting.b], ["filter", "none", text]);
    }

    #[test]
    fn recordings_beside_a_saved_report_are_not_called_saved() {
        let run = of_report("run-1".into(), &ReportBuilder::default().finish()).unwrap();
        let [note] = &run.notes[..] else { panic!("{run:?}") };
        assert!(note.starts_with("run-1 is compared by its report, because the other"), "{note}");
    }

    #[test]
    fn what_is_no_report_is_refused() {
        let why = |json: &str| read("x".into(), json.as_bytes()).unwrap_err();
        assert!(why("{}").contains("report --format json"));
        assert!(why("[1").starts_with("it ends in the middle: make it again"));
        for old in OLD {
            let why = why(&format!(r#"{{"schema": "{old}", "operations": []}}"#));
            assert!(why.contains("make it again") && why.contains(CURRENT), "{why}");
        }
        assert!(why(&format!(r#"{{{HEAD}, "ranks": 1}}"#)).contains("invalid type"));
        assert!(why(r#"{"schema": "ncclscope.report/3"}"#).contains("it has no `operations`"));
        assert!(why(r#"{"schema": "ncclscope.report/99"}"#).contains("does not read"));
    }
}
