// SPDX-License-Identifier: Apache-2.0
/*!
The report as text: the answer first. Then either one screen, whatever the number of ranks, or all
of it: problems, open operations, the tables, and what this run does not show.
*/

mod events;
mod head;
mod operations;
mod page;
mod peers;
mod screen;

use ncclscope_answer::{Answer, State};
use ncclscope_report::Report;
use ncclscope_report::schema::Loss;
use page::Page;
use serde_json::Value;

/// What a report prints.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Content<'a> {
    pub(crate) answer: &'a Answer,
    pub(crate) report: &'a Report,
    /// The content of `run.json`.
    pub(crate) run: Option<&'a Value>,
}

/// The answer and one screen.
pub(crate) fn screen(content: Content<'_>, has_colour: bool) -> String {
    let mut page = Page::new(has_colour);
    answer(&mut page, content.answer);
    screen::write(&mut page, content);
    page.into_text()
}

/// The answer and all of the report.
pub(crate) fn full(content: Content<'_>, has_colour: bool) -> String {
    let Content { report, run, .. } = content;
    let mut page = Page::new(has_colour);
    answer(&mut page, content.answer);
    head::write(&mut page, report, run);
    head::communicators(&mut page, report);
    page.sentences("PROBLEMS", &report.problems);
    losses(&mut page, &report.lost.losses);
    operations::open(&mut page, &report.open_operations);
    operations::table(&mut page, report);
    peers::table(&mut page, &report.peers);
    events::table(&mut page, report);
    events::threads(&mut page, report);
    page.sentences("THE PLUGIN NOTED", &report.notes);
    page.sentences("WHAT THIS RUN CANNOT TELL", &report.unknowable);
    page.into_text()
}

/// The answer's lines. A state has the colour of a traffic light.
fn answer(page: &mut Page, answer: &Answer) {
    for (at, (label, text)) in answer.lines().into_iter().enumerate() {
        let colour = match answer.state {
            _ if at != 0 => None,
            State::Hung => Some("\x1b[31m"),
            State::Slow | State::Unknown => Some("\x1b[33m"),
            State::Fine => Some("\x1b[32m"),
        };
        page.labelled(label, colour, &text);
    }
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
