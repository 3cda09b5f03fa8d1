// SPDX-License-Identifier: Apache-2.0
//! Text tables: columns as wide as their widest cell, numbers to the right.

use crate::output::in_a_line;
use crate::printable::columns_of;
use crate::sheet::Sheet;
use crate::terminal;

/// Blanks between two columns.
const GAP: usize = 2;
/// The shortest text that a cut leaves: names of functions stay whole.
const SHORTEST: usize = 13;

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

    /// The lines, the heading first, each indented by `indent`; on a terminal they fit it.
    pub(crate) fn lines(&self, indent: &str) -> Vec<String> {
        self.lines_within(indent, terminal::width())
    }

    /// The lines, of which none is longer than `width` if the texts can be cut so far: the widest
    /// texts are cut first. Without a width nothing is cut.
    fn lines_within(&self, indent: &str, width: Option<usize>) -> Vec<String> {
        let mut widths: Vec<usize> = (0..self.align.len()).map(|it| self.width(it)).collect();
        let gaps = GAP * widths.len().saturating_sub(1) + columns_of(indent);
        let room = width.map_or(usize::MAX, |width| width.saturating_sub(gaps));
        while widths.iter().sum::<usize>() > room {
            let texts =
                widths.iter_mut().zip(&self.align).zip(self.rows.first().into_iter().flatten());
            let texts = texts.filter(|((width, align), head)| {
                **align == Align::Left && **width > columns_of(head).max(SHORTEST)
            });
            let Some(((widest, _), _)) = texts.max_by_key(|((width, _), _)| **width) else { break };
            *widest -= 1;
        }
        let cut = |row: &Vec<String>| -> Vec<String> {
            row.iter().zip(&widths).map(|(cell, width)| shortened(cell, *width)).collect()
        };
        self.rows.iter().map(|row| self.line(&cut(row), &widths, indent)).collect()
    }

    fn width(&self, column: usize) -> usize {
        let cells = self.rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| columns_of(cell)).max().unwrap_or(0)
    }

    fn line(&self, row: &[String], widths: &[usize], indent: &str) -> String {
        let mut line = indent.to_owned();
        for ((cell, &width), align) in row.iter().zip(widths).zip(&self.align) {
            let blanks = " ".repeat(width.saturating_sub(columns_of(cell)));
            match align {
                Align::Left => line.push_str(&format!("{cell}{blanks}  ")),
                Align::Right => line.push_str(&format!("{blanks}{cell}  ")),
            }
        }
        line.trim_end().to_owned()
    }
}

/// A text of at most `width` columns. Of a path the end stays, of other texts the beginning.
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
        let lines = table.lines_within("", Some(50));
        assert_eq!(lines[1], "python train.py --s…  123456  …th/host-4711.nscope");
        assert!(lines.iter().all(|line| line.chars().count() <= 50), "{lines:?}");
        assert!(table.lines_within("", None)[1].ends_with(path));
        let least = table.lines_within("", Some(1));
        assert_eq!(least[1], "python train…  123456  …-4711.nscope");
    }
}
