// SPDX-License-Identifier: Apache-2.0
/*!
Dumps of PyTorch's Flight Recorder, one file for each rank, as pickle or JSON.

`pg_status` has the latest enqueued and completed number of each process group, by an id that is
local to the process, in JSON as text; `pg_config` has the groups by name (`status`). A group that
`pg_config` does not have has the ranks whose dumps have entries of it. A group with sends and
receives counts those in `pg_status` too: its collectives are then taken from the entries, and its
sends and receives become [`CommKind::Sequence`](crate::job::CommKind::Sequence), which explains
waits but names a cause only if nothing better does.

A dump does not name its rank, so that file names do (`rank_names`). Dumps of another job, or of
another time, are left out (`leftover`).

The format is that of PyTorch's `torch/distributed/flight_recorder`, and of torchcomms.
*/

mod dump;
mod entries;
mod groups;
mod leftover;
mod rank_names;
mod status;

pub use dump::is_dump;

use crate::job::{Job, Process, ProcessStatus};
use crate::words::named_ranks;
use dump::Dump;
use entries::{Entries, Shared};
use groups::GroupBuilder;
use ncclscope_limits::clocks;
use ncclscope_operations::human::{duration, if_one};
use ncclscope_operations::stats::to_f64;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Flight Recorder dumps.
#[derive(Debug, Default)]
pub struct Dumps {
    files: Vec<(PathBuf, Dump)>,
    /// By rank, once these are known.
    ranks: BTreeMap<u32, Dump>,
    notes: Vec<String>,
    /// The entries of the dump that is being read.
    entries: Entries,
    shared: Shared,
}

