// SPDX-License-Identifier: Apache-2.0
//! The part of a scenario file that the matrix reads: where it runs, and how its recordings are
//! judged. The rig reads the whole file, and reports errors in it.

use std::fs;
use std::path::Path;

use super::topology::{self, Topology};
use crate::outcome::Outcome;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Scenario {
    pub(super) file: String,
    pub(super) topology: Topology,
    /// The releases that the scenario names; empty: all.
    pub(super) releases: Vec<String>,
    /// Not all of its operations end.
    pub(super) hangs: bool,
    /// It makes the GPU's clock or the profiler's counters invalid.
    pub(super) spoils_ptimer: bool,
}

impl Scenario {
    pub(super) fn read(file: &str) -> Outcome<Self> {
        let text = fs::read_to_string(file).map_err(|e| format!("{file}: {e}"))?;
        Ok(Self::parse(file, &text)?)
    }

    fn parse(file: &str, text: &str) -> Result<Self, String> {
        let topology = strings(text, "topology");
        let topology = topology.first().and_then(|name| topology::of_scenario(name));
        let topology = topology.ok_or_else(|| format!("{file}: no topology of the rig"))?;
        let spoils = |what: &String| what.starts_with("wrap") || what.starts_with("behind");
        Ok(Self {
            file: file.to_owned(),
            topology,
            releases: strings(text, "releases"),
            hangs: strings(text, "ends") == ["hang"],
            spoils_ptimer: strings(text, "what").iter().any(spoils),
        })
    }

    /// The file's name without folder and extension.
    pub(super) fn name(&self) -> String {
        Path::new(&self.file).file_stem().unwrap_or_default().display().to_string()
    }
}

/// The strings of all occurrences of a key, each a string or an array of strings.
fn strings(text: &str, key: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    while let Some(line) = lines.next() {
        let Some((name, value)) = line.split_once('=') else { continue };
        if name.trim() != key {
            continue;
        }
        let mut value = value.to_owned();
        while value.contains('[') && !value.contains(']') {
            let Some(more) = lines.next() else { break };
            value += more;
        }
        found.extend(value.split('"').skip(1).step_by(2).map(str::to_owned));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::wheel;
    use super::*;

    #[test]
    fn a_scenario_says_where_it_runs_and_how_it_ends() {
        let text = "# ends = \"hang\"\ntopology = \"ring3\"\nreleases = [\n  \"2.28.9\",\n  \
                    \"2.32.3\", # the last\n]\n[[fault]]\nwhat = \"wrap:bits=3\"\n";
        let scenario = Scenario::parse("a/slow.toml", text).expect("it is one");
        assert_eq!(scenario.releases, ["2.28.9", "2.32.3"]);
        assert_eq!((scenario.topology.name, scenario.topology.ranks), ("ring3", 3));
        assert_eq!((scenario.hangs, scenario.spoils_ptimer), (false, true));
        assert_eq!(scenario.name(), "slow");
        let hang = "topology = \"socket\"\nends = \"hang\"\nwhat = \"delay:us=1\"";
        let hang = Scenario::parse("b.toml", hang).expect("it is one");
        assert_eq!((hang.hangs, hang.spoils_ptimer, hang.releases.len()), (true, false, 0));
        assert!(Scenario::parse("c.toml", "topology = \"mesh\"").is_err());
    }

    #[test]
    fn every_scenario_of_the_rig_is_understood() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testing/rig/scenarios");
        for entry in fs::read_dir(folder).expect("the rig has scenarios") {
            let file = entry.expect("an entry").path().display().to_string();
            let scenario = Scenario::read(&file).expect("it is one");
            wheel::releases(&scenario.releases).expect("it names releases");
        }
    }
}
