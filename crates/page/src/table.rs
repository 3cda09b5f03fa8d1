// SPDX-License-Identifier: Apache-2.0
//! The tables that the page's script shows: typed columns, and rows of plain values.

use serde::Serialize;
use serde_json::Value;

/// Maximum number of rows of a table; with all tables this long, a page stays below 10 MB.
pub(crate) const ROWS: usize = 12_000;

/// How the script formats, sorts and filters a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    Text,
    Number,
    /// A number that is a name.
    Id,
    /// A job rank, to which the filter of ranks applies.
    Rank,
    /// Ranks in the job.
    Ranks,
    /// A role, or several separated by commas, to which the filter of roles applies.
    Role,
    Bytes,
    Ns,
    /// GB/s, or another number with three digits.
    Three,
    Percent,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Column {
    /// The key in `report --format json`, if it has one.
    pub(crate) key: &'static str,
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Table {
    pub(crate) id: &'static str,
    pub(crate) title: &'static str,
    pub(crate) about: &'static str,
    pub(crate) columns: Vec<Column>,
    pub(crate) rows: Vec<Vec<Value>>,
    /// Number of rows beyond [`ROWS`].
    pub(crate) left_out: usize,
}

impl Table {
    /// A table of `rows`, sorted by importance; only the first ones are kept.
    pub(crate) fn new<R>(
        [id, title, about]: [&'static str; 3],
        columns: &[(&'static str, &'static str, Kind)],
        rows: &[R],
        values: impl Fn(&R) -> Vec<Value>,
    ) -> Table {
        let column = |&(key, name, kind)| Column { key, name, kind };
        Table {
            id,
            title,
            about,
            columns: columns.iter().map(column).collect(),
            rows: rows.iter().take(ROWS).map(values).collect(),
            left_out: rows.len().saturating_sub(ROWS),
        }
    }
}
