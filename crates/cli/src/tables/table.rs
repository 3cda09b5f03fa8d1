// SPDX-License-Identifier: Apache-2.0
//! Text tables: columns as wide as their widest cell, numbers aligned to the right.

use crate::io::output::in_a_line;
use crate::io::terminal;
use crate::tables::sheet::Sheet;
use ncclscope_console::printable::columns_of;

/// Number of blanks between two columns.
const GAP: usize = 2;
/// Minimum width of a cut text: names of functions are not cut.
const SHORTEST: usize = 13;

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
    /// Headings of columns to leave out if there is no room, in the order of leaving out.
    spare: Vec<String>,
    /// Heading of the column that tells rows apart: spare columns are left out before it is cut.
    key: Option<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(columns: &[(&str, Align)]) -> Table {
        let head = columns.iter().map(|(name, _)| (*name).to_owned()).collect();
        let align = columns.iter().map(|(_, align)| *align).collect();
        Table { align, spare: Vec::new(), key: None, rows: vec![head] }
    }

    /// Sets the column that tells rows apart, which is cut only if no spare column is left.
    pub(crate) fn key(mut self, column: &str) -> Table {
        self.key = Some(column.to_owned());
        self
    }

    /// Sets the columns that a narrow terminal need not show, in the order of leaving out.
    pub(crate) fn spare(mut self, columns: &[&str]) -> Table {
        self.spare = columns.iter().map(|&name| name.to_owned()).collect();
        self
    }

    /// Adds a row, one cell for each column.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells.iter().map(|cell| in_a_line(cell)).collect());
    }

    /// The table without layout, for other formats.
    pub(crate) fn sheet(&self) -> Sheet {
        let mut rows = self.rows.iter().cloned();
        let mut sheet = Sheet::new(rows.next().unwrap_or_default());
        rows.for_each(|row| sheet.row(row));
        sheet
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.len() == 1
    }

    /// The lines, with the heading first, indented by `indent`; on a terminal they fit its width.
    pub(crate) fn lines(&self, indent: &str) -> Vec<String> {
        self.lines_without(indent, self.excess(indent))
    }

    /// The lines without the first `excess` spare columns.
    pub(crate) fn lines_without(&self, indent: &str, excess: usize) -> Vec<String> {
        self.lines_within(indent, excess, terminal::width())
    }

    /// Number of spare columns that must be left out so that the lines fit the terminal.
    pub(crate) fn excess(&self, indent: &str) -> usize {
        terminal::width().map_or(0, |width| self.excess_over(indent, width))
    }

    /// The headings of the first `excess` spare columns.
    pub(crate) fn left_out(&self, excess: usize) -> &[String] {
        &self.spare[..excess.min(self.spare.len())]
    }

    fn excess_over(&self, indent: &str, width: usize) -> usize {
        let fits = |excess: &usize| {
            let (_, widths) = self.layout(indent, *excess, Some(width));
            columns_of(indent) + widths.iter().sum::<usize>() + gaps(widths.len()) <= width
        };
        (0..self.spare.len()).find(fits).unwrap_or(self.spare.len())
    }

    /// The lines, none longer than `width` if the texts can be cut enough; the widest texts are cut
    /// first. Without a width, nothing is cut.
    fn lines_within(&self, indent: &str, excess: usize, width: Option<usize>) -> Vec<String> {
        let (shown, widths) = self.layout(indent, excess, width);
        let line = |row: &Vec<String>| {
            let cells = shown.iter().zip(&widths).map(|(&column, &width)| {
                let cell = row.get(column).map_or("", String::as_str);
                (shortened(cell, width), width, self.align[column])
            });
            line(cells, indent)
        };
        self.rows.iter().map(line).collect()
    }

    /// The columns that are shown, and their widths.
    fn layout(
        &self,
        indent: &str,
        excess: usize,
        width: Option<usize>,
    ) -> (Vec<usize>, Vec<usize>) {
        let head = self.rows.first().map_or(&[][..], Vec::as_slice);
        let is_shown = |&column: &usize| !self.left_out(excess).contains(&head[column]);
        let shown: Vec<usize> = (0..self.align.len()).filter(is_shown).collect();
        let mut widths: Vec<usize> = shown.iter().map(|&column| self.width(column)).collect();
        let taken = gaps(widths.len()) + columns_of(indent);
        let room = width.map_or(usize::MAX, |width| width.saturating_sub(taken));
        while widths.iter().sum::<usize>() > room {
            let texts = widths.iter_mut().zip(&shown).filter(|(width, column)| {
                let is_whole = excess < self.spare.len() && self.key.as_ref() == head.get(**column);
                let least = columns_of(&head[**column]).max(SHORTEST);
                !is_whole && self.align[**column] == Align::Left && **width > least
            });
            let Some((widest, _)) = texts.max_by_key(|(width, _)| **width) else { break };
            *widest -= 1;
        }
        (shown, widths)
    }

    fn width(&self, column: usize) -> usize {
        let cells = self.rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| columns_of(cell)).max().unwrap_or(0)
    }
}

