// SPDX-License-Identifier: Apache-2.0
//! A chart with its title, description, legend and table.

use super::px;
use maud::{Markup, html};

#[derive(Debug)]
pub(crate) struct Figure<'a> {
    /// Its id, unique in the page.
    pub(crate) id: &'a str,
    pub(crate) title: &'a str,
    /// A description for people who cannot see the chart.
    pub(crate) description: &'a str,
    /// Maximum size; the chart shrinks if there is less room.
    pub(crate) size: [f64; 2],
}

impl Figure<'_> {
    /// The figure: caption, `drawing`, and what stands below it.
    pub(crate) fn draw(&self, drawing: &Markup, below: &Markup) -> Markup {
        let Figure { id, title, description, size: [width, height] } = self;
        let view = format!("0 0 {} {}", px(*width), px(*height));
        html! {
            figure id=(id) {
                figcaption { (title) }
                svg viewBox=(view) width=(px(*width)) height=(px(*height)) role="img"
                    aria-labelledby=(format!("{id}-t {id}-d")) {
                    title id=(format!("{id}-t")) { (title) }
                    desc id=(format!("{id}-d")) { (description) }
                    (drawing)
                }
                (below)
            }
        }
    }
}

/// The symbol of an entry in a legend.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Swatch {
    /// A filled square.
    Area,
    /// A line with a point.
    Line,
    /// A dashed line with a square: of another run.
    Dashes,
    /// A ring: a lower bound.
    Ring,
}

/// An entry of a legend.
#[derive(Clone, Debug)]
pub(crate) struct Legend {
    /// The CSS class of its colour.
    pub(crate) class: String,
    pub(crate) swatch: Swatch,
    pub(crate) label: String,
    /// The role to which the entry belongs; hidden together with that role.
    pub(crate) role: Option<String>,
}

pub(crate) fn legend(entries: &[Legend]) -> Markup {
    html! {
        ul.legend {
            @for entry in entries {
                li data-role=[entry.role.as_deref()] {
                    svg.swatch.(entry.class) width="22" height="12" aria-hidden="true" {
                        @match entry.swatch {
                            Swatch::Area => { rect x="4" y="0" width="14" height="12" rx="2" {} }
                            Swatch::Line => {
                                line x1="0" x2="22" y1="6" y2="6" {}
                                circle cx="11" cy="6" r="4" {}
                            }
                            Swatch::Dashes => {
                                line.dashes x1="0" x2="22" y1="6" y2="6" {}
                                rect.ring x="6" y="1" width="10" height="10" {}
                            }
                            Swatch::Ring => { circle.ring cx="11" cy="6" r="4" {} }
                        }
                    }
                    (entry.label)
                }
            }
        }
    }
}
