// SPDX-License-Identifier: Apache-2.0
//! One output of RAS, and an earlier one that it is compared with.

use super::monitor::Monitor;
use super::status::{self, Status, error_name};
use super::time::seconds;
use crate::input::older::MOST;
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;

/// The host of a member that the output does not name.
pub(super) const UNKNOWN: &str = "unknown";

/// See [`Member::key`].
pub(super) type Key<'a> = (&'a str, Option<u32>, Option<u64>);

/// One rank of a communicator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) rank: u32,
    pub(super) host: String,
    pub(super) pid: Option<u32>,
    pub(super) device: Option<u64>,
    /// Launches of all functions, and of each.
    pub(super) launched: u64,
    pub(super) counts: BTreeMap<String, u64>,
    pub(super) is_missing: bool,
    pub(super) is_silent: bool,
    pub(super) is_dead: bool,
    /// Only an event says that it is dead, later than the output.
    pub(super) is_dead_later: bool,
    pub(super) error: u64,
    /// If the output has it.
    pub(super) status: Option<Status>,
}

/// The output of RAS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ras {
    /// When it was made, as NCCL prints it: times of one host are in order as texts.
    pub(super) time: String,
    /// Name, size and members of each communicator.
    pub(super) comms: Vec<(String, u32, Vec<Member>)>,
    /// Launches of each rank of each communicator in an earlier output, if there is one.
    pub(super) before: Option<BTreeMap<(String, u32), u64>>,
    /// The time between the two, if known.
    pub(super) apart: Option<Duration>,
    /// What the output does not tell.
    pub(super) notes: Vec<String>,
    /// It is the text form.
    pub(super) is_text: bool,
    /// Number of GPUs of the job, if the output has it.
    pub(super) gpus: Option<u32>,
    /// The events that RAS printed, if given.
    pub(super) monitor: Option<Monitor>,
}

impl Ras {
    /// Reads the parsed output of RAS.
    #[must_use]
    pub fn new(value: &Value) -> Ras {
        let mut comms = Vec::new();
        for comm in value["communicators"].as_array().into_iter().flatten() {
            let name = comm["hash"].as_str().unwrap_or("unknown").to_owned();
            let here = comm["ranks"].as_array().into_iter().flatten();
            let missing = comm["missing_ranks"].as_array().into_iter().flatten();
            let mut members: Vec<Member> = here.filter_map(|rank| member(rank, false)).collect();
            members.extend(missing.filter_map(|rank| member(rank, true)));
            members.sort_by_key(|member| member.rank);
            comms.push((name, number(&comm["size"]).unwrap_or(0), members));
        }
        let time = value["timestamp"].as_str().unwrap_or_default().to_owned();
        Ras { time, comms, ..Ras::default() }
    }

    /// From the text form, which has no time.
    pub(super) fn of_text(comms: Vec<(String, u32, Vec<Member>)>, notes: Vec<String>) -> Ras {
        Ras { comms, notes, is_text: true, ..Ras::default() }
    }

    /// Sets when the output was made, seconds since any moment that outputs to be joined share.
    #[must_use]
    pub fn at(self, seconds: f64) -> Ras {
        Ras { time: format!("{seconds:020.3}"), ..self }
    }

    /// The newer of two outputs, which knows what the older one shows.
    #[must_use]
    pub fn join(self, other: Ras) -> Ras {
        let (older, mut newer) = if other.time < self.time { (other, self) } else { (self, other) };
        newer.before = Some(older.launches());
        let times = seconds(&older.time).zip(seconds(&newer.time));
        newer.apart = times.and_then(|(from, to)| Duration::try_from_secs_f64(to - from).ok());
        newer
    }

    /// Whether both may be of one job: they have a communicator in common, or one of them names
    /// none. Processes of several jobs on a host answer at one address.
    #[must_use]
    pub fn may_be_of_job_of(&self, other: &Ras) -> bool {
        let has = |name: &String| other.comms.iter().any(|(of_other, ..)| of_other == name);
        let is_empty = self.comms.is_empty() || other.comms.is_empty();
        is_empty || self.comms.iter().any(|(name, ..)| has(name))
    }

