// SPDX-License-Identifier: Apache-2.0
//! A picture as plain text, for scripts and for output that is not a terminal.

use crate::tables::table::{Align, Table};
use ncclscope_top::{Column, Picture, cell};

/// The notes, the verdicts, and a table of all ranks.
pub(super) fn text(picture: &Picture) -> String {
    let mut lines: Vec<String> = Vec::new();
    lines.extend(picture.findings.iter().cloned());
    lines.extend(picture.notes.iter().cloned());
    if !picture.ranks.is_empty() {
        let has_jobs = picture.ranks.iter().any(|row| row.job != picture.ranks[0].job);
        let is_shown = |column: &&Column| has_jobs || **column != Column::Job;
        let columns: Vec<Column> = Column::ALL.iter().filter(is_shown).copied().collect();
        let align = |column: &Column| if column.is_number() { Align::Right } else { Align::Left };
        let head: Vec<(&str, Align)> =
            columns.iter().map(|column| (column.title(), align(column))).collect();
        let mut table = Table::new(&head);
        for row in &picture.ranks {
            table.row(columns.iter().map(|column| cell(row, *column)).collect());
        }
        lines.extend(table.lines(""));
    }
    lines.iter().map(|line| format!("{line}\n")).collect()
}
