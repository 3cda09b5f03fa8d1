// SPDX-License-Identifier: Apache-2.0
//! Rules on dependencies: the permitted arrows between our crates, a written reason for each
//! external crate, and crates that must never get into the plugin.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::violation::Violation;
use crate::outcome::Outcome;
use crate::process;

const REASONS: &str = "docs/dependencies.md";
const PLUGIN: &str = "ncclscope-plugin";

/// The crates of ours that each of our crates may use. Dev-dependencies are not restricted, because
/// they do not ship.
const ARROWS: &[(&str, &[&str])] = &[
    (
        "ncclscope-cli",
        &[
            "ncclscope-answer",
            "ncclscope-compare",
            "ncclscope-console",
            "ncclscope-control",
            "ncclscope-diagnose",
            "ncclscope-findings",
            "ncclscope-inspector",
            "ncclscope-kineto",
            "ncclscope-limits",
            "ncclscope-metrics",
            "ncclscope-node",
            "ncclscope-operations",
            "ncclscope-page",
            "ncclscope-report",
            "ncclscope-simulate",
            "ncclscope-stragglers",
            "ncclscope-top",
            "ncclscope-trace",
            "ncclscope-views",
        ],
    ),
    (
        "ncclscope-agent",
        &[
            "ncclscope-console",
            "ncclscope-control",
            "ncclscope-metrics",
            "ncclscope-node",
            "ncclscope-trace",
        ],
    ),
    (
        "ncclscope-node",
        &[
            "ncclscope-console",
            "ncclscope-control",
            "ncclscope-diagnose",
            "ncclscope-findings",
            "ncclscope-metrics",
            "ncclscope-operations",
            "ncclscope-process",
            "ncclscope-trace",
        ],
    ),
    ("ncclscope-console", &["ncclscope-control"]),
    (
        "ncclscope-top",
        &["ncclscope-findings", "ncclscope-limits", "ncclscope-operations", "ncclscope-statistics"],
    ),
    (
        "ncclscope-page",
        &[
            "ncclscope-answer",
            "ncclscope-compare",
            "ncclscope-diagnose",
            "ncclscope-findings",
            "ncclscope-operations",
            "ncclscope-report",
            "ncclscope-stragglers",
        ],
    ),
    (
        "ncclscope-answer",
        &[
            "ncclscope-diagnose",
            "ncclscope-findings",
            "ncclscope-limits",
            "ncclscope-operations",
            "ncclscope-report",
            "ncclscope-stragglers",
        ],
    ),
    (
        "ncclscope-compare",
        &[
            "ncclscope-inspector",
            "ncclscope-operations",
            "ncclscope-report",
            "ncclscope-statistics",
            "ncclscope-stragglers",
            "ncclscope-trace",
        ],
    ),
    (
        "ncclscope-stragglers",
        &[
            "ncclscope-delays",
            "ncclscope-findings",
            "ncclscope-inspector",
            "ncclscope-kineto",
            "ncclscope-limits",
            "ncclscope-operations",
            "ncclscope-statistics",
            "ncclscope-trace",
        ],
    ),
    (PLUGIN, &["ncclscope-runtime", "ncclscope-recorder", "ncclscope-control", "ncclscope-abi"]),
    (
        "ncclscope-runtime",
        &[
            "ncclscope-control",
            "ncclscope-recorder",
            "ncclscope-metrics",
            "ncclscope-findings",
            "ncclscope-operations",
            "ncclscope-process",
            "ncclscope-trace",
        ],
    ),
    ("ncclscope-views", &["ncclscope-operations", "ncclscope-protobuf", "ncclscope-trace"]),
    ("ncclscope-kineto", &["ncclscope-views", "ncclscope-operations", "ncclscope-trace"]),
    ("ncclscope-simulate", &["ncclscope-findings", "ncclscope-trace"]),
    (
        "ncclscope-diagnose",
        &["ncclscope-findings", "ncclscope-limits", "ncclscope-operations", "ncclscope-trace"],
    ),
    ("ncclscope-delays", &["ncclscope-limits", "ncclscope-operations", "ncclscope-statistics"]),
    ("ncclscope-statistics", &["ncclscope-limits", "ncclscope-operations"]),
    ("ncclscope-inspector", &["ncclscope-operations", "ncclscope-trace"]),
    ("ncclscope-report", &["ncclscope-inspector", "ncclscope-operations", "ncclscope-trace"]),
    (
        "ncclscope-metrics",
        &["ncclscope-control", "ncclscope-operations", "ncclscope-protobuf", "ncclscope-trace"],
    ),
    ("ncclscope-limits", &[]),
    ("ncclscope-operations", &["ncclscope-control", "ncclscope-trace"]),
    ("ncclscope-recorder", &["ncclscope-trace"]),
    ("ncclscope-control", &["ncclscope-trace"]),
    ("ncclscope-findings", &["ncclscope-limits", "ncclscope-operations"]),
    ("ncclscope-process", &[]),
    ("ncclscope-protobuf", &[]),
    ("ncclscope-trace", &[]),
    ("ncclscope-abi", &[]),
    ("built", &[]),
    ("cpu-cuda", &[]),
    ("fake-nccl", &["built", "ncclscope-abi"]),
    (
        "fuzz",
        &[
            "built",
            "ncclscope-compare",
            "ncclscope-control",
            "ncclscope-diagnose",
            "ncclscope-inspector",
            "ncclscope-metrics",
            "ncclscope-report",
            "ncclscope-simulate",
            "ncclscope-stragglers",
            "ncclscope-trace",
        ],
    ),
    ("invariants", &["ncclscope-operations", "ncclscope-trace"]),
    (
        "gpu-kit",
        &[
            "rig",
            "invariants",
            "ncclscope-control",
            "ncclscope-report",
            "ncclscope-operations",
            "ncclscope-trace",
        ],
    ),
    ("cluster", &["built", "rig"]),
    ("rig", &["built"]),
    ("scripts", &["ncclscope-trace"]),
    ("stepper", &["built", "fake-nccl"]),
    ("bench", &["ncclscope-recorder", "ncclscope-trace"]),
    ("xtask", &["ncclscope-findings"]),
];

