// SPDX-License-Identifier: Apache-2.0
/*!
Groups operations by the properties that a user asks for: rank, host, communicator, role, function,
size, training step, or several of these.

Sums are kept for each key of the report's operations, and for each rank and step only if these are
asked for. The waiting time of a rank is computed per key: the time from its arrivals to the ends,
minus a rank's mean time after the last one's arrival. That needs all ranks of a communicator, so a
group of some ranks uses that of the whole communicator.

Groups by channel are different, because an operation uses several channels at once. Their figures
are those of kernel channels, and of the bytes that ProxyOps sent over them.
*/

use crate::job_ranks::JobRanks;
use crate::key::Key;
use crate::schema::{GroupRow, Groups, Label, RankRow};
use crate::summary::{comm_names, comm_roles};
use ncclscope_operations::operation::Timing;
use ncclscope_operations::stats::{to_f64, to_u64};
use std::collections::BTreeMap;

/// A property by which operations are grouped.
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
    /// All properties with their names.
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

    /// The property with this name in `--by`.
    #[must_use]
    pub fn of_name(name: &str) -> Option<By> {
        By::ALL.into_iter().find(|(known, _)| *known == name).map(|(_, by)| by)
    }

    /// The name of its field in a row.
    fn field(self) -> &'static str {
        match self {
            By::Size => "bytes",
            by => by.name(),
        }
    }

    /// Whether its groups have a natural order.
    fn is_ordered(self) -> bool {
        matches!(self, By::Rank | By::Size | By::Channel | By::Step)
    }
}

/// A rank as a member of a communicator.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) comm: Option<String>,
    pub(crate) comm_rank: Option<i32>,
    pub(crate) host: String,
}

/// The sums of operations with the same key.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cell {
    /// Number of operations, by [`Timing`].
    pub(crate) counts: [u64; Timing::ALL.len()],
    /// Number of these with a duration, and the sum of the durations in ns.
    pub(crate) durations: [(u64, f64); Timing::ALL.len()],
    /// Number of operations with a time from arrival to end, and the sum of these times in ns.
    pub(crate) with_waiting: (u64, f64),
}

/// Facts about a key that need all ranks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyFacts {
    /// The source of its durations.
    pub(crate) timing: Timing,
    /// The mean transfer, and a rank's mean time after the last one's arrival, ns; `None` if
    /// unknown.
    pub(crate) transfer: Option<(f64, f64)>,
    /// Bytes on the bus per byte of the operation; `None` if unknown.
    pub(crate) factor: Option<f64>,
}

/// Index of the member and training step, if these are asked for, and the key.
type CellKey = (Option<usize>, Option<u64>, Key);

/// Collects the sums while recordings are added.
#[derive(Debug, Default)]
pub(crate) struct Sums {
    by: Vec<By>,
    members: Vec<Member>,
    cells: BTreeMap<CellKey, Cell>,
    channels: BTreeMap<u8, ChannelSums>,
}

/// The sums of the events of a channel.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ChannelSums {
    pub(crate) count: u64,
    /// Number of kernel channels with times.
    pub(crate) timed: u64,
    pub(crate) bytes: u64,
    pub(crate) ns: f64,
}

/// The sums of a group.
#[derive(Clone, Copy, Debug, Default)]
struct Figures {
    count: u64,
    bytes: Option<u64>,
    timed: u64,
    time: Option<f64>,
    from_enqueue: f64,
    judged: Option<f64>,
    waiting: f64,
    /// Bytes on the bus of the operations with known transfer and factor (`bus_bytes`), and the
    /// time of these transfers in ns.
    bus_bytes: f64,
    bus_ns: f64,
}

impl Sums {
    pub(crate) fn new(by: Vec<By>) -> Sums {
        Sums { by, ..Sums::default() }
    }

    /// Whether groups are asked for.
    pub(crate) fn is_wanted(&self) -> bool {
        !self.by.is_empty()
    }

    /// Adds a member and returns its index; `None` if neither rank nor host is asked for.
    pub(crate) fn member(&mut self, member: Member) -> Option<usize> {
        let is_wanted = self.by.iter().any(|by| matches!(by, By::Rank | By::Host));
        is_wanted.then(|| {
            self.members.push(member);
            self.members.len() - 1
        })
    }

    /// Adds the operations of a cell.
    pub(crate) fn add(&mut self, place: CellKey, cell: Cell) {
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

    /// Adds waiting and bandwidth, if the transfer of the key is known.
    fn judge(&mut self, key: &Key, cell: &Cell, facts: KeyFacts) {
        let (arrived, with_waiting) = cell.with_waiting;
        let Some((transfer, after_last)) = facts.transfer.filter(|_| arrived != 0) else { return };
        self.judged = Some(self.judged.unwrap_or(0.0) + with_waiting);
        self.waiting += (with_waiting - after_last * to_f64(arrived)).max(0.0);
        if let Some((bytes, factor)) = key.bytes.zip(facts.factor) {
            self.bus_bytes += to_f64(bytes) * factor * to_f64(arrived);
            self.bus_ns += transfer * to_f64(arrived);
        }
    }

    /// The row without its keys.
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
