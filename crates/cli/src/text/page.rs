// SPDX-License-Identifier: Apache-2.0
//! The page that the parts of the report write to: lines under headings.

use crate::output::in_a_line;
use crate::sheet::escaped;
use crate::table::Table;

/// The longest list; JSON has all.
pub(super) const LIST_MAX: usize = 20;

/// Lines under headings.
#[derive(Debug)]
pub(crate) struct Page {
    text: String,
    has_colour: bool,
    is_markdown: bool,
}

impl Page {
    /// An empty page.
    pub(crate) fn new(has_colour: bool) -> Page {
        Page { text: String::new(), has_colour, is_markdown: false }
    }

    /// An empty page in GitHub's Markdown.
    pub(crate) fn markdown() -> Page {
        Page { text: String::new(), has_colour: false, is_markdown: true }
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
        let title = if self.has_colour { format!("\x1b[1m{title}\x1b[0m") } else { title.into() };
        self.line(&title);
    }

    /// Adds a line. A line break in a name of a recording begins no other.
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

    /// Adds a line with a label, which may have a colour. It is cut at 160 columns.
    pub(super) fn labelled(&mut self, label: &str, colour: Option<&str>, text: &str) {
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
        let label = match colour.filter(|_| self.has_colour) {
            Some(colour) => {
                format!("{colour}{label}\x1b[0m{}", " ".repeat(6usize.saturating_sub(label.len())))
            }
            None => format!("{label:<6}"),
        };
        let gap = if label.ends_with(' ') { "" } else { "  " };
        self.line(&format!("{label}{gap}{text}"));
    }

    /// Adds a table.
    pub(super) fn table(&mut self, table: &Table) {
        if self.is_markdown {
            let gap = if self.text.ends_with("\n\n") { "" } else { "\n" };
            self.text.push_str(&format!("{gap}{}\n", table.sheet().markdown()));
            return;
        }
        table.lines("  ").iter().for_each(|line| self.line(line));
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
        let mut line = first.to_owned();
        for word in text.split_whitespace() {
            if line.len() > first.len() && line.len() + word.len() > 100 {
                self.line(&line);
                line = " ".repeat(first.len());
            }
            line.push_str(word);
            line.push(' ');
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
