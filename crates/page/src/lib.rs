// SPDX-License-Identifier: Apache-2.0
/*!
The report of a run, or the comparison of two, as one HTML file that opens without a network: the
answer, charts, tables.

[`render`] takes the results of `report`, `diagnose` and `stragglers`, [`render_comparison`] those
of `compare`. The charts are SVG, drawn here (`chart`); the figures also stand in the page as JSON,
under the names that `report --format json` gives them, and the page's script makes searchable
tables of them (`data`). Data that grows with the number of ranks is binned or truncated, and the
page says so.

Names and sentences come from recordings. `maud` escapes every text; the JSON cannot end its element
(`<` is written as `\u003c`); and the page allows only its own script and style sheet, by their
hashes (`policy`), and no request.

This crate does **not** analyse anything, write files, or know how a report is printed.
*/
#![forbid(unsafe_code)]

mod bandwidth;
mod changes;
mod chart;
mod comparison;
mod content;
mod data;
mod facts;
mod findings;
mod frame;
mod latency;
mod lateness;
mod links;
mod losses;
mod policy;
mod run;
mod section;
mod steps;
mod table;
mod time;
mod wait_graph;

pub use comparison::{ComparisonContent, render_comparison};
pub use content::{Beside, Content};
pub use run::render;
