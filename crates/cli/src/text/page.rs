// SPDX-License-Identifier: Apache-2.0
//! The page to which the parts of the report are written: lines under headings.

use crate::io::output::in_a_line;
use crate::io::terminal;
use crate::tables::sheet::escaped;
use crate::tables::table::Table;
use ncclscope_console::printable::{Colour, columns_of, lines_of};
use ncclscope_operations::human::three;

/// Maximum length of a list; JSON contains all entries.
pub(super) const LIST_MAX: usize = 20;
/// Maximum width of a paragraph, columns.
const PARAGRAPH: usize = 100;
/// Indentation of a table's lines.
const INDENT: &str = "  ";
/// Width of a label with the following gap, columns.
const LABEL: usize = 6;

/// Lines under headings.
#[derive(Debug, Clone)]
pub(crate) struct Page {
    text: String,
    has_colour: bool,
    /// Width of the terminal that will show the page.
    columns: Option<usize>,
    is_markdown: bool,
}

/// Minimum bandwidth that is shown, GB/s.
const SLOWEST: f64 = 0.01;

impl Page {
    pub(crate) fn new(has_colour: bool) -> Page {
        let columns = terminal::width();
        Page { text: String::new(), has_colour, columns, is_markdown: false }
    }

    /// An empty page in GitHub's Markdown.
    pub(crate) fn markdown() -> Page {
        Page { text: String::new(), has_colour: false, columns: None, is_markdown: true }
    }

    /// Whether it has at most so many lines. Markdown is for no screen, and always fits.
    pub(super) fn fits(&self, lines: usize) -> bool {
        self.is_markdown || self.text.lines().count() <= lines
    }

    pub(super) fn into_text(self) -> String {
        self.text
    }

    /// Adds a heading after an empty line.
    pub(super) fn heading(&mut self, title: &str) {
        if !self.text.is_empty() {
            self.text.push('\n');
        }
        if self.is_markdown {
            self.text.push_str(&format!("### {}\n\n", escaped(&in_a_line(title))));
            return;
        }
        let lines = match self.columns.filter(|&columns| columns_of(title) > columns) {
            Some(columns) => lines_of(("", 0), INDENT.len(), title, columns),
            None => vec![title.into()],
        };
        for line in lines {
            let line = if self.has_colour { Colour::Bold.paint(&line) } else { line };
            self.line(&line);
        }
    }

    /// Adds a line. Line breaks in names of a recording are escaped, so that they start no line.
    pub(super) fn line(&mut self, line: &str) {
        if self.is_markdown {
            let line = escaped(&in_a_line(line.trim()));
            let item = line.strip_prefix("- ").unwrap_or(&line);
            self.text.push_str(&format!("- {item}\n"));
            return;
        }
        self.text.push_str(in_a_line(line).trim_end());
        self.text.push('\n');
    }

    /// Adds an entry of a list, which is wrapped on a narrow terminal.
    pub(super) fn entry(&mut self, entry: &str) {
        match self.columns.filter(|&columns| columns_of(entry) + INDENT.len() > columns) {
            Some(columns) => self.lines(lines_of((INDENT, INDENT.len()), LABEL, entry, columns)),
            None => self.line(&format!("{INDENT}{entry}")),
        }
    }

    /// Adds a line with a label, which may have a colour. It is cut at 160 columns, and wrapped
    /// on a narrow terminal.
    pub(super) fn labelled(&mut self, label: &str, colour: Option<Colour>, text: &str) {
        const MOST: usize = 160;
        let mut text = text.to_owned();
        if let Some((cut, _)) = text.char_indices().nth(MOST) {
            text.truncate(cut);
            text.push_str(" ...");
        }
        if self.is_markdown {
            let (label, text) = (label.trim(), escaped(&in_a_line(&text)));
            self.text.push_str(&format!("- **{label}** {text}\n"));
            return;
        }
        let start = match columns_of(label) {
            short @ 0..LABEL => short.max(LABEL),
            long => long + 2,
        };
        let label = match colour.filter(|_| self.has_colour) {
            Some(colour) => {
                let gap = " ".repeat(6usize.saturating_sub(label.len()));
                format!("{}{gap}", colour.paint(label))
            }
            None => format!("{label:<6}"),
        };
        let gap = if label.ends_with(' ') { "" } else { "  " };
        let first = format!("{label}{gap}");
        match self.columns {
            Some(columns) => self.lines(lines_of((&first, start), LABEL, &text, columns)),
            None => self.line(&format!("{first}{text}")),
        }
    }

