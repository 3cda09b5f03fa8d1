// SPDX-License-Identifier: Apache-2.0
/*!
Converts the values of other profilers' variables to ours: Open Mosaic's (`NCCL_PROFILER_OTEL_*`),
NVIDIA Inspector's (`NCCL_INSPECTOR_*`, its README in NVIDIA/nccl@3254c695), and those of NVIDIA's
example plugin.

[`crate::table`] declares which variable is an alias of which; [`NOT_TAKEN`] lists those that are
ignored. If both are set, ours is used.
*/

use crate::value::EXPORT_INTERVALS;
use crate::variable::{Get, trimmed};

/// The longest export interval, in seconds: longer than any job, so that metrics are exported only
/// when the process ends.
const AT_THE_END: &str = "86400";

/// A variable that switches the whole plugin off (0) or on (1, mode `flight`); other values pass
/// unchanged.
pub(crate) fn mode(value: String, _: Get<'_>) -> Option<String> {
    Some(match value.as_str() {
        "0" => "off".into(),
        "1" => "flight".into(),
        _ => value,
    })
}

/// `off` for 0; `None` for other values, which the variable does not decide.
pub(crate) fn off(value: String, _: Get<'_>) -> Option<String> {
    (value == "0").then(|| "off".into())
}

/// `on` for 1; `None` for other values, which the variable does not decide.
pub(crate) fn on(value: String, _: Get<'_>) -> Option<String> {
    (value == "1").then(|| "on".into())
}

/// Inspector's output directory, with `%` escaped because Inspector has no placeholders; `None` if
/// Inspector writes Prometheus textfiles there.
pub(crate) fn directory(path: String, get: Get<'_>) -> Option<String> {
    // The node exporter reads the directory of textfiles, so recordings must not lie there.
    let has_textfiles = trimmed(get, "NCCL_INSPECTOR_PROM_DUMP").is_some_and(|value| value == "1");
    (!has_textfiles).then(|| path.replace('%', "%%"))
}

/// Converts milliseconds to seconds.
pub(crate) fn milliseconds(ms: String, _: Get<'_>) -> Option<String> {
    Some(match ms.parse::<u32>() {
        Ok(ms) => (f64::from(ms) / 1e3).to_string(),
        Err(_) => ms,
    })
}

/// Converts Inspector's export interval from microseconds to seconds; -1 means one export, at the
/// end of the process.
pub(crate) fn export_interval(us: String, _: Get<'_>) -> Option<String> {
    Some(match (us.as_str(), us.parse::<u32>()) {
        ("-1", _) => AT_THE_END.into(),
        // 0 means as often as possible, which is our shortest interval.
        (_, Ok(us)) => (f64::from(us) / 1e6).max(*EXPORT_INTERVALS.start()).to_string(),
        (_, Err(_)) => us,
    })
}

/// The reason of the variable before.
pub(crate) const AS_ABOVE: &str = "as above";

/// Variables of other profilers that have another meaning or none in ncclscope, with the reason.
pub const NOT_TAKEN: [(&str, &str); 31] = [
    (
        "NCCL_PROFILE_DUMP_FILE",
        "recordings are files in `NCCLSCOPE_DIR`; `ncclscope export` makes such JSON of them",
    ),
    ("NCCL_PROFILE_GROUP_API_POOL_SIZE", "`NCCLSCOPE_RING_MB` sets the memory"),
    ("NCCL_PROFILE_COLL_API_POOL_SIZE", AS_ABOVE),
    ("NCCL_PROFILE_P2P_API_POOL_SIZE", AS_ABOVE),
    ("NCCL_PROFILE_KERNEL_LAUNCH_POOL_SIZE", AS_ABOVE),
    ("NCCL_PROFILE_GROUP_POOL_SIZE", AS_ABOVE),
    ("NCCL_PROFILE_COLL_POOL_SIZE", AS_ABOVE),
    ("NCCL_PROFILE_P2P_POOL_SIZE", AS_ABOVE),
    ("NCCL_PROFILE_PROXY_CTRL_POOL_SIZE", AS_ABOVE),
    ("NCCL_INSPECTOR_COLL_POOL_SIZE", "`NCCLSCOPE_RING_MB` sets the memory"),
    ("NCCL_INSPECTOR_COMM_POOL_SIZE", AS_ABOVE),
    ("NCCL_INSPECTOR_P2P_POOL_SIZE", AS_ABOVE),
    ("NCCL_INSPECTOR_POOL_GROW", AS_ABOVE),
    ("NCCL_INSPECTOR_PROXY_OP_POOL_SIZE", AS_ABOVE),
    ("NCCL_INSPECTOR_PROXY_STEP_POOL_SIZE", AS_ABOVE),
    ("NCCL_INSPECTOR_DUMP_COLL_RING_SIZE", AS_ABOVE),
    ("NCCL_INSPECTOR_DUMP_P2P_RING_SIZE", AS_ABOVE),
    ("NCCL_INSPECTOR_DUMP_PROXY_RING_SIZE", AS_ABOVE),
    ("NCCL_INSPECTOR_DUMP_PROXY_STEPS", "`NCCLSCOPE_EVENTS` selects the events"),
    ("NCCL_INSPECTOR_ENABLE_P2P", "as above: `default,-P2p`"),
    ("NCCL_INSPECTOR_ENABLE_PROXY", "as above; proxy events are on by default"),
    ("NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES", "operations of all sizes are recorded"),
    ("NCCL_INSPECTOR_DUMP_THREAD_ENABLE", "without a drain thread nothing would be recorded"),
    ("NCCL_INSPECTOR_DUMP_VERBOSE", "a recording always has each event with its times"),
    ("NCCL_INSPECTOR_OTEL_VERBOSE", "single operations are in the recordings, not in metrics"),
    (
        "NCCL_INSPECTOR_PROM_DUMP",
        "`ncclscope agent`, not a rank, writes textfiles; `NCCLSCOPE_PROM_COMPAT=inspector` \
         selects Inspector's names",
    ),
    ("NCCL_INSPECTOR_PROM_DUMP_STATS", "the agent always exports the losses"),
    ("NCCL_INSPECTOR_REQUIRE_KERNEL_TIMING", "`nccl.timing` names the clock of each duration"),
    (
        "NCCL_PROFILER_LINEAR_REGRESSION_MODE",
        "both lines are exported (`nccl.fit.mode`); `NCCLSCOPE_PROM_COMPAT=mosaic` gives `AVG`",
    ),
    (
        "NCCL_PROFILER_OTEL_SCALEUP_NETWORK_PCT",
        "times are measured, not estimated as a share of another time",
    ),
    (
        "NCCL_PROFILER_OTEL_TELEMETRY_BATCH_TIMEOUT_MS",
        "metrics are not batched; `OTEL_EXPORTER_OTLP_TIMEOUT` limits the time of a request",
    ),
];
