// SPDX-License-Identifier: Apache-2.0
//! Sums over the Prometheus text.

use serde_json::Value;

/// The sum of a metric's series that have all of `labels`.
pub(super) fn sum(text: &str, name: &str, labels: &[&str]) -> f64 {
    let lines = text.lines().filter(|line| {
        let is_it = line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
        is_it && labels.iter().all(|label| line.contains(label))
    });
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
}

/// Asserts that the exported totals equal those of the report on the recordings, which contain the
/// functions `funcs`.
pub(super) fn expect_totals(text: &str, report: &Value, funcs: &[&str]) {
    let array = |name: &str| report[name].as_array().unwrap().clone();
    for &func in funcs {
        let of_func = array("operations").into_iter().filter(|row| row["func"] == func);
        let (mut count, mut bytes) = (0.0, 0.0);
        for row in of_func {
            // The report counts an operation of all ranks once.
            let rows = row["count"].as_f64().unwrap() * row["ranks"].as_f64().unwrap();
            count += rows;
            bytes += rows * row["bytes"].as_f64().unwrap();
        }
        assert!(count > 0.0, "{func}: {report}");
        let label = format!("nccl_operation_name=\"{func}\"");
        let exported = ["nccl_operations_total", "nccl_operation_io_bytes_total"]
            .map(|name| sum(text, name, &[&label]));
        assert_eq!(exported, [count, bytes], "{func}: {report}");
    }
    for row in array("peers") {
        let labels = [("nccl_rank", "src"), ("nccl_peer_rank", "dst")]
            .map(|(label, field)| format!("{label}=\"{}\"", row[field]));
        let labels = ["nccl_direction=\"send\"", &labels[0], &labels[1]];
        let exported = ["nccl_link_io_bytes_total", "nccl_link_transfers_total"]
            .map(|name| sum(text, name, &labels));
        assert_eq!(exported[0], row["bytes"].as_f64().unwrap(), "{labels:?}");
        assert_eq!(exported[1], row["transfers"].as_f64().unwrap(), "{labels:?}");
    }
    let channels = sum(text, "nccl_channel_io_bytes_total", &["nccl_direction=\"send\""]);
    assert_eq!(channels, sum(text, "nccl_link_io_bytes_total", &["nccl_direction=\"send\""]));
}
