// SPDX-License-Identifier: Apache-2.0
/*!
Operations added up by what a user asks for: rank, host, communicator, role, function, size,
training step, or several of these at once.

Sums are kept for each key of the report's operations, and apart for each rank and step only where
these are asked for. What a rank waited is known for each of these keys: the time from its arrivals
to the ends, less the mean transfer of that key. The transfer needs all ranks of a communicator, so
that a group of some ranks has the one that the whole communicator shows.

Channels are another matter: an operation uses several at once. Their figures are those of kernel
channels and of what the network sent over them.
*/

use crate::job_ranks::JobRanks;
use crate::key::Key;
use crate::schema::{GroupRow, Groups, Label, RankRow};
use crate::summary::{comm_names, comm_roles};
use ncclscope_operations::operation::Timing;
use ncclscope_operations::stats::{to_f64, to_u64};
use std::collections::BTreeMap;

/// What operations are added up by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum By {
    /// Communicator.
    Comm,
    /// Rank in the job.
    Rank,
    /// Host.
    Host,
    /// Size of the operation.
    Size,
    /// Channel.
    Channel,
    /// Training step.
    Step,
    /// Role of the communicator.
    Role,
    /// Function.
    Func,
}

impl By {
    /// All, with their names.
    pub const ALL: [(&'static str, By); 8] = [
        ("comm", By::Comm),
        ("rank", By::Rank),
        ("host", By::Host),
        ("size", By::Size),
        ("channel", By::Channel),
        ("step", By::Step),
        ("role", By::Role),
        ("func", By::Func),
    ];

    /// Its name in `--by`.
    #[must_use]
    pub fn name(self) -> &'static str {
        By::ALL.into_iter().find(|(_, by)| *by == self).map_or("", |(name, _)| name)
    }

    /// The one that has this name in `--by`.
    #[must_use]
    pub fn of_name(name: &str) -> Option<By> {
        By::ALL.into_iter().find(|(known, _)| *known == name).map(|(_, by)| by)
    }

    /// The name of the field of a row.
    fn field(self) -> &'static str {
        match self {
            By::Size => "bytes",
            by => by.name(),
        }
    }

    /// Whether its groups have an order of their own.
    fn is_ordered(self) -> bool {
        matches!(self, By::Rank | By::Size | By::Channel | By::Step)
    }
}

/// A rank's part in a communicator.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) comm: Option<String>,
    pub(crate) comm_rank: Option<i32>,
    pub(crate) host: String,
}

/// The sums of some operations with one key.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cell {
    /// How many, by [`Timing`].
    pub(crate) counts: [u64; Timing::ALL.len()],
    /// How many of these have a duration, and the sum of the durations.
    pub(crate) durations: [(u64, f64); Timing::ALL.len()],
    /// How many have a time from arrival to end, and its sum.
    pub(crate) with_waiting: (u64, f64),
}

/// What is known of a key after all ranks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyFacts {
    /// The source of its durations.
    pub(crate) timing: Timing,
    /// The mean transfer, ns.
    pub(crate) transfer: Option<f64>,
    /// Bytes on the bus for each byte of the operation.
    pub(crate) factor: Option<f64>,
}

/// Which rank and step a cell is of, where these matter, and its key.
type Place = (Option<usize>, Option<u64>, Key);

/// Sums while recordings are added.
#[derive(Debug, Default)]
pub(crate) struct Sums {
    by: Vec<By>,
    members: Vec<Member>,
    cells: BTreeMap<Place, Cell>,
    channels: BTreeMap<u8, ChannelSums>,
}

/// The events of a channel.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ChannelSums {
    pub(crate) count: u64,
    /// How many of them have times.
    pub(crate) timed: u64,
    pub(crate) bytes: u64,
    pub(crate) ns: f64,
}

/// The figures of a group while they are added up.
#[derive(Clone, Copy, Debug, Default)]
struct Figures {
    count: u64,
    bytes: Option<u64>,
    timed: u64,
    time: Option<f64>,
    from_enqueue: f64,
    judged: Option<f64>,
    waiting: f64,
    /// Bytes on the bus of what has a transfer and a factor, and the time of these transfers.
    bus_bytes: f64,
    bus_ns: f64,
}

impl Sums {
    pub(crate) fn new(by: Vec<By>) -> Sums {
        Sums { by, ..Sums::default() }
    }

    /// Whether any are asked for.
    pub(crate) fn is_wanted(&self) -> bool {
        !self.by.is_empty()
    }

    /// The number of a member; `None` where no rank matters.
    pub(crate) fn member(&mut self, member: Member) -> Option<usize> {
        let is_wanted = self.by.iter().any(|by| matches!(by, By::Rank | By::Host));
        is_wanted.then(|| {
            self.members.push(member);
            self.members.len() - 1
        })
    }

    /// Adds operations of a member in a step.
    pub(crate) fn add(&mut self, place: Place, cell: Cell) {
        let sum = self.cells.entry(place).or_default();
        for (count, more) in sum.counts.iter_mut().zip(cell.counts) {
            *count += more;
        }
        for ((count, ns), (more, longer)) in sum.durations.iter_mut().zip(cell.durations) {
            (*count, *ns) = (*count + more, *ns + longer);
        }
        sum.with_waiting.0 += cell.with_waiting.0;
        sum.with_waiting.1 += cell.with_waiting.1;
    }