impl Dumps {
    /// True if no dump was added.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.files.is_empty() && self.ranks.is_empty()
    }

    /// Adds the next entry of the dump that is being read, before the dump itself.
    pub(super) fn entry(&mut self, value: &Value) {
        self.entries.add(value, &mut self.shared);
    }

    /// Forgets the entries that were read.
    pub(super) fn restart(&mut self) {
        self.entries = Entries::default();
    }

    /// Adds a dump from a file, with the entries that were read before, and the time at which the
    /// file was last written, ns since 1970.
    ///
    /// # Errors
    /// One sentence, if the file is not a dump, or if its groups are impossibly large.
    pub fn add(
        &mut self,
        path: &Path,
        value: &Value,
        written_ns: Option<u64>,
    ) -> Result<(), String> {
        value["entries"].as_array().into_iter().flatten().for_each(|entry| self.entry(entry));
        let entries = std::mem::take(&mut self.entries);
        if !is_dump(value) {
            return Err("not a Flight Recorder dump: `version` or `entries` is missing".into());
        }
        let unnamed = entries.without_group;
        let dump = Dump::new(value, entries, written_ns);
        if unnamed > 0 && dump.groups.is_empty() {
            return Err(format!(
                "its {unnamed} operations name no process group, as in the first versions of the \
                 Flight Recorder: ranks cannot be compared"
            ));
        }
        dump.check()?;
        self.files.push((path.to_owned(), dump));
        Ok(())
    }

    /// Finds the ranks of the dumps, and leaves out those that do not belong to the others. Returns
    /// a warning for each file that is not used.
    pub fn settle(&mut self) -> Vec<String> {
        let files = std::mem::take(&mut self.files);
        let named: Vec<(&Path, BTreeSet<u32>)> =
            files.iter().map(|(path, dump)| (path.as_path(), dump.listed())).collect();
        let found = rank_names::ranks(&named);
        let mut warnings = Vec::new();
        for ((path, dump), rank) in files.into_iter().zip(found) {
            match rank {
                Ok(rank) => drop(self.ranks.insert(rank, dump)),
                Err(why) => warnings.push(format!("cannot read {}: {why}", path.display())),
            }
        }
        self.fill_groups();
        leftover::name_by_numbers(&mut self.ranks);
        let (left_out, note) = leftover::of(&self.ranks);
        self.ranks.retain(|rank, _| !left_out.contains(rank));
        self.notes.extend(note);
        warnings
    }

    /// Gives the groups that a dump's `pg_config` does not have their ranks: those of another dump,
    /// else those with entries of them.
    fn fill_groups(&mut self) {
        let mut listed: BTreeMap<String, Vec<u32>> = BTreeMap::new();
        let mut members: BTreeMap<String, Vec<u32>> = BTreeMap::new();
        for (rank, dump) in &self.ranks {
            for (name, group) in &dump.groups {
                match group.ranks.is_empty() {
                    true => members.entry(name.clone()).or_default().push(*rank),
                    false => drop(listed.insert(name.clone(), group.ranks.clone())),
                }
            }
        }
        members.retain(|name, _| !listed.contains_key(name));
        listed.extend(members.clone());
        for dump in self.ranks.values_mut() {
            for (name, group) in dump.groups.iter_mut().filter(|(_, it)| it.ranks.is_empty()) {
                group.ranks = listed.get(name).cloned().unwrap_or_default();
            }
        }
        if !members.is_empty() {
            self.notes.push(format!(
                "the dumps do not list the ranks of {}: those with entries of a group count as its \
                 ranks, and others may be missing",
                groups_text(members.keys())
            ));
        }
    }

    /// When the dumps were written, ns since 1970: the latest time of a file. `None` if that is
    /// earlier than the newest operation, by more than clocks may differ.
    fn written_ns(&self) -> Option<u64> {
        let newest = self.ranks.values().map(Dump::newest_ns).max()?;
        let written = self.ranks.values().filter_map(|dump| dump.written_ns).max()?;
        (written.saturating_add(clocks::HOSTS_NS) >= newest).then_some(written.max(newest))
    }

    /// The age of the oldest operation in flight; `None` if it is unknown, or if one has exceeded
    /// its timeout, so that PyTorch wrote the dumps because of a hang.
    fn running_for(&self, written_ns: u64) -> Option<u64> {
        let mut timeouts = self.ranks.values().filter_map(Dump::times_out_ns);
        let oldest = self.ranks.values().filter_map(Dump::oldest_open_ns).min()?;
        let is_hang = timeouts.any(|at| at <= written_ns);
        (!is_hang).then(|| written_ns.saturating_sub(oldest))
    }

    /// The job that the dumps show. Ages below `hang` are told if the job may run.
    #[must_use]
    pub fn job(&self, hang: Duration) -> Job {
        let written_ns = self.written_ns();
        let mut groups: BTreeMap<(&str, &[u32]), &str> = BTreeMap::new();
        let mut ranks: BTreeSet<u32> = self.ranks.keys().copied().collect();
        for dump in self.ranks.values() {
            for (name, group) in &dump.groups {
                ranks.extend(&group.ranks);
                groups.insert((name, &group.ranks), &group.desc);
            }
        }
        let ranks: Vec<u32> = ranks.into_iter().collect();
        let process = |rank: &u32| Process {
            rank: Some(*rank),
            status: if self.ranks.contains_key(rank) {
                ProcessStatus::Running
            } else {
                ProcessStatus::Silent
            },
            python: self.ranks.get(rank).and_then(Dump::python_line),
            ..Process::default()
        };
        let mut job = Job {
            source: "PyTorch Flight Recorder".into(),
            processes: ranks.iter().map(process).collect(),
            is_dump: true,
            notes: self.notes.clone(),
            ..Job::default()
        };
        for ((name, members), desc) in groups.into_iter().filter(|((_, m), _)| m.len() > 1) {
            let builder =
                GroupBuilder { dumps: &self.ranks, ranks: &ranks, name, members, desc, written_ns };
            builder.add_to(&mut job.comms);
        }
        if let Some(oldest_ns) = written_ns.and_then(|written| self.running_for(written)) {
            job.has_ages = true;
            job.notes.extend((u128::from(oldest_ns) < hang.as_nanos()).then(|| {
                format!(
                    "the dumps were written {} after the oldest operation in flight was called, \
                     which is less than {} (--hang-sec): the job may run",
                    duration(to_f64(oldest_ns)),
                    duration(hang.as_secs_f64() * 1e9)
                )
            }));
        }
        job.notes.extend(self.strangers());
        let has_kernels = job.comms.iter().flat_map(|c| &c.vectors).any(|v| v.started.is_some());
        if !has_kernels {
            job.notes.push(
                "these dumps do not show whether kernels started (TORCH_NCCL_ENABLE_TIMING is off)"
                    .into(),
            );
        }
        job
    }

    /// A note about dumps whose rank is in none of the groups that they list.
    fn strangers(&self) -> Option<String> {
        let is_stranger = |(rank, dump): &(&u32, &Dump)| {
            let listed = dump.listed();
            !listed.is_empty() && !listed.contains(rank)
        };
        let all: Vec<u32> = self.ranks.iter().filter(is_stranger).map(|(rank, _)| *rank).collect();
        (!all.is_empty()).then(|| {
            format!(
                "the dumps of {} list no group with that rank: their file names may not give ranks",
                named_ranks(&all)
            )
        })
    }
}

