// SPDX-License-Identifier: Apache-2.0
//! Observes a run from outside: idle threads, the recording's size, the tool's report.

use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use serde_json::Value;

use crate::outcome::Outcome;
use crate::process;

/// Time until the driver has played its few operations and the recording is quiet.
const START: Duration = Duration::from_millis(1500);
/// How long an idle process is watched.
const WATCHED: Duration = Duration::from_secs(5);
/// Prefix of the names of the plugin's threads.
const THREADS: &str = "ncclscope";

/// Processor time (ns) that the plugin's threads of process `pid` take in five seconds.
///
/// # Errors
/// If there is no such thread, or the kernel does not account for it.
pub(super) fn idle(pid: u32) -> Outcome<u64> {
    sleep(START);
    let before = processor_ns(pid)?;
    sleep(WATCHED);
    Ok(processor_ns(pid)? - before)
}

fn processor_ns(pid: u32) -> Outcome<u64> {
    let (mut threads, mut sum) = (0, 0);
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let thread = thread?.path();
        if std::fs::read_to_string(thread.join("comm"))?.starts_with(THREADS) {
            let times = std::fs::read_to_string(thread.join("schedstat"))?;
            sum += times.split(' ').next().unwrap_or_default().parse::<u64>()?;
            threads += 1;
        }
    }
    if threads == 0 { Err(format!("no thread of it is called {THREADS}").into()) } else { Ok(sum) }
}

/// Bytes of the files in `folder`.
pub(super) fn bytes(folder: &Path) -> Outcome<u64> {
    let mut sum = 0;
    for file in std::fs::read_dir(folder)? {
        sum += file?.metadata()?.len();
    }
    Ok(sum)
}

/// For each kind of event, the numbers that the recordings contain and that they counted as lost.
///
/// # Errors
/// The tool's error message.
pub(super) fn report(dist: &Path, recordings: &Path) -> Outcome<Value> {
    let tool = dist.join("ncclscope");
    let mut command = process::command(&[&tool.to_string_lossy(), "report", "--format", "json"]);
    let report: Value = serde_json::from_str(&process::stdout(command.arg(recordings))?)?;
    Ok(accounted(&report))
}

/// `{KIND: {"recorded": N, "lost": N}}` of a report.
fn accounted(report: &Value) -> Value {
    let mut kinds = Value::Object(serde_json::Map::new());
    let mut add = |kind: &str, what: &str, count: &Value| {
        let sum = kinds[kind][what].as_u64().unwrap_or(0) + count.as_u64().unwrap_or(0);
        kinds[kind][what] = sum.into();
    };
    let events = report["ranks"].as_array().into_iter().flatten().map(|rank| &rank["events"]);
    for (kind, counts) in events.filter_map(Value::as_object).flatten() {
        add(kind, "recorded", &counts["started"]);
    }
    for losses in ["by_kind", "unwritten_by_kind", "overwritten_by_kind"] {
        for (kind, count) in report["lost"][losses].as_object().into_iter().flatten() {
            add(kind, "lost", count);
        }
    }
    kinds
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_report_is_added_up_by_kind() {
        let report = json!({
            "ranks": [
                {"events": {"Coll": {"started": 3, "dropped": 4}, "Group": {"started": 1}}},
                {"events": {"Coll": {"started": 2, "dropped": 0}}}
            ],
            "lost": {
                "by_kind": {"Coll": 4},
                "ends_by_kind": {"Coll": 9},
                "unwritten_by_kind": {"Coll": 1, "ProxyOp": 7},
                "overwritten_by_kind": {}
            }
        });
        let expected = json!({
            "Coll": {"recorded": 5, "lost": 5},
            "Group": {"recorded": 1},
            "ProxyOp": {"lost": 7}
        });
        assert_eq!(accounted(&report), expected);
    }

    #[test]
    fn a_process_without_our_threads_is_not_idle() {
        assert!(processor_ns(std::process::id()).is_err());
    }
}
