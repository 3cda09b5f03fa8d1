// SPDX-License-Identifier: Apache-2.0
/*!
The report as text: problems first, then open operations, then the tables, and at the end what this
run does not show.
*/

mod events;
mod head;
mod operations;
mod peers;

use ncclscope_report::Report;
use ncclscope_report::schema::Loss;
use serde_json::Value;

/// The longest list; JSON has all.
const LIST_MAX: usize = 20;

/// Lines under headings.
#[derive(Debug)]
pub(crate) struct Page {
    text: String,
    has_colour: bool,
}

impl Page {
    /// Adds a heading after an empty line.
    fn heading(&mut self, title: &str) {
        if !self.text.is_empty() {
            self.text.push('\n');
        }
        let title = if self.has_colour { format!("\x1b[1m{title}\x1b[0m") } else { title.into() };
        self.line(&title);
    }

    fn line(&mut self, line: &str) {
        self.text.push_str(line.trim_end());
        self.text.push('\n');
    }

    fn lines(&mut self, lines: &[String]) {
        lines.iter().for_each(|line| self.line(line));
    }

    /// Adds a section of sentences, if there are any.
    fn sentences(&mut self, title: &str, sentences: &[String]) {
        if sentences.is_empty() {
            return;
        }
        self.heading(title);
        for sentence in sentences {
            self.wrapped("  - ", sentence);
        }
    }

    /// Adds a paragraph of at most 100 columns; lines after the first are indented like `first`.
    fn wrapped(&mut self, first: &str, text: &str) {
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
    fn cut(&mut self, all: usize) {
        if all > LIST_MAX {
            let more = all - LIST_MAX;
            self.line(&format!("  ... and {more} more: --format json has all"));
        }
    }
}

/// The report. `run` is the content of `run.json`.
pub(crate) fn render(report: &Report, run: Option<&Value>, has_colour: bool) -> String {
    let mut page = Page { text: String::new(), has_colour };
    head::write(&mut page, report, run);
    page.sentences("PROBLEMS", &report.problems);
    losses(&mut page, &report.lost.losses);
    operations::open(&mut page, &report.open_operations);
    operations::table(&mut page, report);
    peers::table(&mut page, &report.peers);
    events::table(&mut page, report);
    events::threads(&mut page, report);
    page.sentences("THE PLUGIN NOTED", &report.notes);
    page.sentences("WHAT THIS RUN CANNOT TELL", &report.unknowable);
    page.text
}

/// The losses, each with its remedy.
fn losses(page: &mut Page, losses: &[Loss]) {
    if !losses.is_empty() {
        page.heading("NOT RECORDED");
    }
    for Loss { what, advice } in losses {
        page.wrapped("  - ", what);
        if let Some(advice) = advice {
            page.wrapped("    -> ", advice);
        }
    }
}

/// The value, or `-` if it is unknown.
fn or_dash<T>(value: Option<T>, text: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "-".into(), text)
}
