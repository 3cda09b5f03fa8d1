// SPDX-License-Identifier: Apache-2.0
//! Environment variables that the job would inherit.

use super::Check;

const PREFIX: &str = "NCCLSCOPE_";

/// Names without the prefix. The plugin's table (`crates/runtime/src/config/table.rs`) is the
/// authority; a test compares them.
const KNOWN: &[&str] = &[
    "MODE",
    "DIR",
    "EVENTS",
    "KERNEL",
    "RING_MB",
    "LANES",
    "CLOCK",
    "OTLP",
    "WINDOW",
    "LABELS",
    "LOG",
    "PLUGIN",
    "PROM_COMPAT",
    "NCCL_DIR",
    "REQUIRE_NCCL",
    "REQUIRE_PROM",
    "REQUIRE_PTRACE",
    "BENCH_DIR",
    "TEST_PYTHON",
];

pub(super) fn checks() -> Vec<Check> {
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let mut ours: Vec<String> = names.filter(|name| name.starts_with(PREFIX)).collect();
    ours.sort();
    let mut checks: Vec<Check> = ours.iter().filter_map(|name| unknown(name)).collect();
    if checks.is_empty() {
        let detail = if ours.is_empty() { "none is set".into() } else { ours.join(", ") };
        checks.push(Check::ok("NCCLSCOPE_*", detail));
    }
    checks.extend(plugin_variable(std::env::var("NCCL_PROFILER_PLUGIN").ok()));
    checks
}

fn unknown(name: &str) -> Option<Check> {
    let short = name.strip_prefix(PREFIX)?;
    if KNOWN.contains(&short) {
        return None;
    }
    let nearest = KNOWN.iter().min_by_key(|known| distance(known, short))?;
    let advice = match distance(nearest, short) {
        0..=2 => format!("did you mean {PREFIX}{nearest}?"),
        _ => "nobody reads it: remove it".into(),
    };
    Some(Check::warn("NCCLSCOPE_*", format!("{name} is unknown"), advice))
}

fn plugin_variable(value: Option<String>) -> Option<Check> {
    let name = "NCCL_PROFILER_PLUGIN";
    let value = value?;
    if value.eq_ignore_ascii_case("none") {
        let advice = "`ncclscope run` sets it anew; elsewhere use `ncclscope env`";
        return Some(Check::warn(name, "is none: NCCL loads no profiler", advice));
    }
    // NCCL takes each prefix of this word for it (src/plugin/plugin_open.cc).
    let is_static = !value.is_empty() && "STATIC_PLUGIN".starts_with(&value.to_ascii_uppercase());
    if is_static {
        let detail = format!("is {value}, which NCCL takes for STATIC_PLUGIN");
        return Some(Check::warn(name, detail, "set it to what `ncclscope plugin-path` prints"));
    }
    Some(Check::ok(name, value))
}

/// How many letters must be changed, added or removed.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, &y) in b.iter().enumerate() {
            let changed = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_noticed() {
        assert!(unknown("NCCLSCOPE_MODE").is_none());
        let slip = unknown("NCCLSCOPE_RINGMB").unwrap();
        assert_eq!(slip.advice.as_deref(), Some("did you mean NCCLSCOPE_RING_MB?"));
        assert!(unknown("NCCLSCOPE_SOMETHING").unwrap().advice.unwrap().contains("remove"));
        assert_eq!(distance("MODE", "MODE"), 0);
        assert_eq!(distance("KITTEN", "SITTING"), 3);
    }

    #[test]
    fn the_names_are_those_of_the_plugins_table() {
        let table = ncclscope_runtime::config::VARIABLES;
        assert_eq!(table.iter().map(|v| v.name).collect::<Vec<_>>(), KNOWN);
    }

    #[test]
    fn ncclprofiler_variable() {
        let says = |value: &str| plugin_variable(Some(value.into())).unwrap().detail;
        assert!(says("NONE").contains("no profiler"));
        assert!(says("static").contains("STATIC_PLUGIN"));
        assert_eq!(says("/x/lib.so"), "/x/lib.so");
        assert!(plugin_variable(None).is_none());
    }
}
