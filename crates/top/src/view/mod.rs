// SPDX-License-Identifier: Apache-2.0
/*!
The state of the view that the user chooses with keys: order, filter, selected rank, panes.

The view knows no terminal: [`View::press`] takes keys, [`View::update`] the next picture, and
[`draw`] paints into any of ratatui's backends.
*/

mod columns;
mod detail;
mod help;
mod paint;
#[cfg(test)]
mod tests;

pub use columns::{Column, cell};
pub use paint::draw;

use crate::group::by_host;
use crate::picture::{Picture, Row};

/// Maximum length of the filter, characters.
const LONGEST_FILTER: usize = 64;

/// The keys that the view handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// A character.
    Char(char),
    /// Enter.
    Enter,
    /// Escape.
    Escape,
    /// Backspace.
    Backspace,
    /// One row up.
    Up,
    /// One row down.
    Down,
    /// A screen up.
    PageUp,
    /// A screen down.
    PageDown,
    /// The first row.
    Home,
    /// The last row.
    End,
    /// Ctrl-C.
    Interrupt,
}

/// The effect of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The view stays open.
    Stay,
    /// The user quits.
    Quit,
}

/// The pane that covers the table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Pane {
    #[default]
    Table,
    Help,
    /// A rank.
    Detail(Identity),
}

/// Identifies a row in the next picture.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Identity {
    job: String,
    rank: Option<u32>,
    host: String,
    pid: Option<u32>,
}

impl Identity {
    fn of(row: &Row) -> Identity {
        let Row { job, rank, host, pid, .. } = row;
        Identity { job: job.clone(), rank: *rank, host: host.clone(), pid: *pid }
    }

    fn is_of(&self, row: &Row) -> bool {
        (self.rank, self.pid) == (row.rank, row.pid) && self.host == row.host && self.job == row.job
    }
}

/// The view of a picture, with the user's settings.
#[derive(Debug)]
pub struct View {
    shown: Picture,
    /// The latest picture, while the view is frozen at an earlier one.
    held: Option<Picture>,
    is_frozen: bool,
    order: Column,
    is_reversed: bool,
    filter: String,
    /// The job and host whose ranks are shown; `None`: all.
    of_host: Option<(String, String)>,
    /// True while the user types a filter.
    is_typing: bool,
    is_grouped: bool,
    pane: Pane,
    /// The rows of the table, filtered and sorted.
    rows: Vec<Row>,
    selected: Option<Identity>,
    /// Index of the selected row.
    at: usize,
    /// Index of the first row on the screen.
    first: usize,
    /// Number of screen lines that showed rows when last painted.
    height: usize,
    /// Index of the first visible line of the detail pane.
    line: usize,
    has_colour: bool,
}

impl View {
    /// A view without a picture yet.
    #[must_use]
    pub fn new(has_colour: bool) -> View {
        View {
            shown: Picture::default(),
            held: None,
            is_frozen: false,
            order: Column::State,
            is_reversed: false,
            filter: String::new(),
            of_host: None,
            is_typing: false,
            is_grouped: false,
            pane: Pane::Table,
            rows: Vec::new(),
            selected: None,
            at: 0,
            first: 0,
            height: 1,
            line: 0,
            has_colour,
        }
    }

    /// Shows the next picture; while the view is frozen, stores it for later.
    pub fn update(&mut self, picture: Picture) {
        if self.is_frozen {
            self.held = Some(picture);
            return;
        }
        self.shown = picture;
        self.arrange();
    }

    /// Handles a key.
    pub fn press(&mut self, key: Key) -> Step {
        if key == Key::Interrupt {
            return Step::Quit;
        }
        if self.is_typing {
            self.type_filter(key);
            return Step::Stay;
        }
        match (&self.pane, key) {
            (_, Key::Char('q')) => return Step::Quit,
            (_, Key::Char(' ')) => self.freeze(),
            (Pane::Table, key) => self.press_in_table(key),
            (_, Key::Escape | Key::Enter | Key::Char('?') | Key::Backspace) => {
                self.pane = Pane::Table;
            }
            (_, Key::Up | Key::Char('k')) => self.line = self.line.saturating_sub(1),
            (_, Key::Down | Key::Char('j')) => self.line = self.line.saturating_add(1),
            (_, Key::PageUp) => self.line = self.line.saturating_sub(self.height),
            (_, Key::PageDown) => self.line = self.line.saturating_add(self.height),
            (_, Key::Home) => self.line = 0,
            _ => {}
        }
        Step::Stay
    }

