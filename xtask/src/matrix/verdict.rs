// SPDX-License-Identifier: Apache-2.0
//! The result of `check --json` for the recordings of a cell.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// Numbers of events of a kind in all recordings of a cell.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) started: u64,
    pub(super) stopped: u64,
    /// Events whose parent had stopped before they started.
    pub(super) late: u64,
    /// Roles of the threads that started the events.
    pub(super) threads: BTreeSet<String>,
}

/// The content of a cell's recordings.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) files: usize,
    pub(super) comms: u64,
    pub(super) api_version: u64,
    pub(super) kinds: BTreeMap<String, Count>,
    /// For each role of a thread, the order in which kinds of events first start (`+`) and stop.
    pub(super) order: BTreeMap<String, Vec<String>>,
    /// Numbers of open events by (reason, kind).
    pub(super) open: BTreeMap<(String, String), u64>,
    /// `FILE: rule: what`.
    pub(super) violations: Vec<String>,
}

/// Reads the program's output.
pub(super) fn read(text: &str) -> Option<Verdict> {
    let value: Value = serde_json::from_str(text).ok()?;
    let mut verdict = Verdict::default();
    for file in value["files"].as_array()? {
        verdict.files += 1;
        verdict.comms += file["comms"].as_u64()?;
        verdict.api_version = verdict.api_version.max(file["api_version"].as_u64()?);
        for (kind, count) in file["kinds"].as_object()? {
            let sum = verdict.kinds.entry(kind.clone()).or_default();
            sum.started += count["started"].as_u64()?;
            sum.stopped += count["stopped"].as_u64()?;
            sum.late += count["late"].as_u64()?;
            let threads = count["threads"].as_array()?.iter();
            sum.threads.extend(threads.filter_map(|thread| thread.as_str().map(str::to_owned)));
        }
        for (role, order) in file["order"].as_object()? {
            let order = order.as_array()?.iter().filter_map(|one| one.as_str().map(str::to_owned));
            verdict.order.entry(role.clone()).or_insert_with(|| order.collect());
        }
        for open in file["open"].as_array()? {
            let text = |name: &str| open[name].as_str().map(str::to_owned);
            *verdict.open.entry((text("kind")?, text("reason")?)).or_default() +=
                open["count"].as_u64()?;
        }
        for violation in file["violations"].as_array()? {
            let (file, rule) = (file["file"].as_str()?, violation["rule"].as_str()?);
            let what = violation["what"].as_str()?;
            verdict.violations.push(format!("{file}: {rule}: {what}"));
        }
    }
    Some(verdict)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recordings_add_up() {
        let file = r#"{"file":"a","api_version":5,"nccl_version":1,"comms":1,"stale":0,
            "kinds":{"Coll":{"started":2,"stopped":1,"late":1,"threads":["api"]}},
            "order":{"api":["+Coll","-Coll"]},
            "open":[{"kind":"Coll","reason":"r","count":1}],
            "violations":[{"rule":"open","what":"w"}]}"#;
        let verdict = read(&format!(r#"{{"files":[{file},{file}]}}"#)).expect("it is one");
        assert_eq!((verdict.files, verdict.comms, verdict.api_version), (2, 2, 5));
        let coll = &verdict.kinds["Coll"];
        assert_eq!((coll.started, coll.stopped, coll.late, coll.threads.len()), (4, 2, 2, 1));
        assert_eq!(verdict.open[&("Coll".into(), "r".into())], 2);
        assert_eq!(verdict.violations, ["a: open: w", "a: open: w"]);
        assert_eq!(verdict.order["api"], ["+Coll", "-Coll"]);
        assert_eq!(read("{}"), None);
    }
}