/// Crates that start threads, runtimes or global subscribers, and TLS, which ranks do not use:
/// never inside the job. Also procedural macros, because a sanitizer's flags break them.
const BANNED_IN_PLUGIN: &[&str] = &[
    "tokio",
    "reqwest",
    "hyper",
    "tracing-subscriber",
    "opentelemetry_sdk",
    "rustls",
    "ring",
    "native-tls",
    "serde_derive",
    "ratatui",
    "crossterm",
    "libsqlite3-sys",
];

/// One of our crates, from `cargo metadata`.
#[derive(Debug)]
struct Package {
    name: String,
    /// Path of its Cargo.toml from the repository root.
    manifest: String,
    dependencies: Vec<Dependency>,
}

#[derive(Debug)]
struct Dependency {
    name: String,
    /// `dev`, `build`, or empty for a normal dependency.
    kind: String,
}

pub(super) fn check() -> Outcome<Vec<Violation>> {
    let metadata = process::stdout(&mut process::command(&[
        "cargo",
        "metadata",
        "--no-deps",
        "--format-version",
        "1",
    ]))?;
    let packages = packages(&metadata)?;
    let mut found = arrows(&packages);
    let reasons = std::fs::read_to_string(REASONS).unwrap_or_default();
    let table = workspace_table(&std::fs::read_to_string("Cargo.toml")?);
    found.extend(documented(&packages, &table, &reasons));
    // With the features that a build of the whole workspace enables in the plugin's libraries.
    let tree = process::stdout(&mut process::command(&[
        "cargo",
        "tree",
        "--workspace",
        "-e",
        "normal",
        "--prefix",
        "depth",
        "--no-dedupe",
        "--format",
        " {p}",
    ]))?;
    found.extend(banned(&tree));
    Ok(found)
}