    fn press_in_table(&mut self, key: Key) {
        let last = self.rows.len().saturating_sub(1);
        match key {
            Key::Char('?' | 'h') => self.open(Pane::Help),
            Key::Char('/') => self.is_typing = true,
            Key::Char('>' | 's') => self.order_by(self.order.next()),
            Key::Char('<' | 'S') => self.order_by(self.order.previous()),
            Key::Char('r') => {
                self.is_reversed = !self.is_reversed;
                self.arrange();
            }
            Key::Char('g') => {
                self.is_grouped = !self.is_grouped;
                self.arrange();
            }
            Key::Escape => {
                self.filter.clear();
                self.of_host = None;
                self.arrange();
            }
            Key::Enter => self.enter(),
            Key::Up | Key::Char('k') => self.select(self.at.saturating_sub(1)),
            Key::Down | Key::Char('j') => self.select(self.at.saturating_add(1)),
            Key::PageUp => self.select(self.at.saturating_sub(self.height)),
            Key::PageDown => self.select(self.at.saturating_add(self.height)),
            Key::Home => self.select(0),
            Key::End | Key::Char('G') => self.select(last),
            _ => {}
        }
    }

    fn open(&mut self, pane: Pane) {
        self.pane = pane;
        self.line = 0;
    }

    /// Opens the detail pane of the selected rank, or the ranks of the selected host.
    fn enter(&mut self) {
        let Some(row) = self.rows.get(self.at).cloned() else { return };
        if self.is_grouped {
            self.is_grouped = false;
            self.of_host = Some((row.job, row.host));
            self.arrange();
        } else {
            self.open(Pane::Detail(Identity::of(&row)));
        }
    }

    fn freeze(&mut self) {
        self.is_frozen = !self.is_frozen;
        if let Some(latest) = self.held.take() {
            self.update(latest);
        }
    }

    fn order_by(&mut self, column: Column) {
        self.order = column;
        self.arrange();
    }

    fn type_filter(&mut self, key: Key) {
        match key {
            Key::Enter => self.is_typing = false,
            Key::Escape => {
                self.is_typing = false;
                self.filter.clear();
            }
            Key::Backspace => drop(self.filter.pop()),
            Key::Char(c) if self.filter.chars().count() < LONGEST_FILTER => self.filter.push(c),
            _ => {}
        }
        self.arrange();
    }

    fn select(&mut self, at: usize) {
        self.at = at.min(self.rows.len().saturating_sub(1));
        self.selected = self.rows.get(self.at).map(Identity::of);
    }

    /// Filters and sorts the rows, and finds the selected row again.
    fn arrange(&mut self) {
        let rows = &self.shown.ranks;
        let rows = if self.is_grouped { by_host(rows) } else { rows.clone() };
        let wanted = self.filter.to_lowercase();
        let is_there = |row: &Row| {
            self.of_host.as_ref().is_none_or(|(job, host)| (job, host) == (&row.job, &row.host))
        };
        let is_wanted = |row: &Row| is_there(row) && matches(row, &wanted);
        self.rows = rows.into_iter().filter(is_wanted).collect();
        let order = self.order;
        self.rows.sort_by(|a, b| columns::compare(order, a, b));
        if self.is_reversed {
            self.rows.reverse();
        }
        let selected = self.selected.as_ref();
        let found = selected.and_then(|one| self.rows.iter().position(|row| one.is_of(row)));
        let otherwise = if selected.is_some() { self.at } else { 0 };
        self.select(found.unwrap_or(otherwise));
    }

    /// The row in the detail pane; `None` if it no longer exists.
    fn detailed(&self) -> Option<&Row> {
        let Pane::Detail(identity) = &self.pane else { return None };
        self.shown.ranks.iter().find(|row| identity.is_of(row))
    }
}

/// True if each word of `wanted` occurs in one of the row's texts.
fn matches(row: &Row, wanted: &str) -> bool {
    let texts: Vec<String> =
        Column::ALL.iter().map(|column| cell(row, *column).to_lowercase()).collect();
    let comms = row.functions.iter().map(|function| function.role.to_lowercase());
    let texts: Vec<String> = texts.into_iter().chain(comms).collect();
    wanted.split_whitespace().all(|word| texts.iter().any(|text| text.contains(word)))
}