    /// Adds a table, and a line with the columns that do not fit the terminal.
    pub(super) fn table(&mut self, table: &Table) {
        let excess = table.excess(INDENT);
        self.table_without(table, excess);
        self.left_out(table.left_out(excess));
    }

    /// Adds tables with the same columns, each below its title.
    pub(super) fn tables(&mut self, tables: &[(String, Table)]) {
        let excess = tables.iter().map(|(_, table)| table.excess(INDENT)).max().unwrap_or(0);
        for (title, table) in tables {
            self.line(title);
            self.table_without(table, excess);
        }
        self.left_out(tables.first().map_or(&[], |(_, table)| table.left_out(excess)));
    }

    fn table_without(&mut self, table: &Table, excess: usize) {
        if self.is_markdown {
            let gap = if self.text.ends_with("\n\n") { "" } else { "\n" };
            self.text.push_str(&format!("{gap}{}\n", table.sheet().markdown()));
            return;
        }
        table.lines_without(INDENT, excess).iter().for_each(|line| self.line(line));
    }

    fn left_out(&mut self, columns: &[String]) {
        if !columns.is_empty() && !self.is_markdown {
            // A bar before a name only groups columns.
            let names: Vec<&str> =
                columns.iter().map(|name| name.trim_start_matches(['|', ' '])).collect();
            let names = names.join(", ");
            self.wrapped("  ", &format!("columns left out to fit the terminal (--wide): {names}"));
        }
    }

    /// Adds a section of sentences, if there are any.
    pub(super) fn sentences(&mut self, title: &str, sentences: &[String]) {
        if sentences.is_empty() {
            return;
        }
        self.heading(title);
        for sentence in sentences {
            self.wrapped("  - ", sentence);
        }
    }

    /// Adds a paragraph of at most 100 columns; lines after the first are indented like `first`.
    pub(super) fn wrapped(&mut self, first: &str, text: &str) {
        if self.is_markdown {
            self.line(&format!("{first}{text}"));
            return;
        }
        let columns = self.columns.unwrap_or(PARAGRAPH).min(PARAGRAPH);
        let indent = columns_of(first);
        self.lines(lines_of((first, indent), indent, text, columns));
    }

    fn lines(&mut self, lines: Vec<String>) {
        lines.iter().for_each(|line| self.line(line));
    }

    /// Adds a line if a list of `all` entries was cut.
    pub(super) fn cut(&mut self, all: usize) {
        if all > LIST_MAX {
            let more = all - LIST_MAX;
            self.line(&format!("  ... and {more} more: --format json has all"));
        }
    }
}

/// A bandwidth, else its lower bound. Operations of a few bytes have no meaningful bandwidth.
pub(super) fn bandwidth(known: Option<f64>, least: Option<f64>) -> String {
    let matters = |gbs: &f64| *gbs >= SLOWEST;
    match (known, least.filter(matters)) {
        (Some(gbs), _) if !matters(&gbs) => format!("<{SLOWEST}"),
        (None, Some(least)) => format!(">={}", three(least)),
        (known, _) => or_dash(known, three),
    }
}

/// True if more than 1 % of the operations have no times.
pub(super) fn is_part(timed: u64, all: u64) -> bool {
    all.saturating_sub(timed).saturating_mul(100) > all
}

/// The value, or `-` if it is unknown.
pub(super) fn or_dash<T>(value: Option<T>, text: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "-".into(), text)
}

/// A job rank, else the communicator rank, which is then labelled as such.
pub(super) fn rank_text(rank: Option<u32>, comm_rank: Option<i32>) -> String {
    match (rank, comm_rank) {
        (Some(rank), _) => format!("rank {rank}"),
        (None, Some(rank)) => format!("communicator rank {rank}"),
        (None, None) => "no rank".into(),
    }
}

/// A rank as [`rank_text`] names it, for a cell in a column of ranks.
pub(super) fn rank_cell(rank: Option<u32>, comm_rank: Option<i32>) -> String {
    match (rank, comm_rank) {
        (Some(rank), _) => rank.to_string(),
        (None, Some(rank)) => format!("comm {rank}"),
        (None, None) => "-".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_screen_has_a_last_line_and_markdown_has_none() {
        for (mut page, always) in [(Page::new(false), false), (Page::markdown(), true)] {
            page.line("one");
            page.line("two");
            assert!(page.fits(2));
            assert_eq!(page.fits(1), always);
        }
    }
}
