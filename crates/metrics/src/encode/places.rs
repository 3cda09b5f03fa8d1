// SPDX-License-Identifier: Apache-2.0
//! The attributes that an agent adds: the job, host, rank and device of the process, and the role
//! of the communicator.

pub use super::attributes::{DEVICE, DEVICE_UUID};

use super::attributes::{Attribute, Attributes, HASH, Labels};
use super::names::METRICS;
use super::point::{Family, families};
use crate::window::{Metrics, Name};
use std::collections::BTreeMap;

/// The job.
pub const JOB: &str = "nccl.job.id";
/// The job's name.
pub const JOB_NAME: &str = "nccl.job.name";
/// The host, if it is not the agent's.
pub const HOST: &str = "host.name";
/// The rank in the job.
pub const PROCESS_RANK: &str = "nccl.process.rank";
/// The role of a communicator.
pub const ROLE: &str = "nccl.communicator.role";

/// Each of these attributes with its description.
pub const ATTRIBUTES: &[(&str, &str)] = &[
    (JOB, "the job: of Slurm, torchelastic or Kubernetes, or `NCCLSCOPE_JOB`; absent if unknown"),
    (JOB_NAME, "its name: of Slurm, of Kubernetes, or torchelastic's run id; absent if unknown"),
    (HOST, "the host of the process, if it is not that of the agent"),
    (ROLE, "the communicator's role, as the application set it; absent without one"),
    (PROCESS_RANK, "the rank in the job, if ranks are requested"),
    (DEVICE, "the CUDA device, as the process counts them, if ranks are requested"),
    (DEVICE_UUID, "the same by its UUID, if ranks are requested"),
];

/// Attributes of all points of a process; unknown ones are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProcessAttributes(Attributes);

impl ProcessAttributes {
    /// Adds a text attribute, if it has a value.
    pub fn text(&mut self, name: &'static str, value: Option<&str>) {
        let value = value.filter(|value| !value.is_empty());
        self.0.extend(value.map(|value| (name, Attribute::from(value))));
    }

    /// Adds a number attribute, if it has a value.
    pub fn int(&mut self, name: &'static str, value: Option<u32>) {
        self.0.extend(value.map(|value| (name, Attribute::Int(value.into()))));
    }
}

/// [`families`] of several processes. Each point has the attributes of its process, and the role of
/// its communicator (`roles`, by hash).
#[must_use]
pub fn families_of(
    places: &BTreeMap<ProcessAttributes, Metrics>,
    roles: &BTreeMap<u64, Name>,
    labels: Labels,
) -> Vec<Family> {
    let roles: BTreeMap<String, &Name> =
        roles.iter().map(|(hash, role)| (format!("{hash:016x}"), role)).collect();
    let mut by_metric: BTreeMap<&str, Family> = BTreeMap::new();
    for (ProcessAttributes(place), metrics) in places {
        for mut family in families(metrics, labels) {
            for point in &mut family.points {
                add_role(&mut point.attributes, &roles);
                point.attributes.extend(place.iter().cloned());
            }
            match by_metric.get_mut(family.metric.name) {
                Some(known) => known.points.append(&mut family.points),
                None => drop(by_metric.insert(family.metric.name, family)),
            }
        }
    }
    METRICS.iter().filter_map(|metric| by_metric.remove(metric.name)).collect()
}

/// Inserts the role of the communicator after its name.
fn add_role(attributes: &mut Attributes, roles: &BTreeMap<String, &Name>) {
    let Some(at) = attributes.iter().position(|(name, _)| *name == HASH) else { return };
    let Some((_, Attribute::Text(hash))) = attributes.get(at) else { return };
    if let Some(role) = roles.get(&**hash) {
        attributes.insert(at, (ROLE, Attribute::Text((*role).clone())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encode::prom;
    use crate::window::{CommKey, Rank, RankKey};

    #[test]
    fn each_job_has_its_own_series() {
        let metrics = |in_flight| {
            let comm = CommKey { hash: 0xab, name: "c".into(), ranks: 2, nodes: 1 };
            let mut metrics = Metrics::default();
            let rank = Rank { in_flight, ..Rank::default() };
            metrics.ranks.insert(RankKey { comm, rank: 0 }, rank);
            metrics.events.insert("Coll", in_flight);
            metrics
        };
        let place = |job: Option<&str>| {
            let mut place = ProcessAttributes::default();
            place.text(JOB, job);
            place.text(HOST, Some(""));
            place.int(PROCESS_RANK, job.map(|_| 3));
            place
        };
        let places = BTreeMap::from([
            (place(Some("4711.0")), metrics(1)),
            (place(Some("4712.0")), metrics(2)),
            (place(None), metrics(3)),
        ]);
        let roles = BTreeMap::from([(0xab, "tp".into()), (0xac, "dp".into())]);
        let text = prom::encode(&families_of(&places, &roles, Labels::default()), &[]);
        let lines: Vec<&str> = text.lines().filter(|line| line.contains("in_flight{")).collect();
        let comm = "nccl_communicator_name=\"c\",nccl_communicator_role=\"tp\",\
                    nccl_communicator_hash=\"00000000000000ab\",nccl_communicator_size=\"2\",\
                    nccl_communicator_nodes=\"1\"";
        let of =
            |job: &str, count: u64| format!("nccl_operations_in_flight{{{comm}{job}}} {count}");
        assert_eq!(
            lines,
            [
                of("", 3),
                of(",nccl_job_id=\"4711.0\",nccl_process_rank=\"3\"", 1),
                of(",nccl_job_id=\"4712.0\",nccl_process_rank=\"3\"", 2),
            ]
        );
        let events = "nccl_events_started_total{nccl_event_type=\"Coll\"";
        assert!(text.contains(&format!("{events}}} 3\n")), "{text}");
        assert!(text.contains(&format!("{events},nccl_job_id=\"4711.0\"")), "{text}");
        assert_eq!(text.matches("# TYPE nccl_operations_in_flight").count(), 1);
    }
}
