// SPDX-License-Identifier: Apache-2.0
//! Text tables: columns as wide as their widest cell, numbers to the right.

use crate::output::in_a_line;
use crate::sheet::Sheet;

/// How a column is aligned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Align {
    /// Text.
    Left,
    /// Numbers.
    Right,
}

/// A table with its rows so far.
#[derive(Debug)]
pub(crate) struct Table {
    align: Vec<Align>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these headings.
    pub(crate) fn new(columns: &[(&str, Align)]) -> Table {
        let head = columns.iter().map(|(name, _)| (*name).to_owned()).collect();
        Table { align: columns.iter().map(|(_, align)| *align).collect(), rows: vec![head] }
    }

    /// Adds a row, one cell for each column.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells.iter().map(|cell| in_a_line(cell)).collect());
    }

    /// The same for other programs.
    pub(crate) fn sheet(&self) -> Sheet {
        let mut rows = self.rows.iter().cloned();
        let mut sheet = Sheet::new(rows.next().unwrap_or_default());
        rows.for_each(|row| sheet.row(row));
        sheet
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.len() == 1
    }

    /// The lines, the heading first, each indented by `indent`.
    pub(crate) fn lines(&self, indent: &str) -> Vec<String> {
        let widths: Vec<usize> = (0..self.align.len()).map(|column| self.width(column)).collect();
        self.rows.iter().map(|row| self.line(row, &widths, indent)).collect()
    }

    fn width(&self, column: usize) -> usize {
        let cells = self.rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    }

    fn line(&self, row: &[String], widths: &[usize], indent: &str) -> String {
        let mut line = indent.to_owned();
        for ((cell, &width), align) in row.iter().zip(widths).zip(&self.align) {
            match align {
                Align::Left => line.push_str(&format!("{cell:width$}  ")),
                Align::Right => line.push_str(&format!("{cell:>width$}  ")),
            }
        }
        line.trim_end().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&[("name", Align::Left), ("n", Align::Right)]);
        assert!(table.is_empty());
        table.row(vec!["a".into(), "100".into()]);
        table.row(vec!["µµµµµ".into(), "1".into()]);
        table.row(vec!["two\nlines".into(), "2".into()]);
        let last = table.lines("  ").pop();
        assert_eq!(last.as_deref(), Some("  two\\nlines    2"));
        table.rows.pop();
        assert_eq!(table.lines("  "), ["  name     n", "  a      100", "  µµµµµ    1"]);
    }
}
