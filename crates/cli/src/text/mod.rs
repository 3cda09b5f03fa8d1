// SPDX-License-Identifier: Apache-2.0
/*!
The report as text, for a user whose job hangs or is slow: what is wrong comes first, what is
still open next, then the tables, and at the end what this run cannot tell.
*/

mod events;
mod head;
mod operations;
mod peers;

use ncclscope_report::Report;
use ncclscope_report::schema::Loss;
use serde_json::Value;

/// Long lists are cut here; JSON has all.
const LIST_MAX: usize = 20;

/// Lines under headings.
#[derive(Debug)]
pub(crate) struct Page {
    text: String,
    has_colour: bool,
}

impl Page {
    /// A heading, set apart from what is above.
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

    /// A section of sentences, if there are any.
    fn sentences(&mut self, title: &str, sentences: &[String]) {
        if sentences.is_empty() {
            return;
        }
        self.heading(title);
        for sentence in sentences {
            self.wrapped("  - ", sentence);
        }
    }

    /// A paragraph of at most 100 columns, later lines indented as far as `first`.
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

    /// Says that a list of `all` was cut.
    fn cut(&mut self, all: usize) {
        if all > LIST_MAX {
            let more = all - LIST_MAX;
            self.line(&format!("  ... and {more} more: --format json has all"));
        }
    }
}

/// The report. `run` is what `run.json` holds.
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

/// What is missing, each with what to do about it.
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

/// `-` for what is unknown.
fn or_dash<T>(value: Option<T>, text: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "-".into(), text)
}
