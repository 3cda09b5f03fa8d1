// SPDX-License-Identifier: Apache-2.0
//! The page that the parts of the report write to: lines under headings.

use crate::output::in_a_line;
use crate::printable::Colour;
use crate::terminal;

/// The longest list; JSON has all.
pub(super) const LIST_MAX: usize = 20;
/// Columns of a paragraph at most.
const PARAGRAPH: usize = 100;
/// Columns of a label and the gap behind it.
const LABEL: usize = 6;

/// Lines under headings.
#[derive(Debug)]
pub(super) struct Page {
    text: String,
    has_colour: bool,
    /// Of the terminal that will show it.
    columns: Option<usize>,
}

impl Page {
    /// An empty page.
    pub(super) fn new(has_colour: bool) -> Page {
        Page { text: String::new(), has_colour, columns: terminal::width() }
    }

    pub(super) fn into_text(self) -> String {
        self.text
    }

    /// Adds a heading after an empty line.
    pub(super) fn heading(&mut self, title: &str) {
        if !self.text.is_empty() {
            self.text.push('\n');
        }
        let title = if self.has_colour { Colour::Bold.paint(title) } else { title.into() };
        self.line(&title);
    }

    /// Adds a line. A line break in a name of a recording begins no other.
    pub(super) fn line(&mut self, line: &str) {
        self.text.push_str(in_a_line(line).trim_end());
        self.text.push('\n');
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
        let start = match label.chars().count() {
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
            Some(columns) => self.broken((&first, start), LABEL, &text, columns),
            None => self.line(&format!("{first}{text}")),
        }
    }

    pub(super) fn lines(&mut self, lines: &[String]) {
        lines.iter().for_each(|line| self.line(line));
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
        let columns = self.columns.unwrap_or(PARAGRAPH).min(PARAGRAPH);
        let indent = first.chars().count();
        self.broken((first, indent), indent, text, columns);
    }

    /// Adds a paragraph of at most so many columns. It begins with a text, which may have colours,
    /// of so many columns.
    fn broken(&mut self, first: (&str, usize), indent: usize, text: &str, columns: usize) {
        let (mut line, mut length) = (first.0.to_owned(), first.1);
        for word in text.split_whitespace() {
            let word_length = word.chars().count();
            if line.ends_with(' ') && length > indent && length + word_length > columns {
                self.line(&line);
                (line, length) = (" ".repeat(indent), indent);
            }
            line.push_str(word);
            line.push(' ');
            length += word_length + 1;
        }
        self.line(&line);
    }

    /// Adds a line if a list of `all` entries was cut.
    pub(super) fn cut(&mut self, all: usize) {
        if all > LIST_MAX {
            let more = all - LIST_MAX;
            self.line(&format!("  ... and {more} more: --format json has all"));
        }
    }
}

/// The value, or `-` if it is unknown.
pub(super) fn or_dash<T>(value: Option<T>, text: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "-".into(), text)
}

/// A rank in the job, else the one in the communicator, which is then called that.
pub(super) fn rank_text(rank: Option<u32>, comm_rank: Option<i32>) -> String {
    match (rank, comm_rank) {
        (Some(rank), _) => format!("rank {rank}"),
        (None, Some(rank)) => format!("communicator rank {rank}"),
        (None, None) => "no rank".into(),
    }
}

/// The same in a column of ranks.
pub(super) fn rank_cell(rank: Option<u32>, comm_rank: Option<i32>) -> String {
    match (rank, comm_rank) {
        (Some(rank), _) => rank.to_string(),
        (None, Some(rank)) => format!("comm {rank}"),
        (None, None) => "-".into(),
    }
}
