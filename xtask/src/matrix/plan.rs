// SPDX-License-Identifier: Apache-2.0
//! The list of cells.

use super::cell::Cell;
use super::scenario::Scenario;
use super::topology::{self, TOPOLOGIES};
use super::wheel::Wheel;
use super::workload::WORKLOADS;

/// The topology on which the page measures all workloads; on others it measures only the first one.
pub(super) const DOCS_TOPOLOGY: &str = "socket";

pub(super) fn cells(
    wheels: &[Wheel],
    names: &[String],
    scenario: Option<&Scenario>,
) -> Result<Vec<Cell>, String> {
    let mut picked = Vec::new();
    for name in names {
        picked.extend(topology::named(name)?);
    }
    match (scenario, names) {
        (Some(_), [_, ..]) => return Err("a scenario has its own topology".into()),
        (Some(scenario), []) => picked.push(scenario.topology),
        (None, []) => picked.extend(TOPOLOGIES),
        (None, _) => {}
    }
    let mut cells = Vec::new();
    for wheel in wheels {
        for &topology in &picked {
            let scenario = scenario.cloned();
            let wheel = wheel.clone();
            cells.push(Cell { wheel, topology, workload: None, scenario });
        }
    }
    Ok(cells)
}

/// The cells of the page.
pub(super) fn docs_cells(wheels: &[Wheel]) -> Vec<Cell> {
    let mut cells = Vec::new();
    for wheel in wheels {
        for &topology in TOPOLOGIES.iter().chain(topology::of_page()) {
            let is_main = topology.name == DOCS_TOPOLOGY;
            for workload in &WORKLOADS[..if is_main { WORKLOADS.len() } else { 1 }] {
                let (wheel, workload) = (wheel.clone(), Some(*workload));
                cells.push(Cell { wheel, topology, workload, scenario: None });
            }
        }
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::super::wheel::releases;
    use super::*;

    #[test]
    fn a_scenario_has_its_own_topology() {
        let wheels = releases(&["2.30.7".to_owned()]).expect("a version");
        let scenario = Scenario {
            file: "a/slow.toml".into(),
            topology: topology::of_scenario("ring3").expect("a name"),
            releases: vec![],
            hangs: false,
            spoils_ptimer: false,
        };
        let picked = cells(&wheels, &[], Some(&scenario)).expect("it needs no more");
        assert_eq!((picked.len(), picked[0].name().as_str()), (1, "ring3/slow"));
        assert!(cells(&wheels, &["shm".to_owned()], Some(&scenario)).is_err());
    }

    #[test]
    fn the_page_measures_every_workload_and_every_topology() {
        let wheels = releases(&["2.30.7".to_owned()]).expect("a version");
        let cells = docs_cells(&wheels);
        let topologies = TOPOLOGIES.len() + topology::of_page().count();
        assert_eq!(cells.len(), WORKLOADS.len() + topologies - 1);
    }
}