    /// Adds the events of channels.
    pub(crate) fn add_channels(&mut self, channels: BTreeMap<u8, ChannelSums>) {
        for (channel, more) in channels {
            let sum = self.channels.entry(channel).or_default();
            sum.count += more.count;
            sum.timed += more.timed;
            sum.bytes = sum.bytes.saturating_add(more.bytes);
            sum.ns += more.ns;
        }
    }

    /// The groups; `None` if none are asked for.
    pub(crate) fn finish(
        self,
        facts: &BTreeMap<Key, KeyFacts>,
        job: &JobRanks,
        ranks: &[RankRow],
    ) -> Option<Groups> {
        if self.by.is_empty() {
            return None;
        }
        let by: Vec<&'static str> = self.by.iter().map(|by| by.field()).collect();
        if self.by.contains(&By::Channel) {
            return Some(Groups { by, rows: self.channels.into_iter().map(channel_row).collect() });
        }
        let roles = comm_roles(ranks);
        let mut groups: BTreeMap<Vec<Label>, Figures> = BTreeMap::new();
        for ((member, step, key), cell) in &self.cells {
            let label = |by: &By| match by {
                By::Comm => Label::Text(key.comm.clone()),
                By::Func => Label::Text(key.func.clone()),
                By::Size => key.bytes.map_or(Label::Unknown(()), Label::Number),
                By::Role => roles
                    .get(key.comm.as_str())
                    .map_or(Label::Unknown(()), |of| Label::Text(of.role.clone())),
                By::Step => step.map_or(Label::Unknown(()), Label::Number),
                By::Host => {
                    let member = member.and_then(|at| self.members.get(at));
                    member.map_or(Label::Unknown(()), |of| Label::Text(of.host.clone()))
                }
                By::Rank => {
                    let member = member.and_then(|at| self.members.get(at));
                    let rank = member.and_then(|of| job.get(of.comm.as_deref(), of.comm_rank));
                    rank.map_or(Label::Unknown(()), |rank| Label::Number(rank.into()))
                }
                By::Channel => Label::Unknown(()),
            };
            let figures = groups.entry(self.by.iter().map(label).collect()).or_default();
            if let Some(facts) = facts.get(key) {
                figures.add(key, cell, *facts);
                figures.judge(key, cell, *facts);
            }
        }
        let names = comm_names(ranks);
        let row = |(labels, figures): (Vec<Label>, Figures)| {
            let mut keys: BTreeMap<_, _> = by.iter().copied().zip(labels).collect();
            if let Some(Label::Text(comm)) = keys.get(By::Comm.field()) {
                let name = names.get(comm.as_str()).map(|&name| Label::Text(name.into()));
                keys.insert("comm_name", name.unwrap_or(Label::Unknown(())));
            }
            GroupRow { keys, ..figures.row() }
        };
        let mut rows: Vec<GroupRow> = groups.into_iter().map(row).collect();
        if !self.by.first().is_some_and(|by| by.is_ordered()) {
            rows.sort_by_key(|row| std::cmp::Reverse(row.total_ns));
        }
        Some(Groups { by, rows })
    }
}

impl Figures {
    fn add(&mut self, key: &Key, cell: &Cell, facts: KeyFacts) {
        let count: u64 = cell.counts.iter().sum();
        self.count += count;
        if let Some(bytes) = key.bytes {
            let sum = self.bytes.unwrap_or(0);
            self.bytes = Some(sum.saturating_add(bytes.saturating_mul(count)));
        }
        let (timed, time) = cell.durations[facts.timing as usize];
        if timed == 0 {
            return;
        }
        self.timed += timed;
        self.time = Some(self.time.unwrap_or(0.0) + time);
        if matches!(facts.timing, Timing::Proxy | Timing::Enqueue) {
            self.from_enqueue += time;
        }
    }

    /// Adds what is known by the operations' transfer.
    fn judge(&mut self, key: &Key, cell: &Cell, facts: KeyFacts) {
        let (arrived, with_waiting) = cell.with_waiting;
        let Some(transfer) = facts.transfer.filter(|_| arrived != 0) else { return };
        self.judged = Some(self.judged.unwrap_or(0.0) + with_waiting);
        self.waiting += (with_waiting - transfer * to_f64(arrived)).max(0.0);
        if let Some((bytes, factor)) = key.bytes.zip(facts.factor) {
            self.bus_bytes += to_f64(bytes) * factor * to_f64(arrived);
            self.bus_ns += transfer * to_f64(arrived);
        }
    }

    /// The row but for its keys.
    fn row(&self) -> GroupRow {
        GroupRow {
            keys: BTreeMap::new(),
            count: self.count,
            total_bytes: self.bytes,
            timed: self.timed,
            total_ns: self.time.map(to_u64),
            from_enqueue_ns: self.time.map(|_| to_u64(self.from_enqueue)),
            judged_ns: self.judged.map(to_u64),
            total_waiting_ns: self.judged.map(|_| to_u64(self.waiting)),
            total_transfer_ns: self.judged.map(|judged| to_u64((judged - self.waiting).max(0.0))),
            busbw_gbs: (self.bus_ns > 0.0).then(|| self.bus_bytes / self.bus_ns),
        }
    }
}

fn channel_row((channel, sums): (u8, ChannelSums)) -> GroupRow {
    let figures = Figures {
        count: sums.count,
        bytes: Some(sums.bytes),
        timed: sums.timed,
        time: (sums.count != 0).then_some(sums.ns),
        ..Figures::default()
    };
    let keys = BTreeMap::from([(By::Channel.field(), Label::Number(channel.into()))]);
    GroupRow { keys, ..figures.row() }
}