fn packages(metadata: &str) -> Outcome<Vec<Package>> {
    let metadata: Value = serde_json::from_str(metadata)?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let root = format!("{}/", text(&metadata["workspace_root"]));
    let package = |package: &Value| Package {
        name: text(&package["name"]),
        manifest: text(&package["manifest_path"]).trim_start_matches(&root).to_owned(),
        dependencies: package["dependencies"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|dependency| Dependency {
                name: text(&dependency["name"]),
                kind: text(&dependency["kind"]),
            })
            .collect(),
    };
    let packages = metadata["packages"].as_array().ok_or("cargo metadata without packages")?;
    Ok(packages.iter().map(package).collect())
}

fn arrows(packages: &[Package]) -> Vec<Violation> {
    let ours: BTreeSet<&str> = packages.iter().map(|package| package.name.as_str()).collect();
    let mut found = Vec::new();
    for Package { name, manifest, dependencies } in packages {
        let Some((_, allowed)) = ARROWS.iter().find(|(from, _)| from == name) else {
            let message = format!("crate `{name}` has no row in ARROWS of xtask/src/tidy/deps.rs");
            found.push(Violation::new(manifest, 1, message));
            continue;
        };
        let shipped = dependencies.iter().filter(|dependency| dependency.kind != "dev");
        for Dependency { name: to, .. } in shipped {
            if ours.contains(to.as_str()) && !allowed.contains(&to.as_str()) {
                let allowed = if allowed.is_empty() { "none".into() } else { allowed.join(", ") };
                let message = format!("`{name}` must not use `{to}`; of our crates: {allowed}");
                found.push(Violation::new(manifest, 1, message));
            }
        }
    }
    found
}

/// Names in `[workspace.dependencies]` of the root Cargo.toml, with line numbers.
fn workspace_table(manifest: &str) -> BTreeMap<String, usize> {
    let lines = manifest.lines().enumerate();
    let table = lines.skip_while(|(_, line)| *line != "[workspace.dependencies]").skip(1);
    let rows = table.take_while(|(_, line)| !line.starts_with('['));
    let names = rows.filter_map(|(index, line)| {
        let name = line.split(['=', '.', ' ']).next().filter(|name| !name.is_empty())?;
        (!name.starts_with('#')).then(|| (name.to_owned(), index + 1))
    });
    names.collect()
}

/// Checks that every external crate has one row in [`REASONS`] with its users and the reason, and
/// that no row and no line of the workspace table remains when the crate is unused.
fn documented(
    packages: &[Package],
    table: &BTreeMap<String, usize>,
    reasons: &str,
) -> Vec<Violation> {
    let users = users(packages);
    let rows = rows(reasons);
    let mut found = Vec::new();
    let ours = |name: &str| packages.iter().any(|package| package.name == name);
    for (name, (manifest, used_by)) in &users {
        match rows.get(name.as_str()) {
            None => {
                let row = format!("| `{name}` | {used_by} | REASON |");
                let message = format!("`{name}` has no reason in {REASONS}: add `{row}`");
                found.push(Violation::new(manifest, 1, message));
            }
            Some(row) if row.used_by != used_by || row.reason.is_empty() => {
                let message = format!("`{name}` is used by `{used_by}`; say so, and why");
                found.push(Violation::new(REASONS, row.line, message));
            }
            Some(_) => {}
        }
    }
    for (name, row) in rows.iter().filter(|(name, _)| !users.contains_key(**name)) {
        let message = format!("no crate uses `{name}`: delete its row");
        found.push(Violation::new(REASONS, row.line, message));
    }
    for (name, line) in table {
        if !users.contains_key(name) && !ours(name) {
            let message = format!("no crate uses `{name}`: delete its line");
            found.push(Violation::new("Cargo.toml", *line, message));
        }
    }
    found
}

