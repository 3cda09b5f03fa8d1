// SPDX-License-Identifier: Apache-2.0
//! The frame of the page: the answer, the navigation and the filters above the sections, and the
//! tables and the data below them.

use crate::policy::policy;
use crate::section::Section;
use crate::table::Table;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use std::collections::BTreeSet;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// A page without its frame.
#[derive(Debug)]
pub(crate) struct Frame<'a> {
    /// The title of the page in the browser.
    pub(crate) title: String,
    pub(crate) heading: Markup,
    pub(crate) answer: Markup,
    /// The roles to choose from.
    pub(crate) roles: BTreeSet<&'a str>,
    pub(crate) sections: &'a [Section],
    pub(crate) tables: &'a [Table],
    /// The data as the content of a `script` element ([`crate::data::script`]).
    pub(crate) data: String,
    /// The command that prints the data.
    pub(crate) command: &'static str,
}

pub(crate) fn page(frame: Frame<'_>) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(policy(SCRIPT, STYLE));
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="referrer" content="no-referrer";
                title { (frame.title) " - ncclscope" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                a.skip href="#answer" { "Skip to the answer" }
                (header(&frame.heading, frame.sections))
                main {
                    (frame.answer)
                    (filters(&frame.roles))
                    @for section in frame.sections { (draw(section)) }
                    (tables(frame.tables))
                }
                footer {
                    p { "Made by ncclscope " (env!("CARGO_PKG_VERSION")) ". The figures stand in "
                        "this file as JSON, under the names of " code { (frame.command) } "." }
                }
                script #data type="application/json" { (PreEscaped(frame.data)) }
                script { (PreEscaped(SCRIPT)) }
            }
        }
    }
}

fn header(heading: &Markup, sections: &[Section]) -> Markup {
    html! {
        header {
            div.title {
                span.product { "ncclscope" }
                h1 { (heading) }
                button #theme type="button" hidden { "Theme: system" }
            }
            nav aria-label="Sections" {
                ul {
                    @for section in sections {
                        li { a href=(format!("#{}", section.id)) { (section.title) } }
                    }
                    li { a href="#tables" { "Tables" } }
                }
            }
        }
    }
}

/// The lines of an answer: the state with its sentence, then labels with texts. `tone` is the CSS
/// class of the state's colour.
pub(crate) fn answer(tone: &str, lines: &[(&str, &str)]) -> Markup {
    let (first, rest) = lines.split_at(lines.len().min(1));
    html! {
        section #answer.answer.(tone) aria-labelledby="state" {
            @for (state, text) in first {
                h2 #state { span.state { (state) } " " span.headline { (text) } }
            }
            dl {
                @for (label, text) in rest {
                    dt { (label) }
                    dd { @if *label == "next" { code { (text) } } @else { (text) } }
                }
            }
        }
    }
}

fn filters(roles: &BTreeSet<&str>) -> Markup {
    html! {
        form #filters.filters hidden aria-label="Filters of charts and tables" {
            label { "Role "
                select #role { option value="" { "all" }
                    @for role in roles { option value=(role) { (role) } } }
            }
            label { "Ranks "
                input #ranks type="text" inputmode="numeric" placeholder="such as 8, 12-15"
                    autocomplete="off" spellcheck="false";
            }
            button #reset type="button" { "Reset" }
            span #filter-say role="status" {}
        }
    }
}

fn draw(section: &Section) -> Markup {
    let label = format!("{}-h", section.id);
    html! {
        section id=(section.id) aria-labelledby=(label) {
            h2 id=(label) { (section.title) }
            p.about { (section.about) }
            (section.body)
        }
    }
}

fn tables(tables: &[Table]) -> Markup {
    html! {
        section #tables aria-labelledby="tables-h" {
            h2 #tables-h { "Tables" }
            p.about { "Choose a heading to sort by it. The filters above apply here, too." }
            noscript { p.absent { "The tables need the script of this page, which is off." } }
            @for table in tables {
                section.table id=(format!("table-{}", table.id)) data-table=(table.id)
                    aria-labelledby=(format!("table-{}-h", table.id)) {
                    h3 id=(format!("table-{}-h", table.id)) { (table.title) }
                    p.about { (table.about)
                        @if table.left_out > 0 {
                            " " strong { (table.left_out) " further rows found no room: "
                                code { "report --format json" } " has all." }
                        }
                    }
                }
            }
        }
    }
}
