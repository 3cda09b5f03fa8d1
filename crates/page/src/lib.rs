// SPDX-License-Identifier: Apache-2.0
/*!
The report of a run, or the comparison of two, as one HTML file that opens without a network: the
answer, charts, tables.

[`render`] takes what `report`, `diagnose` and `stragglers` found, [`render_comparison`] what
`compare` found. The charts are SVG, drawn here
(`chart`); the figures also stand in the page as JSON, under the names that `report --format json`
gives them, and the page's script makes searchable tables of them (`data`). What grows with the
number of ranks is put into bins or cut off, and the page says so.

Names and sentences come from recordings. `maud` escapes every text; the JSON cannot end its element
(`<` is written as `\u003c`); and the page allows only its own script and style sheet, by their
hashes (`policy`), and no request.

This crate does **not** find anything, write files, or know how a report is printed.
*/
#![forbid(unsafe_code)]

mod bandwidth;
mod changes;
mod chart;
mod comparison;
mod data;
mod facts;
mod findings;
mod frame;
mod latency;
mod lateness;
mod links;
mod losses;
mod policy;
mod steps;
mod table;
mod time;
mod wait_graph;

pub use comparison::{ComparisonContent, render_comparison};

use data::Data;
use facts::Facts;
use frame::Frame;
use maud::{Markup, html};
use ncclscope_answer::{Answer, State};
use ncclscope_diagnose::{Diagnosis, Waiting};
use ncclscope_report::Report;
use ncclscope_stragglers::{Details, SlowReport};

/// What the page shows.
#[derive(Clone, Copy, Debug)]
pub struct Content<'a> {
    /// The run, as a command names it.
    pub input: &'a str,
    /// The answer.
    pub answer: &'a Answer,
    /// The figures.
    pub report: &'a Report,
    /// What slows the job down.
    pub slow: &'a SlowReport,
    /// How long the others waited for each rank.
    pub details: &'a Details,
    /// Why the job hangs.
    pub hang: &'a Diagnosis,
    /// Which ranks wait for which.
    pub waiting: &'a [Waiting],
    /// Another run, whose bandwidth is drawn beside this one's.
    pub beside: Option<Beside<'a>>,
}

/// A run that another is drawn beside.
#[derive(Clone, Copy, Debug)]
pub struct Beside<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its figures.
    pub report: &'a Report,
}

#[derive(Debug)]
struct Section {
    /// Its anchor.
    id: &'static str,
    /// Its title, also in the navigation.
    title: &'static str,
    /// One sentence that says what it shows.
    about: &'static str,
    /// The charts, or the sentence that says why there are none.
    body: Markup,
}

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

/// The class of a state's colour.
fn tone(state: State) -> &'static str {
    match state {
        State::Hung => "bad",
        State::Slow => "poor",
        State::Fine => "good",
        State::Unknown => "unknown",
    }
}

/// The sections in the order of the page. A section without content is left out where its absence
/// says nothing.
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

/// A sentence in place of a chart.
fn absent(why: &str) -> Markup {
    html! { p.absent { (why) } }
}