/// `group 2`, `groups 0, 2`.
fn groups_text<'a>(names: impl Iterator<Item = &'a String>) -> String {
    let names: Vec<&str> = names.map(String::as_str).collect();
    format!("{} {}", if_one(names.len(), "group", "groups"), names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::entries::call;
    use super::*;
    use crate::engine::{Options, diagnose};
    use ncclscope_findings::FindingClass;

    #[test]
    fn the_size_of_an_operation_is_that_of_the_larger_side() {
        let bytes = |datatype: &str| {
            let entry = serde_json::json!({"input_sizes": [[2, 3]], "output_sizes": [[4, 2, 3]],
                "input_dtypes": [datatype]});
            call("nccl:all_gather", &entry).bytes
        };
        assert_eq!(["BFloat16", "Float8_e5m2", "Long"].map(bytes), [48, 24, 192].map(Some));
        assert_eq!(bytes("QInt8"), None);
        assert_eq!(call("nccl:barrier", &serde_json::json!({"input_dtypes": ["Int"]})).bytes, None);
    }

    #[test]
    fn groups_larger_than_there_are_make_no_job() {
        let added = |ranks: usize, groups: usize| {
            let list: Vec<usize> = (0..ranks).collect();
            let group = serde_json::json!({"name": "g", "ranks": format!("{list:?}")});
            let groups: serde_json::Map<String, Value> = (0..groups)
                .map(|n| {
                    let mut group = group.clone();
                    group["name"] = n.to_string().into();
                    (n.to_string(), group)
                })
                .collect();
            let dump = serde_json::json!({"version": "2", "entries": [], "pg_config": groups});
            let mut dumps = Dumps::default();
            dumps.add(Path::new("dump_0"), &dump, None).map(|()| {
                assert_eq!(dumps.settle(), [""; 0]);
                dumps.job(Duration::ZERO).processes.len()
            })
        };
        assert_eq!(added(300, 1), Ok(300));
        let error = "process group 0 has 300000 ranks: 262144 is the most";
        assert_eq!(added(300_000, 1), Err(error.into()));
        let error = "its groups have 1200000 members: 1048576 is the most";
        assert_eq!(added(200_000, 6), Err(error.into()));
    }

    /// The diagnosis of two ranks that wait in call 6. Rank 0 recorded the whole coalesced call 5;
    /// of rank 1's entries, with these functions in call 5, the first has this `record_id`.
    fn of_two_rings(first: u64, functions: &[&str]) -> Vec<FindingClass> {
        let dump = |first: u64, functions: &[&str]| {
            let five = functions.iter().map(|&function| (5, function, "completed"));
            let all = five.chain([(6, "all_reduce", "started")]).zip(first..);
            let entry = |((seq, function, state), record): ((u64, &str, &str), u64)| {
                serde_json::json!({"record_id": record, "pg_id": 0, "process_group": ["0", "tp"],
                    "collective_seq_id": seq, "profiling_name": format!("nccl:{function}"),
                    "state": state, "input_sizes": [[4]], "input_dtypes": ["Float"]})
            };
            let entries: Vec<Value> = all.map(entry).collect();
            serde_json::json!({"version": "2.9", "entries": entries,
                "pg_config": {"0": {"name": "0", "desc": "tp", "ranks": "[0, 1]"}},
                "pg_status": {"0": {"last_enqueued_collective": 6, "last_started_collective": 6,
                    "last_completed_collective": 5}}})
        };
        let mut dumps = Dumps::default();
        dumps
            .add(Path::new("_dump_0"), &dump(0, &["broadcast", "gather", "scatter"]), None)
            .unwrap();
        dumps.add(Path::new("_dump_1"), &dump(first, functions), None).unwrap();
        assert_eq!(dumps.settle(), [""; 0]);
        let found = diagnose(&dumps.job(Duration::ZERO), &Options::default()).findings;
        found.into_iter().map(|verdict| verdict.class).collect()
    }

    #[test]
    fn a_coalesced_call_that_the_ring_has_cut_is_no_other_call() {
        let mismatch = [FindingClass::CallMismatch];
        for kept in [&["scatter"][..], &["gather", "scatter"]] {
            assert_ne!(of_two_rings(70, kept), mismatch, "{kept:?}");
            assert_eq!(of_two_rings(0, kept), mismatch, "{kept:?}: there were no others");
        }
        assert_eq!(of_two_rings(70, &["scatter", "gather"]), mismatch);
        assert_eq!(of_two_rings(70, &["reduce_scatter"]), mismatch);
    }
}