/// Total number of blanks between this many columns.
fn gaps(columns: usize) -> usize {
    GAP * columns.saturating_sub(1)
}

/// Joins cells with the widths of their columns to one line.
fn line(cells: impl Iterator<Item = (String, usize, Align)>, indent: &str) -> String {
    let mut line = indent.to_owned();
    for (cell, width, align) in cells {
        let blanks = " ".repeat(width.saturating_sub(columns_of(&cell)));
        match align {
            Align::Left => line.push_str(&format!("{cell}{blanks}  ")),
            Align::Right => line.push_str(&format!("{blanks}{cell}  ")),
        }
    }
    line.trim_end().to_owned()
}

/// A text of at most `width` columns. A path keeps its end, other text its beginning.
fn shortened(text: &str, width: usize) -> String {
    if columns_of(text) <= width {
        return text.to_owned();
    }
    let kept = width.saturating_sub(1);
    let places = text.char_indices().map(|(at, _)| at);
    match text.starts_with('/') {
        true => {
            let mut ends = places.map(|at| &text[at..]);
            format!("…{}", ends.find(|end| columns_of(end) <= kept).unwrap_or_default())
        }
        false => {
            let mut starts = places.rev().map(|at| &text[..at]);
            format!("{}…", starts.find(|start| columns_of(start) <= kept).unwrap_or_default())
        }
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
        table.rows.pop();
        table.row(vec!["訓練a".into(), "1".into()]);
        assert_eq!(table.lines("  "), ["  name     n", "  a      100", "  訓練a    1"]);
    }

    #[test]
    fn wide_characters_are_cut_by_columns() {
        assert_eq!(shortened("訓練ジョブ", 10), "訓練ジョブ");
        assert_eq!(shortened("訓練ジョブ", 9), "訓練ジョ…");
        assert_eq!(shortened("訓練ジョブ", 8), "訓練ジ…");
        assert_eq!(shortened("/訓練/ジョブ", 8), "…/ジョブ");
    }

    #[test]
    fn texts_are_cut_to_the_width_and_numbers_are_not() {
        let mut table =
            Table::new(&[("command", Align::Left), ("n", Align::Right), ("file", Align::Left)]);
        let path = "/a/long/path/host-4711.nscope";
        table.row(vec!["python train.py --steps 10".into(), "123456".into(), path.into()]);
        let lines = table.lines_within("", 0, Some(50));
        assert_eq!(lines[1], "python train.py --s…  123456  …th/host-4711.nscope");
        assert!(lines.iter().all(|line| line.chars().count() <= 50), "{lines:?}");
        assert!(table.lines_within("", 0, None)[1].ends_with(path));
        let least = table.lines_within("", 0, Some(1));
        assert_eq!(least[1], "python train…  123456  …-4711.nscope");
    }

    #[test]
    fn spare_columns_are_left_out_one_by_one_once_texts_are_cut() {
        let columns = [("text", Align::Left), ("a", Align::Right), ("b", Align::Right)];
        let mut table = Table::new(&columns).spare(&["b", "a"]);
        table.row(vec!["a long text of a table".into(), "1234567".into(), "7654321".into()]);
        for (width, excess, line) in [
            (100, 0, "a long text of a table  1234567  7654321"),
            (31, 0, "a long text …  1234567  7654321"),
            (30, 1, "a long text of a tab…  1234567"),
            (21, 2, "a long text of a tab…"),
            (1, 2, "a long text …"),
        ] {
            assert_eq!(table.excess_over("", width), excess, "{width}");
            assert_eq!(table.lines_within("", excess, Some(width))[1], line);
        }
        assert_eq!(table.left_out(1), ["b"]);
        // The column that tells rows apart is cut last.
        let table = table.key("text");
        assert_eq!(
            [40, 39, 31, 30, 22, 21].map(|width| table.excess_over("", width)),
            [0, 1, 1, 2, 2, 2]
        );
    }
}
