// SPDX-License-Identifier: Apache-2.0
//! `cargo xtask deny`: checks the dependencies against deny.toml.
//!
//! If cargo-deny is installed, it is used, and also looks for known vulnerabilities and yanked
//! versions. Otherwise (no registry that CI reaches has a current build of it) this module checks
//! licences, sources and banned crates according to the same file.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{ExitCode, Stdio};

use serde::Deserialize;
use serde_json::Value;
use spdx::{Expression, ParseMode};

use crate::outcome::Outcome;
use crate::process;

const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// The rules of deny.toml that this module checks.
#[derive(Debug, Deserialize)]
struct Rules {
    graph: Graph,
    licenses: Licenses,
    bans: Bans,
}

#[derive(Debug, Deserialize)]
struct Graph {
    targets: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Licenses {
    allow: BTreeSet<String>,
}

#[derive(Debug, Deserialize)]
struct Bans {
    deny: Vec<Banned>,
}

#[derive(Debug, Deserialize)]
struct Banned {
    name: String,
}

/// One dependency, as `cargo metadata` describes it.
#[derive(Debug, Deserialize)]
struct Package {
    name: String,
    version: String,
    license: Option<String>,
    /// `None` for our own packages.
    source: Option<String>,
}

/// Runs cargo-deny, or this module's checks. Exit status 1 if a rule is broken.
pub(crate) fn run() -> Outcome {
    let mut version = process::command(&["cargo", "deny", "--version"]);
    let version = version.stdout(Stdio::null()).stderr(Stdio::null()).status();
    if version.is_ok_and(|status| status.success()) {
        let status = process::status(&mut process::command(&["cargo", "deny", "check"]))?;
        return Ok(process::exit_code(status));
    }
    let rules: Rules = toml::from_str(&std::fs::read_to_string("deny.toml")?)?;
    let packages = packages(&rules.graph.targets)?;
    let broken: Vec<String> = packages.iter().filter_map(|one| broken(one, &rules)).collect();
    for line in &broken {
        println!("{line}");
    }
    println!("several versions: {}", several_versions(&packages).join(", "));
    println!("deny: {} crates, {} violations", packages.len(), broken.len());
    println!("not checked without cargo-deny: known vulnerabilities, yanked versions");
    Ok(if broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The dependencies of all our crates on these targets.
fn packages(targets: &[String]) -> Outcome<Vec<Package>> {
    let mut metadata = process::command(&["cargo", "metadata", "--format-version", "1"]);
    metadata.arg("--all-features");
    for target in targets {
        metadata.args(["--filter-platform", target]);
    }
    let mut metadata: Value = serde_json::from_str(&process::stdout(&mut metadata)?)?;
    let packages: Vec<Package> = serde_json::from_value(metadata["packages"].take())?;
    Ok(packages.into_iter().filter(|package| package.source.is_some()).collect())
}

/// The rule that the package breaks, if any.
fn broken(package: &Package, rules: &Rules) -> Option<String> {
    let Package { name, version, license, source } = package;
    let says = |what: &str| Some(format!("{name} {version}: {what}"));
    if source.as_deref() != Some(CRATES_IO) {
        return says("it is not from crates.io");
    }
    if rules.bans.deny.iter().any(|banned| banned.name == *name) {
        return says("it is banned");
    }
    let Some(license) = license else { return says("it names no licence") };
    match Expression::parse_mode(license, ParseMode::LAX) {
        Ok(expression)
            if expression.evaluate(|one| rules.licenses.allow.contains(&one.to_string())) =>
        {
            None
        }
        Ok(_) => says(&format!("its licence is not allowed: {license}")),
        Err(error) => says(&format!("its licence cannot be read: {license}: {}", error.reason)),
    }
}

/// Crates that are linked in several versions.
fn several_versions(packages: &[Package]) -> Vec<String> {
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for package in packages {
        versions.entry(&package.name).or_default().push(&package.version);
    }
    let several = versions.into_iter().filter(|(_, versions)| versions.len() > 1);
    several.map(|(name, versions)| format!("{name} ({})", versions.join(", "))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, license: Option<&str>) -> Package {
        Package {
            name: name.into(),
            version: "1.0.0".into(),
            license: license.map(String::from),
            source: Some(CRATES_IO.into()),
        }
    }

    #[test]
    fn broken_rules_are_named() {
        let rules = include_str!("../../deny.toml");
        let rules: Rules = toml::from_str(rules).expect("it is well formed");
        let says = |package| broken(&package, &rules).unwrap_or_default();
        for fine in ["MIT", "MIT OR GPL-3.0-only", "MIT/Apache-2.0", "(MIT OR ISC) AND Zlib"] {
            assert_eq!(says(package("a", Some(fine))), "");
        }
        for wrong in ["GPL-3.0-only", "MIT AND MPL-2.0"] {
            assert_eq!(
                says(package("a", Some(wrong))),
                format!("a 1.0.0: its licence is not allowed: {wrong}")
            );
        }
        assert_eq!(says(package("a", None)), "a 1.0.0: it names no licence");
        assert_eq!(says(package("openssl-sys", Some("MIT"))), "openssl-sys 1.0.0: it is banned");
        let elsewhere = Package { source: Some("git+x".into()), ..package("a", Some("MIT")) };
        assert_eq!(says(elsewhere), "a 1.0.0: it is not from crates.io");
    }

    #[test]
    fn crates_with_several_versions_are_listed() {
        let other = Package { version: "2.0.0".into(), ..package("a", None) };
        let all = [package("a", None), package("b", None), other];
        assert_eq!(several_versions(&all), ["a (1.0.0, 2.0.0)"]);
    }
}
