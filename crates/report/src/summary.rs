// SPDX-License-Identifier: Apache-2.0
/*!
Sums the rows of communicators by role, because a job of thousands of ranks has hundreds of
communicators and few roles.
*/

use crate::in_nccl::{Time, Times};
use crate::latency::latencies;
use crate::schema::{LatencyRow, LeastBandwidth, OperationRow, RankRow, RoleRow, SizeRow};
use ncclscope_operations::stats::{lower_median, to_f64, to_u64};
use ncclscope_operations::timeline::role_or_size;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The sums of a report's rows.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    pub(crate) roles: Vec<RoleRow>,
    pub(crate) sizes: Vec<SizeRow>,
    pub(crate) latencies: Vec<LatencyRow>,
}

/// The role and size of a communicator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommRole {
    /// The role that the application gave it, else its name, else its size.
    pub role: String,
    /// Number of its ranks.
    pub nranks: Option<u32>,
}

impl Summary {
    /// Sums the rows of ranks and operations. `times` has the times in operations, and the recorded
    /// time of all ranks in ns.
    pub(crate) fn of(
        ranks: &[RankRow],
        operations: &[OperationRow],
        (times, recorded): (&Times, u64),
    ) -> Summary {
        let comms = comm_roles(ranks);
        let unknown = CommRole { role: "unknown".into(), nranks: None };
        let comm = |row: &OperationRow| comms.get(row.comm.as_str()).unwrap_or(&unknown);
        let mut roles: BTreeMap<(&str, &str), Vec<&OperationRow>> = BTreeMap::new();
        let mut sizes: BTreeMap<_, Vec<&OperationRow>> = BTreeMap::new();
        for row in operations {
            let CommRole { role, nranks } = comm(row);
            roles.entry((role, &row.func)).or_default().push(row);
            sizes.entry((role.as_str(), *nranks, &*row.func, row.bytes)).or_default().push(row);
        }
        let mut in_nccl: BTreeMap<(&str, &str), Time> = BTreeMap::new();
        for (of, func, time) in times.iter() {
            let role = &comms.get(of).unwrap_or(&unknown).role;
            in_nccl.entry((role, func)).or_default().add(time);
        }
        let role = |(key, rows): ((&str, &str), Vec<&OperationRow>)| {
            role_row(key, &rows, (in_nccl.get(&key).and_then(Time::known), recorded))
        };
        let mut roles: Vec<RoleRow> = roles.into_iter().map(role).collect();
        roles.sort_by_key(|row| Reverse((row.in_nccl_ns, row.total_ns)));
        let mut sizes: Vec<SizeRow> = sizes
            .into_iter()
            .map(|((role, nranks, func, bytes), rows)| SizeRow {
                role: role.into(),
                nranks,
                func: func.into(),
                bytes,
                ..size_row(&rows)
            })
            .collect();
        sizes.sort_by_key(|row| Reverse((row.bytes, row.count)));
        let latencies = latencies(operations.iter().map(|row| (&*comm(row).role, row)));
        Summary { roles, sizes, latencies }
    }
}

/// The role of each communicator, by its name in the rows.
#[must_use]
pub fn comm_roles(ranks: &[RankRow]) -> HashMap<&str, CommRole> {
    let mut comms = HashMap::new();
    for row in ranks {
        let Some(comm) = row.comm.as_deref() else { continue };
        let said = row.role.as_deref().or(row.comm_name.as_deref());
        let role = || CommRole { role: role_or_size(said, row.nranks), nranks: row.nranks };
        let known: &mut CommRole = comms.entry(comm).or_insert_with(role);
        // The application may have set the role on some of the ranks only.
        if let Some(role) = said {
            known.role = role.to_owned();
        }
    }
    comms
}

/// The names that the application gave to communicators.
pub(crate) fn comm_names(ranks: &[RankRow]) -> HashMap<&str, &str> {
    ranks.iter().filter_map(|row| row.comm.as_deref().zip(row.comm_name.as_deref())).collect()
}

fn role_row(
    (role, func): (&str, &str),
    rows: &[&OperationRow],
    (time, recorded): (Option<(u64, Option<&'static str>)>, u64),
) -> RoleRow {
    let judged = || rows.iter().filter(|row| row.total_waiting_ns.is_some());
    let in_nccl = time.map(|(ns, _)| ns);
    // Errors of the GPU's clock at the ends of the recorded time may make the share exceed 1.
    let share = |ns: u64| (to_f64(ns) / to_f64(recorded)).min(1.0);
    RoleRow {
        role: role.into(),
        func: func.into(),
        communicators: rows.iter().map(|row| &*row.comm).collect::<BTreeSet<_>>().len() as u64,
        count: rows.iter().map(|row| row.count).sum(),
        timed: rows.iter().map(|row| row.timed).sum(),
        total_ns: sum(rows.iter().map(|row| row.total_ns)),
        in_nccl_ns: in_nccl,
        bound: time.and_then(|(_, bound)| bound),
        share: in_nccl.filter(|_| recorded > 0).map(share),
        total_waiting_ns: sum(judged().map(|row| row.total_waiting_ns)),
        judged_ns: sum(judged().map(|row| row.total_with_waiting_ns)),
    }
}

/// The sum of the known values; `None` if all are unknown.
fn sum(values: impl Iterator<Item = Option<u64>>) -> Option<u64> {
    values.flatten().reduce(u64::saturating_add)
}

/// The row without its key.
fn size_row(rows: &[&OperationRow]) -> SizeRow {
    let of = |value: fn(&OperationRow) -> Option<f64>| {
        lower_median(&mut rows.iter().filter_map(|row| value(row)).collect::<Vec<_>>())
    };
    let known = rows.iter().filter_map(|row| row.busbw_gbs.map(|gbs| (gbs, row)));
    let least = known.min_by(|a, b| a.0.total_cmp(&b.0));
    SizeRow {
        role: String::new(),
        func: String::new(),
        bytes: None,
        nranks: None,
        count: rows.iter().map(|row| row.count).sum(),
        transfer_ns: of(|row| row.transfer_ns.map(|of| to_f64(of.p50))).map(to_u64),
        algbw_gbs: of(|row| row.algbw_gbs),
        busbw_gbs: of(|row| row.busbw_gbs),
        least: least.map(|(busbw_gbs, row)| LeastBandwidth {
            comm: row.comm.clone(),
            comm_name: row.comm_name.clone(),
            busbw_gbs,
        }),
        busbw_with_waiting_gbs: of(|row| row.busbw_with_waiting_gbs),
    }
}
