// SPDX-License-Identifier: Apache-2.0
/*!
The report of a run as one HTML file that opens without a network: the answer, charts, tables.

[`render`] takes what `report`, `diagnose` and `stragglers` found. The charts are SVG, drawn here
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
mod chart;
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

use facts::Facts;
use maud::{Markup, html};
use ncclscope_answer::Answer;
use ncclscope_diagnose::{Diagnosis, Waiting};
use ncclscope_report::Report;
use ncclscope_stragglers::{Details, Report as Slow};

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
    pub slow: &'a Slow,
    /// How long the others waited for each rank.
    pub details: &'a Details,
    /// Why the job hangs.
    pub hang: &'a Diagnosis,
    /// Which ranks wait for which.
    pub waiting: &'a [Waiting],
}

/// A section of the page.
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
    frame::page(content, &facts, &sections).into_string()
}

/// The sections in the order of the page. A section without content is left out where its absence
/// says nothing.
fn sections(content: Content<'_>, facts: &Facts<'_>) -> Vec<Section> {
    let mut sections = vec![findings::section(content)];
    sections.extend(wait_graph::section(content));
    sections.extend([
        time::section(content.report),
        bandwidth::section(content.report, facts),
        latency::section(content.report, facts),
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