/// External crates: the first manifest that names each, and its users as written in the table.
fn users(packages: &[Package]) -> BTreeMap<String, (String, String)> {
    let ours: BTreeSet<&str> = packages.iter().map(|package| package.name.as_str()).collect();
    let mut users: BTreeMap<String, (String, String)> = BTreeMap::new();
    let mut sorted: Vec<&Package> = packages.iter().collect();
    sorted.sort_unstable_by_key(|package| short(&package.name));
    for package in sorted {
        let mut kinds: BTreeMap<&str, &str> = BTreeMap::new();
        for Dependency { name, kind } in &package.dependencies {
            // The empty kind, a normal dependency, sorts first and covers the others.
            let first = kinds.entry(name).or_insert(kind);
            *first = (*first).min(kind);
        }
        for (name, kind) in kinds.into_iter().filter(|(name, _)| !ours.contains(name)) {
            let kind = if kind.is_empty() { String::new() } else { format!(" ({kind})") };
            let user = format!("{}{kind}", short(&package.name));
            users
                .entry(name.to_owned())
                .and_modify(|(_, cell)| *cell += &format!(", {user}"))
                .or_insert_with(|| (package.manifest.clone(), user));
        }
    }
    users
}

/// The name of our crate as written in the table.
fn short(name: &str) -> &str {
    name.trim_start_matches("ncclscope-")
}

/// A row of the table in [`REASONS`].
#[derive(Debug)]
struct Row<'a> {
    line: usize,
    used_by: &'a str,
    reason: &'a str,
}

/// The rows of the page's section `## Crates`, by crate name.
fn rows(page: &str) -> BTreeMap<&str, Row<'_>> {
    let lines = page.lines().enumerate().skip_while(|(_, line)| *line != "## Crates").skip(1);
    let section = lines.take_while(|(_, line)| !line.starts_with("## "));
    section.filter_map(|(index, line)| row(index + 1, line)).collect()
}

/// Parses `` | `crate` | used by | why | ``.
fn row(line: usize, text: &str) -> Option<(&str, Row<'_>)> {
    let mut cells = text.split('|').skip(1).map(str::trim);
    let name = cells.next()?.strip_prefix('`')?.strip_suffix('`')?;
    Some((name, Row { line, used_by: cells.next()?, reason: cells.next()? }))
}