    /// The latest of these outputs, joined with the one before it. Texts have no time: they count
    /// only if all are texts, and the last one is the latest.
    #[must_use]
    pub fn latest(mut all: Vec<Ras>) -> Option<Ras> {
        if all.iter().any(|ras| !ras.is_text) {
            all.retain(|ras| !ras.is_text);
        }
        all.sort_by(|a, b| a.time.cmp(&b.time));
        let newest = all.pop()?;
        Some(match all.pop() {
            Some(before) => before.join(newest),
            None => newest,
        })
    }

    fn launches(&self) -> BTreeMap<(String, u32), u64> {
        let of = |(name, _, members): &(String, u32, Vec<Member>)| {
            let present = members.iter().filter(|member| !member.is_missing);
            let of = |member: &Member| ((name.clone(), member.rank), member.launched);
            present.map(of).collect::<Vec<_>>()
        };
        self.comms.iter().flat_map(of).collect()
    }

    /// Whether a rank has launched something since the older output; `None` without one, or if it
    /// does not have the rank.
    pub(super) fn advances(&self, comm: &str, member: &Member) -> Option<bool> {
        let before = self.before.as_ref()?.get(&(comm.to_owned(), member.rank))?;
        Some(member.launched > *before)
    }
}

fn number(value: &Value) -> Option<u32> {
    u32::try_from(value.as_u64()?).ok()
}

fn member(value: &Value, is_missing: bool) -> Option<Member> {
    let counts = value["collective_counts"].as_object().into_iter().flatten();
    let counts: BTreeMap<String, u64> = counts
        .filter_map(|(func, count)| Some((func.clone(), count.as_u64()?.min(MOST))))
        .collect();
    Some(Member {
        rank: number(&value["rank"])?,
        host: value["host"].as_str().unwrap_or(UNKNOWN).to_owned(),
        pid: number(&value["pid"]),
        device: value["cuda_dev"].as_u64(),
        launched: counts.values().copied().fold(0, u64::saturating_add).min(MOST),
        counts,
        is_missing,
        is_silent: value["status"]["unresponsive"] == true,
        is_dead: value["status"]["considered_dead"] == true,
        is_dead_later: false,
        error: status::error(&value["status"]),
        status: (!is_missing).then(|| Status::of(&value["status"])),
    })
}

impl Member {
    /// Notes that its process did not answer.
    pub(super) fn silence(&mut self) {
        (self.is_missing, self.is_silent) = (true, true);
    }

    /// Its process answers, and is not in the communicator: it has destroyed or aborted it, or has
    /// not created it yet (`jsonWriteMissingRank`, src/ras/client_support.cc@v2.32.3-1).
    pub(super) fn is_elsewhere(&self) -> bool {
        self.is_missing && !(self.is_silent || self.is_dead || self.is_dead_later)
    }

    /// The output names its process.
    pub(super) fn is_named(&self) -> bool {
        self.host != UNKNOWN
    }

    pub(super) fn place(&self) -> (&str, Option<u32>, Option<u64>) {
        (&self.host, self.pid, self.device)
    }

    /// What identifies its process: its place, or for a member that the output does not name, its
    /// rank in the communicator.
    pub(super) fn key<'a>(&'a self, comm: &'a str) -> Key<'a> {
        match self.is_named() {
            true => self.place(),
            false => (comm, None, Some(u64::from(self.rank))),
        }
    }

    /// `rank 1 of communicator 0xabc (a, pid 101)`.
    pub(super) fn named(&self, comm: &str) -> String {
        let pid = self.pid.map_or_else(String::new, |pid| format!(", pid {pid}"));
        format!("rank {} of communicator {comm} ({}{pid})", self.rank, self.host)
    }

    pub(super) fn text(&self) -> Option<String> {
        if self.is_elsewhere() {
            return Some("NCCL RAS: it answers, and has left the communicator".to_owned());
        }
        if self.is_missing {
            let what = if self.is_dead { "dead" } else { "missing" };
            return Some(format!("NCCL RAS considers it {what}"));
        }
        (self.error != 0).then(|| format!("NCCL RAS reports {}", error_name(self.error)))
    }
}
