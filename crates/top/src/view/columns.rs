// SPDX-License-Identifier: Apache-2.0
//! The columns of the table: their cells, the sort order, and which of them fit a screen.

use crate::picture::{Operation, Row};
use crate::units::{age, gigabytes, percent, rate};
use ncclscope_operations::human;
use std::cmp::Ordering;

/// A column of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    /// The rank in the job.
    Rank,
    /// The worst flag.
    State,
    /// The job; only where there are several.
    Job,
    /// The host.
    Host,
    /// The GPU.
    Gpu,
    /// The process id.
    Pid,
    /// The operation in flight.
    Operation,
    /// Its age.
    Age,
    /// Operations per second.
    Operations,
    /// Bus bandwidth.
    Bandwidth,
    /// What is sent over the network.
    Sent,
    /// The share of time spent waiting.
    Waiting,
    /// What is wrong.
    Why,
}

/// Columns with their minimum widths; a narrow screen loses those at the end first.
const ROOM: [(Column, u16); 13] = [
    (Column::Rank, 5),
    (Column::State, 7),
    (Column::Age, 6),
    (Column::Operation, 22),
    (Column::Waiting, 5),
    (Column::Operations, 7),
    (Column::Bandwidth, 7),
    (Column::Host, 10),
    (Column::Gpu, 3),
    (Column::Pid, 8),
    (Column::Job, 10),
    (Column::Sent, 7),
    (Column::Why, 20),
];
/// Maximum width of a column.
const WIDEST: u16 = 28;

impl Column {
    /// All columns, from left to right.
    pub const ALL: [Column; 13] = [
        Column::Rank,
        Column::State,
        Column::Job,
        Column::Host,
        Column::Gpu,
        Column::Pid,
        Column::Operation,
        Column::Age,
        Column::Operations,
        Column::Bandwidth,
        Column::Sent,
        Column::Waiting,
        Column::Why,
    ];

    /// The heading.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Column::Rank => "RANK",
            Column::State => "STATE",
            Column::Job => "JOB",
            Column::Host => "HOST",
            Column::Gpu => "GPU",
            Column::Pid => "PID",
            Column::Operation => "OPERATION",
            Column::Age => "AGE",
            Column::Operations => "OP/S",
            Column::Bandwidth => "BUS GB/S",
            Column::Sent => "NET GB/S",
            Column::Waiting => "WAIT",
            Column::Why => "WHY",
        }
    }

    /// True if the column contains numbers.
    #[must_use]
    pub const fn is_number(self) -> bool {
        !matches!(
            self,
            Column::State | Column::Job | Column::Host | Column::Operation | Column::Why
        )
    }

    fn at(self) -> usize {
        Column::ALL.iter().position(|column| *column == self).unwrap_or(0)
    }

    pub(super) fn next(self) -> Column {
        Column::ALL[(self.at() + 1) % Column::ALL.len()]
    }

    pub(super) fn previous(self) -> Column {
        Column::ALL[(self.at() + Column::ALL.len() - 1) % Column::ALL.len()]
    }
}

/// The text of a row's cell in a column.
#[must_use]
pub fn cell(row: &Row, column: Column) -> String {
    let known = |value: Option<String>| value.unwrap_or_else(|| "-".into());
    let is_host = row.members > 1;
    match column {
        Column::Rank if is_host => format!("x{}", row.members),
        Column::Rank => known(row.rank.map(|rank| rank.to_string())),
        Column::State => row.flag().map_or("ok", |flag| flag.word()).to_owned(),
        Column::Job => row.job.clone(),
        Column::Host => row.host.clone(),
        Column::Gpu => known(row.device.map(|device| device.to_string())),
        Column::Pid => known(row.pid.map(|pid| pid.to_string())),
        Column::Operation => known(row.operation.as_ref().map(operation)),
        Column::Age => known(row.operation.as_ref().map(|operation| age(operation.age_s))),
        Column::Operations => rate(row.operations_per_s),
        Column::Bandwidth => known(row.busbw_gbs.map(|gbs| gigabytes(gbs * 1e9))),
        Column::Sent => known(row.sent_gbs.map(|gbs| gigabytes(gbs * 1e9))),
        Column::Waiting => known(row.waiting.map(percent)),
        Column::Why => row.why.clone(),
    }
}

/// An operation in flight: its function, size, peer and communicator.
pub(super) fn operation(operation: &Operation) -> String {
    let func = if operation.func.is_empty() { "in flight" } else { operation.func.as_str() };
    let mut text = func.to_owned();
    if let Some(bytes) = operation.bytes {
        text += &format!(" {}", human::bytes(bytes));
    }
    if let Some(peer) = operation.peer {
        text += &format!(" peer {peer}");
    }
    if !operation.role.is_empty() {
        text += &format!(" {}", operation.role);
    }
    text
}

/// Sort order of two rows: the largest number or the worst state first, then by rank.
pub(super) fn compare(column: Column, a: &Row, b: &Row) -> Ordering {
    let greatest =
        |of: fn(&Row) -> Option<f64>| of(b).unwrap_or(-1.0).total_cmp(&of(a).unwrap_or(-1.0));
    let by = match column {
        Column::Rank => Ordering::Equal,
        Column::State => {
            let rank = |row: &Row| row.flag().map_or((1, None), |flag| (0, Some(flag)));
            let is_over = |row: &Row| row.flag() == Some(crate::picture::Flag::Ended);
            is_over(a).cmp(&is_over(b)).then(rank(a).cmp(&rank(b)))
        }
        Column::Age => greatest(|row| row.operation.as_ref().map(|op| op.age_s)),
        Column::Operations => greatest(|row| Some(row.operations_per_s)),
        Column::Bandwidth => greatest(|row| row.busbw_gbs),
        Column::Sent => greatest(|row| row.sent_gbs),
        Column::Waiting => greatest(|row| row.waiting),
        Column::Pid => a.pid.cmp(&b.pid),
        Column::Job | Column::Host | Column::Gpu | Column::Operation | Column::Why => {
            cell(a, column).cmp(&cell(b, column))
        }
    };
    let place = |row: &Row| (row.rank.unwrap_or(u32::MAX), row.host.clone(), row.pid);
    by.then_with(|| place(a).cmp(&place(b)))
}

/// The columns that fit into a width, from left to right, with their widths.
pub(super) fn fitting(rows: &[Row], width: u16, has_jobs: bool) -> Vec<(Column, u16)> {
    let mut chosen: Vec<(Column, u16)> = Vec::new();
    let mut left = width;
    for (column, least) in ROOM {
        if column == Column::Job && !has_jobs {
            continue;
        }
        let wanted = if column == Column::Why { least } else { wanted(rows, column).max(least) };
        let gap = u16::from(!chosen.is_empty());
        if wanted + gap > left {
            continue;
        }
        left -= wanted + gap;
        chosen.push((column, wanted));
    }
    if let Some((_, width)) = chosen.iter_mut().find(|(column, _)| *column == Column::Why) {
        *width += left;
    }
    chosen.sort_by_key(|(column, _)| column.at());
    chosen
}

fn wanted(rows: &[Row], column: Column) -> u16 {
    let longest = rows.iter().map(|row| cell(row, column).chars().count()).max().unwrap_or(0);
    let longest = longest.max(column.title().len());
    u16::try_from(longest).unwrap_or(WIDEST).min(WIDEST)
}