/// Looks for [`BANNED_IN_PLUGIN`] below the plugin in the output of `cargo tree`, which has a line
/// for each package with its depth before its name.
fn banned(tree: &str) -> Vec<Violation> {
    let words = tree.lines().map(|line| {
        let mut words = line.split_whitespace();
        (words.next(), words.next())
    });
    let is_root = |depth: Option<&str>| depth == Some("0");
    let from = words.skip_while(|&(depth, name)| !(is_root(depth) && name == Some(PLUGIN)));
    let below = from.skip(1).take_while(|&(depth, _)| !is_root(depth));
    let names: BTreeSet<&str> = below.filter_map(|(_, name)| name).collect();
    let found = BANNED_IN_PLUGIN.iter().filter(|name| names.contains(**name));
    let message = |name: &&str| {
        format!(
            "`{name}` must not get into the plugin: `cargo tree --workspace -e normal -i {name}`"
        )
    };
    found.map(|name| Violation::new("crates/plugin/Cargo.toml", 1, message(name))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, dependencies: &[(&str, &str)]) -> Package {
        let dependency =
            |&(name, kind): &(&str, &str)| Dependency { name: name.into(), kind: kind.into() };
        let dependencies = dependencies.iter().map(dependency).collect();
        Package { name: name.into(), manifest: format!("{name}/Cargo.toml"), dependencies }
    }

    fn messages(found: Vec<Violation>) -> Vec<String> {
        found.into_iter().map(|violation| violation.to_string()).collect()
    }

    #[test]
    fn metadata_is_read() {
        let metadata = r#"{"workspace_root": "/w", "packages": [{"name": "a",
            "manifest_path": "/w/crates/a/Cargo.toml", "dependencies": [
            {"name": "b", "kind": null}, {"name": "c", "kind": "dev"}]}]}"#;
        let packages = packages(metadata).expect("valid metadata");
        assert_eq!(packages[0].manifest, "crates/a/Cargo.toml");
        let kinds: Vec<_> =
            packages[0].dependencies.iter().map(|d| (d.name.as_str(), d.kind.as_str())).collect();
        assert_eq!(kinds, [("b", ""), ("c", "dev")]);
    }

    #[test]
    fn arrows_point_down() {
        let below = package("ncclscope-trace", &[("ncclscope-cli", "dev"), ("libc", "")]);
        let cli = package("ncclscope-cli", &[("ncclscope-trace", "")]);
        let runtime = package("ncclscope-runtime", &[]);
        assert_eq!(messages(arrows(&[below, cli, runtime])), [""; 0]);

        let cli =
            package("ncclscope-cli", &[("ncclscope-runtime", ""), ("ncclscope-abi", "build")]);
        let others = ["ncclscope-runtime", "ncclscope-abi"].map(|name| package(name, &[]));
        let [runtime, abi] = others;
        let found = messages(arrows(&[cli, runtime, abi, package("new", &[])]));
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[0].contains("`ncclscope-cli` must not use `ncclscope-runtime`"));
        assert!(found[2].contains("crate `new` has no row"));
    }

    #[test]
    fn dependencies_have_reasons_users_and_no_leftovers() {
        let packages = [
            package("ncclscope-abi", &[("libc", ""), ("libc", "dev"), ("object", "dev")]),
            package("rig", &[("libc", "build"), ("ncclscope-abi", "dev")]),
        ];
        let table = workspace_table(
            "[workspace]\nx = 1\n[workspace.dependencies]\n# why\nlibc = \"0.2\"\n\
             ncclscope-abi.path = \"x\"\nidle = { version = \"1\" }\n[profile]\ny = 1",
        );
        assert_eq!(table.keys().collect::<Vec<_>>(), ["idle", "libc", "ncclscope-abi"]);
        let page = "## Crates\n| crate | used by | why |\n| --- | --- | --- |\n\
                    | `libc` | abi, rig (build) | calls |\n| `gone` | abi | x |\n\
                    ## Tools\n| `pip` | tests | x |";
        let found = messages(documented(&packages, &table, page));
        assert_eq!(
            found,
            [
                "ncclscope-abi/Cargo.toml:1: `object` has no reason in docs/dependencies.md: \
                 add `| `object` | abi (dev) | REASON |`",
                "docs/dependencies.md:5: no crate uses `gone`: delete its row",
                "Cargo.toml:7: no crate uses `idle`: delete its line",
            ]
        );
        let page = "## Crates\n| `libc` | abi | calls |\n| `object` | abi (dev) | |";
        let found = messages(documented(&packages, &BTreeMap::new(), page));
        assert!(found[0].contains("`libc` is used by `abi, rig (build)`"), "{found:?}");
        assert!(found[1].starts_with("docs/dependencies.md:3: `object`"), "{found:?}");
    }

    #[test]
    fn banned_crates_are_found_by_whole_name_below_the_plugin() {
        let tree = "0 ncclscope-cli v0.1.0 (/w)\n1 rustls v0.23.0\n\n\
                    0 ncclscope-plugin v0.1.0 (/w)\n\
                    1 ureq v3.0.0\n2 hyper v1.0.0\n1 tokio-macros v2\n1 hyper v1.0.0\n\n\
                    0 rig v0.1.0 (/w)\n1 tokio v1.0.0";
        let found = messages(banned(tree));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("`hyper` must not"));
    }
}
