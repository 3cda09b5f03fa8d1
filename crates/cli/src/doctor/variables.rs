// SPDX-License-Identifier: Apache-2.0
//! Environment variables that the job would inherit.

use super::Check;

const PREFIX: &str = "NCCLSCOPE_";

/// Names without the prefix. The plugin's table (`crates/runtime/src/config/table.rs`) is the
/// authority; a test compares them.
const KNOWN: &[&str] = &[
    "MODE",
    "DIR",
    "JOB",
    "COMMAND",
    "START",
    "CONTROL",
    "SIGNAL",
    "EVENTS",
    "KERNEL",
    "CUDA_EVENTS",
    "RING_MB",
    "LANES",
    "CLOCK",
    "OTLP",
    "WINDOW",
    "WINDOW_EVENTS",
    "LABELS",
    "HANG_SEC",
    "HANG_ACTION",
    "CHAIN",
    "LOG",
    "PLUGIN",
    "PROM_COMPAT",
    "NCCL_DIR",
    "REQUIRE_NCCL",
    "REQUIRE_PROM",
    "REQUIRE_PTRACE",
    "REQUIRE_NAMESPACES",
    "BENCH_DIR",
    "TEST_TORCH_PYTHON",
    "TEST_OLD_TORCH_PYTHON",
    "REQUIRE_BROWSER",
    "REQUIRE_TORCH",
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
    checks.extend(chained(&std::env::var("NCCLSCOPE_CHAIN").unwrap_or_default()));
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
        _ => "nothing reads it: remove it".into(),
    };
    Some(Check::warn("NCCLSCOPE_*", format!("{name} is unknown"), advice))
}

/// The plugins behind ours. What has no folder is looked for by the loader, who knows.
fn chained(paths: &str) -> Vec<Check> {
    let paths = paths.split(',').map(str::trim).filter(|path| !path.is_empty());
    let check = |path: &str| {
        let name = "NCCLSCOPE_CHAIN";
        if path.contains('/') && !std::path::Path::new(path).is_file() {
            let advice = "the job goes on without it: correct the path, or leave it out";
            return Check::warn(name, format!("{path} is missing"), advice);
        }
        Check::ok(name, format!("{path} gets every callback too"))
    };
    paths.map(check).collect()
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
    fn chained_plugins_are_named() {
        let checks = chained("inspector, /nowhere/libprofiler.so,");
        assert_eq!(checks.len(), 2);
        assert!(checks[0].advice.is_none() && checks[0].detail.starts_with("inspector "));
        assert_eq!(checks[1].detail, "/nowhere/libprofiler.so is missing");
        assert!(chained("").is_empty());
    }
}
