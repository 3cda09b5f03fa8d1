// SPDX-License-Identifier: Apache-2.0
/*!
The report as text: the answer first. Then either one screen, whatever the number of ranks, or all
of it: problems, open operations, the tables, and what this run does not show.
The comparison of two runs has the same form.
*/

mod compare;
mod content;
mod events;
mod groups;
mod head;
mod late;
mod losses;
mod operations;
mod page;
mod peers;
mod screen;
mod why_not;

pub(crate) use compare::comparison;
pub(crate) use content::Content;
pub(crate) use groups::groups;
pub(crate) use page::Page;
pub(crate) use why_not::{list_rules, why_not};

use ncclscope_answer::State;
use ncclscope_console::printable::Colour;

/// The answer and one screen.
pub(crate) fn screen(content: Content<'_>, mut page: Page) -> String {
    answer(&mut page, content);
    screen::write(&mut page, content);
    page.into_text()
}

/// The answer and the whole report.
pub(crate) fn full(content: Content<'_>, mut page: Page) -> String {
    let Content { report, run, .. } = content;
    answer(&mut page, content);
    head::write(&mut page, report, run, head::Room::Full);
    head::communicators(&mut page, report);
    page.sentences("PROBLEMS", &report.problems);
    losses::write(&mut page, &report.lost.losses);
    operations::open(&mut page, report);
    operations::table(&mut page, report);
    late::write(&mut page, content, usize::MAX);
    peers::table(&mut page, report);
    events::table(&mut page, report);
    events::threads(&mut page, report);
    page.sentences("THE PLUGIN NOTED", &report.notes);
    page.sentences("WHAT THIS RUN CANNOT TELL", &report.unknowable);
    page.into_text()
}

/// The answer's lines. A state has the colour of a traffic light.
fn answer(page: &mut Page, Content { answer, filter, .. }: Content<'_>) {
    for (at, (label, text)) in answer.lines().into_iter().enumerate() {
        let colour = match answer.state {
            _ if at != 0 => None,
            State::Crashed | State::Hung => Some(Colour::Red),
            State::Slow | State::Unknown => Some(Colour::Yellow),
            State::Fine => Some(Colour::Green),
        };
        page.labelled(label, colour, &text);
    }
    if let Some(filter) = filter {
        page.labelled("filter", None, &format!("the figures below are of: {filter}"));
    }
}
