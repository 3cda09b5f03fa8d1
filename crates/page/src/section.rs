// SPDX-License-Identifier: Apache-2.0
//! A section of a page: a heading, a sentence, charts.

use maud::{Markup, html};

/// A section of a page.
#[derive(Debug)]
pub(crate) struct Section {
    /// Its anchor.
    pub(crate) id: &'static str,
    /// Its title, also in the navigation.
    pub(crate) title: &'static str,
    /// One sentence that says what it shows.
    pub(crate) about: &'static str,
    /// The charts, or the sentence that says why there are none.
    pub(crate) body: Markup,
}

/// A sentence in place of a chart.
pub(crate) fn absent(why: &str) -> Markup {
    html! { p.absent { (why) } }
}
