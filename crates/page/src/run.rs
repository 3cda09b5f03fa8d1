// SPDX-License-Identifier: Apache-2.0
//! The page of a run.

use crate::content::Content;
use crate::data::{self, Data};
use crate::facts::Facts;
use crate::frame::{self, Frame};
use crate::section::Section;
use crate::{bandwidth, findings, latency, lateness, links, losses, steps, time, wait_graph};
use maud::html;
use ncclscope_answer::State;

/// The page.
#[must_use]
pub fn render(content: Content<'_>) -> String {
    let facts = Facts::of(content.report);
    let sections = sections(content, &facts);
    let data = Data::of(content, &facts);
    let lines = content.answer.lines();
    let lines: Vec<(&str, &str)> = lines.iter().map(|(label, text)| (&**label, &**text)).collect();
    let frame = Frame {
        title: format!("{}: {}", content.answer.state.word(), content.input),
        heading: html! { "Report of " span.input { (content.input) } },
        answer: frame::answer(tone(content.answer.state), &lines),
        roles: facts.roles().collect(),
        sections: &sections,
        tables: data.tables(),
        data: data::script(&data),
        command: "report --format json",
    };
    frame::page(frame).into_string()
}

/// The CSS class of a state's colour.
fn tone(state: State) -> &'static str {
    match state {
        State::Crashed | State::Hung => "bad",
        State::Slow => "poor",
        State::Fine => "good",
        State::Unknown => "unknown",
    }
}

/// The sections in the order of the page. A section without content is left out if its absence has
/// no meaning.
fn sections(content: Content<'_>, facts: &Facts<'_>) -> Vec<Section> {
    let mut sections = vec![findings::section(content)];
    sections.extend(wait_graph::section(content));
    sections.extend([
        time::section(content.report),
        bandwidth::section(content.report, facts, content.beside),
        latency::section(content.report),
        lateness::section(content),
        steps::section(content),
        links::section(content.report, facts),
        losses::section(content.report),
    ]);
    sections
}
